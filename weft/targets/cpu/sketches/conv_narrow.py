"""Convolutions of bfloat16 and of bytes, for images that lie in blocks of channels: by AMX tiles, by dot products, or
by products of squares.

The channels of a block lie together in memory. A row of an AMX tile is one pixel with its block of channels, and the
next pixel lies a block further (or `step` blocks): tiles are loaded from where the image is, nothing is copied. A dot
product multiplies four neighbouring channels with the weights of sixteen output channels (eight, where sixteen do not
divide); a product of squares eight channels of two pixels with those of two output channels. The nest:

    n, parts of rows, columns     parallel; `columns` are the output channels of a register tile
    h, w                          rows and pixels, so many at a time
    ci, kh, kw, (c)               the reduction: a block of input channels at one place of the window, or four of it
    tile                          rows × pixels × columns of sums stay in registers

An AMX tile has as many pixels as divide a row best (14 of 28, 7 of 7); where whole tiles are more than a row has, the
layout of the image leaves room behind the row. Its sums go to a small array, from which the epilogue reads. The weights
are packed when the model is compiled, in the order in which the kernel reads them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.expr.nodes import Load, Var
from weft.expr.visit import uses_any
from weft.loop.ir import Axis
from weft.plan.contraction import dimensions, load_bytes, uses
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv, cheapest
from weft.schedule.facts import Facts, extent, extent_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.cpu import amx, model
from weft.targets.cpu.machine import core_of
from weft.targets.cpu.microkernels import MicroKernel, dots, squares, tiles
from weft.targets.cpu.parse import TILES
from weft.targets.cpu.sketches import nest, padding


@dataclass(frozen=True)
class Shape:
    """The axes of a convolution by their part in it; neighbours along a row lie `step` blocks of channels apart."""

    image: Load
    weight: Load
    lane: Axis
    block: Axis | None
    pixel: Axis
    row: Axis | None
    depth: Axis
    step: int
    outer: tuple[Axis, ...]
    kinds: tuple[str, str, str]
    kept: padding.Taps = ()
    """The taps that are passed over where they read nothing but zeros around the image."""

    @property
    def by_rows(self) -> int:
        """Whether a thread keeps rows of the image while the weights pass by, or the other way round."""
        return int(load_bytes(self.image) >= load_bytes(self.weight))


def match_tiles(unit: Unit) -> Sketch | None:
    """The sketch of a convolution that AMX tiles can take; None for other programs, or other machines."""
    shape = _shape(unit)
    if shape is None:
        return None
    pixels = extent(shape.pixel)
    rows, width = ceildiv(pixels, ceildiv(pixels, amx.TILE)), math.gcd(extent(shape.lane), amx.TILE)
    kernel = tiles(shape.kinds, unit.target, (rows, extent(shape.depth), width), shape.step)
    if kernel is None:
        return None
    columns = 2 if extent(shape.lane) * nest.length(shape.block) % (2 * width) == 0 else 1
    count = ceildiv(pixels, rows)  # two tiles of pixels stand together, or three where there is one of channels
    across = max(n for n in range(1, 5 - columns) if count % n == 0)
    knobs = {
        "columns": (1, columns),
        "high": tuple(n for n in (1, 2, 3, 4) if n <= nest.length(shape.row)),
        "across": tuple(n for n in (1, 2, 3, 4) if count % n == 0),
        "by_rows": (0, 1),
        "fetch": (0, 1),
    }
    default = {
        "columns": columns,
        "high": min((4 - columns) // across, nest.length(shape.row)),
        "across": across,
        "by_rows": shape.by_rows,
        "fetch": int(not shape.by_rows and load_bytes(shape.weight) > unit.target.cache_bytes[0]),
    }

    unit, shape = _passing(unit, shape)

    def apply(point: Point) -> None:
        wide = rows * point["across"]
        _Nest(unit, shape, kernel, point["columns"], point["high"], wide, point["by_rows"], point["fetch"]).in_tiles()

    def legal(columns: Columns) -> Any:
        """Tiles of sums, of the image and of weights that are in registers together."""
        image = columns["high"] * columns["across"]
        return image * columns["columns"] + image + columns["columns"] <= TILES.slots

    return replace(model.ruled("conv", unit, knobs, default, apply, kernel), legal=legal)


def match_dots(unit: Unit) -> Sketch | None:
    """The sketch of a convolution of bytes by dot products of vectors; None for other programs, or other machines."""
    shape = _shape(unit)
    kernel = None if shape is None else dots(shape.kinds, unit.target, extent(shape.lane))
    return None if shape is None or kernel is None else _in_vectors(unit, shape, kernel)


def match_squares(unit: Unit) -> Sketch | None:
    """The sketch of one by products of squares, two pixels of a row in each; a tile has columns of several blocks."""
    shape = _shape(unit, least=4)
    kernel = None if shape is None else squares(shape.kinds, unit.target, shape.step)
    if shape is None or kernel is None or extent(shape.depth) % kernel.depth:
        return None
    return _in_vectors(unit, shape, kernel)


def _in_vectors(unit: Unit, shape: Shape, kernel: MicroKernel) -> Sketch:
    lane, blocks = extent(shape.lane) // kernel.lanes, nest.length(shape.block)
    widths = range(kernel.rows, model.DOT_VECTORS * kernel.rows + 1, kernel.rows)
    knobs = {  # a tile has vectors of a part of a block, or of whole blocks
        "vectors": tuple(n for n in widths if lane % n == 0 or (n % lane == 0 and blocks % (n // lane) == 0)),
        "high": tuple(range(1, min(nest.length(shape.row), model.DOT_ROWS) + 1)),
        "wide": tuple(range(kernel.rows, min(_whole(shape, kernel), unit.target.vector_registers) + 1, kernel.rows)),
    }
    default = {**_tile_of_vectors(shape, knobs, kernel, unit.target), "by_rows": shape.by_rows}
    unit, shape = _passing(unit, shape)

    def apply(point: Point) -> None:
        made = _Nest(unit, shape, kernel, point["vectors"], point["high"], point["wide"], point["by_rows"])
        made.in_tiles() if kernel.store else made.in_vectors()

    return model.ruled("conv", unit, {**knobs, "by_rows": (0, 1)}, default, apply, kernel)


def _passing(unit: Unit, shape: Shape) -> tuple[Unit, Shape]:
    """The same with the taps that are passed over."""
    unit, kept = padding.passing(unit, shape.image, shape.weight, {"high": shape.row, padding.WIDE: shape.pixel})
    return unit, replace(shape, kept=kept)


def _whole(shape: Shape, kernel: MicroKernel) -> int:
    """Pixels of a row, with those that whole instructions take beyond it."""
    return ceildiv(extent(shape.pixel), kernel.rows) * kernel.rows


def _tile_of_vectors(shape: Shape, knobs: dict[str, tuple[int, ...]], kernel: MicroKernel, target: Target) -> Point:
    """Vectors, rows and pixels of the register tile: least time by the products and loads of a step.

    A step of dot products issues two and two loads in a cycle; the pixels of a tile are read where they are multiplied.
    """
    core, rows, pixels = core_of(target), nest.length(shape.row), _whole(shape, kernel)

    def time(columns: Columns) -> Any:
        vectors, high, wide = (columns[knob] for knob in knobs)
        loads, waits = (vectors + high * wide) / 2, np.maximum(2.0 * vectors, model.DOT_LATENCY)
        cycles = np.maximum(np.maximum(vectors * high * wide / 2, loads), waits) + model.DOT_STEP_CYCLES * (1 + vectors)
        if kernel.rows > 1:
            cycles = model.square_cycles(core, high * wide, vectors)
        rest = 0.1 * (pixels % wide != 0) + model.UNEVEN * (rows % high != 0)
        return ceildiv(rows, high) * ceildiv(pixels, wide) / vectors * cycles * (1 + rest)

    def legal(columns: Columns) -> Any:
        vectors, high, wide = (columns[knob] for knob in knobs)
        held = vectors * high * wide // kernel.rows + vectors + 1 <= target.vector_registers
        return held & ((high == 1) | (wide >= pixels))

    return cheapest(knobs, time, legal)[0]


def _shape(unit: Unit, least: int = model.LEAST_NARROW_COLUMNS) -> Shape | None:
    """The parts of a convolution whose image stands in blocks of channels; None where the product is something else."""
    facts, found = unit.facts, unit.contraction
    operands = None if found is None else found.weights(unit.constants)
    if found is None or operands is None or facts.is_ordered:
        return None
    image, weight = operands
    left, right, wide = image.buffer.dtype.name, weight.buffer.dtype.name, facts.target.dtype.name
    group = {("bfloat16", "float32"): 2, ("uint8", "int32"): 4, ("int8", "int32"): 4}.get((left, wide))
    if group is None:
        return None
    depth = [axis for axis in facts.reduce if facts.step(image, axis.var) == 1 and uses(weight, axis)]
    across = [axis for axis in found.only(image) if extent(axis) > 1]
    lanes = found.only(weight)
    if len(depth) != 1 or not across or not 1 <= len(lanes) <= 2 or facts.spatial[-1] is not lanes[-1]:
        return None
    pixel, lane, channels = across[-1], lanes[-1], extent(depth[0])
    far = facts.step(image, pixel.var)
    if channels > amx.TILE * group or channels % group or extent(lane) % least:
        return None
    if far is None or far <= 0 or far % channels or not _is_plain(facts, weight, lanes):
        return None
    row = across[-2] if len(across) > 1 else None
    block = lanes[0] if len(lanes) == 2 else None
    outer = tuple(axis for axis in facts.spatial if axis not in (pixel, lane, row, block))
    return Shape(image, weight, lane, block, pixel, row, depth[0], far // channels, outer, (left, right, wide))


def _is_plain(facts: Facts, weight: Load, lanes: tuple[Axis, ...]) -> bool:
    """Whether each index of the weight is one axis, or the two that its channels were divided into."""
    for index in weight.indices:
        using = [axis for axis in facts.block.axes if uses_any(index, {axis.var})]
        if len(using) > 2 or (lanes[-1] in using and any(axis not in lanes for axis in using)):
            return False
    return True


# ------------------------------------------------------------------------------------------------------------ the nest


class _Nest:
    """One point of a space: a register tile of `high` rows, `wide` pixels and `columns` of the micro-kernel's width."""

    def __init__(
        self, unit: Unit, shape: Shape, kernel: MicroKernel, columns: int, high: int, wide: int, by_rows: int,
        fetch: int = 0,
    ) -> None:  # fmt: skip
        self.unit, self.s, self.shape, self.kernel = unit, unit.schedule, shape, kernel
        self.width, self.high, self.wide, self.by_rows = columns * kernel.lanes, high, wide, by_rows
        self.pixel, self.lane = map(unit.facts.spatial.index, (shape.pixel, shape.lane))
        steps = ceildiv(nest.length(shape.row), high) * ceildiv(extent(shape.pixel), wide)
        self.shares = steps if fetch and not by_rows else 0
        """How many steps share the fetching of the next channels' weights; 0 where nothing is fetched ahead."""
        self.sums, self.final, self.at = nest.sums_and_final(unit)

    def in_vectors(self) -> None:
        """All the steps, for sums in vector registers."""
        sums, facts = self.sums, self.unit.facts
        packed = self.pack()
        around, tile = self.outer_loops()
        nest.unroll(self.final, tile[:-1])
        nest.compute_near(sums, self.final, around)
        loops = dict(zip([axis.var for axis in facts.spatial], sums.axis))
        pixels = (self.shape.row, self.shape.pixel, self.shape.block)
        rows, lane = [loops[axis.var] for axis in pixels if axis is not None], loops[self.shape.lane.var]
        rest = [loop for loop in sums.axis if loop not in (*rows, lane)]
        _, product = nest.multiply(sums, self.kernel, rest, self.steps(sums), rows, lane)
        nest.by_instruction(sums, self.kernel, product)
        self.unit.done.update([sums.name, self.final.name, packed.name])

    def in_tiles(self) -> None:
        """All the steps, for sums in tiles: in registers of their own, or squares in vector registers."""
        s, stored, kernel = self.s, self.sums, self.kernel
        stored.pad(stored.axis[self.pixel], kernel.rows)
        packed = self.pack()
        tile = s.cache_write(nest.result_of(stored), nest.scope_of(kernel))
        left = None if kernel.tiles is None else self.tiles_of_image(tile)
        around, inside = self.outer_loops()
        if left is None:
            nest.unroll(self.final, inside[:-1])
        stored.compute_at(self.final, around, exact=False)
        drained = nest.drain(stored, kernel, self.pixel, self.lane)
        tile.compute_at(self.final, around, exact=False)
        nest.in_tiles(tile, kernel, self.pixel, self.lane)
        axes, steps = list(tile.axis), self.steps(tile)
        rows = [*nest.without(axes, self.pixel, self.lane), axes[self.pixel]]
        if left is not None:
            self.align(tile, 2)
        step, product = nest.multiply(tile, kernel, [], steps, rows, axes[self.lane])
        if left is not None:
            right = s.cache_read(nest.result_of(packed), TILES.name, [tile.name])
            self.align(right, 3)
            self.load(left, right, tile, step)
        nest.by_instruction(tile, kernel, product)
        deepest = next((loop for loop in reversed(steps[:-1]) if extent_of(tile, loop) > 1), None)
        if self.shares > 1 and deepest is not None:
            tile.prefetch(nest.result_of(packed), deepest, self.shares, outer=around)
        stored.tensorize(drained, kernel.store)
        names = [stored.name, self.final.name, tile.name, packed.name]
        self.unit.done.update([*names, *nest.in_tile_registers(s)])

    def pack(self) -> Stage:
        """The weights: so many output channels, then a block of input channels, the window, what is inside a block."""
        load, shape, reduce = self.shape.weight, self.shape, self.unit.facts.reduce
        copy = self.s.cache_read(load.buffer.name, "global", [self.sums.name])
        kernel = replace(self.kernel, depth=extent(shape.depth))
        (lane,), (deep,) = dimensions(load, shape.lane), dimensions(load, shape.depth)
        window = [d for axis in reduce for d in dimensions(load, axis) if d not in (lane, deep)]

        def order(names: list[str]) -> list[str]:
            outside, inside = kernel.panel(names[lane], [names[deep]], self.width)
            return [*nest.without(names, lane, deep, *window), *outside, *(names[d] for d in window), *inside]

        nest.store_as(copy, order)
        return copy

    def outer_loops(self) -> tuple[Var, list[Var]]:
        """Divides the loops of the epilogue; gives the one around a register tile, and those inside.

        Where steps share fetches, one loop goes through all tiles of some channels, then to the next channels.
        """
        final, shape, loop_of = self.final, self.shape, nest.loops_of(self.final)
        outer = [loop_of[self.at[axis.var]] for axis in shape.outer]
        columns, lanes = self.columns(loop_of)
        wo, wi = final.split(loop_of[self.at[shape.pixel.var]], factor=self.wide)
        rows: list[Var] = []
        tile = [wi, *lanes]
        if shape.row is not None:
            ho, hi = final.split(loop_of[self.at[shape.row.var]], factor=self.high)
            rows, tile = [ho], [hi, *tile]
        parts: list[Var] = []
        if self.by_rows and rows:
            length = ceildiv(nest.length(shape.row), self.high)
            part = max(1, ceildiv(length, self.unit.target.cores * model.PARTS_OF_ROWS))
            if part < length:
                po, pi = final.split(rows[0], factor=part)
                parts, rows = [po], [pi]
        final.reorder(*outer, *parts, *columns, *rows, wo, *tile)
        final.vectorize(tile[-1])
        together = [*outer, *parts] if parts else [*outer, *columns]
        if self.shares > 1:
            together = [*together, *rows, wo]
        enough = self.unit.facts.points * self.unit.facts.depth >= model.LEAST_PARALLEL_WORK
        fused = nest.run_parallel(final, together, enough)
        return (fused if self.shares > 1 else wo), tile

    def columns(self, loop_of: dict[Var, Var]) -> tuple[list[Var], list[Var]]:
        """The loops over channels around a register tile, and those inside."""
        final, shape = self.final, self.shape
        lane = loop_of[self.at[shape.lane.var]]
        blocks = [] if shape.block is None else [loop_of[self.at[shape.block.var]]]
        if extent(shape.lane) >= self.width:
            lo, li = final.split(lane, factor=self.width)
            outer, inner = [*blocks, lo], [li]
        else:
            bo, bi = final.split(blocks[0], factor=self.width // extent(shape.lane))
            outer, inner = [bo], [bi, lane]
        if extent_of(final, inner[-1]) > amx.TILE:
            io, ii = final.split(inner.pop(), factor=amx.TILE)
            final.unroll(io)
            inner += [io, ii]
        return outer, inner

    def steps(self, sums: Stage) -> list[Var]:
        """The loops of the reduction, that over the channels of a block last."""
        loops = dict(zip([axis.var for axis in sums.block.axes if axis.kind == "reduce"], sums.reduce_axis))
        tile, image = {"high": self.high, padding.WIDE: self.wide}, self.shape.image.buffer.name
        padding.pass_over(sums, self.shape.kept, loops, image, tile)
        last = loops[self.shape.depth.var]
        return [*(loop for axis in self.unit.facts.reduce if (loop := loops[axis.var]) is not last), last]

    # ------------------------------------------------------------------------------------------------------------ tiles

    def tiles_of_image(self, tile: Stage) -> Stage:
        """What a tile of sums reads of the image, in tiles; the stage that loads them."""
        image, inside = self.shape.image, (self.shape.pixel.var, self.shape.depth.var)
        front = [axis.var.name for axis in tile.block.axes if uses(image, axis) and axis.var not in inside]
        left = self.s.cache_operand(tile.name, image.buffer.name, TILES.name, [*front, *(var.name for var in inside)])
        at, rows = len(front), self.kernel.rows
        nest.store_as(left, lambda n: [*n[:at], f"{n[at]} // {rows}", f"{n[at]} % {rows}", n[at + 1]])
        self.align(left, 2)
        return left

    def load(self, left: Stage, right: Stage, tile: Stage, step: Var) -> None:
        """Loads the tiles of one step of the reduction."""
        assert self.kernel.tiles is not None
        for copy in (left, right):
            copy.compute_at(tile, step)
        *around, row, deep = left.axis
        wo, wi = left.split(row, factor=self.kernel.rows)
        left.reorder(*around, wo, wi, deep)
        nest.unroll(left, [*around, wo])
        left.tensorize(wi, self.kernel.tiles.load_left)
        nest.unroll(right, right.axis[:-3])
        right.tensorize(right.axis[-3], self.kernel.tiles.load_right)

    def align(self, stage: Stage, dims: int) -> None:
        """Tiles, the last dimensions of a buffer, each at the start of a register."""
        buffer = stage.block.writes[0].buffer
        factor = TILES.slot_bytes // int(buffer.dtype.bytes)
        self.s.apply("storage_align", buffer=buffer.name, dim=len(buffer.shape) - dims - 1, factor=factor)
