"""Primitives on reductions, tiles and storage: what each rewrites, and what it refuses."""

# ruff: noqa: E501  (programs as they are printed)
from __future__ import annotations

from tests.schedule.intrinsics import declare_intrinsics
from tests.schedule.programs import SIZE, becomes, chain, copy, grid, matmul, refused, rows
from weft import te
from weft.expr.nodes import index_expr, int_value
from weft.expr.simplify import simplify
from weft.expr.visit import substitute

declare_intrinsics()


def test_decompose_reduction():
    s = rows()
    after = """
        for i in range(3):
            block C_init(i: 3 = i):
                writes C[i]
                C[i] = 0i32
            for k in range(8):
                block C(i: 3 = i, k: reduce 8 = k):
                    reads A[i, k]
                    writes C[i]
                    C[i] = C[i] + A[i, k]
    """
    becomes(s, "decompose_reduction", after, block="C", loop="k")


def test_decompose_reduction_refuses():
    refused(copy(), "decompose_reduction", "B has no init", block="B", loop="i")
    refused(rows(), "decompose_reduction", "x is not a loop around C", block="C", loop="x")
    s = rows()
    s.apply("split", loop="k", factors=[None, 4])
    refused(s, "decompose_reduction", "already reduces C", block="C", loop="ki")


def test_rfactor():
    s = rows()
    s.apply("split", loop="k", factors=[None, 4])
    after = """
        for i in range(3):
            for ko in range(2):
                for ki in range(4):
                    block C_rf(i: 3 = i, ki: 4 = ki, ko: reduce 2 = ko):
                        reads A[i, ko*4 + ki]
                        writes C_rf[ki, i]
                        init:
                            C_rf[ki, i] = 0i32
                        C_rf[ki, i] = C_rf[ki, i] + A[i, ko*4 + ki]
            for ki_final in range(4):
                block C(i: 3 = i, ki: reduce 4 = ki_final):
                    reads C_rf[ki, i]
                    writes C[i]
                    init:
                        C[i] = 0i32
                    C[i] = C[i] + C_rf[ki, i]
    """
    becomes(s, "rfactor", after, block="C", loop="ki")


def test_rfactor_refuses():
    refused(rows(), "rfactor", "i is not a reduction loop of C", block="C", loop="i")
    refused(rows(), "rfactor", "is not a dimension", block="C", loop="k", factor_axis=4)
    refused(copy(), "rfactor", "is not a reduction with its init", block="B", loop="i")
    s = rows()
    s.apply("fuse", loops=["i", "k"])
    refused(s, "rfactor", "was fused with a loop of its axis i", block="C", loop="ik")
    s = rows()
    s.apply("unroll", loop="k")
    refused(s, "rfactor", "the loop is already unrolled", block="C", loop="k")


def test_tensorize():
    s = matmul()
    s.apply("split", loop="i", factors=[None, 2])
    s.apply("split", loop="j", factors=[None, 2])
    s.apply("split", loop="k", factors=[None, 2])
    s.apply("reorder", loops=["io", "jo", "ko", "ii", "ji", "ki"])
    after = """
        for io in range(2):
            for jo in range(2):
                for ko in range(2):
                    block C(i: 2 = io, j: 2 = jo, k: reduce 2 = ko):
                        reads A[i*2 +: 2, k*2 +: 2], B[k*2 +: 2, j*2 +: 2]
                        writes C[i*2 +: 2, j*2 +: 2]
                        init:
                            for u0_1 in range(2):
                                for u1_1 in range(2):
                                    C[i*2 + u0_1, j*2 + u1_1] = 0i32
                        for u0 in range(2):
                            for u1 in range(2):
                                for u2 in range(2):
                                    C[i*2 + u0, j*2 + u1] = C[i*2 + u0, j*2 + u1] + A[i*2 + u0, k*2 + u2]*B[k*2 + u2, j*2 + u1]
    """
    becomes(s, "tensorize", after, loop="ii", intrin="test_matmul_int32_2x2x2")


def test_tensorize_refuses():
    refused(matmul(), "tensorize", "no tensor intrinsic of that name", loop="i", intrin="nothing")
    refused(matmul(), "tensorize", "the tile has spatial sizes 4 × 4", loop="i", intrin="test_matmul_int32_2x2x2")
    s = matmul(5)
    s.apply("split", loop="i", factors=[None, 2])
    refused(s, "tensorize", "has a test", loop="ii", intrin="test_matmul_int32_2x2x2")
    refused(copy(4), "tensorize", "computes", loop="i", intrin="test_increment_float32_4")
    s = chain()
    s.apply("compute_at", block="B", loop="j")
    refused(s, "tensorize", "more than one block", loop="j", intrin="test_increment_int32_4")


def test_transform_layout():
    s = chain()
    after = """
        for i in range(8):
            block B(i: 8 = i):
                reads A[i]
                writes B[i//4, i%4]
                B[i//4, i%4] = A[i] + 1i32
        for j in range(8):
            block C(j: 8 = j):
                reads B[j//4, j%4]
                writes C[j]
                C[j] = B[j//4, j%4] * 2i32
    """
    becomes(s, "transform_layout", after, buffer="B", inputs=["i"], outputs=["i // 4", "i % 4"])


def test_transform_layout_refuses():
    refused(chain(), "transform_layout", "it is a parameter", buffer="A", inputs=["i"], outputs=["i"])
    refused(chain(), "transform_layout", "two elements to the same place", buffer="B", inputs=["i"], outputs=["i // 2"])
    refused(chain(), "transform_layout", "the map takes 2 indices", buffer="B", inputs=["i", "j"], outputs=["i"])
    refused(chain(), "transform_layout", "may be negative", buffer="B", inputs=["i"], outputs=["i - 1"])
    refused(chain(), "transform_layout", "the map cannot be read", buffer="B", inputs=["i"], outputs=["i +"])
    refused(chain(), "transform_layout", "the map cannot be read", buffer="B", inputs=["i"], outputs=["x"])
    refused(chain(SIZE), "transform_layout", ".", buffer="B", inputs=["i"], outputs=["i*i"])


def test_set_scope():
    s = chain()
    after = """
        for i in range(8):
            block B(i: 8 = i):
                reads A[i]
                writes B[i]
                B[i] = A[i] + 1i32
        for j in range(8):
            block C(j: 8 = j):
                reads B[j]
                writes C[j]
                C[j] = B[j] * 2i32
    """
    becomes(s, "set_scope", after, buffer="B", scope="shared")


def test_set_scope_refuses():
    refused(chain(), "set_scope", "it is a parameter", buffer="C", scope="local")
    refused(chain(), "set_scope", "there is no buffer named X", buffer="X", scope="local")
    refused(chain(), "set_scope", "not the name of a scope", buffer="B", scope="a b")


def test_storage_align_refuses():
    refused(chain(), "storage_align", "has no stride to pad", buffer="B", dim=0, factor=8)
    refused(chain(), "storage_align", "it is a parameter", buffer="C", dim=0, factor=8)
    s = grid()
    s.apply("cache_write", buffer="B", scope="local")
    refused(s, "storage_align", "needs 1 <= factor", buffer="B_local", dim=0, factor=0)
    s = grid()
    s.apply("cache_write", buffer="B", scope="local")
    refused(s, "storage_align", "0 <= offset < factor", buffer="B_local", dim=0, factor=8, offset=8)
    s = grid()
    s.apply("cache_write", buffer="B", scope="local")
    refused(s, "storage_align", "dim must be a whole number", buffer="B_local", dim=0.5, factor=8)


def test_double_buffer_refuses():
    refused(chain(), "double_buffer", "it is a parameter", buffer="C")
    refused(chain(), "double_buffer", "there is no buffer named X", buffer="X")
    refused(chain(), "double_buffer", "buffer must be a name", buffer=["B"])


def test_pad():
    s = chain()
    after = """
        for i in range(9):
            block B(i: 9 = i):
                reads A[i]
                writes B[i]
                B[i] = select(i < 8, A[i], 0i32) + 1i32
        for j in range(8):
            block C(j: 8 = j):
                reads B[j]
                writes C[j]
                C[j] = B[j] * 2i32
    """
    becomes(s, "pad", after, block="B", loop="i", factor=3)


def test_pad_along_an_open_size():
    s = chain(SIZE)
    s.apply("pad", block="B", loop="i", factor=4)
    assert "select(i < n, A[i], 0i32) + 1i32" in repr(s.func)
    assert "allocate B: int32[(n + 3)//4*4]" in repr(s.func)


def test_overrun_of_lanes_that_read_only_what_is_there():
    s = chain(SIZE)
    s.apply("pad", block="B", loop="i", factor=4)
    outer, _ = s.apply("split", loop="i", factors=[None, 4])
    s.apply("split", loop=outer, factors=[None, 2])
    assert "where ioo*2 + ioi < (n + 3)//4" in repr(s.func)
    s.apply("overrun", block="B", axis=0)
    text = repr(s.func)
    assert "allocate B: int32[(n + 7)//8*8]" in text and "select(i < n, A[i], 0i32)" in text and "min(" not in text


def test_overrun():
    s = chain()
    s.apply("split", loop="i", factors=[None, 3])
    after = """
        for io in range(3):
            for ii in range(3):
                block B(i: 9 = io*3 + ii):
                    reads A[min(i, 7)]
                    writes B[i]
                    B[i] = A[min(i, 7)] + 1i32
        for j in range(8):
            block C(j: 8 = j):
                reads B[j]
                writes C[j]
                C[j] = B[j] * 2i32
    """
    becomes(s, "overrun", after, block="B", axis=0)


def test_overrun_to_the_end_of_a_tile():
    s = chain(SIZE)
    s.apply("split", loop="i", factors=[None, 12])
    s.apply("overrun", block="B", axis=0, tile=4)
    text = repr(s.func)
    assert "block B(i: (n + 3)//4*4 = io*12 + ii)" in text and "where io*12 + ii < (n + 3)//4*4" in text, text
    assert "A[min(i, n - 1)]" in text and "allocate B: int32[(n + 3)//4*4]" in text
    s = chain()
    s.apply("split", loop="i", factors=[None, 3])
    refused(s, "overrun", "are whole", block="B", axis=0, tile=4)


def test_overrun_leaves_room_for_what_is_written():
    """Tiles of three pairs read less of T than T has where they come out even, and more elsewhere."""
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    t = te.compute((n + 2,), lambda i: x[te.minimum(te.maximum(i - 1, 0), n - 1)], name="T")
    d = te.compute(((n + 1) // 2,), lambda i: t[2 * i] + t[2 * i + 1], name="D")
    s = te.create_schedule(te.compute(((n + 1) // 2,), lambda i: d[i] * 2.0, name="E").op)
    s["D"].split(s["D"].loops[0], factor=3)
    s.apply("overrun", block="D", axis=0)
    (made,) = [buffer for buffer in s.func.allocations if buffer.name == "T"]
    for size in range(1, 30):
        room = int_value(simplify(substitute(made.shape[0], dict.fromkeys(s.func.size_vars, index_expr(size)))))
        assert room >= max(size + 2, 6 * -(-((size + 1) // 2) // 3)), size


def test_overrun_refuses():
    refused(chain(), "overrun", "no test at the end", block="B", axis=0)
    refused(chain(), "overrun", "no such axis", block="B", axis=1)
    s = chain()
    s.apply("split", loop="i", factors=[None, 3])
    s.apply("vectorize", loop="ii")
    refused(s, "overrun", "are lanes", block="B", axis=0)
    s = chain()
    s.apply("split", loop="j", factors=[None, 3])
    refused(s, "overrun", "is a parameter", block="C", axis=0)
    s = three(lambda b, i: b[b[i] % 8])
    s.apply("split", loop="j", factors=[None, 3])
    refused(s, "overrun", "nobody has written", block="C", axis=0)


def three(body):
    """D = C + 1, where C is made of B."""
    a = te.placeholder((8,), "int32", name="A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((8,), lambda j: body(b, j), name="C")
    return te.create_schedule(te.compute((8,), lambda k: c[k] + 1, name="D").op)


def test_overrun_of_lanes_reads_on_in_another_intermediate():
    s = three(lambda b, i: b[i] * 2)
    s.apply("split", loop="j", factors=[None, 3])
    s.apply("vectorize", loop="ji")
    s.apply("overrun", block="C", axis=0)
    sizes = {buffer.name: buffer.shape[0] for buffer in s.func.allocations}
    assert repr(sizes["B"]) == repr(sizes["C"]) == "9"
    assert "B[min" not in repr(s.func)


def test_pad_a_sum():
    s = rows()
    after = """
        for i in range(3):
            for k in range(9):
                block C(i: 3 = i, k: reduce 9 = k):
                    reads A[i, k]
                    writes C[i]
                    init:
                        C[i] = 0i32
                    C[i] = C[i] + select(k < 8, A[i, k], 0i32)
    """
    becomes(s, "pad", after, block="C", loop="k", factor=3)


def test_padded_operands_need_no_test_in_the_sum():
    s = matmul(5)
    for stage in (s.cache_read("A", "global", ["C"]), s.cache_read("B", "global", ["C"])):
        for loop in stage.axis:
            stage.pad(loop, 4)
    s["C"].pad("k", 4)
    assert "C[i, j] + A_global[i, k]*B_global[k, j]" in repr(s.func)


def test_pad_refuses():
    refused(chain(), "pad", "is a parameter", block="C", loop="j", factor=3)
    refused(chain(), "pad", "is not the loop of an axis", block="B", loop="j", factor=3)
    refused(chain(), "pad", "at least 1", block="B", loop="i", factor=0)
    s = chain()
    s.apply("split", loop="i", factors=[None, 3])
    refused(s, "pad", "is not the loop of an axis", block="B", loop="ii", factor=2)
    s = chain()
    s.apply("compute_at", block="B", loop="j")
    refused(s, "pad", "has other blocks in it", block="C", loop="j", factor=3)
