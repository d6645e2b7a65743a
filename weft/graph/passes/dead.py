"""Removes what no output depends on: nodes, constants, and outputs of control flow that nothing reads.

    %a = Exp(%x)                               (gone: nothing reads %a)
    %y, %indices = MaxPool(%x)            ->   %y = MaxPool(%x)
    %p, %q = If(%c) {…}                        %p = If(%c) {…}       both branches lose their second output

The inputs and outputs of the model stay as they are.
"""

from __future__ import annotations

from typing import Any

from weft.graph.ir import Graph, Node, Value, free_values
from weft.graph.opspec import has


def dead(graph: Graph) -> Graph:
    """The graph without what is not needed; the same object where everything is."""
    live: set[Value | None] = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if live.isdisjoint(node.outputs):
            continue
        made = _trimmed(node, live) if len(node.outputs) > 1 or node.graphs else node
        kept.append(made)
        live.update(made.inputs)
        for inner in made.graphs.values():
            live.update(free_values(inner))
    nodes = kept[::-1]
    constants = {value: array for value, array in graph.constants.items() if value in live}
    if len(constants) == len(graph.constants) and len(nodes) == len(graph.nodes):
        if all(a is b for a, b in zip(nodes, graph.nodes)):
            return graph
    return graph.replace(nodes=nodes, constants=constants)


def _trimmed(node: Node, live: set[Value | None]) -> Node:
    used = [value in live for value in node.outputs]
    if node.op == "If" and not node.domain and node.graphs:
        if not all(used):
            node = _without_outputs(node, used, dict.fromkeys(node.graphs, 0))
    elif node.op == "Loop" and not node.domain and node.graphs:
        carried = max(0, len(node.inputs) - 2)
        used = [True] * carried + used[carried:]
        if not all(used):
            node = _without_outputs(node, used, {"body": 1})
        node = _without_states(node, live)
    elif has(node, "optional_outputs"):
        count = len(used)
        while count > 1 and not used[count - 1]:
            count -= 1
        if count < len(used):
            node = node.replace(outputs=node.outputs[:count])
    return _inside(node)


def _inside(node: Node) -> Node:
    inner = {key: dead(graph) for key, graph in node.graphs.items()}
    if all(graph is node.attributes[key] for key, graph in inner.items()):
        return node
    return node.replace(attributes={**node.attributes, **inner})


def _without_outputs(node: Node, used: list[bool], skip: dict[str, int]) -> Node:
    """A node whose unused outputs, and those of its subgraphs behind them, are gone."""
    attributes: dict[str, Any] = dict(node.attributes)
    for key, first in skip.items():
        graph = attributes[key]
        kept = [v for v, wanted in zip(graph.outputs[first:], used) if wanted]
        attributes[key] = graph.replace(outputs=[*graph.outputs[:first], *kept])
    return node.replace(outputs=[v for v, wanted in zip(node.outputs, used) if wanted], attributes=attributes)


def _without_states(node: Node, live: set[Value | None]) -> Node:
    """A loop without the states that nobody reads outside and that only feed themselves inside."""
    body: Graph = node.attributes["body"]
    carried = len(node.inputs) - 2
    if carried < 1 or len(body.inputs) != carried + 2:
        return node
    keep = []
    for at in range(carried):
        given, result = body.inputs[2 + at], body.outputs[1 + at]
        alone = body.replace(outputs=[v for i, v in enumerate(body.outputs) if i != 1 + at])
        needed = given in set(free_values(Graph("", [], dead(alone).outputs, dead(alone).nodes, dead(alone).constants)))
        keep.append(node.outputs[at] in live or needed or result in alone.outputs)
    if all(keep):
        return node
    keeps = [True, True, *keep]
    inner = body.replace(
        inputs=[v for v, wanted in zip(body.inputs, keeps) if wanted],
        outputs=[v for at, v in enumerate(body.outputs) if not 1 <= at <= carried or keep[at - 1]],
    )
    outputs = [v for at, v in enumerate(node.outputs) if at >= carried or keep[at]]
    return node.replace(
        inputs=[v for v, wanted in zip(node.inputs, keeps) if wanted],
        outputs=outputs,
        attributes={**node.attributes, "body": inner},
    )
