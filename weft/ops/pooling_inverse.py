"""MaxUnpool: puts pooled values back at the places that MaxPool's indices name; everything else is 0.

Indices count in the shape that kernel, strides and pads give; a larger output_shape only adds zeros behind it. Nothing
says that an index lies in its own window, so this is a scatter, and it runs on the host.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Evaluate, Infer, OpSpec, Use, register
from weft.graph.shapes import minus, plus, times, unknown_dim
from weft.ops.convolution_window import Window


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


register(OpSpec("MaxUnpool", _infer, _evaluate, None, kind="opaque", shape_inputs=(2,)))
