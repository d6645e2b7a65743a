"""Operators that read at places named by data: Gather, GatherElements, GatherND, OneHot, Compress, NonZero.

How many places NonZero finds is data: it becomes what counts them, and what writes them down once there is room
(`graph/passes/find_places.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, Var, index_expr
from weft.graph.ir import Array, Dim, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import normal_axis, unknown_dim
from weft.graph.signature import ELEMENTS, Points, Within
from weft.graph.steps import elements_of
from weft.loop.ir import For, If, Let, Stmt, Store, seq
from weft.ops.expansion import Builder, Unexpanded, compose
from weft.ops.movement_indices import axis_of, choose, counted_index, fill, output_type, reshape_read, with_dim


def counted(c: Use, indices: Array, size: Any) -> Array:
    """Indices counted from the front; one outside the dimension is an error."""
    at = np.asarray(indices).astype(np.int64)
    at = np.where(at < 0, at + size, at)
    outside = (at < 0) | (at >= size)
    if outside.any():
        wrong = np.asarray(indices)[np.broadcast_to(outside, at.shape)].reshape(-1)[0]
        raise c.error(f"the index {wrong} is outside a dimension of {np.max(size)}")
    return at


# --------------------------------------------------------------------------------------------------------- Gather


def _gather_infer(c: Infer) -> list[Type]:
    x, indices = c.tensor(0), c.tensor(1)
    if x.shape is None or indices.shape is None:
        return [TensorType(x.dtype, None)]
    axis = axis_of(c, x.rank)
    return [TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]


def _gather(c: Evaluate, x: Array, indices: Array) -> Array:
    axis = axis_of(c, x.ndim)
    try:
        made = np.take(x, indices, axis=axis)
    except IndexError:
        made = np.take(x, counted(c, indices, x.shape[axis]), axis=axis)  # says which index is outside
    return made if isinstance(made, np.ndarray) else np.array(made, x.dtype)


def _gather_compute(c: Compute, x: te.Tensor, indices: te.Tensor) -> Any:
    if 0 in c.dims(1):
        return fill(c.out_dims(), 0, output_type(c))
    if 0 in c.dims(0):
        return None  # nothing is read there: the host says which index is outside
    axis, rank = axis_of(c, x.ndim), indices.ndim
    size = c.dims(0)[axis]

    def read(*i: Any) -> Expr:
        at = counted_index(indices[i[axis : axis + rank]], size)
        return x[(*i[:axis], at, *i[axis + rank :])]

    return te.compute(c.out_dims(), read, name="gather")


register(
    "Gather",
    _gather_infer,
    _gather,
    _gather_compute,
    "injective",
    takes="data[_ *d], indices:int",
    traits="moves empties",
)


# -------------------------------------------------------------------------------------------------- GatherElements


def elements_at(c: Use, shape: tuple[int, ...], indices: Array) -> tuple[Any, ...]:
    """Where in a tensor of that shape the elements lie that `indices` names along the axis."""
    axis = axis_of(c, len(shape))
    at: list[Any] = list(np.indices(indices.shape, sparse=True))
    at[axis] = counted(c, indices, shape[axis])
    return tuple(at)


def _elements_compute(c: Compute, x: te.Tensor, indices: te.Tensor) -> Any:
    axis = axis_of(c, x.ndim)
    size = c.dims(0)[axis]

    def read(*i: Any) -> Expr:
        return x[(*i[:axis], counted_index(indices[i], size), *i[axis + 1 :])]

    return te.compute(c.out_dims(), read, name="gather_elements")


register(
    "GatherElements",
    lambda c: [TensorType(c.tensor(0).dtype, c.tensor(1).shape)],
    lambda c, x, indices: np.asarray(x[elements_at(c, x.shape, indices)]),
    _elements_compute,
    "injective",
    takes="data, indices:int",
    requires=(Within(1, 0),),
    traits="moves",
)


# -------------------------------------------------------------------------------------------------------- GatherND


def _nd_infer(c: Infer) -> list[Type]:
    x, indices, batch = c.tensor(0), c.tensor(1), int(c.get("batch_dims", 0))
    if x.shape is None or indices.shape is None or not isinstance(indices.shape[-1], int):
        return [TensorType(x.dtype, None)]
    return [TensorType(x.dtype, (*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :]))]


def _nd(c: Evaluate, x: Array, indices: Array) -> Array:
    batch, count = int(c.get("batch_dims", 0)), indices.shape[-1]
    at: list[Any] = []
    if batch:
        outer = np.indices(indices.shape[:batch], sparse=True)
        at = [o.reshape(o.shape + (1,) * (indices.ndim - 1 - batch)) for o in outer]
    at += [counted(c, indices[..., k], x.shape[batch + k]) for k in range(count)]
    # Places of no number name everything after the batch dimensions, each of them anew.
    return np.array(np.broadcast_to(x[tuple(at)], (*indices.shape[:-1], *x.shape[batch + count :])))


def _nd_compute(c: Compute, x: te.Tensor, indices: te.Tensor) -> Any:
    if 0 in c.shape(1)[:-1]:
        return fill(c.out_shape(), 0, output_type(c))
    if 0 in c.shape(0):
        return None  # nothing is read there: the host says which index is outside
    batch, count, lead = int(c.get("batch_dims", 0)), c.shape(1)[-1], indices.ndim - 1
    sizes = c.shape(0)

    def read(*i: Any) -> Expr:
        at = [counted_index(indices[(*i[:lead], k)], sizes[batch + k]) for k in range(count)]
        return x[(*i[:batch], *at, *i[lead:])]

    return te.compute(c.out_shape(), read, name="gather_nd")


register(
    "GatherND",
    _nd_infer,
    _nd,
    _nd_compute,
    "injective",
    takes="data, indices:int",
    requires=(Points(),),
    traits="moves empties",
)


# ---------------------------------------------------------------------------------------------------------- OneHot


def _hot_axis(c: Use, rank: int) -> int:
    return normal_axis(int(c.get("axis", -1)), rank + 1, c.error)


def _depth(c: Use, value: Array) -> int:
    depth = np.asarray(value).reshape(-1)[0]
    if not 0 <= depth < 1 << 62:
        raise c.error(f"a depth of {depth}")
    return int(depth)


def _one_hot_infer(c: Infer) -> list[Type]:
    indices, values, depth = c.tensor(0), c.tensor(2), c.value(1)
    if indices.shape is None:
        return [TensorType(values.dtype, None)]
    axis = _hot_axis(c, indices.rank)
    size: Dim = unknown_dim("depth") if depth is None else _depth(c, depth)
    return [TensorType(values.dtype, (*indices.shape[:axis], size, *indices.shape[axis:]))]


def _one_hot(b: Builder, indices: Value, depth: Value, values: Value) -> Value:
    """One of two values: the second where an index, counted from either end, is the place."""
    known, rank = b.scope.constant(depth), len(b.dims(indices))
    if known is None:
        raise Unexpanded
    size, axis, kind = _depth(b.use, known), _hot_axis(b.use, rank), indices.tensor.dtype
    exact = "float64" if kind in ELEMENTS["float"] else "int64"
    at = b("Unsqueeze", b.cast(indices, exact), b.constant([axis], "int64"))
    if kind not in ELEMENTS["unsigned"]:
        at = b("Where", b("Less", at, b.constant(0, exact)), b("Add", at, b.constant(size, exact)), at)
    places = b.constant(np.arange(size).reshape(-1, *[1] * (rank - axis)), exact)
    off, on = (b("Gather", values, b.constant(which, "int64"), axis=0) for which in (0, 1))
    return b("Where", b("Equal", at, places), on, off)


compose(
    "OneHot",
    _one_hot,
    (1,),
    infer=_one_hot_infer,
    takes="indices:number, depth:number[]|[1], values[2]",
    traits="cheap grows",
)


# ----------------------------------------------------------------------------------------------- Compress, NonZero


def _compress_infer(c: Infer) -> list[Type]:
    x, condition = c.tensor(0), c.value(1)
    count: Dim = unknown_dim("compress") if condition is None else int(np.count_nonzero(condition))
    if c.get("axis") is None:
        return [TensorType(x.dtype, (count,))]
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    return [TensorType(x.dtype, with_dim(x.shape, axis_of(c, x.rank), count))]


def _compress(c: Evaluate, x: Array, condition: Array) -> Array:
    flat = c.get("axis") is None
    source = x.reshape(-1) if flat else x
    axis = 0 if flat else axis_of(c, x.ndim)
    chosen = np.nonzero(condition)[0]
    if len(chosen) and chosen[-1] >= source.shape[axis]:
        raise c.error(f"the condition chooses element {chosen[-1]} of a dimension of {source.shape[axis]}")
    return np.take(source, chosen, axis=axis)


def _compress_compute(c: Compute, x: te.Tensor, condition: Any) -> Any:
    """With the condition known, a gather at constant places."""
    chosen = c.value(1)
    if chosen is None or len(chosen) > 64:
        return None
    places = [index_expr(int(p)) for p in np.nonzero(chosen)[0]]
    if c.get("axis") is None:
        read = reshape_read(x, (int(np.prod(c.shape(0), dtype=np.int64)),))
        return te.compute(c.out_shape(), lambda i: read(choose(i, places)), name="compress")
    axis = axis_of(c, x.ndim)
    return te.compute(
        c.out_shape(), lambda *i: x[(*i[:axis], choose(i[axis], places), *i[axis + 1 :])], name="compress"
    )


register(
    "Compress",
    _compress_infer,
    _compress,
    _compress_compute,
    "injective",
    shape_inputs=(1,),
    takes="input, condition:bool[_]",
    traits="cheap",
)


def _nonzero_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(0)
    rank: Dim = unknown_dim("rank") if x.shape is None else x.rank
    count: Dim = unknown_dim("nonzero") if value is None else int(np.count_nonzero(value))
    return [TensorType("int64", (rank, count))]


def _nonzero(c: Evaluate, x: Array) -> Array:
    if x.ndim == 0:  # a scalar has no coordinates
        return np.zeros((0, int(np.count_nonzero(x))), np.int64)
    if x.dtype.kind == "O":
        x = x.astype(bool)
    return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)


register("NonZero", _nonzero_infer, _nonzero, takes="X", steps=elements_of)


def _room_infer(c: Infer) -> list[Type]:
    count = c.value(0)
    return [TensorType("bool", (unknown_dim("found") if count is None else int(count),))]


def _found_compute(c: Compute, flags: te.Tensor, room: te.Tensor) -> Any:
    """One walk over the flags. How many were found so far stands where the last one is going to."""
    shape, dims = c.dims(0), c.out_dims()
    variables, last, here = [Var(f"i{k}") for k in range(len(shape))], dims[1] - 1, Var("here")

    def statement(inputs: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> Stmt:
        places, count = outs[0], (index_expr(0), index_expr(last))
        notes = [Store(places, (index_expr(k), here), i) for k, i in enumerate(variables)]
        so_far = te.minimum(te.maximum(places[count], 0), last)  # whatever was read
        made: Stmt = If(inputs[0][tuple(variables)], Let(here, so_far, seq(Store(places, count, here + 1), *notes)))
        for variable, extent in reversed(list(zip(variables, shape))):
            made = For(variable, extent, made)
        return seq(Store(places, count, te.const(0, "int64")), made)

    return te.extern(dims, [flags], statement, "found", "int64")


register(
    "Room",
    _room_infer,
    lambda c, count: np.zeros(int(count), bool),
    domain="weft",
    takes="count:int64[]",
    traits="unread",
)
register(
    "FoundPlaces",
    lambda c: [TensorType("int64", (c.tensor(0).rank, c.tensor(1).dims[0]))],
    lambda c, flags, room: _nonzero(c, flags),
    _found_compute,
    domain="weft",
    takes="flags:bool[_ *s], room:bool[_]",
    steps=elements_of,
)
