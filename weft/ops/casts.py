"""Cast, CastLike and BitCast: one element type to another.

Floats to integers round to zero; what lies outside the range takes the nearest end, and NaN becomes 0 (ONNX leaves both
open; kernels do the same). Integers to narrower integers drop high bits. float8 saturates unless `saturate` is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.graph.ir import NUMPY_TYPES, Array, GraphError, TensorType, Type, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.ops.elementwise_support import FLOAT8, element_type

_ORDINARY_INTEGERS = frozenset("int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())
_SATURATING = frozenset("float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz".split())
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


# --------------------------------------------------------------------------------------------- conversion of arrays


def cast_array(x: Array, to: str, saturate: bool = True, round_mode: str = "up") -> Array:
    """An array converted to another element type, by ONNX's rules."""
    source, kind = dtype_name(x.dtype), NUMPY_TYPES[to]
    if source == to:
        return x
    if to == "string":
        return _to_strings(x)
    if source == "string":
        return cast_array(_from_strings(x, to), to, saturate, round_mode)
    if to == "bool":
        return np.asarray(x != np.zeros((), x.dtype))
    floating = x.dtype.kind == "f" or source.startswith(("float", "bfloat"))
    if to in _ORDINARY_INTEGERS and floating:
        return float_to_integer(x, to)
    if to == "float8_e8m0fnu":
        return _to_powers_of_two(x, saturate, round_mode)
    if to in _SATURATING:
        return _to_float8(x, kind, saturate)
    if source in _BITS or to in _BITS:
        x = x.astype(np.float32) if floating else x.astype(np.int64)  # narrow types convert through ordinary ones
    return np.asarray(x.astype(kind))


def float_to_integer(x: Array, to: str) -> Array:
    """Floats rounded to zero; outside the range the nearest end, NaN to 0."""
    info, kind = np.iinfo(to), NUMPY_TYPES[to]
    real = x if x.dtype == np.float64 else x.astype(np.float32)
    low, high = real.dtype.type(info.min), real.dtype.type(2.0) ** info.bits / (2 if info.min < 0 else 1)
    whole = np.trunc(real)
    inside = np.where((whole >= low) & (whole < high), whole, 0).astype(kind)
    return np.asarray(np.where(whole >= high, kind.type(info.max), np.where(whole < low, kind.type(info.min), inside)))


def _to_float8(x: Array, kind: Any, saturate: bool) -> Array:
    real = x if x.dtype in (np.float32, np.float64, np.float16) else x.astype(np.float32)
    if saturate:
        import ml_dtypes

        top = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
        real = np.clip(real, -top, top)  # NaN stays NaN
    return np.asarray(real.astype(kind))


def _to_powers_of_two(x: Array, saturate: bool, round_mode: str) -> Array:
    """float8_e8m0: only an exponent, from 2^-127 to 2^127, and NaN."""
    real = x.astype(np.float64)
    fraction, exponent = np.frexp(np.abs(real))  # fraction in [0.5, 1)
    limit = {"up": 0.5, "nearest": np.nextafter(0.75, 0), "down": 1.0}[round_mode]
    power = exponent - 1 + (fraction > limit)
    power = np.where(real == 0, -1000, np.where(np.isinf(real), 1000, power))
    outside = (power < -127) | (power > 127)
    bits = np.clip(power, -127, 127) + 127
    bits = np.where(np.isnan(real) | (outside & (not saturate)), 255, bits)
    return np.asarray(bits.astype(np.uint8).view(NUMPY_TYPES["float8_e8m0fnu"]))


def _text(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "1" if value else "0"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "INF" if value > 0 else "-INF"
    return str(value)


def _to_strings(x: Array) -> Array:
    if x.dtype.kind == "V":
        x = x.astype(np.float32) if "float" in dtype_name(x.dtype) else x.astype(np.int64)
    out = np.empty(x.shape, dtype=object)
    out.reshape(-1)[:] = [_text(value) for value in x.reshape(-1)]
    return out


def _number(text: str, whole: bool) -> Any:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        pass
    try:
        return int(float(text)) if whole else float(text)
    except (ValueError, OverflowError):
        raise GraphError(f"the string {text!r} is not a number that can be cast") from None


def _from_strings(x: Array, to: str) -> Array:
    whole = to in _ORDINARY_INTEGERS or to in ("int2", "uint2", "int4", "uint4")
    texts = [v.decode() if isinstance(v, bytes) else str(v) for v in x.reshape(-1)]
    if to == "bool":
        return np.array([t.strip().lower() in ("1", "true") for t in texts], bool).reshape(x.shape)
    kind = np.float64 if not whole else np.uint64 if to == "uint64" else np.int64
    return np.array([_number(t, whole) for t in texts], kind).reshape(x.shape)


# ------------------------------------------------------------------------------------------------- Cast, CastLike


def _target(c: Use, like: Any) -> str:
    return element_type(c, "to") if like is None else dtype_name(like.dtype)


def _infer_cast(c: Infer) -> Sequence[Type]:
    to = c.tensor(1).dtype if c.node.op == "CastLike" else element_type(c, "to")
    return [TensorType(to, c.tensor(0).shape)]


def _cast(c: Evaluate, x: Array, like: Array | None = None) -> Array:
    return cast_array(x, _target(c, like), bool(c.get("saturate", 1)), c.get("round_mode", "up"))


def _compute_cast(c: Compute, x: te.Tensor) -> te.Tensor | None:
    if c.outputs[0].dtype in FLOAT8 and (not c.get("saturate", 1) or x.dtype.bits == 64):
        return None
    return te.stage(c.out_dims(), lambda *i: x[i].astype(c.outputs[0].dtype), name="cast")


def _compute_cast_like(c: Compute, x: te.Tensor, like: te.Tensor) -> te.Tensor | None:
    """Only the type of the second input counts: it may have any shape, even no elements."""
    return _compute_cast(c, x)


register("Cast", _infer_cast, _cast, _compute_cast, "elementwise", takes="input", traits="cheap traps")
register(
    "CastLike",
    _infer_cast,
    _cast,
    _compute_cast_like,
    "elementwise",
    takes="input, target_type",
    traits="cheap traps empties",
)


# ---------------------------------------------------------------------------------------------------------- BitCast


def _width(name: str) -> int:
    return _BITS.get(name, 8 * int(NUMPY_TYPES[name].itemsize))


def _infer_bitcast(c: Infer) -> Sequence[Type]:
    source, to = c.tensor(0).dtype, element_type(c, "to")
    if "string" in (source, to) or _width(source) != _width(to):
        raise c.error(f"it cannot read the bits of {source} as {to}: both must be numbers of one width")
    return [TensorType(to, c.tensor(0).shape)]


def _bitcast(c: Evaluate, x: Array) -> Array:
    to = element_type(c, "to")
    kind = NUMPY_TYPES[to]
    if to not in _BITS:
        return np.ascontiguousarray(x).reshape(x.shape).view(kind)
    bits = np.ascontiguousarray(x).reshape(x.shape).view(np.uint8) & ((1 << _BITS[to]) - 1)  # one element a byte
    if to.startswith("float"):
        return bits.view(kind)
    half = 1 << (_BITS[to] - 1)
    signed = bits.astype(np.int8) if to.startswith("u") else (bits.astype(np.int8) ^ half) - half
    return signed.astype(kind)


def _compute_bitcast(c: Compute, x: te.Tensor) -> te.Tensor:
    to = c.outputs[0].dtype

    def body(*indices: Any) -> Any:
        value = x[indices]
        if value.dtype.name == to or "bool" in (value.dtype.name, to):
            return value.astype(to)
        return te.reinterpret(value, to)

    return te.stage(c.out_shape(), body, name="bitcast")


register("BitCast", _infer_bitcast, _bitcast, _compute_bitcast, "elementwise", takes="input")
