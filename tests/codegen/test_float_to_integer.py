"""Vectors of floats as integers: rounded to zero, held within the range, NaN to 0; as single elements are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import te

INTEGERS = "int8 uint8 int16 uint16 int32 uint32 int64".split()
FLOATS = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def special():
    ends = [0, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 129, 2**31 - 128, 2**31 - 1, 2**31, 2**32, 2**63]
    near = [sign * (end + step) for end in ends for step in (-1, -0.5, 0, 0.5, 0.75, 1) for sign in (1, -1)]
    more = np.random.default_rng(0).standard_normal(64) * 10.0 ** np.arange(64).clip(0, 12)
    made = [*near, *more, np.inf, -np.inf, np.nan, -0.0, 1e30, -1e30, 5e-324]
    return np.array(made + [0.0] * (-len(made) % 16), np.float64)


@pytest.mark.thin(2)
@pytest.mark.parametrize("to", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_vectors_and_elements_agree_with_the_interpreter(source, to):
    with np.errstate(all="ignore"):
        x = special().astype(FLOATS[source])
    a = te.placeholder(x.shape, source, name="A")
    made = []
    for lanes in (1, 16):
        b = te.compute(x.shape, lambda i: a[i].astype(to), name="B")
        s = te.create_schedule(b.op)
        if lanes > 1:
            _, inner = s[b].split(b.op.axis[0], factor=lanes)
            s[b].vectorize(inner)
        out = np.zeros(x.shape, to)
        weft.build(s, [a, b])(x, out)
        made.append(out)
        meant = np.zeros(x.shape, to)
        weft.interpret(s.func, x, meant)
        np.testing.assert_array_equal(out, meant)
    np.testing.assert_array_equal(made[0], made[1])
    assert made[1][np.isnan(x.astype(np.float64))].tolist() == [0]


@pytest.mark.parametrize("columns", [33, 34, 36, 40, 47])
@pytest.mark.parametrize(
    "source,to", [("float32", "uint8"), ("float32", "int16"), ("int32", "uint8"), ("int32", "int16")]
)
def test_a_masked_store_of_narrow_integers_writes_no_more_than_its_lanes(columns, source, to):
    """LLVM made a store of four bytes of a masked store whose mask is one lane."""
    a = te.placeholder((5, columns), source, name="A")
    b = te.compute((5, columns), lambda i, j: (a[i, j] + a[i, j]).astype(to), name="B")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[1], factor=16)
    s[b].reorder(outer, b.op.axis[0], inner)
    s[b].vectorize(inner)
    s[b].unroll(outer)
    x = np.random.default_rng(0).integers(1, 100, (5, columns)).astype(source)
    out = np.zeros((5, columns), to)
    weft.build(s, [a, b])(x, out)
    np.testing.assert_array_equal(out, (2 * x).astype(to))
