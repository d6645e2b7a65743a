"""TypeProto to graph types: element types by number, named sizes, sequences and optionals."""

from __future__ import annotations

import re
from typing import Any

from weft.core.errors import FrontendError
from weft.expr.nodes import Var
from weft.graph.ir import Dim, OptionalType, SequenceType, TensorType, Type
from weft.graph.shapes import unknown_dim

MOST_ELEMENTS = 2**40
"""A tensor with more is a mistake or an attack: no machine has the memory."""

DEEPEST = 32
"""How deep types, subgraphs and function calls may nest."""

ELEMENT_TYPES = dict(
    enumerate(
        "float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 complex64 complex128 "
        "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4 int4 float4_e2m1fn float8_e8m0fnu "
        "uint2 int2".split(),
        start=1,
    )
)
"""The element types by their number in TensorProto.DataType."""


def element_type(number: int, where: str) -> str:
    """The name of an element type; an error for a number that is none."""
    found = ELEMENT_TYPES.get(number)
    if found is None:
        raise FrontendError(f"{where}: element type {number} does not exist or has no place in a graph")
    return found


class Symbols:
    """The named sizes of a model: one variable for each name."""

    def __init__(self) -> None:
        self.variables: dict[str, Var] = {}
        self.taken: set[str] = set()

    def dim(self, name: str) -> Dim:
        """The size of that name; a name that is empty or a question mark stands for any size."""
        if not name.strip(" ?_"):
            return unknown_dim()
        if name not in self.variables:
            self.variables[name] = Var(self._identifier(name))
        return self.variables[name]

    def _identifier(self, name: str) -> str:
        """A name in the style of program variables: exporters write things like `2*batch` and `past.seq-len`."""
        base = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "size"
        if base[0].isdigit():
            base = f"size_{base}"
        found, count = base, 1
        while found in self.taken:
            count += 1
            found = f"{base}_{count}"
        self.taken.add(found)
        return found


def read_type(proto: Any, symbols: Symbols, where: str, depth: int = 0) -> Type | None:
    """A TypeProto as a Type; None where it says nothing."""
    if depth > DEEPEST:
        raise FrontendError(f"{where}: the type is nested more than {DEEPEST} levels deep")
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind == "tensor_type":
        return _tensor_type(proto.tensor_type, symbols, where)
    if kind in ("sequence_type", "optional_type"):
        inner = read_type(getattr(proto, kind).elem_type, symbols, where, depth + 1)
        if inner is None:
            return None
        return SequenceType(inner) if kind == "sequence_type" else OptionalType(inner)
    raise FrontendError(f"{where}: values of {kind.replace('_', ' ')} are not supported")


def _tensor_type(proto: Any, symbols: Symbols, where: str) -> TensorType | None:
    if proto.elem_type == 0:
        return None
    name = element_type(proto.elem_type, where)
    if not proto.HasField("shape"):
        return TensorType(name, None)
    dims: list[Dim] = []
    for dim in proto.shape.dim:  # some exporters write -1 for a size that they do not know
        which = dim.WhichOneof("value")
        if which == "dim_value" and dim.dim_value != -1:
            dims.append(int(dim.dim_value))
        else:
            dims.append(symbols.dim(dim.dim_param) if which == "dim_param" else unknown_dim())
    count_elements([d for d in dims if isinstance(d, int)], where)
    return TensorType(name, dims)


def count_elements(dims: list[int], where: str) -> int:
    """The number of elements of a shape; negative sizes and absurd counts are errors."""
    if any(d < 0 for d in dims):
        raise FrontendError(f"{where}: the shape {dims} has a negative size")
    total = 1
    for dim in dims:
        total *= max(dim, 1)  # a huge size beside a zero is refused too
        if total > MOST_ELEMENTS:
            raise FrontendError(f"{where}: the shape {dims} has more than 2^40 elements")
    return 0 if 0 in dims else total
