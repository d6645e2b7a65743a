"""Checks that a graph keeps the rules of the IR. An error names the node and the rule.

defined once     a value is an input, a constant or the output of one node, of one graph
named once       no two values that can be seen together have one name
before use       a node stands after what it reads; subgraphs see the values around them
no cycles        (a cycle is what makes it impossible to put the nodes in order)
operators        every operator is in the table
types            a constant is what its type says, no size is negative, and types agree with inference where both are
                 known
outputs          every output is defined
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from weft.graph.interpreter import mismatch, operator_of
from weft.graph.ir import Graph, GraphError, Node, OptionalType, SequenceType, TensorType, Type, Value, reads
from weft.graph.passes.infer import infer


def verify_graph(graph: Graph) -> None:
    """Raises GraphError at the first rule that is broken."""
    _structure(graph, {})
    typed = infer(graph)
    made = (zip(node.outputs, new.outputs) for node, new in zip(graph.nodes, typed.nodes))
    for value, new in chain(zip(graph.inputs, typed.inputs), zip(graph.constants, typed.constants), *made):
        found = new.type
        if conflict(value.type, found):
            maker = next((n for n in graph.nodes if value in n.outputs), None)
            where = f"the value {value.name!r}" if maker is None else maker.describe()
            raise GraphError(f"{where}: types: {value.name!r} is marked {value.type!r}, inference finds {found!r}")


def _structure(graph: Graph, outer: Mapping[str, Value]) -> None:
    named: dict[str, Value] = dict(outer)
    defined: set[Value] = set(outer.values())
    for value in graph.inputs:
        _define(value, f"graph {graph.name!r}, its input {value.name!r}", named, defined)
    for value, array in graph.constants.items():
        where = f"graph {graph.name!r}, its constant {value.name!r}"
        _define(value, where, named, defined)
        problem = mismatch(array, value.type)
        if problem:
            raise GraphError(f"{where}: types: {problem}")
    makers = graph.producers()
    for node in graph.nodes:
        operator_of(node)
        for given in node.inputs:
            if given is not None and given not in defined:
                raise _not_ready(node, given, makers)
        for inner in node.graphs.values():
            _structure(inner, named)
        for value in node.outputs:
            _define(value, node.describe(), named, defined)
    for value in graph.outputs:
        if value not in defined:
            raise GraphError(f"graph {graph.name!r}: outputs: nothing defines its output {value.name!r}")


def _define(value: Value, where: str, named: dict[str, Value], defined: set[Value]) -> None:
    sizes = value.type.shape or () if isinstance(value.type, TensorType) else ()
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise GraphError(f"{where}: types: {value.name!r} is marked {value.type!r}, which has a negative size")
    if value in defined:
        raise GraphError(f"{where}: defined once: the value {value.name!r} is defined a second time")
    if value.name in named:
        raise GraphError(f"{where}: named once: another value is called {value.name!r} too")
    defined.add(value)
    named[value.name] = value


def _not_ready(node: Node, value: Value, makers: Mapping[Value, Node]) -> GraphError:
    """Says why a value is not there: a cycle, a wrong order, or nothing that makes it."""
    if value not in makers:
        return GraphError(f"{node.describe()}: before use: nothing defines its input {value.name!r}")
    seen: set[Node] = set()
    waiting = [makers[value]]
    while waiting:
        one = waiting.pop()
        if one is node:
            return GraphError(f"{node.describe()}: no cycles: its input {value.name!r} depends on its own output")
        if one not in seen:
            seen.add(one)
            waiting += [makers[v] for v in reads(one) if v in makers]
    return GraphError(
        f"{node.describe()}: before use: its input {value.name!r} is made later, by {makers[value].describe()}"
    )


def conflict(a: Type | None, b: Type | None) -> bool:
    """Whether no value can be of both types."""
    if a is None or b is None:
        return False
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype != b.dtype:
            return True
        if a.shape is None or b.shape is None:
            return False
        return len(a.shape) != len(b.shape) or any(
            isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a.shape, b.shape)
        )
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return conflict(a.of, b.of)
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return conflict(a.of, b.of)
    return type(a) is not type(b)
