"""Converters of what works on sequences: attention, and recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontends.emit import Emitter, InTraining, Unsupported
from weft.frontends.torch.layers import linear
from weft.frontends.torch.table import aten
from weft.graph.ir import Value

# --------------------------------------------------------------------------------------------------------- attention


@aten("scaled_dot_product_attention")
def _attention(
    c: Emitter, query: Value, key: Value, value: Value, mask: Value | None = None, dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    if dropout:
        raise InTraining("attention with dropout")
    rank, sizes = query.tensor.rank, c.sizes(query)
    parts = [_four_axes(c, one) for one in (query, key, value)]
    if mask is not None and mask.tensor.rank > 2 and rank != 4:
        mask = _four_axes(c, mask) if mask.tensor.rank == rank else mask
        mask = c.unsqueeze(mask, 0) if mask.tensor.rank == 3 else mask
    if mask is not None and mask.tensor.dtype != "bool":
        mask = c.cast(mask, query.tensor.dtype)
    made = c.op("Attention", *parts, mask, is_causal=int(is_causal) or None, scale=scale)
    return made if rank == 4 else c.reshape(made, [*sizes[:-1], c.size(value, -1)])


def _four_axes(c: Emitter, x: Value) -> Value:
    """x as (batch, heads, length, size)."""
    sizes = c.sizes(x)
    if len(sizes) == 4:
        return x
    if len(sizes) < 4:
        return c.unsqueeze(x, *range(4 - len(sizes)))
    return c.reshape(x, [c.times(*sizes[:-3]), *sizes[-3:]])


@aten("_scaled_dot_product_flash_attention_for_cpu")
def _flash_attention(
    c: Emitter, query: Value, key: Value, value: Value, dropout: float = 0.0, is_causal: bool = False,
    *, attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, None]:  # fmt: skip
    return _attention(c, query, key, value, attn_mask, dropout, is_causal, scale=scale), None


def _heads(c: Emitter, x: Value, width: int, heads: int) -> list[Value]:
    """Queries, keys and values of packed projections, (batch, length, 3 width) to (batch, heads, length, size) each."""
    batch, length, _ = c.sizes(x)
    split = c.reshape(x, [batch, length, 3, heads, width // heads])
    parts = c.several(3, "Split", c.transpose(split, [2, 0, 3, 1, 4]), axis=0, num_outputs=3)
    return [c.squeeze(one, 0) for one in parts]


@aten("_native_multi_head_attention")
def _multi_head(
    c: Emitter, query: Value, key: Value, value: Value, width: int, heads: int, qkv_weight: Value, qkv_bias: Value,
    weight: Value, bias: Value, mask: Value | None = None, need_weights: bool = True, average: bool = True,
    mask_type: int | None = None,
) -> tuple[Value, None]:  # fmt: skip
    """The fast way of nn.MultiheadAttention: masks are true where a key is hidden."""
    if query is not key or key is not value or need_weights:
        raise Unsupported("the fast way of nn.MultiheadAttention for other than self-attention without its weights")
    if mask is not None:
        if mask_type not in (0, 1) or mask.tensor.dtype != "bool":
            raise Unsupported("a mask of the fast way of nn.MultiheadAttention that is for both keys and queries")
        mask = c.invert(c.unsqueeze(mask, 1, 2) if mask_type == 1 else mask)
    q, k, v = _heads(c, linear(c, query, qkv_weight, qkv_bias), width, heads)
    made = c.transpose(_attention(c, q, k, v, mask), [0, 2, 1, 3])
    return linear(c, c.reshape(made, c.sizes(query)), weight, bias), None


@aten("_transformer_encoder_layer_fwd")
def _encoder_layer(
    c: Emitter, x: Value, width: int, heads: int, qkv_weight: Value, qkv_bias: Value, weight: Value, bias: Value,
    use_gelu: bool, norm_first: bool, eps: float, scale_1: Value, shift_1: Value, scale_2: Value, shift_2: Value,
    up: Value, up_bias: Value, down: Value, down_bias: Value, mask: Value | None = None, mask_type: int | None = None,
) -> Value:  # fmt: skip
    """The fast way of nn.TransformerEncoderLayer."""

    def norm(one: Value, scale: Value, shift: Value) -> Value:
        return c.op("LayerNormalization", one, scale, shift, axis=-1, epsilon=eps)

    def attend(one: Value) -> Value:
        given = (qkv_weight, qkv_bias, weight, bias, mask, False, True, mask_type)
        return _multi_head(c, one, one, one, width, heads, *given)[0]

    def feed(one: Value) -> Value:
        return linear(c, c.op("Gelu" if use_gelu else "Relu", linear(c, one, up, up_bias)), down, down_bias)

    if norm_first:
        x = c.op("Add", x, attend(norm(x, scale_1, shift_1)))
        return c.op("Add", x, feed(norm(x, scale_2, shift_2)))
    x = norm(c.op("Add", x, attend(x)), scale_1, shift_1)
    return norm(c.op("Add", x, feed(x)), scale_2, shift_2)


# --------------------------------------------------------------------------------------------------------- recurrent


def _in_order(c: Emitter, weight: Value, order: Sequence[int]) -> Value:
    """A weight whose gates stand one after the other, with the gates in the order of ONNX."""
    if list(order) == list(range(len(order))):
        return weight
    gates = c.several(len(order), "Split", weight, axis=0, num_outputs=len(order))
    return c.concat([gates[at] for at in order], 0)


def _layer(
    c: Emitter, op: str, x: Value, states: Sequence[Value], weights: Sequence[Sequence[Value]], order: Sequence[int],
    **attributes: Any,
) -> list[Value]:  # fmt: skip
    """One layer in one or both directions: `weights` are those of each direction, (W, R) or (W, R, Wb, Rb)."""

    def stacked(parts: Sequence[Value]) -> Value:
        return c.concat([c.unsqueeze(one, 0) for one in parts], 0)

    turned = [[_in_order(c, one, order) for one in way] for way in weights]
    w, r = (stacked([way[at] for way in turned]) for at in (0, 1))
    bias = stacked([c.concat(way[2:], 0) for way in turned]) if len(turned[0]) > 2 else None
    hidden = weights[0][1].tensor.static[1]
    direction = "bidirectional" if len(weights) == 2 else "forward"
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * len(weights)
    given = {"hidden_size": hidden, "direction": direction, **attributes}
    made = c.several(1 + len(states), op, x, w, r, bias, None, *states, **given)
    time, ways, batch, width = c.sizes(made[0])
    made[0] = c.reshape(c.transpose(made[0], [0, 2, 1, 3]), [time, batch, c.times(ways, width)])
    return made


def _recurrent(op: str, order: Sequence[int], **attributes: Any) -> Any:
    def converter(
        c: Emitter, x: Value, state: Any, weights: Sequence[Value], has_biases: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool = False,
    ) -> tuple[Value, ...]:  # fmt: skip
        if train and dropout:
            raise InTraining("a recurrent layer with dropout")
        if isinstance(batch_first, Value) or not isinstance(has_biases, bool):
            raise Unsupported("a packed sequence: pad it, and mask what lies beyond the lengths")
        states = list(state) if isinstance(state, (list, tuple)) else [state]
        ways, each = 2 if bidirectional else 1, 4 if has_biases else 2
        if len(weights) != layers * ways * each:
            raise Unsupported("a recurrent layer with projections (proj_size)")
        unbatched = x.tensor.rank == 2
        if unbatched:
            x, states = c.unsqueeze(x, 1), [c.unsqueeze(one, 1) for one in states]
            batch_first = False
        x = c.swap(x, 0, 1) if batch_first else x
        ends: list[list[Value]] = [[] for _ in states]
        groups = [list(weights[at : at + each]) for at in range(0, len(weights), each)]
        for layer in range(layers):
            low = layer * ways
            firsts = [one if layers == 1 else c.slice(one, 0, low, low + ways) for one in states]
            x, *after = _layer(c, op, x, firsts, groups[low : low + ways], order, **attributes)
            for end, one in zip(ends, after):
                end.append(one)
        x = c.swap(x, 0, 1) if batch_first else x
        made = [x, *(c.concat(end, 0) for end in ends)]
        return tuple(c.squeeze(one, 1) for one in made) if unbatched else tuple(made)

    return converter


aten("lstm.input")(_recurrent("LSTM", [0, 3, 1, 2]))  # torch has input, forget, cell, output; ONNX input, output, …
aten("gru.input")(_recurrent("GRU", [1, 0, 2], linear_before_reset=1))
aten("rnn_tanh.input")(_recurrent("RNN", [0], activations=["Tanh"]))
aten("rnn_relu.input")(_recurrent("RNN", [0], activations=["Relu"]))
