"""What a compiled model does in one call, as far as it is native code: calls of drivers, and the memory they share.

Values are numbers here: the place of a value in the list that a call fills as it goes. Nodes that run on the host are
the compiler's (`compiler/steps.py`); of a file that runs without it they are graphs that numpy runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core import model
from weft.core.array_types import ArrayType
from weft.core.errors import RuntimeFault
from weft.core.knobs import UNASKED_BYTES, knobs
from weft.runtime.addresses import address_of

Array = np.ndarray[Any, Any]
ArrayOf = Callable[[int], Array]
"""An array of a module file by its number."""


@dataclass(frozen=True)
class Port:
    """An input or output: name, element type and shape (None where the rank is not known)."""

    name: str
    dtype: str
    shape: tuple[Any, ...] | None


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
    makes: Sequence[tuple[int, ArrayType]]
    kernels: list[str]
    calls: tuple[Any, ...] = ()
    entry: Any = None
    reach: list[Any] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def values(self) -> list[int]:
        """The values that it reads or makes."""
        return [number for kind, number in self.bases if kind == "value"]


@dataclass
class GraphStep:
    """What numpy runs of a module file: a node on the host, or a part that waits for shapes."""

    graph: Any
    run: Callable[[Sequence[Any]], list[Any]]
    inputs: list[int]
    outputs: list[int]
    reason: str

    @property
    def values(self) -> list[int]:
        """The values that it reads or makes."""
        return [*self.inputs, *self.outputs]

    def fill(self, values: list[Any]) -> None:
        """Runs it; what it only hands on is copied, so that each value has its own array."""
        given = [values[number] for number in self.inputs]
        held = [one for one in given if isinstance(one, np.ndarray)]
        for number, made in zip(self.outputs, self.run(given)):
            if isinstance(made, np.ndarray):
                made = made.copy() if any(np.may_share_memory(made, one) for one in held) else made
                held.append(made)
            values[number] = made


@dataclass
class Program:
    """A graph for one set of shapes, ready to run but for its native code; or for every set, with the source of the
    `numbers` that a call finds from its arrays (`compiler/sizes/open_sizes.py`).
    """

    inputs: list[int]
    outputs: list[int]
    count: int
    constants: dict[int, Array]
    weights: list[Array]
    arena_bytes: int
    unshared_bytes: int
    steps: Sequence[Any]
    last_use: list[list[int]]
    in_place: int = 0
    numbers: str | None = None
    promised: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The shapes that values of host nodes have beside open sizes, as in `NativeStep.shapes`."""
    updates: list[tuple[int, int]] = field(default_factory=list)
    """Inputs and outputs that a caller may give one array for: what the program writes there is all that changes."""

    def own(self, at: int, number: int, made: Any) -> Any:
        """A result; what is passed on or returned twice is copied, so that nobody changes it behind our back."""
        is_shared = number in self.constants or number in self.inputs or number in self.outputs[:at]
        return made.copy() if is_shared and isinstance(made, np.ndarray) else made


def last_uses(steps: Sequence[Any], outputs: Sequence[int]) -> list[list[int]]:
    """For every step, the values that nothing needs after it."""
    last = {value: at for at, step in enumerate(steps) for value in step.values}
    found: list[list[int]] = [[] for _ in steps]
    kept = set(outputs)
    for value, at in last.items():
        if value not in kept:
            found[at].append(value)
    return found


def read_program(row: Mapping[str, Any], steps: Sequence[Any], array: ArrayOf, weight: ArrayOf) -> Program:
    """The program of a form in a module file; that it holds together is not known yet."""
    constants = {int(number): array(at) for number, at in row["constants"].items()}
    numbers = {*row["inputs"], *row["outputs"], *constants, *(n for step in steps for n in step.values)}
    opened = row["open"]
    return Program(
        row["inputs"], row["outputs"], len(numbers) if max(numbers, default=-1) < len(numbers) else -1, constants,
        [weight(at) for at in row["weights"]], row["arena"], row["unshared"], steps, last_uses(steps, row["outputs"]),
        row["in_place"], None if opened is None else opened["numbers"],
        {} if opened is None else {int(number): tuple(shape) for number, shape in opened["promised"].items()},
        [(given, made) for given, made in row["updates"]],
    )  # fmt: skip


def native_step(row: Mapping[str, Any], kind: type[ArrayType] = ArrayType) -> NativeStep:
    """A step as a module file has it; sizes below 0 are ~place among the numbers of a call."""
    is_open = {number: tuple(shape) for number, _, shape in row["makes"] if min(shape, default=0) < 0}
    makes = [(number, kind(dtype, None if number in is_open else shape)) for number, dtype, shape in row["makes"]]
    bases = [(of, number) for of, number in row["bases"]]
    return NativeStep(row["native"], bases, makes, row["kernels"], shapes=is_open)


def is_aligned(array: Array, alignment: int = 64) -> bool:
    """Whether an array is contiguous and begins where kernels want it to."""
    return array.flags.c_contiguous and array.ctypes.data % alignment == 0


def aligned_array(array: Array, alignment: int = 64) -> Array:
    """The array itself where it is contiguous and aligned, else a copy that is."""
    if is_aligned(array, alignment):
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
    if size < model.LEAST_ALIGNED:
        return np.empty(shape, dtype)
    room = memory(size + 64)
    return np.ndarray(shape, dtype, room, -address_of(room) % 64)
