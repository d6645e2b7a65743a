"""A reduction that threads share: parts in registers, which meet in shared memory."""

from __future__ import annotations

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.schedule.facts import facts_of
from weft.schedule.schedule import Stage
from weft.targets.gpu import model, nest


def cross_threads(stage: Stage, threads: int, tag: str = "threadIdx.x", lanes: int = 1, may_idle: bool = False) -> None:
    """A reduction shared by threads: each has a part in a register, the parts meet in shared memory.

    The loops around the reduction stay as they are, and are the caller's to bind. With `lanes`, a thread loads so many
    neighbours at a time; every thread has some, or it `may_idle`.
    """
    flat = nest.fuse_all(stage, nest.in_memory_order(stage, nest.reduce_loops(stage)))
    if not may_idle:
        threads = min(threads, nest.power_of_two(max(1, nest.extent_of(stage, flat) // lanes)))
    rounds = [(threads, lanes)]
    if threads > 2 * model.FINAL:
        rounds.append((model.FINAL if threads <= 16 * model.FINAL else 2 * model.FINAL, 1))
    for count, wide in rounds:
        _, part = stage.split(nest.reduce_loops(stage)[-1], factor=count * wide)
        if wide > 1:
            part, _ = stage.split(part, factor=wide)
        partial = stage.schedule.rfactor(stage.name, part, -1 if tag == "threadIdx.x" else 0)
        partial.set_scope("shared")
        made = accumulate_locally(partial, tag)
        inside = nest.reduce_loops(made)
        several = unroll_some(made, inside[0])
        if wide > 1:
            made.unroll(inside[1])
            load_vectors(made, several)
    made = accumulate_locally(stage)
    made.unroll(nest.reduce_loops(made)[-1])


def cross_block(stage: Stage, rows: int, columns: int, is_warp: bool) -> None:
    """A reduction shared by all threads of a block, rows and columns of them."""
    flat = nest.fuse_all(stage, nest.in_memory_order(stage, nest.reduce_loops(stage)))
    if columns > 1 and nest.extent_of(stage, flat) >= rows * columns:
        _, part = stage.split(flat, factor=rows * columns)
        partial = stage.schedule.rfactor(stage.name, part, 0)
        partial.set_scope("shared")
        made = stage.schedule.cache_write(partial.block.writes[0].buffer, "local")
        row, column = partial.split(nest.long_loops(partial)[0], factor=columns)
        nest.mark(partial, {row: "threadIdx.y", column: "threadIdx.x"})
        made.compute_at(partial, column)
        unroll_some(made, nest.reduce_loops(made)[0])
        if is_warp:  # which add up their parts
            part, _ = stage.split(nest.reduce_loops(stage)[0], nparts=rows)
            partial = stage.schedule.rfactor(stage.name, part, 0)
            partial.set_scope("shared")
            for made in (accumulate_locally(partial, "threadIdx.y"), accumulate_locally(stage)):
                made.unroll(nest.reduce_loops(made)[-1])
            return
        rows = min(rows, 2 * model.FINAL)
    cross_threads(stage, rows, "threadIdx.y")


def unroll_some(stage: Stage, loop: Var) -> Var:
    """Unrolls a loop, a long one by a part of it, so that several loads are on their way; gives the unrolled loop."""
    length = nest.extent_of(stage, loop)
    if length > model.FINAL:
        part = divisor_below(length, model.FINAL)
        if part == 1:
            return loop
        _, loop = stage.split(loop, factor=part)
    stage.unroll(loop)
    return loop


def divisor_below(length: int, most: int) -> int:
    """The largest divisor of a length that is not above a number."""
    return next(n for n in range(max(1, min(length, most)), 0, -1) if length % n == 0)


def load_vectors(made: Stage, place: Var) -> None:
    """What a thread adds up is loaded several elements at a time."""
    s = made.schedule
    for buffer in dict.fromkeys(load.buffer for load in facts_of(made.block).loads):
        if buffer.scope != "global":
            continue
        with s.attempt("load vectors"):
            copy = s.cache_read(buffer, "local", [made.name])
            copy.compute_at(made, place)
            long = nest.long_loops(copy)
            if len(long) != 1 or nest.extent_of(copy, long[0]) > max(model.MOST_LANES, 16 // buffer.dtype.bytes):
                raise ScheduleError("reduction", buffer.name, "it is not read in whole vectors")
            copy.vectorize(long[0])


def accumulate_locally(stage: Stage, tag: str | None = None) -> Stage:
    """The running value of a reduction in a register; gives the stage that computes it.

    With a tag, the first axis of the result (threadIdx.x: the last, so that neighbours are neighbours) is bound to it.
    """
    made = stage.schedule.cache_write(stage.block.writes[0].buffer, "local")
    own = nest.free_loops(stage)
    if own:
        made.compute_at(stage, own[-1])
        if tag is not None:
            stage.bind(own[-1] if tag == "threadIdx.x" else own[0], tag)
    return made
