"""Formulas that are read twice: with numpy's functions for the meaning of an operator, and with those of expressions.

    softplus(ARRAYS, x)             an array
    softplus(EXPRESSIONS, x)        an expression of one element

Numbers beside a value take its type, in either reading.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import index_expr
from weft.graph.ir import Array

Functions = SimpleNamespace
"""The scalar functions that a formula may use, by the same names of arrays and of expressions."""


def erf(x: Array) -> Array:
    """The error function of an array, exact to its type."""
    made = np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else np.zeros(x.shape)
    return np.asarray(made, x.dtype)


def _index(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return x.astype(np.int64)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), which does not overflow for large negative x."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


ARRAYS = Functions(
    abs=np.abs, all=lambda *tests: functools.reduce(np.logical_and, tests),
    any=lambda *tests: functools.reduce(np.logical_or, tests), clip=np.clip, exp=np.exp, expm1=np.expm1, floor=np.floor,
    fmod=np.fmod, index=_index, isnan=np.isnan, log1p=np.log1p, maximum=np.maximum,
    minimum=np.minimum, normal_cdf=lambda x: 0.5 * (1 + erf(x * math.sqrt(0.5))), round=np.rint, select=np.where,
    sigmoid=sigmoid, tanh=np.tanh,
)  # fmt: skip
EXPRESSIONS = Functions(
    abs=te.abs, all=te.all, any=te.any, clip=te.clip, exp=te.exp, expm1=te.expm1, floor=te.floor, fmod=te.fmod,
    index=lambda x: index_expr(te.cast(x, "int64")), isnan=te.isnan, log1p=te.log1p, maximum=te.maximum,
    minimum=te.minimum, normal_cdf=te.normal_cdf, round=te.round, select=te.select, sigmoid=te.sigmoid, tanh=te.tanh,
)  # fmt: skip


def softplus(m: Functions, x: Any) -> Any:
    """log(1 + exp(x)) without overflow."""
    return m.maximum(x, 0.0) + m.log1p(m.exp(-m.abs(x)))
