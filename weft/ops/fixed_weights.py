"""Weights as 24-bit whole numbers: three bytes instead of four, for products that wait for their weights.

    w[.., k] = (256 * high[.., k] + low[.., k]) * step[..]          high: int16, low: uint8, step: a power of two

Each row of a weight (the terms of one sum) has a step of its own, such that its largest number has 23 bits. What is
rounded off is at most half a step, 2⁻²⁴ of the power of two above the largest weight: for rows whose weights are of
similar size that is less than the rounding of the float32 sum. Other rows are told by their spread (`may_fix`). A
weight that is not 0 never becomes 0, so that its product with an infinity stays one.
"""

from __future__ import annotations

import numpy as np

from weft.expr.nodes import Expr
from weft.graph.ir import Array

BITS = 23
LOW = 256
"""What one of `high` is worth."""

MOST_SPREAD = 32.0
"""How much larger than most weights of a row that are not 0 (the square of their mean root, which single large ones
hardly move) the power of two above the largest may be."""

SMALLEST_SCALE = 2.0**-100
"""Rows of smaller weights stay as they are: their steps would come near the smallest float32 numbers."""


def may_fix(weight: Array) -> bool:
    """Whether whole numbers hold the rows of a weight (its last axis) as exactly as sums of float32 are."""
    if weight.dtype != np.float32 or not np.isfinite(weight).all():
        return False
    scale = _scales(weight)[..., 0]
    count = np.maximum(np.count_nonzero(weight, axis=-1), 1)
    typical = np.square(np.sqrt(np.abs(weight)).sum(axis=-1, dtype=np.float64) / count)
    return bool((scale <= MOST_SPREAD * typical)[typical > 0].all() and scale.min(initial=1.0) > SMALLEST_SCALE)


def fix(weight: Array) -> tuple[Array, Array, Array]:
    """The whole numbers of a weight, in two parts, and the steps of its rows."""
    scale = _scales(weight)
    codes = np.rint(weight * (2.0**BITS / scale)).astype(np.int32)
    np.clip(codes, 1 - 2**BITS, 2**BITS - 1, out=codes)
    lost = (codes == 0) & (weight != 0)
    codes[lost] = np.sign(weight[lost]).astype(np.int32)
    return (codes >> 8).astype(np.int16), (codes & 255).astype(np.uint8), (scale[..., 0] / 2.0**BITS).astype(np.float32)


def unfix(high: Array, low: Array, step: Array) -> Array:
    """The weight, in double precision."""
    return (high.astype(np.float64) * LOW + low) * step.astype(np.float64)[..., None]


def _scales(weight: Array) -> Array:
    """For each row the power of two above its largest weight; 1 where all are 0."""
    largest = np.abs(weight).max(axis=-1, keepdims=True, initial=0.0).astype(np.float64)
    return np.where(largest > 0, np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))) + 1), 1.0)


def fixed_value(high: Expr, low: Expr) -> Expr:
    """The whole number of a weight, as a float32, which holds it exactly."""
    return (high.astype("int32") * LOW + low.astype("int32")).astype("float32")
