"""Reductions shared by threads: each thread adds up a part in a register, the parts meet in shared memory."""

from __future__ import annotations

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.schedule.facts import facts_of
from weft.schedule.schedule import Stage
from weft.targets.gpu.loops import free_loops, fuse_all, long_loops, loop_extents, power_of_two, reduce_loops
from weft.targets.gpu.model import FINAL, MOST_LANES


def cross_threads(stage: Stage, threads: int, tag: str = "threadIdx.x", lanes: int = 1) -> None:
    """A reduction shared by threads: each has a part in a register, the parts meet in shared memory.

    The loops around the reduction stay as they are, and are the caller's to bind. With `lanes`, a thread loads so many
    neighbours at a time.
    """
    s, name = stage.schedule, stage.name
    flat = fuse_all(stage, reduce_loops(stage))
    threads = min(threads, power_of_two(max(1, loop_extents(stage)[flat.name] // lanes)))
    _share_out(stage, flat, threads, tag, lanes)
    if threads > 2 * FINAL:
        _share_out(s[name], reduce_loops(s[name])[-1], FINAL if threads <= 16 * FINAL else 2 * FINAL, tag, 1)
    made = accumulate_locally(s[name])
    made.unroll(reduce_loops(made)[-1])


def _share_out(stage: Stage, loop: Var, threads: int, tag: str, lanes: int) -> None:
    """One loop of a reduction is divided among threads, whose partial results stand in shared memory."""
    s = stage.schedule
    _, part = stage.split(loop, factor=threads * lanes)
    if lanes > 1:
        part, _ = stage.split(part, factor=lanes)
    partial = s.rfactor(stage.name, part, -1 if tag == "threadIdx.x" else 0)
    partial.set_scope("shared")
    made = accumulate_locally(partial, tag)
    inside = reduce_loops(made)
    several = unroll_some(made, inside[0])
    if lanes > 1:
        made.unroll(inside[1])
        load_vectors(made, several)


def unroll_some(stage: Stage, loop: Var) -> Var:
    """Unrolls a loop, a long one by a part of it, so that several loads are on their way; gives the unrolled loop."""
    length = loop_extents(stage)[loop.name]
    if length > FINAL:
        part = divisor_below(length, FINAL)
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
            long = long_loops(copy)
            if len(long) != 1 or loop_extents(copy)[long[0].name] > MOST_LANES:
                raise ScheduleError("reduction", buffer.name, "it is not read in whole vectors")
            copy.vectorize(long[0])


def accumulate_locally(stage: Stage, tag: str | None = None) -> Stage:
    """The running value of a reduction in a register; gives the stage that computes it.

    With a tag, the first axis of the result (threadIdx.x: the last, so that neighbours are neighbours) is bound to it.
    """
    s, name = stage.schedule, stage.name
    made = s.cache_write(stage.block.writes[0].buffer, "local")
    own = [loop.var for loop in free_loops(s[name])]
    if own:
        made.compute_at(s[name], own[-1])
        if tag is not None:
            s[name].bind(own[-1] if tag == "threadIdx.x" else own[0], tag)
    return made
