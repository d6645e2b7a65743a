"""Rules about windows and means: each gives the same numbers, and applies only where it may."""

import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.frontends.emit import Emitter
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, TensorType, Value
from weft.graph.passes.normalize import normalize

draw = np.random.default_rng(0)
W = draw.normal(size=(4, 3, 3, 3)).astype("f")
V = draw.normal(size=(5,)).astype("f")


def made(shape, build):
    c = Emitter()
    c.label = "n"
    x = Value("x", TensorType("float32", shape))
    return Graph("g", [x], [build(c, x)], c.nodes, c.constants)


def padded(c, x, amount, fill=0.0):
    return c.op("Pad", x, [0, 0, amount, amount, 0, 0, amount, amount], np.float32(fill))


def centred(c, x, w, b):
    mean = c.op("ReduceMean", x, [-1], keepdims=1)
    apart = c.op("Sub", x, mean)
    variance = c.op("ReduceMean", c.op("Mul", apart, apart), [-1], keepdims=1)
    r = c.op("Mul", c.op("Reciprocal", c.op("Sqrt", c.op("Add", variance, np.float32(1e-3)))), w)
    return c.op("Add", c.op("Mul", x, r), c.op("Add", c.op("Mul", c.op("Neg", mean), r), b))


POOL = {"kernel_shape": [3, 3], "strides": [2, 2]}
IMAGE, SUMS = (1, 3, 8, 8), (2, 3, 5)
CASES = {
    "pad into a convolution": (
        IMAGE, lambda c, x: c.op("Conv", padded(c, x, 1), W, kernel_shape=[3, 3], pads=[1, 0, 0, 1]), "Conv"),
    "not a pad of ones": (IMAGE, lambda c, x: c.op("Conv", padded(c, x, 1, 1.0), W, kernel_shape=[3, 3]), "Pad Conv"),
    "pad into a maximum": (IMAGE, lambda c, x: c.op("MaxPool", padded(c, c.op("Relu", x), 1), **POOL), "Relu MaxPool"),
    "not where numbers are negative": (
        IMAGE, lambda c, x: c.op("MaxPool", padded(c, c.op("Neg", x), 1), **POOL), "Neg Pad MaxPool"),
    "not where windows would be empty": (
        IMAGE, lambda c, x: c.op("MaxPool", padded(c, c.op("Relu", x), 3), **POOL), "Relu Pad MaxPool"),
    "mostly padding": (
        (1, 3, 1, 1), lambda c, x: c.op("Conv", x, W, V[:4], kernel_shape=[3, 3], pads=[2] * 4), "ConvTranspose"),
    "little padding": (IMAGE, lambda c, x: c.op("Conv", x, W, kernel_shape=[3, 3], pads=[2] * 4), "Conv"),
    "mean of a sum": (
        SUMS, lambda c, x: c.op("Div", c.op("ReduceSum", x, [1], keepdims=0), np.float32(3)), "ReduceMean"),
    "another number": (
        SUMS, lambda c, x: c.op("Div", c.op("ReduceSum", x, [1], keepdims=0), np.float32(5)), "ReduceSum Div"),
    "mean of pixels": (
        IMAGE, lambda c, x: c.op("ReduceMean", c.op("Neg", x), [2, 3], keepdims=0), "Neg GlobalAveragePool Reshape"),
    "lean constant": (SUMS, lambda c, x: c.op("Add", x, V.reshape(1, 1, 5)), "Add"),
    "not a constant of higher rank": ((5,), lambda c, x: c.op("Add", x, V.reshape(1, 1, 5)), "Add"),
    "one element": (SUMS, lambda c, x: c.reshape(c.slice(x, 1, 2, 3), [2, 5]), "Gather"),
    "limits": ((2, 5), lambda c, x: c.op("Min", c.op("Max", x, np.float32(0)), np.float32(6)), "Clip"),
    "normalisation written out": (SUMS, lambda c, x: centred(c, x, V, V), "LayerNormalization"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rules(name):
    shape, build, wanted = CASES[name]
    graph = made(shape, build)
    after = normalize(graph)
    assert " ".join(node.op for node in after.nodes) == wanted
    x = np.random.default_rng(1).normal(size=shape).astype("f")
    np.testing.assert_allclose(interpret_graph(after, [x])[0], interpret_graph(graph, [x])[0], 2e-5, 2e-5)


def test_what_a_layer_does_anyway_is_not_said():
    said = {"auto_pad": "NOTSET", "pads": [1, 1, 1, 1], "group": 1}
    graph = normalize(made((1, 3, 8, 8), lambda c, x: c.op("Conv", x, W, **said)))
    assert "auto_pad" not in graph.nodes[0].attributes and graph.nodes[0].attributes["pads"] == [1, 1, 1, 1]
    same = normalize(made((1, 3, 8, 8), lambda c, x: c.op("Conv", x, W, auto_pad="SAME_UPPER")))
    assert same.nodes[0].attributes["auto_pad"] == "SAME_UPPER" or "pads" in same.nodes[0].attributes
