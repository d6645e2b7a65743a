"""The Reduce operators, ArgMax and ArgMin.

A reduction maps the elements, combines them over axes, and finishes: ReduceL2 squares, sums and takes the root. Its
axes are an input whose value decides the shape. Narrow floats accumulate in float32; integers wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import Shape, normal_axes, normal_axis, product, unknown_dim
from weft.graph.signature import OneOf
from weft.ops.elementwise_support import wide
from weft.ops.reductions_support import best_index, count_of, mean_array, reduce_axes, share_of

SUMMABLE = "float|int32|int64|uint32|uint64"
_KEEPDIMS = OneOf("keepdims", (0, 1))
"""ONNX gives no other number a meaning, and runtimes take them for yes or for no."""


def _axes(c: Use, given: Array | None, rank: int) -> tuple[int, ...]:
    if given is None or given.size == 0:
        return () if c.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return normal_axes(given.reshape(-1).tolist(), rank, c.error)


def reduced_shape(shape: Shape, axes: Sequence[int], keep: bool) -> Shape:
    """A shape with axes reduced: to 1, or away."""
    return tuple(1 if d in axes else s for d, s in enumerate(shape) if keep or d not in axes)


def _infer(c: Infer) -> Sequence[Type]:
    kind, keep = c.tensor(0), bool(c.get("keepdims", 1))
    if kind.shape is None:
        return [TensorType(kind.dtype, None)]
    if c.has(1) and c.value(1) is None:
        return [TensorType(kind.dtype, _unknown_axes(c, kind, keep))]
    return [TensorType(kind.dtype, reduced_shape(kind.dims, _axes(c, c.value(1), kind.rank), keep))]


def _unknown_axes(c: Infer, kind: TensorType, keep: bool) -> Shape | None:
    """The shape when only the run will tell the axes: their number may be known, and decides the rank."""
    count = c.tensor(1).shape
    if keep:
        return tuple(unknown_dim("reduced") for _ in range(kind.rank))
    if count is not None and len(count) == 1 and isinstance(count[0], int) and 0 < count[0] <= kind.rank:
        return tuple(unknown_dim("reduced") for _ in range(kind.rank - count[0]))
    return None


class Reduction(NamedTuple):
    """One Reduce operator: numpy meaning of (array, axes), and the stages of its tensor expression."""

    meaning: Callable[[Array, tuple[int, ...]], Any]
    reducer: Callable[..., Any]
    source: Callable[[Expr], Expr] | None = None
    finish: Callable[[Expr, Dim], Expr] | None = None


def _register(
    name: str, reduction: Reduction, types: str = SUMMABLE, compute: Any = None, traits: str = "speculatable"
) -> None:
    def evaluate(c: Evaluate, x: Array, axes: Array | None = None) -> Array:
        places = _axes(c, axes, x.ndim)
        made = np.asarray(reduction.meaning(wide(x), places)).astype(x.dtype)
        return np.expand_dims(made, places) if c.get("keepdims", 1) else made

    def staged(c: Compute, x: te.Tensor, axes: te.Tensor | None = None) -> Any:
        return _stages(c, x, reduction, name.lower())

    register(
        name,
        _infer,
        evaluate,
        compute or staged,
        "reduction",
        shape_inputs=(1,),
        takes=f"data:{types}, axes:index[_]|[]?",
        requires=(_KEEPDIMS,),
        traits=f"statistic reduces {traits}",
    )


def _stages(c: Compute, x: te.Tensor, reduction: Reduction, name: str) -> te.Tensor:
    axes = _axes(c, c.value(1), len(x.shape))
    count = product([c.dims(0)[a] for a in axes])
    source, finish = reduction.source, reduction.finish
    total = reduce_axes(
        x,
        axes,
        reduction.reducer,
        None if source is None else lambda value, indices: source(value),
        bool(c.get("keepdims", 1)),
        name,
    )
    if finish is None and total.dtype is x.dtype:
        return total
    end = (lambda v: finish(v, count)) if finish else lambda v: v
    return te.stage(total.shape, lambda *i: end(total[i]), name=f"{name}_end", dtype=c.outputs[0].dtype)


# ----------------------------------------------------------------------------------------------- the ten operators


def _extreme(greatest: bool) -> Callable[[Array, tuple[int, ...]], Any]:
    def meaning(x: Array, axes: tuple[int, ...]) -> Any:
        if x.dtype == np.bool_:
            return x.any(axis=axes) if greatest else x.all(axis=axes)
        limits: Any = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
        if greatest:
            return x.max(axis=axes, initial=limits.min if limits else -np.inf)
        return x.min(axis=axes, initial=limits.max if limits else np.inf)

    return meaning


def _compute_extreme(greatest: bool) -> Callable[..., Any]:
    numbers = Reduction(_extreme(greatest), te.max if greatest else te.min)
    truths = Reduction(_extreme(greatest), te.any if greatest else te.all)

    def compute(c: Compute, x: te.Tensor, axes: te.Tensor | None = None) -> te.Tensor:
        return _stages(c, x, truths if x.dtype.is_bool else numbers, "reducemax" if greatest else "reducemin")

    return compute


_BOOL_TOO = f"{SUMMABLE}|uint8|int8|bool"
_register("ReduceMax", Reduction(_extreme(True), te.max), _BOOL_TOO, _compute_extreme(True))
_register("ReduceMin", Reduction(_extreme(False), te.min), _BOOL_TOO, _compute_extreme(False))


def _sum(x: Array, axes: tuple[int, ...]) -> Any:
    return x.sum(axis=axes, dtype=x.dtype)


def _root(x: Expr) -> Expr:
    return te.sqrt(x if x.dtype.is_float else x.astype("float64"))


def _mean(x: Array, axes: tuple[int, ...]) -> Any:
    if x.dtype.kind == "f":
        return mean_array(x, axes)
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    total = x.sum(axis=axes, dtype=x.dtype)
    return np.trunc(total / count) if count else np.zeros_like(total)


_register("ReduceSum", Reduction(_sum, te.sum))
_register("ReduceProd", Reduction(lambda x, axes: x.prod(axis=axes, dtype=x.dtype), te.prod))
_register("ReduceL1", Reduction(lambda x, axes: _sum(np.abs(x), axes), te.sum, te.abs))
_register("ReduceSumSquare", Reduction(lambda x, axes: _sum(x * x, axes), te.sum, lambda v: v * v))
_register(
    "ReduceL2",
    Reduction(lambda x, axes: np.sqrt(_sum(x * x, axes)), te.sum, lambda v: v * v, lambda v, count: _root(v)),
)


def _shared(total: Expr, count: Dim) -> Expr:
    if total.dtype.is_float:
        return total * share_of(count, total.dtype)
    return te.truncdiv(total, count_of(count, total.dtype))


def _log_sum(x: Array, axes: tuple[int, ...]) -> Any:
    return np.log(_sum(x, axes))


_register("ReduceMean", Reduction(_mean, te.sum, None, _shared))
_register("ReduceLogSum", Reduction(_log_sum, te.sum, None, lambda total, count: te.log(total)), "float", traits="")


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Any:
    if not x.size:
        return np.log(_sum(x, axes))
    top = x.max(axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(x - top).sum(axis=axes)) + top.reshape([s for d, s in enumerate(top.shape) if d not in axes])


def _compute_log_sum_exp(c: Compute, x: te.Tensor, axes: te.Tensor | None = None) -> te.Tensor:
    """Shifted by the maximum, so that nothing overflows; an infinite maximum must not become infinity - infinity."""
    places, keep = _axes(c, c.value(1), len(x.shape)), bool(c.get("keepdims", 1))
    greatest = reduce_axes(x, places, te.max, keep=True, name="logsumexp_max")

    def shift(value: Expr) -> Expr:
        return te.select(te.isfinite(value), value, te.const(0, value.dtype))

    top = te.compute(greatest.shape, lambda *i: shift(greatest[i]), name="logsumexp_shift")

    def outer(indices: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(0 if d in places else i for d, i in enumerate(indices))

    total = reduce_axes(x, places, te.sum, lambda v, i: te.exp(v - top[outer(i)]), keep, "logsumexp_sum")
    kept = [d for d in range(len(x.shape)) if keep or d not in places]

    def body(*indices: Any) -> Any:
        at = dict(zip(kept, indices))
        return te.log(total[indices]) + top[tuple(0 if d in places else at[d] for d in range(len(x.shape)))]

    return te.stage(total.shape, body, name="logsumexp", dtype=c.outputs[0].dtype)


_register("ReduceLogSumExp", Reduction(_log_sum_exp, te.sum), "float", _compute_log_sum_exp, "")


# ------------------------------------------------------------------------------------------------- ArgMax, ArgMin


def _infer_arg(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    if kind.shape is None:
        return [TensorType("int64", None)]
    axis = normal_axis(c.get("axis", 0), kind.rank, c.error) if kind.rank else 0
    return [TensorType("int64", reduced_shape(kind.dims, (axis,), bool(c.get("keepdims", 1))))]


def _register_arg(name: str, greatest: bool) -> None:
    def evaluate(c: Evaluate, x: Array) -> Array:
        if not x.ndim:
            return np.zeros((), np.int64)
        axis, x = normal_axis(c.get("axis", 0), x.ndim, c.error), wide(x)
        if x.shape[axis] == 0:
            raise c.error(f"axis {axis} has no elements to choose from")
        last = bool(c.get("select_last_index", 0))
        seen = np.flip(x, axis) if last else x
        found = seen.argmax(axis=axis) if greatest else seen.argmin(axis=axis)
        found = x.shape[axis] - 1 - found if last else found
        return np.asarray(np.expand_dims(found, axis) if c.get("keepdims", 1) else found, np.int64)

    def compute(c: Compute, x: te.Tensor) -> te.Tensor:
        if not len(x.shape):
            return te.stage((), lambda: te.const(0, "int64"), name=name.lower())
        axis = normal_axis(c.get("axis", 0), len(x.shape), c.error)
        last, keep = bool(c.get("select_last_index", 0)), bool(c.get("keepdims", 1))
        return best_index(x, axis, greatest, last, keep, name.lower())

    takes, requires = "data:number", (_KEEPDIMS,)
    register(name, _infer_arg, evaluate, compute, "reduction", takes=takes, requires=requires, traits="statistic")


_register_arg("ArgMax", True)
_register_arg("ArgMin", False)
