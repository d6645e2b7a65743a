"""Convolutions whose output lies in blocks of channels: a tile of places × channel blocks in registers.

The nest, outermost first:

    rows of the output in parts            parallel, where the images are larger than the weights
    ct    blocks of channels, `vectors` at a time                                    (parallel otherwise)
    y     rows of the output
    xt    places of a row, `places` at a time
    c, ky, kx, ci    the reduction; each step reads `vectors` vectors of weights and broadcasts `places` numbers
    xi, cv, lane     the tile: `places` × `vectors` accumulators stay in registers

The weights are packed when the model is compiled: for a block of channels, in the order in which the reduction runs.
A depthwise convolution reads vectors of both operands; its tile is `places` wide in one block of channels. Where
channels are in groups, the blocks of a tile are of one group; where groups that take turns share a block, a step
broadcasts the same channel of each of them, which lie side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.errors import ScheduleError
from weft.expr.nodes import FloorMod, Load, Var, int_value, is_true
from weft.expr.visit import uses_any, walk
from weft.loop.ir import Axis
from weft.loop.tree import writers
from weft.plan.contraction import counted, group_of, is_sum_of_products, load_bytes, taps_along, uses
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, around_rule, ceildiv, cheapest
from weft.schedule.facts import Facts, extent, facts_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.default_loops import attach_producers
from weft.targets.cpu.machine import LINE_BYTES, SET_SPAN, Core, core_of, seconds
from weft.targets.cpu.sketches import nest, padding


@dataclass(frozen=True)
class Shape:
    """The axes of a convolution in blocks, by their part in it."""

    lane: Axis
    block: Axis | None
    place: Axis | None
    row: Axis | None
    others: tuple[Axis, ...]
    weight: Load
    image: Load
    depthwise: bool
    together: int
    """Blocks side by side that read the same image: all, or those of a group of channels."""
    phase: Axis | None = None
    """What lies between neighbours along `place` in the result, and is a part of the tile: none of `others`."""
    kept: padding.Taps = ()
    """The taps that are passed over where they read nothing but zeros around the image."""
    taps: Axis | None = None
    """The taps along a row that are written out, where groups take turns: places share what is broadcast for them."""


def match(unit: Unit) -> Sketch | None:
    """The sketch of a convolution in blocks; None for anything else."""
    shape = _shape(unit)
    if shape is None:
        return None
    if not shape.depthwise:
        tiled = {"rows": shape.row, padding.WIDE: shape.place}
        unit, kept = padding.passing(unit, shape.image, shape.weight, tiled)
        shape = replace(shape, kept=kept)
    rows, places = nest.length(shape.row), nest.length(shape.place)
    blocks = 1 if shape.depthwise else nest.length(shape.block)
    is_divided = shape.together < blocks  # then the blocks of a tile are of one group
    # A block of narrow channels is several vectors of sums.
    several = ceildiv(extent(shape.lane), unit.target.lanes(unit.facts.target.dtype))
    registers = max(unit.target.vector_registers, 8) // several
    if registers < 3:
        return None
    around = model.open_sizes(places) if unit.is_open(shape.place) else ()
    most = max((places, *around))
    if shape.depthwise:  # every tap is unrolled
        most = min(most, max(4, model.MOST_UNROLLED // unit.facts.depth))
        places = min(places, most)
    below = model.open_sizes(rows) if unit.is_open(shape.row) else ()
    pitch = 0 if shape.place is None else unit.facts.step(shape.image, shape.place.var) or 0
    shared = shape.depthwise or shape.taps is not None
    read = pixels_read(_taps_of_row(unit.facts, shape), pitch, min(most, registers)) if shared else ()
    phases, written = nest.length(shape.phase), nest.length(shape.taps)
    size = Size(blocks, rows, places, registers, around, below, phases, read, written)
    image, weight, last = load_bytes(shape.image), load_bytes(shape.weight), extent(unit.facts.reduce[-1])
    knobs = {
        "vectors": tuple(n for n in range(1, min(blocks, 6) + 1) if not is_divided or shape.together % n == 0),
        "rows": tuple(range(1, min(rows, 4) + 1)),
        "places": tuple(range(1, min(most, registers) + 1)),
        "unroll": (1,) if shared else tuple(n for n in (1, 2, 4, 8, 16) if n < last) + (last,) * (last <= 16),
        "by_rows": (0,) if shape.depthwise else (0, 1),
        "fetch": (0,) if shape.depthwise else (0, 1),
    }
    # Where an image is read once, none of it has to stay; what passes by is fetched some steps ahead, where that helps:
    # then windows that overlap had better pass over few rows, if that costs few passes over the weights.
    cache, steps = unit.target.cache_bytes[1], core_of(unit.target).weights_ahead
    near_rows = steps > 0 and shape.row is not None and _reads_again(unit.facts, shape.image, shape.row)
    near_rows = near_rows and (unit.target.cores == 1 or 2 * image > cache)
    by_rows = near_rows or _by_rows(image, weight, cache) if shape.together > 1 else _is_made_in_parts(unit, shape)
    fetch = (not by_rows or steps > 0) and weight > unit.target.cache_bytes[0]
    # Steps from channel to channel of a plain image need an address each, and the registers that hold sums.
    taps = [] if shape.place is None else taps_along(unit.facts, shape.image, shape.place)
    near = unit.facts.reduce[-1] in taps or unit.facts.step(shape.image, unit.facts.reduce[-1].var) in (-1, 0, 1)
    rule = {"unroll": min(model.WRITTEN_STEPS, last) if near else 1, "by_rows": int(by_rows), "fetch": int(fetch)}
    rule = {knob: number if number in knobs[knob] else knobs[knob][0] for knob, number in rule.items()}
    again = math.prod(extent(axis) for axis in shape.others)
    if shape.depthwise and shape.block is not None:
        again *= extent(shape.block)
    time = float(seconds(several * again * counted(unit.facts) * unit.facts.depth, unit.target))
    walked = _walk(unit, shape, by_rows and fetch)
    if around:  # other families do not cost the tiles at the ends of other sizes: what is best here is as the typical
        time *= replace(size, around=(), below=()).least(walked) / size.least(walked)

    def cost(columns: Columns) -> Any:
        return around_rule(rule, time)(columns) * size.cycles(walked, columns) * padding.share(shape.kept, columns)

    def legal(columns: Columns) -> Any:
        """Tiles that fit, and numbers that change what is done: other points would be the same again."""
        rolled = _overlaps(unit.facts, shape, columns["places"])
        differs = np.logical_not(rolled) | (columns["unroll"] == rule["unroll"])
        return size.legal(columns) & differs & ((columns["fetch"] == 0) | (columns["by_rows"] == 0) | (steps > 0))

    return Sketch("convolution", knobs, lambda point: _apply(unit, shape, point), cost, legal)


def _walk(unit: Unit, shape: Shape, ahead: bool) -> Walk:
    size = int(shape.weight.buffer.dtype.bytes)
    column = unit.facts.depth * extent(shape.lane) * size
    pitch = 0 if shape.place is None or shape.depthwise else unit.facts.step(shape.image, shape.place.var) or 0
    walk = walk_of(unit.target, unit.facts.depth, column, load_bytes(shape.weight), pitch * size, ahead)
    if not shape.depthwise:
        walk = replace(walk, pixel=model.image_cycles(unit, shape.image, shape.place))
    if shape.place is None or shape.depthwise or shape.phase or nest.result_step(unit, shape.place.var) != 1:
        return walk
    return replace(walk, row=extent(shape.place), lanes=extent(shape.lane), line=model.line_cycles(unit))


def walk_of(target: Target, depth: int, column: int, weight: int, pitch: int, ahead: bool = False) -> Walk:
    """What a register tile walks over: weights of so many bytes for a vector, and in all, perhaps fetched ahead; pixels
    so many apart."""
    near, core = max(1, target.cache_bytes[1] // (2 if ahead else 4) // column), core_of(target)
    fetch = 4.0 if weight > target.cache_bytes[1] else 2.0
    return Walk(core, depth, fetch, near, model.lines_of(target), core.clashes(pitch))


def _by_rows(image: int, weight: int, cache: int) -> bool:
    """Whether parts of the image stay in a cache, of these bytes, while the weights pass by; or the other way round.
    Weights pass in the order in which they lie, which a processor fetches ahead; rows of an image's channels do not."""
    return image >= weight or (2 * image >= weight and 2 * image > cache)


def _is_made_in_parts(unit: Unit, shape: Shape) -> bool:
    """Whether a copy of an image, too large to stay in the cache from call to call, is worth making part by part: each
    part has so many rows of its own that it shares few with the next."""
    image, facts, target = load_bytes(shape.image), unit.facts, unit.target
    large = image > model.PART_SHARE * target.cache_bytes[1]
    made = large and shape.image.buffer in unit.schedule.func.allocations
    if not made or shape.row is None or shape.depthwise or unit.is_open(shape.row):
        return False
    parts = max(target.cores * model.PARTS_OF_ROWS, image // int(model.PART_SHARE * target.cache_bytes[1]))
    shared = _reach(facts, shape.image, shape.row) / abs(facts.step(shape.image, shape.row.var) or 1)
    return bool(extent(shape.row) >= parts * model.LEAST_OWN * shared)


@dataclass(frozen=True)
class Walk:
    """What a register tile walks over: `depth` steps, each of which waits `fetch` cycles for a line of weights.

    The weights of more than `near` vectors do not stay in the second-level cache; a vector has so many `lines`. Pixels
    that `clash` are loaded one after the other.
    """

    core: Core
    depth: int
    fetch: float
    near: int
    lines: float = 1.0
    clash: bool = False
    row: int = 0
    """The pixels of a row of a result that is stored plainly, one for each of so many `lanes`; 0 where it is not."""
    lanes: int = 0
    line: float = 0.0
    """Cycles for each line of it."""
    pixel: float = 0.0
    """Cycles of a step for each pixel, whose channels are lines of their own."""

    def cycles(self, vectors: Any, high: Any, wide: Any, read: Any, written: int = 1) -> Any:
        """Cycles of a step of the reduction, with its part of what the tile costs before and behind them.

        It reads so many pixels of each row; so many steps are `written` out.
        """
        sums, pixels, lines = vectors * high * wide, high * wide, vectors * self.lines
        issued = np.maximum(
            model.step_cycles(self.core, pixels, vectors, self.clash, high * read, written),
            self.fetch * lines + model.VECTOR_CYCLES * vectors + model.STEP_CYCLES,
        )
        stores = model.TILE_CYCLES + 2 * sums + model.LANES_STORED * vectors * high * -(-wide // model.LANES_STORED)
        stores = stores + vectors * high * self.lanes * self.line * model.lines_met(wide, self.row)
        waits = np.where(vectors <= self.near, 0.0, model.FAR_CYCLES - model.VECTOR_CYCLES) * lines
        return issued + waits + self.pixel * pixels + stores / self.depth


@dataclass(frozen=True)
class Size:
    """What tiles are cut from: blocks of channels, rows and pixels of a row; and the registers that hold a tile."""

    blocks: int
    rows: int
    pixels: int
    registers: int
    around: tuple[int, ...] = ()
    """How many pixels a row may have where that is open: its last tiles are smaller."""
    below: tuple[int, ...] = ()
    """How many rows there may be where that is open: the last tiles are computed as a whole, too."""
    phases: int = 1
    """Sums of a tile for each of its pixels and channels."""
    read: tuple[int, ...] = ()
    """The pixels of a row of the image that a tile of so many reads: for its taps they are loaded once."""
    taps: int = 1
    """Taps of a row that are written out; with 1 what is read stays in registers."""

    def legal(self, columns: Columns) -> Any:
        """Tiles that fit into the registers; several rows only where a tile has all pixels of each, or where both
        sides are open: how many pixels there are is not known then."""
        vectors, high, wide = columns["vectors"] * self.phases, columns["rows"], columns["places"]
        pixels = high * np.asarray(self.read)[wide] if self.read and self.taps == 1 else self.taps
        fits = vectors * high * wide + vectors + pixels <= self.registers
        is_open = bool(self.around and self.below)
        return fits & ((high == 1) | is_open | (wide >= max((self.pixels, *self.around))))

    def cycles(self, walk: Walk, columns: Columns) -> Any:
        """Cycles for one step of the reduction of everything; tiles at the ends are as large as what is left."""
        vectors, high, wide = columns["vectors"], columns["rows"], columns["places"]
        total: Any = 0.0
        for v, count in ((vectors, self.blocks // vectors), (self.blocks % vectors, self.blocks % vectors > 0)):
            for w, across in self.across(wide):
                read = np.asarray(self.read)[w] / self.taps if self.taps > 1 else w
                total = total + count * across * walk.cycles(v * self.phases, high, w, read, self.taps)
        ends = 0.0 if self.around else (self.pixels % wide != 0) * 1.0
        uneven = ends + (self.blocks % vectors != 0) + (0.0 if self.below else (self.rows % high != 0) * 1.0)
        rows = self.rows * sum(-(-n // high) for n in self.below) / sum(self.below) if self.below else self.rows / high
        # Weights that stream through are never waited for.
        once = np.where((high == self.rows) & (walk.fetch > 2), 0.85, 1.0)
        return total * rows * (1 + model.UNEVEN * uneven) * once

    def across(self, wide: Any) -> list[tuple[Any, Any]]:
        """Widths of tiles, and how many of each a row has."""
        if self.around:
            return model.open_tiles(self.pixels, wide)
        return [(wide, self.pixels // wide), (self.pixels % wide, self.pixels % wide > 0)]

    def least(self, walk: Walk) -> float:
        """The cycles of the best tile."""
        sizes = {"vectors": min(self.blocks, 6), "rows": min(self.rows, 4), "places": min(self.pixels, self.registers)}
        knobs = {knob: range(1, most + 1) for knob, most in sizes.items()}
        return cheapest(knobs, lambda columns: self.cycles(walk, columns), self.legal)[1]


def _taps_of_row(facts: Facts, shape: Shape) -> list[int]:
    """Where the taps of a window read in a row of the image, in elements from the first."""
    found = {0}
    for tap in [] if shape.place is None else taps_along(facts, shape.image, shape.place):
        along = facts.step(shape.image, tap.var) or 0
        found = {at + along * n for at in found for n in range(extent(tap))}
    return sorted(found)


def pixels_read(taps: Sequence[int], step: int, most: int) -> tuple[int, ...]:
    """How many pixels of a row windows over single channels read together, for none of them up to so many."""
    return tuple(len({at + step * n for at in taps for n in range(wide)}) for wide in range(most + 1))


def _shape(unit: Unit) -> Shape | None:
    """The parts of a convolution that stands in blocks of channels; None where the product is something else."""
    facts = unit.facts
    if not is_sum_of_products(facts) or len(facts.loads) != 2 or len(facts.spatial) < 3 or facts.is_ordered:
        return None
    lane, fixed = facts.spatial[-1], [load.buffer in unit.constants for load in facts.loads]
    if extent(lane) < model.LEAST_LANES or facts.block.writes[0].mins[-1] is not lane.var or sum(fixed) != 1:
        return None
    weight, image = facts.loads[fixed.index(True)], facts.loads[fixed.index(False)]
    turns = _in_turns(image, lane)
    depthwise = uses(image, lane) and not turns
    if depthwise and facts.step(image, lane.var) != 1:
        return None
    middle = facts.spatial[:-1]
    channel = [index for index in weight.indices if uses_any(index, {lane.var})]
    blocks = [axis for axis in middle if any(uses_any(index, {axis.var}) for index in channel)]
    if len(channel) != 1 or len(blocks) > 1:
        return None
    together = (group_of(image, blocks[0]) or 1) if blocks and not depthwise else 1
    across = [axis for axis in middle if not uses(weight, axis) and uses(image, axis) and extent(axis) > 1]
    *_, row, place = None, None, *across
    block = blocks[0] if blocks else None
    others = tuple(axis for axis in middle if axis is not place and axis is not block and axis is not row)
    phase = None if depthwise else nest.phase_between(unit, place, others)
    others = tuple(axis for axis in others if axis is not phase)
    written = turns and place is not None and phase is None and facts.reduce[-1] in taps_along(facts, image, place)
    taps = facts.reduce[-1] if written and len(facts.reduce) > 1 and extent(facts.reduce[-1]) > 1 else None
    return Shape(lane, block, place, row, others, weight, image, depthwise, together, phase, taps=taps)


def _in_turns(image: Load, lane: Axis) -> bool:
    """Whether the lanes of an image are of groups that take turns, so that a few neighbours repeat in all of them."""
    repeated = [e for index in image.indices for e in walk(index) if isinstance(e, FloorMod) and e.a is lane.var]
    uses = sum(e is lane.var for index in image.indices for e in walk(index))
    return uses == len(repeated) > 0 and all(extent(lane) % (int_value(e.b) or extent(lane) + 1) == 0 for e in repeated)


# ---------------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, shape: Shape, point: Point) -> None:
    s, name = unit.schedule, unit.facts.block.name
    width = extent(shape.lane) * (1 if shape.depthwise else point["vectors"])
    packed = pack_weight(unit, shape.weight, shape.lane, width, shape.others, shape.phase)
    image = shape.image.buffer.name
    if _is_copied(unit, shape, point):
        image = nest.result_of(s.cache_read(image, "global", [name]))
    sums, final, loops = nest.tile_and_final(unit)
    outer = _outer_loops(unit, final, shape, loops, point)
    nest.compute_tile(unit, sums, final, outer[-1])
    innermost = _schedule_sums(unit, sums, shape, point, image)
    rows = _row_steps(shape, point)
    if point["fetch"] and innermost is not None:
        if point["by_rows"]:
            sums.prefetch(packed, innermost, core_of(unit.target).weights_ahead)
        elif rows > 1:  # the rows of the image share the fetching of the next channels' weights
            around = outer if shape.place is None else outer[:-1]
            whole = extent(shape.row) // point["rows"] if len(around) > 1 and shape.row is not None else rows
            sums.prefetch(packed, innermost, whole, outer=around[-1])
        else:  # each weight is read once: they stream through, and are asked for well ahead
            sums.prefetch(packed, innermost, max(4, model.STREAM_AHEAD // _step_bytes(unit, shape, point)))
    unit.done.update([name, final.name, sums.name])
    if point["by_rows"]:  # what a part of the rows reads is padded where it is read
        attach_producers(s, final.name, outer[:1], unit.target, unit.done)
    _store_rows_together(unit, shape, image)


def _store_rows_together(unit: Unit, shape: Shape, image: str) -> None:
    """Stores a copy of a plain image, such as one with zeros around it, with the same row of all channels, which a tile
    reads, in one stretch of memory: a few pages, not one for each channel."""
    s, (*indices, last), tiled = unit.schedule, shape.image.indices, {axis.var for axis in unit.facts.spatial}
    made = [writers(s.func.body, buffer) for buffer in s.func.allocations if buffer.name == image]
    copied = len(made) == 1 and len(made[0]) == 1 and made[0][0].init is None
    if copied and not shape.depthwise and shape.place is not None and uses_any(last, {shape.place.var}):
        apart = [at for at, index in enumerate(indices) if not uses_any(index, tiled)]
        nest.store_last(s[made[0][0].name], *apart, len(indices))


def _is_copied(unit: Unit, shape: Shape, point: Point) -> bool:
    """Whether parts of the image are copied before they are read."""
    if not point["by_rows"] or shape.row is None or _passes(unit, shape, point) < model.LEAST_PASSES:
        return False
    return _collides(unit, shape.image)


def _passes(unit: Unit, shape: Shape, point: Point) -> int:
    """How often a part of an image is read: for each tile of channels, and each frame or phase."""
    tiles = ceildiv(nest.length(shape.block), point["vectors"])
    again = [axis for axis in shape.others if _reads_again(unit.facts, shape.image, axis)]
    return tiles * math.prod(extent(axis) for axis in again)


def _collides(unit: Unit, image: Load) -> bool:
    """Whether the channels of an image that is read where it lies keep each other out of the first-level cache.

    Lines that lie a multiple of `SET_SPAN` apart share a few places there; a copy of a part lies closer together.
    """
    func, facts = unit.schedule.func, unit.facts
    if image.buffer in func.allocations:
        return False
    for axis in facts.reduce:
        pitch = abs(facts.step(image, axis.var) or 0) * int(image.buffer.dtype.bytes)
        lines = SET_SPAN // max(math.gcd(pitch, SET_SPAN), LINE_BYTES)
        if pitch >= LINE_BYTES and extent(axis) > lines * unit.target.cache_bytes[0] // SET_SPAN:
            return True
    return False


def _step_bytes(unit: Unit, shape: Shape, point: Point) -> int:
    """The weights that one iteration of the innermost loop reads."""
    unrolled = min(point["unroll"], extent(unit.facts.reduce[-1]))
    vectors, lanes = point["vectors"] * nest.length(shape.phase), extent(shape.lane)
    return vectors * lanes * int(shape.weight.buffer.dtype.bytes) * max(unrolled, 1)


def _row_steps(shape: Shape, point: Point) -> int:
    """How many tiles stand below one another."""
    return ceildiv(nest.length(shape.row), point["rows"])


def _outer_loops(unit: Unit, final: Stage, shape: Shape, loops: dict[Var, Var], point: Point) -> list[Var]:
    """Divides the loops of the block that stores the tile; gives those around the tile, outermost first."""
    others = [loops[axis.var] for axis in shape.others]
    axis_of = dict(zip(final.axis, (axis.var for axis in final.block.axes)))
    tile = [loops[shape.lane.var]]
    blocks: list[Var] = []
    if shape.block is not None and shape.depthwise:
        blocks = [loops[shape.block.var]]
    elif shape.block is not None:
        outer, inner = final.split(loops[shape.block.var], factor=point["vectors"])
        blocks, tile = [outer], [inner, *tile]
        final.unroll(inner)
    places: list[Var] = []
    if shape.place is not None:
        outer, inner = final.split(loops[shape.place.var], factor=point["places"])
        # Where the result is stored plainly, neighbours of a row follow one another, so that rows can be stored.
        rows_last = facts_of(final.block).store_step(axis_of[loops[shape.place.var]]) == 1
        phases = [] if shape.phase is None else [loops[shape.phase.var]]
        places, tile = [outer], [*tile[:-1], inner, *phases, tile[-1]] if rows_last or phases else [inner, *tile]
        nest.unroll(final, [inner, *phases])
    rows: list[Var] = []
    if shape.row is not None:
        rows = [loops[shape.row.var]]
        if point["rows"] > 1:
            outer, inner = final.split(rows[0], factor=point["rows"])
            rows, tile = [outer], [inner, *tile]
            final.unroll(inner)
    parts: list[Var] = []
    cut = rows or (places if _is_cut(unit, shape) else [])  # or pieces of a line stay in a cache while weights pass by
    if point["by_rows"] and cut and _rows_of_part(unit, shape, point) < _steps_of_parts(shape, point):
        outer, cut[0] = final.split(cut[0], factor=_rows_of_part(unit, shape, point))
        parts = [outer]
        if unit.is_open(shape.row):
            nest.keep_whole(final, [outer])  # the last part has fewer rows, and is no other program
    # Frames of a volume and phases of a transposed convolution read again what others read: they follow one another.
    again = [loops[axis.var] for axis in shape.others if parts and _reads_again(unit.facts, shape.image, axis)]
    apart = [loop for loop in others if loop not in again]
    around = [*apart, *parts, *again, *blocks, *rows]
    final.reorder(*around, *places, *tile)
    final.vectorize(tile[-1])
    if unit.facts.points * unit.facts.depth >= model.LEAST_SHARED_WORK:
        together = [*apart, *parts] if parts else around
        if parts and not again and not _is_even(unit, shape, point):
            together = [*apart, *parts, *blocks]
        phased = shape.phase is not None or any(uses(shape.weight, axis) for axis in shape.others)
        ends = _has_ends(shape, point) or (phased and not is_true(final.block.predicate))
        tiles = nest.length(shape.block) if shape.depthwise else ceildiv(nest.length(shape.block), point["vectors"])
        if not parts and ends and tiles * math.prod(map(extent, shape.others)) >= unit.target.cores:
            together = [*apart, *blocks]  # which tile is the last of its row or column stays plain to see
        around = [nest.run_parallel(final, together), *around[len(together) :]] if together else around
    return [*around, *places]


def _is_cut(unit: Unit, shape: Shape) -> bool:
    """Whether an image is a line of known length that does not stay in a cache, and larger than the weights."""
    if shape.row is not None or shape.place is None or unit.is_open(shape.place):
        return False
    image = load_bytes(shape.image)
    return image >= load_bytes(shape.weight) and 2 * image > unit.target.cache_bytes[1]


def _steps_of_parts(shape: Shape, point: Point) -> int:
    """How many tiles are divided into parts: those below one another, or those of a line."""
    return ceildiv(nest.length(shape.place), point["places"]) if shape.row is None else _row_steps(shape, point)


def _is_even(unit: Unit, shape: Shape, point: Point) -> bool:
    """Whether parts of the rows keep the cores busy, or must be whole: what they read is padded for each."""
    if shape.image.buffer in unit.schedule.func.allocations or _is_copied(unit, shape, point):
        return True
    others = math.prod(extent(axis) for axis in shape.others)
    parts = ceildiv(_steps_of_parts(shape, point), _rows_of_part(unit, shape, point))
    return model.even_share(others * parts, unit.target.cores) >= model.EVEN


def _rows_of_part(unit: Unit, shape: Shape, point: Point) -> int:
    """How many tiles below one another a thread takes at a time; of images of open size as many as of a small one."""
    length = _steps_of_parts(shape, point)
    if unit.is_open(shape.row):
        length = min(model.open_sizes(length))
    cores, cache = unit.target.cores, unit.target.cache_bytes[1]
    parts = cores * model.PARTS_OF_ROWS
    if cores == 1 and core_of(unit.target).weights_ahead:
        near = 2 * load_bytes(shape.weight) <= cache  # else each part is another pass over far weights
        parts = max(parts if near else 1, ceildiv(load_bytes(shape.image), int(model.PART_SHARE * cache)))
    return max(1, ceildiv(length, parts))


def _has_ends(shape: Shape, point: Point) -> bool:
    """Whether the last tiles of channels or rows are smaller than the others."""
    ends = [(shape.row, point["rows"]), (None if shape.depthwise else shape.block, point["vectors"])]
    return any(axis is not None and extent(axis) % size > 0 for axis, size in ends)


def _reads_again(facts: Facts, image: Load, axis: Axis) -> bool:
    """Whether neighbours along an axis read the same elements of an image: the windows there overlap."""
    return abs(facts.step(image, axis.var) or 0) <= _reach(facts, image, axis)


def _reach(facts: Facts, image: Load, axis: Axis) -> int:
    """How far the last tap of a window along an axis lies from the first, in elements of the image."""
    taps = taps_along(facts, image, axis)
    return sum(abs(facts.step(image, tap.var) or 0) * (extent(tap) - 1) for tap in taps)


def _schedule_sums(unit: Unit, sums: Stage, shape: Shape, point: Point, image: str) -> Var | None:
    """The loops of the reduction around the tile; gives the innermost that is not unrolled."""
    facts = unit.facts
    loops = dict(zip([axis.var for axis in facts.spatial], sums.axis))
    parts = (shape.row, shape.place, shape.phase, shape.block, shape.lane)
    tile = [loops[axis.var] for axis in parts if axis is not None]
    rest = [loop for loop in sums.axis if loop not in tile]
    walked = dict(zip([axis.var for axis in facts.block.axes if axis.kind == "reduce"], sums.reduce_axis))
    reduce = [walked[axis.var] for axis in facts.reduce]
    some = nest.taps_of(facts, shape.phase)
    for axis, loop in zip(facts.reduce[:-1], reduce):
        if axis.var in some:  # so that the products that do not count are plain to see
            sums.unroll(loop)
    last = extent(facts.reduce[-1])
    if shape.taps is not None:
        tile.insert(-1, reduce.pop())
    sums.reorder(*rest, *reduce, *tile)
    if shape.depthwise:
        if facts.depth <= 32:
            for loop in reduce:
                sums.unroll(loop)
    elif shape.taps is not None or _overlaps(facts, shape, point["places"]):
        sums.pragma(reduce[-1], "rolled")
    elif last > point["unroll"] > 1:
        reduce[-1], inner = sums.split(reduce[-1], factor=point["unroll"])
        sums.unroll(inner)
    elif 1 < last <= point["unroll"]:
        sums.unroll(reduce.pop())
    nest.write_out(sums, *tile)
    padding.pass_over(sums, shape.kept, walked, image, point)
    if not shape.depthwise:
        size = point["vectors"] * point["rows"] * point["places"] * nest.length(shape.phase)
        loops = {axis.var: loop for axis, loop in zip(facts.reduce, reduce)}
        nest.fetch_channels(unit, sums, shape.image, shape.place, size, loops)
    return reduce[-1] if reduce else None


def _overlaps(facts: Facts, shape: Shape, places: Any) -> Any:
    """Whether a step of the reduction reads what another place reads: LLVM would keep all of it in registers.

    Few channels that lie side by side are no others' for certain.
    """
    along, steps = facts.step(shape.image, facts.reduce[-1].var), extent(facts.reduce[-1])
    across = 0 if shape.place is None else facts.step(shape.image, shape.place.var)
    few = steps <= model.WRITTEN_STEPS and abs(along or 0) * (steps - 1) < abs(across or 0)
    if not along or not across or steps == 1 or few:
        return False
    return abs(along) < places * abs(across)


def pack_weight(
    unit: Unit, load: Load, channel: Axis, width: int, outer: Sequence[Axis], phase: Axis | None = None
) -> str:
    """The weights in the order in which a kernel reads them, `width` channels side by side; gives their name.

    Those of a `phase` that is a part of the tile stand beside each other for each step of the reduction.
    """
    facts = unit.facts
    names = [f"d{i}" for i in range(len(load.indices))]
    lane, *rest = [n for n, index in zip(names, load.indices) if uses_any(index, {channel.var})]
    if rest:  # groups with several channels each
        raise ScheduleError("convolution", facts.block.name, f"{channel.var.name} is in two indices of its weights")
    copy = unit.schedule.cache_read(load.buffer.name, "global", [facts.block.name])
    parts = _parts(facts, load, names)
    axes = (*outer, *facts.reduce, *([] if phase is None else [phase]))
    order = [parts[axis.var] for axis in axes if axis.var in parts]
    fixed = [n for n, i in zip(names, load.indices) if not uses_any(i, {a.var for a in facts.block.axes})]
    outputs = [f"{lane} // {width}", *fixed, *order, f"{lane} % {width}"]
    buffer = nest.result_of(copy)
    unit.schedule.apply("transform_layout", buffer=buffer, inputs=names, outputs=outputs)
    unit.done.add(copy.name)
    return buffer


def _parts(facts: Facts, load: Load, names: Sequence[str]) -> dict[Var, str]:
    """What of the weight's indices each axis is: an index, or its quotient or remainder where two axes share it."""
    found: dict[Var, str] = {}
    for name, index in zip(names, load.indices):
        using = [axis for axis in facts.block.axes if uses_any(index, {axis.var})]
        if len(using) == 1:
            found[using[0].var] = name
        elif len(using) == 2:
            low, high = sorted(using, key=lambda axis: abs(facts.step(load, axis.var) or 0))
            found[low.var], found[high.var] = f"{name} % {extent(low)}", f"{name} // {extent(low)}"
        elif using:
            raise ScheduleError("convolution", facts.block.name, f"an index of {load.buffer.name} has many axes")
    return found
