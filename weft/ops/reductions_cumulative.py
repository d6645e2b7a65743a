"""CumSum and CumProd: running totals along an axis, forwards or backwards, with or without the element itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array
from weft.graph.opspec import Compute, Evaluate, Use, register
from weft.graph.shapes import normal_axis
from weft.ops.elementwise_support import infer_same, wide, wide_type, widen


def _axis(c: Use, value: Array, rank: int) -> int:
    return normal_axis(int(value.reshape(-1)[0]), rank, c.error)


def _evaluate(c: Evaluate, x: Array, axis: Array, accumulate: Callable[..., Any], neutral: int) -> Array:
    place, kind = _axis(c, axis, x.ndim), x.dtype
    x = np.moveaxis(wide(x), place, 0)
    x = x[::-1] if c.get("reverse", 0) else x
    if c.get("exclusive", 0) and len(x):
        x = np.concatenate([np.full_like(x[:1], neutral), x[:-1]])
    made = accumulate(x, axis=0, dtype=x.dtype)
    made = made[::-1] if c.get("reverse", 0) else made
    return np.ascontiguousarray(np.moveaxis(made, 0, place)).astype(kind)


def _compute(c: Compute, x: te.Tensor, combine: Callable[[Expr, Expr], Expr], neutral: int) -> te.Tensor | None:
    """A recurrence along the axis: row t is row t - 1 combined with the element that t adds."""
    value = c.value(1)
    if value is None:
        return None
    shape = c.shape(0)
    axis = _axis(c, value, len(shape))
    length, rest = shape[axis], (*shape[:axis], *shape[axis + 1 :])
    kind, late = wide_type(x.dtype.name), 1 if c.get("exclusive", 0) else 0

    def element(step: Any, others: Sequence[Any]) -> Expr:
        at = length - 1 - step if c.get("reverse", 0) else step
        return widen(x[(*others[:axis], at, *others[axis:])])

    state = te.placeholder((length, *rest), kind, name="running")
    start = te.compute(
        (1, *rest),
        lambda t, *o: te.const(neutral, kind) if late else element(t, o),
        name="running_start",
    )
    update = te.compute(
        (length, *rest), lambda t, *o: combine(state[(t - 1, *o)], element(t - late, o)), name="running_next"
    )
    totals = te.scan(start, update, state, name="running_total")
    if axis == 0 and not c.get("reverse", 0) and kind == x.dtype.name:
        assert isinstance(totals, te.Tensor)
        return totals

    def body(*indices: Any) -> Any:
        step = length - 1 - indices[axis] if c.get("reverse", 0) else indices[axis]
        return totals[(step, *indices[:axis], *indices[axis + 1 :])].astype(x.dtype)

    return te.stage(shape, body, name="cumulative")


def _register(name: str, accumulate: Callable[..., Any], combine: Callable[[Expr, Expr], Expr], neutral: int) -> None:
    def evaluate(c: Evaluate, x: Array, axis: Array) -> Array:
        return _evaluate(c, x, axis, accumulate, neutral)

    def compute(c: Compute, x: te.Tensor, axis: te.Tensor | None) -> te.Tensor | None:
        return _compute(c, x, combine, neutral)

    register(
        name,
        infer_same,
        evaluate,
        compute,
        "opaque",
        shape_inputs=(1,),
        takes="x:float|int32|int64|uint32|uint64, axis:index[]|[1]",
        traits="statistic",
    )


_register("CumSum", np.cumsum, lambda a, b: a + b, 0)
_register("CumProd", np.cumprod, lambda a, b: a * b, 1)
