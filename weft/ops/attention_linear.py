"""LinearAttention: a state of keys by values that every token decays, corrects and reads.

    S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - exp(g_t) S_{t-1}^T k_t)      o_t = scale q_t^T S_t

"gated_delta" is the whole rule; "gated" does not correct, "delta" does not decay, "linear" does neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import divided, times
from weft.ops.elementwise_support import expect_shape, wide, widen

_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""Whether a rule decays the state, and whether it corrects it."""
_INPUTS = (
    ("query", "[b l _]"), ("key", "[b l _]"), ("value", "[b l _]"), ("past_state", "?"), ("decay", "?"), ("beta", "?"),
)  # fmt: skip


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
    expect_shape(c, 0, (batch, length, times(shared, key_size)))
    expect_shape(c, 1, (batch, length, times(heads, key_size)))
    expect_shape(c, 2, (batch, length, times(heads, value_size)))
    expect_shape(c, 3, (batch, heads, key_size, value_size))
    for position, sizes in ((4, (times(heads, key_size), heads)), (5, (heads, 1))):
        last = c.tensor(position).shape if c.has(position) else None
        if last and isinstance(last[-1], int) and last[-1] not in sizes:
            raise c.error(f"the last dimension of input {position} must be one of {list(sizes)}, not {last[-1]}")
        expect_shape(c, position, (batch, length, last[-1] if last else sizes[0]))
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


HISTORY_LIMIT = 1 << 28
"""Bytes that the states of all tokens may take in a kernel; beyond that the host, which keeps one, does the work."""


class _Recurrence:
    """The parts of one use: its sizes, and what a token does to the state."""

    def __init__(self, c: Compute, inputs: Sequence[te.Tensor | None]) -> None:
        self.decays, self.corrects = _rule(c)
        self.heads, self.shared = int(c.need("kv_num_heads")), int(c.need("q_num_heads"))
        self.batch, self.length, _ = c.shape(0)
        self.keys, self.values = c.shape(1)[2] // self.heads, c.shape(2)[2] // self.heads
        self.key, self.value, self.past, self.decay, self.beta = inputs
        self.gate_size = c.shape(4)[2] // self.heads if self.decays else 1
        self.rate_size = c.shape(5)[2] if self.corrects else 1

    def element(self, tensor: te.Tensor | None, t: Any, b: Any, at: Any) -> Expr:
        """An element of a packed input."""
        assert tensor is not None
        return widen(tensor[b, t, at])

    def kept(self, before: Expr, t: Any, b: Any, h: Any, d: Any) -> Expr:
        """The state before a token, decayed."""
        if not self.decays:
            return before
        at = h * self.gate_size + (d if self.gate_size > 1 else 0)
        return before * te.exp(self.element(self.decay, t, b, at))

    def after(self, before: Callable[..., Expr], rows: int, name: str) -> te.Tensor:
        """The state after each of `rows` tokens, from `before(t, b, h, d, e)`."""
        recalled = None
        if self.corrects:
            inner = te.reduce_axis(self.keys, name="d")

            def recall(t: Any, b: Any, h: Any, e: Any) -> Any:
                old = self.kept(before(t, b, h, inner.var, e), t, b, h, inner.var)
                return te.sum(old * self.element(self.key, t, b, h * self.keys + inner), axis=inner)

            recalled = te.compute((rows, self.batch, self.heads, self.values), recall, name=f"{name}_recalled")

        def body(t: Any, b: Any, h: Any, d: Any, e: Any) -> Expr:
            added = self.element(self.value, t, b, h * self.values + e)
            if recalled is not None:
                rate = self.element(self.beta, t, b, h if self.rate_size > 1 else 0)
                added = (added - recalled[t, b, h, e]) * rate
            old = self.kept(before(t, b, h, d, e), t, b, h, d)
            return old + self.element(self.key, t, b, h * self.keys + d) * added

        return te.stage((rows, self.batch, self.heads, self.keys, self.values), body, name=name)

    def first(self, t: Any, b: Any, h: Any, d: Any, e: Any) -> Expr:
        """The state before the first token."""
        return te.const(0, "float32") if self.past is None else widen(self.past[b, h, d, e])


def _compute(c: Compute, query: te.Tensor, *inputs: te.Tensor | None) -> Any:
    r = _Recurrence(c, (*inputs, None, None, None)[:5])
    shape = (r.length, r.batch, r.heads, r.keys, r.values)
    if int(np.prod(shape)) * 4 > HISTORY_LIMIT:
        return None
    state = te.placeholder(shape, "float32", name="state")
    start = r.after(r.first, 1, "state_start")
    update = r.after(lambda t, *at: state[(t - 1, *at)], r.length, "state_next")
    states = te.scan(start, update, state, name="states")
    inner, group, values = te.reduce_axis(r.keys, name="d"), r.shared // r.heads, r.values

    def product(b: Any, t: Any, h: Any, e: Any) -> Any:
        return te.sum(widen(query[b, t, h * r.keys + inner]) * states[t, b, h // group, inner, e], axis=inner)

    products = te.compute((r.batch, r.length, r.shared, values), product, name="products")
    scale = _scale(c, r.keys)

    def packed(b: Any, t: Any, f: Any) -> Any:
        return products[b, t, f // values, f % values] * scale

    made = te.compute(c.out_shape(), packed, name="linear_attention", dtype=c.outputs[0].dtype)
    if len(c.outputs) == 1:
        return made
    last = te.compute(
        c.out_shape(1), lambda *at: states[(r.length - 1, *at)], name="present_state", dtype=c.outputs[1].dtype
    )
    return made, last


register(
    "LinearAttention",
    _infer,
    _evaluate,
    _compute,
    "opaque",
    takes=", ".join(f"{name}:float16|bfloat16|float32{rest}" for name, rest in _INPUTS),
)
