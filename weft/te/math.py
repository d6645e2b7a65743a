"""The scalar functions that a tensor expression can call; each takes and gives expressions."""

from __future__ import annotations

from typing import Any, Callable

from weft.core.dtypes import BOOL, DTypeLike, dtype
from weft.core.errors import DTypeError
from weft.expr.intrinsics import FLOAT_UNARY
from weft.expr.nodes import (
    Call,
    Expr,
    as_expr,
    cast as _cast,
    const,
    less_equal,
    match,
    maximum,
    minimum,
    select,
)


def _float_unary(name: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        x = as_expr(x)
        if not x.dtype.is_float:
            raise DTypeError(f"te.{name} needs a float, not {x.dtype}: cast first with .astype('float32')")
        return Call(name, (x,), x.dtype)

    function.__name__ = name
    function.__doc__ = f"{name} of a float expression."
    return function


_made = {name: _float_unary(name) for name in FLOAT_UNARY}
neg, exp, exp2, expm1, log, log2, log10, log1p = (_made[n] for n in "neg exp exp2 expm1 log log2 log10 log1p".split())
sqrt, rsqrt, sigmoid, erf, tanh = (_made[n] for n in "sqrt rsqrt sigmoid erf tanh".split())
sin, cos, tan, asin, acos, atan = (_made[n] for n in "sin cos tan asin acos atan".split())
sinh, cosh, asinh, acosh, atanh = (_made[n] for n in "sinh cosh asinh acosh atanh".split())
floor, ceil, trunc, round, round_away = (_made[n] for n in "floor ceil trunc round round_away".split())


def _float_binary(name: str) -> Callable[[Any, Any], Expr]:
    def function(x: Any, y: Any) -> Expr:
        a, b = match(as_expr(x) if isinstance(y, Expr) is False else x, y, name)
        if not a.dtype.is_float:
            raise DTypeError(f"te.{name} needs floats, not {a.dtype}: cast first with .astype('float32')")
        return Call(name, (a, b), a.dtype)

    function.__name__ = name
    function.__doc__ = f"{name} of two float expressions."
    return function


power, atan2, fmod, copysign = (_float_binary(n) for n in ("pow", "atan2", "fmod", "copysign"))


def _float_test(name: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        x = as_expr(x)
        if not x.dtype.is_float:
            return const(name == "isfinite", BOOL)
        return Call(name, (x,), BOOL.with_lanes(x.dtype.lanes))

    function.__name__ = name
    function.__doc__ = f"Whether a value {name[2:]}s as the name says."
    return function


isnan, isinf, isfinite = (_float_test(n) for n in ("isnan", "isinf", "isfinite"))


def abs(x: Any) -> Expr:
    """The absolute value."""
    x = as_expr(x)
    if x.dtype.kind == "uint":
        return x
    if x.dtype.is_bool:
        raise DTypeError("te.abs of bool is not defined")
    return Call("abs", (x,), x.dtype)


def popcount(x: Any) -> Expr:
    """The number of bits set in an integer."""
    x = as_expr(x)
    if not x.dtype.is_integer:
        raise DTypeError(f"te.popcount needs an integer, not {x.dtype}")
    return Call("popcount", (x,), x.dtype)


def clz(x: Any) -> Expr:
    """The number of leading zero bits of an integer."""
    x = as_expr(x)
    if not x.dtype.is_integer:
        raise DTypeError(f"te.clz needs an integer, not {x.dtype}")
    return Call("clz", (x,), x.dtype)


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c with one rounding."""
    a, b = match(a, b, "fma")
    a, c = match(a, c, "fma")
    a, b = match(a, b, "fma")
    return Call("fma", (a, b, c), a.dtype)


def cast(x: Any, to: DTypeLike) -> Expr:
    """A value converted to another data type."""
    return _cast(as_expr(x), to)


def reinterpret(x: Any, to: DTypeLike) -> Expr:
    """The bits of a value read as another data type of the same width."""
    x, kind = as_expr(x), dtype(to)
    if x.dtype.bits != kind.bits:
        raise DTypeError(f"te.reinterpret from {x.dtype} to {kind}: the widths differ")
    return Call("reinterpret", (x,), kind)


def clip(x: Any, low: Any, high: Any) -> Expr:
    """A value held between two bounds (NaN stays NaN)."""
    return minimum(maximum(x, low), high)


def relu(x: Any) -> Expr:
    """max(x, 0)."""
    x = as_expr(x)
    return maximum(x, const(0, x.dtype))


def sign(x: Any) -> Expr:
    """-1, 0 or 1 by the sign of a value (NaN stays NaN)."""
    x = as_expr(x)
    zero, one = const(0, x.dtype), const(1, x.dtype)
    if x.dtype.kind == "uint":
        return select(less_equal(x, zero), zero, one)
    positive = select(zero < x, one, select(x < zero, const(-1, x.dtype), zero))
    return select(isnan(x), x, positive) if x.dtype.is_float else positive
