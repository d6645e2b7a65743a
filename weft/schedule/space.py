"""A space of schedules: a sketch with knobs, and the point of it that the facts about a machine suggest.

A target offers, for a part of a program that it knows how to run well, a `Space`. Its `default` is what a user gets
without a trial; a tuner walks over the other points of the same space. `apply` takes the steps of the sketch with the
numbers of one point; it raises a WeftError where a step is not legal, and the caller then takes back what was done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft.core.errors import ScheduleError

Point = Mapping[str, int]
"""A number for each knob."""


@dataclass(frozen=True)
class Space:
    """A named sketch: for each knob its choices, the analytic point, and what applies a point to the program."""

    name: str
    knobs: Mapping[str, tuple[int, ...]]
    default: Point
    apply: Callable[[Point], None]

    @property
    def size(self) -> int:
        """How many points it has."""
        return math.prod(len(choices) for choices in self.knobs.values())

    def check(self, point: Point) -> None:
        """Raises where a point names other knobs, or a number that is none of a knob's choices."""
        if point.keys() != self.knobs.keys():
            raise ScheduleError("space", self.name, f"its knobs are {list(self.knobs)}, not {list(point)}")
        for knob, number in point.items():
            if number not in self.knobs[knob]:
                reason = f"{knob} cannot be {number}: its choices are {list(self.knobs[knob])}"
                raise ScheduleError("space", self.name, reason)
