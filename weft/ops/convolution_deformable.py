"""DeformConv: a convolution that reads its input at places moved by offsets, interpolated between neighbours.

The input is first sampled (for every output position and kernel position, with zero outside the input), and the samples
are then summed with the weights as in an ordinary convolution. An infinite offset leads outside, as in ONNX Runtime. So
does NaN, of which the standard says nothing: it is no place in the input, and nothing may be read there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, register
from weft.ops.convolution import accumulator, add_channel, exact_type, finish, infer_convolution, kernel_sizes
from weft.ops.convolution_window import Window, kernel_axes
from weft.ops.elementwise_support import expect_shape
from weft.ops.formulas import ARRAYS, EXPRESSIONS
from weft.ops.sampling import Sampling


def _infer(c: Infer) -> list[Type]:
    made = infer_convolution(c, 0, 1, c.tensor(0).dtype)
    x, w, offset, groups = c.tensor(0), c.tensor(1), c.tensor(2), int(c.get("offset_group", 1))
    if not x.is_static or not w.is_static or not offset.is_static:
        return made
    if groups < 1 or x.static[1] % groups:
        raise c.error(f"{x.static[1]} channels do not divide into {groups} offset groups")
    wanted = (x.static[0], groups * math.prod(w.static[2:]) * (x.rank - 2), *_static(made[0])[2:])
    if offset.static != wanted:
        raise c.error(f"the offsets are {offset!r}; {list(wanted)} is needed")
    expect_shape(c, 4, (wanted[0], wanted[1] // (x.rank - 2), *wanted[2:]))
    return made


def _static(kind: Type) -> tuple[int, ...]:
    assert isinstance(kind, TensorType)
    return kind.static


def _sample_arrays(x: Array, offset: Array, window: Window, groups: int) -> Array:
    """Samples (batch, channel, kernel…, out…) of the input."""
    batch, channels, sizes = x.shape[0], x.shape[1], x.shape[2:]
    rank, kernel, outs = len(sizes), window.kernel, offset.shape[2:]
    moves = offset.reshape(batch, groups, 1, *kernel, rank, *outs)
    places = []
    for axis, (before, _) in enumerate(window.padding(sizes)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = kernel[axis], outs[axis]
        base = np.arange(kernel[axis])[:, None] * window.dilations[axis]
        base = base + np.arange(outs[axis])[None, :] * window.strides[axis] - before
        places.append(base.reshape(shape).astype(x.dtype) + moves.take(axis, axis=3 + rank))
    planes = x.reshape(batch, groups, channels // groups, *sizes)
    if not planes.size:
        return np.zeros((batch, channels, *kernel, *outs), x.dtype)
    outer = [one.reshape(*one.shape, *[1] * (2 * rank)) for one in np.ogrid[:batch, :groups, : channels // groups]]
    made = Sampling().blend(ARRAYS, lambda *at: planes[(*outer, *at)], places, sizes)
    return np.asarray(made.reshape(batch, channels, *kernel, *outs))


def _evaluate(c: Evaluate, x: Array, w: Array, offset: Array, bias: Any = None, mask: Any = None) -> Array:
    kernel = kernel_sizes(c, w.shape)
    assert kernel is not None
    wide = exact_type(str(x.dtype)) or x.dtype
    groups, group = int(c.get("offset_group", 1)), int(c.get("group", 1))
    batch, channels, outs = x.shape[0], x.shape[1], offset.shape[2:]
    samples = _sample_arrays(x.astype(wide), offset.astype(wide), Window(c, kernel), groups)
    if mask is not None:
        weights = np.repeat(mask.reshape(batch, groups, *kernel, *outs), channels // groups, axis=1)
        samples = samples * weights.astype(wide)
    columns = samples.reshape(batch, group, (channels // group) * math.prod(kernel), -1)
    matrix = w.astype(wide).reshape(group, w.shape[0] // group, -1)
    made = np.matmul(matrix, columns).reshape(batch, w.shape[0], *outs)
    return np.asarray(add_channel(made, None if bias is None else bias.astype(wide)).astype(x.dtype))


def _sample_tensors(c: Compute, x: te.Tensor, offset: te.Tensor, mask: Any, window: Window, kind: str) -> te.Tensor:
    sizes, outs = c.shape(0), c.out_shape()[2:]
    rank, per_group = len(outs), sizes[1] // int(c.get("offset_group", 1))
    before = [a for a, _ in window.padding(sizes[2:])]
    taps = math.prod(window.kernel)

    def body(n: Expr, ch: Expr, *at: Expr) -> Expr:
        ks, os = at[:rank], at[rank:]
        number: Expr = te.const(0)
        for k, size in zip(ks, window.kernel):
            number = number * size + k
        number = (ch // per_group) * taps + number
        places = []
        for axis in range(rank):
            base = os[axis] * window.strides[axis] + ks[axis] * window.dilations[axis] - before[axis]
            places.append(base.astype(kind) + offset[(n, number * rank + axis, *os)].astype(kind))
        total: Expr = Sampling().blend(EXPRESSIONS, lambda *at: x[(n, ch, *at)].astype(kind), places, sizes[2:])
        return total if mask is None else total * mask[(n, number, *os)].astype(kind)

    return te.stage((*sizes[:2], *window.kernel, *outs), lambda n, ch, *at: body(n, ch, *at), name="samples")


def _compute(c: Compute, x: te.Tensor, w: te.Tensor, offset: te.Tensor, bias: Any = None, mask: Any = None) -> Any:
    kernel = kernel_sizes(c, c.shape(1))
    if kernel is None:
        return None
    window, kind = Window(c, kernel), accumulator(c.outputs[0].dtype)
    samples = _sample_tensors(c, x, offset, mask, window, kind)
    depth, per_group = c.shape(1)[1], c.shape(1)[0] // int(c.get("group", 1))
    channel, taps = te.reduce_axis(depth, "ci"), kernel_axes(window)
    ks = [k.var for k in taps]
    made = te.stage(
        c.out_shape(),
        lambda n, co, *at: te.sum(
            samples[(n, (co // per_group) * depth + channel.var, *ks, *at)] * w[(co, channel.var, *ks)].astype(kind),
            axis=[channel, *taps],
        ),
        name="deform_conv",
    )
    return finish(c, made, bias)


register(
    "DeformConv",
    _infer,
    _evaluate,
    _compute,
    "complex",
    takes="X:float[n c *s], W:X[m _ *k], offset:X[n _ *o], B:X[m]?, mask:X[n _ *o]?",
)
