"""unswitch: loops whose rounds are of two kinds, and those that must stay as they are."""

from __future__ import annotations

import pytest

from tests.loop.passes.strategies import expect, same_meaning
from weft.loop.parser import parse_func
from weft.loop.passes.unswitch import unswitch

HEAD = 'func f(flags: int32[7], A: float32[56], E: float32[7], C: float32[7]) @{"flat": true}:'
LOOP = """
    for p in range(7) @{"unswitch": "flags"}:
        allocate D: float32[1] local:
            D[0] = 0.0
            for k in range(8):
                D[0] = D[0] + select(0i32 < flags[p], A[p*8 + k], 0.0)
            C[p] = select(0i32 < flags[p], D[0], E[p])
"""


def test_a_loop_for_each_kind():
    func = parse_func(HEAD + LOOP)
    done = unswitch(func)
    same_meaning(func, done)
    expect(
        done,
        HEAD
        + """
    for p in range(7):
        if flags[p] <= 0i32:
            allocate D: float32[1] local:
                D[0] = 0.0
                C[p] = E[p]
    for p_1 in range(7):
        if 0i32 < flags[p_1]:
            allocate D_1: float32[1] local:
                D_1[0] = 0.0
                for k_1 in range(8):
                    D_1[0] = D_1[0] + A[p_1*8 + k_1]
                C[p_1] = D_1[0]
""",
    )


def test_what_all_statements_ask_for_is_asked_first():
    """The flag of a round that does nothing is not read: there may be none."""
    text = (
        HEAD.replace("int32[7]", "int32[5]")
        + """
    for p in range(7) @{"unswitch": "flags"}:
        if p < 5:
            C[p] = select(0i32 < flags[p], A[p], E[p])
        if p < 5 and 1 < p:
            C[p] = select(0i32 < flags[p], A[p] + E[p], E[p])
"""
    )
    func = parse_func(text)
    done = unswitch(func)
    same_meaning(func, done)
    assert repr(done).count("if p < 5 and") == 1 and "if 1 < p" in repr(done)


def test_how_far_the_loops_around_run_is_known():
    """Two rows of tiles at a time, of which the last has one: what stores asks only for whole pairs."""
    text = (
        HEAD
        + """
    for o in range(3):
        for i in range(2) @{"unswitch": "flags"}:
            allocate D: float32[1] local:
                if o*2 + i < 5:
                    D[0] = select(0i32 < flags[o*2 + i], A[o*2 + i], E[o*2 + i])
                if o < 2:
                    C[o*2 + i] = D[0]
"""
    )
    func = parse_func(text)
    done = unswitch(func)
    same_meaning(func, done)
    assert "select" not in repr(done) and repr(done).count("flags[") == 2


@pytest.mark.parametrize(
    "change",
    [
        ("C[p] = select(0i32 < flags[p]", "C[p] = select(1i32 < flags[p]"),  # two tests
        ("select(0i32 < flags[p], A[p*8 + k], 0.0)", "select(0i32 < flags[k % 7], A[p*8 + k], 0.0)"),
        ('{"unswitch": "flags"}', '{"unswitch": "others"}'),
        ("flags[p]", "flags[(p + 1) % 7]"),
    ],
)
def test_other_loops_stay(change):
    func = parse_func(HEAD + LOOP.replace(*change))
    done = unswitch(func)
    same_meaning(func, done)
    assert "unswitch" not in repr(done)
    assert ("if" in repr(done)) == (change[0] == "flags[p]")
