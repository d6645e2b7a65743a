"""Numbers of 8 bits with a floating point, as bytes: what they stand for, and the nearest one of a float32.

    float8_e4m3fn    sign, 4 bits of exponent, 3 of mantissa    up to 448, no infinity
    float8_e5m2      sign, 5 bits of exponent, 2 of mantissa    up to 57,344

What is too large becomes the largest number, as ONNX has it; halves are rounded to even.
"""

from __future__ import annotations

from weft.core.dtypes import FLOAT16, FLOAT32, UINT8, dtype
from weft.expr.nodes import Call, Cast, Const, Expr, Select, add, cast, const, equal, less, maximum, minimum, mul, sub

FLOAT8_FORMS = {"float8_e4m3fn": (3, 7, 448.0), "float8_e5m2": (2, 15, 57344.0)}
"""Bits of mantissa, what is added to an exponent, and the largest number."""
_BITS, _HALF_BITS = dtype("uint32"), dtype("uint16")


def _call(name: str, a: Expr, number: int) -> Expr:
    return Call(name, (a, Const(number, a.dtype)), a.dtype)


def widened(byte: Expr, name: str) -> Expr:
    """The float32 that the bits of a float8 stand for."""
    if name == "float8_e5m2":  # a float16 without its last eight bits
        return cast(Call("reinterpret", (_call("shift_left", cast(byte, _HALF_BITS), 8),), FLOAT16), FLOAT32)
    bits = cast(byte, _BITS)
    body = _call("bit_and", bits, 0x7F)
    whole = Call(
        "bit_or", (_call("shift_left", _call("bit_and", bits, 0x80), 24), _call("shift_left", body, 20)), _BITS
    )
    value = mul(Call("reinterpret", (whole,), FLOAT32), const(2.0**120, FLOAT32))
    return Select(equal(body, Const(0x7F, _BITS)), Call("reinterpret", (Const(0x7FC00000, _BITS),), FLOAT32), value)


def narrowed(value: Expr, name: str) -> Expr:
    """The bits of the float8 nearest to a number."""
    mantissa, bias, most = FLOAT8_FORMS[name]
    inside = maximum(minimum(cast(value, FLOAT32), const(most, FLOAT32)), const(-most, FLOAT32))
    bits, unit = Call("reinterpret", (inside,), _BITS), 23 - mantissa
    body = _call("bit_and", bits, 0x7FFFFFFF)
    magic = 2.0 ** (24 - bias - mantissa)  # whose last bit is the least float8
    small: Expr = Call("reinterpret", (add(Call("reinterpret", (body,), FLOAT32), const(magic, FLOAT32)),), _BITS)
    small = sub(small, Call("reinterpret", (const(magic, FLOAT32),), _BITS))
    even = _call("bit_and", _call("shift_right", body, unit), 1)
    large = add(add(body, Const((1 << unit - 1) - 1 - (127 - bias << 23) & 0xFFFFFFFF, _BITS)), even)
    found: Expr = Select(less(body, Const(128 - bias << 23, _BITS)), small, _call("shift_right", large, unit))
    found = Select(less(Const(0x7F800000, _BITS), body), Const(0x7F, _BITS), found)
    return Cast(UINT8, Call("bit_or", (found, _call("bit_and", _call("shift_right", bits, 24), 0x80)), _BITS))
