"""CausalConvWithState: a depthwise convolution over time that sees only the past, and hands its last inputs on."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import minus
from weft.ops.convolution import accumulator, exact_type
from weft.ops.elementwise_support import expect_shape
from weft.ops.formulas import sigmoid

ACTIVATIONS = {"none": False, "": False, "silu": True, "swish": True}


def _gated(use: Use) -> bool:
    name = use.get("activation", "none")
    if name not in ACTIVATIONS:
        raise use.error(f"activation is {name!r}; known are none, silu and swish")
    return ACTIVATIONS[name]


def _types(c: Infer, *kinds: Type) -> list[Type]:
    return list(kinds[: c.output_count])


def _infer(c: Infer) -> list[Type]:
    x, w = c.tensor(0), c.tensor(1)
    _gated(c)
    if x.shape is None or w.shape is None:
        return _types(c, TensorType(x.dtype, x.shape), TensorType(x.dtype, None))
    if isinstance(w.dims[2], int) and w.dims[2] < 1:
        raise c.error(f"the weight {w!r} has no kernel")
    state = TensorType(x.dtype, (*x.dims[:2], minus(w.dims[2], 1)))
    expect_shape(c, 3, state.dims)
    return _types(c, TensorType(x.dtype, x.dims), state)


def _evaluate(c: Evaluate, x: Array, w: Array, bias: Any = None, past: Any = None) -> Any:
    kernel, length = w.shape[2], x.shape[2]
    before = np.zeros((*x.shape[:2], kernel - 1), x.dtype) if past is None else past
    whole = np.concatenate([before, x], axis=2)
    wide = exact_type(str(x.dtype)) or x.dtype
    total = np.zeros(x.shape, wide)
    for k in range(kernel):
        total += whole[:, :, k : k + length].astype(wide) * w[None, :, 0, k, None].astype(wide)
    if bias is not None:
        total = total + bias.astype(wide)[None, :, None]
    if _gated(c):
        total = total * sigmoid(total)
    return total.astype(x.dtype), np.ascontiguousarray(whole[:, :, whole.shape[2] - (kernel - 1) :])


def _compute(c: Compute, x: te.Tensor, w: te.Tensor, bias: Any = None, past: Any = None) -> Any:
    if 0 in (*c.shape(0), *c.shape(1)):
        return None
    batch, channels, length = c.shape(0)
    kernel, kind = c.shape(1)[2], c.outputs[0].dtype
    wide, gated = accumulator(kind), _gated(c)

    def joined(n: Expr, ch: Expr, t: Expr) -> Expr:
        if kernel == 1:
            return x[n, ch, t]
        before = te.const(0.0, kind) if past is None else past[n, ch, t]
        return te.if_then_else(t < kernel - 1, before, x[n, ch, t - (kernel - 1)])

    whole = te.compute((batch, channels, length + kernel - 1), lambda n, ch, t: joined(n, ch, t), name="joined")
    k = te.reduce_axis(kernel, "kw")
    total = te.compute(
        c.out_shape(),
        lambda n, ch, t: te.sum(whole[n, ch, t + k.var].astype(wide) * w[ch, 0, k.var].astype(wide), axis=k),
        name="causal_conv",
    )

    def finish(n: Expr, ch: Expr, t: Expr) -> Expr:
        value: Expr = total[n, ch, t]
        if bias is not None:
            value = value + bias[ch].astype(wide)
        return (value * te.sigmoid(value) if gated else value).astype(kind)

    out = te.compute(c.out_shape(), lambda n, ch, t: finish(n, ch, t), name="causal_out")
    if len(c.outputs) == 1:
        return out
    return out, te.compute(c.out_shape(1), lambda n, ch, t: whole[n, ch, t + length], name="present_state")


register(
    "CausalConvWithState",
    _infer,
    _evaluate,
    _compute,
    "complex",
    takes="input:float[n c l], weight:input[c 1 _], bias:input[c]?, past_state:input[n c _]?",
    traits="empties",
)
