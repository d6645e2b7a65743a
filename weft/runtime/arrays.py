"""Arrays: what a compiled function takes, and a small container for the types that numpy lacks.

In: numpy arrays, anything with `__dlpack__`, and `Array`. Out: numpy arrays over the same memory, never a copy.

A compiled function reads plain numpy arrays; `Array` adds a Weft dtype to one, so that bfloat16 goes through DLPack and
packed types (int4, uint1, …) keep their logical shape. Packed elements lie along the last axis, low bits first:

    int4 [1, -2, 3]  ->  uint8 [0xE1, 0x03]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import DType, DTypeLike, dtype
from weft.core.errors import ArgumentError, DTypeError, ShapeError
from weft.runtime.dlpack import export_capsule, import_array

ALIGNMENT = 64
"""Arrays made here start at a multiple of so many bytes."""

AnyArray = np.ndarray[Any, Any]


class Array:
    """A numpy array with a Weft dtype and a logical shape; made by `empty`, `array` and `from_dlpack`."""

    __slots__ = ("_storage", "dtype", "shape", "__weakref__")

    def __init__(self, storage: AnyArray, element: DTypeLike | None = None, shape: Sequence[int] | None = None) -> None:
        self._storage = storage
        self.dtype = _numpy_element(storage.dtype) if element is None else dtype(element)
        self.shape = tuple(storage.shape) if shape is None else tuple(int(extent) for extent in shape)
        if storage.dtype != self.dtype.numpy or tuple(storage.shape) != storage_shape(self.shape, self.dtype):
            raise ShapeError(
                f"a {self.dtype} array of shape {self.shape} is stored as {self.dtype.numpy} of shape "
                f"{storage_shape(self.shape, self.dtype)}, not as {describe(storage)}"
            )

    def numpy(self) -> AnyArray:
        """The memory as a numpy array, not copied (packed types: the bytes)."""
        return self._storage

    def unpacked(self) -> AnyArray:
        """The values one element each: a copy for packed types, the memory itself for the others."""
        return unpack(self._storage, self.dtype, self.shape[-1]) if self.dtype.is_packed else self._storage

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        values = self.unpacked()
        if copy is False and (self.dtype.is_packed or (dtype is not None and values.dtype != dtype)):
            raise ValueError("a copy is needed to give this array as that type")
        converted = values if dtype is None else values.astype(dtype, copy=False)
        return converted.copy() if copy else converted

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        return export_capsule(self._storage, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of no axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Array({self.unpacked()!r}, {self.dtype}, shape={self.shape})"


def empty(shape: int | Sequence[int], element: DTypeLike = "float32") -> Array:
    """A new array whose contents are undefined, 64-byte aligned."""
    kind = _storable(element)
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(isinstance(extent, bool) or not hasattr(extent, "__index__") or extent < 0 for extent in extents):
        raise ShapeError(f"the shape {shape!r} is none; give whole numbers from 0 up")
    stored = storage_shape(extents, kind)
    size = math.prod(stored) * kind.numpy.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return Array(memory[start : start + size].view(kind.numpy).reshape(stored), kind, extents)


def array(value: Any, element: DTypeLike | None = None) -> Array:
    """A new array with a copy of the values (a list, a numpy array, a torch tensor, …), converted to the dtype."""
    if isinstance(value, Array):
        values, own = value.unpacked(), value.dtype
    else:
        foreign = _speaks_dlpack(value) and not isinstance(value, np.ndarray)
        values, own = import_array(value) if foreign else _as_numpy(value), None
    kind = _storable(element) if element is not None else own or _numpy_element(values.dtype)
    made = empty(values.shape, kind)
    made.numpy()[...] = pack(values, kind) if kind.is_packed else values.astype(kind.numpy, copy=False)
    return made


def from_dlpack(value: Any) -> Array:
    """An array over the memory of an object with `__dlpack__`, not copied."""
    if not _speaks_dlpack(value):
        raise ArgumentError(f"{describe(value)} has no __dlpack__; give a torch tensor, a numpy array, …")
    shared = value if isinstance(value, np.ndarray) else import_array(value)
    return Array(shared)


def as_argument(value: Any, element: DType, where: str) -> AnyArray:
    """The numpy array over an argument's memory, whose type is checked. `where` begins the error message."""
    if isinstance(value, Array):
        given, found = value.dtype, value.numpy()
        matches = given is element
    else:
        if isinstance(value, np.ndarray):
            found = value
        elif _speaks_dlpack(value):
            try:
                found = import_array(value)
            except ArgumentError as error:
                raise ArgumentError(f"{where}: {describe(value)} was given, but {error}") from error
        else:
            raise ArgumentError(
                f"{where}: expected an array of {element}, but {describe(value)} was given; "
                f"make an array of it, for example with numpy.asarray(value, {element.numpy.name!r})"
            )
        matches = found.dtype == element.numpy
    if not matches:
        stored = f" (packed into {element.numpy.name})" if element.is_packed else ""
        raise ArgumentError(
            f"{where}: expected an array of {element}{stored}, but {describe(value)} was given; "
            + (
                f"pack it with weft.runtime.array(values, '{element}')"
                if element.is_packed
                else f"convert it with .astype('{element}')"
            )
        )
    return found


def describe(value: Any) -> str:
    """What was given, in words, for error messages."""
    if isinstance(value, (Array, np.ndarray)):
        return f"a {value.dtype} array of shape {tuple(value.shape)}"
    kind = type(value)
    name = kind.__name__ if kind.__module__ in ("builtins", "numpy") else f"{kind.__module__}.{kind.__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {name} of {value.dtype} and shape {tuple(value.shape)}"
    text = repr(value)
    return f"{name} {text}" if len(text) <= 60 else f"a {name}"


def storage_shape(shape: Sequence[int], element: DType) -> tuple[int, ...]:
    """The shape of the numpy array that holds an array of this logical shape."""
    if not element.is_packed:
        return tuple(shape)
    if not shape:
        raise ShapeError(f"{element} is packed along the last axis, so an array of it has at least one axis")
    return (*shape[:-1], -(-shape[-1] * element.bits // 8))


def pack(values: AnyArray, element: DTypeLike) -> AnyArray:
    """Integers packed into bytes along the last axis, low bits first. Values wrap, as a conversion in C does."""
    kind = dtype(element)
    stored = storage_shape(values.shape, kind)
    per_byte = 8 // kind.bits
    small = np.asarray(values).astype(np.int64).astype(np.uint8) & np.uint8((1 << kind.bits) - 1)
    padded = np.zeros((*stored[:-1], stored[-1] * per_byte), np.uint8)
    padded[..., : values.shape[-1]] = small
    groups = padded.reshape(*stored, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(kind.bits)
    packed: AnyArray = np.bitwise_or.reduce(groups << shifts, axis=-1)
    return packed


def unpack(storage: AnyArray, element: DTypeLike, length: int) -> AnyArray:
    """The values of a packed array, as int8 or uint8; the last axis has `length` of them."""
    kind = dtype(element)
    shifts = np.arange(8 // kind.bits, dtype=np.uint8) * np.uint8(kind.bits)
    small = (storage[..., None] >> shifts) & np.uint8((1 << kind.bits) - 1)
    flat = small.reshape(*storage.shape[:-1], storage.shape[-1] * len(shifts))[..., :length]
    if not kind.is_signed:
        return np.ascontiguousarray(flat)
    sign = np.uint8(1 << (kind.bits - 1))
    # Adding and taking away the sign bit spreads it over the bits above.
    values: AnyArray = (flat ^ sign).astype(np.int8) - sign.astype(np.int8)
    return values


# Types that numpy does not count among its numbers.
_NAMED_KINDS = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"})


def _as_numpy(value: Any) -> AnyArray:
    try:
        values = np.asarray(value)
    except ValueError:
        values = np.empty((), object)
    if values.dtype.kind in "biuf" or values.dtype.name in _NAMED_KINDS:
        return values
    raise DTypeError(f"{describe(value)} is no array of real numbers; give numbers, lists of one length, or an array")


def _storable(element: DTypeLike) -> DType:
    kind = dtype(element)
    if kind.lanes != 1:
        raise DTypeError(f"an array holds scalars, not {kind}; use {kind.scalar} and a longer last axis")
    return kind


def _numpy_element(numpy_type: np.dtype[Any]) -> DType:
    kind = dtype(numpy_type)
    if kind.numpy != numpy_type:
        raise DTypeError(f"numpy's {numpy_type} (byte order {numpy_type.byteorder!r}) is stored otherwise than {kind}")
    return kind


def _speaks_dlpack(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")
