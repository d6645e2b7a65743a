"""The snippets of the TVM paper (OSDI 2018), section 4, as printed there; run in the interpreter and against numpy.

Shapes are smaller where the interpreter has to run them.
"""

from types import SimpleNamespace

import numpy as np
import pytest

import weft
import weft.te as t
from weft.core.errors import InterpreterError, WeftError
from weft.expr.nodes import Call
from weft.loop.interpreter import interpret
from weft.loop.ir import Allocate, Evaluate, For, Func, seq
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.passes.insert_barriers import insert_barriers
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.lower_virtual_threads import lower_virtual_threads
from weft.loop.verifier import verify
from weft.loop.visit import Mutator, walk_stmts


def matrices(*shapes):
    random = np.random.default_rng(0)
    return [random.integers(-4, 5, shape).astype("float32") for shape in shapes]


def assert_computes(func, size, transposed=True):
    a, b = matrices((size, size), (size, size))
    c = np.full((size, size), np.nan, "float32")
    verify(func)
    interpret(func, a, b, c)
    np.testing.assert_array_equal(c, (a.T if transposed else a) @ b)


# ------------------------------------------------------------------------------ 4.1 tensor expressions and schedules


def matmul(n=1024):
    A = t.placeholder((n, n))
    B = t.placeholder((n, n))
    k = t.reduce_axis((0, n))
    C = t.compute((n, n), lambda y, x: t.sum(A[k, y] * B[k, x], axis=k))
    return A, B, C, k


def test_matmul_as_printed():
    A = t.placeholder((1024, 1024))
    B = t.placeholder((1024, 1024))
    k = t.reduce_axis((0, 1024))
    C = t.compute((1024, 1024), lambda y, x: t.sum(A[k, y] * B[k, x], axis=k))
    s = t.create_schedule(C.op)
    text = str(s)
    assert "for y in range(1024)" in text and "for x in range(1024)" in text and "for k in range(1024)" in text


def test_transposed_matmul_of_section_4_1():
    """m, n, h = t.var('m'), t.var('n'), t.var('h') with symbolic shapes."""
    m, n, h = t.var("m"), t.var("n"), t.var("h")
    A = t.placeholder((m, h), name="A")
    B = t.placeholder((n, h), name="B")
    k = t.reduce_axis((0, h), name="k")
    C = t.compute((m, n), lambda y, x: t.sum(A[y, k] * B[x, k], axis=k))
    f = weft.build(t.create_schedule(C.op), [A, B, C])
    for shape in [(3, 4, 5), (1, 1, 1), (0, 2, 3)]:
        a, b = matrices((shape[0], shape[2]), (shape[1], shape[2]))
        c = np.empty(shape[:2], "float32")
        f(a, b, c)
        np.testing.assert_array_equal(c, a @ b.T)


def gemm_intrin_lower(inputs, outputs):
    ww_ptr = inputs[0].access_ptr("r")
    xx_ptr = inputs[1].access_ptr("r")
    zz_ptr = outputs[0].access_ptr("w")
    compute = t.hardware_intrin("gemm8x8", ww_ptr, xx_ptr, zz_ptr)
    reset = t.hardware_intrin("fill_zero", zz_ptr)
    update = t.hardware_intrin("fuse_gemm8x8_add", ww_ptr, xx_ptr, zz_ptr)
    return compute, reset, update


def declare_gemm8x8():
    w, x = t.placeholder((8, 8)), t.placeholder((8, 8))
    k = t.reduce_axis((0, 8))
    y = t.compute((8, 8), lambda i, j: t.sum(w[i, k] * x[j, k], axis=k))
    return t.decl_tensor_intrin(y.op, gemm_intrin_lower)


def declare_transposed():
    """The same for operands that lie as figure 5's do: both with the reduction outside."""
    w, x = t.placeholder((8, 8)), t.placeholder((8, 8))
    k = t.reduce_axis((0, 8))
    y = t.compute((8, 8), lambda i, j: t.sum(w[k, i] * x[k, j], axis=k))

    def lower(inputs, outputs):
        ww_ptr, xx_ptr = inputs[0].access_ptr("r"), inputs[1].access_ptr("r")
        zz_ptr = outputs[0].access_ptr("w")
        compute = t.hardware_intrin("gemm8x8_t", ww_ptr, xx_ptr, zz_ptr)
        reset = t.hardware_intrin("fill_zero", zz_ptr)
        update = t.hardware_intrin("fuse_gemm8x8_t_add", ww_ptr, xx_ptr, zz_ptr)
        return compute, reset, update

    return t.decl_tensor_intrin(y.op, lower)


@pytest.fixture
def vdla():
    """The accelerator of the paper, as far as a schedule names it."""
    return SimpleNamespace(acc_buffer="acc_buffer", inp_buffer="inp_buffer", gemm8x8=declare_transposed())


def calls(what):
    """The calls of a program or a statement, in order."""
    body = what.body if isinstance(what, Func) else what
    return [s.value.name for s in walk_stmts(body) if isinstance(s, Evaluate) and isinstance(s.value, Call)]


@pytest.mark.parametrize("n", [16, 1024])
def test_figure_5_step_by_step(vdla, n):
    """Loop tiling; caching in special-purpose memories; mapping onto a tensor intrinsic."""
    A, B, C, k = matmul(n)
    s = t.create_schedule(C.op)
    y, x = s[C].op.axis
    if n == 16:
        assert_computes(s.func, n)

    yo, xo, ko, yi, xi, ki = s[C].tile(y, x, k, 8, 8, 8)
    assert [v.name for v in s[C].loops] == [v.name for v in (yo, xo, ko, yi, xi, ki)]
    if n == 16:
        assert_computes(s.func, n)

    CL = s.cache_write(C, vdla.acc_buffer)
    AL = s.cache_read(A, vdla.inp_buffer)
    BL = s.cache_read(B, vdla.inp_buffer)
    assert {b.scope for b in s.func.allocations} == {"acc_buffer", "inp_buffer"}
    if n == 16:
        assert_computes(s.func, n)

    s[CL].tensorize(yi, xi, ki, vdla.gemm8x8)
    assert calls(s.func).count("fill_zero") == 1 and "fuse_gemm8x8_t_add" in calls(s.func)
    verify(s.func)
    if n == 16:
        assert_computes(s.func, n)
        assert_computes(lower_blocks(decompose_init(s.func)), n)
    assert AL.block and BL.block


def test_figure_5_with_the_caches_attached(vdla):
    """The last step of figure 5: what is cached is one tile, loaded where it is used."""
    n = 16
    A, B, C, k = matmul(n)
    s = t.create_schedule(C.op)
    CL = s.cache_write(C, vdla.acc_buffer)
    y, x = s[C].op.axis
    yo, xo, yi, xi = s[C].tile(y, x, 8, 8)
    s[CL].compute_at(s[C], xo)
    ly, lx = s[CL].op.axis
    (lk,) = s[CL].op.reduce_axis
    ko, ki = s[CL].split(lk, factor=8)
    s[CL].reorder(ko, ly, lx, ki)
    AL, BL = s.cache_read(A, vdla.inp_buffer, [CL]), s.cache_read(B, vdla.inp_buffer, [CL])
    s[AL].compute_at(s[CL], ko)
    s[BL].compute_at(s[CL], ko)
    s[CL].tensorize(ly, vdla.gemm8x8)
    assert_computes(s.func, n)
    lowered = lower_blocks(decompose_init(s.func))
    assert_computes(lowered, n)
    assert "allocate" in repr(lowered) and "[8, 8] inp_buffer" in repr(lowered)


def test_tensor_intrinsic_as_printed():
    """Section 4.3: w, x of 8 × 8, y[i, j] = sum w[i, k] * x[j, k], and its lowering rule."""
    w, x = t.placeholder((8, 8)), t.placeholder((8, 8))
    k = t.reduce_axis((0, 8))
    y = t.compute((8, 8), lambda i, j: t.sum(w[i, k] * x[j, k], axis=k))
    gemm8x8 = t.decl_tensor_intrin(y.op, gemm_intrin_lower)
    assert gemm8x8.name == "gemm8x8"

    n = 24
    A, B = t.placeholder((n, n)), t.placeholder((n, n))
    k = t.reduce_axis((0, n))
    C = t.compute((n, n), lambda i, j: t.sum(A[i, k] * B[j, k], axis=k))
    s = t.create_schedule(C.op)
    i, j = s[C].op.axis
    io, jo, ko, ii, ji, ki = s[C].tile(i, j, k, 8, 8, 8)
    s[C].tensorize(ii, gemm8x8)
    a, b = matrices((n, n), (n, n))
    c = np.full((n, n), np.nan, "float32")
    interpret(s.func, a, b, c)
    np.testing.assert_array_equal(c, a @ b.T)
    assert sorted(set(calls(s.func))) == ["fill_zero", "fuse_gemm8x8_add"]


def test_a_reduction_of_one_tile_uses_the_whole_computation():
    gemm8x8 = declare_gemm8x8()
    A, B = t.placeholder((16, 8)), t.placeholder((16, 8))
    k = t.reduce_axis((0, 8))
    C = t.compute((16, 16), lambda i, j: t.sum(A[i, k] * B[j, k], axis=k))
    s = t.create_schedule(C.op)
    i, j = s[C].op.axis
    io, jo, ii, ji = s[C].tile(i, j, 8, 8)
    s[C].tensorize(ii, gemm8x8)
    assert calls(s.func) == ["gemm8x8"]
    a, b = matrices((16, 8), (16, 8))
    c = np.full((16, 16), np.nan, "float32")
    interpret(s.func, a, b, c)
    np.testing.assert_array_equal(c, a @ b.T)


def test_what_an_intrinsic_does_not_compute_is_refused():
    gemm8x8 = declare_gemm8x8()
    A, B = t.placeholder((16, 16)), t.placeholder((16, 16))
    k = t.reduce_axis((0, 16))
    C = t.compute((16, 16), lambda i, j: t.sum(A[i, k] + B[j, k], axis=k))
    s = t.create_schedule(C.op)
    i, j = s[C].op.axis
    *_, ii, ji, ki = s[C].tile(i, j, k, 8, 8, 8)
    with pytest.raises(WeftError, match="gemm8x8 computes"):
        s[C].tensorize(ii, gemm8x8)
    with pytest.raises(WeftError, match="sizes 8 and gemm8x8 computes 8 × 8"):
        s[C].tensorize(ji, gemm8x8)


# --------------------------------------------------------------- 4.2 nested parallelism with cooperation: shared memory


def gpu_matmul(n=16, block=8, threads=4, step=4, virtual=False):
    """Blocks of 8 × 8 outputs, 4 × 4 threads of 2 × 2 outputs each, operands fetched together into shared memory."""
    A, B, C, k = matmul(n)
    s = t.create_schedule(C.op)
    CL = s.cache_write(C, "local")
    y, x = s[C].op.axis
    by, yi = s[C].split(y, factor=block)
    bx, xi = s[C].split(x, factor=block)
    ty, yi = s[C].split(yi, nparts=threads)
    tx, xi = s[C].split(xi, nparts=threads)
    s[C].reorder(by, bx, ty, tx, yi, xi)
    thread_y, thread_x = t.thread_axis((0, threads), "threadIdx.y"), t.thread_axis((0, threads), "threadIdx.x")
    s[C].bind(by, t.thread_axis("blockIdx.y"))
    s[C].bind(bx, t.thread_axis("blockIdx.x"))
    s[C].bind(ty, thread_y)
    s[C].bind(tx, thread_x)
    s[CL].compute_at(s[C], tx)
    ly, lx = s[CL].op.axis
    (lk,) = s[CL].op.reduce_axis
    ko, ki = s[CL].split(lk, factor=step)
    s[CL].reorder(ko, ki, ly, lx)
    for tensor in (A, B):
        shared = s.cache_read(tensor, "shared", [CL])
        s[shared].compute_at(s[CL], ko)
        row, column = s[shared].op.axis
        fused = s[shared].fuse(row, column)
        fy, rest = s[shared].split(fused, nparts=threads)
        fx, _ = s[shared].split(rest, nparts=threads)
        s[shared].bind(fy, thread_y)
        s[shared].bind(fx, thread_x)
    return s


def test_cooperative_fetching_in_the_scheduled_form():
    s = gpu_matmul()
    assert sorted(b.scope for b in s.func.allocations) == ["local", "shared", "shared"]
    assert_computes(s.func, 16)


class WithoutBarrier(Mutator):
    """Leaves out one of the barriers."""

    def __init__(self, position):
        self.position = position

    def visit_Evaluate(self, s):
        if not (isinstance(s.value, Call) and s.value.name == "barrier"):
            return s
        self.position -= 1
        return seq() if self.position == -1 else s


def test_cooperative_fetching_with_barriers():
    lowered = lower_blocks(decompose_init(gpu_matmul().func))
    with pytest.raises(InterpreterError, match="race|never written"):
        assert_computes(lowered, 16)
    synchronised = insert_barriers(lowered)
    count = calls(synchronised).count("barrier")
    assert count >= 2  # after the fetch, and before the next one overwrites what others still read
    assert_computes(synchronised, 16)
    complaints = []
    for position in range(count):
        with pytest.raises(InterpreterError, match="race|never written") as caught:
            assert_computes(WithoutBarrier(position).func(synchronised), 16)
        complaints.append(str(caught.value))
    assert any("data race" in text for text in complaints), complaints


def test_shared_memory_holds_a_tile_only():
    lowered = lower_blocks(decompose_init(gpu_matmul().func))
    made = [s.buffer for s in walk_stmts(lowered.body) if isinstance(s, Allocate)]
    assert [[size.value for size in b.shape] for b in made if b.scope == "shared"] == [[4, 8], [4, 8]]


def test_threads_run_one_after_the_other_on_a_cpu():
    """Programs whose threads do not wait for each other run on this machine too."""
    A, B, C, k = matmul(16)
    s = t.create_schedule(C.op)
    y, x = s[C].op.axis
    s[C].bind(y, t.thread_axis("blockIdx.x"))
    s[C].bind(x, t.thread_axis("threadIdx.x"))
    assert_computes(s.func, 16)
    f = weft.build(s, [A, B, C])
    a, b = matrices((16, 16), (16, 16))
    c = np.empty((16, 16), "float32")
    f(a, b, c)
    np.testing.assert_array_equal(c, a.T @ b)


# ------------------------------------------------------------------------- 4.4 explicit memory latency hiding: figure 8


def vthread_loops(func):
    return [s for s in walk_stmts(func.body) if isinstance(s, For) and s.thread == "vthread"]


def test_virtual_threads():
    A, B, C, k = matmul(16)
    s = t.create_schedule(C.op)
    y, x = s[C].op.axis
    vy, yi = s[C].split(y, nparts=2)
    tx, xi = s[C].split(x, nparts=4)
    s[C].reorder(vy, tx, yi, xi)
    s[C].bind(vy, t.thread_axis("vthread"))
    s[C].bind(tx, t.thread_axis("threadIdx.x"))
    assert_computes(s.func, 16)
    lowered = lower_blocks(decompose_init(s.func))
    interleaved = lower_virtual_threads(lowered)
    assert vthread_loops(lowered) and not vthread_loops(interleaved)
    assert_computes(interleaved, 16)


def test_latency_hiding_interleaves_virtual_threads(vdla):
    """Figure 8: for each step of the reduction, both virtual threads load, then both compute.

    Each has its own accumulator and input buffers, so that one's load can overlap the other's computation.
    """
    n = 16
    A, B, C, k = matmul(n)
    s = t.create_schedule(C.op)
    CL = s.cache_write(C, vdla.acc_buffer)
    y, x = s[C].op.axis
    yo, xo, yi, xi = s[C].tile(y, x, 8, 8)
    s[C].bind(yo, t.thread_axis("vthread"))
    s[CL].compute_at(s[C], xo)
    ly, lx = s[CL].op.axis
    (lk,) = s[CL].op.reduce_axis
    ko, ki = s[CL].split(lk, factor=8)
    s[CL].reorder(ko, ly, lx, ki)
    for tensor in (A, B):
        s[s.cache_read(tensor, vdla.inp_buffer, [CL])].compute_at(s[CL], ko)
    s[CL].tensorize(ly, vdla.gemm8x8)
    assert_computes(s.func, n)
    interleaved = lower_virtual_threads(lower_blocks(decompose_init(s.func)))
    assert not vthread_loops(interleaved)
    assert_computes(interleaved, n)
    made = [s.buffer for s in walk_stmts(interleaved.body) if isinstance(s, Allocate)]
    shapes = {b.scope: [size.value for size in b.shape] for b in made if len(b.shape) == 3}
    assert shapes == {"acc_buffer": [2, 8, 8], "inp_buffer": [2, 8, 8]}  # one for each virtual thread
    reduction = next(f for f in walk_stmts(interleaved.body) if isinstance(f, For) and f.var.name == ko.name)
    assert calls(reduction) == ["fuse_gemm8x8_t_add"] * 2
    assert repr(reduction).index("fuse_gemm8x8_t_add") > repr(reduction).rindex("for ")  # all loads come first
