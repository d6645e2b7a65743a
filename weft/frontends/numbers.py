"""Functions of numbers that Weft has no operator for, as frameworks mean them, in operators that it has."""

from __future__ import annotations

import math
from typing import Any

from weft.frontends.emit import NUMBERS, Emitter, is_float
from weft.graph.ir import NUMPY_TYPES, Value


class Numbers:
    """Arithmetic with values of one element type, written as one writes it."""

    def __init__(self, c: Emitter, value: Value) -> None:
        self.c, self.value = c, value

    def __call__(self, op: str, *others: Any, **attributes: Any) -> Numbers:
        """An operator of this and others."""
        kind = self.value.tensor.dtype
        given = [one.value if isinstance(one, Numbers) else self.c.value(one, kind) for one in others]
        return Numbers(self.c, self.c.op(op, self.value, *given, **attributes))

    def __add__(self, other: Any) -> Numbers:
        return self("Add", other)

    def __sub__(self, other: Any) -> Numbers:
        return self("Sub", other)

    def __rsub__(self, other: Any) -> Numbers:
        return Numbers(self.c, self.c.value(other, self.value.tensor.dtype)) - self

    def __mul__(self, other: Any) -> Numbers:
        return self("Mul", other)

    def __truediv__(self, other: Any) -> Numbers:
        return self("Div", other)

    def __rtruediv__(self, other: Any) -> Numbers:
        return Numbers(self.c, self.c.value(other, self.value.tensor.dtype)) / self

    __radd__, __rmul__ = __add__, __mul__

    def choose(self, condition: Numbers, other: Any) -> Numbers:
        """This where a condition holds, else another."""
        other = other.value if isinstance(other, Numbers) else other
        return Numbers(self.c, self.c.where(condition.value, self.value, other, self.value.tensor.dtype))

    @property
    def is_float(self) -> bool:
        """Whether they are of floating point."""
        return is_float(self.value.tensor.dtype)


def trunc(x: Numbers) -> Numbers:
    """The whole number towards 0."""
    return x("Ceil").choose(x("Less", 0), x("Floor"))


def expm1(x: Numbers) -> Numbers:
    """e^x - 1; where x is small tanh(x / 2) (e^x + 1), which keeps its digits."""
    power = x("Exp")
    return (power - 1).choose(x("Abs")("Greater", 0.5), (x * 0.5)("Tanh") * (power + 1))


def log1p(x: Numbers) -> Numbers:
    """log(1 + x): log(u) x / (u - 1) for u = 1 + x as it was rounded."""
    u = x + 1
    return u.choose(u("IsInf"), x.choose(u("Equal", 1), u("Log") * (x / (u - 1))))


def cbrt(x: Numbers) -> Numbers:
    """The cube root; after one step of Newton's method, since the power is rounded with its exponent 1 / 3."""
    cube = x("Abs")
    size = cube("Pow", 1 / 3)
    fine = size("Greater", 0)("And", size("IsInf")("Not"))
    size = ((size * 2 + cube / (size * size)) / 3).choose(fine, size)
    return size("Neg").choose(x("Less", 0), size)


def signbit(x: Numbers) -> Numbers:
    """Whether a float has a minus, -0 included."""
    kind = f"int{8 * NUMPY_TYPES[x.value.tensor.dtype].itemsize}"
    return x("BitCast", to=NUMBERS[kind])("Less", 0)


def copysign(x: Numbers, y: Numbers) -> Numbers:
    """x with the sign of y."""
    size = x("Abs")
    return size("Neg").choose(signbit(y), size)


def hypot(x: Numbers, y: Numbers) -> Numbers:
    """The distance of a point."""
    return (x * x + y * y)("Sqrt")


def atan2(y: Numbers, x: Numbers) -> Numbers:
    """The angle of a point."""
    endless = x("IsInf")("And", y("IsInf"))
    x, y = (one("Sign").choose(endless, one) for one in (x, y))
    left, half = signbit(x), Numbers(y.c, y.c.value(math.pi, y.value.tensor.dtype))
    up = half("Neg").choose(signbit(y), half)
    angle = (y / x)("Atan")
    level = y("Equal", 0)("And", x("IsNaN")("Not"))
    return up.choose(left, y).choose(level, (angle + up).choose(left, angle))


def _is_apart(rest: Numbers, y: Numbers) -> Numbers:
    """Whether what is left over has not the sign of the divisor."""
    return rest("Equal", 0)("Not")("And", y("Less", 0)("Xor", rest("Less", 0)))


def remainder(x: Numbers, y: Numbers) -> Numbers:
    """What a division rounded down leaves over."""
    if not x.is_float:
        return x("Mod", y)
    rest = x("Mod", y, fmod=1)
    return (rest + y).choose(_is_apart(rest, y), rest)


def floor_divide(x: Numbers, y: Numbers) -> Numbers:
    """A quotient, rounded down."""
    if not x.is_float:  # Div rounds to zero: what is left over is taken off first
        return (x - x("Mod", y)) / y
    rest = x("Mod", y, fmod=1)
    quotient = (x - rest) / y
    quotient = (quotient - 1).choose(_is_apart(rest, y), quotient)
    return (x / y).choose(y("Equal", 0), quotient("Round"))
