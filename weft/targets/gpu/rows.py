"""Stages that share rows, in one kernel: softmax, layer norm and what looks like them.

In: a block that reads reductions of its own rows. Out: a block of threads (or one thread) for each row computes every
stage of it in turn; the stages' results stay in shared memory (or registers), and what is read more than once is read
from memory once.

    M[i] = max_k x[i, k];  S[i] = sum_k exp(x[i, k] - M[i]);  out[i, j] = exp(x[i, j] - M[i]) / S[i]
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Var
from weft.loop.ir import Block
from weft.plan.contraction import is_sum_of_products
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding, work_around
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.gpu.elementwise import (
    bind_loop,
    free_loops,
    fuse_all,
    loop_extents,
    spatial_loops,
    threads_of,
    vector_lanes,
)
from weft.targets.gpu.reduction import LEAST_SHARED_ROW, bind_rows, row_threads
from weft.targets.gpu.sharing import cross_threads

ROW_BYTES = 48 * 1024
"""The longest row that is kept in shared memory."""


def schedule_rows(stage: Stage, target: Target, done: set[str]) -> bool:
    """One kernel for a block and the stages of its rows; False (and nothing changed) where there are none."""
    s, name = stage.schedule, stage.name
    facts = facts_of(stage.block)
    stages = _stages(s, name, facts, done)
    row = _row_axes(s, facts, stages)
    if not stages or row is None or facts.is_ordered:
        return False
    length = math.prod(extent(axis) for axis in facts.block.axes if axis.var not in row)
    attempts = [_thread_each] if length < LEAST_SHARED_ROW else [_block_each, _thread_each]
    if length >= LEAST_SHARED_ROW and not _runs_along_rows(s, facts, row, stages):
        attempts.reverse()
    for attempt in attempts:
        with s.attempt(f"rows {attempt.__name__.strip('_')}") as tried:
            if not attempt(s[name], facts, row, stages, target):
                tried.refuse("it does not have the form")
        if tried:
            done.update(stages)
            return True
    return False


def _stages(s: Schedule, name: str, facts: Facts, done: set[str]) -> list[str]:
    """The stages to compute inside the rows, last first: no products, no recurrences, at least one reduction."""
    found = []
    for other in feeding(s, name):
        kind = facts_of(block_named(s, other))
        if other in done or kind.is_ordered or is_sum_of_products(kind):
            continue
        found.append(other)
    reduces = any(facts_of(block_named(s, other)).is_reduction for other in found)
    return found if reduces else []


def _row_axes(s: Schedule, facts: Facts, stages: Iterable[str]) -> set[Var] | None:
    """The axes of a block that say which row it is: those at which it reads the reductions."""
    row: set[Var] = set()
    made = {w.buffer for other in stages if facts_of(block_named(s, other)).is_reduction
            for w in block_named(s, other).writes}  # fmt: skip
    for load in facts.loads:
        if load.buffer not in made:
            continue
        for index in load.indices:
            if isinstance(index, Var):
                row.add(index)
    spatial = {axis.var for axis in facts.spatial}
    return row if row and row <= spatial and (row < spatial or facts.is_reduction) else None


def _runs_along_rows(s: Schedule, facts: Facts, row: set[Var], stages: Iterable[str]) -> bool:
    """Whether neighbours in memory belong to one row."""
    inside = [axis for axis in facts.block.axes if axis.var not in row and extent(axis) > 1]
    return any(facts.step(load, axis.var) == 1 for load in facts.loads for axis in inside)


def _own_loops(stage: Stage, facts: Facts, row: set[Var]) -> tuple[list[Var], list[Var]]:
    """The loops over rows, and those inside a row."""
    loops = free_loops(stage)
    by_axis = {axis.var: loop.var for axis, loop in zip(facts.block.axes, loops)}
    if len(loops) != len(facts.block.axes):
        raise ScheduleError("rows", stage.name, "its loops were changed already")
    rows = [by_axis[axis.var] for axis in facts.block.axes if axis.var in row]
    return rows, [loop.var for loop in loops if loop.var not in rows]


def _attach(s: Schedule, name: str, stages: list[str], loop: Var, scope: str, rows: int) -> None:
    """Computes every stage inside the loop that is one row, its result in another memory."""
    for other in stages:
        alone = work_around(s, other)
        for region in block_named(s, other).writes:
            s.apply("set_scope", buffer=region.buffer.name, scope=scope)
        s[other].compute_at(s[name], loop)
        inside = math.prod(loop_extents(s[other])[x.var.name] for x in free_loops(s[other]))
        if inside * rows > 1.3 * alone:
            raise ScheduleError("rows", other, "it would be computed several times")


def _block_each(stage: Stage, facts: Facts, row: set[Var], stages: list[str], target: Target) -> bool:
    """A block of threads for each row."""
    s, name = stage.schedule, stage.name
    rows, inside = _own_loops(stage, facts, row)
    lengths = loop_extents(stage)
    length = math.prod(lengths[loop.name] for loop in inside)
    count = math.prod(lengths[loop.name] for loop in rows)
    threads, together = row_threads(length, count, target)
    lanes = vector_lanes(facts, target) if not facts.is_reduction else 1
    while lanes > 1 and length < lanes * threads:
        lanes //= 2
    stage.reorder(*rows, *inside)
    place = bind_rows(stage, fuse_all(stage, rows), together)
    _attach(s, name, stages, place, "shared", count)
    _keep_row(s, name, stages, place, length, together, threads, target)
    for other in stages:
        _share_stage(s[other], threads, target)
    if facts.is_reduction:
        cross_threads(s[name], threads)
    else:
        share_row(s[name], threads, lanes)
    return True


def _share_stage(stage: Stage, threads: int, target: Target) -> None:
    facts = facts_of(stage.block)
    if facts.is_reduction and facts.depth >= 4:
        cross_threads(stage, threads)
    elif not facts.is_reduction:
        share_row(stage, threads, 1)


def share_row(stage: Stage, threads: int, lanes: int) -> None:
    """The elements of a row divided among the threads of a block."""
    loops = [x for x in spatial_loops(stage) if loop_extents(stage)[x.name] > 1]
    if not loops:
        return
    vector = None
    if lanes > 1:
        rest, vector = stage.split(loops[-1], factor=lanes)
        loops[-1] = rest
    flat = fuse_all(stage, loops)
    if loop_extents(stage)[flat.name] <= threads:
        stage.bind(flat, "threadIdx.x")
    else:
        outer, inner = stage.split(flat, factor=threads)
        stage.reorder(inner, outer)
        stage.bind(inner, "threadIdx.x")
        if loop_extents(stage)[outer.name] <= 8:
            stage.unroll(outer)
    if vector is not None:
        stage.vectorize(vector)


def _keep_row(
    s: Schedule, name: str, stages: list[str], place: Var, length: int, together: int, threads: int, target: Target
) -> None:
    """A parameter that several stages read along the row is fetched once, into shared memory."""
    blocks = [block_named(s, other) for other in (name, *stages)]
    for buffer in s.func.buffers:
        found = [b for b in blocks if any(r.buffer is buffer for r in b.reads)]
        if len(found) < 2 or length * together * buffer.dtype.bytes > min(ROW_BYTES, threads_of(target).shared_bytes):
            continue
        if not all(_reads_row(facts_of(b), buffer, length) for b in found):
            continue
        with s.attempt("fetch the row"):
            copy = s.cache_read(buffer, "shared", [b.name for b in found])
            copy.compute_at(s[name], place)
            if math.prod(loop_extents(copy)[x.var.name] for x in free_loops(copy)) != length:
                raise ScheduleError("rows", buffer.name, "it is not just the row that is fetched")
            lanes = _copy_lanes(copy, target)
            share_row(copy, threads, lanes)


def _copy_lanes(copy: Stage, target: Target) -> int:
    """Lanes of the fetch of a row: whole vectors that start where the row starts."""
    loops = [x for x in free_loops(copy) if loop_extents(copy)[x.var.name] > 1]
    if not loops:
        return 1
    length = loop_extents(copy)[loops[-1].var.name]
    buffer: Buffer = copy.block.reads[0].buffer
    whole = extent(copy.block.axes[-1])
    lanes = threads_of(target).vector_bytes // buffer.dtype.bytes
    while lanes > 1 and (length % lanes or whole % lanes or length != whole):
        lanes //= 2
    return max(1, lanes)


def _reads_row(facts: Facts, buffer: Buffer, length: int) -> bool:
    """Whether a block reads a buffer at least once for each element of a row, along it."""
    loads = [load for load in facts.loads if load.buffer is buffer]
    axes = [axis for axis in facts.block.axes if extent(axis) > 1]
    return bool(loads) and bool(axes) and all(facts.step(load, axes[-1].var) == 1 for load in loads)


def _thread_each(stage: Stage, facts: Facts, row: set[Var], stages: list[str], target: Target) -> bool:
    """A thread for each row: every stage in turn, the results in registers."""
    s, name = stage.schedule, stage.name
    rows, inside = _own_loops(stage, facts, row)
    count = math.prod(loop_extents(stage)[loop.name] for loop in rows)
    stage.reorder(*rows, *inside)
    flat = fuse_all(stage, rows)
    bind_loop(stage, flat, target)
    thread = s[name].loops[1]
    _attach(s, name, stages, thread, "local", count)
    if sum(_local_elements(block_named(s, other)) for other in stages) > 64 * len(stages):
        raise ScheduleError("rows", name, "the stages of a row do not fit into a thread's registers")
    return True


def _local_elements(block: Block) -> int:
    facts = facts_of(block)
    return 1 if facts.is_reduction else math.prod(extent(axis) for axis in facts.spatial[-1:])
