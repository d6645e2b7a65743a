"""JAX's own cases of its primitives (test_harnesses), through Weft: right, refused by name, or wrong.

    python -m tests.frontends.jax.harness [--compile] [--dtypes float32,int32] [--every N] [PRIMITIVE …]
    python -m tests.frontends.jax.harness --share 2/15 --json found.jsonl      a part, which goes on where it ended
    python -m tests.frontends.jax.harness --jobs 15 --json found.jsonl         all, by fifteen processes

prints a line for each primitive, then counts. By default the graph is run by its numpy meaning, which is quick;
--compile makes kernels.
"""

import argparse
import time
import warnings
from collections import Counter, defaultdict

import jax
import numpy as np

from tests.frontends import shares
from weft.compiler import compile
from weft.core.errors import WeftError
from weft.frontends.jax import load
from weft.graph.interpreter import interpret_graph

LOOSE = {"float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2), "float64": (1e-9, 1e-9)}
LOOSER = {
    "lgamma": 20, "digamma": 20, "igamma": 20, "igammac": 20, "random_gamma": 20, "regularized_incomplete_beta": 20,
    "cumsum": 20, "cumprod": 20, "conv_general_dilated": 20, "dot_general": 20, "reduce_window_mul": 20, "pow": 5,
    "acosh": 5, "erf_inv": 5,
}  # fmt: skip
"""Where sums are long, or functions steep: so many times looser."""


def harnesses(dtypes=None, names=()):
    """The cases that run on a processor."""
    from jax._src.internal_test_util import test_harnesses

    for one in test_harnesses.all_harnesses:
        if (not dtypes or np.dtype(one.dtype).name in dtypes) and (not names or one.group_name in names):
            if one.filter("cpu"):
                yield one


def interpreted(function, args):
    """What an imported function gives by the numpy meaning of its graph."""
    made = load(function, args)
    given = [np.asarray(made.calls.as_array(one)) for one in made.calls.flatten(tuple(args), {})]
    return made.calls.unflatten([np.asarray(one) for one in interpret_graph(made.graph, given)])


def outcome(function, args, compiled=False, loose=1):
    """ "right", "no trace: …", "refused: …" or "wrong: …"."""
    try:
        wanted = jax.jit(function)(*args)
    except Exception as error:
        return f"no trace: {type(error).__name__}: {str(error)[:100]}"
    try:
        found = compile(jax.jit(function), *args)(*args) if compiled else interpreted(function, args)
    except WeftError as error:
        return f"refused: {str(error)[:300]}"
    except Exception as error:
        return f"wrong: {type(error).__name__}: {str(error)[:300]}"
    return compare(wanted, found, loose)


def compare(wanted, found, loose=1):
    """ "right", or what is wrong with results."""
    a, b = jax.tree.leaves(wanted), jax.tree.leaves(found)
    if len(a) != len(b):
        return f"wrong: {len(b)} results instead of {len(a)}"
    for one, other in zip(a, b):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one = jax.random.key_data(one)
        one, other = np.asarray(one), np.asarray(other)
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"wrong: {other.dtype}{list(other.shape)} instead of {one.dtype}{list(one.shape)}"
        relative, absolute = LOOSE.get(one.dtype.name, (0, 0))
        wide = (lambda x: x.astype(np.float64)) if one.dtype.name in LOOSE else (lambda x: x)
        try:
            np.testing.assert_allclose(wide(other), wide(one), relative * loose, absolute * loose)
        except AssertionError as error:
            return "wrong: " + " ".join(str(error).split())[:300]
    return "right"


def case(one, compiled=False):
    """What becomes of a case."""
    random = np.random.RandomState(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            args = one.dyn_args_maker(random)
        except Exception as error:
            return f"no trace: {error}"
        keys = one.params.get("num_keys", 1) if "isstable_False" in one.name and "multiple" in one.name else None
        function = (
            one.dyn_fun if keys is None else lambda *given: one.dyn_fun(*given)[:keys]
        )  # the rest may be in any order
        return outcome(function, args, compiled, LOOSER.get(one.group_name, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--dtypes", default="float32,int32")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--show", type=int, default=2)
    shares.add_arguments(parser)
    given = parser.parse_args()
    counts, notes, begun = defaultdict(Counter), defaultdict(list), time.time()
    dtypes = set(given.dtypes.split(",")) if given.dtypes != "all" else None
    cases = list(harnesses(dtypes, given.names))[:: given.every]
    examine = lambda one: {"primitive": one.group_name, "said": case(one, given.compile)}  # noqa: E731
    for row in shares.rows(given, cases, lambda one: one.fullname, examine):
        name, said = row.get("primitive", row["name"]), row["said"]
        kind = said.partition(":")[0]
        counts[name][kind] += 1
        if kind != "right":
            notes[name, kind].append(f"{row['name']}: {said}")
    total = sum(counts.values(), Counter())
    for name, found in counts.items():
        print(f"{name:28}", "  ".join(f"{kind} {count}" for kind, count in found.items()))
        for kind in found:
            for note in notes[name, kind][: given.show]:
                print("      ", note)
    print(dict(total), f"of {sum(total.values())}, {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
