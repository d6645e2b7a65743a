"""Reductions of tensors over axes, for every operator that needs one: sums, extremes, and the place of an extreme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, int_value
from weft.graph.ir import Array, Dim
from weft.ops.elementwise_support import widen

Source = Callable[[Expr, Sequence[Any]], Expr]


def mean_array(x: Array, axes: tuple[int, ...], keep: bool = False) -> Array:
    """The mean of floats over axes; of no elements, NaN without a word."""
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    return np.asarray(x.sum(axis=axes, keepdims=keep) / x.dtype.type(count))


def share_of(count: Dim, kind: Any) -> float | Expr:
    """1 / count as a factor: a number, or computed where the count is an open size."""
    return 1 / count if isinstance(count, int) else te.const(1, kind) / count.astype(kind)


def count_of(count: Dim, kind: Any) -> Expr:
    """A count as a number of a type."""
    return te.const(count, kind) if isinstance(count, int) else count.astype(kind)


def reduce_axes(
    x: te.Tensor,
    axes: Sequence[int],
    reducer: Callable[..., Any],
    source: Source | None = None,
    keep: bool = False,
    name: str = "reduce",
) -> te.Tensor:
    """The reduction of `source(element, indices)` over axes; narrow floats accumulate in float32.

    Without axes it is the source itself. `keep` leaves the reduced axes in the shape, with size 1.
    """
    rank = len(x.shape)
    places = sorted(axes)
    kept = [d for d in range(rank) if d not in places]
    shape = [1 if d in places else x.shape[d] for d in range(rank)] if keep else [x.shape[d] for d in kept]
    inner = {d: te.reduce_axis(x.shape[d], name=f"r{d}") for d in places}

    def body(*indices: Any) -> Any:
        outer = dict(zip(range(rank) if keep else kept, indices))
        full = tuple(inner[d].var if d in inner else outer[d] for d in range(rank))
        value = widen(x[full])
        made = value if source is None else source(value, full)
        return reducer(made, axis=list(inner.values())) if inner else made

    return te.stage(shape, body, name=name)


def best_index(x: te.Tensor, axis: int, greatest: bool, last: bool, keep: bool, name: str) -> te.Tensor:
    """Where along an axis the greatest (or least) element stands: the first of several, or the last.

    NaN beats all: it stands as an infinity whose place lies a whole axis before (or behind) the places of numbers. A
    place is as wide as an element where it can be, so that both have as many lanes.
    """
    shape = [1 if d == axis and keep else s for d, s in enumerate(x.shape) if keep or d != axis]
    count, place = x.shape[axis], te.reduce_axis(x.shape[axis], name="place")
    index = "int32" if x.dtype.bits <= 32 and (int_value(count) or 1 << 30) < 1 << 30 else "int64"
    around = count.astype(index) if last else -count.astype(index)

    def combine(a: Any, b: Any) -> Any:
        better = a[1] > b[1] if greatest else a[1] < b[1]
        sooner = a[0] > b[0] if last else a[0] < b[0]
        wins = te.any(better, te.all(te.equal(a[1], b[1]), sooner))
        return te.select(wins, a[0], b[0]), te.select(wins, a[1], b[1])

    reducer = te.comm_reducer(
        combine, lambda at, value: (at.min if last else at.max, value.min if greatest else value.max), name="best_index"
    )

    def body(*indices: Any) -> Any:
        full = list(indices)
        full[axis : axis + (1 if keep else 0)] = [place.var]
        value, at = widen(x[tuple(full)]), place.var.astype(index)
        if value.dtype.is_float:
            most, nan = value.dtype.max if greatest else value.dtype.min, te.isnan(value)
            value, at = te.select(nan, most, value), te.select(nan, at + around, at)
        return reducer((at, value), axis=place)

    def found(*indices: Any) -> Expr:
        at = best[0][indices]
        return te.select(at >= count if last else at < 0, at - around, at).astype("int64")

    best: Sequence[te.Tensor] = te.compute(shape, body, name="best")
    return te.stage(shape, found, name=name)
