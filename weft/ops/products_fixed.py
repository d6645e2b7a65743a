"""A product with a weight of 24-bit whole numbers (`fixed_weights.py`).

    FixedMatMul(x, high, low, scale, bias?)                                                   domain "weft"

`high` and `low` are (N, K), `scale` is (N,): x of shape (.., K) gives (.., N). A few rows that meet a large weight wait
for it, and read a quarter less of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, register
from weft.graph.passes.fix_weights import DOMAIN, PRODUCT
from weft.ops.convolution import is_empty
from weft.ops.convolution_window import stage
from weft.ops.fixed_weights import fixed_term, unfix
from weft.ops.products import product_shape


def _infer(c: Infer) -> list[Type]:
    x, high, low, scale = (c.tensor(position) for position in range(4))
    if (high.dtype, low.dtype, scale.dtype) != ("int16", "uint8", "float32") or high.shape != low.shape:
        raise c.error(
            f"the parts of the weight are {high!r}, {low!r} and {scale!r}; int16, uint8 and float32 are needed"
        )
    return [TensorType(x.dtype, product_shape(c, x.shape, None if high.shape is None else high.dims[::-1]))]


def _evaluate(c: Evaluate, x: Array, high: Array, low: Array, scale: Array, bias: Array | None = None) -> Array:
    made = np.matmul(x, unfix(high, low, scale).astype(np.float32).T)
    return np.asarray(made if bias is None else made + bias)


def _compute(c: Compute, x: te.Tensor, high: te.Tensor, low: te.Tensor, scale: te.Tensor, bias: Any = None) -> Any:
    if is_empty(*c.types, *c.outputs):
        return None
    k = te.reduce_axis(c.shape(1)[1], "k")

    def body(*at: Expr) -> Any:
        return te.sum(fixed_term(x[(*at[:-1], k.var)], high[at[-1], k.var], low[at[-1], k.var]), axis=k)

    sums = stage(c.out_shape(), lambda *at: body(*at), name="fixed_sums")

    def finish(*at: Expr) -> Expr:
        value: Expr = sums[at] * scale[at[-1]]
        return value if bias is None else value + te.broadcast_read(bias, at)

    return stage(c.out_shape(), lambda *at: finish(*at), name="fixed_matmul")


register(
    OpSpec(
        PRODUCT,
        _infer,
        _evaluate,
        _compute,
        kind="complex",
        domain=DOMAIN,
        takes="X:float32[_ *b], high:int16[m k], low:uint8[m k], scale:float32[m], bias:float32?",
    )
)
