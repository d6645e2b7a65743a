"""Softmax, LogSoftmax and Hardmax: along one axis, shifted by its maximum so that nothing overflows.

The standard defines Softmax by a function of nodes (ReduceMax, Sub, Exp, ReduceSum, Div), with values of the input's
type between them. Of float16 the differences, the powers and their sum are therefore rounded to float16, unless the
sum is too large for it; bfloat16, which has three bits fewer to lose, is rounded once, at the end, as LogSoftmax is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import normal_axis
from weft.ops.elementwise_support import wide, widen
from weft.ops.expansion import Builder, compose
from weft.ops.reductions_support import reduce_axes

_LARGEST_FLOAT16 = 65504.0


def _axis(c: Use, rank: int) -> int:
    return normal_axis(c.get("axis", -1), rank, c.error)


def _infer(c: Infer) -> list[Type]:
    kind = c.tensor(0)
    if kind.shape is not None:
        _axis(c, kind.rank)
    return [kind]


def softmax_array(x: Array, axis: int) -> Array:
    """Softmax in the type of the array (a wide one)."""
    if not x.size:
        return x
    grown = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(grown / grown.sum(axis=axis, keepdims=True))


def _softmax(c: Evaluate, x: Array) -> Array:
    axis = _axis(c, x.ndim)
    if x.dtype != np.float16 or not x.size:
        return softmax_array(wide(x), axis).astype(x.dtype)
    grown = wide(np.exp(wide(x - x.max(axis=axis, keepdims=True))).astype(np.float16))
    total = grown.sum(axis=axis, keepdims=True)
    rounded = np.minimum(total, _LARGEST_FLOAT16).astype(np.float16)
    return np.asarray(grown / np.where(total > _LARGEST_FLOAT16, total, wide(rounded))).astype(x.dtype)


def _log_softmax(c: Evaluate, x: Array) -> Array:
    axis, data = _axis(c, x.ndim), wide(x)
    if not x.size:
        return x
    shifted = data - data.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))).astype(x.dtype)


def _without(indices: Any, axis: int) -> tuple[Any, ...]:
    return (*indices[:axis], *indices[axis + 1 :])


def softmax_tensor(x: te.Tensor, axis: int, dtype: Any, rounds: bool = False) -> te.Tensor:
    """Softmax along an axis of a tensor, computed wide and rounded to `dtype`; `rounds` also between its steps."""
    shape = x.shape
    top = reduce_axes(x, (axis,), te.max, name="softmax_max")

    def power(*i: Any) -> Expr:
        shifted = widen(x[i]) - top[_without(i, axis)]
        return widen(te.exp(widen(shifted.astype(x.dtype))).astype(x.dtype)) if rounds else te.exp(shifted)

    grown = te.compute(shape, power, name="softmax_exp")
    total = reduce_axes(grown, (axis,), te.sum, name="softmax_sum")

    def rounded(*i: Any) -> Expr:
        value: Expr = total[_without(i, axis)]
        limit = te.const(_LARGEST_FLOAT16, value.dtype)
        return te.select(value > limit, value, widen(te.minimum(value, limit).astype(x.dtype)))

    # One division a row; the rounded steps of float16 divide each element, as the standard's function does.
    inverse = total if rounds else te.compute(total.shape, lambda *i: 1.0 / total[i], name="softmax_inverse")

    def share(*i: Any) -> Expr:
        made: Expr = grown[i] / rounded(*i) if rounds else grown[i] * inverse[_without(i, axis)]
        return made

    return te.stage(shape, share, name="softmax", dtype=dtype)


def _compute_log_softmax(c: Compute, x: te.Tensor) -> te.Tensor:
    axis = _axis(c, len(x.shape))
    top = reduce_axes(x, (axis,), te.max, name="softmax_max")

    def grown(value: Expr, indices: Any) -> Expr:
        return te.exp(value - top[_without(indices, axis)])

    total = reduce_axes(x, (axis,), te.sum, grown, name="softmax_sum")

    def body(*i: Any) -> Expr:
        outer = _without(i, axis)
        return widen(x[i]) - top[outer] - te.log(total[outer])

    return te.stage(x.shape, body, name="log_softmax", dtype=x.dtype)


def _hardmax(b: Builder, x: Value) -> Value:
    """1 at the first of the greatest, 0 elsewhere."""
    axis = _axis(b.use, x.tensor.rank)
    size = b.known(x.tensor.dims[axis])
    if size == 0:
        return x
    places = b("ArgMax", x, axis=axis, keepdims=0)
    return b("OneHot", places, b.constant(size, "int64"), b.constant([0, 1], x.tensor.dtype), axis=axis)


register(
    "Softmax",
    _infer,
    _softmax,
    lambda c, x: softmax_tensor(x, _axis(c, len(x.shape)), x.dtype, rounds=x.dtype.name == "float16"),
    "reduction",
    takes="input:float",
    traits="transcendental speculatable rowwise",
)
register("LogSoftmax", _infer, _log_softmax, _compute_log_softmax, "reduction", takes="input:float", traits="rowwise")
compose("Hardmax", _hardmax, infer=_infer, takes="input:float")
