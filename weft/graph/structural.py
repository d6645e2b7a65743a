"""Comparing graphs by structure: what is computed, not how values are called or in which order nodes stand.

graph_key(graph)       text that is equal for graphs that are built the same, inputs in the same order (constants by
                       content, symbolic sizes by name)
structure_key(graph)   the same for all weights: equal for models that get the same kernels
parting(a, b)          the first nodes that only one of two graphs has, whatever the weights
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.expr.text import format_expr
from weft.graph.ir import Array, Dim, Graph, Node, TensorType, Type, Value


def graph_key(graph: Graph) -> str:
    """A digest of what a graph computes: inputs with their types, and what each output is made of."""
    return _Keys(array_digest).graph(graph, {})


def structure_key(graph: Graph) -> str:
    """Like graph_key, but weights count by element type and shape only; numbers and short lists of sizes by content."""
    return _Keys(_shape_of_weight).graph(graph, {})


def _shape_of_weight(array: Array) -> str:
    tells = array.size <= 1 or (array.dtype.kind in "iub" and array.size <= 16)
    return array_digest(array) if tells else f"{array.dtype}{array.shape}"


def parting(a: Graph, b: Graph) -> tuple[list[Node], list[Node]]:
    """Where two graphs part: nodes of each that the other does not have, though it has all that they read."""
    keys = [_Keys(_shape_of_weight), _Keys(_shape_of_weight)]
    for one, graph in zip(keys, (a, b)):
        one.graph(graph, {})
    found = []
    for graph, own, other in ((a, keys[0], keys[1]), (b, keys[1], keys[0])):
        there = set(other.made.values())
        found.append(
            [
                node
                for node in graph.nodes
                if node.outputs
                and own.made[node.outputs[0]] not in there
                and all(v not in own.made or own.made[v] in there for v in node.inputs if v is not None)
            ]
        )
    return found[0], found[1]


def quick_key(graph: Graph) -> str:
    """Like graph_key, but large arrays are equal only where they are one object: shows whether a pass did anything."""
    return _Keys(lambda array: array_digest(array) if array.nbytes <= 4096 else str(id(array))).graph(graph, {})


def array_digest(array: Array) -> str:
    """A digest of an array: element type, shape and content."""
    digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
    if array.dtype.kind in "OUS":
        digest.update(repr(array.ravel().tolist()).encode())
    elif array.size:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=16).hexdigest()


class _Keys:
    """One walk. A value's key says how it is computed; keys of inputs are their places."""

    def __init__(self, constant: Callable[[Array], str]) -> None:
        self.depth = 0
        self.constant = constant
        self.made: dict[Value, str] = {}
        """The keys of what nodes of the outermost graph make."""

    def graph(self, graph: Graph, outer: dict[Value, str]) -> str:
        keys = dict(outer)
        for at, value in enumerate(graph.inputs):
            keys[value] = f"input {self.depth} {at}"
        for value, array in graph.constants.items():
            keys[value] = f"constant {self.constant(array)}"
        for node in graph.nodes:
            made = self.node(node, keys)
            for at, value in enumerate(node.outputs):
                keys[value] = f"{made} {at}"
        if not self.depth:
            self.made = {value: keys[value] for node in graph.nodes for value in node.outputs}
        # What a subgraph is given has the types that inference finds, some with sizes named afresh each time.
        types = "" if self.depth else ",".join(type_key(value.type) for value in graph.inputs)
        return _digest("graph", types, *[keys.get(value, "undefined") for value in graph.outputs])

    def node(self, node: Node, keys: dict[Value, str]) -> str:
        inputs = ["none" if v is None else keys.get(v, "undefined") for v in node.inputs]
        attributes = [f"{key}={self.attribute(node.attributes[key], keys)}" for key in sorted(node.attributes)]
        return _digest(node.domain, node.op, str(len(node.outputs)), *inputs, *attributes)

    def attribute(self, value: Any, keys: dict[Value, str]) -> str:
        if isinstance(value, Graph):
            self.depth += 1
            try:
                return self.graph(value, keys)
            finally:
                self.depth -= 1
        if isinstance(value, np.ndarray):
            return array_digest(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.attribute(one, keys) for one in value)}]"
        return repr(value)


def type_key(type: Type | None) -> str:
    """A type as text, symbolic sizes by name."""
    if isinstance(type, TensorType):
        return f"{type.dtype}{'...' if type.shape is None else [_dim(d) for d in type.shape]}"
    return "none" if type is None else f"{type.__class__.__name__}({type_key(type.of)})"


def _dim(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) else format_expr(dim)
