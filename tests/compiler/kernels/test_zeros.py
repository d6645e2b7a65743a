"""Products of a row that a Relu made: zeros are passed over where the weights are finite; the answer stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graphs import check
from weft.compiler import compile
from weft.compiler.kernels.zeros import often_zero, skippable
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.targets.registry import find_target

VECTORS = pytest.mark.skipif(find_target("native").vector_bytes < 16, reason="the space needs vectors")


def dense(weight: np.ndarray, batch: int = 1, view: str = "Flatten", relu: str = "Relu") -> Graph:
    """x of four dimensions, a Relu, a row, and its product with a weight."""
    b = Builder("dense")
    x = b.input("x", (batch, weight.shape[0] // 4, 2, 2))
    row = b.node(relu, x)
    row = b.node(view, row) if view == "Flatten" else b.node(view, row, b.ints(batch, -1))
    return b.finish(b.node("Relu", b.add(b.node("MatMul", row, b.constant(weight)), b.normal(weight.shape[1]))))


def weights(k: int, n: int) -> np.ndarray:
    return (np.random.default_rng(k).standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)


def skips(module) -> bool:
    return any("skip_zeros" in repr(one.kernel.scheduled) for one in module.specializations[0].launches)


@pytest.mark.thin(3)
@VECTORS
@pytest.mark.parametrize("n", [512, 700, 1001])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_rows_with_zeros(n, share):
    graph = dense(weights(2000, n), view="Flatten" if n % 2 else "Reshape")
    random = np.random.default_rng(n)
    x = np.abs(random.standard_normal((1, 500, 2, 2))).astype(np.float32)
    x[random.random(x.shape) >= share] *= -1
    module = check(graph, [x])
    assert skips(module)
    for threads in (1, 2):
        other = compile(graph, threads=threads)
        for _ in range(2):
            np.testing.assert_array_equal(other(x), module(x))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_meet_every_zero(bad):
    weight = weights(2000, 600)
    weight[7, 9] = bad
    graph = dense(weight)
    x = -np.ones((1, 500, 2, 2), np.float32)
    module = compile(graph)
    assert not skips(module)
    want = interpret_graph(graph, [x])[0]
    made = module(x)
    assert np.isnan(want[0, 9])
    np.testing.assert_array_equal(np.isnan(made), np.isnan(want))


def test_others_stay_as_they_are():
    for graph in (dense(weights(2000, 600), relu="Tanh"), dense(weights(2000, 600), batch=4), dense(weights(40, 8))):
        assert not skips(compile(graph))


def test_which_values():
    graph = dense(weights(2000, 60))
    zeros = often_zero(graph)
    assert {node.op for node in graph.nodes if node.outputs[0] in zeros} == {"Relu", "Flatten"}
    product = [node for node in graph.nodes if node.op == "MatMul"]
    assert skippable(product, zeros, graph.constants) == [product[0].inputs[0]]
    assert not skippable(product, zeros, {})
    for other in (dense(weights(40, 8)), dense(weights(2000, 60), batch=4)):  # small weights, several rows
        assert not skippable([n for n in other.nodes if n.op == "MatMul"], often_zero(other), other.constants)
    assert not skippable([n for n in graph.nodes if n.op == "Flatten"], zeros, graph.constants)


def recurrence(op: str, gates: int, initial: bool, bad: float | None = None, steps: int = 4, batch: int = 1) -> Graph:
    """A recurrence over a few steps, from a given state or from zeros."""
    b = Builder("steps")
    hidden, features = 40, 12
    x = b.input("x", (steps, batch, features))
    recurrent = b.normal(1, gates * hidden, hidden, scale=0.2)
    if bad is not None:
        b.constants[recurrent][0, 5, 3] = bad
    inputs = [x, b.normal(1, gates * hidden, features, scale=0.2), recurrent]
    if initial:
        inputs += [None, None, b.input("h", (1, batch, hidden))]
    made = b.node(op, *inputs, hidden_size=hidden, outputs=2)
    return Graph("steps", list(b.inputs), list(made), b.nodes, b.constants)


@pytest.mark.thin(3)
@VECTORS
@pytest.mark.parametrize("op, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("initial, bad", [(False, None), (True, None), (False, np.inf), (False, np.nan)])
@pytest.mark.parametrize("steps, batch", [(4, 1), (1, 1), (3, 2)])
def test_the_first_step_from_zeros(op, gates, initial, bad, steps, batch):
    """From a state of zeros there is nothing to multiply, unless a weight makes something of 0."""
    graph = recurrence(op, gates, initial, bad, steps, batch)
    module = compile(graph)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(v.tensor.static).astype(np.float32) for v in graph.inputs]
    for have, want in zip(module(*arrays), interpret_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-5)
    text = "".join(repr(one.kernel.scheduled) for one in module.specializations[0].launches)
    if op == "LSTM" and steps > 1:
        assert ("skip_first" in text) == (not initial and bad is None)
    elif initial or bad is not None:
        assert "skip_first" not in text
