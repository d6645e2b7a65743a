"""Attention of few queries over a cache of fixed capacity: a kernel whose loops end where the sequences do.

    %y = Attention(%q, %k, %v, , , , %lengths)     ->     %y = weft.CachedAttention(%q, %k, %v, %lengths)

for float32 in four dimensions, whole vectors to an element, no mask and no past (weft/ops/attention_cached.py).
"""

from __future__ import annotations

from weft.core import model
from weft.graph.ir import Graph, Node, TensorType
from weft.graph.passes.support import Replacement, Scope, rewrite

NAME, DOMAIN = "CachedAttention", "weft"
LANES = 16
"""Elements that are multiplied together."""


def cached_attention(graph: Graph) -> Graph:
    """The graph with such nodes; the same object where there are none."""
    if not any(node.op == "Attention" and len(node.inputs) == 7 for node in graph.nodes):
        return graph
    made, changed = rewrite(graph, _cached)
    return made if changed else graph


def _cached(node: Node, scope: Scope) -> Replacement:
    if node.op != "Attention" or node.domain or len(node.inputs) != 7 or len(node.outputs) != 1:
        return None
    query, key, value, mask, past_key, past_value, lengths = node.inputs
    if query is None or key is None or value is None or lengths is None or any((mask, past_key, past_value)):
        return None
    types = [v.type for v in (query, key, value, lengths)]
    if not all(isinstance(kind, TensorType) and kind.is_static for kind in types):
        return None
    q, k, v = (x.tensor for x in (query, key, value))
    if any(x.dtype != "float32" or x.rank != 4 or 0 in x.static for x in (q, k, v)):
        return None
    many = q.static[2] > model.MOST_CACHED_QUERIES
    if many or q.static[3] % LANES or v.static[3] % LANES or node.attributes.get("right_window_size", -1) >= 0:
        return None
    if any(name in node.attributes for name in ("softmax_precision", "qk_matmul_output_mode")):
        return None
    names = ("is_causal", "softcap", "left_window_size")
    attributes = {name: node.attributes[name] for name in names if name in node.attributes}
    attributes["scale"] = float(node.attributes.get("scale") or q.static[3] ** -0.5)
    inputs = [query, key, value, lengths]
    return [Node(NAME, inputs, node.outputs, attributes, node.name, node.origin, DOMAIN)]
