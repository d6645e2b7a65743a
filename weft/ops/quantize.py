"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear.

The scale has one element (the whole tensor), one for each place along an axis, or one for each block along an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import NUMPY_TYPES, Array, TensorType, Type, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import normal_axis
from weft.graph.signature import ELEMENTS
from weft.ops.casts import cast_array
from weft.ops.elementwise_support import FLOAT8, element_type, wide, wide_type, widen
from weft.ops.reductions_support import reduce_axes

LIMITS = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767), "uint4": (0, 15),
    "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1),
}  # fmt: skip
"""The integers that quantization can give, and their ranges."""


# ------------------------------------------------------------------------------------------------------ granularity


def _axis(c: Use, rank: int) -> int:
    return normal_axis(c.get("axis", 1), rank, c.error)


def _block(c: Use, size: int, blocks: int) -> int:
    """How many places along the axis share a scale."""
    return int(c.get("block_size", 0)) or -(-size // blocks)


def spread(c: Use, parameter: Array, shape: Sequence[int]) -> Array:
    """A scale or zero point, brought to a shape that broadcasts with the tensor."""
    if parameter.size == 1:
        return parameter.reshape(())
    axis = _axis(c, len(shape))
    if parameter.ndim == 1:
        return parameter.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    repeated = np.repeat(parameter, _block(c, shape[axis], parameter.shape[axis]), axis=axis)
    return repeated[tuple(slice(0, s) for s in shape)]


def _at(c: Compute, parameter: te.Tensor, indices: Sequence[Any], shape: Sequence[int]) -> Expr:
    """The scale or zero point that belongs to an element."""
    sizes = c.shape(1)  # the zero point has as many elements as the scale
    if int(np.prod(sizes)) == 1:
        return parameter[(0,) * len(parameter.shape)]
    axis = _axis(c, len(shape))
    if len(sizes) == 1:
        return parameter[indices[axis]]
    block = _block(c, shape[axis], sizes[axis])
    return parameter[tuple(i // block if d == axis else i for d, i in enumerate(indices))]


def _check(c: Infer) -> None:
    """The shapes of scale and zero point fit the input."""
    x, scale = c.tensor(0), c.tensor(1)
    if c.has(2) and c.tensor(2).is_static and scale.is_static:
        if int(np.prod(c.tensor(2).static)) != int(np.prod(scale.static)):
            raise c.error(f"its zero point {c.tensor(2)!r} and its scale {scale!r} must have one shape")
    if not x.is_static or not scale.is_static or int(np.prod(scale.static)) == 1:
        return
    axis = _axis(c, x.rank)
    if scale.rank == 1:
        if scale.static[0] != x.static[axis]:
            raise c.error(f"its scale has {scale.static[0]} elements for {x.static[axis]} places along axis {axis}")
        return
    block = _block(c, x.static[axis], max(1, scale.static[axis]))
    wanted = tuple(-(-s // block) if d == axis else s for d, s in enumerate(x.static))
    if scale.static != wanted:
        raise c.error(f"its scale must have the shape {list(wanted)} for blocks of {block}, not {list(scale.static)}")


# --------------------------------------------------------------------------------------------------- QuantizeLinear


def _output_type(c: Use, zero: str | None) -> str:
    if c.get("output_dtype", 0):
        return element_type(c, "output_dtype")
    return zero if zero is not None else "uint8"


def _precision(c: Use, scale: str) -> str:
    """The type in which the division is done."""
    if c.get("precision", 0):
        return element_type(c, "precision")
    return scale if scale in ELEMENTS["float"] else "float32"


def _infer_quantize(c: Infer) -> Sequence[Type]:
    to = _output_type(c, c.tensor(2).dtype if c.has(2) else None)
    if to not in LIMITS and not to.startswith("float"):
        raise c.error(f"it cannot quantize to {to}")
    if c.has(2) and c.tensor(2).dtype != to:
        raise c.error(f"its zero point is {c.tensor(2).dtype} and its output {to}: they must be of one type")
    _check(c)
    return [TensorType(to, c.tensor(0).shape)]


def _quantize(c: Evaluate, x: Array, scale: Array, zero: Array | None = None) -> Array:
    to = _output_type(c, None if zero is None else dtype_name(zero.dtype))
    kind = NUMPY_TYPES[_precision(c, dtype_name(scale.dtype))]
    divisor = spread(c, scale.astype(kind), x.shape)
    quotient = wide(np.asarray((wide(x.astype(kind)) / wide(divisor)).astype(kind)))
    offset = 0 if zero is None else spread(c, zero.astype(quotient.dtype), x.shape)
    if to not in LIMITS:
        return cast_array(np.asarray(quotient + offset), to, bool(c.get("saturate", 1))).reshape(x.shape)
    low, high = LIMITS[to]
    level = np.clip(np.rint(quotient) + offset, low, high)
    return np.asarray(np.where(np.isnan(level), 0, level).astype(np.int32).astype(NUMPY_TYPES[to])).reshape(x.shape)


def _compute_quantize(c: Compute, x: te.Tensor, scale: te.Tensor, zero: te.Tensor | None = None) -> te.Tensor | None:
    to, shape = c.outputs[0].dtype, c.out_shape()
    if to not in LIMITS and (to not in FLOAT8 or not c.get("saturate", 1)):
        return None
    kind, (low, high) = _precision(c, scale.dtype.name), LIMITS.get(to, (0, 0))

    def body(*indices: Any) -> Expr:
        divisor = widen(_at(c, scale, indices, shape).astype(kind))
        quotient = widen((widen(x[indices].astype(kind)) / divisor).astype(kind))
        level = quotient if to in FLOAT8 else te.round(quotient)
        if zero is not None:
            level = level + _at(c, zero, indices, shape).astype(level.dtype)
        return level.astype(to) if to in FLOAT8 else te.clip(level, low, high).astype(to)

    return te.stage(shape, body, name="quantize")


register(
    "QuantizeLinear",
    _infer_quantize,
    _quantize,
    _compute_quantize,
    "elementwise",
    takes="x:number, y_scale:number|float8_e8m0fnu, y_zero_point:number|narrow?",
    traits="traps",
)


# ------------------------------------------------------------------------------------------------- DequantizeLinear


def _dequantized_type(c: Use, scale: str) -> str:
    if c.get("output_dtype", 0):
        return element_type(c, "output_dtype")
    return scale if scale in ELEMENTS["float"] else "float32"


def _infer_dequantize(c: Infer) -> Sequence[Type]:
    _check(c)
    return [TensorType(_dequantized_type(c, c.tensor(1).dtype), c.tensor(0).shape)]


def _dequantize(c: Evaluate, x: Array, scale: Array, zero: Array | None = None) -> Array:
    to = _dequantized_type(c, dtype_name(scale.dtype))
    kind = NUMPY_TYPES[wide_type(to)]
    level: Array = x.astype(np.int64) if dtype_name(x.dtype) in {**LIMITS, "int32": None} else x.astype(kind)
    if zero is not None:
        level = level - spread(c, zero.astype(level.dtype), x.shape)
    made = level.astype(kind) * spread(c, scale.astype(kind), x.shape)
    return np.asarray(made, kind).astype(NUMPY_TYPES[to]).reshape(x.shape)


def _compute_dequantize(c: Compute, x: te.Tensor, scale: te.Tensor, zero: te.Tensor | None = None) -> te.Tensor:
    to, shape = c.outputs[0].dtype, c.out_shape()
    kind = wide_type(to)
    exact = kind if x.dtype.is_float else "int64" if x.dtype.name == "int32" else "int32"

    def body(*indices: Any) -> Expr:
        level: Expr = x[indices]
        if zero is not None:
            level = level.astype(exact) - _at(c, zero, indices, shape).astype(exact)
        return (level.astype(kind) * _at(c, scale, indices, shape).astype(kind)).astype(to)

    return te.stage(shape, body, name="dequantize")


register(
    "DequantizeLinear",
    _infer_dequantize,
    _dequantize,
    _compute_dequantize,
    "elementwise",
    takes="x:number|narrow, x_scale:number|float8_e8m0fnu, x_zero_point:x?",
    traits="cheap",
)


# -------------------------------------------------------------------------------------------- DynamicQuantizeLinear


def _infer_dynamic(c: Infer) -> Sequence[Type]:
    return [TensorType("uint8", c.tensor(0).shape), TensorType("float32", ()), TensorType("uint8", ())]


def _dynamic(c: Evaluate, x: Array) -> tuple[Array, Array, Array]:
    low = np.minimum(x.min(initial=np.inf), np.float32(0))
    high = np.maximum(x.max(initial=-np.inf), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    scale = scale if scale != 0 else np.float32(1)  # all zeros: any scale will do, but 0 would divide by 0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    y = np.clip(np.rint(x / scale) + zero, 0, 255)
    return np.asarray(y, np.uint8), np.asarray(scale, np.float32), np.asarray(zero, np.uint8)


def _compute_dynamic(c: Compute, x: te.Tensor) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    axes, nothing = range(len(x.shape)), te.const(0.0, "float32")
    low = reduce_axes(x, axes, te.min, name="lowest")
    high = reduce_axes(x, axes, te.max, name="highest")

    def step() -> Expr:
        width = (te.maximum(high[()], nothing) - te.minimum(low[()], nothing)) / 255.0
        return te.select(te.equal(width, nothing), te.const(1.0, "float32"), width)

    scale = te.compute((), step, name="scale")
    zero = te.compute(
        (),
        lambda: te.clip(te.round(-te.minimum(low[()], nothing) / scale[()]), 0.0, 255.0).astype("uint8"),
        name="zero",
    )

    def body(*indices: Any) -> Expr:
        return te.clip(te.round(x[indices] / scale[()]) + zero[()].astype("float32"), 0.0, 255.0).astype("uint8")

    return te.compute(c.out_shape(), body, name="dynamic_quantize"), scale, zero


register("DynamicQuantizeLinear", _infer_dynamic, _dynamic, _compute_dynamic, "opaque", takes="x:float32")
