"""Winograd's convolution (weft/ops/convolution_winograd.py) on a CPU: lanes are channels in every stage.

    by tiles       for each block of tile rows (threads):        by channels   V of all tiles (threads)
                       V of the block                                          for each block of channels out (threads):
                       for each block of channels out:                             t² products into M
                           t² products into M                                      M back, the elements of the output
                           M back, the elements of the output

V and M are the transformed input and the sums; blocks are such that they stay in the second-level cache. The first
order reads the weights once for a block of tiles, the second reads V once for a block of channels: the one that moves
fewer bytes is the default. A product is a register tile of `rows` tiles × `vectors` of output channels, the weights
packed in panels of that width when the model is compiled, V in groups of lanes so that its rows stand side by side.
An image of open size is cut into strips, whose tiles follow each other along the open side, so that nothing is computed
beyond its end; a stretch of them is what a block of tile rows is elsewhere.

The transform of a side of one tap is none: then `rows` and `back` are inlined, and there is one less stage on the way.

Before all that one pass over the input (threads) finds the tiles that are computed directly. Those are computed where a
tile is transformed back, in one register tile; the loops over their products do not run for the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Load, Var
from weft.expr.visit import uses_any
from weft.loop.ir import Block
from weft.loop.passes.unswitch import NOTE as UNSWITCH
from weft.ops.convolution_winograd import BACK, DIRECT, PADDED, PEAKS, ROWS, SUMS, TAKEN, UNEVEN, side_of
from weft.plan.contraction import uses
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv, cheapest
from weft.schedule.facts import block_named, extent, extent_of, facts_of, names_of, sole_reader
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.machine import core_of
from weft.targets.cpu.sketches import nest

BOTH = 2
"""Of `threads_by_channels`: threads share channels and tiles."""

STAGES = frozenset({TAKEN})
"""Stages that are not inlined: what is transformed along no other side is only a copy of another stage."""

CHANNEL = 1
"""The place of the channels among the axes of the input and the output."""


@dataclass(frozen=True)
class Sizes:
    """What the program computes: tiles of `down` × `across` outputs, each of `size` products for a pair of channels,
    `tall` × `wide` of them in an image."""

    batch: int
    inputs: int
    outputs: int
    down: int
    across: int
    size: int
    tall: int
    wide: int
    strips: int = 0
    """Where `tall` × `wide` tiles are a strip of an image, whose size is open: typically so many; else 0."""
    is_across: bool = False
    """Whether it is the columns of a strip that may be any number, not the rows."""

    @property
    def more(self) -> int:
        """The axes beside those of whole images: one over the strips."""
        return int(self.strips > 0)

    @property
    def deep(self) -> int:
        """Tiles of an image, or a strip of one, side by side, which are next to each other in memory."""
        return self.tall if self.is_across else self.wide

    @property
    def long(self) -> int:
        """How many times so many a strip has, typically."""
        return self.wide if self.is_across else self.tall

    @property
    def weight_bytes(self) -> int:
        """The transformed weight."""
        return 4 * self.size * self.inputs * self.outputs

    def block_bytes(self, tile_rows: int, channels: int) -> int:
        """The transformed values of some rows of tiles."""
        return 4 * self.size * tile_rows * self.deep * channels


def match(unit: Unit) -> Sketch | None:
    """The sketch of a Winograd convolution; None for any other product."""
    s = unit.schedule
    names = names_of(s)
    if unit.facts.block.name != SUMS or not {TAKEN, PEAKS, UNEVEN, DIRECT} <= set(names):
        return None
    chain, lanes = _chain(s), unit.target.lanes(unit.facts.target.dtype)
    weight = next((load.buffer for load in unit.facts.loads if load.buffer.name != TAKEN), None)
    if chain is None or weight is None:
        return None
    sizes = _sizes(s, chain)
    if lanes < 4 or sizes.inputs % lanes or sizes.outputs % lanes:
        return None

    def apply(point: Point) -> None:
        others = set(names_of(s)) - {PADDED, ROWS, TAKEN, SUMS, BACK, PEAKS, UNEVEN, DIRECT, *chain}
        _Sketch(unit, chain, sizes, point, lanes, weight).apply()
        unit.done.update(set(names_of(s)) - others)

    point = default_point(sizes, unit.target, lanes)
    return model.ruled("winograd", unit, _knobs(sizes, point, lanes, unit.target), point, apply)


def _chain(s: Schedule) -> list[str] | None:
    """The blocks from the transform back to the last that reads the one before alone, element by element: it writes the
    output."""
    found: list[Block] = []
    buffer = facts_of(block_named(s, BACK if BACK in names_of(s) else SUMS)).target
    while buffer not in s.func.buffers:
        reader = sole_reader(s.func, buffer)
        if reader is None or facts_of(reader).is_reduction or len(reader.writes) != 1:
            break
        if found and [extent(a) for a in reader.axes] != [extent(a) for a in found[0].axes]:
            break
        found.append(reader)
        buffer = reader.writes[0].buffer
    if not found or len(found[-1].axes) not in (_rank(s), _rank(s) + 1):
        return None
    return [block.name for block in found]


def _rank(s: Schedule) -> int:
    """The axes of an image, channels in blocks or not: 4, or 3 for a line, of whose elements none lie across."""
    direct = facts_of(block_named(s, DIRECT))
    return 4 if sum(uses(load, direct.reduce[2]) for load in direct.loads) > 1 else 3


def _sizes(s: Schedule, chain: list[str]) -> Sizes:
    sums, direct, final = (block_named(s, name) for name in (SUMS, DIRECT, chain[-1]))
    facts = facts_of(sums)
    size = [extent(axis) for axis in sums.axes[:2]]
    # Channels, then taps down and across.
    taps = [extent(axis) for axis in facts_of(direct).reduce[1:3]]
    sides = [side_of(n, r) for n, r in zip(size, taps)]
    down, across = (side.tile for side in sides)
    batch, _, height, width = [*(extent(axis) for axis in final.axes[: _rank(s)]), 1][:4]
    in_strips = len(block_named(s, UNEVEN).axes) == 3
    outputs = math.prod(extent(axis) for axis in facts.spatial[5 if in_strips else 4 :])
    tall, wide, strips, is_across = ceildiv(height, down), ceildiv(width, across), 0, False
    if in_strips:
        padded = facts_of(block_named(s, PADDED))
        read = zip(padded.spatial[3:5], sides)
        tall, wide = ((extent(axis) - side.reach(0)) // side.pitch for axis, side in read)
        is_across = uses_any(padded.loads[0].indices[2], {padded.spatial[1].var})
        strips = ceildiv(height, tall * down) if is_across else ceildiv(width, wide * across)
    return Sizes(batch, facts.depth, outputs, down, across, math.prod(size), tall, wide, strips, is_across)


# ------------------------------------------------------------------------------------------------- the default point


def default_point(sizes: Sizes, target: Target, lanes: int) -> dict[str, int]:
    """The numbers that the facts about a machine suggest."""
    if sizes.strips:
        return _strips_point(sizes, target, lanes)
    point, cache = _by_tiles(sizes, target, lanes), target.cache_bytes[1]
    far = 2 * sizes.weight_bytes > cache
    point["fetch"] = model.WINOGRAD_FETCH if far and point["vectors"] <= model.MOST_FETCHED else 0
    cores, blocks = target.cores, sizes.batch * sizes.tall // point["tile_rows"]
    by_tiles = sizes.weight_bytes * (blocks if far else 1)
    whole, panels = sizes.block_bytes(sizes.tall, sizes.inputs), sizes.outputs // (point["vectors"] * lanes)
    by_channels = sizes.weight_bytes + sizes.batch * whole * (panels if 2 * whole > cache else 1)
    if cores == 1 or (by_tiles <= 1.2 * by_channels and model.even_share(blocks, cores) > 0.8):
        return point
    by, (tile_rows, rows, vectors, panels) = 1, _by_channels(sizes, target, lanes)
    shared = sizes.outputs // (vectors * lanes * panels)
    if shared < 2 * cores and model.even_share(shared, cores) < model.EVEN:
        by, panels, (tile_rows, rows, vectors) = BOTH, 1, _by_both(sizes, target, lanes)
    return {
        "threads_by_channels": by, "tile_rows": tile_rows, "panels": panels, "rows": rows, "vectors": vectors,
        "fetch": model.WINOGRAD_FETCH if far else 0,
    }  # fmt: skip


def _by_tiles(sizes: Sizes, target: Target, lanes: int) -> dict[str, int]:
    """The blocks of tile rows and the register tile that take the fewest cycles where threads share the tiles, a panel
    of channels out at a time; all of them where V does not stay in the cache, which is read once then."""
    total, registers = sizes.outputs // lanes, target.vector_registers
    knobs = {  # a last block of fewer tiles would be tests in what it reads
        "tile_rows": tuple(n for n in range(1, sizes.tall + 1) if sizes.tall % n == 0),
        "vectors": tuple(n for n in range(1, model.MOST_PANEL + 1) if total % n == 0),
        "rows": range(1, max(2, registers - 1)),
    }

    def legal(columns: Columns) -> Any:
        rows, vectors = columns["rows"], columns["vectors"]
        held = ((rows + 1) * vectors < registers) & (rows <= columns["tile_rows"] * sizes.wide)
        return held | ((rows == 1) & (vectors == 1))

    found = cheapest(knobs, lambda columns: _block_cycles(sizes, target, lanes, columns), legal)[0]
    stays = 2 * sizes.block_bytes(found["tile_rows"], sizes.inputs) <= target.cache_bytes[1]
    return {"threads_by_channels": 0, "panels": 1 if stays else total // found["vectors"], **found}


def _block_cycles(sizes: Sizes, target: Target, lanes: int, columns: Mapping[str, Any]) -> Any:
    """Cycles of the products of an image, block after block, as they overlap with the bytes that these move."""
    tile_rows, rows, vectors = columns["tile_rows"], columns["rows"], columns["vectors"]
    core, (first, second, third) = core_of(target), target.cache_bytes
    tiles, total = tile_rows * sizes.wide, sizes.outputs // lanes
    computing = sizes.size * model.Tiles(core, tiles, total, sizes.inputs, 0).cycles(rows, vectors)
    computing = computing * (1 + model.UNEVEN * ((1 < tile_rows) & (tile_rows < sizes.tall)))  # tests of what it reads
    weights, blocks = sizes.weight_bytes, sizes.tall // tile_rows
    taken, made = (sizes.block_bytes(tile_rows, n) for n in (sizes.inputs, vectors * lanes))
    moved = taken * (1 + total // vectors) + 2 * made * (total // vectors)
    # A panel that the first-level cache does not hold beside a row of tiles comes again for each.
    panel = 4 * sizes.inputs * (vectors * lanes + rows)
    again = weights * (ceildiv(tiles, rows) - 1) * (panel > model.PANEL_SHARE * first)
    rate = np.where(taken + made > model.BLOCK_SHARE * second, core.third_level, core.second_level)
    rate = np.where(taken + made > model.FAR_SHARE * third, core.memory, rate)
    streaming = moved / rate + again / core.second_level
    if weights > model.WEIGHT_SHARE * second:  # they are fetched ahead
        computing = np.maximum(computing, weights / core.third_level)
    else:
        streaming = streaming + weights / core.second_level
    return model.overlapped(computing, streaming) * blocks / model.even_share(sizes.batch * blocks, target.cores)


def _strips_point(sizes: Sizes, target: Target, lanes: int) -> dict[str, int]:
    """The same for images in strips: by tiles or by channels, whichever takes fewer cycles in images around the typical
    one. Threads share channels evenly, whatever the size; stretches of tiles only where there are many."""
    cores, cache, total = target.cores, target.cache_bytes[1], sizes.outputs // lanes
    widths = [n for n in range(1, model.MOST_FETCHED + 1) if total % n == 0]
    even = [n for n in widths if total // n % cores == 0] or widths
    taken = sizes.batch * sizes.strips * sizes.long * sizes.block_bytes(1, sizes.inputs)
    rows, vectors = _open_tile(sizes, target, lanes, even)
    panels = total // vectors
    # A V that does not stay in the cache is read once: then a thread has all its panels at once.
    at_once, limit = (panels // cores, cache) if 2 * taken > cache and panels % cores == 0 else (1, cache // 4)
    whole = rows // math.gcd(rows, sizes.deep)
    fits = limit // sizes.block_bytes(1, at_once * vectors * lanes)
    stretch = max(fits // whole, 1) * whole
    passes = sizes.strips * ceildiv(sizes.long, stretch) if at_once > 1 else 1
    share, moved = model.even_share(panels // at_once, cores), (1 + cores) * taken  # one writes a part, each reads all
    point = {"threads_by_channels": 1, "stretch": stretch, "rows": rows, "vectors": vectors, "panels": at_once}
    found = [(_strips_cycles(sizes, target, lanes, point, passes, moved) / share, point)]
    columns = model.open_sizes(sizes.long)
    for stretch in model.WINOGRAD_STRETCHES:
        rows, vectors = _open_tile(sizes, target, lanes, widths, stretch * sizes.deep)
        if stretch > 1 and sizes.block_bytes(stretch, sizes.inputs + vectors * lanes) > cache // 2:
            break
        rounds = [ceildiv(ceildiv(n, stretch), cores) for n in columns]
        if sizes.strips > sizes.long // stretch:
            share = model.even_share(sizes.strips, cores)
        else:  # of one thread's stretches the last may be short
            share = sum(columns) / (cores * sum(min(n * stretch, c) for n, c in zip(rounds, columns)))
        passes = sizes.strips * ceildiv(sizes.long, stretch)
        point = {"threads_by_channels": 0, "stretch": stretch, "rows": rows, "vectors": vectors, "panels": 1}
        found.append((_strips_cycles(sizes, target, lanes, point, passes, 0) / share, point))
    return {**min(found, key=lambda one: one[0])[1], "fetch": model.WINOGRAD_FETCH}


def _tile_cycles(sizes: Sizes, target: Target, lanes: int, rows: Any, vectors: Any) -> Any:
    """Cycles of one product of a strip. A panel that the first-level cache does not hold comes again for each tile."""
    count, core = sizes.deep * sizes.long, core_of(target)
    tiles = model.Tiles(core, count, sizes.outputs // lanes, sizes.inputs, 0, is_open=True)
    is_large = 4 * sizes.inputs * (vectors * lanes + rows) > model.PANEL_SHARE * target.cache_bytes[0]
    again = sizes.weight_bytes // sizes.size * count / rows / core.second_level * is_large
    return model.overlapped(tiles.cycles(rows, vectors), again)


def _open_tile(sizes: Sizes, target: Target, lanes: int, widths: Sequence[int], stretch: int = 0) -> tuple[int, int]:
    """Rows and vectors of the register tile that takes the fewest cycles in strips around the typical one, with so many
    vectors, and whole ones in a stretch of so many tiles."""
    registers = target.vector_registers

    def legal(columns: Columns) -> Any:
        rows, vectors = columns["rows"], columns["vectors"]
        fits = ((rows + 1) * vectors < registers) | ((rows == 1) & (vectors == 1))
        return fits & (stretch % rows == 0)

    knobs = {"rows": range(1, max(2, registers - 1)), "vectors": widths}
    found = cheapest(knobs, lambda columns: _tile_cycles(sizes, target, lanes, **columns), legal)[0]
    return found["rows"], found["vectors"]


def _strips_cycles(sizes: Sizes, target: Target, lanes: int, point: Point, passes: int, moved: int) -> float:
    """Cycles of the cores for the products of an image in strips, with so many passes over the weights, and so many
    bytes of V moved, by a phase that writes and one that reads them."""
    images, core = sizes.batch * sizes.strips, core_of(target)
    computing = sizes.size * images * _tile_cycles(sizes, target, lanes, point["rows"], point["vectors"])
    weights, streaming = sizes.weight_bytes * sizes.batch * passes, 0.0
    if sizes.weight_bytes > model.WEIGHT_SHARE * target.cache_bytes[1]:  # they are fetched ahead
        computing = max(computing, weights / core.third_level)
    else:
        streaming = weights / core.second_level
    return float(model.overlapped(computing, streaming) + moved / model.STREAM_BYTES)


def _by_channels(sizes: Sizes, target: Target, lanes: int) -> tuple[int, int, int, int]:
    """Tile rows, register tile and panels of a block where threads share the output channels evenly.

    A V that does not stay in the cache is read once for a block: then a thread has one block.
    """
    cores, cache = target.cores, target.cache_bytes[1]
    rows, vectors = register_tile(sizes.tall * sizes.wide, sizes.outputs // lanes, target.vector_registers)
    while vectors > 1 and (sizes.outputs % (vectors * lanes) or sizes.outputs // (vectors * lanes) % cores):
        vectors -= 1
    panels, limit = 1, cache // 4
    total = sizes.outputs // (vectors * lanes)
    if 2 * sizes.block_bytes(sizes.tall, sizes.inputs) > cache and total % cores == 0:
        panels, limit = total // cores, cache
    parts = ceildiv(sizes.block_bytes(sizes.tall, panels * vectors * lanes), limit)
    return ceildiv(sizes.tall, min(parts, sizes.tall)), rows, vectors, panels


def _by_both(sizes: Sizes, target: Target, lanes: int) -> tuple[int, int, int]:
    """Tile rows and register tile where threads share blocks of channels and of tile rows: too few channels for all."""
    best, cores = (-1.0, 0, 1, 1), target.cores
    for parts in range(1, sizes.tall + 1):
        tile_rows = ceildiv(sizes.tall, parts)
        for vectors in (n for n in range(1, 5) if sizes.outputs % (n * lanes) == 0):
            if parts > 1 and sizes.block_bytes(tile_rows, vectors * lanes) > target.cache_bytes[1] // 4:
                continue
            tiles = tile_rows * sizes.wide
            rows = max(range(1, max(1, min(tiles, (target.vector_registers - 1) // vectors - 1)) + 1),
                       key=lambda down: (_share(tiles, down, vectors), down))  # fmt: skip
            panels = sizes.batch * sizes.outputs // (vectors * lanes)
            rounds = ceildiv(panels * ceildiv(sizes.tall, tile_rows), cores)
            share = _share(tiles, rows, vectors) * panels * sizes.tall / (rounds * cores * tile_rows)
            best = max(best, (round(share, 2), tile_rows, rows, vectors))
    return best[1], best[2], best[3]


def register_tile(rows: int, vectors: int, registers: int) -> tuple[int, int]:
    """Tiles and vectors of the register tile."""
    best = (-1.0, 1, 1)
    for across in range(1, 5):
        if vectors % across == 0:
            for down in range(1, 1 + max(1, min(rows, (registers - 1 - across) // across))):
                best = max(best, (_share(rows, down, across) + 0.001 * down * across, down, across))
    return best[1], best[2]


def register_share(rows: int, vectors: int, registers: int) -> float:
    """The part of the peak that the register tile of a product with so many rows can reach."""
    return _share(rows, *register_tile(rows, vectors, registers))


def _share(rows: int, down: int, across: int) -> float:
    """Two multiply-adds and two loads a cycle, and at least eight sums under way; less where tiles are cut."""
    sums = down * across
    cycles = max(sums / 2, (down + across) / 2, 4)
    used = rows / (ceildiv(rows, down) * down)
    return sums / 2 / cycles * used * (1.0 if rows % down == 0 else 0.9)


def _knobs(sizes: Sizes, point: Point, lanes: int, target: Target) -> dict[str, tuple[int, ...]]:
    vectors = sizes.outputs // lanes
    most = max(1, target.vector_registers - 2)
    choices = {
        "threads_by_channels": (0, 1, BOTH),
        "tile_rows": tuple(sorted({ceildiv(sizes.tall, n) for n in range(1, sizes.tall + 1)})),
        "panels": tuple(n for n in range(1, vectors + 1) if vectors % n == 0),
        "rows": tuple(range(1, min(most, sizes.tall * sizes.wide) + 1)),
        "vectors": tuple(n for n in range(1, model.MOST_PANEL + 1) if vectors % n == 0),
        "fetch": (0, 4, model.WINOGRAD_FETCH),
    }
    if sizes.strips:
        del choices["tile_rows"]
        choices.update(threads_by_channels=(0, 1), stretch=model.WINOGRAD_STRETCHES)
    return {knob: tuple(sorted({*values, point[knob]})) for knob, values in choices.items()}


# --------------------------------------------------------------------------------------------------------- the sketch


class _Sketch:
    """One point of the space, applied stage by stage from the output to the input."""

    def __init__(self, unit: Unit, chain: list[str], sizes: Sizes, point: Point, lanes: int, weight: Buffer) -> None:
        self.s, self.chain, self.sizes, self.point = unit.schedule, chain, sizes, point
        self.weight, self.lanes, self.width = weight, lanes, lanes * point["vectors"]
        self.others, self.rank = max(unit.target.cores - 1, 1), _rank(self.s)
        if sizes.outputs % (self.width * point["panels"]):
            raise ScheduleError("winograd", str(dict(point)), f"panels of {self.width} do not fill blocks evenly")

    def apply(self) -> None:
        """All the steps."""
        s, final = self.s, self.s[self.chain[-1]]
        by_channels = bool(self.point["threads_by_channels"])
        self.read_in_place()
        self.peaks()
        accumulate = s.cache_write(SUMS, "local")
        facts = facts_of(final.block)
        lane = facts.spatial[-1 if len(facts.spatial) > self.rank else CHANNEL].var
        # An output whose channels lie apart gets its elements from a small copy in which they lie together.
        apart = s.cache_write(facts.target.name, "local") if facts.store_step(lane) != 1 else None
        image, block, channels = self.outer_loops(final, by_channels)
        inner = block if by_channels else channels
        self.elements(final, apart, inner)
        self.products(final, inner, accumulate)
        if not by_channels:
            s[TAKEN].compute_at(final, block, exact=False)
        self.group_lanes(TAKEN)
        self.group_lanes(SUMS)
        fill = self.transform()
        if by_channels:
            is_shared = self.point["threads_by_channels"] == BOTH
            final.parallel(final.fuse(channels, image, block) if is_shared else channels)
            s[TAKEN].parallel(fill)
        elif self.sizes.strips:
            final.parallel(self.shared)
        else:
            final.parallel(final.fuse(image, block) if self.sizes.batch > 1 else block)

    def read_in_place(self) -> None:
        """An input that has its border and its lanes side by side in memory needs no copy of its own."""
        if PADDED not in names_of(self.s):
            return
        facts = facts_of(block_named(self.s, PADDED))
        value = facts.store.value if facts.store is not None else None
        beside = isinstance(value, Load) and facts.step(value, facts.spatial[-1].var) == 1
        if beside and len(facts.spatial) == self.rank + 1 and not self.sizes.strips:
            self.s[PADDED].compute_inline()

    def peaks(self) -> None:
        """The largest magnitudes, in lanes that are joined last: channels, or the places of a plain image."""
        s, stage = self.s, self.s[PEAKS]
        channel, *rest = stage.reduce_axis
        facts = facts_of(stage.block)
        plain = len(rest) == 2 and facts.step(facts.loads[-1], facts.reduce[0].var) != 1
        if len(rest) > 2:
            lane = rest.pop()
        else:
            lane = rest[self.rank - 3] if plain else stage.split(channel, factor=self.lanes)[1]
        partial = s.rfactor(stage, lane, factor_axis=3)
        stage.compute_at(s[UNEVEN], s[UNEVEN].axis[0])
        stage.unroll(stage.reduce_axis[0])
        image, *sides, lane = partial.axis
        channel, *rest = partial.reduce_axis
        if plain:
            along = sides.pop(self.rank - 3)
            partial.reorder(image, *sides, along, lane, channel, *rest)
            stretch, lane = partial.split(partial.fuse(along, lane), factor=self.lanes)
            partial.reorder(*sides[:1], channel, *rest, stretch, lane)
            y = sides[0] if self.rank == 4 else None
        else:
            y, x = sides
            partial.reorder(image, y, channel, x, *rest, lane)
        nest.keep_whole(partial, rest)  # a cut at a number that is not known yet would leave a loop
        nest.write_out(partial, *rest, lane)
        vectors = facts_of(partial.block).points * extent_of(partial, channel) * len(rest) * 2 // self.lanes
        # The more cores would wait for one, the less is left to it; the pool offers a loop to no more than it is worth.
        if y is not None and vectors * self.others**2 >= model.LEAST_PARALLEL_WORK:
            partial.parallel(partial.fuse(image, y) if self.sizes.batch > 1 else y)

    def split_lanes(self, stage: Stage, at: int, axes: int) -> tuple[Var, Var]:
        """The loops over groups of lanes and inside them, of the channel axis of a stage that has so many axes.

        A program whose values lie in blocks of channels has the two as axes of their own, the second one last.
        """
        loops = stage.axis
        if len(loops) == axes:
            outer, inner = stage.split(loops[at], factor=self.lanes)
            return outer, inner
        if len(loops) != axes + 1 or extent(stage.block.axes[axes]) != self.lanes:
            raise ScheduleError("winograd", stage.name, f"its channels do not lie in blocks of {self.lanes}")
        return loops[at], loops[axes]

    def sides(self, stage: Stage) -> tuple[Var, Var]:
        """The loops over rows and columns of an image; a line is one column."""
        if self.rank == 4:
            return stage.axis[2], stage.axis[3]
        row, column = stage.split(stage.axis[2], factor=1)
        return row, column

    def outer_loops(self, final: Stage, by_channels: bool) -> tuple[Var, Var, Var]:
        """The loops over images, blocks of tile rows (stretches of strips) and blocks of channels around everything."""
        sizes, point = self.sizes, self.point
        group, lane = self.split_lanes(final, CHANNEL, self.rank)
        image, (part, side) = final.axis[0], self.sides(final)
        if sizes.strips:
            ahead = point["stretch"]
            down, part = final.split(part, factor=sizes.down * (sizes.tall if sizes.is_across else ahead))
            right, side = final.split(side, factor=sizes.across * (ahead if sizes.is_across else sizes.wide))
            blocks = [down, right] if sizes.is_across else [right, down]
            self.shared = max(blocks, key=lambda loop: extent_of(final, loop))
        else:
            block, part = final.split(part, factor=point["tile_rows"] * sizes.down)
            blocks = [block]
        channels, within = final.split(group, factor=point["panels"] * point["vectors"])
        first = [channels, image, *blocks] if by_channels else [image, *blocks, channels]
        final.reorder(*first, within, part, side, lane)
        nest.keep_whole(final, blocks)
        self.loops = (within, part, side, lane)
        return image, blocks[-1], channels

    def elements(self, final: Stage, apart: Stage | None, at: Var) -> None:
        """The transform back and what follows it, tile by tile."""
        s = self.s
        stage, (within, part, across, lane) = final, self.loops
        if apart is not None:
            stage = apart
            stage.compute_at(final, at)
            along, other = (across, part) if self.rank == 4 else (part, across)
            stretch, place = final.split(along, factor=self.lanes)  # squares, turned in registers
            final.reorder(within, other, stretch, place, lane)
            nest.write_out(final, place, lane)
            within, lane = self.split_lanes(stage, CHANNEL, self.rank)
            part, across = self.sides(stage)
            self.blocks_of_lanes(nest.result_of(stage))
        tall, row = stage.split(part, factor=self.sizes.down)
        wide, column = stage.split(across, factor=self.sizes.across)
        outer, inner = (wide, tall) if self.sizes.is_across else (tall, wide)
        stage.reorder(within, outer, inner, row, column, lane)
        nest.write_out(stage, row, column, lane)
        nest.keep_whole(stage, [outer, inner])
        for name in reversed(self.chain[:-1]):
            self.tile_of_outputs(nest.compute_near(s[name], stage, inner))
        if BACK in names_of(s):
            self.positions(nest.compute_near(s[BACK], stage, inner))
        direct = nest.compute_near(s[DIRECT], stage, inner, exact=False)
        direct.reorder(*direct.reduce_axis, *self.tile_of_outputs(direct))
        taps = [loop for loop in direct.reduce_axis[1:] if extent_of(direct, loop) > 1]
        nest.keep_whole(direct, taps[:-1])  # few tiles are computed so: with tests along one side, not nine times
        self.blocks_of_lanes(nest.result_of(direct))
        # A loop of one round would be gone, and its note with it.
        lasting = next((loop for loop in (inner, outer) if extent_of(stage, loop) > 1), inner)
        stage.annotate(UNSWITCH, nest.result_of(s[UNEVEN]), lasting)

    def tile_of_outputs(self, stage: Stage) -> tuple[Var, Var, Var]:
        """The elements of a block between: one tile, one group of lanes; gives their loops."""
        lane = stage.axis[-1] if len(stage.axis) > self.rank else stage.axis[CHANNEL]
        row, column = self.sides(stage)
        stage.reorder(row, column, lane)
        nest.write_out(stage, row, column, lane)
        return row, column, lane

    def positions(self, stage: Stage) -> None:
        """The positions of one tile, written out, one group of lanes each."""
        (a, b, *_, lane), more = stage.axis, self.sizes.more
        blocks = stage.axis[4 + more :][:1] if len(stage.axis) == 6 + more else []  # of channels
        stage.reorder(*blocks, b, a, lane)
        nest.write_out(stage, a, b, lane)

    def products(self, final: Stage, at: Var, accumulate: Stage) -> None:
        """The t² products: register tiles whose sums are stored once."""
        point, stage = self.point, self.s[SUMS]
        stage.compute_at(final, at, exact=False)
        more = self.sizes.more
        group, lane = self.split_lanes(stage, 4 + more, 5 + more)
        a, b, *images, tiles = stage.axis[: 4 + more]
        tile, row = stage.split(tiles, factor=point["rows"])
        panel, vector = stage.split(group, factor=point["vectors"])
        stage.reorder(a, b, images[0], panel, *images[1:], tile, row, vector, lane)
        nest.write_out(stage, row, vector, lane)
        accumulate.compute_at(stage, tile)
        group, lane = self.split_lanes(accumulate, 4 + more, 5 + more)
        row = accumulate.axis[3 + more]
        reduce = list(accumulate.reduce_axis)
        step, unrolled = accumulate.split(reduce[-1], factor=model.WINOGRAD_UNROLL)
        accumulate.reorder(*reduce[:-1], step, unrolled, row, group, lane)
        nest.write_out(accumulate, unrolled, row, group, lane)
        self.pack(accumulate, step, self.rounds(tile))

    def rounds(self, tile: Var) -> tuple[int, Var] | None:
        """The loop in whose rounds a panel of weights is read again, and in how many parts the next panel comes."""
        sizes, point = self.sizes, self.point
        high = min(point["stretch"], sizes.long) if sizes.strips else point["tile_rows"]
        count = ceildiv(high * sizes.deep, point["rows"])
        return (min(count, model.WINOGRAD_SHARES), tile) if count > 1 else None

    def pack(self, accumulate: Stage, step: Var, again: tuple[int, Var] | None) -> None:
        """The weights in panels, in the order in which the loops come to them, so that they are one stream. While some
        rounds of a loop read a panel `again`, the next is fetched."""
        copy = self.s.cache_read(self.weight.name, "global", [accumulate.name])
        target = nest.result_of(copy)
        panels = self.point["panels"]
        outputs = [f"c // {self.width * panels}", "a", "b", f"c // {self.width} % {panels}", "k", f"c % {self.width}"]
        self.s.apply("transform_layout", buffer=target, inputs=["a", "b", "k", "c"], outputs=outputs)
        if self.point["fetch"]:
            shares, around = again or (self.point["fetch"], None)
            accumulate.prefetch(target, step, shares, around)
        copy.vectorize(copy.split(copy.axis[3], factor=self.lanes)[1])

    def group_lanes(self, name: str) -> None:
        """V or M with groups of lanes side by side for neighbouring tiles."""
        buffer = self.s[name].block.writes[0].buffer
        first = ["a", "b", "n", *["y"][: self.sizes.more]]
        if len(buffer.shape) == 5 + self.sizes.more:
            inputs, channel = [*first, "p", "c"], [f"c // {self.lanes}", "p", f"c % {self.lanes}"]
        else:
            inputs, channel = [*first, "p", "c", "d"], ["c", "p", "d"]
        self.s.apply("transform_layout", buffer=buffer.name, inputs=inputs, outputs=[*first, *channel])

    def blocks_of_lanes(self, name: str, more: int = 0) -> None:
        """An image, or a strip of one, with the lanes of a group side by side."""
        buffer = next(b for b in self.s.func.allocations if b.name == name)
        if len(buffer.shape) == self.rank + more:
            first = ["n", *["y"][:more]]
            sides = ["h", "w"][: self.rank - 2]
            outputs = [*first, f"c // {self.lanes}", *sides, f"c % {self.lanes}"]
            self.s.apply("transform_layout", buffer=name, inputs=[*first, "c", *sides], outputs=outputs)

    def transform(self) -> Var:
        """The input's transform, tile by tile; gives the loop over groups of channels (and rows of tiles)."""
        s, stage = self.s, self.s[TAKEN]
        more = self.sizes.more
        group, lane = self.split_lanes(stage, 4 + more, 5 + more)
        a, b, *images, tiles = stage.axis[: 4 + more]
        outer: tuple[Var, ...] = (*images, group)
        if more and self.point["threads_by_channels"]:  # a part of a strip is copied for a group of channels
            stretch, tiles = stage.split(tiles, factor=self.point["stretch"] * self.sizes.deep)
            outer = (group, *images, stretch)
        row, tile = stage.split(tiles, factor=self.sizes.deep)
        stage.reorder(*outer, row, tile, a, b, lane)
        nest.write_out(stage, a, b, lane)
        if ROWS in names_of(s):
            self.positions(nest.compute_near(s[ROWS], stage, tile))
        if self.point["threads_by_channels"] == BOTH:
            group = stage.fuse(group, row)
            outer = (*images, group)
        if PADDED in names_of(s):
            padded = nest.compute_near(s[PADDED], stage, outer[-1])
            loops = padded.axis
            lane = loops[-1] if len(loops) > self.rank + more else loops[CHANNEL + more]
            if not self.turn_squares(padded, lane):
                padded.reorder(*[loop for loop in loops if loop is not lane], lane)
                padded.vectorize(lane)
            nest.keep_whole(padded, loops[1 : 1 + more])
            self.blocks_of_lanes(PADDED, more)
        nest.keep_whole(stage, outer[2:] if more else ())
        return group if self.sizes.batch == 1 and not more else stage.fuse(*outer)

    def turn_squares(self, padded: Stage, lane: Var) -> bool:
        """Reads a plain image along its rows, and turns squares of it in registers; False where it cannot be."""
        loops = padded.axis
        if len(loops) != self.rank:
            return False
        with self.s.attempt("squares of the image") as tried:
            padded.pad(loops[-1], self.lanes)
            stretch, place = padded.split(loops[-1], factor=self.lanes)
            padded.reorder(loops[0], *loops[2:-1], stretch, lane, place)
            nest.write_out(padded, lane, place)
        return bool(tried)
