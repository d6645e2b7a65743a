"""What a kind of fuzzing is, and what can become of a case.

A `Kind` makes a case from a number (always the same one), and runs it. A case has parts, and fewer of them are a
smaller case. `run` returns a Result, or lets an exception pass: an unexpected one is the finding "raw exception".
"""

from __future__ import annotations

import importlib
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

OUTCOMES = ("ok", "refused", "explained", "wrong", "raw exception", "fault", "hang")
"""ok: the right answer. refused: a WeftError, as it should be. explained: a difference that `compare.py` has a reason
for. The others are findings."""
GOOD = frozenset(OUTCOMES[:3])


@dataclass(frozen=True)
class Result:
    """What became of a case; `reason` is short and the same for like cases, `detail` is for reading."""

    outcome: str
    reason: str = ""
    detail: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing is to be done."""
        return self.outcome in GOOD

    @property
    def signature(self) -> str:
        """What like findings have in common."""
        return f"{self.outcome}: {self.reason}"


OK = Result("ok")


@dataclass(frozen=True)
class Case:
    """A case as its kind made it. `parts` are what can be left out when a failing case is made smaller."""

    seed: int
    parts: tuple[Any, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    def smaller(self) -> Iterator[Case]:
        """The case without stretches of its parts, long ones first."""
        count = len(self.parts)
        size = count // 2
        while size >= 1:
            for start in range(0, count, size):
                yield Case(self.seed, self.parts[:start] + self.parts[start + size :], self.more)
            size //= 2


@dataclass(frozen=True)
class Kind:
    """One kind of fuzzing."""

    name: str
    make: Callable[[int], Case]
    run: Callable[[Case], Result]
    show: Callable[[Case], str]
    setup: Callable[[], None] = lambda: None
    """What every worker does once."""
    share: float = 1.0
    """Its part of the time, beside the others."""
    seconds: float = 20.0
    """Processor time that a case may take."""
    excuse: Callable[[Case], str | None] = lambda case: None
    """Why a case that ran out of time may take that long; None where there is no reason."""
    memory: int | None = 8 << 30
    """Bytes that a case may map beside what its worker has; None where a device's driver maps as much as it likes."""


MODULES = {
    "operators": "tests.fuzz.operators",
    "graphs": "tests.fuzz.graphs",
    "te": "tests.fuzz.schedules",
    "files": "tests.fuzz.files",
    "metamorphic": "tests.fuzz.metamorphic",
    "faults": "tests.fuzz.faults",
    "concurrent": "tests.fuzz.concurrent",
    "cycles": "tests.fuzz.cycles",
}


def find_kind(name: str) -> Kind:
    """A kind by its name."""
    module = "tests.fuzz.planted" if name == "planted" else MODULES.get(name)
    if module is None:
        raise SystemExit(f"there is no kind {name!r}; there are {', '.join(MODULES)}")
    found = importlib.import_module(module).KIND
    assert isinstance(found, Kind) and found.name == name
    return found


def chance_of(kind: str, seed: int) -> random.Random:
    """The source of choices of one case."""
    return random.Random(f"{kind} {seed}")


def attempt(kind: Kind, case: Case) -> Result:
    """Runs a case; an exception that it should not raise is a finding."""
    try:
        return kind.run(case)
    except AssertionError as error:
        return Result("wrong", _first_line(str(error)) or "assertion", traceback.format_exc(limit=-6)[-4000:])
    except Exception as error:
        return Result("raw exception", f"{type(error).__name__} in {_place(error)}", traceback.format_exc()[-4000:])


def refused(error: BaseException) -> Result:
    """The result for an error that tells a person what is wrong."""
    return Result("refused", type(error).__name__, str(error)[:400])


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:120]


def _place(error: BaseException) -> str:
    """The innermost function of Weft that an exception passed."""
    place = "?"
    for frame in traceback.extract_tb(error.__traceback__):
        if "/weft/" in frame.filename or place == "?":
            place = f"{frame.filename.rpartition('/weft/')[2]}:{frame.name}"
    return place
