"""Data types: one interned object per (kind, bits, lanes), so that `is` compares them.

    float16 float32 float64 bfloat16 float8_e4m3fn float8_e5m2
    int1 int2 int4 int8 int16 int32 int64 (and uint…)      bool      handle

A vector type carries lanes: `float32x16`. Types narrower than 8 bits are stored packed, low bits first.
"""

from __future__ import annotations

import re
from typing import Any, Union

import numpy as np

from weft.core.array_types import numpy_type
from weft.core.errors import DTypeError

_KINDS = {
    "float": (16, 32, 64),
    "bfloat": (16,),
    "float8_e4m3fn": (8,),
    "float8_e5m2": (8,),
    "int": (1, 2, 4, 8, 16, 32, 64),
    "uint": (1, 2, 4, 8, 16, 32, 64),
    "bool": (8,),
    "handle": (64,),
}
_INTERNED: dict[tuple[str, int, int], "DType"] = {}
_BY_NAME: dict[str, "DType"] = {}
_WHOLE = {"bool": 8, "handle": 64, "float8_e4m3fn": 8, "float8_e5m2": 8}
"""Kinds of one width, whose name says it all."""
_PATTERN = re.compile(rf"({'|'.join(_WHOLE)}|float|bfloat|int|uint)(\d*)(?:x(\d+))?$")


class DType:
    """A scalar or vector type. Made by `dtype(name)`, never directly."""

    __slots__ = ("kind", "bits", "lanes", "name", "scalar", "is_float", "is_integer", "is_signed", "is_bool")
    kind: str
    bits: int
    lanes: int
    name: str
    scalar: "DType"
    """The element type."""
    is_float: bool
    """float8 of either form, float16, bfloat16, float32 or float64."""
    is_integer: bool
    """A signed or unsigned integer (not bool)."""
    is_signed: bool
    """A signed integer."""
    is_bool: bool

    def with_lanes(self, lanes: int) -> "DType":
        """The same element type with so many lanes."""
        return self if lanes == self.lanes else _intern(self.kind, self.bits, lanes)

    @property
    def is_packed(self) -> bool:
        """Narrower than a byte: several elements share one byte in memory."""
        return self.bits < 8

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory (1 for packed types, which share it)."""
        return max(1, self.bits // 8)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type that holds one element (packed types: the uint8 they are packed in)."""
        if self.is_packed:
            return np.dtype(np.uint8)
        if self.is_float and self.kind != "float":
            return numpy_type(self.scalar.name)
        if self.kind == "handle":
            return np.dtype(np.uint64)
        return np.dtype("bool" if self.is_bool else f"{self.kind}{self.bits}")

    @property
    def min(self) -> Any:
        """The least value (minus infinity for floats)."""
        if self.is_float:
            return float("-inf")
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def max(self) -> Any:
        """The greatest value (infinity for floats)."""
        if self.is_float:
            return float("inf")
        if self.is_bool:
            return True
        return (1 << (self.bits - 1)) - 1 if self.is_signed else (1 << self.bits) - 1

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return (dtype, (self.name,))


DTypeLike = Union[DType, str, type, "np.dtype[Any]"]


def _intern(kind: str, bits: int, lanes: int) -> DType:
    found = _INTERNED.get((kind, bits, lanes))
    if found is None:
        found = DType()
        found.kind, found.bits, found.lanes = kind, bits, lanes
        found.is_float, found.is_integer = "float" in kind, kind in ("int", "uint")
        found.is_signed, found.is_bool = kind == "int", kind == "bool"
        found.scalar = found if lanes == 1 else _intern(kind, bits, 1)
        base = kind if kind in _WHOLE else f"{kind}{bits}"
        found.name = base if lanes == 1 else f"{base}x{lanes}"
        found = _INTERNED.setdefault((kind, bits, lanes), found)  # another thread may have been quicker
        _BY_NAME[found.name] = found
    return found


def dtype(like: DTypeLike) -> DType:
    """The data type that a name, a numpy type or a DType stands for."""
    if type(like) is DType:
        return like
    if type(like) is str:
        found = _BY_NAME.get(like)
        if found is not None:
            return found
        match = _PATTERN.match(like)
        if match:
            kind, bits_text, lanes_text = match.groups()
            bits = int(bits_text) if bits_text else _WHOLE.get(kind, 0)
            lanes = int(lanes_text) if lanes_text else 1
            if bits in _KINDS[kind] and 1 <= lanes <= 4096 and not (bits_text and kind in _WHOLE):
                return _intern(kind, bits, lanes)
        raise DTypeError(f"unknown dtype {like!r}; known are {', '.join(names())}")
    try:
        name = np.dtype(like).name  # type: ignore[arg-type]
    except TypeError:
        raise DTypeError(f"{like!r} is not a dtype; give a name such as 'float32' or a numpy dtype") from None
    return dtype(name)


def names() -> list[str]:
    """Names of every scalar type."""
    out = []
    for kind, widths in _KINDS.items():
        out += [kind] if kind in _WHOLE else [f"{kind}{bits}" for bits in widths]
    return out


FLOAT16, FLOAT32, FLOAT64, BFLOAT16 = dtype("float16"), dtype("float32"), dtype("float64"), dtype("bfloat16")
INT8, INT32, INT64, UINT8 = dtype("int8"), dtype("int32"), dtype("int64"), dtype("uint8")
FLOAT8 = dtype("float8_e4m3fn"), dtype("float8_e5m2")
BOOL, HANDLE = dtype("bool"), dtype("handle")
INDEX = INT64
"""The type of loop variables, sizes and indices."""
