"""Scalar and vector expressions: the closed set of node classes, and the operators that build them.

    Expr  := Var(name) | Const(value)
           | Add Sub Mul Div FloorDiv FloorMod TruncDiv TruncMod Min Max (a, b)     both sides of one dtype
           | EQ NE LT LE (a, b) | And Or (a, b) | Not(a)                            bool; a > b is built as LT(b, a)
           | Select(condition, then, otherwise)   lazy: an arm's loads happen only where the condition chooses it
           | Cast(dtype, value) | Call(name, args)
           | Load(buffer, indices) | Address(buffer, indices)
           | Ramp(base, stride, lanes) | Broadcast(value, lanes)

Equality of nodes is identity (`structural_equal` compares by structure). Python's `==` is therefore a plain bool:
write `equal(a, b)` for a comparison in the program. `<`, `<=`, `>`, `>=` and the arithmetic operators build nodes.

`Div` is true division of floats. Integers divide with `//` and `%` (floor) or `truncdiv` and `truncmod` (as C does).
Integer arithmetic wraps. The functions `add`, `mul`, … fold constants; the classes never do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from weft.core.dtypes import BOOL, FLOAT32, FLOAT64, INDEX, DType, DTypeLike, dtype
from weft.core.errors import DTypeError, ExpressionError
from weft.expr.classes import (
    BINARY,
    COMPARE,
    EQ,
    LE,
    LT,
    NE,
    NODES,
    OPERATORS,
    Add,
    Address,
    And,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Div,
    Expr,
    ExprLike,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    index_expr,
)

# ---------------------------------------------------------------------------------------------- making constants


def const(value: Any, to: DTypeLike = INDEX) -> Expr:
    """A literal of the given dtype; a value that does not fit is an error."""
    kind = dtype(to)
    scalar = kind.scalar
    if isinstance(value, np.generic):
        value = value.item() if value.dtype.kind in "biuf" else float(value)
    try:
        if scalar.is_float:
            value = float(value)
        elif scalar.is_bool:
            value = bool(value)
        elif scalar.kind == "handle":
            value = int(value)
        else:
            if isinstance(value, float) and not value.is_integer():
                raise ValueError
            value = int(value)
            if not scalar.min <= value <= scalar.max:
                raise DTypeError(f"the value {value} does not fit {scalar} ({scalar.min} to {scalar.max})")
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, DTypeError):
            raise
        raise DTypeError(f"the value {value!r} is not a {scalar}") from None
    literal = Const(value, scalar)
    return literal if kind.lanes == 1 else Broadcast(literal, kind.lanes)


TRUE, FALSE = Const(True, BOOL), Const(False, BOOL)


def as_expr(value: Any, like: DType | None = None) -> Expr:
    """Any value that can stand in an expression; plain Python numbers take the dtype `like`."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, np.bool_)):
        return const(bool(value), like if like is not None and like.is_bool else BOOL)
    if isinstance(value, (int, np.integer)):
        return const(int(value), like if like is not None and not like.is_bool else INDEX)
    if isinstance(value, (float, np.floating)):
        if like is not None and like.is_float:
            return const(value, like)
        return const(value, FLOAT64 if isinstance(value, np.float64) and like is FLOAT64 else FLOAT32)
    convert = getattr(value, "as_expr", None)  # te.Tensor of rank 0, te.IterVar
    if convert is not None:
        result = convert()
        assert isinstance(result, Expr)
        return result
    raise ExpressionError(f"{value!r} ({type(value).__name__}) cannot stand in an expression")


# ---------------------------------------------------------------------------------------------- matching dtypes


def match(a: Any, b: Any, what: str) -> tuple[Expr, Expr]:
    """Both sides as expressions of one dtype and lane count, by the promotion that loses nothing."""
    if not isinstance(a, Expr):
        a = as_expr(a, b.dtype.scalar if isinstance(b, Expr) else None)
    if not isinstance(b, Expr):
        b = as_expr(b, a.dtype.scalar)
    left, right = a.dtype, b.dtype
    if left is right:
        return a, b
    if left.lanes != right.lanes:
        if left.lanes == 1:
            a = Broadcast(a, right.lanes)
        elif right.lanes == 1:
            b = Broadcast(b, left.lanes)
        else:
            raise DTypeError(f"'{what}' on {left.lanes} and {right.lanes} lanes")
        return match(a, b, what)
    common = promote(left.scalar, right.scalar, what).with_lanes(left.lanes)
    return cast(a, common), cast(b, common)


def promote(a: DType, b: DType, what: str = "an operator") -> DType:
    """The smallest dtype that holds both; mixes that would lose values silently are errors."""
    if a is b:
        return a
    if a.is_float and b.is_float:
        if a.bits == b.bits:
            raise DTypeError(f"'{what}' mixes {a} and {b}: cast one side with .astype(...)")
        return a if a.bits > b.bits else b
    if a.is_float and b.is_integer:
        return a
    if b.is_float and a.is_integer:
        return b
    if a.kind == b.kind and a.is_integer:
        return a if a.bits > b.bits else b
    raise DTypeError(f"'{what}' mixes {a} and {b}: cast one side with .astype(...)")


def cast(value: Expr, to: DTypeLike) -> Expr:
    """A conversion; literals convert at once."""
    kind = dtype(to)
    if kind.lanes == 1 and value.dtype.lanes != 1:
        kind = kind.with_lanes(value.dtype.lanes)
    if value.dtype is kind:
        return value
    if kind.kind == "handle" or value.dtype.kind == "handle":
        raise DTypeError(f"cannot cast {value.dtype} to {kind}")
    if type(value) is Const and kind.lanes == 1:
        if value.dtype.is_integer and kind.is_integer:
            return Const(wrap(value.value, kind), kind)
        if value.dtype.is_integer and kind.is_float and abs(value.value) <= 1 << 10:
            return Const(float(value.value), kind)
    if type(value) is Broadcast:
        return Broadcast(cast(value.value, kind.scalar), kind.lanes)
    return Cast(kind, value)


def wrap(value: int, kind: DType) -> int:
    """An integer reduced to the range of a dtype, as two's complement does."""
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.is_signed and value >> (kind.bits - 1) else value


def _integer(value: Expr, what: str) -> Expr:
    if not value.dtype.is_integer:
        raise DTypeError(f"'{what}' needs integers, not {value.dtype}")
    return value


def _bitwise(name: str, logical: Callable[[Expr, Expr], Expr], a: Expr, other: ExprLike) -> Expr:
    left, right = match(a, other, name)
    if left.dtype.is_bool:
        return logical(left, right)
    return Call(name, (_integer(left, name), right), left.dtype)


# ------------------------------------------------------------------- constructors that fold (sides of one dtype)


def add(a: Expr, b: Expr) -> Expr:
    """a + b."""
    if type(b) is Const and a.dtype.is_integer:
        if type(a) is Const:
            return Const(wrap(a.value + b.value, a.dtype), a.dtype)
        if b.value == 0:
            return a
    elif type(a) is Const and a.value == 0 and a.dtype.is_integer:
        return b
    _arithmetic(a, "+")
    return Add(a, b)


def sub(a: Expr, b: Expr) -> Expr:
    """a - b."""
    if type(b) is Const and a.dtype.is_integer:
        if type(a) is Const:
            return Const(wrap(a.value - b.value, a.dtype), a.dtype)
        if b.value == 0:
            return a
    _arithmetic(a, "-")
    return Sub(a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """a * b."""
    if type(a) is Const and type(b) is not Const and a.dtype.is_integer:
        a, b = b, a
    if type(b) is Const and a.dtype.is_integer:
        if type(a) is Const:
            return Const(wrap(a.value * b.value, a.dtype), a.dtype)
        if b.value == 1:
            return a
        if b.value == 0:
            return b
    _arithmetic(a, "*")
    return Mul(a, b)


def _arithmetic(a: Expr, what: str) -> None:
    if a.dtype.is_bool or a.dtype.kind == "handle":
        raise DTypeError(f"'{what}' is not defined on {a.dtype}: cast with .astype(...)")


def true_divide(a: Any, b: Any) -> Expr:
    """a / b of floats; an integer side takes the float dtype of the other."""
    left, right = match(a, b, "/")
    if not left.dtype.is_float:
        raise DTypeError("'/' on integers is not defined: use // (floor), te.truncdiv, or cast to a float first")
    return Div(left, right)


def power(a: Any, b: Any) -> Expr:
    """a to the power b, of floats."""
    left, right = match(a, b, "power")
    if not left.dtype.is_float:
        raise DTypeError(f"'power' needs floats, not {left.dtype}: multiply, or cast first with .astype('float32')")
    return Mul(left, left) if type(right) is Const and right.value == 2 else Call("pow", (left, right), left.dtype)


def _divisor(b: Expr, what: str) -> None:
    if type(b) is Const and b.value == 0:
        raise ExpressionError(f"'{what}' by zero")


def floordiv(a: Expr, b: Expr) -> Expr:
    """a // b (floats: the floor of the quotient)."""
    if a.dtype.is_float:
        return Call("floor", (Div(a, b),), a.dtype)
    _integer(a, "//")
    _divisor(b, "//")
    if type(b) is Const:
        if type(a) is Const:
            return Const(wrap(a.value // b.value, a.dtype), a.dtype)
        if b.value == 1:
            return a
    return FloorDiv(a, b)


def floormod(a: Expr, b: Expr) -> Expr:
    """a % b, as Python does it (floats too)."""
    if a.dtype.is_float:
        return Call("floor_fmod", (a, b), a.dtype)
    _integer(a, "%")
    _divisor(b, "%")
    if type(b) is Const:
        if type(a) is Const:
            return Const(a.value % b.value, a.dtype)
        if b.value == 1:
            return const(0, a.dtype)
    return FloorMod(a, b)


def truncdiv(a: Any, b: Any) -> Expr:
    """Integer division rounded to zero, as C does it."""
    left, right = match(a, b, "truncdiv")
    _integer(left, "truncdiv")
    _divisor(right, "truncdiv")
    if type(left) is Const and type(right) is Const:
        quotient = abs(left.value) // abs(right.value)
        return Const(wrap(quotient if (left.value < 0) == (right.value < 0) else -quotient, left.dtype), left.dtype)
    return TruncDiv(left, right)


def truncmod(a: Any, b: Any) -> Expr:
    """The remainder that goes with truncdiv; on floats, C's fmod."""
    left, right = match(a, b, "truncmod")
    if left.dtype.is_float:
        return Call("fmod", (left, right), left.dtype)
    _integer(left, "truncmod")
    _divisor(right, "truncmod")
    if type(left) is Const and type(right) is Const:
        rest = abs(left.value) % abs(right.value)
        return Const(rest if left.value >= 0 else -rest, left.dtype)
    return TruncMod(left, right)


def minimum(a: Any, b: Any) -> Expr:
    """The lesser of two values."""
    left, right = match(a, b, "min")
    if left is right:
        return left
    if type(left) is Const and type(right) is Const and left.dtype.is_integer:
        return left if left.value <= right.value else right
    _arithmetic(left, "min")
    return Min(left, right)


def maximum(a: Any, b: Any) -> Expr:
    """The greater of two values."""
    left, right = match(a, b, "max")
    if left is right:
        return left
    if type(left) is Const and type(right) is Const and left.dtype.is_integer:
        return left if left.value >= right.value else right
    _arithmetic(left, "max")
    return Max(left, right)


def equal(a: Any, b: Any) -> Expr:
    """The comparison a == b as an expression."""
    left, right = match(a, b, "equal")
    if type(left) is Const and type(right) is Const and (left.dtype.is_integer or left.dtype.is_bool):
        return TRUE if left.value == right.value else FALSE
    return EQ(left, right)


def not_equal(a: Any, b: Any) -> Expr:
    """The comparison a != b as an expression."""
    left, right = match(a, b, "not_equal")
    if type(left) is Const and type(right) is Const and left.dtype.is_integer:
        return TRUE if left.value != right.value else FALSE
    return NE(left, right)


def less(a: Expr, b: Expr) -> Expr:
    """a < b."""
    if type(a) is Const and type(b) is Const and a.dtype.is_integer:
        return TRUE if a.value < b.value else FALSE
    return LT(a, b)


def less_equal(a: Expr, b: Expr) -> Expr:
    """a <= b."""
    if type(a) is Const and type(b) is Const and a.dtype.is_integer:
        return TRUE if a.value <= b.value else FALSE
    return LE(a, b)


def is_true(a: Expr) -> bool:
    """Whether this is the literal true (in every lane)."""
    if type(a) is Broadcast:
        a = a.value
    return type(a) is Const and a.dtype.is_bool and a.value is True


def is_false(a: Expr) -> bool:
    """Whether this is the literal false (in every lane)."""
    if type(a) is Broadcast:
        a = a.value
    return type(a) is Const and a.dtype.is_bool and a.value is False


def _boolean(value: Any, what: str) -> Expr:
    made = as_expr(value)
    if not made.dtype.is_bool:
        raise DTypeError(f"{what} needs a bool, not {made.dtype}: compare first, for instance te.not_equal(x, 0)")
    return made


def logical_and(*terms: Any) -> Expr:
    """All of the terms hold; of nothing: true."""
    result: Expr = TRUE
    for term in terms:
        term = _boolean(term, "and")
        if is_true(result) or is_false(term):
            result = term
        elif not is_true(term) and not is_false(result):
            left, right = match(result, term, "and")
            result = And(left, right)
    return result


def logical_or(*terms: Any) -> Expr:
    """At least one of the terms holds; of nothing: false."""
    result: Expr = FALSE
    for term in terms:
        term = _boolean(term, "or")
        if is_false(result) or is_true(term):
            result = term
        elif not is_false(term) and not is_true(result):
            left, right = match(result, term, "or")
            result = Or(left, right)
    return result


def logical_not(a: Any) -> Expr:
    """The opposite of a bool; comparisons of integers turn round."""
    made = _boolean(a, "not")
    if type(made) is Const:
        return FALSE if made.value else TRUE
    if type(made) is Not:
        return made.a
    if type(made) is EQ:
        return NE(made.a, made.b)
    if type(made) is NE:
        return EQ(made.a, made.b)
    if type(made) is LT and not made.a.dtype.is_float:
        return LE(made.b, made.a)
    if type(made) is LE and not made.a.dtype.is_float:
        return LT(made.b, made.a)
    return Not(made)


def select(condition: Any, then: Any, otherwise: Any) -> Expr:
    """`then` where the condition holds, else `otherwise`; the loads of the other arm never happen."""
    condition = _boolean(condition, "select")
    if is_true(condition) and isinstance(then, Expr) and isinstance(otherwise, Expr) and then.dtype is otherwise.dtype:
        return then
    if is_false(condition) and isinstance(then, Expr) and isinstance(otherwise, Expr) and then.dtype is otherwise.dtype:
        return otherwise
    then, otherwise = match(then, otherwise, "select")
    if condition.dtype.lanes != then.dtype.lanes:
        if condition.dtype.lanes == 1:
            condition = Broadcast(condition, then.dtype.lanes)
        else:
            then, otherwise = Broadcast(then, condition.dtype.lanes), Broadcast(otherwise, condition.dtype.lanes)
    return Select(condition, then, otherwise)


def broadcast(value: Expr, lanes: int) -> Expr:
    """A scalar in every lane; a vector of that many lanes stays as it is."""
    return value if value.dtype.lanes == lanes else Broadcast(value, lanes)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """a / b rounded up, for index arithmetic."""
    size, step = index_expr(a), index_expr(b)
    return floordiv(sub(add(size, step), index_expr(1)), step)


def int_value(value: ExprLike) -> int | None:
    """The integer that a literal holds, or None when it is not a literal."""
    if type(value) is Const and not value.dtype.is_float:
        return int(value.value)
    return value if isinstance(value, int) else None


def product(values: Iterable[ExprLike]) -> Expr:
    """The product of sizes."""
    result = index_expr(1)
    for value in values:
        result = mul(result, index_expr(value))
    return result


def elements(buffer: Buffer) -> Expr:
    """How many elements a buffer spans, the gaps that its strides leave included."""
    if buffer.strides is None:
        return product(buffer.shape)
    last = index_expr(0)
    for extent, stride in zip(buffer.shape, buffer.strides):
        last = last + (extent - 1) * stride
    return maximum(last + 1, index_expr(0))


FOLD: dict[type[Expr], Callable[[Expr, Expr], Expr]] = {
    Add: add, Sub: sub, Mul: mul, Div: Div, FloorDiv: floordiv, FloorMod: floormod, TruncDiv: truncdiv,
    TruncMod: truncmod, Min: minimum, Max: maximum, EQ: equal, NE: not_equal, LT: less, LE: less_equal,
    And: logical_and, Or: logical_or,
}  # fmt: skip
"""The folding constructor of each two-sided node."""


# ------------------------------------------------------------------------------------------- what the operators build


def _negate(a: Expr) -> Expr:
    if type(a) is Const and a.dtype.is_float:
        return Const(-a.value, a.dtype)
    return Call("neg", (a,), a.dtype) if a.dtype.is_float else sub(const(0, a.dtype), a)


def _invert(a: Expr) -> Expr:
    return logical_not(a) if a.dtype.is_bool else Call("bit_not", (_integer(a, "~"),), a.dtype)


def _shift(name: str, what: str, a: ExprLike, b: ExprLike) -> Expr:
    left, right = match(a, b, what)
    return Call(name, (_integer(left, what), right), left.dtype)


OPERATORS.update(
    add=lambda a, b: add(*match(a, b, "+")),
    sub=lambda a, b: sub(*match(a, b, "-")),
    mul=lambda a, b: mul(*match(a, b, "*")),
    truediv=true_divide,
    floordiv=lambda a, b: floordiv(*match(a, b, "//")),
    mod=lambda a, b: floormod(*match(a, b, "%")),
    lt=lambda a, b: less(*match(a, b, "<")),
    le=lambda a, b: less_equal(*match(a, b, "<=")),
    lshift=lambda a, b: _shift("shift_left", "<<", a, b),
    rshift=lambda a, b: _shift("shift_right", ">>", a, b),
    pow=power,
    neg=_negate,
    invert=_invert,
    astype=cast,
)
OPERATORS["and"] = lambda a, b: _bitwise("bit_and", logical_and, a, b)
OPERATORS["or"] = lambda a, b: _bitwise("bit_or", logical_or, a, b)
OPERATORS["xor"] = lambda a, b: _bitwise("bit_xor", not_equal, a, b)

__all__ = [
    "Add", "add", "Address", "And", "as_expr", "Binary", "BINARY", "Broadcast", "broadcast", "Buffer", "Call", "cast",
    "Cast", "ceildiv", "COMPARE", "Compare", "Const", "const", "Div", "elements", "EQ", "equal", "Expr", "ExprLike",
    "FALSE", "FloorDiv", "floordiv", "FloorMod", "floormod", "FOLD", "index_expr", "int_value", "is_false",
    "is_true", "LE", "less", "less_equal", "Load", "logical_and", "logical_not", "logical_or", "LT",
    "match", "Max", "maximum", "Min", "minimum", "mul", "Mul", "NE", "NODES", "Not", "not_equal", "Or", "power",
    "product", "promote", "Ramp", "select", "Select", "Sub", "sub", "TRUE", "true_divide", "TruncDiv", "truncdiv",
    "truncmod", "TruncMod", "Var", "wrap",
]  # fmt: skip
