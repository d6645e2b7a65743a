"""The planner: one driver that gives any program its schedule, on any target.

In: the schedule of a fused group as `te.create_schedule` gives it, a target, and the parameters that never change. Out:
the same schedule, with loops that run well. What a target offers is its `Families` (part of its manifest):

    inline        what it may cost to compute a producer again: such producers are inlined into their readers
    whole         sketches of a contraction together with the stages around it (attention, Winograd)
    contractions  sketches of a contraction with the elementwise block that reads its sums (its epilogue)
    loops         sketches of what is no contraction: rows, reductions, elementwise blocks
    rest          ways for what is no contraction, tried in order: rows, reductions, recurrences, elementwise blocks
    plain         the least that always works for a block on its own

All sketches that match are offered to `pick`, which gives points in the order in which they are tried: the analytic
pick by estimated cost, a record's or a tuner's first where there is one. Steps that turn out not to be legal are taken
back, with the reason kept (`Schedule.tried`, `weft inspect --stage plan`).
"""

from __future__ import annotations

import functools
import heapq
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from weft.core.context import setting
from weft.expr.nodes import Buffer, Var
from weft.loop.ir import Axis, Block
from weft.plan.contraction import Contraction, contraction_of, is_sum_of_products, producers_of_epilogue
from weft.plan.inline import Inlining, inline_producers
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import Facts, block_named, facts_of, names_of
from weft.schedule.schedule import Schedule


@dataclass
class Unit:
    """A block that is to be scheduled, with what belongs to its loops.

    `epilogue` is the elementwise block that reads the sums of a contraction, each at its own element, and is their only
    reader (None where there is none); `to_epilogue` maps the contraction's axes to the epilogue's. `constants` are
    parameters that never change: a copy of one that stands outside all loops is made when the model is compiled. `done`
    collects the names of the blocks that need no further schedule: a sketch adds every block that it has dealt with.
    """

    schedule: Schedule
    facts: Facts
    target: Any
    constants: Collection[Buffer]
    done: set[str] = field(default_factory=set)
    epilogue: Block | None = None
    to_epilogue: dict[Var, Var] = field(default_factory=dict)

    @functools.cached_property
    def contraction(self) -> Contraction | None:
        """The contraction that the block is, where its operands are two loads."""
        return contraction_of(self.facts)

    def is_open(self, axis: Axis | None) -> bool:
        """Whether how long an axis is stays open; what it typically is stands in its place."""
        named = self.schedule.func.annotations.get(OPEN, {}).get(self.facts.block.name, ())
        return axis is not None and axis.var.name in named

    @property
    def name(self) -> str:
        """The name of the block that stores the result."""
        return self.facts.block.name if self.epilogue is None else self.epilogue.name


OPEN = "open_axes"
"""The note of a program that stands for one with open sizes: which axes of its blocks those are."""

Match = Callable[[Unit], "Sketch | None"]
"""The sketch of a family for a unit; None for what it does not know."""

Way = Callable[[Unit], bool]
"""Schedules a unit; False (nothing changed) for what it does not know."""

Choice = tuple[Sketch, Point, float]
"""A point of a sketch, and the seconds that it is estimated to take."""

Pick = Callable[[Unit, Sequence[Sketch]], Iterable[Choice]]
"""Points of sketches in the order in which they are to be tried."""


@dataclass(frozen=True)
class Families:
    """What a target offers for the parts of a program."""

    inline: Inlining
    whole: tuple[Match, ...]
    contractions: tuple[Match, ...]
    rest: tuple[Way, ...]
    plain: Callable[[Unit], None]
    loops: tuple[Match, ...] = ()
    """Sketches of what is no contraction, offered before the ways of `rest`."""
    first: Callable[[Schedule, Any, set[str], Collection[Buffer]], Collection[Buffer]] | None = None
    """What is done to a program before its units are looked at; gives copies of constants that it made."""
    is_scheduled: Callable[[Schedule, str], bool] = lambda schedule, name: False
    """Whether a block needs nothing further although no unit took it."""
    schedules_all: bool = False
    """Whether each block has to be scheduled in the end, also the copies that a sketch made."""
    reads_once: Callable[[Facts, Collection[Buffer]], bool] = lambda facts, constants: False
    """Whether a contraction is better read as a reduction: its operand streams through once."""

    def schedule(self, schedule: Schedule, target: Any, constants: Collection[Buffer] = ()) -> None:
        """Schedules a program in place, with the pick in force. Copies of `constants` may be made once."""
        pick = _PICK.get()
        inline_producers(schedule, self.inline)
        done: set[str] = set()
        if self.first is not None:
            constants = [*constants, *self.first(schedule, target, done, constants)]
        for name in names_of(schedule):
            unit = unit_of(schedule, name, target, constants, done)
            if is_sum_of_products(unit.facts) and choose(unit, self.whole, pick):
                break
        for name in reversed(names_of(schedule)):
            if name in done or name not in names_of(schedule) or self.is_scheduled(schedule, name):
                continue
            with schedule.attempt(f"unit {name}", done) as tried:
                _schedule_unit(unit_of(schedule, name, target, constants, done), self, pick)
            if not tried:
                self.plain(unit_of(schedule, name, target, constants, done))
            done.add(name)
        for name in names_of(schedule) if self.schedules_all else ():
            if not self.is_scheduled(schedule, name):
                self.plain(unit_of(schedule, name, target, constants, done))


def analytic(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
    """The legal points of all sketches by what the target's facts say that they cost."""

    offers = ([(sketch, point, cost) for point, cost in sketch.ranked()] for sketch in sketches)
    return heapq.merge(*offers, key=operator.itemgetter(2))


def choose(unit: Unit, matches: Sequence[Match], pick: Pick) -> bool:
    """Applies the first legal point in the order of the pick; False (nothing changed) where there is none."""
    sketches = [sketch for match in matches if (sketch := match(unit)) is not None]
    offers = iter(pick(unit, sketches))
    for sketch, point, cost in offers:
        with unit.schedule.attempt(sketch.name, unit.done, point=point, cost=cost) as tried:
            sketch.apply(point)
        if tried:
            if pick is analytic:  # its order is made already; another's may be work
                tried.rivals = [(other.name, numbers, seconds) for other, numbers, seconds in offers]
            return True
    return False


_PICK: ContextVar[Pick] = ContextVar("pick", default=analytic)


def picking(pick: Pick) -> AbstractContextManager[Pick]:
    """Whatever is planned inside takes its points from another pick."""
    return setting(_PICK, pick)


def avoiding(names: Collection[str]) -> AbstractContextManager[Pick]:
    """Whatever is planned inside passes over some sketches."""
    pick = _PICK.get()
    if not names:
        return picking(pick)
    return picking(lambda unit, sketches: pick(unit, [sketch for sketch in sketches if sketch.name not in names]))


def picks_by_default() -> bool:
    """Whether points are those of the analytic pick: what is planned then depends on program and target alone."""
    return _PICK.get() is analytic


def unit_of(
    schedule: Schedule, name: str, target: Any, constants: Collection[Buffer] = (), done: set[str] | None = None
) -> Unit:
    """A block by itself."""
    return Unit(schedule, facts_of(block_named(schedule, name)), target, constants, set() if done is None else done)


def _schedule_unit(unit: Unit, families: Families, pick: Pick) -> None:
    """Schedules a block with the contraction, or the earlier stages, that belong to its loops."""
    for part in contractions_of(unit):
        if not families.reads_once(part.facts, unit.constants) and choose(part, families.contractions, pick):
            unit.done.add(part.facts.block.name)
            return
    if not choose(unit, families.loops, pick) and not any(way(unit) for way in families.rest):
        families.plain(unit)


def contractions_of(unit: Unit) -> Iterator[Unit]:
    """The block itself where it sums products; else those blocks whose sums it takes as their epilogue."""
    facts = unit.facts
    if facts.is_ordered:
        return
    if facts.is_reduction:
        # A tile of a result that is stored along fewer dimensions is no tile of its axes.
        if is_sum_of_products(facts) and len(facts.block.writes[0].mins) == len(facts.spatial):
            yield unit
        return
    for maker, mapping in producers_of_epilogue(unit.schedule, facts):
        if is_sum_of_products(maker) and maker.block.name not in unit.done:
            yield Unit(unit.schedule, maker, unit.target, unit.constants, unit.done, facts.block, mapping)
