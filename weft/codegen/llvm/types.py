"""Data types and literals as LLVM text.

    float32 -> float      float32x16 -> <16 x float>      bool -> i1 (a byte, i8, in memory)      handle -> ptr

float16 and bfloat16 are carried as i16, their bits: loads, stores, selects and broadcasts then work on every machine,
and only `convert` knows how a machine turns them into float32 and back.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.dtypes import DType

_SCALARS = {"float32": "float", "float64": "double", "float16": "i16", "bfloat16": "i16", "bool": "i1", "handle": "ptr"}
_CACHE: dict[DType, str] = {}
_MEMORY: dict[DType, str] = {}
_SUFFIX = {"float": "f32", "double": "f64", "ptr": "p0"}


def vector(element: str, lanes: int) -> str:
    """A vector type, or the element itself for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def llvm_type(dtype: DType) -> str:
    """The type of a value in a register."""
    found = _CACHE.get(dtype)
    if found is None:
        scalar = dtype.scalar
        found = vector(_SCALARS.get(scalar.name) or f"i{scalar.bits}", dtype.lanes)
        _CACHE[dtype] = found
    return found


def memory_type(dtype: DType) -> str:
    """The type of a value in memory: a bool takes a byte."""
    found = _MEMORY.get(dtype)
    if found is None:
        found = vector("i8", dtype.lanes) if dtype.is_bool else llvm_type(dtype)
        _MEMORY[dtype] = found
    return found


def mangle(type_text: str) -> str:
    """The part of an overloaded LLVM intrinsic's name that stands for a type: v16f32 for <16 x float>."""
    if type_text[0] == "<":
        lanes, element = type_text[1:-1].split(" x ")
        return f"v{lanes}{_SUFFIX.get(element, element)}"
    return _SUFFIX.get(type_text, type_text)


def float_literal(value: float, element: str) -> str:
    """A float or double literal, exact: LLVM reads sixteen hexadecimal digits as the bits of a double."""
    if element == "float":
        try:
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        except OverflowError:
            value = math.copysign(math.inf, value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def half_bits(value: float, dtype: DType) -> int:
    """The 16 bits of a float16 or bfloat16."""
    kind: Any = np.float16 if dtype.kind == "float" else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        return int(np.asarray(np.float64(value).astype(kind)).view(np.uint16))


def literal(value: Any, dtype: DType) -> str:
    """A constant of a scalar dtype."""
    if dtype.is_float:
        return str(half_bits(value, dtype)) if dtype.bits == 16 else float_literal(value, _SCALARS[dtype.name])
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.kind == "handle":
        return f"inttoptr (i64 {int(value)} to ptr)"
    return str(int(value))


def splat(element: str, text: str, lanes: int) -> str:
    """A constant in every lane."""
    return text if lanes == 1 else f"splat ({element} {text})"


def constant_vector(element: str, values: Any) -> str:
    """A vector literal of integers."""
    return "<" + ", ".join(f"{element} {value}" for value in values) + ">"


def quote(symbol: str) -> str:
    """A symbol as LLVM text writes it."""
    plain = symbol.replace("_", "a").replace(".", "a")
    return f"@{symbol}" if plain.isascii() and plain.isalnum() and not symbol[0].isdigit() else f'@"{symbol}"'
