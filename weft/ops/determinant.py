"""Det: the determinant of square matrices; compiled for the small ones, where it is a closed formula."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.core.dtypes import dtype
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, register
from weft.ops.movement_indices import kernels_know, output_type

LARGEST_FORMULA = 3


def _infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    if x.rank < 2 or (all(isinstance(d, int) for d in x.shape[-2:]) and x.shape[-1] != x.shape[-2]):
        raise c.error(f"square matrices are needed, not {x!r}")
    return [TensorType(x.dtype, x.shape[:-2])]


def _evaluate(c: Evaluate, x: Array) -> Array:
    wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
    return np.asarray(np.linalg.det(wide)).astype(x.dtype)


def _compute(c: Compute, x: te.Tensor) -> Any:
    size = c.shape(0)[-1]
    if not kernels_know(c) or not 1 <= size <= LARGEST_FORMULA:
        return None
    kind = output_type(c)
    wide = dtype("float32") if kind.bits < 32 else kind

    def minor(at: tuple[Any, ...], rows: tuple[int, ...], columns: tuple[int, ...]) -> Expr:
        first = [x[(*at, rows[0], column)].astype(wide) for column in columns]
        if len(rows) == 1:
            return first[0]
        terms = [e * minor(at, rows[1:], columns[:k] + columns[k + 1 :]) for k, e in enumerate(first)]
        total = terms[0]
        for position, term in enumerate(terms[1:]):
            total = total + term if position % 2 else total - term
        return total

    every = tuple(range(size))
    return te.compute(c.out_shape(), lambda *i: minor(i, every, every).astype(kind), name="determinant")


register(OpSpec("Det", _infer, _evaluate, _compute, "injective", takes="X:float[*b n n]"))
