"""Scheduling and lowering a fused convolution is little work: schedules are made by the thousand in a search."""

from __future__ import annotations

import weft
from tests.work import calls_of
from weft import te

TARGET = "x86_64-unknown-linux-gnu,cpu=skylake-avx512"
LIMIT = 190_000
"""Calls of Python functions, for schedule and lowering together: 173,000 by Python 3.11."""
UNROLLED_LIMIT = 142_000
"""Those for lowering a statement that is written out 252 times: 95,000, and 356,000 if every copy is made anew."""


def convolution():
    """A padded 3x3 convolution of 64 channels of 56x56, with bias and relu."""
    data = te.placeholder((1, 64, 56, 56), name="data")
    weight = te.placeholder((64, 64, 3, 3), name="weight")
    bias = te.placeholder((64,), name="bias")
    pad = te.compute(
        (1, 64, 58, 58),
        lambda n, c, h, w: te.if_then_else(te.all(h >= 1, h < 57, w >= 1, w < 57), data[n, c, h - 1, w - 1], 0.0),
        name="pad",
    )
    rc, ry, rx = te.reduce_axis(64, "rc"), te.reduce_axis(3, "ry"), te.reduce_axis(3, "rx")
    conv = te.compute(
        (1, 64, 56, 56),
        lambda n, k, y, x: te.sum(pad[n, rc, y + ry, x + rx] * weight[k, rc, ry, rx], axis=[rc, ry, rx]),
        name="conv",
    )
    biased = te.compute((1, 64, 56, 56), lambda n, k, y, x: conv[n, k, y, x] + bias[k], name="biased")
    out = te.compute((1, 64, 56, 56), lambda n, k, y, x: te.maximum(biased[n, k, y, x], 0.0), name="out")
    return pad, conv, biased, out


def schedule(pad, conv, biased, out):
    """Tiles the output, computes the convolution in each tile, vectorizes, unrolls, and runs tiles in parallel."""
    s = te.create_schedule(out.op)
    s[pad].compute_inline()
    s[biased].compute_inline()
    cached = s.cache_write(conv, "local")
    n, k, y, x = s[out].op.axis
    ko, ki = s[out].split(k, factor=8)
    xo, xi = s[out].split(x, factor=14)
    s[out].reorder(n, ko, y, xo, ki, xi)
    s[out].parallel(s[out].fuse(n, ko))
    s[out].vectorize(xi)
    s[conv].compute_at(s[out], xo)
    s[cached].compute_at(s[out], xo)
    s[conv].vectorize(s[conv].op.axis[3])
    kernel, row = s[cached].op.axis[1], s[cached].op.axis[3]
    rc, ry, rx = s[cached].op.reduce_axis
    rco, rci = s[cached].split(rc, factor=8)
    s[cached].reorder(rco, ry, rci, rx, kernel, row)
    s[cached].vectorize(row)
    s[cached].unroll(rx)
    return s


def test_schedule_and_lower_a_convolution():
    tensors = convolution()
    assert len(schedule(*tensors).trace) >= 16
    weft.lower(schedule(*tensors), target=TARGET)  # what is imported and remembered the first time is not counted
    assert calls_of(lambda: weft.lower(schedule(*tensors), target=TARGET)) < LIMIT


def depthwise():
    """A 3x3 convolution of each of 32 channels of 28x28, in blocks of 16; its tile of 2x14 places is written out."""
    data = te.placeholder((2, 30, 30, 16), name="data")
    weight = te.placeholder((2, 3, 3, 16), name="weight")
    ry, rx = te.reduce_axis(3, "ry"), te.reduce_axis(3, "rx")
    conv = te.compute(
        (2, 28, 28, 16),
        lambda b, y, x, c: te.sum(data[b, y + ry, x + rx, c] * weight[b, ry, rx, c], axis=[ry, rx]),
        name="conv",
    )
    out = te.compute((2, 28, 28, 16), lambda b, y, x, c: te.maximum(conv[b, y, x, c], 0.0), name="out")
    s = te.create_schedule(out.op)
    b, y, x, c = s[out].op.axis
    yo, yi = s[out].split(y, factor=2)
    xo, xi = s[out].split(x, factor=14)
    s[out].reorder(b, yo, xo, yi, xi, c)
    s[out].parallel(s[out].fuse(b, yo))
    s[conv].compute_at(s[out], xo)
    s[conv].reorder(*s[conv].op.reduce_axis, *s[conv].op.axis)
    for stage, loops in ((out, (yi, xi)), (conv, (*s[conv].op.reduce_axis, *s[conv].op.axis[1:3]))):
        s[stage].vectorize(s[stage].op.axis[3])
        for loop in loops:
            s[stage].unroll(loop)
    return s


def test_lower_a_depthwise_convolution():
    s = depthwise()
    lowered = repr(weft.lower(s, target=TARGET))
    assert lowered.count("data[") == 252
    assert calls_of(lambda: weft.lower(s, target=TARGET)) < UNROLLED_LIMIT
