"""Schedules for programs whose sizes are open: those of a twin with typical sizes, step for step.

    C[i, j] += A[i, k] * B[k, j]    i < s0         ->     planned as if s0 were 128: 8 rows at a time, 16 blocks of rows
    split(i, 8) in the twin: no rest               ->     split(i, 8): the last block tests i < s0

In: a schedule, numbers for its open sizes, and what plans a program of numbers. A step is plain data that names blocks
and loops, so what was found for the twin is taken on the program itself: primitives cut loops by constant factors and
guard what is left over, and refuse what would be wrong for another size. Every sketch, its cost and the search for its
best point serve open sizes as they are. The other design, sketches that cost a range of sizes, asks each of them what
an extent is; steps that hold for all sizes are what it would have to give in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.expr.nodes import Buffer, Expr, Var, const
from weft.expr.visit import substitute
from weft.loop.ir import Func
from weft.loop.visit import BufferReplacer, substitute_stmt
from weft.schedule.schedule import Schedule

LEAST = 16
"""A size that was small once may be larger: loops over it are cut as if there were so many."""


def plan_typical(schedule: Schedule, target: Any, constants: Sequence[Buffer], sizes: Mapping[str, int]) -> None:
    """Plans a program with open sizes; `sizes` are typical ones, by name."""
    numbers: dict[Var, Expr] = {v: const(max(sizes.get(v.name, 0), LEAST)) for v in schedule.func.size_vars}
    func, buffers = with_sizes(schedule.func, numbers)
    twin = Schedule(func)
    steps = twin.plan(target, [buffers.get(buffer, buffer) for buffer in constants])
    with schedule.attempt("typical sizes") as tried:
        schedule.replay(steps)
    schedule.tried += twin.tried
    if not tried:
        schedule.plan(target, constants)


def with_sizes(func: Func, numbers: Mapping[Var, Expr]) -> tuple[Func, dict[Buffer, Buffer]]:
    """A program with numbers for its open sizes, and the buffers that became others."""
    buffers: dict[Buffer, Buffer] = {}
    for buffer in (*func.buffers, *func.allocations):
        shape = [substitute(size, numbers) for size in buffer.shape]
        if any(a is not b for a, b in zip(shape, buffer.shape)):
            buffers[buffer] = buffer.replace(shape=shape)
    params = [buffers.get(p, p) if isinstance(p, Buffer) else p for p in func.params]
    body = substitute_stmt(BufferReplacer(buffers).stmt(func.body), numbers)
    allocations = [buffers.get(buffer, buffer) for buffer in func.allocations]
    return func.replace(params=params, body=body, allocations=allocations), buffers
