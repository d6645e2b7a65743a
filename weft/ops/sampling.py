"""A sample of an image (or line, or volume) at a place between its elements: neighbours, each by its weight.

GridSample and DeformConv read so. Each formula serves arrays and expressions (`formulas.py`).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.ops.formulas import Functions

CUBIC = -0.75


@dataclass(frozen=True)
class Sampling:
    """Which neighbours count, and what lies outside: "zeros", the last element ("border"), or a "reflection"."""

    mode: str = "linear"
    padding: str = "zeros"
    aligned: bool = False
    """Whether the ends of a dimension are the middles of its last elements, not their edges."""

    def border(self, size: int) -> tuple[float, float]:
        """The coordinates between which a dimension lies."""
        return (0.0, size - 1.0) if self.aligned else (-0.5, size - 0.5)

    def line(self, size: int) -> tuple[float, float]:
        """Slope and offset that take a coordinate in -1 … 1 to one in elements."""
        return ((size - 1) / 2, (size - 1) / 2) if self.aligned else (size / 2, (size - 1) / 2)

    @property
    def taps(self) -> range:
        """The neighbours that a sample reads, relative to the element at or before it."""
        return {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}[self.mode]

    def hold(self, m: Functions, at: Any, size: int) -> Any:
        """The index of an element inside the dimension."""
        if self.padding == "reflection":
            turn = max(2 * (size - 1), 1) if self.aligned else 2 * size
            far = at % turn
            at = m.minimum(far, (turn if self.aligned else turn - 1) - far)
        return m.minimum(m.maximum(at, 0), size - 1)

    def weight(self, t: Any, tap: int) -> Any:
        """The weight of a neighbour, for a sample that lies so far behind the element before it."""
        if self.mode == "linear":
            return t if tap else 1 - t
        a = CUBIC
        d = {-1: t + 1.0, 0: t, 1: 1 - t, 2: 2 - t}[tap]
        if tap in (0, 1):
            return (d * (a + 2) - (a + 3)) * d * d + 1.0
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    def blend(self, m: Functions, read: Callable[..., Any], places: Sequence[Any], sizes: Sequence[int]) -> Any:
        """The sample at a place, from what `read` finds at the indices of elements."""
        floors = [m.floor(place) for place in places]
        parts = []
        for taps in itertools.product(self.taps, repeat=len(sizes)):
            at = [floor + float(tap) for floor, tap in zip(floors, taps)]
            value = read(*(self.hold(m, m.index(one), size) for one, size in zip(at, sizes)))
            if self.mode != "nearest":
                for place, floor, tap in zip(places, floors, taps):
                    value = value * self.weight(place - floor, tap)
            if self.padding == "zeros":  # after the weights: those of a place that is nowhere may be NaN
                tests = [test for one, size in zip(at, sizes) for test in (one >= 0.0, one <= size - 1.0)]
                value = m.select(m.all(*tests), value, 0.0)
            parts.append(value)
        return functools.reduce(operator.add, parts)
