"""Small programs that the tests of single primitives schedule, and the two checks that they share."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from tests.schedule.checking import assert_same, check_lowered, check_text, check_trace, run, scopes_fit
from tests.schedule.random_programs import arguments_of
from weft import te
from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.loop.verifier import verify
from weft.schedule.schedule import Schedule


def copy(size: Any = 6) -> Schedule:
    """B = A + 1."""
    a = te.placeholder((size,), "int32", name="A")
    b = te.compute((size,), lambda i: a[i] + 1, name="B")
    return te.create_schedule(b.op)


def grid() -> Schedule:
    """B = A + 1 in two dimensions."""
    a = te.placeholder((4, 6), "int32", name="A")
    b = te.compute((4, 6), lambda i, j: a[i, j] + 1, name="B")
    return te.create_schedule(b.op)


def chain(size: Any = 8) -> Schedule:
    """C = 2 * B, B = A + 1."""
    a = te.placeholder((size,), "int32", name="A")
    b = te.compute((size,), lambda i: a[i] + 1, name="B")
    c = te.compute((size,), lambda j: b[j] * 2, name="C")
    return te.create_schedule(c.op)


def rows() -> Schedule:
    """The sum of each row."""
    a = te.placeholder((3, 8), "int32", name="A")
    k = te.reduce_axis(8, "k")
    c = te.compute((3,), lambda i: te.sum(a[i, k], axis=k), name="C")
    return te.create_schedule(c.op)


def matmul(size: int = 4) -> Schedule:
    """C = A @ B."""
    a, b = te.placeholder((size, size), "int32", name="A"), te.placeholder((size, size), "int32", name="B")
    k = te.reduce_axis(size, "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_schedule(c.op)


def cumulate() -> Schedule:
    """Running sums down the columns: a recurrence."""
    a = te.placeholder((4, 3), "int32", name="A")
    state = te.placeholder((4, 3), "int32", name="state")
    first = te.compute((1, 3), lambda t, i: a[t, i], name="first")
    update = te.compute((4, 3), lambda t, i: state[t - 1, i] + a[t, i], name="update")
    return te.create_schedule(te.scan(first, update, state, name="S").op)


SIZE = Var("n")


def becomes(schedule: Schedule, primitive: str, after: str, size: int = 7, **arguments: Any) -> Any:
    """Applies a primitive, compares the body it gives with the text, and checks that the meaning is kept."""
    start = schedule.func
    arrays = arguments_of(start, size, 1)
    want = run(start, arrays)
    before = Schedule(start)
    steps = len(schedule.trace)
    result = schedule.apply(primitive, **arguments)
    assert repr(schedule.func.body).strip() == textwrap.dedent(after).strip(), f"\n{schedule.func.body!r}"
    assert len(schedule.trace) == steps + 1 and schedule.trace.steps[-1].primitive == primitive
    verify(schedule.func)
    check_text(schedule.func)
    if steps == 0:
        check_trace(before.func, schedule)
    if scopes_fit(schedule.func):
        assert_same(run(schedule.func, arrays), want, repr(schedule.func))
        check_lowered(schedule.func, arrays, want)
    return result


def refused(schedule: Schedule, primitive: str, reason: str, **arguments: Any) -> None:
    """The primitive raises a ScheduleError that names it and gives the reason; the schedule stays as it was."""
    func, trace = schedule.func, schedule.trace
    with pytest.raises(ScheduleError, match=reason) as caught:
        schedule.apply(primitive, **arguments)
    assert caught.value.primitive == primitive
    assert str(caught.value).startswith(f"{primitive}(")
    assert schedule.func is func and schedule.trace is trace
