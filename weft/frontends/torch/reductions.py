"""Converters of what runs along axes: sums and other reductions, statistics, scans, sorting, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Emitter, Operand, Unsupported, is_float, limits
from weft.frontends.torch.table import aten, enter
from weft.graph.ir import Value

Axes = Any
"""None, one axis, or several."""


def axes_of(x: Value, dim: Axes) -> list[int]:
    """The axes that a reduction names, counted from the front; none named are all."""
    rank = x.tensor.rank
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    given = [dim] if isinstance(dim, int) else list(dim)
    return [axis % rank for axis in given] if rank else []


def reduce(c: Emitter, op: str, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """One of the reductions of ONNX; a tensor without axes is its own."""
    axes = axes_of(x, dim)
    if x.tensor.rank == 0 and op in ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean"):
        return x
    return c.op(op, x, axes, keepdims=int(keepdim))


def _wide(c: Emitter, x: Value) -> Value:
    """x in the type in which statistics are computed: halves as float32."""
    return c.cast(x, "float32" if c.dtype in ("float16", "bfloat16") else c.dtype)


def _statistic(op: str) -> Any:
    def converter(c: Emitter, x: Value, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
        return reduce(c, op, _wide(c, x), dim, keepdim)

    return converter


def _extreme(op: str) -> Any:
    return lambda c, x, dim=None, keepdim=False: reduce(c, op, x, dim, keepdim)


enter(
    {
        "sum sum.dim_IntList": _statistic("ReduceSum"),
        "mean mean.dim": _statistic("ReduceMean"),
        "prod prod.dim_int": _statistic("ReduceProd"),
        "amax max": _extreme("ReduceMax"),
        "amin min": _extreme("ReduceMin"),
    }
)


def _orderable(c: Emitter, x: Value) -> Value:
    """x in a type that has an order: truth values as numbers."""
    return c.cast(x, "int32") if x.tensor.dtype == "bool" else x


def _arg(op: str) -> Any:
    def converter(c: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        x = _orderable(c, x)
        if x.tensor.rank == 0:
            return c.constant(np.int64(0))
        if dim is None:
            rank = x.tensor.rank
            made = c.op(op, c.flat(x), axis=0, keepdims=0)
            return c.reshape(made, [1] * rank) if keepdim else made
        return c.op(op, x, axis=dim, keepdims=int(keepdim))

    return converter


_argmax, _argmin = _arg("ArgMax"), _arg("ArgMin")
aten("argmax")(_argmax)
aten("argmin")(_argmin)


def _extreme_with_place(op: str, place: Any) -> Any:
    def converter(c: Emitter, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        return reduce(c, op, x, dim, keepdim), place(c, x, dim, keepdim)

    return converter


aten("max.dim")(_extreme_with_place("ReduceMax", _argmax))
aten("min.dim")(_extreme_with_place("ReduceMin", _argmin))


@aten("any", "any.dim", "any.dims")
def _any(c: Emitter, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    if x.tensor.rank == 0 or 0 in x.tensor.dims:  # the greatest of no elements is no truth value
        return c.op("Greater", reduce(c, "ReduceSum", c.cast(c.cast(x, "bool"), "int32"), dim, keepdim), np.int32(0))
    return reduce(c, "ReduceMax", c.cast(x, "bool"), dim, keepdim)


@aten("all", "all.dim", "all.dims")
def _all(c: Emitter, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    return c.invert(_any(c, c.invert(c.cast(x, "bool")), dim, keepdim))


def _count(c: Emitter, x: Value, axes: Sequence[int], dtype: str) -> Any:
    sizes = [c.size(x, axis) for axis in axes]
    total = c.times(*sizes)
    return total if isinstance(total, int) else c.cast(total, dtype)


@aten("var_mean.correction")
def _moments(
    c: Emitter, x: Value, dim: Axes = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """Variance and mean, computed in two passes."""
    x, correction = _wide(c, x), 1 if correction is None else correction
    axes, kind = axes_of(x, dim), x.tensor.dtype
    mean = reduce(c, "ReduceMean", x, axes, True)
    apart = c.op("Sub", x, mean)
    if correction == 0:
        variance = reduce(c, "ReduceMean", c.op("Mul", apart, apart), axes, keepdim)
    else:
        total = reduce(c, "ReduceSum", c.op("Mul", apart, apart), axes, keepdim)
        count = _count(c, x, axes, kind)
        if isinstance(count, int):
            divisor = c.value(max(count - correction, 0), kind)
        else:
            divisor = c.op("Max", c.op("Sub", count, c.value(correction, kind)), c.value(0, kind))
        variance = c.op("Div", total, divisor)
    return variance, mean if keepdim or x.tensor.rank == 0 else c.squeeze(mean, *axes)


enter(
    {
        "var.correction": lambda c, x, dim=None, **given: _moments(c, x, dim, **given)[0],
        "std.correction": lambda c, x, dim=None, **given: c.op("Sqrt", _moments(c, x, dim, **given)[0]),
    }
)


@aten("linalg_vector_norm")
def _norm(
    c: Emitter, x: Value, order: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    x = _wide(c, x)
    if order == 2 or order == 1:
        if x.tensor.rank == 0:
            return c.op("Abs", x)
        return reduce(c, "ReduceL2" if order == 2 else "ReduceL1", x, dim, keepdim)
    size = c.op("Abs", x)
    if math.isinf(order):
        return reduce(c, "ReduceMax" if order > 0 else "ReduceMin", size, dim, keepdim)
    kind = x.tensor.dtype
    if order == 0:
        some = c.invert(c.op("Equal", x, c.value(0, kind)))
        return reduce(c, "ReduceSum", c.cast(some, kind), dim, keepdim)
    total = reduce(c, "ReduceSum", c.op("Pow", size, c.value(order, kind)), dim, keepdim)
    return c.op("Pow", total, c.value(1 / order, kind))


@aten("logsumexp")
def _logsumexp(c: Emitter, x: Value, dim: Axes, keepdim: bool = False) -> Value:
    x = c.cast(x, c.dtype)
    return x if x.tensor.rank == 0 else reduce(c, "ReduceLogSumExp", x, dim, keepdim)


# ------------------------------------------------------------------------------------------------------------- scans


def _scan(op: str) -> Any:
    def converter(c: Emitter, x: Value, dim: int, *, dtype: Any = None) -> Value:
        x = c.cast(x, c.dtype)
        return x if x.tensor.rank == 0 else c.op(op, x, np.int64(dim))

    return converter


aten("cumsum")(_scan("CumSum"))
aten("cumprod")(_scan("CumProd"))


def _softmax_of(op: str) -> Any:
    def converter(c: Emitter, x: Value, dim: int, *_: Any) -> Value:
        x = c.cast(x, c.dtype)
        if x.tensor.rank == 0:
            return c.squeeze(c.op(op, c.unsqueeze(x, 0), axis=0), 0)
        return c.op(op, x, axis=dim)

    return converter


_softmax = _softmax_of("Softmax")
aten("softmax.int", "_softmax")(_softmax)
aten("log_softmax.int", "_log_softmax")(_softmax_of("LogSoftmax"))


@aten("_safe_softmax")
def _safe_softmax(c: Emitter, x: Value, dim: int, dtype: Any = None) -> Value:
    """A softmax that is 0 along rows that are hidden as a whole."""
    x = c.cast(x, c.dtype)
    hidden = c.op("Equal", reduce(c, "ReduceMax", x, dim, True), c.value(-math.inf, c.dtype))
    return c.where(hidden, 0, _softmax(c, x, dim))


# ----------------------------------------------------------------------------------------------------------- sorting


@aten("topk")
def _topk(
    c: Emitter, x: Value, k: Operand, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    if x.tensor.rank == 0:
        return x, c.constant(np.int64(0))
    count = c.vector([k if isinstance(k, Value) else int(k)])  # type: ignore[arg-type]
    given = {"axis": dim, "largest": int(largest), "sorted": int(sorted)}
    values, places = c.several(2, "TopK", _orderable(c, x), count, **given)
    return values, places


@aten("sort", "sort.stable")
def _sort(c: Emitter, x: Value, dim: int = -1, descending: bool = False, *, stable: bool = True) -> tuple[Value, Value]:
    if x.tensor.rank == 0:
        return x, c.constant(np.int64(0))
    return _topk(c, x, c.size(x, dim), dim, descending)


@aten("kthvalue")
def _kth(c: Emitter, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    if not x.tensor.rank:
        return x, c.constant(np.int64(0))
    picked = [c.op("Gather", one, np.int64(k - 1), axis=dim) for one in _sort(c, x, dim)]
    first, second = (c.unsqueeze(one, dim) if keepdim else one for one in picked)
    return first, second


@aten("median.dim")
def _median(c: Emitter, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    length = c.size(x, dim) if x.tensor.rank else 1
    if not isinstance(length, int):
        raise Unsupported("a median along an axis whose size only a call tells")
    values, places = _kth(c, x, (length + 1) // 2, dim, keepdim)
    if is_float(c.dtype) and x.tensor.rank:  # one NaN makes the median NaN
        hidden = reduce(c, "ReduceSum", c.cast(c.op("IsNaN", x), "int32"), dim, keepdim)
        values = c.where(c.op("Greater", hidden, np.int32(0)), math.nan, values)
    return values, places


def _before(c: Emitter, x: Value, dim: int, hidden: Any) -> tuple[Value, Value, int]:
    """Each element beside all before it along an axis: a square, the rest hidden; where it is not; and its axis."""
    rank, length = x.tensor.rank, c.size(x, dim)
    if not isinstance(length, int) or length > 1024:
        raise Unsupported("a running sum along an axis of more than 1024 elements, or of a size that a call tells")
    axis = dim % rank
    later = np.triu(np.ones((length, length), bool), 1).reshape(length, length, *[1] * (rank - 1 - axis))
    return c.where(c.constant(later), hidden, c.unsqueeze(x, axis), x.tensor.dtype), c.constant(~later), axis + 1


@aten("logcumsumexp")
def _logcumsumexp(c: Emitter, x: Value, dim: int) -> Value:
    if not x.tensor.rank:
        return x
    square, _, axis = _before(c, x, dim, -math.inf)
    return reduce(c, "ReduceLogSumExp", square, axis)


def _running_extreme(op: str) -> Any:
    """cummax and cummin: each element against all before it, as one masked square."""

    def converter(c: Emitter, x: Value, dim: int) -> tuple[Value, Value]:
        if not x.tensor.rank:
            return x, c.constant(np.int64(0))
        x = _orderable(c, x)
        square, shown, axis = _before(c, x, dim, limits(x.tensor.dtype)[0 if op == "ReduceMax" else 1])
        values = reduce(c, op, square, axis)
        reached = c.unsqueeze(values, axis)
        same = c.op("Equal", square, reached)
        if is_float(x.tensor.dtype):
            same = c.op("Or", same, c.op("And", c.op("IsNaN", square), c.op("IsNaN", reached)))
        places = np.arange(shown.tensor.static[1]).reshape(-1, *[1] * (x.tensor.rank - axis))
        known = c.where(c.op("And", same, shown), c.constant(places), np.int64(-1), "int64")
        return values, reduce(c, "ReduceMax", known, axis)

    return converter


aten("cummax")(_running_extreme("ReduceMax"))
aten("cummin")(_running_extreme("ReduceMin"))


@aten("histc")
def _histc(c: Emitter, x: Value, bins: int = 100, min: Any = 0, max: Any = 0) -> Value:
    """How many elements fall into each of so many stretches of equal width; the last one holds its upper end."""
    x = c.flat(c.cast(x, c.dtype if is_float(c.dtype) else "float64"))
    kind = x.tensor.dtype
    low, high = c.value(min, kind), c.value(max, kind)
    if min == max:
        low, high = reduce(c, "ReduceMin", x, 0), reduce(c, "ReduceMax", x, 0)
        same = c.op("Equal", low, high)
        low, high = (
            c.where(same, c.op(op, one, c.value(1, kind)), one, kind) for op, one in (("Sub", low), ("Add", high))
        )
    share = c.op("Div", c.op("Sub", x, low), c.op("Sub", high, low))
    place = c.op("Min", c.op("Floor", c.op("Mul", share, c.value(bins, kind))), c.value(bins - 1, kind))
    inside = c.op("And", c.op("GreaterOrEqual", x, low), c.op("LessOrEqual", x, high))
    place = c.unsqueeze(c.where(inside, place, -1, kind), 1)
    held = c.op("Equal", place, c.constant(np.arange(bins), kind))
    return reduce(c, "ReduceSum", c.cast(held, "int64"), 0)


@aten("nanmedian.dim")
def _nanmedian(c: Emitter, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The middle one of those that are numbers; with none of them, NaN."""
    if not x.tensor.rank or not is_float(x.tensor.dtype):
        return _median(c, x, dim, keepdim)
    hidden = c.op("IsNaN", x)
    count = reduce(c, "ReduceSum", c.cast(c.invert(hidden), "int64"), dim, True)
    values, places = _sort(c, c.where(hidden, math.inf, x), dim)
    middle = c.op("Max", c.op("Div", c.op("Sub", count, np.int64(1)), np.int64(2)), np.int64(0))
    values, places = (c.op("GatherElements", one, middle, axis=dim) for one in (values, places))
    values = c.where(c.op("Equal", count, np.int64(0)), math.nan, values)
    return (values, places) if keepdim else (c.squeeze(values, dim), c.squeeze(places, dim))


enter(
    {
        "argsort argsort.stable": lambda c, x, dim=-1, descending=False, **_: _sort(c, x, dim, descending)[1],
        "median": lambda c, x: _median(c, c.flat(x), 0)[0],
        "nanmedian": lambda c, x: _nanmedian(c, c.flat(x), 0)[0],
    }
)
