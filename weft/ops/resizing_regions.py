"""Operators that read regions of images: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.core.dtypes import DType, dtype
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import unknown_dim
from weft.graph.signature import Between, OneOf
from weft.ops.movement_indices import output_type

# -------------------------------------------------------------------------------------------------------- RoiAlign


MOST_SAMPLES = 1 << 10
"""Along one dimension of a cell of a region."""


class Align:
    """The attributes of a RoiAlign."""

    __slots__ = ("height", "width", "scale", "ratio", "largest", "half")

    def __init__(self, c: Use) -> None:
        self.height, self.width = int(c.get("output_height", 1)), int(c.get("output_width", 1))
        self.scale, self.ratio = float(c.get("spatial_scale", 1.0)), int(c.get("sampling_ratio", 0))
        self.largest = c.get("mode", "avg") == "max"
        self.half = c.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"


def _region_count(c: Infer) -> Dim:
    rois = c.tensor(1)
    return unknown_dim("rois") if rois.shape is None else rois.shape[0]


def _align_infer(c: Infer) -> list[Type]:
    x, a = c.tensor(0), Align(c)
    channels: Dim = unknown_dim("channels") if x.shape is None else x.shape[1]
    return [TensorType(x.dtype, (_region_count(c), channels, a.height, a.width))]


def _line_taps(start: float, step: float, bins: int, count: int, size: int) -> tuple[Array, Array, Array, Array]:
    """Along one dimension, for (bin, sample): the two elements around the place and their weights."""
    kind = np.asarray(start).dtype.type
    sample = (np.arange(count, dtype=kind)[None, :] + kind(0.5)) * kind(1 / max(count, 1))
    at = start + step * (np.arange(bins, dtype=kind)[:, None] + sample)
    outside = (at < -1.0) | (at > size)
    at = np.clip(at, kind(0), kind(size - 1))
    low = np.floor(np.nan_to_num(at, nan=0.0)).astype(np.int64)  # a place that is NaN has weights that are
    high = np.minimum(low + 1, size - 1)
    part = at - low
    keep = np.where(outside, 0.0, 1.0)
    return low, high, (1 - part) * keep, part * keep


def _align(c: Evaluate, x: Array, rois: Array, batch: Array) -> Array:
    a = Align(c)
    shift = 0.5 if a.half else 0.0
    out = np.zeros((len(rois), x.shape[1], a.height, a.width), np.float64)
    kind = np.float64 if x.dtype == np.float64 else np.float32  # as in the kernel: where places overflow is one meaning
    for position, (roi, image) in enumerate(zip(rois.astype(kind), batch.reshape(-1))):
        if not 0 <= int(image) < x.shape[0]:
            raise c.error(f"batch index {int(image)} is outside a batch of {x.shape[0]}")
        left, top, right, bottom = roi * a.scale - shift
        extent = np.array([bottom - top, right - left], kind)
        step_y, step_x = (extent if a.half else np.maximum(extent, 1)) * np.array([1 / a.height, 1 / a.width], kind)
        if a.ratio <= 0 and not np.isfinite([step_y, step_x]).all():
            raise c.error(f"the region {roi.tolist()} has no number of samples")
        rows = a.ratio if a.ratio > 0 else max(int(np.ceil(step_y)), 0)
        columns = a.ratio if a.ratio > 0 else max(int(np.ceil(step_x)), 0)
        if max(rows, columns) > max(MOST_SAMPLES, *x.shape[2:]):
            raise c.error(f"the region {roi.tolist()} is {max(rows, columns)} samples wide in each cell")
        y = _line_taps(top, step_y, a.height, rows, x.shape[2])
        z = _line_taps(left, step_x, a.width, columns, x.shape[3])
        out[position] = _align_one(x[int(image)].astype(np.float64), y, z, a)
    return out.astype(x.dtype)


def _align_one(image: Array, y: tuple[Array, ...], z: tuple[Array, ...], a: Align) -> Array:
    """One region: (channels, height, width)."""
    values = []
    for rows, row_weight in ((y[0], y[2]), (y[1], y[3])):
        for columns, column_weight in ((z[0], z[2]), (z[1], z[3])):
            part = image[:, rows[:, :, None, None], columns[None, None, :, :]]
            values.append(part * (row_weight[:, :, None, None] * column_weight[None, None, :, :]))
    count = y[0].shape[1] * z[0].shape[1]
    if count == 0:
        return np.zeros((image.shape[0], a.height, a.width))
    if a.largest:  # the greatest weighted neighbour, not the greatest interpolated value: so the operator is defined
        return np.asarray(np.maximum.reduce(values).max(axis=(2, 4)))
    return np.asarray(np.add.reduce(values).sum(axis=(2, 4)) / count)


def _align_compute(c: Compute, x: te.Tensor, rois: te.Tensor, batch: te.Tensor) -> Any:
    a = Align(c)
    if a.ratio <= 0:  # otherwise the number of samples depends on the data
        return None
    kind, sizes = output_type(c), c.shape(0)
    wide = dtype("float64") if kind.bits == 64 else dtype("float32")
    rows, columns = te.reduce_axis(a.ratio, "row"), te.reduce_axis(a.ratio, "column")

    def terms(r: Expr, channel: Expr, p: Expr, q: Expr) -> list[Expr]:
        image = index_expr(batch[r])
        y = _line_exprs(a, rois, r, 1, p, rows.var, sizes[2], wide)
        z = _line_exprs(a, rois, r, 0, q, columns.var, sizes[3], wide)
        return [
            x[image, channel, row, column].astype(wide) * (row_weight * column_weight)
            for row, row_weight in y
            for column, column_weight in z
        ]

    axes = [rows, columns]
    if a.largest:
        made = te.compute(c.out_shape(), lambda *i: te.max(_greatest(terms(*i)), axis=axes), name="roi_max")
        return te.compute(c.out_shape(), lambda *i: made[i].astype(kind), name="roi_align")
    made = te.compute(c.out_shape(), lambda *i: te.sum(_total(terms(*i)), axis=axes), name="roi_sum")
    share = 1.0 / (a.ratio * a.ratio)
    return te.compute(c.out_shape(), lambda *i: (made[i] * share).astype(kind), name="roi_align")


def _greatest(terms: list[Expr]) -> Expr:
    return te.maximum(te.maximum(terms[0], terms[1]), te.maximum(terms[2], terms[3]))


def _total(terms: list[Expr]) -> Expr:
    return (terms[0] + terms[1]) + (terms[2] + terms[3])


def _line_exprs(
    a: Align, rois: te.Tensor, r: Expr, side: int, cell: Expr, sample: Expr, size: int, kind: DType
) -> list[tuple[Expr, Expr]]:
    """Along one dimension: the two elements around a sample's place, each with its weight."""
    shift, cells = 0.5 if a.half else 0.0, a.height if side else a.width
    start = rois[r, side].astype(kind) * a.scale - shift
    extent = rois[r, side + 2].astype(kind) * a.scale - shift - start
    if not a.half:
        extent = te.maximum(extent, te.const(1, kind))
    place = cell.astype(kind) + (sample.astype(kind) + 0.5) * (1.0 / a.ratio)
    at = start + extent * te.const(1.0 / cells, kind) * place
    keep = te.select(te.any(at < -1.0, at > float(size)), te.const(0, kind), te.const(1, kind))
    inner = te.clip(at, 0.0, size - 1.0)
    low = te.minimum(te.maximum(index_expr(te.cast(te.floor(inner), "int64")), 0), size - 1)
    part = inner - low.astype(kind)
    return [(low, (te.const(1, kind) - part) * keep), (te.minimum(low + 1, size - 1), part * keep)]


register(
    "RoiAlign",
    _align_infer,
    _align,
    _align_compute,
    "reduction",
    takes="X:float[n c h w], rois:float[r 4], batch_indices:int[r]",
    requires=(
        OneOf("mode", ("avg", "max")),
        Between("output_height", 1),
        Between("output_width", 1),
        Between("sampling_ratio", 0, MOST_SAMPLES),
    ),
)


# ------------------------------------------------------------------------------------------------------ MaxRoiPool


def _pool_infer(c: Infer) -> list[Type]:
    x, (height, width) = c.tensor(0), c.need("pooled_shape")
    channels: Dim = unknown_dim("channels") if x.shape is None else x.shape[1]
    return [TensorType(x.dtype, (_region_count(c), channels, int(height), int(width)))]


def _pool(c: Evaluate, x: Array, rois: Array) -> Array:
    (height, width), scale = c.need("pooled_shape"), float(c.get("spatial_scale", 1.0))
    out = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for position, roi in enumerate(rois.astype(np.float64)):
        image = int(roi[0])
        if not 0 <= image < x.shape[0]:
            raise c.error(f"batch index {image} is outside a batch of {x.shape[0]}")
        left, top, right, bottom = (int(np.floor(v * scale + 0.5)) for v in roi[1:5])
        rows = _bins(top, bottom, height, x.shape[2])
        columns = _bins(left, right, width, x.shape[3])
        for p, (y0, y1) in enumerate(rows):
            for q, (z0, z1) in enumerate(columns):
                if y1 > y0 and z1 > z0:
                    out[position, :, p, q] = x[image, :, y0:y1, z0:z1].max(axis=(1, 2))
    return out


def _bins(first: int, last: int, count: int, size: int) -> list[tuple[int, int]]:
    """The stretches of elements that the cells of a region cover."""
    step = max(last - first + 1, 1) / count
    return [
        (
            min(max(int(np.floor(k * step)) + first, 0), size),
            min(max(int(np.ceil((k + 1) * step)) + first, 0), size),
        )
        for k in range(count)
    ]


register(
    "MaxRoiPool", _pool_infer, _pool, takes="X:float[n c h w], rois:float[r 5]", requires=(Between("pooled_shape", 1),)
)
