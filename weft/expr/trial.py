"""The exact range of an index expression of a few short loops, by trying all their values at once.

In: an index expression and `Ranges`. Out: its least and greatest value, or None where there is too much to try.
Linear proofs (`weft.expr.proof`) lose what two quotients of one variable have in common:

    (i + 1)//2 - (0 - (i + 1) % 2)//2 - 1        i in 0..7        0..3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import BOOL, INDEX
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    And,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    Var,
)
from weft.expr.visit import free_vars, walk

MOST_POINTS = 1 << 16

_BINARY: dict[type[Expr], Callable[..., Any]] = {
    Add: np.add, Sub: np.subtract, Mul: np.multiply, FloorDiv: np.floor_divide, FloorMod: np.mod, Min: np.minimum,
    Max: np.maximum, EQ: np.equal, NE: np.not_equal, LT: np.less, LE: np.less_equal, And: np.logical_and,
    Or: np.logical_or,
}  # fmt: skip


class _Unknown(Exception):
    """An expression that cannot be tried."""


def tried_interval(e: Expr, ranges: Ranges) -> tuple[int, int] | None:
    """The least and greatest value of an expression where what is known holds; None: not found out."""
    variables = dict.fromkeys(free_vars(e))
    shared = (fact for fact in ranges.facts if not variables.keys().isdisjoint(free_vars(fact)))
    facts = [fact for fact in shared if not walk(fact, Load)]
    for fact in facts:
        variables.update(dict.fromkeys(free_vars(fact)))
    grid: dict[Var, Any] = {}
    points = 1
    for axis, var in enumerate(variables):
        entry = ranges.table.get(var)
        if entry is None or entry[2] is None or entry[3] is None:
            return None
        low, high = entry[2], entry[3]
        points *= max(high - low + 1, 0)
        if not 0 < points <= MOST_POINTS:
            return None
        grid[var] = np.arange(low, high + 1).reshape([-1 if k == axis else 1 for k in range(len(variables))])
    try:
        values = np.asarray(_value(e, grid))
        known = [_value(fact, grid) >= 0 for fact in facts]
    except _Unknown:
        return None
    if known:
        values, *tests = np.broadcast_arrays(values, *known)
        values = values[np.logical_and.reduce(tests)]
    return (int(values.min()), int(values.max())) if values.size else None


def _value(e: Any, grid: Mapping[Var, Any]) -> Any:
    kind = type(e)
    if kind is Const and e.dtype is INDEX:
        return np.int64(e.value)
    if kind is Var and e in grid:
        return grid[e]
    if kind in _BINARY and (e.a.dtype is INDEX or e.a.dtype is BOOL):
        a, b = _value(e.a, grid), _value(e.b, grid)
        if kind in (FloorDiv, FloorMod) and not np.all(b):
            raise _Unknown
        return _BINARY[kind](a, b)
    if kind is Select and e.dtype is INDEX:
        return np.where(_value(e.condition, grid), _value(e.then, grid), _value(e.otherwise, grid))
    if kind is Not:
        return np.logical_not(_value(e.a, grid))
    raise _Unknown
