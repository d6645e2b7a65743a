"""Matrix products of bytes by the dot products of vector registers (AVX-512 VNNI), for machines without AMX:

    batch, jc     products, and columns in blocks                                                parallel
    io, jr        rows and columns by the size of the register tile
    k             four bytes of the reduction: one instruction for a row and sixteen columns

The right operand is packed into panels of the tile's width, four steps of the reduction side by side for each column,
padded with zeros: a constant when the model is compiled, another before the product. The left operand is read where it
lies; only one whose rows are no whole groups of four, or lie apart, is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.expr.nodes import Load, Var, int_value
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import facts_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import dot
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK, extent_of, parallelize, schedule_elementwise
from weft.targets.cpu.model import ruled
from weft.targets.cpu.sketches.matmul import lanes_last, register_tile
from weft.targets.cpu.sketches.matmul_amx import dimension
from weft.targets.cpu.sketches.matmul_facts import Product, is_whole, product_of, sums_and_final

LANES = 16
"""Columns of one instruction."""

GROUP = 4
"""Bytes of the reduction in one instruction."""

KINDS = ("uint8", "int8", "int32")


@dataclass(frozen=True)
class _Copies:
    """The right operand in panels, and the left one where it is copied."""

    right: Stage
    left: Stage | None


def match(unit: Unit) -> Sketch | None:
    """The sketch of a product of bytes; None for other programs, or other machines."""
    product = product_of(unit) if "avx512vnni" in unit.target.features else None
    if product is None or product.left.buffer is product.right.buffer or not is_whole(product):
        return None
    if (product.left.buffer.dtype.name, product.right.buffer.dtype.name, product.facts.target.dtype.name) != KINDS:
        return None
    if not all(_is_whole_depth(product, load) for load in (product.left, product.right)):
        return None
    point = _default_point(product, unit.target)
    knobs = {
        "rows": tuple(sorted({point["rows"], *range(1, min(product.m, 12) + 1)})),
        "vectors": tuple(sorted({point["vectors"], 1, 2, 3, 4})),
        "columns": tuple(sorted({point["columns"], *(point["vectors"] * LANES * n for n in (1, 4, 16))})),
    }

    def apply(point: Point) -> None:
        _apply(unit, product, point)

    return ruled("matmul_dot", unit, knobs, point, apply)


def _is_whole_depth(product: Product, load: Load) -> bool:
    """Whether the reduction is a whole dimension of an operand, so that a copy of it can be padded."""
    dim = dimension(load, product.depth.var)
    if dim is None or load.indices[dim] is not product.depth.var:
        return False
    return int_value(load.buffer.shape[dim]) == product.k


def _default_point(product: Product, target: Target) -> dict[str, int]:
    """The register tile of a float product, and columns in blocks whose panels stay in the second-level cache."""
    rows, vectors = register_tile(product.m, product.n, target, LANES, ceildiv(target.cores, product.count))
    vectors = min(vectors, 4)
    width = vectors * LANES
    most = max(1, (target.cache_bytes[1] or 256 << 10) * 3 // 8 // (product.k * width))
    blocks = ceildiv(product.n, most * width)
    if product.count < target.cores:
        blocks = ceildiv(blocks, target.cores) * target.cores
    return {"rows": rows, "vectors": vectors, "columns": ceildiv(ceildiv(product.n, blocks), width) * width}


# ----------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, product: Product, point: Point) -> None:
    s = unit.schedule
    position = {axis.var: i for i, axis in enumerate(product.facts.spatial)}
    lane = position[product.lane.var]
    row = None if product.row is None else position[product.row.var]
    sums, final, at = sums_and_final(unit)
    copies = _copies(s, product, sums, point)
    sums.pad(sums.axis[lane], point["vectors"] * LANES)
    sums.pad(sums.reduce_axis[0], GROUP)
    _lay_out(s, product, copies, point)
    lanes_last(s, sums, lane)
    tile, outer = _outer_loops(final, product, point, at)
    sums.compute_at(final, tile, exact=False)
    sums.set_scope("local")
    _multiply(sums, row, lane)
    unit.done.update([sums.name, final.name, copies.right.name])
    if copies.left is not None:
        unit.done.add(copies.left.name)
        schedule_elementwise(copies.left, unit.target)
    if product.right.buffer not in unit.constants:
        _pack_loops(copies.right, product, unit.target)
    if product.m * product.n * product.k * product.count >= LEAST_PARALLEL_WORK:
        fused = final.fuse(*outer) if len(outer) > 1 else outer[0]
        if extent_of(final, fused) > 1:
            final.parallel(fused)


def _copies(s: Schedule, product: Product, sums: Stage, point: Point) -> _Copies:
    """Copies of the operands, padded with zeros to whole groups, the right one to whole panels."""
    right = s.cache_read(product.right.buffer.name, "global", [sums.name])
    right.pad(right.axis[product.lane_dim], point["vectors"] * LANES)
    right.pad(right.axis[_depth(product, product.right)], GROUP)
    if product.k % GROUP == 0 and product.facts.step(product.left, product.depth.var) == 1:
        return _Copies(right, None)
    left = s.cache_read(product.left.buffer.name, "global", [sums.name])
    left.pad(left.axis[_depth(product, product.left)], GROUP)
    return _Copies(right, left)


def _depth(product: Product, load: Load) -> int:
    """The dimension of an operand along which it is reduced."""
    found = dimension(load, product.depth.var)
    assert found is not None
    return found


def _lay_out(s: Schedule, product: Product, copies: _Copies, point: Point) -> None:
    """The right operand in panels, groups of the reduction side by side; the left one with the reduction last."""
    width = point["vectors"] * LANES
    down = _depth(product, product.right)
    names = [f"d{i}" for i in range(len(product.right.indices))]
    front = [n for d, n in enumerate(names) if d not in (product.lane_dim, down)]
    x, k = names[product.lane_dim], names[down]
    outputs = [*front, f"{x} // {width}", f"{k} // {GROUP}", f"{x} % {width}", f"{k} % {GROUP}"]
    s.apply("transform_layout", buffer=copies.right.block.writes[0].buffer.name, inputs=names, outputs=outputs)
    down = _depth(product, product.left)
    names = [f"d{i}" for i in range(len(product.left.indices))]
    if copies.left is not None and down != len(names) - 1:
        outputs = [*(n for d, n in enumerate(names) if d != down), names[down]]
        s.apply("transform_layout", buffer=copies.left.block.writes[0].buffer.name, inputs=names, outputs=outputs)


def _outer_loops(final: Stage, product: Product, point: Point, at: dict[Var, Var]) -> tuple[Var, list[Var]]:
    """Tiles of the block that takes the sums: the loop around them, and the outermost ones."""
    loop_of = dict(zip([axis.var for axis in final.block.axes], final.axis))
    batch = [loop_of[at[axis.var]] for axis in product.outer]
    jc, column = final.split(loop_of[at[product.lane.var]], factor=point["columns"])
    jr, ji = final.split(column, factor=min(point["vectors"] * LANES, point["columns"]))
    around, inside = [jr], [ji]
    if product.row is not None:
        io, ii = final.split(loop_of[at[product.row.var]], factor=point["rows"])
        around, inside = [io, jr], [ii, ji]
        final.unroll(ii)
    final.reorder(*batch, jc, *around, *inside)
    if extent_of(final, ji) > LANES:
        unrolled, ji = final.split(ji, factor=LANES)
        final.unroll(unrolled)
    final.vectorize(ji)
    return jr, [*batch, jc]


def _multiply(sums: Stage, row: int | None, lane: int) -> None:
    """The sums of a tile: four bytes of the reduction at a time."""
    axes = list(sums.axis)
    vector, lanes = sums.split(axes[lane], factor=LANES)
    steps, group = sums.split(sums.reduce_axis[0], factor=GROUP)
    rest = [x for d, x in enumerate(axes) if d not in (row, lane)]
    rows = [] if row is None else [axes[row]]
    sums.reorder(*rest, steps, *rows, vector, lanes, group)
    for loop in [*rows, vector]:
        sums.unroll(loop)
    sums.tensorize(lanes, dot.VNNI)


def _pack_loops(copy: Stage, product: Product, target: Target) -> None:
    """A right operand that is no constant: a vector along the columns for each of four steps, woven as it is stored."""
    axes = list(copy.axis)
    down = _depth(product, product.right)
    panel, lane = copy.split(axes[product.lane_dim], factor=LANES)
    steps, group = copy.split(axes[down], factor=GROUP)
    around = [*(x for d, x in enumerate(axes) if d not in (product.lane_dim, down)), panel, steps]
    copy.reorder(*around, group, lane)
    copy.unroll(group)
    copy.vectorize(lane)
    parallelize(copy, around, facts_of(copy.block).points, target)
