"""Scalar values of the interpreter, and the arithmetic that Python's own operators do not give.

A value of any integer dtype is a Python int within that dtype's range, a bool is a Python bool, and a value of any
float dtype is a Python float that the dtype can hold exactly: an operation is computed in double precision and rounded
once, which for + - * / gives the same result as computing in the narrow type (a double has more than twice the bits).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dtypes import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, DType
from weft.expr.intrinsics import FLOAT8_FORMS, PURE
from weft.expr.nodes import wrap

_PACK_HALF, _UNPACK_BITS16 = struct.Struct("<e").pack, struct.Struct("<H").unpack
_FLOAT32, _UNPACK_BITS32 = struct.Struct("<f"), struct.Struct("<I").unpack
_EXACT = 1 << 53


@functools.cache
def half_table(kind: DType) -> list[float]:
    """The value of each bit pattern of a float of 16 or 8 bits."""
    bits = np.arange(1 << kind.bits, dtype=f"u{kind.bytes}")
    with np.errstate(invalid="ignore"):
        values: list[float] = bits.view(kind.numpy).astype(np.float64).tolist()
    return values


def float16_bits(value: float) -> int:
    """The bit pattern of the nearest float16."""
    try:
        return int(_UNPACK_BITS16(_PACK_HALF(float(value)))[0])
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def bfloat16_bits(value: float) -> int:
    """The bit pattern of the nearest bfloat16, by way of the nearest float32."""
    if value != value:
        return 0x7FC0
    try:
        bits = int(_UNPACK_BITS32(_FLOAT32.pack(value))[0])
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _float8_bits(kind: DType) -> Callable[[float], int]:
    """The bit pattern of the nearest float8, by way of the nearest float32; what is too large becomes the largest."""
    bits, bias, most = FLOAT8_FORMS[kind.name]

    def encode(value: float) -> int:
        if value != value:
            return 0x7F
        code = int(_UNPACK_BITS32(_FLOAT32.pack(min(max(value, -most), most)))[0])
        sign, body, unit = code >> 24 & 0x80, code & 0x7FFFFFFF, 23 - bits
        if body < 128 - bias << 23:
            return sign | round(abs(value) * 2.0 ** (bias - 1 + bits))
        return sign | (body - (127 - bias << 23) + (1 << unit - 1) - 1 + (body >> unit & 1)) >> unit

    return encode


e4m3_bits, e5m2_bits = map(_float8_bits, FLOAT8)


def round_float32(value: float) -> float:
    """The nearest float32."""
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def round_float(value: float, kind: DType) -> float:
    """The value that a float dtype holds for a double."""
    if kind is FLOAT32:
        return round_float32(value)
    if kind in TABLES:
        return half_table(kind)[_ENCODE[TABLES[kind]](value)]
    return float(value)


TABLES = {FLOAT16: "float16", BFLOAT16: "bfloat16", **dict(zip(FLOAT8, ("e4m3", "e5m2")))}
"""Narrow floats, and what generated code calls them: `float16_values` by bits, and `float16_bits` of a value."""
_ENCODE = {"float16": float16_bits, "bfloat16": bfloat16_bits, "e4m3": e4m3_bits, "e5m2": e5m2_bits}


def integer_to_float32(value: int) -> float:
    """The nearest float32 of an integer, rounded once also where a double could not hold it."""
    if -_EXACT <= value <= _EXACT:
        return round_float32(value)
    wide = np.array(value, np.int64 if value < 1 << 63 else np.uint64)
    return float(wide.astype(np.float32))


def float_to_integer(value: float, low: int, high: int) -> int:
    """Rounded to zero, kept within low..high; NaN gives 0."""
    if value != value:
        return 0
    if value <= low:
        return low
    if value >= high:
        return high
    return int(value)


def divide_by_zero(a: float, b: float) -> float:
    """a / b where b is a zero: an infinity or NaN, as IEEE has it (Python raises)."""
    if a != a or a == 0:
        return math.nan
    return math.inf if (math.copysign(1.0, a) > 0) == (math.copysign(1.0, b) > 0) else -math.inf


def trunc_div(a: int, b: int) -> int:
    """Integer division rounded to zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def trunc_mod(a: int, b: int) -> int:
    """The remainder of trunc_div, with the sign of a."""
    rest = abs(a) % abs(b)
    return rest if a >= 0 else -rest


def float_mod(a: float, b: float) -> float:
    """C's fmod."""
    if a != a or b != b or b == 0 or math.isinf(a):
        return math.nan
    return math.fmod(a, b)


def float_floor(value: float) -> float:
    """The floor, as a float; infinities and NaN stay."""
    return float(math.floor(value)) if math.isfinite(value) else value


def shift_left(a: int, b: int, bits: int) -> int:
    """a << b before wrapping; an amount outside 0..bits-1 shifts everything out."""
    return a << b if 0 <= b < bits else 0


def shift_right(a: int, b: int, bits: int) -> int:
    """a >> b with the sign kept; an amount outside 0..bits-1 shifts everything out."""
    return a >> b if 0 <= b < bits else (-1 if a < 0 else 0)


def popcount(a: int, bits: int) -> int:
    """How many bits are set."""
    return bin(a & ((1 << bits) - 1)).count("1")


def leading_zeros(a: int, bits: int) -> int:
    """How many of the highest bits are zero."""
    return bits - (a & ((1 << bits) - 1)).bit_length()


def element_type(kind: DType) -> np.dtype[Any]:
    """The numpy type that holds one element in the interpreter: packed types take a byte for each element."""
    if kind.is_packed:
        return np.dtype(np.int8 if kind.is_signed else np.uint8)
    return kind.numpy


def to_python(value: Any, kind: DType) -> Any:
    """Whatever a function returned, as the interpreter's value of a scalar dtype."""
    if kind.is_float:
        return round_float(float(value), kind)
    if kind.is_bool:
        return bool(value)
    return wrap(int(value), kind) if kind.is_integer else value


def reinterpret(value: Any, source: DType, target: DType) -> Any:
    """The same bits read as another scalar dtype of that width."""
    if source.is_packed and target.is_packed:
        return wrap(value, target)
    return to_python(np.array([value], element_type(source)).view(element_type(target))[0], target)


def reinterpret_vector(values: list[Any], source: DType, target: DType) -> list[Any]:
    """The same bits read as another vector dtype of that width in all."""
    viewed = np.array(values, element_type(source.scalar)).view(element_type(target.scalar))
    return [to_python(value, target.scalar) for value in viewed]


def pure_function(name: str, arguments: tuple[DType, ...], result: DType) -> Callable[..., Any]:
    """A pure intrinsic as a function on the interpreter's scalar values."""
    evaluate = PURE[name].evaluate
    kinds = [element_type(kind).type for kind in arguments]
    if len(kinds) == 1:
        only = kinds[0]
        return lambda value: to_python(evaluate(only(value)), result)
    return lambda *values: to_python(evaluate(*[kind(value) for kind, value in zip(kinds, values)]), result)


def run_time_names() -> dict[str, Any]:
    """What generated code calls by name; `Z` rounds to float32 by a store and a load."""
    single = np.zeros(1, np.float32)
    return {
        "Z": memoryview(single),  # type: ignore[arg-type, unused-ignore]
        **{f"{name}_values": half_table(kind) for kind, name in TABLES.items()},
        **{f"{name}_bits": encode for name, encode in _ENCODE.items()},
        "INF": math.inf,
        "NAN": math.nan,
        **{function.__name__: function for function in _CALLED},
    }


_CALLED: tuple[Callable[..., Any], ...] = (
    integer_to_float32, float_to_integer, divide_by_zero, trunc_div, trunc_mod, float_mod, float_floor, shift_left,
    shift_right, popcount, leading_zeros,
)  # fmt: skip
