"""The goldens of the choice: a schedule that changes, or a fast path that is lost, is seen here (`make goldens`)."""

from __future__ import annotations

import pytest

from tests.conftest import FULL
from tests.goldens.choices import NARROW, ONLY_NARROW, TARGETS, cases, kernels_of, read, text_of
from tests.goldens.workloads import WORKLOADS
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Trace
from weft.targets.registry import find_target

PARTS = 4
TURN = ("avx2", "sm_90", "sm_90a")
"""Of the quick suite each second workload is planned for these machines, and those between for the others."""
SAMPLE = list(WORKLOADS)[::9]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("target", TARGETS)
def test_choices_are_those_of_the_goldens(target: str, part: int) -> None:
    golden = read(target)
    wanted = list(cases(target))
    if part == 0:
        titles = {f"{workload}{'' if precision is None else ' ' + precision}" for _, workload, precision in wanted}
        assert titles == golden.keys(), "make goldens"
    names = list(WORKLOADS)[target in TURN :: 2] if not FULL else WORKLOADS
    for name, workload, precision in [case for case in wanted if case[1] in names][part::PARTS]:
        text = text_of(name, workload, precision)
        assert text == golden[text.splitlines()[0]], f"{workload} on {target} gets another schedule: make goldens"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("workload", [w if w in SAMPLE else pytest.param(w, marks=pytest.mark.slow) for w in WORKLOADS])
def test_a_trace_replays_to_the_same_program(workload: str, target: str) -> None:
    precision = NARROW[target] if target in ONLY_NARROW else None
    for chosen in kernels_of(workload, find_target(TARGETS[target]), precision):
        if isinstance(chosen, str):
            continue
        begun = len(chosen.start.trace.steps)
        again = Schedule(chosen.start.func).replay(Trace(chosen.schedule.trace.steps[begun:]))
        assert repr(again.func) == repr(chosen.schedule.func)


def test_what_is_refused_says_why() -> None:
    refusals = [
        line for target in TARGETS for text in read(target).values() for line in text.splitlines() if "- " in line[:6]
    ]
    assert refusals and all(line.partition(": refused, ")[2] for line in refusals)
