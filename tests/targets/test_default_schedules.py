"""Default schedules: legal for every program, the same meaning, and the loops that were promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import weft
from tests.conftest import FULL
from tests.schedule.checking import assert_same, check_compiled, run
from tests.schedule.random_programs import HypothesisSource, Source, arguments_of, draw_program
from weft import te
from weft.expr.nodes import int_value
from weft.loop.tree import block_path, loops_in, loops_on
from weft.loop.verifier import verify
from weft.plan.planner import analytic, picking
from weft.targets.cpu.families import default_schedule
from weft.targets.registry import find_target

TARGETS = ("native", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu")


def check_random(source: Source, seed: int) -> None:
    """A random program under its default schedule, interpreted and compiled."""
    program = draw_program(source)
    schedule = program.schedule()
    arrays = arguments_of(schedule.func, program.size, seed)
    want = run(schedule.func, arrays)
    default_schedule(schedule, find_target(TARGETS[seed % len(TARGETS)]))
    verify(schedule.func)
    assert_same(run(schedule.func, arrays), want, f"{schedule.trace}\n{schedule.func!r}")
    check_compiled(schedule.func, arrays, want)


@settings(
    max_examples=200 if FULL else 20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
@given(st.data(), st.integers(0, 1 << 20))
def test_random_programs_keep_their_meaning(data, seed):
    check_random(HypothesisSource(data), seed)


@pytest.mark.slow
def test_hundreds_of_random_programs():
    for seed in range(600):
        check_random(Source(seed), seed)


def shape_of(tensor):
    """The shape of a tensor as numbers."""
    return tuple(int_value(size) for size in tensor.shape)


def build_and_compare(schedule, inputs, output, reference, constants=(), tolerance=2e-5):
    """Schedules, compiles, runs and compares with numpy; gives the schedule."""
    default_schedule(schedule, find_target("native"), constants)
    function = weft.build(schedule, [*inputs, output])
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape_of(t)).astype(t.dtype.numpy) for t in inputs]
    made = np.empty(shape_of(output), output.dtype.numpy)
    function(*arrays, made)
    want = reference(*arrays)
    np.testing.assert_allclose(made, want, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(want).max())))
    return schedule


def kinds(schedule, block):
    """The kinds of the loops around a block, outermost first."""
    return [loop.kind for loop in loops_on(block_path(schedule.func, block, "test"))]


def matmul(m, n, k, transposed=False):
    """C = relu(A B + bias)."""
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((n, k) if transposed else (k, n), name="B")
    bias = te.placeholder((n,), name="bias")
    p = te.reduce_axis(k, "p")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, p] * (b[j, p] if transposed else b[p, j]), axis=p), name="C")
    d = te.compute((m, n), lambda i, j: te.relu(c[i, j] + bias[j]), name="D")
    return [a, b, bias], d


@pytest.mark.thin(2)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [(32, 64, 48), (5, 7, 9), (1, 100, 33), (33, 10, 64), (64, 1, 16)])
def test_products_with_an_epilogue(size, transposed, constant):
    inputs, out = matmul(*size, transposed)
    reference = lambda a, b, bias: np.maximum(a @ (b.T if transposed else b) + bias, 0)  # noqa: E731
    constants = [inputs[1]] if constant else []
    build_and_compare(te.create_schedule(out.op), inputs, out, reference, constants)


def test_a_product_has_a_register_tile():
    inputs, out = matmul(32, 64, 48)
    schedule = te.create_schedule(out.op)
    default_schedule(schedule, find_target("native"))
    found = kinds(schedule, "C")
    assert found[-1] == "vectorized" and "unrolled" in found
    assert [b.scope for b in schedule.func.allocations if b.name == "C"] == ["local"]


def test_packed_weights_lie_along_lanes():
    inputs, out = matmul(32, 64, 48, transposed=True)
    schedule = te.create_schedule(out.op)
    default_schedule(schedule, find_target("native"), [inputs[1]])
    (packed,) = [b for b in schedule.func.allocations if b.name.startswith("B_")]
    assert len(packed.shape) == 3 and shape_of(packed)[1] == 48


def convolution(channels, size, filters, kernel, stride, pad, depthwise=False):
    """A convolution with padding, bias and relu."""
    x = te.placeholder((1, channels, size, size), name="X")
    w = te.placeholder((filters, 1 if depthwise else channels, kernel, kernel), name="W")
    bias = te.placeholder((filters,), name="bias")
    outer = size + 2 * pad
    inside = lambda v: te.all(v >= pad, v < size + pad)  # noqa: E731
    padded = te.compute(
        (1, channels, outer, outer),
        lambda n, c, i, j: te.if_then_else(te.all(inside(i), inside(j)), x[n, c, i - pad, j - pad], 0.0),
        name="padded",
    )
    out = (outer - kernel) // stride + 1
    rc = te.reduce_axis(1 if depthwise else channels, "rc")
    ry, rx = te.reduce_axis(kernel, "ry"), te.reduce_axis(kernel, "rx")
    conv = te.compute(
        (1, filters, out, out),
        lambda n, f, i, j: te.sum(
            padded[n, f if depthwise else rc, i * stride + ry, j * stride + rx] * w[f, rc, ry, rx], axis=[rc, ry, rx]
        ),
        name="conv",
    )
    done = te.compute(conv.shape, lambda n, f, i, j: te.relu(conv[n, f, i, j] + bias[f]), name="done")
    return [x, w, bias], done


@pytest.mark.thin(2)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        (8, 14, 32, 3, 1, 1, False),
        (3, 15, 20, 3, 2, 1, False),
        (16, 7, 16, 1, 1, 0, False),
        (16, 12, 16, 3, 1, 1, True),
    ],
)
def test_convolutions(case, constant):
    *sizes, depthwise = case
    inputs, out = convolution(*sizes, depthwise)
    _, _, _, kernel, stride, pad = sizes

    def reference(x, w, bias):
        x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]
        if depthwise:
            made = np.einsum("nchwij,cij->nchw", windows, w[:, 0])
        else:
            made = np.einsum("nchwij,fcij->nfhw", windows, w)
        return np.maximum(made + bias[:, None, None], 0)

    build_and_compare(te.create_schedule(out.op), inputs, out, reference, [inputs[1]] if constant else [])


@pytest.mark.parametrize("filters", [40, 42])
def test_channels_in_lanes_are_turned_before_they_are_stored(filters):
    """A plain image's pixels lie side by side: squares of channels and pixels are turned in registers."""
    inputs, out = convolution(6, 11, filters, 1, 1, 0)
    reference = lambda x, w, b: np.maximum(np.einsum("nchw,fc->nfhw", x, w[..., 0, 0]) + b[:, None, None], 0)  # noqa: E731
    with picking(lambda unit, sketches: analytic(unit, [one for one in sketches if one.name == "register tile"])):
        build_and_compare(te.create_schedule(out.op), inputs, out, reference, [inputs[1]])
        wide, schedule = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512"), te.create_schedule(out.op)
        default_schedule(schedule, wide, [inputs[1]])
    text = repr(weft.lower(schedule, [*inputs, out], wide))
    assert ("store_transposed" in text) == (filters % 4 == 0)


def softmax(rows, columns):
    """Softmax of each row, in four stages."""
    x = te.placeholder((rows, columns), name="x")
    k, j = te.reduce_axis(columns, "k"), te.reduce_axis(columns, "j")
    top = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="top")
    e = te.compute((rows, columns), lambda i, c: te.exp(x[i, c] - top[i]), name="e")
    total = te.compute((rows,), lambda i: te.sum(e[i, j], axis=j), name="total")
    return x, te.compute((rows, columns), lambda i, c: e[i, c] / total[i], name="out")


@pytest.mark.parametrize("size", [(64, 768), (3, 5), (1, 1000), (200, 1)])
def test_rows_are_computed_together(size):
    x, out = softmax(*size)

    def reference(a):
        e = np.exp(a - a.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    schedule = build_and_compare(te.create_schedule(out.op), [x], out, reference)
    if size == (64, 768):
        assert kinds(schedule, "out")[0] == "parallel"
        assert all(loops_on(block_path(schedule.func, name, "test"))[0].kind == "parallel" for name in ("e", "total"))


@pytest.mark.parametrize("size", [(64, 512), (7, 33), (1, 3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_run_in_lanes(size, axis):
    x = te.placeholder(size, name="x")
    k = te.reduce_axis(size[axis], "k")
    out = te.compute((size[1 - axis],), lambda i: te.sum(x[(k, i) if axis == 0 else (i, k)], axis=k), name="out")
    schedule = build_and_compare(te.create_schedule(out.op), [x], out, lambda a: a.sum(axis), tolerance=1e-4)
    if size == (64, 512):
        assert any(loop.kind == "vectorized" for loop in loops_in(schedule.func.body))


def test_elementwise_blocks_become_one_vector_loop():
    x = te.placeholder((64, 3, 50), name="x")
    y = te.compute((64, 3, 50), lambda *i: x[i] + 1.0, name="y")
    z = te.compute((64, 3, 50), lambda *i: te.tanh(y[i]) * y[i], name="z")
    schedule = build_and_compare(te.create_schedule(z.op), [x], z, lambda a: np.tanh(a + 1) * (a + 1))
    assert loops_in(schedule.func.body)[-1].kind == "vectorized"


@pytest.mark.parametrize("target", TARGETS[1:])
def test_an_element_that_is_read_again_is_one_load(target):
    x = te.placeholder((64, 512), name="x")
    y = te.compute((64, 512), lambda *i: x[i] * (1.0 + te.tanh(x[i] + x[i] * x[i] * x[i])) + x[i], name="y")
    schedule = te.create_schedule(y.op)
    default_schedule(schedule, find_target(target))
    assert [loop.kind for loop in loops_in(schedule.func.body)] == ["parallel", "unrolled", "vectorized"]
