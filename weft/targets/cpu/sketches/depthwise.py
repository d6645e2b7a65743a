"""Windows over the rows of each channel apart, with lanes along the row: a depthwise convolution in the plain layout.

channels                      parallel
ro, lo                        tiles of `rows` rows and one vector of places
ky, kx                        unrolled: neighbouring rows share what they read
ri, lane                      the tile

The image is read where it lies: what is beyond its edges, and beyond the end of a row in the last vector of one, are
lanes that are off; the vectors of a short row are unrolled, so that it is known which. Machines whose vectors have no
masks, windows over values that are computed first, and windows so large that a copy with zeros around it costs little
beside them are `conv_rows`'s.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.expr.nodes import Const, Load, Select
from weft.expr.visit import uses_any
from weft.loop.ir import Axis, Block, Store
from weft.loop.tree import writers
from weft.plan.contraction import is_sum_of_products, taps_along, uses
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import extent
from weft.schedule.schedule import Stage
from weft.targets.cpu import model
from weft.targets.cpu.default_attach import attach_producers
from weft.targets.cpu.default_loops import parallelize
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.machine import core_of, seconds
from weft.targets.cpu.sketches import nest


def match(unit: Unit) -> Sketch | None:
    """The sketch of a window over rows; None for anything else."""
    facts = unit.facts
    image = _image(unit)
    if image is None:
        return None
    lane, row = facts.spatial[-1], facts.spatial[-2]
    lanes = unit.target.lanes(facts.target.dtype)
    if facts.depth > model.MOST_TAPS_OF_WINDOW or not has_masks(unit.target.features, image.buffer.dtype.bits):
        return None
    if not _lies_there(unit, image):
        return None
    lanes = min(lanes, _power_of_two(extent(lane)))
    knobs = {"rows": tuple(range(1, min(model.MOST_ROWS_OF_WINDOW, extent(row)) + 1)), "lanes": (lanes,)}
    core, high = core_of(unit.target), extent(row)
    tiles = facts.points // (extent(row) * extent(lane)) * ceildiv(extent(lane), lanes)
    step = facts.step(image, lane.var) or 1
    seen = np.asarray([0, *(_rows_read(unit, image, row, n) for n in knobs["rows"])])
    across = facts.depth // max(1, math.prod(extent(tap) for tap in taps_along(facts, image, row)))

    def cost(columns: Columns) -> Any:
        rows = columns["rows"]
        loads = across * seen[rows]
        each = facts.depth * rows / (core.multiply_adds * model.WINDOW_SHARE)
        each = each + loads * (model.WINDOW_LOADS if step == 1 else model.STEPPED_LOADS) / core.loads
        each = np.maximum(each, model.chain_cycles(core, facts.depth, facts.depth * rows + loads)) + rows
        each = each * np.where((rows > unit.target.vector_registers * 3 // 8) & (rows < high), model.SPILLED, 1.0)
        computing = tiles * -(-high // rows) * each * (1 + model.UNEVEN_WINDOW * ((high % rows != 0) & (rows > 3)))
        return seconds(model.overlapped(computing, model.stream_cycles(unit)), unit.target)

    def legal(columns: Columns) -> Any:
        rows = columns["rows"]
        return (rows * facts.depth <= model.MOST_UNROLLED_WINDOW) & (
            rows <= max(1, unit.target.vector_registers // 2)
        ) | (rows == 1)

    return Sketch("window", knobs, lambda point: _apply(unit, image, point), cost, legal)


def _rows_read(unit: Unit, image: Load, row: Axis, count: int) -> int:
    """How many rows of an image so many rows of the result read."""
    facts, offsets = unit.facts, [0]
    step = facts.step(image, row.var) or 1
    for tap in taps_along(facts, image, row):
        offsets = [at + (facts.step(image, tap.var) or 0) * n for at in offsets for n in range(extent(tap))]
    return len({at + step * n for at in offsets for n in range(count)})


def _image(unit: Unit) -> Load | None:
    """What a window over rows of its own channel reads; None where the product is something else."""
    facts = unit.facts
    if not is_sum_of_products(facts) or len(facts.loads) != 2 or len(facts.spatial) < 2:
        return None
    if any(axis.kind != "spatial" for axis in facts.spatial) or list(facts.block.writes[0].mins)[-1:] != [
        facts.spatial[-1].var
    ]:
        return None
    lane, row = facts.spatial[-1], facts.spatial[-2]
    images = [load for load in facts.loads if uses(load, lane)]
    weights = [load for load in facts.loads if not uses(load, lane) and not uses(load, row)]
    if len(images) != 1 or len(weights) != 1 or extent(lane) < 4:
        return None
    step = facts.step(images[0], lane.var)
    if (
        step is None
        or not 1 <= step <= model.LARGEST_STEP_OF_WINDOW
        or not all(uses(images[0], axis) for axis in facts.reduce)
    ):
        return None
    channels = {axis.var for axis in facts.spatial[:-2] if uses(weights[0], axis) and uses(images[0], axis)}
    apart = [index for index in images[0].indices if uses_any(index, channels)]
    if not apart or any(uses_any(index, {axis.var for axis in facts.reduce}) for index in apart):
        return None  # sums over channels: a convolution
    return images[0]


def _power_of_two(count: int) -> int:
    """The least power of two that is not less."""
    return 1 << (count - 1).bit_length()


def _lies_there(unit: Unit, image: Load) -> bool:
    """Whether an image is a parameter, perhaps with a number around it."""
    return image.buffer not in unit.schedule.func.allocations or _padding(unit, image) is not None


def _padding(unit: Unit, image: Load) -> Block | None:
    """The block that copies a parameter, with a number around it, to where a window reads it."""
    func = unit.schedule.func
    for block in writers(func.body, image.buffer):
        body = block.body
        if isinstance(body, Store) and isinstance(body.value, Select) and isinstance(body.value.otherwise, Const):
            source = body.value.then
            if isinstance(source, Load) and source.buffer not in func.allocations:
                return block
    return None


# ---------------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, image: Load, point: Point) -> None:
    s, facts = unit.schedule, unit.facts
    name = facts.block.name
    padding = _padding(unit, image)
    if padding is not None:
        s[padding.name].compute_inline()
    sums, final, loops = nest.tile_and_final(unit)
    sums.pad(sums.axis[-1], point["lanes"])
    *outer, row, lane = loops.values()
    row_outer, row_inner = final.split(row, factor=point["rows"])
    lane_outer, lane_inner = final.split(lane, factor=point["lanes"])
    final.reorder(*outer, row_outer, lane_outer, row_inner, lane_inner)
    nest.write_out(final, row_inner, lane_inner)
    nest.compute_tile(unit, sums, final, lane_outer, exact=False)
    _schedule_sums(sums)
    if ceildiv(extent(facts.spatial[-1]), point["lanes"]) <= model.SHORT_ROW:
        final.unroll(lane_outer)
    unit.done.update([name, final.name, sums.name])
    parallel = parallelize(final, [*outer, row_outer], facts.points * facts.depth, unit.target)
    if parallel is not None or outer:
        attach_producers(s, final.name, [parallel if parallel is not None else outer[-1]], unit.target, unit.done)


def _schedule_sums(sums: Stage) -> None:
    """The taps as one straight piece of code around the tile."""
    *rest, high, wide = sums.axis
    *down, across = sums.reduce_axis
    sums.reorder(*rest, across, *down, high, wide)
    nest.write_out(sums, across, *down, high, wide)
