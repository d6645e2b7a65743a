"""Operators that order elements: TopK and Unique.

TopK puts NaN above every number, and of equal elements the earlier one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.graph.ir import Array, Dim, Node, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import unknown_dim
from weft.ops.movement_indices import axis_of, with_dim
from weft.ops.sorting_kernels import top_k

# ------------------------------------------------------------------------------------------------------------ TopK


def _count(c: Use, value: Array) -> int:
    k = int(np.asarray(value).reshape(-1)[0])
    if k < 0:
        raise c.error(f"k is {k}")
    return k


def _topk_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(1)
    if x.shape is None:
        return [TensorType(x.dtype, None), TensorType("int64", None)]
    axis = axis_of(c, x.rank, -1)
    k: Dim = unknown_dim("k") if value is None else _count(c, value)
    if isinstance(k, int) and isinstance(x.shape[axis], int) and k > x.shape[axis]:
        raise c.error(f"the {k} first of {x.shape[axis]} elements")
    shape = with_dim(x.shape, axis, k)
    return [TensorType(x.dtype, shape), TensorType("int64", shape)]


def _topk(c: Evaluate, x: Array, k: Array) -> tuple[Array, Array]:
    axis, count = axis_of(c, x.ndim, -1), _count(c, k)
    if count > x.shape[axis]:
        raise c.error(f"the {count} first of {x.shape[axis]} elements")
    keys = x if x.dtype.kind in "fiub" else x.astype(np.float32)
    if c.get("largest", 1):  # reversed twice, so that equal elements keep their order
        order = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - order, axis)
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    chosen = np.take(order, np.arange(count), axis=axis)
    return np.take_along_axis(x, chosen, axis=axis), chosen.astype(np.int64)


def _topk_compute(c: Compute, x: te.Tensor, k: Any) -> Any:
    return top_k(c, x, axis_of(c, x.ndim, -1))


def _topk_steps(node: Node, arrays: Sequence[Array | None]) -> int:
    """Those of a sort, whose kernel has loops that the data end."""
    return sum(array.size.bit_length() * array.size for array in arrays if array is not None)


register(
    "TopK", _topk_infer, _topk, _topk_compute, shape_inputs=(1,), takes="X:number[_ *s], K:int[]|[1]", steps=_topk_steps
)


# ---------------------------------------------------------------------------------------------------------- Unique


def _unique_infer(c: Infer) -> list[Type]:
    x, count = c.tensor(0), unknown_dim("unique")
    if c.get("axis") is None:
        shape: tuple[Dim, ...] | None = (count,)
        size: Dim = int(np.prod(x.static, dtype=np.int64)) if x.is_static else unknown_dim("size")
    else:
        shape = None if x.shape is None else with_dim(x.shape, axis_of(c, x.rank), count)
        size = unknown_dim("size") if x.shape is None else x.shape[axis_of(c, x.rank)]
    made: list[Type] = [TensorType(x.dtype, shape), *(TensorType("int64", (d,)) for d in (count, size, count))]
    return made[: c.output_count]


def _unique(c: Evaluate, x: Array) -> tuple[Array, ...]:
    flat = c.get("axis") is None
    if flat and x.dtype.kind in "biuf":
        return _unique_numbers(x.reshape(-1), bool(c.get("sorted", 1)))[: c.output_count]
    axis = 0 if flat else axis_of(c, x.ndim)
    source = x.reshape(-1) if flat else x
    rows = np.moveaxis(source, axis, 0).reshape(source.shape[axis], -1)
    keys = [tuple(row) for row in rows.tolist()]
    places: dict[Any, int] = {}
    first: list[int] = []
    group = np.zeros(len(keys), np.int64)
    for position, key in enumerate(keys):
        if key not in places:
            places[key] = len(first)
            first.append(position)
        group[position] = places[key]
    order = list(range(len(first)))
    if c.get("sorted", 1):
        order.sort(key=lambda g: keys[first[g]])
    rank = np.zeros(len(order), np.int64)
    rank[order] = np.arange(len(order))
    indices = np.array([first[g] for g in order], np.int64)
    inverse = rank[group] if len(order) else group
    counts = np.bincount(inverse, minlength=len(order)).astype(np.int64)
    return (np.take(source, indices, axis=axis), indices, inverse, counts)[: c.output_count]


def _unique_numbers(x: Array, in_order: bool) -> tuple[Array, ...]:
    values, first, back, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    back = back.reshape(-1)
    if not in_order:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values, first, back, counts = values[order], first[order], rank[back], counts[order]
    return (values, *(part.astype(np.int64) for part in (first, back, counts)))


register("Unique", _unique_infer, _unique, takes="X", traits="optional_outputs")
