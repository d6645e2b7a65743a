"""A model's file without its large weights: they stay in the file, and a tensor says where.

In: the bytes of a ModelProto. Out: those of one in which each large `raw_data` of an initialiser is external data of
the file itself (`ITSELF`). Parsing a message copies it, and so does reading a field of it: three times the weights
would be in memory before a kernel has its own. Only the way from the model to its initialisers is read here,

    ModelProto.graph (7) -> GraphProto.initializer (5) -> TensorProto.raw_data (9)

and everything else is handed on as it is. What is no message of this form is for protobuf to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator

ITSELF = "\0itself"
"""The location of external data that lies in the model's own file; no path can have this name."""

LARGE = 1 << 20
"""Bytes from which on weights stay in the file."""

_WAY = (7, 5, 9)
_FIXED = {1: 8, 5: 4}


def skim(data: bytes | memoryview) -> bytes:
    """The message, with large weights left where they are; raises a ValueError or IndexError for another one."""
    return b"".join(_pieces(data, 0, len(data), 0))


def _pieces(data: bytes | memoryview, start: int, end: int, depth: int) -> Iterator[bytes]:
    kept = at = start
    while at < end:
        begin = at
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 2:
            size, at = _varint(data, at)
        elif kind == 0:
            size, at = 0, _varint(data, at)[1]
        else:
            size = _FIXED.get(kind, end)  # a group is of another age
        if size > end - at:
            raise ValueError("a field ends after its message")
        if kind == 2 and tag >> 3 == _WAY[depth] and size >= LARGE:
            yield bytes(data[kept:begin])
            kept = at + size
            if depth + 1 < len(_WAY):
                yield _field(_WAY[depth], b"".join(_pieces(data, at, kept, depth + 1)))
            else:
                yield _elsewhere(at, size)
        at += size
    yield bytes(data[kept:end])


def _elsewhere(offset: int, length: int) -> bytes:
    """The fields of a tensor whose data lies elsewhere: `external_data` (13) and `data_location` (14)."""
    entries = {"location": ITSELF, "offset": str(offset), "length": str(length)}
    rows = [_field(1, key.encode()) + _field(2, value.encode()) for key, value in entries.items()]
    return b"".join(_field(13, row) for row in rows) + bytes([14 << 3, 1])


def _field(number: int, content: bytes) -> bytes:
    size, digits = len(content), bytearray()
    while size >= 128:
        digits.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *digits, size]) + content


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return value | data[at] << shift, at + 1
