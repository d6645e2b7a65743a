"""What compiled code and the process that runs it must agree on, in one list; a change of any of it is another ABI.

A module file carries the list's hash, and the name of each driver carries a seal: a hash of the ABI and of
how far from each base address the driver reaches. So a manifest that promises a driver less memory than it touches
names a driver that does not exist.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from collections.abc import Sequence

from weft.codegen.llvm.calls import TURN_BIT
from weft.expr.nodes import Buffer, int_value
from weft.loop.passes.check_bounds import ERRORS
from weft.runtime.faults import KERNEL_SHIFT, REASONS
from weft.runtime.native import FUNCTIONS

FORMAT = 6
"""Of the module file: goes up when the content changes."""

Reach = tuple[int, bool, "tuple[int, int] | None"]
"""Of a base address: how many bytes from there on a driver may touch, whether it writes any of them, and between which
two numbers all whole numbers there must lie, because they are indices that are not tested again."""


def abi_facts() -> list[str]:
    """The agreement, line by line."""
    return [
        f"module file {FORMAT}",
        "driver int32 name(const int64 *bases, int64 threads)",
        "kernel int32 name(const int64 *args, int64 threads)",
        f"result 0 done; {REASONS}; above bit {KERNEL_SHIFT} the number of the kernel",
        f"a device's reports in {ERRORS}",
        f"bit {TURN_BIT} of threads: odd call",
        f"runtime {' '.join(FUNCTIONS)}",
        "weft_parallel_for(void (*body)(int64 begin, int64 end, void *env), void *env, int64 count, int64 threads)",
        "void *weft_allocate(int64 bytes), void weft_release(void *pointer)",
        f"{sys.byteorder} endian, int64 addresses; arena and weights at multiples of 64",
    ]


@functools.lru_cache(maxsize=1)
def abi_hash() -> str:
    """The hash of the agreement."""
    return hashlib.sha256("\n".join(abi_facts()).encode()).hexdigest()[:16]


def sealed(name: str, bases: Sequence[tuple[str, int]], reach: Sequence[Reach]) -> str:
    """The name of a driver, with the seal of what it relies on."""
    facts = [abi_hash(), [kind for kind, _ in bases], list(reach)]
    return f"{name}_{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}"


def joined(first: Reach | None, end: int, is_written: bool, values: Sequence[int] | None) -> Reach:
    """What a driver relies on at a base of which it uses one thing more."""
    before, was_written, held = first or (0, False, None)
    if values is not None:
        held = (max(values[0], held[0]), min(values[1], held[1])) if held else (int(values[0]), int(values[1]))
    return max(before, end), was_written or is_written, held


def buffer_bytes(buffer: Buffer) -> int:
    """The memory that a parameter of a kernel spans."""
    sizes = [int_value(size) for size in buffer.shape]
    strides = None if buffer.strides is None else [int_value(step) for step in buffer.strides]
    known = [size for size in sizes if size is not None]
    assert len(known) == len(sizes) and (strides is None or None not in strides), f"{buffer.name} has no fixed size"
    elements = math.prod(known)
    if elements and strides is not None:
        elements = 1 + sum((size - 1) * (step or 0) for size, step in zip(known, strides))
    return -(-elements * buffer.dtype.bits // 8) if buffer.dtype.is_packed else elements * buffer.dtype.bytes
