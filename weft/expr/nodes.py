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

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

import numpy as np

from weft.core.dtypes import BOOL, FLOAT32, FLOAT64, HANDLE, INDEX, DType, DTypeLike, dtype
from weft.core.errors import DTypeError, ExpressionError


class Expr:
    """Base of every expression."""

    __slots__ = ("dtype",)
    dtype: DType

    def __add__(self, other: ExprLike) -> Expr:
        return add(*match(self, other, "+"))

    def __radd__(self, other: ExprLike) -> Expr:
        return add(*match(other, self, "+"))

    def __sub__(self, other: ExprLike) -> Expr:
        return sub(*match(self, other, "-"))

    def __rsub__(self, other: ExprLike) -> Expr:
        return sub(*match(other, self, "-"))

    def __mul__(self, other: ExprLike) -> Expr:
        return mul(*match(self, other, "*"))

    def __rmul__(self, other: ExprLike) -> Expr:
        return mul(*match(other, self, "*"))

    def __truediv__(self, other: ExprLike) -> Expr:
        return true_divide(self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return true_divide(other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floordiv(*match(self, other, "//"))

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return floordiv(*match(other, self, "//"))

    def __mod__(self, other: ExprLike) -> Expr:
        return floormod(*match(self, other, "%"))

    def __rmod__(self, other: ExprLike) -> Expr:
        return floormod(*match(other, self, "%"))

    def __neg__(self) -> Expr:
        if type(self) is Const and not self.dtype.is_bool:
            return const(-self.value, self.dtype)
        if self.dtype.is_float:
            return Call("neg", (self,), self.dtype)
        return sub(const(0, self.dtype), self)

    def __lt__(self, other: ExprLike) -> Expr:
        return less(*match(self, other, "<"))

    def __le__(self, other: ExprLike) -> Expr:
        return less_equal(*match(self, other, "<="))

    def __gt__(self, other: ExprLike) -> Expr:
        return less(*match(other, self, ">"))

    def __ge__(self, other: ExprLike) -> Expr:
        return less_equal(*match(other, self, ">="))

    def __and__(self, other: ExprLike) -> Expr:
        return _bitwise("bit_and", logical_and, self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return _bitwise("bit_or", logical_or, self, other)

    def __xor__(self, other: ExprLike) -> Expr:
        return _bitwise("bit_xor", not_equal, self, other)

    def __invert__(self) -> Expr:
        return logical_not(self) if self.dtype.is_bool else Call("bit_not", (_integer(self, "~"),), self.dtype)

    def __lshift__(self, other: ExprLike) -> Expr:
        a, b = match(_integer(self, "<<"), other, "<<")
        return Call("shift_left", (a, b), a.dtype)

    def __rshift__(self, other: ExprLike) -> Expr:
        a, b = match(_integer(self, ">>"), other, ">>")
        return Call("shift_right", (a, b), a.dtype)

    def __rand__(self, other: ExprLike) -> Expr:
        return self & other

    def __ror__(self, other: ExprLike) -> Expr:
        return self | other

    def __rxor__(self, other: ExprLike) -> Expr:
        return self ^ other

    def __rlshift__(self, other: ExprLike) -> Expr:
        a, b = match(other, self, "<<")
        return _integer(a, "<<") << b

    def __rrshift__(self, other: ExprLike) -> Expr:
        a, b = match(other, self, ">>")
        return _integer(a, ">>") >> b

    def __pow__(self, other: ExprLike) -> Expr:
        return power(self, other)

    def __rpow__(self, other: ExprLike) -> Expr:
        return power(other, self)

    def __bool__(self) -> bool:
        raise ExpressionError(
            "an expression has no truth value while the program is being described; "
            "use te.if_then_else, te.all, te.any or te.equal"
        )

    def astype(self, to: DTypeLike) -> Expr:
        """This value converted to another data type."""
        return cast(self, to)

    def __repr__(self) -> str:
        from weft.expr.text import format_expr

        return format_expr(self)


ExprLike = Union[Expr, int, float, bool]


class Var(Expr):
    """A named value: a loop variable, a block axis, a size, a let-bound value. Two Vars of one name are different."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType = INDEX) -> None:
        self.name = name
        self.dtype = dtype


class Const(Expr):
    """A literal. `value` is a Python int, float or bool that fits the dtype."""

    __slots__ = ("value",)

    def __init__(self, value: Any, dtype: DType) -> None:
        self.value = value
        self.dtype = dtype


class Binary(Expr):
    """Base of the two-sided arithmetic nodes: the result has the dtype of both sides."""

    __slots__ = ("a", "b")

    def __init__(self, a: Expr, b: Expr) -> None:
        self.a = a
        self.b = b
        self.dtype = a.dtype


class Add(Binary):
    """a + b."""

    __slots__ = ()


class Sub(Binary):
    """a - b."""

    __slots__ = ()


class Mul(Binary):
    """a * b."""

    __slots__ = ()


class Div(Binary):
    """a / b of floats."""

    __slots__ = ()


class FloorDiv(Binary):
    """a // b, rounded to minus infinity."""

    __slots__ = ()


class FloorMod(Binary):
    """a % b, with the sign of b."""

    __slots__ = ()


class TruncDiv(Binary):
    """a / b of integers, rounded to zero."""

    __slots__ = ()


class TruncMod(Binary):
    """a - truncdiv(a, b) * b, with the sign of a (for floats: C's fmod)."""

    __slots__ = ()


class Min(Binary):
    """The lesser; of floats: NaN if either is NaN."""

    __slots__ = ()


class Max(Binary):
    """The greater; of floats: NaN if either is NaN."""

    __slots__ = ()


class Compare(Binary):
    """Base of comparisons and connectives: the result is bool with the lanes of the sides."""

    __slots__ = ()

    def __init__(self, a: Expr, b: Expr) -> None:
        self.a = a
        self.b = b
        self.dtype = BOOL if a.dtype.lanes == 1 else BOOL.with_lanes(a.dtype.lanes)


class EQ(Compare):
    """a equals b."""

    __slots__ = ()


class NE(Compare):
    """a differs from b."""

    __slots__ = ()


class LT(Compare):
    """a < b."""

    __slots__ = ()


class LE(Compare):
    """a <= b."""

    __slots__ = ()


class And(Compare):
    """a and b; b is evaluated only where a holds."""

    __slots__ = ()


class Or(Compare):
    """a or b; b is evaluated only where a does not hold."""

    __slots__ = ()


class Not(Expr):
    """not a."""

    __slots__ = ("a",)

    def __init__(self, a: Expr) -> None:
        self.a = a
        self.dtype = a.dtype


class Select(Expr):
    """`then` where the condition holds, else `otherwise`; loads of the arm not chosen never happen."""

    __slots__ = ("condition", "then", "otherwise")

    def __init__(self, condition: Expr, then: Expr, otherwise: Expr) -> None:
        self.condition = condition
        self.then = then
        self.otherwise = otherwise
        self.dtype = then.dtype


class Cast(Expr):
    """A conversion. Float to integer rounds to zero and saturates (NaN gives 0); integers wrap."""

    __slots__ = ("value",)

    def __init__(self, dtype: DType, value: Expr) -> None:
        self.value = value
        self.dtype = dtype


class Call(Expr):
    """A call of an intrinsic by name. `weft.expr.intrinsics` lists the pure ones; every other name has effects."""

    __slots__ = ("name", "args")

    def __init__(self, name: str, args: Sequence[Expr], dtype: DType) -> None:
        self.name = name
        self.args = tuple(args)
        self.dtype = dtype


class Load(Expr):
    """The element (or, with a vector index, the elements) of a buffer."""

    __slots__ = ("buffer", "indices")

    def __init__(self, buffer: Buffer, indices: Sequence[Expr]) -> None:
        self.buffer = buffer
        self.indices = tuple(indices)
        lanes = 1
        for index in self.indices:
            if index.dtype.lanes != 1:
                lanes = index.dtype.lanes
        self.dtype = buffer.dtype if lanes == 1 else buffer.dtype.with_lanes(lanes)


class Address(Expr):
    """The address of an element, for an intrinsic's argument. `mode` is some of "r", "w"."""

    __slots__ = ("buffer", "indices", "mode")

    def __init__(self, buffer: Buffer, indices: Sequence[Expr], mode: str = "rw") -> None:
        self.buffer = buffer
        self.indices = tuple(indices)
        self.mode = mode
        self.dtype = HANDLE


class Ramp(Expr):
    """The vector base, base + stride, base + 2·stride, …; base and stride are scalars."""

    __slots__ = ("base", "stride", "lanes")

    def __init__(self, base: Expr, stride: Expr, lanes: int) -> None:
        self.base = base
        self.stride = stride
        self.lanes = lanes
        self.dtype = base.dtype.with_lanes(lanes)


class Broadcast(Expr):
    """A scalar in every lane."""

    __slots__ = ("value", "lanes")

    def __init__(self, value: Expr, lanes: int) -> None:
        self.value = value
        self.lanes = lanes
        self.dtype = value.dtype.with_lanes(lanes)


class Buffer:
    """A declared piece of memory: an argument, or an intermediate that the compiler allocates.

    `strides` are in elements; None means row-major and compact. `alignment` is what the base address is known to
    keep, in bytes. `scope` names the memory: "global", "shared", "local", "warp", or one that a target declares.
    """

    __slots__ = ("name", "dtype", "shape", "scope", "strides", "alignment")

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: Iterable[ExprLike],
        scope: str = "global",
        strides: Iterable[ExprLike] | None = None,
        alignment: int = 64,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape: tuple[Expr, ...] = tuple(index_expr(s) for s in shape)
        self.scope = scope
        self.strides: tuple[Expr, ...] | None = None if strides is None else tuple(index_expr(s) for s in strides)
        self.alignment = alignment

    def replace(self, **changes: Any) -> Buffer:
        """A new buffer like this one but for the given fields."""
        fields = {key: getattr(self, key) for key in Buffer.__slots__}
        fields.update(changes)
        return Buffer(**fields)

    def __repr__(self) -> str:
        shape = ", ".join(map(repr, self.shape))
        return f"{self.name}: {self.dtype}[{shape}]" + ("" if self.scope == "global" else f" {self.scope}")


BINARY: tuple[type[Binary], ...] = (Add, Sub, Mul, Div, FloorDiv, FloorMod, TruncDiv, TruncMod, Min, Max)
COMPARE: tuple[type[Compare], ...] = (EQ, NE, LT, LE, And, Or)
NODES: tuple[type[Expr], ...] = (
    Var, Const, *BINARY, *COMPARE, Not, Select, Cast, Call, Load, Address, Ramp, Broadcast,
)  # fmt: skip


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
_SMALL = [Const(i, INDEX) for i in range(-16, 257)]


def index_expr(value: ExprLike) -> Expr:
    """An int or expression as an index-typed expression."""
    if type(value) is int:
        return _SMALL[value + 16] if -16 <= value <= 256 else Const(value, INDEX)
    if isinstance(value, Expr):
        if value.dtype.scalar is INDEX:
            return value
        if value.dtype.is_integer:
            return cast(value, INDEX.with_lanes(value.dtype.lanes))
        raise DTypeError(f"an index or size must be an integer, not {value.dtype}: {value!r}")
    if isinstance(value, (np.integer,)):
        return index_expr(int(value))
    variable = getattr(value, "var", None)  # an axis stands for its variable
    if isinstance(variable, Expr):
        return variable
    raise DTypeError(f"an index or size must be an integer or an integer expression, not {value!r}")


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


def _folds(a: Expr, b: Expr) -> bool:
    return type(a) is Const and type(b) is Const and a.dtype.is_integer


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
    a, b = match(a, b, "/")
    if not a.dtype.is_float:
        raise DTypeError("'/' on integers is not defined: use // (floor), te.truncdiv, or cast to a float first")
    return Div(a, b)


def power(a: Any, b: Any) -> Expr:
    """a to the power b, of floats."""
    a, b = match(a, b, "power")
    if not a.dtype.is_float:
        raise DTypeError(f"'power' needs floats, not {a.dtype}: multiply, or cast first with .astype('float32')")
    return Mul(a, a) if type(b) is Const and b.value == 2 else Call("pow", (a, b), a.dtype)


def _divisor(b: Expr, what: str) -> None:
    if type(b) is Const and b.value == 0:
        raise ExpressionError(f"'{what}' by zero")


def floordiv(a: Expr, b: Expr) -> Expr:
    """a // b (floats: the floor of the quotient)."""
    if a.dtype.is_float:
        return Call("floor", (Div(a, b),), a.dtype)
    _integer(a, "//")
    _divisor(b, "//")
    if _folds(a, b):
        return Const(wrap(a.value // b.value, a.dtype), a.dtype)  # type: ignore[attr-defined]
    if type(b) is Const and b.value == 1:
        return a
    return FloorDiv(a, b)


def floormod(a: Expr, b: Expr) -> Expr:
    """a % b, as Python does it (floats too)."""
    if a.dtype.is_float:
        return Call("floor_fmod", (a, b), a.dtype)
    _integer(a, "%")
    _divisor(b, "%")
    if _folds(a, b):
        return Const(a.value % b.value, a.dtype)  # type: ignore[attr-defined]
    if type(b) is Const and b.value == 1:
        return const(0, a.dtype)
    return FloorMod(a, b)


def truncdiv(a: Any, b: Any) -> Expr:
    """Integer division rounded to zero, as C does it."""
    left, right = match(a, b, "truncdiv")
    _integer(left, "truncdiv")
    _divisor(right, "truncdiv")
    if _folds(left, right):
        quotient = abs(left.value) // abs(right.value)  # type: ignore[attr-defined]
        same_sign = (left.value < 0) == (right.value < 0)  # type: ignore[attr-defined]
        return Const(wrap(quotient if same_sign else -quotient, left.dtype), left.dtype)
    return TruncDiv(left, right)


def truncmod(a: Any, b: Any) -> Expr:
    """The remainder that goes with truncdiv; on floats, C's fmod."""
    left, right = match(a, b, "truncmod")
    if left.dtype.is_float:
        return Call("fmod", (left, right), left.dtype)
    _integer(left, "truncmod")
    _divisor(right, "truncmod")
    if _folds(left, right):
        rest = abs(left.value) % abs(right.value)  # type: ignore[attr-defined]
        return Const(rest if left.value >= 0 else -rest, left.dtype)  # type: ignore[attr-defined]
    return TruncMod(left, right)


def minimum(a: Any, b: Any) -> Expr:
    """The lesser of two values."""
    left, right = match(a, b, "min")
    if left is right:
        return left
    if _folds(left, right):
        return left if left.value <= right.value else right  # type: ignore[attr-defined]
    _arithmetic(left, "min")
    return Min(left, right)


def maximum(a: Any, b: Any) -> Expr:
    """The greater of two values."""
    left, right = match(a, b, "max")
    if left is right:
        return left
    if _folds(left, right):
        return left if left.value >= right.value else right  # type: ignore[attr-defined]
    _arithmetic(left, "max")
    return Max(left, right)


def _truth(value: bool, lanes: int) -> Expr:
    literal = TRUE if value else FALSE
    return literal if lanes == 1 else Broadcast(literal, lanes)


def equal(a: Any, b: Any) -> Expr:
    """The comparison a == b as an expression."""
    left, right = match(a, b, "equal")
    if _folds(left, right) or (type(left) is Const and type(right) is Const and left.dtype.is_bool):
        return TRUE if left.value == right.value else FALSE  # type: ignore[attr-defined]
    return EQ(left, right)


def not_equal(a: Any, b: Any) -> Expr:
    """The comparison a != b as an expression."""
    left, right = match(a, b, "not_equal")
    if _folds(left, right):
        return TRUE if left.value != right.value else FALSE  # type: ignore[attr-defined]
    return NE(left, right)


def less(a: Expr, b: Expr) -> Expr:
    """a < b."""
    if _folds(a, b):
        return TRUE if a.value < b.value else FALSE  # type: ignore[attr-defined]
    return LT(a, b)


def less_equal(a: Expr, b: Expr) -> Expr:
    """a <= b."""
    if _folds(a, b):
        return TRUE if a.value <= b.value else FALSE  # type: ignore[attr-defined]
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
    a = _boolean(a, "not")
    kind = type(a)
    if kind is Const:
        return FALSE if a.value else TRUE
    if kind is Not:
        inner: Expr = a.a
        return inner
    if kind is EQ:
        return NE(a.a, a.b)
    if kind is NE:
        return EQ(a.a, a.b)
    if kind is LT and not a.a.dtype.is_float:
        return LE(a.b, a.a)
    if kind is LE and not a.a.dtype.is_float:
        return LT(a.b, a.a)
    return Not(a)


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
    a, b = index_expr(a), index_expr(b)
    return floordiv(sub(add(a, b), index_expr(1)), b)


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


def is_finite_number(value: Any) -> bool:
    """Whether a literal's value is an ordinary number."""
    return not isinstance(value, float) or math.isfinite(value)


FOLD: dict[type[Expr], Callable[[Expr, Expr], Expr]] = {
    Add: add, Sub: sub, Mul: mul, Div: Div, FloorDiv: floordiv, FloorMod: floormod, TruncDiv: truncdiv,
    TruncMod: truncmod, Min: minimum, Max: maximum, EQ: equal, NE: not_equal, LT: less, LE: less_equal,
    And: logical_and, Or: logical_or,
}  # fmt: skip
"""The folding constructor of each two-sided node."""
