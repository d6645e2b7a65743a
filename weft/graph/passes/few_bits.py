"""Products with weights of few bits, in the form that a machine's dot products of bytes take.

    %y = MatMulNBits(%x, const codes, const scales, const zeros)    ->    %y = weft.FewBitsMatMul(%x, panels…)

The weights are put into panels when the model is compiled (weft/ops/few_bits.py). How wide those are, and whether the
instruction wants signed or unsigned bytes beside signed digits, a callback says; None leaves the product as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite

NAME, DOMAIN = "FewBitsMatMul", "weft"

Propose = Callable[[int, int], "tuple[str, int] | None"]
"""For a product of so many rows and columns: the type of the bytes that weights become, and the width of a panel."""


def few_bits(graph: Graph, propose: Propose) -> Graph:
    """The graph with such products in panels; the same object where there are none."""
    if not any(node.op == "MatMulNBits" for node in graph.nodes):
        return graph
    made, changed = rewrite(graph, lambda node, scope: _panels(node, scope, propose))
    return infer(dead(made)) if changed else graph


def _panels(node: Node, scope: Scope, propose: Propose) -> Replacement:
    if node.op != "MatMulNBits" or node.domain != "com.microsoft":
        return None
    x, codes, scales, zeros, order, bias = [*node.inputs, *[None] * 6][:6]
    arrays = [scope.constant(value) for value in (codes, scales, zeros)]
    if x is None or arrays[0] is None or arrays[1] is None or (zeros is not None and arrays[2] is None):
        return None
    inner, features, bits, block = (int(node.attributes.get(name, 4)) for name in ("K", "N", "bits", "block_size"))
    if order is not None or block * bits % 32 or not isinstance(x.type, TensorType) or not x.type.is_static:
        return None
    found = propose(math.prod(x.type.static[:-1]), features)
    if found is None:
        return None
    kind, width = found
    blocks = -(-inner // block)
    bytes_ = arrays[0].reshape(features, blocks, -1)
    shift: Any = 128 if bits == 8 and kind == "int8" else 0
    if shift:
        bytes_ = (bytes_ ^ np.uint8(128)).view(np.int8)
    attributes = {"K": inner, "N": features, "bits": bits, "block_size": block, "width": width, "kind": kind}
    inputs = [x, pack(bytes_, width), pack_factors(arrays[1].reshape(features, blocks), width)]
    if zeros is None:
        attributes["zero"] = float((1 << (bits - 1)) - shift)
    else:
        inputs.append(pack_factors(_zeros(arrays[2], bits, features, blocks, shift), width))
    given = [x, *(scope.new_constant(array, f"{node.outputs[0].name}_panels") for array in inputs[1:])]
    given += [None] * (4 - len(given)) + [bias]
    return [Node(NAME, given, node.outputs, attributes, node.name, node.origin, DOMAIN)]


def _zeros(zeros: Array | None, bits: int, features: int, blocks: int, shift: int) -> Array:
    """Zero points as (features, blocks): bytes, or floats as they are."""
    assert zeros is not None
    if zeros.dtype != np.uint8:
        return np.asarray(zeros.reshape(features, blocks) - zeros.dtype.type(shift))
    numbers = unpack_bits(zeros.reshape(features, -1), bits)[:, :blocks]
    return (numbers.astype(np.int16) - shift).astype(np.int8) if shift else numbers


def pack(codes: Array, width: int) -> Array:
    """Codes of (features, blocks, bytes) in panels."""
    features, blocks, length = codes.shape
    split = codes.reshape(features // width, width, blocks, length // 4, 4)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4))


def pack_factors(factors: Array, width: int) -> Array:
    """Numbers of (features, blocks), one a block, in panels."""
    return np.ascontiguousarray(factors.reshape(-1, width, factors.shape[1]).transpose(0, 2, 1))


def unpack_bits(codes: Array, bits: int) -> Array:
    """The numbers along the last dimension of packed bytes, low bits first; signed bytes are 8-bit numbers already."""
    if bits == 8:
        return codes
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (codes[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*codes.shape[:-1], -1))
