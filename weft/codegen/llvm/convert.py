"""Conversions between data types, and the arithmetic of 16-bit floats.

float16 and bfloat16 values are computed in float32 and rounded after each operation. Where the machine converts, its
instruction is used; elsewhere the conversion is written with integer operations, so that no runtime library is needed.
x86's instruction for bfloat16 takes numbers below 2^-126 as zero; everything else rounds to nearest even.
"""

from __future__ import annotations

from weft.codegen.llvm import types
from weft.codegen.llvm.context import Context
from weft.codegen.llvm.math import Ops
from weft.core.dtypes import FLOAT32, DType
from weft.core.errors import TargetError
from weft.expr.nodes import Cast


def _has_half(c: Context) -> bool:
    features = c.module.machine.features
    return c.module.is_aarch64 or "f16c" in features or "avx512fp16" in features


def _native_bfloat(c: Context) -> bool:
    return "avx512bf16" in c.module.machine.features


def widen(c: Context, value: str, dtype: DType) -> str:
    """A 16-bit float as float32."""
    lanes = dtype.lanes
    wide, integer, short = types.vector("float", lanes), types.vector("i32", lanes), types.vector("i16", lanes)
    if dtype.kind == "bfloat":
        bits = c.once(f"zext {short} {value} to {integer}")
        shifted = c.once(f"shl {integer} {bits}, {types.splat('i32', '16', lanes)}")
        return c.once(f"bitcast {integer} {shifted} to {wide}")
    if _has_half(c):
        half = types.vector("half", lanes)
        return c.once(f"fpext {half} {c.once(f'bitcast {short} {value} to {half}')} to {wide}")
    return _soft_half_to_float(c, value, lanes)


def narrow(c: Context, value: str, dtype: DType) -> str:
    """A float32 rounded to a 16-bit float (to nearest even; NaN stays NaN)."""
    lanes = dtype.lanes
    wide, short = types.vector("float", lanes), types.vector("i16", lanes)
    if dtype.kind == "bfloat" and not _native_bfloat(c):
        return _soft_float_to_bfloat(c, value, lanes)
    if dtype.kind == "float" and not _has_half(c):
        return _soft_float_to_half(c, value, lanes)
    to = types.vector("bfloat" if dtype.kind == "bfloat" else "half", lanes)
    return c.once(f"bitcast {to} {c.once(f'fptrunc {wide} {value} to {to}')} to {short}")


def _choose(c: Context, condition: str, a: str, b: str, kind: str, lanes: int) -> str:
    return c.once(f"select {types.vector('i1', lanes)} {condition}, {kind} {a}, {kind} {b}")


def _soft_float_to_bfloat(c: Context, value: str, lanes: int) -> str:
    kind, wide = types.vector("i32", lanes), types.vector("float", lanes)
    op = Ops(c, lanes).integer
    bits = c.once(f"bitcast {wide} {value} to {kind}")
    odd = op("and", op("lshr", bits, 16), 1)
    rounded = op("lshr", op("add", bits, op("add", odd, 0x7FFF)), 16)
    quiet = op("or", op("lshr", bits, 16), 0x40)
    is_nan = c.once(f"fcmp uno {wide} {value}, {value}")
    chosen = _choose(c, is_nan, quiet, rounded, kind, lanes)
    return c.once(f"trunc {kind} {chosen} to {types.vector('i16', lanes)}")


def _soft_half_to_float(c: Context, value: str, lanes: int) -> str:
    """Shift the half's exponent and mantissa into place, and multiply by 2^112: denormals come out right."""
    kind, wide = types.vector("i32", lanes), types.vector("float", lanes)
    op = Ops(c, lanes).integer
    bits = c.once(f"zext {types.vector('i16', lanes)} {value} to {kind}")
    body = op("shl", op("and", bits, 0x7FFF), 13)
    magnitude = c.once(f"bitcast {kind} {body} to {wide}")
    scale = types.splat("float", types.float_literal(2.0**112, "float"), lanes)
    scaled = c.once(f"bitcast {wide} {c.once(f'fmul {wide} {magnitude}, {scale}')} to {kind}")
    special = op("icmp uge", body, 0x7C00 << 13)
    whole = _choose(c, special, op("or", body, 0x7F800000), scaled, kind, lanes)
    signed = op("or", whole, op("shl", op("and", bits, 0x8000), 16))
    return c.once(f"bitcast {kind} {signed} to {wide}")


def _soft_float_to_half(c: Context, value: str, lanes: int) -> str:
    """Normal results round by integer addition; denormal ones by adding 0.5, as its last place is theirs."""
    kind, wide = types.vector("i32", lanes), types.vector("float", lanes)
    op = Ops(c, lanes).integer
    bits = c.once(f"bitcast {wide} {value} to {kind}")
    sign = op("lshr", op("and", bits, -0x80000000), 16)
    body = op("and", bits, 0x7FFFFFFF)
    odd = op("and", op("lshr", body, 13), 1)
    normal = op("lshr", op("add", op("add", body, 0xFFF - ((127 - 15) << 23)), odd), 13)
    half = types.splat("float", types.float_literal(0.5, "float"), lanes)
    magnitude = c.once(f"bitcast {kind} {body} to {wide}")
    added = c.once(f"bitcast {wide} {c.once(f'fadd {wide} {magnitude}, {half}')} to {kind}")
    tiny = op("sub", added, 0x3F000000)
    result = _choose(c, op("icmp ult", body, 113 << 23), tiny, normal, kind, lanes)
    infinite = types.splat("i32", str(0x7C00), lanes)
    result = _choose(c, op("icmp uge", body, (127 + 16) << 23), infinite, result, kind, lanes)
    nan = op("or", op("and", op("lshr", body, 13), 0x3FF), 0x7E00)
    result = _choose(c, op("icmp ugt", body, 0x7F800000), nan, result, kind, lanes)
    return c.once(f"trunc {kind} {op('or', result, sign)} to {types.vector('i16', lanes)}")


def _round_to_odd(c: Context, value: str, lanes: int) -> str:
    """A double as a float whose last bit is set when anything was cut off: rounding that again is exact."""
    double, wide, kind = (types.vector(t, lanes) for t in ("double", "float", "i32"))
    op = Ops(c, lanes).integer
    near = c.once(f"fptrunc {double} {value} to {wide}")
    back = c.once(f"fpext {wide} {near} to {double}")
    magnitude, near_magnitude = c.intrinsic("llvm.fabs", double, value), c.intrinsic("llvm.fabs", double, back)
    flag = types.vector("i1", lanes)
    beyond = c.once(f"zext {flag} {c.once(f'fcmp ogt {double} {near_magnitude}, {magnitude}')} to {kind}")
    inexact = c.once(f"zext {flag} {c.once(f'fcmp one {double} {back}, {value}')} to {kind}")
    bits = c.once(f"bitcast {wide} {near} to {kind}")
    return c.once(f"bitcast {kind} {op('or', op('sub', bits, beyond), inexact)} to {wide}")


def _floats_to_integers(c: Context, value: str, source: DType, to: DType) -> str:
    """A vector of floats as integers of at most 32 bits: held within their range first, NaN to 0.

    LLVM has an intrinsic for that: one instruction on AArch64, but elsewhere it takes vectors of it apart.
    """
    lanes, kind, flags = source.lanes, types.llvm_type(source), types.vector("i1", source.lanes)
    wide, element = types.vector("i32", lanes), types.llvm_type(source.with_lanes(1))
    low, high = (-(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1) if to.is_signed else (0, (1 << to.bits) - 1)
    rounded = to.bits == 32 and source.bits == 32  # 2^31 - 1 is no float: the next one below it is 2^31 - 128

    def limit(number: int) -> str:
        return types.splat(element, types.float_literal(float(number), element), lanes)

    def held(old: str, test: str, number: int) -> str:
        condition = c.once(f"fcmp {test} {kind} {old}, {limit(number)}")
        return c.once(f"select {flags} {condition}, {kind} {limit(number)}, {kind} {old}")

    missing = c.once(f"fcmp uno {kind} {value}, {value}")
    inside = c.once(f"select {flags} {missing}, {kind} {limit(0)}, {kind} {value}")
    inside = held(held(inside, "olt", low), "ogt", high - 127 if rounded else high)
    made = c.once(f"fptosi {kind} {inside} to {wide}")
    if rounded:
        beyond = c.once(f"fcmp oge {kind} {value}, {limit(high + 1)}")
        made = _choose(c, beyond, types.splat("i32", str(high), lanes), made, wide, lanes)
    return made if to.bits == 32 else c.once(f"trunc {wide} {made} to {types.llvm_type(to)}")


def convert(c: Context, value: str, source: DType, to: DType) -> str:
    """A value of one dtype as another of the same lanes."""
    if source is to:
        return value
    if source.kind == "handle" or to.kind == "handle":
        raise TargetError(f"cannot convert {source} to {to}")
    lanes = source.lanes
    a, b = types.llvm_type(source), types.llvm_type(to)
    if source.is_float and source.bits == 16:
        return convert(c, widen(c, value, source), FLOAT32.with_lanes(lanes), to)
    if to.is_float and to.bits == 16:
        if source.is_float and source.bits == 64:
            return narrow(c, _round_to_odd(c, value, lanes), to)
        return narrow(c, convert(c, value, source, FLOAT32.with_lanes(lanes)), to)
    if to.is_bool:
        zero = types.splat(a.split(" x ")[-1].rstrip(">"), "0.0" if source.is_float else "0", lanes)
        return c.once(f"fcmp une {a} {value}, {zero}" if source.is_float else f"icmp ne {a} {value}, {zero}")
    if source.is_float and to.is_float:
        return c.once(f"{'fpext' if to.bits > source.bits else 'fptrunc'} {a} {value} to {b}")
    native = c.module.is_aarch64 and source.bits == 32
    if source.is_float and lanes > 1 and not native and (to.bits < 32 or (to.bits == 32 and to.is_signed)):
        return _floats_to_integers(c, value, source, to)
    if source.is_float:
        name = f"llvm.fpto{'s' if to.is_signed else 'u'}i.sat.{types.mangle(b)}.{types.mangle(a)}"
        return c.call(b, name, [f"{a} {value}"])
    if to.is_float:
        return c.once(f"{'sitofp' if source.is_signed else 'uitofp'} {a} {value} to {b}")
    if source.is_bool or to.bits > source.bits:
        return c.once(f"{'sext' if source.is_signed else 'zext'} {a} {value} to {b}")
    return value if to.bits == source.bits else c.once(f"trunc {a} {value} to {b}")


def cast(c: Context, e: Cast) -> str:
    """A Cast."""
    return convert(c, c.value(e.value), e.value.dtype, e.dtype)
