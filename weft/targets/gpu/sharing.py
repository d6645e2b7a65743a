"""Reductions shared by threads: each thread adds up a part in a register, the parts meet in shared memory."""

from __future__ import annotations

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.loop.tree import axes_using
from weft.schedule.facts import facts_of
from weft.schedule.schedule import Stage
from weft.targets.gpu.elementwise import free_loops, fuse_all, loop_extents

FINAL = 16
"""How many parts one thread adds up at the end."""


def power_of_two(number: int) -> int:
    """The greatest power of two that is not above a number."""
    return 1 << max(number, 1).bit_length() - 1


def reduce_loops(stage: Stage) -> list[Var]:
    """The free loops of a stage that its reduction axes use, outermost first."""
    block = stage.block
    return [loop.var for loop in free_loops(stage) if axes_using(block, {loop.var})["reduce"]]


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
        part = next((n for n in range(FINAL, FINAL // 2, -1) if length % n == 0), 1)
        part = part if part > 1 else next((n for n in range(FINAL // 2, 1, -1) if length % n == 0), 1)
        if part == 1:
            return loop
        _, loop = stage.split(loop, factor=part)
    stage.unroll(loop)
    return loop


def load_vectors(made: Stage, place: Var) -> None:
    """What a thread adds up is loaded several elements at a time."""
    s = made.schedule
    for buffer in dict.fromkeys(load.buffer for load in facts_of(made.block).loads):
        if buffer.scope != "global":
            continue
        with s.attempt("load vectors"):
            copy = s.cache_read(buffer, "local", [made.name])
            copy.compute_at(made, place)
            long = [loop for loop in free_loops(copy) if loop_extents(copy)[loop.var.name] > 1]
            if len(long) != 1 or loop_extents(copy)[long[0].var.name] > 8:
                raise ScheduleError("reduction", buffer.name, "it is not read in whole vectors")
            copy.vectorize(long[0].var)


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
