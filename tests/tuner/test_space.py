"""Spaces: points numbered through all sketches, traces varied, features, neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tuner.small import elementwise_task, product_task
from weft import te
from weft.core.errors import WeftError
from weft.plan.sketch import Sketch
from weft.plan.trace_space import trace_sketch, vary
from weft.schedule.trace import Trace
from weft.tuner.space import _planned, space_of


@pytest.fixture(scope="module")
def space():
    return space_of(product_task())


def test_structure_is_part_of_the_space(space):
    assert {region.sketch.name for region in space.regions} >= {"matmul", "register tile"}
    assert space.size == np.isfinite(space.estimates).sum() > 1000 and "matmul" in space.describe()


def test_a_point_is_found_by_what_it_is(space):
    for number in np.random.default_rng(0).choice(space.legal, 50):
        assert space.find(*space.point(int(number))) == number
    assert space.find("matmul", {"rows": 1}) is None and space.find("nothing", {}) is None
    sketch, point = space.point(space.default)
    assert space.find(sketch, {**point, "rows": 10**6}) is None
    illegal = np.flatnonzero(~np.isfinite(space.estimates))[:3]  # a record of an older Weft may be of such a point
    assert [space.find(*space.point(int(number))) for number in illegal] == [None] * 3


def test_the_default_is_what_the_planner_takes(space):
    task = product_task()
    region, _ = space.region_of(space.default)
    program = task.fresh()
    region.take(program, space.point(space.default)[1])
    assert program.schedule.trace.to_json() == task.default().to_json()


def test_a_point_that_is_refused_is_said_not_replaced(space):
    task = product_task()
    gone = Sketch("matmul", {"other": (1,)}, lambda point: None, lambda columns: 1.0)
    with pytest.raises(WeftError, match="it does not match any more"):
        _planned(task, "C", gone)(task.fresh(), {"other": 1})


def test_neighbours_differ_in_one_knob_and_children_have_their_parents(space):
    random = np.random.default_rng(1)
    at = random.choice(space.legal, 64)
    for here, there in zip(at, space.neighbours(at, random)):
        (a, first), (b, second) = space.point(int(here)), space.point(int(there))
        assert a == b and sum(first[knob] != second[knob] for knob in first) <= 1
    mothers, fathers = random.choice(space.legal, 64), random.choice(space.legal, 64)
    for mother, father, child in zip(mothers, fathers, space.crossed(mothers, fathers, random)):
        mine, other, made = (space.point(int(one)) for one in (mother, father, child))
        same = mine[0] == other[0] and mine[1].keys() == other[1].keys()
        assert all(made[1][k] in (mine[1][k], other[1][k] if same else mine[1][k]) for k in made[1])


def test_features_tell_points_apart(space):
    some = space.legal[:: max(1, len(space.legal) // 500)]
    rows = space.features(some)
    assert rows.dtype == np.float32 and len(np.unique(np.nan_to_num(rows), axis=0)) == len(some)
    assert rows[0, 0] == pytest.approx(space.prior[some[0]])


def test_a_program_without_a_sketch_has_the_space_around_its_trace():
    task = elementwise_task()
    space = space_of(task)
    (region,) = space.regions
    assert region.sketch.name == "trace" and space.size > 4
    own = task.default()
    start = task.fresh().schedule
    assert vary(own, next(trace_sketch(start, own).ranked(1))[0]).to_json() == own.to_json()
    made = set()
    for number in space.legal[:40]:
        program = task.fresh()
        try:
            region.take(program, space.point(int(number))[1])
        except WeftError:
            continue
        made.add(program.schedule.trace.to_json())
    assert len(made) > 4


def test_a_trace_is_varied_step_by_step():
    A = te.placeholder((8, 64), name="A")
    D = te.compute((8, 64), lambda i, j: A[i, j] * 2.0, name="D")
    s = te.create_schedule(D.op)
    outer, inner = s[D].split(s[D].op.axis[1], factor=16)
    s[D].reorder(outer, s[D].op.axis[0])
    s[D].unroll(inner)
    sketch = trace_sketch(te.create_schedule(D.op), s.trace)
    assert sketch.knobs == {
        "split0_1": (1, 2, 4, 8, 16, 32, 64), "reorder1_0": (0, 1), "unroll2_0": (0, 1)
    }  # fmt: skip
    varied = vary(s.trace, {"split0_1": 8, "reorder1_0": 1, "unroll2_0": 0})
    assert [step.primitive for step in varied.steps] == ["split", "reorder"]
    assert varied.steps[0].arguments["factors"] == [None, 8]
    assert varied.steps[1].arguments["loops"] == list(reversed(s.trace.steps[1].arguments["loops"]))
    te.create_schedule(D.op).replay(Trace.from_json(varied.to_json()))
    assert float(sketch.cost({"split0_1": [16], "reorder1_0": [0], "unroll2_0": [1]} and sketch.columns()).min()) == 1.0
