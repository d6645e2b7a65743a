"""Weights as 24-bit whole numbers: three bytes instead of four, for products that wait for their weights.

    w[.., k] = (256 * high[.., k] + low[.., k]) * 2⁻²³ * scale[..]          high: int16, low: uint8

Each row of a weight (the terms of one sum) has a scale of its own, the power of two above its largest weight. What is
rounded off is at most 2⁻²⁴ of it: for rows whose weights are of similar size that is less than the rounding of the
float32 sum. Other rows are told by their spread (`may_fix`). A weight that is not 0 never becomes 0, so that its
product with an infinity stays one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array

BITS = 23
LOW = 256
"""What one of `high` is worth."""

SHIFT = 2.0**-BITS
"""The other factor is made smaller by this: sums of whole numbers then overflow as late as those of weights do. (It
loses bits where it is smaller than 1e-31, nearly the least float32.)"""

MOST_SPREAD = 32.0
"""How much larger than most weights of a row that are not 0 (the square of their mean root, which single large ones
hardly move) its scale may be."""

SMALLEST_SCALE = 2.0**-100
"""Rows of smaller weights stay as they are: they come near the smallest float32 numbers."""

AT_ONCE = 1 << 20
"""So many weights are looked at together: what is made on the way stays small."""


def may_fix(weight: Array) -> bool:
    """Whether whole numbers hold the rows of a weight (its last axis) as exactly as sums of float32 are."""
    return weight.dtype == np.float32 and all(_is_even(rows) for rows in _blocks(weight))


def _is_even(rows: Array) -> bool:
    if not np.isfinite(rows).all():
        return False
    scale = _scales(rows)[..., 0]
    count = np.maximum(np.count_nonzero(rows, axis=-1), 1)
    typical = np.square(np.sqrt(np.abs(rows)).sum(axis=-1, dtype=np.float64) / count)
    return bool((scale <= MOST_SPREAD * typical)[typical > 0].all() and scale.min(initial=1.0) > SMALLEST_SCALE)


def _blocks(weight: Array) -> Iterator[Array]:
    """The rows of a weight, some at a time."""
    rows = weight.reshape(-1, weight.shape[-1]) if weight.ndim != 2 else weight
    step = max(1, AT_ONCE // max(weight.shape[-1], 1))
    return (rows[start : start + step] for start in range(0, len(rows), step))


def fix(weight: Array) -> tuple[Array, Array, Array]:
    """The whole numbers of a weight, in two parts, and the scales of its rows."""
    made = [_fix_rows(rows) for rows in _blocks(weight)]
    high, low, scale = (np.concatenate([block[part] for block in made]) for part in range(3))
    return high.reshape(weight.shape), low.reshape(weight.shape), scale.reshape(weight.shape[:-1])


def _fix_rows(rows: Array) -> tuple[Array, Array, Array]:
    scale = _scales(rows)
    codes = np.rint(rows * (2.0**BITS / scale)).astype(np.int32)
    np.clip(codes, 1 - 2**BITS, 2**BITS - 1, out=codes)
    lost = (codes == 0) & (rows != 0)
    codes[lost] = np.sign(rows[lost]).astype(np.int32)
    return (codes >> 8).astype(np.int16), (codes & 255).astype(np.uint8), scale[..., 0].astype(np.float32)


def unfix(high: Array, low: Array, scale: Array) -> Array:
    """The weight, in double precision."""
    return (high.astype(np.float64) * LOW + low) * SHIFT * scale.astype(np.float64)[..., None]


def _scales(rows: Array) -> Array:
    """For each row the power of two above its largest weight; 1 where all are 0."""
    largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0).astype(np.float64)
    return np.where(largest > 0, np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0))) + 1), 1.0)


def fixed_term(x: Expr, high: Expr, low: Expr) -> Expr:
    """The product of a number with a weight, in units of its scale. A float32 holds the whole number exactly."""
    return x * te.const(SHIFT, "float32") * (high.astype("int32") * LOW + low.astype("int32")).astype("float32")
