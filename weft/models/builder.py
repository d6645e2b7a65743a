"""Builds a Graph one node after another, with random weights.

    b = Builder("tiny", seed=0)
    x = b.input("image", "float32", (1, 3, 8, 8))
    y = b.relu(b.batch_norm(b.conv(x, 3, 16, kernel=3, padding=1)))
    graph = b.build({"logits": b.linear(b.pooled(y), 16, 10)})

A layer draws its weights in the order in which it uses them: weight, bias; and for a normalisation scale, bias, mean,
variance. Weights of a layer keep the size of what goes through it (He's rule), so activations stay finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import weft.ops  # noqa: F401 — fills the table of operators, which inference reads
from weft.graph.ir import Array, Graph, Node, TensorType, Value, dtype_name
from weft.graph.passes.infer import infer


class Builder:
    """A graph in the making. Every method that adds a layer takes and returns Values."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.random = np.random.default_rng(seed)
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self._counts: dict[str, int] = {}

    # What everything else is made of.

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> Value:
        """A new input of the graph."""
        made = Value(name, TensorType(dtype, shape))
        self.inputs.append(made)
        return made

    def constant(self, name: str, array: Array) -> Value:
        """A value that is part of the model; its name is made unique."""
        made = Value(self._unique(name), TensorType(dtype_name(array.dtype), array.shape))
        self.constants[made] = array
        return made

    def integers(self, name: str, *numbers: int) -> Value:
        """A vector of whole numbers, such as axes and shapes."""
        return self.constant(name, np.array(numbers, "int64"))

    def scalar(self, name: str, number: float) -> Value:
        """A number."""
        return self.constant(name, np.array(number, "float32"))

    def node(self, op: str, *inputs: Value | None, **attributes: Any) -> Value:
        """A node with one output."""
        return self.split_node(op, 1, *inputs, **attributes)[0]

    def split_node(self, op: str, count: int, *inputs: Value | None, **attributes: Any) -> list[Value]:
        """A node with several outputs."""
        name = self._unique(op.lower())
        made = [Value(name if count == 1 else f"{name}.{i}") for i in range(count)]
        self.nodes.append(Node(op, inputs, made, attributes, name=name, origin=f"weft.models.{self.name}"))
        return made

    def build(self, outputs: Mapping[str, Value]) -> Graph:
        """The finished graph, typed. The outputs get the names that they are given here."""
        for name, value in outputs.items():
            value.name = name
        return infer(Graph(self.name, self.inputs, list(outputs.values()), self.nodes, self.constants))

    def _unique(self, name: str) -> str:
        count = self._counts[name] = self._counts.get(name, -1) + 1
        return f"{name}_{count}"

    def normal(self, name: str, shape: Sequence[int], deviation: float) -> Value:
        """A constant of normally distributed numbers."""
        return self.constant(name, self.random.standard_normal(tuple(shape), "float32") * np.float32(deviation))

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> Value:
        """A constant of evenly distributed numbers."""
        drawn = self.random.random(tuple(shape), "float32")
        return self.constant(name, np.float32(low) + drawn * np.float32(high - low))

    # Layers.

    def conv(
        self,
        x: Value,
        channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> Value:
        """A convolution in two dimensions."""
        fan_in = channels // groups * kernel * kernel
        weight = self.normal("weight", (out_channels, channels // groups, kernel, kernel), math.sqrt(2 / fan_in))
        inputs = [x, weight] + ([self.normal("bias", (out_channels,), 0.1)] if bias else [])
        return self.node("Conv", *inputs, **_window(kernel, stride, padding), group=groups)

    def conv_transpose(
        self, x: Value, channels: int, out_channels: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> Value:
        """A transposed convolution in two dimensions."""
        reached = channels * max(1.0, (kernel / stride) ** 2 if stride > 1 else 1.0)
        weight = self.normal("weight", (channels, out_channels, kernel, kernel), math.sqrt(2 / reached))
        return self.node("ConvTranspose", x, weight, **_window(kernel, stride, padding), group=1)

    def batch_norm(self, x: Value, channels: int, strength: float = 1.0) -> Value:
        """A batch normalisation with statistics as after training; its scale lies around `strength`."""
        scale = self.uniform("scale", (channels,), 0.8 * strength, 1.2 * strength)
        bias = self.normal("bias", (channels,), 0.1)
        mean = self.normal("mean", (channels,), 0.1)
        variance = self.uniform("variance", (channels,), 0.5, 1.5)
        return self.node("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-5)

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        return self.node("Relu", x)

    def relu6(self, x: Value) -> Value:
        """x between 0 and 6."""
        return self.node("Clip", x, self.scalar("low", 0.0), self.scalar("high", 6.0))

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""
        return self.node("Add", x, y)

    def max_pool(self, x: Value, kernel: int, stride: int, padding: int) -> Value:
        """The greatest of each window."""
        return self.node("MaxPool", x, **_window(kernel, stride, padding))

    def pooled(self, x: Value) -> Value:
        """The mean of every channel: [batch, channels, y, x] to [batch, channels]."""
        return self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)

    def linear(self, x: Value, features: int, out_features: int) -> Value:
        """x Wᵀ + b, for x of two dimensions."""
        weight = self.normal("weight", (out_features, features), math.sqrt(1 / features))
        bias = self.normal("bias", (out_features,), 0.1)
        return self.node("Gemm", x, weight, bias, transB=1)

    def dense(self, x: Value, features: int, out_features: int) -> Value:
        """x W + b over the last dimension, for x of any number of dimensions."""
        weight = self.normal("weight", (features, out_features), math.sqrt(1 / features))
        bias = self.normal("bias", (out_features,), 0.02)
        return self.add(self.node("MatMul", x, weight), bias)

    def layer_norm(self, x: Value, features: int) -> Value:
        """A layer normalisation over the last dimension."""
        scale = self.uniform("scale", (features,), 0.8, 1.2)
        return self.node("LayerNormalization", x, scale, self.normal("bias", (features,), 0.02), axis=-1, epsilon=1e-5)

    def lstm(self, x: Value, features: int, hidden: int) -> Value:
        """The outputs of an LSTM layer: [steps, batch, features] to [steps, batch, hidden]."""
        weight = self.normal("weight", (1, 4 * hidden, features), math.sqrt(1 / features))
        recurrence = self.normal("recurrence", (1, 4 * hidden, hidden), math.sqrt(1 / hidden))
        bias = self.normal("bias", (1, 8 * hidden), 0.05)
        every = self.node("LSTM", x, weight, recurrence, bias, hidden_size=hidden)
        return self.node("Squeeze", every, self.integers("axes", 1))

    def transpose(self, x: Value, *order: int) -> Value:
        """The dimensions in another order."""
        return self.node("Transpose", x, perm=list(order))

    def reshape(self, x: Value, *shape: int) -> Value:
        """The same elements in another shape."""
        return self.node("Reshape", x, self.integers("shape", *shape))


def _window(kernel: int, stride: int, padding: int) -> dict[str, list[int]]:
    return {
        "kernel_shape": [kernel, kernel],
        "strides": [stride, stride],
        "pads": [padding] * 4,
        "dilations": [1, 1],
    }
