"""The space derived from any reduction: its points are right, whatever they reduce, with and without an epilogue."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.tuner.small import TARGET, elementwise_task
from weft import te
from weft.core.errors import WeftError
from weft.plan.derived import tiled
from weft.plan.planner import unit_of
from weft.tuner.space import space_of
from weft.tuner.task import task_of_schedule

A, B = te.placeholder((10, 24), name="A"), te.placeholder((24, 36), name="B")


def max_plus():
    k = te.reduce_axis(24, "k")
    return te.compute((10, 36), lambda i, j: te.max(A[i, k] + B[k, j], axis=k), name="C")


def product_and_more():
    k = te.reduce_axis(24, "k")
    C = te.compute((10, 36), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return te.compute((10, 36), lambda i, j: C[i, j] * 2.0 + 1.0, name="D")


@pytest.mark.parametrize(
    ("make", "meaning"),
    [(max_plus, lambda a, b: (a[:, :, None] + b[None]).max(1)), (product_and_more, lambda a, b: 2 * (a @ b) + 1)],
)
def test_points_compute_the_same(make, meaning):
    result = make()
    task = task_of_schedule(te.create_schedule(result.op), [A, B, result], TARGET)
    space = space_of(task)
    region = next(one for one in space.regions if one.sketch.name == "tiles")
    random = np.random.default_rng(0)
    a, b = random.standard_normal((10, 24), "float32"), random.standard_normal((24, 36), "float32")
    built = 0
    for place in random.choice(region.count, 6, replace=False):
        program = task.fresh()
        try:
            region.take(program, region.sketch.point(region.columns, int(place)))
        except WeftError:
            continue
        out = np.zeros((10, 36), np.float32)
        weft.build(program.schedule, [A, B, result], threads=1)(a, b, out)
        np.testing.assert_allclose(out, meaning(a, b), rtol=1e-4, atol=1e-4)
        built += 1
    assert built >= 4


def test_the_planners_choice_stays_the_default():
    result = product_and_more()
    task = task_of_schedule(te.create_schedule(result.op), [A, B, result], TARGET)
    space = space_of(task)
    assert space.point(space.default)[0] == "matmul"
    only = max_plus()
    space = space_of(task_of_schedule(te.create_schedule(only.op), [A, B, only], TARGET))
    assert [region.sketch.name for region in space.regions] == ["trace", "tiles"]
    assert space.point(space.default)[0] == "trace"


def test_what_reduces_nothing_has_no_such_space():
    schedule = elementwise_task().fresh().schedule
    assert tiled(unit_of(schedule, "D", TARGET)) is None
