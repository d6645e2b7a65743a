"""C types and literals of data types.

A value in a register and the same value in memory may have different types:

    dtype                 register      memory
    float16, bfloat16     float         uint16_t      computed in float32, rounded after each operation
    bool                  bool          uint8_t
    anything else         its C type    its C type
"""

from __future__ import annotations

import math

import numpy as np

from weft.codegen.c.dialects import Dialect
from weft.core.dtypes import DType
from weft.core.errors import InternalError


def is_half(dtype: DType) -> bool:
    """Whether this is a 16-bit float."""
    return dtype.is_float and dtype.bits == 16


def register_type(dtype: DType) -> str:
    """The C type of one lane in an expression."""
    if is_half(dtype):
        return "float"
    return "bool" if dtype.is_bool else memory_type(dtype)


def memory_type(dtype: DType) -> str:
    """The C type of one element in memory."""
    if dtype.is_packed:
        raise InternalError(f"the packed dtype {dtype} should have become bytes")
    if dtype.is_float:
        return {16: "uint16_t", 32: "float", 64: "double"}[dtype.bits]
    if dtype.is_bool:
        return "uint8_t"
    if dtype.kind == "handle":
        return "void *"
    return f"{dtype.kind}{dtype.bits}_t"


def wrapping_type(dtype: DType) -> str:
    """The unsigned type in which arithmetic of an integer dtype wraps without harm."""
    return "uint64_t" if dtype.bits == 64 else "uint32_t"


def literal(value: object, dtype: DType, dialect: Dialect) -> str:
    """A constant of a scalar dtype."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_float:
        assert isinstance(value, (int, float))
        return _float_literal(float(value), dtype, dialect)
    assert isinstance(value, int)
    if dtype.kind == "uint":
        return f"{value}u" if value < 1 << 32 else f"{value}u{dialect.long_suffix}"
    if value == -(1 << 63):
        return f"(-{(1 << 63) - 1}{dialect.long_suffix} - 1)"
    if value == -(1 << 31):
        return f"(-{(1 << 31) - 1} - 1)"
    text = str(value) if abs(value) < 1 << 31 else f"{value}{dialect.long_suffix}"
    return text if value >= 0 else f"({text})"


def _float_literal(value: float, dtype: DType, dialect: Dialect) -> str:
    with np.errstate(all="ignore"):
        rounded = float(np.float64(value).astype(dtype.numpy))
    wide = dtype.bits == 64
    if math.isnan(rounded):
        return dialect.nan[wide]
    if math.isinf(rounded):
        return dialect.infinity[wide] if rounded > 0 else f"(-{dialect.infinity[wide]})"
    text = repr(rounded) if wide else f"{_shortest(rounded)}f"
    return f"({text})" if text.startswith("-") else text


def _shortest(value: float) -> str:
    text = str(np.float32(value))
    return text if "." in text or "e" in text else text + ".0"
