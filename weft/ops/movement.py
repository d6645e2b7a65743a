"""Operators that give a tensor another shape or order: Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Expand, Tile,
and those that ask for its shape: Shape, Size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.graph.ir import Array, Dim, TensorType, Type, same_dim
from weft.graph.opspec import Compute, Evaluate, Infer, InferFunction, Use, register, type_of
from weft.graph.shapes import broadcast, divided, normal_axes, product, times, unknown_dim
from weft.graph.signature import OneOf
from weft.ops.movement_indices import choose, fill, integers, length_of, output_type, reshape_read, unknown_shape


def reshaped(c: Compute, x: te.Tensor, *rest: Any) -> Any:
    """The first input with the shape of the output: elements keep their order in memory."""
    shape = c.out_dims()
    return te.compute(shape, reshape_read(x, shape), name=c.node.op.lower())


def reshaping(name: str, infer: InferFunction, takes: str, traits: str = "reshapes", **more: Any) -> None:
    """Registers an operator that only gives a tensor the shape that inference finds."""

    def evaluate(c: Evaluate, x: Array, *rest: Array | None) -> Array:
        given = (x, *rest)
        (made,) = infer(Infer(c.node, [type_of(array) for array in given], given))
        assert isinstance(made, TensorType)
        return x.reshape(made.static)

    register(name, infer, evaluate, reshaped, "injective", takes=takes, traits=traits, **more)


# -------------------------------------------------------------------------------------------------------- Reshape


def _missing_dim(c: Infer, given: Sequence[Dim], others: Sequence[Dim]) -> Dim:
    """The dimension that -1 stands for."""
    left, rest = list(given), []
    for dim in others:  # what stands on both sides cancels, sizes that are not known included
        match = next((k for k, d in enumerate(left) if same_dim(d, dim)), None)
        if match is None:
            rest.append(dim)
        else:
            del left[match]
    total, known = product(left), product(rest)
    if isinstance(known, int) and known > 0:
        if isinstance(total, int) and total % known:
            raise c.error(f"{list(given)} cannot be reshaped: {total} elements do not divide by {known}")
        return divided(total, known)
    if isinstance(known, int) and isinstance(total, int):
        raise c.error("-1 cannot be told where another dimension is 0")
    return unknown_dim("reshape")


def _reshape_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(1)
    if value is None:
        return [TensorType(x.dtype, unknown_shape(length_of(c, 1), "reshape"))]
    wanted = integers(value)
    if any(w < -1 for w in wanted) or wanted.count(-1) > 1:
        raise c.error(f"{wanted} is not a shape: one dimension may be -1, none may be less")
    dims: list[Dim] = []
    for position, size in enumerate(wanted):
        if size == 0 and not c.get("allowzero", 0):
            if x.shape is None:
                dims.append(unknown_dim("reshape"))
                continue
            if position >= len(x.shape):
                raise c.error(f"{wanted} copies dimension {position}, and the input has {len(x.shape)}")
            dims.append(x.shape[position])
        else:
            dims.append(size)
    if -1 in wanted:
        at = wanted.index(-1)
        others = [d for k, d in enumerate(dims) if k != at]
        dims[at] = unknown_dim("reshape") if x.shape is None else _missing_dim(c, x.shape, others)
    elif x.is_static and TensorType(x.dtype, dims).is_static and product(x.dims) != product(dims):
        raise c.error(f"{list(x.dims)} has {product(x.dims)} elements and {dims} has {product(dims)}")
    return [TensorType(x.dtype, dims)]


reshaping(
    "Reshape",
    _reshape_infer,
    "data, shape:int[_]",
    shape_inputs=(1,),
    sizing=(1,),
    requires=(OneOf("allowzero", (0, 1)),),
)


# -------------------------------------------------------------------------------------- Flatten, Squeeze, Unsqueeze


def _flatten_infer(c: Infer) -> list[Type]:
    x, axis = c.tensor(0), int(c.get("axis", 1))
    if x.shape is None:
        return [TensorType(x.dtype, unknown_shape(2, "flatten"))]
    if not -x.rank <= axis <= x.rank:
        raise c.error(f"axis {axis} is outside the {x.rank} dimensions of the tensor")
    axis = axis + x.rank if axis < 0 else axis
    return [TensorType(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:])))]


reshaping("Flatten", _flatten_infer, "input")


def _squeeze_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(1)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    if c.has(1):
        if value is None:
            count = length_of(c, 1)
            return [TensorType(x.dtype, None if count is None else unknown_shape(x.rank - count, "squeeze"))]
        axes = normal_axes(integers(value), x.rank, c.error)
        for axis in axes:
            if isinstance(x.shape[axis], int) and x.shape[axis] != 1:
                raise c.error(f"dimension {axis} of {list(x.shape)} is not 1")
    elif x.is_static:
        axes = tuple(k for k, d in enumerate(x.static) if d == 1)
    else:
        return [TensorType(x.dtype, None)]
    return [TensorType(x.dtype, tuple(d for k, d in enumerate(x.shape) if k not in axes))]


reshaping("Squeeze", _squeeze_infer, "data, axes:int[_]|[]?", "reshapes slices", shape_inputs=(1,))


def _unsqueeze_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(1)
    if value is None:
        count = length_of(c, 1)
        rank = None if count is None or x.shape is None else len(x.shape) + count
        return [TensorType(x.dtype, unknown_shape(rank, "unsqueeze"))]
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    given = integers(value)
    rank = len(x.shape) + len(given)
    axes = normal_axes(given, rank, c.error)
    old = iter(x.shape)
    return [TensorType(x.dtype, tuple(1 if k in axes else next(old) for k in range(rank)))]


reshaping("Unsqueeze", _unsqueeze_infer, "data, axes:int[_]|[]", "reshapes slices", shape_inputs=(1,))


# ------------------------------------------------------------------------------------------------------ Transpose


def _order(c: Use, rank: int) -> tuple[int, ...]:
    given = c.get("perm")
    if given is None:
        return tuple(range(rank))[::-1]
    order = tuple(int(p) for p in given)
    if sorted(order) != list(range(rank)):
        raise c.error(f"perm {list(order)} does not name each of the {rank} dimensions once")
    return order


def _transpose_infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    if x.shape is None:
        given = c.get("perm")
        return [TensorType(x.dtype, unknown_shape(None if given is None else len(given), "transpose"))]
    return [TensorType(x.dtype, tuple(x.shape[p] for p in _order(c, x.rank)))]


def _transpose_compute(c: Compute, x: te.Tensor) -> Any:
    order = _order(c, x.ndim)

    def read(*indices: Any) -> Any:
        at: list[Any] = [0] * len(order)
        for index, dim in zip(indices, order):
            at[dim] = index
        return x[tuple(at)]

    return te.compute(c.out_dims(), read, name="transpose")


register(
    "Transpose",
    _transpose_infer,
    lambda c, x: np.array(x.transpose(_order(c, x.ndim)), order="C"),
    _transpose_compute,
    "injective",
    takes="data",
    traits="moves speculatable",
)


# --------------------------------------------------------------------------------------------------- Expand, Tile


def _expand_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(1)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    if value is not None:
        return [TensorType(x.dtype, broadcast([x.shape, tuple(integers(value))], c.error))]
    count = length_of(c, 1)
    return [TensorType(x.dtype, unknown_shape(None if count is None else max(count, len(x.shape)), "expand"))]


def _expand(c: Evaluate, x: Array, shape: Array) -> Array:
    try:
        wanted = np.broadcast_shapes(x.shape, tuple(integers(shape)))
    except ValueError:
        raise c.error(f"shape {list(x.shape)} does not broadcast with {integers(shape)}") from None
    return np.array(np.broadcast_to(x, wanted))


def _expand_compute(c: Compute, x: te.Tensor, shape: Any) -> Any:
    return te.compute(c.out_dims(), lambda *i: te.broadcast_read(x, i, c.out_dims()), name="expand")


register(
    "Expand",
    _expand_infer,
    _expand,
    _expand_compute,
    "injective",
    (1,),
    takes="input, shape:int[_]",
    sizing=(1,),
    traits="slices speculatable grows",
)


def _tile_infer(c: Infer) -> list[Type]:
    x, value = c.tensor(0), c.value(1)
    if x.shape is None or value is None:
        return [TensorType(x.dtype, unknown_shape(length_of(c, 1) if x.shape is None else x.rank, "tile"))]
    repeats = integers(value)
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise c.error(f"repeats {repeats} must give one number, not negative, for each of the {x.rank} dimensions")
    return [TensorType(x.dtype, tuple(times(d, r) for d, r in zip(x.shape, repeats)))]


def _tile(c: Evaluate, x: Array, repeats: Array) -> Array:
    times_each = integers(repeats)
    if len(times_each) != x.ndim:
        raise c.error(f"repeats {times_each} must give one number for each of the {x.ndim} dimensions")
    return np.tile(x, times_each)


def _tile_compute(c: Compute, x: te.Tensor, repeats: Any) -> Any:
    sizes, shape = c.dims(0), c.out_dims()
    return te.compute(
        shape, lambda *i: x[tuple(k if same_dim(n, d) else k % d for k, n, d in zip(i, shape, sizes))], name="tile"
    )


register(
    "Tile", _tile_infer, _tile, _tile_compute, "injective", (1,), takes="input, repeats:int[_]", traits="moves grows"
)


# --------------------------------------------------------------------------------------------------- Shape, Size


def _part(c: Use, rank: int) -> slice:
    """The stretch of the shape that `start` and `end` ask for."""
    return slice(*slice(c.get("start", 0), c.get("end"), 1).indices(rank)[:2])


def _shape_infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    return [TensorType("int64", (unknown_dim("rank"),) if x.shape is None else (len(x.shape[_part(c, x.rank)]),))]


def _shape(c: Evaluate, x: Array) -> Array:
    return np.array(x.shape[_part(c, x.ndim)], np.int64)


def _shape_compute(c: Compute, x: te.Tensor) -> Any:
    dims = c.shape(0)[_part(c, len(c.shape(0)))]
    if not dims:
        return fill((0,), 0, output_type(c))
    return te.compute((len(dims),), lambda i: choose(i, [te.const(d, "int64") for d in dims]), name="shape")


register("Shape", _shape_infer, _shape, _shape_compute, "injective", takes="data", traits="shape_only empties")


register(
    "Size",
    lambda c: [TensorType("int64", ())],
    lambda c, x: np.array(x.size, np.int64),
    lambda c, x: te.compute((), lambda: te.const(int(np.prod(c.shape(0), dtype=np.int64)), "int64"), name="size"),
    "injective",
    takes="data",
    traits="shape_only empties",
)
