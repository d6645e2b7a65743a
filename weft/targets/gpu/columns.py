"""Reductions whose neighbours in memory are neighbours in the result: sums of columns, a vector times a matrix.

    C[j] = sum over k of A[k] * B[k, j]

    block    a few vectors of neighbours (a line of memory) of the result
    thread   one vector of them, for its part of k: the loads are as wide as the machine has, several on their way
    then     the parts meet in shared memory, in two rounds

What such a program costs is its bytes: on an H200, 4096 × 4096 takes 8 % less time in loads of 16 bytes than in loads
of one element for float32, and 24 % less for bfloat16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.expr.nodes import Load, Var
from weft.plan.contraction import load_bytes
from weft.schedule.facts import Facts
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.gpu import model
from weft.targets.gpu.loops import (
    free_loops,
    fuse_all,
    loop_extents,
    power_of_two,
    reduce_loops,
    threads_of,
    whole_vectors,
)
from weft.targets.gpu.sharing import divisor_below, load_vectors


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
    machine = threads_of(target)
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
    lanes = threads_of(target).vector_bytes // main.buffer.dtype.bytes
    return lanes if main.indices[-1] is last.var and whole_vectors(facts, last, [main], lanes) == lanes else 1


def _share(depth: int, most: int, together: int) -> int:
    """How many threads share a column: as many loads on their way as can be, whole rounds of them."""

    def on_the_way(share: int) -> tuple[int, int]:
        return share * divisor_below(depth // share, together), share

    found = [share for share in range(1, min(most, depth) + 1) if depth % share == 0]
    return max(found, key=on_the_way, default=1)


def share_columns(stage: Stage, columns: Columns) -> None:
    """A reduction at one thread of a block, its columns in the innermost loop, shared by rows of threads."""
    s, name = stage.schedule, stage.name
    fuse_all(stage, reduce_loops(stage))
    for threads in (columns.share, power_of_two(math.isqrt(columns.share))):
        if threads > 1:
            _share_out(s[name], threads, columns.together)
    made = s.cache_write(s[name].block.writes[0].buffer, "local")
    _accumulate(made, columns.together)
    s[name].vectorize(free_loops(s[name])[-1].var)


def _share_out(stage: Stage, threads: int, together: int) -> None:
    """One loop of a reduction is divided among rows of threads; their partial results stand in shared memory."""
    s = stage.schedule
    (loop,) = reduce_loops(stage)
    lanes = [one.var for one in free_loops(stage) if one.var is not loop]
    stage.reorder(loop, *lanes)
    _, part = stage.split(loop, factor=threads)
    partial = s.rfactor(stage.name, part, 0)
    partial.set_scope("shared")
    made = s.cache_write(partial.block.writes[0].buffer, "local")
    row, *_, vector = [one.var for one in free_loops(s[partial.name])]
    made.compute_at(s[partial.name], row)
    s[partial.name].bind(row, "threadIdx.y")
    s[partial.name].vectorize(vector)
    _accumulate(made, together)


def _accumulate(made: Stage, together: int) -> None:
    """A thread's sums in registers: for each of its rows a vector is loaded, and added up lane by lane."""
    loops = [loop.var for loop in free_loops(made)]
    loop = reduce_loops(made)[0]
    made.reorder(loop, *[one for one in loops if one is not loop])
    outer, inner = made.split(loop, factor=divisor_below(loop_extents(made)[loop.name], together))
    for one in free_loops(made):
        if one.var is not outer:
            made.unroll(one.var)
    load_vectors(made, inner)
