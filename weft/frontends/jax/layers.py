"""Converters of products of matrices and of convolutions, with any dimension numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Unsupported, is_float
from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.movement import crop_and_pad, dilated
from weft.frontends.jax.reductions import reduced, widened
from weft.frontends.jax.table import primitive
from weft.graph.ir import Value


def _operands(c: JaxEmitter, *operands: Value) -> list[Value]:
    """Operands of a product in the element type of its sums."""
    wanted = c.dtype if c.dtype != "bool" else "int32"
    return [widened(c, c.cast(one, wanted)) for one in operands]


@primitive("dot_general")
def _dot(c: JaxEmitter, a: Value, b: Value, *, dimension_numbers: Any, **_: Any) -> Value:
    (left, right), (left_batch, right_batch) = [tuple(map(tuple, one)) for one in dimension_numbers]
    a, b = _operands(c, a, b)
    left_free = [axis for axis in range(a.tensor.rank) if axis not in left and axis not in left_batch]
    right_free = [axis for axis in range(b.tensor.rank) if axis not in right and axis not in right_batch]
    batch = [a.tensor.static[axis] for axis in left_batch]
    rows, columns = ([x.tensor.static[axis] for axis in free] for x, free in ((a, left_free), (b, right_free)))
    length = math.prod(a.tensor.static[axis] for axis in left)
    if 0 in (*batch, *rows, *columns, length):
        return c.filled([*batch, *rows, *columns], 0, c.dtype)
    result = [*batch, *rows, *columns]
    if not left:  # nothing is summed over: products of all pairs
        a = c.reshape(c.transpose(a, [*left_batch, *left_free]), [*batch, *rows, *[1] * len(columns)])
        b = c.reshape(c.transpose(b, [*right_batch, *right_free]), [*batch, *[1] * len(rows), *columns])
        return c.op("Mul", a, b)
    a = c.transpose(a, [*left_batch, *left_free, *left])
    b = c.transpose(b, [*right_batch, *right, *right_free])
    if len(left) == 1 and len(columns) == 1 and (not batch or len(rows) == 1) and rows:
        made = c.op("MatMul", a, b)
    else:
        a = c.reshape(a, [*batch, math.prod(rows), length])
        b = c.reshape(b, [*batch, length, math.prod(columns)])
        made = c.reshape(c.op("MatMul", a, b), result)
    return c.invert(c.op("Equal", made, c.like(0, made))) if c.dtype == "bool" else made


@primitive("conv_general_dilated")
def _conv(
    c: JaxEmitter, x: Value, weight: Value, *, window_strides: Sequence[int], padding: Any, lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int], dimension_numbers: Any, feature_group_count: int = 1, batch_group_count: int = 1,
    **_: Any,
) -> Value:  # fmt: skip
    numbers = dimension_numbers
    x, weight = _operands(c, c.transpose(x, numbers.lhs_spec), c.transpose(weight, numbers.rhs_spec))
    back = [list(numbers.out_spec).index(axis) for axis in range(x.tensor.rank)]
    groups = feature_group_count
    if batch_group_count > 1:  # each part of the batch is a group of channels
        groups, n = batch_group_count, x.tensor.static[0]
        sizes = x.tensor.static[1:]
        x = c.swap(c.reshape(x, [groups, n // groups, *sizes]), 0, 1)
        x = c.reshape(x, [n // groups, groups * sizes[0], *sizes[1:]])
    pads = [(int(low), int(high)) for low, high in padding]
    window = list(weight.tensor.static[2:])
    strides, gaps = list(map(int, window_strides)), list(map(int, rhs_dilation))
    between = [int(gap) for gap in lhs_dilation]
    if 0 in x.tensor.static or 0 in weight.tensor.static or 0 in c.shape:
        return c.filled(list(map(int, c.shape)), 0, c.dtype)
    if not window:
        return c.transpose(_grouped_product(c, x, weight, groups), back)
    if not is_float(x.tensor.dtype):
        return c.transpose(_unfolded(c, x, weight, groups, strides, pads, between, gaps), back)
    reach = [(size - 1) * gap for size, gap in zip(window, gaps)]
    around = [(far - low, far - high) for far, (low, high) in zip(reach, pads)]
    if max(between) > 1 and max(strides) == 1 and min(map(min, around)) >= 0:
        made = _transposed(c, x, weight, groups, between, gaps, around)
    else:
        fill = c.like(0, x)
        x = dilated(c, x, [0, 0, *(gap - 1 for gap in between)], fill)
        if min(map(min, pads)) < 0:
            x, pads = crop_and_pad(c, x, [(0, 0), (0, 0), *pads], fill), [(0, 0)] * len(pads)
        made = c.op(
            "Conv", x, weight, kernel_shape=window, strides=strides, dilations=gaps, group=groups,
            pads=[low for low, _ in pads] + [high for _, high in pads],
        )  # fmt: skip
    return c.transpose(made, back)


def _transposed(
    c: JaxEmitter,
    x: Value,
    weight: Value,
    groups: int,
    strides: list[int],
    gaps: list[int],
    around: list[tuple[int, int]],
) -> Value:
    """A convolution of a dilated image: a transposed one, whose weight is turned round."""
    rank, shape = x.tensor.rank, weight.tensor.static
    axes = list(range(2, rank))
    turned = c.op("Slice", weight, [-1] * len(axes), [-(1 << 62)] * len(axes), axes, [-1] * len(axes))
    parted = c.swap(c.reshape(turned, [groups, shape[0] // groups, *shape[1:]]), 1, 2)
    turned = c.reshape(parted, [groups * shape[1], shape[0] // groups, *shape[2:]])
    return c.op(
        "ConvTranspose", x, turned, kernel_shape=list(shape[2:]), strides=strides, dilations=gaps, group=groups,
        pads=[low for low, _ in around] + [high for _, high in around],
    )  # fmt: skip


def _grouped_product(c: JaxEmitter, x: Value, weight: Value, groups: int) -> Value:
    """[n, groups k] by [groups m, k]: a convolution without axes to slide along, or over unfolded windows."""
    n, k = x.tensor.static[0], weight.tensor.static[1]
    m = weight.tensor.static[0] // groups
    parts = c.swap(c.reshape(x, [n, groups, k]), 0, 1)
    made = c.op("MatMul", parts, c.swap(c.reshape(weight, [groups, m, k]), 1, 2))
    return c.reshape(c.swap(made, 0, 1), [n, groups * m])


def _unfolded(
    c: JaxEmitter,
    x: Value,
    weight: Value,
    groups: int,
    strides: list[int],
    pads: list[tuple[int, int]],
    between: list[int],
    gaps: list[int],
) -> Value:
    """A convolution of whole numbers, as a product of unfolded windows: exact, and it wraps as integers do."""
    fill = c.like(0, x)
    x = dilated(c, x, [0, 0, *(gap - 1 for gap in between)], fill)
    x = crop_and_pad(c, x, [(0, 0), (0, 0), *pads], fill)
    n, channels = x.tensor.static[:2]
    window = list(weight.tensor.static[2:])
    count = len(window)
    results = []
    for at in range(count):  # [n, c, …, out, w, …]: one axis becomes two
        axis = 2 + 2 * at
        reach = 1 + (window[at] - 1) * gaps[at]
        results.append((x.tensor.static[axis] - reach) // strides[at] + 1)
        places = np.arange(results[at])[:, None] * strides[at] + np.arange(window[at])[None] * gaps[at]
        x = c.op("Gather", x, c.constant(places), axis=axis)
    outs, taps = [2 + 2 * at for at in range(count)], [3 + 2 * at for at in range(count)]
    rows = c.reshape(c.transpose(x, [0, *outs, 1, *taps]), [n * math.prod(results), channels * math.prod(window)])
    flat = c.reshape(weight, [weight.tensor.static[0], -1])
    made = _grouped_product(c, rows, flat, groups)
    made = c.reshape(made, [n, *results, weight.tensor.static[0]])
    return c.transpose(made, [0, count + 1, *range(1, count + 1)])


@primitive("ragged_dot_general")
def _ragged(c: JaxEmitter, a: Value, b: Value, sizes: Value, *, ragged_dot_dimension_numbers: Any, **_: Any) -> Value:
    numbers = ragged_dot_dimension_numbers
    plain = (
        tuple(map(tuple, numbers.dot_dimension_numbers[0])) == ((1,), (1,)) and not numbers.dot_dimension_numbers[1][0]
    )
    if not plain or list(numbers.lhs_ragged_dimensions) != [0] or list(numbers.rhs_group_dimensions) != [0]:
        raise Unsupported("ragged_dot but of [rows, k] by [groups, k, n]")
    a, b = _operands(c, a, b)
    ends = c.op("CumSum", c.cast(sizes, "int64"), np.int64(0))
    starts = c.op("Sub", ends, c.cast(sizes, "int64"))
    row = c.iota(a.tensor.static[0], rank=2, axis=1)
    own = c.op("And", c.op("GreaterOrEqual", row, c.unsqueeze(starts, 1)), c.op("Less", row, c.unsqueeze(ends, 1)))
    product = c.op("MatMul", a, b)  # each row with each group; those of other groups count as 0
    return reduced(c, "add", c.where(c.unsqueeze(own, 2), product, 0), [0])
