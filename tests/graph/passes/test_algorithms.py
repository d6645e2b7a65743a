"""The pass that puts other algorithms in the place of operators: what it asks, what it keeps to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft.ops  # noqa: F401
from tests.graph.strategies import same_meaning
from weft.core.model import SMALL_GROWTH
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Array, Graph, Node
from weft.graph.passes.algorithms import Alternative, choose_algorithms
from weft.models.builder import Builder
from weft.ops.convolution_winograd import DOMAIN, NAME, direct_weight, transform_weight


def two_convolutions() -> Graph:
    b = Builder("two")
    x = b.relu(b.conv(b.input("x", (1, 4, 9, 9)), 4, 8, 3, 1, 1, bias=True))
    return b.finish(b.conv(x, 8, 4, 3, 1, 1))


def winograd(node: Node, weight: Array, saved: float = 1.0, extra: int = 100, tile: int = 2) -> Alternative:
    attributes = {"tile": tile, "pads": list(node.attributes["pads"])}
    weights = lambda: (transform_weight(weight, tile), direct_weight(weight))  # noqa: E731
    return Alternative(NAME, DOMAIN, attributes, weights, saved, extra)


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_a_proposal_takes_the_place_of_its_node():
    graph = two_convolutions()
    made = choose_algorithms(graph, lambda node, weight: [winograd(node, weight)])
    assert operators(made) == [NAME, "Relu", NAME]
    assert [n.name for n in made.nodes] == [n.name for n in graph.nodes]
    assert len(made.constants) == len(graph.constants) + 2, "two in the place of each; what nothing reads is gone"
    x = np.random.default_rng(0).standard_normal((1, 4, 9, 9)).astype(np.float32)
    np.testing.assert_allclose(interpret_graph(made, [x])[0], interpret_graph(graph, [x])[0], atol=1e-4)


def test_nothing_proposed_is_the_same_graph():
    graph = two_convolutions()
    assert choose_algorithms(graph, lambda node, weight: []) is graph


def test_a_weight_that_is_no_constant_is_not_asked_about():
    b = Builder("free")
    graph = b.finish(b.node("Conv", b.input("x", (1, 4, 9, 9)), b.input("w", (4, 4, 3, 3)), pads=[1, 1, 1, 1]))
    asked = []
    assert choose_algorithms(graph, lambda node, weight: asked.append(node) or []) is graph
    assert not asked


@pytest.mark.parametrize("size,gaps", [((12, 8), (2, 2)), ((11, 9), (2, 3)), ((5, 5), (4, 1))])
def test_a_window_with_gaps_is_none_over_phases(size, gaps):
    b = Builder("gaps")
    more = {"dilations": [*gaps], "pads": [*gaps, *gaps]}
    graph = b.finish(b.node("Conv", b.input("x", (2, 4, *size)), b.normal(8, 4, 3, 3), b.normal(8), **more))

    def propose(node: Node, weight: Array) -> list[Alternative]:
        plain = node.replace(attributes={"pads": [1, 1, 1, 1]})
        return [replace(winograd(plain, weight), gaps=gaps)]

    made = choose_algorithms(graph, propose)
    (there,) = [node for node in made.nodes if node.op == NAME]
    assert there.inputs[0].tensor.static[0] == 2 * gaps[0] * gaps[1]
    same_meaning(graph, made)


def test_bytes_are_spent_where_they_save_most():
    """Room for one of two: the second convolution saves more for its bytes."""
    graph = two_convolutions()
    saved = {"conv_1": 1.0, "conv_3": 2.0}
    extra = SMALL_GROWTH * 2 // 3
    made = choose_algorithms(graph, lambda node, weight: [winograd(node, weight, saved[node.name], extra)])
    assert operators(made) == ["Conv", "Relu", NAME]


def test_the_next_alternative_where_the_first_is_too_large():
    graph = two_convolutions()
    made = choose_algorithms(
        graph, lambda node, weight: [winograd(node, weight, 2.0, 2 * SMALL_GROWTH, 4), winograd(node, weight)]
    )
    assert [n.attributes["tile"] for n in made.nodes if n.op == NAME] == [2, 2]
