"""A measurement as a row: what was tried for which program, where, and what came of it.

    Outcome     what a child found: a status, seconds, the trace
    Record      an outcome with its task, machine, compiler and point: a row of the database, a line of an export

A trial that fails is data, not an exception: the status says how it failed, `detail` why.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import llvmlite.binding as llvm

from weft.core.errors import WeftError
from weft.core.version import VERSION
from weft.schedule.trace import FORMAT, Trace
from weft.targets.base import Target, text_of


class TuneError(WeftError, ValueError):
    """Something that cannot be tuned, or records that cannot be read or kept."""


class Status(str, enum.Enum):
    """How a trial ended."""

    OK = "ok"
    REFUSED = "refused"
    """A step of its schedule is not legal."""
    BUILD_ERROR = "build error"
    """The compiler failed, with a reason."""
    WRONG = "wrong result"
    FAULT = "fault"
    """The compiled function said that it failed."""
    CRASH = "crash"
    """The child died."""
    HANG = "hang"
    GARBAGE = "garbage"
    """The child said something that makes no sense."""


@dataclass(frozen=True)
class Outcome:
    """What came of one trial."""

    status: Status
    seconds: float = float("inf")
    baseline: float = float("inf")
    """What the default took, measured in turns with it."""
    busy: float = 0.0
    """The share of the time in which somebody else had the processor."""
    detail: str = ""
    trace: str = ""
    """The steps, as JSON: they replay exactly."""
    at: float = 0.0
    """When it ended, where that was not now: in seconds since 1970."""

    @property
    def gain(self) -> float:
        """How many times as fast as the default; 0 for a failure."""
        return self.baseline / self.seconds if self.status is Status.OK else 0.0

    def to_json(self) -> str:
        """As one line."""
        return json.dumps({**asdict(self), "status": self.status.value})

    @staticmethod
    def from_json(text: str) -> Outcome:
        """From a line; a ValueError where it is none."""
        data = json.loads(text)
        if not isinstance(data, dict) or {*data, "at"} != {one.name for one in fields(Outcome)}:
            raise ValueError(f"no outcome of a trial: {text[:80]!r}")
        made = Outcome(**{**data, "status": Status(data["status"])})
        numbers = (made.seconds, made.baseline, made.busy)
        if not all(isinstance(number, (int, float)) and number >= 0 for number in numbers):
            raise ValueError(f"no times: {numbers}")
        if made.status is Status.OK and not min(made.seconds, made.baseline) > 0:
            raise ValueError(f"no time at all: {numbers}")
        if made.trace:
            Trace.from_json(made.trace)
        return made


@dataclass(frozen=True)
class Record:
    """A trial and what came of it."""

    task: str
    machine: str
    version: str
    sketch: str
    point: Mapping[str, int]
    outcome: Outcome
    threads: int = 1
    estimate: float = 0.0
    """The seconds that the cost model of the target said."""
    at: float = 0.0
    """When it ended, in seconds since 1970."""
    label: str = field(default="", compare=False)
    used: bool = field(default=False, compare=False)
    """Whether its schedule is in use where it comes from."""

    def to_json(self) -> str:
        """As a line of an export."""
        return json.dumps({**asdict(replace(self, outcome=None)), "outcome": self.outcome.to_json()})  # type: ignore[arg-type]

    @property
    def unit(self) -> str:
        """What its figures are: seconds, or what was counted where time means nothing (docs/pool.md)."""
        return self.machine.partition(" ")[2] or "seconds"

    @staticmethod
    def from_json(text: str) -> Record:
        """From a line of an export; a TuneError where it is none."""
        try:
            data: dict[str, Any] = json.loads(text)
            data["outcome"] = Outcome.from_json(data["outcome"])
            made = Record(**data)
            ok = all(isinstance(number, int) for number in made.point.values()) and made.at >= 0
            texts = (made.task, made.machine, made.version, made.sketch, made.label)
            ok = ok and (made.used is False or (made.used is True and made.outcome.status is Status.OK))
            if not ok or not all(isinstance(one, str) for one in texts):
                raise ValueError("fields of the wrong type")
        except (ValueError, TypeError, KeyError, AttributeError, WeftError) as error:
            raise TuneError(f"this is no record of a measurement ({error}): {text[:120]!r}") from None
        return made


def machine_key(target: Target, unit: str = "seconds") -> str:
    """What the facts of a machine are known by, however it was named; what was counted there is kept apart."""
    key = hashlib.sha256(text_of(replace(target, name="")).encode()).hexdigest()[:16]
    return key if unit == "seconds" else f"{key} {unit}"


def compiler_version() -> str:
    """What compiles: times of another one are not comparable, and its traces may mean something else."""
    return f"weft {VERSION}, traces {FORMAT}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}"
