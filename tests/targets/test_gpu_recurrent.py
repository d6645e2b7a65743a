"""Recurrences on machines with threads: few kernels a step, the same result; interpreted with races, and by OpenCL."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from tests.targets.test_gpu_schedules import CUDA, SMALL, check, shape_of
from weft import te
from weft.loop.tree import blocks_in, loops_in
from weft.targets.cuda import nvrtc
from weft.targets.cuda.families import default_schedule
from weft.targets.gpu.families import default_schedule as opencl_default


def sigmoid(x):
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def product(state, weights, batch, rows, hidden, steps, name):
    """The sums of every gate: a row of the state (of this step for `second`) times the rows of the weights."""
    k = te.reduce_axis((0, hidden), f"{name}_k")
    back = 0 if name == "second" else 1
    return te.compute(
        (steps + 1, batch, rows), lambda t, b, q: te.sum(state[t - back, b, k] * weights[q, k], axis=k), name=name
    )


def lstm(steps, batch, hidden):
    """Two states: c' = f c + i tanh(g), h' = o tanh(c')."""
    x = te.placeholder((steps, batch, 4 * hidden), name="X")
    r = te.placeholder((4 * hidden, hidden), name="R")
    shape = (steps + 1, batch, hidden)
    h, c = te.placeholder(shape, name="h"), te.placeholder(shape, name="c")
    first = [te.compute((1, batch, hidden), lambda t, b, j: te.const(0.5, "float32"), name=n) for n in ("h0", "c0")]
    sums = product(h, r, batch, 4 * hidden, hidden, steps, "sums")

    def gate(t, b, g, j):
        return x[t - 1, b, g * hidden + j] + sums[t, b, g * hidden + j]

    c_next = te.compute(
        shape,
        lambda t, b, j: (
            te.sigmoid(gate(t, b, 0, j)) * c[t - 1, b, j] + te.sigmoid(gate(t, b, 1, j)) * te.tanh(gate(t, b, 2, j))
        ),
        name="c_next",
    )
    h_next = te.compute(shape, lambda t, b, j: te.sigmoid(gate(t, b, 3, j)) * te.tanh(c_next[t, b, j]), name="h_next")
    states = te.scan(first, [h_next, c_next], [h, c], name="states")
    output = te.compute((steps, batch, hidden), lambda t, b, j: states[0][t + 1, b, j], name="Y")

    def reference(inputs, weights):
        hidden_now = cell = np.full((batch, hidden), 0.5, np.float32)
        rows = []
        for step in inputs:
            f, i, g, o = np.split(step + hidden_now @ weights.T, 4, axis=1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            hidden_now = sigmoid(o) * np.tanh(cell)
            rows.append(hidden_now)
        return np.stack(rows)

    return [x, r], output, reference


def gru(steps, batch, hidden):
    """The reset comes before the product, which then needs all of it: two kernels a step."""
    x = te.placeholder((steps, batch, 3 * hidden), name="X")
    r, w = te.placeholder((2 * hidden, hidden), name="R"), te.placeholder((hidden, hidden), name="W")
    shape = (steps + 1, batch, hidden)
    h = te.placeholder(shape, name="h")
    first = te.compute((1, batch, hidden), lambda t, b, j: te.const(0.5, "float32"), name="h0")
    sums = product(h, r, batch, 2 * hidden, hidden, steps, "sums")

    def gate(t, b, g, j):
        return te.sigmoid(x[t - 1, b, g * hidden + j] + sums[t, b, g * hidden + j])

    reset = te.compute(shape, lambda t, b, j: gate(t, b, 1, j) * h[t - 1, b, j], name="reset")
    second = product(reset, w, batch, hidden, hidden, steps, "second")

    def update(t, b, j):
        z = gate(t, b, 0, j)
        return (1.0 - z) * te.tanh(x[t - 1, b, 2 * hidden + j] + second[t, b, j]) + z * h[t - 1, b, j]

    following = te.compute(shape, lambda t, b, j: update(t, b, j), name="following")
    states = te.scan(first, following, h, name="states")
    output = te.compute((steps, batch, hidden), lambda t, b, j: states[t + 1, b, j], name="Y")

    def reference(inputs, weights, inner):
        now = np.full((batch, hidden), 0.5, np.float32)
        rows = []
        for step in inputs:
            own = step[:, : 2 * hidden] + now @ weights.T
            z, reset = sigmoid(own[:, :hidden]), sigmoid(own[:, hidden:])
            now = (1 - z) * np.tanh(step[:, 2 * hidden :] + (reset * now) @ inner.T) + z * now
            rows.append(now)
        return np.stack(rows)

    return [x, r, w], output, reference


def kernels_of_a_step(schedule):
    """How many launches each step makes."""
    steps = next(
        loop
        for loop in loops_in(schedule.func.body)
        if loop.kind == "serial" and any(axis.kind == "ordered" for b in blocks_in(loop) for axis in b.axes)
    )
    stmts = getattr(steps.body, "stmts", (steps.body,))
    assert all(loop.thread is not None and loop.thread.startswith("blockIdx") for loop in stmts)
    return len(stmts)


@pytest.mark.parametrize("sizes", [(2, 1, 32, CUDA), (1, 3, 33, CUDA), (2, 1, 40, SMALL), (2, 3, 37, SMALL),
                                   (1, 9, 40, SMALL)])  # fmt: skip
def test_a_step_of_an_lstm_is_one_kernel(sizes):
    *sizes, target = sizes
    assert kernels_of_a_step(check(*lstm(*sizes), target=target)) == 1


@pytest.mark.parametrize("target", [CUDA, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("sizes", [(2, 1, 33), (2, 2, 40)])
def test_a_reset_before_the_product_takes_two_kernels(sizes, target):
    assert kernels_of_a_step(check(*gru(*sizes), target=target)) == 2


def test_short_sums_stay_with_single_threads():
    assert kernels_of_a_step(check(*lstm(2, 2, 8))) == 3


@pytest.mark.thin(2)
@pytest.mark.parametrize("build", [lstm, gru])
@pytest.mark.parametrize("sizes", [(5, 1, 650), (4, 3, 64), (3, 40, 33)])
def test_opencl(build, sizes):
    target = opencl()
    inputs, output, reference = build(*sizes)
    schedule = te.create_schedule(output.op)
    opencl_default(schedule, target, inputs[1:])
    function = weft.build(schedule, [*inputs, output], target)
    random = np.random.default_rng(0)
    arrays = [(random.standard_normal(shape_of(t)) / sizes[2] ** 0.5).astype(np.float32) for t in inputs]
    made = np.full(shape_of(output), np.nan, np.float32)
    function(*arrays, made)
    np.testing.assert_allclose(made, reference(*arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("build", [lstm, gru])
def test_cuda_compiles(build):
    inputs, output, _ = build(35, 1, 650)
    schedule = te.create_schedule(output.op)
    default_schedule(schedule, CUDA, inputs[1:])
    assert nvrtc.compile_source(CUDA.generate(CUDA.lower(schedule.func)).source, CUDA.cpu)
