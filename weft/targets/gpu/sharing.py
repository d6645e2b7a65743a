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
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Columns:
    """How columns are divided: threads along a line, elements of each, and threads that share one column."""

    across: int
    lanes: int
    share: int

    @property
    def together(self) -> int:
        """How many vectors of a thread are on their way together, at most."""
        return model.LOADED_VALUES // self.lanes


def choose_columns(facts: Facts, target: Target) -> Columns | None:
    """The division of a reduction; None where its elements cannot be loaded in vectors, or where threads are few."""
    lanes = _lanes(facts, target)
    if lanes < 2:
        return None
    machine = nest.threads_of(target)
    across = max(1, model.LINE_BYTES // machine.vector_bytes)
    enough = int(machine.multiprocessors * model.FILLED)
    while across * machine.vector_bytes > model.LEAST_LINE_BYTES and facts.points // (across * lanes) < enough:
        across //= 2
    share = _share(facts.depth, min(model.SHARE_THREADS, machine.block_threads) // across, model.LOADED_VALUES // lanes)
    return Columns(across, lanes, share) if share >= model.LEAST_SHARE else None


def main_load(facts: Facts) -> Load | None:
    """The largest of what a reduction reads, of equals the last."""
    return max(reversed(facts.loads), key=load_bytes, default=None)


def _lanes(facts: Facts, target: Target) -> int:
    """Neighbours that a thread takes: a whole vector of what is read most, which begins at a multiple of a vector."""
    main = main_load(facts)
    if main is None or facts.store is None or not facts.spatial or not all(isinstance(i, Var) for i in main.indices):
        return 1
    last = facts.spatial[-1]
    lanes = nest.threads_of(target).vector_bytes // main.buffer.dtype.bytes
    return lanes if main.indices[-1] is last.var and nest.whole_vectors(facts, last, [main], lanes) == lanes else 1


def _share(depth: int, most: int, together: int) -> int:
    """How many threads share a column: as many loads on their way as can be, whole rounds of them."""

    def on_the_way(share: int) -> tuple[int, int]:
        return share * divisor_below(depth // share, together), share

    found = [share for share in range(1, min(most, depth) + 1) if depth % share == 0]
    return max(found, key=on_the_way, default=1)


def share_columns(stage: Stage, columns: Columns) -> None:
    """A reduction at one thread of a block, its columns in the innermost loop, shared by rows of threads."""
    s, name = stage.schedule, stage.name
    nest.fuse_all(stage, nest.reduce_loops(stage))
    for threads in (columns.share, nest.power_of_two(math.isqrt(columns.share))):
        if threads > 1:
            _share_columns_out(s[name], threads, columns.together)
    made = s.cache_write(s[name].block.writes[0].buffer, "local")
    _accumulate(made, columns.together)
    s[name].vectorize(nest.free_loops(s[name])[-1])


def _share_columns_out(stage: Stage, threads: int, together: int) -> None:
    """One loop of a reduction is divided among rows of threads; their partial results stand in shared memory."""
    s = stage.schedule
    (loop,) = nest.reduce_loops(stage)
    stage.reorder(loop, *[one for one in nest.free_loops(stage) if one is not loop])
    _, part = stage.split(loop, factor=threads)
    partial = s.rfactor(stage.name, part, 0)
    partial.set_scope("shared")
    made = s.cache_write(partial.block.writes[0].buffer, "local")
    row, *_, vector = nest.free_loops(s[partial.name])
    made.compute_at(s[partial.name], row)
    nest.mark(s[partial.name], {row: "threadIdx.y", vector: "vectorize"})
    _accumulate(made, together)


def _accumulate(made: Stage, together: int) -> None:
    """A thread's sums in registers: for each of its rows a vector is loaded, and added up lane by lane."""
    loop = nest.reduce_loops(made)[0]
    made.reorder(loop, *[one for one in nest.free_loops(made) if one is not loop])
    outer, inner = made.split(loop, factor=divisor_below(nest.extent_of(made, loop), together))
    nest.mark(made, nest.unrolled(*[one for one in nest.free_loops(made) if one is not outer]))
    load_vectors(made, inner)
