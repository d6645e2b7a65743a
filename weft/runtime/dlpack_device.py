"""DLPack for memory that the processor does not read: capsules of other libraries taken apart, and capsules of ours.

In: a capsule -> address, shape and element type, where the elements lie one after the other. And the other way round:
an address with an object that keeps it alive -> a capsule, whose consumer lets go of the object when it is done.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.dtypes import DType
from weft.core.errors import ArgumentError
from weft.runtime.dlpack import _CODES, _description, _element_type, _Managed


@dataclass(frozen=True)
class DeviceTensor:
    """What a capsule describes."""

    address: int
    shape: tuple[int, ...]
    dtype: DType


def borrow_capsule(capsule: Any) -> DeviceTensor:
    """The contents of a capsule that is not consumed: whoever holds it keeps the memory alive."""
    tensor = _description(capsule).tensor
    shape = tuple(int(size) for size in tensor.shape[: tensor.rank])
    if tensor.strides and not _is_contiguous(shape, tensor.strides[: tensor.rank]):
        raise ArgumentError("its elements do not lie one after the other: make it contiguous first")
    return DeviceTensor(int(tensor.data or 0) + int(tensor.byte_offset), shape, _element_type(tensor))


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return 0 in shape or all(n == 1 or s == w for n, s, w in zip(shape, strides, contiguous_strides(shape)))


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """The strides, in elements, of an array whose elements lie one after the other."""
    steps = list(itertools.accumulate(reversed(shape), lambda a, b: a * b, initial=1))
    return steps[-2::-1]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR], ctypes.py_object
_check_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NAME = b"dltensor"
_alive: dict[int, Any] = {}
"""What shared memory belongs to, by the address of its description, until the consumer is done."""


def _delete(address: int) -> None:
    _alive.pop(address, None)


def _destroy(capsule: int) -> None:
    """A capsule that nobody consumed goes, and with it the memory."""
    if _check_name(capsule, _NAME):
        _alive.pop(int(_pointer_of(capsule, _NAME) or 0), None)


_delete_in_c = _DELETER(_delete)
_destroy_in_c = _DESTRUCTOR(_destroy)


def export_device(address: int, shape: Sequence[int], dtype: DType, device: tuple[int, int], owner: Any) -> Any:
    """A capsule of memory on a device (type and number, as DLPack counts them); `owner` lives as long as it is used."""
    managed = _Managed()
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    strides = (ctypes.c_int64 * max(len(shape), 1))(*contiguous_strides(shape))
    tensor = managed.tensor
    tensor.data, tensor.byte_offset = address, 0
    tensor.device_type, tensor.device_id = device
    tensor.rank, tensor.lanes = len(shape), 1
    tensor.code, tensor.bits = _CODES[dtype.kind], dtype.bits
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_delete_in_c, ctypes.c_void_p)
    place = ctypes.addressof(managed)
    _alive[place] = (managed, sizes, strides, owner)
    return _new_capsule(place, _NAME, _destroy_in_c)
