"""DynamicQuantizeLSTM: an LSTM with 8-bit weights, whose inputs and states are quantized as they come.

The whole input is quantized once for its product, the hidden state of all sequences at every step. (ONNX Runtime does
so with one thread; with more it shares the sequences out and quantizes each share over its own range, so that its
answers depend on the number of threads, by about 1e-3.) Weights lie as (direction, input, gate); scales and zero points
are one for each direction, or one for each direction and gate. It is made of a product of bytes and a
recurrence (`recurrent_quantized.py`), which constant weights are laid out for.
"""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Array, Node, TensorType, Type, Value
from weft.graph.opspec import Infer, register
from weft.graph.passes.support import Replacement, Scope
from weft.ops.expansion import Builder, by_expansion
from weft.ops.microsoft_composition import DOMAIN
from weft.ops.recurrent import directions, output_types
from weft.ops.recurrent_activations import read_activations


def _infer(c: Infer) -> list[Type]:
    x, r = c.tensor(0), c.tensor(2)
    read_activations(c, len(directions(c)), 3)
    if x.shape is None or r.shape is None:
        return [TensorType("float32", None) for _ in c.node.outputs]
    return output_types(c, x, r.dims[1], 2)


def _expand(node: Node, scope: Scope) -> Replacement:
    """A product of the whole input, and the recurrence; for weights that are constant."""
    x, *_ = given = [*node.inputs, *[None] * 12][:12]
    arrays = [scope.constant(value) for value in given]
    w, r, b = arrays[1:4]
    ends = [None if a is None else np.asarray(a) for a in arrays[8:]]
    attributes = {key: value for key, value in node.attributes.items() if key != "hidden_size"}
    if x is None or w is None or r is None or any(e is None for e in ends) or node.attributes.get("layout", 0):
        return None
    if (given[3] is not None and b is None) or w.ndim != 3 or r.ndim != 3 or w.dtype.kind not in "iu":
        return None
    count, _, width = w.shape
    w_scale, w_zero, r_scale, r_zero = (_by_gate(e, count, width) for e in ends if e is not None)
    bias = np.zeros((count, width), np.float32) if b is None else b[:, :width] + b[:, width:]
    gates = _projected(Builder(node, scope), x, *_signed(w, w_zero), w_scale, bias)
    weights, zero = _signed(r, r_zero)
    own = [scope.new_constant(a, "recurrent") for a in (r_scale, weights, weights.sum(axis=1, dtype=np.int32))]
    rest = [None if zero is None else scope.new_constant(zero, "zero"), *given[4:8]]
    return [Node("QuantizedLSTM", [gates, *own, *rest], node.outputs, attributes, node.name, node.origin, "weft")]


def _projected(b: Builder, x: Value, weights: Array, zero: Array | None, scale: Array, bias: Array) -> Value:
    """The input's part of every gate: a product of bytes, less what the zero points add to it, as real numbers."""
    count, features, width = weights.shape
    columns = weights.transpose(1, 0, 2).reshape(features, count * width)
    codes, unit, start = b.scope.make_all(b.node, "DynamicQuantizeLinear", [x], 3)
    start = b.cast(start, "int32")
    total = b("MatMulInteger", codes, b.constant(columns, None))
    total = b("Sub", total, b("Mul", start, b.constant(columns.sum(axis=0, dtype=np.int32), None)))
    if zero is not None:
        row = b("ReduceSum", b.cast(codes, "int32"), b.constant([-1], np.int64), keepdims=1)
        row = b("Sub", row, b("Mul", start, b.constant(features, np.int32)))
        total = b("Sub", total, b("Mul", row, b.constant(zero.reshape(-1), None)))
    real = b("Mul", b.cast(total, "float32"), b("Mul", unit, b.constant(scale.reshape(-1), None)))
    return b("Add", real, b.constant(bias.reshape(-1), None))


def _by_gate(end: Array, count: int, width: int) -> Array:
    """A scale or zero point for each direction and gate, from one for each direction, or for each of both."""
    return np.ascontiguousarray(np.broadcast_to(end.reshape(count, -1), (count, width)))


def _signed(weights: Array, zero: Array) -> tuple[Array, Array | None]:
    """Weights as signed bytes, and their zero points; None where these are 0."""
    wide, points = weights.astype(np.int32), zero.astype(np.int32)
    less = wide - points[:, None, :]
    if less.min(initial=0) >= -128 and less.max(initial=0) <= 127:
        return less.astype(np.int8), None
    shift = 0 if weights.dtype == np.int8 else 128
    return (wide - shift).astype(np.int8), points - shift


register(
    "DynamicQuantizeLSTM",
    _infer,
    by_expansion(_expand, by_value=True),
    domain=DOMAIN,
    expand=_expand,
    takes="X:float32[_ _ i], W:int8|uint8[d i 4*h], R:W[d h 4*h], B:float32[d 8*h]?, sequence_lens:int[_]?, "
    "initial_h:float32[_ _ h]?, initial_c:float32[_ _ h]?, P:float32[d 3*h]?, W_scale:float32[d]|[d 4*h], "
    "W_zero_point:W[d]|[d 4*h], R_scale:float32[d]|[d 4*h], R_zero_point:W[d]|[d 4*h]",
)
