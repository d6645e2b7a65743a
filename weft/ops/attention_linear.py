"""LinearAttention: a state of keys by values that every token decays, corrects and reads.

    S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - exp(g_t) S_{t-1}^T k_t)      o_t = scale q_t^T S_t

"gated_delta" is the whole rule; "gated" does not correct, "delta" does not decay, "linear" does neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, Use, register
from weft.graph.shapes import divided, times
from weft.ops.elementwise_support import kernel, wide, widen

_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""Whether a rule decays the state, and whether it corrects it."""


def _rule(c: Use) -> tuple[bool, bool]:
    name = c.get("update_rule", "gated_delta")
    if name not in _RULES:
        raise c.error(f"its update rule must be one of {', '.join(_RULES)}, not {name!r}")
    return _RULES[name]


def _infer(c: Infer) -> Sequence[Type]:
    query, key, value = (c.tensor(i) for i in range(3))
    heads, shared = int(c.need("kv_num_heads")), int(c.need("q_num_heads"))
    if heads < 1 or shared % heads:
        raise c.error(f"{shared} query heads cannot share {heads} key heads")
    for wanted, position, what in zip(_rule(c), (4, 5), ("decay", "beta")):
        if wanted and not c.has(position):
            raise c.error(f"its update rule needs the input {what}")
    state = c.tensor(3).dtype if c.has(3) else query.dtype
    if query.shape is None or key.shape is None or value.shape is None:
        return [TensorType(query.dtype, None), TensorType(state, None)][: c.output_count]
    batch, length, _ = query.dims
    key_size, value_size = divided(key.dims[2], heads), divided(value.dims[2], heads)
    kinds = [
        TensorType(query.dtype, (batch, length, times(shared, value_size))),
        TensorType(state, (batch, heads, key_size, value_size)),
    ]
    return kinds[: c.output_count]


def _scale(c: Use, key_size: int) -> float:
    return float(c.get("scale", 0.0)) or 1 / math.sqrt(key_size)


def _split(x: Array, heads: int) -> Array:
    """(length, batch, heads, size)."""
    return wide(x).reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 0, 2, 3)


def _evaluate(
    c: Evaluate,
    query: Array,
    key: Array,
    value: Array,
    past: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> Any:
    heads, shared = int(c.need("kv_num_heads")), int(c.need("q_num_heads"))
    decays, corrects = _rule(c)
    q, k, v = _split(query, shared), _split(key, heads), _split(value, heads)
    gates = np.exp(_split(decay, heads)) if decays and decay is not None else None  # one a head, or one a key element
    rates = _split(beta, beta.shape[2]) if corrects and beta is not None else None
    state = np.zeros((*k.shape[1:], v.shape[3]), k.dtype) if past is None else wide(past)
    outputs = []
    for t in range(len(q)):
        state = state if gates is None else state * gates[t][..., None]
        added = v[t]
        if rates is not None:
            added = (added - np.einsum("bhkv,bhk->bhv", state, k[t])) * rates[t]
        state = state + k[t][..., None] * added[..., None, :]
        outputs.append(np.einsum("bhkv,bhk->bhv", np.repeat(state, shared // heads, axis=1), q[t]))
    made = np.stack(outputs, axis=1) if outputs else np.zeros((query.shape[0], 0, shared, v.shape[3]), k.dtype)
    made = (made * _scale(c, k.shape[3])).reshape(query.shape[0], query.shape[1], -1).astype(query.dtype)
    return (np.asarray(made), state.astype(query.dtype if past is None else past.dtype))[: c.output_count]


# ------------------------------------------------------------------------------------------------ tensor expression


@kernel
def _compute(
    c: Compute,
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    past: te.Tensor | None = None,
    decay: te.Tensor | None = None,
    beta: te.Tensor | None = None,
) -> Any:
    """A recurrence over tokens for the rules that only add; one that corrects reads its whole state, on the host."""
    decays, corrects = _rule(c)
    if corrects:
        return None
    batch, length, _ = c.shape(0)
    heads, shared = int(c.need("kv_num_heads")), int(c.need("q_num_heads"))
    keys, values = c.shape(1)[2] // heads, c.shape(2)[2] // heads
    gate_size = c.shape(4)[2] // heads if decays else 1

    def gate(t: Any, b: Any, h: Any, d: Any) -> Expr:
        assert decay is not None
        return te.exp(widen(decay[b, t, h * gate_size + (d if gate_size > 1 else 0)]))

    def step(before: Expr, t: Any, b: Any, h: Any, d: Any, e: Any) -> Expr:
        kept = before * gate(t, b, h, d) if decays else before
        return kept + widen(key[b, t, h * keys + d]) * widen(value[b, t, h * values + e])

    def first(t: Any, b: Any, h: Any, d: Any, e: Any) -> Expr:
        before = te.const(0, "float32") if past is None else widen(past[b, h, d, e])
        return step(before, t, b, h, d, e)

    shape = (length, batch, heads, keys, values)
    state = te.placeholder(shape, "float32", name="state")
    start = te.compute((1, *shape[1:]), first, name="state_start")
    update = te.compute(shape, lambda t, b, h, d, e: step(state[t - 1, b, h, d, e], t, b, h, d, e), name="state_next")
    states = te.scan(start, update, state, name="states")
    inner, group = te.reduce_axis(keys, name="d"), shared // heads

    def product(b: Any, t: Any, h: Any, e: Any) -> Any:
        return te.sum(widen(query[b, t, h * keys + inner]) * states[t, b, h // group, inner, e], axis=inner)

    products = te.compute((batch, length, shared, values), product, name="products")
    scale = _scale(c, keys)
    made = te.compute(
        c.out_shape(), lambda b, t, f: products[b, t, f // values, f % values] * scale, name="linear_attention",
        dtype=c.outputs[0].dtype,
    )  # fmt: skip
    if len(c.outputs) == 1:
        return made
    return made, te.compute(
        c.out_shape(1), lambda *at: states[(length - 1, *at)], name="present_state", dtype=c.outputs[1].dtype
    )


register(OpSpec("LinearAttention", _infer, _evaluate, _compute, "opaque"))
