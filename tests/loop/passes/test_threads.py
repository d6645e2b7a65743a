"""lower_virtual_threads, insert_barriers and double_buffer: programs of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loop.passes.strategies import expect, run, same_meaning
from weft.core.errors import InterpreterError, TargetError
from weft.expr.nodes import const
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate
from weft.loop.parser import parse_func
from weft.loop.passes.double_buffer import double_buffer
from weft.loop.passes.insert_barriers import insert_barriers
from weft.loop.passes.lower_virtual_threads import lower_virtual_threads
from weft.loop.passes.partition_loops import partition_loops
from weft.loop.passes.support import is_barrier
from weft.loop.verifier import verify
from weft.loop.visit import Mutator, walk_stmts


def barriers(func) -> int:
    return sum(is_barrier(s) for s in walk_stmts(func.body))


# --------------------------------------------------------------------------------------------------- virtual threads


def test_virtual_threads_are_interleaved():
    func = parse_func("""
func f(A: float32[2, 8], B: float32[2]):
    for v in range(2) thread vthread:
        allocate t: float32[1] local:
            t[0] = 0.0
            for k in range(8):
                t[0] = t[0] + A[v, k]
            B[v] = t[0]
""")
    done = lower_virtual_threads(func)
    expect(
        done,
        """
func f(A: float32[2, 8], B: float32[2]):
    allocate t: float32[2, 1] local:
        t[0, 0] = 0.0
        t[1, 0] = 0.0
        for k in range(8):
            t[0, 0] = t[0, 0] + A[0, k]
            t[1, 0] = t[1, 0] + A[1, k]
        B[0] = t[0, 0]
        B[1] = t[1, 0]
""",
    )
    same_meaning(func, done)


def test_what_is_the_same_for_all_is_done_once():
    func = parse_func("""
func f(A: float32[4], B: float32[2, 4]):
    for v in range(2) thread vthread:
        allocate s: float32[4]:
            for k in range(4):
                s[k] = A[k]*2.0
            for m in range(4):
                if v < 1:
                    B[v, m] = s[m]
                else:
                    B[v, m] = s[m] + 1.0
""")
    done = lower_virtual_threads(func)
    assert repr(done).count("s[k] =") == 1 and "s: float32[4]" in repr(done)
    same_meaning(func, done)


def test_two_dimensions_and_many_virtual_threads():
    func = parse_func("""
func f(A: float32[3, 20], B: float32[3, 20]):
    for u in range(3) thread vthread:
        for v in range(20) thread vthread:
            allocate t: float32[1] local:
                t[0] = A[u, v]
                let x = t[0] + 1.0
                for k in range(2):
                    B[u, v] = x*t[0]
""")
    done = lower_virtual_threads(func)
    assert "vthread" not in repr(done)
    verify(done)
    values = np.random.default_rng(0).integers(-3, 4, (3, 20)).astype(np.float32)
    result = np.zeros_like(values)
    interpret(done, values, result)
    np.testing.assert_array_equal(result, (values + 1) * values)


def test_a_symbolic_number_of_virtual_threads():
    func = parse_func("""
func f(B: float32[n]):
    for v in range(n) thread vthread:
        B[v] = 1.0
""")
    with pytest.raises(TargetError, match="constant"):
        lower_virtual_threads(func)


# ---------------------------------------------------------------------------------------------------------- barriers


def test_read_after_write_and_write_after_read():
    func = parse_func("""
func f(A: float32[8, 32], C: float32[32]):
    for b in range(1) thread blockIdx.x:
        allocate s: float32[32] shared:
            for tx in range(32) thread threadIdx.x:
                for k in range(8):
                    s[tx] = A[k, tx]
                    C[tx] = C[tx] + s[31 - tx]
""")
    expect(
        insert_barriers(func),
        """
func f(A: float32[8, 32], C: float32[32]):
    for b in range(1) thread blockIdx.x:
        allocate s: float32[32] shared:
            for tx in range(32) thread threadIdx.x:
                for k in range(8):
                    barrier()
                    s[tx] = A[k, tx]
                    barrier()
                    C[tx] = C[tx] + s[31 - tx]
""",
    )


def test_own_elements_need_none():
    func = parse_func("""
func f(A: float32[8, 32], C: float32[32]):
    for b in range(1) thread blockIdx.x:
        allocate s: float32[64] shared:
            for tx in range(32) thread threadIdx.x:
                for k in range(8):
                    for j in range(2):
                        s[tx*2 + j] = A[k, tx]
                    C[tx] = C[tx] + s[tx*2 + 1]
""")
    assert insert_barriers(func) is func
    same_meaning(func, func)


def test_threads_without_shared_memory_are_left_alone():
    func = parse_func("""
func f(A: float32[n], C: float32[n]):
    for tx in range(n) thread threadIdx.x:
        C[tx] = A[tx]
""")
    assert insert_barriers(func) is func


MATMUL = """
func f(A: float32[16, 16], B: float32[16, 16], C: float32[16, 16]):
    for by in range(4) thread blockIdx.y:
        for bx in range(4) thread blockIdx.x:
            allocate AS: float32[4, 4] shared:
            allocate BS: float32[4, 4] shared:
                for ty in range(4) thread threadIdx.y:
                    for tx in range(4) thread threadIdx.x:
                        allocate acc: float32[1] local:
                            acc[0] = 0.0
                            for ko in range(4):
                                AS[ty, tx] = A[by*4 + ty, ko*4 + tx]
                                BS[ty, tx] = B[ko*4 + ty, bx*4 + tx]
                                for ki in range(4):
                                    acc[0] = acc[0] + AS[ty, ki]*BS[ki, tx]
                            C[by*4 + ty, bx*4 + tx] = acc[0]
"""


def test_matmul_through_shared_memory():
    done = insert_barriers(parse_func(MATMUL))
    assert barriers(done) == 2
    a, b, c = run(done)
    np.testing.assert_array_equal(c, a @ b)
    doubled = double_buffer(done.replace(annotations={"double_buffer": ["AS", "BS"]}))
    assert barriers(doubled) == 1 and "AS: float32[2, 4, 4]" in repr(doubled)
    for program in (doubled, partition_loops(doubled)):
        a, b, c = run(program)
        np.testing.assert_array_equal(c, a @ b)


def test_nests_beside_each_other_become_one_launch():
    func = parse_func("""
func f(A: float32[8, 32], C: float32[8, 16]):
    for b in range(8) thread blockIdx.x:
        allocate s: float32[32] shared:
            for tx in range(32) thread threadIdx.x:
                s[tx] = A[b, tx]
            s[0] = 7.0
            for ty in range(16) thread threadIdx.x:
                C[b, ty] = s[ty] + s[31 - ty]
""")
    done = insert_barriers(func)
    expect(
        done,
        """
func f(A: float32[8, 32], C: float32[8, 16]):
    for b in range(8) thread blockIdx.x:
        allocate s: float32[32] shared:
            for tx_1 in range(32) thread threadIdx.x:
                for tx in range(32) thread threadIdx.x:
                    s[tx] = A[b, tx]
                barrier()
                if tx_1 == 0:
                    s[0] = 7.0
                barrier()
                for ty in range(16) thread threadIdx.x:
                    C[b, ty] = s[ty] + s[31 - ty]
""",
    )
    a, c = run(done)
    a[:, 0] = 7
    np.testing.assert_array_equal(c, a[:, :16] + a[:, :15:-1])


def test_a_branch_of_some_threads_is_cut():
    func = parse_func("""
func f(A: float32[8, 32], C: float32[32]):
    for b in range(1) thread blockIdx.x:
        allocate s: float32[32] shared:
            for tx in range(32) thread threadIdx.x:
                if tx < 16:
                    for k in range(8):
                        s[tx] = A[k, tx]
                        C[tx] = C[tx] + s[15 - tx]
                else:
                    C[tx] = 1.0
""")
    done = insert_barriers(func)
    verify(done)
    before = run(func.replace(body=done.body))[0]
    result = np.zeros(32, np.float32)
    interpret(done, before, result)
    np.testing.assert_array_equal(result[:16], before[:, 15::-1].sum(0))
    np.testing.assert_array_equal(result[16:], 1)


def test_a_loop_that_differs_between_threads_is_an_error():
    func = parse_func("""
func f(A: float32[8, 32], C: float32[32]):
    for b in range(1) thread blockIdx.x:
        allocate s: float32[32] shared:
            for tx in range(32) thread threadIdx.x:
                for k in range(tx):
                    s[tx] = A[0, tx]
                    C[tx] = C[tx] + s[31 - tx]
""")
    with pytest.raises(TargetError, match="not every thread"):
        insert_barriers(func)


@st.composite
def exchanges(draw):
    """Four threads that write and read shared memory, and the same with every statement a loop of its own."""
    count = draw(st.integers(1, 5))
    lines, reference = [], []
    for number in range(count):
        shift = draw(st.integers(0, 3))
        buffer = draw(st.sampled_from("st"))
        if draw(st.booleans()):
            statement = f"{buffer}[({{t}} + {shift}) % 4] = A[k, {{t}}] + {number}.0"
            if draw(st.booleans()):
                statement = f"{buffer}[3 - {{t}}] = A[k, {{t}}] + {number}.0"
        else:
            statement = f"C[{{t}}] = C[{{t}}]*2.0 + {buffer}[{draw(st.sampled_from(['{t}', '3 - {t}', '2', 'k']))}]"
        lines.append(statement.format(t="tx"))
        reference.append(f"for r{number} in range(4):\n{{indent}}    " + statement.format(t=f"r{number}"))
    rounds = draw(st.integers(1, 3))
    fill = ["s[{t}] = 1.0", "t[{t}] = 2.0"]
    head = (
        "func f(A: float32[4, 4], C: float32[4]):\n    allocate s: float32[4] {0}:\n    allocate t: float32[4] {0}:\n"
    )
    threads = head.format("shared") + "        for tx in range(4) thread threadIdx.x:\n"
    threads += "".join(f"            {line.format(t='tx')}\n" for line in fill)
    threads += f"            for k in range({rounds}):\n" + "".join(f"                {line}\n" for line in lines)
    plain = head.format("") + "".join(
        f"        for f{n} in range(4):\n            {line.format(t=f'f{n}')}\n" for n, line in enumerate(fill)
    )
    plain += f"        for k in range({rounds}):\n"
    plain += "".join(f"            {line.format(indent='            ')}\n" for line in reference)
    return parse_func(threads), parse_func(plain.replace(" :", ":"))


@given(exchanges())
def test_barriers_make_random_exchanges_right(pair):
    threads, plain = pair
    done = insert_barriers(threads)
    for old, new in zip(run(plain), run(done)):
        np.testing.assert_array_equal(old, new, err_msg=f"{plain}\n{done}")


SINGLE = """
func f(A: float32[4], B: float32[4, 4], C: float32[4, 4, 8]):
    for b in range(4) thread blockIdx.x:
        allocate s: float32[4] shared:
            for y in range(4) thread threadIdx.y:
                for x in range(8) thread threadIdx.x:
                    C[b, y, x] = 1.0
            for one in range(COUNT) thread threadIdx.x:
                s[one] = A[one]*2.0
                B[b, one] = s[READ] + 1.0
"""


def test_what_one_thread_writes_and_reads_needs_no_barrier():
    func = parse_func(SINGLE.replace("COUNT", "1").replace("READ", "one"))
    done = insert_barriers(func)
    assert barriers(done) == 0
    same_meaning(func, done)


def test_what_another_thread_wrote_needs_one():
    text = SINGLE.replace("COUNT", "4").replace("READ", "3 - other").replace("B[b, one]", "B[b, other]")
    place = text.index("                B[b")
    func = parse_func(f"{text[:place]}            for other in range(4) thread threadIdx.x:\n{text[place:]}")
    done = insert_barriers(func)
    assert barriers(done) == 1
    same_meaning(func, done)


# ----------------------------------------------------------------------------------------------------- double buffer

STREAM = """
func f(A: float32[6, 4], C: float32[4]){annotation}:
    allocate t: float32[4]:
        for k in range({extent}){mark}:
            for i in range(4):
                t[i] = A[k, i]*2.0
            for j in range(4):
                C[j] = C[j] + t[3 - j]{extra}
"""


@pytest.mark.parametrize("extent", [0, 1, 2, 5, 6])
@pytest.mark.parametrize("loop", [False, True])
def test_the_next_tile_is_filled_before_this_one_is_used(extent, loop):
    annotation = "" if loop else ' @{"double_buffer": ["t"]}'
    mark = ' @{"double_buffer": true}' if loop else ""
    func = parse_func(STREAM.format(annotation=annotation, extent=extent, mark=mark, extra=""))
    done = double_buffer(func)
    assert "t: float32[2, 4]" in repr(done)
    same_meaning(func, done)
    same_meaning(func, partition_loops(done))


def test_the_shape_of_a_doubled_loop():
    func = parse_func(STREAM.format(annotation=' @{"double_buffer": ["t"]}', extent=6, mark="", extra=""))
    expect(
        double_buffer(func),
        """
func f(A: float32[6, 4], C: float32[4]) @{"double_buffer": ["t"]}:
    allocate t: float32[2, 4]:
        for i in range(4):
            t[0, i] = A[0, i]*2.0
        for k in range(6):
            if k + 1 < 6:
                for i_1 in range(4):
                    t[(k + 1) % 2, i_1] = A[k + 1, i_1]*2.0
            for j in range(4):
                C[j] = C[j] + t[k % 2, 3 - j]
""",
    )


def test_a_loop_that_feeds_its_own_fill_is_left_alone():
    extra = "\n                A[k, j] = C[j]"
    func = parse_func(STREAM.format(annotation=' @{"double_buffer": ["t"]}', extent=6, mark="", extra=extra))
    assert double_buffer(func) is func


CARRIED = """
func f(A: float32[{steps}, 4, 4], C: float32[4]):
    for i in range(4) thread threadIdx.x:
        allocate s: float32[1] local:
            s[0] = 0.0
            for k in range({steps}) @{{"pipeline_stages": {stages}}}:
                allocate t: float32[4, 4] shared:
                    for one in range(4) thread threadIdx.x:
                        for r in range(4):
                            t[r, one] = A[k, r, one]
                    for r in range({turns}) unrolled @{{"pipeline_stages": 2, "pipeline_carried": true}}:
                        allocate x: float32[1] local:
                            x[0] = t[r, 3 - i]
                            s[0] = s[0] + {used}
            C[i] = s[0]
"""


def carried(steps=5, stages=3, turns=4, used="x[0]*2.0"):
    return insert_barriers(parse_func(CARRIED.format(steps=steps, stages=stages, turns=turns, used=used)))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_registers_are_loaded_ahead_across_steps(steps, stages):
    func = carried(steps, stages)
    done = double_buffer(func)
    assert "x[0, 0] = t[(k + 1)%" in repr(done) and ("if k + 1 <" in repr(done)) == (steps < stages or stages == 2)
    same_meaning(func, done)
    same_meaning(func, partition_loops(done))


@pytest.mark.parametrize("more", [{"turns": 3}, {"used": "x[0]*t[r, i]"}], ids=["odd turns", "parts used besides"])
def test_registers_are_loaded_ahead_within_a_step_elsewhere(more):
    func = carried(**more)
    done = double_buffer(func)
    assert "x: float32[2, 1]" in repr(done) and "x[0, 0] = t[(k + 1)%" not in repr(done)
    same_meaning(func, done)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_barrier_less_around_registers_loaded_ahead_is_found(gone):
    seen = []

    class Without(Mutator):
        def visit_Evaluate(self, s):
            seen.extend([s] * is_barrier(s))
            return Evaluate(const(0)) if is_barrier(s) and len(seen) == gone + 1 else s

    func = Without().func(double_buffer(carried()))
    assert len(seen) == 2
    with pytest.raises(InterpreterError, match="race|same time|never written"):
        interpret(func, np.ones((5, 4, 4), np.float32), np.zeros(4, np.float32))
