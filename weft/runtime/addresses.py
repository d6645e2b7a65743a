"""Where the elements of a numpy array lie, found quickly; and how arrays look in memory, for `weft_call`."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np


class ArrayHead(ctypes.Structure):
    """The beginning of a numpy array object in CPython: its `ctypes.data` costs ten times as much."""

    _fields_ = [("object", ctypes.c_byte * object.__basicsize__), ("data", ctypes.c_size_t)]


def _head_is_readable() -> bool:
    """Whether numpy arrays look in memory as `ArrayHead` says."""
    if sys.implementation.name != "cpython":
        return False
    samples: list[np.ndarray[Any, Any]] = [np.zeros(3, np.float32), np.zeros((2, 0)), np.arange(10, dtype=np.int8)[5:]]
    return all(ArrayHead.from_address(id(sample)).data == sample.ctypes.data for sample in samples)


_HEAD_IS_READABLE = _head_is_readable()
ADDRESS_SOURCE = "head(id({0})).data" if _HEAD_IS_READABLE else "{0}.ctypes.data"
"""Python source of the address of the numpy array in a variable; `head` is `ArrayHead.from_address`."""


def address_of(array: np.ndarray[Any, Any]) -> int:
    """The address of an array's first element."""
    return int(ArrayHead.from_address(id(array)).data if _HEAD_IS_READABLE else array.ctypes.data)


_OBJECT = object.__basicsize__
ITEMS = tuple.__basicsize__
"""Where the items of a tuple begin in it."""
OFFSETS = (_OBJECT - 8, _OBJECT, _OBJECT + 8, _OBJECT + 16, _OBJECT + 40, _OBJECT + 48, _OBJECT, _OBJECT + 8)
"""Where an array has its type, elements, rank, sizes, element type and flags; where an element type has its scalar and
the word that begins with kind, letter and byte order."""
LOCK = tuple(
    ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
    for name in ("PyEval_SaveThread", "PyEval_RestoreThread")
)
"""The interpreter's functions that give its lock back, and take it."""


def _word(place: int) -> int:
    return ctypes.c_int64.from_address(place).value


def array_row(dtype: np.dtype[Any]) -> list[int]:
    """Of arrays with such elements: the words for type, element type, its scalar, and the one with the byte order."""
    return [id(np.ndarray), id(dtype), _word(id(dtype) + OFFSETS[6]), _word(id(dtype) + OFFSETS[7])]


def _objects_are_readable() -> bool:
    """Whether arrays and tuples look in memory as `OFFSETS` and `ITEMS` say."""
    if not _HEAD_IS_READABLE or sys.byteorder != "little":
        return False
    samples: list[np.ndarray[Any, Any]] = [np.zeros((3, 5), np.float32), np.zeros(7, ">i8")[::2], np.zeros((2, 0, 4))]
    samples[0].flags.writeable = False
    for sample in samples:
        kind, data, rank, sizes, element, flags = (id(sample) + offset for offset in OFFSETS[:6])
        dtype, held = sample.dtype, (sample,)
        order = dtype.kind + dtype.char + {"=": "<"}.get(dtype.byteorder, dtype.byteorder)
        found = [_word(kind), _word(data), _word(rank) & 0xFFFFFFFF, _word(element), _word(flags) & 0xFFFF]
        found += [_word(_word(sizes) + 8 * axis) for axis in range(sample.ndim)]
        found += [_word(id(dtype) + OFFSETS[6]), _word(id(held) + ITEMS)]
        wanted = [id(np.ndarray), sample.ctypes.data, sample.ndim, id(dtype), sample.flags.num, *sample.shape]
        read = (_word(id(dtype) + OFFSETS[7]) & 0xFFFFFF).to_bytes(3, "little").decode("latin-1")
        if found != [*wanted, id(dtype.type), id(sample)] or read.replace("=", "<") != order:
            return False
    return True


OBJECTS_ARE_READABLE = _objects_are_readable()
