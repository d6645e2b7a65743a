"""Strided stores side by side: joined, and the same as before, in the interpreter and compiled."""

import numpy as np
import pytest

import weft
from tests.hosts import lesser
from weft import te
from weft.builder import lower


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
    weft.build(s, [x, y], target=target)(array, out)
    np.testing.assert_array_equal(out, array.transpose(2, 0, 1) * np.float32(2) + np.float32(1))
