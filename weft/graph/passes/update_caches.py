"""A cache that goes in and comes out is updated where it lies.

    %new = TensorScatter(%past, %rows, %starts)     ->     %copy = weft.Copy(%past)
    graph (%past, …) -> (%new, …)                          %new = weft.UpdateRows(%copy, %rows, %starts)

UpdateRows writes its rows into the memory of its first input (`lowering/lower.py` lays the two in one place), and the
driver passes over a Copy onto itself: a caller who gives the array of %past as `out` for %new moves no more than the
rows, another caller gets a new array and keeps the old one. Nothing else may read %past.
"""

from __future__ import annotations

from weft.graph.ir import Graph, Node
from weft.graph.passes.support import Replacement, Scope, rewrite

COPY = "Copy"
UPDATE = "UpdateRows"
DOMAIN = "weft"


def update_caches(graph: Graph) -> Graph:
    """The graph with such updates; the same object where there are none."""
    if not any(node.op == "TensorScatter" for node in graph.nodes):
        return graph
    made, changed = rewrite(graph, _update)
    return made if changed else graph


def _update(node: Node, scope: Scope) -> Replacement:
    if node.op != "TensorScatter" or node.domain or scope.parent is not None or len(node.inputs) < 3:
        return None
    past, rows, starts = node.inputs
    alone = past in scope.graph.inputs and scope.uses[past] == 1 if past is not None else False
    if not alone or None in (rows, starts) or node.attributes.get("mode", "linear") != "linear":
        return None
    if node.outputs[0] not in scope.graph.outputs or not all(v.tensor.is_static for v in node.inputs if v is not None):
        return None
    copy = scope.make(node, COPY, [past], DOMAIN)
    return [Node(UPDATE, [copy, rows, starts], node.outputs, node.attributes, node.name, node.origin, DOMAIN)]
