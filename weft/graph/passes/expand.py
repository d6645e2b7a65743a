"""Operators that say how they are made of others (`OpSpec.expand`) become those others.

    %label, %scores = ai.onnx.ml.LinearClassifier(%x) coefficients=[…] intercepts=[…]
    ->  %s = Add(MatMul(%x, %coefficients), %intercepts);  %label = Gather(%labels, ArgMax(%s));  %scores = Softmax(%s)

What such a node keeps in its attributes becomes constants, which kernels can read.
"""

from __future__ import annotations

from weft.graph.ir import Graph, Node
from weft.graph.opspec import find_operator
from weft.graph.passes.support import Replacement, Scope, rewritten


def expand(graph: Graph) -> Graph:
    """The graph with such operators replaced; the same if there are none. Types must have been inferred."""
    return rewritten(graph, _expand)


def _expand(node: Node, scope: Scope) -> Replacement:
    spec = find_operator(node.op, node.domain)
    found: Replacement = None if spec is None else spec.expanded(node, scope)
    return found
