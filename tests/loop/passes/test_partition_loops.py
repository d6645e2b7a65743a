"""partition_loops: the exact shapes it makes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loop.passes.strategies import expect, same_meaning
from weft.core.model import PARTITION_GROWTH
from weft.loop.interpreter import interpret
from weft.loop.ir import For, If, Store
from weft.loop.parser import parse_func
from weft.loop.passes.partition_loops import partition_loops
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.passes.support import size_of
from weft.loop.visit import walk_stmts


def both(text: str):
    func = parse_func(text)
    return func, partition_loops(func)


def test_split_tail_becomes_a_shorter_vector():
    func, done = both("""
func f(A: float32[1000], C: float32[1000]):
    for io in range(32):
        for ii in range(32) vectorized:
            if io*32 + ii < 1000:
                C[io*32 + ii] = A[io*32 + ii] + 1.0
""")
    expect(
        done,
        """
func f(A: float32[1000], C: float32[1000]):
    for io in range(31):
        for ii in range(32) vectorized:
            C[io*32 + ii] = A[io*32 + ii] + 1.0
    for ii_1 in range(8) vectorized:
        C[992 + ii_1] = A[992 + ii_1] + 1.0
""",
    )
    same_meaning(func, done)


def test_lanes_that_do_nothing_go_although_others_read_padding():
    func, done = both("""
func f(A: float32[27], C: float32[27]):
    for io in range(2):
        for ii in range(16) vectorized:
            if io*16 + ii < 27:
                C[io*16 + ii] = select(io*16 + ii < 26, A[io*16 + ii], 0.0)
""")
    expect(
        done,
        """
func f(A: float32[27], C: float32[27]):
    for ii in range(16) vectorized:
        C[ii] = A[ii]
    for ii_1 in range(11) vectorized:
        C[16 + ii_1] = select(16 + ii_1 < 26, A[16 + ii_1], 0.0)
""",
    )
    same_meaning(func, done)


def test_two_dimensions_have_no_test_left():
    func, done = both("""
func f(A: float32[10, 11], C: float32[10, 11]):
    for yo in range(3):
        for xo in range(3):
            for yi in range(4):
                for xi in range(4):
                    if yo*4 + yi < 10 and xo*4 + xi < 11:
                        C[yo*4 + yi, xo*4 + xi] = A[yo*4 + yi, xo*4 + xi]
""")
    assert not any(isinstance(s, If) for s in walk_stmts(done.body))
    assert sum(isinstance(s, Store) for s in walk_stmts(done.body)) == 4
    same_meaning(func, done)


SYMBOLIC = """
func f(A: float32[n], C: float32[n]):
    for io in range((n + 31)//32):
        for ii in range(32):
            if io*32 + ii < n:
                C[io*32 + ii] = A[io*32 + ii] + 1.0
"""


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("kind", ["", " vectorized", " parallel"])
def test_symbolic_sizes(size, kind):
    func, done = both(SYMBOLIC.replace("range(32):", f"range(32){kind}:"))
    values = np.arange(size, dtype=np.float32)
    result = np.zeros(size, np.float32)
    interpret(done, values, result)
    np.testing.assert_array_equal(result, values + 1)


def test_symbolic_main_loop_has_no_test():
    _, done = both(SYMBOLIC)
    assert not any(isinstance(s, If) for s in walk_stmts(done.body))
    first = next(s for s in walk_stmts(done.body) if isinstance(s, For))
    assert repr(first.extent) == "n // 32"


def test_padding_leaves_a_main_body_without_tests():
    func, done = both("""
func f(A: float32[14, 14], W: float32[3, 3], C: float32[14, 14]):
    for h in range(14):
        for w in range(14):
            C[h, w] = 0.0
            for kh in range(3):
                for kw in range(3):
                    let y = select(1 <= h+kh and h+kh < 15 and 1 <= w+kw and w+kw < 15, A[h+kh - 1, w+kw - 1], 0.0)
                    C[h, w] = C[h, w] + y*W[kh, kw]
""")
    same_meaning(func, done)
    body = next(s for s in walk_stmts(done.body) if isinstance(s, For) and "h" in s.var.name and repr(s.extent) == "12")
    text = repr(simplify_func(done.replace(body=body)))
    main = next(line for line in text.splitlines() if "= A[" in line)
    assert "select" not in main


def test_a_parallel_loop_stays_one_loop():
    func, done = both("""
func f(A: float32[100], C: float32[100]):
    for io in range(13) parallel:
        for ii in range(8) vectorized:
            if io*8 + ii < 100:
                C[io*8 + ii] = A[io*8 + ii]
""")
    expect(
        done,
        """
func f(A: float32[100], C: float32[100]):
    for io in range(13) parallel:
        if io < 12:
            for ii in range(8) vectorized:
                C[io*8 + ii] = A[io*8 + ii]
        else:
            for ii_1 in range(4) vectorized:
                C[96 + ii_1] = A[96 + ii_1]
""",
    )
    same_meaning(func, done)


def test_the_annotation_keeps_a_loop_whole():
    func, done = both("""
func f(A: float32[10], C: float32[10]):
    for i in range(16) @{"partition": false}:
        if i < 10:
            C[i] = A[i]
""")
    assert done is func or repr(done) == repr(func)


def test_growth_is_bounded():
    loops, indent, tests = [], "    ", []
    for n in range(6):
        loops += [f"{indent * (2 * n + 1)}for o{n} in range(9):", f"{indent * (2 * n + 2)}for i{n} in range(4):"]
        tests.append(f"o{n}*4 + i{n} < 35")
    body = f"{indent * 13}if {' and '.join(tests)}:\n{indent * 14}C[0] = C[0] + 1.0"
    func = parse_func("func f(C: float32[1]):\n" + "\n".join(loops) + "\n" + body + "\n")
    assert size_of(partition_loops(func).body) <= PARTITION_GROWTH * size_of(func.body) * 2


def test_a_loop_with_a_barrier_is_not_cut_by_thread():
    func = parse_func("""
func f(A: float32[100], C: float32[100]):
    for tx in range(32) thread threadIdx.x:
        for k in range(4):
            barrier()
            if k*32 + tx < 100:
                C[k*32 + tx] = A[k*32 + tx]
""")
    done = partition_loops(func)
    same_meaning(func, done)
    assert all(repr(s.extent).isdigit() for s in walk_stmts(done.body) if isinstance(s, For))


def test_statements_with_the_same_test_leave_nothing_behind_its_bound():
    before, after = both("""
func f(A: float32[49], C: float32[49], D: float32[49]):
    for o in range(4) @{"partition": false}:
        for i in range(2):
            if o*2 + i < 7:
                C[o*2 + i] = A[o*2 + i]
            if o*2 + i < 7:
                D[o*2 + i] = A[o*2 + i]
""")
    assert sum(isinstance(s, Store) for s in walk_stmts(after.body)) == 2


def test_what_a_sole_test_skips_along_an_open_size_is_no_iteration():
    _, done = both("""
func f(A: float32[n], C: float32[n]):
    for o in range((n + 1) // 2) @{"partition": false}:
        for i in range(2):
            allocate B: float32[1] local:
                if o*2 + i < n:
                    B[0] = A[o*2 + i]
                if o*2 + i < n:
                    C[o*2 + i] = B[0] * 2.0
""")
    assert not any(isinstance(s, If) for s in walk_stmts(done.body))
    for size in (0, 1, 2, 5):
        values, result = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
        interpret(done, values, result)
        assert (result == 2 * values).all()


def test_a_tail_along_an_open_size_is_a_loop():
    text = """
func f(A: float32[n], C: float32[4]):
    for o in range((n + 3) // 4):
        for i in range(4) unrolled:
            for j in range(4) unrolled:
                if o * 4 + i < n:
                    C[j] = C[j] + A[o * 4 + i]
"""
    _, done = both(text)
    loops = [s for s in walk_stmts(done.body) if isinstance(s, For) and s.var.name.startswith("i")]
    assert [loop.kind for loop in loops] == ["unrolled", "serial"]
    assert not any(isinstance(s, If) for s in walk_stmts(done.body))
    for size in (0, 1, 3, 4, 5, 11):
        values, result = np.arange(size, dtype=np.float32), np.zeros(4, np.float32)
        interpret(done, values, result)
        assert (result == values.sum()).all()


def test_a_tail_of_registers_is_written_out():
    text = """
func f(A: float32[n], C: float32[n]):
    for o in range((n + 3) // 4):
        allocate B: float32[4] local:
            for i in range(4) unrolled:
                if o * 4 + i < n:
                    B[i] = A[o * 4 + i]
            for j in range(4) unrolled:
                if o * 4 + j < n:
                    C[o * 4 + j] = B[j]
"""
    _, done = both(text)
    assert all(s.kind == "unrolled" for s in walk_stmts(done.body) if isinstance(s, For) and s.var.name[0] in "ij")


def test_a_tail_of_tiles_is_written_out():
    text = """
func f(A: float32[33]):
    for p in range(9):
        for o in range(2) @{"partition": false}:
            allocate T: float32[2] amx.tile:
                for i in range(2) unrolled:
                    if p*4 + o*2 + i < 33:
                        amx_zero(address(T[i], "w"))
                for j in range(2) unrolled:
                    if p*4 + o*2 + j < 33:
                        amx_store(address(T[j], "r"), address(A[p*4 + o*2 + j], "w"))
"""
    _, done = both(text)
    assert all(s.kind == "unrolled" for s in walk_stmts(done.body) if isinstance(s, For) and s.var.name[0] in "ij")


def test_rounds_of_a_tail_in_which_nothing_happens_go():
    func, done = both("""
func f(A: float32[33], C: float32[33], D: float32[33]):
    for p in range(9):
        for o in range(2):
            for i in range(2) unrolled:
                if p*4 + o*2 + i < 33:
                    C[p*4 + o*2 + i] = A[p*4 + o*2 + i]
            for j in range(2) unrolled:
                if p*4 + o*2 + j < 33:
                    D[p*4 + o*2 + j] = C[p*4 + o*2 + j]
""")
    expect(
        done,
        """
func f(A: float32[33], C: float32[33], D: float32[33]):
    for p in range(8):
        for o in range(2):
            for i in range(2) unrolled:
                C[p*4 + o*2 + i] = A[p*4 + o*2 + i]
            for j in range(2) unrolled:
                D[p*4 + o*2 + j] = C[p*4 + o*2 + j]
    C[32] = A[32]
    D[32] = C[32]
""",
    )
    same_meaning(func, done)
