"""Rules for values rather than indices: integers that wrap, floats, bools, and conversions of literals.

In: the sides of a node, already simplified. Out: what the node can be replaced by, or None. A rule for integers holds
for numbers that wrap at their width; a rule for floats keeps the value to the bit (so `x * 0.0`, `x + 0.0` and `x - x`
stay). `WRAPPING` and `FLOAT` are the tables; their rules get the prover for the intervals of the sides.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from weft.core.dtypes import BFLOAT16, FLOAT64, DType
from weft.expr.intrinsics import is_pure
from weft.expr.nodes import (
    EQ,
    FALSE,
    NE,
    TRUE,
    Add,
    Broadcast,
    Call,
    Cast,
    Const,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Sub,
    TruncDiv,
    TruncMod,
    add,
    const,
    logical_not,
    mul,
    wrap,
)
from weft.expr.proof import Prover
from weft.expr.structural import structural_key
from weft.expr.visit import walk

Rule = Callable[[Prover, Any, Any], Any]


def same_value(a: Expr, b: Expr) -> bool:
    """Whether two expressions are built the same and have no effects, so that one evaluation stands for both."""
    if a is not b and (type(a) is not type(b) or a.dtype is not b.dtype or structural_key(a) != structural_key(b)):
        return False
    return all(is_pure(node.name) for node in walk(a, Call))  # type: ignore[attr-defined]


def compare_bools(kind: type[Expr], a: Expr, b: Expr, new: Expr) -> Expr:
    """A comparison of bools; `new` where there is nothing to do."""
    if type(a) is Const and type(b) is Const and kind in (EQ, NE):
        return TRUE if (a.value == b.value) == (kind is EQ) else FALSE
    if type(b) is Const and kind in (EQ, NE):
        return a if b.value == (kind is EQ) else logical_not(a)
    return new


def zero_divisor(kind: type[Expr], b: Expr) -> bool:
    """Whether this is a division by the literal 0, which no constructor folds."""
    return kind in _DIVISIONS and type(b) is Const and b.value == 0


_DIVISIONS = frozenset((FloorDiv, FloorMod, TruncDiv, TruncMod))


def _holds(source: DType, middle: DType) -> bool:
    """Whether every value of one type is a value of the other."""
    if source is middle:
        return True
    if source.is_bool:
        return middle.is_integer or middle.is_float
    if source.is_integer and middle.is_integer:
        return bool(middle.min <= source.min and source.max <= middle.max)
    if source.is_float and middle.is_float:
        return middle.bits > source.bits
    exact = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}.get(middle.name)
    return source.is_integer and exact is not None and source.bits <= exact


def skips(source: DType, middle: DType, to: DType) -> bool:
    """Whether source -> middle -> to is the same as source -> to."""
    if not _holds(source, middle):
        return False
    if source is to or source.is_bool:
        return True
    # Integers wrap but floats saturate, so a detour through a float may only be dropped when nothing is out of range.
    return source.is_float == middle.is_float or _holds(source, to)


def convert_literal(value: Const, to: DType) -> Expr:
    """A literal converted as `Cast` says."""
    number = float(value.dtype.numpy.type(value.value)) if value.dtype.is_float else value.value
    if to.is_bool:
        return TRUE if number != 0 else FALSE
    if to.is_integer:
        if not value.dtype.is_float:
            return Const(wrap(int(number), to), to)
        if number != number:
            return Const(0, to)
        return Const(
            int(min(max(number, to.min), to.max)) if isfinite(number) else to.max if number > 0 else to.min, to
        )
    if not to.is_float:
        return Cast(to, value)
    # Where numpy might round twice on the way to a narrow float, the literal stays as it is.
    if value.dtype is FLOAT64 and to is BFLOAT16 or not value.dtype.is_float and abs(number) > 1 << 24:
        return Cast(to, value)
    with np.errstate(all="ignore"):
        made = float(np.float64(number).astype(to.numpy))
    return Const(made, to) if isfinite(made) else Cast(to, value)


# ----------------------------------------------------------------- rules for integers that wrap: (simplifier, a, b)


def _is(e: Expr, number: int) -> bool:
    if type(e) is Broadcast:
        e = e.value
    return type(e) is Const and bool(e.value == number)


def _offset(e: Expr, by: int) -> Expr:
    return add(e, Const(wrap(by, e.dtype), e.dtype))


def _wrapping_add(self: Prover, a: Any, b: Any) -> Any:
    if _is(b, 0):
        return a
    if _is(a, 0):
        return b
    if type(b) is Const and type(a) in (Add, Sub) and type(a.b) is Const:
        offset = a.b.value if type(a) is Add else -a.b.value
        return _offset(a.a, offset + b.value)
    return None


def _wrapping_sub(self: Prover, a: Any, b: Any) -> Any:
    if _is(b, 0):
        return a
    if same_value(a, b):
        return const(0, a.dtype)
    if type(b) is Const and type(a) in (Add, Sub) and type(a.b) is Const:
        offset = a.b.value if type(a) is Add else -a.b.value
        return _offset(a.a, offset - b.value)
    return None


def _wrapping_mul(self: Prover, a: Any, b: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        if _is(one, 1):
            return other
        if _is(one, 0):
            return one
    if type(b) is Const and type(a) is Mul and type(a.b) is Const:
        return mul(a.a, Const(wrap(a.b.value * b.value, b.dtype), b.dtype))
    return None


def _wrapping_divide(self: Prover, a: Any, b: Any) -> Any:
    if _is(b, 1):
        return a
    low, high = self.any_interval(a)
    least = self.any_interval(b)[0]
    if low is not None and high is not None and least is not None and 0 <= low <= high < least:
        return const(0, a.dtype)
    return None


def _wrapping_remainder(self: Prover, a: Any, b: Any) -> Any:
    if _is(b, 1):
        return const(0, a.dtype)
    low, high = self.any_interval(a)
    least = self.any_interval(b)[0]
    if low is not None and high is not None and least is not None and 0 <= low <= high < least:
        return a
    return None


def _wrapping_extremum(kind: type[Expr]) -> Rule:
    def rule(self: Prover, a: Any, b: Any) -> Any:
        if same_value(a, b):
            return a
        (low, high), (least, most) = self.any_interval(a), self.any_interval(b)
        if high is not None and least is not None and high <= least:
            return a if kind is Min else b
        if low is not None and most is not None and most <= low:
            return b if kind is Min else a
        return None

    return rule


WRAPPING: dict[type[Expr], Rule] = {
    Add: _wrapping_add, Sub: _wrapping_sub, Mul: _wrapping_mul, FloorDiv: _wrapping_divide,
    FloorMod: _wrapping_remainder, TruncDiv: _wrapping_divide, TruncMod: _wrapping_remainder,
    Min: _wrapping_extremum(Min), Max: _wrapping_extremum(Max),
}  # fmt: skip


# ------------------------------------------------------------------------------- rules for floats: exact to the bit


def _float_fold(operate: Callable[[Any, Any], Any]) -> Rule:
    def rule(self: Prover, a: Any, b: Any) -> Any:
        if type(a) is not Const or type(b) is not Const:
            return None
        numpy_type = a.dtype.numpy.type
        with np.errstate(all="ignore"):
            made = float(operate(numpy_type(a.value), numpy_type(b.value)))
        return Const(made, a.dtype) if isfinite(made) else None

    return rule


def _float_mul(self: Prover, a: Any, b: Any) -> Any:
    if _is(b, 1):
        return a
    return b if _is(a, 1) else _FOLD_MUL(self, a, b)


def _float_div(self: Prover, a: Any, b: Any) -> Any:
    return a if _is(b, 1) else _FOLD_DIV(self, a, b)


def _float_extremum(self: Prover, a: Any, b: Any) -> Any:
    return a if same_value(a, b) else None


_FOLD_MUL, _FOLD_DIV = _float_fold(lambda a, b: a * b), _float_fold(lambda a, b: a / b)
FLOAT: dict[type[Expr], Rule] = {
    Add: _float_fold(lambda a, b: a + b), Sub: _float_fold(lambda a, b: a - b), Mul: _float_mul, Div: _float_div,
    Min: _float_extremum, Max: _float_extremum,
}  # fmt: skip
