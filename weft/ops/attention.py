"""Attention: scaled dot products of queries and keys, masked, made probabilities, and used to weigh values.

Tensors come as (batch, heads, length, size), or packed as (batch, length, heads * size); fewer key heads than query
heads are shared by neighbouring queries. The stages, in order, are also what the fourth output can show:
0 products, 1 after the soft cap, 2 with mask, 3 probabilities. A row whose keys are all masked gives zeros. A mask is
added, as ONNX says; a key hidden by cause, window or padding has no say, whatever it holds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import NUMPY_TYPES, Array, TensorType, Type, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import Shape, divided, plus, times, unknown_dim
from weft.graph.signature import OneOf
from weft.ops.elementwise_support import element_type, expect_broadcast, expect_shape, wide, wide_type, widen

_MINUS = float("-inf")


# ------------------------------------------------------------------------------------------------------------ types


def _heads(c: Use, name: str, kind: TensorType) -> tuple[Any, Any, Any, Any]:
    """(batch, heads, length, size) of a tensor, packed or not."""
    if kind.rank == 4:
        batch, heads, length, size = kind.dims
        return batch, heads, length, size
    if kind.rank != 3:
        raise c.error(f"its tensors must have 3 or 4 dimensions, not {kind!r}")
    count = int(c.need(name))
    if count < 1 or (isinstance(kind.dims[2], int) and kind.dims[2] % count):
        raise c.error(f"{count} heads do not divide the last dimension of {kind!r}")
    return kind.dims[0], count, kind.dims[1], divided(kind.dims[2], count)


def _infer(c: Infer) -> Sequence[Type]:
    query, key, value = c.tensor(0), c.tensor(1), c.tensor(2)
    if query.shape is None or key.shape is None or value.shape is None:
        kinds = [TensorType(k.dtype, None) for k in (query, query, value, query)]
        return kinds[: c.output_count]
    batch, q_heads, q_length, size = _heads(c, "q_num_heads", query)
    _, k_heads, k_length, _ = _heads(c, "kv_num_heads", key)
    _, _, _, v_size = _heads(c, "kv_num_heads", value)
    if isinstance(q_heads, int) and isinstance(k_heads, int) and (not k_heads or q_heads % k_heads):
        raise c.error(f"{q_heads} query heads cannot share {k_heads} key heads")
    total = _check_shapes(c, (batch, q_heads, q_length, size), (k_heads, k_length, v_size))
    if query.rank == 4:
        shape: Shape = (batch, q_heads, q_length, v_size)
    else:
        shape = (batch, q_length, times(q_heads, v_size))
    kinds = [
        TensorType(query.dtype, shape),
        TensorType(key.dtype, (batch, k_heads, total, size)),
        TensorType(value.dtype, (batch, k_heads, total, v_size)),
        TensorType(query.dtype, (batch, q_heads, q_length, total)),
    ]
    return kinds[: c.output_count]


def _check_shapes(c: Infer, query: Sequence[Any], key: Sequence[Any]) -> Any:
    """That the inputs fit together; returns how many keys there are, with those of the past."""
    (batch, heads, queries, size), (k_heads, length, v_size) = query, key
    packed = c.tensor(1).rank == 3
    for position, last in ((1, size), (2, v_size)):
        wanted = (batch, length, times(k_heads, last)) if packed else (batch, k_heads, length, last)
        expect_shape(c, position, wanted)
    total = length
    if c.has(4) != c.has(5):
        raise c.error("past keys and past values come together or not at all")
    if c.has(4):
        past = c.tensor(4).shape
        before = past[2] if past is not None and len(past) == 4 else unknown_dim("past")
        expect_shape(c, 4, (batch, k_heads, before, size))
        expect_shape(c, 5, (batch, k_heads, before, v_size))
        total = plus(before, length)
    expect_shape(c, 6, (batch,))
    mask = c.tensor(3).shape if c.has(3) else None
    if mask:
        last = mask[-1]
        short = isinstance(last, int) and isinstance(total, int) and 1 < last < total
        expect_broadcast(c, 3, (batch, heads, queries, last if short else total))
    return total


def _scale(c: Use, size: int) -> float:
    given = c.get("scale")
    return float(given) if given is not None else 1 / math.sqrt(max(size, 1))


# ---------------------------------------------------------------------------------------------------- numpy meaning


def _unpacked(c: Use, name: str, x: Array) -> Array:
    if x.ndim == 4:
        return x
    count = int(c.need(name))
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(0, 2, 1, 3)


def _allowed(c: Use, lengths: tuple[int, int], past: int | None, valid: Array | None) -> Array | None:
    """Which keys a query may see by cause, windows and padding; None where it sees all."""
    queries, keys = lengths
    left, right = int(c.get("left_window_size", -1)), int(c.get("right_window_size", -1))
    j, i = np.arange(keys), np.arange(queries)[:, None]
    offset: Any = 0 if past is None else past
    if past is None and valid is not None:
        offset = (valid.reshape(-1) - queries)[:, None, None, None]
    place = i + offset
    rules: list[Any] = [] if valid is None else [j < valid.reshape(-1)[:, None, None, None]]
    if c.get("is_causal", 0):
        rules.append(j <= place)
    if left >= 0:
        rules.append(j >= place - left)
    if right >= 0:
        rules.append(j <= place + right)
    return np.asarray(functools.reduce(np.logical_and, rules)) if rules else None


def _masked(scores: Array, mask: Array | None, seen: Array | None) -> Array:
    if mask is not None:
        missing = scores.shape[-1] - mask.shape[-1] if mask.ndim and mask.shape[-1] != 1 else 0
        if mask.dtype == np.bool_:
            bias = np.where(mask, np.array(0, scores.dtype), np.array(_MINUS, scores.dtype))
        else:
            bias = wide(mask).astype(scores.dtype)
        if missing > 0:
            bias = np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, missing)], constant_values=_MINUS)
        scores = scores + bias
    return scores if seen is None else np.where(seen, scores, np.array(_MINUS, scores.dtype))


def probabilities(scores: Array) -> Array:
    """Softmax over the last axis; a row of nothing but minus infinity becomes zeros."""
    if not scores.size:
        return scores
    top = scores.max(axis=-1, keepdims=True)
    grown = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = grown.sum(axis=-1, keepdims=True)
    return np.asarray(grown / np.where(total == 0, 1, total))


def _evaluate(
    c: Evaluate,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    valid: Array | None = None,
) -> Any:
    q, k, v = (_unpacked(c, n, x) for n, x in (("q_num_heads", query), ("kv_num_heads", key), ("kv_num_heads", value)))
    k = k if past_key is None else np.concatenate([past_key, k], axis=2)
    v = v if past_value is None else np.concatenate([past_value, v], axis=2)
    shared, root = q.shape[1] // k.shape[1], math.sqrt(abs(_scale(c, q.shape[3])))
    sign = math.copysign(1.0, _scale(c, q.shape[3]))
    wide_k, wide_v = (np.repeat(wide(x), shared, axis=1) for x in (k, v))
    stages = [(wide(q) * (root * sign)) @ (wide_k * root).swapaxes(-1, -2)]
    cap = c.get("softcap", 0.0)
    stages.append(np.asarray(cap * np.tanh(stages[0] / cap)) if cap else stages[0])
    past = None if past_key is None else past_key.shape[2]
    seen = _allowed(c, (q.shape[2], k.shape[2]), past, valid)
    stages.append(_masked(stages[1], mask, seen))
    precision = NUMPY_TYPES[element_type(c, "softmax_precision", dtype_name(stages[2].dtype))]
    stages.append(probabilities(wide(stages[2].astype(precision))).astype(stages[2].dtype))
    made = stages[3] @ wide_v
    if query.ndim == 3:
        made = made.transpose(0, 2, 1, 3).reshape(query.shape[0], query.shape[1], -1)
    shown = stages[int(c.get("qk_matmul_output_mode", 0))].astype(query.dtype)
    return (made.astype(query.dtype), k, v, shown)[: c.output_count]


# ------------------------------------------------------------------------------------------------ tensor expression

Reader = Callable[[Any, Any, Any, Any], Expr]


class _Sizes:
    """The sizes of one use; `keys` counts those of the past too."""

    __slots__ = ("batch", "heads", "key_heads", "queries", "keys", "past", "size", "value_size")

    def __init__(self, c: Compute) -> None:
        query, key, value = (c.types[i] for i in range(3))
        assert query is not None and key is not None and value is not None
        self.batch, self.heads, self.queries, self.size = _heads(c, "q_num_heads", query)
        _, self.key_heads, new, _ = _heads(c, "kv_num_heads", key)
        self.value_size = _heads(c, "kv_num_heads", value)[3]
        given = c.types[4] if len(c.types) > 4 else None
        self.past = given.static[2] if given is not None else 0
        self.keys = self.past + new


def _reader(tensor: te.Tensor, size: int) -> Reader:
    """Reads (batch, head, place, element) of a tensor, packed or not."""
    if len(tensor.shape) == 4:
        return lambda b, h, s, d: tensor[b, h, s, d]
    return lambda b, h, s, d: tensor[b, s, h * size + d]


def _present(sizes: _Sizes, size: int, new: Reader, past: te.Tensor | None, name: str) -> te.Tensor:
    """What was there before, and the new after it."""

    def body(b: Any, h: Any, s: Any, d: Any) -> Expr:
        if past is None:
            return new(b, h, s, d)
        return te.select(s < sizes.past, past[b, h, s, d], new(b, h, s - sizes.past, d))

    return te.stage((sizes.batch, sizes.key_heads, sizes.keys, size), body, name=name)


def _seen(c: Use, sizes: _Sizes, past: bool, valid: te.Tensor | None, at: Sequence[Any]) -> list[Expr]:
    """The conditions under which a query sees a key."""
    b, _, i, j = at
    left, right = int(c.get("left_window_size", -1)), int(c.get("right_window_size", -1))
    place = i + sizes.past
    conditions = []
    if valid is not None:
        conditions.append(j < valid[b])
        place = i if past else i + valid[b] - sizes.queries
    if c.get("is_causal", 0):
        conditions.append(j <= place)
    if left >= 0:
        conditions.append(j >= place - left)
    if right >= 0:
        conditions.append(j <= place + right)
    return conditions


def _bias(mask: te.Tensor, length: int, keys: int, kind: str, at: Sequence[Any]) -> Expr:
    """What a mask adds to a score; keys past its end are masked."""
    short = length not in (1, keys)
    value = te.broadcast_read(mask, (*at[:3], te.minimum(at[3], length - 1) if short else at[3]))
    nothing = te.const(_MINUS, kind)
    added = te.select(value, te.const(0, kind), nothing) if value.dtype.is_bool else value.astype(kind)
    return te.select(at[3] < length, added, nothing) if short else added


def probability_tensor(scores: te.Tensor, kind: str) -> te.Tensor:
    """Softmax over the last axis of four; a row of nothing but minus infinity becomes zeros."""
    shape = scores.shape
    place = [te.reduce_axis(shape[3], name=name) for name in ("top_key", "sum_key")]
    nothing, zero = te.const(_MINUS, kind), te.const(0, kind)
    top = te.compute(shape[:3], lambda b, h, i: te.max(scores[b, h, i, place[0]], axis=place[0]), name="top")

    def grow(b: Any, h: Any, i: Any, j: Any) -> Expr:
        score = scores[b, h, i, j]
        return te.select(te.equal(score, nothing), zero, te.exp(score - top[b, h, i]))

    grown = te.compute(shape, grow, name="grown")
    total = te.compute(shape[:3], lambda b, h, i: te.sum(grown[b, h, i, place[1]], axis=place[1]), name="total")

    def share(b: Any, h: Any, i: Any, j: Any) -> Expr:
        return te.select(te.equal(total[b, h, i], zero), zero, grown[b, h, i, j] / total[b, h, i])

    return te.stage(shape, share, name="probabilities")


def _compute(
    c: Compute,
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    mask: te.Tensor | None = None,
    past_key: te.Tensor | None = None,
    past_value: te.Tensor | None = None,
    valid: te.Tensor | None = None,
) -> Any:
    sizes, kind = _Sizes(c), wide_type(query.dtype.name)
    q, k, v = _reader(query, sizes.size), _reader(key, sizes.size), _reader(value, sizes.value_size)
    present = [
        _present(sizes, size, new, past, name)
        for size, new, past, name in (
            (sizes.size, k, past_key, "present_key"),
            (sizes.value_size, v, past_value, "present_value"),
        )
    ]
    if past_key is not None:
        k, v = _reader(present[0], sizes.size), _reader(present[1], sizes.value_size)
    shared, inner = sizes.heads // sizes.key_heads, te.reduce_axis(sizes.size, name="d")
    shape = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    # Queries are scaled, not their products: these may overflow where the scores do not, and a scaled product less the
    # greatest one, in one instruction, is not what the greatest one was rounded to. Narrow queries stay as they are,
    # for matrix instructions: their products are far from the end of the wide type's range.
    scale = te.const(_scale(c, sizes.size), kind)
    if query.dtype.name == kind:
        size = (sizes.batch, sizes.heads, sizes.queries, sizes.size)
        scaled = te.compute(size, lambda *at: q(*at) * scale, name="asked")
        q = _reader(scaled, sizes.size)

    def product(b: Any, h: Any, i: Any, j: Any) -> Any:
        return te.sum(widen(q(b, h, i, inner)) * widen(k(b, h // shared, j, inner)), axis=inner)

    products = te.compute(shape, product, name="products")
    if query.dtype.name != kind:
        sums = products
        products = te.compute(shape, lambda *at: sums[at] * scale, name="scaled")
    stages = _stages(c, sizes, products, mask, past_key is not None, valid, kind)
    precision = wide_type(element_type(c, "softmax_precision", kind))
    scores = te.compute(shape, lambda *at: stages[2](*at).astype(precision), name="scores")
    shares = probability_tensor(scores, precision)
    stages.append(lambda *at: shares[at])
    made = _weighed(c, sizes, shares, v, shared, kind)
    if len(c.outputs) == 1:
        return made
    outputs = [made, *present]
    if len(c.outputs) > 3:
        chosen = stages[int(c.get("qk_matmul_output_mode", 0))]
        outputs.append(te.compute(shape, lambda *at: chosen(*at), name="shown", dtype=c.outputs[3].dtype))
    return tuple(outputs[: len(c.outputs)])


def _stages(
    c: Compute, sizes: _Sizes, products: te.Tensor, mask: te.Tensor | None, past: bool, valid: Any, kind: str
) -> list[Callable[..., Expr]]:
    """Scaled products, the same after the soft cap, and after the mask."""
    cap = c.get("softcap", 0.0)

    def scaled(*at: Any) -> Expr:
        return products[at]

    def capped(*at: Any) -> Expr:
        return cap * te.tanh(products[at] / cap) if cap else products[at]

    def masked(*at: Any) -> Expr:
        score = capped(*at)
        if mask is not None:
            length = c.shape(3)[-1] if c.shape(3) else 1
            score = score + _bias(mask, length, sizes.keys, kind, at)
        conditions = _seen(c, sizes, past, valid, at)
        return te.select(te.all(*conditions), score, te.const(_MINUS, kind)) if conditions else score

    return [scaled, capped, masked]


def _weighed(c: Compute, sizes: _Sizes, shares: te.Tensor, v: Reader, shared: int, kind: str) -> te.Tensor:
    """The values, weighed by the probabilities, in the output's type and packing."""
    place = te.reduce_axis(sizes.keys, name="key")
    size = sizes.value_size

    def total(b: Any, h: Any, i: Any, d: Any) -> Any:
        return te.sum(shares[b, h, i, place].astype(kind) * v(b, h // shared, place, d).astype(kind), axis=place)

    made: te.Tensor = te.compute((sizes.batch, sizes.heads, sizes.queries, size), total, name="weighed")
    to = c.outputs[0].dtype
    if len(c.out_shape()) == 3:
        made_4d = made
        made = te.compute(
            c.out_shape(), lambda b, i, e: made_4d[b, e // size, i, e % size].astype(to), name="attention"
        )
    elif made.dtype.name != to:
        wide_made = made
        made = te.compute(c.out_shape(), lambda *at: wide_made[at].astype(to), name="attention")
    return made


register(
    "Attention",
    _infer,
    _evaluate,
    _compute,
    lambda node: "complex" if len(node.outputs) == 1 else "opaque",
    takes="Q:float, K:float, V:float, mask?, past_key:K?, past_value:V?, lengths:index?",
    requires=(OneOf("qk_matmul_output_mode", (0, 1, 2, 3)),),
    traits="attention heavy optional_outputs",
    multiplies=3,
)
