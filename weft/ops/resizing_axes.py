"""The geometry of a Resize, one dimension at a time: which source elements make an output element, and their weights.

A resize is separable: along each dimension, output element i lies at a coordinate of the source (in single precision,
as other runtimes compute it) and is a weighted sum of `taps` neighbours, or the nearest one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from weft.graph.ir import Array
from weft.graph.opspec import Use
from weft.graph.shapes import normal_axes

MODES = ("nearest", "linear", "cubic")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


class Options:
    """The attributes of a Resize."""

    __slots__ = ("mode", "transform", "nearest", "cubic", "antialias", "exclude", "extrapolation", "policy", "axes")

    def __init__(self, c: Use) -> None:
        old = c.node.op == "Upsample"
        self.mode = str(c.get("mode", "nearest"))
        self.transform = "asymmetric" if old else str(c.get("coordinate_transformation_mode", "half_pixel"))
        self.nearest = "floor" if old else str(c.get("nearest_mode", "round_prefer_floor"))
        self.cubic = float(c.get("cubic_coeff_a", -0.75))
        self.antialias = bool(c.get("antialias", 0)) and self.mode != "nearest"
        self.exclude = bool(c.get("exclude_outside", 0))
        self.extrapolation = float(c.get("extrapolation_value", 0.0))
        self.policy = str(c.get("keep_aspect_ratio_policy", "stretch"))
        self.axes = c.get("axes")
        if self.mode not in MODES:
            raise c.error(f"unknown mode {self.mode!r}; known are {', '.join(MODES)}")
        if self.nearest not in NEAREST:
            raise c.error(f"unknown nearest_mode {self.nearest!r}; known are {', '.join(NEAREST)}")

    def chosen(self, c: Use, rank: int) -> tuple[int, ...]:
        """The axes that scales, sizes and roi speak of."""
        return normal_axes(range(rank) if self.axes is None else self.axes, rank, c.error)


class AxisResize:
    """One dimension: its source and result sizes, its scale, and the stretch of the source that is taken."""

    __slots__ = ("size", "wanted", "scale", "start", "end", "options")

    def __init__(self, size: int, wanted: int, scale: float, start: float, end: float, options: Options) -> None:
        self.size, self.wanted, self.scale = size, wanted, np.float32(scale)
        self.start, self.end, self.options = start, end, options

    @property
    def is_identity(self) -> bool:
        """Whether the dimension stays as it is."""
        same = self.size == self.wanted and float(self.scale) == 1.0
        return same and (self.options.transform != "tf_crop_and_resize" or (self.start, self.end) == (0.0, 1.0))

    def line(self) -> tuple[Fraction, Fraction]:
        """Slope and offset of the coordinate as a line, exact but for the scale's own rounding."""
        scale = self._ratio()
        exact = scale * self.size
        half = Fraction(1, 2)
        transform = self.options.transform
        if transform == "align_corners":
            return (Fraction(0), Fraction(0)) if exact == 1 else (Fraction(self.size - 1) / (exact - 1), Fraction(0))
        if transform == "asymmetric":
            return 1 / scale, Fraction(0)
        if transform == "tf_crop_and_resize":
            start, end, last = Fraction(self.start), Fraction(self.end), self.size - 1
            if self.wanted > 1:
                return (end - start) * last / (self.wanted - 1), start * last
            return Fraction(0), half * (start + end) * last
        if transform == "pytorch_half_pixel" and self.wanted == 1:
            return Fraction(0), Fraction(0)
        offset = half / scale - half
        if transform == "half_pixel_symmetric":
            offset += Fraction(self.size, 2) * (1 - Fraction(self.wanted) / exact)
        return 1 / scale, offset

    def _ratio(self) -> Fraction:
        """The scale as the simple fraction that it was before it was rounded to single precision."""
        simple = Fraction(self.wanted, self.size) if self.size else Fraction(1)
        if np.float32(float(simple)) == self.scale:
            return simple
        near = Fraction(float(self.scale)).limit_denominator(1024)
        return near if np.float32(float(near)) == self.scale else Fraction(float(self.scale))

    def coordinates(self) -> Array:
        """Where each output element lies in the source, in single precision."""
        one, half = np.float32(1), np.float32(0.5)
        x = np.arange(self.wanted, dtype=np.float32)
        transform, scale = self.options.transform, self.scale
        if transform == "half_pixel" or (transform == "pytorch_half_pixel" and self.wanted > 1):
            return (x + half) / scale - half
        if transform == "pytorch_half_pixel":
            return np.zeros_like(x)
        if transform == "asymmetric":
            return x / scale
        if transform == "half_pixel_symmetric":
            adjustment = np.float32(self.wanted) / (scale * np.float32(self.size))
            return np.float32(self.size / 2) * (one - adjustment) + (x + half) / scale - half
        slope, offset = self.line()
        if transform == "align_corners" and slope:
            width = scale * np.float32(self.size)
            return x * np.float32(self.size - 1) / (width - one)
        return (x * np.float32(float(slope)) + np.float32(float(offset))).astype(np.float32)

    def base(self) -> Array:
        """The nearest element, or the one at or before the coordinate; it may lie outside the source."""
        x = self.coordinates()
        if self.options.mode != "nearest":
            return np.floor(x).astype(np.int64)
        half = np.float32(0.5)
        rounded = {
            "round_prefer_floor": lambda: np.ceil(x - half),
            "round_prefer_ceil": lambda: np.floor(x + half),
            "floor": lambda: np.floor(x),
            "ceil": lambda: np.ceil(x),
        }[self.options.nearest]()
        return rounded.astype(np.int64)

    @property
    def stretch(self) -> float:
        """How much the filter is widened against aliasing: 1 where it is not."""
        return 1.0 / float(self.scale) if self.options.antialias and float(self.scale) < 1 else 1.0

    @property
    def reach(self) -> tuple[int, int]:
        """The taps, relative to the base: from the first to (not with) the last."""
        width = {"nearest": 0.5, "linear": 1.0, "cubic": 2.0}[self.options.mode] * self.stretch
        return (0, 1) if self.options.mode == "nearest" else (1 - math.ceil(width), math.ceil(width) + 1)

    def table(self) -> tuple[Array, Array]:
        """Source elements and weights, both of shape (wanted, taps)."""
        base = self.base()[:, None]
        low, high = self.reach
        if self.options.mode == "nearest":
            return np.clip(base, 0, self.size - 1), np.ones(base.shape)
        places = base + np.arange(low, high)
        distance = (places - self.coordinates()[:, None].astype(np.float64)) / self.stretch
        weights = self._filter(np.abs(distance))
        if self.options.exclude:
            weights = np.where((places >= 0) & (places < self.size), weights, 0.0)
        if self.options.exclude or self.options.antialias:
            weights = weights / weights.sum(axis=1, keepdims=True)
        return np.clip(places, 0, self.size - 1), weights

    def _filter(self, d: Array) -> Array:
        if self.options.mode == "linear":
            return np.maximum(0.0, 1.0 - d)
        a = self.options.cubic
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    def outside(self) -> Array | None:
        """Which output elements lie outside the source and take the extrapolation value."""
        if self.options.transform != "tf_crop_and_resize":
            return None
        x = self.coordinates()
        return (x < 0) | (x > self.size - 1)


def output_sizes(
    c: Use, options: Options, shape: Sequence[int], scales: Array | None, sizes: Array | None
) -> tuple[list[int], list[float]]:
    """The size and the scale of every dimension."""
    chosen = options.chosen(c, len(shape))
    out, factors = list(shape), [1.0] * len(shape)
    given: Any = scales if scales is not None and scales.size else sizes
    if given is None or not given.size:
        raise c.error("neither scales nor sizes are given")
    if len(given) != len(chosen):
        raise c.error(f"{len(given)} numbers for {len(chosen)} axes")
    if given is scales:
        for axis, scale in zip(chosen, np.asarray(given, np.float32)):
            if not 0 < scale < math.inf:
                raise c.error(f"a scale of {scale}")
            out[axis], factors[axis] = int(np.floor(np.float32(shape[axis]) * scale)), float(scale)
        return out, factors
    if options.policy == "stretch":
        for axis, size in zip(chosen, given):
            out[axis], factors[axis] = int(size), int(size) / shape[axis] if shape[axis] else 1.0
        return out, factors
    ratios = [int(size) / shape[axis] for axis, size in zip(chosen, given)]
    scale = min(ratios) if options.policy == "not_larger" else max(ratios)
    for axis in chosen:
        out[axis], factors[axis] = math.floor(scale * shape[axis] + 0.5), scale
    return out, factors


def plan(
    c: Use, shape: Sequence[int], roi: Array | None, scales: Array | None, sizes: Array | None
) -> list[AxisResize]:
    """Every dimension of a Resize."""
    options = Options(c)
    wanted, factors = output_sizes(c, options, shape, scales, sizes)
    chosen = options.chosen(c, len(shape))
    starts, ends = [0.0] * len(shape), [1.0] * len(shape)
    if roi is not None and roi.size:
        given = [float(v) for v in np.asarray(roi).reshape(-1)]
        for position, axis in enumerate(chosen):
            starts[axis], ends[axis] = given[position], given[position + len(chosen)]
    return [AxisResize(*each, options) for each in zip(shape, wanted, factors, starts, ends)]
