"""What the C-family code generator makes of a Func: source text, and the kernels to launch in order.

    parameters    what the caller gives: the Func's parameters, then its size variables, in order
    workspaces    device memory for what lives between kernels; contents start undefined at each run
    kernels       the launches in order; each names its arguments among parameters, workspaces and its own constants

Everything here is plain data (names, ints, dtypes; expressions only where a size is not known yet), so that an executor
can plan the memory and write the program to a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.core.dtypes import DType
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, Var, int_value
from weft.expr.visit import free_vars

Size = Expr | int
"""A number, or an expression of the program's scalar parameters and size variables."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of the program: a pointer to device memory, or a scalar passed by value."""

    name: str
    dtype: DType
    is_buffer: bool
    is_written: bool = False
    elements: Size = 1

    @property
    def bytes(self) -> int:
        """How much memory it takes; only where its size is a number."""
        return _known_bytes(self.name, self.elements, self.dtype)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Device memory that kernels share; `elements` of `dtype`."""

    name: str
    dtype: DType
    elements: Size

    @property
    def bytes(self) -> int:
        """How much memory it takes; only where its size is a number."""
        return _known_bytes(self.name, self.elements, self.dtype)


def _known_bytes(name: str, elements: Size, dtype: DType) -> int:
    count = int_value(elements)
    if count is None:
        raise ValueError(f"the size of {name} is only known from the arguments: {elements!r}")
    return count * dtype.bytes


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How a copy engine sees a parameter: a tensor, of which it copies boxes in swizzled lines of 128 bytes."""

    source: str
    element_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """From one element to the next along each dimension, in elements; the last is 1."""
    box: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How much memory the tensor reaches over."""
        return (1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides))) * self.element_bytes


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """One launch of one kernel function; the same function may be launched several times."""

    name: str
    grid: tuple[Size, Size, Size]
    """Blocks (work groups) along x, y and z."""
    block: tuple[int, int, int]
    """Threads (work items) of a block along x, y and z."""
    shared_bytes: int
    """Shared (local) memory of a block in all."""
    dynamic_shared_bytes: int
    """How much of it the launch has to ask for; 0 where the source declares it all."""
    params: tuple[str, ...]
    """The arguments, in order, by name."""
    constants: Mapping[str, int] = field(default_factory=dict)
    """Arguments with a value of this launch: variables of loops that run on the host."""
    waits: bool = False
    """Whether it waits by itself for what was launched before it: it may be launched while that runs."""
    maps: tuple[TensorMap, ...] = ()
    """Further arguments, after the others."""
    is_whole: bool = False
    """Whether its blocks wait for one another, so that all of them must run at a time."""

    def with_sizes(self, values: Mapping[str, int]) -> DeviceKernel:
        """The same launch with its grid as numbers."""
        known = {**values, **self.constants}
        x, y, z = (number(size, known) for size in self.grid)
        return replace(self, grid=(x, y, z))


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Source text and launches of one Func."""

    name: str
    source: str
    parameters: tuple[Parameter, ...]
    kernels: tuple[DeviceKernel, ...]
    workspaces: tuple[Workspace, ...]
    pieces: tuple[str, ...] = ()
    """The definitions that the source is made of, in order, so that programs can share one source."""

    @property
    def is_static(self) -> bool:
        """Whether every grid and workspace is a number."""
        sizes = [size for kernel in self.kernels for size in kernel.grid]
        sizes += [workspace.elements for workspace in self.workspaces]
        return all(int_value(size) is not None for size in sizes)

    def with_sizes(self, values: Mapping[str, int]) -> DeviceProgram:
        """The same program with grids and workspaces as numbers, for these values of scalars and size variables."""
        if self.is_static:
            return self
        kernels = tuple(kernel.with_sizes(values) for kernel in self.kernels)
        workspaces = tuple(replace(w, elements=number(w.elements, values)) for w in self.workspaces)
        return replace(self, kernels=kernels, workspaces=workspaces)


def merged_source(programs: Sequence[DeviceProgram]) -> str:
    """One source with the kernels of several programs: what they share stands in it once."""
    pieces = dict.fromkeys(piece for program in programs for piece in (program.pieces or (program.source,)))
    return "\n\n".join(pieces) + "\n"


def number(size: Size, values: Mapping[str, int]) -> int:
    """The value of a size."""
    known = int_value(size)
    if known is not None:
        return known
    assert isinstance(size, Expr)
    bound: dict[Var, int] = {var: values[var.name] for var in free_vars(size)}
    return int(evaluate(size, bound))
