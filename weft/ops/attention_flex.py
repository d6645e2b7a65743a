"""FlexAttention (ai.onnx.preview): attention whose scores and probabilities pass through subgraphs of the user's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.graph.ir import Graph, TensorType, Type, Value
from weft.graph.opspec import Infer
from weft.graph.passes.fold import inlined
from weft.ops.elementwise_support import element_type, wide_type
from weft.ops.expansion import Builder, compose


def _infer(c: Infer) -> Sequence[Type]:
    query, value = c.tensor(0), c.tensor(2)
    if query.shape is None or value.shape is None:
        return [TensorType(query.dtype, None)]
    heads, shared = value.dims[1], query.dims[1]
    if isinstance(heads, int) and isinstance(shared, int) and (not heads or shared % heads):
        raise c.error(f"{shared} query heads cannot share {heads} key heads")
    return [TensorType(query.dtype, (*query.dims[:3], value.dims[3]))]


def _attention(b: Builder, query: Value, key: Value, value: Value) -> Value:
    """Two products with a softmax between; the subgraphs see scores and probabilities in `softmax_precision`."""
    wide = wide_type(query.tensor.dtype)
    precision = element_type(b.use, "softmax_precision", wide)
    scale, size = b.get("scale"), b.dims(query)[3]
    factor = float(scale) if scale is not None else 1 / math.sqrt(b.known(size))
    products = _of_heads(b, b.cast(query, wide), b("Transpose", b.cast(key, wide), perm=[0, 1, 3, 2]))
    scores = b.cast(b("Mul", products, b.constant(factor, wide)), precision)
    shares = b("Softmax", _modified(b, "score_mod", scores), axis=-1)
    shares = b.cast(_modified(b, "prob_mod", shares), wide_type(value.tensor.dtype))
    return b.cast(_of_heads(b, shares, b.cast(value, shares.tensor.dtype)), query.tensor.dtype)


def _of_heads(b: Builder, x: Value, y: Value) -> Value:
    """The product of x with y, whose heads neighbours share: rows of one matrix."""
    heads, own = b.known(b.dims(x)[1]), b.known(b.dims(y)[1])
    if heads == own:
        return b("MatMul", x, y)
    together = b("Reshape", x, b.constant([0, own, -1, 0], "int64"))
    return b("Reshape", b("MatMul", together, y), b.constant([0, heads, -1, 0], "int64"))


def _modified(b: Builder, name: str, x: Value) -> Value:
    """What a subgraph makes of a value, where there is one."""
    body = b.get(name)
    if not isinstance(body, Graph):
        return x
    made = Value(b.scope.names.fresh(f"{b.node.outputs[0].name}_{name}"), x.type)
    b.scope.pending += inlined(b.node.replace(outputs=[made]), body, [x], b.scope)
    return made


compose(
    "FlexAttention",
    _attention,
    domain="ai.onnx.preview",
    infer=_infer,
    takes="Q:float[b _ q e], K:float[b h k e], V:float[b h k v]",
    by_value=False,
)
