"""MaxUnpool: puts pooled values back at the places that MaxPool's indices name; everything else is 0.

Indices count in the shape that kernel, strides and pads give; a larger output_shape only adds zeros behind it. Nothing
says that an index lies in its own window, so this is a scatter: with an index outside the tensor, the call fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, Var
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import minus, plus, times, unknown_dim
from weft.graph.signature import Between
from weft.loop.ir import If, Stmt, Store, seq
from weft.ops.convolution_window import Window
from weft.ops.indexing_scatter import nest


def _unpooled(use: Use, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    window = Window(use, use.need("kernel_shape"))
    if len(dims) != len(window.kernel) + 2:
        raise use.error(f"a kernel of {list(window.kernel)} does not fit an input of {len(dims)} dimensions")
    made = []
    for size, stride, kernel, (before, after) in zip(dims[2:], window.strides, window.kernel, window.pads):
        made.append(plus(times(minus(size, 1), stride), kernel - before - after))
    return (*dims[:2], *made)


def _infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    if not c.has(2):
        return [TensorType(x.dtype, _unpooled(c, x.dims))]
    wanted = c.value(2)
    if wanted is None:
        return [TensorType(x.dtype, (*x.dims[:2], *[unknown_dim("unpool") for _ in x.dims[2:]]))]
    return [TensorType(x.dtype, [int(v) for v in wanted])]


def _evaluate(c: Evaluate, x: Array, indices: Array, output_shape: Any = None) -> Array:
    inner = tuple(int(d) for d in _unpooled(c, x.shape) if isinstance(d, int))
    flat = np.zeros(math.prod(inner), x.dtype)
    places = indices.reshape(-1)
    if places.size and (places.min() < 0 or places.max() >= flat.size):
        raise c.error(f"an index lies outside the {flat.size} elements of the unpooled tensor")
    flat[places] = x.reshape(-1)
    made = flat.reshape(inner)
    if output_shape is None:
        return made
    result = np.zeros([int(v) for v in output_shape], x.dtype)
    common = tuple(slice(0, min(a, b)) for a, b in zip(made.shape, result.shape))
    result[common] = made[common]
    return result


def _compute(c: Compute, x: te.Tensor, indices: te.Tensor, output_shape: Any = None) -> Any:
    inner, shape = [int(d) for d in _unpooled(c, c.shape(0)) if isinstance(d, int)], c.out_shape()
    if inner[0] != shape[0]:
        return None

    def place(flat: Expr) -> list[Expr]:
        """The first index is outside just where the flat one is."""
        steps = [math.prod(inner[d + 1 :]) for d in range(len(inner))]
        return [flat // steps[0], *(flat // step % size for step, size in zip(steps[1:], inner[1:]))]

    def build(given: Sequence[te.Tensor], made: Sequence[te.Tensor]) -> Stmt:
        def one(i: list[Var]) -> Stmt:
            flat = given[1][tuple(i)].astype("int64")
            at = place(flat)
            store = Store(made[0], at, given[0][tuple(i)])
            within = [a < size for a, size, whole in zip(at, shape, inner) if size < whole]
            return If(te.all(*within), store) if within else store

        clear = nest(shape, lambda i: Store(made[0], i, te.const(0, x.dtype)), "c", -1)
        return seq(clear, nest(c.shape(0), one, "u"))

    return te.extern(shape, [x, indices], build, name="unpool", dtype=x.dtype)


register(
    "MaxUnpool",
    _infer,
    _evaluate,
    _compute,
    "opaque",
    shape_inputs=(2,),
    takes="X[n c *s], I:int[n c *s], output_shape:int[_]?",
    requires=(Between("kernel_shape", 1),),
)
