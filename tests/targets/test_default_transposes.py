"""Blocks that transpose: squares of elements, turned in registers, at any size and edge."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.targets.test_default_schedules import build_and_compare, shape_of
from weft import te
from weft.targets.cpu.families import default_schedule
from weft.targets.cpu.model import LEAST_SIDE
from weft.targets.cpu.pipeline import lower
from weft.targets.registry import find_target

NATIVE = find_target("native")
WIDE = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")


def transposed(shape, order, dtype="float32"):
    """The schedule of a transposition with something computed on the way."""
    a = te.placeholder(shape, dtype, name="A")
    back = np.argsort(order)
    out = te.compute(
        tuple(shape[k] for k in order), lambda *i: a[tuple(i[back[k]] for k in range(len(shape)))] + 1, name="B"
    )
    return te.create_schedule(out.op), a, out


def is_turned(schedule, target=NATIVE):
    """Whether squares are turned in registers."""
    text = repr(lower(schedule.func, target))
    return "store_transposed" in text


@pytest.mark.thin(2)
@pytest.mark.parametrize("shape", [(64, 64), (33, 17), (5, 100), (197, 12), (6, 5), (3, 40), (16, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_matrices(shape, dtype):
    schedule, a, out = transposed(shape, (1, 0), dtype)
    build_and_compare(schedule, [a], out, lambda x: x.T + 1)
    assert is_turned(schedule) == (min(shape) >= LEAST_SIDE <= NATIVE.lanes(out.dtype))
    wide, _, turned = transposed(shape, (1, 0), dtype)
    default_schedule(wide, WIDE)
    assert is_turned(wide, WIDE) == (min(shape) >= LEAST_SIDE <= WIDE.lanes(turned.dtype))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_every_order_of_three(order):
    schedule, a, out = transposed((13, 20, 37), order)
    build_and_compare(schedule, [a], out, lambda x: x.transpose(order) + 1)
    assert is_turned(schedule) == (order[-1] != 2)


def test_other_operands_along_the_lanes_and_none_across():
    a, bias = te.placeholder((40, 50), name="A"), te.placeholder((50,), name="bias")
    out = te.compute((50, 40), lambda i, j: a[j, i] * bias[i], name="B")
    schedule = te.create_schedule(out.op)
    build_and_compare(schedule, [a, bias], out, lambda x, y: (x * y).T)
    assert is_turned(schedule) and shape_of(out) == (50, 40)
    across = te.compute((50, 40), lambda i, j: a[j, i] + te.placeholder((50, 40), name="C")[i, j], name="D")
    other = te.create_schedule(across.op)
    assert not is_turned(other)
