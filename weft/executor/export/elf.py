"""An ELF object file with nothing but data in it: the weights of a library.

Weights are embedded, not put into a file beside the library: one file is shipped and found, and the dynamic loader
maps it lazily and shares its pages between processes, as a weights file of our own would be. The file is written here,
array by array, since a compiler or an assembler would hold all of it in memory several times.

    header | sections: .lrodata (or .rodata), .note.GNU-stack, .symtab, .strtab, .shstrtab | table of sections
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.core.errors import TargetError
from weft.executor.export.plan import ALIGNMENT, padded
from weft.graph.ir import Array

_MACHINES = {"x86_64": 62, "aarch64": 183}
_ALLOCATED, _LARGE = 0x2, 0x10000000
_PROGRAM_DATA, _SYMBOLS, _STRINGS = 1, 2, 3
_HEADER_BYTES, _SECTION_BYTES, _SYMBOL_BYTES = 64, 64, 24


def write_data_object(path: str | os.PathLike[str], symbol: str, arrays: Sequence[Array], triple: str) -> None:
    """Writes an object file that defines a hidden symbol: the arrays' bytes, each at a multiple of the alignment."""
    architecture = triple.split("-")[0]
    if architecture not in _MACHINES:
        raise TargetError(f"object files for {triple} are not written here; it knows {', '.join(_MACHINES)}")
    # On x86-64 code reaches 2 GB around itself: large data has a section that linkers put behind everything else.
    name, large = (b".lrodata", _LARGE) if architecture == "x86_64" else (b".rodata", 0)
    size = sum(padded(array.nbytes) for array in arrays)
    names = b"\0" + b"\0".join([name, b".note.GNU-stack", b".symtab", b".strtab", b".shstrtab"]) + b"\0"
    strings = b"\0" + symbol.encode() + b"\0"
    # A symbol: name, kind (global object), visibility (hidden), section, value, size.
    symbols = bytes(_SYMBOL_BYTES) + struct.pack("<IBBHQQ", 1, 0x11, 2, 1, 0, size)
    bodies = [b"", symbols, strings, names]
    with Path(path).open("wb") as file:
        places, at = [], _HEADER_BYTES + size
        for body in bodies:
            places.append((at, len(body)))
            at += -(-len(body) // 8) * 8
        file.write(_header(_MACHINES[architecture], at))
        for array in arrays:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            file.write(raw.data)
            file.write(bytes(padded(raw.size) - raw.size))
        for body in bodies:
            file.write(body + bytes(-len(body) % 8))
        label = {part: names.index(part + b"\0") for part in names.split(b"\0") if part}
        rows = [
            (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            (label[name], _PROGRAM_DATA, _ALLOCATED | large, 0, _HEADER_BYTES, size, 0, 0, ALIGNMENT, 0),
            (label[b".note.GNU-stack"], _PROGRAM_DATA, 0, 0, *places[0], 0, 0, 1, 0),
            (label[b".symtab"], _SYMBOLS, 0, 0, *places[1], 4, 1, 8, _SYMBOL_BYTES),
            (label[b".strtab"], _STRINGS, 0, 0, *places[2], 0, 0, 1, 0),
            (label[b".shstrtab"], _STRINGS, 0, 0, *places[3], 0, 0, 1, 0),
        ]
        for row in rows:
            file.write(struct.pack("<IIQQQQIIQQ", *row))


def _header(machine: int, sections_at: int) -> bytes:
    """The header of a little-endian, 64-bit, relocatable file with six sections, the last of which names them."""
    magic = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    return magic + struct.pack(
        "<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, sections_at, 0, _HEADER_BYTES, 0, 0, _SECTION_BYTES, 6, 5
    )
