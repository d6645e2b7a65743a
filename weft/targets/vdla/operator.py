"""A convolution in the accelerator's layout, all of it in whole numbers: from bytes to bytes, or to sums.

    PackedConv(x, w)  pads=[top, left, bottom, right], strides=[s, s]                  int32 sums          domain "weft"
    PackedConv(x, w, bias, shift, multiplier?, lift?, residual?, factor?)              int8, from `low` to `high`

x is int8[n, c, h, w, B] and w is int8[f, c, kh, kw, B, B]: blocks of B channels. All others but the residual are
int32[f, B], a number for each channel. What is made of the sums is

    round(mulh(sums * lift + bias + residual * factor, multiplier), shift) + zero, within low and high

`round` is a division by a power of two, halves to even; `mulh` a product without its lowest 16 bits. The residual is a
value of the result's shape: bytes, or sums of another convolution.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Const, Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.targets.vdla.machine import operate

DOMAIN, NAME = "weft", "PackedConv"


def round_shift(x: Expr, by: Expr) -> Expr:
    """x / 2 ** by for 0 < by < 31, rounded to the nearest, halves to even."""
    one = te.const(1, "int32")
    half = te.const((1 << int(by.value) >> 1) - 1, "int32") if isinstance(by, Const) else ((one << by) >> one) - one
    return (x + half + ((x >> by) & one)) >> by


def high_product(x: Expr, y: Expr) -> Expr:
    """The product without its lowest 16 bits."""
    return ((x.astype("int64") * y.astype("int64")) >> te.const(16, "int64")).astype("int32")


def _window(c: Use) -> tuple[list[int], list[int]]:
    return [int(p) for p in c.get("pads") or [0] * 4], [int(s) for s in c.get("strides") or [1, 1]]


def _infer(c: Infer) -> list[Type]:
    x, w = c.tensor(0).static, c.tensor(1).static
    pads, strides = _window(c)
    if c.has(2) != c.has(3) or c.has(6) != c.has(7):
        raise c.error("a bias goes with a shift, and a residual with a factor")
    if [len(pads), len(strides)] != [4, 2] or min(pads) < 0 or min(strides) < 1:
        raise c.error(f"pads are four numbers from 0 on, strides two from 1 on, not {pads} and {strides}")
    sizes = [(x[2 + d] + pads[d] + pads[2 + d] - w[2 + d]) // strides[d] + 1 for d in range(2)]
    if min(sizes) < 1:
        raise c.error(f"a window of {list(w[2:4])} is larger than the image")
    return [TensorType("int8" if c.has(2) else "int32", (x[0], w[0], *sizes, x[4]))]


def _evaluate(c: Evaluate, x: Array, w: Array, *rest: Any) -> Array:
    pads, strides = _window(c)
    wide = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0))).astype(np.float64)
    sizes = [(wide.shape[2 + d] - w.shape[2 + d]) // strides[d] + 1 for d in range(2)]
    total: Any = 0
    for i, j in product(range(w.shape[2]), range(w.shape[3])):
        rows, columns = (slice(at, at + step * size, step) for at, step, size in zip((i, j), strides, sizes))
        total = total + np.tensordot(wide[:, :, rows, columns], w[:, :, i, j].astype(np.float64), ((1, 4), (1, 3)))
    sums = np.ascontiguousarray(total.transpose(0, 3, 1, 2, 4)).astype(np.int64).astype(np.int32)
    if not rest:
        return sums
    bias, shift, multiplier, lift, residual, factor = [*rest, *[None] * 6][:6]

    def channels(one: Array) -> Array:
        return one[None, :, None, None, :]

    made = sums if lift is None else operate("mul", sums, channels(lift))
    made = operate("add", made, channels(bias))
    if residual is not None:
        made = operate("add", made, operate("mul", residual.astype(np.int32), channels(factor)))
    made = made if multiplier is None else operate("mulh", made, channels(multiplier))
    made = operate("round", made, channels(shift)) + np.int32(c.get("zero", 0))
    return np.asarray(np.clip(made, int(c.get("low", -128)), int(c.get("high", 127))), np.int8)


def _sums(c: Compute, x: te.Tensor, w: te.Tensor) -> te.Tensor:
    pads, strides = _window(c)
    n, blocks, height, width, block = c.shape(0)
    kernel, image = c.shape(1)[2:4], x
    step = strides[0] if kernel[0] == 1 else 1  # rows that no window touches stay in DRAM
    if any(pads) or step > 1:
        rows = c.out_shape()[2] if step > 1 else height + pads[0] + pads[2]

        def padded(i: Expr, b: Expr, y: Expr, z: Expr, k: Expr) -> Expr:
            row = y * step - pads[0]
            there = te.all(row >= 0, row < height, z >= pads[1], z < width + pads[1])
            data = x[i, b, row, z - pads[1], k]
            return te.if_then_else(there, data, te.const(0, "int8")) if any(pads) else data

        image = te.compute((n, blocks, rows, width + pads[1] + pads[3], block), padded, name="padded")
    d, k = te.reduce_axis(blocks, name="c"), te.reduce_axis(block, name="k")
    u, v = te.reduce_axis(kernel[0], name="ky"), te.reduce_axis(kernel[1], name="kx")
    made: te.Tensor = te.compute(
        c.out_shape(),
        lambda i, f, y, z, o: te.sum(
            image[i, d, y * (strides[0] // step) + u, z * strides[1] + v, k].astype("int32")
            * w[f, d, u, v, o, k].astype("int32"),
            axis=[d, u, v, k],
        ),
        name="sums",
    )
    return made


def _compute(c: Compute, x: te.Tensor, w: te.Tensor, *rest: Any) -> te.Tensor:
    made, shape = _sums(c, x, w), c.out_shape()
    if not rest:
        return made
    bias, shift, multiplier, lift, residual, factor = [*rest, *[None] * 6][:6]

    def channel(position: int, tensor: te.Tensor, at: tuple[Expr, ...]) -> Expr:
        """The number of a channel: an immediate operand where all have the same, and it is small enough."""
        known = c.value(position)
        same = known is not None and known.min() == known.max() and abs(int(known.min())) < 1 << 15
        return te.const(int(known.min()), "int32") if known is not None and same else tensor[at[1], at[4]]

    added = None
    if residual is not None:
        wide = te.compute(shape, lambda *at: residual[at].astype("int32"), name="wide")
        added = te.compute(shape, lambda *at: wide[at] * channel(7, factor, at), name="lifted")

    def whole(*at: Expr) -> Expr:
        sums: Expr = made[at] if lift is None else made[at] * channel(5, lift, at)
        sums = sums + channel(2, bias, at)
        return sums if added is None else sums + added[at]

    total = te.compute(shape, whole, name="total")
    if multiplier is not None:
        scaled = te.compute(shape, lambda *at: high_product(total[at], multiplier[at[1], at[4]]), name="scaled")
    else:
        scaled = total
    zero, low, high = (int(c.get(name, default)) for name, default in (("zero", 0), ("low", -128), ("high", 127)))

    def rounded(*at: Expr) -> Expr:
        value = round_shift(scaled[at], channel(3, shift, at))
        value = value + zero if zero else value
        value = te.maximum(value, low) if low > -128 else value
        return te.minimum(value, high) if high < 127 else value

    level = te.compute(shape, rounded, name="level")
    narrow: te.Tensor = te.compute(
        shape, lambda *at: te.minimum(te.maximum(level[at], -128), 127).astype("int8"), name="narrow"
    )
    return narrow


TAKES = (
    "x:int8[n c _ _ b], w:int8[f c _ _ b b], bias:int32[f b]?, shift:int32[f b]?, multiplier:int32[f b]?, "
    "lift:int32[f b]?, residual:int8|int32[n f _ _ b]?, factor:int32[f b]?"
)
register(NAME, _infer, _evaluate, _compute, "opaque", domain=DOMAIN, takes=TAKES)
