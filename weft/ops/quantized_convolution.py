"""ConvInteger and QLinearConv: convolutions of 8-bit numbers with zero points.

ConvInteger may have an attribute of our own, `border`: the number that padding stands for, in sums of raw numbers (no
zero points). The pass `quantized` makes such sums, and takes zero points off by a constant for each channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.ops.convolution import (
    add_channel,
    convolve_arrays,
    convolve_tensors,
    infer_convolution,
    kernel_sizes,
    sizes_of,
    wide_product,
)
from weft.ops.convolution_window import Window
from weft.ops.expansion import Builder, compose
from weft.ops.quantized_support import requantized, scalar, spread, surely_zero, wrap_int32


def _integer_convolution(use: Use, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    """The int32 sums, on arrays. Padding stands for the real number 0, so the zero point is taken off first."""
    kernel = kernel_sizes(use, w.shape)
    assert kernel is not None
    data, weight = x.astype(np.float64), w.astype(np.float64)
    if x_zero is not None:
        data = data - np.asarray(spread(x_zero, x.ndim, 1), np.float64)
    if w_zero is not None:
        weight = weight - np.asarray(spread(w_zero, w.ndim, 0), np.float64)
    return wrap_int32(convolve_arrays(data, weight, Window(use, kernel), int(use.get("group", 1))))


def _compute_integer(
    c: Compute, x: te.Tensor, w: te.Tensor, x_zero: te.Tensor | None = None, w_zero: te.Tensor | None = None
) -> te.Tensor:
    """The int32 sums, as a tensor expression."""
    kernel = kernel_sizes(c, sizes_of(w))
    assert kernel is not None
    window, group = Window(c, kernel), int(c.get("group", 1))

    def border() -> Any:
        return int(c.get("border", 0)) if x_zero is None else scalar(x_zero)

    if surely_zero(c, 3, w_zero):
        raw = convolve_tensors(x, w, window, group, wide_product("int32"), border)
        if surely_zero(c, 2, x_zero):
            return raw
        assert x_zero is not None
        return _less_zero_point(raw, w, scalar(x_zero).astype("int32"))
    assert w_zero is not None
    weight = te.stage(
        sizes_of(w), lambda *at: w[at].astype("int32") - scalar(w_zero, at[0]).astype("int32"), name="weight"
    )

    def product(a: Expr, b: Expr) -> Expr:
        shifted = a.astype("int32") if x_zero is None else a.astype("int32") - scalar(x_zero).astype("int32")
        return shifted * b

    return convolve_tensors(x, weight, window, group, product, border)


def _less_zero_point(raw: te.Tensor, w: te.Tensor, zero: Expr) -> te.Tensor:
    """Takes the data's zero point off: it stands in the sums once for each weight of the channel."""
    shape = sizes_of(w)
    axes = [te.reduce_axis(size, f"k{i}") for i, size in enumerate(shape[1:])]
    total = te.compute(
        (shape[0],),
        lambda co: te.sum(w[(co, *[k.var for k in axes])].astype("int32"), axis=axes),
        name="weight_sum",
    )
    return te.stage(raw.shape, lambda n, co, *at: raw[(n, co, *at)] - zero * total[co], name="conv_shifted")


# -------------------------------------------------------------------------------------------------------- ConvInteger


def _infer_integer(c: Infer) -> list[Type]:
    if c.get("border", 0) and (c.has(2) or c.has(3)):
        raise c.error("it has a border for sums of raw numbers, and zero points: one of the two")
    return infer_convolution(c, 0, 1, "int32")


def _evaluate_integer(c: Evaluate, x: Array, w: Array, x_zero: Any = None, w_zero: Any = None) -> Array:
    border = int(c.get("border", 0))
    if not border:
        return _integer_convolution(c, x, w, x_zero, w_zero)
    inside = _integer_convolution(c, x, w, np.array(border), None)
    return add_channel(inside, (border * w.astype(np.int64).sum(axis=tuple(range(1, w.ndim)))).astype(np.int32))


register(
    "ConvInteger",
    _infer_integer,
    _evaluate_integer,
    _compute_integer,
    "complex",
    takes="x:int[n c *s], w:int[m _ *k], x_zero_point:x[]|[1]?, w_zero_point:w[]|[1]|[m]?",
    traits="bordered",
)

# -------------------------------------------------------------------------------------------------------- QLinearConv


def _infer_linear(c: Infer) -> list[Type]:
    kind = c.tensor(7).dtype if c.has(7) else c.tensor(0).dtype
    return infer_convolution(c, 0, 3, kind)


def _linear(
    b: Builder, x: Value, xs: Value, xz: Value, w: Value, ws: Value, wz: Value, ys: Value, yz: Value, *bias: Value
) -> Value:
    kept = {key: value for key, value in b.use.attributes.items() if key != "border"}
    total = b("ConvInteger", x, w, xz, wz, **kept)
    channels = b.constant([-1, *[1] * (x.tensor.rank - 2)], "int64")
    if bias:
        total = b("Add", total, b("Reshape", bias[0], channels))
    left, right, unit = (b.cast(scale, "float32") for scale in (xs, ws, ys))
    factor = b("Div", b("Mul", left, right), unit)
    if factor.tensor.rank:
        factor = b("Reshape", factor, channels)
    return requantized(b, b("Mul", b.cast(total, "float32"), factor), yz)


compose(
    "QLinearConv",
    _linear,
    infer=_infer_linear,
    takes="x:int[n c *s], x_scale:float[]|[1], x_zero_point:x[]|[1], w:int[m _ *k], "
    "w_scale:float[]|[1]|[m], w_zero_point:w[]|[1]|[m], y_scale:float[]|[1], "
    "y_zero_point:int8|uint8[]|[1], B:int32[m]?",
)
