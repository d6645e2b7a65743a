"""A cache that goes in and comes out is updated where it lies.

    %new = TensorScatter(%past, %rows, %starts)     ->     %copy = weft.Copy(%past)
    graph (%past, …) -> (%new, …)                          %new = weft.UpdateRows(%copy, %rows, %starts)

UpdateRows writes its rows into the memory of its first input (`lowering/lower.py` lays the two in one place), and the
driver passes over a Copy onto itself: a caller who gives the array of %past as `out` for %new moves no more than the
rows, another caller gets a new array and keeps the old one. Nothing else may read %past.

One node turns queries and keys by their place and writes both caches:

    %q, %k, %v = Split(%x)                              ->     %new_keys, %new_values, %turned =
    %turned = RotaryEmbedding(%q, …)                               weft.UpdateHeads(%copy, %copy_v, %x, …)
    %new_keys = weft.UpdateRows(%copy, RotaryEmbedding(%k, …), %starts)
    %new_values = weft.UpdateRows(%copy_v, %v, %starts)

Attention of few queries (`join_heads`) turns them itself and reads the rows that are not in the caches yet where they
are made, so that nothing waits for these to be written: one node, near the end, writes them for all layers.

    %new_keys, %new_values, %turned = weft.UpdateHeads(Copy(%keys), Copy(%values), %x, …)
    %y = weft.FusedAttention(%turned, %new_keys, %new_values, %starts + 1)
       ->   %y = weft.FusedAttention(%x, %keys, %values, %starts, %cosine, %sine, fresh=…)
            …
            %new_keys, %new_values, … = weft.UpdateHeads(Copy(%keys), Copy(%values), …, %x, …)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Graph, Node, Value
from weft.graph.opspec import has
from weft.graph.passes.common import common
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, count_uses, orders, rewritten

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
        single = single and keys.attributes.get("axis", -2) in (2, -2)
        alike = alike and split.outputs[1].tensor.dims == split.outputs[2].tensor.dims
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
        return [] if whole is None else [_with_places_given(whole, scope)]

    return rewritten(graph, rule) if made else graph


def _with_places_given(node: Node, scope: Scope) -> Node:
    """The node with its places as they are given, not widened by a Cast: no kernel has to run before."""
    *others, places, starts = node.inputs
    begin = _uncast(starts, scope)
    if begin is starts or places is None or _before(places, scope) is not starts:
        return node
    shape = scope.new_constant(np.array(places.tensor.static, np.int64), "shape")
    return node.replace(inputs=[*others, scope.make(node, "Reshape", [begin, shape]), begin])


def _turning(found: Sequence[Node]) -> Node | None:
    """The node that turns a value, where nothing else reads it."""
    return found[0] if len(found) == 1 and found[0].op == "RotaryEmbedding" else None


# ------------------------------------------------------------------------------------- attention beside its cache

Joins = Callable[[Sequence[int], str], bool]
"""Whether attention of these sizes (`FusedAttention`), on caches of an element type, turns its queries itself."""


def join_heads(graph: Graph, joins: Joins) -> Graph:
    """The graph whose attention reads new rows where they are made; the same object where there is none."""

    def rule(node: Node, scope: Scope) -> Replacement:
        is_known = node.op == "FusedAttention" and scope.parent is None and "fresh" not in node.attributes
        return _joined(node, scope, joins) if is_known else None

    made = rewritten(graph, rule)
    return graph if made is graph else infer(_written_last(common(made)))


def _joined(node: Node, scope: Scope, joins: Joins) -> Replacement:
    """Attention over caches as they were, and over rows that an update has not written yet."""
    given, (query, *caches) = node.attributes, [_before(v, scope) for v in node.inputs[:3]]
    update = scope.producers.get(query) if query is not None else None
    if query is None or update is None or update.op != HEADS or query in scope.graph.outputs:
        return None
    *operands, lengths = node.inputs[3:] or [None]
    past = [scope.producers[v].inputs[0] for v in update.inputs[:2] if v in scope.producers]
    x, cosine, sine, places, starts = update.inputs[2:]
    if x is None or starts is None or not {*past, starts} <= {*scope.graph.inputs}:
        return None  # what is given is there before any kernel runs
    (batch, heads, length, size), shared = query.tensor.static, update.outputs[0].tensor.static[1]
    is_same = caches == list(update.outputs[:2]) and query is update.outputs[2]
    if length != 1 or not is_same or _before(places, scope) is not starts:
        return None
    axis = int(update.attributes["split"])
    steps = [given[name] for name in ("query", "key", "value")]
    is_whole = all(len(step) == 5 and step[0] == 0 and step[4] == 1 for step in steps)
    is_behind = given["steps"][-1] == "until" and _is_sum(lengths, starts, length, scope)
    if not is_whole or not is_behind or len(given["padded"]) != 4 or not joins(given["sizes"], x.tensor.dtype):
        return None
    # X holds the heads of queries, keys and values of a batch, one after another; or all batches of each.
    one, every = length * size, (heads + 2 * shared if axis else shared) * length * size
    first = (heads * one, (heads + shared) * one) if axis else (batch * every, 2 * batch * every)
    attributes = {
        **given, "numbers": [*given["numbers"][:-1], -1.0], "query": [0, every if batch > 1 else 0, *steps[0][2:]],
        "fresh": [n for start in first for n in (start, every, one, size, 1)],
        **{key: value for key, value in update.attributes.items() if key in ("interleaved", "rotary_embedding_dim")},
    }  # fmt: skip
    flat = scope.new_constant(np.array([-1], np.int64), "flat")
    read = [scope.make(node, "Reshape", [v, flat]) for v in (x, *past)]
    return [node.replace(inputs=[*read, *operands, starts, cosine, sine], attributes=attributes)]


def _uncast(value: Value | None, scope: Scope) -> Value | None:
    """The places that a Cast makes wide."""
    cast = scope.producer(value, "Cast")
    is_index = cast is not None and cast.inputs[0] is not None and cast.inputs[0].tensor.dtype in ("int32", "int64")
    return cast.inputs[0] if cast is not None and is_index else value


def _before(value: Value | None, scope: Scope) -> Value | None:
    """What a value is a Reshape of."""
    maker = scope.producer(value)
    return maker.inputs[0] if maker is not None and has(maker, "reshapes") else value


def _is_sum(value: Value | None, starts: Value, length: int, scope: Scope) -> bool:
    """Whether a value is some places, each so many further on."""
    maker = scope.producer(value, "Add")
    pairs = () if maker is None else orders(maker)
    return any(_uncast(a, scope) is starts and b is not None and scope.scalar(b) == length for a, b in pairs)


def _written_last(graph: Graph) -> Graph:
    """The graph whose updates that nothing reads come before its last product, whose weights a machine may fetch
    meanwhile, or at its end; those with the same places as one."""
    readers, alike = graph.consumers(), dict[Any, list[Node]]()
    for node in graph.nodes:
        if node.op == HEADS and node.domain == DOMAIN and not any(readers.get(v) for v in node.outputs):
            sizes = [(v.tensor.dtype, v.tensor.static) for v in node.inputs[:3] if v is not None]
            key = *node.inputs[3:], *sizes, *sorted(node.attributes.items())
            alike.setdefault(key, []).append(node)
    moved = {node for some in alike.values() for node in some}
    last = []
    for some in alike.values():
        caches, x = [v for node in some for v in node.inputs[:2]], [node.inputs[2] for node in some]
        attributes = {**some[0].attributes, "updated": 2 * len(some), "turned": 0}
        outputs = [v for node in some for v in node.outputs[:2]]
        last.append(
            Node(HEADS, [*caches, *x, *some[0].inputs[3:]], outputs, attributes, some[0].name, some[0].origin, DOMAIN)
        )
    nodes = [node for node in graph.nodes if node not in moved]
    needed = {v for node in last for v in node.inputs}
    end = len(nodes)
    for at in range(len(nodes), 0, -1):
        if nodes[at - 1].op == "FusedAttention" or needed & {*nodes[at - 1].outputs}:
            break
        if has(nodes[at - 1], "product"):
            end = at - 1
            break
    return graph.replace(nodes=[*nodes[:end], *last, *nodes[end:]])
