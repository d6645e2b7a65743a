"""Sketches of what is no contraction on machines with threads: whatever point is picked, the program means the same."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.targets.test_gpu_columns import product
from tests.targets.test_gpu_schedules import CUDA, SMALL, check, reduction, softmax
from weft import te
from weft.plan.planner import analytic, picking, unit_of
from weft.targets.gpu.families import FAMILIES
from weft.targets.registry import find_target


def elementwise():
    a, b = te.placeholder((24, 64), name="A"), te.placeholder((64,), name="B")
    return [a, b], te.compute((24, 64), lambda i, j: a[i, j] * 2.0 + b[j], name="C"), lambda a, b: a * 2 + b


def transposition():
    a = te.placeholder((40, 36), name="A")
    return [a], te.compute((36, 40), lambda i, j: a[j, i] + 1.0, name="C"), lambda a: a.T + 1


def mean_of_rows():
    (a,), total = reduction((24, 200), [1])
    return [a], te.compute((24,), lambda i: total[i] / 200.0, name="D"), lambda a: a.mean(axis=1)


def window():
    a, k = te.placeholder((30, 66), name="A"), te.reduce_axis((0, 3), "k")
    total = te.compute((30, 64), lambda i, j: te.sum(a[i, j + k], axis=k), name="C")
    relu = te.compute((30, 64), lambda i, j: te.maximum(total[i, j], 0.0), name="D")
    return [a], relu, lambda a: np.maximum(a[:, :64] + a[:, 1:65] + a[:, 2:], 0)


def exponentials():
    (a,), output = softmax((20, 96), 1)

    def reference(a):
        powers = np.exp(a - a.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    return [a], output, reference


CASES = {
    "elementwise": elementwise,
    "transposition": transposition,
    "row reduction": lambda: (*reduction((24, 200), [1]), lambda a: a.sum(axis=1)),
    "row reduction, with its reader": mean_of_rows,
    "column reduction": lambda: (*reduction((96, 40), [0]), lambda a: a.sum(axis=0)),
    "column reduction, in vectors": lambda: product(48, 64),
    "with its reductions": window,
    "rows by blocks": exponentials,
    "rows by threads": exponentials,
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CASES)
def test_any_point_means_the_same(name, seed):
    inputs, output, reference = CASES[name]()
    random = np.random.default_rng(seed)
    taken = []

    def pick(unit, sketches):
        for sketch in sketches:
            if sketch.name == name.partition(",")[0]:
                columns = sketch.columns()
                point = sketch.point(columns, int(random.choice(np.flatnonzero(sketch.legal(columns)))))
                taken.append(point)
                yield sketch, point, 0.0
        yield from analytic(unit, sketches)

    with picking(pick):
        check(inputs, output, reference, SMALL, tolerance=1e-3)
    assert taken


@pytest.mark.parametrize("target", [CUDA, find_target("opencl:generic")])
def test_the_point_of_a_rule_is_legal_and_costs_least(target):
    for name, case in CASES.items():
        _, output, _ = case()
        schedule = te.create_schedule(output.op)
        unit = unit_of(schedule, output.name, target)
        found = [sketch for match in FAMILIES.loops if (sketch := match(unit)) is not None]
        assert found, name
        for sketch in found:
            (best, cost), *_ = sketch.ranked()
            columns = sketch.columns()
            assert cost == np.asarray(sketch.cost(columns)).min() and cost > 0
            sketch.check(best)


def test_what_is_read_along_both_axes_goes_through_no_tile():
    """A tile of a tensor that is read at two places would hold both, and have more threads than a block may."""
    a = te.placeholder((64, 64), name="A")
    b = te.compute((64, 64), lambda i, j: a[i, j] + a[j, i], name="B")
    weft.build(b, [a, b], "opencl:generic", plan=True)
