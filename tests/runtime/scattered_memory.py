"""Address space as a large process has it: every new piece of memory lies far from the last one.

`scatter` fills the gaps between what is mapped with reservations that cost no memory, and leaves small holes, each more
than 4 GiB from the next: further than a branch or an address relative to the instruction reaches, on any processor.
"""

from __future__ import annotations

import ctypes
import errno
import mmap

APART = 5 << 30
HOLES = 400
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # no memory is set aside for it (MAP_NORESERVE)
_FIXED_NOREPLACE = 0x100000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def scatter() -> range:
    """The addresses among which new small pieces of memory lie from now on, the smallest in the uppermost holes."""
    start = _reserve(HOLES * APART)
    for _ in range(50):  # threads of libraries take and give back memory meanwhile
        mapped = [piece for piece in pieces() if piece[0] < 1 << 63]  # the other half is the system's
        holes = [
            (end, begin)
            for (_, end, _, _), (begin, _, _, name) in zip(mapped, mapped[1:])
            if end >= start and begin > end and name != "[stack]"  # the stack grows downwards
        ]
        if not holes:
            break
        for end, begin in holes:
            _reserve(begin - end, end)
    for number in range(HOLES):  # the system takes the uppermost hole that fits: of 8 pages, then of 3, then of 1
        pages = (8, 3, 1)[3 * number // HOLES]
        assert _libc.munmap(start + number * APART + APART // 2, pages * mmap.PAGESIZE) == 0
    return range(start, start + HOLES * APART)


def pieces() -> list[tuple[int, int, str, str]]:
    """What is mapped now: begin, end, permissions and name."""
    found = []
    with open("/proc/self/maps") as file:
        for line in file:
            addresses, permissions, _, _, _, *name = line.split()
            begin, end = (int(part, 16) for part in addresses.split("-"))
            found.append((begin, end, permissions, *(name[:1] or [""])))
    return found


def code_among(addresses: range) -> list[int]:
    """Where executable memory begins among some addresses."""
    return [begin for begin, _, permissions, _ in pieces() if "x" in permissions and begin in addresses]


def _reserve(size: int, at: int | None = None) -> int:
    ctypes.set_errno(0)
    got = _libc.mmap(at, size, 0, _FLAGS | (_FIXED_NOREPLACE if at else 0), -1, 0)
    if at and ctypes.get_errno() == errno.EEXIST:  # a thread of a library took it meanwhile
        return at
    assert got not in (None, ctypes.c_void_p(-1).value), f"errno {ctypes.get_errno()} for {size} bytes at {at}"
    return int(got)
