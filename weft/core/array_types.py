"""Element types and shapes of arrays, as far as running a model needs them: numpy's own, and those of ml_dtypes.

ml_dtypes (bfloat16, float8 and types of 2 and 4 bits) is imported when such a type is asked for: a model without them
runs where it is not installed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import DTypeError

PLAIN = tuple(
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool complex64 complex128".split()
)
NARROW = tuple(
    "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn "
    "int2 uint2 int4 uint4".split()
)
"""Types that numpy has from ml_dtypes; narrow ones lie one a byte."""


@functools.cache
def numpy_type(name: str) -> np.dtype[Any]:
    """The numpy type of arrays of an element type; a DTypeError for one that does not exist, or is not installed."""
    if name in NARROW:
        try:
            import ml_dtypes
        except ImportError:
            raise DTypeError(
                f"arrays of {name} need the package ml_dtypes, which is not installed: pip install ml_dtypes"
            ) from None
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    if name not in PLAIN and name != "string":
        raise DTypeError(f"unknown element type {name!r}; known are {', '.join((*PLAIN, *NARROW, 'string'))}")
    return np.dtype(object if name == "string" else name)


@functools.cache
def narrow_types() -> tuple[str, ...]:
    """The narrow types that arrays can have here: all of them, or none where ml_dtypes is not installed."""
    try:
        numpy_type("bfloat16")
    except DTypeError:
        return ()
    return NARROW


def element_bytes(name: str) -> int:
    """The bytes of one element that is no string; no package is asked for it."""
    return 2 if name == "bfloat16" else 1 if name in NARROW else numpy_type(name).itemsize


def element_name(array_type: Any) -> str | None:
    """The element type that a numpy dtype stands for; None where it is none."""
    return _name(np.dtype(array_type))


@functools.lru_cache(maxsize=256)
def _name(kind: np.dtype[Any]) -> str | None:
    if kind.kind in "OUS":
        return "string"
    known = kind.name in PLAIN or kind.name in NARROW
    return kind.name if known and numpy_type(kind.name) == kind else None


class ArrayType:
    """An element type and a shape of numbers; names or expressions stand for sizes that are open."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: str, shape: Sequence[Any] | None) -> None:
        self.dtype = dtype
        self.shape: tuple[Any, ...] | None = None if shape is None else tuple(shape)

    @property
    def static(self) -> tuple[int, ...]:
        """The shape, where it is one of numbers."""
        assert self.is_static
        return self.shape or ()

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return self.shape is not None and all(isinstance(size, int) for size in self.shape)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of its arrays."""
        return numpy_type(self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}[{'...' if self.shape is None else ', '.join(map(str, self.shape))}]"
