"""Reading a flatbuffer: tables, vectors and texts by their places, each of them checked against the end of the file.

t = root(data)              the outermost table
t.number(3, "i", -1)        a field by its slot: a number, or the default
t.tables(2), t.text(4), t.numbers(1, "i"), t.bytes(0), t.table(4)
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from weft.core.errors import FrontendError
from weft.graph.ir import Array


class Damaged(FrontendError):
    """A place outside of the file."""


class Table:
    """One table of a flatbuffer."""

    __slots__ = ("data", "at", "_slots")

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at
        table = at - _read(data, "i", at)
        count = (_read(data, "H", table) - 4) // 2
        if count < 0:
            raise Damaged("a table without fields")
        self._slots = tuple(_read(data, "H", table + 4 + 2 * slot) for slot in range(count))

    def _place(self, slot: int) -> int:
        """Where a field lies; 0 where it is left out."""
        offset = self._slots[slot] if slot < len(self._slots) else 0
        return self.at + offset if offset else 0

    def _target(self, slot: int) -> int:
        place = self._place(slot)
        return place + _read(self.data, "I", place) if place else 0

    def number(self, slot: int, kind: str, default: Any = 0) -> Any:
        """A number, by a letter of `struct`."""
        place = self._place(slot)
        return _read(self.data, kind, place) if place else default

    def table(self, slot: int) -> Table | None:
        """A table."""
        place = self._target(slot)
        return Table(self.data, place) if place else None

    def tables(self, slot: int) -> list[Table]:
        """A vector of tables."""
        place = self._target(slot)
        if not place:
            return []
        count = self._count(place, 4)
        starts = [place + 4 + 4 * at for at in range(count)]
        return [Table(self.data, at + _read(self.data, "I", at)) for at in starts]

    def numbers(self, slot: int, kind: str) -> Array | None:
        """A vector of numbers over the memory of the file; None where it is left out."""
        place = self._target(slot)
        if not place:
            return None
        dtype = np.dtype(kind).newbyteorder("<")
        count = self._count(place, dtype.itemsize)
        return np.frombuffer(self.data, dtype, count, place + 4)

    def ints(self, slot: int) -> list[int]:
        """A vector of 32-bit numbers as a list."""
        found = self.numbers(slot, "i4")
        return [] if found is None else [int(one) for one in found]

    def text(self, slot: int) -> str:
        """A text."""
        found = self.numbers(slot, "u1")
        return "" if found is None else found.tobytes().decode("utf-8", "replace")

    def _count(self, place: int, size: int) -> int:
        count = int(_read(self.data, "I", place))
        if place + 4 + count * size > len(self.data):
            raise Damaged(f"a vector of {count} elements reaches over the end of the file")
        return count


def root(data: memoryview) -> Table:
    """The outermost table."""
    return Table(data, _read(data, "I", 0))


def _read(data: memoryview, kind: str, at: int) -> Any:
    try:
        return struct.unpack_from(f"<{kind}", data, at)[0]
    except struct.error:
        raise Damaged(f"the place {at} is not in the file") from None
