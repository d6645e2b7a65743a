"""A fused convolution, scheduled by hand: what the compile-time figures are measured on."""

from __future__ import annotations

from typing import Any

from weft import te
from weft.schedule.schedule import Schedule


def fused_conv2d(channels: int = 64, size: int = 56, filters: int = 64, lanes: int = 16) -> tuple[Schedule, list[Any]]:
    """conv2d 3 × 3 with padding, bias and relu, in blocks of `lanes` channels: schedule and arguments."""
    blocks, outputs = channels // lanes, filters // lanes
    data = te.placeholder((blocks, size, size, lanes), name="data")
    weight = te.placeholder((outputs, blocks, 3, 3, lanes, lanes), name="weight")
    bias = te.placeholder((outputs, lanes), name="bias")
    padded = te.compute(
        (blocks, size + 2, size + 2, lanes),
        lambda c, y, x, v: te.if_then_else(te.all(1 <= y, y <= size, 1 <= x, x <= size), data[c, y - 1, x - 1, v], 0.0),
        name="padded",
    )
    co, ky, kx, ci = (te.reduce_axis(e, n) for e, n in ((blocks, "co"), (3, "ky"), (3, "kx"), (lanes, "ci")))
    conv = te.compute(
        (outputs, size, size, lanes),
        lambda f, y, x, v: te.sum(padded[co, y + ky, x + kx, ci] * weight[f, co, ky, kx, ci, v], axis=[co, ky, kx, ci]),
        name="conv",
    )
    out = te.compute(conv.shape, lambda f, y, x, v: te.relu(conv[f, y, x, v] + bias[f, v]), name="out")
    s = te.create_schedule(out.op, name="conv2d_bias_relu")
    f, y, x, lane = s[out].axis
    xo, xi = s[out].split(x, factor=14)
    s[out].reorder(f, y, xo, xi, lane)
    s[out].vectorize(lane)
    s[out].unroll(xi)
    fy = s[out].fuse(f, y)
    s[out].parallel(fy)
    s[conv].compute_at(s[out], xo)
    s[conv].set_scope("local")
    _, _, cx, cl = s[conv].axis
    rco, rky, rkx, rci = s[conv].reduce_axis
    s[conv].reorder(rco, rky, rkx, rci, cx, cl)
    s[conv].unroll(cx)
    s[conv].vectorize(cl)
    s[padded].compute_at(s[out], fy)
    s[padded].vectorize(s[padded].axis[3])
    return s, [data, weight, bias, out]
