"""Traces: the steps of a schedule as plain data, so that they can be stored, read by a person, and replayed."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import ScheduleError
from weft.schedule.registry import PRIMITIVES, plain

FORMAT = 1


class Step:
    """One use of a primitive: its name, its plain arguments, and the names it gave back."""

    __slots__ = ("primitive", "arguments", "results")

    def __init__(self, primitive: str, arguments: Mapping[str, Any], results: Sequence[str] = ()) -> None:
        self.primitive = primitive
        self.arguments: dict[str, Any] = {key: plain(value) for key, value in arguments.items()}
        self.results = tuple(results)

    def as_python(self, schedule: str = "s") -> str:
        """The step as a line of Python; what it gives back is assigned where the names can be variables."""
        given = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        names = [_identifier(name, schedule) for name in self.results]
        left = f"{', '.join(names)} = " if names else ""
        return f"{left}{schedule}.apply({self.primitive!r}{given})"

    def __repr__(self) -> str:
        return self.as_python()


def _identifier(name: str, schedule: str) -> str:
    if not name.isidentifier():
        name = "_" + "".join(c if c.isalnum() else "_" for c in name)
    return f"{name}_" if keyword.iskeyword(name) or name == schedule else name


class Trace:
    """The steps of a schedule, in order."""

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self.steps = tuple(steps)

    def then(self, step: Step) -> Trace:
        """The trace with one more step."""
        return Trace((*self.steps, step))

    def to_json(self) -> str:
        """The trace as JSON text."""
        steps = [{"primitive": s.primitive, "arguments": s.arguments, "results": list(s.results)} for s in self.steps]
        return json.dumps({"weft_trace": FORMAT, "steps": steps})

    @staticmethod
    def from_json(text: str) -> Trace:
        """The trace that JSON text holds; text that is not a trace is a ScheduleError."""
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise ScheduleError("trace", "json", f"this is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("weft_trace") != FORMAT or not isinstance(data.get("steps"), list):
            raise ScheduleError("trace", "json", f'expected {{"weft_trace": {FORMAT}, "steps": […]}}')
        steps = []
        for position, entry in enumerate(data["steps"]):
            name = entry.get("primitive") if isinstance(entry, dict) else None
            if not isinstance(name, str) or name not in PRIMITIVES or not isinstance(entry.get("arguments"), dict):
                raise ScheduleError("trace", f"step {position}", f"not a step of a known primitive: {entry!r}")
            results = entry.get("results", [])
            if not isinstance(results, list) or not all(isinstance(r, str) for r in results):
                raise ScheduleError("trace", f"step {position}", "results must be a list of names")
            steps.append(Step(name, entry["arguments"], results))
        return Trace(steps)

    def as_python(self, name: str = "s") -> str:
        """The trace as Python that can be run on a fresh schedule called `name`."""
        return "\n".join(step.as_python(name) for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return self.as_python()
