"""Converters of what moves elements: shapes, slices, padding, joining, picking."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.frontends.emit import Unsupported
from weft.frontends.tflite.layers import activated, to_first, to_last
from weft.frontends.tflite.table import MOVES, enter, moves
from weft.graph.ir import NUMPY_TYPES, Value

_FAR = 1 << 31


@moves("RESHAPE")
def _reshape(c: Any, op: Any, x: Value, shape: Value | None = None) -> Value:
    sizes = c.ints(shape) if shape is not None else op.options.ints(0) if op.options is not None else None
    if sizes is None:
        raise Unsupported("RESHAPE without a shape")
    return c.reshape(x, sizes)  # type: ignore[no-any-return]


@moves("STRIDED_SLICE")
def _strided(c: Any, op: Any, x: Value, begin: Value, end: Value, strides: Value) -> Value:
    starts, ends, steps = c.ints(begin), c.ints(end), c.ints(strides)
    masks = [op.option(at) for at in range(5)]
    if masks[2] or masks[3] or op.option(5, "?", False):
        raise Unsupported("STRIDED_SLICE with an ellipsis, new axes or an end that is an offset")
    dropped, sizes = [], x.tensor.static
    for axis in range(len(starts)):
        bit = 1 << axis
        start = starts[axis] + sizes[axis] * (starts[axis] < 0)
        if masks[4] & bit:
            starts[axis], ends[axis], steps[axis] = start, start + 1, 1
            dropped.append(axis)
            continue
        if masks[0] & bit:
            starts[axis] = 0 if steps[axis] > 0 else _FAR
        if masks[1] & bit:
            ends[axis] = _FAR if steps[axis] > 0 else -_FAR
    made = c.op("Slice", x, starts, ends, list(range(len(starts))), steps)
    return c.squeeze(made, *dropped)  # type: ignore[no-any-return]


@moves("SLICE")
def _slice(c: Any, op: Any, x: Value, begin: Value, size: Value) -> Value:
    starts, sizes = c.ints(begin), c.ints(size)
    ends = [have if size == -1 else start + size for start, size, have in zip(starts, sizes, x.tensor.static)]
    return c.op("Slice", x, starts, ends, list(range(len(starts))))  # type: ignore[no-any-return]


@moves("PAD", "PADV2", "MIRROR_PAD")
def _pad(c: Any, op: Any, x: Value, amounts: Value, fill: Value | None = None) -> Value:
    pairs = np.array(c.ints(amounts)).reshape(-1, 2)
    if op.name == "MIRROR_PAD":
        mode = "reflect" if op.option(0, "b") == 0 else "symmetric"
        if mode == "symmetric":
            raise Unsupported("MIRROR_PAD that repeats the edge")
        return c.op("Pad", x, pairs.T.reshape(-1).tolist(), mode=mode)  # type: ignore[no-any-return]
    meaning = op.inputs[0].quantization
    if fill is None and meaning is not None and x.tensor.dtype.startswith(("int", "uint")):
        fill = c.value(np.array(int(meaning.zero[0])), x.tensor.dtype)
    fill = None if fill is None else c.reshape(fill, [])
    return c.op("Pad", x, pairs.T.reshape(-1).tolist(), fill)  # type: ignore[no-any-return]


@moves("CONCATENATION")
def _concat(c: Any, op: Any, *parts: Value) -> Value:
    return activated(c, c.concat(list(parts), op.option(0)), op.option(1, "b"))


@moves("GATHER")
def _gather(c: Any, op: Any, x: Value, indices: Value) -> Value:
    if op.option(1):
        raise Unsupported("GATHER with batches")
    return c.op("Gather", x, indices, axis=op.option(0))  # type: ignore[no-any-return]


@moves("TRANSPOSE")
def _transpose(c: Any, op: Any, x: Value, order: Value) -> Value:
    return c.transpose(x, c.ints(order))  # type: ignore[no-any-return]


@moves("SPLIT")
def _split(c: Any, op: Any, axis: Value, x: Value) -> list[Value]:
    count = len(op.outputs)
    along = c.ints(axis)[0]
    sizes = [x.tensor.static[along] // count] * count
    return c.several(count, "Split", x, sizes, axis=along) if count > 1 else [x]


@moves("SPLIT_V")
def _split_v(c: Any, op: Any, x: Value, sizes: Value, axis: Value) -> list[Value]:
    along, parts = c.ints(axis)[0], c.ints(sizes)
    if -1 in parts:
        parts[parts.index(-1)] = x.tensor.static[along] - sum(parts) - 1
    return c.several(len(parts), "Split", x, parts, axis=along) if len(parts) > 1 else [x]


@moves("UNPACK")
def _unpack(c: Any, op: Any, x: Value) -> list[Value]:
    axis = op.option(1) % x.tensor.rank
    return [c.squeeze(c.slice(x, axis, at, at + 1), axis) for at in range(len(op.outputs))]


@moves("SPACE_TO_BATCH_ND")
def _to_batch(c: Any, op: Any, x: Value, block: Value, amounts: Value) -> Value:
    blocks, pairs = c.ints(block), np.array(c.ints(amounts)).reshape(-1, 2)
    rank, count = x.tensor.rank, len(blocks)
    meaning = op.inputs[0].quantization
    zero = (
        None
        if meaning is None or not x.tensor.dtype.startswith(("int", "uint"))
        else c.value(np.array(int(meaning.zero[0])), x.tensor.dtype)
    )
    pads = [0, *pairs[:, 0], *[0] * (rank - 1 - count)] + [0, *pairs[:, 1], *[0] * (rank - 1 - count)]
    x = c.op("Pad", x, [int(one) for one in pads], zero)
    n, *sizes = x.tensor.static
    parts = [size for at in range(count) for size in (sizes[at] // blocks[at], blocks[at])]
    x = c.reshape(x, [n, *parts, *sizes[count:]])
    order = [2 + 2 * at for at in range(count)] + [0] + [1 + 2 * at for at in range(count)]
    x = c.transpose(x, [*order, *range(1 + 2 * count, x.tensor.rank)])
    return c.reshape(x, [n * int(np.prod(blocks)), *(sizes[at] // blocks[at] for at in range(count)), *sizes[count:]])  # type: ignore[no-any-return]


@moves("BATCH_TO_SPACE_ND")
def _to_space(c: Any, op: Any, x: Value, block: Value, amounts: Value) -> Value:
    blocks, pairs = c.ints(block), np.array(c.ints(amounts)).reshape(-1, 2)
    count, (n, *sizes) = len(blocks), x.tensor.static
    left = n // int(np.prod(blocks))
    x = c.reshape(x, [*blocks, left, *sizes])
    order = [count] + [axis for at in range(count) for axis in (count + 1 + at, at)]
    x = c.transpose(x, [*order, *range(1 + 2 * count, x.tensor.rank)])
    x = c.reshape(x, [left, *(sizes[at] * blocks[at] for at in range(count)), *sizes[count:]])
    for at in range(count):
        if pairs[at].any():
            x = c.slice(x, 1 + at, int(pairs[at, 0]), x.tensor.static[1 + at] - int(pairs[at, 1]))
    return x


def _of_blocks(name: str) -> Any:
    return lambda c, op, x: to_last(c, c.op(name, to_first(c, x), blocksize=op.option(0)))


@moves("ONE_HOT")
def _one_hot(c: Any, op: Any, x: Value, depth: Value, on: Value, off: Value) -> Value:
    values = c.concat([c.reshape(off, [1]), c.reshape(on, [1])], 0)
    return c.op("OneHot", x, c.ints(depth)[0], values, axis=op.option(0))  # type: ignore[no-any-return]


@moves("EMBEDDING_LOOKUP")
def _embedding(c: Any, op: Any, indices: Value, table: Value) -> Value:
    return c.op("Gather", table, indices, axis=0)  # type: ignore[no-any-return]


@moves("SCATTER_ND")
def _scatter(c: Any, op: Any, indices: Value, updates: Value, shape: Value) -> Value:
    base = c.filled(c.ints(shape), 0, updates.tensor.dtype)
    return c.op("ScatterND", base, indices, updates, reduction="add")  # type: ignore[no-any-return]


@moves("DYNAMIC_UPDATE_SLICE")
def _update(c: Any, op: Any, x: Value, update: Value, starts: Value) -> Value:
    """Every element that is not in the stretch stays; the others are looked up in the update."""
    rank, inside = x.tensor.rank, None
    for axis, (have, size) in enumerate(zip(x.tensor.static, update.tensor.static)):
        if have != size:
            start = c.op("Gather", c.cast(starts, "int64"), np.int64(axis), axis=0)
            start = c.op("Min", c.op("Max", start, np.int64(0)), np.int64(have - size))
            place = c.op("Sub", np.arange(have), start)
            near = c.op("Min", c.op("Max", place, np.int64(0)), np.int64(size - 1))
            update = c.op("Gather", update, near, axis=axis)
            within = c.reshape(c.op("Equal", place, near), [1] * axis + [-1] + [1] * (rank - axis - 1))
            inside = within if inside is None else c.op("And", inside, within)
    return update if inside is None else c.where(inside, update, x, x.tensor.dtype)


def _squeezed(op: Any, x: Value) -> list[int]:
    """The axes that a SQUEEZE names, or all of size 1."""
    named = [] if op.options is None else [axis % len(op.inputs[0].shape) for axis in op.options.ints(0)]
    return named or [axis for axis, size in enumerate(x.tensor.static) if size == 1]


MOVES.enter(
    {
        "DEPTH_TO_SPACE": _of_blocks("DepthToSpace"),
        "SPACE_TO_DEPTH": _of_blocks("SpaceToDepth"),
        "SQUEEZE": lambda c, op, x: c.squeeze(x, *_squeezed(op, x)),
        "EXPAND_DIMS": lambda c, op, x, axis: c.unsqueeze(x, c.ints(axis)[0]),
        "PACK": lambda c, op, *parts: c.concat([c.unsqueeze(one, op.option(1)) for one in parts], op.option(1)),
        "TILE": lambda c, op, x, counts: c.op("Tile", x, c.ints(counts)),
        "BROADCAST_TO": lambda c, op, x, shape: c.op("Expand", x, c.ints(shape)),
        "REVERSE_V2": lambda c, op, x, axes: c.op(
            "Slice", x, [-1] * len(c.ints(axes)), [-_FAR] * len(c.ints(axes)), c.ints(axes), [-1] * len(c.ints(axes))
        ),
        "GATHER_ND": lambda c, op, x, indices: c.op("GatherND", x, indices),
    }
)
enter(
    {
        "SHAPE": lambda c, op, x: c.constant(np.array(x.tensor.static, NUMPY_TYPES[op.outputs[0].dtype])),
        "RANK": lambda c, op, x: c.constant(np.int32(x.tensor.rank)),
        "ZEROS_LIKE": lambda c, op, x: c.filled(list(x.tensor.static), 0, x.tensor.dtype),
        "FILL": lambda c, op, shape, number: c.filled(c.ints(shape), number, number.tensor.dtype),
        "RANGE": lambda c, op, start, end, step: c.op("Range", start, end, step),
        "FAKE_QUANT": lambda c, op, x: _fake(c, op, x),
    }
)


def _fake(c: Any, op: Any, x: Value) -> Value:
    low, high, bits = op.option(0, "f", 0.0), op.option(1, "f", 0.0), op.option(2, "i", 0)
    least = 1 if op.option(3, "?", False) else 0
    scale = (high - low) / ((1 << bits) - 1 - least)
    zero = min(max(round(least - low / scale), least), (1 << bits) - 1)
    bounds = [np.float32((end - zero) * scale) for end in (least, (1 << bits) - 1)]
    steps = c.op("Round", c.op("Div", c.op("Clip", x, *bounds), np.float32(scale)))
    return c.op("Mul", steps, np.float32(scale))  # type: ignore[no-any-return]
