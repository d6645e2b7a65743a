"""Products with weights of few bits, in the form that a machine's dot products of bytes take.

    %y = MatMulNBits(%x, const codes, const scales, const zeros)    ->    %y = weft.FewBitsMatMul(%x, panels…)
    %y = MatMul(%x, DequantizeLinear(const, const scales))          ->    the same

The weights are put into panels when the model is compiled (weft/ops/few_bits.py). How wide those are, and whether the
instruction wants signed or unsigned bytes beside signed digits, a callback says; None leaves the product as it is.
Columns that do not fill the last panel are joined by columns of zeros, which a Slice leaves out again.
For a machine that multiplies floats ("uint32") they become words of neighbours instead (weft/ops/few_bits_words.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType, dtype_name
from weft.graph.passes.support import Replacement, Scope, rewritten

NAME, DOMAIN = "FewBitsMatMul", "weft"
WORDS = "WordsMatMul"

MOST_BLOCK = (1 << 23) // (128 * 256)
"""A sum of more digits of 8 bits times codes of 8 bits might not be a whole number that float32 holds."""

FLOATS = ("float32", "float16", "bfloat16")
KINDS = {"uint4": (4, 0), "int4": (4, 8), "uint8": (8, 0), "int8": (8, 128)}
"""Types of weights: their bits, and what is added to make them codes from 0 up."""

Propose = Callable[[int, int], "tuple[str, int] | None"]
"""For a product of so many rows and columns: the type of the bytes that weights become, and the width of a panel."""


@dataclass(frozen=True)
class Weights:
    """Weights of (features, blocks, numbers of a block): codes from 0 up, a scale and a zero point for each block.

    Zero points are bytes or floats; None stands for the middle of the range.
    """

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int
    inner: int


def few_bits(graph: Graph, propose: Propose) -> Graph:
    """The graph with such products in panels; the same object where there are none."""
    return rewritten(graph, lambda node, scope: _panels(node, scope, propose))


def _panels(node: Node, scope: Scope, propose: Propose) -> Replacement:
    x = node.inputs[0] if node.inputs else None
    if x is None or not isinstance(x.type, TensorType) or not x.type.is_static or not node.outputs:
        return None
    found = _packed(node, scope) or _dequantized(node, scope)
    if found is None or x.type.dtype not in FLOATS:
        return None
    features, blocks, block = found.codes.shape
    chosen = propose(math.prod(x.type.static[:-1]), features)
    if chosen is None or block * found.bits % 32 or block > MOST_BLOCK:
        return None
    kind, width = chosen
    if kind == "uint32":
        return _words(node, found, scope)
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    missing = -features % width
    if missing:
        found = _joined(found, missing)
        if bias is not None:
            known = scope.constant(bias)
            if known is None:
                return None
            bias = scope.new_constant(np.pad(known, (0, missing)), f"{bias.name}_joined")
    shift = 128 if found.bits == 8 and kind == "int8" else 0
    codes = pack_bits(found.codes, found.bits)
    if shift:
        codes = (codes ^ np.uint8(128)).view(np.int8)
    digits = 2 if int(node.attributes.get("accuracy_level", 0)) in (2, 3, 4) else 3
    attributes: dict[str, Any] = {"digits": digits, "K": found.inner, "N": features + missing, "bits": found.bits}
    attributes.update(block_size=block, width=width, kind=kind)
    made = [pack(codes, width), pack_factors(found.scales, width)]
    if found.zeros is None:
        attributes["zero"] = float((1 << (found.bits - 1)) - shift)
    elif found.zeros.dtype == np.uint8:
        zeros = (found.zeros.astype(np.int16) - shift).astype(np.int8) if shift else found.zeros
        made.append(pack_factors(zeros, width))
    else:
        made.append(pack_factors(np.asarray(found.zeros - found.zeros.dtype.type(shift)), width))
    panels = [scope.new_constant(array, f"{node.outputs[0].name}_panels") for array in made]
    given = [x, *panels, *[None] * (3 - len(panels)), bias]
    if not missing:
        return [Node(NAME, given, node.outputs, attributes, node.name, node.origin, DOMAIN)]
    wide = scope.make(node, NAME, given, DOMAIN, **attributes)
    ends = [scope.new_constant(np.array([at], np.int64), "columns") for at in (0, features, -1)]
    return [Node("Slice", [wide, *ends], node.outputs, {}, node.name, node.origin)]


def _joined(weights: Weights, count: int) -> Weights:
    """Weights with so many more columns, all of them zeros: codes that a scale of 0 multiplies."""

    def longer(array: Array) -> Array:
        return np.asarray(np.pad(array, ((0, count), *[(0, 0)] * (array.ndim - 1))))

    zeros = None if weights.zeros is None else longer(weights.zeros)
    return replace(weights, codes=longer(weights.codes), scales=longer(weights.scales), zeros=zeros)


def _words(node: Node, found: Weights, scope: Scope) -> Replacement:
    """Weights as words of 32 bits, those of neighbouring columns together."""
    features, blocks, block = found.codes.shape
    packed = pack_bits(found.codes, found.bits).reshape(features, -1)
    words = np.ascontiguousarray(packed).view("<u4").astype(np.uint32)
    attributes: dict[str, Any] = {"K": found.inner, "N": features, "bits": found.bits, "block_size": block}
    made = [words.T, found.scales.reshape(features, blocks).T]
    if found.zeros is None:
        attributes["zero"] = float(1 << (found.bits - 1))
    else:
        made.append(found.zeros.reshape(features, blocks).T)
    given = [scope.new_constant(np.ascontiguousarray(one), f"{node.outputs[0].name}_words") for one in made]
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    inputs = [node.inputs[0], *given, *[None] * (3 - len(given)), bias]
    return [Node(WORDS, inputs, node.outputs, attributes, node.name, node.origin, DOMAIN)]


def _packed(node: Node, scope: Scope) -> Weights | None:
    """The weights of MatMulNBits, if they are constant and in order."""
    if node.op != "MatMulNBits" or node.domain != "com.microsoft":
        return None
    _, codes, scales, zeros, order, _ = [*node.inputs, *[None] * 6][:6]
    arrays = [scope.constant(value) for value in (codes, scales, zeros)]
    if arrays[0] is None or arrays[1] is None or (zeros is not None and arrays[2] is None) or order is not None:
        return None
    inner, features, bits, block = (int(node.attributes.get(name, 4)) for name in ("K", "N", "bits", "block_size"))
    blocks, points = -(-inner // block), arrays[2]
    if points is not None and points.dtype == np.uint8:
        points = unpack_bits(points.reshape(features, -1), bits)[:, :blocks]
    elif points is not None:
        points = points.reshape(features, blocks)
    numbers = unpack_bits(arrays[0].reshape(features, blocks, -1), bits)
    return Weights(numbers, arrays[1].reshape(features, blocks), points, bits, inner)


def _dequantized(node: Node, scope: Scope) -> Weights | None:
    """The weights of a product that a DequantizeLinear of constants makes, with scales of columns or blocks."""
    if node.domain or node.op != "MatMul":
        return None
    before = scope.producer(node.inputs[1], "DequantizeLinear")
    arrays = [] if before is None else [scope.constant(value) for value in before.inputs]
    if before is None or any(a is None for a in arrays) or arrays[0] is None or arrays[1] is None:
        return None
    codes, scale, points = arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None
    known = KINDS.get(dtype_name(codes.dtype))
    if known is None or codes.ndim != 2 or scale.dtype != np.float32 or before.attributes.get("output_dtype", 1) != 1:
        return None
    (bits, offset), (inner, features) = known, codes.shape
    axis, block = int(before.attributes.get("axis", 1)) % 2, int(before.attributes.get("block_size", 0))
    if block and (axis or inner % block or scale.shape != (inner // block, features)):
        return None
    if not block:  # one scale a column (or one in all), repeated for blocks
        block = next((n for n in (128, 64, 32, 16) if inner % n == 0), 0)
        if not block or scale.size != 1 and (axis != 1 or scale.shape != (features,)):
            return None
    shape = (inner // block, features)
    factors = np.broadcast_to(scale.reshape(-1, features if scale.size > 1 else 1), shape)
    zeros = np.zeros(scale.shape, np.int16) if points is None else points.astype(np.int16)
    zeros = np.broadcast_to(zeros.reshape(-1, features if zeros.size > 1 else 1), shape)
    numbers = (codes.astype(np.int16) + offset).astype(np.uint8).T.reshape(features, inner // block, block)
    return Weights(numbers, factors.T, (zeros.T + offset).astype(np.uint8), bits, inner)


def pack(codes: Array, width: int) -> Array:
    """Codes of (features, blocks, bytes) in panels."""
    features, blocks, length = codes.shape
    split = codes.reshape(features // width, width, blocks, length // 4, 4)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4))


def pack_factors(factors: Array, width: int) -> Array:
    """Numbers of (features, blocks), one a block, in panels."""
    return np.ascontiguousarray(factors.reshape(-1, width, factors.shape[1]).transpose(0, 2, 1))


def pack_bits(numbers: Array, bits: int) -> Array:
    """Numbers as bytes along the last dimension, low bits first."""
    each = 8 // bits
    parts = numbers.reshape(*numbers.shape[:-1], -1, each).astype(np.uint8)
    made = parts[..., 0]
    for place in range(1, each):
        made = made | parts[..., place] << np.uint8(place * bits)
    return np.asarray(made)


def unpack_bits(codes: Array, bits: int) -> Array:
    """The numbers along the last dimension of packed bytes, low bits first; signed bytes are 8-bit numbers already."""
    if bits == 8:
        return codes
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (codes[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*codes.shape[:-1], -1))
