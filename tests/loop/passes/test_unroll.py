"""unroll: copies, limits, and unrolling by a factor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loop.passes.strategies import expect, same_meaning
from tests.work import calls_of
from weft.loop.interpreter import interpret
from weft.loop.ir import For, If, Store
from weft.loop.parser import parse_func
from weft.loop.passes.unroll import unroll
from weft.loop.visit import walk_stmts


def test_copies_with_constants():
    func = parse_func("""
func f(A: float32[8], C: float32[8]):
    for o in range(4):
        for i in range(2) unrolled:
            C[o*2 + i] = A[o*2 + i]
""")
    expect(
        unroll(func),
        """
func f(A: float32[8], C: float32[8]):
    for o in range(4):
        C[o*2] = A[o*2]
        C[o*2 + 1] = A[o*2 + 1]
""",
    )


def test_inner_loops_of_copies_get_names_of_their_own():
    func = parse_func("""
func f(C: float32[4]):
    for i in range(2) unrolled:
        allocate t: float32[2]:
            for k in range(2):
                t[k] = 1.0
            C[i] = t[0]
""")
    same_meaning(func, unroll(func))


def test_left_to_the_code_generator():
    func = parse_func("""
func f(C: float32[4]):
    for i in range(4) unrolled @{"unroll_explicit": false}:
        C[i] = 1.0
""")
    body = unroll(func).body
    assert isinstance(body, For) and body.kind == "serial" and body.annotations["unroll_explicit"] is False


def test_too_many_copies_stay_a_loop():
    func = parse_func("""
func f(C: float32[100, 100]):
    for i in range(100) unrolled:
        for j in range(100) unrolled:
            C[i, j] = 1.0
""")
    body = unroll(func).body
    assert isinstance(body, For) and body.kind == "serial"
    assert sum(isinstance(s, Store) for s in walk_stmts(body)) == 100


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("symbolic", [False, True])
def test_unrolled_by_a_factor(size, symbolic):
    extent = "n" if symbolic else str(size)
    func = parse_func(f"""
func f(A: float32[{extent}], C: float32[{extent}]):
    for i in range({extent}) @{{"pragma_unroll": 4}}:
        let t = A[i]
        C[i] = t + 1.0
""")
    done = unroll(func)
    values, result = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
    interpret(done, values, result)
    np.testing.assert_array_equal(result, values + 1)


def test_a_register_tile_is_little_work():
    func = parse_func("""
func f(A: float32[64, 64], B: float32[64, 64], C: float32[64, 64]):
    for k in range(16):
        for kk in range(4) unrolled:
            for i in range(14) unrolled:
                for j in range(2) unrolled:
                    C[i, j] = C[i, j] + A[k*4 + kk, i]*B[k*4 + kk, j]
""")
    assert calls_of(lambda: unroll(func)) < 15_000
    done = unroll(func)
    assert sum(isinstance(s, Store) for s in walk_stmts(done.body)) == 112


def test_copies_take_the_arm_of_a_select_that_they_choose():
    func = parse_func("""
func f(A: float32[8], C: float32[8], D: float32[8]):
    for o in range(4):
        for i in range(2) unrolled:
            C[o*2 + i] = max(select((o*2 + i)%2 == 0, A[o], A[o + 1]), 0.0)
            D[o*2 + i] = select(o < 2, A[o], A[i])
""")
    made = unroll(func)
    expect(
        made,
        """
func f(A: float32[8], C: float32[8], D: float32[8]):
    for o in range(4):
        C[o*2] = max(A[o], 0.0)
        D[o*2] = select(o < 2, A[o], A[0])
        C[o*2 + 1] = max(A[o + 1], 0.0)
        D[o*2 + 1] = select(o < 2, A[o], A[1])
""",
    )
    same_meaning(func, made)


def test_copies_under_one_test_stand_under_it_together():
    func = parse_func("""
func f(A: float32[8], C: float32[8], n: int64):
    for o in range(2):
        for i in range(2) unrolled:
            for j in range(2) unrolled:
                if o < n:
                    C[o*4 + i*2 + j] = A[o*4 + i*2 + j]
""")
    made = unroll(func)
    tests = [s for s in walk_stmts(made.body) if isinstance(s, If)]
    assert len(tests) == 1 and len(tests[0].then.stmts) == 4


def test_a_test_of_memory_that_the_copies_write_is_made_for_each():
    func = parse_func("""
func f(C: float32[8]):
    for i in range(2) unrolled:
        if C[0] < 1.0:
            C[i] = C[i] + 1.0
""")
    made = unroll(func)
    assert sum(isinstance(s, If) for s in walk_stmts(made.body)) == 2
    same_meaning(func, made)
