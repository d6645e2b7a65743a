"""Operators that rearrange elements by a pattern: Trilu, DepthToSpace, SpaceToDepth, ReverseSequence, Col2Im."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.core.dtypes import dtype
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import divided, times
from weft.graph.signature import Between, OneOf, SameSize
from weft.ops.elementwise_support import infer_same
from weft.ops.movement_indices import integers, length_of, output_type, unknown_shape

# ---------------------------------------------------------------------------------------------------------- Trilu


def _trilu(c: Evaluate, x: Array, k: Array | None = None) -> Array:
    diagonal = 0 if k is None else int(np.asarray(k).reshape(()))
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])[None, :]
    distance = columns - rows
    mask = distance >= diagonal if c.get("upper", 1) else distance <= diagonal
    return np.where(mask, x, np.zeros((), x.dtype))


def _trilu_compute(c: Compute, x: te.Tensor, k: te.Tensor | None = None) -> Any:
    kind, upper = output_type(c), c.get("upper", 1)

    def read(*i: Any) -> Expr:
        diagonal = index_expr(0) if k is None else index_expr(k[(0,) * k.ndim])
        distance = i[-1] - i[-2]
        keep = distance >= diagonal if upper else distance <= diagonal
        return te.select(keep, x[i], te.const(0, kind))

    return te.compute(c.out_shape(), read, name="trilu")


register("Trilu", infer_same, _trilu, _trilu_compute, "injective", takes="input[*b _ _], k:int[]|[1]?", traits="cheap")


# ----------------------------------------------------------------------------------- DepthToSpace and SpaceToDepth


def _to_space_infer(c: Infer) -> list[Type]:
    x, block = c.tensor(0), int(c.need("blocksize"))
    if x.shape is None:
        return [TensorType(x.dtype, unknown_shape(4, "space"))]
    n, depth, height, width = x.dims
    if isinstance(depth, int) and depth % (block * block):
        raise c.error(f"{depth} channels do not divide into blocks of {block} by {block}")
    return [TensorType(x.dtype, (n, divided(depth, block * block), times(height, block), times(width, block)))]


def _to_depth_infer(c: Infer) -> list[Type]:
    x, block = c.tensor(0), int(c.need("blocksize"))
    if x.shape is None:
        return [TensorType(x.dtype, unknown_shape(4, "depth"))]
    n, depth, height, width = x.dims
    if any(isinstance(d, int) and d % block for d in (height, width)):
        raise c.error(f"an image of {height} by {width} does not divide into blocks of {block}")
    return [TensorType(x.dtype, (n, times(depth, block * block), divided(height, block), divided(width, block)))]


def _to_space(c: Evaluate, x: Array) -> Array:
    block = int(c.need("blocksize"))
    n, depth, height, width = x.shape
    channels = depth // (block * block)
    if c.get("mode", "DCR") == "DCR":
        parts = x.reshape(n, block, block, channels, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, channels, block, block, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, channels, height * block, width * block)


def _to_depth(c: Evaluate, x: Array) -> Array:
    block = int(c.need("blocksize"))
    n, channels, height, width = x.shape
    parts = x.reshape(n, channels, height // block, block, width // block, block)
    order = (0, 3, 5, 1, 2, 4) if c.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.transpose(order).reshape(n, channels * block * block, height // block, width // block)


def _to_space_compute(c: Compute, x: te.Tensor) -> Any:
    block, channels = int(c.need("blocksize")), c.out_shape()[1]
    first = c.get("mode", "DCR") == "DCR"

    def read(n: Expr, ch: Expr, y: Expr, z: Expr) -> Expr:
        place = (y % block) * block + z % block
        depth = place * channels + ch if first else ch * (block * block) + place
        return x[n, depth, y // block, z // block]

    return te.compute(c.out_shape(), read, name="depth_to_space")


def _to_depth_compute(c: Compute, x: te.Tensor) -> Any:
    block, channels = int(c.need("blocksize")), c.shape(0)[1]
    first = c.get("mode", "DCR") == "DCR"

    def read(n: Expr, depth: Expr, y: Expr, z: Expr) -> Expr:
        ch = depth % channels if first else depth // (block * block)
        place = depth // channels if first else depth % (block * block)
        return x[n, ch, y * block + place // block, z * block + place % block]

    return te.compute(c.out_shape(), read, name="space_to_depth")


_BLOCKS = (Between("blocksize", 1), OneOf("mode", ("DCR", "CRD")))
for _name, _infer, _evaluate, _compute in (
    ("DepthToSpace", _to_space_infer, _to_space, _to_space_compute),
    ("SpaceToDepth", _to_depth_infer, _to_depth, _to_depth_compute),
):
    register(_name, _infer, _evaluate, _compute, "injective", takes="input[n c h w]", requires=_BLOCKS, traits="moves")


# ------------------------------------------------------------------------------------------------- ReverseSequence


def _reverse_infer(c: Infer) -> list[Type]:
    if int(c.get("time_axis", 0)) == int(c.get("batch_axis", 1)):
        raise c.error(f"its time axis and its batch axis are both {c.get('time_axis', 0)}")
    return [c.tensor(0)]


def _reverse(c: Evaluate, x: Array, lengths: Array) -> Array:
    time, batch = int(c.get("time_axis", 0)) % x.ndim, int(c.get("batch_axis", 1)) % x.ndim
    moved = np.moveaxis(x, (batch, time), (0, 1))
    out = np.array(moved)
    for row, length in enumerate(integers(np.clip(lengths, 0, moved.shape[1]))):
        out[row, :length] = moved[row, :length][::-1]
    return np.ascontiguousarray(np.moveaxis(out, (0, 1), (batch, time)))


def _reverse_compute(c: Compute, x: te.Tensor, lengths: te.Tensor) -> Any:
    time, batch = int(c.get("time_axis", 0)) % x.ndim, int(c.get("batch_axis", 1)) % x.ndim
    steps = c.shape(0)[time]

    def read(*i: Any) -> Expr:
        length = te.clip(index_expr(lengths[i[batch]]), 0, steps)
        at = te.select(i[time] < length, length - 1 - i[time], i[time])
        return x[(*i[:time], at, *i[time + 1 :])]

    return te.compute(c.out_shape(), read, name="reverse_sequence")


register(
    "ReverseSequence",
    _reverse_infer,
    _reverse,
    _reverse_compute,
    "injective",
    takes="input[_ _ *s], sequence_lens:int[b]",
    requires=(OneOf("time_axis", (0, 1)), SameSize(1, "batch_axis", (0, 1), default=1)),
    traits="moves",
)


# --------------------------------------------------------------------------------------------------------- Col2Im


class Blocks:
    """The geometry of a Col2Im: image and block sizes, strides, pads and dilations of each dimension."""

    __slots__ = ("image", "block", "strides", "before", "dilations", "counts")

    def __init__(self, c: Use, image: Sequence[int], block: Sequence[int]) -> None:
        rank = len(image)
        self.image, self.block = list(image), list(block)
        self.strides = list(c.get("strides") or [1] * rank)
        self.dilations = list(c.get("dilations") or [1] * rank)
        pads = list(c.get("pads") or [0] * (2 * rank))
        if not len(block) == len(self.strides) == len(self.dilations) == rank or len(pads) != 2 * rank:
            raise c.error(f"block {list(block)}, strides, dilations or pads do not fit an image of {rank} dimensions")
        self.before = pads[:rank]
        self.counts = [
            (size + pads[k] + pads[k + rank] - self.dilations[k] * (block[k] - 1) - 1) // self.strides[k] + 1
            for k, size in enumerate(image)
        ]


def _col2im_infer(c: Infer) -> list[Type]:
    x, image, block = c.tensor(0), c.value(1), c.value(2)
    count = length_of(c, 1)
    if image is None or block is None or x.shape is None:
        return [TensorType(x.dtype, unknown_shape(None if count is None else count + 2, "image"))]
    geometry = Blocks(c, integers(image), integers(block))
    elements = int(np.prod(geometry.block))
    if isinstance(x.shape[1], int) and x.shape[1] % elements:
        raise c.error(f"{x.shape[1]} rows do not divide into blocks of {elements} elements")
    if isinstance(x.shape[2], int) and x.shape[2] != int(np.prod(geometry.counts)):
        raise c.error(f"{x.shape[2]} blocks were given where the image has {int(np.prod(geometry.counts))}")
    return [TensorType(x.dtype, (x.shape[0], divided(x.shape[1], elements), *geometry.image))]


def _col2im(c: Evaluate, x: Array, image_shape: Array, block_shape: Array) -> Array:
    g = Blocks(c, integers(image_shape), integers(block_shape))
    rank = len(g.image)
    n, channels = x.shape[0], x.shape[1] // int(np.prod(g.block))
    columns = x.reshape(n, channels, *g.block, *g.counts).astype(np.float32 if x.dtype.itemsize < 4 else x.dtype)
    out = np.zeros((n, channels, *g.image), columns.dtype)
    for offset in itertools.product(*(range(b) for b in g.block)):
        source: list[Any] = []
        target: list[Any] = []
        for k in range(rank):
            at = np.arange(g.counts[k]) * g.strides[k] + offset[k] * g.dilations[k] - g.before[k]
            inside = (at >= 0) & (at < g.image[k])
            source.append(np.nonzero(inside)[0])
            target.append(at[inside])
        part = columns[(slice(None), slice(None), *offset)]  # type: ignore[arg-type]
        every: list[Any] = [slice(None), slice(None)]
        out[(*every, *np.ix_(*target))] += part[(*every, *np.ix_(*source))]
    return out.astype(x.dtype)


def _col2im_compute(c: Compute, x: te.Tensor, image_shape: Any, block_shape: Any) -> Any:
    image, block = c.value(1), c.value(2)
    if image is None or block is None or output_type(c).is_bool:
        return None
    g = Blocks(c, integers(image), integers(block))
    kind = output_type(c)
    wide = dtype("float32") if kind.is_float and kind.bits < 32 else kind
    axes = [te.reduce_axis(b, f"k{k}") for k, b in enumerate(g.block)]

    def total(n: Expr, ch: Expr, *at: Any) -> Any:
        row, column, tests = ch, index_expr(0), []
        for k, axis in enumerate(axes):
            shifted = at[k] + g.before[k] - axis.var * g.dilations[k]
            place = shifted // g.strides[k]
            tests += [te.equal(shifted % g.strides[k], 0), place >= 0, place < g.counts[k]]
            row, column = row * g.block[k] + axis.var, column * g.counts[k] + place
        return te.sum(x[n, row, column].astype(wide), axis=axes, where=te.all(*tests))

    summed = te.compute(c.out_shape(), total, name="col2im")
    return summed if wide is kind else te.compute(c.out_shape(), lambda *i: summed[i].astype(kind), name="narrow")


register(
    "Col2Im",
    _col2im_infer,
    _col2im,
    _col2im_compute,
    "reduction",
    shape_inputs=(1, 2),
    takes="input:number[_ _ _], image_shape:int[k], block_shape:int[k]",
    requires=(Between("strides", 1), Between("dilations", 1)),
)
