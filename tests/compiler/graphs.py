"""Small graphs for the tests of the executor, and the check that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft.ops  # noqa: F401
from weft.compiler import Module, compile
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, TensorType, Value
from weft.models.builder import Builder


def convnet() -> Graph:
    """Two convolutions with a residual, pooling, and a classifier."""
    b = Builder("convnet")
    x = b.relu(b.conv(b.input("image", (2, 3, 16, 16)), 3, 16, 3, 1, 1, bias=True))
    y = b.batch_norm(b.conv(x, 16, 16, 3, 1, 1), 16)
    x = b.relu(b.node("Add", x, y))
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.relu(b.conv(x, 16, 16, 3, 2, 1, groups=16, bias=True))
    x = b.node("Flatten", b.node("GlobalAveragePool", x), axis=1)
    return b.finish(b.node("Softmax", b.linear(x, 16, 10), axis=-1))


def mlp(batch: Any = 4) -> Graph:
    """Three dense layers; the batch may be symbolic."""
    b = Builder("mlp")
    x: Value = Value("x", TensorType("float32", (batch, 20)))
    b.inputs.append(x)
    for inputs, outputs in ((20, 33), (33, 16)):
        x = b.relu(b.dense(x, inputs, outputs))
    return b.finish(b.dense(x, 16, 7))


def attention() -> Graph:
    """One layer of an encoder: products of activations, softmax, layer norm."""
    from weft.models.language import _encoder_layer

    b = Builder("attention")
    x = b.input("x", (1, 10, 32))
    return b.finish(_encoder_layer(b, x, (1, 10, 32), 4))


def recurrent() -> Graph:
    """An LSTM over six steps."""
    b = Builder("recurrent")
    x = b.input("x", (6, 2, 5))
    weight, recurrence = b.normal(1, 32, 5, scale=0.4), b.normal(1, 32, 8, scale=0.4)
    y = b.node("LSTM", x, weight, recurrence, b.normal(1, 64, scale=0.1), hidden_size=8)
    return b.finish(b.node("Squeeze", y, b.ints(1)))


def random_inputs(graph: Graph, seed: int = 0, sizes: dict[str, int] | None = None) -> list[Any]:
    """Arrays for the inputs of a graph."""
    random = np.random.default_rng(seed)
    found = []
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else (sizes or {})[str(d)] for d in value.tensor.dims]
        if value.tensor.dtype.startswith("int"):
            found.append(random.integers(0, 5, shape).astype(value.tensor.numpy))
        else:
            found.append(random.standard_normal(shape).astype(value.tensor.numpy))
    return found


def check(graph: Graph, arrays: Sequence[Any], module: Module | None = None, tolerance: float = 2e-5) -> Module:
    """The compiled graph gives what the numpy meaning gives."""
    module = module or compile(graph)
    made = module.run(None, dict(zip([v.name for v in graph.inputs], arrays)))
    for have, want in zip(made, interpret_graph(graph, list(arrays)), strict=True):
        assert have.dtype == want.dtype and have.shape == want.shape
        scale = max(1.0, float(np.abs(want.astype(np.float64)).max())) if want.size else 1.0
        np.testing.assert_allclose(
            have.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance * scale
        )
    return module
