"""Random programs under random schedules: every accepted step keeps the meaning, in the interpreter and compiled.

The quick suite draws 150 pairs by Hypothesis; the full suite runs 2,500 more from seeds and asks that every primitive
was accepted often enough for the check to mean something.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import FULL
from tests.fuzz.schedules import check_pair
from tests.schedule.intrinsics import declare_intrinsics
from tests.schedule.random_programs import HypothesisSource, Source
from weft.schedule.registry import PRIMITIVES

PARTS, PAIRS = 5, 500
LEAST = 5
"""How often each part of the full suite must accept each primitive."""


@pytest.fixture(autouse=True, scope="module")
def _intrinsics():
    declare_intrinsics()


# Making a failing pair small takes minutes, so only the full suite does; the message shows the steps and the program.
PHASES = tuple(Phase) if FULL else (Phase.explicit, Phase.generate)


@settings(max_examples=600 if FULL else 40, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_schedule_keeps_the_meaning(data):
    """Hypothesis chooses."""
    check_pair(HypothesisSource(data), 0, Counter())


OF_ATTENTION = {"beneath_peak", "online", "stop_at_mask"}
"""Primitives for a form that no random program has: tests/targets/test_cuda_attention.py is about them."""


def test_seeded_schedules_in_the_interpreter():
    """Many pairs without the compiler, which is where the time goes."""
    counts: Counter[str] = Counter()
    for seed in range(200):
        check_pair(Source(seed), seed, counts, compiled=False)
    never = [name for name in PRIMITIVES if not counts[name] and name not in OF_ATTENTION]
    assert not never, f"never accepted: {never}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_pairs(part):
    """Every primitive is accepted several times in each part."""
    counts: Counter[str] = Counter()
    first = 10_000 + part * PAIRS
    for seed in range(first, first + PAIRS):
        try:
            check_pair(Source(seed), seed, counts)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    few = {name: counts[name] for name in PRIMITIVES if counts[name] < LEAST and name not in OF_ATTENTION}
    assert not few, f"accepted less than {LEAST} times: {few} of {dict(counts)}"
    assert counts["compiled"] > PAIRS * 0.9
