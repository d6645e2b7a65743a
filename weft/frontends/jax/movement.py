"""Converters of what moves elements: shapes, slices, padding, joining."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.table import enter, primitive
from weft.graph.ir import NUMPY_TYPES, Value

FAR = 1 << 62


@primitive("reshape")
def _reshape(c: JaxEmitter, x: Value, *, new_sizes: Sequence[int], dimensions: Any = None, **_: Any) -> Value:
    if dimensions is not None:
        x = c.transpose(x, dimensions)
    return c.reshape(x, [*map(int, new_sizes), *c.tail()])


@primitive("broadcast_in_dim")
def _broadcast(
    c: JaxEmitter, x: Value, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any
) -> Value:
    sizes = [1] * len(shape)
    for at, axis in enumerate(broadcast_dimensions):
        sizes[axis] = int(x.tensor.static[at])
    number = c.number(x)
    if number is not None and not c.tail():
        return c.constant(np.full(shape, number, x.tensor.numpy)) if not shape else _filled(c, shape, number)
    return c.expand(c.reshape(x, [*sizes, *c.tail()]), [*map(int, shape), *c.tail()])


def _filled(c: JaxEmitter, shape: Sequence[int], number: Any) -> Value:
    """One number in a shape: a constant where that is small."""
    size = int(np.prod(shape))
    array = np.full(shape, number, NUMPY_TYPES[c.dtype]) if size <= 64 else None
    return c.constant(array) if array is not None else c.filled([int(one) for one in shape], number, c.dtype)


@primitive("transpose")
def _transpose(c: JaxEmitter, x: Value, *, permutation: Sequence[int], **_: Any) -> Value:
    return c.transpose(x, [*permutation, *range(len(permutation), x.tensor.rank)])


@primitive("slice")
def _slice(c: JaxEmitter, x: Value, *, start_indices: Any, limit_indices: Any, strides: Any = None, **_: Any) -> Value:
    steps = [1] * len(start_indices) if strides is None else list(map(int, strides))
    cut = [
        at
        for at, (start, end, step) in enumerate(zip(start_indices, limit_indices, steps))
        if start or step != 1 or end != x.tensor.static[at]
    ]
    if not cut:
        return x
    return c.op(
        "Slice",
        x,
        [int(start_indices[at]) for at in cut],
        [int(limit_indices[at]) for at in cut],
        cut,
        [steps[at] for at in cut],
    )


def crop_and_pad(c: JaxEmitter, x: Value, amounts: Sequence[tuple[int, int]], fill: Value | None = None) -> Value:
    """x with elements before and after each axis; fewer of them where an amount is negative."""
    if any(min(pair) < 0 for pair in amounts):
        cut = [at for at, pair in enumerate(amounts) if min(pair) < 0]
        sizes = x.tensor.static
        starts = [min(max(0, -amounts[at][0]), sizes[at]) for at in cut]
        ends = [sizes[at] - max(0, -amounts[at][1]) for at in cut]
        ends = [max(start, end) for start, end in zip(starts, ends)]
        # what is cut away beyond the tensor is cut from what is put in on the other side
        short = {at: sizes[at] + amounts[at][0] + amounts[at][1] for at in cut}
        x = c.op("Slice", x, starts, ends, cut)
        left = []
        for at, (low, high) in enumerate(amounts):
            have = x.tensor.static[at]
            if at not in short:
                left.append((low, high))
            elif low > 0:
                left.append((short[at] - have, 0))
            else:
                left.append((0, short[at] - have))
        amounts = left
    if not any(low or high for low, high in amounts):
        return x
    return c.op("Pad", x, [low for low, _ in amounts] + [high for _, high in amounts], fill)


def dilated(c: JaxEmitter, x: Value, between: Sequence[int], fill: Value) -> Value:
    """x with elements between those of each axis."""
    for axis, gap in enumerate(between):
        size = x.tensor.static[axis]
        if gap and size > 1:
            sizes = list(x.tensor.static)
            sizes[axis : axis + 1] = [size, 1]
            parted = crop_and_pad(
                c, c.reshape(x, sizes), [(0, 0)] * (axis + 1) + [(0, gap)] + [(0, 0)] * (len(sizes) - axis - 2), fill
            )
            sizes[axis : axis + 2] = [size * (gap + 1)]
            x = c.slice(c.reshape(parted, sizes), axis, 0, size * (gap + 1) - gap)
    return x


@primitive("pad")
def _pad(c: JaxEmitter, x: Value, fill: Value, *, padding_config: Any, **_: Any) -> Value:
    config = [tuple(map(int, one)) for one in padding_config]
    kind = x.tensor.dtype
    if kind == "bool":
        x, fill = c.cast(x, "uint8"), c.cast(fill, "uint8")
    x = dilated(c, x, [between for _, _, between in config], fill)
    return c.cast(crop_and_pad(c, x, [(low, high) for low, high, _ in config], fill), kind)


@primitive("split")
def _split(c: JaxEmitter, x: Value, *, sizes: Sequence[int], axis: int, **_: Any) -> list[Value]:
    return c.several(len(sizes), "Split", x, list(map(int, sizes)), axis=axis) if len(sizes) > 1 else [x]


@primitive("rev")
def _rev(c: JaxEmitter, x: Value, *, dimensions: Sequence[int], **_: Any) -> Value:
    axes = list(dimensions)
    if not axes:
        return x
    return c.op("Slice", x, [-1] * len(axes), [-FAR] * len(axes), axes, [-1] * len(axes))


@primitive("iota")
def _iota(c: JaxEmitter, *_: Value, dtype: Any, shape: Sequence[int], dimension: int, **__: Any) -> Value:
    row = c.iota(int(shape[dimension]), c.dtype, len(shape), dimension)
    return c.expand(row, [int(one) for one in shape])


enter(
    {
        "squeeze": lambda c, x, *, dimensions, **_: c.squeeze(x, *map(int, dimensions)),
        "expand_dims": lambda c, x, *, dimensions, **_: c.unsqueeze(x, *map(int, dimensions)),
        "concatenate": lambda c, *parts, dimension, **_: c.concat(parts, dimension),
        "stack": lambda c, *parts, axis=0, **_: c.concat([c.unsqueeze(one, axis) for one in parts], axis),
        "unstack": lambda c, x, *, axis, **_: [
            c.squeeze(c.slice(x, axis, at, at + 1), axis) for at in range(x.tensor.static[axis])
        ],
        "empty empty2 zeros_like": lambda c, *_, **__: c.filled(list(c.shape), 0, c.dtype),
        "tile": lambda c, x, *, reps, **_: c.op("Tile", x, list(map(int, reps))),
    }
)


# ------------------------------------------------------------------------------------------ stretches that data names


def _fits(c: JaxEmitter, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> list[tuple[int, Value, int]]:
    """Axes of which a part is meant, its start moved so that it fits, and its length."""
    found = []
    for axis, (start, size) in enumerate(zip(starts, sizes)):
        have = x.tensor.static[axis]
        if have != size:
            found.append((axis, c.clamped(c.cast(start, "int64"), have - size), int(size)))
    return found


@primitive("dynamic_slice")
def _dynamic_slice(c: JaxEmitter, x: Value, *starts: Value, slice_sizes: Sequence[int], **_: Any) -> Value:
    for axis, start, size in _fits(c, x, starts, slice_sizes):
        known = c.number(start)
        if known is not None:
            x = c.slice(x, axis, int(known), int(known) + size)
        elif size == 1:
            x = c.op("Gather", x, c.reshape(start, [1]), axis=axis)
        else:
            x = c.op("Gather", x, c.op("Add", c.iota(size), start), axis=axis)
    return x


@primitive("dynamic_update_slice")
def _dynamic_update(c: JaxEmitter, x: Value, update: Value, *starts: Value, **_: Any) -> Value:
    """Every element that is not in the stretch stays; the others are looked up in the update."""
    rank, inside = x.tensor.rank, None
    if not update.tensor.rank or 0 in update.tensor.static:
        return update if not update.tensor.rank else x
    for axis, start, size in _fits(c, x, starts, update.tensor.static):
        place = c.op("Sub", c.iota(x.tensor.static[axis]), start)
        update = c.op("Gather", update, c.clamped(place, size - 1), axis=axis)
        within = c.op("Equal", place, c.clamped(place, size - 1))
        within = c.reshape(within, [1] * axis + [-1] + [1] * (rank - axis - 1))
        inside = within if inside is None else c.op("And", inside, within)
    return update if inside is None else c.where(inside, update, x)
