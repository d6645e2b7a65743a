"""Reductions shared by threads: each thread adds up a part in registers, the parts meet in shared memory.

    s[i] = sum over k of A[i, k]              `cross_threads`: neighbours are summed; a row of threads for each i

    C[j] = sum over k of A[k] * B[k, j]       `share_columns`: neighbours are neighbours in the result
        block    a few vectors of neighbours (a line of memory) of the result
        thread   one vector of them, for its part of k: the loads are as wide as the machine has, several on their way
        then     the parts meet in shared memory, in two rounds

What columns cost is their bytes: on an H200, a vector times 4096 × 4096 takes 8 % less time in loads of 16 bytes than
in loads of one element for float32, and 24 % less for bfloat16.
"""

from __future__ import annotations

import math

from weft.core.errors import ScheduleError
from weft.expr.nodes import Load, Var
from weft.plan.contraction import load_bytes
from weft.schedule.facts import Facts, facts_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.gpu import model, nest


def cross_threads(stage: Stage, threads: int, tag: str = "threadIdx.x", lanes: int = 1) -> None:
    """A reduction shared by threads: each has a part in a register, the parts meet in shared memory.

    The loops around the reduction stay as they are, and are the caller's to bind. With `lanes`, a thread loads so many
    neighbours at a time.
    """
    s, name = stage.schedule, stage.name
    flat = nest.fuse_all(stage, nest.reduce_loops(stage))
    threads = min(threads, nest.power_of_two(max(1, nest.extent_of(stage, flat) // lanes)))
    _share_out(stage, flat, threads, tag, lanes)
    if threads > 2 * model.FINAL:
        again = model.FINAL if threads <= 16 * model.FINAL else 2 * model.FINAL
        _share_out(s[name], nest.reduce_loops(s[name])[-1], again, tag, 1)
    made = accumulate_locally(s[name])
    made.unroll(nest.reduce_loops(made)[-1])


def _share_out(stage: Stage, loop: Var, threads: int, tag: str, lanes: int) -> None:
    """One loop of a reduction is divided among threads, whose partial results stand in shared memory."""
    s = stage.schedule
    _, part = stage.split(loop, factor=threads * lanes)
    if lanes > 1:
        part, _ = stage.split(part, factor=lanes)
    partial = s.rfactor(stage.name, part, -1 if tag == "threadIdx.x" else 0)
    partial.set_scope("shared")
    made = accumulate_locally(partial, tag)
    inside = nest.reduce_loops(made)
    several = unroll_some(made, inside[0])
    if lanes > 1:
        made.unroll(inside[1])
        load_vectors(made, several)


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
            if len(long) != 1 or nest.extent_of(copy, long[0]) > model.MOST_LANES:
                raise ScheduleError("reduction", buffer.name, "it is not read in whole vectors")
            copy.vectorize(long[0])


def accumulate_locally(stage: Stage, tag: str | None = None) -> Stage:
    """The running value of a reduction in a register; gives the stage that computes it.

    With a tag, the first axis of the result (threadIdx.x: the last, so that neighbours are neighbours) is bound to it.
    """
    s, name = stage.schedule, stage.name
    made = s.cache_write(stage.block.writes[0].buffer, "local")
    own = nest.free_loops(s[name])
    if own:
        made.compute_at(s[name], own[-1])
        if tag is not None:
            s[name].bind(own[-1] if tag == "threadIdx.x" else own[0], tag)
    return made


# ------------------------------------------------------------------------------------------------------------- columns


def main_load(facts: Facts) -> Load | None:
    """The largest of what a reduction reads, of equals the last."""
    return max(reversed(facts.loads), key=load_bytes, default=None)


def choose_columns(facts: Facts, target: Target) -> dict[str, int] | None:
    """How columns are divided: `threads` along a line, `lanes` of each, `rows` of threads that share one column.

    None where what is read most cannot be loaded in whole vectors, from multiples on, or where threads are few.
    """
    main, machine = main_load(facts), nest.threads_of(target)
    if main is None or facts.store is None or not facts.spatial or not all(isinstance(i, Var) for i in main.indices):
        return None
    last, lanes = facts.spatial[-1], machine.vector_bytes // main.buffer.dtype.bytes
    if lanes < 2 or main.indices[-1] is not last.var or nest.whole_vectors(facts, last, [main], lanes) != lanes:
        return None
    across = max(1, model.LINE_BYTES // machine.vector_bytes)
    enough = int(machine.multiprocessors * model.FILLED)
    while across * machine.vector_bytes > model.LEAST_LINE_BYTES and facts.points // (across * lanes) < enough:
        across //= 2

    def on_the_way(share: int) -> tuple[int, int]:
        return share * divisor_below(facts.depth // share, model.LOADED_VALUES // lanes), share

    most = min(min(model.SHARE_THREADS, machine.block_threads) // across, facts.depth)
    # As many loads on their way as can be, whole rounds of them.
    share = max((n for n in range(1, most + 1) if facts.depth % n == 0), key=on_the_way, default=1)
    return {"threads": across, "rows": share, "lanes": lanes} if share >= model.LEAST_SHARE else None


def share_columns(stage: Stage, lanes: int, share: int) -> None:
    """A reduction at one thread of a block, its columns in the innermost loop, shared by rows of threads.

    Partial results of the rows stand in shared memory, in two rounds.
    """
    s, name, together = stage.schedule, stage.name, model.LOADED_VALUES // lanes
    nest.fuse_all(stage, nest.reduce_loops(stage))
    for threads in (share, nest.power_of_two(math.isqrt(share))):
        if threads < 2:
            continue
        (loop,) = nest.reduce_loops(stage)
        stage.reorder(loop, *[one for one in nest.free_loops(stage) if one is not loop])
        _, part = stage.split(loop, factor=threads)
        partial = s.rfactor(name, part, 0)
        partial.set_scope("shared")
        made = s.cache_write(partial.block.writes[0].buffer, "local")
        row, *_, vector = nest.free_loops(partial)
        made.compute_at(partial, row)
        nest.mark(partial, {row: "threadIdx.y", vector: "vectorize"})
        _accumulate(made, together)
    _accumulate(s.cache_write(stage.block.writes[0].buffer, "local"), together)
    stage.vectorize(nest.free_loops(stage)[-1])


def _accumulate(made: Stage, together: int) -> None:
    """A thread's sums in registers: for each of its rows a vector is loaded, and added up lane by lane."""
    loop = nest.reduce_loops(made)[0]
    made.reorder(loop, *[one for one in nest.free_loops(made) if one is not loop])
    outer, inner = made.split(loop, factor=divisor_below(nest.extent_of(made, loop), together))
    nest.mark(made, nest.unrolled(*[one for one in nest.free_loops(made) if one is not outer]))
    load_vectors(made, inner)
