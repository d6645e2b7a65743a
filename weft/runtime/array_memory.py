"""The memory of a device that is simulated in this process: arrays of bytes, and copies that are done at once.

A device derives from it and from `Device`, and brings `load_all` itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class ArrayMemory:
    """What a device has to say of its memory, where that is NumPy's; there are no streams, since nothing waits."""

    def allocate(self, size: int) -> Any:
        """Memory of so many bytes."""
        return np.zeros(max(size, 1), np.uint8)

    def write(self, memory: Any, source: Any, stream: Any = None) -> None:
        """From the host."""
        memory[: source.nbytes] = source.reshape(-1).view(np.uint8)

    def read(self, memory: Any, into: Any, stream: Any = None) -> None:
        """To the host."""
        into.reshape(-1).view(np.uint8)[...] = memory[: into.nbytes]

    def copy(self, memory: Any, source: Any, size: int, stream: Any = None) -> None:
        """From one place to another."""
        memory[:size] = source[:size]

    def part(self, memory: Any, offset: int, size: int) -> Any:
        """A piece of memory."""
        return memory[offset : offset + size]

    def synchronize(self, stream: Any = None) -> None:
        """A launch returns when it is done."""
        return None
