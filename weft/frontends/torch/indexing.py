"""Converters of what picks and writes elements by index, and of the numbers that stand for sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Emitter, Operand, Unsupported, is_float, limits
from weft.frontends.torch.reductions import reduce as reduced
from weft.frontends.torch.table import aten, enter, name_of
from weft.graph.ir import Value

# ----------------------------------------------------------------------------------------------------------- picking


@aten("index_select")
def _index_select(c: Emitter, x: Value, dim: int, index: Value) -> Value:
    if not x.tensor.rank:
        return x
    return c.op("Gather", x, index if index.tensor.rank else c.unsqueeze(index, 0), axis=dim)


@aten("gather")
def _gather(c: Emitter, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if not x.tensor.rank or not index.tensor.rank:
        picked = c.op("Gather", c.flat(x), c.flat(index), axis=0)
        return c.reshape(picked, c.sizes(index))
    return c.op("GatherElements", _cropped(c, x, index, dim), index, axis=dim)


def _cropped(c: Emitter, x: Value, index: Value, dim: int) -> Value:
    """x with the sizes of the index in all axes but one: torch lets the index be smaller."""
    for axis, (have, want) in enumerate(zip(x.tensor.dims, index.tensor.dims)):
        if axis != dim % x.tensor.rank and have != want and isinstance(want, int):
            x = c.slice(x, axis, 0, want)
    return x


@aten("masked_select")
def _masked_select(c: Emitter, x: Value, mask: Value) -> Value:
    shape = c.op("Shape", c.op("And", c.op("Equal", x, x), mask))
    x, mask = (c.op("Expand", one, shape) for one in (x, mask))
    return c.op("Compress", c.flat(x), c.flat(mask))


def _index_parts(c: Emitter, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], list[Value]]:
    """The axes that are indexed, and whole numbers for them: a mask becomes the places where it is true."""
    axes: list[int] = []
    found: list[Value] = []
    axis = 0
    for one in indices:
        if one is not None and one.tensor.dtype in ("bool", "uint8"):
            rank = one.tensor.rank
            if not rank:
                raise Unsupported("an index that is a truth value without axes")
            places = c.op("NonZero", c.cast(one, "bool"))
            found += [c.op("Gather", places, np.int64(at), axis=0) for at in range(rank)]
            axes += range(axis, axis + rank)
            axis += rank
            continue
        if one is not None:
            axes.append(axis)
            found.append(one)
        axis += 1
    return axes, found


def _from_front(c: Emitter, x: Value, axis: int, index: Value) -> Value:
    """An index that counts from the front: what is negative counts from the back."""
    index = c.cast(index, "int64")
    size = c.value(c.size(x, axis), "int64")
    return c.where(c.op("Less", index, np.int64(0)), c.op("Add", index, size), index, "int64")


def _joined(c: Emitter, x: Value, axes: Sequence[int], found: Sequence[Value]) -> Value:
    """Several indices as one tensor whose last axis names an element."""
    parts = [_from_front(c, x, axis, index) for axis, index in zip(axes, found)]
    if len(parts) > 1 and any(part.tensor.shape != parts[0].tensor.shape for part in parts):
        total = parts[0]
        for part in parts[1:]:
            total = c.op("Add", total, part)
        shape = c.sizes(total)
        parts = [c.expand(part, shape) for part in parts]
    return c.concat([c.unsqueeze(part, part.tensor.rank) for part in parts], -1)


@aten("index.Tensor", "_unsafe_index.Tensor")
def _index(c: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    axes, found = _index_parts(c, x, indices)
    if not axes:
        return x
    if len(axes) == 1:
        return c.op("Gather", x, found[0], axis=axes[0])
    rest = [axis for axis in range(x.tensor.rank) if axis not in axes]
    picked = c.op("GatherND", c.transpose(x, [*axes, *rest]), _joined(c, x, axes, found))
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    rank = picked.tensor.rank - len(rest)
    if not together or axes[0] == 0:
        return picked  # indices that stand apart come first
    order = [*range(rank, rank + axes[0]), *range(rank), *range(rank + axes[0], picked.tensor.rank)]
    return c.transpose(picked, order)


enter(
    {
        "embedding": lambda c, weight, indices, *_, **__: c.op("Gather", weight, indices, axis=0),
        "take": lambda c, x, index: c.op("Gather", c.flat(x), index, axis=0),
        "nonzero": lambda c, x: c.swap(c.op("NonZero", x if x.tensor.rank else c.unsqueeze(x, 0)), 0, 1),
    }
)


@aten("_unique2")
def _unique(c: Emitter, x: Value, sorted: bool = True, inverse: bool = False, counts: bool = False) -> list[Any]:
    found, _, back, count = c.several(4, "Unique", c.flat(x), sorted=1)
    return [found, c.reshape(back, c.sizes(x)) if inverse else _none(c), count if counts else _none(c)]


def _none(c: Emitter) -> Value:
    return c.constant(np.zeros(0, np.int64))


@aten("_embedding_bag_forward_only", "_embedding_bag")
def _embedding_bag(
    c: Emitter, weight: Value, indices: Value, offsets: Value, scale_grad: bool = False, mode: int = 0,
    sparse: bool = False, weights: Value | None = None, include_last: bool = False, padding: int = -1,
) -> list[Any]:  # fmt: skip
    """Sums (mode 0), means (1) or maxima (2) of the rows of each bag; a bag begins where `offsets` says."""
    count, bags = c.size(indices, 0), c.size(offsets, 0)
    if not isinstance(count, int) or not isinstance(bags, int):
        raise Unsupported("bags whose number only a call tells")
    begins = c.cast(offsets, "int64")
    at = c.constant(np.arange(count))
    first = c.op("LessOrEqual", c.unsqueeze(begins, 1), c.unsqueeze(at, 0))
    bag = c.op("Sub", reduced(c, "ReduceSum", c.cast(first, "int64"), 0), np.int64(1))
    bags -= include_last
    member = c.op("Equal", c.constant(np.arange(bags)[:, None]), c.unsqueeze(bag, 0))
    if padding >= 0:
        member = c.op(
            "And", member, c.unsqueeze(c.invert(c.op("Equal", indices, c.value(padding, indices.tensor.dtype))), 0)
        )
    rows = c.op("Gather", weight, indices, axis=0)
    if weights is not None:
        rows = c.op("Mul", rows, c.unsqueeze(weights, 1))
    held = reduced(c, "ReduceSum", c.cast(member, "int64"), 1)
    if mode == 2:
        spread = c.where(c.unsqueeze(member, 2), c.unsqueeze(rows, 0), -math.inf)
        made = c.where(c.unsqueeze(c.op("Equal", held, np.int64(0)), 1), 0, reduced(c, "ReduceMax", spread, 1))
    else:
        made = c.op("MatMul", c.cast(member, c.dtype), rows)
    if mode == 1:
        made = c.op("Div", made, c.unsqueeze(c.cast(c.op("Max", held, np.int64(1)), c.dtype), 1))
    return [made, None, None, None]


# ----------------------------------------------------------------------------------------------------------- writing


@aten("index_put", "_unsafe_index_put")
def _index_put(c: Emitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    if (
        len(indices) == 1
        and indices[0] is not None
        and indices[0].tensor.dtype == "bool"
        and not values.tensor.rank
        and not accumulate
    ):
        mask = indices[0]
        return c.where(c.unsqueeze(mask, *range(mask.tensor.rank, x.tensor.rank)), values, x)
    axes, found = _index_parts(c, x, indices)
    if not axes:
        raise Unsupported("writing through an index without a tensor")
    rest = [axis for axis in range(x.tensor.rank) if axis not in axes]
    order = [*axes, *rest]
    joined = _joined(c, x, axes, found)
    outer = c.sizes(joined)[:-1]
    inner = [c.size(x, axis) for axis in rest]
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    values = c.cast(values, x.tensor.dtype)
    if together and axes[0]:  # values have the axes of the index in the middle, as the result of reading would
        before = inner[: axes[0]]
        values = c.expand(values, [*before, *outer, *inner[axes[0] :]])
        count, lead = len(outer), len(before)
        values = c.transpose(
            values, [*range(lead, lead + count), *range(lead), *range(lead + count, values.tensor.rank)]
        )
    else:
        values = c.expand(values, [*outer, *inner])
    turned = c.transpose(x, order)
    made = c.op("ScatterND", turned, joined, values, reduction="add" if accumulate else "none")
    return c.transpose(made, [order.index(axis) for axis in range(len(order))])


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _scatter_elements(c: Emitter, x: Value, dim: int, index: Value, source: Value, reduction: str = "none") -> Value:
    source = c.cast(source, x.tensor.dtype)
    if not x.tensor.rank or not index.tensor.rank:
        flat = [c.reshape(one, [-1]) if not one.tensor.rank else one for one in (x, index, source)]
        return c.reshape(c.op("ScatterElements", *flat, axis=0, reduction=reduction), c.sizes(x))
    for axis, (have, want) in enumerate(zip(source.tensor.dims, index.tensor.dims)):
        if have != want and isinstance(want, int):
            source = c.slice(source, axis, 0, want)
    return c.op("ScatterElements", x, index, source, axis=dim, reduction=reduction)


@aten("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def _scatter(c: Emitter, x: Value, dim: int, index: Value, source: Operand, *, reduce: str = "none") -> Value:
    if not isinstance(source, Value):
        source = c.filled(c.sizes(index), source, x.tensor.dtype)
    return _scatter_elements(c, x, dim, index, source, _REDUCTIONS.get(reduce, "none"))


@aten("scatter_add")
def _scatter_add(c: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scatter_elements(c, x, dim, index, source, "add")


@aten("scatter_reduce.two")
def _scatter_reduce(
    c: Emitter, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    if reduce != "mean" and include_self:
        return _scatter_elements(c, x, dim, index, source, _REDUCTIONS[reduce])
    kind = x.tensor.dtype
    ones = [c.filled(c.sizes(one), number, "int64") for one, number in ((x, int(include_self)), (index, 1))]
    count = _scatter_elements(c, ones[0], dim, index, ones[1], "add")
    if not include_self:  # elements that are written to begin as what changes nothing
        empty = {"prod": 1, "amax": limits(kind)[0], "amin": limits(kind)[1]}.get(reduce, 0)
        touched = c.op("Greater", count, np.int64(0))
        x = c.where(touched, empty, x, kind)
    made = _scatter_elements(c, x, dim, index, source, _REDUCTIONS.get(reduce, "add"))
    if reduce != "mean":
        return made
    count = c.cast(c.op("Max", count, np.int64(1)), kind)
    if is_float(kind):
        return c.op("Div", made, count)
    return c.op("Div", c.op("Sub", made, c.op("Mod", made, count)), count)  # towards the lesser


@aten("index_reduce")
def _index_reduce(
    c: Emitter, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    if not x.tensor.rank:
        made = _index_reduce(c, c.flat(x), 0, index, c.flat(source), reduce, include_self=include_self)
        return c.reshape(made, [])
    index = _along(c, x, dim, index, source)
    return _scatter_reduce(c, x, dim, index, source, reduce, include_self=include_self)


@aten("put")
def _put(c: Emitter, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    flat = [c.flat(one) for one in (x, index, source)]
    return c.reshape(_scatter_elements(c, flat[0], 0, flat[1], flat[2], "add" if accumulate else "none"), c.sizes(x))


def _along(c: Emitter, x: Value, dim: int, index: Value, source: Value) -> Value:
    """An index of rows, as one of elements."""
    shape = [1] * x.tensor.rank
    shape[dim] = -1
    return c.expand(c.reshape(index, shape), c.sizes(source))


@aten("index_add")
def _index_add(c: Emitter, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    source = c.cast(source, x.tensor.dtype)
    if alpha != 1:
        source = c.op("Mul", source, c.value(alpha, x.tensor.dtype))
    return _index_rows(c, x, dim, index, source, "add")


@aten("index_copy")
def _index_rows(c: Emitter, x: Value, dim: int, index: Value, source: Value, reduction: str = "none") -> Value:
    if not x.tensor.rank:
        return c.reshape(_index_rows(c, c.flat(x), 0, index, c.flat(source), reduction), [])
    return _scatter_elements(c, x, dim, _along(c, x, dim, index, source), source, reduction)


@aten("masked_scatter")
def _masked_scatter(c: Emitter, x: Value, mask: Value, source: Value) -> Value:
    x = c.where(mask, x, x)  # as large as both
    mask = c.op("Expand", mask, c.op("Shape", x))
    turn = c.op("CumSum", c.cast(c.flat(mask), "int64"), np.int64(0))  # the n-th true takes the n-th element
    turn = c.op("Max", c.op("Sub", turn, np.int64(1)), np.int64(0))
    return c.where(mask, c.reshape(c.op("Gather", c.flat(source), turn, axis=0), c.sizes(x)), x)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(c: Emitter, x: Value, dim: int, index: Value, value: Operand) -> Value:
    if not x.tensor.rank:
        return c.value(value, x.tensor.dtype)
    sizes = c.sizes(x)
    sizes[dim] = c.size(index, 0) if index.tensor.rank else 1
    return _index_rows(c, x, dim, index, c.filled(sizes, value, x.tensor.dtype))


@aten("bucketize.Tensor", "searchsorted.Tensor", "bucketize.Scalar", "searchsorted.Scalar")
def _search(c: Emitter, a: Any, b: Any, *, right: bool = False, side: str | None = None, **more: Any) -> Value:
    values, edges = (a, b) if c.target.startswith("bucketize") else (b, a)
    if more.get("sorter") is not None:
        edges = c.op("GatherElements", edges, more["sorter"], axis=-1)
    values = c.value(values)
    kind = values.tensor.dtype if edges.tensor.dtype.startswith("int") else edges.tensor.dtype
    values, edges = c.cast(values, kind), c.cast(edges, kind)
    # How many edges lie before each value.
    if edges.tensor.rank > 1:
        edges = c.unsqueeze(edges, edges.tensor.rank - 1)
    op = "GreaterOrEqual" if right or side == "right" else "Greater"
    values = c.unsqueeze(values, values.tensor.rank)
    before = c.op(op, values, edges)
    if is_float(kind):  # no number comes last
        before = c.op("Or", before, c.op("IsNaN", values))
    return c.op("ReduceSum", c.cast(before, "int64"), [-1], keepdims=0)


# ------------------------------------------------------------------------------------------------------------- sizes


def _number(name: str, op: str, python: Any) -> None:
    """A converter of arithmetic with sizes: Python's own where both are known."""

    def converter(c: Emitter, *numbers: Any) -> Any:
        if not any(isinstance(one, Value) for one in numbers):
            return python(*numbers)
        kinds = {one.tensor.dtype for one in numbers if isinstance(one, Value)}
        real = op == "Div" or any(isinstance(one, float) for one in numbers) or any("float" in kind for kind in kinds)
        values = [c.value(one, "float64" if real else "int64") for one in numbers]
        if op == "FloorDiv":
            made = c.op("Div", c.op("Sub", values[0], c.op("Mod", *values)), values[1])
        elif op in ("Floor", "Ceil", "Trunc"):
            made = c.cast(c.op(op, *values) if op != "Trunc" else values[0], "int64") if real else values[0]
        else:
            made = c.invert(c.op("Equal", *values)) if op == "NotEqual" else c.op(op, *values)
        c.numbers.add(made)
        return made

    aten(name)(converter)


for _python, _op in (
    (operator.add, "Add"), (operator.sub, "Sub"), (operator.mul, "Mul"), (operator.truediv, "Div"),
    (operator.floordiv, "FloorDiv"), (operator.mod, "Mod"), (operator.neg, "Neg"), (operator.pow, "Pow"),
    (operator.eq, "Equal"), (operator.ne, "NotEqual"), (operator.lt, "Less"), (operator.le, "LessOrEqual"),
    (operator.gt, "Greater"), (operator.ge, "GreaterOrEqual"), (math.floor, "Floor"), (math.ceil, "Ceil"),
    (math.trunc, "Trunc"),
):  # fmt: skip
    _number(name_of(_python), _op, _python)


@aten(
    "_assert_scalar", "_assert_async.msg", "_assert_tensor_metadata", "sym_constrain_range",
    "sym_constrain_range_for_size", "_functional_assert_async.msg", "_functional_assert_scalar",
    "_functional_sym_constrain_range_for_size", "_functional_sym_constrain_range", "_linalg_check_errors",
)  # fmt: skip
def _promise(c: Emitter, *_: Any, **__: Any) -> None:
    """What an export believes of its inputs: Weft checks shapes when it is called."""


enter(
    {
        "sym_size.int": lambda c, x, dim: c.size(x, dim),
        "sym_numel numel": lambda c, x: c.times(*c.sizes(x)),
        "item _local_scalar_dense": lambda c, x: c.reshape(x, []),
        "torch.sym_max": lambda c, *numbers: c.op("Max", *(c.value(one, "int64") for one in numbers)),
        "torch.sym_min": lambda c, *numbers: c.op("Min", *(c.value(one, "int64") for one in numbers)),
        "torch.sym_sum": lambda c, numbers: c.op("ReduceSum", c.vector(numbers), [0], keepdims=0),
        "torch.sym_float": lambda c, number: c.value(number, "float64"),
        "torch.sym_not": lambda c, number: c.invert(c.value(number)),
    }
)
