"""Convolutions whose channels do not fill blocks, in the plain layout: lanes along the places of a row.

    n, groups, rows in parts     parallel; what a part reads of the image is copied first, with its padding
    qt    the group's output channels, `channels` at a time
    yt    rows of the output, `rows` at a time
    xt    places of a row, `vectors` vectors at a time
    ci, kx, ky                   the reduction; a step reads `rows` × `vectors` vectors, broadcasts `channels` weights
    q, y, xv, lane               the tile: `channels` × `rows` × `vectors` accumulators stay in registers

For groups of a few channels (a block of channels would mix groups), single ones (depthwise) with large windows, and
for images of a few channels. With `down` the taps below one another are unrolled: the rows of the tile share what they
read. Where a window moves by more than one place, the copy has the places of each remainder side by side, so that the
lanes of a vector are neighbours there.

A window over single channels of an image that lies in memory copies nothing (`match_window`): what is beyond the edges,
and beyond the end of a row in the last vector of one, are lanes that are off, and all taps are written out. Machines
whose vectors have no masks, windows over values that are computed first, and windows so large that a copy with zeros
around it costs little beside them take the nest above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.expr.nodes import Const, Load, Select, Var
from weft.expr.visit import uses_any
from weft.loop.ir import Axis, Block, Store
from weft.loop.passes.shift_tiles import NOTE as TILES
from weft.loop.tree import writers
from weft.plan.contraction import counted, group_of, is_sum_of_products, load_bytes, taps_along, tests_of, uses
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv, cheapest
from weft.schedule.facts import extent, extent_of
from weft.schedule.schedule import Stage
from weft.targets.cpu import model
from weft.targets.cpu.default_loops import attach_producers, parallelize
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.machine import Core, core_of, seconds
from weft.targets.cpu.sketches import nest, padding
from weft.targets.cpu.sketches.conv import pack_weight


@dataclass(frozen=True)
class Shape:
    """The axes of a convolution, by their part in it."""

    lane: Axis
    row: Axis | None
    down: Axis | None
    """The taps of the window that stand below one another."""
    channel: Axis
    others: tuple[Axis, ...]
    image: Load
    weight: Load
    group: int
    """Output channels that read the same image."""
    step: int
    """How many elements of the image the window moves by."""
    phase: Axis | None = None
    """What lies between neighbours along `lane` in the result, and is a part of the tile: none of `others`."""
    kept: padding.Taps = ()
    """The taps that are passed over where they read nothing but zeros around the image."""


def match(unit: Unit) -> Sketch | None:
    """The sketch of a convolution in rows; None for anything else."""
    shape = _shape(unit)
    if shape is None:
        return None
    lanes = unit.target.lanes(unit.facts.target.dtype)
    most = max(8, unit.target.vector_registers)
    places, own = extent(shape.lane), _lanes(unit, extent(shape.lane))
    wide, early = ceildiv(places, own), nest.starts_early(unit, places, own)
    kept: padding.Taps = ()
    if not early:  # a last tile that starts early would have tests in its sums
        tiled = {"rows": shape.row, padding.WIDE: shape.lane}
        unit, kept = padding.passing(unit, shape.image, shape.weight, tiled, model.LEAST_SKIPPED_IN_ROWS)
    high = 1 if shape.row is None else extent(shape.row)
    knobs = {
        **tile_knobs(shape.group, high, wide - early, most),
        "down": (0,) if shape.down is None else (0, 1),
        "lanes": (own,),
    }
    core, apart = core_of(unit.target), unit.facts.step(shape.weight, shape.channel.var)
    clash = shape.weight.buffer not in unit.constants and core.clashes((apart or 0) * shape.weight.buffer.dtype.bytes)
    phases = 1 if shape.phase is None else extent(shape.phase)
    apart = min(phases, 2) if shape.phase is not None and uses(shape.image, shape.phase) else 1
    taps, masks = _taps(unit, shape), has_masks(unit.target.features, unit.facts.target.dtype.bits)
    size = Size(core, shape.group, high, wide, most, taps, unit.facts.depth, clash, phases, apart, early, masks)
    again = _count(shape) // shape.group
    image, first = load_bytes(shape.image), unit.target.cache_bytes[0]
    group = image * shape.group // extent(shape.channel)
    # A part is copied just before it is read: it comes from where a group's image has room.
    copied = 2 * image / model.bytes_a_cycle(2 * group, unit.target)
    if shape.step > 1:
        copied += image / (lanes * shape.image.buffer.dtype.bytes) * model.STEPPED_LOADS / core.loads

    # What the first-level cache does not hold of a group's image comes again for each tile of its channels.
    passing = image / model.bytes_a_cycle(group, unit.target) if group > first else 0.0

    beside, written = [tuple(one for one in kept if (one.tap is shape.down) == down) for down in (False, True)]

    def computed(columns: Columns) -> Any:
        tile = {**columns, padding.WIDE: columns["vectors"] * own}
        return padding.share(beside, tile) * np.where(columns["down"] == 1, 1.0, padding.share(written, tile))

    def cost(columns: Columns) -> Any:
        steps = again * counted(unit.facts) * unit.facts.depth / size.taps.count * computed(columns)
        computing = model.crossed(unit.target) * steps * size.cycles(columns)
        streaming = model.stream_cycles(unit) + (shape.group // columns["channels"] - 1) * passing
        return seconds(model.overlapped(computing, streaming) + copied, unit.target)

    return Sketch("rows", knobs, lambda point: _apply(unit, replace(shape, kept=kept), point), cost, size.legal)


def tile_knobs(group: int, high: int, wide: int, registers: int) -> dict[str, tuple[int, ...]]:
    """The tiles of so many channels, rows and vectors of a row."""
    return {
        "channels": tuple(n for n in range(min(group, registers), 0, -1) if group % n == 0),
        "rows": tuple(range(1, min(high, model.MOST_ROWS_OF_TILE) + 1)),
        "vectors": tuple(range(1, min(wide, registers) + 1)),
    }


def _lanes(unit: Unit, places: int) -> int:
    """All lanes of a vector, or enough for a short row: a power of two where lanes can be off."""
    masks = has_masks(unit.target.features, unit.facts.target.dtype.bits)
    lanes: int = unit.target.lanes(unit.facts.target.dtype)
    return min(lanes, 1 << (places - 1).bit_length() if masks else places)


@dataclass(frozen=True)
class Taps:
    """The taps below one another: how many, how far apart, and how many rows the window moves by."""

    count: int = 1
    gap: int = 1
    step: int = 1

    @property
    def apart(self) -> int:
        """How many sets of rows no tap shares with the next one: all of them stay until it is a set's turn again."""
        return min(self.step, self.count)

    @property
    def shared(self) -> int:
        """Sets of rows that several taps read: one of each stays for every row of a tile."""
        sets = [tap * self.gap % self.step for tap in range(self.count)]
        return sum(sets.count(one) > 1 for one in set(sets))

    def read(self, rows: int) -> int:
        """How many rows of an image all taps of so many rows read."""
        return len({row * self.step + tap * self.gap for row in range(rows) for tap in range(self.count)})


@dataclass(frozen=True)
class Size:
    """What tiles are cut from, `high` rows of `wide` vectors for each channel of a group, and what holds them."""

    core: Core
    group: int
    high: int
    wide: int
    registers: int
    taps: Taps
    depth: int
    clash: bool = False
    """Whether the channels' weights are loaded one after the other."""
    phases: int = 1
    """Sums of a tile for each of its pixels and channels."""
    apart: int = 1
    """How many of these read an image of their own: phases from whose first pixels others are read."""
    early: bool = False
    """Whether the last tile of a row starts so early that it is whole."""
    masks: bool = True
    """Whether lanes can be off; else a last tile that lacks rows has tests."""

    def legal(self, columns: Columns) -> Any:
        """Tiles that fit into the registers; several rows where they share what they read, or are whole."""
        channels, rows, vectors, down = (columns[knob] for knob in ("channels", "rows", "vectors", "down"))
        channels = channels * self.phases
        sums, read = channels * rows * vectors, rows * vectors
        # What the rows of a tile read for a tap stays for the next; else the operand of fewer registers stays.
        shared = (sums + self.taps.apart * self.apart * read + channels + 1 <= self.registers) & (
            sums * self.taps.count <= model.MOST_UNROLLED_ROWS
        )
        plain = (sums + np.minimum(channels, read) + 1 <= self.registers) & ((rows == 1) | (vectors >= self.wide))
        return np.where(down == 1, shared & (rows > 1) & (self.taps.count > 1), plain)

    def cycles(self, columns: Columns) -> Any:
        """Cycles of the taps below one another for all tiles of a group's image, by counting."""
        channels, rows, vectors, down = (columns[knob] for knob in ("channels", "rows", "vectors", "down"))
        tiles = -(-self.wide // vectors)
        sums = channels * self.phases
        whole, rest = (self._tile(sums, rows, v, down) for v in (vectors, self.wide % vectors))
        cut = (self.wide % vectors > 0) & (not self.early)
        each = np.where(cut, whole + (rest - whole) / tiles, whole)
        more = model.UNEVEN * self.high / rows if self.masks else model.CUT_TILE
        return self.group // channels * (self.high / rows + more * (self.high % rows != 0)) * tiles * each

    def least(self) -> float:
        """The cycles of the best tile."""
        knobs = tile_knobs(self.group, self.high, self.wide, self.registers)
        return cheapest({**knobs, "down": (0, 1)}, self.cycles, self.legal)[1]

    def _tile(self, channels: Any, rows: Any, vectors: Any, down: Any) -> Any:
        sums, read, count = channels * rows * vectors, rows * vectors, self.taps.count
        seen = np.asarray([0, *(self.taps.read(n) for n in range(1, model.MOST_ROWS_OF_TILE + 1))])[rows]
        loads = self.apart * model.IMAGE_LOADS / self.core.loads * np.where(down == 1, vectors * seen, count * read)
        loads = loads + count * channels / (1.0 if self.clash else self.core.loads)
        issued = np.maximum(count * sums / self.core.multiply_adds, loads)
        around = (model.TILE_CYCLES + 2 * sums) * count / self.depth
        waits = model.chain_cycles(self.core, count, self.depth * sums)
        return np.maximum(issued, waits) + 0.5 * np.where(down == 1, 1, count) + around


def _taps(unit: Unit, shape: Shape) -> Taps:
    if shape.down is None or shape.row is None:
        return Taps()
    pitch, step = (abs(unit.facts.step(shape.image, axis.var) or 0) for axis in (shape.down, shape.row))
    common = max(1, math.gcd(pitch, step))
    return Taps(extent(shape.down), max(1, pitch // common), max(1, step // common))


def _shape(unit: Unit) -> Shape | None:
    """The parts of a convolution that stands in the plain layout; None where the product is something else."""
    facts = unit.facts
    if not is_sum_of_products(facts) or len(facts.loads) != 2 or len(facts.spatial) < 3:
        return None
    lane = facts.spatial[-1]
    if any(axis.kind != "spatial" for axis in facts.spatial) or facts.block.writes[0].mins[-1] is not lane.var:
        return None
    images = [load for load in facts.loads if uses(load, lane)]
    weights = [load for load in facts.loads if not uses(load, lane)]
    if len(images) != 1 or len(weights) != 1 or extent(lane) < model.LEAST_LANES:
        return None
    image, weight = images[0], weights[0]
    step = facts.step(image, lane.var)
    along = [axis for axis in facts.spatial if uses(weight, axis)]
    taps = {axis.var for axis in facts.reduce}
    phases = [index for index in weight.indices if uses_any(index, taps)]
    columns = [axis for axis in along if not any(uses_any(index, {axis.var}) for index in phases)]
    groups = {axis: size for axis in columns if (size := group_of(image, axis)) is not None}
    if step is None or not 1 <= step <= model.LARGEST_STEP_OF_ROWS or len(groups) != 1:
        return None
    ((channel, group),) = groups.items()
    across = [axis for axis in facts.spatial[:-1] if axis not in along and uses(image, axis)]
    row = next((axis for axis in reversed(across) if extent(axis) > 1), None)
    others = tuple(axis for axis in facts.spatial if axis not in (lane, row, channel))
    phase = nest.phase_between(unit, lane, others)
    others = tuple(axis for axis in others if axis is not phase)
    return Shape(lane, row, _down(unit, image, row), channel, others, image, weight, group, step, phase)


def _down(unit: Unit, image: Load, row: Axis | None) -> Axis | None:
    """The axis of the reduction that moves through the rows of an image."""
    found = [] if row is None else taps_along(unit.facts, image, row)
    # Taps that do not always count are loops, so that they can be passed over.
    whole = len(found) == 1 and not any(uses_any(test, {found[0].var}) for test in tests_of(unit.facts))
    return found[0] if whole and extent(found[0]) > 1 else None


# ---------------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, shape: Shape, point: Point) -> None:
    s, facts = unit.schedule, unit.facts
    name = facts.block.name
    copy = _neighbours(unit, shape)
    if (point["channels"] > 1 or shape.phase is not None) and shape.weight.buffer in unit.constants:
        pack_weight(unit, shape.weight, shape.channel, point["channels"], shape.others, shape.phase)
    sums, final, loops = nest.tile_and_final(unit)
    masks = has_masks(unit.target.features, shape.image.buffer.dtype.bits)
    if masks:
        sums.pad(sums.axis[-1], point["lanes"])
    parallel, inner = _outer_loops(unit, final, shape, loops, point)
    nest.compute_tile(unit, sums, final, inner, exact=not masks)
    _schedule_sums(sums, shape, unit, point)
    unit.done.update([name, final.name, sums.name])
    if copy is not None:
        copy.compute_at(final, parallel, exact=not masks)
        _copy_rows(unit, copy, shape.step)
        unit.done.add(copy.name)
    attach_producers(s, final.name, [parallel], unit.target, unit.done)


def _neighbours(unit: Unit, shape: Shape) -> Stage | None:
    """Makes the places that the lanes of a vector read neighbours, in a copy of the image; None where they are."""
    s, image, dtype = unit.schedule, shape.image, shape.image.buffer.dtype
    made = writers(s.func.body, image.buffer)
    whole = shape.step * (unit.target.lanes(dtype) if has_masks(unit.target.features, dtype.bits) else 1)
    if made and whole > 1:  # whole vectors are stored, in rows that do not overlap
        s[made[0].name].pad(s[made[0].name].axis[-1], whole)
    if shape.step == 1:
        return None
    copy = s[made[0].name] if made else s.cache_read(image.buffer.name, "global", [unit.facts.block.name])
    nest.store_as(copy, lambda n: [*n[:-1], f"{n[-1]} % {shape.step}", f"{n[-1]} // {shape.step}"])
    return copy


def _copy_rows(unit: Unit, copy: Stage, step: int) -> None:
    """Lanes along the places that lie side by side in the copy."""
    lanes = unit.target.lanes(unit.facts.target.dtype)
    place, part = copy.split(copy.axis[-1], factor=step)
    places = extent_of(copy, place)
    outer, lane = copy.split(place, factor=lanes)
    copy.reorder(outer, part, lane)
    if extent_of(copy, outer) <= model.SHORT_ROW:  # it is known then which lanes are off
        if nest.starts_early(unit, places, lanes):
            copy.annotate(TILES, lanes, outer)
        copy.unroll(outer)
    nest.write_out(copy, part, lane)


def _outer_loops(unit: Unit, final: Stage, shape: Shape, loops: dict[Var, Var], point: Point) -> tuple[Var, Var]:
    """Divides the loops of the block that stores the tile; gives the parallel one and the innermost around the tile."""
    groups, within = final.split(loops[shape.channel.var], factor=shape.group)
    tiles, channel = final.split(within, factor=point["channels"])
    width = point["vectors"] * point["lanes"]
    outer, wide = final.split(loops[shape.lane.var], factor=width)
    vector, lane = final.split(wide, factor=point["lanes"])
    rows, inner, length = [outer], [vector, lane], ceildiv(extent(shape.lane), width)
    if shape.row is not None:
        row, high = final.split(loops[shape.row.var], factor=point["rows"])
        rows, inner, length = [row, outer], [high, vector, lane], ceildiv(extent(shape.row), point["rows"])
    if shape.phase is not None:
        inner.insert(-1, loops[shape.phase.var])
    around, inside = [*(loops[axis.var] for axis in shape.others), groups], [tiles]
    early, parts = nest.starts_early(unit, extent(shape.lane), width), min(length, _parts(unit, shape))
    if early:
        final.annotate(TILES, width, outer)
    if early and shape.row is None and shape.step == 1 and _count(shape) // point["channels"] >= unit.target.cores:
        parts, around, inside = 1, [*around, tiles], []  # which tile is a line's last is not known of parts
    if parts > 1:
        part, rows[0] = final.split(rows[0], factor=ceildiv(length, parts))
        around.append(part)
    final.reorder(*around, *inside, *rows, channel, *inner)
    if shape.row is not None and not unit.is_open(shape.row):
        if parts == 1 and length <= model.FEW_TILES and extent(shape.row) % point["rows"]:
            final.unroll(rows[0])
    nest.write_out(final, channel, *inner)
    fused = final.fuse(*around) if len(around) > 1 else around[0]
    if unit.facts.points * unit.facts.depth >= model.LEAST_PARALLEL_WORK:
        final.parallel(fused)
    return fused, rows[-1]


def _count(shape: Shape) -> int:
    """How many channels, of how many images, there are."""
    return math.prod(extent(axis) for axis in (*shape.others, shape.channel))


def _parts(unit: Unit, shape: Shape) -> int:
    """Into how many parts rows are divided: enough for all cores, and so that parts share little of what they read."""
    count = _count(shape) // shape.group
    cores, taps = unit.target.cores, _taps(unit, shape)
    wanted = ceildiv(cores * model.PARTS_OF_ROWS, count)
    if shape.row is None or taps.count == 1:
        return wanted
    shared = (taps.count - 1) * taps.gap
    high = extent(shape.row) * taps.step
    return max(min(wanted, high // (model.LEAST_OWN * shared)), ceildiv(cores, count))


def _schedule_sums(sums: Stage, shape: Shape, unit: Unit, point: Point) -> None:
    """The reduction around the tile; the operand of fewer registers is the one that is read first in a step."""
    loops = dict(zip([axis.var for axis in unit.facts.spatial], sums.axis))
    channel, wide = loops[shape.channel.var], loops[shape.lane.var]
    high = [] if shape.row is None else [loops[shape.row.var]]
    phases = [] if shape.phase is None else [loops[shape.phase.var]]
    rest = [loop for loop in sums.axis if loop not in (channel, wide, *high, *phases)]
    vector, lane = sums.split(wide, factor=point["lanes"])
    image = [*high, vector]
    weights = [*phases, channel]
    tile = [*image, *weights] if point["channels"] < point["rows"] * point["vectors"] else [*weights, *image]
    walked = dict(zip([axis.var for axis in unit.facts.block.axes if axis.kind == "reduce"], sums.reduce_axis))
    reduce = {axis.var: walked[axis.var] for axis in unit.facts.reduce}
    if shape.down is not None and point["down"]:
        tile = [reduce.pop(shape.down.var), *tile]
    taps = tuple(one for one in shape.kept if one.tap.var in reduce)
    tiled = {**point, padding.WIDE: point["vectors"] * point["lanes"]}
    padding.pass_over(sums, taps, reduce, shape.image.buffer.name, tiled)
    written = nest.taps_of(unit.facts, shape.phase)
    nest.unroll(sums, [loop for var, loop in reduce.items() if var in written])
    sums.reorder(*rest, *reduce.values(), *tile, lane)
    nest.write_out(sums, *tile, lane)
    loops = {var: loop for var, loop in reduce.items() if var not in written}
    size = point["channels"] * point["rows"] * point["vectors"] * nest.length(shape.phase)
    nest.fetch_channels(unit, sums, shape.image, shape.lane, size, loops)


# --------------------------------------------------------------------------------------------- windows read in place


def match_window(unit: Unit) -> Sketch | None:
    """The sketch of a window over the rows of each channel apart; None for anything else."""
    shape, facts = _shape(unit), unit.facts
    if shape is None or not _is_window(unit, shape):
        return None
    row, wide = facts.spatial[-2], extent(shape.lane)
    lanes, taps = _lanes(unit, wide), _taps(unit, shape)
    knobs = {"rows": tuple(range(1, min(model.MOST_ROWS_OF_WINDOW, extent(row)) + 1)), "lanes": (lanes,)}
    core, high = core_of(unit.target), extent(row)
    tiles = facts.points // (high * wide) * ceildiv(wide, lanes)
    seen = np.asarray([0, *(taps.read(n) for n in knobs["rows"])])

    def tile(rows: Any) -> Any:
        loads = facts.depth // taps.count * seen[rows]
        each = facts.depth * rows / (core.multiply_adds * model.WINDOW_SHARE)
        each = each + loads * (model.WINDOW_LOADS if shape.step == 1 else model.STEPPED_LOADS) / core.loads
        each = np.maximum(each, model.chain_cycles(core, facts.depth, facts.depth * rows)) + rows
        spilled = (rows * (1 + taps.shared) * 4 > unit.target.vector_registers * 3) & (rows < high)
        return each * np.where(spilled, model.SPILLED ** max(1, taps.shared), 1.0)

    def cost(columns: Columns) -> Any:
        rows = columns["rows"]
        down, rest = high // rows, high % rows
        uneven = (rest > 0) * np.where(down < model.FEW_TILES, model.CUT_WINDOW * facts.depth, model.UNEVEN_WINDOW)
        computing = tiles * (down * tile(rows) + (rest > 0) * tile(rest)) * (1 + uneven)
        return seconds(model.overlapped(computing, model.stream_cycles(unit)), unit.target)

    def legal(columns: Columns) -> Any:
        rows = columns["rows"]
        fits = rows <= max(1, unit.target.vector_registers // 2)
        return (rows * facts.depth <= model.MOST_UNROLLED_WINDOW) & fits | (rows == 1)

    return Sketch("window", knobs, lambda point: _apply_window(unit, shape, point), cost, legal)


def _is_window(unit: Unit, shape: Shape) -> bool:
    """Whether a convolution sums over no channels, and its image is a parameter, perhaps with a number around it."""
    facts, image, row = unit.facts, shape.image, unit.facts.spatial[-2]
    if shape.step > model.LARGEST_STEP_OF_WINDOW or facts.depth > model.MOST_TAPS_OF_WINDOW:
        return False
    channels = {axis.var for axis in facts.spatial[:-2] if uses(shape.weight, axis)}
    apart = [index for index in image.indices if uses_any(index, channels)]
    summed = any(uses_any(index, {axis.var for axis in facts.reduce}) for index in apart)
    if uses(shape.weight, row) or not apart or summed or not all(uses(image, axis) for axis in facts.reduce):
        return False
    lies = image.buffer not in unit.schedule.func.allocations or _padding(unit, image) is not None
    return lies and has_masks(unit.target.features, image.buffer.dtype.bits)


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


def _apply_window(unit: Unit, shape: Shape, point: Point) -> None:
    """Channels for threads; tiles of some rows and a vector of places, the taps around them as straight code."""
    s, facts = unit.schedule, unit.facts
    padding = _padding(unit, shape.image)
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
    *rest, high, wide = sums.axis
    *down, across = sums.reduce_axis  # neighbouring rows share what they read
    sums.reorder(*rest, across, *down, high, wide)
    nest.write_out(sums, across, *down, high, wide)
    if ceildiv(extent(shape.lane), point["lanes"]) <= model.SHORT_ROW:
        final.unroll(lane_outer)
    unit.done.update([facts.block.name, final.name, sums.name])
    parallel = parallelize(final, [*outer, row_outer], facts.points * facts.depth, unit.target)
    if parallel is not None or outer:
        attach_producers(s, final.name, [parallel if parallel is not None else outer[-1]], unit.target, unit.done)
