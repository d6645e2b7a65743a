"""Blocks whose result lies along another axis than what they read: a square of elements at a time.

    out[.., l, p] = f(in[.., p, l])        lanes along l, where neighbours are read together; a row for each p

The rows are unrolled, so that their stores, each strided, stand side by side: `transpose_stores` turns the square in
registers and stores whole rows. Every cache line is then read once and written once.
"""

from __future__ import annotations

from weft.expr.nodes import Var
from weft.loop.ir import Axis
from weft.schedule.facts import Facts, extent
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.cpu.model import LEAST_SIDE, LEAST_STEP, MOST_LOADS


def tile_transposed(stage: Stage, facts: Facts, loops: list[Var], target: Target) -> list[Var] | None:
    """Tiles a block that transposes; gives the loops around the squares, None (nothing changed) for any other block."""
    found = _axes(facts, target)
    if found is None or len(facts.loads) > MOST_LOADS:
        return None
    lane, place = found
    lanes = _side(extent(lane), target.lanes(facts.target.dtype))
    rows = min(lanes, extent(place))
    at = {axis.var: loop for axis, loop in zip(facts.spatial, loops)}
    lane_outer, lane_inner = stage.split(at[lane.var], factor=lanes)
    place_outer, place_inner = stage.split(at[place.var], factor=rows)
    others = [loop for axis, loop in zip(facts.spatial, loops) if axis is not lane and axis is not place]
    around = [*others, lane_outer, place_outer]
    stage.reorder(*around, place_inner, lane_inner)
    stage.unroll(place_inner)
    stage.vectorize(lane_inner)
    return around


def _axes(facts: Facts, target: Target) -> tuple[Axis, Axis] | None:
    """The axis of the lanes, along which everything is read side by side, and the one along which it is stored so."""
    store = facts.store
    kind = facts.target.dtype
    if store is None or kind.is_bool or kind.bits not in (32, 64) or target.lanes(kind) < LEAST_SIDE:
        return None
    places = [axis for axis in facts.spatial if facts.store_step(axis.var) == 1 and extent(axis) >= LEAST_SIDE]
    if len(places) != 1 or all(abs(facts.step(load, places[0].var) or 0) <= LEAST_STEP for load in facts.loads):
        return None
    lanes = [
        axis
        for axis in facts.spatial
        if axis is not places[0]
        and extent(axis) >= LEAST_SIDE
        and all(facts.step(load, axis.var) in (0, 1) for load in facts.loads)
        and any(facts.step(load, axis.var) == 1 for load in facts.loads)
        and (facts.store_step(axis.var) or 0) >= extent(places[0])
    ]
    return (max(lanes, key=extent), places[0]) if lanes else None


def _side(length: int, lanes: int) -> int:
    """The lanes of a square: all, or fewer where the axis is shorter or fewer divide it without much loss."""
    while lanes > LEAST_SIDE and (
        lanes > length or (length % lanes and length < 4 * lanes and length % (lanes // 2) == 0)
    ):
        lanes //= 2
    return lanes
