"""MatMulNBits and GatherBlockQuantized: weights of 2, 4 or 8 bits, in blocks with a scale each.

MatMulNBits is a product: B holds (features, blocks, bytes of a block), low bits first; zero points are packed in the
same way, or plain numbers, or left out (then the middle of the range). Weights are unpacked in a stage of their own,
before a plain product; a machine with dot products of bytes takes few rows in another way (`few_bits.py`).
accuracy_level says to how few bits the other operand MAY be rounded (4: to bytes, which costs some 1e-2 of the result's
scale); here to 16 bits at the least.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.ops.convolution import accumulator, exact_type
from weft.ops.expansion import Builder
from weft.ops.microsoft_composition import DOMAIN, compose
from weft.ops.products import product_shape


def _numbers(use: Use) -> tuple[int, int, int, int]:
    """Inner size, features, bits and block size."""
    bits, block = int(use.get("bits", 4)), int(use.need("block_size"))
    if bits not in (2, 4, 8) or block < 1 or block * bits % 8:
        raise use.error(f"weights of {bits} bits in blocks of {block} are not known")
    return int(use.need("K")), int(use.need("N")), bits, block


def _infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    inner, features, bits, block = _numbers(c)
    if c.has(4) and c.value(4) is not None and np.any(np.diff(np.asarray(c.value(4))) < 0):
        raise c.error("g_idx is not supported")
    blocks, byte = -(-inner // block), 8 // bits
    packed = c.has(3) and c.tensor(3).dtype == "uint8"
    for position, count in ((1, blocks * block // byte), (2, blocks), (3, -(-blocks // byte) if packed else blocks)):
        kind = c.tensor(position) if c.has(position) else None
        if kind is not None and kind.is_static and math.prod(kind.static) != features * count:
            raise c.error(f"input {position} is {kind!r}; {features} times {count} elements are needed")
    shape = None if x.shape is None else product_shape(c, x.shape, (inner, features))
    return [TensorType(x.dtype, shape)]


def _unpack(codes: Array, bits: int, count: int) -> Array:
    """The first `count` numbers along the last dimension of packed bytes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (codes[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*codes.shape[:-1], -1)[..., :count]


def _evaluate(c: Evaluate, x: Array, codes: Array, scales: Array, zeros: Any = None, *rest: Any) -> Array:
    inner, features, bits, block = _numbers(c)
    blocks = -(-inner // block)
    wide = exact_type(str(x.dtype)) or x.dtype
    numbers = _unpack(codes.reshape(features, blocks, -1), bits, block).astype(wide)
    if zeros is None:
        shift: Array = np.full((features, blocks), 1 << (bits - 1), wide)
    elif zeros.dtype == np.uint8:
        shift = _unpack(zeros.reshape(features, -1), bits, blocks).astype(wide)
    else:
        shift = zeros.reshape(features, blocks).astype(wide)
    weight = (numbers - shift[..., None]) * scales.reshape(features, blocks, 1).astype(wide)
    made = np.matmul(x.astype(wide), weight.reshape(features, -1)[:, :inner].T)
    bias = rest[1] if len(rest) > 1 else None
    return np.asarray((made if bias is None else made + bias.astype(wide)).astype(x.dtype))


def _flat(tensor: te.Tensor, shape: tuple[int, ...], index: Expr) -> Expr:
    """The element of a tensor at a flat index."""
    at: list[Expr] = []
    for size in reversed(shape[1:]):
        at.append(index % size)
        index = index // size
    return tensor[(index, *reversed(at))]


def _compute(c: Compute, x: te.Tensor, codes: te.Tensor, scales: te.Tensor, zeros: Any = None, *rest: Any) -> Any:
    if rest and rest[0] is not None:
        return None
    inner, features, bits, block = _numbers(c)
    blocks, each, kind = -(-inner // block), 8 // bits, accumulator(c.outputs[0].dtype)
    row, zero_row = block // each, -(-blocks // each)
    mask = (1 << bits) - 1

    def part(byte: Expr, place: Expr) -> Expr:
        return ((byte.astype("int32") >> ((place % each) * bits).astype("int32")) & mask).astype(kind)

    def zero(n: Expr, b: Expr) -> Expr:
        if zeros is None:
            return te.const(float(1 << (bits - 1)), kind)
        if c.types[3] is not None and c.types[3].dtype == "uint8":
            return part(_flat(zeros, c.shape(3), n * zero_row + b // each), b)
        return _flat(zeros, c.shape(3), n * blocks + b).astype(kind)

    def weight(n: Expr, k: Expr) -> Expr:
        b = k // block
        byte = _flat(codes, c.shape(1), (n * blocks + b) * row + k % block // each)
        return (part(byte, k % block) - zero(n, b)) * _flat(scales, c.shape(2), n * blocks + b).astype(kind)

    whole = te.stage((features, inner), lambda n, k: weight(n, k), "unpacked")
    axis = te.reduce_axis(inner, "k")
    total = te.stage(
        c.out_shape(),
        lambda *at: te.sum(x[(*at[:-1], axis.var)].astype(kind) * whole[at[-1], axis.var], axis=axis),
        "matmul",
    )
    bias = rest[1] if len(rest) > 1 else None
    if bias is None and kind == c.outputs[0].dtype:
        return total

    def finish(*at: Expr) -> Expr:
        value = total[at] if bias is None else total[at] + bias[at[-1]].astype(kind)
        return value.astype(c.outputs[0].dtype)

    return te.stage(c.out_shape(), lambda *at: finish(*at), "matmul_bias")


register(
    "MatMulNBits",
    _infer,
    _evaluate,
    _compute,
    "complex",
    domain=DOMAIN,
    takes="A:float[*s @K], B:uint8, scales:float, zero_points:uint8|float?, g_idx:int32?, bias:float[@N]?",
)


# ---------------------------------------------------------------------------------------------- GatherBlockQuantized


def bytes_as_numbers(b: Builder, codes: Value, bits: int) -> Value:
    """The numbers that bytes hold, low bits first, along the last dimension."""
    wide = b.cast(codes, "int16")
    if bits == 8:
        return wide
    shares = []
    for shift in range(0, 8, bits):
        part = b("Div", wide, b.constant(1 << shift, "int16")) if shift else wide
        rest = b("Mod", part, b.constant(1 << bits, "int16"))
        shares.append(b("Unsqueeze", rest, b.constant([-1], "int64")))
    together = b("Concat", *shares, axis=-1)
    return b("Reshape", together, b.constant([0] * (len(codes.tensor.dims) - 1) + [-1], "int64"))


def _gather_blocks(b: Builder, data: Value, indices: Value, scales: Value, zeros: Value | None = None) -> Any:
    """The rows asked for are gathered first, and only they are scaled."""
    bits, block = int(b.get("bits", 4)), int(b.get("block_size", 128))
    rank, gathered = len(data.tensor.dims), int(b.get("gather_axis", 0)) % max(len(data.tensor.dims), 1)
    axis = int(b.get("quantize_axis", 1)) % max(rank, 1)
    packed = data.tensor.dtype == "uint8"
    if axis == gathered or bits not in (2, 4, 8) or (packed and axis != rank - 1):
        raise b.error(f"numbers of {bits} bits in blocks along axis {axis} of {rank}, gathered along {gathered}")
    codes, scale = (b("Gather", part, indices, axis=gathered) for part in (data, scales))
    zero = None if zeros is None else b("Gather", zeros, indices, axis=gathered)
    if packed:
        codes = bytes_as_numbers(b, codes, bits)
        middle = b.constant(1 << (bits - 1), "int16")
        if zero is None:
            codes = b("Sub", codes, middle)
        else:
            zero = bytes_as_numbers(b, zero, bits)
    at = axis + (len(indices.tensor.dims) - 1 if axis > gathered else 0)
    return b("DequantizeLinear", codes, scale, zero, axis=at, block_size=block)


compose("GatherBlockQuantized", _gather_blocks)
