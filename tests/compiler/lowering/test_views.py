"""Reshapes that the caller or the host sees: what they reshape is written there, and copied where it cannot be."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.compiler.graphs import check, random_inputs
from weft.compiler.lowering.items import View
from weft.models.builder import Builder


def labels(graph):
    """The kernels of a graph by name."""
    module = weft.compile(graph, threads=1)
    module(*random_inputs(graph))
    lowered = module.specializations[0].lowered
    return [item.kernel.label for item in lowered.items if not isinstance(item, View)]


def built(make, shape=(4, 6)):
    """A graph with one input; `make` gives its outputs."""
    b = Builder("views")
    made = make(b, b.input("x", shape))
    return b.finish(*made) if isinstance(made, tuple) else b.finish(made)


def reshape(b, value, *shape):
    return b.node("Reshape", value, b.ints(*shape))


def test_the_last_reshape_costs_no_kernel():
    graph = built(lambda b, x: reshape(b, b.node("Transpose", x, perm=[1, 0]), 2, 12))
    check(graph, random_inputs(graph))
    assert labels(graph) == ["transpose"]


def test_a_chain_of_reshapes_is_one_place():
    def make(b, x):
        turned = b.node("Transpose", x, perm=[1, 0])
        return b.node("Unsqueeze", reshape(b, turned, 8, 3), b.ints(0))

    graph = built(make)
    check(graph, random_inputs(graph))
    assert labels(graph) == ["transpose"]


def test_a_value_that_others_read_is_read_in_the_output():
    def make(b, x):
        turned = b.node("Transpose", x, perm=[1, 0])
        return reshape(b, turned, 24), b.node("ReduceSum", turned, b.ints(1), keepdims=0)

    graph = built(make)
    check(graph, random_inputs(graph))


@pytest.mark.parametrize("twice", [False, True])
def test_outputs_that_would_share_their_place_are_copied(twice):
    def make(b, x):
        turned = b.node("Transpose", x, perm=[1, 0])
        return reshape(b, turned, 24), reshape(b, turned, 3, 8) if twice else turned

    graph = built(make)
    check(graph, random_inputs(graph))
    module = weft.compile(graph, threads=1)
    first, second = module(*random_inputs(graph))
    assert not np.shares_memory(first, second)
    assert len(labels(graph)) == 2


def test_a_reshaped_input_is_copied():
    graph = built(lambda b, x: reshape(b, x, 3, 8))
    (x,) = random_inputs(graph)
    made = weft.compile(graph, threads=1)(x)
    np.testing.assert_array_equal(made, x.reshape(3, 8))
    assert not np.shares_memory(made, x)
