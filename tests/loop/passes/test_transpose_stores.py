"""Strided stores side by side: joined, and the same as before, in the interpreter and compiled."""

import numpy as np
import pytest

import weft
from tests.hosts import lesser
from weft import te
from weft.builder import lower
from weft.loop.interpreter import interpret
from weft.loop.parser import parse_func
from weft.loop.passes.transpose_stores import transpose_stores


def columns(lanes, places, rows):
    x = te.placeholder((rows, places, lanes), name="X")
    y = te.compute((lanes, rows, places), lambda c, h, w: x[h, w, c] * 2.0 + 1.0, name="Y")
    s = te.create_schedule(y.op)
    c, h, w = s[y].axis
    s[y].reorder(h, w, c)
    s[y].unroll(w)
    s[y].vectorize(c)
    return s, x, y


@pytest.mark.parametrize(
    "lanes,places", [(16, 16), (16, 14), (16, 7), (8, 8), (8, 5), (4, 4), (16, 4), (16, 3), (16, 33)]
)
@pytest.mark.parametrize("target", ["native", *lesser(x86=("-avx512f",))])
def test_rows_of_columns(lanes, places, target):
    s, x, y = columns(lanes, places, 3)
    text = repr(lower(s, [x, y]))
    assert ("store_transposed" in text) == (places >= 4)
    array = np.random.default_rng(0).standard_normal((3, places, lanes)).astype("f4")
    out = np.full((lanes, 3, places), np.nan, "f4")
    built = weft.build(s, [x, y], target=target)
    assert "!llvm.loop" in built.built.llvm_ir  # a loop of vectors, whatever stores them
    built(array, out)
    np.testing.assert_array_equal(out, array.transpose(2, 0, 1) * np.float32(2) + np.float32(1))


def open_columns(lanes, cut=True):
    n = te.var("n")
    x = te.placeholder((n, lanes), name="X")
    y = te.compute((lanes, n), lambda c, w: x[w, c] + 1.0, name="Y")
    s = te.create_schedule(y.op)
    c, w = s[y].axis
    stretch, place = s[y].split(w, factor=lanes)
    s[y].reorder(stretch, place, c)
    s[y].unroll(place)
    s[y].vectorize(c)
    s[y].annotate("partition", cut, stretch)
    return s, x, y


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_rows_of_an_open_length(lanes, cut):
    """The stride is a size, known only in the call. Where a loop has no tail apart, the last store's test is asked."""
    s, x, y = open_columns(lanes, cut)
    func = lower(s, [x, y])
    asked = "" if cut else f" and wo*{lanes} + {lanes - 1} < n"
    assert f"if {lanes} <= n{asked}:" in repr(func) and repr(func).count("store_transposed(") == 1
    built = weft.build(s, [x, y])
    for size in (1, 3, lanes, lanes + 1, 3 * lanes, 5 * lanes - 1):
        array = np.random.default_rng(size).standard_normal((size, lanes)).astype("f4")
        for run in (built, lambda *given: interpret(func, *given)):
            out = np.full((lanes, size), np.nan, "f4")
            run(array, out)
            np.testing.assert_array_equal(out, array.T + np.float32(1))


@pytest.mark.parametrize("test,joined", [("{at} < n", True), ("n < {at} + 5", False), ("n < 5", True)])
def test_the_last_test_must_imply_the_others(test, joined):
    rows = [f"    if {test.format(at=at)}:\n        B[ramp({at}, 8, 4)] = A[ramp({4 * at}, 1, 4)]" for at in range(4)]
    func = parse_func("func f(A: float32[16], B: float32[32], C: float32[n]):\n" + "\n".join(rows) + "\n")
    done = transpose_stores(func)
    assert ("store_transposed" in repr(done)) == joined
    given = np.arange(16, dtype="f4")
    for size in range(10):
        before, after = np.zeros((2, 32), "f4")
        interpret(func, given, before, np.zeros(size, "f4"))
        interpret(done, given, after, np.zeros(size, "f4"))
        np.testing.assert_array_equal(before, after)
