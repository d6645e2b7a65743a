"""Threads of a block as Python generators that meet at barriers.

Each thread is a generator; it yields where it waits, with a `key`, the dynamic position in the program (indices of
statements and values of serial loops, outermost first), so that keys compare in program order. A group of threads
(one thread loop) runs its members one after the other up to their next wait, then lets go those that wait earliest.
An explicit barrier lets go only when every member waits at it; an implicit one (between the statements of a scheduled
program) lets go the earliest, so that a thread which skipped a statement waits until the others are done with it.
Groups nest: an inner group waits, as a whole, where its earliest members wait. Blocks of threads that meet are a group,
too; a block among them (`run_block`) waits for the others only where the whole grid does. A blocked thread waits for
what another one does, not for its arrival: it looks again whenever the others wait; when all of them only look, they
never end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from weft.core.errors import InterpreterError


class Wait(NamedTuple):
    """Where a thread waits."""

    key: tuple[int, ...]
    explicit: bool
    blocked: bool = False
    whole: bool = False
    """Whether it waits for the other blocks as well."""


Thread = Generator[Wait, None, None]


def _describe(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:4]))
    return shown if len(indices) <= 4 else f"{shown}, … ({len(indices)} in all)"


def _divergent(
    tag: str, var: str, place: str, arrived: list[int], others: list[int], finished: bool
) -> InterpreterError:
    where = "have already finished" if finished else "wait elsewhere or have finished"
    return InterpreterError(
        f"divergent barrier in {place}: not every thread reaches it. Of the loop {var} ({tag}), threads "
        f"{_describe(arrived)} wait at the barrier while {_describe(others)} {where}. "
        "Move the barrier out of the condition or the loop that only some threads run"
    )


def run_group(
    tag: str, var: str, place: str, start: Callable[[int], Thread], count: int, times: list[int], clock: list[int]
) -> Thread:
    """Runs `count` threads to their ends; yields whenever all of them wait, for the group around it.

    `times` is where the threads' race checks find the start of the current stretch and of the current thread in it.
    """
    running = [(index, start(index)) for index in range(count)]
    waiting: dict[int, tuple[Thread, Wait]] = {}
    while True:
        clock[0] += 1
        times[0] = clock[0]
        for index, thread in running:
            clock[0] += 1
            times[1] = clock[0]
            try:
                waiting[index] = (thread, next(thread))
            except StopIteration:
                waiting.pop(index, None)
        if not waiting:
            return
        earliest = min((wait.blocked, *wait) for _, wait in waiting.values())[1:]
        earliest = Wait(*earliest)
        looking = [index for index in sorted(waiting) if waiting[index][1].blocked]
        there = [index for index in sorted(waiting) if waiting[index][1] == earliest and not earliest.blocked]
        if earliest.explicit and looking and len(there) != count:
            earliest, there = waiting[looking[0]][1], []
        running = [(index, waiting[index][0]) for index in sorted({*looking, *there})]
        if earliest.explicit and len(running) != count:
            arrived = [index for index, _ in running]
            others = [index for index in range(count) if index not in set(arrived)]
            raise _divergent(tag, var, place, arrived, others, not any(index in waiting for index in others))
        yield earliest


def run_block(group: Thread, place: str, clock: list[int]) -> Thread:
    """Runs the threads of a block to their ends; yields where these wait for other blocks.

    `clock[1]` counts how often a blocked one went on.
    """
    before = -1
    for wait in group:
        if wait.blocked and clock[1] == before:
            raise InterpreterError(
                f"deadlock in {place}: every thread that has not finished waits for an arrival that never comes"
            )
        before = clock[1] if wait.blocked else -1
        if wait.whole:
            yield wait


def run_all(group: Thread, place: str, clock: list[int]) -> None:
    """Runs the threads of a block, or blocks that meet, to their ends."""
    for _ in run_block(group, place, clock):
        pass
