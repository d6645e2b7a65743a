"""LSTM, GRU and RNN: types and the numpy meaning. The compiled form stands in `recurrent_compute.py`.

Inputs X, W, R, B, sequence_lens, initial_h (and for LSTM initial_c, P); outputs Y, Y_h (and Y_c). Each direction is one
recurrence; a sequence that is shorter than the others keeps its last state, and its outputs behind the end are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.graph.ir import NUMPY_TYPES, Array, Dim, TensorType, Type, dtype_name
from weft.graph.opspec import Evaluate, Infer, Use, register
from weft.graph.signature import OneOf, Relation, SameSize
from weft.ops.convolution import exact_type, result_type
from weft.ops.formulas import ARRAYS
from weft.ops.recurrent_activations import Activation, gru_hidden, lstm_hidden, lstm_memory, read_activations
from weft.ops.recurrent_compute import compute_gru, compute_lstm, compute_rnn

Step = Callable[..., tuple[Array, ...]]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = ("forward", "reverse", "bidirectional")

# ---------------------------------------------------------------------------------------------------------- inference


def directions(use: Use) -> list[bool]:
    """For each direction, whether it runs backwards."""
    name = use.get("direction", "forward")
    if name not in DIRECTIONS:
        raise use.error(f"direction is {name!r}; known are {', '.join(DIRECTIONS)}")
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[name]


def _infer(c: Infer) -> list[Type]:
    x, w, r = c.tensor(0), c.tensor(1), c.tensor(2)
    gates, states = GATES[c.node.op], 2 if c.node.op == "LSTM" else 1
    count = len(directions(c))
    read_activations(c, count, 3 if states == 2 else 2 if gates == 3 else 1)
    hidden = _hidden_size(c, r)
    if x.shape is None:
        return [TensorType(result_type(c, x.dtype), None) for _ in c.node.outputs]
    if w.shape is not None and isinstance(w.dims[0], int) and w.dims[0] != count:
        raise c.error(f"W is {w!r}, and the direction is {c.get('direction', 'forward')}: it has {count}")
    return output_types(c, x, hidden, states)


def output_types(c: Infer, x: TensorType, hidden: Dim, states: int) -> list[Type]:
    """The types of all hidden states and of the last states, as many as the node asks for."""
    first, second = x.dims[:2]
    count = len(directions(c))
    batch_first = bool(c.get("layout", 0))
    steps, batch = (second, first) if batch_first else (first, second)
    every = (batch, steps, count, hidden) if batch_first else (steps, count, batch, hidden)
    last = (batch, count, hidden) if batch_first else (count, batch, hidden)
    shapes: list[tuple[Dim, ...]] = [every, *[last] * states]
    if c.output_count > len(shapes):
        raise c.error(f"{c.output_count} outputs, but {c.node.op} has {len(shapes)}")
    return [TensorType(result_type(c, x.dtype), shape) for shape in shapes[: c.output_count]]


def _hidden_size(c: Infer, r: TensorType) -> Dim:
    given = c.get("hidden_size")
    held = r.dims[2] if r.shape is not None and r.rank == 3 else None
    if given is None and held is None:
        raise c.error("neither hidden_size nor the shape of R is known")
    if isinstance(given, int) and isinstance(held, int) and given != held:
        raise c.error(f"hidden_size is {given}, but R is {r!r}")
    made = held if given is None else int(given)
    assert made is not None
    return made


# ------------------------------------------------------------------------------------------------------------- arrays


class Cell:
    """One direction's weights and activations as arrays."""

    __slots__ = ("w", "r", "wb", "rb", "p", "activations", "clip", "hidden")

    def __init__(
        self, w: Array, r: Array, b: Array | None, p: Array | None, fs: Sequence[Activation], clip: Any
    ) -> None:
        self.w, self.r, self.p = w, r, p
        rows = w.shape[0]
        self.wb: Array = np.zeros(rows, w.dtype) if b is None else b[:rows]
        self.rb: Array = np.zeros(rows, w.dtype) if b is None else b[rows:]
        self.activations = fs
        self.clip = clip
        self.hidden = r.shape[1]

    def project(self, x: Array) -> Array:
        """The input's part of every gate."""
        return np.asarray(np.matmul(x, self.w.T) + self.wb)

    def recur(self, h: Array) -> Array:
        """The state's part of every gate, without its bias."""
        return np.asarray(h @ self.r.T)

    def apply(self, which: int, x: Array) -> Array:
        """An activation of this direction, after the clip."""
        if self.clip is not None:
            x = np.clip(x, -self.clip, self.clip)
        return np.asarray(self.activations[which](ARRAYS, x)).astype(x.dtype)


def _lstm_step(cell: Cell, couple: bool) -> Step:
    peepholes = None if cell.p is None else np.split(cell.p, 3)

    def step(gates: Array, h: Array, old: Array) -> tuple[Array, ...]:
        i, o, f, g = np.split(gates + cell.recur(h) + cell.rb, 4, axis=-1)
        memory = lstm_memory(cell.apply, (i, f, g), old, peepholes, couple)
        return lstm_hidden(cell.apply, o, memory, peepholes), memory

    return step


def _gru_step(cell: Cell, linear_before_reset: bool) -> Step:
    size = 2 * cell.hidden

    def step(gates: Array, h: Array) -> tuple[Array, ...]:
        z, r = np.split(gates[:, :size] + h @ cell.r[:size].T + cell.rb[:size], 2, axis=-1)
        z, r = cell.apply(0, z), cell.apply(0, r)
        if linear_before_reset:
            inner = r * (h @ cell.r[size:].T + cell.rb[size:])
        else:
            inner = (r * h) @ cell.r[size:].T + cell.rb[size:]
        return (gru_hidden(cell.apply, z, gates[:, size:] + inner, h),)

    return step


def _rnn_step(cell: Cell) -> Step:
    return lambda gates, h: (cell.apply(0, gates + cell.recur(h) + cell.rb),)


def _steps_of(x: Array, lengths: Array | None, backwards: bool) -> Array:
    """For each step and sequence, the input step that it reads: a short sequence runs back from its own end."""
    steps, batch = x.shape[0], x.shape[1]
    forward = np.broadcast_to(np.arange(steps)[:, None], (steps, batch))
    if not backwards:
        return forward
    ends = np.full(batch, steps) if lengths is None else lengths
    return np.where(forward < ends, ends - 1 - forward, forward)


def _recur(x: Array, cell: Cell, step: Step, states: list[Array], lengths: Array | None, backwards: bool) -> Any:
    """All hidden states (steps, batch, hidden), and the last ones."""
    steps, batch = x.shape[0], x.shape[1]
    order = _steps_of(x, lengths, backwards)
    columns = np.arange(batch)
    gates = cell.project(x)
    every = np.zeros((steps, batch, cell.hidden), x.dtype)
    for t in range(steps):
        fresh = step(gates[order[t], columns], *states)
        if lengths is None:
            states = list(fresh)
            every[order[t], columns] = states[0]
        else:
            runs = (t < lengths)[:, None]
            states = [np.where(runs, new, old) for new, old in zip(fresh, states)]
            every[order[t], columns] = np.where(runs, states[0], 0)
    return every, states


def _evaluate(c: Evaluate, x: Array, w: Array, r: Array, b: Any = None, lengths: Any = None, *more: Any) -> Any:
    wide = exact_type(str(x.dtype)) or x.dtype
    states = 2 if c.node.op == "LSTM" else 1
    extra = [*more, None, None, None][:3]
    peepholes = extra[2] if states == 2 else None
    functions = read_activations(c, len(directions(c)), 3 if states == 2 else 2 if c.node.op == "GRU" else 1)

    def cell(d: int) -> Cell:
        parts = [None if a is None else a[d].astype(wide) for a in (w, r, b, peepholes)]
        assert parts[0] is not None and parts[1] is not None
        return Cell(parts[0], parts[1], parts[2], parts[3], functions[d], c.get("clip"))

    kind = NUMPY_TYPES[result_type(c, dtype_name(x.dtype))]
    return run_directions(c, x.astype(wide), cell, extra[:states], lengths, kind)


def run_directions(
    c: Evaluate, x: Array, cell_of: Callable[[int], Cell], initial: Sequence[Any], lengths: Any, kind: Any
) -> tuple[Array, ...]:
    """The outputs of a recurrence, from a cell for each direction and the initial states (None: zeros)."""
    batch_first = bool(c.get("layout", 0))
    data = x.swapaxes(0, 1) if batch_first else x
    every, finals = [], []
    for d, backwards in enumerate(directions(c)):
        cell = cell_of(d)
        first = [_initial(given, d, batch_first, data, cell) for given in initial]
        made, last = _recur(data, cell, _step_of(c, cell), first, lengths, backwards)
        every.append(made)
        finals.append(last)
    outputs = [np.stack(every, axis=1), *[np.stack([f[s] for f in finals]) for s in range(len(initial))]]
    if batch_first:
        outputs = [outputs[0].transpose(2, 0, 1, 3), *[o.swapaxes(0, 1) for o in outputs[1:]]]
    return tuple(np.ascontiguousarray(o.astype(kind)) for o in outputs[: c.output_count])


def _initial(given: Any, d: int, batch_first: bool, data: Array, cell: Cell) -> Array:
    if given is None:
        return np.zeros((data.shape[1], cell.hidden), data.dtype)
    return np.asarray((given[:, d] if batch_first else given[d]).astype(data.dtype))


def _step_of(c: Use, cell: Cell) -> Step:
    if c.node.op.endswith("LSTM"):
        return _lstm_step(cell, bool(c.get("input_forget", 0)))
    return _gru_step(cell, bool(c.get("linear_before_reset", 0))) if c.node.op == "GRU" else _rnn_step(cell)


STATES: tuple[Relation, ...] = (
    SameSize(4, "layout", (1, 0)),
    *(SameSize(k, "layout", (1, 0), own=(1, 0)) for k in (5, 6)),
    *(SameSize(k, "layout", (0, 0), own=(0, 1), of=1) for k in (5, 6)),
    OneOf("direction", ("forward", "reverse", "bidirectional")),
)
"""Lengths and first states: one for each sequence (and direction), which stand in another order with layout 1."""

for _name, _compute, _more in (
    ("LSTM", compute_lstm, ", initial_c:float[_ _ @hidden_size]?, P:float[d 3*@hidden_size]?"),
    ("GRU", compute_gru, ""),
    ("RNN", compute_rnn, ""),
):
    _gates = GATES[_name]
    register(
        _name,
        _infer,
        _evaluate,
        _compute,
        "opaque",
        takes=f"X:float[_ _ i], W:float[d {_gates}*@hidden_size i], R:float[d {_gates}*@hidden_size @hidden_size], "
        f"B:float[d {2 * _gates}*@hidden_size]?, sequence_lens:int[b]?, initial_h:float[_ _ @hidden_size]?{_more}",
        requires=STATES,
        traits="recurrent heavy optional_outputs",
        multiplies=3,
    )
