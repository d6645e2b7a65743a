"""DLPack: memory shared with other array libraries, without a copy.

In: an object with `__dlpack__` (a torch tensor, a jax array, …). Out: a numpy array over the same memory, which keeps
the object's memory alive. And the other way round for bfloat16, which numpy itself cannot export.

numpy's own `from_dlpack` knows no bfloat16, so the tensor's description is read here. The capsule is not consumed: the
array holds it, and when the last view of the array goes, the capsule's own destructor gives the memory back.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from weft.core.dtypes import BFLOAT16, DType, dtype, names
from weft.core.errors import ArgumentError

CPU_DEVICES = (1, 3)
"""DLPack's numbers for devices whose memory the processor reads: plain memory, and memory pinned for CUDA."""

_DEVICE_NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}
_BFLOAT_CODE = 4
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": _BFLOAT_CODE, "bool": 6}
_ELEMENTS = {
    (_CODES[kind.kind], kind.bits): kind for kind in map(dtype, names()) if kind.kind in _CODES and not kind.is_packed
}
_READ_ONLY_FLAG = 1


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _VersionedManaged(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_LAYOUTS = {b"dltensor": _Managed, b"dltensor_versioned": _VersionedManaged}

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


class _SharedMemory:
    """What numpy makes an array from; the array keeps it, and it keeps the capsule."""

    def __init__(self, capsule: Any, interface: dict[str, Any]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


def import_array(value: Any) -> np.ndarray[Any, Any]:
    """A numpy array over the memory of an object with `__dlpack__`. Raises ArgumentError when it is not possible."""
    try:
        device = int(value.__dlpack_device__()[0])
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ArgumentError(f"it has no memory that can be shared: {error}") from error
    if device not in CPU_DEVICES:
        name = _DEVICE_NAMES.get(device, f"DLPack device {device}")
        raise ArgumentError(f"its memory is on {name}; copy it to the CPU first (for a torch tensor: .cpu())")
    if hasattr(value, "is_neg") and value.is_neg():  # z.conj().imag: torch says nothing of it to DLPack
        raise ArgumentError("its memory holds the negatives of its elements (for a torch tensor: .resolve_neg())")
    try:
        capsule = _export_capsule(value)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ArgumentError(f"it cannot be shared: {error} (for a torch tensor: .detach(), .resolve_conj())") from error
    managed = _description(capsule)
    read_only = isinstance(managed, _VersionedManaged) and bool(managed.flags & _READ_ONLY_FLAG)
    return _array_over(capsule, managed.tensor, read_only)


def export_capsule(array: np.ndarray[Any, Any], **options: Any) -> Any:
    """A DLPack capsule of a numpy array, bfloat16 included. Options that are None are left to numpy's default."""
    given = {key: option for key, option in options.items() if option is not None}
    if array.dtype != BFLOAT16.numpy:
        return array.__dlpack__(**given)
    # numpy exports the same memory as uint16 and looks after its lifetime; only the name of the type is put right.
    capsule = array.view(np.uint16).__dlpack__(**given)
    _description(capsule).tensor.code = _BFLOAT_CODE
    return capsule


def _export_capsule(value: Any) -> Any:
    """The newest kind of capsule that the object makes: only that one says whether the memory is read-only."""
    try:
        return value.__dlpack__(max_version=(1, 0))
    except TypeError:
        return value.__dlpack__()


def _description(capsule: Any) -> Any:
    for name, layout in _LAYOUTS.items():
        if _is_valid(capsule, name):
            return layout.from_address(_get_pointer(capsule, name))
    raise ArgumentError("its __dlpack__ gave no unused DLPack capsule")


def _array_over(capsule: Any, tensor: Any, read_only: bool) -> np.ndarray[Any, Any]:
    element = _element_type(tensor)
    shape = tuple(tensor.shape[: tensor.rank])
    if 0 in shape:
        return np.empty(shape, element.numpy)
    interface: dict[str, Any] = {
        "version": 3,
        "shape": shape,
        "typestr": "<u2" if element is BFLOAT16 else element.numpy.str,
        "data": (tensor.data + tensor.byte_offset, read_only),
    }
    if tensor.strides:
        interface["strides"] = tuple(stride * element.bytes for stride in tensor.strides[: tensor.rank])
    array = np.asarray(_SharedMemory(capsule, interface))
    return array.view(element.numpy) if element is BFLOAT16 else array


def _element_type(tensor: Any) -> DType:
    found = _ELEMENTS.get((tensor.code, tensor.bits))
    if found is None or tensor.lanes != 1:
        what = f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise ArgumentError(f"its element type ({what}) is none that Weft has; convert it first")
    return found
