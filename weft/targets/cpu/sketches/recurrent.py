"""The product of a state with the recurrent weights, in each step of a recurrence.

    t            the steps, in order
    qc           columns, one share for each core                                       parallel
    qp           panels of packed weights, forwards in even steps and backwards in odd ones
    k            the micro kernel: rows (of the batch) × vectors accumulators stay in registers

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
from weft.loop.tree import blocks_in
from weft.plan.contraction import dimension_of, low_part_of, operands_of, uses
from weft.plan.sketch import ceildiv
from weft.schedule.facts import FINITE, Facts, extent
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK
from weft.targets.cpu.sketches.matmul import pack_low, pack_right, register_tile, turned_vectors
from weft.targets.cpu.sketches.matmul_facts import Product, is_whole


def step_product(facts: Facts, constants: Collection[Buffer]) -> Product | None:
    """The parts of the axes in a step's product with constant weights; None for another block."""
    loads = operands_of(facts)
    if loads is None or len(facts.reduce) != 1 or facts.spatial[0].kind != "ordered":
        return None
    depth, lane = facts.reduce[0], facts.spatial[-1]
    if lane.kind != "spatial" or facts.store_step(lane.var) != 1 or extent(lane) < 2:
        return None
    right, left = loads if uses(loads[0], lane) else loads[::-1]
    if right.buffer not in constants or uses(left, lane) or not all(uses(load, depth) for load in loads):
        return None
    others = [axis for axis in facts.spatial if axis is not lane]
    dim = dimension_of(facts, right, lane)
    if dim is None or any(uses(right, axis) for axis in others):
        return None
    row = max((a for a in others if a.kind == "spatial" and extent(a) > 1), key=extent, default=None)
    outer, low = tuple(a for a in others if a is not row), low_part_of(facts, right)
    product = Product(left, right, lane, row, depth, outer, dim, facts, low)
    return product if is_whole(product) else None


def schedule_step(s: Schedule, product: Product, target: Target) -> set[str]:
    """Schedules a step's product; gives the names of the blocks that need nothing further."""
    name = product.facts.block.name
    lanes = min(target.lanes(product.facts.target.dtype), 1 << (product.n - 1).bit_length())
    cores = target.cores if product.m * product.n * product.k >= LEAST_PARALLEL_WORK else 1
    most = turned_vectors(target, product.facts.target.dtype.bytes * lanes * product.k, in_parts=False)
    rows, vectors = register_tile(product.m, product.n, product.k, target, lanes, cores, most)
    width = vectors * lanes
    copies = [pack_right(s, product, name, width, lanes), *pack_low(s, product, name, width, lanes)]
    stage = s[name]
    stage.pad(step_loop(stage, product.lane.var), lanes)
    share = ceildiv(ceildiv(product.n, width), cores) * width
    qc, column = stage.split(step_loop(stage, product.lane.var), factor=share)
    qp, tile = stage.split(column, factor=width)
    qv, ql = stage.split(tile, factor=lanes)
    rest = [step_loop(stage, axis.var) for axis in product.outer if axis.kind == "spatial"]
    around, inner = [*rest, qc, qp], [qv, ql]
    if product.row is not None:
        io, ii = stage.split(step_loop(stage, product.row.var), factor=rows)
        around.append(io)
        inner = [ii, qv, ql]
    (k,) = [step_loop(stage, axis.var) for axis in product.facts.reduce]
    stage.reorder(*around, k, *inner)
    for loop in inner[:-1]:
        stage.unroll(loop)
    stage.vectorize(ql)
    ahead = max((target.cache_bytes[0] or 32 << 10) // 4 // (product.facts.target.dtype.bytes * width), 8)
    for copy in copies:
        stage.prefetch(copy.block.writes[0].buffer.name, k, ahead)
    steps = step_loop(stage, product.facts.spatial[0].var)
    if _starts_from_zeros(s, product, stage, steps):
        stage.annotate("skip_first", steps.name, k)
    if cores > 1:
        stage.parallel(qc)
    for loop in (qc, qp):
        stage.zigzag(loop, steps)
    return {name, *(copy.name for copy in copies)}


def _starts_from_zeros(s: Schedule, product: Product, stage: Stage, steps: Var) -> bool:
    """Whether the state that the first step multiplies is all zeros, and the weights are finite: the product is 0."""
    ordered = product.facts.spatial[0].var
    if not (product.right.buffer.dtype.is_integer or product.right.buffer.name in s.func.annotations.get(FINITE, ())):
        return False
    binding = dict(zip([a.var for a in stage.block.axes], stage.block.bindings))[ordered]
    before = simplify(substitute(product.left.indices[0], {ordered: binding}))
    if not structural_equal(before, steps):  # row 0 in the first step
        return False
    state = product.left.buffer
    makers = [b for b in blocks_in(s.func.body) if any(w.buffer is state for w in b.writes)]
    first = [b for b in makers if all(axis.kind != "ordered" for axis in b.axes)]
    if len(first) != 1 or len(makers) != 2 or not isinstance(first[0].body, Store):
        return False
    value = first[0].body.value
    return isinstance(value, Const) and value.value == 0


def step_loop(stage: Stage, axis: Var) -> Var:
    """The loop that walks over an axis."""
    binding = dict(zip([a.var for a in stage.block.axes], stage.block.bindings))[axis]
    found = [loop for loop in stage.loops if uses_any(binding, {loop})]
    if len(found) != 1:
        raise ScheduleError("recurrent", stage.name, f"the axis {axis.name} has no loop of its own")
    return found[0]
