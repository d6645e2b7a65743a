"""LSTM, GRU and RNN as tensor expressions.

For each direction: one product of the whole input with the weights outside of the recurrence,

    gates[t, b, q] = sum over i of x[t, b, i] * W[q, i] + bias[q]        q = gate * hidden + j: one axis, as W has it

and then te.scan over rows 0 … steps of the state, row 0 being the initial state. A direction that runs backwards reads
the input from its end (each sequence from its own end, where lengths are given).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from weft import te
from weft.expr.nodes import Expr
from weft.graph.opspec import Compute
from weft.ops.convolution import accumulator, wide_product
from weft.ops.formulas import EXPRESSIONS
from weft.ops.recurrent_activations import Activation, gru_hidden, lstm_hidden, lstm_memory, read_activations

Tensors = Sequence[te.Tensor | None]
NAMES = {4: "lstm", 3: "gru", 1: "rnn"}
"""Of recurrences, by their gates."""


class Readable(Protocol):
    """A tensor, or what is read as one."""

    def __getitem__(self, at: Any, /) -> Expr:
        """The element at these indices."""


class Direction:
    """One direction of a recurrence: sizes, weights, activations, and where each step reads."""

    def __init__(self, c: Compute, tensors: Tensors, index: int, gates: int, functions: Sequence[Activation]) -> None:
        given = [*tensors, *[None] * 8][:8]
        self.x, self.w, self.r, self.b, self.lengths = given[:5]
        self.initial = given[5:7]
        self.p = given[7] if c.node.op == "LSTM" else None
        self.batch_first = bool(c.get("layout", 0))
        shape = c.shape(0)
        self.steps, self.batch = (shape[1], shape[0]) if self.batch_first else (shape[0], shape[1])
        self.features, self.hidden = shape[2], c.shape(2)[2]
        self.index, self.gates, self.functions = index, gates, functions
        self.backwards = c.get("direction", "forward") == "reverse" or index == 1
        self.clip = c.get("clip")
        self.kind = accumulator(c.outputs[0].dtype)
        given_type = c.types[0]
        is_narrow = given_type is not None and accumulator(given_type.dtype) != given_type.dtype
        self.row_kind = given_type.dtype if given_type is not None and is_narrow else self.kind
        """What products read of a state has the type of what they read of the input; sums and gates are of `kind`."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a state's history: the initial row, then one row a step."""
        return (self.steps + 1, self.batch, self.hidden)

    def turn(self, t: Expr, b: Expr) -> Expr:
        """The input step that step t reads, and the step that made output t: the same rule both ways."""
        if not self.backwards:
            return t
        if self.lengths is None:
            return te.const(self.steps - 1) - t
        end = self.lengths[b].astype("int64")
        return te.if_then_else(t < end, te.clip(end - 1 - t, te.const(0), te.const(self.steps - 1)), t)

    def runs(self, t: Expr, b: Expr) -> Expr | None:
        """Whether step t is within the sequence; None where every step is."""
        return None if self.lengths is None else t < self.lengths[b].astype("int64")

    def project(self, recurrent_bias: int) -> te.Tensor:
        """The input's part of every gate, with its bias, and the recurrence's bias for the first few gates."""
        x, w, bias, d, hidden = self.x, self.w, self.b, self.index, self.hidden
        assert x is not None and w is not None
        i = te.reduce_axis(self.features, "i")
        product = wide_product(self.kind)

        def element(t: Expr, b: Expr) -> Expr:
            return x[b, t, i.var] if self.batch_first else x[t, b, i.var]

        rows = self.gates * hidden
        raw = te.stage(
            (self.steps, self.batch, rows),
            lambda t, b, q: te.sum(product(element(t, b), w[d, q, i.var]), axis=i),
            name="projection",
        )
        if bias is None:
            return raw

        def both(t: Expr, b: Expr, q: Expr) -> Expr:
            own, other = bias[d, q].astype(self.kind), bias[d, rows + q].astype(self.kind)
            if recurrent_bias < self.gates:
                other = te.if_then_else(q < recurrent_bias * hidden, other, te.const(0.0, self.kind))
            return raw[t, b, q] + own + other

        return te.stage(raw.shape, lambda t, b, q: both(t, b, q), name="gates_in")

    def recurrent_bias(self, gate: int, j: Expr) -> Expr:
        """The recurrence's bias of one gate."""
        assert self.b is not None
        return self.b[self.index, (self.gates + gate) * self.hidden + j].astype(self.kind)

    def state(self, which: int, name: str, kind: str) -> tuple[te.Tensor, te.Tensor]:
        """A placeholder for a state's history, and its first row."""
        given, d = self.initial[which], self.index

        def first(t: Expr, b: Expr, j: Expr) -> Expr:
            if given is None:
                return te.const(0.0, kind)
            return (given[b, d, j] if self.batch_first else given[d, b, j]).astype(kind)

        init = te.stage((1, self.batch, self.hidden), lambda t, b, j: first(t, b, j), name=f"{name}_first")
        return te.placeholder(self.shape, kind, name=f"{name}_state"), init

    def rows(self, h: te.Tensor) -> te.Tensor:
        """What products read of a state: a history of its own where they take another type."""
        return h if str(h.dtype) == self.row_kind else te.placeholder(self.shape, self.row_kind, name="h_rows")

    def scan(self, first: list[te.Tensor], following: list[te.Tensor], states: list[te.Tensor], rows: te.Tensor) -> Any:
        """The recurrence of some states, the first of which products read as `rows`."""
        if rows is not states[0]:
            _, start = self.state(0, "rows", self.row_kind)
            row = te.compute(self.shape, lambda t, b, j: following[0][t, b, j].astype(self.row_kind), name="rows_next")
            first, following, states = [*first, start], [*following, row], [*states, rows]
        made = te.scan(first, following, states, name=f"{NAMES[self.gates]}{self.index}")
        return list(made) if len(states) > 1 else [made]

    def recur(self, source: Callable[[Expr, Expr, Expr], Expr], gates: int, first: int = 0) -> Readable:
        """The product of a row of the state with the recurrent weights of `gates` gates from gate `first` on."""
        r, d, hidden = self.r, self.index, self.hidden
        assert r is not None
        k, product = te.reduce_axis(hidden, "k"), wide_product(self.kind)
        return te.stage(
            (self.steps + 1, self.batch, gates * hidden),
            lambda t, b, q: te.sum(product(source(t, b, k.var), r[d, first * hidden + q, k.var]), axis=k),
            name="recurrence",
        )

    def apply(self, which: int, x: Expr) -> Expr:
        """An activation of this direction, after the clip."""
        if self.clip is not None:
            x = te.clip(x, -float(self.clip), float(self.clip))
        made: Expr = self.functions[which](EXPRESSIONS, x)
        return made

    def hold(self, t: Expr, b: Expr, new: Expr, old: Expr) -> Expr:
        """The new state while the sequence lasts, then the old one."""
        runs = self.runs(t - 1, b)
        return new if runs is None else te.if_then_else(runs, new, old)

    def read(self, projection: te.Tensor, t: Expr, b: Expr, gate: int, j: Expr) -> Expr:
        """The input's part of a gate for row t of the state."""
        return projection[self.turn(t - 1, b), b, gate * self.hidden + j]


def lstm_direction(c: Compute, way: Direction) -> list[te.Tensor]:
    """The histories of both states of an LSTM, in one direction."""
    projection = way.project(4)
    (h, h_first), (s, s_first) = way.state(0, "h", c.outputs[0].dtype), way.state(1, "c", way.kind)
    rows = way.rows(h)
    product = way.recur(lambda t, b, k: rows[t - 1, b, k], 4)
    couple, hidden, d, p = bool(c.get("input_forget", 0)), way.hidden, way.index, way.p

    def gate(t: Expr, b: Expr, g: int, j: Expr) -> Expr:
        return way.read(projection, t, b, g, j) + product[t, b, g * hidden + j]

    def peepholes(j: Expr) -> list[Expr] | None:
        return None if p is None else [p[d, part * hidden + j].astype(way.kind) for part in range(3)]

    def memory(t: Expr, b: Expr, j: Expr) -> Expr:
        gates, old = [gate(t, b, g, j) for g in (0, 2, 3)], s[t - 1, b, j]
        return way.hold(t, b, lstm_memory(way.apply, gates, old, peepholes(j), couple), old)

    s_next = te.compute(way.shape, lambda t, b, j: memory(t, b, j), name="c_next")

    def hidden_state(t: Expr, b: Expr, j: Expr) -> Expr:
        new = lstm_hidden(way.apply, gate(t, b, 1, j), s_next[t, b, j], peepholes(j))
        return way.hold(t, b, new.astype(str(h.dtype)), h[t - 1, b, j])

    h_next = te.compute(way.shape, lambda t, b, j: hidden_state(t, b, j), name="h_next")
    return list(way.scan([h_first, s_first], [h_next, s_next], [h, s], rows))


def _gru(c: Compute, way: Direction) -> list[te.Tensor]:
    linear = bool(c.get("linear_before_reset", 0))
    projection = way.project(2 if linear else 3)
    h, h_first = way.state(0, "h", way.kind)
    rows = way.rows(h)
    product = way.recur(lambda t, b, k: rows[t - 1, b, k], 3 if linear else 2)

    def gate(t: Expr, b: Expr, g: int, j: Expr) -> Expr:
        return way.apply(0, way.read(projection, t, b, g, j) + product[t, b, g * way.hidden + j])

    if linear:

        def inner(t: Expr, b: Expr, j: Expr) -> Expr:
            value: Expr = product[t, b, 2 * way.hidden + j]
            if way.b is not None:
                value = value + way.recurrent_bias(2, j)
            return gate(t, b, 1, j) * value
    else:
        kept = way.row_kind
        reset = te.compute(way.shape, lambda t, b, j: (gate(t, b, 1, j) * h[t - 1, b, j]).astype(kept), name="reset")
        second = way.recur(lambda t, b, k: reset[t, b, k], 1, first=2)

        def inner(t: Expr, b: Expr, j: Expr) -> Expr:
            return second[t, b, j]

    def hidden_state(t: Expr, b: Expr, j: Expr) -> Expr:
        z, old = gate(t, b, 0, j), h[t - 1, b, j]
        new = gru_hidden(way.apply, z, way.read(projection, t, b, 2, j) + inner(t, b, j), old)
        return way.hold(t, b, new, old)

    h_next = te.compute(way.shape, lambda t, b, j: hidden_state(t, b, j), name="h_next")
    return list(way.scan([h_first], [h_next], [h], rows))


def _rnn(c: Compute, way: Direction) -> list[te.Tensor]:
    projection = way.project(1)
    h, h_first = way.state(0, "h", c.outputs[0].dtype)
    rows = way.rows(h)
    product = way.recur(lambda t, b, k: rows[t - 1, b, k], 1)

    def hidden_state(t: Expr, b: Expr, j: Expr) -> Expr:
        new = way.apply(0, way.read(projection, t, b, 0, j) + product[t, b, j])
        return way.hold(t, b, new.astype(str(h.dtype)), h[t - 1, b, j])

    h_next = te.compute(way.shape, lambda t, b, j: hidden_state(t, b, j), name="h_next")
    return list(way.scan([h_first], [h_next], [h], rows))


def _by_direction(d: Expr, values: Sequence[Expr]) -> Expr:
    return values[0] if len(values) == 1 else te.if_then_else(d < 1, values[0], values[1])


def compute_outputs(
    c: Compute, ways: Sequence[Direction], made: Sequence[Sequence[te.Tensor]]
) -> tuple[te.Tensor, ...]:
    """Y, and the last row of each state, in the layout and type that were asked for."""
    kind, batch_first, steps = c.outputs[0].dtype, bool(c.get("layout", 0)), ways[0].steps

    def row(way: Direction, history: te.Tensor, t: Expr, b: Expr, j: Expr) -> Expr:
        value: Expr = history[way.turn(t, b) + 1, b, j].astype(kind)
        runs = way.runs(t, b)
        return value if runs is None else te.if_then_else(runs, value, te.const(0.0, kind))

    def every(*at: Expr) -> Expr:
        (b, t, d, j) = at if batch_first else (at[2], at[0], at[1], at[3])
        return _by_direction(d, [row(way, states[0], t, b, j) for way, states in zip(ways, made)])

    def final(which: int) -> Callable[..., Expr]:
        def last(*at: Expr) -> Expr:
            (b, d, j) = at if batch_first else (at[1], at[0], at[2])
            return _by_direction(d, [states[which][steps, b, j].astype(kind) for states in made])

        return last

    outs = [te.compute(c.out_shape(0), lambda *at: every(*at), name="every_state")]
    for which in range(len(c.outputs) - 1):
        function = final(which)
        outs.append(te.compute(c.out_shape(which + 1), lambda *at, f=function: f(*at), name=f"last_state{which}"))
    return tuple(outs)


def _compute(c: Compute, tensors: Tensors, gates: int, functions: int, build: Any, make: Any) -> Any:
    count = c.shape(1)[0]
    activations = read_activations(c, count, functions)
    ways = [make(c, tensors, d, gates, activations[d]) for d in range(count)]
    return compute_outputs(c, ways, [build(c, way) for way in ways])


def compute_lstm(c: Compute, *tensors: te.Tensor | None, make: Any = Direction) -> Any:
    """LSTM as a scan over two states."""
    return _compute(c, tensors, 4, 3, lstm_direction, make)


def compute_gru(c: Compute, *tensors: te.Tensor | None, make: Any = Direction) -> Any:
    """GRU as a scan."""
    return _compute(c, tensors, 3, 2, _gru, make)


def compute_rnn(c: Compute, *tensors: te.Tensor | None, make: Any = Direction) -> Any:
    """RNN as a scan."""
    return _compute(c, tensors, 1, 1, _rnn, make)
