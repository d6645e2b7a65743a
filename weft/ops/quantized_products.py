"""MatMulInteger and QLinearMatMul: products of 8-bit matrices with zero points.

The left operand's zero point (and scale) is one number or one for each row; the right operand's, one or one for each
column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Value
from weft.graph.opspec import Compute, Evaluate, register
from weft.graph.signature import Along
from weft.ops.convolution import sizes_of, wide_product
from weft.ops.expansion import Builder, compose
from weft.ops.products import infer_product, multiply_tensors
from weft.ops.quantized_support import requantized, surely_zero, wrap_int32


def _by_row(value: Array | None, rank: int) -> Any:
    """A left operand's parameter, shaped to broadcast: a vector has one number for each row."""
    if value is None:
        return 0.0
    wide = value.astype(np.float64)
    return wide if value.ndim != 1 or value.size == 1 or rank < 2 else wide[:, None]


def _by_column(value: Array | None) -> Any:
    return 0.0 if value is None else value.astype(np.float64)


def _evaluate_integer(c: Evaluate, a: Array, b: Array, a_zero: Any = None, b_zero: Any = None) -> Array:
    """The int32 sums, on arrays."""
    left = a.astype(np.float64) - _by_row(a_zero, a.ndim)
    right = b.astype(np.float64) - _by_column(b_zero)
    return wrap_int32(np.matmul(left, right))


def row_value(tensor: te.Tensor, at: tuple[Expr, ...]) -> Expr:
    """The parameter of the left operand for an index (…, row, inner): one number, one a row, or one a batch and row."""
    shape = sizes_of(tensor)
    if len(shape) == 1:
        return tensor[te.const(0) if shape[0] == 1 or len(at) < 2 else at[-2]]
    return te.broadcast_read(tensor, at)


def column_value(tensor: te.Tensor, at: tuple[Expr, ...]) -> Expr:
    """The parameter of the right operand for an index (…, inner, column)."""
    return te.broadcast_read(tensor, at[-max(len(tensor.shape), 1) :] if tensor.shape else at)


def _shifted(tensor: te.Tensor, zero: te.Tensor, value: Any, name: str) -> te.Tensor:
    return te.stage(tensor.shape, lambda *at: tensor[at].astype("int32") - value(zero, at).astype("int32"), name=name)


def _compute_integer(
    c: Compute, a: te.Tensor, b: te.Tensor, a_zero: te.Tensor | None = None, b_zero: te.Tensor | None = None
) -> te.Tensor:
    """The int32 sums, as a tensor expression."""
    shape, product = c.out_shape(), wide_product("int32")
    free = surely_zero(c, 3, b_zero)
    if free and (surely_zero(c, 2, a_zero) or (a_zero is not None and _is_number(a_zero) and b.ndim == 2)):
        raw = multiply_tensors(a, b, shape, product)
        if surely_zero(c, 2, a_zero):
            return raw
        assert a_zero is not None
        return _less_zero_point(raw, b, a_zero)
    left, right = a, b
    if a_zero is not None:
        left = _shifted(a, a_zero, row_value, "left")
    if not free and b_zero is not None:
        right = _shifted(b, b_zero, column_value, "right")
    return multiply_tensors(left, right, shape, product)


def _is_number(tensor: te.Tensor) -> bool:
    return all(size == 1 for size in sizes_of(tensor))


def _less_zero_point(raw: te.Tensor, b: te.Tensor, zero: te.Tensor) -> te.Tensor:
    """Takes the left zero point off: it stands in the sums once for each number of the right column."""
    inner, columns = sizes_of(b)
    k = te.reduce_axis(inner, "k")
    total = te.compute((columns,), lambda j: te.sum(b[k.var, j].astype("int32"), axis=k), name="column_sum")
    value = zero[(te.const(0),) * len(zero.shape)].astype("int32")
    return te.stage(raw.shape, lambda *at: raw[at] - value * total[at[-1]], name="matmul_shifted")


# ------------------------------------------------------------------------------------------------------ MatMulInteger


register(
    "MatMulInteger",
    lambda c: infer_product(c, 0, 1, "int32"),
    _evaluate_integer,
    _compute_integer,
    "complex",
    takes="A:int8|uint8|int16|uint16, B:int8|uint8|int16|uint16, a_zero_point:A?, b_zero_point:B?",
    requires=(Along(2, 0, -2), Along(3, 1, -1)),
)

# ------------------------------------------------------------------------------------------------------ QLinearMatMul


def _linear(
    b: Builder, x: Value, xs: Value, xz: Value, y: Value, ys: Value, yz: Value, scale: Value, zero: Value
) -> Value:
    total = b("MatMulInteger", x, y, xz, yz)
    left, right, unit = (b.cast(one, "float32") for one in (_of_rows(b, xs, total), ys, _of_rows(b, scale, total)))
    factor = b("Div", b("Mul", left, right), unit)
    return requantized(b, b("Mul", b.cast(total, "float32"), factor), _of_rows(b, zero, total))


def _of_rows(b: Builder, parameter: Value, product: Value) -> Value:
    """A left operand's parameter, shaped to broadcast: a vector has one number for each row."""
    if parameter.tensor.rank != 1 or parameter.tensor.dims == (1,) or product.tensor.rank < 2:
        return parameter
    return b("Unsqueeze", parameter, b.constant([1], "int64"))


compose(
    "QLinearMatMul",
    _linear,
    infer=lambda c: infer_product(c, 0, 3, c.tensor(7).dtype),
    takes="a:int8|uint8|int16|uint16, a_scale:float, a_zero_point:a, b:int8|uint8|int16|uint16, b_scale:float, "
    "b_zero_point:b, y_scale:float, y_zero_point:int8|uint8|int16|uint16",
    requires=(
        *(Along(position, 0, -2) for position in (1, 2, 6, 7)),
        *(Along(position, 3, -1) for position in (4, 5)),
    ),
)
