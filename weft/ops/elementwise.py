"""Elementwise arithmetic: Abs to Where, with numpy's broadcasting, and the variadic Max, Min, Mean and Sum."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import broadcast
from weft.ops.casts import float_to_integer
from weft.ops.elementwise_support import elementwise, expect_one_element, infer_same, number, read, wide
from weft.ops.formulas import erf

# ------------------------------------------------------------------------------------------------------- one input


_UNARY_FLOAT: dict[str, tuple[Callable[..., Any], Callable[[Any], Expr]]] = {
    "Acos": (np.arccos, te.acos), "Acosh": (np.arccosh, te.acosh), "Asin": (np.arcsin, te.asin),
    "Asinh": (np.arcsinh, te.asinh), "Atan": (np.arctan, te.atan), "Atanh": (np.arctanh, te.atanh),
    "Cos": (np.cos, te.cos), "Cosh": (np.cosh, te.cosh), "Exp": (np.exp, te.exp), "Log": (np.log, te.log),
    "Sin": (np.sin, te.sin),
    "Sinh": (np.sinh, te.sinh), "Sqrt": (np.sqrt, te.sqrt), "Tan": (np.tan, te.tan), "Tanh": (np.tanh, te.tanh),
}  # fmt: skip


def _register_unary(
    name: str, meaning: Callable[..., Any], expression: Callable[[Any], Expr], types: str, traits: str
) -> None:
    elementwise(name, lambda c, x: meaning(x), lambda c, x: expression(x), infer_same, types, traits=traits)


for _name, (_meaning, _expression) in _UNARY_FLOAT.items():
    _register_unary(_name, _meaning, _expression, "float", "transcendental")
_register_unary("Ceil", np.ceil, te.ceil, "float", "cheap")
_register_unary("Floor", np.floor, te.floor, "float", "cheap")
_register_unary("Round", np.rint, te.round, "float", "")
_register_unary("Abs", np.abs, te.abs, "number", "cheap")
_register_unary("Neg", np.negative, te.neg, "float|signed", "cheap")
_register_unary("Sign", np.sign, te.sign, "number", "cheap")
_register_unary("Reciprocal", lambda x: 1 / x, lambda x: 1 / x, "float", "transcendental")


def _erf_expression(x: Expr) -> Expr:
    return te.erf(x) if x.dtype.is_float else te.erf(x.astype("float64"))


_register_unary("Erf", erf, _erf_expression, "number", "transcendental")


# ------------------------------------------------------------------------------------------------------ two inputs


def _divide(c: Use, a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    safe = np.where(b == 0, np.ones_like(b), b)  # a zero divisor gives 0, as in the compiled form
    quotient = a // safe
    low = (quotient < 0) & (quotient * safe != a)
    return np.asarray(np.where(b == 0, np.zeros_like(a), quotient + low.astype(a.dtype)))


def _divide_expression(c: Use, a: Expr, b: Expr) -> Expr:
    return a / b if a.dtype.is_float else te.truncdiv(a, b)


def _modulo(c: Use, a: Array, b: Array) -> Array:
    rest = np.fmod if c.get("fmod", 0) else np.mod
    if a.dtype.kind not in "iu":
        return np.asarray(rest(a, b))
    made = rest(a, np.where(b == 0, np.ones_like(b), b))
    return np.asarray(np.where(b == 0, np.zeros_like(a), made))


def _modulo_expression(c: Use, a: Expr, b: Expr) -> Expr:
    return te.truncmod(a, b) if c.get("fmod", 0) else a % b


elementwise("Add", lambda c, a, b: a + b, lambda c, a, b: a + b, types="number", traits="cheap commutes")
elementwise("Sub", lambda c, a, b: a - b, lambda c, a, b: a - b, types="number", traits="cheap")
elementwise("Mul", lambda c, a, b: a * b, lambda c, a, b: a * b, types="number", traits="cheap commutes")
elementwise("Div", _divide, _divide_expression, types="number", traits="traps")
elementwise("Mod", _modulo, _modulo_expression, types="number", traits="traps")


# ------------------------------------------------------------------------------------------------------------- Pow


def _infer_pow(c: Infer) -> list[Type]:
    x, y = c.tensor(0), c.tensor(1)
    return [TensorType(x.dtype, broadcast([x.shape, y.shape], c.error))]


def _integer_power(x: Array, y: Array) -> Array:
    """x to the y in wrapping integers; a negative power is 0 but of 1 and -1."""
    x, y = np.broadcast_arrays(x, y)
    result, base, rest = np.ones_like(x), x.copy(), np.where(y < 0, 0, y).astype(np.uint64)
    while rest.any():
        result = np.where(rest & np.uint64(1), result * base, result)
        base, rest = base * base, rest >> np.uint64(1)
    odd = (y.astype(np.int64) & 1).astype(bool)
    inverse = np.where(x == 1, 1, np.where(x == -1, np.where(odd, -1, 1), 0)).astype(x.dtype)
    return np.where(y < 0, inverse, result)


def _power(c: Evaluate, x: Array, y: Array) -> Array:
    kind = x.dtype
    x, y = wide(x), wide(y)
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        return np.asarray(_integer_power(x, y), kind)
    if x.dtype.kind in "iu":
        x = x.astype(np.float64)
    made = np.asarray(np.power(x, y.astype(x.dtype)))
    return float_to_integer(made, str(kind)) if kind.kind in "iu" else made.astype(kind)


def _multiplied(x: Expr, exponent: int) -> Expr:
    """x times itself, by squaring: integers wrap as they should."""
    if exponent == 1:
        return x
    half = _multiplied(x, exponent // 2)
    return half * half * x if exponent % 2 else half * half


def _power_expression(x: Expr, y: Expr, exponent: float | None) -> Expr:
    exact = x.dtype.is_float or y.dtype.is_integer  # an integer to a float is a float, made an integer again
    if exact and exponent is not None and exponent in range(1, 4 if x.dtype.is_float else 9):
        return _multiplied(x, int(exponent))
    if exponent == 0.5 and x.dtype.is_float:
        return te.sqrt(x)
    if x.dtype.is_float:
        return te.power(x, y.astype(x.dtype))
    return te.power(x.astype("float64"), y.astype("float64"))


def _compute_power(c: Compute, x: te.Tensor, y: te.Tensor) -> te.Tensor | None:
    value = c.value(1)
    exponent = float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None
    small = exponent is not None and exponent in range(1, 9)
    if x.dtype.is_integer and y.dtype.is_integer and not small:
        return None  # such powers wrap, and float64 does not hold what they wrap from

    def body(*indices: Any) -> Expr:
        return _power_expression(read(x, indices, c.out_dims()), read(y, indices, c.out_dims()), exponent)

    return te.stage(c.out_dims(), body, name="pow", dtype=c.outputs[0].dtype)


register(
    "Pow", _infer_pow, _power, _compute_power, "elementwise", takes="X:number, Y:number", traits="transcendental traps"
)


# -------------------------------------------------------------------------------------------------------- variadic


def _fold(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda c, *values: functools.reduce(function, values)


def _mean(c: Use, *values: Any) -> Any:
    return functools.reduce(lambda a, b: a + b, values) / len(values)


elementwise("Max", _fold(np.maximum), _fold(te.maximum), types="number", traits="cheap")
elementwise("Min", _fold(np.minimum), _fold(te.minimum), types="number", traits="cheap")
elementwise("Sum", _fold(np.add), _fold(lambda a, b: a + b), types="float")
elementwise("Mean", _mean, _mean, types="float")


# ---------------------------------------------------------------------------------------------------- Clip, Where


def _infer_clip(c: Infer) -> list[Type]:
    for position in (1, 2):
        if c.has(position):
            expect_one_element(c, position)
    return [c.tensor(0)]


def _clip(c: Evaluate, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    result = x
    if low is not None:
        result = np.maximum(result, low.reshape(()))
    if high is not None:
        result = np.minimum(result, high.reshape(()))
    return np.asarray(result, x.dtype)


def _compute_clip(c: Compute, x: te.Tensor, low: te.Tensor | None = None, high: te.Tensor | None = None) -> te.Tensor:
    def body(*indices: Any) -> Expr:
        value = read(x, indices, c.out_dims())
        if low is not None:
            value = te.maximum(value, number(c, 1, low))
        if high is not None:
            value = te.minimum(value, number(c, 2, high))
        return value

    return te.stage(c.out_dims(), body, name="clip", dtype=c.outputs[0].dtype)


register(
    "Clip",
    _infer_clip,
    _clip,
    _compute_clip,
    "elementwise",
    takes="input:number, min:input?, max:input?",
    traits="cheap",
)


def _infer_where(c: Infer) -> list[Type]:
    return [TensorType(c.tensor(1).dtype, broadcast([c.tensor(i).shape for i in range(3)], c.error))]


def _where(c: Evaluate, condition: Array, x: Array, y: Array) -> Array:
    return np.asarray(np.where(condition, x, y), x.dtype)


def _compute_where(c: Compute, condition: te.Tensor, x: te.Tensor, y: te.Tensor) -> te.Tensor:
    def body(*indices: Any) -> Expr:
        chosen, then, otherwise = (te.broadcast_read(t, indices, c.out_dims()) for t in (condition, x, y))
        return te.select(chosen, then, otherwise)

    return te.stage(c.out_dims(), body, name="where")


register("Where", _infer_where, _where, _compute_where, "elementwise", takes="condition:bool, X, Y:X", traits="cheap")


# --------------------------------------------------------------------------------------------------------- Identity


def _infer_identity(c: Infer) -> list[Type]:
    kind = c.types[0] if c.types else None
    if kind is None:
        raise c.error("its input is missing")
    return [kind]


def _identity(c: Evaluate, x: Any) -> Any:
    return (x,)


def _compute_identity(c: Compute, x: te.Tensor) -> te.Tensor:
    return te.stage(c.out_dims(), lambda *i: x[i], name="identity")


register(
    "Identity", _infer_identity, _identity, _compute_identity, "elementwise", takes="input?", traits="slices"
)  # without an input: an optional
