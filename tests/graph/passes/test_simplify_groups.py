"""Normalization of groups of channels, written with InstanceNormalization, becomes one operator where it is that."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graphs import check, random_inputs
from weft.graph.passes.simplify import simplify
from weft.models.builder import Builder


def written_out(shape=(2, 12, 5, 7), groups=3, scale=None, gain=1.0, first=2, weight_shape=(12, 1, 1)):
    """The graph; arguments that are not the plain ones make it something else."""
    b = Builder("groups")
    x = b.input("x", shape)
    sides = b.constant(np.full(groups, gain, "float32")), b.constant(np.zeros(groups, "float32"))
    reshaped = b.node("Reshape", x, b.ints(first, groups, -1))
    norm = b.node("InstanceNormalization", reshaped, *sides, epsilon=1e-3)
    back = b.node("Reshape", norm, b.ints(*shape))
    weight = b.normal(*weight_shape) if scale is None else scale(b)
    return b.finish(b.node("Add", b.node("Mul", weight, back), b.normal(12, 1, 1)))


def operators(graph):
    return [node.op for node in simplify(graph).nodes]


@pytest.mark.parametrize("weight_shape", [(12, 1, 1), (1, 12, 1, 1)])
def test_it_becomes_one_operator(weight_shape):
    graph = written_out(weight_shape=weight_shape)
    assert operators(graph) == ["GroupNormalization"]
    check(graph, random_inputs(graph), tolerance=1e-4)
    check(simplify(graph), random_inputs(graph), tolerance=1e-4)


@pytest.mark.parametrize(
    "graph",
    [
        written_out(gain=2.0),
        written_out(groups=6, first=1),
        written_out(weight_shape=(1,)),
        written_out(weight_shape=(7,)),
        written_out(weight_shape=(2, 12, 1, 1)),
    ],
)
def test_what_is_something_else_stays(graph):
    assert "InstanceNormalization" in operators(graph)
    check(graph, random_inputs(graph), tolerance=1e-4)
