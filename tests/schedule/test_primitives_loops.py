"""Primitives on loops: what each rewrites, and what it refuses. The goldens are the bodies after the primitive."""

from __future__ import annotations

from tests.schedule.programs import SIZE, becomes, chain, copy, cumulate, grid, refused, rows


def test_split():
    """A factor that does not divide the extent brings a test."""
    s = copy()
    after = """
        for io in range(2):
            for ii in range(4):
                block B(i: 6 = io*4 + ii):
                    where io*4 + ii < 6
                    reads A[i]
                    writes B[i]
                    B[i] = A[i] + 1i32
    """
    becomes(s, "split", after, loop="i", factors=[None, 4])


def test_split_that_divides():
    """No test where the factors divide the extent."""
    s = copy()
    after = """
        for io in range(2):
            for ii in range(3):
                block B(i: 6 = io*3 + ii):
                    reads A[i]
                    writes B[i]
                    B[i] = A[i] + 1i32
    """
    becomes(s, "split", after, loop="i", factors=[2, None])


def test_split_in_three():
    s = copy(SIZE)
    after = """
        for i0 in range((n + 3) // 4):
            for i1 in range(2):
                for i2 in range(2):
                    block B(i: n = i0*4 + i1*2 + i2):
                        where i0*4 + i1*2 + i2 < n
                        reads A[i]
                        writes B[i]
                        B[i] = A[i] + 1i32
    """
    becomes(s, "split", after, loop="i", factors=[None, 2, 2])


def test_split_refuses():
    refused(copy(), "split", "there is no loop named x now", loop="x", factors=[None, 4])
    refused(copy(), "split", "a factor must be a whole number of at least 1, not 0", loop="i", factors=[None, 0])
    refused(copy(), "split", "at least 1, not -2", loop="i", factors=[None, -2])
    refused(copy(), "split", "only one factor can be None", loop="i", factors=[None, None])
    refused(copy(), "split", "give", loop="i", factors=[4])
    refused(copy(), "split", "cover 4 of 6 iterations", loop="i", factors=[2, 2])
    refused(copy(SIZE), "split", "cover 4 of n iterations", loop="i", factors=[2, 2])
    refused(copy(), "split", "names must be 2 identifiers", loop="i", factors=[None, 4], names=["a"])
    refused(copy(), "split", "names must be 2 identifiers", loop="i", factors=[None, 4], names=["a b", "c"])
    s = copy()
    s.apply("vectorize", loop="i")
    refused(s, "split", "the loop is already vectorized", loop="i", factors=[None, 2])


def test_fuse():
    s = grid()
    after = """
        for ij in range(24):
            block B(i: 4 = ij//6, j: 6 = ij%6):
                reads A[i, j]
                writes B[i, j]
                B[i, j] = A[i, j] + 1i32
    """
    becomes(s, "fuse", after, loops=["i", "j"])


def test_fuse_refuses():
    refused(grid(), "fuse", "give at least two loops", loops=["i"])
    refused(grid(), "fuse", "i is not directly inside j: reorder the loops first", loops=["j", "i"])
    refused(grid(), "fuse", "x is not directly inside i", loops=["i", "x"])
    s = grid()
    s.apply("parallel", loop="i")
    refused(s, "fuse", "the loop i is already parallel", loops=["i", "j"])
    refused(cumulate(), "fuse", "must keep the order", loops=["t_1", "i_1"])
    refused(grid(), "fuse", "cannot be the name of a loop", loops=["i", "j"], name="1x")


def test_reorder():
    s = grid()
    after = """
        for j in range(6):
            for i in range(4):
                block B(i: 4 = i, j: 6 = j):
                    reads A[i, j]
                    writes B[i, j]
                    B[i, j] = A[i, j] + 1i32
    """
    becomes(s, "reorder", after, loops=["j", "i"])


def test_reorder_refuses():
    refused(grid(), "reorder", "a loop is named twice", loops=["i", "i"])
    refused(chain(), "reorder", "is not in the same loop nest", loops=["i", "j"])
    s = chain()
    s.apply("split", loop="j", factors=[None, 4])
    s.apply("compute_at", block="B", loop="jo")
    refused(s, "reorder", "holds several statements", loops=["ji", "jo"])


def test_parallel():
    s = copy()
    after = """
        for i in range(6) parallel:
            block B(i: 6 = i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "parallel", after, loop="i")


def test_vectorize():
    s = copy()
    after = """
        for i in range(6) vectorized:
            block B(i: 6 = i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "vectorize", after, loop="i")


def test_unroll():
    s = copy()
    after = """
        for i in range(6) unrolled:
            block B(i: 6 = i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "unroll", after, loop="i")


def test_parallel_refuses():
    refused(rows(), "parallel", "the block C reduces along it", loop="k")
    refused(cumulate(), "parallel", "in order", loop="t_1")
    s = copy()
    s.apply("bind", loop="i", thread="threadIdx.x")
    refused(s, "parallel", "the loop is already thread", loop="i")
    s = rows()
    s.apply("fuse", loops=["i", "k"])
    s.apply("decompose_reduction", block="C", loop="ik")
    refused(s, "parallel", "write the same elements of C", loop="ik_init")


def test_vectorize_refuses():
    refused(copy(SIZE), "vectorize", "the extent n is not a constant: split the loop first", loop="i")
    refused(rows(), "vectorize", "reduces along it", loop="k")
    s = copy()
    s.apply("parallel", loop="i")
    refused(s, "vectorize", "the loop is already parallel", loop="i")


def test_unroll_refuses():
    refused(copy(SIZE), "unroll", "the extent n is not a constant", loop="i")
    s = copy()
    s.apply("parallel", loop="i")
    refused(s, "unroll", "the loop is already parallel", loop="i")
    refused(copy(), "unroll", "there is no loop named B", loop="B")


def test_bind():
    s = copy()
    after = """
        for i in range(6) thread threadIdx.x:
            block B(i: 6 = i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "bind", after, loop="i", thread="threadIdx.x")


def test_bind_refuses():
    refused(copy(), "bind", "unknown thread axis", loop="i", thread="threadIdx.w")
    refused(rows(), "bind", "its iterations would race", loop="k", thread="threadIdx.x")
    refused(copy(SIZE), "bind", "virtual threads are a constant number", loop="i", thread="vthread")
    s = grid()
    s.apply("bind", loop="i", thread="threadIdx.x")
    refused(s, "bind", "the two would be one thread", loop="j", thread="threadIdx.x")
    s = grid()
    s.apply("bind", loop="i", thread="blockIdx.x")
    refused(s, "bind", "is already bound to blockIdx.x", loop="j", thread="blockIdx.x")
    s = grid()
    s.apply("bind", loop="i", thread="threadIdx.x")
    refused(s, "bind", "would stand inside i", loop="j", thread="blockIdx.x")


def test_annotate():
    s = copy()
    after = """
        for i in range(6) @{"note": 3}:
            block B(i: 6 = i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "annotate", after, target="i", key="note", value=3)


def test_annotate_a_block():
    s = copy()
    after = """
        for i in range(6):
            block B(i: 6 = i) @{"note": [1, "a"]}:
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "annotate", after, target="B", key="note", value=[1, "a"])


def test_annotate_refuses():
    refused(copy(), "annotate", "there is no loop named x", target="x", key="note", value=3)
    refused(copy(), "annotate", "key must be a name", target="i", key=5, value=3)
    refused(copy(), "annotate", "give the argument value", target="i", key="note")


def test_software_pipeline():
    s = chain()
    s.apply("compute_at", block="B", loop="j")
    after = """
        for j in range(8) @{"software_pipeline_stage": [0, 1], "software_pipeline_order": [0, 1]}:
            for i in range(1):
                block B(i: 8 = j + i):
                    reads A[i]
                    writes B[i]
                    B[i] = A[i] + 1i32
            block C(j: 8 = j):
                reads B[j]
                writes C[j]
                C[j] = B[j] * 2i32
    """
    becomes(s, "software_pipeline", after, loop="j", stages=[0, 1])


def test_software_pipeline_refuses():
    refused(copy(), "software_pipeline", "the body has 1 statements", loop="i", stages=[0, 1])
    refused(copy(), "software_pipeline", "whole numbers from 0", loop="i", stages=[-1])
    refused(copy(), "software_pipeline", "stages must be a list", loop="i", stages=["a"])
    refused(copy(), "software_pipeline", "an order that names each once", loop="i", stages=[0], order=[1])


def test_prefetch():
    s = copy()
    after = """
        for i in range(6) @{"prefetch": [["A", 2]]}:
            block B(i: 6 = i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "prefetch", after, buffer="A", loop="i", distance=2)


def test_prefetch_refuses():
    refused(copy(), "prefetch", "there is no buffer named X", buffer="X", loop="i")
    refused(copy(), "prefetch", "there is no loop named x", buffer="A", loop="x")
    refused(copy(), "prefetch", "at least 1", buffer="A", loop="i", distance=0)


def test_reverse():
    s = copy()
    after = """
        for i in range(6):
            block B(i: 6 = 5 - i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
    """
    becomes(s, "reverse", after, loop="i")
    refused(rows(), "reverse", "sums, or takes steps, in the order of", loop="k")
