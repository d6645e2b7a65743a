"""Binding symbolic sizes to shapes."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401
from tests.graph.strategies import check
from weft.graph.ir import GraphError
from weft.graph.passes.specialize import specialize
from weft.graph.text import parse_graph

TEXT = """
graph g(%x: float32[batch, n], %y: float32[n], %z: float32[n, 2]) -> (%m) {
    %s: float32[batch, n] = Add(%x, %y)
    %m: float32[batch, 2] = MatMul(%s, %z)
}
"""


def test_sizes_are_bound_everywhere():
    check(
        lambda g: specialize(g, {"x": (3, 4)}),
        TEXT.replace("batch", "3").replace("n,", "4,").replace("[n]", "[4]").replace(", n]", ", 4]"),
        """
graph g(%x: float32[3, 4], %y: float32[4], %z: float32[4, 2]) -> (%m) {
    %s: float32[3, 4] = Add(%x, %y)
    %m: float32[3, 2] = MatMul(%s, %z)
}""",
    )
    graph = parse_graph(TEXT)
    done = specialize(graph, {"x": np.array([3, 4])})
    assert [repr(v.type) for v in done.inputs] == ["float32[3, 4]", "float32[4]", "float32[4, 2]"]
    assert repr(done.outputs[0].type) == "float32[3, 2]" and repr(graph.inputs[0].type) == "float32[batch, n]"


def test_some_sizes_may_stay():
    done = specialize(parse_graph(TEXT), {"y": [4]})
    assert [repr(v.type) for v in done.inputs] == ["float32[batch, 4]", "float32[4]", "float32[4, 2]"]


def test_unknown_rank():
    graph = parse_graph("graph g(%x: float32[...]) -> (%y) {\n %y = Relu(%x)\n}")
    assert repr(specialize(graph, {"x": (2, 5)}).outputs[0].type) == "float32[2, 5]"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (3, 4), "y": (5,)}, "input 'y': the size 'n' is 5 here and 4 in input 'x'"),
        ({"z": (4, 3)}, "input 'z' .* its size 1 is 2, not 3"),
        ({"x": (4,)}, "a shape of 1 sizes does not fit it"),
        ({"q": (4,)}, "there is no input 'q'; the inputs are x, y, z"),
        ({"y": (-1,)}, "input 'y': a shape is made of sizes from 0 up"),
        ({"y": ("n",)}, "input 'y': a shape is made of sizes from 0 up"),
    ],
)
def test_conflicts_name_the_input_and_the_size(shapes, message):
    with pytest.raises(GraphError, match=message):
        specialize(parse_graph(TEXT), shapes)
