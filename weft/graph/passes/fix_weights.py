"""Weights that a recurrence waits for become 24-bit whole numbers: a quarter less is read in every step.

    %y, … = LSTM(%x, const w, const r, …)    ->    %y, … = FixedLSTM(%x, const w, const high, …, const low, const step)

A callback gives the parts of a weight that so many rows meet at a time, or None: where a machine gains nothing by it,
or whole numbers would not hold the weight as exactly as float32 sums are (weft/ops/fixed_weights.py). Recurrences
whose activations may grow without bound stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.ir import Array, Graph, Node
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite

DOMAIN, PREFIX = "weft", "Fixed"
WEIGHT, PLAIN = 2, 8
"""The place of R, and of the first input that only the new operators have."""

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
BOUNDED = frozenset({"sigmoid", "tanh", "hardsigmoid", "softsign"})
"""Activations whose results are of the size of 1, in small letters."""

Parts = tuple[Array, Array, Array]
Propose = Callable[[Array, int], Parts | None]
"""The parts of a weight that so many rows meet at a time, or None."""


def fix_weights(graph: Graph, propose: Propose) -> Graph:
    """The graph with the weights fixed for which it is worth it; the same object where there are none."""
    made, changed = rewrite(graph, lambda node, scope: _fix(node, scope, propose))
    return infer(dead(made)) if changed else graph


def _fix(node: Node, scope: Scope, propose: Propose) -> Replacement:
    if node.op not in RECURRENT or node.domain or not _is_bounded(node):
        return None
    given, weight = node.inputs[0], node.inputs[WEIGHT]
    array = scope.constant(weight)
    if array is None or given is None or weight is None or not given.tensor.is_static:
        return None
    rows = given.tensor.static[0 if node.attributes.get("layout", 0) else 1]
    parts = propose(array, rows)
    if parts is None:
        return None
    named = zip(("high", "low", "step"), parts)
    high, low, step = (scope.new_constant(part, f"{weight.name}_{name}") for name, part in named)
    plain: list[Any] = [*node.inputs, *[None] * PLAIN][:PLAIN]
    inputs: Sequence[Any] = [*plain[:WEIGHT], high, *plain[WEIGHT + 1 :], low, step]
    return [Node(PREFIX + node.op, inputs, node.outputs, node.attributes, node.name, node.origin, DOMAIN)]


def _is_bounded(node: Node) -> bool:
    names = [str(name).lower() for name in node.attributes.get("activations") or []]
    return BOUNDED.issuperset(names)
