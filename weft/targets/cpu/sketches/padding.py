"""Taps of a convolution that read nothing but the zeros around an image: which of them a tile passes over, and how.

    3 × 3, gaps of 12, 33 × 33 places in tiles of 11      of a row's three tiles, one passes over the taps on the left,
                                                          one over those on the right: 7 of 9 are computed

The loops over such taps are the outermost of the reduction, with a test in each (`loop/passes/skip_padding.py`). In:
the loads of a product. Out: the unit with its reduction in that order, and what each tile computes of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.expr.evaluate import evaluate
from weft.expr.nodes import Load, Var, int_value
from weft.expr.visit import uses_any
from weft.loop.ir import Axis
from weft.loop.passes.skip_padding import NOTE, image_in
from weft.plan.planner import OPEN, Unit
from weft.plan.sketch import Columns, Point
from weft.schedule.facts import FINITE, extent
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.cpu import model

WIDE = "places"
"""The knob that says how many places of a row a tile has."""


@dataclass(frozen=True)
class Kept:
    """The taps of a window along one axis: for which of its places they meet the image, not the zeros around it."""

    tap: Axis
    meets: Any
    """For each place and tap."""
    knob: str
    """What says how many places of the axis a tile has; one where none does."""

    def share(self, tile: Any) -> Any:
        """The part of the products that is computed where tiles of so many places pass over taps beside the image."""
        return np.asarray([0.0, *(self._of_tile(size) for size in range(1, int(np.max(tile)) + 1))])[tile]

    def least(self, target: Target) -> float:
        """The least part, of tiles as large as registers hold: of rows, one or a few."""
        most = max(target.vector_registers, 8) // 2 if self.knob == WIDE else 1
        return float(np.min(self.share(np.arange((most + 3) // 4, most + 1))))

    def _of_tile(self, size: int) -> float:
        starts = np.arange(0, len(self.meets), size)
        several = np.diff([*starts, len(self.meets)])[:, None]
        return float((np.logical_or.reduceat(self.meets, starts) * several).sum() / self.meets.size)


Taps = tuple[Kept, ...]


def passing(
    unit: Unit, image: Load, weight: Load, tiled: Mapping[str, Axis | None], least: float = model.LEAST_SKIPPED
) -> tuple[Unit, Taps]:
    """A product whose sums go over the taps first that are passed over often enough, and these taps; `tiled` are the
    axes of which a tile has several places, by the knobs that say how many."""
    taps = _taps(unit, image, weight, tiled)
    channels = [axis for axis in unit.facts.reduce if extent(axis) > 1 and all(axis is not one.tap for one in taps)]
    few = [least if one.knob else min(least, model.LEAST_SKIPPED_FRAMES) for one in taps]
    kept = tuple(one for one, part in zip(taps, few) if channels and one.least(unit.target) <= 1 - part)
    first = [one.tap for one in kept]
    order = (*first, *(axis for axis in unit.facts.reduce if axis not in first))
    return replace(unit, facts=replace(unit.facts, reduce=order)), kept


def share(taps: Taps, columns: Columns) -> Any:
    """The part of all products that tiles compute."""
    return math.prod(one.share(columns.get(one.knob, 1)) for one in taps)


def pass_over(sums: Stage, taps: Taps, loops: Mapping[Var, Var], image: str, point: Point) -> None:
    """Has the loops over taps pass over what lies beside an image, the buffer that the sums read."""
    for one in taps:
        if one.share(point.get(one.knob, 1)) < 1:
            sums.annotate(NOTE, image, loops[one.tap.var])


def _taps(unit: Unit, image: Load, weight: Load, tiled: Mapping[str, Axis | None]) -> list[Kept]:
    """The taps that may be passed over: those of weights that are known to be finite, over images of known size."""
    facts, func = unit.facts, unit.schedule.func
    if OPEN in func.annotations or weight.buffer.name not in func.annotations.get(FINITE, ()):
        return []
    found: list[Kept] = []
    for index, inside in zip(image.indices, image_in(func, image.buffer) or ()):
        axes = [axis for axis in facts.block.axes if uses_any(index, {axis.var})]
        taps = [axis for axis in axes if axis.kind == "reduce" and extent(axis) > 1]
        bounds = () if inside is None else tuple(map(int_value, inside))
        if len(taps) != 1 or len(axes) != 2 or not bounds or None in bounds:
            continue
        place, tap = next(axis for axis in axes if axis is not taps[0]), taps[0]
        knob = next((knob for knob, axis in tiled.items() if axis is place), "")
        at = np.asarray(
            [[evaluate(index, {place.var: y, tap.var: k}) for k in range(extent(tap))] for y in range(extent(place))]
        )
        found.append(Kept(tap, (bounds[0] <= at) & (at < bounds[1]), knob))
    return found
