"""The node classes of expressions. Their grammar, and the functions that build them, stand in `weft.expr.nodes`.

The operators of Python (`a + b`, `a < b`, …) look up their meaning in OPERATORS, which that module fills: the classes
know nothing of promotion and folding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, Union

import numpy as np

from weft.core.dtypes import BOOL, HANDLE, INDEX, DType, DTypeLike
from weft.core.errors import DTypeError, ExpressionError
from weft.core.native import mypyc_attr

MADE_OF: dict[type, tuple[str, ...]] = {}
"""What the parts of programs are made of: the attributes that their classes are called with, in order."""
OPERATORS: dict[str, Callable[..., Expr]] = {}
"""What each of Python's operators builds, by name: "add" for `a + b` and `1 + a`, …"""


Made = TypeVar("Made", bound="Picklable")


@mypyc_attr(allow_interpreted_subclasses=True)
class Picklable:
    """What another process can be given: it is made there anew, of what MADE_OF says that it is made of."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        kind = _made_by(self)
        return kind, tuple([getattr(self, name) for name in MADE_OF[kind]])

    def replace(self: Made, **changes: Any) -> Made:
        """One like this but for the given attributes."""
        kind: Any = _made_by(self)
        made: Made = kind(*[changes[name] if name in changes else getattr(self, name) for name in MADE_OF[kind]])
        return made


def _made_by(part: Picklable) -> type:
    """The class that a part is made by again: a tensor becomes a buffer."""
    return next(kind for kind in type(part).__mro__ if kind in MADE_OF)


Operator = Callable[["Expr", "ExprLike"], "Expr"]


def _operator(name: str, swapped: bool = False) -> Operator:
    """A method of expressions: one of Python's operators with two sides."""

    def build(self: Expr, other: ExprLike) -> Expr:
        return OPERATORS[name](other, self) if swapped else OPERATORS[name](self, other)

    return build


@mypyc_attr(allow_interpreted_subclasses=True)
class Expr(Picklable):
    """Base of every expression. `holds` says which kinds of nodes occur in it, its own among them: a `bit` for each."""

    __slots__ = ("dtype", "holds")
    dtype: DType
    holds: int
    bit: ClassVar[int] = 0

    __add__: ClassVar[Operator] = _operator("add")
    __radd__: ClassVar[Operator] = _operator("add", swapped=True)
    __sub__: ClassVar[Operator] = _operator("sub")
    __rsub__: ClassVar[Operator] = _operator("sub", swapped=True)
    __mul__: ClassVar[Operator] = _operator("mul")
    __rmul__: ClassVar[Operator] = _operator("mul", swapped=True)
    __truediv__: ClassVar[Operator] = _operator("truediv")
    __rtruediv__: ClassVar[Operator] = _operator("truediv", swapped=True)
    __floordiv__: ClassVar[Operator] = _operator("floordiv")
    __rfloordiv__: ClassVar[Operator] = _operator("floordiv", swapped=True)
    __mod__: ClassVar[Operator] = _operator("mod")
    __rmod__: ClassVar[Operator] = _operator("mod", swapped=True)
    __lt__: ClassVar[Operator] = _operator("lt")
    __le__: ClassVar[Operator] = _operator("le")
    __gt__: ClassVar[Operator] = _operator("lt", swapped=True)
    __ge__: ClassVar[Operator] = _operator("le", swapped=True)
    __and__: ClassVar[Operator] = _operator("and")
    __or__: ClassVar[Operator] = _operator("or")
    __xor__: ClassVar[Operator] = _operator("xor")
    __rand__: ClassVar[Operator] = _operator("and")
    __ror__: ClassVar[Operator] = _operator("or")
    __rxor__: ClassVar[Operator] = _operator("xor")
    __lshift__: ClassVar[Operator] = _operator("lshift")
    __rlshift__: ClassVar[Operator] = _operator("lshift", swapped=True)
    __rshift__: ClassVar[Operator] = _operator("rshift")
    __rrshift__: ClassVar[Operator] = _operator("rshift", swapped=True)
    __pow__: ClassVar[Operator] = _operator("pow")
    __rpow__: ClassVar[Operator] = _operator("pow", swapped=True)

    def __neg__(self) -> Expr:
        return OPERATORS["neg"](self)

    def __invert__(self) -> Expr:
        return OPERATORS["invert"](self)

    def __bool__(self) -> bool:
        raise ExpressionError(
            "an expression has no truth value while the program is being described; "
            "use te.if_then_else, te.all, te.any or te.equal"
        )

    def astype(self, to: DTypeLike) -> Expr:
        """This value converted to another data type."""
        return OPERATORS["astype"](self, to)

    def __repr__(self) -> str:
        from weft.expr.text import format_expr

        return format_expr(self)


class HasExpr(Protocol):
    """What stands for an expression: an axis, a tensor without dimensions."""

    def as_expr(self) -> Expr:
        """The expression."""


ExprLike = Union[Expr, int, float, bool, "np.number[Any]", "np.bool_", HasExpr]


class Var(Expr):
    """A named value: a loop variable, a block axis, a size, a let-bound value. Two Vars of one name are different."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType = INDEX) -> None:
        self.name = name
        self.dtype = dtype
        self.holds = Var.bit


class Const(Expr):
    """A literal. `value` is a Python int, float or bool that fits the dtype."""

    __slots__ = ("value",)

    def __init__(self, value: Any, dtype: DType) -> None:
        self.value = value
        self.dtype = dtype
        self.holds = Const.bit


class Binary(Expr):
    """Base of the two-sided arithmetic nodes: the result has the dtype of both sides."""

    __slots__ = ("a", "b")

    def __init__(self, a: Expr, b: Expr) -> None:
        self.a = a
        self.b = b
        self.dtype = a.dtype
        self.holds = self.bit | a.holds | b.holds


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
        self.holds = self.bit | a.holds | b.holds


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
        self.holds = Not.bit | a.holds


class Select(Expr):
    """`then` where the condition holds, else `otherwise`; loads of the arm not chosen never happen."""

    __slots__ = ("condition", "then", "otherwise")

    def __init__(self, condition: Expr, then: Expr, otherwise: Expr) -> None:
        self.condition = condition
        self.then = then
        self.otherwise = otherwise
        self.dtype = then.dtype
        self.holds = Select.bit | condition.holds | then.holds | otherwise.holds


class Cast(Expr):
    """A conversion. Float to integer rounds to zero and saturates (NaN gives 0); integers wrap."""

    __slots__ = ("value",)

    def __init__(self, dtype: DType, value: Expr) -> None:
        self.value = value
        self.dtype = dtype
        self.holds = Cast.bit | value.holds


class Call(Expr):
    """A call of an intrinsic by name. `weft.expr.intrinsics` lists the pure ones; every other name has effects."""

    __slots__ = ("name", "args")

    def __init__(self, name: str, args: Sequence[Expr], dtype: DType) -> None:
        self.name = name
        self.args = tuple(args)
        self.dtype = dtype
        self.holds = Call.bit
        for arg in self.args:
            self.holds |= arg.holds


class Load(Expr):
    """The element (or, with a vector index, the elements) of a buffer."""

    __slots__ = ("buffer", "indices")

    def __init__(self, buffer: Buffer, indices: Sequence[Expr]) -> None:
        self.buffer = buffer
        self.indices = tuple(indices)
        lanes, holds = 1, Load.bit
        for index in self.indices:
            holds |= index.holds
            if index.dtype.lanes != 1:
                lanes = index.dtype.lanes
        self.holds = holds
        self.dtype = buffer.dtype if lanes == 1 else buffer.dtype.with_lanes(lanes)


class Address(Expr):
    """The address of an element, for an intrinsic's argument. `mode` is some of "r", "w"."""

    __slots__ = ("buffer", "indices", "mode")

    def __init__(self, buffer: Buffer, indices: Sequence[Expr], mode: str = "rw") -> None:
        self.buffer = buffer
        self.indices = tuple(indices)
        self.mode = mode
        self.dtype = HANDLE
        self.holds = Address.bit
        for index in self.indices:
            self.holds |= index.holds


class Ramp(Expr):
    """The vector base, base + stride, base + 2·stride, …; base and stride are scalars."""

    __slots__ = ("base", "stride", "lanes")

    def __init__(self, base: Expr, stride: Expr, lanes: int) -> None:
        self.base = base
        self.stride = stride
        self.lanes = lanes
        self.dtype = base.dtype.with_lanes(lanes)
        self.holds = Ramp.bit | base.holds | stride.holds


class Broadcast(Expr):
    """A scalar in every lane."""

    __slots__ = ("value", "lanes")

    def __init__(self, value: Expr, lanes: int) -> None:
        self.value = value
        self.lanes = lanes
        self.dtype = value.dtype.with_lanes(lanes)
        self.holds = Broadcast.bit | value.holds


@mypyc_attr(allow_interpreted_subclasses=True)
class Buffer(Picklable):
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

    def __repr__(self) -> str:
        shape = ", ".join(map(repr, self.shape))
        return f"{self.name}: {self.dtype}[{shape}]" + ("" if self.scope == "global" else f" {self.scope}")


BINARY: tuple[type[Binary], ...] = (Add, Sub, Mul, Div, FloorDiv, FloorMod, TruncDiv, TruncMod, Min, Max)
COMPARE: tuple[type[Compare], ...] = (EQ, NE, LT, LE, And, Or)
NODES: tuple[type[Expr], ...] = (
    Var, Const, *BINARY, *COMPARE, Not, Select, Cast, Call, Load, Address, Ramp, Broadcast,
)  # fmt: skip
for _number, _kind in enumerate(NODES):
    _kind.bit = 1 << _number

MADE_OF.update(dict.fromkeys((*BINARY, *COMPARE), ("a", "b")))
MADE_OF.update({
    Var: ("name", "dtype"), Const: ("value", "dtype"), Not: ("a",), Select: ("condition", "then", "otherwise"),
    Cast: ("dtype", "value"), Call: ("name", "args", "dtype"), Load: ("buffer", "indices"),
    Address: ("buffer", "indices", "mode"), Ramp: ("base", "stride", "lanes"), Broadcast: ("value", "lanes"),
    Buffer: ("name", "dtype", "shape", "scope", "strides", "alignment"),
})  # fmt: skip

_SMALL = [Const(i, INDEX) for i in range(-16, 257)]


def index_expr(value: ExprLike) -> Expr:
    """An int or expression as an index-typed expression."""
    if type(value) is int:
        return _SMALL[value + 16] if -16 <= value <= 256 else Const(value, INDEX)
    if isinstance(value, Expr):
        if value.dtype.scalar is INDEX:
            return value
        if value.dtype.is_integer:
            return OPERATORS["astype"](value, INDEX.with_lanes(value.dtype.lanes))
        raise DTypeError(f"an index or size must be an integer, not {value.dtype}: {value!r}")
    if isinstance(value, (np.integer,)):
        return index_expr(int(value))
    variable = getattr(value, "var", None)  # an axis stands for its variable
    if isinstance(variable, Expr):
        return variable
    raise DTypeError(f"an index or size must be an integer or an integer expression, not {value!r}")
