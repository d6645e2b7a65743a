"""Weights that a step of a recurrence, or a product of a few rows, waits for become 24-bit whole numbers: of those a
quarter less is read.

    %y, … = LSTM(%x, const w, const r, …)    ->    %y, … = FixedLSTM(%x, const w, const high, …, const low, const scale)
    %y = Gemm(%x, const w, %b)               ->    %y = FixedMatMul(%x, const high, const low, const scale, %b)

A callback gives the parts of a weight that so many rows meet at a time, or None: where a machine gains nothing by it,
or whole numbers would not hold the weight as exactly as float32 sums are (weft/ops/fixed_weights.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.ir import Array, Graph, Node, Value
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite

DOMAIN, PREFIX = "weft", "Fixed"
WEIGHT, PLAIN = 2, 8
"""The place of R, and of the first input that only the new operators have."""

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
PRODUCT = "FixedMatMul"

Parts = tuple[Array, Array, Array]
Propose = Callable[[Array, int], Parts | None]
"""The parts of a weight (its last axis is summed over) that so many rows meet at a time, or None."""


def fix_weights(graph: Graph, propose: Propose) -> Graph:
    """The graph with the weights fixed for which it is worth it; the same object where there are none."""
    made, changed = rewrite(graph, lambda node, scope: _fix(node, scope, propose))
    return infer(dead(made)) if changed else graph


def _fix(node: Node, scope: Scope, propose: Propose) -> Replacement:
    if node.domain:
        return None
    if node.op in ("MatMul", "Gemm"):
        return _fix_product(node, scope, propose)
    if node.op not in RECURRENT:
        return None
    given, weight = node.inputs[0], node.inputs[WEIGHT]
    array = scope.constant(weight)
    if array is None or given is None or weight is None or not given.tensor.is_static:
        return None
    rows = given.tensor.static[0 if node.attributes.get("layout", 0) else 1]
    parts = propose(array, rows)
    if parts is None:
        return None
    high, low, scale = _constants(scope, weight, parts)
    plain: list[Any] = [*node.inputs, *[None] * PLAIN][:PLAIN]
    inputs: Sequence[Any] = [*plain[:WEIGHT], high, *plain[WEIGHT + 1 :], low, scale]
    return [Node(PREFIX + node.op, inputs, node.outputs, node.attributes, node.name, node.origin, DOMAIN)]


def _constants(scope: Scope, weight: Value, parts: Parts) -> list[Value]:
    return [scope.new_constant(p, f"{weight.name}_{name}") for name, p in zip(("high", "low", "scale"), parts)]


def _fix_product(node: Node, scope: Scope, propose: Propose) -> Replacement:
    given, weight = node.inputs[:2]
    array = scope.constant(weight)
    if array is None or given is None or weight is None or array.ndim != 2 or not given.tensor.is_static:
        return None
    if given.tensor.rank < 2 or given.tensor.dtype != "float32" or _is_scaled(node):
        return None
    across = bool(node.attributes.get("transB", 0))
    parts = propose(array if across else array.T, math.prod(given.tensor.static[:-1]))
    if parts is None:
        return None
    inputs = [given, *_constants(scope, weight, parts), *node.inputs[2:]]
    return [Node(PRODUCT, inputs, node.outputs, {}, node.name, node.origin, DOMAIN)]


def _is_scaled(node: Node) -> bool:
    """Whether a product does more than multiply, and add a bias."""
    factors = {float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta")}
    return factors != {1.0} or bool(node.attributes.get("transA", 0)) or "output_dtype" in node.attributes
