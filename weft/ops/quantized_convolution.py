"""ConvInteger and QLinearConv: convolutions of 8-bit numbers with zero points.

ConvInteger may have an attribute of our own, `border`: the number that padding stands for, in sums of raw numbers (no
zero points). The pass `quantized` makes such sums, and takes zero points off by a constant for each channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Type
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
from weft.ops.quantized_support import requantize, requantize_expr, scalar, spread, surely_zero, wrap_int32


def integer_convolution(use: Use, x: Array, w: Array, x_zero: Array | None, w_zero: Array | None) -> Array:
    """The int32 sums, on arrays. Padding stands for the real number 0, so the zero point is taken off first."""
    kernel = kernel_sizes(use, w.shape)
    assert kernel is not None
    data, weight = x.astype(np.float64), w.astype(np.float64)
    if x_zero is not None:
        data = data - np.asarray(spread(x_zero, x.ndim, 1), np.float64)
    if w_zero is not None:
        weight = weight - np.asarray(spread(w_zero, w.ndim, 0), np.float64)
    return wrap_int32(convolve_arrays(data, weight, Window(use, kernel), int(use.get("group", 1))))


def integer_convolution_tensors(
    c: Compute, x: te.Tensor, w: te.Tensor, zeros: tuple[int, int], x_zero: te.Tensor | None, w_zero: te.Tensor | None
) -> te.Tensor:
    """The int32 sums, as a tensor expression; `zeros` are the positions of the zero points among the inputs."""
    kernel = kernel_sizes(c, sizes_of(w))
    assert kernel is not None
    window, group = Window(c, kernel), int(c.get("group", 1))

    def border() -> Any:
        return int(c.get("border", 0)) if x_zero is None else scalar(x_zero)

    if surely_zero(c, zeros[1], w_zero):
        raw = convolve_tensors(x, w, window, group, wide_product("int32"), border)
        if surely_zero(c, zeros[0], x_zero):
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
        return integer_convolution(c, x, w, x_zero, w_zero)
    inside = integer_convolution(c, x, w, np.array(border), None)
    return add_channel(inside, (border * w.astype(np.int64).sum(axis=tuple(range(1, w.ndim)))).astype(np.int32))


def _compute_integer(c: Compute, x: te.Tensor, w: te.Tensor, x_zero: Any = None, w_zero: Any = None) -> Any:
    return integer_convolution_tensors(c, x, w, (2, 3), x_zero, w_zero)


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


def _evaluate_linear(c: Evaluate, *arrays: Any) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = [*arrays, None][:9]
    total = integer_convolution(c, x, w, x_zero, w_zero)
    if bias is not None:
        total = add_channel(total, bias)
    factor = np.float32(x_scale).reshape(()) * w_scale.astype(np.float32) / np.float32(y_scale).reshape(())
    scaled = total.astype(np.float32) * np.asarray(spread(np.asarray(factor), total.ndim, 1), np.float32)
    return requantize(scaled, y_zero.reshape(()), y_zero.dtype)


def _compute_linear(c: Compute, *tensors: Any) -> Any:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = [*tensors, None][:9]
    total = integer_convolution_tensors(c, x, w, (2, 5), x_zero, w_zero)
    kind = c.outputs[0].dtype

    def body(n: Expr, co: Expr, *at: Expr) -> Expr:
        value: Expr = total[(n, co, *at)]
        if bias is not None:
            value = value + bias[co]
        scales = [scalar(s, co).astype("float32") for s in (x_scale, w_scale, y_scale)]
        return requantize_expr(value.astype("float32") * (scales[0] * scales[1] / scales[2]), scalar(y_zero), kind)

    return te.compute(c.out_shape(), lambda n, co, *at: body(n, co, *at), name="qlinear_conv")


register(
    "QLinearConv",
    _infer_linear,
    _evaluate_linear,
    _compute_linear,
    "complex",
    takes="x:int[n c *s], x_scale:float[]|[1], x_zero_point:x[]|[1], w:int[m _ *k], "
    "w_scale:float[]|[1]|[m], w_zero_point:w[]|[1]|[m], y_scale:float[]|[1], "
    "y_zero_point:int8|uint8[]|[1], B:int32[m]?",
)
