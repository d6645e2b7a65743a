"""Binds the symbolic sizes of a graph to the shapes that its inputs have.

    specialize(graph, {"x": (8, 128)})

    graph g(%x: float32[batch, n], %y: float32[n]) …   ->   graph g(%x: float32[8, 128], %y: float32[128]) …

Everything below the inputs is inferred anew. A size that gets two values is an error that names the input and the size.
A size of None stays as it is. `apart` gives sizes that share a name names of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from weft.expr.nodes import Expr, Var, const
from weft.expr.visit import substitute
from weft.graph.ir import Dim, Graph, GraphError, OptionalType, TensorType, Value
from weft.graph.passes.infer import infer
from weft.graph.passes.support import substitute_values
from weft.graph.shapes import tidy


def specialize(graph: Graph, shapes: Mapping[str, Sequence[int | None]]) -> Graph:
    """The graph for inputs of these shapes; inputs that are not named keep the sizes that do not follow."""
    shapes = {name: _numbers(name, shape) for name, shape in shapes.items()}
    by_name = {value.name: value for value in graph.inputs}
    for name in shapes:
        if name not in by_name:
            raise GraphError(f"there is no input {name!r}; the inputs are {', '.join(by_name) or 'none'}")
    bound: dict[Var, tuple[int, str]] = {}
    for name, shape in shapes.items():
        _bind(by_name[name], shape, bound)
    numbers: dict[Var, Expr] = {var: const(size) for var, (size, _) in bound.items()}
    new = {value: _specialized(value, shapes.get(value.name), numbers) for value in graph.inputs}
    changed = {old: made for old, made in new.items() if old is not made}
    return infer(substitute_values(graph, changed) if changed else graph)


def apart(graph: Graph) -> Graph:
    """The graph in which each open size of an input is a size of its own, though it shares a name with others."""
    seen: set[Var] = set()
    new: dict[Value, Value] = {}
    for value in graph.inputs:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            dims: list[Dim] = []
            for axis, dim in enumerate(value.type.shape):
                again = not isinstance(dim, int) and (not isinstance(dim, Var) or dim in seen)
                dims.append(Var(f"{value.name}_{axis}") if again else dim)
                seen.update([dim] if isinstance(dim, Var) else [])
            new[value] = Value(value.name, TensorType(value.type.dtype, dims))
    return infer(substitute_values(graph, new))


def _numbers(name: str, shape: Sequence[int | None]) -> tuple[int | None, ...]:
    sizes: tuple[int | None, ...]
    try:
        sizes = tuple(None if size is None else operator.index(size) for size in shape)
    except TypeError:
        sizes = (-1,)
    if any(size is not None and size < 0 for size in sizes):
        raise GraphError(f"input {name!r}: a shape is made of sizes from 0 up, not {shape!r}")
    return sizes


def _bind(value: Value, shape: Sequence[int | None], bound: dict[Var, tuple[int, str]]) -> None:
    wanted = value.type
    if isinstance(wanted, OptionalType):
        return  # what is inside is only known when it is there
    if not isinstance(wanted, TensorType):
        raise GraphError(f"input {value.name!r} is {wanted!r}: only a tensor has a shape to give")
    if wanted.shape is None:
        return
    if len(wanted.shape) != len(shape):
        raise GraphError(f"input {value.name!r} is {wanted!r}: a shape of {len(shape)} sizes does not fit it")
    for at, (dim, size) in enumerate(zip(wanted.shape, shape)):
        if size is None:
            continue
        if isinstance(dim, int) and dim != size:
            raise GraphError(f"input {value.name!r} is {wanted!r}: its size {at} is {dim}, not {size}")
        if isinstance(dim, Var):
            before = bound.setdefault(dim, (int(size), value.name))
            if before[0] != size:
                raise GraphError(
                    f"input {value.name!r}: the size {dim.name!r} is {size} here and {before[0]} in input {before[1]!r}"
                )


def _specialized(value: Value, shape: Sequence[int | None] | None, numbers: Mapping[Var, Expr]) -> Value:
    if not isinstance(value.type, TensorType):
        return value
    if value.type.shape is None:
        if shape is None or None in shape:
            return value
        return Value(value.name, TensorType(value.type.dtype, [int(size) for size in shape if size is not None]))
    dims: list[Dim] = [d if isinstance(d, int) else tidy(substitute(d, numbers)) for d in value.type.shape]
    for at, size in enumerate(shape or ()):
        if size is None:
            continue
        dim = dims[at]
        if isinstance(dim, int) and dim != size:
            raise GraphError(f"input {value.name!r}: its size {at}, {value.type.shape[at]!r}, is {dim}, not {size}")
        dims[at] = int(size)
    if all(isinstance(d, int) for d in value.type.shape):
        return value
    return Value(value.name, TensorType(value.type.dtype, dims))
