"""Reductions under their default schedules: rows into one row, and everything into a few elements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.test_default_schedules import build_and_compare, kinds
from weft import te


def reduced(shape, axes, reduce=te.sum):
    """The reduction of a tensor along some axes."""
    a = te.placeholder(shape, name="A")
    taken = {axis: te.reduce_axis(shape[axis], f"r{axis}") for axis in axes}
    kept = [size for axis, size in enumerate(shape) if axis not in axes]

    def body(*at):
        rest = iter(at)
        return reduce(
            a[tuple(taken[k].var if k in taken else next(rest) for k in range(len(shape)))], list(taken.values())
        )

    out = te.compute(tuple(kept), body, name="B")
    return te.create_schedule(out.op), a, out


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "shape,axes",
    [
        ((50, 100), (0,)),
        ((9, 33), (0,)),
        ((3, 70, 257), (1,)),
        ((4, 30, 20, 40), (1, 2)),
        ((11, 5, 64), (0, 1)),
        ((300, 8000), (0,)),
        ((7, 300), (0,)),
    ],
)
@pytest.mark.parametrize("reduce", [te.sum, te.max])
def test_rows_into_one_row(shape, axes, reduce):
    schedule, a, out = reduced(shape, axes, reduce)
    numpy = np.sum if reduce is te.sum else np.max
    build_and_compare(schedule, [a], out, lambda x: numpy(x, axis=axes))


def test_stretches_of_a_long_row_are_divided_among_threads():
    schedule, a, out = reduced((300, 8000), (0,))
    build_and_compare(schedule, [a], out, lambda x: x.sum(0))
    assert kinds(schedule, "B")[0] == "parallel" and kinds(schedule, "B")[-1] == "vectorized"


@pytest.mark.parametrize(
    "shape,axes", [((1000, 300), (0, 1)), ((200000,), (0,)), ((3, 500, 211), (1, 2)), ((257, 1024), (0, 1))]
)
def test_one_long_reduction_is_divided_among_threads(shape, axes):
    schedule, a, out = reduced(shape, axes)
    build_and_compare(schedule, [a], out, lambda x: np.asarray(x.astype("float64").sum(axis=axes)), tolerance=1e-4)
    assert "parallel" in kinds(schedule, "B_rf")


@pytest.mark.parametrize("rows,length", [(64, 500), (3, 33), (40, 2)])
def test_running_sums_of_rows_walk_through_memory(rows, length):
    x = te.placeholder((rows, length), name="X")
    state = te.placeholder((length, rows), "float32", name="state")
    start = te.compute((1, rows), lambda t, i: x[i, t], name="start")
    update = te.compute((length, rows), lambda t, i: state[t - 1, i] + x[i, t], name="next")
    totals = te.scan(start, update, state, name="totals")
    out = te.compute((rows, length), lambda i, t: totals[t, i], name="B")
    schedule = te.create_schedule(out.op)
    build_and_compare(schedule, [x], out, lambda a: a.astype("float64").cumsum(1), tolerance=1e-4)
    assert "vectorized" not in kinds(schedule, "next")


def test_rows_that_end_in_a_function_of_their_sum_are_divided_among_threads():
    a, k = te.placeholder((1000, 512), name="A"), te.reduce_axis(512, "k")
    total = te.compute((1000,), lambda i: te.sum(a[i, k.var] * a[i, k.var], axis=[k]), name="B")
    out = te.compute((1000,), lambda i: te.sqrt(total[i]), name="C")
    schedule = te.create_schedule(out.op)
    build_and_compare(schedule, [a], out, lambda x: np.sqrt((x * x).sum(1)))
    assert kinds(schedule, "C")[0] == "parallel"
