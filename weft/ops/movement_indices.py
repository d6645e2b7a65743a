"""Index arithmetic that the operators which move elements share: kernel types, reshapes, indices that are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.core.dtypes import DType
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, Dim, same_dim
from weft.graph.opspec import Compute, Infer, Use
from weft.graph.shapes import Shape, normal_axis, tidy, unknown_dim


def output_type(c: Compute, position: int = 0) -> DType:
    """The element type of an output, in a kernel."""
    found = c.outputs[position].core
    if found is None:
        raise c.error(f"kernels do not know the element type of output {position}")
    return found


def fill(shape: Sequence[Dim], value: Any, kind: DType, name: str = "fill") -> Any:
    """A tensor with one value everywhere."""
    return te.compute(tuple(shape), lambda *i: te.const(value, kind), name=name, dtype=kind)


def unknown_shape(rank: int | None, what: str = "unknown") -> Shape | None:
    """A shape of which only the rank is known, or not even that."""
    return None if rank is None else tuple(unknown_dim(what) for _ in range(rank))


def length_of(c: Infer, position: int) -> int | None:
    """How many elements a vector input has, where that is known."""
    if not c.has(position):
        return None
    shape = c.tensor(position).shape
    if shape is None:
        return None
    if not shape:
        return 1
    return shape[0] if len(shape) == 1 and isinstance(shape[0], int) else None


def integers(value: Array) -> list[int]:
    """The elements of an array as Python ints."""
    return [int(v) for v in np.asarray(value).reshape(-1)]


def axis_of(c: Use, rank: int, default: int = 0) -> int:
    """The attribute `axis`, counted from the front."""
    return normal_axis(int(c.get("axis", default)), rank, c.error)


def with_dim(shape: Shape, axis: int, dim: Dim) -> Shape:
    """A shape with one dimension replaced."""
    return (*shape[:axis], dim, *shape[axis + 1 :])


# ------------------------------------------------------------------------------------------------------- reshapes


def reshape_read(source: Any, wanted: Sequence[Dim]) -> Callable[..., Expr]:
    """The element of `source` that stands at an index of its reshape; dims that stay alone cost no division."""
    groups = _groups([tidy(size) for size in source.shape], list(wanted))

    def read(*indices: Any) -> Expr:
        at: list[Any] = []
        for first, count, dims in groups:
            at += _split(indices[first : first + count], wanted[first : first + count], dims)
        return source[tuple(at)]  # type: ignore[no-any-return]

    return read


Stretch = tuple[int, int, list[Dim]]
"""Some dims of a new shape, the first and how many, and the old dims with as many elements."""


def _groups(old: list[Dim], new: list[Dim]) -> list[Stretch]:
    """The shortest stretches of both shapes that hold equally many elements; beside open sizes, only equal ends."""
    ends = list(map(same_dim, old, new)), list(map(same_dim, reversed(old), reversed(new)))
    first, last = (next((at for at, same in enumerate(end) if not same), len(end)) for end in ends)
    if not all(isinstance(d, int) for d in (*old, *new)):
        last = min(last, min(len(old), len(new)) - first)
        head: list[Stretch] = [(at, 1, [old[at]]) for at in range(first)]
        tail: list[Stretch] = [(len(new) - n, 1, [old[len(old) - n]]) for n in range(last, 0, -1)]
        return [*head, (first, len(new) - first - last, old[first : len(old) - last]), *tail]
    return _number_groups([d for d in old if isinstance(d, int)], [d for d in new if isinstance(d, int)])


def _number_groups(old: list[int], new: list[int]) -> list[Stretch]:
    found: list[Stretch] = []
    i = j = 0
    while i < len(old) or j < len(new):
        dims: list[Dim] = []
        first, left, right = j, 1, 1
        while True:
            if left <= right and i < len(old) and (left < right or not dims):
                left *= old[i]
                dims.append(old[i])
                i += 1
            elif j < len(new) and (right < left or j == first):
                right *= new[j]
                j += 1
            elif left == right:
                break
            else:  # only ones are left on one side
                dims, i, j = [*dims, *old[i:]], len(old), len(new)
                break
        found.append((first, j - first, dims))
    return found


def _split(indices: Sequence[Any], sizes: Sequence[Dim], dims: list[Dim]) -> list[Any]:
    """Indices into `dims` of the element that `indices` name in `sizes`."""
    real = [(i, s) for i, s in zip(indices, sizes) if s != 1]
    if [s for _, s in real] == [d for d in dims if d != 1]:
        order = iter(real)
        return [0 if d == 1 else next(order)[0] for d in dims]
    flat: Any = index_expr(0)
    for index, size in real:
        flat = flat * size + index
    out: list[Any] = []
    below: Any = 1
    leading = [k for k, d in enumerate(dims) if d != 1][:1]
    for position in range(len(dims) - 1, -1, -1):
        dim = dims[position]
        part = flat // below
        out.append(0 if dim == 1 else part if [position] == leading else part % dim)
        below *= dim
    return out[::-1]


# ------------------------------------------------------------------------------------------------ indices from data


def counted_index(value: Expr, size: Dim) -> Expr:
    """An index read from data; negative ones count from the end. One outside the dimension fails when it is used."""
    at = index_expr(value)
    return at if value.dtype.kind == "uint" else te.select(at < 0, at + size, at)


def choose(index: Any, values: Sequence[Any]) -> Any:
    """values[index] as nested selects, halving at each step."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return te.select(index < half, choose(index, values[:half]), choose(index - half, values[half:]))
