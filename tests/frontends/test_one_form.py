"""One network from several front ends is one graph after the passes: the same hash, so the same kernels."""

import numpy as np
import pytest

from tests.frontends import networks
from weft.compiler.passes import optimize
from weft.graph.interpreter import interpret_graph
from weft.graph.structural import parting, structure_key

DOORS = ("torch", "onnx", "jax", "keras")
NEEDS = {"torch": ["torch"], "onnx": ["torch", "onnx"], "jax": ["jax"], "keras": ["jax", "keras"]}
ALL = {"dynamo": ["torch", "onnx", "onnxscript"], **NEEDS}


def graph(door, name):
    for package in ALL[door]:
        pytest.importorskip(package)
    return networks.graph(door, name)


def check(name, doors):
    made = {door: optimize(graph(door, name), {}, {}) for door in doors}
    first = made[doors[0]]
    for door in doors[1:]:
        assert structure_key(made[door]) == structure_key(first), f"{name} by {door}: {parting(first, made[door])}"
    return made


@pytest.mark.parametrize("name", ["lstm", pytest.param("dqn", marks=pytest.mark.slow), "bert_layer"])
def test_front_ends_give_one_graph(name):
    check(name, DOORS)


@pytest.mark.slow
@pytest.mark.parametrize("name", networks.NAMES)
@pytest.mark.parametrize("door", ["onnx", "dynamo", "jax", "keras"])
def test_every_front_end_gives_the_graph_of_torch(name, door):
    check(name, ("torch", door))


@pytest.mark.parametrize("name", ["lstm", pytest.param("bert_layer", marks=pytest.mark.slow),
                                  pytest.param("dcgan", marks=pytest.mark.slow)])  # fmt: skip
def test_the_normal_form_means_what_the_network_does(name):
    pytest.importorskip("jax")
    x = networks.example(name)
    function = networks.jax_network(name)
    found = interpret_graph(optimize(networks.graph("jax", name), {}, {}), [x])[0]
    np.testing.assert_allclose(found, function(x), 1e-4, 1e-5)
