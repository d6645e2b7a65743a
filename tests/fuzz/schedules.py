"""Random te programs under random schedules: every accepted step keeps the meaning, in the interpreter and compiled.

The compiled function runs with its arrays, and what it allocates, beside guard pages. A case can be cut after a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from tests.fuzz import guard
from tests.fuzz.kinds import OK, Case, Kind, Result
from tests.schedule.checking import (
    assert_same,
    check_compiled,
    check_lowered,
    check_text,
    check_trace,
    follow,
    run,
    scopes_fit,
)
from tests.schedule.intrinsics import declare_intrinsics
from tests.schedule.random_programs import Source, arguments_of, draw_program
from tests.schedule.random_steps import draw_steps
from weft.loop.verifier import verify
from weft.schedule.schedule import Schedule

MOST_STEPS = 9
FIRST = 1_000_000
"""Seeds from here on, so that the cases are others than those of the suite."""


def check_pair(
    source: Source,
    seed: int,
    counts: Counter[str],
    compiled: bool = True,
    most: int = MOST_STEPS,
    copy: Callable[[np.ndarray], np.ndarray] = np.copy,
) -> Schedule:
    """Draws a program and a schedule of it, and checks them at every step."""
    program = draw_program(source)
    schedule = program.schedule()
    start = schedule.func
    verify(start)
    arrays = arguments_of(start, program.size, seed)
    want = run(start, arrays)
    for _ in range(min(most, source.number(1, MOST_STEPS))):
        accepted = follow(draw_steps(source, schedule), schedule, counts)
        if accepted and source.chance(25) and scopes_fit(schedule.func):
            assert_same(run(schedule.func, arrays), want, f"interpreted\n{schedule.trace}\n{schedule.func!r}")
    func = schedule.func
    check_text(func)
    check_trace(start, schedule)
    if scopes_fit(func):
        assert_same(run(func, arrays), want, f"interpreted\n{schedule.trace}\n{func!r}")
        check_lowered(func, arrays, want)
    if compiled:
        counts["compiled"] += check_compiled(func, arrays, want, copy)
    return schedule


def make(seed: int) -> Case:
    """The case of a number: its parts are the steps, of which the last can be left out."""
    return Case(seed, tuple(range(MOST_STEPS)))


def check(case: Case) -> Result:
    """Both placements of memory."""
    seed = FIRST + case.seed
    with guard.placed(at_end=bool(case.seed % 2), fill=0xAA):
        check_pair(Source(seed), seed, Counter(), most=len(case.parts), copy=guard.place)
        guard.check()
    return OK


def show(case: Case) -> str:
    """The program and the steps of its schedule."""
    seed = FIRST + case.seed
    source = Source(seed)
    schedule = draw_program(source).schedule()
    start = repr(schedule.func)
    for _ in range(min(len(case.parts), source.number(1, MOST_STEPS))):
        follow(draw_steps(source, schedule), schedule, Counter())
        source.chance(25)
    return f"{start}\n{schedule.trace.as_python()}"


def setup() -> None:
    """What a worker does once."""
    declare_intrinsics()
    guard.install()


KIND = Kind("te", make, check, show, setup, share=2.6)
