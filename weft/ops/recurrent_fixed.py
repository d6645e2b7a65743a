"""LSTM, GRU and RNN whose recurrent weights are 24-bit whole numbers (`fixed_weights.py`).

    FixedLSTM, FixedGRU, FixedRNN(X, W, high, B?, sequence_lens?, initial_h?, initial_c?, P?, low, scale)  domain "weft"

`high` and `low` have the shape of R, `scale` that of R without its last axis. Everything else is as it is in the
operators of those names: a step waits for R, and reads a quarter less of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Node, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, find_operator, register
from weft.graph.passes.fix_weights import DOMAIN, PLAIN, PREFIX, WEIGHT
from weft.ops.fixed_weights import fixed_term, unfix
from weft.ops.recurrent_compute import Direction, Tensors, compute_gru, compute_lstm, compute_rnn


class FixedDirection(Direction):
    """One direction: the sums are of whole numbers, and each is worth a scale."""

    def __init__(self, c: Compute, tensors: Tensors, index: int, gates: int, functions: Sequence[Any]) -> None:
        *given, self.low, self.scale = tensors
        super().__init__(c, given, index, gates, functions)

    def recur(self, source: Callable[[Expr, Expr, Expr], Expr], gates: int, first: int = 0) -> Any:
        """The product of a row of the state with the recurrent weights of `gates` gates from gate `first` on."""
        high, low, scale, d, start = self.r, self.low, self.scale, self.index, first * self.hidden
        assert high is not None and low is not None and scale is not None
        k = te.reduce_axis(self.hidden, "k")

        def term(t: Expr, b: Expr, q: Expr) -> Expr:
            return fixed_term(source(t, b, k.var), high[d, start + q, k.var], low[d, start + q, k.var])

        sums = te.stage(
            (self.steps + 1, self.batch, gates * self.hidden),
            lambda t, b, q: te.sum(term(t, b, q), axis=k),
            name="recurrence",
        )
        return _Scaled(lambda t, b, q: sums[t, b, q] * scale[d, start + q])


class _Scaled:
    """Sums in what they are worth, read as a tensor is."""

    def __init__(self, read: Callable[[Expr, Expr, Expr], Expr]) -> None:
        self.read = read

    def __getitem__(self, at: tuple[Expr, Expr, Expr]) -> Expr:
        return self.read(*at)


def _plain(node: Node) -> Node:
    """The operator without the parts of its weights."""
    name = node.op[len(PREFIX) :]
    return Node(name, node.inputs[:PLAIN], node.outputs, node.attributes, node.name, node.origin)


def _infer(c: Infer) -> list[Type]:
    high, low, scale = (c.tensor(position) for position in (WEIGHT, PLAIN, PLAIN + 1))
    if (high.dtype, low.dtype, scale.dtype) != ("int16", "uint8", "float32") or high.shape != low.shape:
        raise c.error(f"the parts of R are {high!r}, {low!r} and {scale!r}; int16, uint8 and float32 are needed")
    types = [*c.types[:WEIGHT], TensorType("float32", high.shape), *c.types[WEIGHT + 1 : PLAIN]]
    return _operator(c.node).types(Infer(_plain(c.node), types, c.values[:PLAIN]))


def _evaluate(c: Evaluate, *arrays: Any) -> Any:
    *plain, low, scale = arrays
    plain[WEIGHT] = unfix(plain[WEIGHT], low, scale).astype(np.float32)
    return _operator(c.node).evaluate(Evaluate(_plain(c.node)), *plain)


def _operator(node: Node) -> OpSpec:
    found = find_operator(node.op[len(PREFIX) :])
    assert found is not None
    return found


def _computer(compute: Callable[..., Any]) -> Callable[..., Any]:
    def made(c: Compute, *tensors: te.Tensor | None) -> Any:
        plain = Compute(_plain(c.node), c.types[:PLAIN], c.outputs, c.values[:PLAIN])
        return compute(plain, *tensors, make=FixedDirection)

    return made


_TAKES = "X, W, R:int16, B?, sequence_lens?, initial_h?, initial_c?, P?, low:uint8, scale:float32"
"""What the plain operator demands, it says itself."""

for _name, _compute in (("LSTM", compute_lstm), ("GRU", compute_gru), ("RNN", compute_rnn)):
    register(PREFIX + _name, _infer, _evaluate, _computer(_compute), "opaque", domain=DOMAIN, takes=_TAKES)
