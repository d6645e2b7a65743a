"""DeformConv: a convolution that reads its input at places moved by offsets, interpolated between neighbours.

The input is first sampled (for every output position and kernel position, with zero outside the input), and the samples
are then summed with the weights as in an ordinary convolution. An infinite offset leads outside, as in ONNX Runtime. So
does NaN, of which the standard says nothing: it is no place in the input, and nothing may be read there.
"""

from __future__ import annotations

import itertools
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
    moves = offset.reshape(batch, groups, *kernel, rank, *outs)
    lows, parts = [], []
    for axis, (before, _) in enumerate(window.padding(sizes)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = kernel[axis], outs[axis]
        base = np.arange(kernel[axis])[:, None] * window.dilations[axis]
        base = base + np.arange(outs[axis])[None, :] * window.strides[axis] - before
        place = base.reshape(shape) + moves.take(axis, axis=2 + rank)
        low = np.floor(place)
        lows.append(low)
        parts.append((place - low).astype(x.dtype))
    planes = x.reshape(batch, groups, channels // groups, -1)
    made = np.zeros((batch, groups, channels // groups, *kernel, *outs), x.dtype)
    for corner in itertools.product((0, 1), repeat=rank) if planes.size else ():
        flat = np.zeros(lows[0].shape, np.int64)
        share, inside = np.ones(lows[0].shape, x.dtype), np.ones(lows[0].shape, bool)
        for axis, step in enumerate(corner):
            at = lows[axis] + step
            here = (at >= 0) & (at < sizes[axis])
            share, inside = share * (parts[axis] if step else 1 - parts[axis]), inside & here
            flat = flat * sizes[axis] + np.where(here, at, 0).astype(np.int64)
        index = np.broadcast_to(
            flat.reshape(batch, groups, 1, -1), (batch, groups, channels // groups, math.prod(flat.shape[2:]))
        )
        value = np.take_along_axis(planes, index, axis=3).reshape(made.shape) * share[:, :, None]
        made += np.where(inside[:, :, None], value, 0)  # nowhere, the share or what is read in its stead may be NaN
    return made.reshape(batch, channels, *kernel, *outs)


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
        lows, parts = [], []
        for axis in range(rank):
            base = os[axis] * window.strides[axis] + ks[axis] * window.dilations[axis] - before[axis]
            place = base.astype(kind) + offset[(n, number * rank + axis, *os)].astype(kind)
            low = te.floor(place)
            lows.append(low)
            parts.append(place - low)
        total: Expr = te.const(0.0, kind)
        for corner in itertools.product((0, 1), repeat=rank):
            share: Expr = te.const(1.0, kind)
            read, inside = [], []
            for axis, step in enumerate(corner):
                there = lows[axis] + te.const(float(step), kind)
                last = te.const(float(sizes[2 + axis] - 1), kind)
                inside += [there >= te.const(0.0, kind), there <= last]
                read.append(te.clip(there.astype("int64"), 0, sizes[2 + axis] - 1))
                share = share * (parts[axis] if step else te.const(1.0, kind) - parts[axis])
            value = x[(n, ch, *read)].astype(kind) * share
            total = total + te.if_then_else(te.all(*inside), value, te.const(0.0, kind))
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
