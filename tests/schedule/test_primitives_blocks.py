"""Primitives that move, dissolve and stage blocks: what each rewrites, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.schedule.programs import becomes, chain, copy, cumulate, grid, refused, rows
from weft import te
from weft.loop.parser import parse_func
from weft.schedule.schedule import Schedule


def test_compute_at():
    s = chain()
    s.apply("split", loop="j", factors=[None, 4])
    after = """
        for jo in range(2):
            for i in range(4):
                block B(i: 8 = jo*4 + i):
                    reads A[i]
                    writes B[i]
                    B[i] = A[i] + 1i32
            for ji in range(4):
                block C(j: 8 = jo*4 + ji):
                    reads B[j]
                    writes C[j]
                    C[j] = B[j] * 2i32
    """
    becomes(s, "compute_at", after, block="B", loop="jo")


def test_compute_at_the_edge():
    """Past the end of the consumer nothing is computed."""
    s = chain(6)
    s.apply("split", loop="j", factors=[None, 4])
    after = """
        for jo in range(2):
            for i in range(4):
                block B(i: 6 = jo*4 + i):
                    where jo*4 + i < 6
                    reads A[i]
                    writes B[i]
                    B[i] = A[i] + 1i32
            for ji in range(4):
                block C(j: 6 = jo*4 + ji):
                    where jo*4 + ji < 6
                    reads B[j]
                    writes C[j]
                    C[j] = B[j] * 2i32
    """
    becomes(s, "compute_at", after, block="B", loop="jo")


def test_compute_at_refuses():
    refused(chain(), "compute_at", "there is no block named X", block="X", loop="j")
    refused(chain(), "compute_at", "C is an output, which has to be computed in full", block="C", loop="i")
    refused(chain(), "compute_at", "B is already inside i", block="B", loop="i")
    refused(chain(), "compute_at", "there is no loop named x", block="B", loop="x")
    s = chain()
    s.apply("cache_read", buffer="B", scope="local")
    refused(s, "compute_at", "is not inside j", block="B", loop="j")


@pytest.mark.parametrize(
    ("place", "kind", "is_before"), [("t", "", True), ("t + 2", "", False), ("t", " parallel", False)]
)
def test_compute_at_of_a_step_reads_what_an_earlier_one_wrote(place, kind, is_before):
    text = f"""
func main(C: float32[4]):
    allocate S: float32[9, 4]
    allocate P: float32[6, 4]
    for t in range(6){kind}:
        for i in range(4):
            block P(t: 6 = t, i: 4 = i):
                reads S[{place}, i]
                writes P[t, i]
                P[t, i] = S[{place}, i] * 2.0
        for j in range(4):
            block S(t: 6 = t, j: 4 = j):
                reads P[t, j]
                writes S[t + 1, j]
                S[t + 1, j] = P[t, j] + 1.0
"""
    s = Schedule(parse_func(text))
    if is_before:
        s.apply("compute_at", block="P", loop="j")
    else:
        refused(s, "compute_at", "it reads what S computes, which comes after", block="P", loop="j")


def test_reverse_compute_at():
    s = chain()
    s.apply("split", loop="i", factors=[None, 4])
    after = """
        for io in range(2):
            for ii in range(4):
                block B(i: 8 = io*4 + ii):
                    reads A[i]
                    writes B[i]
                    B[i] = A[i] + 1i32
            for j in range(4):
                block C(j: 8 = io*4 + j):
                    reads B[j]
                    writes C[j]
                    C[j] = B[j] * 2i32
    """
    becomes(s, "reverse_compute_at", after, block="C", loop="io")


def test_reverse_compute_at_refuses():
    refused(chain(), "reverse_compute_at", "nothing that B reads is computed inside j", block="B", loop="j")
    refused(chain(), "reverse_compute_at", "C is already inside j", block="C", loop="j")
    refused(rows(), "reverse_compute_at", "is not a plain computation", block="C", loop="i")
    s = rows()
    s.apply("cache_write", buffer="C", scope="local")
    refused(s, "reverse_compute_at", "still being reduced", block="C", loop="k")
    s = grid()
    s.apply("cache_write", buffer="B", scope="local")
    s.apply("fuse", loops=["i", "j"])
    s.apply("split", loop="ij", factors=[None, 4])
    refused(s, "reverse_compute_at", "computes no box of B_local", block="B", loop="ijo")


def test_reverse_compute_at_loses_no_padding():
    """A consumer with elements of its own beside those of the producer: no turn of its loops computes them."""
    text = """
func main(A: float32[2], C: float32[3]):
    allocate B: float32[2]
    for i in range(2):
        block B(i: 2 = i):
            reads A[i]
            writes B[i]
            B[i] = A[i] + 1.0
    for j in range(3):
        block C(j: 3 = j):
            reads B[j]
            writes C[j]
            C[j] = select(j < 2, B[j], 0.0)
"""
    refused(Schedule(parse_func(text)), "reverse_compute_at", "elements beyond those of B", block="C", loop="i")


def test_compute_inline():
    s = chain()
    after = """
        for j in range(8):
            block C(j: 8 = j):
                reads A[j]
                writes C[j]
                C[j] = (A[j] + 1i32) * 2i32
    """
    becomes(s, "compute_inline", after, block="B")


def test_compute_inline_refuses():
    refused(chain(), "compute_inline", "C is an output", block="C")
    refused(rows(), "compute_inline", "is a reduction or recurrence", block="C")
    refused(chain(), "compute_inline", "there is no block named X", block="X")
    s = chain()
    s.apply("transform_layout", buffer="B", inputs=["i"], outputs=["i // 4", "i % 4"])
    refused(s, "compute_inline", "at the index of its axes", block="B")


def two_outputs() -> Schedule:
    """B = A + 1, an output, and C = 2 * B, which fetches a row of it at a time."""
    a = te.placeholder((3, 4), "int32", name="A")
    b = te.compute((3, 4), lambda i, j: a[i, j] + 1, name="B")
    c = te.compute((3, 4), lambda i, j: b[i, j] * 2, name="C")
    s = te.create_schedule([b.op, c.op])
    s.apply("cache_read", buffer="B", scope="shared")
    return s


def test_compute_inline_of_an_output_stores_it_from_its_copy():
    s = two_outputs()
    s.apply("compute_at", block="B_shared", loop=s["C"].loops[0].name)
    after = """
        for i_1 in range(3):
            for i0 in range(1):
                for i1 in range(4):
                    block B_shared(i0: 3 = i_1 + i0, i1: 4 = i1):
                        reads A[i0, i1]
                        writes B_shared[i0, i1]
                        B_shared[i0, i1] = A[i0, i1] + 1i32
            for i0_1 in range(1):
                for i1_1 in range(4):
                    block B_stored(i0: 3 = i_1 + i0_1, i1: 4 = i1_1):
                        reads B_shared[i0, i1]
                        writes B[i0, i1]
                        B[i0, i1] = B_shared[i0, i1]
            for j_1 in range(4):
                block C(i: 3 = i_1, j: 4 = j_1):
                    reads B_shared[i, j]
                    writes C[i, j]
                    C[i, j] = B_shared[i, j] * 2i32
    """
    becomes(s, "compute_inline", after, block="B")


def test_compute_inline_refuses_an_output_that_would_be_stored_in_part():
    s = two_outputs()
    refused(s, "compute_inline", "B is an output", block="B")  # its copy is not filled in a loop of others
    a = te.placeholder((8,), "int32", name="A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((6,), lambda i: b[i] + b[i + 1], name="C")
    s = te.create_schedule([b.op, c.op])
    s.apply("cache_read", buffer="B", scope="shared")
    s.apply("compute_at", block="B_shared", loop=s["C"].loops[0].name)
    refused(s, "compute_inline", "B is an output", block="B")  # nobody reads its last element


def test_compute_inline_keeps_what_hands_a_thread_s_values_to_others():
    s = chain()
    s.apply("cache_write", buffer="B", scope="local")
    s.apply("set_scope", buffer="B", scope="shared")
    first = s["B"].loops[0]
    s["B_local"].compute_at(s["B"], first)
    s["B"].bind(first, "threadIdx.x")
    refused(s, "compute_inline", "of other threads than its own", block="B")


def test_reverse_compute_inline():
    s = chain()
    after = """
        for i in range(8):
            block C(i: 8 = i):
                reads A[i]
                writes C[i]
                C[i] = (A[i] + 1i32) * 2i32
    """
    becomes(s, "reverse_compute_inline", after, block="C")


def test_reverse_compute_inline_refuses():
    refused(chain(), "reverse_compute_inline", "must read the result of exactly one block", block="B")
    refused(rows(), "reverse_compute_inline", "is a reduction or recurrence", block="C")
    s = rows()
    s.apply("cache_write", buffer="C", scope="local")
    refused(s, "reverse_compute_inline", "C_local is a reduction", block="C")
    s = chain()
    s.apply("cache_read", buffer="B", scope="local")
    s.apply("cache_read", buffer="B", scope="shared")
    refused(s, "reverse_compute_inline", "there is no block named X", block="X")


def test_cache_read():
    s = copy()
    after = """
        for i0 in range(6):
            block A_shared(i0: 6 = i0):
                reads A[i0]
                writes A_shared[i0]
                A_shared[i0] = A[i0]
        for i in range(6):
            block B(i: 6 = i):
                reads A_shared[i]
                writes B[i]
                B[i] = A_shared[i] + 1i32
    """
    becomes(s, "cache_read", after, buffer="A", scope="shared")


def test_cache_read_refuses():
    refused(copy(), "cache_read", "there is no buffer named X", buffer="X", scope="shared")
    refused(copy(), "cache_read", "nothing reads B", buffer="B", scope="shared")
    refused(copy(), "cache_read", "is not the name of a scope", buffer="A", scope="a b")
    refused(chain(), "cache_read", "the block C does not read A", buffer="A", scope="shared", consumers=["C"])
    s = chain()
    s.apply("transform_layout", buffer="B", inputs=["i"], outputs=["i*2"])
    refused(s, "cache_read", "left gaps", buffer="B", scope="local")


def test_cache_write():
    s = copy()
    after = """
        for i in range(6):
            block B_local(i: 6 = i):
                reads A[i]
                writes B_local[i]
                B_local[i] = A[i] + 1i32
        for i0 in range(6):
            block B(i0: 6 = i0):
                reads B_local[i0]
                writes B[i0]
                B[i0] = B_local[i0]
    """
    becomes(s, "cache_write", after, buffer="B", scope="local")


def test_cache_write_outside_the_reduction():
    """The copy comes after the last of the reduction."""
    s = rows()
    s.apply("reorder", loops=["k", "i"])
    s.apply("cache_read", buffer="A", scope="local")
    s.apply("compute_at", block="A_local", loop="k")
    after = """
        for k in range(8):
            for i0 in range(3):
                for i1 in range(1):
                    block A_local(i0: 3 = i0, i1: 8 = k + i1):
                        reads A[i0, i1]
                        writes A_local[i0, i1]
                        A_local[i0, i1] = A[i0, i1]
            for i in range(3):
                block C_local(i: 3 = i, k: reduce 8 = k):
                    reads A_local[i, k]
                    writes C_local[i]
                    init:
                        C_local[i] = 0i32
                    C_local[i] = C_local[i] + A_local[i, k]
        for i0_1 in range(3):
            block C(i0: 3 = i0_1):
                reads C_local[i0]
                writes C[i0]
                C[i0] = C_local[i0]
    """
    becomes(s, "cache_write", after, buffer="C", scope="local")


def test_cache_write_refuses():
    refused(copy(), "cache_write", "nothing writes it", buffer="A", scope="local")
    refused(copy(), "cache_write", "is not the name of a scope", buffer="B", scope="")
    refused(cumulate(), "cache_write", "several blocks write it", buffer="S", scope="local")
    s = rows()
    s.apply("decompose_reduction", block="C", loop="k")
    refused(s, "cache_write", "several blocks write it", buffer="C", scope="local")


def test_a_copy_of_what_data_chooses_is_of_all_of_it() -> None:
    """Where the rows that are read are data, a copy inside the loop takes the whole array."""
    a, index = te.placeholder((5, 4), name="A"), te.placeholder((3,), "int64", name="I")
    c = te.compute((3, 4), lambda i, j: a[index[i], j], name="C")
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    for steps in (
        [
            ("cache_read", {"buffer": "A", "scope": "local", "consumers": ["C"]}),
            ("compute_at", {"block": "A_local", "loop": "i"}),
        ],
        [("cache_operand", {"block": "C", "buffer": "A", "scope": "local", "axes": ["i", "j"]})],
        [("cache_operand", {"block": "C", "buffer": "I", "scope": "local", "axes": ["i"]})],
    ):
        s = te.create_schedule(c.op)
        for name, arguments in steps:
            s.apply(name, **arguments)
        out = np.zeros((3, 4), np.float32)
        weft.build(s, [a, index, c])(table, np.array([4, 0, 2]), out)
        assert out.tolist() == table[[4, 0, 2]].tolist()
