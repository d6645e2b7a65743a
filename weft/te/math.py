"""The scalar functions that a tensor expression can call; each takes and gives expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dtypes import BOOL, DTypeLike, dtype
from weft.core.errors import DTypeError
from weft.expr.intrinsics import FLOAT_UNARY
from weft.expr.nodes import Call, Expr, as_expr, const, less_equal, match, maximum, minimum, select
from weft.expr.nodes import cast as _cast
from weft.expr.nodes import power as _power


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
exp, exp2, expm1, log, log2, log10, log1p = (_made[n] for n in "exp exp2 expm1 log log2 log10 log1p".split())
sqrt, rsqrt, sigmoid, erf, normal_cdf, tanh = (_made[n] for n in "sqrt rsqrt sigmoid erf normal_cdf tanh".split())
sin, cos, tan, asin, acos, atan = (_made[n] for n in "sin cos tan asin acos atan".split())
sinh, cosh, asinh, acosh, atanh = (_made[n] for n in "sinh cosh asinh acosh atanh".split())
floor, ceil, trunc, round, round_away = (_made[n] for n in "floor ceil trunc round round_away".split())


def neg(x: Any) -> Expr:
    """-x, of floats and integers (which wrap)."""
    return -as_expr(x)


def _two(x: Any, y: Any, name: str) -> tuple[Expr, Expr]:
    """Both arguments as expressions of one dtype; a Python number takes the dtype of the other side."""
    if not isinstance(x, (int, float)):
        x = as_expr(x)
    if not isinstance(y, (int, float)):
        y = as_expr(y)
    return match(x, y, name)


def _float_binary(name: str) -> Callable[[Any, Any], Expr]:
    def function(x: Any, y: Any) -> Expr:
        a, b = _two(x, y, name)
        if not a.dtype.is_float:
            raise DTypeError(f"te.{name} needs floats, not {a.dtype}: cast first with .astype('float32')")
        return Call(name, (a, b), a.dtype)

    function.__name__ = name
    function.__doc__ = f"{name} of two float expressions."
    return function


atan2, fmod, copysign = (_float_binary(n) for n in ("atan2", "fmod", "copysign"))


def power(x: Any, y: Any) -> Expr:
    """x to the power y, of floats; x ** y is the same."""
    return _power(*_two(x, y, "power"))


def _float_test(name: str, meaning: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        x = as_expr(x)
        if not x.dtype.is_float:
            return const(name == "isfinite", BOOL)
        return Call(name, (x,), BOOL.with_lanes(x.dtype.lanes))

    function.__name__ = name
    function.__doc__ = f"Whether a value is {meaning}; integers are always finite numbers."
    return function


isnan, isinf = _float_test("isnan", "NaN"), _float_test("isinf", "plus or minus infinity")
isfinite = _float_test("isfinite", "neither NaN nor infinite")


def abs(x: Any) -> Expr:
    """The absolute value; of the least signed integer, that integer itself."""
    value = as_expr(x)
    if value.dtype.is_bool or value.dtype.kind == "handle":
        raise DTypeError(f"te.abs of {value.dtype} is not defined")
    return value if value.dtype.kind == "uint" else Call("abs", (value,), value.dtype)


def _integer_unary(name: str, meaning: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        x = as_expr(x)
        if not x.dtype.is_integer:
            raise DTypeError(f"te.{name} needs an integer, not {x.dtype}")
        return Call(name, (x,), x.dtype)

    function.__name__ = name
    function.__doc__ = meaning
    return function


popcount = _integer_unary("popcount", "The number of bits set in an integer.")
clz = _integer_unary("clz", "The number of leading zero bits of an integer.")


def fma(a: Any, b: Any, c: Any) -> Expr:
    """a * b + c of floats, with one rounding."""
    a, b = _two(a, b, "fma")
    a, c = _two(a, c, "fma")
    a, b = _two(a, b, "fma")
    if not a.dtype.is_float:
        raise DTypeError(f"te.fma needs floats, not {a.dtype}: integers multiply and add exactly with * and +")
    return Call("fma", (a, b, c), a.dtype)


def cast(x: Any, to: DTypeLike) -> Expr:
    """A value converted to another data type; floats to integers round to zero and saturate, NaN gives 0."""
    kind = dtype(to)
    if isinstance(x, (int, float)) and not isinstance(x, bool) and kind.is_float:
        return const(x, kind)
    return _cast(as_expr(x), kind)


def reinterpret(x: Any, to: DTypeLike) -> Expr:
    """The bits of a value read as another data type of the same width."""
    x, kind = as_expr(x), dtype(to)
    if x.dtype.bits != kind.bits or kind.is_bool or x.dtype.is_bool or "handle" in (kind.kind, x.dtype.kind):
        raise DTypeError(f"te.reinterpret from {x.dtype} to {kind}: both must be numbers of one width")
    return Call("reinterpret", (x,), kind)


def clip(x: Any, low: Any, high: Any) -> Expr:
    """A value held between two bounds (NaN stays NaN)."""
    x = as_expr(x)
    return minimum(maximum(x, low), high)


def relu(x: Any) -> Expr:
    """max(x, 0)."""
    x = as_expr(x)
    return maximum(x, const(0, x.dtype))


def sign(x: Any) -> Expr:
    """-1, 0 or 1 by the sign of a value (NaN stays NaN)."""
    x = as_expr(x)
    if x.dtype.is_bool:
        raise DTypeError("te.sign of bool is not defined")
    zero, one = const(0, x.dtype), const(1, x.dtype)
    if x.dtype.kind == "uint":
        return select(less_equal(x, zero), zero, one)
    positive = select(zero < x, one, select(x < zero, const(-1, x.dtype), zero))
    return select(isnan(x), x, positive) if x.dtype.is_float else positive


def condition(value: Any, what: str) -> Any:
    """A condition as it was given; a Python bool is refused, because it mostly comes from `==`."""
    if isinstance(value, (bool, np.bool_)):
        raise DTypeError(
            f"{what} got the Python value {value} for a condition: == compares objects, so write te.equal(a, b) "
            "or te.not_equal(a, b)"
        )
    return value


def if_then_else(test: Any, then: Any, otherwise: Any) -> Expr:
    """`then` where the test holds, else `otherwise`; what the other arm would load is not loaded."""
    return select(condition(test, "te.if_then_else"), then, otherwise)
