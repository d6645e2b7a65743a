"""Converters of what slides a window: pooling of any kind, with strides, dilations and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Unsupported, is_float
from weft.frontends.jax.elementwise import wide
from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.movement import crop_and_pad, dilated
from weft.frontends.jax.reductions import combinations, neutral, reduced, widened
from weft.frontends.jax.table import primitive
from weft.graph.ir import Value


def _pooled(
    c: JaxEmitter,
    combine: str,
    x: Value,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Any,
    dilation: Sequence[int],
) -> Value | None:
    """As a pooling operator of ONNX, where the window leaves two axes alone; None where it does not."""
    rank = x.tensor.rank
    spatial = [axis for axis in range(rank) if window[axis] > 1 or strides[axis] > 1 or padding[axis] != (0, 0)]
    if not is_float(x.tensor.dtype) or combine == "mul" or not 1 <= len(spatial) <= 3 or min(map(min, padding)) < 0:
        return None
    if any(max(padding[axis]) >= 1 + (window[axis] - 1) * dilation[axis] for axis in spatial):
        return None
    others = [axis for axis in range(rank) if axis not in spatial]
    if len(others) > 2:  # any axes may be batches: those before the last of them are one
        lead = others[:-1]
        order = [*lead, others[-1], *spatial]
        sizes = x.tensor.static
        turned = c.transpose(x, order)
        flat = c.reshape(turned, [math.prod(sizes[a] for a in lead), *(sizes[a] for a in order[len(lead) :])])
        pick = [0, 0, *spatial]
        made = _pooled(
            c, combine, flat, [1, 1, *(window[a] for a in pick[2:])], [1, 1, *(strides[a] for a in pick[2:])],
            [(0, 0), (0, 0), *(padding[a] for a in pick[2:])], [1, 1, *(dilation[a] for a in pick[2:])],
        )  # fmt: skip
        if made is None:
            return None
        back = c.reshape(made, [*(sizes[a] for a in lead), *made.tensor.static[1:]])
        return c.transpose(back, [order.index(axis) for axis in range(rank)])
    missing = 2 - len(others)
    x = c.transpose(x, [*others, *spatial])
    x = c.unsqueeze(x, *range(missing))
    pads = [padding[axis][0] for axis in spatial] + [padding[axis][1] for axis in spatial]
    shape = [int(window[axis]) for axis in spatial]
    given = {
        "kernel_shape": shape, "strides": [int(strides[axis]) for axis in spatial], "pads": pads,
        "dilations": [int(dilation[axis]) for axis in spatial] if max(dilation) > 1 else None,
    }  # fmt: skip
    if combine == "add":
        mean = c.op("AveragePool", x, count_include_pad=1, **given)
        made = c.op("Mul", mean, c.like(math.prod(shape), mean))
    else:
        made = c.op("MaxPool", x if combine == "max" else c.op("Neg", x), **given)
        made = made if combine == "max" else c.op("Neg", made)
    made = c.squeeze(made, *range(missing))
    order = [*others, *spatial]
    return c.transpose(made, [order.index(axis) for axis in range(rank)])


def _window(
    c: JaxEmitter, combine: str, x: Value, first: Value | None, *, window_dimensions: Sequence[int],
    window_strides: Sequence[int], padding: Any, base_dilation: Any = None, window_dilation: Any = None, **_: Any,
) -> Value:  # fmt: skip
    kind, rank = x.tensor.dtype, x.tensor.rank
    window, strides = list(map(int, window_dimensions)), list(map(int, window_strides))
    padding = [(int(low), int(high)) for low, high in padding]
    between = [int(gap) - 1 for gap in (base_dilation or (1,) * rank)]
    dilation = [int(gap) for gap in (window_dilation or (1,) * rank)]
    x = widened(c, x)
    (x,) = wide(c, x)
    worst = neutral(combine, kind if kind != "bool" else "int32")
    fill = c.like(worst, x)
    number = None if first is None else c.number(first)
    usual = first is None or (number is not None and number == worst)
    if not usual:
        assert first is not None
        fill = c.cast(first, x.tensor.dtype) if combine in ("max", "min") else fill
    if usual and not any(between):
        made = _pooled(c, combine, x, window, strides, padding, dilation)
        if made is not None:
            return made
    x = crop_and_pad(c, dilated(c, x, between, c.like(worst, x)), padding, c.like(worst, x))
    for axis in range(rank):  # one axis after the other: all windows side by side, then reduced
        reach = 1 + (window[axis] - 1) * dilation[axis]
        count = (x.tensor.static[axis] - reach) // strides[axis] + 1 if x.tensor.static[axis] >= reach else 0
        if count == 0:
            return c.constant(np.zeros(c.shape, x.tensor.numpy))
        if window[axis] == 1 and strides[axis] == 1:
            continue
        places = np.arange(count)[:, None] * strides[axis] + np.arange(window[axis])[None] * dilation[axis]
        x = reduced(c, combine, c.op("Gather", x, c.constant(places), axis=axis), [axis + 1])
    if usual:
        return x
    assert first is not None
    return c.op({"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}[combine], x, c.cast(first, x.tensor.dtype))


for _name, _combine in (("sum", "add"), ("max", "max"), ("min", "min"), ("mul", "mul"), ("prod", "mul")):
    primitive(f"reduce_window_{_name}")(
        lambda c, x, _combine=_combine, **params: _window(c, _combine, x, None, **params)
    )


@primitive("reduce_window")
def _reduce_window(c: JaxEmitter, *operands: Value, jaxpr: Any, **params: Any) -> list[Value]:
    if len(operands) != 2:
        raise Unsupported("windows over several operands at once")
    (combine,) = combinations(jaxpr)
    combine = {"or": "max", "and": "min"}.get(combine, combine)
    return [_window(c, combine, operands[0], operands[1], **params)]


# -------------------------------------------------------------------------------------------------- places in windows


def _chosen(c: JaxEmitter, x: Value, select: Any, window: Sequence[int], strides: Sequence[int], padding: Any) -> Value:
    """The number, in the flat padded x, of the element that is chosen in each window; the first among equals."""
    name = getattr(select, "name", None) or str(getattr(select, "jaxpr", select).eqns[0].primitive.name)
    largest = name in ("ge", "gt", "max")
    if name not in ("ge", "le", "gt", "lt"):
        raise Unsupported(f"windows from which {name} selects")
    x = crop_and_pad(c, x, [(int(low), int(high)) for low, high in padding], c.like(-np.inf if largest else np.inf, x))
    shape = x.tensor.static
    counts = [(size - w) // s + 1 for size, w, s in zip(shape, window, strides)]
    rank = len(shape)
    places = np.zeros((*counts, *window), np.int64)
    for axis in range(rank):
        starts = np.arange(counts[axis]) * strides[axis] * math.prod(shape[axis + 1 :])
        steps = np.arange(window[axis]) * math.prod(shape[axis + 1 :])
        places += starts.reshape([-1 if a == axis else 1 for a in range(2 * rank)])
        places += steps.reshape([-1 if a == rank + axis else 1 for a in range(2 * rank)])
    table = c.constant(places.reshape(*counts, -1))
    best = c.op("ArgMax" if largest else "ArgMin", c.op("Gather", c.flat(x), table, axis=0), axis=rank, keepdims=1)
    return c.reshape(c.op("GatherElements", table, best, axis=rank), counts)


@primitive("select_and_scatter_add")
def _select_and_scatter(
    c: JaxEmitter, source: Value, x: Value, *, select_prim: Any, window_dimensions: Any, window_strides: Any,
    padding: Any, **_: Any,
) -> Value:  # fmt: skip
    places = _chosen(c, x, select_prim, window_dimensions, window_strides, padding)
    shape = [size + int(low) + int(high) for size, (low, high) in zip(x.tensor.static, padding)]
    flat = c.filled([math.prod(shape)], 0, c.dtype)
    total = c.op("ScatterElements", flat, c.flat(places), c.flat(source), axis=0, reduction="add")
    return crop_and_pad(c, c.reshape(total, shape), [(-int(low), -int(high)) for low, high in padding])


@primitive("select_and_gather_add")
def _select_and_gather(
    c: JaxEmitter, tangents: Value, x: Value, *, select_prim: Any, window_dimensions: Any, window_strides: Any,
    padding: Any, base_dilation: Any, window_dilation: Any, **_: Any,
) -> Value:  # fmt: skip
    if max(*base_dilation, *window_dilation) > 1:
        raise Unsupported("select_and_gather_add with dilation")
    places = _chosen(c, x, select_prim, window_dimensions, window_strides, padding)
    padded = crop_and_pad(c, tangents, [(int(low), int(high)) for low, high in padding], c.like(0, tangents))
    return c.op("Gather", c.flat(padded), places, axis=0)
