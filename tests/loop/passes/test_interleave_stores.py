"""Strided stores that fill a stretch together: joined, with the test at its end, and the same as before."""

import numpy as np
import pytest

import weft
from tests.hosts import lesser
from weft import te
from weft.builder import lower


def woven(count, size, taken):
    """Rows that take turns, of which the result has so many places."""
    x = te.placeholder((count, size), name="X")
    y = te.compute((taken,), lambda i: x[i % count, i // count] * 2.0 + 1.0, name="Y")
    s = te.create_schedule(y.op)
    s.apply("split_axis", block="Y", axis=s[y].block.axes[0].var.name, factor=count)
    place, part = s[y].axis
    outer, lane = s[y].split(place, factor=8)
    s[y].reorder(outer, part, lane)
    s[y].unroll(part)
    s[y].vectorize(lane)
    return s, x, y


@pytest.mark.parametrize(
    "count,size,taken", [(2, 16, 32), (2, 19, 38), (2, 19, 37), (4, 11, 44), (4, 11, 41), (3, 9, 25)]
)
@pytest.mark.parametrize("target", ["native", *lesser(x86=("-avx512f",))])
def test_rows_in_turn(count, size, taken, target):
    s, x, y = woven(count, size, taken)
    text = repr(lower(s, [x, y]))
    assert ("interleave(" in text) == (count != 3)
    array = np.random.default_rng(0).standard_normal((count, size)).astype("f4")
    out = np.full(taken + 8, np.nan, "f4")
    weft.build(s, [x, y], target=target)(array, out[:taken])
    np.testing.assert_array_equal(out[:taken], array.T.ravel()[:taken] * np.float32(2) + np.float32(1))
    assert np.isnan(out[taken:]).all(), "nothing is stored behind the end"
