"""torch's own samples of its operators (OpInfo), through Weft: right, refused by name, or wrong.

    python -m tests.frontends.torch.opinfo [--first N] [--compile] [NAME …]    a line for each operator, then counts
    python -m tests.frontends.torch.opinfo --share 2/15 --json found.jsonl     a part, which goes on where it ended
    python -m tests.frontends.torch.opinfo --jobs 15 --json found.jsonl        all, by fifteen processes

By default the graph is run by its numpy meaning, which is quick; --compile makes kernels.
"""

import argparse
import importlib.util
import itertools
import json
import sys
import time
import types
import unittest
import warnings
from collections import Counter

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tests.frontends import shares
from weft.compiler import compile
from weft.core.errors import WeftError
from weft.frontends.torch.calls import as_array, as_tensor
from weft.frontends.torch.source import load
from weft.graph.interpreter import interpret_graph

RANDOM = ("bernoulli", "dropout", "empty", "multinomial", "rand", "uniform")
"""Words in the names of operators whose results may differ from call to call; others that do are seen."""


class Samples(torch.nn.Module):
    """Calls of an operator; their tensors are the inputs."""

    def __init__(self, op, samples):
        super().__init__()
        self.op = op
        calls = [((sample.input, *sample.args), sample.kwargs) for sample in samples]
        leaves, self.structure = pytree.tree_flatten(calls)
        self.leaves = [None if isinstance(one, torch.Tensor) else one for one in leaves]
        self.tensors = [one.detach().clone() for one in leaves if isinstance(one, torch.Tensor)]
        self.places = [at for at, one in enumerate(leaves) if isinstance(one, torch.Tensor)]

    def forward(self, *tensors):
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, tensors):
            leaves[at] = tensor
        return [self.op(*args, **kwargs) for args, kwargs in pytree.tree_unflatten(leaves, self.structure)]


def outcome(op, samples, compiled=False):
    """ "right", "no export", "refused: …" or "wrong: …"."""
    model = Samples(op, samples).eval()
    with torch.no_grad():
        try:
            wanted, again = (model(*[one.clone() for one in model.tensors]) for _ in range(2))
            is_random = any(word in op.name.replace("__rand__", "") for word in RANDOM)  # (`&` from the right)
            if compare(wanted, again) != "right" or is_random:
                return "no export: it is random, or holds what was in memory"
        except Exception as error:
            return f"no export: eager fails: {error}"
        try:
            program = torch.export.export(model, tuple(model.tensors), strict=False)
        except Exception as error:
            return f"no export: {type(error).__name__}: {str(error)[:100]}"
        try:
            found = compile(program)(*model.tensors) if compiled else interpreted(program, tuple(model.tensors))
        except WeftError as error:
            return f"refused: {str(error)[:200]}"
        except Exception as error:
            return f"wrong: {type(error).__name__}: {str(error)[:200]}"
    return compare(wanted, found)


def interpreted(model, args):
    """What an imported model gives by the numpy meaning of its graph."""
    made = load(model, args)
    arrays = [as_array(one) for one in made.calls.flatten(args, {})]
    return made.calls.unflatten([as_tensor(np.array(one)) for one in interpret_graph(made.graph, arrays)])


def compare(wanted, found):
    """ "right", or what is wrong with results."""
    a, b = pytree.tree_leaves(wanted), pytree.tree_leaves(found)
    if len(a) != len(b):
        return f"wrong: {len(b)} results instead of {len(a)}"
    for one, other in zip(a, b):
        if not isinstance(one, torch.Tensor):
            if one != other and one == one:
                return f"wrong: {other} instead of {one}"
            continue
        if not isinstance(other, torch.Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            found = f"{other.dtype}{list(other.shape)}" if isinstance(other, torch.Tensor) else repr(other)
            return f"wrong: {found} instead of {one.dtype}{list(one.shape)}"
        loose = {"rtol": 1e-4, "atol": 1e-5} if one.dtype == torch.float32 else {}
        try:
            torch.testing.assert_close(other, one, equal_nan=True, **loose)
        except AssertionError as error:
            return "wrong: " + " ".join(str(error).split())[:200]
    return "right"


def examine(op, first, dtype=torch.float32, compiled=False):
    """What becomes of the first samples of an operator."""
    found = Counter()
    notes = {}
    kind = dtype if dtype in op.supported_dtypes("cpu") else None
    kind = kind or next((one for one in (torch.int64, torch.bool) if one in op.supported_dtypes("cpu")), None)
    if kind is None:
        return found, notes
    torch.manual_seed(0)
    samples = list(itertools.islice(op.sample_inputs("cpu", kind, requires_grad=False), first))
    if samples and outcome(op, samples, compiled) == "right":
        return Counter(right=len(samples)), notes
    for sample in samples:
        said = outcome(op, [sample], compiled)
        key = said.partition(":")[0]
        found[key] += 1
        notes.setdefault(key, said)
    return found, notes


def operators():
    """torch's table of operators with samples."""
    if importlib.util.find_spec("expecttest") is None:  # which torch's test helpers import, and samples do not use
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def full_name(op):
    """An operator's name, and its variant's."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--first", type=int, default=4)
    parser.add_argument("--compile", action="store_true")
    shares.add_arguments(parser)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    total = Counter()

    def row(op):
        start = time.time()
        found, notes = examine(op, given.first, compiled=given.compile)
        worst = next((key for key in ("wrong", "refused", "right", "no export") if found[key]), "none")
        said = "" if worst == "right" else notes.get(worst, "")
        return {"outcome": worst, "samples": dict(found), "seconds": round(time.time() - start, 1), "said": said}

    asked = [op for op in operators() if not given.names or op.name in given.names]
    for one in shares.rows(given, asked, full_name, row):
        total[one["outcome"]] += 1
        took = f"{one.get('samples')} {one.get('seconds')} s"
        print(f"{one['outcome']:10} {one['name']:40} {took} {one['said']}", flush=True)
    print(json.dumps(total))


if __name__ == "__main__":
    main()
