"""A small builder of graphs: layers in, nodes of ONNX operators out, with weights from a seeded generator.

    b = Builder("tiny", seed=0)
    x = b.input("image", (1, 3, 8, 8))
    x = b.relu(b.batch_norm(b.conv(x, 3, 16, kernel=3, pad=1), 16))
    graph = b.finish(b.linear(b.pooled(x), 16, 10), names=["logits"])

A layer draws its weights in the order in which it uses them: weight, bias; and for a normalisation scale, shift, mean,
variance. Weights keep the size of what goes through them (He's rule), so that activations stay in range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft.ops  # noqa: F401  (inference reads the table of operators)
from weft.graph.ir import Array, Dim, Graph, Node, TensorType, Value, dtype_name
from weft.graph.passes.infer import infer


class Builder:
    """Collects nodes and constants. The same seed gives the same weights."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.random = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self.inputs: list[Value] = []
        self._count = 0

    def input(self, name: str, shape: Sequence[Dim], dtype: str = "float32") -> Value:
        """An input of the model."""
        value = Value(name, TensorType(dtype, shape))
        self.inputs.append(value)
        return value

    def constant(self, array: Any, name: str = "constant") -> Value:
        """A weight, or an operand such as axes."""
        made = np.asarray(array)
        value = Value(f"{name}_{len(self.constants)}", TensorType(dtype_name(made.dtype), made.shape))
        self.constants[value] = made
        return value

    def normal(self, *shape: int, scale: float = 1.0, name: str = "weight") -> Value:
        """Random weights."""
        return self.constant(self.random.standard_normal(shape, np.float32) * np.float32(scale), name)

    def node(self, op: str, *inputs: Value | None, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """A node; its output, or a list of its outputs."""
        self._count += 1
        label = f"{op.lower()}_{self._count}"
        made = [Value(label if i == 0 else f"{label}_{i}") for i in range(outputs)]
        self.nodes.append(Node(op, inputs, made, attributes, label, f"{self.name}.{label}", domain))
        return made[0] if outputs == 1 else made

    def conv(
        self, x: Value, inputs: int, outputs: int, kernel: int, stride: int = 1, pad: int = 0, **more: Any
    ) -> Value:
        """A two-dimensional convolution; `groups` and `bias` may be given."""
        groups, bias = int(more.get("groups", 1)), bool(more.get("bias", False))
        scale = (2.0 / (inputs // groups * kernel * kernel)) ** 0.5
        weight = self.normal(outputs, inputs // groups, kernel, kernel, scale=scale)
        operands = [x, weight] + ([self.normal(outputs, scale=0.1, name="bias")] if bias else [])
        made: Value = self.node(
            "Conv", *operands, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups
        )
        return made

    def batch_norm(self, x: Value, channels: int, strength: float = 1.0) -> Value:
        """Batch normalisation with statistics as after training; its scale lies around `strength`."""
        drawn = self.random.uniform(0.8 * strength, 1.2 * strength, channels)
        scale = self.constant(drawn.astype(np.float32), "scale")
        shift = self.normal(channels, scale=0.1, name="shift")
        mean = self.normal(channels, scale=0.1, name="mean")
        variance = self.constant(self.random.uniform(0.5, 1.5, channels).astype(np.float32), "variance")
        made: Value = self.node("BatchNormalization", x, scale, shift, mean, variance, epsilon=1e-5)
        return made

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        made: Value = self.node("Relu", x)
        return made

    def relu6(self, x: Value) -> Value:
        """x between 0 and 6."""
        low, high = self.constant(np.float32(0), "low"), self.constant(np.float32(6), "high")
        made: Value = self.node("Clip", x, low, high)
        return made

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""
        made: Value = self.node("Add", x, y)
        return made

    def pooled(self, x: Value) -> Value:
        """The mean of every channel: [batch, channels, y, x] to [batch, channels]."""
        made: Value = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        return made

    def linear(self, x: Value, inputs: int, outputs: int) -> Value:
        """x W^T + b for a matrix x."""
        weight = self.normal(outputs, inputs, scale=inputs**-0.5)
        made: Value = self.node("Gemm", x, weight, self.normal(outputs, scale=0.1, name="bias"), transB=1)
        return made

    def dense(self, x: Value, inputs: int, outputs: int) -> Value:
        """x W + b for x of any rank."""
        product = self.node("MatMul", x, self.normal(inputs, outputs, scale=inputs**-0.5))
        return self.add(product, self.normal(outputs, scale=0.1, name="bias"))

    def layer_norm(self, x: Value, width: int) -> Value:
        """Layer normalisation over the last axis."""
        scale = self.constant(self.random.uniform(0.5, 1.5, width).astype(np.float32), "scale")
        made: Value = self.node(
            "LayerNormalization", x, scale, self.normal(width, scale=0.1, name="shift"), axis=-1, epsilon=1e-5
        )
        return made

    def ints(self, *numbers: int) -> Value:
        """A vector of int64."""
        return self.constant(np.array(numbers, np.int64), "numbers")

    def finish(self, *outputs: Value, names: Sequence[str] = ()) -> Graph:
        """The graph, typed; its outputs may get names."""
        for value, name in zip(outputs, names):
            value.name = name
        return infer(Graph(self.name, self.inputs, outputs, self.nodes, self.constants))
