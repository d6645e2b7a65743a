"""Products of float32 matrices by bfloat16 parts (weft/ops/products_parts.py) on AMX tiles; the nest, outermost first:

    chunk, batch      parts of a long reduction, each with sums of its own, and products
    jc                columns in blocks                                                          parallel
    io, jr            rows and columns by tiles, all of whose sums stay in tile registers
    k                 one tile of the reduction: 32 elements
    p                 the six pairs of parts, written out: their tiles lie side by side

The parts of the left operand are made in tiles before the product, those of the weight when the model is compiled.
"""

from __future__ import annotations

from dataclasses import replace

from weft.expr.nodes import Load
from weft.loop.ir import Axis
from weft.loop.tree import blocks_in
from weft.ops.products_parts import LEFT, PAIRS, SUMS
from weft.schedule.facts import Facts, extent, facts_of
from weft.schedule.schedule import Stage
from weft.schedule.space import Point, Space
from weft.targets.base import Target
from weft.targets.cpu import amx
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK, extent_of, parallelize
from weft.targets.cpu.default_tiles import ceildiv
from weft.targets.cpu.spaces.matmul_amx import KINDS, TILE, Kind, copy_padded, dimension, lay_out, sum_in_tiles
from weft.targets.cpu.spaces.matmul_facts import Product, sums_and_final, uses
from weft.targets.cpu.unit import Unit

PARTS = 0
"""The dimension of the parts, in both operands."""


def space(unit: Unit) -> Space | None:
    """The space of a product whose sums another block may take; None for any other program."""
    product = _product(unit)
    return None if product is None or _chunk(product) is not None else _space(unit, product)


def space_of_chunks(unit: Unit) -> Space | None:
    """The space of a product in chunks, which are added up afterwards; None for any other program."""
    product = _product(unit)
    return None if product is None or _chunk(product) is None else _space(unit, product)


def tiles_together(rows: int) -> tuple[int, int]:
    """Tiles of rows and of columns whose sums stay in registers: with operands they are eight tiles at most."""
    tall = ceildiv(rows, TILE)
    return {1: (1, 3), 3: (3, 2)}.get(tall, (2, 2))


def kind_for(rows: int) -> Kind:
    """The instructions, for tiles of no more rows than it takes: an instruction takes as many cycles as rows."""
    high = ceildiv(rows, ceildiv(rows, TILE))
    full = KINDS["bfloat16", "bfloat16", "float32"]
    if high == TILE:
        return full
    names = amx.shaped("bfloat16", "bfloat16", (high, full.depth, TILE))
    return replace(
        full, load_left=names.load_left, load_right=names.load_right, dot=names.dot, store=names.store, rows=high
    )


def _space(unit: Unit, product: Product) -> Space:
    tall, wide = tiles_together(product.m)
    kind = kind_for(product.m)
    default = {"height": tall * kind.rows, "width": wide * TILE, "columns": wide * TILE}
    heights, widths = (tuple(n * size for n in (1, 2, 3)) for size in (kind.rows, TILE))
    knobs = {"height": heights, "width": widths, "columns": tuple(sorted({n * wide * TILE for n in (1, 2, 4)}))}
    return Space("matmul_parts", knobs, default, lambda point: _apply(unit, product, kind, point))


def _product(unit: Unit) -> Product | None:
    """The parts that the axes of a product play; None for other programs, or other machines."""
    facts = unit.facts
    if not facts.block.name.startswith(SUMS) or not amx.available(unit.target) or len(facts.reduce) != 2:
        return None
    loads = {load.buffer.name.startswith(LEFT): load for load in facts.loads if load.buffer is not facts.target}
    if len(loads) != 2 or extent(facts.reduce[0]) != PAIRS:
        return None
    left, right = loads[True], loads[False]
    lane, depth = facts.spatial[-1], facts.reduce[1]
    row = _rows_of(facts, left, right)
    if right.buffer not in unit.constants or row is None:
        return None
    outer = tuple(a for a in facts.spatial if a is not lane and a is not row)
    return Product(left, right, lane, row, depth, outer, 2, facts)


def _rows_of(facts: Facts, left: Load, right: Load) -> Axis | None:
    alone = [a for a in facts.spatial[:-1] if uses(left, a.var) and not uses(right, a.var)]
    return max(alone, key=extent, default=None)


def _chunk(product: Product) -> Axis | None:
    return next((axis for axis in product.outer if uses(product.right, axis.var)), None)


def _apply(unit: Unit, product: Product, kind: Kind, point: Point) -> None:
    s = unit.schedule
    assert product.row is not None
    position = {axis.var: i for i, axis in enumerate(product.facts.spatial)}
    maker = next(b for b in blocks_in(s.func.body) if b.writes[0].buffer is product.left.buffer)
    stored, final, at = sums_and_final(unit)
    left = _pad_left(s[maker.name], product, kind, point)
    right = copy_padded(s, product.right, stored.name, product.lane, product.depth, kind, point["columns"])
    stored.pad(stored.axis[position[product.lane.var]], point["columns"])
    stored.pad(stored.axis[position[product.row.var]], point["height"])
    stored.pad(stored.reduce_axis[1], kind.depth)
    lay_out(s, left, product.left, product.row, product.depth, kind, point["height"], parts=PARTS)
    lay_out(s, right, product.right, product.lane, product.depth, kind, point["width"], woven=True, parts=PARTS)
    tile, outer = sum_in_tiles(unit, product, kind, point, left, right, stored, final, at)
    unit.done.update([stored.name, final.name, tile.name, left.name, right.name])
    unit.done.update(block.name for block in blocks_in(s.func.body) if block.writes[0].buffer.scope == "amx.tile")
    _split_left(left, product, kind, unit.target)
    if product.m * product.n * product.k * product.count < LEAST_PARALLEL_WORK:
        return
    fused = final.fuse(*outer) if len(outer) > 1 else outer[0]
    if extent_of(final, fused) > 1:
        final.parallel(fused)


def _pad_left(left: Stage, product: Product, kind: Kind, point: Point) -> Stage:
    assert product.row is not None
    across, down = dimension(product.left, product.row.var), dimension(product.left, product.depth.var)
    assert across is not None and down is not None
    left.pad(left.axis[across], point["height"])
    left.pad(left.axis[down], kind.depth)
    return left


def _split_left(left: Stage, product: Product, kind: Kind, target: Target) -> None:
    """All parts of a vector of elements at once, rows of them in parallel."""
    down = dimension(product.left, product.depth.var)
    assert down is not None
    axes = list(left.axis)
    ko, lanes = left.split(axes[down], factor=kind.depth)
    around = [*[x for d, x in enumerate(axes) if d not in (PARTS, down)], ko]
    left.reorder(*around, axes[PARTS], lanes)
    left.unroll(axes[PARTS])
    left.vectorize(lanes)
    parallelize(left, around, facts_of(left.block).points, target)
