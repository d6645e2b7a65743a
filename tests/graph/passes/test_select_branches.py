"""Ifs with cheap branches become selections; others stay."""

import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.graph.interpreter import interpret_graph
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize
from weft.graph.passes.select_branches import select_branches
from weft.graph.text import parse_graph

NESTED = """
graph main(%c: bool[1], %d: bool[], %x: float32[3]) -> (%y, %s, %z) {
    %y, %s, %z = If(%c) {
        then_branch: graph inner() -> (%t, %u, %x) {
            %t = If(%d) {
                then_branch: graph deep() -> (%a) {
                    %a = Exp(%x)
                }
                else_branch: graph flat() -> (%a) {
                    %a = Neg(%x)
                }
            }
            %u = ReduceSum(%x, keepdims=0)
        }
        else_branch: graph other() -> (%v, %u, %v) {
            %v = Tanh(%x)
            %u = ReduceMax(%x, keepdims=0)
        }
    }
}
"""


def branch(then, otherwise, shape="3"):
    text = f"""
graph main(%c: bool[], %x: float32[{shape}], %n: int64[3], %r: float32[]) -> (%y) {{
    %y = If(%c) {{
        then_branch: graph one() -> (%a) {{
            %a = {then}
        }}
        else_branch: graph two() -> (%b) {{
            %b = {otherwise}
        }}
    }}
}}
"""
    return infer(parse_graph(text))


def test_nested_branches_and_conditions_of_one_element():
    graph = infer(parse_graph(NESTED))
    made = normalize(graph)
    assert "If" not in {node.op for node in made.nodes} and [v.name for v in made.outputs] == ["y", "s", "z"]
    x = np.array([0.5, -1, 2], "float32")
    for c in (True, False):
        for d in (True, False):
            given = [np.array([c]), np.array(d), x]
            for got, want in zip(interpret_graph(made, given), interpret_graph(graph, given), strict=True):
                assert got.shape == want.shape
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "then, otherwise, shape, stays",
    [
        ("Exp(%x)", "Neg(%x)", "3", False),
        ("Exp(%x)", "Neg(%x)", "100, 1000", True),  # dear
        ("Div(%n, %n)", "Neg(%n)", "3", True),  # may divide by zero
        ("Gather(%x, %n)", "Neg(%x)", "3", True),  # may read outside
        ("Exp(%x)", "ReduceSum(%x)", "3", True),  # other shapes
        ("LeakyRelu(%x)", "Round(%x)", "3", False),  # what is elementwise takes any value
        ("Atan(%x)", "LeakyRelu(%x)", "100, 100", True),  # dear too
        ("Mod(%n, %n)", "Neg(%n)", "3", True),
        ("Cast(%x, to=7)", "Neg(%n)", "3", True),  # may be out of range
        ("Dropout(%x, %r, %c)", "Neg(%x)", "3", True),  # random
    ],
)
def test_what_becomes_a_selection(then, otherwise, shape, stays):
    graph = branch(then, otherwise, shape)
    assert (select_branches(graph) is graph) == stays
