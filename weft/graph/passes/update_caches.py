"""A cache that goes in and comes out is updated where it lies.

    %new = TensorScatter(%past, %rows, %starts)     ->     %copy = weft.Copy(%past)
    graph (%past, …) -> (%new, …)                          %new = weft.UpdateRows(%copy, %rows, %starts)

UpdateRows writes its rows into the memory of its first input (`lowering/lower.py` lays the two in one place), and the
driver passes over a Copy onto itself: a caller who gives the array of %past as `out` for %new moves no more than the
rows, another caller gets a new array and keeps the old one. Nothing else may read %past.

Where a launch costs as much as what it does, one node turns queries and keys by their place and writes both caches:

    %q, %k, %v = Split(%x)                              ->     %new_keys, %new_values, %turned =
    %turned = RotaryEmbedding(%q, …)                               weft.UpdateHeads(%copy, %copy_v, %x, …)
    %new_keys = weft.UpdateRows(%copy, RotaryEmbedding(%k, …), %starts)
    %new_values = weft.UpdateRows(%copy_v, %v, %starts)
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.ir import Graph, Node
from weft.graph.passes.support import Replacement, Scope, count_uses, rewritten

COPY = "Copy"
UPDATE = "UpdateRows"
HEADS = "UpdateHeads"
DOMAIN = "weft"


def update_caches(graph: Graph) -> Graph:
    """The graph with such updates; the same object where there are none."""
    return rewritten(graph, _update)


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


def update_heads(graph: Graph) -> Graph:
    """The graph with the updates of keys and values as one node; the same object where there are none."""
    uses, readers = count_uses(graph), graph.consumers()
    order = {node: at for at, node in enumerate(graph.nodes)}
    made: dict[Node, Node | None] = {}
    updates = [node for node in graph.nodes if node.op == UPDATE and node.domain == DOMAIN]
    for split in [node for node in graph.nodes if node.op == "Split" and len(node.outputs) == 3]:
        query, key = (_turning(readers.get(value, ())) for value in split.outputs[:2])
        values = next((node for node in updates if node.inputs[1] is split.outputs[2]), None)
        keys = next((node for node in updates if key is not None and node.inputs[1] is key.outputs[0]), None)
        if query is None or key is None or keys is None or values is None or key.inputs[1:] != query.inputs[1:]:
            continue
        nodes = [query, key, keys, values]
        single = all(uses[value] == 1 for value in (split.outputs[2], key.outputs[0]))
        alike = key.attributes == query.attributes and keys.attributes == values.attributes and len(key.inputs) == 4
        axis, last = int(split.attributes.get("axis", 0)), max(nodes, key=order.__getitem__)
        read = [reader for node in nodes for value in node.outputs for reader in readers.get(value, ())]
        if not single or not alike or axis not in (0, 1) or keys.inputs[2] is not values.inputs[2]:
            continue
        if any(order[reader] < order[last] for reader in read if reader not in nodes):
            continue
        x, cosine, sine, places = split.inputs[0], *key.inputs[1:]
        inputs = [keys.inputs[0], values.inputs[0], x, cosine, sine, places, keys.inputs[2]]
        if x is None or x.tensor.rank != 4 or any(v is None or not v.tensor.is_static for v in inputs):
            continue
        attributes = {**key.attributes, **keys.attributes, "updated": 2, "split": axis}
        outputs = [keys.outputs[0], values.outputs[0], query.outputs[0]]
        made.update(dict.fromkeys(nodes, None))
        made[last] = Node(HEADS, inputs, outputs, attributes, key.name, key.origin, DOMAIN)

    def rule(node: Node, scope: Scope) -> Replacement:
        """The last of such nodes becomes the one for all."""
        if scope.parent is not None or node not in made:
            return None
        whole = made[node]
        return [] if whole is None else [whole]

    return rewritten(graph, rule) if made else graph


def _turning(found: Sequence[Node]) -> Node | None:
    """The node that turns a value, where nothing else reads it."""
    return found[0] if len(found) == 1 and found[0].op == "RotaryEmbedding" else None
