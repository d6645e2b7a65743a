"""Converters of what moves elements without computing: shapes, slices, joins, padding, tensors made from nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import NUMBERS, Emitter, Operand, Size, Unsupported
from weft.frontends.torch.table import aten, enter
from weft.graph.ir import Value

_LAST = 2**63 - 1

# ------------------------------------------------------------------------------------------------------------ shapes


@aten("expand")
def _expand(c: Emitter, x: Value, sizes: Sequence[Size], *, implicit: bool = False) -> Value:
    new = len(sizes) - x.tensor.rank
    have = [1] * new + list(x.tensor.dims)
    wanted = [c.size(x, at - new) if isinstance(one, int) and one == -1 else one for at, one in enumerate(sizes)]
    if new and 0 not in have:
        x = c.unsqueeze(x, *range(new))
    return c.expand(x, wanted)


@aten("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(c: Emitter, x: Value, dim: Any = None) -> Value:
    rank = x.tensor.rank
    given = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = sorted({axis % rank for axis in given}) if rank else []
    return c.squeeze(x, *[axis for axis in axes if x.tensor.dims[axis] == 1])


enter(
    {
        "view reshape _unsafe_view prims.reshape": lambda c, x, sizes: c.reshape(x, sizes),
        "flatten.using_ints": lambda c, x, start_dim=0, end_dim=-1: c.reshape(x, c.shape),
        "permute": lambda c, x, dims: c.transpose(x, dims) if dims else x,
        "transpose.int": lambda c, x, a, b: c.swap(x, a, b) if x.tensor.rank else x,
        "t": lambda c, x: c.swap(x, -2, -1) if x.tensor.rank > 1 else x,
        "unsqueeze": lambda c, x, dim: c.unsqueeze(x, dim),
    }
)


# ------------------------------------------------------------------------------------------------------------- parts


@aten("slice.Tensor")
def _slice(c: Emitter, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    start, end = 0 if start is None else start, _LAST if end is None else end
    if isinstance(start, int) and isinstance(end, int) and step == 1 and start == 0:
        size = x.tensor.dims[dim]
        if end == _LAST or (isinstance(size, int) and end >= size):
            return x
    return c.slice(x, dim, start, end, step)


@aten("split.Tensor")
def _split(c: Emitter, x: Value, size: int, dim: int = 0) -> list[Value]:
    total = c.size(x, dim)
    if not isinstance(total, int) or not isinstance(size, int):
        raise Unsupported("a split of an axis whose size only a call tells")
    count = max(1, -(-total // size)) if size else 1
    return _split_sizes(c, x, [min(size, total - at * size) for at in range(count)], dim)


@aten("split_with_sizes", "split.sizes")
def _split_sizes(c: Emitter, x: Value, sizes: Sequence[Size], dim: int = 0) -> list[Value]:
    if len(sizes) == 1:
        return [x]
    return c.several(len(sizes), "Split", x, c.vector(sizes), axis=dim)


@aten("unbind.int")
def _unbind(c: Emitter, x: Value, dim: int = 0) -> list[Value]:
    total = c.size(x, dim)
    if not isinstance(total, int):
        raise Unsupported("unbind along an axis whose size only a call tells")
    return [c.squeeze(one, dim) for one in _split_sizes(c, x, [1] * total, dim)] if total else []


@aten("cat", "concat")
def _cat(c: Emitter, tensors: Sequence[Value], dim: int = 0) -> Value:
    empty = [one for one in tensors if one.tensor.shape == (0,)]
    kept = [one for one in tensors if one.tensor.shape != (0,)] or empty[:1]  # of old, an empty vector joins anything
    return c.concat([c.cast(one, c.dtype) for one in kept], dim)


@aten("flip")
def _flip(c: Emitter, x: Value, dims: Sequence[int]) -> Value:
    axes = [axis % x.tensor.rank for axis in dims] if x.tensor.rank else []
    if not axes:
        return x
    count = len(axes)
    return c.op("Slice", x, [-1] * count, [-_LAST] * count, axes, [-1] * count)


@aten("roll")
def _roll(c: Emitter, x: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts, dims = ([one] if isinstance(one, int) else list(one) for one in (shifts, dims))
    if not dims:
        sizes = c.sizes(x)
        return c.reshape(_roll(c, c.flat(x), shifts, [0]), sizes) if sizes else x
    for shift, dim in zip(shifts, dims):
        size = x.tensor.dims[dim]
        shift = shift % size if isinstance(size, int) and size else shift
        if shift and size:
            x = c.concat([c.slice(x, dim, -shift, _LAST), c.slice(x, dim, 0, -shift)], dim)
    return x


@aten("repeat", "tile")
def _repeat(c: Emitter, x: Value, repeats: Sequence[Size]) -> Value:
    repeats = [1] * (x.tensor.rank - len(repeats)) + list(repeats)
    x = c.unsqueeze(x, *range(len(repeats) - x.tensor.rank))
    return c.op("Tile", x, c.vector(repeats)) if any(one != 1 for one in repeats) else x


@aten("repeat_interleave.self_int")
def _repeat_interleave(c: Emitter, x: Value, repeats: Size, dim: int | None = None, **_: Any) -> Value:
    if dim is None:
        x, dim = c.flat(x), 0
    dim, sizes = dim % x.tensor.rank, c.sizes(x)
    spread = c.expand(c.unsqueeze(x, dim + 1), [*sizes[: dim + 1], repeats, *sizes[dim + 1 :]])
    return c.reshape(spread, [*sizes[:dim], c.times(sizes[dim], repeats), *sizes[dim + 1 :]])


@aten("tril", "triu")
def _triangle(c: Emitter, x: Value, diagonal: int = 0) -> Value:
    return c.op("Trilu", x, np.int64(diagonal), upper=int(c.target.startswith("triu")))


def static(x: Value, why: str) -> tuple[int, ...]:
    """The shape of a tensor, which must be known now."""
    if not x.tensor.is_static:
        raise Unsupported(f"{why} of a tensor with sizes that only a call tells")
    return x.tensor.static


@aten("diagonal")
def _diagonal(c: Emitter, x: Value, offset: int = 0, a: int = 0, b: int = 1) -> Value:
    shape, rank = static(x, "a diagonal"), x.tensor.rank
    a, b = a % rank, b % rank
    rest = [axis for axis in range(rank) if axis not in (a, b)]
    rows, columns = shape[a], shape[b]
    places = [row * columns + row + offset for row in range(rows) if 0 <= row + offset < columns]
    x = c.reshape(c.transpose(x, [*rest, a, b]), [*(shape[axis] for axis in rest), rows * columns])
    return c.op("Gather", x, np.array(places, np.int64), axis=len(rest))


@aten("diagonal_scatter")
def _diagonal_scatter(c: Emitter, x: Value, source: Value, offset: int = 0, a: int = 0, b: int = 1) -> Value:
    shape, rank = static(x, "a diagonal"), x.tensor.rank
    places = np.arange(math.prod(shape)).reshape(shape)
    return scattered(c, x, np.diagonal(places, offset, a % rank, b % rank), source)


def scattered(c: Emitter, x: Value, places: Any, source: Value) -> Value:
    """x with the elements at constant places (counted through all of x) taken from another tensor."""
    order = np.arange(math.prod(x.tensor.static))
    order[np.asarray(places).ravel()] = order.size + np.arange(np.asarray(places).size)
    whole = c.concat([c.flat(x), c.flat(c.cast(source, x.tensor.dtype))], 0)
    return c.reshape(c.op("Gather", whole, order, axis=0), x.tensor.static)


def _places(x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Any:
    made = np.full([1] * len(size), offset or 0, np.int64)
    for axis, (count, step) in enumerate(zip(size, stride)):
        made = made + (np.arange(count) * step).reshape([-1] + [1] * (len(size) - axis - 1))
    if made.size and made.max() >= math.prod(static(x, "strides")):
        raise Unsupported("strides that lead out of the tensor")
    return made


@aten("as_strided")
def _as_strided(c: Emitter, x: Value, size: Any, stride: Any, storage_offset: int | None = None) -> Value:
    return c.op("Gather", c.flat(x), _places(x, size, stride, storage_offset), axis=0)


@aten("as_strided_scatter")
def _as_strided_scatter(c: Emitter, x: Value, src: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    return scattered(c, x, _places(x, size, stride, storage_offset), src)


@aten("unfold")
def _unfold(c: Emitter, x: Value, dim: int, size: int, step: int) -> Value:
    if not x.tensor.rank:
        return c.reshape(x, [size])
    length = c.size(x, dim)
    if not isinstance(length, int):
        raise Unsupported("windows along an axis whose size only a call tells")
    starts = np.arange(0, length - size + 1, step)[:, None]
    dim %= x.tensor.rank
    windows: Value = c.op("Gather", x, starts + np.arange(size), axis=dim)
    order = [axis for axis in range(windows.tensor.rank) if axis != dim + 1]
    return c.transpose(windows, [*order, dim + 1])


@aten("slice_scatter")
def _slice_scatter(
    c: Emitter, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    size, source = x.tensor.dims[dim], c.cast(source, x.tensor.dtype)
    start, end = 0 if start is None else start, _LAST if end is None else end
    if step == 1 and isinstance(start, int) and start == 0 and isinstance(end, int) and end == _LAST:
        return source
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        order = np.arange(size)
        taken = order[start:end:step].size
        order[start:end:step] = size + np.arange(taken)
        if step != 1:
            return c.op("Gather", c.concat([x, source], dim), order, axis=dim)
        start = slice(start, end).indices(size)[0]
        end = start + taken
    elif step != 1:
        raise Unsupported("writing every second element along an axis whose size only a call tells")
    return c.concat([c.slice(x, dim, 0, start), source, c.slice(x, dim, end, _LAST)], dim)


@aten("select_scatter")
def _select_scatter(c: Emitter, x: Value, source: Value, dim: int, index: int) -> Value:
    end = _LAST if index == -1 else index + 1
    return _slice_scatter(c, x, c.unsqueeze(source, dim), dim, index, end)


enter(
    {
        "select.int": lambda c, x, dim, index: c.op("Gather", x, c.value(index, "int64"), axis=dim),
        "stack": lambda c, tensors, dim=0: c.concat([c.unsqueeze(c.cast(one, c.dtype), dim) for one in tensors], dim),
    }
)


# ------------------------------------------------------------------------------------------------------------ blocks


def _outer_as_one(c: Emitter, x: Value, inner: int, change: Any) -> Value:
    """Applies a function to x with all axes before the last few as one, and brings them back."""
    sizes = c.sizes(x)
    outer = sizes[: len(sizes) - inner]
    made = change(c.reshape(x, [c.times(*outer), *sizes[len(outer) :]]) if len(outer) != 1 else x)
    return c.reshape(made, [*outer, *c.sizes(made)[1:]]) if len(outer) != 1 else made


@aten("pixel_shuffle")
def _pixel_shuffle(c: Emitter, x: Value, factor: int) -> Value:
    return _outer_as_one(c, x, 3, lambda one: c.op("DepthToSpace", one, blocksize=factor, mode="CRD"))


@aten("pixel_unshuffle")
def _pixel_unshuffle(c: Emitter, x: Value, factor: int) -> Value:
    def change(one: Value) -> Value:
        n, channels, height, width = c.sizes(one)
        high, wide = (_divided(c, side, factor) for side in (height, width))
        split = c.reshape(one, [n, channels, high, factor, wide, factor])
        return c.reshape(c.transpose(split, [0, 1, 3, 5, 2, 4]), [n, c.times(channels, factor * factor), high, wide])

    return _outer_as_one(c, x, 3, change)


def _divided(c: Emitter, size: Size, by: int) -> Size:
    return size // by if isinstance(size, int) else c.op("Div", size, c.value(by, "int64"))


@aten("im2col")
def _im2col(c: Emitter, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    if x.tensor.rank == 3:
        return c.squeeze(_im2col(c, c.unsqueeze(x, 0), kernel, dilation, padding, stride), 0)
    x = pad(c, x, [0, 0, *padding], [0, 0, *padding], "constant", 0)
    for axis, side in enumerate(static(x, "windows")[2:]):
        last = side - dilation[axis] * (kernel[axis] - 1)
        places = np.arange(kernel[axis])[:, None] * dilation[axis] + np.arange(0, last, stride[axis])
        x = c.op("Gather", x, places, axis=2 + 2 * axis)  # n, c, kernel, places, (kernel, places)
    n, channels, high, rows, wide, columns = x.tensor.static
    x = c.transpose(x, [0, 1, 2, 4, 3, 5])
    return c.reshape(x, [n, channels * high * wide, rows * columns])


@aten("col2im")
def _col2im(c: Emitter, x: Value, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    if x.tensor.rank == 2:
        return c.squeeze(_col2im(c, c.unsqueeze(x, 0), size, kernel, dilation, padding, stride), 0)
    shape: list[Operand] = [list(size), list(kernel)]
    return c.op("Col2Im", x, *shape, dilations=list(dilation), pads=[*padding, *padding], strides=list(stride))


# ----------------------------------------------------------------------------------------------------------- padding


def pad(c: Emitter, x: Value, before: Sequence[Any], after: Sequence[Any], mode: str, value: Any = None) -> Value:
    """x with elements around it; negative amounts take some away, after it where the border stays what it was."""

    def taken(x: Value) -> Value:
        for axis, (low, high) in enumerate(zip(before, after)):
            if (isinstance(low, int) and low < 0) or (isinstance(high, int) and high < 0):
                x = c.slice(x, axis, max(-low, 0), min(high, 0) if high < 0 else _LAST)
        return x

    stays = mode in ("edge", "reflect")
    x = x if stays else taken(x)
    amounts = [max(one, 0) if isinstance(one, int) else one for one in (*before, *after)]
    if not all(isinstance(one, int) and one == 0 for one in amounts):
        x = c.op("Pad", x, c.vector(amounts), c.value(value, x.tensor.dtype) if mode == "constant" else None, mode=mode)
    return taken(x) if stays else x


def _pad_last(c: Emitter, x: Value, amounts: Sequence[Any], mode: str, value: Any = None) -> Value:
    rank, count = x.tensor.rank, len(amounts) // 2
    before = [0] * (rank - count) + list(amounts[0::2])[::-1]
    after = [0] * (rank - count) + list(amounts[1::2])[::-1]
    return pad(c, x, before, after, mode, value)


@aten("constant_pad_nd")
def _constant_pad(c: Emitter, x: Value, amounts: Sequence[Any], value: Any = 0) -> Value:
    return _pad_last(c, x, amounts, "constant", value)


@aten("pad")
def _pad(c: Emitter, x: Value, amounts: Sequence[Any], mode: str = "constant", value: Any = None) -> Value:
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return _pad_last(c, x, amounts, names[mode], 0 if value is None else value)


enter({"reflection_pad1d reflection_pad2d reflection_pad3d": lambda c, x, amounts: _pad_last(c, x, amounts, "reflect")})
enter({"replication_pad1d replication_pad2d replication_pad3d": lambda c, x, amounts: _pad_last(c, x, amounts, "edge")})


# --------------------------------------------------------------------------------------------------- from nothing


@aten("full_like", "new_full")
def _full_like(c: Emitter, x: Value, *given: Any, **_: Any) -> Value:
    return c.filled(given[0] if len(given) > 1 else c.sizes(x), given[-1], c.dtype)


def _of_ones(number: int) -> Any:
    return lambda c, sizes, *_, **__: c.filled(sizes, number, c.dtype)


def _like_ones(number: int) -> Any:
    return lambda c, x, sizes=None, *_, **__: c.filled(c.sizes(x) if sizes is None else sizes, number, c.dtype)


aten("zeros", "empty.memory_format", "empty_strided", "empty_permuted")(_of_ones(0))
aten("ones")(_of_ones(1))
aten("zeros_like", "empty_like", "new_zeros", "new_empty", "new_empty_strided")(_like_ones(0))
aten("ones_like", "new_ones")(_like_ones(1))


@aten("arange", "arange.start", "arange.start_step")
def _arange(c: Emitter, *numbers: Operand, **_: Any) -> Value:
    start, end, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return c.op("Range", *(c.value(one, c.dtype) for one in (start, end, step)))


def _random(op: str) -> Any:
    """Numbers of the right distribution; not those that torch would draw."""
    return lambda c, sizes, *_, **__: c.op(op, c.filled(sizes, 0, c.dtype), dtype=NUMBERS[c.dtype])


def _random_like(op: str) -> Any:
    return lambda c, x, *_, **__: c.op(op, x, dtype=NUMBERS[c.dtype])


aten("rand")(_random("RandomUniformLike"))
aten("randn")(_random("RandomNormalLike"))
aten("rand_like")(_random_like("RandomUniformLike"))
aten("randn_like")(_random_like("RandomNormalLike"))


enter(
    {
        "full prims.full": lambda c, sizes, value, **_: c.filled(sizes, value, c.dtype),
        "scalar_tensor": lambda c, number, **_: c.value(number, c.dtype),
    }
)
