"""Resize and the older Upsample: nearest, linear and cubic, with every coordinate transformation and antialiasing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from weft import te
from weft.core.dtypes import DType, dtype
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpenSize, Use, register
from weft.graph.shapes import times, unknown_dim
from weft.ops.movement_indices import choose, output_type, unknown_shape
from weft.ops.resizing_axes import AxisResize, Options, output_sizes, plan

LONGEST_TABLE = 512
"""Up to this length, the nearest elements of a scale that is no simple fraction are written out."""

# --------------------------------------------------------------------------------------------------- types, meaning


def _inputs(c: Use, given: list[Any]) -> tuple[Any, Any, Any]:
    """roi, scales and sizes, wherever this operator has them."""
    if c.node.op == "Upsample":
        return None, given[0] if given else None, None
    return tuple((*given, None, None, None)[:3])


def _infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    _, scales, sizes = _inputs(c, [c.value(k) for k in range(1, len(c.types))])
    known = any(v is not None and v.size for v in (scales, sizes))
    if x.shape is None or not known:
        return [TensorType(x.dtype, unknown_shape(None if x.shape is None else x.rank, "resize"))]
    options = Options(c)
    if x.is_static:
        return [TensorType(x.dtype, output_sizes(c, options, x.static, scales, sizes)[0])]
    dims: list[Dim] = list(x.shape)
    for position, axis in enumerate(options.chosen(c, x.rank)):
        if scales is not None and scales.size:
            factor = float(scales[position])
            dims[axis] = times(dims[axis], int(factor)) if factor.is_integer() else unknown_dim("resize")
        else:
            dims[axis] = int(sizes[position]) if options.policy == "stretch" else unknown_dim("resize")
    return [TensorType(x.dtype, dims)]


def _evaluate(c: Evaluate, x: Array, *rest: Array | None) -> Array:
    axes = plan(c, x.shape, *_inputs(c, list(rest)))
    shape = [a.wanted for a in axes]
    if 0 in shape or 0 in x.shape:
        return np.zeros(shape, x.dtype)
    nearest = axes[0].options.mode == "nearest" if axes else True
    made = x if nearest else x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    for position, axis in enumerate(axes):
        if not axis.is_identity:
            made = _resize_axis(made, position, axis, nearest)
    for position, axis in enumerate(axes):
        outside = axis.outside()
        if outside is not None and outside.any():
            mask = outside.reshape([-1 if k == position else 1 for k in range(x.ndim)])
            made = np.where(mask, np.asarray(axis.options.extrapolation, made.dtype), made)
    return _narrow(made, x.dtype)


def _resize_axis(x: Array, position: int, axis: AxisResize, nearest: bool) -> Array:
    places, weights = axis.table()
    if nearest:
        return np.take(x, places[:, 0], axis=position)
    out: Any = 0
    for tap in range(places.shape[1]):
        weight = weights[:, tap].reshape([-1 if k == position else 1 for k in range(x.ndim)])
        out = out + np.take(x, places[:, tap], axis=position) * weight.astype(x.dtype)
    return np.asarray(out)


def _narrow(x: Array, kind: Any) -> Array:
    if x.dtype == kind:
        return np.array(x)
    if kind.kind in "iu":
        bounds = np.iinfo(kind)
        x = np.clip(np.trunc(x), bounds.min, bounds.max)
    return x.astype(kind)


# ------------------------------------------------------------------------------------------------------- compiled


def _affine(table: Array, slope: Fraction) -> tuple[int, int, int] | None:
    """Integers p, q, r with table[i] == (p*i + q) // r for every i, where there are such."""
    p, r = slope.numerator, slope.denominator
    if max(abs(p), r) > 1 << 20:
        return None
    i = np.arange(len(table), dtype=np.int64)
    low, high = int((r * table - p * i).max()), int((r * table + r - 1 - p * i).min())
    if low > high:
        return None
    q = min(range(low, min(high, low + 4 * r) + 1), key=lambda v: (v % r != 0, abs(v)))
    return p, q, r


class AxisKernel:
    """Index and weight expressions of one dimension."""

    __slots__ = ("axis", "slope", "offset", "table", "line", "kind")

    def __init__(self, axis: AxisResize, kind: DType) -> None:
        self.axis, self.kind = axis, kind
        exact, offset = axis.line()
        self.slope, self.offset = float(exact), float(offset)
        self.table = axis.base()
        self.line = _affine(self.table, exact)

    def coordinate(self, i: Expr) -> Expr:
        """Where output element i lies in the source."""
        return i.astype(self.kind) * te.const(self.slope, self.kind) + te.const(self.offset, self.kind)

    def base(self, i: Expr) -> Expr:
        """The element at or before the coordinate (or the nearest), which may lie outside."""
        if self.line is not None:
            p, q, r = self.line
            return (i * p + q) // r
        if self.is_exact:
            return index_expr(choose(i, [index_expr(int(place)) for place in self.table]))
        x = te.cast(i, "float32") * te.const(self.slope, "float32") + te.const(self.offset, "float32")
        return te.cast(te.floor(x), "int64")

    @property
    def is_exact(self) -> bool:
        """Whether the base is that of the host for every element (a nearest element may not differ)."""
        return self.line is not None or (self.axis.options.mode == "nearest" and len(self.table) <= LONGEST_TABLE)

    @property
    def is_plain(self) -> bool:
        """Whether a place between two elements takes its part of each, and no more."""
        options = self.axis.options
        return options.mode == "linear" and not options.exclude and self.axis.stretch == 1.0

    def inside(self, at: Expr, tap: int = 0) -> Expr:
        """A place held inside the source, at the cost of the tests that are needed; floats prove nothing."""
        if int(self.table.min()) + tap < 0 or not self.is_exact:
            at = te.maximum(at, 0)
        beyond = int(self.table.max()) + tap >= self.axis.size or not self.is_exact
        return te.minimum(at, self.axis.size - 1) if beyond else at

    def weight(self, distance: Expr) -> Expr:
        """The filter at a distance from the coordinate."""
        kind, d = self.kind, te.abs(distance)
        if self.axis.options.mode == "linear":
            return te.maximum(te.const(1, kind) - d, te.const(0, kind))
        a = self.axis.options.cubic
        near = (d * (a + 2) - (a + 3)) * d * d + 1.0
        far = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
        return te.select(d <= 1.0, near, te.select(d < 2.0, far, te.const(0, kind)))

    def raw_weight(self, i: Expr, tap: Any) -> Expr:
        """The weight of one tap before the weights are made to sum to one."""
        base = self.base(i)
        if self.is_plain:
            part = self.coordinate(i) - base.astype(self.kind)
            return part if tap else te.const(1, self.kind) - part
        at = base + tap
        distance = (at.astype(self.kind) - self.coordinate(i)) * te.const(1.0 / self.axis.stretch, self.kind)
        weight = self.weight(distance)
        if self.axis.options.exclude:
            weight = te.select(te.all(at >= 0, at < self.axis.size), weight, te.const(0, self.kind))
        return weight


def _stage(x: te.Tensor, position: int, k: AxisKernel) -> Any:
    """One dimension resized."""
    shape = [k.axis.wanted if p == position else s for p, s in enumerate(x.shape)]

    def read(i: tuple[Any, ...], tap: Any) -> Expr:
        at = k.base(i[position]) + tap
        held = k.inside(at, tap) if isinstance(tap, int) else te.minimum(te.maximum(at, 0), k.axis.size - 1)
        return x[(*i[:position], held, *i[position + 1 :])]

    low, high = k.axis.reach
    if k.axis.options.mode == "nearest":
        return te.compute(shape, lambda *i: read(i, 0), name=f"nearest{position}")
    if high - low > 4:
        return _summed(shape, position, k, read)

    def total(*i: Any) -> Expr:
        out = weights = None
        for tap in range(low, high):
            weight = k.raw_weight(i[position], tap)
            term = read(i, tap).astype(k.kind) * weight
            out, weights = (term, weight) if out is None or weights is None else (out + term, weights + weight)
        assert out is not None and weights is not None
        return out / weights if k.axis.options.exclude or k.axis.options.antialias else out

    return te.compute(shape, total, name=f"resize{position}")


def _summed(shape: list[Any], position: int, k: AxisKernel, read: Any) -> Any:
    """A wide filter: a sum over taps, divided by the sum of the weights."""
    low, high = k.axis.reach
    first, second = te.reduce_axis(high - low, "tap"), te.reduce_axis(high - low, "tap")
    weights = te.compute(
        (k.axis.wanted,), lambda i: te.sum(k.raw_weight(i, first.var + low), axis=first), name=f"weights{position}"
    )
    total = te.compute(
        shape,
        lambda *i: te.sum(
            read(i, second.var + low).astype(k.kind) * k.raw_weight(i[position], second.var + low), axis=second
        ),
        name=f"sum{position}",
    )
    return te.compute(shape, lambda *i: total[i] / weights[i[position]], name=f"resize{position}")


def _compute(c: Compute, x: te.Tensor, *rest: Any) -> Any:
    given = [c.value(k) for k in range(1, len(c.types))]
    if not all(isinstance(d, int) for d in c.dims(0)):
        return _repeated(c, x, _inputs(c, given)[1])
    kind, axes = output_type(c), plan(c, c.shape(0), *_inputs(c, given))
    nearest = not axes or axes[0].options.mode == "nearest"
    wide = kind if nearest or kind.bits == 64 and kind.is_float else dtype("float32")
    made: Any = x
    for position, axis in enumerate(axes):
        if not axis.is_identity:
            kernel = AxisKernel(axis, dtype("float32") if nearest else wide)
            if nearest and not kernel.is_exact:
                return None
            made = _stage(made, position, kernel)
    return _finish(made, axes, kind, wide)


def _repeated(c: Compute, x: te.Tensor, scales: Array | None) -> Any:
    """The nearest elements along open sizes, where each is repeated a whole number of times."""
    options, factors = Options(c), [1] * x.ndim
    rule = options.transform, options.nearest
    halves = rule[0] in ("half_pixel", "pytorch_half_pixel") and rule[1].startswith("round")
    if (
        options.mode != "nearest"
        or scales is None
        or not scales.size
        or not (halves or rule == ("asymmetric", "floor"))
    ):
        raise OpenSize("only nearest elements, each repeated, have a kernel beside open sizes")
    for scale, axis in zip(scales.tolist(), options.chosen(c, x.ndim)):
        if scale < 1 or not float(scale).is_integer():
            raise OpenSize("only whole scales have a kernel beside open sizes")
        factors[axis] = int(scale)
    return te.compute(c.out_dims(), lambda *i: x[tuple(at // by for at, by in zip(i, factors))], name="repeated")


def _finish(made: Any, axes: list[AxisResize], kind: DType, wide: DType) -> Any:
    """The extrapolation value outside the source, and the type of the result."""
    ranges = []
    for position, axis in enumerate(axes):
        outside = axis.outside()
        if outside is not None and outside.any():
            inside = np.nonzero(~outside)[0]
            ranges.append((position, int(inside[0]), int(inside[-1]) + 1) if len(inside) else (position, 0, 0))
    shape = [a.wanted for a in axes]
    if not ranges and (made.dtype is kind and made.op.axis):
        return made

    def read(*i: Any) -> Expr:
        value: Expr = made[i].astype(wide)
        tests = [te.all(i[p] >= low, i[p] < high) for p, low, high in ranges]
        if tests:
            value = te.select(te.all(*tests), value, te.const(_fitting(axes[0].options.extrapolation, wide), wide))
        return value.astype(kind)

    return te.compute(shape, read, name="resized", dtype=kind)


def _fitting(value: float, kind: DType) -> Any:
    return value if kind.is_float else bool(value) if kind.is_bool else int(value)


register(
    "Resize",
    _infer,
    _evaluate,
    _compute,
    lambda node: "reduction" if node.attributes.get("antialias") else "injective",
    shape_inputs=(1, 2, 3),
    takes="X, roi:float[_]?, scales:float[_]?, sizes:int[_]?",
    traits="channelwise cheap grows",
)
register(
    "Upsample",
    _infer,
    _evaluate,
    _compute,
    "injective",
    shape_inputs=(1,),
    takes="X, scales:float[_]",
    traits="channelwise cheap grows",
)
