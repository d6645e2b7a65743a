"""The recurrence of an LSTM with 8-bit weights, whose states are quantized at every step.

    QuantizedLSTM(gates, scale, R, totals, zero?, sequence_lens?, initial_h?, initial_c?, P?)        domain "weft"

`gates` (steps, batch, directions * 4 * hidden) is the input's part of every gate, all biases included; R (direction,
hidden, 4 * hidden) are signed bytes, with a scale and (where it is not 0) a zero point for each direction and gate;
`totals` are the sums of R over the hidden units. At each step the hidden states of all sequences are rounded to 8 bits
over their common range:

    unit = (max(h, 0) - min(h, 0)) / 255      offset = round(-min(h, 0) / unit)      codes = round(h / unit) + offset
    state's part = unit * scale * sum over k of (codes[k] - offset) * (R[k] - zero)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Type
from weft.graph.opspec import Compute, Evaluate, Infer, register
from weft.ops.recurrent import Cell, directions, output_types, run_directions
from weft.ops.recurrent_activations import read_activations
from weft.ops.recurrent_compute import Direction, Readable, compute_outputs, lstm_direction

STATES = 2
FUNCTIONS = 3


def rounded(x: Array) -> tuple[Array, Any]:
    """An array as whole numbers from -255 to 255 over its range (0 is one of them), and what one of them is worth."""
    low, high = np.minimum(x.min(initial=np.inf), np.float32(0)), np.maximum(x.max(initial=-np.inf), np.float32(0))
    unit = np.float32((high - low) / np.float32(255))
    unit = unit if unit != 0 else np.float32(1)
    offset = np.clip(np.rint(-low / unit), 0, 255)
    return np.clip(np.rint(x / unit) + offset, 0, 255) - offset, unit


class QuantizedCell(Cell):
    """One direction; its input's part of the gates is a stretch of what is given."""

    __slots__ = ("scale", "stretch")

    def __init__(self, index: int, r: Array, scale: Array, p: Array | None, functions: Any, clip: Any) -> None:
        super().__init__(r.T, r.T, None, p, functions, clip)
        self.rb = np.zeros(r.shape[1], np.float32)
        self.scale = scale
        self.stretch = slice(index * r.shape[1], (index + 1) * r.shape[1])

    def project(self, x: Array) -> Array:
        """The input's part of every gate."""
        return x[..., self.stretch]

    def recur(self, h: Array) -> Array:
        """The state's part of every gate."""
        codes, unit = rounded(h)
        total = np.matmul(codes.astype(np.float64), self.r.T).astype(np.float32)
        return np.asarray(total * (unit * self.scale))


def _infer(c: Infer) -> list[Type]:
    gates, r = c.tensor(0), c.tensor(2)
    count = len(directions(c))
    read_activations(c, count, FUNCTIONS)
    return output_types(c, gates, r.dims[1], STATES)


def _evaluate(c: Evaluate, gates: Array, scale: Array, r: Array, totals: Array, zero: Any = None, *more: Any) -> Any:
    lengths, h, s, p = [*more, None, None, None, None][:4]
    functions = read_activations(c, len(directions(c)), FUNCTIONS)

    def cell(d: int) -> Cell:
        weights = r[d].astype(np.float64) - (0 if zero is None else zero[d])
        return QuantizedCell(d, weights, scale[d], None if p is None else p[d], functions[d], c.get("clip"))

    return run_directions(c, gates, cell, [h, s], lengths, np.float32)


# -------------------------------------------------------------------------------------------------------- compiled


class QuantizedDirection(Direction):
    """One direction with signed bytes for weights."""

    def __init__(self, c: Compute, tensors: Sequence[te.Tensor | None], index: int, functions: Any) -> None:
        gates, scale, r, totals, zero, lengths, h, s, p = [*tensors, *[None] * 9][:9]
        super().__init__(c, [gates, None, r, None, lengths, h, s, p], index, 4, functions)
        self.hidden, self.p, self.kind = c.shape(2)[1], p, "float32"
        self.scale, self.totals, self.zero = scale, totals, zero

    def project(self, recurrent_bias: int) -> te.Tensor:
        """The input's part of every gate."""
        assert self.x is not None
        return self.x

    def read(self, projection: te.Tensor, t: Expr, b: Expr, gate: int, j: Expr) -> Expr:
        """The input's part of a gate for row t of the state."""
        return projection[self.turn(t - 1, b), b, (self.index * self.gates + gate) * self.hidden + j]

    def recur(self, source: Callable[[Expr, Expr, Expr], Expr], gates: int, first: int = 0) -> Readable:
        """The product of a row of the state, rounded to bytes, with the recurrent weights."""
        steps, nothing = self.steps + 1, te.const(0.0, "float32")
        unit, offset = self._range(source, steps)

        def code(t: Expr, b: Expr, k: Expr) -> Expr:
            return te.clip(te.round(source(t, b, k) / unit[t]) + offset[t], nothing, te.const(255.0, "float32"))

        codes = te.stage((steps, self.batch, self.hidden), lambda t, b, k: code(t, b, k).astype("uint8"), "codes")
        return _Scaled(self, codes, unit, offset)

    def _range(self, source: Callable[[Expr, Expr, Expr], Expr], steps: int) -> tuple[te.Tensor, te.Tensor]:
        """What one code is worth at each step, and the code of 0."""
        nothing = te.const(0.0, "float32")

        def extreme(reduce: Any, name: str) -> te.Tensor:
            b, k = te.reduce_axis(self.batch, "b"), te.reduce_axis(self.hidden, "k")
            return te.stage((steps,), lambda t: reduce(source(t, b.var, k.var), axis=[b, k]), name)

        low, high = extreme(te.min, "lowest"), extreme(te.max, "highest")

        def width(t: Expr) -> Expr:
            found = (te.maximum(high[t], nothing) - te.minimum(low[t], nothing)) / 255.0
            return te.select(te.equal(found, nothing), te.const(1.0, "float32"), found)

        unit = te.stage((steps,), lambda t: width(t), "unit")
        start = te.stage((steps,), lambda t: te.round(-te.minimum(low[t], nothing) / unit[t]), "offset")
        return unit, start


class _Scaled:
    """The product of codes and weights, read as a real number."""

    def __init__(self, way: QuantizedDirection, codes: te.Tensor, unit: te.Tensor, offset: te.Tensor) -> None:
        self.way, self.codes, self.unit, self.offset = way, codes, unit, offset
        r, d, width = way.r, way.index, way.gates * way.hidden
        assert r is not None
        k = te.reduce_axis(way.hidden, "k")
        self.sums = te.stage(
            (way.steps + 1, way.batch, width),
            lambda t, b, q: te.sum(codes[t, b, k.var].astype("int32") * r[d, k.var, q].astype("int32"), axis=k),
            "recurrence",
        )
        self.row: te.Tensor | None = None
        if way.zero is not None:
            j = te.reduce_axis(way.hidden, "j")
            row = (way.steps + 1, way.batch)
            self.row = te.stage(row, lambda t, b: te.sum(codes[t, b, j.var].astype("int32"), axis=j), "row")

    def __getitem__(self, at: Any, /) -> Expr:
        (t, b, q), way = at, self.way
        assert way.scale is not None and way.totals is not None
        start = self.offset[t].astype("int32")
        total = self.sums[t, b, q] - start * way.totals[way.index, q]
        if self.row is not None:
            assert way.zero is not None
            total = total - way.zero[way.index, q] * (self.row[t, b] - start * way.hidden)
        return total.astype("float32") * (self.unit[t] * way.scale[way.index, q])


def _compute(c: Compute, *tensors: te.Tensor | None) -> Any:
    if c.get("layout", 0):
        return None
    functions = read_activations(c, len(directions(c)), FUNCTIONS)
    ways = [QuantizedDirection(c, tensors, d, functions[d]) for d in range(c.shape(2)[0])]
    return compute_outputs(c, ways, [lstm_direction(c, way) for way in ways])


register(
    "QuantizedLSTM",
    _infer,
    _evaluate,
    _compute,
    domain="weft",
    takes="gates:float32[_ _ _], scale:float32[d 4*h], R:int8[d h 4*h], totals:int32[d 4*h], zero:int32[d 4*h]?, "
    "sequence_lens:int[_]?, initial_h:float32[_ _ h]?, initial_c:float32[_ _ h]?, P:float32[d 3*h]?",
)
