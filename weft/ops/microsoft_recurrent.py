"""DynamicQuantizeLSTM: an LSTM with 8-bit weights, whose inputs and states are quantized as they come.

The whole input is quantized once for its product, the hidden state of all sequences at every step. (ONNX Runtime does
so with one thread; with more it shares the sequences out and quantizes each share over its own range, so that its
answers depend on the number of threads, by about 1e-3.) Weights lie as (direction, input, gate); scales and zero points
are one for each direction, or one for each direction and gate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Evaluate, Infer, OpSpec, register
from weft.ops.microsoft_composition import DOMAIN
from weft.ops.recurrent import Cell, directions, output_types, run_directions
from weft.ops.recurrent_activations import read_activations


def quantized_product(x: Array, weight: Array, scale: Array) -> Array:
    """x @ weight with x rounded to 8 bits over its own range; the weight has its zero point taken off already."""
    low, high = min(float(x.min(initial=0)), 0.0), max(float(x.max(initial=0)), 0.0)
    unit = np.float32((high - low) / 255) if high > low else np.float32(1)
    zero = np.rint(np.clip(-low / unit, 0, 255))
    codes = np.clip(np.rint(x / unit) + zero, 0, 255) - zero
    total = np.matmul(codes.astype(np.float64), weight).astype(np.float32)
    return np.asarray(total * (unit * scale))


class QuantizedCell(Cell):
    """One direction with 8-bit weights."""

    __slots__ = ("scales",)

    def __init__(self, weights: tuple[Array, Array], scales: tuple[Array, Array], *rest: Any) -> None:
        super().__init__(weights[0].T, weights[1].T, *rest)
        self.scales = scales

    def project(self, x: Array) -> Array:
        """The input's part of every gate."""
        return np.asarray(quantized_product(x, self.w.T, self.scales[0]) + self.wb)

    def recur(self, h: Array) -> Array:
        """The state's part of every gate, without its bias."""
        return quantized_product(h, self.r.T, self.scales[1])


def _infer(c: Infer) -> list[Type]:
    x, r = c.tensor(0), c.tensor(2)
    read_activations(c, len(directions(c)), 3)
    if x.shape is None or r.shape is None:
        return [TensorType("float32", None) for _ in c.node.outputs]
    if x.rank != 3 or r.rank != 3:
        raise c.error(f"the input and R must have 3 dimensions, not {x!r} and {r!r}")
    return output_types(c, x, r.dims[1], 2)


def _evaluate(c: Evaluate, *arrays: Any) -> Any:
    x, w, r, b, lengths, h, s, p, w_scale, w_zero, r_scale, r_zero = arrays
    functions = read_activations(c, len(directions(c)), 3)

    def cell(d: int) -> Cell:
        weights = tuple(v[d].astype(np.float64) - z[d].astype(np.float64) for v, z in ((w, w_zero), (r, r_zero)))
        parts = [None if v is None else v[d] for v in (b, p)]
        scales = (w_scale[d], r_scale[d])
        return QuantizedCell((weights[0], weights[1]), scales, parts[0], parts[1], functions[d], c.get("clip"))

    return run_directions(c, x, cell, [h, s], lengths, np.float32)


register(OpSpec("DynamicQuantizeLSTM", _infer, _evaluate, None, "opaque", domain=DOMAIN))
