"""The product of a state with the recurrent weights, in each step of a recurrence.

    t            the steps, in order
    qc           columns, one share for each core                                       parallel
    qp           panels of packed weights, forwards in even steps and backwards in odd ones
    k            the micro-kernel: rows (of the batch) × vectors accumulators stay in registers

A core meets the same weights in every step. They do not fit into its second-level cache, but what a step read last the
next one reads first, so that a part of them is found there again. Where the state starts as zeros, the first step has
nothing to add up.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Const, Var
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import substitute, uses_any
from weft.loop.ir import Store
from weft.loop.tree import writers
from weft.plan.sketch import ceildiv
from weft.schedule.facts import FINITE
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu.microkernels import MicroKernel, dots, fma
from weft.targets.cpu.model import LEAST_PARALLEL_WORK
from weft.targets.cpu.sketches import nest
from weft.targets.cpu.sketches.matmul import register_tile, turned_vectors
from weft.targets.cpu.sketches.product import Product, is_packed_ahead


def schedule_step(s: Schedule, product: Product, target: Target, constants: Collection[Buffer]) -> set[str]:
    """Schedules a step's product; gives the names of the blocks that need nothing further."""
    name, kernel = product.facts.block.name, _kernel(product, target)
    size = product.facts.target.dtype.bytes
    cores = target.cores if product.m * product.n * product.k >= LEAST_PARALLEL_WORK else 1
    rows, vectors = _tile(product, target, kernel, cores)
    width = vectors * kernel.lanes
    loads = [load for load in (product.right, product.low) if load is not None]
    if is_packed_ahead(product, constants):
        copies = [nest.padded_copy(s, load, name, {product.lane_dim: kernel.lanes}) for load in loads]
        for copy in copies:
            nest.store_panels(copy, kernel, product.lane_dim, product.right_depth, width)
    else:  # of weights for several products, those of this one
        axes = [product.lane.var.name, product.depth.var.name]
        copies = [s.cache_operand(name, load.buffer.name, "global", axes) for load in loads]
        for copy in copies:
            copy.pad(copy.axis[0], kernel.lanes)
            nest.store_panels(copy, kernel, 0, [1], width)
            nest.pack_loops(copy, kernel, 0, 1, width, product.transposed(kernel))
    stage = s[name]
    stage.pad(step_loop(stage, product.lane.var), kernel.lanes)
    share = ceildiv(ceildiv(product.n, width), cores) * width
    qc, column = stage.split(step_loop(stage, product.lane.var), factor=share)
    qp, tile = stage.split(column, factor=width)
    around = [*(step_loop(stage, axis.var) for axis in product.outer if axis.kind == "spatial"), qc, qp]
    inner: list[Var] = []
    if product.row is not None:
        io, ii = stage.split(step_loop(stage, product.row.var), factor=rows)
        around, inner = [*around, io], [ii]
    k, micro = nest.multiply(stage, kernel, around, [step_loop(stage, product.depth.var)], inner, tile)
    steps = step_loop(stage, product.facts.spatial[0].var)
    if not kernel.dot:
        ahead = max(target.cache_bytes[0] // 4 // (size * width), 8)
        for copy in copies:
            stage.prefetch(nest.result_of(copy), k, ahead)
        if _starts_from_zeros(s, product, stage, steps):
            stage.annotate("skip_first", steps.name, k)
    if cores > 1:
        stage.parallel(qc)
    for loop in (qc, qp):
        stage.zigzag(loop, steps)
    nest.by_instruction(stage, kernel, micro)
    return {name, *(copy.name for copy in copies)}


def _kernel(product: Product, target: Target) -> MicroKernel:
    """Dot products where state and weights are bytes, in whole groups and vectors; else multiply-adds."""
    found = dots(product.kinds, target)
    if found is not None and product.has_rows_of_groups(found.depth) and product.n % found.lanes == 0:
        return found
    return fma(product.facts.target.dtype, target, product.n)


def _tile(product: Product, target: Target, kernel: MicroKernel, cores: int) -> tuple[int, int]:
    """Rows and vectors of the register tile; no columns are padded for dot products."""
    if kernel.dot:
        rows, most = register_tile(product, target, kernel.lanes, cores)
        return rows, max(n for n in range(1, most + 1) if product.n // kernel.lanes % n == 0)
    column = product.facts.target.dtype.bytes * kernel.lanes * product.k
    return register_tile(product, target, kernel.lanes, cores, turned_vectors(target, column, in_parts=False))


def _starts_from_zeros(s: Schedule, product: Product, stage: Stage, steps: Var) -> bool:
    """Whether the state that the first step multiplies is all zeros, and the weights are finite: the product is 0."""
    ordered = product.facts.spatial[0].var
    if not (product.right.buffer.dtype.is_integer or product.right.buffer.name in s.func.annotations.get(FINITE, ())):
        return False
    binding = dict(zip([a.var for a in stage.block.axes], stage.block.bindings))[ordered]
    before = simplify(substitute(product.left.indices[0], {ordered: binding}))
    if not structural_equal(before, steps):  # row 0 in the first step
        return False
    makers = writers(s.func.body, product.left.buffer)
    first = [b.body for b in makers if all(axis.kind != "ordered" for axis in b.axes)]
    body = first[0] if len(first) == 1 and len(makers) == 2 else None
    return isinstance(body, Store) and isinstance(body.value, Const) and body.value.value == 0


def step_loop(stage: Stage, axis: Var) -> Var:
    """The loop that walks over an axis."""
    binding = dict(zip([a.var for a in stage.block.axes], stage.block.bindings))[axis]
    found = [loop for loop in stage.loops if uses_any(binding, {loop})]
    if len(found) != 1:
        raise ScheduleError("recurrent", stage.name, f"the axis {axis.name} has no loop of its own")
    return found[0]
