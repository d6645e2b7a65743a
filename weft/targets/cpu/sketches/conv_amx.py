"""Convolutions of bfloat16 and of bytes on AMX tiles, for images that lie in blocks of channels.

A row of a tile is one place of the image: its block of channels lies together in memory, and its neighbour in the row
lies a block further (or `step` blocks), so that tiles are loaded from where the image is: nothing is copied. The nest:

    n, parts of rows, columns     parallel; `columns` are the output channels of one or two tiles
    h, w                          rows and places, `high` × `across` tiles at a time
    ci, kh, kw                    one tile of the reduction: a block of input channels at one place of the window
    tiles                         `high` × `across` × `columns` tiles of sums stay in tile registers

A tile has as many places as divide a row best (14 of 28, 7 of 7); where whole tiles are more than a row has, the layout
of the image leaves room behind the row. The weights are packed when the model is compiled. The sums go to a small
array, from which the block that takes them (bias, residual, activation, rounding) reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.expr.nodes import Load, Var, int_value
from weft.expr.visit import uses_any
from weft.loop.ir import Axis
from weft.loop.tree import blocks_in
from weft.plan.contraction import is_sum_of_products, operands_of, uses
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import Facts, extent
from weft.schedule.schedule import Schedule, Stage
from weft.targets.cpu import amx
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK, extent_of
from weft.targets.cpu.model import ruled
from weft.targets.cpu.sketches.matmul_facts import sums_and_final

TILE = 16
"""Rows of a tile, and columns of a tile of sums, at most."""

LEAST_COLUMNS = 8
"""Columns of a tile of sums that are worth it."""

REGISTER_BYTES = 1024
PARTS = 8
"""Into how many parts a thread's share of the rows is divided, so that threads finish together."""


@dataclass(frozen=True)
class Shape:
    """The axes of a convolution by their part in it; a tile has `rows` places, `step` apart, and `width` channels."""

    image: Load
    weight: Load
    lane: Axis
    block: Axis | None
    place: Axis
    row: Axis | None
    depth: Axis
    step: int
    rows: int
    width: int
    outer: tuple[Axis, ...]

    @property
    def places(self) -> int:
        """Tiles along a row."""
        return ceildiv(extent(self.place), self.rows)

    @property
    def height(self) -> int:
        """Rows of the result."""
        return 1 if self.row is None else extent(self.row)


def match(unit: Unit) -> Sketch | None:
    """The sketch of a convolution that AMX tiles can take; None for other programs, or other machines."""
    shape = shape_of(unit) if amx.available(unit.target) else None
    if shape is None:
        return None
    channels = extent(shape.lane) * (1 if shape.block is None else extent(shape.block))
    columns = 2 if channels % (2 * shape.width) == 0 else 1
    high, across = _tile(shape, columns)
    knobs = {
        "columns": tuple(sorted({1, columns})),
        "high": tuple(n for n in (1, 2, 3, 4) if n <= shape.height),
        "across": tuple(n for n in (1, 2, 3, 4) if shape.places % n == 0),
        "by_rows": (0, 1),
        "fetch": (0, 1),
    }
    by_rows = int(load_bytes(shape.image) >= load_bytes(shape.weight))
    fetch = int(not by_rows and load_bytes(shape.weight) > unit.target.cache_bytes[0])
    default = {"columns": columns, "high": high, "across": across, "by_rows": by_rows, "fetch": fetch}
    return ruled("conv_amx", unit, knobs, default, lambda point: _apply(unit, shape, point))


def _tile(shape: Shape, columns: int) -> tuple[int, int]:
    """Tiles of places and of rows that stand together: two, or four where there is one tile of channels."""
    most = 2 if columns == 2 else 3
    across = max(n for n in range(1, most + 1) if shape.places % n == 0)
    return min(most // across, shape.height), across


def load_bytes(load: Load) -> int:
    """The size of what a load reads from."""
    return math.prod(int_value(size) or 1 for size in load.buffer.shape) * int(load.buffer.dtype.bytes)


def shape_of(unit: Unit) -> Shape | None:
    """The parts of a convolution whose image stands in blocks of channels; None where the product is something else."""
    facts = unit.facts
    loads = operands_of(facts) if is_sum_of_products(facts) else None
    if loads is None or any(axis.kind != "spatial" for axis in facts.spatial):
        return None
    weights = [load for load in loads if load.buffer in unit.constants]
    images = [load for load in loads if load.buffer not in unit.constants]
    if len(weights) != 1 or len(images) != 1:
        return None
    image, weight = images[0], weights[0]
    kind = amx.DOTS.get((image.buffer.dtype.name, weight.buffer.dtype.name))
    if kind is None or kind[0] != facts.target.dtype.name:
        return None
    depth = [axis for axis in facts.reduce if facts.step(image, axis.var) == 1 and uses(weight, axis)]
    across = [a for a in facts.spatial if uses(image, a) and not uses(weight, a) and extent(a) > 1]
    lanes = [axis for axis in facts.spatial if uses(weight, axis) and not uses(image, axis)]
    if len(depth) != 1 or not across or not 1 <= len(lanes) <= 2 or facts.spatial[-1] is not lanes[-1]:
        return None
    place, lane = across[-1], lanes[-1]
    far = facts.step(image, place.var)
    if extent(depth[0]) > TILE * kind[1] or extent(depth[0]) % kind[1] or extent(lane) % LEAST_COLUMNS:
        return None
    if far is None or far <= 0 or far % extent(depth[0]) or not _is_plain(facts, weight, lanes):
        return None
    rows = ceildiv(extent(place), ceildiv(extent(place), TILE))
    row = across[-2] if len(across) > 1 else None
    block = lanes[0] if len(lanes) == 2 else None
    outer = tuple(axis for axis in facts.spatial if axis not in (place, lane, row, block))
    width = math.gcd(extent(lane), TILE)
    return Shape(image, weight, lane, block, place, row, depth[0], far // extent(depth[0]), rows, width, outer)


def _is_plain(facts: Facts, weight: Load, lanes: list[Axis]) -> bool:
    """Whether each index of the weight is one axis, or the two that its channels were divided into."""
    for index in weight.indices:
        using = [axis for axis in facts.block.axes if uses_any(index, {axis.var})]
        if len(using) > 2 or (lanes[-1] in using and any(axis not in lanes for axis in using)):
            return False
    return True


# ---------------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, shape: Shape, point: Point) -> None:
    s = unit.schedule
    names = amx.shaped(
        shape.image.buffer.dtype.name,
        shape.weight.buffer.dtype.name,
        (shape.rows, extent(shape.depth), shape.width),
        shape.step,
    )
    position = {axis.var: i for i, axis in enumerate(unit.facts.spatial)}
    stored, final, at = sums_and_final(unit)
    stored.pad(stored.axis[position[shape.place.var]], shape.rows)
    packed = _pack(unit, shape, stored, point["columns"])
    tile = s.cache_write(stored.block.writes[0].buffer.name, "amx.tile")
    left = _left(s, tile, shape)
    inner, _ = outer_loops(unit, shape, final, at, point, _shares(shape, point))
    stored.compute_at(final, inner, exact=False)
    emptied = _stored_loops(s, stored, shape, position)
    tile.compute_at(final, inner, exact=False)
    deepest = _multiply(s, tile, left, packed, shape, names, position)
    if _shares(shape, point) > 1 and deepest is not None:
        tile.prefetch(packed.block.writes[0].buffer.name, deepest, _shares(shape, point), outer=inner)
    stored.tensorize(emptied, names.store)
    unit.done.update([stored.name, final.name, tile.name, packed.name])
    unit.done.update(block.name for block in blocks_in(s.func.body) if block.writes[0].buffer.scope == "amx.tile")


def _shares(shape: Shape, point: Point) -> int:
    """How many steps share the fetching of the next channels' weights; 0 where nothing is fetched ahead."""
    steps = ceildiv(shape.height, point["high"]) * ceildiv(shape.places, point["across"])
    return steps if point["fetch"] and not point["by_rows"] else 0


def _pack(unit: Unit, shape: Shape, stored: Stage, columns: int) -> Stage:
    """The weights in tiles, in the order in which the kernel reads them."""
    copy = unit.schedule.cache_read(shape.weight.buffer.name, "global", [stored.name])
    names = weight_names(unit.facts, shape)
    lane, deep = names.lane, names.deep
    width, group = shape.width * columns, 4 // int(shape.weight.buffer.dtype.bytes)
    tiles = [*names.blocks(width), f"{lane} % {width} // {shape.width}"]
    inside = [f"{deep} % {extent(shape.depth)} // {group}", f"{lane} % {shape.width}", f"{deep} % {group}"]
    buffer = copy.block.writes[0].buffer.name
    unit.schedule.apply("transform_layout", buffer=buffer, inputs=names.all, outputs=[*tiles, *inside])
    return copy


@dataclass(frozen=True)
class WeightNames:
    """Names for the indices of a weight: output channels, input channels (`depth` in a block), window, the rest."""

    all: list[str]
    lane: str
    deep: str
    window: list[str]
    fixed: list[str]
    depth: int

    def blocks(self, width: int) -> list[str]:
        """The order in which blocks are read: `width` output channels, then a block of input channels, the window."""
        return [*self.fixed, f"{self.lane} // {width}", f"{self.deep} // {self.depth}", *self.window]


def weight_names(facts: Facts, shape: Shape) -> WeightNames:
    """Names for the indices of a convolution's weight."""
    indices = shape.weight.indices
    names = [f"d{i}" for i in range(len(indices))]
    lane = next(n for n, index in zip(names, indices) if uses_any(index, {shape.lane.var}))
    deep = next(n for n, index in zip(names, indices) if uses_any(index, {shape.depth.var}))
    window = [
        n
        for axis in facts.reduce
        for n, index in zip(names, indices)
        if n not in (lane, deep) and uses_any(index, {axis.var})
    ]
    fixed = [n for n in names if n not in (lane, deep, *window)]
    return WeightNames(names, lane, deep, window, fixed, extent(shape.depth))


def outer_loops(
    unit: Unit, shape: Shape, final: Stage, at: dict[Var, Var], point: Point, shares: int = 0
) -> tuple[Var, list[Var]]:
    """Divides the loops of the block that takes the sums; gives the one around the tiles, and those inside.

    With `shares`, one loop goes through all tiles of some channels, then to the next channels.
    """
    loop_of = dict(zip([axis.var for axis in final.block.axes], final.axis))
    outer = [loop_of[at[axis.var]] for axis in shape.outer]
    columns, lanes = _columns(final, shape, loop_of, at, point)
    wo, wi = final.split(loop_of[at[shape.place.var]], factor=shape.rows * point["across"])
    rows: list[Var] = []
    tile = [wi, *lanes]
    if shape.row is not None:
        ho, hi = final.split(loop_of[at[shape.row.var]], factor=point["high"])
        rows, tile = [ho], [hi, *tile]
    parts: list[Var] = []
    if point["by_rows"] and rows:
        length = ceildiv(shape.height, point["high"])
        part = max(1, ceildiv(length, max(1, unit.target.cores) * PARTS))
        if part < length:
            po, pi = final.split(rows[0], factor=part)
            parts, rows = [po], [pi]
    final.reorder(*outer, *parts, *columns, *rows, wo, *tile)
    final.vectorize(tile[-1])
    together = [*outer, *parts] if parts else [*outer, *columns]
    if shares > 1:
        together = [*together, *rows, wo]
    fused = final.fuse(*together) if len(together) > 1 else together[0]
    if unit.facts.points * unit.facts.depth >= LEAST_PARALLEL_WORK and extent_of(final, fused) > 1:
        final.parallel(fused)
    return (fused if shares > 1 else wo), tile


def _columns(
    final: Stage, shape: Shape, loop_of: dict[Var, Var], at: dict[Var, Var], point: Point
) -> tuple[list[Var], list[Var]]:
    """The loops over channels around the tiles, and those inside."""
    lane = loop_of[at[shape.lane.var]]
    width = shape.width * point["columns"]
    if extent(shape.lane) >= width:
        blocks = [] if shape.block is None else [loop_of[at[shape.block.var]]]
        lo, li = final.split(lane, factor=width)
        inner = [li]
        outer = [*blocks, lo]
    else:
        assert shape.block is not None
        bo, bi = final.split(loop_of[at[shape.block.var]], factor=width // extent(shape.lane))
        outer, inner = [bo], [bi, lane]
    if extent_of(final, inner[-1]) > TILE:
        io, ii = final.split(inner[-1], factor=TILE)
        final.unroll(io)
        inner = [*inner[:-1], io, ii]
    return outer, inner


def _stored_loops(s: Schedule, stored: Stage, shape: Shape, position: dict[Var, int]) -> Var:
    """The copy out of the tile registers; gives the loop from which a tile is one instruction."""
    axes = list(stored.axis)
    place, lane = position[shape.place.var], position[shape.lane.var]
    _last_two(s, stored, place, lane)
    stored.set_scope("local")
    rest = [x for d, x in enumerate(axes) if d not in (place, lane)]
    wo, wi = stored.split(axes[place], factor=shape.rows)
    jo, ji = stored.split(axes[lane], factor=shape.width)
    stored.reorder(*rest, wo, jo, wi, ji)
    _unroll(stored, [*rest, wo, jo])
    return wi


def _last_two(s: Schedule, stage: Stage, place: int, lane: int) -> None:
    """A buffer stored so that places and channels are its last dimensions."""
    buffer = stage.block.writes[0].buffer
    names = [f"d{i}" for i in range(len(buffer.shape))]
    front = [n for d, n in enumerate(names) if d not in (place, lane)]
    if [*front, names[place], names[lane]] != names:
        outputs = [*front, names[place], names[lane]]
        s.apply("transform_layout", buffer=buffer.name, inputs=names, outputs=outputs)


def _left(s: Schedule, tile: Stage, shape: Shape) -> Stage:
    """What a tile reads of the image, as tiles; the stage that loads them."""
    inside = (shape.place.var, shape.depth.var)
    front = [axis.var.name for axis in tile.block.axes if uses(shape.image, axis) and axis.var not in inside]
    left = s.cache_operand(tile.name, shape.image.buffer.name, "amx.tile", [*front, *(var.name for var in inside)])
    _tiles(s, left, shape, len(front))
    return left


def _multiply(
    s: Schedule,
    tile: Stage,
    left: Stage,
    packed: Stage,
    shape: Shape,
    names: amx.Shaped,
    position: dict[Var, int],
) -> Var | None:
    """Tiles of places times tiles of channels for each block of input channels at each place of the window.

    Gives the innermost loop of the reduction that runs more than once.
    """
    place, lane = position[shape.place.var], position[shape.lane.var]
    _tiles(s, tile, shape, place, lane)
    axes, reduce = list(tile.axis), list(tile.reduce_axis)
    deep = [axis.var for axis in tile.block.axes if axis.kind == "reduce"].index(shape.depth.var)
    depth = reduce.pop(deep)
    wo, dot = tile.split(axes[place], factor=shape.rows)
    jo, ji = tile.split(axes[lane], factor=shape.width)
    rest = [x for d, x in enumerate(axes) if d not in (place, lane)]
    tile.reorder(*reduce, *rest, wo, jo, dot, ji, depth)
    _unroll(tile, [*rest, wo, jo])
    right = s.cache_read(packed.block.writes[0].buffer.name, "amx.tile", [tile.name])
    _align(s, right, 3)
    for copy in (left, right):
        copy.compute_at(tile, reduce[-1])
    *around, row, deep_loop = left.axis
    wo, wi = left.split(row, factor=shape.rows)
    left.reorder(*around, wo, wi, deep_loop)
    _unroll(left, [*around, wo])
    left.tensorize(wi, names.load_left)
    _unroll(right, right.axis[:-3])
    right.tensorize(right.axis[-3], names.load_right)
    tile.tensorize(dot, names.dot)
    return next((loop for loop in reversed(reduce) if extent_of(tile, loop) > 1), None)


def _unroll(stage: Stage, loops: Sequence[Var]) -> None:
    for loop in loops:
        if extent_of(stage, loop) > 1:
            stage.unroll(loop)


def _tiles(s: Schedule, stage: Stage, shape: Shape, place: int, lane: int | None = None) -> None:
    """A buffer in tiles of places (and channels, where they are its own), each in a register of its own."""
    buffer = stage.block.writes[0].buffer
    names = [f"d{i}" for i in range(len(buffer.shape))]
    last = len(names) - 1 if lane is None else lane
    front = [n for d, n in enumerate(names) if d not in (place, last)]
    i, j = names[place], names[last]
    rows, width = shape.rows, shape.width
    columns = [] if lane is None else [f"{j} // {width}"]
    inside = [f"{i} % {rows}", j if lane is None else f"{j} % {width}"]
    s.apply("transform_layout", buffer=buffer.name, inputs=names, outputs=[*front, f"{i} // {rows}", *columns, *inside])
    _align(s, stage, 2)


def _align(s: Schedule, stage: Stage, dims: int) -> None:
    """Tiles, the last dimensions of a buffer, each at the start of a register."""
    buffer = stage.block.writes[0].buffer
    factor = REGISTER_BYTES // int(buffer.dtype.bytes)
    s.apply("storage_align", buffer=buffer.name, dim=len(buffer.shape) - dims - 1, factor=factor)
