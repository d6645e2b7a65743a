"""Graphs as text: what is written, what is read back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.core.errors import ParseError
from weft.expr.nodes import Var
from weft.graph.ir import Graph, Node, OptionalType, SequenceType, TensorType, Value
from weft.graph.structural import graph_key
from weft.graph.text import constant_table, format_graph, format_type, parse_graph

TEXT = """\
graph main(%x: float32[n, n*2 + 1], %"odd name:0": sequence(int64[...]), %o: optional(bool[])) -> (%y, %t) {
    const %w: float32[2, 2] = [[1.0, -inf], [nan, 0.5]]
    const %words: string[2] = ["a\\"b", "c"]
    const %flag: bool[] = true
    const %big: int8[100] = ...
    %y, %z: float32[n, 3] = com.example::Op(%x, _, %w, axis=-1, scale=0.5, mode="up", sizes=[1, 2], names=["p", "q"]) \
@"first" from "model.onnx"
    %t: int64[3] = Constant(value=int64[3] [1, 2, 3])
    %r: float32[n] = If(%flag) {
        then_branch: graph yes() -> (%a) {
            const %a: float32[1] = [1.0]
        }
        else_branch: graph no() -> (%b) {
            %b: float32[n] = Relu(%z)
        }
    }
}"""


def test_round_trip():
    table = {"big": np.arange(100, dtype=np.int8)}
    graph = parse_graph(TEXT, table)
    assert format_graph(graph) == TEXT
    assert constant_table(graph).keys() == {"big"}
    assert graph_key(graph) == graph_key(parse_graph(format_graph(graph), table))
    assert graph.nodes[0].name == "first" and graph.nodes[0].origin == "model.onnx"
    assert graph.nodes[0].domain == "com.example" and graph.nodes[0].inputs[1] is None
    assert graph.nodes[0].attributes["sizes"] == [1, 2]


@pytest.mark.parametrize("kind", "float16 bfloat16 float8_e4m3fn int4 uint4 int64 uint64 float64 bool".split())
def test_small_constants_come_back_exactly(kind):
    type = TensorType(kind, [3])
    array = np.array([0, 1, 1]).astype(type.numpy)
    if kind == "uint64":
        array = np.array([0, 1, 2**64 - 1], np.uint64)
    if "float" in kind:
        array = np.array([0.1, -2.5, 1.0]).astype(type.numpy)
    value = Value("c", type)
    graph = Graph("g", [], [value], [], {value: array})
    again = parse_graph(format_graph(graph))
    (found,) = again.constants.values()
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()


def test_values_of_one_name_are_told_apart():
    x, a, b = Value("x"), Value("v"), Value("v")
    graph = Graph("g", [x], [b], [Node("Relu", [x], [a]), Node("Neg", [a], [b])])
    assert "%v.1 = Neg(%v)" in format_graph(graph)
    assert graph_key(graph) == graph_key(parse_graph(format_graph(graph)))


def test_sizes_with_odd_names():
    text = format_graph(Graph("g", [Value("x", TensorType("float32", [Var("a b"), Var("for"), Var("a_b")]))], [], []))
    assert text.startswith("graph g(%x: float32[a_b, size_for, a_b_1])")


def test_types():
    assert format_type(SequenceType(OptionalType(TensorType("int8", None)))) == "sequence(optional(int8[...]))"
    assert format_type(None) == "?"
    assert repr(parse_graph("graph g() -> () {}")) == "graph g() -> () {\n}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph g(%x) -> (%y) {}", "line 1, column 17: expected a value that is made before it is used"),
        ("graph g(%x: float99[2]) -> () {}", "expected an element type instead of 'float99'"),
        ("graph g() -> () {\n  %y = Relu(%z)\n}", "line 2, column 13: expected a value that is made before"),
        ("graph g() -> () {\n  const %c: float32[3] = [1.0]\n}", "expected 3 elements"),
        ("graph g() -> () {\n  const %c: float32[300] = ...\n}", "table of constants"),
        ("graph g() -> () {} more", "expected the end of the text, found 'more'"),
        ("graph g() -> () {\n  %y = Relu(%\n}", "expected an input or an attribute|expected a value"),
        ("", "expected 'graph'"),
        (
            'graph g() -> () {\n  %y = Relu(a="x\ty")\n}',
            "line 2.*expected a string of JSON before this .*control character",
        ),
        ('graph g(%"\\q") -> () {}', "expected a string of JSON before this"),
        ("graph g() -> () {\n  const %c: int32[1] = [1e999]\n}", "line 2.*expected elements of int32 before this"),
        ("graph g() -> () {\n  const %c: int8[1] = [300]\n}", "expected elements of int8 before this"),
        ('graph g() -> () {\n  const %c: float32[1] = ["a"]\n}', "expected elements of float32 before this"),
        ("graph g() -> () {\n  const %c: float32[n] = [1.0]\n}", "expected an array of known sizes"),
        (
            "graph g() -> () {\n  const %c: float32[2] = [[1.0], 2.0]\n}",
            "expected elements of float32|expected 2 elements",
        ),
    ],
)
def test_errors_say_where(text, message):
    with pytest.raises(ParseError, match=message):
        parse_graph(text)
