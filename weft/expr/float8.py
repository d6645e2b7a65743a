"""Numbers of 8 bits with a floating point, as bytes: what they stand for, and the nearest one of a float32.

    float8_e4m3fn    sign, 4 bits of exponent, 3 of mantissa    up to 448, no infinity
    float8_e5m2      sign, 5 bits of exponent, 2 of mantissa    up to 57,344

What is too large becomes the largest number, as ONNX has it; halves are rounded to even. Programs call `from_…` and
`to_…`; a machine that has no such instruction does what `spelled_out` says.
"""

from __future__ import annotations

from weft.core.dtypes import FLOAT16, FLOAT32, UINT8, DType, dtype
from weft.expr.intrinsics import FLOAT8_FORMS
from weft.expr.nodes import Call, Cast, Expr, Select, add, cast, const, equal, less, maximum, minimum, mul, sub

_BITS, _HALF_BITS = dtype("uint32"), dtype("uint16")


def widened(byte: Expr, name: str) -> Expr:
    """The float32 that the bits of a float8 stand for."""
    return Call(f"from_{name}", (byte,), FLOAT32.with_lanes(byte.dtype.lanes))


def narrowed(value: Expr, name: str) -> Expr:
    """The bits of the float8 nearest to a number."""
    return Call(f"to_{name}", (cast(value, FLOAT32),), UINT8.with_lanes(value.dtype.lanes))


def spelled_out(e: Call) -> Expr:
    """One of these calls by arithmetic."""
    way, _, name = e.name.partition("_")
    return _widened(e.args[0], name) if way == "from" else _narrowed(e.args[0], name)


def _call(name: str, a: Expr, number: int) -> Expr:
    return Call(name, (a, const(number, a.dtype)), a.dtype)


def _seen(a: Expr, to: DType) -> Expr:
    return Call("reinterpret", (a,), to.with_lanes(a.dtype.lanes))


def _widened(byte: Expr, name: str) -> Expr:
    if name == "float8_e5m2":  # a float16 without its last eight bits
        return cast(_seen(_call("shift_left", cast(byte, _HALF_BITS), 8), FLOAT16), FLOAT32)
    bits = cast(byte, _BITS)
    body = _call("bit_and", bits, 0x7F)
    sign = _call("shift_left", _call("bit_and", bits, 0x80), 24)
    value = _seen(Call("bit_or", (sign, _call("shift_left", body, 20)), bits.dtype), FLOAT32)
    nothing = _seen(const(0x7FC00000, bits.dtype), FLOAT32)
    return Select(equal(body, const(0x7F, bits.dtype)), nothing, mul(value, const(2.0**120, value.dtype)))


def _narrowed(value: Expr, name: str) -> Expr:
    mantissa, bias, most = FLOAT8_FORMS[name]
    inside = maximum(minimum(value, const(most, value.dtype)), const(-most, value.dtype))
    bits, unit = _seen(inside, _BITS), 23 - mantissa
    body = _call("bit_and", bits, 0x7FFFFFFF)
    magic = const(2.0 ** (24 - bias - mantissa), value.dtype)  # whose last bit is the least float8
    small = sub(_seen(add(_seen(body, FLOAT32), magic), _BITS), _seen(magic, _BITS))
    even = _call("bit_and", _call("shift_right", body, unit), 1)
    shift = const((1 << unit - 1) - 1 - (127 - bias << 23) & 0xFFFFFFFF, bits.dtype)
    large = _call("shift_right", add(add(body, shift), even), unit)
    found: Expr = Select(less(body, const(128 - bias << 23, bits.dtype)), small, large)
    found = Select(less(const(0x7F800000, bits.dtype), body), const(0x7F, bits.dtype), found)
    whole = Call("bit_or", (found, _call("bit_and", _call("shift_right", bits, 24), 0x80)), bits.dtype)
    return Cast(UINT8.with_lanes(bits.dtype.lanes), whole)
