"""How far a driver reaches from each base address, and the seal of that in its name.

The seal is a hash of the ABI (`runtime/abi.py`) and of these reaches. So a manifest that promises a driver less memory
than it touches names a driver that does not exist.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

from weft.expr.nodes import Buffer, int_value
from weft.runtime.abi import abi_hash

Reach = tuple[int, bool, "tuple[int, int] | None"]
"""Of a base address: how many bytes from there on a driver may touch, whether it writes any of them, and between which
two numbers all whole numbers there must lie, because they are indices that are not tested again."""


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
