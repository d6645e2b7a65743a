"""Pooling: MaxPool (with indices), AveragePool, LpPool, and their global forms.

Values outside the input never count: the maximum sees the least value of the type there, sums see zero, and the mean
divides by the number of positions inside (or, with count_include_pad, inside the declared padding).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, register
from weft.graph.shapes import product, unknown_dim
from weft.graph.signature import Between, OneOf
from weft.ops.convolution import accumulator, exact_type
from weft.ops.convolution_window import Ints, Window, kernel_axes, pad_array, pad_tensor, tap, windows_of
from weft.ops.reductions_support import count_of

# ---------------------------------------------------------------------------------------------------------- inference


def _infer_pool(c: Infer) -> list[Type]:
    x = c.tensor(0)
    kernel = c.need("kernel_shape")
    window = Window(c, kernel)
    if x.shape is None:
        shape = (unknown_dim("batch"), unknown_dim("channels"), *[unknown_dim("pool") for _ in kernel])
        return _pool_types(c, x.dtype, shape)
    if x.rank != len(kernel) + 2:
        raise c.error(f"a kernel of {list(kernel)} needs {len(kernel) + 2} dimensions, not {x!r}")
    return _pool_types(c, x.dtype, (*x.dims[:2], *window.out_dims(x.dims[2:])))


def _pool_types(c: Infer, dtype: str, shape: Any) -> list[Type]:
    found: list[Type] = [TensorType(dtype, shape)]
    return [*found, TensorType("int64", shape)][: max(c.output_count, 1)]


def _infer_global(c: Infer) -> list[Type]:
    x = c.tensor(0)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    return [TensorType(x.dtype, (*x.dims[:2], *[1] * (x.rank - 2)))]


# ------------------------------------------------------------------------------------------------------------- arrays


def least_value(dtype: Any) -> Any:
    """The value that no maximum takes notice of."""
    kind = np.dtype(dtype)
    return np.iinfo(kind).min if kind.kind in "iu" else -math.inf


def _static_outs(window: Window, sizes: Sequence[int]) -> Ints:
    return tuple(int(d) for d in window.out_dims(sizes) if isinstance(d, int))


def _cropped(window: Window, sizes: Sequence[Dim], outs: Sequence[Dim]) -> Window:
    """The window without the taps at its edges that meet nothing but padding at every output.

    What they read changes no maximum and no sum; a kernel far larger than the image would take its time over them.
    """
    made = copy.copy(window)
    made.kernel, made.pads, made.auto_pad = (), (), "NOTSET"
    for axis, (before, after) in enumerate(window.padding(sizes)):
        kernel, gap = window.kernel[axis], window.dilations[axis]
        size, count, first, end = sizes[axis], outs[axis], 0, kernel
        if isinstance(size, int) and isinstance(count, int):
            last = (max(count, 1) - 1) * window.strides[axis]
            first = min(max(-((last - before) // gap), 0), kernel - 1)
            end = max(min((before + size - 1) // gap + 1, kernel), first + 1)
        made.kernel += (end - first,)
        made.pads += ((before - first * gap, after - (kernel - end) * gap),)
    return made if made.kernel != window.kernel else window


def _views(c: Evaluate, x: Array, fill: Any) -> tuple[Array, Window, Ints]:
    """Every window of the (cropped, padded) input; the whole window; the sizes of the output."""
    window = Window(c, c.need("kernel_shape"))
    outs = _static_outs(window, x.shape[2:])
    cropped = _cropped(window, x.shape[2:], outs)
    padded = pad_array(x, cropped.reach(x.shape[2:], outs), fill)
    return windows_of(padded, cropped, outs), window, outs


def _reduced(c: Evaluate, x: Array, fill: Any, reduce: Any) -> tuple[Array, Window, Ints]:
    """Every window reduced, one dimension after the other: k + k steps for each of them, not k * k."""
    window = Window(c, c.need("kernel_shape"))
    outs = _static_outs(window, x.shape[2:])
    one = _cropped(window, x.shape[2:], outs)
    made = pad_array(x, one.reach(x.shape[2:], outs), fill)
    for axis, (size, kernel, stride, gap) in enumerate(zip(outs, one.kernel, one.strides, one.dilations)):
        step = made.strides[2 + axis]
        shape = (*made.shape[: 2 + axis], size, *made.shape[3 + axis :], kernel)
        moves = (*made.strides[: 2 + axis], stride * step, *made.strides[3 + axis :], gap * step)
        made = reduce(np.lib.stride_tricks.as_strided(made, shape, moves, writeable=False), axis=-1)
    return made, window, outs


def _evaluate_max(c: Evaluate, x: Array) -> Any:
    if c.output_count < 2:
        return _reduced(c, x, least_value(x.dtype), np.max)[0]
    view, window, outs = _views(c, x, least_value(x.dtype))
    flat = view.reshape(*x.shape[:2], *outs, -1)
    window = _cropped(window, x.shape[2:], outs)
    inside, position = _positions(window, x.shape[2:], outs, bool(c.get("storage_order", 0)))
    # A padded position is never chosen, not even where every value is the least one.
    number = np.where(inside, flat, least_value(x.dtype))
    greatest = (number == number.max(axis=-1, keepdims=True)) | (number != number)
    rank_of = np.where(greatest, np.where(inside, 1, 0), -1)
    best = rank_of.argmax(axis=-1)[..., None]
    values = np.take_along_axis(flat, best, axis=-1)[..., 0]
    chosen = np.take_along_axis(np.broadcast_to(position, flat.shape), best, axis=-1)[..., 0]
    planes = np.arange(x.shape[0] * x.shape[1], dtype=np.int64) * math.prod(x.shape[2:])
    return values, chosen + planes.reshape(*x.shape[:2], *[1] * len(outs))


def _positions(window: Window, sizes: Sequence[int], outs: Ints, column_major: bool) -> tuple[Array, Array]:
    """For each output and kernel position: whether it is inside the input, and its flat index in a plane."""
    rank = len(outs)
    inside: Array = np.ones((*outs, *window.kernel), bool)
    position: Array = np.zeros((*outs, *window.kernel), np.int64)
    steps = [math.prod(sizes[:i]) if column_major else math.prod(sizes[i + 1 :]) for i in range(rank)]
    for axis, (before, _) in enumerate(window.padding(sizes)):
        at = np.arange(outs[axis])[:, None] * window.strides[axis] - before
        at = at + np.arange(window.kernel[axis])[None, :] * window.dilations[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = at.shape
        inside = inside & ((at >= 0) & (at < sizes[axis])).reshape(shape)
        position = position + (at * steps[axis]).reshape(shape)
    return inside.reshape(*outs, -1), position.reshape(*outs, -1)


def _counts(window: Window, sizes: Sequence[int], outs: Ints, include_pad: bool) -> Array:
    """How many positions each window averages over."""
    made: Array = np.ones(outs, np.int64)
    for axis, (before, after) in enumerate(window.padding(sizes)):
        start, gap = np.arange(outs[axis]) * window.strides[axis] - before, window.dilations[axis]
        low, high = (-before, sizes[axis] + after) if include_pad else (0, sizes[axis])
        first, end = (np.clip(-((start - edge) // gap), 0, window.kernel[axis]) for edge in (low, high))
        shape = [1] * len(outs)
        shape[axis] = outs[axis]
        made = made * np.maximum(end - first, 0).reshape(shape)
    return made


def _all_counts(window: Window, sizes: Sequence[Dim], outs: Sequence[Dim], include_pad: bool) -> Array | None:
    """The counts where they are known now; None beside open sizes."""
    known, made = [d for d in sizes if isinstance(d, int)], [d for d in outs if isinstance(d, int)]
    is_known = len(known) + len(made) == len(sizes) + len(outs)
    return _counts(window, known, tuple(made), include_pad) if is_known else None


def _evaluate_average(c: Evaluate, x: Array) -> Array:
    wide = exact_type(str(x.dtype)) or x.dtype
    total, window, outs = _reduced(c, x.astype(wide), 0, np.sum)
    counts = _counts(window, x.shape[2:], outs, bool(c.get("count_include_pad", 0)))
    return np.asarray((total / np.maximum(counts, 1).astype(wide)).astype(x.dtype))


def _evaluate_lp(c: Evaluate, x: Array) -> Array:
    wide = exact_type(str(x.dtype)) or x.dtype
    p = int(c.get("p", 2))
    total = _reduced(c, np.abs(x.astype(wide)) ** p, 0, np.sum)[0]
    return np.asarray((total ** (1.0 / p)).astype(x.dtype))


def _spatial(x: Array) -> Ints:
    return tuple(range(2, x.ndim))


def _evaluate_global_max(c: Evaluate, x: Array) -> Array:
    return np.asarray(x.max(axis=_spatial(x), keepdims=True))


def _evaluate_global_average(c: Evaluate, x: Array) -> Array:
    wide = exact_type(str(x.dtype)) or x.dtype
    return np.asarray(x.astype(wide).mean(axis=_spatial(x), keepdims=True).astype(x.dtype))


def _evaluate_global_lp(c: Evaluate, x: Array) -> Array:
    wide = exact_type(str(x.dtype)) or x.dtype
    p = int(c.get("p", 2))
    total = (np.abs(x.astype(wide)) ** p).sum(axis=_spatial(x), keepdims=True)
    return np.asarray((total ** (1.0 / p)).astype(x.dtype))


# ------------------------------------------------------------------------------------------------------------ tensors


def _window_reduce(
    c: Compute, x: te.Tensor, fill: Any, reduce: Any, source: Any, name: str
) -> tuple[te.Tensor, Window]:
    """A reduction over each window of `source(element)`, with padding as a stage of its own; the whole window too."""
    whole = Window(c, c.need("kernel_shape"))
    sizes, outs = c.dims(0), c.out_dims()
    window = _cropped(whole, sizes[2:], outs[2:])
    padded = pad_tensor(x, sizes, window.reach(sizes[2:], outs[2:]), lambda: fill)
    taps = kernel_axes(window)
    if _is_separable(window):
        return _reduce_by_axis(window, padded, outs, taps, reduce, source, name), whole
    made = te.compute(
        outs,
        lambda n, ch, *at: reduce(source(padded[(n, ch, *tap(window, at, taps))]), axis=taps),
        name=name,
    )
    return made, whole


MOST_TAPS = 9
"""Windows up to this size are read element by element."""


def _is_separable(window: Window) -> bool:
    """Whether large windows overlap, so that what is reduced along one dimension serves several of them."""
    several = sum(k > 1 for k in window.kernel) > 1
    return several and math.prod(window.kernel) > MOST_TAPS and window.strides[0] < window.kernel[0]


def _reduce_by_axis(
    window: Window,
    padded: te.Tensor,
    outs: Sequence[Dim],
    taps: Sequence[te.IterVar],
    reduce: Any,
    source: Any,
    name: str,
) -> te.Tensor:
    """The windows' dimensions one after the other, the outermost first: its neighbours are whole rows."""
    made, shape = padded, list(padded.shape)

    def along(axis: int, k: te.IterVar, values: te.Tensor, *at: Expr) -> Any:
        there = at[2 + axis] * window.strides[axis] + k.var * window.dilations[axis]
        value = values[(*at[: 2 + axis], there, *at[3 + axis :])]
        return reduce(source(value) if axis == 0 else value, axis=[k])

    for axis, k in enumerate(taps):
        shape[2 + axis] = index_expr(outs[2 + axis])
        full_name = name if axis == len(taps) - 1 else f"{name}_{k.var.name}"
        made = te.stage(shape, partial(along, axis, k, made), full_name)
    return made


def _compute_max(c: Compute, x: te.Tensor) -> Any:
    if len(c.outputs) > 1:
        return _compute_max_indices(c, x)
    return _window_reduce(c, x, x.dtype.min, te.max, lambda v: v, "max_pool")[0]


def _better(x: Any, y: Any) -> Any:
    """The greater value with its position, and NaN before all; of equal values, the one that comes first."""
    greater, tie = x[1] > y[1], te.equal(x[1], y[1])
    if x[1].dtype.is_float:
        greater = te.any(greater, te.all(te.isnan(x[1]), te.not_(te.isnan(y[1]))))
        tie = te.any(tie, te.all(te.isnan(x[1]), te.isnan(y[1])))
    keep = te.any(greater, te.all(tie, x[2] <= y[2]))
    return tuple(te.if_then_else(keep, a, b) for a, b in zip(x, y))


def _compute_max_indices(c: Compute, x: te.Tensor) -> Any:
    """Value and position reduced together; the third number orders equal values and puts padding last."""
    sizes, outs = c.shape(0), c.out_shape()
    window = _cropped(Window(c, c.need("kernel_shape")), sizes[2:], outs[2:])
    rank = len(sizes) - 2
    before = [a for a, _ in window.padding(sizes[2:])]
    padded = pad_tensor(x, sizes, window.reach(sizes[2:], outs[2:]), lambda: x.dtype.min)
    taps = kernel_axes(window)
    column_major = bool(c.get("storage_order", 0))
    steps = [math.prod(sizes[2 : 2 + i]) if column_major else math.prod(sizes[3 + i :]) for i in range(rank)]
    order = [math.prod(window.kernel[i + 1 :]) for i in range(rank)]
    far = math.prod(window.kernel)
    best = te.comm_reducer(_better, lambda t0, t1, t2: (-1, t1.min, 2 * far), name="best")

    def body(n: Expr, ch: Expr, *at: Expr) -> Any:
        there = tap(window, at, taps)
        source = [i - b for i, b in zip(there, before)]
        inside = te.all(*[te.all(i >= 0, i < size) for i, size in zip(source, sizes[2:])])
        plane = (n * sizes[1] + ch) * math.prod(sizes[2:])
        index = sum((i * step for i, step in zip(source, steps)), plane)
        turn = sum((k.var * step for k, step in zip(taps, order)), te.const(0))
        return best((index, padded[(n, ch, *there)], te.if_then_else(inside, turn, turn + far)), axis=taps)

    made = te.compute(outs, lambda n, ch, *at: body(n, ch, *at), name="max_pool")
    value = te.compute(outs, lambda *at: made[1][at], name="max_value")
    index = te.compute(outs, lambda *at: made[0][at], name="max_index")
    return value, index


def _tap_count(window: Window, axis: int, at: Expr, low: int, high: Dim, before: int) -> Expr:
    """How many kernel positions along one dimension fall into [low, high)."""
    dilation, kernel = window.dilations[axis], window.kernel[axis]
    start = at * window.strides[axis] - before
    first = te.maximum((te.const(low) - start + (dilation - 1)) // dilation, te.const(0))
    last = te.minimum((index_expr(high) - start + (dilation - 1)) // dilation, te.const(kernel))
    return last - first


def _compute_average(c: Compute, x: te.Tensor) -> te.Tensor | None:
    kind, sizes = c.outputs[0].dtype, c.dims(0)[2:]
    wide = accumulator(kind)
    total, window = _window_reduce(c, x, 0, te.sum, lambda v: v.astype(wide), "pool_sum")
    include = bool(c.get("count_include_pad", 0))
    pads = window.padding(sizes)
    counts = _all_counts(window, sizes, c.out_dims()[2:], include)

    def body(*at: Expr) -> Expr:
        if counts is not None and (counts == counts.flat[0]).all():
            count: Expr = te.const(float(max(counts.flat[0], 1)), wide)
        else:
            number: Expr = te.const(1)
            for axis, (before, after) in enumerate(pads):
                low, high = (-before, sizes[axis] + after) if include else (0, sizes[axis])
                number = number * _tap_count(window, axis, at[2 + axis], low, high, before)
            count = te.maximum(number, te.const(1)).astype(wide)
        return (total[at] / count).astype(kind)

    return te.stage(c.out_dims(), lambda *at: body(*at), name="average_pool")


def _raise(value: Expr, p: int, kind: str) -> Expr:
    """|value| to the power p, as a product where p is small."""
    wide = te.abs(value.astype(kind))
    return wide if p == 1 else wide * wide if p == 2 else te.power(wide, te.const(float(p), kind))


def _root(value: Expr, p: int, kind: str) -> Expr:
    return value if p == 1 else te.sqrt(value) if p == 2 else te.power(value, te.const(1.0 / p, kind))


def _compute_lp(c: Compute, x: te.Tensor) -> te.Tensor | None:
    kind, p = c.outputs[0].dtype, int(c.get("p", 2))
    wide = accumulator(kind)
    total, _ = _window_reduce(c, x, 0, te.sum, lambda v: _raise(v, p, wide), "pool_power")
    return te.stage(c.out_dims(), lambda *at: _root(total[at], p, wide).astype(kind), name="lp_pool")


def _global_reduce(c: Compute, x: te.Tensor, reduce: Any, source: Any, name: str) -> te.Tensor:
    axes = [te.reduce_axis(size, f"k{i}") for i, size in enumerate(c.dims(0)[2:])]
    return te.stage(
        c.out_dims(),
        lambda n, ch, *at: reduce(source(x[(n, ch, *[k.var for k in axes])]), axis=axes),
        name,
    )


def _no_global(c: Compute) -> bool:
    return len(c.dims(0)) < 3


def _compute_global_max(c: Compute, x: te.Tensor) -> te.Tensor | None:
    return None if _no_global(c) else _global_reduce(c, x, te.max, lambda v: v, "global_max_pool")


def _compute_global_average(c: Compute, x: te.Tensor) -> te.Tensor | None:
    if _no_global(c):
        return None
    kind = c.outputs[0].dtype
    wide = accumulator(kind)
    total = _global_reduce(c, x, te.sum, lambda v: v.astype(wide), "global_sum")
    count = count_of(product(c.dims(0)[2:]), wide)
    return te.stage(c.out_dims(), lambda *at: (total[at] / count).astype(kind), name="global_average_pool")


def _compute_global_lp(c: Compute, x: te.Tensor) -> te.Tensor | None:
    if _no_global(c):
        return None
    kind, p = c.outputs[0].dtype, int(c.get("p", 2))
    wide = accumulator(kind)
    total = _global_reduce(c, x, te.sum, lambda v: _raise(v, p, wide), "global_power")
    return te.stage(c.out_dims(), lambda *at: _root(total[at], p, wide).astype(kind), name="global_lp_pool")


_SIZES, _NORM = Between("kernel_shape", 1), Between("p", 1)
_POOLS: tuple[tuple[Any, ...], ...] = (
    ("MaxPool", _infer_pool, _evaluate_max, _compute_max, (_SIZES, OneOf("storage_order", (0, 1)))),
    ("AveragePool", _infer_pool, _evaluate_average, _compute_average, (_SIZES,)),
    ("LpPool", _infer_pool, _evaluate_lp, _compute_lp, (_SIZES, _NORM)),
    ("GlobalMaxPool", _infer_global, _evaluate_global_max, _compute_global_max, ()),
    ("GlobalAveragePool", _infer_global, _evaluate_global_average, _compute_global_average, ()),
    ("GlobalLpPool", _infer_global, _evaluate_global_lp, _compute_global_lp, (_NORM,)),
)
_TRAITS = {
    "MaxPool": "moves windowed optional_outputs", "AveragePool": "windowed", "LpPool": "windowed",
    "GlobalLpPool": "statistic",
}  # fmt: skip
for _name, _infer, _evaluate, _compute, _requires in _POOLS:
    _traits = f"channelwise {_TRAITS.get(_name, '')}"
    register(_name, _infer, _evaluate, _compute, "reduction", takes="X[n c *s]", requires=_requires, traits=_traits)
