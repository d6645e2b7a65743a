"""FlexAttention (ai.onnx.preview): attention whose scores and probabilities pass through subgraphs of the user's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.graph.ir import NUMPY_TYPES, Array, TensorType, Type, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.ops.activations_softmax import softmax_array, softmax_tensor
from weft.ops.elementwise_support import element_type, wide, wide_type, widen


def _infer(c: Infer) -> Sequence[Type]:
    query, value = c.tensor(0), c.tensor(2)
    if query.shape is None or value.shape is None:
        return [TensorType(query.dtype, None)]
    heads, shared = value.dims[1], query.dims[1]
    if isinstance(heads, int) and isinstance(shared, int) and (not heads or shared % heads):
        raise c.error(f"{shared} query heads cannot share {heads} key heads")
    return [TensorType(query.dtype, (*query.dims[:3], value.dims[3]))]


def _precision(c: Use, dtype: str) -> str:
    """The type of scores and probabilities, which the subgraphs see."""
    return element_type(c, "softmax_precision", wide_type(dtype))


def _scale(c: Use, size: int) -> float:
    given = c.get("scale")
    return float(given) if given is not None else 1 / math.sqrt(size)


def _evaluate(c: Evaluate, query: Array, key: Array, value: Array) -> Array:
    kind = NUMPY_TYPES[_precision(c, dtype_name(query.dtype))]
    shared = query.shape[1] // key.shape[1]
    k, v = (np.repeat(wide(x), shared, axis=1) for x in (key, value))
    scores = ((wide(query) @ k.swapaxes(-1, -2)) * _scale(c, query.shape[3])).astype(kind)
    if c.get("score_mod") is not None:
        scores = c.run(c.get("score_mod"), [scores])[0]
    shares = softmax_array(wide(scores), 3).astype(kind)
    if c.get("prob_mod") is not None:
        shares = c.run(c.get("prob_mod"), [shares])[0]
    return np.asarray(wide(shares).astype(v.dtype) @ v).astype(query.dtype)


def _compute(c: Compute, query: te.Tensor, key: te.Tensor, value: te.Tensor) -> te.Tensor | None:
    if c.node.graphs:
        return None  # what the subgraphs do is known to the host
    batch, heads, queries, size = c.shape(0)
    keys, shared = c.shape(1)[2], heads // c.shape(1)[1]
    kind, scale = wide_type(_precision(c, query.dtype.name)), _scale(c, size)
    inner, place = te.reduce_axis(size, name="d"), te.reduce_axis(keys, name="key")

    def product(b: Any, h: Any, i: Any, j: Any) -> Any:
        return te.sum(widen(query[b, h, i, inner]) * widen(key[b, h // shared, j, inner]), axis=inner)

    products = te.compute((batch, heads, queries, keys), product, name="products")
    scores = te.compute(products.shape, lambda *i: (products[i] * scale).astype(kind), name="scores")
    shares = softmax_tensor(scores, 3, kind)
    wide_kind = wide_type(value.dtype.name)

    def weigh(b: Any, h: Any, i: Any, d: Any) -> Any:
        return te.sum(shares[b, h, i, place].astype(wide_kind) * widen(value[b, h // shared, place, d]), axis=place)

    total = te.compute(c.out_shape(), weigh, name="weighed")

    return te.stage(c.out_shape(), lambda *i: total[i].astype(query.dtype), name="flex_attention")


register(
    "FlexAttention",
    _infer,
    _evaluate,
    _compute,
    "opaque",
    domain="ai.onnx.preview",
    takes="Q:float[b _ q e], K:float[b h k e], V:float[b h k v]",
)
