"""The OpenCL target: its text, building and calling functions, workspaces, host loops, errors that say what to do."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from tests.test_paper import gpu_matmul
from weft import te
from weft.codegen.c.program import DeviceProgram
from weft.core.dtypes import dtype
from weft.core.errors import ArgumentError, TargetError
from weft.expr.nodes import Buffer, Load, Var, const
from weft.loop.ir import Allocate, For, Func, Store, seq
from weft.targets.opencl.machine import NAMED
from weft.targets.registry import find_target, known_forms


def bound(tensor, factor=32):
    """A schedule of one elementwise stage over blocks and threads."""
    s = te.create_schedule(tensor.op)
    block, thread = s[tensor].split(s[tensor].op.axis[0], factor)
    s[tensor].bind(block, te.thread_axis("blockIdx.x"))
    s[tensor].bind(thread, te.thread_axis("threadIdx.x"))
    return s


def test_facts_come_from_the_device():
    target = opencl()
    assert target.kind == "opencl" and target.is_host and target.threads is not None
    assert target.threads.block_threads >= 1 and target.threads.shared_bytes >= 16 << 10 and target.cores >= 1
    assert find_target("opencl:0").cpu == target.cpu
    assert any(form.startswith("opencl") for form in known_forms())


def test_a_wrong_text_says_what_is_right():
    opencl()
    with pytest.raises(TargetError, match="is not a device's number(.|\n)*opencl:0"):
        find_target("opencl:first")
    with pytest.raises(TargetError, match="this machine has . OpenCL device"):
        find_target("opencl:99")


def test_matmul_with_cooperative_fetching():
    function = weft.build(gpu_matmul(n=64, block=32, threads=8, step=8), target=opencl())
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 64)).astype("f"), rng.standard_normal((64, 64)).astype("f")
    c = np.zeros((64, 64), "f")
    function(a, b, c)
    np.testing.assert_allclose(c, a.T @ b, rtol=1e-4, atol=1e-4)
    assert function.built.program.kernels[0].block == (8, 8, 1) and "barrier" in function.built.source


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
def test_symbolic_sizes_and_scalars(size):
    n, factor = te.var("n"), te.var("factor", "float32")
    a = te.placeholder((n,), "float32", name="A")
    c = te.compute((n,), lambda i: a[i] * factor + i.astype("float32"), name="C")
    function = weft.build(bound(c), [a, factor, c], opencl())
    x, out = np.arange(size, dtype="f"), np.zeros(size, "f")
    function(x, 2.5, out)
    np.testing.assert_allclose(out, x * 2.5 + np.arange(size))


def test_nothing_to_do():
    n = te.var("n")
    a = te.placeholder((n,), "float32", name="A")
    c = te.compute((n,), lambda i: a[i] + 1.0, name="C")
    weft.build(bound(c), [a, c], opencl())(np.zeros(0, "f"), np.zeros(0, "f"))


def test_intermediates_are_workspaces():
    n = te.var("n")
    a = te.placeholder((n,), "float32", name="A")
    b = te.compute((n,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((n,), lambda i: b[n - 1 - i] + 1.0, name="C")
    s = te.create_schedule(c.op)
    for stage in (b, c):
        block, thread = s[stage].split(s[stage].op.axis[0], 16)
        s[stage].bind(block, te.thread_axis("blockIdx.x"))
        s[stage].bind(thread, te.thread_axis("threadIdx.x"))
    function = weft.build(s, [a, c], opencl())
    program = function.built.program
    assert [w.name for w in program.workspaces] == ["B"] and len(program.kernels) == 2 and not program.is_static
    assert program.with_sizes({"n": 40}).kernels[0].grid == (3, 1, 1)
    for size in (40, 7, 100):
        x, out = np.arange(size, dtype="f"), np.zeros(size, "f")
        function(x, out)
        np.testing.assert_array_equal(out, x[::-1] * 2 + 1)


def test_serial_loops_around_kernels_run_on_the_host():
    """A recurrence: each step needs all of the step before."""
    state = te.placeholder((5, 8), "float32", name="state")
    k = Var("k")
    i, t = Var("i"), Var("t")
    out = Buffer("out", dtype("float32"), (5, 8))
    first = For(i, 8, Store(out, (const(0), i), Load(state, (const(0), i))), "thread", "threadIdx.x")
    step = Store(out, (t + 1, k), Load(out, (t, 7 - k)) + Load(state, (t + 1, k)))
    func = Func("steps", [state, out], seq(first, For(t, 4, For(k, 8, step, "thread", "threadIdx.x"))))
    function = weft.build(func, target=opencl())
    kernels = function.built.program.kernels
    assert [dict(kernel.constants) for kernel in kernels] == [{}, *({"t": step} for step in range(4))]
    x, got = np.random.default_rng(1).standard_normal((5, 8)).astype("f"), np.zeros((5, 8), "f")
    function(x, got)
    want = [x[0]]
    for row in x[1:]:
        want.append(want[-1][::-1] + row)
    np.testing.assert_allclose(got, np.array(want), rtol=1e-6)


@pytest.mark.parametrize("scope", ["shared", "local"])
def test_memory_that_is_too_large_becomes_a_workspace(scope):
    """A block's (or thread's) buffer beyond what the device has lives in global memory, a part for each."""
    count = 1 << 20 if scope == "shared" else 1 << 13
    a, out = Buffer("a", dtype("float32"), (4, 2)), Buffer("out", dtype("float32"), (4, 2))
    held = Buffer("held", dtype("float32"), (count,), scope=scope)
    b, t = Var("b"), Var("t")
    place = t * 8 if scope == "shared" else const(count - 1)
    fill = Store(held, (place,), Load(a, (b, t)) * 3.0)
    body = seq(fill, Store(out, (b, t), Load(held, (place,)) + 1.0))
    inner = For(t, 2, Allocate(held, body) if scope == "local" else body, "thread", "threadIdx.x")
    func = Func(
        "large", [a, out], For(b, 4, Allocate(held, inner) if scope == "shared" else inner, "thread", "blockIdx.x")
    )
    function = weft.build(func, target=opencl())
    (workspace,) = function.built.program.workspaces
    assert workspace.elements == count * (4 if scope == "shared" else 8)
    x, got = np.arange(8, dtype="f").reshape(4, 2), np.zeros((4, 2), "f")
    function(x, got)
    np.testing.assert_array_equal(got, x * 3 + 1)


def test_arguments_are_checked():
    a = te.placeholder((32,), "float32", name="A")
    c = te.compute((32,), lambda i: a[i] + 1.0, name="C")
    function = weft.build(bound(c), [a, c], opencl())
    with pytest.raises(ArgumentError, match="A.*expected shape"):
        function(np.zeros(31, "f"), np.zeros(32, "f"))
    with pytest.raises(ArgumentError, match="2 arguments"):
        function(np.zeros(32, "f"))


def test_a_source_that_does_not_compile_is_shown():
    program = DeviceProgram("broken", "kernel void broken(global float *x) { x[0] = nonsense; }", (), (), ())
    with pytest.raises(TargetError, match="cannot compile broken(.|\n)*nonsense"):
        opencl().device().load(program)


def test_a_block_that_is_too_large_says_so():
    a = te.placeholder((1 << 20,), "float32", name="A")
    c = te.compute((1 << 20,), lambda i: a[i] + 1.0, name="C")
    with pytest.raises(TargetError, match="65536 threads in a block, but opencl has at most"):
        weft.build(bound(c, 1 << 16), [a, c], opencl())


def test_code_for_another_machine_is_only_printed():
    a = te.placeholder((64,), "float32", name="A")
    c = te.compute((64,), lambda i: a[i] + 1.0, name="C")
    built = weft.build(bound(c), [a, c], "opencl:generic")
    assert "__kernel" in built.source
    with pytest.raises(TargetError, match="no device of this machine"):
        built.load()


def test_doubles_need_a_device_that_has_them():
    a = te.placeholder((64,), "float64", name="A")
    c = te.compute((64,), lambda i: a[i] + 1.0, name="C")
    poor = replace(find_target("opencl:generic"), features=frozenset())
    with pytest.raises(TargetError, match="float64"):
        weft.build(bound(c), [a, c], poor)


def test_threads_need_constant_extents():
    n = te.var("n")
    a = te.placeholder((n,), "float32", name="A")
    c = te.compute((n,), lambda i: a[i] + 1.0, name="C")
    s = te.create_schedule(c.op)
    s[c].bind(s[c].op.axis[0], te.thread_axis("threadIdx.x"))
    with pytest.raises(TargetError, match="constant"):
        weft.build(s, [a, c], "opencl:generic")


def test_calls_from_several_threads():
    """Calls share workspaces; each still gets its own results."""
    a = te.placeholder((4096,), "float32", name="A")
    b = te.compute((4096,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((4096,), lambda i: b[4095 - i] + 1.0, name="C")
    s = te.create_schedule(c.op)
    for stage in (b, c):
        block, thread = s[stage].split(s[stage].op.axis[0], 64)
        s[stage].bind(block, te.thread_axis("blockIdx.x"))
        s[stage].bind(thread, te.thread_axis("threadIdx.x"))
    function = weft.build(s, [a, c], opencl())

    def call(number):
        given, out = np.full(4096, number, "f"), np.zeros(4096, "f")
        function(given, out)
        return np.unique(out)

    with ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(call, range(40))):
            np.testing.assert_array_equal(found, [number * 2 + 1])


@pytest.mark.parametrize("name", list(NAMED))
def test_kernels_for_phones_keep_their_limits(name):
    target = find_target(f"opencl:{name}")
    a, b = te.placeholder((256, 256), name="a"), te.placeholder((256, 256), name="b")
    k = te.reduce_axis(256, "k")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    text = weft.build(te.create_schedule(c), [a, b, c], f"opencl:{name}", plan=True).source
    sizes = [int(word) for word in re.findall(r"reqd_work_group_size\((\d+), (\d+), (\d+)\)", text)[0]]
    assert not target.is_host and 1 < math.prod(sizes) <= target.threads.block_threads
