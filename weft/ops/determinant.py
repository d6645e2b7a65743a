"""Det: the determinant of square matrices; compiled for the small ones, where it is a closed formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.core.dtypes import dtype
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Node, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, register
from weft.ops.movement_indices import output_type

LARGEST_FORMULA = 3


def _infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    return [TensorType(x.dtype, None if x.shape is None else x.shape[:-2])]


def _formula(first: Callable[[int, int], Any], rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
    """The determinant of some rows and columns, of arrays as of expressions: a sum of products, without division."""
    if len(rows) == 1:
        return first(rows[0], columns[0])
    total = None
    for position, column in enumerate(columns):
        others = columns[:position] + columns[position + 1 :]
        term = first(rows[0], column) * _formula(first, rows[1:], others)
        total = term if total is None else total - term if position % 2 else total + term
    return total


def _evaluate(c: Evaluate, x: Array) -> Array:
    # Sums of products of float32 need more than its range on the way.
    wide: Any = x.astype(np.float64 if x.dtype.itemsize >= 4 else np.float32)
    size = x.shape[-1]
    if not 1 <= size <= LARGEST_FORMULA:
        return np.asarray(np.linalg.det(wide)).astype(x.dtype)
    every = tuple(range(size))
    return np.asarray(_formula(lambda row, column: wide[..., row, column], every, every)).astype(x.dtype)


def _compute(c: Compute, x: te.Tensor) -> Any:
    size = c.shape(0)[-1]
    if not 1 <= size <= LARGEST_FORMULA:
        return None
    kind = output_type(c)
    wide, every = dtype("float32" if kind.bits < 32 else "float64"), tuple(range(size))

    def body(*at: Any) -> Expr:
        made: Expr = _formula(lambda row, column: x[(*at, row, column)].astype(wide), every, every)
        return made.astype(kind)

    return te.compute(c.out_shape(), body, name="determinant")


def _steps(node: Node, arrays: Sequence[Array | None]) -> int:
    return sum(array.size * array.shape[-1] for array in arrays if array is not None and array.ndim)


register("Det", _infer, _evaluate, _compute, "injective", takes="X:float[*b n n]", steps=_steps)
