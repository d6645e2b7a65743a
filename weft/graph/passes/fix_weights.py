"""Recurrent weights that each step waits for become 24-bit whole numbers: of those a quarter less is read.

    %y, … = LSTM(%x, const w, const r, …)    ->    %y, … = FixedLSTM(%x, const w, const high, …, const low, const scale)

A callback gives the parts of a weight that so many rows meet at a time, or None: where a machine gains nothing by it,
or whole numbers would not hold the weight as exactly as float32 sums are (weft/ops/fixed_weights.py).

What is rounded off is a part of the *largest* weight of a row, so a sum that picks a single small weight (a row of one
hot element, a sparse one) would miss its digits. A recurrence has no such sums to show: its state stays within -1 .. 1
(by its activations, and because it starts there), and what the sums are taken for is bounded and no steeper than 1, so
that the error is an absolute one: 2⁻²⁴ of the row's scale for each element of the state. Products of what a model is
given, or of a Relu's zeros, stay as they are, and so do recurrences with other activations or a state from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Array, Graph, Node
from weft.graph.passes.support import Replacement, Scope, rewritten

DOMAIN, PREFIX = "weft", "Fixed"
WEIGHT, PLAIN = 2, 8
"""The place of R, and of the first input that only the new operators have."""

STATE = 5
"""The place of the state that a recurrence starts from."""

BOUNDED = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""The activations that keep a state within -1 .. 1: those that are meant where none are named."""

Parts = tuple[Array, Array, Array]
Propose = Callable[[Array, int], Parts | None]
"""The parts of a weight (its last axis is summed over) that so many rows meet at a time, or None."""


def fix_weights(graph: Graph, propose: Propose) -> Graph:
    """The graph with the weights fixed for which it is worth it; the same object where there are none."""
    return rewritten(graph, lambda node, scope: _fix(node, scope, propose))


def _fix(node: Node, scope: Scope, propose: Propose) -> Replacement:
    if node.domain or node.op not in BOUNDED or not _is_bounded(node, scope):
        return None
    given, weight = node.inputs[0], node.inputs[WEIGHT]
    array = scope.constant(weight)
    if array is None or given is None or weight is None or not given.tensor.is_static:
        return None
    rows = given.tensor.static[0 if node.attributes.get("layout", 0) else 1]
    parts = propose(array, rows)
    if parts is None:
        return None
    names = ("high", "low", "scale")
    high, low, scale = (scope.new_constant(part, f"{weight.name}_{name}") for name, part in zip(names, parts))
    plain: list[Any] = [*node.inputs, *[None] * PLAIN][:PLAIN]
    inputs: Sequence[Any] = [*plain[:WEIGHT], high, *plain[WEIGHT + 1 :], low, scale]
    return [Node(PREFIX + node.op, inputs, node.outputs, node.attributes, node.name, node.origin, DOMAIN)]


def _is_bounded(node: Node, scope: Scope) -> bool:
    """Whether a recurrence's state stays within -1 .. 1."""
    named = node.attributes.get("activations") or BOUNDED[node.op]
    wanted = BOUNDED[node.op] * (len(named) // len(BOUNDED[node.op]))
    if [str(name).lower() for name in named] != [name.lower() for name in wanted]:
        return False
    first = node.inputs[STATE] if len(node.inputs) > STATE else None
    array = None if first is None else scope.constant(first)
    return first is None or (array is not None and bool((np.abs(array) <= 1).all()))
