"""Whole schedules, compiled, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import te
from weft.loop.interpreter import interpret


def check(schedule, args, expected):
    """The compiled function and the interpreter both give what numpy gives in the last array."""
    want = expected.astype("float32")
    for function in (weft.build(schedule, threads=2), lambda *a: interpret(schedule.func, *a)):
        out = np.full(want.shape, np.nan, "float32")
        function(*args, out)
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 16, 16), (7, 5, 3), (1, 9, 4)])
def test_matmul(shape):
    m, n, depth = shape
    a, b = te.placeholder((m, depth), name="a"), te.placeholder((depth, n), name="b")
    k = te.reduce_axis(depth, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c.op)
    cached = s.cache_write(c, "local")
    io, jo, ii, ji = s[c].tile(*s[c].op.axis, 4, 4)
    s[cached].compute_at(s[c], jo)
    ko, ki = s[cached].split(s[cached].op.reduce_axis[0], factor=2)
    s[cached].reorder(ko, ki, *s[cached].op.axis)
    s[cached].vectorize(s[cached].op.axis[1])
    s[cached].unroll(ki)
    s[c].vectorize(ji)
    s[c].parallel(io)
    rng = np.random.default_rng(0)
    x, y = rng.random((m, depth), "float32"), rng.random((depth, n), "float32")
    check(s, [x, y], x @ y)


def test_convolution():
    data, weight = te.placeholder((3, 9, 10), name="data"), te.placeholder((4, 3, 3, 3), name="weight")
    pad = te.compute(
        (3, 11, 12),
        lambda c, y, x: te.if_then_else(te.all(y >= 1, y < 10, x >= 1, x < 11), data[c, y - 1, x - 1], 0.0),
        name="pad",
    )
    rc, ry, rx = (te.reduce_axis(3, name) for name in ("rc", "ry", "rx"))
    conv = te.compute(
        (4, 9, 10),
        lambda k, y, x: te.sum(pad[rc, y + ry, x + rx] * weight[k, rc, ry, rx], axis=[rc, ry, rx]),
        name="conv",
    )
    out = te.compute((4, 9, 10), lambda k, y, x: te.maximum(conv[k, y, x], 0.0), name="out")
    s = te.create_schedule(out.op)
    yo, xo, yi, xi = s[out].tile(s[out].op.axis[1], s[out].op.axis[2], 4, 4)
    s[out].vectorize(xi)
    s[conv].compute_at(s[out], xo)
    s[pad].compute_at(s[conv], s[conv].op.reduce_axis[0])
    s[conv].unroll(s[conv].op.reduce_axis[2])
    s[out].parallel(s[out].op.axis[0])
    rng = np.random.default_rng(1)
    x, w = rng.random((3, 9, 10), "float32") - 0.5, rng.random((4, 3, 3, 3), "float32")
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    check(s, [x, w], np.maximum(np.einsum("cyxij,kcij->kyx", windows, w), 0))


@pytest.mark.parametrize("n", [1, 4, 13])
def test_softmax_of_any_size(n):
    size = te.var("n")
    a = te.placeholder((3, size), name="a")
    k, l = te.reduce_axis(size, "k"), te.reduce_axis(size, "l")
    top = te.compute((3,), lambda i: te.max(a[i, k], axis=k), name="top")
    power = te.compute((3, size), lambda i, j: te.exp(a[i, j] - top[i]), name="power")
    total = te.compute((3,), lambda i: te.sum(power[i, l], axis=l), name="total")
    out = te.compute((3, size), lambda i, j: power[i, j] / total[i], name="out")
    s = te.create_schedule(out.op)
    row = s[out].op.axis[0]
    lo, li = s[total].split(s[total].op.reduce_axis[0], factor=4)
    partial = s.rfactor(total, li)
    s[total].compute_at(s[out], row)
    s[partial].compute_at(s[out], row)
    s[power].compute_at(s[out], row)
    s[top].compute_at(s[out], row)
    s[out].vectorize(s[out].split(s[out].op.axis[1], factor=4)[1])
    s[out].parallel(row)
    x = np.random.default_rng(2).random((3, n), "float32")
    e = np.exp(x - x.max(1, keepdims=True))
    check(s, [x], e / e.sum(1, keepdims=True))
