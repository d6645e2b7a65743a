"""A sketch: a family of schedules for a part of a program, with knobs, and what each of its points costs.

A target's `match` functions give, for a part of a program, the sketches that fit it. Structure is a knob like any other
(packed or in place, which axis lies along lanes, which micro-kernel). All of `legal`, `cost` and `features` take
columns of points, so that a space is scored as a whole: 10⁵ points take milliseconds.

    points = sketch.columns()                 every point, a column of numbers for each knob
    sketch.cost(points)                       seconds, estimated from the facts about the machine
    sketch.apply(sketch.point(points, 17))    the steps with the numbers of one point; a WeftError if one is not legal
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core import model
from weft.core.errors import ScheduleError

Point = Mapping[str, int]
"""A number for each knob."""

Columns = Mapping[str, "np.ndarray[Any, Any]"]
"""Many points: for each knob an array of their numbers."""


def ceildiv(a: Any, b: Any) -> int:
    """a / b rounded up: a number; of columns a column."""
    return -(-a // b)  # type: ignore[no-any-return]


def _all_legal(columns: Columns) -> Any:
    return np.ones(_shape(columns), bool)


def _shape(columns: Columns) -> tuple[int, ...]:
    """The shape of what is said of points: columns along axes of their own mean all combinations."""
    return np.broadcast_shapes(*map(np.shape, columns.values())) if columns else (1,)


@dataclass(frozen=True)
class Sketch:
    """A family of schedules: for each knob its choices; which points are legal, what each costs, what applies one."""

    name: str
    knobs: Mapping[str, tuple[int, ...]]
    apply: Callable[[Point], None]
    cost: Callable[[Columns], Any]
    """Estimated seconds of each point."""
    legal: Callable[[Columns], Any] = field(default=_all_legal)
    """Which points make sense: a bool for each. What only applying can tell is told by a refusal."""

    def __post_init__(self) -> None:
        empty = [knob for knob, choices in self.knobs.items() if not choices]
        if empty:
            raise ScheduleError("sketch", self.name, f"no choice for {', '.join(empty)}")

    @property
    def size(self) -> int:
        """How many points it has, legal or not."""
        return math.prod(len(choices) for choices in self.knobs.values())

    def columns(self, most: int = model.MOST_POINTS) -> Columns:
        """All points, in the order of the knobs' choices; at most so many, spread evenly."""
        choices = self.axes(most)
        grids = np.meshgrid(*choices.values(), indexing="ij") if choices else []
        return {knob: grid.ravel() for knob, grid in zip(choices, grids)}

    def axes(self, most: int = model.MOST_POINTS) -> dict[str, Any]:
        """The numbers of each knob of which `columns` are all combinations."""
        choices = {knob: np.asarray(numbers, np.int64) for knob, numbers in self.knobs.items()}
        while math.prod(len(numbers) for numbers in choices.values()) > most:
            longest = max(choices, key=lambda knob: len(choices[knob]))
            choices[longest] = choices[longest][::2] if len(choices[longest]) > 2 else choices[longest][:1]
        return choices

    def point(self, columns: Columns, at: int) -> dict[str, int]:
        """One point of some columns."""
        return {knob: int(numbers[at]) for knob, numbers in columns.items()}

    def features(self, columns: Columns) -> Any:
        """What a learned cost model sees of each point, float32[points, features]: the estimate, and the knobs."""
        estimate = np.log2(np.maximum(np.asarray(self.cost(columns), np.float64), 1e-12))
        logs = [np.log2(np.maximum(np.asarray(numbers, np.float64), 0) + 1) for numbers in columns.values()]
        return np.stack([np.broadcast_to(estimate, _shape(columns)), *logs], axis=1).astype(np.float32)

    def ranked(self, most: int = 8) -> Iterator[tuple[dict[str, int], float]]:
        """The legal points that cost least, best first, each with its estimate; of equals the first."""
        choices = self.axes()
        # Each knob along an axis of its own: what depends on a few knobs is computed for those only.
        grids = np.meshgrid(*choices.values(), indexing="ij", sparse=True) if choices else []
        columns, shape = dict(zip(choices, grids)), [len(numbers) for numbers in choices.values()] or [1]
        found = np.where(self.legal(columns), np.asarray(self.cost(columns), np.float64), np.inf)
        cost = np.broadcast_to(found, shape).ravel()
        near = np.flatnonzero(cost <= np.partition(cost, most)[most]) if len(cost) > most else np.arange(len(cost))
        best = near[np.argsort(cost[near], kind="stable")[:most]]
        places, seconds = np.unravel_index(best, shape), cost[best].tolist()
        numbers = [choice[at].tolist() for choice, at in zip(choices.values(), places)]
        for position, estimate in enumerate(seconds):
            if math.isfinite(estimate):
                yield {knob: column[position] for knob, column in zip(choices, numbers)}, estimate

    def check(self, point: Point) -> None:
        """Raises where a point names other knobs, or a number that is none of a knob's choices."""
        if point.keys() != self.knobs.keys():
            raise ScheduleError("sketch", self.name, f"its knobs are {list(self.knobs)}, not {list(point)}")
        for knob, number in point.items():
            if number not in self.knobs[knob]:
                reason = f"{knob} cannot be {number}: its choices are {list(self.knobs[knob])}"
                raise ScheduleError("sketch", self.name, reason)


def cheapest(
    knobs: Mapping[str, Iterable[int]], cost: Callable[[Columns], Any], legal: Callable[[Columns], Any] = _all_legal
) -> tuple[dict[str, int], float]:
    """The legal point that costs least among all combinations of numbers, of equals the first; and its cost."""
    return next(Sketch("", {k: tuple(v) for k, v in knobs.items()}, lambda point: None, cost, legal).ranked(1))


def around_rule(rule: Point, seconds: float) -> Callable[[Columns], Any]:
    """The cost of points by a rule that names the best one: more, the further away a point is."""

    def cost(columns: Columns) -> Any:
        total: Any = np.ones(1)
        for knob, number in rule.items():
            total = total + model.OFF_RULE * np.abs(np.log2((columns[knob] + 1.0) / (number + 1.0)))
        return np.broadcast_to(seconds * total, _shape(columns))

    return cost
