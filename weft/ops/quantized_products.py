"""MatMulInteger and QLinearMatMul: products of 8-bit matrices with zero points.

The left operand's zero point (and scale) is one number or one for each row; the right operand's, one or one for each
column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Type
from weft.graph.opspec import Compute, Evaluate, Infer, register
from weft.graph.signature import Along
from weft.ops.convolution import sizes_of, wide_product
from weft.ops.products import infer_product, multiply_tensors
from weft.ops.quantized_support import requantize, requantize_expr, surely_zero, wrap_int32


def _by_row(value: Array | None, rank: int) -> Any:
    """A left operand's parameter, shaped to broadcast: a vector has one number for each row."""
    if value is None:
        return 0.0
    wide = value.astype(np.float64)
    return wide if value.ndim != 1 or value.size == 1 or rank < 2 else wide[:, None]


def _by_column(value: Array | None) -> Any:
    return 0.0 if value is None else value.astype(np.float64)


def integer_product(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
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


def integer_product_tensors(
    c: Compute, a: te.Tensor, b: te.Tensor, zeros: tuple[int, int], a_zero: te.Tensor | None, b_zero: te.Tensor | None
) -> te.Tensor:
    """The int32 sums, as a tensor expression; `zeros` are the positions of the zero points among the inputs."""
    shape, product = c.out_shape(), wide_product("int32")
    free = surely_zero(c, zeros[1], b_zero)
    if free and (surely_zero(c, zeros[0], a_zero) or (a_zero is not None and _is_number(a_zero) and b.ndim == 2)):
        raw = multiply_tensors(a, b, shape, product)
        if surely_zero(c, zeros[0], a_zero):
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


def _infer_integer(c: Infer) -> list[Type]:
    return infer_product(c, 0, 1, "int32")


def _evaluate_integer(c: Evaluate, a: Array, b: Array, a_zero: Any = None, b_zero: Any = None) -> Array:
    return integer_product(a, b, a_zero, b_zero)


def _compute_integer(c: Compute, a: te.Tensor, b: te.Tensor, a_zero: Any = None, b_zero: Any = None) -> Any:
    return integer_product_tensors(c, a, b, (2, 3), a_zero, b_zero)


register(
    "MatMulInteger",
    _infer_integer,
    _evaluate_integer,
    _compute_integer,
    "complex",
    takes="A:int8|uint8|int16|uint16, B:int8|uint8|int16|uint16, a_zero_point:A?, b_zero_point:B?",
    requires=(Along(2, 0, -2), Along(3, 1, -1)),
)

# ------------------------------------------------------------------------------------------------------ QLinearMatMul


def _infer_linear(c: Infer) -> list[Type]:
    return infer_product(c, 0, 3, c.tensor(7).dtype)


def _evaluate_linear(c: Evaluate, *arrays: Array) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = arrays
    total = integer_product(a, b, a_zero, b_zero)
    left, right = _by_row(a_scale, a.ndim), _by_column(b_scale)
    factor = left.astype(np.float32) * right.astype(np.float32) / _by_row(y_scale, total.ndim).astype(np.float32)
    return requantize(total.astype(np.float32) * factor, np.asarray(_by_row(y_zero, total.ndim)), y_zero.dtype)


def _compute_linear(c: Compute, *tensors: te.Tensor) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = tensors
    if a.ndim < 2 or b.ndim < 2:
        return None
    total = integer_product_tensors(c, a, b, (2, 5), a_zero, b_zero)
    kind = c.outputs[0].dtype

    def body(*at: Expr) -> Expr:
        left, right = row_value(a_scale, at).astype("float32"), column_value(b_scale, at).astype("float32")
        factor = left * right / row_value(y_scale, at).astype("float32")
        return requantize_expr(total[at].astype("float32") * factor, row_value(y_zero, at), kind)

    return te.compute(c.out_shape(), lambda *at: body(*at), name="qlinear_matmul")


register(
    "QLinearMatMul",
    _infer_linear,
    _evaluate_linear,
    _compute_linear,
    "complex",
    takes="a:int8|uint8|int16|uint16, a_scale:float, a_zero_point:a, b:int8|uint8|int16|uint16, b_scale:float, "
    "b_zero_point:b, y_scale:float, y_zero_point:int8|uint8|int16|uint16",
    requires=(
        *(Along(position, 0, -2) for position in (1, 2, 6, 7)),
        *(Along(position, 3, -1) for position in (4, 5)),
    ),
)
