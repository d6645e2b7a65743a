"""TensorProto and SparseTensorProto to numpy arrays: raw bytes, typed fields, external data, packed narrow types.

Every length is compared with the shape before anything is allocated, so that a small file cannot ask for much memory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import FrontendError
from weft.frontends.onnx.skim import ITSELF
from weft.frontends.onnx.types import count_elements, element_type
from weft.graph.ir import NUMPY_TYPES, Array

LARGEST_DENSE = 2**30
"""Bytes that a sparse tensor may have when it is written out in full."""

PACKED = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}
"""Bits an element, of the types that share bytes; the first element is in the low bits."""

MAPPED = 2**20
"""External data of at least this many bytes is mapped into memory and not read, where its elements are aligned."""

_FIELDS = {"float32": "float_data", "complex64": "float_data", "float64": "double_data", "complex128": "double_data"}
_FIELDS.update({"int64": "int64_data", "uint32": "uint64_data", "uint64": "uint64_data"})


class TensorReader:
    """Reads the tensors of one model; knows the folder that external data may come from, and the model's own file."""

    def __init__(self, folder: Path | None, file: Path | None = None) -> None:
        self.folder = folder
        self.file = file

    def dense(self, proto: Any, where: str) -> Array:
        """The array of a TensorProto."""
        where = f"{where}: tensor {proto.name!r}" if proto.name else where
        kind = element_type(proto.data_type, where)
        shape = [int(d) for d in proto.dims]
        count = count_elements(shape, where)
        if proto.HasField("segment"):
            raise FrontendError(f"{where}: tensors in segments are not supported")
        if proto.data_location == 1:
            if kind == "string":
                raise FrontendError(f"{where}: strings cannot be external data")
            flat = self._external(proto, kind, count, where)
        elif kind == "string":
            flat = _strings(proto, count, where)
        elif proto.HasField("raw_data"):
            flat = _from_bytes(np.frombuffer(proto.raw_data, np.uint8), kind, count, where)
        else:
            flat = _from_field(proto, kind, count, where)
        return flat.reshape(shape)

    def sparse(self, proto: Any, where: str) -> Array:
        """The array of a SparseTensorProto, zeros written out."""
        shape = [int(d) for d in proto.dims]
        count = count_elements(shape, where)
        values = self.dense(proto.values, where)
        indices = self.dense(proto.indices, where)
        if values.ndim != 1 or indices.dtype != np.int64 or values.dtype == object:
            raise FrontendError(f"{where}: a sparse tensor has one dimension of numbers, and int64 indices")
        if count * values.dtype.itemsize > LARGEST_DENSE:
            raise FrontendError(f"{where}: the sparse tensor of shape {shape} is too large to be written out")
        entries = values.shape[0]
        if indices.shape == (entries,):
            flat = indices
        elif indices.shape == (entries, len(shape)):
            inside = (indices >= 0).all() and (indices < np.array(shape, np.int64)).all()
            if not inside:
                raise FrontendError(f"{where}: an index of the sparse tensor is outside its shape {shape}")
            strides = np.cumprod([1, *reversed(shape[1:])], dtype=np.int64)[::-1] if shape else np.zeros(0, np.int64)
            flat = indices @ strides
        else:
            raise FrontendError(f"{where}: {entries} values of a sparse tensor with indices of shape {indices.shape}")
        if ((flat < 0) | (flat >= count)).any():
            raise FrontendError(f"{where}: an index of the sparse tensor is outside its shape {shape}")
        out = np.zeros(count, values.dtype)
        out[flat] = values
        return out.reshape(shape)

    def _external(self, proto: Any, kind: str, count: int, where: str) -> Array:
        entries = {entry.key: entry.value for entry in proto.external_data}
        path = self._external_path(entries.get("location", ""), where)
        needed = byte_count(kind, count)
        try:
            offset = int(entries.get("offset") or 0)
            length = int(entries["length"]) if entries.get("length") else needed
        except ValueError as error:
            raise FrontendError(f"{where}: offset or length of its external data is no number") from error
        if length != needed:
            raise FrontendError(f"{where}: {length} bytes of external data where the shape needs {needed}")
        try:
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise FrontendError(f"{where}: its external data {path.name} is not a plain file")
            if offset < 0 or offset + needed > found.st_size:
                raise FrontendError(
                    f"{where}: needs bytes {offset} to {offset + needed} of {path.name}, which has {found.st_size}"
                )
            data = _file_bytes(path, offset, needed, NUMPY_TYPES[kind].itemsize)
        except OSError as error:
            raise FrontendError(f"{where}: its external data {path.name} cannot be read: {error.strerror}") from error
        return _from_bytes(data, kind, count, where)

    def _external_path(self, location: str, where: str) -> Path:
        """The file of external data. Only plain files inside the model's folder, reached without links, are taken."""
        if location == ITSELF and self.file is not None:
            return self.file
        if self.folder is None:
            raise FrontendError(
                f"{where}: has external data, and a model given as bytes or a proto has no folder: give its path, "
                "or the argument folder"
            )
        pieces = location.replace("\\", "/").split("/")
        absolute = os.path.isabs(location) or location.startswith(("/", "\\")) or ":" in pieces[0]
        if not location or "\0" in location or absolute or ".." in pieces:
            raise FrontendError(f"{where}: its external data {location!r} is outside the folder of the model")
        path = self.folder
        for piece in pieces:
            path = path / piece
            if path.is_symlink():
                raise FrontendError(f"{where}: its external data {location!r} is reached through a symbolic link")
        if not path.exists():
            raise FrontendError(f"{where}: its external data {location!r} is missing beside the model")
        return path


def byte_count(kind: str, count: int) -> int:
    """How many bytes that many elements take in a file."""
    bits = PACKED.get(kind)
    return -(-count * bits // 8) if bits else count * int(NUMPY_TYPES[kind].itemsize)


def _file_bytes(path: Path, offset: int, length: int, alignment: int) -> Array:
    if length >= MAPPED and offset % alignment == 0:
        return np.asarray(np.memmap(path, np.uint8, mode="r", offset=offset, shape=(length,)))
    return np.fromfile(path, np.uint8, length, offset=offset)


def _from_bytes(data: Array, kind: str, count: int, where: str) -> Array:
    needed = byte_count(kind, count)
    if data.nbytes != needed:
        raise FrontendError(f"{where}: {data.nbytes} bytes of data where its shape needs {needed} ({count} {kind})")
    if kind in PACKED:
        return _unpack(data, kind, count)
    if kind == "bool":
        return np.asarray(data != 0)  # bytes other than 0 and 1 are no bools
    found = data.view(NUMPY_TYPES[kind])
    return np.asarray(found if found.flags.aligned else found.copy())


def _unpack(data: Array, kind: str, count: int) -> Array:
    bits = PACKED[kind]
    pieces = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    codes = np.stack(pieces, axis=-1).reshape(-1)[:count]
    if kind == "float4_e2m1fn":
        return codes.view(NUMPY_TYPES[kind])
    if kind.startswith("int"):
        signed = codes.astype(np.int8)
        codes = np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed)
    return codes.astype(NUMPY_TYPES[kind])


def _strings(proto: Any, count: int, where: str) -> Array:
    if len(proto.string_data) != count:
        raise FrontendError(f"{where}: {len(proto.string_data)} strings where its shape needs {count}")
    out = np.empty(count, object)
    for position, data in enumerate(proto.string_data):
        out[position] = text(data, where)
    return out


def text(data: bytes, where: str) -> str:
    """Bytes of a string as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FrontendError(f"{where}: a string is not valid UTF-8") from error


def _from_field(proto: Any, kind: str, count: int, where: str) -> Array:
    """Typed fields: integers and all narrow types in int32_data, complex numbers as pairs."""
    field = _FIELDS.get(kind, "int32_data")
    items = getattr(proto, field)
    if kind in PACKED:
        return _packed_field(items, kind, count, where)
    needed = 2 * count if kind.startswith("complex") else count
    if len(items) != needed:
        raise FrontendError(f"{where}: {len(items)} values of data where its shape needs {needed}")
    if field == "float_data":
        return np.array(items, np.float32).view(NUMPY_TYPES[kind])
    if field == "double_data":
        return np.array(items, np.float64).view(NUMPY_TYPES[kind])
    wide = np.array(items, np.uint64 if field == "uint64_data" else np.int64)
    numpy_type = NUMPY_TYPES[kind]
    if kind == "bool":
        return np.asarray(wide != 0)
    if kind in ("float16", "bfloat16"):
        return wide.astype(np.uint16).view(numpy_type)
    if kind.startswith("float8"):
        return wide.astype(np.uint8).view(numpy_type)
    return wide.astype(numpy_type)


def _packed_field(items: Any, kind: str, count: int, where: str) -> Array:
    needed = byte_count(kind, count)
    if len(items) != needed:
        raise FrontendError(f"{where}: {len(items)} values of packed data where its shape needs {needed}")
    return _unpack(np.array(items, np.int64).astype(np.uint8), kind, count)
