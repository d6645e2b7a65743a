"""Memory of the interpreter: one flat run of elements per buffer, with what the checks have to know about each.

A `Memory` holds the elements (packed dtypes take one slot each here), which of them were ever written, and, for the
race check, a time stamp of the last write and of the first read of each element. Time is a counter that goes up by
one at each iteration of a loop that runs at once (see `statements.py`). For one such loop, let `start` be the time at
which its current run (for threads: the current stretch between barriers) began and `mine` the time at which the
current iteration began; then a stamp in `start <= stamp < mine` was left by another iteration, and conflicts.

A `Pointer` is what an effect function gets for an `Address`: `pointer.view(shape)` is a numpy view of the elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import InterpreterError
from weft.expr.nodes import Buffer
from weft.loop.interpreter.values import element_type


def packed_row(elements: int, kind: DType) -> int:
    """Elements in a row of a packed dtype when the row is filled up to whole bytes."""
    return -(-elements * kind.bits // 8) * 8 // kind.bits


def compact_strides(shape: Sequence[int], kind: DType) -> tuple[int, ...]:
    """Row-major strides in elements; rows of packed dtypes begin at whole bytes."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        below = packed_row(shape[d + 1], kind) if kind.is_packed and d == len(shape) - 2 else shape[d + 1]
        strides[d] = strides[d + 1] * below
    return tuple(strides)


def memory_size(shape: Sequence[int], strides: Sequence[int], kind: DType) -> int:
    """Elements from the first to the last that the shape can reach."""
    if any(extent <= 0 for extent in shape):
        return 0
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    return packed_row(size, kind) if kind.is_packed else size


class Memory:
    """The elements of one instance of a buffer."""

    __slots__ = ("buffer", "strides", "data", "view", "initialized", "writer", "readers", "notes")

    def __init__(
        self,
        buffer: Buffer,
        strides: tuple[int, ...],
        data: np.ndarray[Any, Any],
        undefined: bool = False,
        levels: int = 0,
    ) -> None:
        self.buffer = buffer
        self.strides = strides
        self.data = data
        bits = f"u{data.itemsize}" if buffer.dtype.is_float and buffer.dtype.bits <= 16 else data.dtype
        self.view: Any = memoryview(data.view(bits))  # type: ignore[arg-type, unused-ignore]
        self.initialized = bytearray(len(data)) if undefined else None
        self.writer = [0] * len(data) if levels else []
        self.readers = [[0] * len(data) for _ in range(levels)]
        self.notes: dict[Any, Any] = {}


def new_memory(buffer: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], check: bool, levels: int) -> Memory:
    """Fresh undefined memory for an intermediate."""
    size = memory_size(shape, strides, buffer.dtype)
    return Memory(buffer, strides, np.zeros(size, element_type(buffer.dtype)), check, levels)


class Pointer:
    """The address of an element, given to an effect function.

    `buffer` is what is pointed into, `array` its whole flat memory (one slot per element, packed dtypes too), `offset`
    the element pointed at and `strides` the buffer's strides, in elements. `view` is checked; `array` is not.
    """

    __slots__ = ("buffer", "offset", "strides", "mode", "_memory", "_times", "_check")

    def __init__(
        self, memory: Memory, offset: int, mode: str, times: Sequence[tuple[int, int, int]], check: bool
    ) -> None:
        self.buffer = memory.buffer
        self.offset = offset
        self.strides = memory.strides
        self.mode = mode
        self._memory = memory
        self._times = times
        self._check = check

    @property
    def notes(self) -> dict[Any, Any]:
        """What effect functions keep about this memory, from call to call."""
        return self._memory.notes

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The whole memory, flat. Where the mode says "w", everything in it counts as written from now on."""
        memory = self._memory
        if "w" in self.mode and memory.initialized is not None:
            memory.initialized[:] = b"\1" * len(memory.initialized)
        return memory.data

    def view(self, shape: Sequence[int], strides: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """The elements from here on as an array of this shape; strides in elements, of the buffer unless given.

        Without strides the array's dimensions are the buffer's last ones; one that has more dimensions than the
        buffer is taken to be compact. The elements count as read (mode "r") or written (a mode with "w").
        """
        shape = tuple(int(extent) for extent in shape)
        if strides is None:
            few = len(shape) <= len(self.strides)
            strides = (
                self.strides[len(self.strides) - len(shape) :] if few else compact_strides(shape, self.buffer.dtype)
            )
        strides = tuple(int(stride) for stride in strides)
        if len(strides) != len(shape):
            raise InterpreterError(f"a view of {self.buffer.name} has {len(shape)} extents and {len(strides)} strides")
        data = self._memory.data
        if all(extent > 0 for extent in shape):
            steps = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
            low = self.offset + sum(step for step in steps if step < 0)
            high = self.offset + sum(step for step in steps if step > 0)
            if low < 0 or high >= len(data):
                raise InterpreterError(
                    f"out of bounds: a view of shape {shape}, strides {strides} at element {self.offset} of "
                    f"{self.buffer.name} reaches elements {low} to {high}; the buffer has {len(data)}"
                )
            if self._check:
                self._touch(shape, strides)
            data = data[self.offset :]
        byte_strides = [stride * data.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(data, shape, byte_strides, writeable="w" in self.mode)

    def _touch(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        positions = np.full(shape, self.offset)
        for d, (extent, stride) in enumerate(zip(shape, strides)):
            positions += (np.arange(extent) * stride).reshape([-1 if axis == d else 1 for axis in range(len(shape))])
        flat = positions.reshape(-1).tolist()
        memory = self._memory
        writes = "w" in self.mode
        self._races(flat, writes)
        if memory.initialized is None:
            return
        for position in flat:
            if writes:
                memory.initialized[position] = 1
            elif not memory.initialized[position]:
                raise InterpreterError(
                    f"uninitialised: an effect reads element {position} of {self.buffer.name}, which was never written"
                )

    def _races(self, positions: list[int], writes: bool) -> None:
        memory = self._memory
        for level, start, mine in self._times:
            readers = memory.readers[level]
            for position in positions:
                if start <= memory.writer[position] < mine or (writes and start <= readers[position] < mine):
                    raise InterpreterError(
                        f"data race: an effect {'writes' if writes else 'reads'} element {position} of "
                        f"{self.buffer.name}, which another iteration or thread touched at the same time"
                    )
                if not writes and readers[position] < start:
                    readers[position] = mine
        if writes and self._times:
            now = self._times[-1][2]
            for position in positions:
                memory.writer[position] = now
