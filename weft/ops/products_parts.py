"""Products of float32 matrices by parts: each operand as a sum of three bfloat16 numbers, for matrix units.

    PartsMatMul(x, w, bias?)  chunks=c                                                       domain "weft"

`w` holds the parts of a constant weight, (3, K, N), which a pass makes when a model is compiled (`split_weight`):

    w = hi + mid + lo        each part the first eight bits of what the parts before it leave

Three parts hold 24 bits, a float32 exactly; x is split likewise, with parts that are rounded. Of the nine products of
parts six are summed; the other three are smaller than 2⁻²⁴ of the whole, the rounding of one float32 product. Sums are
float32: the result is as exact as float32 products are. An element of x that is not finite has no mid and no lo. The
parts of a weight have its sign, and none of them is zero unless the weight is: infinity times each of them is the same
infinity. (Where there is nothing left, the part is the smallest normal number.)

As a tensor program:

    parts_left    the parts of x: lo, hi, mid
    parts_sums    the six products, summed; with `chunks` the reduction is cut into so many, each with sums of its own
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, Use, register
from weft.ops.convolution import is_empty, sizes_of
from weft.ops.convolution_window import stage
from weft.ops.products import product_shape

DOMAIN = "weft"
NAME = "PartsMatMul"
LEFT, SUMS = "parts_left", "parts_sums"
"""The stages of the program, by which a schedule knows them."""

LO, HI, MID = range(3)
"""The parts of the left operand, in the order in which they are stored."""

PAIRS = 6
"""Products of parts that are summed: of the weight's hi with lo, hi and mid, of its mid with mid and hi, of its lo with
hi. In this order one part of a pair is often that of the pair before."""

STEP = 32
"""The parts of x are stored in whole steps of so many, with zeros behind their end: the tiles of a matrix unit."""

LARGEST = float(np.array([0x7F7F], np.uint16).view(ml_dtypes.bfloat16)[0])
LARGEST_FLOAT = float(np.finfo(np.float32).max)
HIGH_BITS = 0xFFFF0000
"""The bits of a float32 that are a bfloat16."""


def split_weight(weight: Array) -> Array:
    """The three parts of a float32 array, as one array with an axis in front: hi, mid, lo."""
    parts, rest = [], np.ascontiguousarray(weight, np.float32)
    least = np.copysign(np.finfo(np.float32).smallest_normal, rest)
    for _ in range(3):
        part = (rest.view(np.uint32) & HIGH_BITS).view(np.float32)
        rest = rest - part
        parts.append(np.where((part == 0) & (weight != 0), least, part).astype(ml_dtypes.bfloat16))
    return np.stack(parts)


def may_split(weight: Array) -> bool:
    """Whether the parts of a weight sum up to it: all of it is finite."""
    return bool(np.isfinite(weight).all())


# ------------------------------------------------------------------------------------------------------------- meaning


def _chunks(use: Use) -> int:
    chunks = int(use.get("chunks", 1))
    if chunks < 1:
        raise use.error(f"chunks is {chunks}; it must be at least 1")
    return chunks


def _infer(c: Infer) -> list[Type]:
    x, w = c.tensor(0), c.tensor(1)
    if w.shape is None or w.rank != 3 or w.dims[0] != 3:
        raise c.error(f"the weight is {w!r}; three parts of a matrix are needed")
    return [TensorType("float32", product_shape(c, x.shape, w.dims[1:]))]


def _evaluate(c: Evaluate, x: Array, w: Array, bias: Array | None = None) -> Array:
    hi, mid, lo = w.astype(np.float32)
    made = np.matmul(x, hi + mid + lo)
    return np.asarray(made if bias is None else made + bias)


# ------------------------------------------------------------------------------------------------------------- tensors


def _part(which: Expr, value: Expr) -> Expr:
    """One part of a value; the loop over the parts is written out, which leaves one of them in each copy."""
    kind, narrow = value.dtype, "bfloat16"
    finite = te.abs(value) <= te.const(LARGEST_FLOAT, kind)
    near = te.clip(value, te.const(-LARGEST, kind), te.const(LARGEST, kind))
    hi = near.astype(narrow)
    rest = value - hi.astype(kind)
    mid = rest.astype(narrow)
    lo = (rest - mid.astype(kind)).astype(narrow)
    shown = te.if_then_else(te.equal(which, MID), mid, te.if_then_else(te.equal(which, LO), lo, hi))
    other = te.if_then_else(te.equal(which, HI), value.astype(narrow), te.const(0.0, narrow))
    return te.if_then_else(finite, shown, other)


def multiply_parts(x: te.Tensor, w: te.Tensor, shape: Sequence[int], chunks: int) -> te.Tensor:
    """The product of a float32 tensor with the parts of a weight, as a tensor expression."""
    *_, inner = sizes_of(x)
    padded = -(-inner // STEP) * STEP

    def part(p: Expr, *at: Expr) -> Expr:
        if padded == inner:
            return _part(p, x[at])
        inside = at[-1] < inner
        value = te.if_then_else(inside, x[at], te.const(0.0, x.dtype))
        return te.if_then_else(inside, _part(p, value), te.const(0.0, "bfloat16"))

    left = stage((3, *sizes_of(x)[:-1], padded), part, name=LEFT)
    p, k = te.reduce_axis(PAIRS, "p"), te.reduce_axis(inner // chunks, "k")

    def term(at: Sequence[Expr], column: Expr, depth: Expr) -> Any:
        a = left[(_left_part(p.var), *at, depth)]
        b = w[_right_part(p.var), depth, column]
        return te.sum(a.astype("float32") * b.astype("float32"), axis=[p, k])

    if chunks == 1:
        return stage(shape, lambda *at: term(at[:-1], at[-1], k.var), name=SUMS)
    length = inner // chunks
    sums = stage((chunks, *shape), lambda c, *at: term(at[:-1], at[-1], c * length + k.var), name=SUMS)

    def total(*at: Expr) -> Expr:
        made: Expr = sums[(te.const(0), *at)]
        for chunk in range(1, chunks):
            made = made + sums[(te.const(chunk), *at)]
        return made

    return stage(shape, lambda *at: total(*at), name="parts_total")


def _left_part(pair: Expr) -> Expr:
    """LO, HI, MID, MID, HI, HI"""
    return pair - pair // 3 - pair // 4 * 2 - pair // 5


def _right_part(pair: Expr) -> Expr:
    """hi, hi, hi, mid, mid, lo"""
    return pair // 3 + pair // 5


def _compute(c: Compute, x: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor | None:
    chunks = _chunks(c)
    if is_empty(*c.types, *c.outputs) or len(sizes_of(x)) < 2 or sizes_of(x)[-1] % chunks:
        return None
    made = multiply_parts(x, w, c.out_shape(), chunks)
    if bias is None:
        return made
    return stage(made.shape, lambda *at: made[at] + te.broadcast_read(bias, at), name="parts_bias")


register(OpSpec(NAME, _infer, _evaluate, _compute, kind="complex", domain=DOMAIN))
