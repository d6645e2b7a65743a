"""GroupQueryAttention: attention of decoders, with a cache of keys and values.

A sequence b has seqlens_k[b] + 1 keys with those of this call, which are written behind the others: into a cache of
fixed capacity (past and present of one shape: a buffer that both share), or one that has grown by them. It is made of
ONNX's own operators for a static cache:

    present = TensorScatter(past, RotaryEmbedding(key, start + 0, 1, …), start)        start = seqlens_k + 1 - length
    output = Attention(RotaryEmbedding(query, …), present keys, present values, nonpad_kv_seqlen = start + length)

so that whatever holds for those (rows written in place, one kernel for attention) holds for it. The first prompt, where
total_sequence_length is the length of the query, starts at 0 whatever padding it ends in. Places of the cache that no
key was ever written to hold what they held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph.ir import TensorType, Type, Value
from weft.graph.opspec import Infer
from weft.graph.shapes import Shape, divided, times, unknown_dim
from weft.ops.expansion import Builder, Unexpanded
from weft.ops.microsoft_attention import joined
from weft.ops.microsoft_composition import compose

UNSUPPORTED = {"qk_output": 0, "kv_cache_bit_width": 0, "sliding_window_cache": 0, "causal": 1}
"""Attributes that must have these values."""


def _infer(c: Infer) -> Sequence[Type]:
    for name, wanted in UNSUPPORTED.items():
        if int(c.get(name, wanted)) != wanted:
            raise c.error(f"{name} = {c.get(name)} is not supported")
    if any(c.has(position) for position in range(12, 16)) or c.output_count > 3:
        raise c.error("quantized caches, norms of queries and keys, and the output of scores are not supported")
    if c.get("do_rotary", 0) and not (c.has(7) and c.has(8)):
        raise c.error("do_rotary needs the caches of cosines and sines")
    query = c.tensor(0)
    heads, shared = int(c.need("num_heads")), int(c.need("kv_num_heads"))
    if shared < 1 or heads < 1 or heads % shared:
        raise c.error(f"{heads} query heads cannot share {shared} key heads")
    if query.shape is None:
        return [TensorType(query.dtype, None)] * c.output_count
    if query.rank != 3 or c.has(1) != c.has(2) or c.has(3) != c.has(4):
        raise c.error("it takes queries of 3 dimensions; keys come with values, past keys with past values")
    batch, length, width = query.dims
    size = divided(width, heads if c.has(1) else heads + 2 * shared)
    present: Shape = (batch, shared, _capacity(c, length), size)
    kinds = [query.dtype, *(c.tensor(3).dtype if c.has(3) else query.dtype,) * 2]
    return [TensorType(k, s) for k, s in zip(kinds, [(batch, length, times(heads, size)), present, present])][
        : c.output_count
    ]


def _capacity(c: Infer, length: Any) -> Any:
    """Places in the present cache: those of the past, or as many as there are keys in all, whichever is more."""
    total = c.value(6)
    past = c.tensor(3).dims[2] if c.has(3) and c.tensor(3).shape is not None else 0 if not c.has(3) else None
    if total is None or not isinstance(past, int):
        return unknown_dim("present")
    return max(past, int(total.reshape(-1)[0]))


def _heads(b: Builder, x: Value, count: int) -> Value:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    split = b("Reshape", x, b.constant([0, 0, count, -1], "int64"))
    return b("Transpose", split, perm=[0, 2, 1, 3])


def _starts(b: Builder, lengths: Value, prompt: bool, length: int) -> Value:
    """Where the keys of this call begin in each sequence."""
    flat = b("Reshape", b.cast(lengths, "int64"), b.constant([-1], "int64"))
    if prompt:
        return b("Mul", flat, b.constant(0, "int64"))
    return b("Sub", flat, b.constant(length - 1, "int64"))


def _grown(b: Builder, past: Value | None, new: Value, capacity: int) -> Value:
    """The cache before this call, with the capacity that it has after it."""
    batch, heads, _, size = new.tensor.dims
    before = 0 if past is None else past.tensor.dims[2]
    if past is not None and before == capacity:
        return past
    assert isinstance(before, int) and isinstance(batch, int) and isinstance(size, int)
    zeros = b.zeros((batch, heads, capacity - before, size), new.tensor.dtype)
    return zeros if past is None or before == 0 else b("Concat", past, zeros, axis=2)


def _group_query(
    b: Builder,
    query: Value,
    key: Value | None,
    value: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    lengths: Value,
    total: Value,
    cosines: Value | None = None,
    sines: Value | None = None,
    places: Value | None = None,
    bias: Value | None = None,
    sink: Value | None = None,
    *rest: Value | None,
) -> Any:
    heads, shared = int(b.need("num_heads")), int(b.need("kv_num_heads"))
    length = query.tensor.dims[1]
    known_total = b.scope.constant(total)
    if known_total is None or not isinstance(length, int):
        raise Unexpanded
    whole = int(known_total.reshape(-1)[0])
    if key is None:
        size = divided(query.tensor.dims[2], heads + 2 * shared)
        widths = b.constant([times(n, size) for n in (heads, shared, shared)], "int64")
        query, key, value = b.several(3, "Split", query, widths, axis=2)
    assert query is not None and key is not None and value is not None
    q, k, v = _heads(b, query, heads), _heads(b, key, shared), _heads(b, value, shared)
    start = _starts(b, lengths, whole == length, length)
    if b.get("do_rotary", 0):
        assert cosines is not None and sines is not None
        if places is None or whole == length:  # of a first prompt only the place of the first token is taken
            row = b("Unsqueeze", b.range(length), b.constant([0], "int64"))
            first = b("Unsqueeze", start, b.constant([1], "int64"))
            if places is not None:
                zero, one = b.constant([0, 0], "int64"), b.constant([1, 1], "int64")
                first = b("Add", first, b("Slice", places, zero, one))
            places = b("Add", first, row)
        half = b.known(cosines.tensor.dims[1])
        options: dict[str, Any] = {"interleaved": int(b.get("rotary_interleaved", 0)), "rotary_embedding_dim": 2 * half}
        q, k = (b("RotaryEmbedding", x, cosines, sines, places, **options) for x in (q, k))
    past = 0 if past_key is None else past_key.tensor.dims[2]
    capacity = max(past, whole) if isinstance(past, int) else whole
    if past == 0 and whole == length:  # nothing is behind or before the new keys
        keys, values, known = k, v, None
    else:
        pairs = ((past_key, k), (past_value, v))
        keys, values = (b("TensorScatter", _grown(b, p, x, capacity), x, start, axis=2) for p, x in pairs)
        known = b("Add", start, b.constant(length, "int64"))
    if sink is not None or int(b.get("smooth_softmax", 0)) > 0:
        made = _with_sink(b, (q, keys, values), bias, sink, start)
    else:
        made = b("Attention", q, keys, values, _wide_bias(b, bias, capacity), None, None, known, **_options(b))
    return [joined(b, made), keys, values][: b.output_count]


def _options(b: Builder) -> dict[str, Any]:
    """Attributes of Attention."""
    window, scale, cap = int(b.get("local_window_size", -1)), float(b.get("scale", 0.0)), float(b.get("softcap", 0.0))
    return {
        "is_causal": 1,
        "scale": scale or None,
        "softcap": cap if cap > 0 else None,
        "left_window_size": window - 1 if window > 0 else None,
    }


def _wide_bias(b: Builder, bias: Value | None, capacity: int) -> Value | None:
    """What is added to scores; one column alone belongs to the first key, not to all of them."""
    if bias is None or bias.tensor.dims[-1] != 1 or capacity == 1:
        return bias
    pads = b.constant([0] * (2 * len(bias.tensor.dims) - 1) + [capacity - 1], "int64")
    return b("Pad", bias, pads)


def _with_sink(b: Builder, parts: Sequence[Value], bias: Value | None, sink: Value | None, start: Value) -> Value:
    """Attention whose probabilities have one share more, of a score that each head brings (0, where none is given)."""
    (q, keys, values), options = parts, _options(b)
    _, heads, length, size = q.tensor.static
    (_, shared, capacity, _), kind = keys.tensor.static, q.tensor.dtype
    q, keys, values = (b.cast(x, "float32") for x in (q, keys, values))
    shape = b.constant([0, shared, heads // shared * length, size], "int64")
    scale = options["scale"] or float(size) ** -0.5
    asked = b("Reshape", b("Mul", q, b.constant(scale, "float32")), shape)
    scores = b("MatMul", asked, b("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = b("Reshape", scores, b.constant([0, heads, length, capacity], "int64"))
    if options["softcap"]:
        cap = b.constant(options["softcap"], "float32")
        scores = b("Mul", b("Tanh", b("Div", scores, cap)), cap)
    if bias is not None:
        wide = b.cast(_wide_bias(b, bias, capacity) or bias, "float32")
        behind = capacity - wide.tensor.static[-1]
        pads = b.constant([0] * (2 * len(wide.tensor.dims) - 1) + [behind], "int64")
        scores = b("Add", scores, b("Pad", wide, pads) if behind else wide)
    place = b("Unsqueeze", start, b.constant([1, 2, 3], "int64"))
    place = b("Add", place, b("Unsqueeze", b.range(length), b.constant([0, 1, 3], "int64")))
    column = b("Unsqueeze", b.range(capacity), b.constant([0, 1, 2], "int64"))
    seen = b("LessOrEqual", column, place)
    if options["left_window_size"] is not None:
        first = b("Sub", place, b.constant(options["left_window_size"], "int64"))
        seen = b("And", seen, b("GreaterOrEqual", column, first))
    scores = b("Where", seen, scores, b.constant(float("-inf"), "float32"))
    own = b.zeros((1,), "float32") if sink is None else b.cast(sink, "float32")
    own = b("Reshape", own, b.constant([1, -1, 1, 1], "int64"))
    top = b("Max", b("ReduceMax", scores, b.constant([-1], "int64"), keepdims=1), own)
    power = b("Exp", b("Sub", scores, top))
    total = b("Add", b("ReduceSum", power, b.constant([-1], "int64"), keepdims=1), b("Exp", b("Sub", own, top)))
    shares = b("Reshape", b("Div", power, total), b.constant([0, shared, -1, capacity], "int64"))
    mixed = b("Reshape", b("MatMul", shares, values), b.constant([0, heads, length, size], "int64"))
    return b.cast(mixed, kind)


compose("GroupQueryAttention", _group_query, traits="heavy", infer=_infer)
