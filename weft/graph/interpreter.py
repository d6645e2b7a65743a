"""Runs a graph by the numpy meaning of its operators: the oracle, and the last resort for what has no kernel.

In: a graph and arrays for its inputs. Out: the list of its outputs. A value is freed after its last use. Results are
checked against the types that the graph carries, and an error names the node.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Graph, GraphError, Node, TensorType, Type, Value, dtype_name, reads
from weft.graph.opspec import OpSpec, find_operator, node_error, way_to_register

Inputs = Mapping[str, Any] | Sequence[Any]


def interpret_graph(graph: Graph, inputs: Inputs, *, outer: Mapping[Value, Any] | None = None) -> list[Any]:
    """The outputs of a graph. `outer` gives the values that a subgraph takes from the graphs around it."""
    return Interpreter().run(graph, bind_inputs(graph, inputs), outer or {})


def trace_graph(graph: Graph, inputs: Inputs, *, outer: Mapping[Value, Any] | None = None) -> dict[str, Any]:
    """Every value of a graph by name (inputs, constants and what its nodes make; not those inside subgraphs)."""
    kept: dict[str, Any] = {}
    Interpreter(kept).run(graph, bind_inputs(graph, inputs), outer or {})
    return kept


def bind_inputs(graph: Graph, inputs: Inputs) -> list[Any]:
    """The values of the inputs in order, as arrays; checked against their types."""
    if isinstance(inputs, Mapping):
        names = [value.name for value in graph.inputs]
        missing = [name for name in names if name not in inputs]
        extra = [name for name in inputs if name not in names]
        if missing or extra:
            raise GraphError(
                f"the graph {graph.name!r} takes inputs {names}: "
                + "; ".join([f"missing {missing}"] * bool(missing) + [f"unknown {extra}"] * bool(extra))
            )
        given: list[Any] = [inputs[name] for name in names]
    else:
        given = list(inputs)
        if len(given) != len(graph.inputs):
            raise GraphError(f"the graph {graph.name!r} takes {len(graph.inputs)} inputs, not {len(given)}")
    bound = [np.asarray(one) if np.isscalar(one) else one for one in given]
    for value, array in zip(graph.inputs, bound):
        problem = mismatch(array, value.type)
        if problem:
            raise GraphError(f"input {value.name!r} of the graph {graph.name!r}: {problem}")
    return bound


def mismatch(array: Any, wanted: Type | None) -> str | None:
    """What is wrong with an array for a type, in words; None where nothing is. Symbolic sizes take any number."""
    if not isinstance(wanted, TensorType):
        return None
    if not isinstance(array, np.ndarray):
        return f"expected an array of {wanted!r}, not {type(array).__name__}"
    kind = dtype_name(array.dtype)
    if kind != wanted.dtype:
        return f"expected elements of {wanted.dtype}, not {kind}"
    if wanted.shape is None:
        return None
    fits = len(wanted.shape) == array.ndim and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(wanted.shape, array.shape)
    )
    return None if fits else f"expected the shape {list(wanted.shape)}, not {list(array.shape)}"


def operator_of(node: Node) -> OpSpec:
    """The operator of a node; an unknown one is an error."""
    spec = find_operator(node.op, node.domain)
    if spec is None:
        known = f"the operator {node.domain or 'ai.onnx'}.{node.op} is not known"
        raise node_error(node, f"{known}; {way_to_register(node.op, node.domain)}" if node.domain else known)
    return spec


class Interpreter:
    """Runs graphs. A loop runs its body many times, so what is found about a graph is kept."""

    def __init__(self, kept: dict[str, Any] | None = None) -> None:
        self.kept = kept
        self.last_uses: dict[Graph, list[list[Value]]] = {}

    def run(self, graph: Graph, arrays: Sequence[Any], outer: Mapping[Value, Any]) -> list[Any]:
        """The outputs for arrays that fit the inputs, with the values around the graph."""
        values: dict[Value, Any] = dict(graph.constants)
        values.update(zip(graph.inputs, arrays))
        scope = ChainMap(values, outer) if outer else values  # type: ignore[arg-type]
        kept, self.kept = self.kept, None
        if kept is not None:
            kept.update({value.name: array for value, array in values.items()})
        for node, finished in zip(graph.nodes, self._finished(graph)):
            for value, array in zip(node.outputs, self._node(node, scope)):
                values[value] = array
                if kept is not None:
                    kept[value.name] = array
            for value in finished:
                values.pop(value, None)
        missing = [value.name for value in graph.outputs if value not in scope]
        if missing:
            raise GraphError(f"the graph {graph.name!r}: nothing makes its outputs {missing}")
        return [scope[value] for value in graph.outputs]

    def _finished(self, graph: Graph) -> list[list[Value]]:
        """For every node, the values that nothing reads after it."""
        found = self.last_uses.get(graph)
        if found is None:
            last = {value: at for at, node in enumerate(graph.nodes) for value in (*node.outputs, *reads(node))}
            found = [[] for _ in graph.nodes]
            needed = set(graph.outputs)
            for value, at in last.items():
                if value not in needed:
                    found[at].append(value)
            self.last_uses[graph] = found
        return found

    def _node(self, node: Node, scope: Mapping[Value, Any]) -> list[Any]:
        spec = operator_of(node)
        arrays = []
        for value in node.inputs:
            if value is not None and value not in scope:
                raise node_error(node, f"its input {value.name!r} has no value")
            arrays.append(None if value is None else scope[value])
        made = spec.run(node, arrays, lambda graph, given: self._inner(graph, given, scope))
        for value, array in zip(node.outputs, made):
            wrong = mismatch(array, value.type)
            if wrong:
                raise node_error(node, f"its result {value.name!r}: {wrong}")
        return made

    def _inner(self, graph: Graph, given: Sequence[Any], scope: Mapping[Value, Any]) -> list[Any]:
        if len(given) != len(graph.inputs):
            raise GraphError(f"the graph {graph.name!r} takes {len(graph.inputs)} inputs, not {len(given)}")
        return self.run(graph, given, scope)
