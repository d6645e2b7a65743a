"""hoist: what moves out of loops, and what must not."""

from __future__ import annotations

import numpy as np

from tests.loop.passes.strategies import expect, same_meaning
from weft.loop.interpreter import interpret
from weft.loop.parser import parse_func
from weft.loop.passes.hoist import hoist


def check(text: str, wanted: str | None = None):
    func = parse_func(text)
    done = hoist(func)
    same_meaning(func, done)
    if wanted is None:
        assert done is func, f"nothing should move:\n{done}"
    else:
        expect(done, wanted)


def test_index_terms_share_a_base():
    check(
        """
func f(A: float32[4096], C: float32[4096]) @{"flat": true}:
    for i in range(4):
        for j in range(4):
            for v in range(16):
                C[i*1024 + j*16 + v] = A[i*1024 + j*16 + v + 1]
""",
        """
func f(A: float32[4096], C: float32[4096]) @{"flat": true}:
    for i in range(4):
        for j in range(4):
            let C_base = i*1024 + j*16
            for v in range(16):
                C[C_base + v] = A[C_base + v + 1]
""",
    )


def test_bases_move_out_step_by_step():
    check(
        """
func f(A: float32[4096], C: float32[16]) @{"flat": true}:
    for i in range(2):
        for j in range(2):
            for k in range(2):
                for v in range(16):
                    C[v] = C[v] + A[i*1024 + j*256 + k*16 + v]
""",
        """
func f(A: float32[4096], C: float32[16]) @{"flat": true}:
    for i in range(2):
        for j in range(2):
            let b = i*1024 + j*256
            for k in range(2):
                let c = b + k*16
                for v in range(16):
                    C[v] = C[v] + A[c + v]
""",
    )


def test_loads_and_calls():
    check(
        """
func f(A: float32[8], C: float32[8, 8]):
    for i in range(8):
        for j in range(8):
            C[i, j] = exp(A[i]) + float32(j)
""",
        """
func f(A: float32[8], C: float32[8, 8]):
    for i in range(8):
        let value = exp(A[i])
        for j in range(8):
            C[i, j] = value + float32(j)
""",
    )


def test_a_load_of_what_the_loop_writes_stays():
    check("""
func f(A: float32[8], C: float32[8]):
    for j in range(8):
        C[j] = A[0]
        A[0] = A[0] + 1.0
""")


def test_a_load_that_may_not_happen_stays():
    check(
        """
func f(A: float32[8], C: float32[8]):
    for i in range(20):
        for j in range(8):
            if i < 8:
                C[j] = select(j < 4, A[i], 0.0)
""".replace("            if i < 8:", "            if i + j < 8:")
    )


def test_a_loop_that_may_not_run_keeps_its_loads():
    check("""
func f(A: float32[8], C: float32[8]):
    for i in range(8):
        for j in range(i):
            C[j] = A[i]
""")


def test_a_barrier_keeps_loads_in_place():
    check("""
func f(A: float32[8], C: float32[4]):
    for tx in range(4) thread threadIdx.x:
        for j in range(8):
            barrier()
            C[tx] = C[tx] + A[0]
""")


def test_an_invariant_test_goes_around_the_loop():
    check(
        """
func f(A: float32[8], C: float32[8, 8]):
    for i in range(8):
        for j in range(8):
            if i < 4:
                C[i, j] = 1.0
            else:
                C[i, j] = 2.0
""",
        """
func f(A: float32[8], C: float32[8, 8]):
    for i in range(8):
        if i < 4:
            for j in range(8):
                C[i, j] = 1.0
        else:
            for j_1 in range(8):
                C[i, j_1] = 2.0
""",
    )


def test_a_division_by_an_open_size_moves_out_of_loops_that_may_not_run():
    """What a place in two fused loops is: LLVM's few passes would divide in the innermost loop."""
    func = parse_func("""
func f(A: float32[n, 4], C: float32[n, 4]) @{"flat": true}:
    for i in range(n * 4) parallel:
        for k in range(n):
            for v in range(3):
                C[i % n * 4 + i // n] = C[i % n * 4 + i // n] + A[k * 4 + v]
""")
    expect(
        hoist(func),
        """
func f(A: float32[n, 4], C: float32[n, 4]) @{"flat": true}:
    for i in range(n * 4) parallel:
        let C_base = i % n * 4 + i // n
        for k in range(n):
            for v in range(3):
                C[C_base] = C[C_base] + A[k * 4 + v]
""",
    )
    for n in (1, 3, 7):
        a = np.random.default_rng(n).random((n, 4), np.float32)
        made = [np.zeros((n, 4), np.float32) for _ in range(2)]
        for one, c in zip((func, hoist(func)), made):
            interpret(one, a, c)
        np.testing.assert_array_equal(*made)


def test_a_division_by_another_number_stays_where_it_runs():
    func = parse_func("""
func f(A: float32[n], C: float32[n], d: int64) @{"flat": true}:
    for k in range(n):
        C[k // d] = A[5 // d]
""")
    assert hoist(func) is func


def test_arithmetic_of_open_sizes_moves_out_of_all_loops():
    """A row's length is the same in every round, however it follows from a size: LLVM would find it again in each."""
    func = parse_func(
        """
func f(A: float32[n], C: float32[n]) @{"flat": true}:
    for i in range(n // 4):
        for j in range(4):
            C[i*4 + j] = A[j*max(n//4, 1) + min(i, n//4 - 1)]
"""
    )
    done = hoist(func)
    inside = repr(done)[repr(done).index("n // 4):") + 8 :]
    assert "//" not in inside and "max(" not in inside
    for size in (4, 7, 16):
        given, made = np.arange(size, dtype="f4"), [np.full(size, -1, "f4") for _ in range(2)]
        for one, out in zip((func, done), made):
            interpret(one, given, out, check=False)
        np.testing.assert_array_equal(*made)
