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
from weft.ops.movement_indices import integers, length_of, output_type, unknown_shape

CUBIC = -0.75
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


class Sampling:
    """The attributes of a GridSample."""

    __slots__ = ("mode", "padding", "aligned")

    def __init__(self, c: Use) -> None:
        mode = str(c.get("mode", "linear"))
        self.mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
        self.padding = str(c.get("padding_mode", "zeros"))
        self.aligned = bool(c.get("align_corners", 0))
        if self.mode not in ("linear", "nearest", "cubic"):
            raise c.error(f"unknown mode {mode!r}")
        if self.padding not in ("zeros", "border", "reflection"):
            raise c.error(f"unknown padding_mode {self.padding!r}")

    def border(self, size: int) -> tuple[float, float]:
        """The coordinates between which a dimension lies."""
        return (0.0, size - 1.0) if self.aligned else (-0.5, size - 0.5)

    def line(self, size: int) -> tuple[float, float]:
        """Slope and offset that take a coordinate in -1 … 1 to one in elements."""
        return ((size - 1) / 2, (size - 1) / 2) if self.aligned else (size / 2, (size - 1) / 2)

    @property
    def taps(self) -> range:
        """The neighbours that a sample reads, relative to the element at or before it."""
        return {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}[self.mode]


def _sample_infer(c: Infer) -> list[Type]:
    x, grid = c.tensor(0), c.tensor(1)
    if x.shape is None or grid.shape is None:
        return [TensorType(x.dtype, None)]
    if grid.rank != x.rank or x.rank < 3:
        raise c.error(f"a grid {grid!r} does not fit an input {x!r}")
    if isinstance(grid.shape[-1], int) and grid.shape[-1] != x.rank - 2:
        raise c.error(f"a grid of {grid.shape[-1]} coordinates for an input of {x.rank - 2} spatial dimensions")
    return [TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))]


def _located(s: Sampling, values: Array, size: int) -> Array:
    """Coordinates in elements, brought inside the border where the padding asks for that.

    A cubic sample stays where it is: each of its neighbours is brought inside on its own.
    """
    slope, offset = s.line(size)
    at = np.clip(np.nan_to_num(values, nan=-FAR, posinf=FAR, neginf=-FAR) * slope + offset, -FAR, FAR)
    if s.mode == "nearest":
        at = np.rint(at)
    if s.mode == "cubic":
        return np.asarray(at)
    low, high = s.border(size)
    outside = (at < low) | (at > high)
    if s.padding == "border":
        return np.where(outside, np.clip(at, 0, size - 1), at)
    if s.padding == "reflection":
        span = high - low
        far = np.mod(np.abs(at - low), 2 * span) if span else np.zeros_like(at)
        return np.where(outside, low + np.minimum(far, 2 * span - far), at)
    return at


def _held(s: Sampling, at: Array, size: int) -> Array:
    """Element indices inside the dimension."""
    if s.padding == "reflection":
        turn = max(2 * (size - 1), 1) if s.aligned else 2 * size
        far = np.mod(at, turn)
        at = np.minimum(far, turn - (0 if s.aligned else 1) - far)
    return np.clip(at, 0, size - 1)


def _weights(s: Sampling, t: Array) -> list[Array]:
    if s.mode == "nearest":
        return [np.ones_like(t)]
    if s.mode == "linear":
        return [1 - t, t]
    a = CUBIC
    outer = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (1 + t, 2 - t)]
    inner = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    return [outer[0], inner[0], inner[1], outer[1]]


def _sample(c: Evaluate, x: Array, grid: Array) -> Array:
    s, spatial = Sampling(c), x.shape[2:]
    rank = len(spatial)
    if x.size == 0 or grid.size == 0:
        return np.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    places = [_located(s, grid[..., rank - 1 - k].astype(wide), spatial[k]) for k in range(rank)]
    bases = [np.rint(p) if s.mode == "nearest" else np.floor(p) for p in places]
    weights = [_weights(s, p - b) for p, b in zip(places, bases)]
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * (grid.ndim - 2))
    source = np.moveaxis(x, 1, -1)
    out: Any = 0
    for taps in itertools.product(range(len(s.taps)), repeat=rank):
        weight: Any = np.ones((), wide)
        at = []
        for k, tap in enumerate(taps):
            index = bases[k].astype(np.int64) + s.taps[tap]
            weight = weight * weights[k][tap]
            if s.padding == "zeros":
                weight = np.where((index >= 0) & (index < spatial[k]), weight, 0)
            at.append(_held(s, index, spatial[k]))
        out = out + source[(batch, *at)].astype(wide) * weight[..., None].astype(wide)
    return np.ascontiguousarray(np.moveaxis(out, -1, 1)).astype(x.dtype)


# ------------------------------------------------------------------------------------------------------- compiled


def _locate(s: Sampling, value: Expr, size: int, kind: DType) -> Expr:
    slope, offset = s.line(size)
    held = te.select(te.isnan(value), te.const(-FAR, kind), value)
    at = te.clip(held * te.const(slope, kind) + te.const(offset, kind), -FAR, FAR)
    if s.mode == "nearest":
        at = te.round(at)
    low, high = s.border(size)
    if s.padding == "zeros" or s.mode == "cubic":
        return at
    if s.padding == "border":
        inner = te.clip(at, 0.0, size - 1.0)
    else:
        span = high - low
        far = te.fmod(te.abs(at - low), te.const(2 * span, kind)) if span else te.const(0, kind)
        inner = te.minimum(far, te.const(2 * span, kind) - far) + low
    return te.select(te.any(at < low, at > high), inner, at)


def _hold(s: Sampling, at: Expr, size: int) -> Expr:
    if s.padding == "reflection":
        turn = max(2 * (size - 1), 1) if s.aligned else 2 * size
        far = at % turn
        at = te.minimum(far, (turn if s.aligned else turn - 1) - far)
    return te.minimum(te.maximum(at, 0), size - 1)


def _tap_weight(s: Sampling, t: Expr, tap: int) -> Expr:
    if s.mode == "linear":
        return t if tap else te.const(1, t.dtype) - t
    a = CUBIC
    d = {-1: t + 1.0, 0: t, 1: te.const(1, t.dtype) - t, 2: te.const(2, t.dtype) - t}[tap]
    if tap in (0, 1):
        return (d * (a + 2) - (a + 3)) * d * d + 1.0
    return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a


def _sample_compute(c: Compute, x: te.Tensor, grid: te.Tensor) -> Any:
    if not output_type(c).is_float:
        return None
    kind, spatial, s = output_type(c), c.shape(0)[2:], Sampling(c)
    wide = dtype("float64") if kind.bits == 64 else dtype("float32")
    rank = len(spatial)
    points = te.compute(
        c.shape(1)[:-1],
        lambda *i: tuple(_locate(s, grid[(*i, rank - 1 - k)].astype(wide), spatial[k], wide) for k in range(rank)),
        name="points",
    )
    where = points if isinstance(points, tuple) else (points,)
    if s.mode == "linear" and rank <= 2:
        return _sample_by_places(s, x, where, c.out_shape(), spatial, kind)
    return te.compute(c.out_shape(), lambda n, ch, *i: _blend(s, x, where, n, ch, i, spatial, kind), name="sample")


OUTSIDE = -1
"""The place of a neighbour that is not in the image."""


def _sample_by_places(
    s: Sampling, x: te.Tensor, points: Sequence[te.Tensor], shape: Sequence[int], spatial: Sequence[int], kind: DType
) -> te.Tensor:
    """Where the neighbours of each point lie in a plane, and their weights, found once for all channels."""
    wide = points[0].dtype
    corners = list(itertools.product(s.taps, repeat=len(spatial)))

    def neighbours(*i: Any) -> tuple[Expr, ...]:
        coordinates = [p[i] for p in points]
        floors = [te.floor(p) for p in coordinates]
        made: list[Expr] = []
        for taps in corners:
            at = [te.cast(f, "int32") + tap for f, tap in zip(floors, taps)]
            place, weight = te.const(0, "int32"), te.const(1, wide)
            for a, size, p, f, tap in zip(at, spatial, coordinates, floors, taps):
                place = place * size + te.cast(_hold(s, a, size), "int32")
                weight = weight * _tap_weight(s, p - f, tap)
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


def _blend(
    s: Sampling,
    x: te.Tensor,
    points: Sequence[te.Tensor],
    n: Expr,
    channel: Expr,
    i: tuple[Any, ...],
    spatial: Sequence[int],
    kind: DType,
) -> Expr:
    """One sample: the neighbours, each by its weight."""
    coordinates = [p[(n, *i)] for p in points]
    floors = [te.floor(p) for p in coordinates]
    bases = [index_expr(te.cast(f, "int64")) for f in floors]
    parts = [p - f for p, f in zip(coordinates, floors)]
    wide = coordinates[0].dtype
    total: Expr | None = None
    for taps in itertools.product(s.taps, repeat=len(spatial)):
        at = [b + tap for b, tap in zip(bases, taps)]
        value = x[(n, channel, *(_hold(s, a, size) for a, size in zip(at, spatial)))].astype(wide)
        if s.padding == "zeros":
            tests = [te.all(a >= 0, a < size) for a, size in zip(at, spatial)]
            value = te.select(te.all(*tests), value, te.const(0, wide))
        if s.mode != "nearest":
            for part, tap in zip(parts, taps):
                value = value * _tap_weight(s, part, tap)
        total = value if total is None else total + value
    assert total is not None
    return total.astype(kind)


register(
    "GridSample",
    _sample_infer,
    _sample,
    _sample_compute,
    "injective",
    takes="X[n c *s], grid:float[n *o _]",
    traits="cheap",
)
