"""Every operation and intrinsic on every data type, through codegen/c: plain C and OpenCL against the interpreter."""

import numpy as np
import pytest

from tests.codegen.c_support import cuda, run_cuda, run_opencl, run_plain
from tests.codegen.support import many_elementwise, ulp_error
from tests.conftest import FULL
from weft.core.dtypes import BOOL, dtype
from weft.expr.intrinsics import FLOAT_UNARY
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    Call,
    Cast,
    Div,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
)
from weft.loop.interpreter import interpret

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
EXACT = ("neg", "floor", "ceil", "trunc", "round", "abs", "sqrt")
QUICK = ("int8", "int64", "uint32", "float16", "float32")
COUNT = 64
ULPS = {"float16": 1, "bfloat16": 1, "float32": 16, "float64": 16}
"""How far a function of the math library may be from numpy's, in units of the last place (OpenCL allows up to 16)."""


def samples(kind, seed):
    """Values of a dtype, the awkward ones first."""
    rng, kind = np.random.default_rng(seed), dtype(kind)
    if kind.is_bool:
        return rng.integers(0, 2, COUNT).astype(bool)
    if kind.is_integer:
        special = np.array([0, 1, 2, 3, kind.max, kind.max - 1, kind.min, kind.min + 1, 7, 100], object)
        if kind.is_signed:
            special = np.concatenate([special, np.array([-1, -2, -7], object)])
        rest = rng.integers(max(kind.min, -1000), min(kind.max, 1000), COUNT - len(special)).astype(object)
        return rng.permutation(np.concatenate([special, rest])).astype(kind.numpy)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -2.5, 300.7, -129.4, 7e4, -3e9, 1e-6]
    rest = rng.standard_normal(COUNT - len(special)) * 3
    with np.errstate(over="ignore"):
        return rng.permutation(np.concatenate([special, rest])).astype(kind.numpy)


def compare(makes, results, arrays, kinds, run, exact):
    func = many_elementwise(makes, results, COUNT, 4, kinds)
    expected = [np.zeros(COUNT, dtype(r).numpy) for r in results]
    got = [e.copy() for e in expected]
    with np.errstate(all="ignore"):
        interpret(func, *[a.copy() for a in arrays], *expected)
    run(func, *[a.copy() for a in arrays], *got)
    for number, (mine, theirs, result) in enumerate(zip(got, expected, results)):
        if exact[number]:
            if result == "bfloat16":  # numpy's comparisons do not know its NaN
                mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
            np.testing.assert_array_equal(mine, theirs, err_msg=f"output {number}")
        else:
            error = ulp_error(mine, theirs.astype(np.float64), dtype(result).numpy)
            assert error.max() <= ULPS[result], (number, mine[error.argmax()], theirs[error.argmax()])


@pytest.fixture(params=["c", "opencl", "cuda"])
def run(request, tmp_path):
    """How a Func is run. PoCL takes a second to compile one, so that the quick suite leaves out some types there."""
    if request.param == "c":
        return lambda func, *arguments: run_plain(func, tmp_path, *arguments)
    kind = (request.node.callspec.params.get("kind") or request.node.callspec.params.get("source")) or QUICK[0]
    if not FULL and request.param == "opencl" and kind not in QUICK:
        pytest.skip("in the full suite")
    if request.param == "cuda":
        cuda()
    return run_opencl if request.param == "opencl" else run_cuda


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers(kind, run):
    binary = [Add, Sub, Mul, FloorDiv, FloorMod, TruncDiv, TruncMod, Min, Max]
    makes = [lambda a, b, op=op: op(a, b) for op in binary]
    named = ["bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"]
    makes += [lambda a, b, name=name: Call(name, (a, b), a.dtype) for name in named]
    makes += [lambda a, b, name=name: Call(name, (a,), a.dtype) for name in ("bit_not", "abs", "popcount", "clz")]
    results = [kind] * len(makes)
    makes += [lambda a, b, op=op: op(a, b) for op in (EQ, NE, LT, LE)]
    results += ["bool"] * 4
    makes += [lambda a, b: Select(LT(a, b), a, Sub(b, a))]
    arrays = [samples(kind, 1), samples(kind, 2)]
    arrays[1][arrays[1] == 0] = 3
    compare(makes, [*results, kind], arrays, [kind, kind], run, [True] * len(makes))


def test_division_by_zero_gives_zero(run):
    makes = [lambda a, b, op=op: op(a, b) for op in (FloorDiv, FloorMod, TruncDiv, TruncMod)]
    func = many_elementwise(makes, ["int32"] * 4, COUNT, 4, ["int32", "int32"])
    got = [np.full(COUNT, 9, np.int32) for _ in makes]
    run(func, samples("int32", 1), np.zeros(COUNT, np.int32), *got)
    assert not np.any(got)


@pytest.mark.parametrize("kind", FLOATS)
def test_floats(kind, run):
    makes = [lambda a, b, op=op: op(a, b) for op in (Add, Sub, Mul, Div, Min, Max)]
    makes += [lambda a, b, name=name: Call(name, (_argument(name, a),), a.dtype) for name in (*FLOAT_UNARY, "abs")]
    others = ["fmod", "floor_fmod", "copysign", "atan2", "pow"]
    makes += [lambda a, b, name=name: Call(name, (a, b), a.dtype) for name in others]
    exact = [True] * 6 + [name in EXACT for name in (*FLOAT_UNARY, "abs")] + [True] * 3 + [False] * 2
    results = [kind] * len(makes)
    makes += [lambda a, b, op=op: op(a, b) for op in (EQ, NE, LT, LE)]
    makes += [lambda a, b, name=name: Call(name, (a,), BOOL.with_lanes(4)) for name in ("isnan", "isinf", "isfinite")]
    results += ["bool"] * 7
    compare(makes, results, [samples(kind, 3), samples(kind, 4)], [kind, kind], run, exact + [True] * 7)


def _argument(name, a):
    """Far below 0 normal_cdf is so steep that the rounding of x / sqrt(2) alone is more than is allowed."""
    return Call("abs", (a,), a.dtype) if name == "normal_cdf" else a


@pytest.mark.parametrize("source", (*INTEGERS, *FLOATS, "bool"))
def test_casts(source, run):
    results = [*INTEGERS, *FLOATS, "bool"]
    makes = [lambda a, to=to: Cast(dtype(to).with_lanes(4), a) for to in results]
    compare(makes, results, [samples(source, 5)], [source], run, [True] * len(makes))


@pytest.mark.parametrize(
    ("source", "to"), [("float32", "int32"), ("float16", "uint16"), ("bfloat16", "int16"), ("int64", "float64")]
)
def test_reinterpret(source, to, run):
    makes = [lambda a: Call("reinterpret", (a,), dtype(to).with_lanes(4))]
    compare(makes, [to], [np.arange(COUNT).astype(dtype(source).numpy)], [source], run, [True])
