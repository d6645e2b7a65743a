"""Windows over the rows of each channel apart, with lanes along the row: a depthwise convolution in the plain layout.

channels                      parallel; the padded image of a channel is made here
ro, lo                        tiles of `rows` rows and one vector of places
ky, kx                        unrolled: neighbouring rows share what they read
ri, lane                      the tile
"""

from __future__ import annotations

from weft.expr.nodes import Load
from weft.expr.visit import uses_any
from weft.loop.ir import Axis
from weft.schedule.facts import extent, is_product_sum
from weft.schedule.space import Point, Space
from weft.targets.cpu.default_attach import attach_producers
from weft.targets.cpu.default_loops import parallelize
from weft.targets.cpu.unit import Unit

MOST_TAPS = 49
MOST_UNROLLED = 128
LARGEST_STEP = 4


def space(unit: Unit) -> Space | None:
    """The space of a window over rows; None for anything else."""
    facts = unit.facts
    if not is_product_sum(facts) or len(facts.loads) != 2 or len(facts.spatial) < 2 or facts.depth > MOST_TAPS:
        return None
    if any(axis.kind != "spatial" for axis in facts.spatial) or list(facts.block.writes[0].mins)[-1:] != [
        facts.spatial[-1].var
    ]:
        return None
    lane, row = facts.spatial[-1], facts.spatial[-2]
    images = [load for load in facts.loads if _uses(load, lane)]
    weights = [load for load in facts.loads if not _uses(load, lane) and not _uses(load, row)]
    if len(images) != 1 or len(weights) != 1 or extent(lane) < 4:
        return None
    step = facts.step(images[0], lane.var)
    if step is None or not 1 <= step <= LARGEST_STEP or not all(_uses(images[0], axis) for axis in facts.reduce):
        return None
    if not any(_uses(weights[0], axis) and _uses(images[0], axis) for axis in facts.spatial[:-2]):
        return None  # the image serves many channels: a convolution
    rows = max(1, min(8, extent(row), unit.target.vector_registers // 4, MOST_UNROLLED // facts.depth))
    lanes = min(unit.target.lanes(facts.target.dtype), extent(lane))
    knobs = {"rows": tuple(range(1, min(16, extent(row)) + 1)), "lanes": (lanes,)}
    return Space("window", knobs, {"rows": rows, "lanes": lanes}, lambda point: _apply(unit, point))


def _uses(load: Load, axis: Axis) -> bool:
    return any(uses_any(index, {axis.var}) for index in load.indices)


def _apply(unit: Unit, point: Point) -> None:
    s, facts = unit.schedule, unit.facts
    name = facts.block.name
    if unit.taker is None:
        sums, final = s.cache_write(facts.target.name, "local"), s[name]
        order = list(final.axis)
    else:
        sums, final = s[name], s[unit.taker.name]
        loop_of = dict(zip([axis.var for axis in final.block.axes], final.axis))
        order = [loop_of[unit.to_taker[axis.var]] for axis in facts.spatial]
    *outer, row, lane = order
    row_outer, row_inner = final.split(row, factor=point["rows"])
    lane_outer, lane_inner = final.split(lane, factor=point["lanes"])
    final.reorder(*outer, row_outer, lane_outer, row_inner, lane_inner)
    final.unroll(row_inner)
    final.vectorize(lane_inner)
    sums.compute_at(final, lane_outer)
    if unit.taker is not None:
        sums.set_scope("local")
    *rest, high, wide = sums.axis
    sums.reorder(*rest, *sums.reduce_axis, high, wide)
    for loop in (*sums.reduce_axis, high):
        sums.unroll(loop)
    sums.vectorize(wide)
    unit.done.update([name, final.name, sums.name])
    parallel = parallelize(final, outer, facts.points * facts.depth, unit.target)
    if parallel is not None or outer:
        attach_producers(s, final.name, [parallel if parallel is not None else outer[-1]], unit.target, unit.done)
