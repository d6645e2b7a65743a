"""The verifier: one broken graph for each rule."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401
from tests.graph.verifier import verify_graph
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.text import parse_graph

F = TensorType("float32", [2])


def value(name, type=F):
    return Value(name, type)


def test_a_good_graph_passes():
    verify_graph(
        parse_graph("""
graph g(%x: float32[n], %c: bool[]) -> (%y) {
    const %one: float32[] = 1.0
    %a = Add(%x, %one)
    %y = If(%c) {
        then_branch: graph t() -> (%p) {
            %p = Relu(%a)
        }
        else_branch: graph e() -> (%a) {
        }
    }
}
""")
    )


def test_before_use():
    x, a, b = value("x"), value("a"), value("b")
    late = Graph("g", [x], [b], [Node("Neg", [a], [b], name="second"), Node("Relu", [x], [a], name="first")])
    with pytest.raises(GraphError, match=r"node 'second' \(Neg\): before use: its input 'a' is made later, by node"):
        verify_graph(late)
    with pytest.raises(GraphError, match="before use: nothing defines its input 'a'"):
        verify_graph(Graph("g", [x], [b], [Node("Neg", [a], [b])]))


def test_no_cycles():
    x, a, b = value("x"), value("a"), value("b")
    graph = Graph("g", [x], [b], [Node("Add", [x, b], [a], name="loop"), Node("Relu", [a], [b])])
    with pytest.raises(GraphError, match="node 'loop' .* no cycles"):
        verify_graph(graph)


def test_defined_once():
    x, a = value("x"), value("a")
    with pytest.raises(GraphError, match="defined once: the value 'a'"):
        verify_graph(Graph("g", [x], [a], [Node("Neg", [x], [a]), Node("Relu", [x], [a])]))
    with pytest.raises(GraphError, match="defined once: the value 'x'"):
        verify_graph(Graph("g", [x], [x], [], {x: np.zeros(2, np.float32)}))


def test_named_once():
    x, a = value("x"), value("x")
    with pytest.raises(GraphError, match="named once: another value is called 'x' too"):
        verify_graph(Graph("g", [x], [a], [Node("Neg", [x], [a])]))


def test_subgraphs_do_not_see_each_other():
    x, p = value("x"), value("p")
    condition, y = Value("c", TensorType("bool", [])), value("y")
    yes = Graph("yes", [], [p], [Node("Relu", [x], [p])])
    no = Graph("no", [], [p], [])
    node = Node("If", [condition], [y], {"then_branch": yes, "else_branch": no})
    with pytest.raises(GraphError, match="graph 'no': outputs: nothing defines its output 'p'"):
        verify_graph(Graph("g", [x, condition], [y], [node]))


def test_operators_are_known():
    x, y = value("x"), value("y")
    with pytest.raises(GraphError, match="the operator ai.onnx.Whatever is not known"):
        verify_graph(Graph("g", [x], [y], [Node("Whatever", [x], [y])]))


def test_outputs():
    x = value("x")
    with pytest.raises(GraphError, match="outputs: nothing defines its output 'y'"):
        verify_graph(Graph("g", [x], [value("y")], []))


def test_types():
    x, y = value("x"), value("y", TensorType("float32", [3]))
    with pytest.raises(GraphError, match=r"types: 'y' is marked float32\[3\], inference finds float32\[2\]"):
        verify_graph(Graph("g", [x], [y], [Node("Relu", [x], [y])]))
    with pytest.raises(GraphError, match=r"input 'n': types: 'n' is marked float32\[-2\], which has a negative size"):
        verify_graph(Graph("g", [value("n", TensorType("float32", [-2]))], [], []))
    with pytest.raises(GraphError, match="constant 'x': types: expected elements of float32, not int64"):
        verify_graph(Graph("g", [], [x], [], {x: np.zeros(2, np.int64)}))
