"""Operators that put tensors together, cut them apart and frame them: Concat, Split, Slice, Pad, CenterCropPad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Dim, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import FAR, Shape, divided, greatest, least, minus, normal_axes, plus, tidy, unknown_dim
from weft.graph.signature import OneOf
from weft.ops.expansion import Builder, Unexpanded, compose
from weft.ops.movement_indices import axis_of, fill, integers, length_of, output_type, unknown_shape, with_dim

# --------------------------------------------------------------------------------------------------------- Concat


def _concat_infer(c: Infer) -> list[Type]:
    types = [c.tensor(k) for k in range(len(c.types))]
    shapes = [t.shape for t in types if t.shape is not None]
    if not shapes:
        return [TensorType(types[0].dtype, None)]
    rank = len(shapes[0])
    axis = axis_of(c, rank, c.need("axis"))
    if any(len(s) != rank for s in shapes):
        raise c.error(f"inputs of different ranks: {', '.join(repr(t) for t in types)}")
    dims: list[Dim] = []
    for position in range(rank):
        given = [s[position] for s in shapes]
        if position == axis:
            total: Dim = 0
            for dim in given:
                total = plus(total, dim)
            dims.append(total if len(shapes) == len(types) else unknown_dim("concat"))
            continue
        numbers = {d for d in given if isinstance(d, int)}
        if len(numbers) > 1:
            raise c.error(f"dimension {position} differs: {', '.join(repr(t) for t in types)}")
        dims.append(numbers.pop() if numbers else given[0])
    return [TensorType(types[0].dtype, dims)]


def _concat(c: Evaluate, *arrays: Array) -> Array:
    axis = axis_of(c, arrays[0].ndim, c.need("axis"))
    try:
        return np.concatenate(arrays, axis=axis)
    except ValueError:
        raise c.error(f"shapes {', '.join(str(list(a.shape)) for a in arrays)} cannot be joined") from None


def _concat_compute(c: Compute, *tensors: te.Tensor) -> Any:
    shape = c.out_dims()
    if 0 in shape:
        return fill(shape, 0, output_type(c))
    axis = axis_of(c, len(shape), c.need("axis"))
    parts: list[tuple[Dim, te.Tensor]] = []
    offset: Dim = 0
    for position, tensor in enumerate(tensors):
        size = c.dims(position)[axis]
        if not isinstance(size, int) or size:
            parts.append((offset, tensor))
        offset = plus(offset, size)

    def read(given: Sequence[tuple[Dim, te.Tensor]], indices: tuple[Any, ...]) -> Expr:
        if len(given) == 1:
            offset, tensor = given[0]
            return tensor[(*indices[:axis], indices[axis] - offset, *indices[axis + 1 :])]
        half = len(given) // 2
        return te.select(indices[axis] < given[half][0], read(given[:half], indices), read(given[half:], indices))

    return te.compute(shape, lambda *i: read(parts, i), name="concat")


register(
    "Concat",
    _concat_infer,
    _concat,
    _concat_compute,
    "injective",
    takes="inputs, more:inputs?, ...",
    traits="joins speculatable empties",
)
# A Concat of two that native loops compute in the memory of the first (compiler/control/parts.py).
register("Append", _concat_infer, _concat, domain="weft", takes="inputs, more:inputs")


# ---------------------------------------------------------------------------------------------------------- Split


def split_sizes(c: Use, size: int, given: Array | None, count: int) -> list[int]:
    """The sizes of the parts along the axis."""
    if given is not None:
        sizes = integers(given)
        if sum(sizes) != size or any(s < 0 for s in sizes):
            raise c.error(f"parts of {sizes} do not make up a dimension of {size}")
        if len(sizes) != count:
            raise c.error(f"{len(sizes)} parts and {count} outputs")
        return sizes
    each = -(-size // count)
    return [max(0, min(each, size - each * k)) for k in range(count)]


def _part_count(c: Use) -> int:
    count = len(c.node.outputs)
    if int(c.get("num_outputs") or count) != count:
        raise c.error(f"num_outputs is {c.get('num_outputs')}, and it has {count} outputs")
    return count


def _split_infer(c: Infer) -> list[Type]:
    x, count = c.tensor(0), _part_count(c)
    if x.shape is None:
        return [TensorType(x.dtype, None)] * count
    axis = axis_of(c, x.rank)
    dim, value = x.shape[axis], c.value(1)
    sizes: Sequence[Dim]
    if c.has(1) and value is None:
        sizes = [unknown_dim("split") for _ in range(count)]
    elif isinstance(dim, int):
        sizes = split_sizes(c, dim, value, count)
    elif value is not None:
        sizes = integers(value)
    else:
        sizes = [dim] if count == 1 else [unknown_dim("split") for _ in range(count)]
    return [TensorType(x.dtype, with_dim(x.shape, axis, s)) for s in sizes]


def _split(c: Evaluate, x: Array, split: Array | None = None) -> tuple[Array, ...]:
    axis = axis_of(c, x.ndim)
    sizes = split_sizes(c, x.shape[axis], split, _part_count(c))
    return tuple(np.array(part) for part in np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def _split_compute(c: Compute, x: te.Tensor, split: Any = None) -> Any:
    axis = axis_of(c, x.ndim)
    made: list[Any] = []
    offset: Dim = 0
    for position in range(len(c.outputs)):
        shape = c.out_dims(position)
        made.append(te.compute(shape, _shifted(x, axis, offset), name=f"split{position}"))
        offset = plus(offset, shape[axis])
    return tuple(made)


def _shifted(x: te.Tensor, axis: int, offset: Dim) -> Any:
    return lambda *i: x[(*i[:axis], i[axis] + offset, *i[axis + 1 :])]


register(
    "Split",
    _split_infer,
    _split,
    _split_compute,
    "injective",
    shape_inputs=(1,),
    takes="input[_ *s], split:int[_]?",
    traits="slices empties",
)


# ---------------------------------------------------------------------------------------------------------- Slice


def _slice_axes(c: Use, rank: int, count: int, axes: Array | None) -> tuple[int, ...]:
    return normal_axes(range(count) if axes is None else integers(axes), rank, c.error)


def _taken(size: int, start: int, end: int, step: int) -> range:
    """The indices of a slice. Backwards, a start before the first element is held at it; Python would take nothing."""
    return range(*slice(max(start, -size) if step < 0 else start, end, step).indices(size))


def _slices(
    c: Use, shape: Sequence[Dim], starts: Array, ends: Array, axes: Array | None, steps: Array | None
) -> list[tuple[Any, int, Any]]:
    """For each dimension: first index, step, and how many elements (which is not told along an open size)."""
    first, last = integers(starts), integers(ends)
    by = [1] * len(first) if steps is None else integers(steps)
    chosen = _slice_axes(c, len(shape), len(first), axes)
    if not len(first) == len(last) == len(by) == len(chosen):
        raise c.error(f"{len(first)} starts, {len(last)} ends, {len(chosen)} axes and {len(by)} steps")
    if 0 in by:
        raise c.error("a step of 0")
    out: list[tuple[Any, int, Any]] = [(0, 1, size) for size in shape]
    for axis, start, end, step in zip(chosen, first, last, by):
        size = shape[axis]
        if not isinstance(size, int):
            out[axis] = (_open_start(c, size, start, step), step, None)
            continue
        found = _taken(size, start, end, step)
        out[axis] = (found.start, step, len(found))
    return out


def _open_start(c: Use, size: Expr, start: int, step: int) -> Any:
    """The first index of a slice along an open size, where at least one element is taken."""
    if step > 0:
        return start if start >= 0 else tidy(te.maximum(size + start, 0))
    return tidy(te.minimum(size - 1, start)) if start >= 0 else tidy(te.maximum(size + start, 0))


def _sliced_dim(dim: Dim, start: int, end: int, step: int) -> Dim:
    if isinstance(dim, int):
        return len(_taken(dim, start, end, step))
    if start == 0 and step > 0 and end >= FAR:
        return divided(dim, step, up=True)
    if start == -1 and step == -1 and end <= -FAR:
        return dim
    if step != 1:
        return unknown_dim("slice")
    last = dim if end >= FAR else least(dim, end) if end >= 0 else greatest(plus(dim, end), 0)
    if start < 0 and end >= FAR:
        return least(dim, -start)
    first = start if start >= 0 else greatest(plus(dim, start), 0)
    return last if start == 0 else greatest(minus(last, first), 0)


def _slice_infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    starts, ends, axes = c.value(1), c.value(2), c.value(3)
    count = length_of(c, 1)
    if (c.has(3) and axes is None) or (count is None and axes is None):
        return [TensorType(x.dtype, unknown_shape(x.rank, "slice"))]
    chosen = _slice_axes(c, x.rank, count or 0, axes)
    steps = c.value(4) if c.has(4) else np.ones(len(chosen), np.int64)
    dims = list(x.shape)
    if starts is None or ends is None or steps is None:
        for axis in chosen:
            dims[axis] = unknown_dim("slice")
        return [TensorType(x.dtype, dims)]
    if 0 in integers(steps):
        raise c.error("a step of 0")
    for axis, start, end, step in zip(chosen, integers(starts), integers(ends), integers(steps)):
        dims[axis] = _sliced_dim(dims[axis], start, end, step)
    return [TensorType(x.dtype, dims)]


def _slice(
    c: Evaluate, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    parts = _slices(c, x.shape, starts, ends, axes, steps)
    for axis, (start, step, count) in enumerate(parts):
        if (start, step, count) != (0, 1, x.shape[axis]):
            x = np.take(x, start + step * np.arange(count), axis=axis)
    return np.array(x)


def _slice_compute(c: Compute, x: te.Tensor, *rest: Any) -> Any:
    starts, ends = c.value(1), c.value(2)
    if starts is None or ends is None:
        return None
    parts = _slices(c, c.dims(0), starts, ends, c.value(3), c.value(4))
    return te.compute(
        c.out_dims(),
        lambda *i: x[tuple(k * step + start for k, (start, step, _) in zip(i, parts))],
        name="slice",
    )


register(
    "Slice",
    _slice_infer,
    _slice,
    _slice_compute,
    "injective",
    shape_inputs=(1, 2, 3, 4),
    sizing=(2,),
    takes="data, starts:int[k], ends:int[k], axes:int[k]?, steps:int[k]?",
    traits="slices",
)


# ------------------------------------------------------------------------------------------------------------ Pad


def _pairs(c: Use, rank: int, pads: Array, axes: Array | None) -> list[tuple[int, int]]:
    """What is added before and after each dimension."""
    given = integers(pads)
    chosen = normal_axes(range(rank) if axes is None else integers(axes), rank, c.error)
    if len(given) != 2 * len(chosen):
        raise c.error(f"{len(given)} pads for {len(chosen)} dimensions: two are needed for each")
    out = [(0, 0)] * rank
    for position, axis in enumerate(chosen):
        out[axis] = (given[position], given[position + len(chosen)])
    return out


def _pad_infer(c: Infer) -> list[Type]:
    x, pads, axes = c.tensor(0), c.value(1), c.value(3)
    if x.shape is None or pads is None or (c.has(3) and axes is None):
        return [TensorType(x.dtype, unknown_shape(None if x.shape is None else x.rank, "pad"))]
    dims: list[Dim] = []
    for dim, (before, after) in zip(x.shape, _pairs(c, x.rank, pads, axes)):
        made = plus(dim, before + after)
        if isinstance(made, int) and made < 0:
            raise c.error(f"pads of {before} and {after} leave less than nothing of a dimension of {dim}")
        dims.append(made)
    return [TensorType(x.dtype, dims)]


class Frame:
    """One dimension of a Pad: `crop` elements are dropped before, `kept` remain, `before` are added in front."""

    __slots__ = ("crop", "kept", "before", "after")

    def __init__(self, size: int, before: int, after: int) -> None:
        self.crop = max(0, -before)
        self.kept = max(0, size - self.crop - max(0, -after))
        self.before, self.after = max(0, before), max(0, after)

    @property
    def added(self) -> bool:
        """Whether anything is added."""
        return self.before > 0 or self.after > 0


def _frames(c: Use, shape: Sequence[int], pads: Array, axes: Array | None) -> list[Frame]:
    frames = [Frame(s, before, after) for s, (before, after) in zip(shape, _pairs(c, len(shape), pads, axes))]
    mode = c.get("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise c.error(f"unknown mode {mode!r}")
    if mode != "constant" and any(f.added and f.kept == 0 for f in frames) and all(f.kept or f.added for f in frames):
        raise c.error(f"mode {mode!r} has nothing to repeat in a dimension without elements")
    return frames


def _pad(c: Evaluate, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    mode = c.get("mode", "constant")
    frames = _frames(c, x.shape, pads, axes)
    if any(f.kept == 0 for f in frames):
        return np.full([f.before + f.kept + f.after for f in frames], _fill_value(x, value), x.dtype)
    inside: list[Any] = []
    for axis, f in enumerate(frames):
        at = np.arange(f.before + f.kept + f.after) - f.before
        inside.append((at >= 0) & (at < f.kept))
        if mode == "wrap":
            at = at % f.kept
        elif mode == "reflect" and f.kept > 1:
            at = at % (2 * f.kept - 2)
            at = np.minimum(at, 2 * f.kept - 2 - at)
        x = np.take(x, np.clip(at, 0, f.kept - 1) + f.crop, axis=axis)
    if mode != "constant":
        return np.array(x)
    mask = np.ones((), bool)
    for axis, part in enumerate(inside):
        mask = mask & part.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    return np.where(mask, x, _fill_value(x, value)).astype(x.dtype, copy=False)


def _fill_value(x: Array, value: Array | None) -> Array:
    if value is not None and value.size:
        return np.asarray(value).reshape(()).astype(x.dtype)
    return np.array("" if x.dtype.kind == "O" else 0, x.dtype)


def _pad_compute(c: Compute, x: te.Tensor, pads: Any, value: te.Tensor | None = None, axes: Any = None) -> Any:
    amounts = c.value(1)
    if amounts is None:
        return None
    frames = _frames(c, c.shape(0), amounts, c.value(3))
    mode, kind = c.get("mode", "constant"), output_type(c)
    if 0 in c.out_shape():
        return fill(c.out_shape(), 0, kind)

    def default() -> Expr:
        return te.const(0, kind) if value is None else value[(0,) * value.ndim].astype(kind)

    def read(*indices: Any) -> Expr:
        at, tests = [], []
        for k, f in zip(indices, frames):
            source = k - f.before
            if mode == "constant":
                tests += [source >= 0] if f.before else []
                tests += [source < f.kept] if f.after else []
            at.append((source if mode == "constant" or not f.added else _repeated(source, f, mode)) + f.crop)
        if any(f.kept == 0 for f in frames):
            return default()
        return te.select(te.all(*tests), x[tuple(at)], default()) if tests else x[tuple(at)]

    return te.compute(c.out_shape(), read, name="pad", dtype=kind)


def _repeated(source: Expr, f: Frame, mode: str) -> Expr:
    """The kept element that a place repeats: tests that hold for the kept ones, out of which loops are cut."""
    last = f.kept - 1
    turn = source % f.kept if mode == "wrap" else source % (2 * max(last, 1))
    if mode == "edge" or last == 0:
        front, behind = te.const(0, source.dtype), te.const(last, source.dtype)
    elif max(f.before, f.after) > (f.kept if mode == "wrap" else last):
        return turn if mode == "wrap" else te.minimum(turn, 2 * last - turn)
    else:
        front, behind = (source + f.kept, source - f.kept) if mode == "wrap" else (0 - source, 2 * last - source)
    return te.select(source >= 0, te.select(source <= last, source, behind), front)


register(
    "Pad",
    _pad_infer,
    _pad,
    _pad_compute,
    "injective",
    shape_inputs=(1, 3),
    takes="data, pads:int[_], constant_value[]|[1]?, axes:int[_]?",
    requires=(OneOf("mode", ("constant", "reflect", "edge", "wrap")),),
    traits="cheap grows empties",
)


# -------------------------------------------------------------------------------------------------- CenterCropPad


def _wanted(c: Use, shape: Shape, value: Array) -> Shape:
    axes = c.get("axes")
    chosen = normal_axes(range(len(shape)) if axes is None else axes, len(shape), c.error)
    sizes = integers(value)
    if len(sizes) != len(chosen):
        raise c.error(f"{len(sizes)} sizes for {len(chosen)} axes")
    out = list(shape)
    for axis, size in zip(chosen, sizes):
        out[axis] = size
    return tuple(out)


def _center_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(1)
    if x.shape is None or value is None:
        return [TensorType(x.dtype, unknown_shape(None if x.shape is None else x.rank, "crop"))]
    return [TensorType(x.dtype, _wanted(c, x.shape, value))]


def _center_offset(size: int, wanted: int) -> int:
    """What is added to an index of the result to give one of the input."""
    return (size - wanted) // 2 if size >= wanted else -((wanted - size) // 2)


def _center(b: Builder, x: Value, shape: Value) -> Value:
    """A Slice along the axes that get shorter, and a Pad along those that get longer."""
    value = b.scope.constant(shape)
    if value is None or not x.tensor.is_static:
        raise Unexpanded
    sizes = x.tensor.static
    wanted = [int(str(size)) for size in _wanted(b.use, sizes, value)]
    offsets = [_center_offset(size, new) for size, new in zip(sizes, wanted)]
    starts = [max(0, offset) for offset in offsets]
    ends = [start + min(size, new) for start, size, new in zip(starts, sizes, wanted)]
    before = [max(0, -offset) for offset in offsets]
    after = [max(0, new - size) - first for size, new, first in zip(sizes, wanted, before)]
    part = b("Slice", x, b.constant(starts, "int64"), b.constant(ends, "int64"))
    return b("Pad", part, b.constant([*before, *after], "int64"))


compose(
    "CenterCropPad",
    _center,
    (1,),
    infer=_center_infer,
    takes="input_data[_ *s], shape:int[_]",
    traits="cheap grows",
)
