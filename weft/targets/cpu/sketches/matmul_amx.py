"""Matrix products of bfloat16 and of bytes on AMX tiles; the nest, outermost first:

    batch, jc     products, and columns in blocks                                       parallel
    io, jr        rows and columns by two tiles each: four tiles of sums stay in tile registers
    k             one tile of the reduction: 32 bfloat16, or 64 bytes

Both operands are packed into tiles of one kilobyte, padded with zeros to whole tiles: a constant when the model is
compiled, others before the product, or once for each product of a batch. The sums go from the tile registers to a
small array, from which the block that takes them (bias, activation, rounding) reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.expr.nodes import Load, Var, int_value
from weft.expr.simplify import simplify
from weft.expr.visit import uses_any
from weft.loop.ir import Axis
from weft.loop.tree import blocks_in
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import extent, facts_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.cpu import amx
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK, extent_of, parallelize
from weft.targets.cpu.model import ruled
from weft.targets.cpu.sketches.matmul_facts import Product, product_of, sums_and_final

TILE = 16
"""Rows of a tile, and columns of a tile of sums."""


@dataclass(frozen=True)
class Kind:
    """The instructions for a pair of element types; `group` rows of the right operand are woven together."""

    group: int
    load_left: str
    load_right: str
    dot: str
    store: str
    weave: str

    @property
    def depth(self) -> int:
        """Steps of the reduction in one tile."""
        return TILE * self.group


KINDS = {
    ("bfloat16", "bfloat16", "float32"): Kind(
        2, "amx_load_bf16", "amx_load_bf16x2", "amx_dot_bf16", "amx_store_f32", "amx_weave_bf16"
    ),
    ("uint8", "int8", "int32"): Kind(
        4, "amx_load_u8", "amx_load_s8x4", "amx_dot_u8s8", "amx_store_i32", "amx_weave_s8"
    ),
    ("int8", "int8", "int32"): Kind(4, "amx_load_s8", "amx_load_s8x4", "amx_dot_s8s8", "amx_store_i32", "amx_weave_s8"),
}


def match(unit: Unit) -> Sketch | None:
    """The sketch of a product that AMX tiles can take; None for other programs, or other machines."""
    product = product_of(unit) if amx.available(unit.target) else None
    if product is None:
        return None
    names = (product.left.buffer.dtype.name, product.right.buffer.dtype.name, product.facts.target.dtype.name)
    kind = KINDS.get(names)
    if kind is None or product.row is None or product.left.buffer is product.right.buffer:
        return None
    if not all(_tiles_fit(product, load, axis, size) for load, axis, size in _packed_axes(product, kind)):
        return None
    height, width = _tiles(product.m), _tiles(product.n)
    columns = _columns(unit, product, width)
    knobs = {
        "height": tuple(sorted({height, TILE, 2 * TILE})),
        "width": tuple(sorted({width, TILE, 2 * TILE})),
        "columns": tuple(sorted({columns, *(width * n for n in (1, 4, 16))})),
    }

    def apply(point: Point) -> None:
        _apply(unit, product, kind, point)

    return ruled("matmul_amx", unit, knobs, {"height": height, "width": width, "columns": columns}, apply)


def _tiles(size: int) -> int:
    """One tile, or two."""
    return TILE if size <= TILE else 2 * TILE


def _columns(unit: Unit, product: Product, width: int) -> int:
    """Columns of a block: more than the tiles of one step where the left operand does not stay in the cache."""
    l2 = unit.target.cache_bytes[1] or 256 << 10
    bytes_left, bytes_right = (product.k * load.buffer.dtype.bytes for load in (product.left, product.right))
    if product.m * bytes_left <= l2 // 2:
        return width
    most = max(1, l2 * 3 // 8 // (bytes_right * width))
    blocks = ceildiv(ceildiv(product.n, most * width), unit.target.cores) * unit.target.cores
    return ceildiv(ceildiv(product.n, blocks), width) * width


def _packed_axes(product: Product, kind: Kind) -> list[tuple[Load, Axis, int]]:
    """What is cut into tiles: for each operand its axis of the result, and the reduction."""
    found = [(load, product.depth, kind.depth) for load in (product.left, product.right)]
    rows = [] if product.row is None else [(product.left, product.row, TILE)]
    return [*found, *rows, (product.right, product.lane, TILE)]


def _tiles_fit(product: Product, load: Load, axis: Axis, size: int) -> bool:
    """Whether an axis is a whole dimension of an operand, which can be padded, or whole tiles of one."""
    dim = dimension(load, axis.var)
    if dim is None:
        return False
    index = load.indices[dim]
    if index is axis.var and int_value(load.buffer.shape[dim]) == extent(axis):
        return True
    start = simplify(index - axis.var, product.facts.ranges)
    if uses_any(start, {axis.var}) or extent(axis) % size:
        return False
    return int_value(simplify(start % size, product.facts.ranges)) == 0


def dimension(load: Load, variable: Var) -> int | None:
    """The one dimension of a load that a variable indexes."""
    using = [d for d, index in enumerate(load.indices) if uses_any(index, {variable})]
    return using[0] if len(using) == 1 else None


# ----------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, product: Product, kind: Kind, point: Point) -> None:
    s = unit.schedule
    assert product.row is not None
    position = {axis.var: i for i, axis in enumerate(product.facts.spatial)}
    row, lane = position[product.row.var], position[product.lane.var]
    stored, final, at = sums_and_final(unit)
    left = _copy(s, product.left, stored.name, product.row, product.depth, kind, point["height"])
    right = _copy(s, product.right, stored.name, product.lane, product.depth, kind, point["columns"])
    stored.pad(stored.axis[lane], point["columns"])
    stored.pad(stored.axis[row], point["height"])
    stored.pad(stored.reduce_axis[0], kind.depth)
    _lay_out(s, left, product.left, product.row, product.depth, kind, point["height"])
    _lay_out(s, right, product.right, product.lane, product.depth, kind, point["width"], woven=True)
    tile = s.cache_write(stored.block.writes[0].buffer.name, "amx.tile")
    jr, outer = _outer_loops(final, product, point, at)
    stored.compute_at(final, jr, exact=False)
    emptied = split_tiles(s, stored, row, lane)
    tile.compute_at(final, jr, exact=False)
    tile_layout(s, tile, row, lane)
    multiply_tiles(s, tile, left, right, kind, row, lane)
    stored.tensorize(emptied, kind.store)
    unit.done.update([stored.name, final.name, tile.name, left.name, right.name])
    unit.done.update(block.name for block in blocks_in(s.func.body) if block.writes[0].buffer.scope == "amx.tile")
    _divide(unit, product, kind, final, outer, left, right)


def _divide(
    unit: Unit, product: Product, kind: Kind, final: Stage, outer: list[Var], left: Stage, right: Stage
) -> None:
    """Threads, and the loops that pack what is no constant: with each product of a batch, or all before."""
    cores = max(unit.target.cores, 1)
    each = product.count >= 4 * cores or (product.count > 1 and product.count % cores == 0)
    for copy, load, across, loops in (
        (left, product.left, product.row, _left_loops), (right, product.right, product.lane, _right_loops),
    ):  # fmt: skip
        if load.buffer in unit.constants or across is None:
            continue
        if each:
            copy.compute_at(final, outer[-2], exact=False)
        around = loops(copy, load, across, product.depth, kind)
        if not each:
            parallelize(copy, around, facts_of(copy.block).points, unit.target)
    if product.m * product.n * product.k * product.count < LEAST_PARALLEL_WORK:
        return
    chosen = outer[:-1] if each else outer
    fused = final.fuse(*chosen) if len(chosen) > 1 else chosen[0]
    if extent_of(final, fused) > 1:
        final.parallel(fused)


def _copy(s: Schedule, load: Load, reader: str, axis: Axis, depth: Axis, kind: Kind, width: int) -> Stage:
    """A copy of an operand, padded with zeros to whole tiles."""
    copy = s.cache_read(load.buffer.name, "global", [reader])
    across, down = dimension(load, axis.var), dimension(load, depth.var)
    assert across is not None and down is not None
    copy.pad(copy.axis[across], width)
    copy.pad(copy.axis[down], kind.depth)
    return copy


def _lay_out(
    s: Schedule, copy: Stage, load: Load, axis: Axis, depth: Axis, kind: Kind, together: int, woven: bool = False
) -> None:
    """Stores a copy in tiles, in the order in which they are read; the right operand's are woven.

    The `together` rows or columns of one step lie side by side, then those of the next: tiles that lay far apart would
    share few places of the first-level cache, and nothing would fetch them ahead.
    """
    across, down = dimension(load, axis.var), dimension(load, depth.var)
    assert across is not None and down is not None
    names = [f"d{i}" for i in range(len(load.indices))]
    front = [n for d, n in enumerate(names) if d not in (across, down)]
    x, k = names[across], names[down]
    tiles = [f"{x} // {together}", f"{k} // {kind.depth}", f"{x} % {together} // {TILE}"]
    inside = [f"{x} % {TILE}", f"{k} % {kind.depth}"]
    if woven:
        inside = [f"{k} % {kind.depth} // {kind.group}", f"{x} % {TILE}", f"{k} % {kind.group}"]
    buffer = copy.block.writes[0].buffer.name
    s.apply("transform_layout", buffer=buffer, inputs=names, outputs=[*front, *tiles, *inside])


def _outer_loops(final: Stage, product: Product, point: Point, at: dict[Var, Var]) -> tuple[Var, list[Var]]:
    """Tiles of rows and of columns in the block that takes the sums: the loop around them, and the outermost ones."""
    assert product.row is not None
    loop_of = dict(zip([axis.var for axis in final.block.axes], final.axis))
    batch = [loop_of[at[axis.var]] for axis in product.outer]
    jc, column = final.split(loop_of[at[product.lane.var]], factor=point["columns"])
    jr, ji = final.split(column, factor=point["width"])
    io, ii = final.split(loop_of[at[product.row.var]], factor=point["height"])
    final.reorder(*batch, jc, io, jr, ii, ji)
    if extent_of(final, ji) > TILE:
        _, ji = final.split(ji, factor=TILE)
    final.vectorize(ji)
    return jr, [*batch, jc]


def tile_layout(s: Schedule, tile: Stage, row: int, lane: int) -> None:
    """The sums in tiles."""
    buffer = tile.block.writes[0].buffer
    names = [f"d{i}" for i in range(len(buffer.shape))]
    front = [n for d, n in enumerate(names) if d not in (row, lane)]
    i, j = names[row], names[lane]
    outputs = [*front, f"{i} // {TILE}", f"{j} // {TILE}", f"{i} % {TILE}", f"{j} % {TILE}"]
    s.apply("transform_layout", buffer=buffer.name, inputs=names, outputs=outputs)


def split_tiles(s: Schedule, stored: Stage, row: int, lane: int) -> Var:
    """The copy out of the tile registers, a tile at a time; gives the loop from which a tile is one instruction."""
    buffer = stored.block.writes[0].buffer
    names = [f"d{i}" for i in range(len(buffer.shape))]
    front = [n for d, n in enumerate(names) if d not in (row, lane)]
    s.apply("transform_layout", buffer=buffer.name, inputs=names, outputs=[*front, names[row], names[lane]])
    stored.set_scope("local")
    axes = list(stored.axis)
    rest = [x for d, x in enumerate(axes) if d not in (row, lane)]
    io, ii = stored.split(axes[row], factor=TILE)
    jo, ji = stored.split(axes[lane], factor=TILE)
    stored.reorder(*rest, io, jo, ii, ji)
    stored.unroll(io)
    stored.unroll(jo)
    return ii


def _left_loops(copy: Stage, load: Load, row: Axis, depth: Axis, kind: Kind) -> list[Var]:
    """Rows packed: a vector along the reduction. Gives the loops around it."""
    down = dimension(load, depth.var)
    assert down is not None
    axes = list(copy.axis)
    ko, lanes = copy.split(axes[down], factor=kind.depth)
    around = [*[x for d, x in enumerate(axes) if d != down], ko]
    copy.reorder(*around, lanes)
    copy.vectorize(lanes)
    return around


def _right_loops(copy: Stage, load: Load, lane: Axis, depth: Axis, kind: Kind) -> list[Var]:
    """Rows of the right operand woven together: a vector along the columns for each of a group of rows."""
    across, down = dimension(load, lane.var), dimension(load, depth.var)
    assert across is not None and down is not None
    axes = list(copy.axis)
    jo, ji = copy.split(axes[across], factor=TILE)
    around = [*[x for d, x in enumerate(axes) if d not in (across, down)], jo, axes[down]]
    if _is_transposed(load, lane, depth, kind):
        ko, ki = copy.split(axes[down], factor=kind.depth)
        around[-1] = ko
        copy.reorder(*around, ji, ki)
        copy.tensorize(ji, kind.weave)
        return around
    ko, kt = copy.split(axes[down], factor=kind.group)
    around[-1] = ko
    copy.reorder(*around, kt, ji)
    copy.unroll(kt)
    copy.vectorize(ji)
    return around


def _is_transposed(load: Load, lane: Axis, depth: Axis, kind: Kind) -> bool:
    """Whether columns lie as rows in memory, with nothing to pad: then tiles are transposed whole."""
    rank = len(load.indices)
    lies = dimension(load, lane.var) == rank - 2 and dimension(load, depth.var) == rank - 1
    return lies and extent(lane) % (2 * TILE) == 0 and extent(depth) % kind.depth == 0


def multiply_tiles(s: Schedule, tile: Stage, left: Stage, right: Stage, kind: Kind, row: int, lane: int) -> None:
    """Two tiles of rows times two of columns for each tile of the reduction."""
    axes = list(tile.axis)
    (k,) = tile.reduce_axis
    io, ii = tile.split(axes[row], factor=TILE)
    jo, ji = tile.split(axes[lane], factor=TILE)
    ko, ki = tile.split(k, factor=kind.depth)
    rest = [x for d, x in enumerate(axes) if d not in (row, lane)]
    tile.reorder(*rest, ko, io, jo, ii, ji, ki)
    tile.unroll(io)
    tile.unroll(jo)
    for packed, dims, name in ((left, 2, kind.load_left), (right, 3, kind.load_right)):
        loaded = s.cache_read(packed.block.writes[0].buffer.name, "amx.tile", [tile.name])
        loaded.compute_at(tile, ko)
        for loop in loaded.axis[:-dims]:
            if extent_of(loaded, loop) > 1:
                loaded.unroll(loop)
        loaded.tensorize(loaded.axis[-dims], name)
    tile.tensorize(ii, kind.dot)
