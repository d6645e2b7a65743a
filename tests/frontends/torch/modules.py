"""torch's own samples of its modules (ModuleInfo), through Weft: a table by category.

    python -m tests.frontends.torch.modules [--compile] [NAME …]               a line for each module, then the table
    python -m tests.frontends.torch.modules --jobs 15 --json found.jsonl       by fifteen processes; goes on

A category is the file of torch.nn.modules that a module is in. Modules are built with each of the arguments that torch
tests them with, in float32 and without training, and called with the inputs of that test. A module is right when all
of its calls that export are; by default the graph is run by its numpy meaning, which is quick; --compile makes kernels.
"""

import argparse
import copy
import itertools
import json
import warnings
from collections import Counter, defaultdict

import torch
from torch.utils import _pytree as pytree

from tests.frontends import shares
from tests.frontends.torch.opinfo import compare, interpreted, operators
from weft.compiler import compile
from weft.core.errors import WeftError

FIRST = 6
"""Samples of each module: more of one are mostly the same operators at other sizes."""


class Call(torch.nn.Module):
    """A call of a module; its tensors are the inputs."""

    def __init__(self, module, args, kwargs):
        super().__init__()
        self.module = module
        leaves, self.structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self.leaves = [None if isinstance(one, torch.Tensor) else one for one in leaves]
        self.tensors = [one.detach().clone() for one in leaves if isinstance(one, torch.Tensor)]
        self.places = [at for at, one in enumerate(leaves) if isinstance(one, torch.Tensor)]

    def forward(self, *tensors):
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, tensors):
            leaves[at] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.module(*args, **kwargs)


def outcome(module, args, kwargs, compiled):
    """ "right", "no export: …", "refused: …" or "wrong: …"."""
    call = Call(module.eval(), args, kwargs)
    given = tuple(call.tensors)
    with torch.no_grad():
        try:
            wanted = call(*[one.clone() for one in given])
            program = torch.export.export(copy.deepcopy(call), given, strict=False)
        except Exception as error:
            return f"no export: {type(error).__name__}: {str(error)[:100]}"
        try:
            found = compile(program)(*given) if compiled else interpreted(program, given)
        except WeftError as error:
            return f"refused: {str(error)[:200]}"
        except Exception as error:
            return f"wrong: {type(error).__name__}: {str(error)[:200]}"
    return compare(wanted, found)


def examine(info, compiled):
    """What becomes of a module's samples."""
    found, notes = Counter(), {}
    torch.manual_seed(0)
    kinds = [one for one in (torch.float32, torch.int64) if one in info.dtypes] or [torch.float32]
    samples = info.module_inputs_func(info, device="cpu", dtype=kinds[0], requires_grad=False, training=False)
    for sample in itertools.islice(samples, FIRST):
        built, called = sample.constructor_input, sample.forward_input
        if called is None:
            continue
        module = info.module_cls(*built.args, **built.kwargs)
        said = outcome(module, called.args, called.kwargs, compiled)
        kind = said.partition(":")[0]
        found[kind] += 1
        notes.setdefault(kind, said)
    worst = next((kind for kind in ("wrong", "refused", "right", "no export") if found[kind]), "none")
    said = "" if worst == "right" else notes.get(worst, "")
    category = info.module_cls.__module__.rpartition(".")[2]
    return {"category": category, "outcome": worst, "samples": dict(found), "said": said}


def modules():
    """torch's table of modules with samples."""
    operators()  # which has stand-ins for what torch's test helpers import
    from torch.testing._internal.common_modules import module_db

    return module_db


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compile", action="store_true")
    shares.add_arguments(parser)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    table, total = defaultdict(Counter), Counter()
    asked = [one for one in modules() if not given.names or one.module_cls.__name__ in given.names]
    for row in shares.rows(given, asked, lambda one: one.module_cls.__name__, lambda one: examine(one, given.compile)):
        counts = table[row.get("category", "?")]
        counts[row["outcome"]] += 1
        counts["samples"] += row.get("samples", {}).get("right", 0)
        total[row["outcome"]] += 1
        if row["outcome"] != "right":
            print(f"{row['outcome']:10} {row['name']:28} {row.get('samples')} {row['said']}", flush=True)
    kinds = [kind for kind in ("right", "refused", "no export", "none", "wrong") if total[kind]]
    print(f"{'category':16}" + "".join(f"{kind:>11}" for kind in kinds) + "   right samples")
    for category, counts in sorted(table.items()):
        print(f"{category:16}" + "".join(f"{counts[kind]:11}" for kind in kinds) + f"{counts['samples']:16}")
    print(json.dumps(total))


if __name__ == "__main__":
    main()
