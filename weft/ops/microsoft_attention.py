"""com.microsoft's attention layers, by way of ONNX's Attention: Attention, MultiHeadAttention and QAttention."""

from __future__ import annotations

from typing import Any

from weft.graph.ir import Value
from weft.graph.shapes import plus
from weft.ops.expansion import Builder
from weft.ops.microsoft_composition import compose
from weft.ops.microsoft_quantized import real_product


def _axes(b: Builder, *axes: int) -> Value:
    return b.constant(list(axes), "int64")


def _heads(b: Builder, x: Value) -> Value:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    split = b("Reshape", x, b.constant([0, 0, int(b.need("num_heads")), -1], "int64"))
    return b("Transpose", split, perm=[0, 2, 1, 3])


def joined(b: Builder, x: Value) -> Value:
    """(batch, heads, length, size) as (batch, length, heads * size)."""
    return b("Reshape", b("Transpose", x, perm=[0, 2, 1, 3]), b.constant([0, 0, -1], "int64"))


def _mask(b: Builder, mask: Value | None, bias: Value | None, keys: Any, dtype: str) -> Value | None:
    """The number added to each score: a large negative one where the mask is 0, and the node's own bias."""
    if mask is None:
        return bias
    rank = len(mask.tensor.dims)
    if rank == 1:
        if "int32" != mask.tensor.dtype:
            raise b.error(f"a mask of {mask.type!r} is not supported")
        # One number for each sequence: how many of its keys count.
        inside = b("Less", b.cast(b.range(keys), "int32"), b("Unsqueeze", mask, _axes(b, 1)))
        mask, rank = b.cast(inside, "int32"), 2
    if rank not in (2, 3):
        raise b.error(f"a mask of {mask.type!r} is not supported")
    wide = b("Unsqueeze", b.cast(mask, dtype), _axes(b, 1, 2) if rank == 2 else _axes(b, 1))
    off = b("Sub", b.constant(1.0, dtype), wide)
    made = b("Mul", off, b.constant(float(b.get("mask_filter_value", -10000.0)), dtype))
    return made if bias is None else b("Add", made, bias)


def _attend(b: Builder, q: Value, k: Value, v: Value, mask: Any, bias: Any, past: tuple[Any, Any]) -> list[Value]:
    """Attention of heads, joined, and the keys and values with those of the past."""
    keys = k.tensor.dims[2] if past[0] is None else plus(past[0].tensor.dims[2], k.tensor.dims[2])
    added = _mask(b, mask, bias, keys, q.tensor.dtype)
    scale = b.get("scale")
    causal = int(b.get("unidirectional", 0)) if q.tensor.dims[2] != 1 else 0  # a query alone sees all keys
    options: dict[str, Any] = {"is_causal": causal, "scale": float(scale) if scale else None}
    if past[0] is None:
        return [joined(b, b("Attention", q, k, v, added, **options)), k, v]
    made = b.several(3, "Attention", q, k, v, added, *past, **options)
    return [joined(b, made[0]), made[1], made[2]]


def _self_attention(b: Builder, packed: Value, mask: Any, past: Value | None, bias: Value | None) -> Any:
    """Attention of one tensor that holds queries, keys and values side by side."""
    sizes = b.get("qkv_hidden_sizes")
    if sizes:
        parts = b.several(3, "Split", packed, b.constant(list(sizes), "int64"), axis=2)
    else:
        parts = b.several(3, "Split", packed, axis=2, num_outputs=3)
    q, k, v = [_heads(b, part) for part in parts]
    before: tuple[Any, Any] = (None, None)
    if past is not None:
        before = (b("Gather", past, b.constant(0, "int64")), b("Gather", past, b.constant(1, "int64")))
    made = _attend(b, q, k, v, mask, bias, before)
    if b.output_count == 1:
        return made[0]
    return made[0], b("Concat", *[b("Unsqueeze", part, _axes(b, 0)) for part in made[1:]], axis=0)


def _attention(
    b: Builder,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    past: Value | None = None,
    added: Value | None = None,
    *rest: Value | None,
) -> Any:
    if b.get("do_rotary", 0) or b.get("past_present_share_buffer", 0):
        raise b.error("do_rotary and past_present_share_buffer are not supported")
    packed = b("MatMul", x, weights)
    return _self_attention(b, packed if bias is None else b("Add", packed, bias), mask, past, added)


def _quantized(
    b: Builder,
    x: Value,
    weights: Value,
    bias: Value,
    x_scale: Value,
    w_scale: Value,
    mask: Value | None = None,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    past: Value | None = None,
) -> Any:
    packed = real_product(b, x, weights, x_scale, w_scale, x_zero, w_zero, bias)
    return _self_attention(b, packed, mask, past, None)


def _multi_head(b: Builder, *inputs: Value | None) -> Any:
    query, key, value, bias, mask, added, past_key, past_value = [*inputs, *[None] * 8][:8]
    if query is None or key is None or value is None or len(query.tensor.dims) != 3 or b.output_count > 3:
        raise b.error("it is supported with three separate inputs of query, key and value")
    if any(p is not None for p in inputs[8:]):
        raise b.error("shared buffers and beams are not supported")
    if bias is not None:
        if len(key.tensor.dims) != 3:
            raise b.error("a bias of keys that are in heads already is not supported")
        widths = b.constant([query.tensor.dims[2], key.tensor.dims[2], value.tensor.dims[2]], "int64")
        parts = b.several(3, "Split", bias, widths, axis=0)
        query, key, value = [b("Add", x, part) for x, part in zip((query, key, value), parts)]
    assert query is not None and key is not None and value is not None
    heads = [x if len(x.tensor.dims) == 4 else _heads(b, x) for x in (query, key, value)]
    made = _attend(b, heads[0], heads[1], heads[2], mask, added, (past_key, past_value))
    return made[: b.output_count]


compose("Attention", _attention, traits="heavy")
compose("QAttention", _quantized)
compose("MultiHeadAttention", _multi_head)
