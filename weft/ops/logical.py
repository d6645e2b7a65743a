"""Elementwise logic: comparisons, connectives of bool, bits of integers, and tests for infinity and NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Infer, Use
from weft.ops.elementwise_support import elementwise, infer_comparison, infer_same

# ----------------------------------------------------------------------------------------------------- comparisons

elementwise("Equal", lambda c, a, b: a == b, lambda c, a, b: te.equal(a, b), infer_comparison, traits="cheap")
elementwise("Greater", lambda c, a, b: a > b, lambda c, a, b: a > b, infer_comparison, "number", traits="cheap")
elementwise(
    "GreaterOrEqual", lambda c, a, b: a >= b, lambda c, a, b: a >= b, infer_comparison, "number", traits="cheap"
)
elementwise("Less", lambda c, a, b: a < b, lambda c, a, b: a < b, infer_comparison, "number", traits="cheap")
elementwise("LessOrEqual", lambda c, a, b: a <= b, lambda c, a, b: a <= b, infer_comparison, "number", traits="cheap")

# ------------------------------------------------------------------------------------------------------ connectives

elementwise("And", lambda c, a, b: a & b, lambda c, a, b: a & b, infer_comparison, "bool", traits="cheap")
elementwise("Or", lambda c, a, b: a | b, lambda c, a, b: a | b, infer_comparison, "bool", traits="cheap")
elementwise("Xor", lambda c, a, b: a ^ b, lambda c, a, b: a ^ b, infer_comparison, "bool", traits="cheap")
elementwise("Not", lambda c, a: ~a, lambda c, a: te.not_(a), infer_same, "bool", traits="cheap")

# ------------------------------------------------------------------------------------------------------------- bits


def _shift(c: Use, x: Array, amount: Array) -> Array:
    """A shift by a negative amount, or by all the bits, leaves only what the sign fills in."""
    outside = (amount < 0) | (amount >= x.dtype.itemsize * 8)
    safe = np.where(outside, np.zeros_like(amount), amount)
    if c.need("direction") == "LEFT":
        return np.where(outside, np.zeros_like(x), x << safe)
    return np.where(outside, np.where(x < 0, np.array(-1 if x.dtype.kind == "i" else 0, x.dtype), 0), x >> safe)


def _shift_expression(c: Use, x: Expr, amount: Expr) -> Expr:
    kind, bits = x.dtype, x.dtype.bits
    outside = amount >= bits if kind.kind == "uint" else te.any(amount < 0, amount >= bits)
    safe = te.select(outside, te.const(0, kind), amount)
    if c.need("direction") == "LEFT":
        return te.select(outside, te.const(0, kind), x << safe)
    fill = te.const(0, kind) if kind.kind == "uint" else te.select(x < 0, te.const(-1, kind), te.const(0, kind))
    return te.select(outside, fill, x >> safe)


elementwise("BitShift", _shift, _shift_expression, types="int", traits="traps")
elementwise("BitwiseAnd", lambda c, a, b: a & b, lambda c, a, b: a & b, types="int", traits="cheap")
elementwise("BitwiseOr", lambda c, a, b: a | b, lambda c, a, b: a | b, types="int", traits="cheap")
elementwise("BitwiseXor", lambda c, a, b: a ^ b, lambda c, a, b: a ^ b, types="int", traits="cheap")
elementwise("BitwiseNot", lambda c, a: ~a, lambda c, a: ~a, infer_same, "int", traits="cheap")

# ------------------------------------------------------------------------------------------------ infinity and NaN


def _infer_test(c: Infer) -> Sequence[Type]:
    return [TensorType("bool", c.tensor(0).shape)]


def _numbers(x: Array) -> Array:
    """float8 has no tests of its own."""
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def _is_infinite(c: Use, x: Array) -> Array:
    x = _numbers(x)
    up, down = c.get("detect_positive", 1), c.get("detect_negative", 1)
    return np.asarray((np.isposinf(x) if up else np.zeros(x.shape, bool)) | (np.isneginf(x) if down else False))


def _is_infinite_expression(c: Use, x: Expr) -> Any:
    up, down = c.get("detect_positive", 1), c.get("detect_negative", 1)
    if up and down:
        return te.isinf(x)
    if not up and not down:
        return te.const(False, "bool")
    return te.equal(x, te.const(float("inf") if up else float("-inf"), x.dtype))


_FLOAT8 = "float8_e4m3fn|float8_e4m3fnuz|float8_e5m2|float8_e5m2fnuz"
elementwise("IsInf", _is_infinite, _is_infinite_expression, _infer_test, f"float|{_FLOAT8}")
elementwise("IsNaN", lambda c, x: np.isnan(_numbers(x)), lambda c, x: te.isnan(x), _infer_test, f"float|{_FLOAT8}")
