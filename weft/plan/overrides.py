"""Schedules that a user gives for kernels of a model, instead of what the planner would choose.

    trace = Trace.from_json(...)                         steps as `weft inspect --stage schedule` shows them
    weft.compile(model, schedules={"conv1": trace})      the kernel that computes the node conv1

They hold for whatever is compiled inside `overriding`, and are part of the identity of what was compiled. The same goes
for records: schedules that the tuner found, by the key of the program that each is for. What a user gives is obeyed or
refused; a record that a program does not take any more is passed over, with the reason in `Schedule.tried`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field

from weft.core.context import setting
from weft.core.errors import ScheduleError
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Trace

Overrides = Mapping[str, Trace]
"""Traces by the names of nodes."""


@dataclass(frozen=True)
class Records:
    """What the tuner found for a machine."""

    traces: Mapping[str, Trace] = field(default_factory=dict)
    """Schedules by the keys of the programs that they are for."""
    algorithms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By the structure of a model, for values that its nodes make: labels of algorithms (`graph/passes/algorithms`)."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """For those that ship, what the planner chose when they were measured (`digest`): they hold beside that alone."""


def with_traces(before: Records, found: Mapping[str, Trace], algorithms: Mapping[str, Mapping[str, str]]) -> Records:
    """Records, and others that count before them."""
    beside = {key: text for key, text in before.beside.items() if key not in found}
    return Records({**before.traces, **found}, {**before.algorithms, **algorithms}, beside)


_NONE: Overrides = {}
_IN_FORCE: ContextVar[Overrides] = ContextVar("overrides", default=_NONE)
_RECORDS: ContextVar[Records | None] = ContextVar("records", default=None)


def in_force() -> Overrides:
    """The schedules that were given for what is compiled now."""
    return _IN_FORCE.get()


def records() -> Records | None:
    """The records in force; None where nobody has said which."""
    return _RECORDS.get()


def identity() -> list[list[str]]:
    """What tells one set of schedules and records from another."""
    found = records() or Records()
    given = [*sorted(in_force().items()), *sorted(found.traces.items())]
    chosen = [[key, repr(sorted(labels.items()))] for key, labels in sorted(found.algorithms.items())]
    return [[name, trace.to_json()] for name, trace in given] + chosen + [list(one) for one in found.beside.items()]


def overriding(given: Overrides) -> AbstractContextManager[Overrides]:
    """Whatever is compiled inside takes these schedules."""
    return setting(_IN_FORCE, given)


def recording(found: Records | None) -> AbstractContextManager[Records | None]:
    """Whatever is compiled inside takes these records."""
    return setting(_RECORDS, found)


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


def digest(trace: Trace) -> str:
    """What tells one trace from another."""
    return hashlib.sha256(trace.to_json().encode()).hexdigest()[:16]


def apply_record(schedule: Schedule, trace: Trace) -> bool:
    """Takes the steps of a record; False (nothing changed) where one of them is not legal."""
    with schedule.attempt("record") as tried:
        apply_override(schedule, trace, "record")
    return bool(tried)
