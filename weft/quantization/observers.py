"""Observers: what range of real numbers an activation takes, seen over calibration data.

    minmax        everything that was seen
    percentile    without the outermost numbers: 0.01 % at either end
    mse           the range, at most that of minmax, whose rounding and clipping lose least of what was seen

Percentile and mse look at a sample of bounded size, taken evenly from every array.
"""

from __future__ import annotations

import numpy as np

from weft.core.errors import ArgumentError
from weft.graph.ir import NUMPY_TYPES, Array

METHODS = ("minmax", "percentile", "mse")
LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "fp8": (-448, 448)}
"""What activations can become, and the range of it; "fp8" is float8_e4m3fn."""
FLOAT8 = "float8_e4m3fn"

MOST_OF_ONE = 1 << 16
"""How many numbers of one array are kept."""

MOST = 1 << 20
"""How many numbers are kept in all."""

OUTER = 0.01
"""The percentage that `percentile` leaves out at either end."""

SHRINKS = np.linspace(1.0, 0.2, 41)
"""The parts of the whole range that `mse` tries."""


class Observer:
    """What was seen of one activation."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.kept: list[Array] = []
        self.channel_sum: Array | None = None
        self.channel_count = 0

    def see(self, array: Array, channel: int) -> None:
        """Takes an array in; means are kept for each place along the axis `channel`."""
        if not array.size:
            return
        if not np.isfinite(array).all():
            raise ArgumentError("an activation is infinite or NaN on the calibration data: it has no range")
        self.low, self.high = min(self.low, float(array.min())), max(self.high, float(array.max()))
        step = max(1, array.size // MOST_OF_ONE)
        if sum(a.size for a in self.kept) < MOST:
            self.kept.append(array.reshape(-1)[::step].astype(np.float32))
        others = tuple(axis for axis in range(array.ndim) if axis != channel % array.ndim)
        total = array.sum(axis=others, dtype=np.float64)
        self.channel_sum = total if self.channel_sum is None else self.channel_sum + total
        self.channel_count += array.size // array.shape[channel]

    @property
    def mean(self) -> Array:
        """The mean for each place along the channel axis."""
        assert self.channel_sum is not None
        return np.asarray(self.channel_sum / max(self.channel_count, 1))

    def range(self, method: str, dtype: str, powers: bool = False) -> tuple[float, float]:
        """The range to cover; 0 is always in it. With `powers`, of scales that are powers of two."""
        if not self.kept:
            raise ArgumentError("nothing was seen of an activation: the calibration data is empty")
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        if method == "minmax" or low == high:
            return low, high
        sample = np.concatenate(self.kept)
        if method == "percentile":
            ends = np.percentile(sample, [OUTER, 100 - OUTER])
            return min(float(ends[0]), 0.0), max(float(ends[1]), 0.0)
        losses = [_loss(sample, low * part, high * part, dtype, powers) for part in SHRINKS]
        part = float(SHRINKS[int(np.argmin(losses))])
        return low * part, high * part


def power_of_two(scale: Array) -> Array:
    """The next powers of two that are no smaller."""
    return np.asarray(np.exp2(np.ceil(np.log2(scale.astype(np.float64)))), np.float32)


def parameters(low: float, high: float, dtype: str, powers: bool = False) -> tuple[Array, Array]:
    """Scale and zero point for a range: the whole range of uint8, or one that is symmetric around 0 in int8."""
    least, most = LIMITS[dtype]
    if dtype != "uint8":
        width, zero = max(-low, high) / most, 0
    else:
        width, zero = (high - low) / (most - least), 0
    scale = np.asarray(width if np.float32(width) > 0 else 1, np.float32)
    scale = power_of_two(scale) if powers else scale
    if dtype == "uint8" and width > 0:
        zero = round(-low / (float(scale) if powers else width))
    return scale, np.asarray(min(max(zero, least), most), NUMPY_TYPES[FLOAT8] if dtype == "fp8" else dtype)


def _loss(sample: Array, low: float, high: float, dtype: str, powers: bool) -> float:
    """The mean square of what quantization to a range changes."""
    scale, zero = parameters(low, high, dtype, powers)
    least, most = LIMITS[dtype]
    level = np.clip((sample / scale if dtype == "fp8" else np.rint(sample / scale)) + int(zero), least, most)
    if dtype == "fp8":
        level = level.astype(NUMPY_TYPES[FLOAT8]).astype(np.float32)
    return float(np.square((level - int(zero)) * scale - sample, dtype=np.float64).mean())
