"""What the quantized operators share: zero points, scales, integer products and the way back to eight bits.

A quantized number q means (q - zero_point) * scale. Sums of products are int32, as in hardware. Where the weight's zero
point is known to be 0 the tensor expression multiplies the raw numbers and takes the data's zero point off afterwards,
so that a schedule finds a plain 8-bit product.
"""

from __future__ import annotations

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Value
from weft.graph.opspec import Compute
from weft.ops.expansion import Builder


def wrap_int32(values: Array) -> Array:
    """Whole numbers (held as float64) as int32, wrapped as 32-bit sums wrap."""
    return np.asarray(values.astype(np.int64).astype(np.int32))


def requantized(b: Builder, real: Value, zero: Value) -> Value:
    """Real numbers in units of the result's scale, rounded (half to even), shifted and held within the type."""
    kind = zero.tensor.dtype
    if all(size == 1 for size in zero.tensor.dims):
        return b("QuantizeLinear", real, b.constant(np.ones(zero.tensor.static), "float32"), zero)
    limits = np.iinfo(kind)
    shifted = b("Add", b("Round", real), b.cast(zero, "float32"))
    held = b("Clip", shifted, b.constant(limits.min, "float32"), b.constant(limits.max, "float32"))
    return b.cast(held, kind)


def surely_zero(c: Compute, position: int, tensor: te.Tensor | None) -> bool:
    """Whether an input is left out, or known to hold only zeros."""
    value = c.value(position)
    return tensor is None or (value is not None and not np.any(value))


def scalar(tensor: te.Tensor, at: Expr | None = None) -> Expr:
    """The value of a tensor that is one number (of shape () or (1,)), or has one for each place `at`."""
    if not tensor.shape:
        return tensor[()]
    if at is None or all(int(s.value) == 1 for s in tensor.shape):  # type: ignore[attr-defined]
        return tensor[(te.const(0),) * len(tensor.shape)]
    return tensor[at]


def spread(value: Array | None, rank: int, axis: int) -> Array | None:
    """A number, or one for each place along an axis, shaped to broadcast against a tensor of that rank."""
    if value is None or value.ndim == 0 or value.size == 1:
        return None if value is None else value.reshape([1] * rank)
    shape = [1] * rank
    shape[axis] = value.size
    return value.reshape(shape)
