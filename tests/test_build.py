"""weft.build: its options, what it gives for this machine and for others, libraries, and several threads at once."""

import ctypes
import importlib.util
import shutil
import threading

import numpy as np
import pytest

import weft
from tests.work import calls_of
from weft import te
from weft.builder import Built, BuiltFunction
from weft.core.errors import WeftError
from weft.targets.registry import find_target

OTHERS = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "riscv64-unknown-linux-gnu",
    "armv7-unknown-linux-gnueabihf",
    "wasm32-unknown-unknown",
]
ELF_MACHINE = {"aarch64": 183, "riscv64": 243, "armv7": 40, "x86_64": 62}


def matmul(size=64, schedule=True):
    A, B = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    k = te.reduce_axis((0, size), name="k")
    C = te.compute((size, size), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k), name="C")
    s = te.create_schedule(C.op)
    if schedule:
        yo, xo, yi, xi = s[C].tile(*s[C].op.axis, 16, 16)
        ko, ki = s[C].split(k, factor=8)
        s[C].reorder(yo, xo, ko, yi, ki, xi)
        s[C].vectorize(xi)
        s[C].parallel(yo)
    return s, [A, B, C]


def run(f, size=64, **options):
    a, b = np.random.default_rng(0).random((2, size, size), "float32")
    c = np.full((size, size), np.nan, "float32")
    f(a, b, c, **options)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4)


def test_the_program_of_the_readme():
    s, args = matmul()
    f = weft.build(s, args, target="native")
    assert isinstance(f, BuiltFunction)
    run(f)


def test_arguments_in_another_order():
    s, (A, B, C) = matmul(8, schedule=False)
    f = weft.build(s, [C, B, A])
    a, b = np.random.default_rng(0).random((2, 8, 8), "float32")
    c = np.empty((8, 8), "float32")
    f(c, b, a)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-5)
    assert [p.name for p in f.signature.parameters] == ["C", "B", "A"]


def test_without_a_list_the_order_is_inputs_then_outputs():
    s, _ = matmul(8, schedule=False)
    run(weft.build(s), 8)


def test_an_intermediate_as_an_output():
    A = te.placeholder((6,), name="A")
    B = te.compute((6,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((6,), lambda i: B[i] * 2.0, name="C")
    a, b, c = np.arange(6, dtype="float32"), np.empty(6, "float32"), np.empty(6, "float32")
    weft.build(te.create_schedule(C.op), [A, C, B])(a, c, b)
    np.testing.assert_array_equal(b, a + 1)
    np.testing.assert_array_equal(c, (a + 1) * 2)
    weft.build(te.create_schedule(C.op), [A, C])(a, c)


def test_an_intermediate_that_the_schedule_moved_is_no_output():
    A = te.placeholder((6,), name="A")
    B = te.compute((6,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((6,), lambda i: B[i] * 2.0, name="C")
    s = te.create_schedule(C.op)
    s[B].set_scope("local")
    with pytest.raises(WeftError, match="B cannot be an argument: the schedule changed its memory"):
        weft.build(s, [A, B, C])
    s = te.create_schedule(C.op)
    s[B].compute_inline()
    with pytest.raises(WeftError, match="B is among the arguments but the program neither reads nor computes it"):
        weft.build(s, [A, B, C])


def test_a_computed_part_as_an_output():
    """compute_at computes B tile by tile; as an output it is complete all the same."""
    A = te.placeholder((20,), name="A")
    B = te.compute((20,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((20,), lambda i: B[i] * 2.0, name="C")
    s = te.create_schedule(C.op)
    outer, _ = s[C].split(s[C].op.axis[0], factor=8)
    s[B].compute_at(s[C], outer)
    a, b, c = np.arange(20, dtype="float32"), np.empty(20, "float32"), np.empty(20, "float32")
    weft.build(s, [A, B, C])(a, b, c)
    np.testing.assert_array_equal(b, a + 1)
    np.testing.assert_array_equal(c, (a + 1) * 2)


def test_names_and_the_way_to_the_code():
    s, args = matmul()
    f = weft.build(s, args, name="product")
    assert f.built.name == f.signature.name == "product"
    assert "func product(" in repr(f.built.lowered)
    assert "define" in f.built.llvm_ir and "product" in f.built.llvm_ir
    assert "product" in f.built.assembly()
    assert f.built.object_code()[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe")
    assert repr(f.built) == "Built(product(A, B, C) for native)"
    assert "CompiledFunction(product(A, B, C))" in repr(f)


def test_lower_shows_what_the_code_generator_gets():
    s, args = matmul()
    lowered = weft.lower(s, args)
    assert lowered.annotations["flat"] and "block" not in repr(lowered)
    assert repr(lowered) == repr(weft.build(s, args).built.lowered)


def test_a_loop_program_builds_too():
    s, _ = matmul(8, schedule=False)
    run(weft.build(s.func), 8)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_counts(threads):
    s, args = matmul()
    run(weft.build(s, args, threads=threads))
    run(weft.build(s, args), threads=threads)


@pytest.mark.parametrize("target", [target for target in OTHERS if not find_target(target).is_host])
def test_object_code_for_other_machines(target):
    s, args = matmul(16)
    built = weft.build(s, args, target=target, name="product")
    assert isinstance(built, Built)
    code = built.object_code()
    machine = target.split("-")[0]
    if machine == "wasm32":
        assert code[:4] == b"\0asm"
    else:
        assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == ELF_MACHINE[machine]
    assert b"product" in code
    assert "product" in built.assembly()
    with pytest.raises(WeftError, match="does not run here"):
        built.load()


def test_a_saved_object(tmp_path):
    s, args = matmul(16)
    built = weft.build(s, args, target="riscv64-unknown-linux-gnu")
    built.save_object(tmp_path / "product.o")
    assert (tmp_path / "product.o").read_bytes() == built.object_code()


HAS_LINKER = importlib.util.find_spec("ziglang") is not None or any(shutil.which(c) for c in ("cc", "gcc", "clang"))


@pytest.mark.skipif(not HAS_LINKER, reason="there is no linker: neither ziglang nor a C compiler")
def test_a_shared_library_runs_without_weft(tmp_path):
    s, args = matmul(64)
    path = tmp_path / "libproduct.so"
    built = weft.build(s, args, name="product").built
    built.save_library(path)
    library = ctypes.CDLL(str(path))
    function = library.product
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int32
    a, b = np.random.default_rng(0).random((2, 64, 64), "float32")
    for threads in (1, 2):
        c = np.full((64, 64), np.nan, "float32")
        slots = np.array([x.ctypes.data for x in (a, b, c)], "int64")
        assert function(slots.ctypes.data, threads) == 0
        np.testing.assert_allclose(c, a.T @ b, rtol=1e-4)


def test_several_modules_from_several_threads():
    """Building and running at once: every thread has its own program, and one that all share."""
    shared_schedule, args = matmul()
    shared = weft.build(shared_schedule, args)
    failures = []

    def work(size):
        try:
            s, own = matmul(size)
            f = weft.build(s, own, threads=2)
            for _ in range(5):
                run(f, size)
                run(shared, threads=2)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(size,)) for size in (16, 48, 80, 33)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


def test_a_kernel_is_little_work_beside_llvm():
    def whole():
        s, args = matmul(1024)
        weft.build(s, args)

    whole()
    assert calls_of(whole) < 20_000


def fused_convolution():
    """Padding, convolution, bias and relu: scheduled in twelve steps."""
    X, W = te.placeholder((1, 16, 30, 30), name="X"), te.placeholder((32, 16, 3, 3), name="W")
    bias = te.placeholder((32,), name="bias")
    P = te.compute(
        (1, 16, 32, 32),
        lambda n, c, y, x: te.if_then_else(te.all(y >= 1, y < 31, x >= 1, x < 31), X[n, c, y - 1, x - 1], 0.0),
        name="P",
    )
    c, dy, dx = te.reduce_axis(16, "c"), te.reduce_axis(3, "dy"), te.reduce_axis(3, "dx")
    Y = te.compute(
        (1, 32, 30, 30),
        lambda n, o, y, x: te.sum(P[n, c, y + dy, x + dx] * W[o, c, dy, dx], axis=[c, dy, dx]),
        name="Y",
    )
    Z = te.compute((1, 32, 30, 30), lambda n, o, y, x: te.relu(Y[n, o, y, x] + bias[o]), name="Z")
    s = te.create_schedule(Z.op)
    n, o, y, x = s[Z].op.axis
    oo, oi = s[Z].split(o, factor=8)  # 1
    xo, xi = s[Z].split(x, factor=10)  # 2
    s[Z].reorder(n, oo, y, xo, oi, xi)  # 3
    s[Y].compute_at(s[Z], xo)  # 4
    _, yo, yy, yx = s[Y].op.axis
    rc, ry, rx = s[Y].op.reduce_axis
    s[Y].reorder(rc, ry, rx, yo, yx)  # 5
    s[Y].set_scope("local")  # 6
    s[Y].unroll(rx)  # 7
    s[Y].vectorize(yx)  # 8
    s[Z].vectorize(xi)  # 9
    s[Z].parallel(oo)  # 10
    s[P].vectorize(s[P].op.axis[3])  # 11
    s[P].parallel(s[P].op.axis[1])  # 12
    return s, [X, W, bias, Z]


def test_a_fused_convolution_is_right_and_little_work_to_lower():
    s, args = fused_convolution()
    f = weft.build(s, args)
    random = np.random.default_rng(0)
    x, w = random.random((1, 16, 30, 30), "float32"), random.random((32, 16, 3, 3), "float32")
    bias = -random.random(32).astype("float32") * 60
    z = np.empty((1, 32, 30, 30), "float32")
    f(x, w, bias, z)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    want = np.maximum(np.einsum("ncyxij,ocij->noyx", windows, w) + bias[:, None, None], 0)
    np.testing.assert_allclose(z, want, rtol=1e-4, atol=1e-3)
    assert len(s.trace) == 12
    assert calls_of(lambda: weft.lower(*fused_convolution())) < 75_000
