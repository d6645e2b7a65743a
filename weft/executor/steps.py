"""What a compiled model does in one call: native stretches, host nodes, and parts that wait for shapes.

Values are numbers here: the place of a value in the list that a call fills as it goes.

    NativeStep   one native call that runs a stretch of kernels
    HostStep     one node by its numpy meaning
    RestStep     the rest of the graph, specialised when the shapes that a host node made are known
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

import numpy as np

from weft.core.errors import RuntimeFault
from weft.core.knobs import knobs
from weft.executor.abi import Reach
from weft.executor.native import Call
from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.opspec import UNASKED_BYTES
from weft.runtime.arguments import address_of


@dataclass(frozen=True)
class Port:
    """An input or output: name, element type and shape (None where the rank is not known)."""

    name: str
    dtype: str
    shape: tuple[Any, ...] | None


class Runs(Protocol):
    """Something that gives outputs for inputs of a graph."""

    @property
    def graph(self) -> Graph:
        """The graph."""

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """The outputs for these inputs."""


@dataclass
class NativeStep:
    """A native call. `bases` says what each base address is: ("arena", 0), ("weight", n) or ("value", n); beside open
    sizes also ("slot", n), a slot of the arena, and ("size", n), which is no address but a number of the call.

    `kernels` names the nodes of each kernel, for errors. `calls` are the driver's calls of kernels; a module file does
    not keep them. `reach` says for each base how far from it they may touch memory, and whether they write there.
    `shapes` are those of the values that it makes beside open sizes: numbers, or ~place among the numbers of the call.
    """

    symbol: str
    bases: list[tuple[str, int]]
    makes: list[tuple[int, TensorType]]
    kernels: list[str]
    calls: tuple[Call, ...] = ()
    entry: Any = None
    reach: list[Reach] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class HostStep:
    """A node on the host; `captured` are the values that its subgraphs take from outside."""

    node: Node
    inputs: list[int | None]
    outputs: list[int]
    captured: list[tuple[Value, int]]
    reason: str
    inner: dict[Graph, Any] = field(default_factory=dict)


@dataclass
class RestStep:
    """The rest of the graph as an executor of its own."""

    executor: Runs
    inputs: list[int]
    outputs: list[int]


Step = Union[NativeStep, HostStep, RestStep]


@dataclass
class Program:
    """A graph for one set of shapes, ready to run but for its native code; or for every set, with the source of the
    `numbers` that a call finds from its arrays (`open_sizes.py`).
    """

    inputs: list[int]
    outputs: list[int]
    count: int
    constants: dict[int, Array]
    weights: list[Array]
    arena_bytes: int
    unshared_bytes: int
    steps: list[Step]
    last_use: list[list[int]]
    in_place: int = 0
    numbers: str | None = None
    promised: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The shapes that values of host nodes have beside open sizes, as in `NativeStep.shapes`."""
    updates: list[tuple[int, int]] = field(default_factory=list)
    """Inputs and outputs that a caller may give one array for: what the program writes there is all that changes."""


def aligned_array(array: Array, alignment: int = 64) -> Array:
    """The array itself where it is contiguous and aligned, else a copy that is."""
    if array.flags.c_contiguous and array.ctypes.data % alignment == 0:
        return array
    room = np.empty(array.nbytes + alignment, np.uint8)
    start = -room.ctypes.data % alignment
    made = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def memory(size: int) -> Array:
    """So many bytes; a RuntimeFault where the machine does not have them."""
    if size > UNASKED_BYTES and size > knobs.tensor_megabytes << 20:
        raise RuntimeFault(
            f"the model needs {size:,} bytes for one array; the most is {knobs.tensor_megabytes:,} megabytes "
            "(WEFT_TENSOR_MEGABYTES)"
        )
    try:
        return np.empty(size, np.uint8)
    except MemoryError as error:
        raise RuntimeFault(
            f"the model needs {size:,} bytes for one array, and the machine does not give them"
        ) from error


def empty_array(shape: Sequence[int], dtype: Any) -> Array:
    """A new array; a large one starts at a line of the cache, so that no vector that is stored lies in two of them."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LEAST_ALIGNED:
        return np.empty(shape, dtype)
    room = memory(size + 64)
    return np.ndarray(shape, dtype, room, -address_of(room) % 64)


LEAST_ALIGNED = 1 << 16
"""Bytes from which on finding such a place costs nothing beside filling it."""

RunGraph = Callable[[Graph, Sequence[Any]], list[Any]]
