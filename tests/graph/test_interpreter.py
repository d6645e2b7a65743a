"""Running graphs by the numpy meaning of their operators."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.graph.interpreter import interpret_graph, trace_graph
from weft.graph.ir import GraphError
from weft.graph.opspec import register
from weft.graph.text import parse_graph

LOOP = """
graph g(%n: int64[], %x: float32[2]) -> (%last, %all) {
    const %go: bool[] = true
    const %step: float32[] = 0.5
    %last, %all = Loop(%n, %go, %x) {
        body: graph body(%i: int64[], %c: bool[], %s: float32[2]) -> (%c, %t, %t) {
            %t: float32[2] = Add(%s, %step)
        }
    }
}
"""


def test_names_or_places():
    graph = parse_graph("graph g(%a: float32[2], %b: float32[2]) -> (%y) {\n %y = Sub(%a, %b)\n}")
    a, b = np.array([3, 4], np.float32), np.array([1, 1], np.float32)
    assert interpret_graph(graph, [a, b])[0].tolist() == [2, 3]
    assert interpret_graph(graph, {"b": b, "a": a})[0].tolist() == [2, 3]


def test_loops_see_the_values_around_them():
    graph = parse_graph(LOOP)
    last, stacked = interpret_graph(graph, [np.array(3), np.zeros(2, np.float32)])
    assert last.tolist() == [1.5, 1.5] and stacked.tolist() == [[0.5, 0.5], [1.0, 1.0], [1.5, 1.5]]


def test_trace():
    graph = parse_graph("graph g(%x: float32[1]) -> (%y) {\n %a = Neg(%x)\n %y = Exp(%a)\n}")
    found = trace_graph(graph, [np.zeros(1, np.float32)])
    assert list(found) == ["x", "a", "y"] and found["y"].tolist() == [1.0]


class Watched(np.ndarray):
    """An array that can be watched going away."""


alive: list[int] = []
seen: list[weakref.ref] = []


def _make(c, x):
    alive.append(sum(ref() is not None for ref in seen))
    made = x.copy().view(Watched)
    seen.append(weakref.ref(made))
    return made


register("Watch", lambda c: [c.types[0]], _make, domain="tests.interpreter")


def test_values_are_freed_after_their_last_use():
    lines = "\n".join(f"%v{i + 1} = tests.interpreter::Watch(%v{i})" for i in range(6))
    graph = parse_graph(f"graph g(%v0: float32[4]) -> (%v6) {{\n{lines}\n}}")
    interpret_graph(graph, [np.zeros(4, np.float32)])
    gc.collect()
    assert max(alive) <= 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([np.zeros(3, np.float32)], r"input 'x' of the graph 'g': expected the shape \[2\], not \[3\]"),
        ([np.zeros(2)], "expected elements of float32, not float64"),
        ([], "takes 1 inputs, not 0"),
        ({"y": np.zeros(2, np.float32)}, r"takes inputs \['x'\]: missing \['x'\]; unknown \['y'\]"),
    ],
)
def test_wrong_inputs(given, message):
    graph = parse_graph("graph g(%x: float32[2]) -> (%y) {\n %y = Relu(%x)\n}")
    with pytest.raises(GraphError, match=message):
        interpret_graph(graph, given)


def test_errors_name_the_node():
    graph = parse_graph('graph g(%x: float32[n], %y: float32[m]) -> (%z) {\n %z = Add(%x, %y) @"sum" from "m.onnx"\n}')
    with pytest.raises(GraphError, match=r"node 'sum' \(Add, from m.onnx\).*float32\[2\], float32\[3\]"):
        interpret_graph(graph, [np.zeros(2, np.float32), np.zeros(3, np.float32)])
    graph = parse_graph('graph g(%x: float32[n]) -> (%z) {\n %z: float32[4] = Relu(%x) @"r"\n}')
    with pytest.raises(GraphError, match=r"node 'r' .*its result 'z': expected the shape \[4\], not \[2\]"):
        interpret_graph(graph, [np.zeros(2, np.float32)])
