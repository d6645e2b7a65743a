"""Sampling at coordinates that are data: AffineGrid makes them, GridSample reads an image (or volume) there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.core.dtypes import DType, dtype
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.ops.elementwise_support import expect_shape, wide_type
from weft.ops.expansion import Builder, Unexpanded, compose
from weft.ops.formulas import ARRAYS, EXPRESSIONS, Functions
from weft.ops.movement_indices import integers, length_of, output_type, unknown_shape
from weft.ops.sampling import Sampling

FAR = float(1 << 30)
"""Coordinates are held within this distance, so that every index derived from them fits."""

# ------------------------------------------------------------------------------------------------------ AffineGrid


def _spatial(c: Use, size: Array) -> list[int]:
    given = integers(size)
    if len(given) not in (4, 5):
        raise c.error(f"size {given} must be (N, C, H, W) or (N, C, D, H, W)")
    return given[2:]


def _affine_infer(c: Infer) -> list[Type]:
    theta, size = c.tensor(0), c.value(1)
    batch = unknown_shape(1, "batch") if theta.shape is None else theta.shape[:1]
    assert batch is not None
    count = length_of(c, 1)
    if count is not None:
        expect_shape(c, 0, (batch[0] if size is None else int(size[0]), count - 2, count - 1))
    if size is not None:
        spatial = _spatial(c, size)
        return [TensorType(theta.dtype, (*batch, *spatial, len(spatial)))]
    if count is None:
        return [TensorType(theta.dtype, None)]
    return [TensorType(theta.dtype, (*batch, *(unknown_shape(count - 2, "grid") or ()), count - 2))]


def _points(c: Use, count: int) -> Array:
    """The coordinates of the elements of a dimension, from -1 to 1."""
    i = np.arange(count, dtype=np.float64)
    if c.get("align_corners", 0):
        return np.asarray(2 * i / (count - 1) - 1) if count > 1 else np.zeros(count)
    return np.asarray((2 * i + 1) / count - 1)


def _affine(b: Builder, theta: Value, size: Value) -> Value:
    """The points of the grid, which are constant, times the matrices: no MatMul, whose operands might be rounded."""
    value = b.scope.constant(size)
    if value is None:
        raise Unexpanded
    spatial = _spatial(b.use, value)
    axes = np.meshgrid(*(_points(b.use, s) for s in spatial), indexing="ij")
    points = np.stack([*axes[::-1], np.ones(spatial)], axis=-1)  # x first, as theta has it
    rows = points.reshape(-1, 1, len(spatial) + 1)
    kind, axis = wide_type(theta.tensor.dtype), b.constant([1], "int64")
    terms = b("Mul", b.constant(rows, kind), b("Unsqueeze", b.cast(theta, kind), axis))
    made = b.cast(b("ReduceSum", terms, b.constant([-1], "int64"), keepdims=0), theta.tensor.dtype)
    shape = b.constant([value[0], *spatial, len(spatial)], "int64")
    return b("Reshape", made, shape, allowzero=1)


compose(
    "AffineGrid",
    _affine,
    (1,),
    infer=_affine_infer,
    takes="theta:float[n 2 3]|[n 3 4], size:int[4]|[5]",
    traits="cheap",
)


# ------------------------------------------------------------------------------------------------------ GridSample


def _sampling(c: Use) -> Sampling:
    mode, padding = str(c.get("mode", "linear")), str(c.get("padding_mode", "zeros"))
    plain = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if plain not in ("linear", "nearest", "cubic"):
        raise c.error(f"unknown mode {mode!r}")
    if padding not in ("zeros", "border", "reflection"):
        raise c.error(f"unknown padding_mode {padding!r}")
    return Sampling(plain, padding, bool(c.get("align_corners", 0)))


def _sample_infer(c: Infer) -> list[Type]:
    x, grid = c.tensor(0), c.tensor(1)
    if x.shape is None or grid.shape is None:
        return [TensorType(x.dtype, None)]
    if grid.rank != x.rank or x.rank < 3:
        raise c.error(f"a grid {grid!r} does not fit an input {x!r}")
    if isinstance(grid.shape[-1], int) and grid.shape[-1] != x.rank - 2:
        raise c.error(f"a grid of {grid.shape[-1]} coordinates for an input of {x.rank - 2} spatial dimensions")
    return [TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))]


def _locate(m: Functions, s: Sampling, value: Any, size: int) -> Any:
    """A coordinate in elements, brought inside the border where the padding asks for that; NaN is far outside.

    A cubic sample stays where it is: each of its neighbours is brought inside on its own.
    """
    slope, offset = s.line(size)
    most = FAR / max(slope, 1.0)
    at = m.clip(m.select(m.isnan(value), -most, value), -most, most) * slope + offset
    if s.mode == "nearest":
        at = m.round(at)
    if s.padding == "zeros" or s.mode == "cubic":
        return at
    low, high = s.border(size)
    span = high - low
    if s.padding == "border":
        inner = m.clip(at, 0.0, size - 1.0)
    elif span:
        far = m.fmod(m.abs(at - low), 2 * span)
        inner = m.minimum(far, 2 * span - far) + low
    else:
        inner = low
    return m.select(m.any(at < low, at > high), inner, at)


def _sample(c: Evaluate, x: Array, grid: Array) -> Array:
    s, (batch, channels, *spatial) = _sampling(c), x.shape
    rank = len(spatial)
    if x.size == 0 or grid.size == 0:
        return np.zeros((batch, channels, *grid.shape[1:-1]), x.dtype)
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    points = np.moveaxis(grid[:, None].astype(wide.dtype), -1, 0)
    images, planes = np.ogrid[:batch, :channels]
    outer = [one.reshape(*one.shape, *[1] * rank) for one in (images, planes)]
    places = [_locate(ARRAYS, s, points[rank - 1 - k], spatial[k]) for k in range(rank)]
    made = s.blend(ARRAYS, lambda *at: wide[(*outer, *at)], places, spatial)
    return np.ascontiguousarray(made).astype(x.dtype)


# ------------------------------------------------------------------------------------------------------- compiled


def _sample_compute(c: Compute, x: te.Tensor, grid: te.Tensor) -> Any:
    if not output_type(c).is_float:
        return None
    kind, spatial, s = output_type(c), c.shape(0)[2:], _sampling(c)
    wide = dtype("float64") if kind.bits == 64 else dtype("float32")
    rank, m = len(spatial), EXPRESSIONS
    points = te.compute(
        c.shape(1)[:-1],
        lambda *i: tuple(_locate(m, s, grid[(*i, rank - 1 - k)].astype(wide), spatial[k]) for k in range(rank)),
        name="points",
    )
    where = points if isinstance(points, tuple) else (points,)
    if s.mode == "linear" and rank <= 2:
        return _sample_by_places(s, x, where, c.out_shape(), spatial, kind)

    def sample(n: Expr, channel: Expr, *i: Any) -> Expr:
        places = [p[(n, *i)] for p in where]
        made: Expr = s.blend(m, lambda *at: x[(n, channel, *at)].astype(wide), places, spatial)
        return made.astype(kind)

    return te.compute(c.out_shape(), sample, name="sample")


OUTSIDE = -1
"""The place of a neighbour that is not in the image."""


def _sample_by_places(
    s: Sampling, x: te.Tensor, points: Sequence[te.Tensor], shape: Sequence[int], spatial: Sequence[int], kind: DType
) -> te.Tensor:
    """Where the neighbours of each point lie in a plane, and their weights, found once for all channels."""
    wide = points[0].dtype
    m, corners = EXPRESSIONS, list(itertools.product(s.taps, repeat=len(spatial)))

    def neighbours(*i: Any) -> tuple[Expr, ...]:
        coordinates = [p[i] for p in points]
        floors = [te.floor(p) for p in coordinates]
        made: list[Expr] = []
        for taps in corners:
            at = [te.cast(f, "int32") + tap for f, tap in zip(floors, taps)]
            place, weight = te.const(0, "int32"), te.const(1, wide)
            for a, size, p, f, tap in zip(at, spatial, coordinates, floors, taps):
                place = place * size + te.cast(s.hold(m, a, size), "int32")
                weight = weight * s.weight(p - f, tap)
            if s.padding == "zeros":
                inside = te.all(*[te.all(a >= 0, a < size) for a, size in zip(at, spatial)])
                place = te.select(inside, place, te.const(OUTSIDE, "int32"))
            made += [place, weight]
        return tuple(made)

    found = te.compute((shape[0], *shape[2:]), neighbours, name="neighbours")
    last = spatial[-1]

    def blend(n: Expr, channel: Expr, *i: Any) -> Expr:
        total: Expr = te.const(0, wide)
        for which in range(len(corners)):
            place, weight = found[2 * which][(n, *i)], found[2 * which + 1][(n, *i)]
            at = te.minimum(te.maximum(index_expr(place), 0), math.prod(spatial) - 1)
            value = x[(n, channel, *([at // last, at % last][-len(spatial) :]))].astype(wide)
            if s.padding == "zeros":
                value = te.select(place > OUTSIDE, value, te.const(0, wide))
            total = total + value * weight
        return total.astype(kind)

    return te.stage(tuple(shape), blend, name="sample")


register(
    "GridSample",
    _sample_infer,
    _sample,
    _sample_compute,
    "injective",
    takes="X[n c *s], grid:float[n *o _]",
    traits="cheap",
)
