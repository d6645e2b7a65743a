"""The space of a task: every point of every sketch that matches its program, as columns that are scored as a whole.

A `Region` is one sketch and the way its points are taken; structure (which sketch) is part of the space. Points are
numbered through all regions; inside a region the number is made of the places of the knobs' choices, first knob first,
so that a neighbour is a matter of arithmetic. A program that no sketch matches has the space around its default trace;
any reduction also has one derived from it (`plan/derived.py`).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.kernels.program import GroupProgram
from weft.core.errors import ScheduleError
from weft.plan.derived import NAME as DERIVED
from weft.plan.derived import tiled
from weft.plan.planner import Choice, Unit, analytic, picking
from weft.plan.sketch import Point, Sketch
from weft.plan.trace_space import trace_sketch
from weft.targets.base import Target
from weft.tuner.settings import CHUNK, MOST_PAIRS, UNSURE
from weft.tuner.shipped import trained_ahead
from weft.tuner.task import Task

if TYPE_CHECKING:
    from weft.tuner.cost_models import CostModel

Array = Any  # a numpy array; numpy's own annotations say no more here


@dataclass(frozen=True)
class Region:
    """A sketch, and what applies one of its points to a fresh program."""

    sketch: Sketch
    take: Callable[[GroupProgram, Point], None]
    fresh: Callable[[], GroupProgram]  # the program before any step
    scale: float = 1.0  # what its estimates are multiplied by
    is_planned: bool = False  # whether the planner chooses among its points

    @functools.cached_property
    def choices(self) -> dict[str, Array]:
        """The choices of each knob in order, each once: all of them, but in a space that is thinned out."""
        return {knob: np.unique(numbers) for knob, numbers in self.sketch.columns().items()}

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many choices each knob has."""
        return tuple(map(len, self.choices.values()))

    @functools.cached_property
    def columns(self) -> Mapping[str, Array]:
        """All points."""
        grids = np.meshgrid(*self.choices.values(), indexing="ij") if self.choices else []
        return {knob: grid.ravel() for knob, grid in zip(self.choices, grids)}

    @functools.cached_property
    def estimates(self) -> Array:
        """The seconds that the target says for each point; infinite where a point makes no sense."""
        cost = np.broadcast_to(np.asarray(self.sketch.cost(self.columns), np.float64), (self.count,))
        return np.where(self.sketch.legal(self.columns), cost * self.scale, np.inf)

    @property
    def count(self) -> int:
        """How many points, legal or not."""
        return math.prod(self.sizes)


def _planned(task: Task, unit: str, sketch: Sketch) -> Callable[[GroupProgram, Point], None]:
    """What takes a point of a target's sketch: the planner, with that point for that unit, the others by default."""

    def take(program: GroupProgram, point: Point) -> None:
        def pick(one: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
            derived = tiled(one) if one.name == unit and sketch.name == DERIVED else None
            for known in sketches if derived is None else [derived]:
                if one.name == unit and known.name == sketch.name and known.knobs.keys() == sketch.knobs.keys():
                    yield known, point, 0.0
                    return
            yield from analytic(one, sketches)

        with picking(pick):
            program.schedule.plan(task.target, task.fixed)
        tried = [one for one in program.schedule.tried if one.name == sketch.name and one.point == dict(point)]
        if not tried or tried[-1].refused:
            raise ScheduleError(sketch.name, unit, tried[-1].refused if tried else "it does not match any more")

    return take


def _varied(task: Task) -> Region:
    """The region around the default trace of a program."""
    trace, begun = task.default(), len(task.program.schedule.trace.steps)
    own = type(trace)(trace.steps[begun:])

    def take(program: GroupProgram, point: Point) -> None:
        trace_sketch(program.schedule, own).apply(point)

    return Region(trace_sketch(task.fresh().schedule, own), take, task.fresh)


def regions_of(task: Task) -> list[Region]:
    """The sketches of the heaviest part of a program, and what is derived from it if it reduces.

    Where none of the target's sketches matches, the space around the default trace stands for them.
    """
    offers: list[tuple[int, str, list[Sketch]]] = []

    def pick(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        # On an H200 derived tiles of convolutions took a thousand times the planner's choice, and up to 16 s to build.
        derived = None if sketches and task.target.on_device else tiled(unit)
        offered = [*sketches, *([] if derived is None else [derived])]
        if sum(sketch.size for sketch in offered) > 1:
            offers.append((unit.facts.points * unit.facts.depth, unit.name, offered))
        return analytic(unit, sketches)

    with picking(pick):
        task.fresh().schedule.plan(task.target, task.fixed)
    if not offers:
        return [_varied(task)]
    # What only a derived sketch fits may stand beside the real work: parts of Winograd's program that hardly ever run.
    known_first = [(any(one.name != DERIVED for one in offer[2]), offer[0], len(offer[2])) for offer in offers]
    _, unit, sketches = offers[known_first.index(max(known_first))]
    made = [Region(sketch, _planned(task, unit, sketch), task.fresh, is_planned=True) for sketch in sketches]
    known = [region for region in made if region.sketch.name != DERIVED] or [_varied(task)]
    least = min(float(region.estimates.min()) for region in known)
    derived = [region for region in made if region.sketch.name == DERIVED]
    # A derived sketch's estimate orders its own points; all of them come after the planner's choice.
    scaled = [replace(one, scale=UNSURE * least / float(one.estimates.min())) for one in derived]
    return known + scaled if np.isfinite(least) else known


class Space:
    """All points of some regions, numbered; estimates and features of any of them."""

    def __init__(self, regions: Sequence[Region], target: Target | None = None) -> None:
        self.regions, self._target = list(regions), target
        self.starts = np.cumsum([0, *(region.count for region in self.regions)])
        self.estimates = np.concatenate([region.estimates for region in self.regions])
        self.legal = np.flatnonzero(np.isfinite(self.estimates))
        """The numbers of the points that make sense."""
        self.knobs = list(dict.fromkeys(knob for region in self.regions for knob in region.columns))
        best = self.estimates.min() if len(self.legal) else 1.0
        self.prior = -np.log2(self.estimates / best)
        """How good a point is expected to be: 0 for the best, -1 for half its speed."""

    @property
    def signature(self) -> list[tuple[str, ...]]:
        """The sketches and their knobs: features of spaces with the same ones mean the same."""
        return [(region.sketch.name, *region.choices) for region in self.regions]

    def trained_ahead(self) -> Any:
        """What the model that ships knows of such spaces; None where it knows nothing."""
        return None if self._target is None else trained_ahead(self._target, self.signature)

    def restricted(self, numbers: Array) -> Space:
        """The space with these points only: those of a pool that was measured."""
        made = copy.copy(self)
        made.legal = np.unique(np.asarray(numbers, np.int64))
        made.estimates = np.full_like(self.estimates, np.inf)
        made.estimates[made.legal] = self.estimates[made.legal]
        return made

    @property
    def size(self) -> int:
        """How many points make sense."""
        return len(self.legal)

    @property
    def default(self) -> int:
        """The point that the planner tries first."""
        return int(np.argmin(self.estimates))

    @property
    def known(self) -> set[int]:
        """The point that needs no trial: the planner's own choice, which every other is measured beside."""
        return {self.default} if self.size and self.region_of(self.default)[0].is_planned else set()

    def region_of(self, number: int) -> tuple[Region, int]:
        """The region of a point, and its place there."""
        at = int(np.searchsorted(self.starts, number, "right")) - 1
        return self.regions[at], number - int(self.starts[at])

    def point(self, number: int) -> tuple[str, dict[str, int]]:
        """The sketch and the numbers of a point."""
        region, place = self.region_of(number)
        return region.sketch.name, region.sketch.point(region.columns, place)

    def find(self, sketch: str, point: Point) -> int | None:
        """The number of a point; None where it is none of the space, or makes no sense there."""
        for region, start in zip(self.regions, self.starts):
            if region.sketch.name != sketch or region.choices.keys() != point.keys():
                continue
            places = [int(np.searchsorted(choices, point[knob])) for knob, choices in region.choices.items()]
            known = zip(region.choices.items(), places)
            if all(at < len(choices) and choices[at] == point[knob] for (knob, choices), at in known):
                found = int(start) + (int(np.ravel_multi_index(places, region.sizes)) if places else 0)
                return found if np.isfinite(self.estimates[found]) else None
        return None

    def features(self, numbers: Array) -> Array:
        """What a learned model sees of points: estimate, region, knobs and products of two, by their logarithms."""
        count, first = len(numbers), min(len(self.knobs), MOST_PAIRS)
        out = np.full((count, 2 + len(self.knobs) + first * (first - 1) // 2), np.nan, np.float32)
        out[:, 0] = self.prior[numbers]
        at = np.searchsorted(self.starts, numbers, "right") - 1
        out[:, 1] = at
        for index, region in enumerate(self.regions):
            mine = np.arange(count) if len(self.regions) == 1 else np.flatnonzero(at == index)
            if len(mine):
                places = numbers[mine] - self.starts[index]
                for knob in region.columns:
                    logs = np.log2(region.columns[knob][places].astype(np.float32) + 1)
                    out[mine, 2 + self.knobs.index(knob)] = logs
        column = 2 + len(self.knobs)
        for left in range(first):
            for right in range(left + 1, first):
                np.add(out[:, 2 + left], out[:, 2 + right], out=out[:, column])
                column += 1
        return out

    def _changed(self, numbers: Array, others: Array, change: Callable[..., Array]) -> Array:
        """Points made of the places of the knobs of two points each; where these lie in two regions, the first."""
        out = numbers.copy()
        at, there = (np.searchsorted(self.starts, one, "right") - 1 for one in (numbers, others))
        for start, region, index in zip(self.starts, self.regions, range(len(self.regions))):
            mine = np.flatnonzero((at == index) & (there == index))
            if len(mine) and region.sizes:
                pair = [np.array(np.unravel_index(one[mine] - start, region.sizes)) for one in (numbers, others)]
                out[mine] = np.ravel_multi_index(tuple(change(*pair, region.sizes)), region.sizes) + start
        return out

    def neighbours(self, numbers: Array, random: np.random.Generator) -> Array:
        """For each point another that differs in one knob."""

        def change(places: Array, _: Array, sizes: tuple[int, ...]) -> Array:
            which = random.integers(0, len(sizes), places.shape[1])
            places[which, np.arange(places.shape[1])] = random.integers(0, np.array(sizes)[which])
            return places

        return self._changed(numbers, numbers, change)

    def crossed(self, mothers: Array, fathers: Array, random: np.random.Generator) -> Array:
        """Children that have each knob of one parent or the other; of parents in two regions, a copy of the first."""
        return self._changed(mothers, fathers, lambda a, b, _: np.where(random.random(a.shape) < 0.5, a, b))

    def scores(self, model: CostModel, numbers: Array | None = None) -> Array:
        """What a model says of points (all that make sense, where none are named), in pieces that fit the caches."""
        wanted = self.legal if numbers is None else numbers
        parts = [wanted[at : at + CHUNK] for at in range(0, len(wanted), CHUNK)]
        made = [model.score(model.look(self, part), self.prior[part]) for part in parts]
        return np.concatenate(made) if made else np.zeros(0)

    def describe(self) -> str:
        """The regions and their sizes."""
        return ", ".join(f"{region.sketch.name} {region.count:,}" for region in self.regions)


def space_of(task: Task) -> Space:
    """The space of a task."""
    return Space(regions_of(task), task.target)
