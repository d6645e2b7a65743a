"""DLPack for memory that the processor does not read: capsules of other libraries taken apart, and capsules of ours.

In: a capsule -> address, shape and element type, where the elements lie one after the other. And the other way round:
an address with an object that keeps it alive -> a capsule, whose consumer lets go of the object when it is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import ArgumentError
from weft.runtime.dlpack import _CODES, _description, _element_type, _SharedMemory


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


def export_device(address: int, shape: Sequence[int], dtype: DType, device: tuple[int, int], owner: Any) -> Any:
    """A capsule of memory on a device (type and number, as DLPack counts them); `owner` lives as long as it is used.

    numpy makes the capsule, of an array that stands at the device's address and is never read: so its lifetime ends in
    C, where a consumer may let go of it at any moment, also while an exception is on its way.
    """
    interface = {"version": 3, "shape": tuple(shape), "typestr": f"<u{dtype.bytes}", "data": (address, False)}
    capsule = np.asarray(_SharedMemory(owner, interface)).__dlpack__()
    tensor = _description(capsule).tensor
    tensor.device_type, tensor.device_id = device
    tensor.code, tensor.bits = _CODES[dtype.kind], dtype.bits
    return capsule
