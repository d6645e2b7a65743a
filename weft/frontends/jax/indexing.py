"""Converters of gather and scatter, with any dimension numbers.

What picks whole rows by one index is Gather, by several GatherND. All else becomes numbers of elements in the flat
operand: where a window starts (from the indices), plus where an element lies in its window (which is constant).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Unsupported, is_float, limits
from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.table import primitive
from weft.graph.ir import Value


def _mode(mode: Any) -> str:
    """ "clip", "fill" or "promise"."""
    return {"CLIP": "clip", "FILL_OR_DROP": "fill"}.get(getattr(mode, "name", str(mode)), "promise")


class _Windows:
    """Where the windows lie that indices point to."""

    def __init__(
        self,
        c: JaxEmitter,
        shape: Sequence[int],
        indices: Value,
        window: Sequence[int],
        mapped: Sequence[int],
        batching: Sequence[tuple[int, int]],
    ) -> None:
        """`window` are its sizes in each axis of the operand; `batching` pairs of an axis there and one of indices."""
        self.c, self.shape, self.window, self.mapped, self.batching = c, shape, window, mapped, batching
        self.batch = list(indices.tensor.static[:-1])
        self.indices = c.cast(indices, "int64")
        self.room = [shape[axis] - window[axis] for axis in mapped]

    def inside(self) -> Value:
        """Whether each window lies in the operand as a whole."""
        c, rank = self.c, len(self.batch)
        low = c.op("GreaterOrEqual", self.indices, np.int64(0))
        high = c.op("LessOrEqual", self.indices, np.array(self.room, np.int64))
        both = c.cast(c.op("And", low, high), "int32")
        return (
            c.cast(c.op("ReduceMin", both, [rank], keepdims=0), "bool")
            if self.mapped
            else c.constant(np.ones(self.batch, bool))
        )

    def clamped(self) -> Value:
        """The indices, moved so that the windows lie in the operand."""
        c = self.c
        return c.op("Min", c.op("Max", self.indices, np.int64(0)), np.array(self.room, np.int64))

    def starts(self, indices: Value) -> Value:
        """The number of the first element of each window, in the flat operand."""
        c = self.c
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]
        weighted = c.op("Mul", indices, np.array([strides[axis] for axis in self.mapped], np.int64))
        total = (
            c.op("ReduceSum", weighted, [len(self.batch)], keepdims=0)
            if self.mapped
            else c.constant(np.zeros(self.batch, np.int64))
        )
        for axis, along in self.batching:
            total = c.op("Add", total, c.constant(_along(self.batch, along) * strides[axis]))
        return total

    def elements(self, starts: Value, window_axes: Sequence[int], rank: int) -> Value:
        """The number of each element; `window_axes` are the axes of the result that run through the windows."""
        c = self.c
        rest = [
            axis
            for axis in range(len(self.shape))
            if axis not in {a for a, _ in self.batching} and axis not in self.dropped
        ]
        offsets = np.zeros((1,) * rank, np.int64)
        for axis, place in zip(rest, window_axes):
            sizes = [1] * rank
            sizes[place] = self.window[axis]
            offsets = offsets + (np.arange(self.window[axis]) * math.prod(self.shape[axis + 1 :])).reshape(sizes)
        return c.op("Add", c.reshape(starts, self.spread(window_axes, rank)), c.constant(offsets))

    def spread(self, window_axes: Sequence[int], rank: int) -> list[int]:
        """The shape of one number for each window, as it meets the elements."""
        left = iter(self.batch)
        return [1 if axis in window_axes else next(left) for axis in range(rank)]

    dropped: Sequence[int] = ()
    """Axes of the operand that windows have one element of, and results do not have."""


def _along(shape: Sequence[int], axis: int) -> Any:
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    return np.arange(shape[axis]).reshape(sizes)


@primitive("gather")
def _gather(
    c: JaxEmitter,
    x: Value,
    indices: Value,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any = None,
    **_: Any,
) -> Value:
    numbers, rank, shape = dimension_numbers, len(c.shape), x.tensor.static
    if c.tail():
        raise Unsupported("gather of random keys")
    if 0 in c.shape:
        return c.constant(np.zeros(c.shape, x.tensor.numpy))
    batching = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
    windows = _Windows(c, shape, indices, list(slice_sizes), list(numbers.start_index_map), batching)
    windows.dropped = list(numbers.collapsed_slice_dims)
    fills = _mode(mode) == "fill"
    at = windows.clamped() if numbers.start_index_map else windows.indices
    rows = _rows(c, x, at, windows, numbers)
    if rows is None:
        places = windows.elements(windows.starts(at), numbers.offset_dims, rank)
        rows = c.op("Gather", c.flat(x), c.expand(places, [int(size) for size in c.shape]), axis=0)
    if not fills:
        return rows
    if fill_value is None:
        low, high = limits(x.tensor.dtype)
        fill_value = np.nan if is_float(x.tensor.dtype) else low if x.tensor.dtype.startswith("int") else high
    inside = c.reshape(windows.inside(), windows.spread(numbers.offset_dims, rank))
    return c.where(inside, rows, fill_value)


def _rows(c: JaxEmitter, x: Value, at: Value, windows: _Windows, numbers: Any) -> Value | None:
    """Whole rows that indices name: a Gather or GatherND; None where windows are anything else."""
    mapped = list(numbers.start_index_map)
    rest = [axis for axis in range(x.tensor.rank) if axis not in mapped]
    if not mapped or windows.batching or sorted(mapped) != sorted(numbers.collapsed_slice_dims):
        return None
    if any(windows.window[axis] != x.tensor.static[axis] for axis in rest):
        return None
    count = len(windows.batch)
    others = [axis for axis in range(len(c.shape)) if axis not in numbers.offset_dims]
    if len(mapped) == 1:
        axis = mapped[0]
        made = c.op("Gather", x, c.reshape(at, windows.batch), axis=axis)
        have = [*numbers.offset_dims[:axis], *others, *numbers.offset_dims[axis:]]
    else:
        made = c.op("GatherND", c.transpose(x, [*mapped, *rest]), at)
        have = [*others, *numbers.offset_dims]
    assert count == len(others)
    return c.transpose(made, [have.index(axis) for axis in range(len(have))])


def _scatter(reduction: str, negate: bool = False) -> Any:
    def converter(
        c: JaxEmitter, x: Value, indices: Value, updates: Value, *, dimension_numbers: Any, mode: Any, **more: Any
    ) -> Value:
        numbers, shape = dimension_numbers, x.tensor.static
        combine = more.get("update_jaxpr")
        if reduction == "none" and combine is not None and combine.outvars[0] is not combine.invars[1]:
            raise Unsupported("it applies a function to each element: write x.at[i].set(f(x[i])) for x.at[i].apply(f)")
        if 0 in updates.tensor.static or 0 in shape:
            return x
        kind = x.tensor.dtype
        if kind == "bool" and reduction != "none":
            x, updates = c.cast(x, "uint8"), c.cast(updates, "uint8")
        dropped = [*numbers.inserted_window_dims]
        batching = list(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims))
        rest = [axis for axis in range(len(shape)) if axis not in dropped and axis not in numbers.operand_batching_dims]
        window = [1] * len(shape)
        for axis, place in zip(rest, numbers.update_window_dims):
            window[axis] = int(updates.tensor.static[place])
        windows = _Windows(c, shape, indices, window, list(numbers.scatter_dims_to_operand_dims), batching)
        windows.dropped = dropped
        rank, size = updates.tensor.rank, math.prod(shape)
        clips = _mode(mode) == "clip"
        places = windows.elements(
            windows.starts(windows.clamped() if clips else windows.indices), numbers.update_window_dims, rank
        )
        places = c.expand(places, list(updates.tensor.static))
        flat = c.flat(x)
        if not clips:  # what does not fit goes to one element more, which is dropped
            inside = c.reshape(windows.inside(), windows.spread(numbers.update_window_dims, rank))
            places = c.where(inside, places, size, "int64")
            flat = c.concat([flat, c.constant(np.zeros(1, flat.tensor.numpy))], 0)
        if negate:
            updates = c.op("Sub", c.like(0, updates), updates)
        made = c.op("ScatterElements", flat, c.flat(places), c.flat(updates), axis=0, reduction=reduction)
        made = made if clips else c.slice(made, 0, 0, size)
        return c.cast(c.reshape(made, list(shape)), kind)

    return converter


for _names, _reduction in (
    ("scatter", "none"), ("scatter-add scatter_add", "add"), ("scatter-mul scatter_mul", "mul"),
    ("scatter-max scatter_max", "max"), ("scatter-min scatter_min", "min"),
):  # fmt: skip
    primitive(*_names.split())(_scatter(_reduction))
primitive("scatter-sub", "scatter_sub")(_scatter("add", True))
