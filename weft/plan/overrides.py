"""Schedules that a user gives for kernels of a model, instead of what the planner would choose.

    trace = Trace.from_json(...)                         steps as `weft inspect --stage schedule` shows them
    weft.compile(model, schedules={"conv1": trace})      the kernel that computes the node conv1

They hold for whatever is compiled inside `overriding`, and are part of the identity of what was compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from weft.core.errors import ScheduleError
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Trace

Overrides = Mapping[str, Trace]
"""Traces by the names of nodes."""

_NONE: Overrides = {}
_IN_FORCE: ContextVar[Overrides] = ContextVar("overrides", default=_NONE)


def in_force() -> Overrides:
    """The schedules that were given for what is compiled now."""
    return _IN_FORCE.get()


def identity() -> list[list[str]]:
    """What tells one set of schedules from another."""
    return [[name, trace.to_json()] for name, trace in sorted(in_force().items())]


@contextmanager
def overriding(given: Overrides) -> Iterator[None]:
    """Whatever is compiled inside takes these schedules."""
    token = _IN_FORCE.set(given)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def override_for(names: Iterable[str]) -> Trace | None:
    """The schedule that was given for a kernel that computes these nodes; two different ones are an error."""
    found = {name: trace for name in names if (trace := in_force().get(name)) is not None}
    if len({trace.to_json() for trace in found.values()}) > 1:
        raise ScheduleError("schedules", ", ".join(found), "these nodes are one kernel, and can have one schedule only")
    return next(iter(found.values()), None)


def apply_override(schedule: Schedule, trace: Trace, name: str) -> None:
    """Takes the steps of a trace, of which the schedule may have taken the first (those that lay out its values)."""
    begun = schedule.trace.steps
    given = trace.steps
    same = [step.as_python() for step in given[: len(begun)]] == [step.as_python() for step in begun]
    if not same:
        said = f"its values lie in memory in a way that takes {len(begun)} steps first, and the given ones are others"
        raise ScheduleError("schedules", name, f"{said}: start from what `weft inspect --stage schedule` shows")
    schedule.replay(Trace(given[len(begun) :]))
