"""Schedules of one's own: planned by `Schedule.plan` and `weft.build(plan=True)`, given to kernels of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import te
from weft.core.errors import ArgumentError, ScheduleError, TargetError
from weft.core.knobs import knobs
from weft.explore.stages import kernels
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Step, Trace


def product() -> tuple[Any, Any, Any]:
    A, B = te.placeholder((24, 40), name="A"), te.placeholder((40, 36), name="B")
    k = te.reduce_axis(40, "k")
    return A, B, te.compute((24, 36), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")


def test_a_tensor_is_built_with_the_schedule_of_a_model():
    A, B, C = product()
    a, b = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((24, 40), (40, 36)))
    for plan in (False, True):
        made = np.full((24, 36), np.nan, np.float32)
        function = weft.build(C, [A, B, C], plan=plan)
        function(a, b, made)
        np.testing.assert_allclose(made, a @ b, rtol=1e-4, atol=1e-4)
        assert ("C_local" in repr(function.built.lowered)) == plan


def test_the_steps_of_a_plan_are_python_and_replay():
    _, _, C = product()
    s = te.create_schedule(C.op)
    trace = s.plan("native")
    assert [tried.name for tried in s.tried if tried][0] == "matmul" and "s.apply('cache_write'" in trace.as_python()
    again = Schedule(te.create_schedule(C.op).func).replay(Trace.from_json(trace.to_json()))
    assert repr(again.func) == repr(s.func)
    with pytest.raises(TargetError, match="unknown target"):
        s.plan("nowhere")


def test_a_schedule_is_not_planned_twice():
    A, B, C = product()
    s = te.create_schedule(C.op)
    s[C].parallel(s[C].axis[0])
    with pytest.raises(ScheduleError, match="it has a schedule already"):
        weft.build(s, [A, B, C], plan=True)


@pytest.fixture
def model() -> Graph:
    b = Builder("model")
    x = b.relu(b.dense(b.input("x", (8, 32)), 32, 48))
    return b.finish(b.dense(x, 48, 16), names=["y"])


def first_kernel(module: Any) -> tuple[str, Trace]:
    one = next(iter(kernels(module)))
    return one.launch.nodes[0].name, one.launch.kernel.trace


def test_a_kernel_of_a_model_takes_a_schedule_of_ones_own(model, tmp_path):
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    with knobs.override(cache_dir=str(tmp_path)):
        module = weft.compile(model)
        name, trace = first_kernel(module)
        shorter = Trace([step for step in trace.steps if step.primitive not in ("unroll", "prefetch")])
        given = weft.compile(model, schedules={name: shorter})
        np.testing.assert_allclose(given(x), module(x), rtol=1e-5, atol=1e-5)
        ours, others = (next(iter(kernels(m))).launch.kernel for m in (given, module))
        assert ours.symbol != others.symbol and "unrolled" in repr(others.scheduled)
        assert "unrolled" not in repr(ours.scheduled)
        np.testing.assert_array_equal(weft.compile(model)(x), module(x))  # the other one is not found in a cache


def test_what_is_given_is_obeyed_or_refused(model):
    name, trace = first_kernel(weft.compile(model))
    with pytest.raises(ArgumentError, match="'nothing', which is no node of the model; kernels compute"):
        weft.compile(model, schedules={"nothing": trace})
    with pytest.raises(ArgumentError, match="is a Trace"):
        weft.compile(model, schedules={name: "split"})
    wrong = Trace([Step(step.primitive, {**step.arguments, "loop": "nowhere"}) if "loop" in step.arguments else step
                   for step in trace.steps])  # fmt: skip
    with pytest.raises(ScheduleError, match="nowhere"):
        weft.compile(model, schedules={name: wrong})
