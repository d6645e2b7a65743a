"""Names and order of the nodes in a GraphProto: what a node reads, and each node after what it reads."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from weft.core.errors import FrontendError
from weft.frontends.onnx.types import DEEPEST


def describe(node: Any) -> str:
    """How errors speak of a NodeProto, before it is a node of a graph."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if node.name:
        return f"node {node.name!r} ({kind})"
    made = next((name for name in node.output if name), "")
    return f"the node that makes {made!r} ({kind})" if made else f"a node without name ({kind})"


def subgraphs(node: Any) -> Iterator[Any]:
    """The graphs among the attributes of a NodeProto."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def names_read(node: Any, depth: int = 0) -> set[str]:
    """The names that a node reads from the graph it stands in, those that its subgraphs take from there included."""
    found = {name for name in node.input if name}
    for graph in subgraphs(node):
        found |= outer_names(graph, depth + 1)
    return found


def outer_names(graph: Any, depth: int = 0) -> set[str]:
    """The names that a subgraph takes from the graphs around it."""
    if depth > DEEPEST:
        raise FrontendError(f"the graph {graph.name!r} is nested more than {DEEPEST} levels deep")
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    read = {value.name for value in graph.output}
    for node in graph.node:
        own.update(node.output)
        read |= names_read(node, depth)
    return read - own


def in_order(nodes: Sequence[Any], reads: Sequence[set[str]]) -> Iterable[int]:
    """Positions of the nodes, each after the nodes it reads; those that stand in order already stay as they are."""
    maker = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for position, names in enumerate(reads):
        sources = {maker[name] for name in names if name in maker}
        waiting[position] = len(sources)
        for source in sources:
            readers[source].append(position)
    ready = [position for position, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        raise FrontendError(f"the nodes form a cycle: {_cycle(nodes, reads, maker, waiting)}")
    return order


def _cycle(nodes: Sequence[Any], reads: Sequence[set[str]], maker: dict[str, int], waiting: Sequence[int]) -> str:
    """One cycle among the nodes that never became ready, as text."""
    position = next(p for p, count in enumerate(waiting) if count)
    path: list[int] = []
    while position not in path:
        path.append(position)
        position = next(maker[name] for name in sorted(reads[position]) if name in maker and waiting[maker[name]])
    loop = [*path[path.index(position) :], position]
    shown = [describe(nodes[p]) for p in reversed(loop)]
    if len(shown) > 9:
        shown = [*shown[:4], f"… {len(shown) - 8} more …", *shown[-4:]]
    return " -> ".join(shown)
