"""Operands for matrix instructions that take only what lies along k: bytes and tf32, which ldmatrix cannot turn.

    C[i, j] += A[i, k] * B[k, j]     ->     B_t[j, k] = B[k, j];  C[i, j] += A[i, k] * B_t[j, k]

A constant is turned once, when a model is compiled; anything else by a kernel of its own, which moves each byte twice:
little beside a product of many rows. An operand that is computed as it is fetched (a convolution's image) is
fetched in the other order, element by element.
"""

from __future__ import annotations

from dataclasses import replace

from weft.plan.planner import analytic, choose, unit_of
from weft.schedule.facts import block_named, facts_of
from weft.schedule.primitives.matrix import matrix_axes
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cuda.model import TURNED
from weft.targets.gpu import nest
from weft.targets.gpu.elementwise import match, match_transposition
from weft.targets.gpu.product import Product, copy_in_order, plain_load, runs_along_k


def turn_operands(found: Product) -> Product:
    """The product with operands that lie along k, copies of them where they do not."""
    s, name = found.unit.schedule, found.name
    for side in ("x", "y"):
        axes = matrix_axes(block_named(s, name))
        assert axes is not None
        operand = axes.x_operand if side == "x" else axes.y_operand
        load = plain_load(operand)
        if load is None or runs_along_k(facts_of(block_named(s, name)), operand, axes):
            continue
        copy, outputs = copy_in_order(s, load, name, [*axes.batch, *getattr(axes, side), *axes.k])
        if load.buffer not in found.unit.constants:
            _turn_in_registers(s, copy, outputs, found.unit.target)
    return replace(found, k_last=(1, 1), packed=None, order=tuple(range(len(found.axes.k))))


def _turn_in_registers(s: Schedule, copy: Stage, outputs: list[str], target: Target) -> None:
    """A turned copy: each thread loads a few neighbours of several rows, and stores them as neighbours of columns.

    No shared memory: what a product beside it may lie over in its own is found for one kernel of a program.
    """
    loops = nest.free_loops(copy)
    last, other = loops[int(outputs[-1][1:])], loops[-1]
    many = nest.threads_of(target).vector_bytes // copy.block.writes[0].buffer.dtype.bytes
    if last is other or nest.extent_of(copy, last) % many or nest.extent_of(copy, other) % TURNED:
        choose(unit_of(s, copy.name, target), (match_transposition, match), analytic)
        return
    tile = s.cache_read(copy.block.reads[0].buffer.name, "local", [copy.name])
    last_outer, last_in = copy.split(last, factor=many)
    other_outer, other_in = copy.split(other, factor=TURNED)
    around = [loop for loop in loops if loop not in (last, other)]
    copy.reorder(*around, last_outer, other_outer, other_in, last_in)
    nest.bind_loop(copy, nest.fuse_all(copy, [*around, last_outer, other_outer]), target)
    tile.compute_at(copy, copy.loops[1])
    nest.mark(copy, {other_in: "unroll", last_in: "vectorize"})
    nest.load_tile(tile)
