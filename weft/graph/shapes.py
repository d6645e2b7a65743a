"""Arithmetic of dimensions and shapes, for the inference functions of operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, Var, ceildiv, index_expr, int_value, maximum, minimum
from weft.expr.simplify import simplify
from weft.expr.visit import free_vars
from weft.graph.ir import Dim, GraphError, TensorType, same_dim

Shape = tuple[Dim, ...]
Fail = Callable[[str], Exception]
_unknown = itertools.count()

FAR = 2**31 - 1
"""From here on the end of a slice means "to the end" (exporters write the largest 32- or 64-bit number)."""


def unknown_dim(what: str = "unknown") -> Var:
    """A dimension that only the run will tell."""
    return Var(f"{what}_{next(_unknown)}")


def tidy(dim: Any) -> Dim:
    """A dimension in its simplest form: an int where it is one."""
    if isinstance(dim, Expr):
        simple = simplify(dim)
        value = int_value(simple)
        return simple if value is None else value
    return int(dim)


def plus(a: Dim, b: Dim) -> Dim:
    """a + b."""
    return a + b if isinstance(a, int) and isinstance(b, int) else tidy(index_expr(a) + index_expr(b))


def minus(a: Dim, b: Dim) -> Dim:
    """a - b."""
    return a - b if isinstance(a, int) and isinstance(b, int) else tidy(index_expr(a) - index_expr(b))


def times(a: Dim, b: Dim) -> Dim:
    """a * b."""
    return a * b if isinstance(a, int) and isinstance(b, int) else tidy(index_expr(a) * index_expr(b))


def divided(a: Dim, b: Dim, up: bool = False) -> Dim:
    """a / b, rounded down or up."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if up else a // b
    return tidy(ceildiv(a, b) if up else index_expr(a) // index_expr(b))


def least(a: Dim, b: Dim) -> Dim:
    """min(a, b)."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tidy(minimum(index_expr(a), index_expr(b)))


def greatest(a: Dim, b: Dim) -> Dim:
    """max(a, b)."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else tidy(maximum(index_expr(a), index_expr(b)))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dimensions."""
    total: Dim = 1
    for dim in dims:
        total = times(total, dim)
    return total


def in_turns(channels: int, size: int, turns: int) -> list[int]:
    """The channels of groups of a size in the order in which so many groups take turns."""
    firsts = [first + at for first in range(0, channels, size * turns) for at in range(size)]
    return [first + size * turn for first in firsts for turn in range(turns)]


def normal_axis(axis: int, rank: int, fail: Fail = GraphError) -> int:
    """An axis counted from the front; one outside the rank is an error."""
    if not -rank <= axis < rank:
        raise fail(f"axis {axis} is outside the {rank} dimensions of the tensor")
    return int(axis) % rank if rank else 0


def normal_axes(axes: Iterable[int], rank: int, fail: Fail = GraphError) -> tuple[int, ...]:
    """Axes counted from the front, in the order given; a repeated one is an error."""
    out = tuple(normal_axis(int(a), rank, fail) for a in axes)
    if len(set(out)) != len(out):
        raise fail(f"an axis is named twice in {list(out)}")
    return out


def follows(kind: Any, sizes: Collection[Var]) -> bool:
    """Whether a type is a tensor's whose shape is made of numbers and these sizes."""
    if not isinstance(kind, TensorType) or kind.shape is None:
        return False
    return all(isinstance(d, int) or all(var in sizes for var in free_vars(d)) for d in kind.shape)


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes are surely equal."""
    return len(a) == len(b) and all(map(same_dim, a, b))


TYPICAL = 64
"""What an open size is taken to be where nothing else is known of it."""


def typical(dims: Iterable[Dim], sizes: Mapping[Var, int] | None = None) -> tuple[int, ...]:
    """Numbers for dimensions, with what their open sizes typically are."""
    known = sizes or {}
    return tuple(d if isinstance(d, int) else _number(d, known) for d in dims)


def _number(dim: Expr, known: Mapping[Var, int]) -> int:
    return int(evaluate(dim, {var: known.get(var, TYPICAL) for var in free_vars(dim)}))


def broadcast(shapes: Sequence[Shape | None], fail: Fail = GraphError) -> Shape | None:
    """The shape that numpy's broadcasting gives; None where a rank is unknown. A symbolic size beats a 1."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    rank = max((len(s) for s in known), default=0)
    out: list[Dim] = []
    for position in range(rank):
        dim: Dim = 1
        for shape in known:
            at = position - (rank - len(shape))
            if at < 0 or (isinstance(shape[at], int) and shape[at] == 1):
                continue
            other = shape[at]
            if isinstance(dim, int) and dim == 1:
                dim = other
            elif not same_dim(dim, other):
                if isinstance(dim, int) and isinstance(other, int):
                    raise fail(f"shapes {' and '.join(str(list(s)) for s in known)} do not broadcast")
                # One of them is 1, or both are the same: the number decides, or the greater one.
                dim = dim if isinstance(dim, int) else other if isinstance(other, int) else greatest(dim, other)
        out.append(dim)
    return tuple(out)
