"""Norms of groups of channels in parts (`weft/ops/normalizations_parts.py`): three kernels that run along channels.

moments of parts      a thread for each vector of channels of a part: its sums in registers, several loads on their way
gains of groups       a block for each group of an image, its moments shared by the threads
elements              a thread for a vector of channels at a few places; what it multiplies by and adds is in registers
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.loop.tree import readers
from weft.ops import normalizations_parts as parts
from weft.plan.planner import unit_of
from weft.schedule.facts import block_named, extent, facts_of, names_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.gpu import model, nest, rows
from weft.targets.gpu.together import divisor_below


def group_rows(target: Target) -> Callable[[int, int, int, tuple[int, ...], int], int]:
    """What `groups_in_parts` asks: places of a part along the first axis of space; 0 where one kernel does it all.

    A part is as long as leaves work for all multiprocessors.
    """
    machine = nest.threads_of(target)

    def propose(batch: int, channels: int, groups: int, space: tuple[int, ...], element: int) -> int:
        lanes, at_place = machine.vector_bytes // element, channels // groups * element
        group = math.prod(space) * max(at_place, model.LEAST_LINE_BYTES)
        alone = max(group, group * batch * groups // machine.multiprocessors)
        if channels % lanes or alone < model.GROUPED_BYTES or space[0] < 2:
            return 0
        wanted = model.GROUPED_THREADS * machine.multiprocessors * lanes // (batch * channels)
        rows = divisor_below(space[0], max(1, space[0] // max(1, wanted)))
        return rows if rows * math.prod(space[1:]) > 1 else 0

    return propose


def schedule_groups(s: Schedule, target: Target, done: set[str]) -> None:
    """Schedules a norm in parts; what runs along no channels is left to the planner."""
    if parts.GAINS not in names_of(s):
        return
    finals = [one.name for one in readers(s.func.body, block_named(s, parts.GAINS).writes[0].buffer)]
    with s.attempt("norm of groups in parts", done):
        for name in finals:
            _elements(s, name, target)
        _gains(s, target, done)
        _moments(s, target)
        done.update((*finals, *parts.STAGES))


def _vectors(stage: Stage, loop: Var, target: Target) -> tuple[Var, Var]:
    """Channels as vectors of the narrow elements, and the channels of one."""
    outer, inner = stage.split(loop, factor=nest.threads_of(target).vector_bytes // 2)
    return outer, inner


def _moments(s: Schedule, target: Target) -> None:
    final, sums = s[parts.MOMENTS], s[parts.SUMS]
    *around, j, channel = nest.free_loops(final)
    vector, lane = _vectors(final, channel, target)
    final.reorder(*around, vector, j, lane)
    thread = nest.bind_loop(final, nest.fuse_all(final, [*around, vector]), target)
    for name in (parts.SUMS, parts.FIRST):
        nest.attach(s[name], final, thread, "local")
    nest.mark(final, {j: "unroll", lane: "vectorize"})
    place = nest.fuse_all(sums, nest.reduce_loops(sums))
    sums.reorder(place, *[loop for loop in nest.free_loops(sums) if loop is not place])
    _, several = sums.split(place, factor=divisor_below(nest.extent_of(sums, place), model.FINAL))
    _load_once(sums, several)
    nest.mark(sums, nest.unrolled(several, *[loop for loop in nest.long_loops(sums) if loop is not place][-2:]))
    nest.load_tile(s[parts.FIRST])


def _load_once(stage: Stage, place: Var) -> None:
    """What a stage reads from memory comes into registers at a loop, in vectors."""
    s = stage.schedule
    for buffer in dict.fromkeys(load.buffer for load in facts_of(stage.block).loads):
        if buffer.scope == "global":
            copy = s.cache_read(buffer, "local", [stage.name])
            copy.compute_at(stage, place)
            nest.load_tile(copy)


def _gains(s: Schedule, target: Target, done: set[str]) -> None:
    width = extent(facts_of(block_named(s, parts.SQUARES)).reduce[-1])
    final = s[parts.GAINS]
    *_, channel = facts_of(final.block).spatial
    if width > 1:
        s.apply("split_axis", block=final.name, axis=channel.var.name, factor=width)
    found = rows.rows_of(unit_of(s, final.name, target, (), set(done) | {parts.MOMENTS, parts.SUMS, parts.FIRST}))
    if found is None:
        raise ScheduleError("groups", final.name, "its statistics are no rows")
    rows.block_each(found, {"threads": model.BLOCK, "lanes": 1})


def _elements(s: Schedule, name: str, target: Target) -> None:
    final = s[name]
    *around, channel = nest.free_loops(final)
    vector, lane = _vectors(final, channel, target)
    batch, places = around[0], nest.fuse_all(final, around[1:])
    outer, several = final.split(places, factor=divisor_below(nest.extent_of(final, places), model.GROUPED_PLACES))
    final.reorder(batch, outer, vector, several, lane)
    thread = nest.bind_loop(final, nest.fuse_all(final, [batch, outer, vector]), target)
    copy = s.cache_read(block_named(s, parts.GAINS).writes[0].buffer, "local", [name])
    copy.compute_at(final, thread)
    nest.load_tile(copy)
    nest.mark(final, {several: "unroll", lane: "vectorize"})
