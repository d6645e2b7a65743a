"""Default schedules for machines with threads: every loop bound, the same meaning, the loops that were promised.

Programs run in the interpreter, which runs threads and reports races: as scheduled, and after the passes of CUDA.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import FULL
from tests.schedule.checking import assert_same, run
from tests.schedule.random_programs import HypothesisSource, Source, arguments_of, draw_program
from weft import te
from weft.expr.nodes import int_value
from weft.loop.interpreter import interpret
from weft.loop.passes.check_bounds import ERRORS
from weft.loop.tree import block_path, blocks_in, loops_in, loops_on
from weft.loop.verifier import verify
from weft.targets.cuda.families import default_schedule
from weft.targets.gpu.families import default_schedule as plain_default
from weft.targets.registry import find_target

CUDA = find_target("cuda:sm_90a")
SMALL = replace(CUDA, threads=replace(CUDA.threads, multiprocessors=4, block_threads=64, warp=8, shared_bytes=16384))
"""A little machine: its blocks are small enough for programs that take an interpreter no time."""


def unbound(schedule):
    """The blocks with spatial loops of which none is bound to threads."""
    found = []
    for block in blocks_in(schedule.func.body):
        loops = loops_on(block_path(schedule.func, block.name, "test"))
        spatial = any(axis.kind == "spatial" and int_value(axis.extent) != 1 for axis in block.axes)
        if spatial and not any(loop.kind == "thread" for loop in loops):
            found.append(block.name)
    return found


def check_random(source, seed):
    """A random program under its default schedule."""
    program = draw_program(source)
    schedule = program.schedule()
    arrays = arguments_of(schedule.func, program.size, seed)
    want = run(schedule.func, arrays)
    target = (CUDA, SMALL)[seed % 2]
    (default_schedule, plain_default)[seed // 2 % 2](schedule, target)
    verify(schedule.func)
    assert not unbound(schedule), f"{unbound(schedule)}\n{schedule.func!r}"
    assert_same(run(schedule.func, arrays), want, f"{schedule.trace}\n{schedule.func!r}")
    lowered = CUDA.lower(schedule.func)
    reports = [np.zeros(1, np.int32) for parameter in lowered.params if parameter.name == ERRORS]
    got = run(lowered, arrays + reports)
    assert_same(got, want, f"{schedule.trace}\n{lowered!r}")
    assert not any(report.any() for report in got[len(arrays) :]), lowered


@settings(
    max_examples=60 if FULL else 10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
@given(st.data(), st.integers(0, 1 << 20))
def test_random_programs_keep_their_meaning(data, seed):
    check_random(HypothesisSource(data), seed)


def test_an_element_takes_a_sum_of_everything():
    check_random(Source(5068), 5068)  # the sum has no axis of channels


@pytest.mark.slow
def test_hundreds_of_random_programs():
    for seed in range(400):
        check_random(Source(seed), seed)


def shape_of(tensor):
    """The shape of a tensor as numbers."""
    return tuple(int_value(size) for size in tensor.shape)


def check(inputs, output, reference, target=CUDA, constants=(), tolerance=1e-4, races=True):
    """Schedules a program, interprets it before and after lowering, and compares with numpy; gives the schedule."""
    schedule = te.create_schedule(output.op)
    default_schedule(schedule, target, constants)
    verify(schedule.func)
    assert not unbound(schedule)
    random = np.random.default_rng(0)
    arrays = {t.name: random.standard_normal(shape_of(t)).astype(t.dtype.numpy) for t in inputs}
    want = reference(*[arrays[t.name].astype(np.float32) for t in inputs])
    for func, strict in ((schedule.func, True), (target.lower(schedule.func), races)):
        made = np.full(shape_of(output), 7, output.dtype.numpy)
        given = [arrays.get(p.name, made) for p in schedule.func.params]
        interpret(func, *given, check=strict)
        np.testing.assert_allclose(made.astype(np.float32), want, rtol=tolerance, atol=tolerance)
    return schedule


def tags(schedule):
    """The thread tags in use."""
    return {loop.thread for loop in loops_in(schedule.func.body) if loop.thread}


def scopes(schedule):
    """The scopes of the intermediates."""
    return {buffer.scope for buffer in schedule.func.allocations}


def reduction(shape, axes, combine=te.sum):
    """A reduction over some axes of a tensor."""
    a = te.placeholder(shape, name="A")
    over = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}
    kept = [axis for axis in range(len(shape)) if axis not in axes]

    def body(*at):
        places = dict(zip(kept, at))
        return combine(
            a[tuple(over[d].var if d in over else places[d] for d in range(len(shape)))], axis=[*over.values()]
        )

    return [a], te.compute(tuple(shape[axis] for axis in kept), body, name="C")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((40, 200), [1]), ((300, 64), [1]), ((64, 40), [0]), ((16, 24, 6), [1]), ((500,), [0]), ((4, 7, 9, 11), [1, 3])],
)
def test_reductions(shape, axes):
    inputs, output = reduction(shape, axes)
    schedule = check(inputs, output, lambda a: a.sum(axis=tuple(axes)), tolerance=1e-3)
    depth = int(np.prod([shape[axis] for axis in axes]))
    assert ("shared" in scopes(schedule)) == (depth >= 64)


def test_a_long_reduction_of_one_element_has_two_kernels():
    inputs, output = reduction((20000,), [0], te.max)
    schedule = check(inputs, output, lambda a: a.max())
    assert "blockIdx.x" in tags(schedule) and len(blocks_in(schedule.func.body)) > 3


def test_long_rows_in_parts_are_two_kernels_for_all_of_them():
    """Parts and their sum stand in loops of their own: inside those over rows, each row would be a launch."""
    _, output = reduction((2, 8, 20480), [2])
    schedule = te.create_schedule(output.op)
    target = find_target("cuda:sm_90a")
    target.spec.schedule(schedule, target, [])
    program = target.generate(target.lower(schedule.func))
    assert [kernel.grid[0] > 1 for kernel in program.kernels] == [True, False]
    assert not any(name.startswith("i") for kernel in program.kernels for name in kernel.params)


def softmax(shape, axis):
    """A softmax as its stages."""
    a = te.placeholder(shape, name="A")
    k, q = te.reduce_axis((0, shape[axis]), "k"), te.reduce_axis((0, shape[axis]), "q")
    rest = tuple(size for d, size in enumerate(shape) if d != axis)

    def inside(at, place):
        return (*at[:axis], place, *at[axis:])

    def without(at):
        return (*at[:axis], *at[axis + 1 :])

    most = te.compute(rest, lambda *i: te.max(a[inside(i, k.var)], axis=k), name="M")
    power = te.compute(shape, lambda *i: te.exp(a[i] - most[without(i)]), name="E")
    total = te.compute(rest, lambda *i: te.sum(power[inside(i, q.var)], axis=q), name="S")
    return [a], te.compute(shape, lambda *i: power[i] / total[without(i)], name="C")


@pytest.mark.parametrize(("shape", "axis"), [((6, 300), 1), ((6, 10), 1), ((2, 10, 24), 1), ((2, 40, 24), 1)])
def test_softmax_is_one_kernel(shape, axis):
    def reference(a):
        power = np.exp(a - a.max(axis, keepdims=True))
        return power / power.sum(axis, keepdims=True)

    inputs, output = softmax(shape, axis)
    schedule = check(inputs, output, reference)
    assert sum(loop.thread == "blockIdx.x" for loop in loops_in(schedule.func.body)) == 1


def test_a_transposition_goes_through_shared_memory():
    a = te.placeholder((2, 70, 96), name="A")
    output = te.compute((2, 96, 70), lambda b, i, j: a[b, j, i] * 2, name="C")
    assert "shared" in scopes(check([a], output, lambda x: 2 * x.transpose(0, 2, 1)))


def matmul(m, n, k, turned=False, dtype="float32"):
    """C = A B / 2 + bias, computed in float32."""
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((n, k) if turned else (k, n), dtype, name="B")
    bias = te.placeholder((n,), name="bias")
    r = te.reduce_axis((0, k), "r")

    def body(i, j):
        right = b[j, r] if turned else b[r, j]
        return te.sum(a[i, r].astype("float32") * right.astype("float32"), axis=r)

    product = te.compute((m, n), body, name="C")
    output = te.compute((m, n), lambda i, j: product[i, j] * 0.5 + bias[j], name="D")
    return [a, b, bias], output, lambda x, y, z: x @ (y.T if turned else y) * 0.5 + z


@pytest.mark.thin(2)
@pytest.mark.parametrize(("m", "n", "k"), [(32, 48, 24), (33, 50, 27), (4, 64, 64)])
@pytest.mark.parametrize("turned", [False, True])
def test_products(m, n, k, turned):
    schedule = check(*matmul(m, n, k, turned), target=SMALL)
    assert {"shared", "local"} <= scopes(schedule)


@pytest.mark.slow
def test_a_deep_product_is_cut_into_parts():
    schedule = check(*matmul(16, 16, 512))
    assert any(loop.thread == "blockIdx.z" for loop in loops_in(schedule.func.body))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("turned", [False, True])
def test_products_by_tensor_cores(dtype, turned):
    schedule = check(*matmul(32, 64, 80, turned, dtype), tolerance=2e-2, races=False)
    assert {"mma.a", "mma.b", "mma.c", "shared"} <= scopes(schedule)


def test_vector_products_stream():
    for turned in (False, True):
        schedule = check(*matmul(1, 32, 96, turned), tolerance=1e-3)
        assert sum(loop.thread == "blockIdx.x" for loop in loops_in(schedule.func.body)) == 1


def convolution(channels, size, features, kernel, stride, groups=1):
    """A convolution with padding, and a bias after it."""
    pad, out = kernel // 2, (size + 2 * (kernel // 2) - kernel) // stride + 1
    x = te.placeholder((1, channels, size, size), name="X")
    w = te.placeholder((features, channels // groups, kernel, kernel), name="W")
    padded = te.compute(
        (1, channels, size + 2 * pad, size + 2 * pad),
        lambda n, c, i, j: te.if_then_else(
            te.all(i >= pad, i < size + pad, j >= pad, j < size + pad),
            x[n, c, i - pad, j - pad],
            te.const(0.0, "float32"),
        ),
        name="P",
    )
    c, p, q = (te.reduce_axis((0, n), v) for n, v in ((channels // groups, "c"), (kernel, "p"), (kernel, "q")))

    def body(n, f, i, j):
        channel = c.var if groups == 1 else f
        return te.sum(padded[n, channel, i * stride + p, j * stride + q] * w[f, c, p, q], axis=[c, p, q])

    made = te.compute((1, features, out, out), body, name="C")
    output = te.compute((1, features, out, out), lambda *i: made[i] + 1.0, name="R")

    def reference(x, w):
        torch = pytest.importorskip("torch")
        given = torch.tensor(x), torch.tensor(w)
        return torch.conv2d(*given, stride=stride, padding=pad, groups=groups).numpy() + 1

    return [x, w], output, reference


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_convolutions_are_products(kernel, stride):
    inputs, output, reference = convolution(8, 9, 16, kernel, stride)
    for constants in ((), inputs[1:]):
        schedule = check(inputs, output, reference, SMALL, constants)
        assert {"shared", "local"} <= scopes(schedule)


def test_depthwise_convolutions_stay_in_registers():
    inputs, output, reference = convolution(6, 9, 6, 3, 1, groups=6)
    assert scopes(check(inputs, output, reference)) == {"local"}


def test_recurrences_keep_their_order():
    steps, size = 6, 40
    x = te.placeholder((steps, size), name="X")
    state = te.placeholder((steps, size), name="state")
    first = te.compute((1, size), lambda t, i: x[0, i], name="first")
    update = te.compute((steps, size), lambda t, i: state[t - 1, i] * 0.5 + x[t, i], name="update")
    output = te.scan(first, update, state, inputs=[x])
    schedule = te.create_schedule(output.op)
    default_schedule(schedule, CUDA)
    assert "threadIdx.x" in tags(schedule)
    array = np.random.default_rng(0).standard_normal((steps, size)).astype(np.float32)
    want = array.copy()
    for t in range(1, steps):
        want[t] = want[t - 1] * 0.5 + array[t]
    made = np.empty_like(array)
    interpret(schedule.func, array, made)
    np.testing.assert_allclose(made, want, rtol=1e-5)


def test_a_running_sum_is_one_kernel_for_all_steps():
    x, state = te.placeholder((9, 20), name="X"), te.placeholder((9, 20), name="R")
    start = te.compute((1, 20), lambda t, i: x[t, i], name="S0")
    step = te.compute((9, 20), lambda t, i: state[t - 1, i] + x[t, i], name="S")
    total = te.scan(start, step, state, inputs=[x], name="total")
    schedule = check([x], total, lambda a: a.cumsum(0))
    loops = loops_on(block_path(schedule.func, "S", "test"))
    assert [loop.thread for loop in loops] == ["blockIdx.x", "threadIdx.x", None]
