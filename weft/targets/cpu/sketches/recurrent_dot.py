"""The product of a state of bytes with recurrent weights of signed bytes, by dot products of vector registers (VNNI).

    t            the steps, in order
    qc           columns, one share for each core                                       parallel
    qp, io       panels of packed weights, rows (of the batch) by the size of the register tile
    k            four bytes of the reduction: one instruction for a row and sixteen columns

Weights are packed into panels of the tile's width, four steps of the reduction side by side for each column.
"""

from __future__ import annotations

from weft.plan.sketch import ceildiv
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cpu import dot
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK
from weft.targets.cpu.sketches.matmul import register_tile
from weft.targets.cpu.sketches.matmul_dot import GROUP, KINDS, LANES
from weft.targets.cpu.sketches.matmul_facts import Product
from weft.targets.cpu.sketches.recurrent import step_loop


def takes(product: Product, target: Target) -> bool:
    """Whether a step's product is one of bytes, in whole groups and vectors."""
    kinds = (product.left.buffer.dtype.name, product.right.buffer.dtype.name, product.facts.target.dtype.name)
    if "avx512vnni" not in target.features or kinds != KINDS:
        return False
    is_row = product.facts.step(product.left, product.depth.var) == 1
    return is_row and product.k % GROUP == 0 and product.n % LANES == 0


def schedule_step(s: Schedule, product: Product, target: Target) -> set[str]:
    """Schedules a step's product; gives the names of the blocks that need nothing further."""
    name = product.facts.block.name
    cores = target.cores if product.m * product.n * product.k >= LEAST_PARALLEL_WORK else 1
    rows, vectors = register_tile(product.m, product.n, target, LANES, cores)
    across = product.n // LANES
    vectors = max(v for v in range(1, vectors + 1) if across % v == 0)
    width = vectors * LANES
    packed = _packed(s, product, name, width)
    stage = s[name]
    share = ceildiv(product.n // width, cores) * width
    qc, column = stage.split(step_loop(stage, product.lane.var), factor=share)
    qp, tile = stage.split(column, factor=width)
    qv, ql = stage.split(tile, factor=LANES)
    k, group = stage.split(step_loop(stage, product.facts.reduce[0].var), factor=GROUP)
    rest = [step_loop(stage, axis.var) for axis in product.outer if axis.kind == "spatial"]
    around, inner = [*rest, qc, qp], [qv]
    if product.row is not None:
        io, ii = stage.split(step_loop(stage, product.row.var), factor=rows)
        around, inner = [*around, io], [ii, qv]
    stage.reorder(*around, k, *inner, ql, group)
    for loop in inner:
        stage.unroll(loop)
    if cores > 1:
        stage.parallel(qc)
    steps = step_loop(stage, product.facts.spatial[0].var)
    for loop in (qc, qp):
        stage.zigzag(loop, steps)
    stage.tensorize(ql, dot.VNNI)
    return {name, packed}


def _packed(s: Schedule, product: Product, reader: str, width: int) -> str:
    """A copy of the weights in panels; its name."""
    copy = s.cache_read(product.right.buffer.name, "global", [reader])
    names = [f"d{i}" for i in range(len(product.right.indices))]
    lane = names[product.lane_dim]
    down = next(n for n, index in zip(names, product.right.indices) if index is product.depth.var)
    front = [n for n in names if n not in (lane, down)]
    outputs = [*front, f"{lane} // {width}", f"{down} // {GROUP}", f"{lane} % {width}", f"{down} % {GROUP}"]
    s.apply("transform_layout", buffer=copy.block.writes[0].buffer.name, inputs=names, outputs=outputs)
    return copy.name
