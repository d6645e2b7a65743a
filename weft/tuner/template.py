"""Spaces that a user writes: a schedule with knobs, section 5.1 of the TVM paper (docs/tuning.md).

A template is run once for each point. Each run asks for its knobs by name; the first run finds out which there are, and
what each may be. Which knobs are asked for must not depend on what others are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from weft.compiler.kernels.program import GroupProgram
from weft.core.errors import ScheduleError
from weft.expr.nodes import int_value
from weft.plan.sketch import Columns, Point, Sketch
from weft.schedule.schedule import Schedule
from weft.tuner.records import TuneError
from weft.tuner.space import Region
from weft.tuner.task import Task

T = TypeVar("T")
Template = Callable[[Schedule, "Knobs"], None]
Estimate = Callable[[Columns], Any]
"""Seconds for columns of points, where the writer of a template knows better than nothing."""


class Knobs:
    """What a template asks for its numbers; without a point it takes the first choice of each, and notes them."""

    def __init__(self, schedule: Schedule, point: Point | None = None) -> None:
        self._schedule, self._point = schedule, point
        self.asked: dict[str, tuple[int, ...]] = {}

    def _number(self, name: str, choices: Sequence[int]) -> int:
        if not isinstance(name, str) or not name.isidentifier():
            raise TuneError(f"a knob is named by an identifier, not {name!r}")
        if name in self.asked and self.asked[name] != tuple(choices):
            raise TuneError(f"the knob {name} is asked for twice, with different choices")
        if not choices:
            raise TuneError(f"the knob {name} has nothing to choose from")
        self.asked[name] = tuple(choices)
        if self._point is None:
            return choices[0]
        if name not in self._point:
            raise TuneError(f"the knob {name} was not asked for in the first run: knobs must not depend on each other")
        return self._point[name]

    def choice(self, name: str, choices: Sequence[T]) -> T:
        """One of some values: numbers as they are, anything else by its place."""
        listed = list(choices)
        numbers: list[int] = [one for one in listed if isinstance(one, int) and not isinstance(one, bool)]
        if len(numbers) == len(listed) and min(numbers, default=0) >= 0:
            return listed[numbers.index(self._number(name, numbers))]
        return listed[self._number(name, range(len(listed)))]

    def split(self, name: str, loop: Any, most: int = 512) -> int:
        """A factor of a loop: its divisors, and powers of two, up to a limit."""
        wanted = getattr(getattr(loop, "var", loop), "name", loop)
        found = [one for one in self._schedule._loops() if one.var.name == wanted]
        extent = int_value(found[0].extent) if found else None
        if extent is None:
            raise ScheduleError("knob.split", name, "name a loop of a fixed size")
        top = min(extent, most)
        sizes = {d for d in range(1, top + 1) if extent % d == 0} | {1 << p for p in range(top.bit_length())}
        return self._number(name, sorted(size for size in sizes if size <= top))

    def order(self, name: str, *orders: Sequence[T]) -> Sequence[T]:
        """One of some orders of loops."""
        return orders[self._number(name, range(len(orders)))]

    def flag(self, name: str) -> bool:
        """Whether something is done."""
        return bool(self._number(name, (0, 1)))


def template_region(task: Task, template: Template, estimate: Estimate | None = None) -> Region:
    """The region of a template."""

    def take(program: GroupProgram, point: Point) -> None:
        template(program.schedule, Knobs(program.schedule, point))

    schedule = task.fresh().schedule
    asked = Knobs(schedule)
    try:
        template(schedule, asked)
    except ScheduleError:
        if not asked.asked:
            raise  # with its first choices the template may be refused, as any point may
    if not asked.asked:
        raise TuneError("the template asks for no knob: there is nothing to choose")
    known = estimate or (lambda columns: np.ones(len(next(iter(columns.values())))))
    return Region(Sketch("template", asked.asked, lambda point: None, known), take, task.fresh)
