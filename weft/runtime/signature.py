"""Signatures: what a compiled function takes, as plain data that goes to JSON and back.

    Dim := 4 | "n" | ("add" | "sub" | "mul" | "floordiv" | "floormod" | "min" | "max" | "ceildiv", Dim, Dim)

A size is found from the arguments: from the first extent that is just its name, else from a stride, else by solving an
extent such as ("mul", "n", 4). `Signature.bindings` is that plan, made once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from weft.core.dtypes import DType, dtype
from weft.core.errors import ShapeError, WeftError

Dim = Union[int, str, tuple[str, "Dim", "Dim"]]

OPERATIONS: dict[str, tuple[Callable[[int, int], int], str]] = {
    "add": (lambda a, b: a + b, "({} + {})"),
    "sub": (lambda a, b: a - b, "({} - {})"),
    "mul": (lambda a, b: a * b, "({} * {})"),
    "floordiv": (lambda a, b: a // b, "({} // {})"),
    "floormod": (lambda a, b: a % b, "({} % {})"),
    "min": (min, "min({}, {})"),
    "max": (max, "max({}, {})"),
    "ceildiv": (lambda a, b: -(-a // b), "(-(-{} // {}))"),
}
"""For each operation of a Dim: how to compute it, and how Python writes it."""


@dataclass(frozen=True)
class Parameter:
    """One parameter. `shape` None means a scalar; `strides` None means contiguous, else in elements."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...] | None
    written: bool = False
    alignment: int = 1
    strides: tuple[Dim, ...] | None = None

    @property
    def needed_alignment(self) -> int:
        """Bytes that the memory's start must be a multiple of: what was asked for, and at least one element."""
        return max(self.alignment, self.dtype.bytes)

    def __post_init__(self) -> None:
        where = f"parameter {self.name!r}"
        if self.dtype.lanes != 1:
            raise ShapeError(f"{where}: {self.dtype} is a vector; parameters are scalars or arrays of scalars")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise ShapeError(f"{where}: the alignment {self.alignment} is no power of two")
        if self.shape is None:
            if self.written or self.strides is not None or self.dtype.is_packed:
                raise ShapeError(f"{where}: a scalar cannot be written, strided or packed")
            return
        if self.dtype.is_packed and (not self.shape or self.strides is not None):
            raise ShapeError(f"{where}: a packed array has at least one axis and is contiguous")
        if self.strides is not None and len(self.strides) != len(self.shape):
            raise ShapeError(f"{where}: {len(self.shape)} extents but {len(self.strides)} strides")
        for dim in (*self.shape, *(self.strides or ())):
            check_dim(dim, where)


@dataclass(frozen=True)
class Binding:
    """Where a size is found: the extent (or stride) of one axis of one parameter equals `dim`, which holds the size."""

    name: str
    parameter: int
    axis: int
    in_strides: bool
    dim: Dim


@dataclass(frozen=True)
class Signature:
    """The name, parameters and sizes of a compiled function. The sizes follow the parameters in its slots, in order."""

    name: str
    parameters: tuple[Parameter, ...]
    size_names: tuple[str, ...] = ()
    bindings: tuple[Binding, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bindings", _plan(self))

    def to_json(self) -> str:
        """As text that `from_json` reads."""
        rows = [
            {
                "name": p.name,
                "dtype": p.dtype.name,
                "shape": p.shape,
                "written": p.written,
                "alignment": p.alignment,
                "strides": p.strides,
            }
            for p in self.parameters
        ]
        return json.dumps({"name": self.name, "parameters": rows, "size_names": self.size_names})

    @staticmethod
    def from_json(text: str) -> Signature:
        """The signature that `to_json` wrote."""
        try:
            data = json.loads(text)
            parameters = tuple(
                Parameter(
                    str(row["name"]),
                    dtype(str(row["dtype"])),
                    _dims(row["shape"]),
                    bool(row["written"]),
                    int(row["alignment"]),
                    _dims(row["strides"]),
                )
                for row in data["parameters"]
            )
            return Signature(str(data["name"]), parameters, tuple(str(name) for name in data["size_names"]))
        except WeftError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ShapeError(f"this text is no signature that Weft wrote: {error!r}") from error


def check_dim(dim: Any, where: str) -> None:
    """Refuse what is no Dim."""
    if isinstance(dim, tuple):
        if len(dim) != 3 or dim[0] not in OPERATIONS:
            raise ShapeError(
                f"{where}: {dim!r} is no size; write (operation, a, b) with one of {', '.join(OPERATIONS)}"
            )
        check_dim(dim[1], where)
        check_dim(dim[2], where)
    elif isinstance(dim, bool) or not isinstance(dim, (int, str)):
        raise ShapeError(f"{where}: {dim!r} is no size; give an int, a size's name, or (operation, a, b)")


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The value of a Dim. Raises KeyError for an unknown size and ZeroDivisionError as Python does."""
    if isinstance(dim, tuple):
        return OPERATIONS[dim[0]][0](evaluate(dim[1], sizes), evaluate(dim[2], sizes))
    return sizes[dim] if isinstance(dim, str) else dim


def names_in(dim: Dim) -> list[str]:
    """The sizes in a Dim, each as often as it occurs."""
    if isinstance(dim, tuple):
        return names_in(dim[1]) + names_in(dim[2])
    return [dim] if isinstance(dim, str) else []


def format_dim(dim: Dim, sizes: Mapping[str, int] | None = None) -> str:
    """A Dim as people write it, with the values of its sizes where they are known: n=4, (n=4 + 1)."""
    if isinstance(dim, tuple):
        return OPERATIONS[dim[0]][1].format(format_dim(dim[1], sizes), format_dim(dim[2], sizes))
    if isinstance(dim, str) and sizes is not None and dim in sizes:
        return f"{dim}={sizes[dim]}"
    return str(dim)


def format_dims(dims: tuple[Dim, ...], sizes: Mapping[str, int] | None = None) -> str:
    """A shape as people write it."""
    inside = ", ".join(format_dim(dim, sizes) for dim in dims)
    return f"({inside},)" if len(dims) == 1 else f"({inside})"


def solve(dim: Dim, name: str, value: int, sizes: Mapping[str, int]) -> int:
    """The size `name` for which the Dim comes nearest below to `value`. The caller checks that it really is equal."""
    if not isinstance(dim, tuple):
        return value
    operation, a, b = dim
    if name in names_in(a):
        other = evaluate(b, sizes)
        inverse = {"add": value - other, "sub": value + other, "mul": value // other if other else 0}
        return solve(a, name, inverse[operation], sizes)
    other = evaluate(a, sizes)
    inverse = {"add": value - other, "sub": other - value, "mul": value // other if other else 0}
    return solve(b, name, inverse[operation], sizes)


def _solvable(dim: Dim, name: str) -> bool:
    if not isinstance(dim, tuple):
        return dim == name
    side = dim[1] if name in names_in(dim[1]) else dim[2]
    return dim[0] in ("add", "sub", "mul") and _solvable(side, name)


def _dims(row: Any) -> tuple[Dim, ...] | None:
    return None if row is None else tuple(_dim(item) for item in row)


def _dim(item: Any) -> Dim:
    return (item[0], _dim(item[1]), _dim(item[2])) if isinstance(item, list) and len(item) == 3 else item


def _plan(signature: Signature) -> tuple[Binding, ...]:
    """Which argument tells each size, in an order where every step needs only sizes known before."""
    scalars = {p.name for p in signature.parameters if p.shape is None and p.dtype.is_integer}
    known = set(scalars)
    wanted = set(signature.size_names)
    plan: list[Binding] = []
    places = _places(signature)
    progress = True
    while progress:
        progress = False
        for binding in places:
            unknown = [name for name in names_in(binding.dim) if name not in known]
            if len(unknown) == 1 and unknown[0] in wanted and _solvable(binding.dim, unknown[0]):
                plan.append(Binding(unknown[0], binding.parameter, binding.axis, binding.in_strides, binding.dim))
                known.add(unknown[0])
                progress = True
                break
    missing = sorted(wanted - known)
    if missing:
        raise ShapeError(
            f"{signature.name}: the size {missing[0]!r} cannot be found from the parameters' shapes; make it the whole "
            "extent of some axis, or pass it as an integer parameter"
        )
    for binding in places:
        for name in names_in(binding.dim):
            if name not in known:
                raise ShapeError(
                    f"{signature.name}: parameter {signature.parameters[binding.parameter].name!r} uses the size "
                    f"{name!r}, which is neither in size_names nor an integer parameter"
                )
    return tuple(plan)


def _places(signature: Signature) -> list[Binding]:
    """Every extent and stride, the surest to read a size from first; a packed last axis tells only whole bytes."""
    ranked: list[tuple[int, Binding]] = []
    for index, parameter in enumerate(signature.parameters):
        for in_strides, dims in ((False, parameter.shape or ()), (True, parameter.strides or ())):
            for axis, dim in enumerate(dims):
                is_packed_axis = parameter.dtype.is_packed and axis == len(dims) - 1
                rank = 4 if is_packed_axis else 2 * isinstance(dim, tuple) + in_strides
                ranked.append((rank, Binding("", index, axis, in_strides, dim)))
    return [binding for _, binding in sorted(ranked, key=lambda item: item[0])]
