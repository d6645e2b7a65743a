"""Common subexpressions: what is computed twice is computed once; equal constants become one.

    %a = Exp(%x)                  %a = Exp(%x)
    %b = Exp(%x)             ->
    %c = Add(%a, %b)              %c = Add(%a, %a)

A subgraph uses what the graphs around it have computed already. Operators that draw random numbers, and those with
subgraphs, are left alone.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from weft.graph.ir import Array, Graph, Node, Value, all_graphs
from weft.graph.passes.infer import is_random
from weft.graph.passes.support import Scope, rewrite, substitute_values


def common(graph: Graph) -> Graph:
    """The graph with every value computed once; the same object where nothing was found."""
    graph = _share_constants(graph)
    tables: dict[int, dict[Any, Node]] = {}

    def rule(node: Node, scope: Scope) -> Value | list[Node] | None:
        if node.graphs or is_random(node) or node.op == "Identity":
            return None
        key = _key(node)
        around: Scope | None = scope
        while around is not None:
            found = tables.get(id(around), {}).get(key)
            if found is not None and all(v in around.producers for v in found.outputs):
                return _shared(node, found)
            around = around.parent
        tables.setdefault(id(scope), {})[key] = node
        scopes.append(scope)
        return None

    scopes: list[Scope] = []  # keeps the scopes alive, so that no two have one id
    return rewrite(graph, rule)[0]


def _shared(node: Node, found: Node) -> Value | list[Node]:
    if len(node.outputs) == 1:
        return found.outputs[0]
    return [Node("Identity", [a], [b], {}, node.name, node.origin) for a, b in zip(found.outputs, node.outputs)]


def _key(node: Node) -> Any:
    return (node.domain, node.op, node.inputs, len(node.outputs), attributes_key(node.attributes))


def attributes_key(attributes: dict[str, Any]) -> Any:
    """A hashable value that is equal for equal attributes (no subgraphs)."""
    return tuple((key, _hashable(attributes[key])) for key in sorted(attributes))


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return array_key(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)


def array_key(array: Array) -> Any:
    """A hashable value that is equal for arrays of one type, shape and content."""
    if array.dtype.kind in "OUS":
        return ("string", array.shape, tuple(array.ravel().tolist()))
    content = hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"", digest_size=16)
    return (str(array.dtype), array.shape, content.digest())


def _share_constants(graph: Graph) -> Graph:
    """Equal constants become one, that of the outermost graph. Only those that could be equal to such are hashed."""
    groups: dict[Any, list[tuple[Value, Array]]] = {}
    outer = {*graph.constants}
    for inner in all_graphs(graph):
        for value, array in inner.constants.items():
            groups.setdefault((str(array.dtype), array.shape, _sample(array)), []).append((value, array))
    new: dict[Value, Value] = {}
    outputs = {value for inner in all_graphs(graph) for value in inner.outputs}
    for members in groups.values():
        if len(members) < 2 or members[0][0] not in outer:  # those of the outermost graph come first
            continue
        first: dict[Any, Value] = {}
        for value, array in members:
            kept = first.setdefault(_content(array), value)
            if kept is not value and kept in outer and value not in outputs:
                new[value] = kept
    if not new:
        return graph
    return _without(substitute_values(graph, new), set(new.values()), outer)


def _sample(array: Array) -> bytes:
    """A few elements: most arrays that differ, differ here, and need not be hashed."""
    if array.dtype.kind in "OUS" or not array.flags.c_contiguous:
        return b""
    return array.reshape(-1)[:: max(1, array.size // 16)].tobytes()


def _content(array: Array) -> Any:
    return array.tobytes() if array.nbytes <= 64 and array.dtype.kind not in "OUS" else array_key(array)


def _without(graph: Graph, shared: set[Value], outer: set[Value], top: bool = True) -> Graph:
    """Drops the definitions that substitution has left inside subgraphs of constants that the outer graph defines."""
    nodes = [
        node
        if not node.graphs
        else node.replace(
            attributes={
                key: _without(value, shared, outer, False) if isinstance(value, Graph) else value
                for key, value in node.attributes.items()
            }
        )
        for node in graph.nodes
    ]
    constants = graph.constants if top else {v: a for v, a in graph.constants.items() if v not in shared}
    return graph.replace(nodes=nodes, constants=constants)
