"""Quantization of a float graph: pairs of QuantizeLinear and DequantizeLinear around products with known weights.

    %y = Conv(%x, %w, %b)      ->      %q = DequantizeLinear(QuantizeLinear(%x, %s, %z), %s, %z)
                                       %y = Conv(%q, DequantizeLinear(%w8, %t), %b')

What comes out is an ordinary graph whose meaning says what quantization does; the compiler finds the integer products
in it (`graph/passes/quantized`). Weights get one symmetric scale for each output channel. The data is quantized where
it is made, before operators that only copy it; what a convolution reads is quantized for all of its readers, so that it
is stored once, in bytes; what a matrix product reads, only for products, since residual streams need more digits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from weft.core.errors import ArgumentError
from weft.graph.ir import NUMPY_TYPES, Array, Graph, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.support import Names
from weft.quantization.observers import FLOAT8, LIMITS, power_of_two

LAYERS = ("Conv", "MatMul", "Gemm")
"""The operators that are quantized."""


@dataclass(frozen=True)
class Layer:
    """One product to quantize: the value to quantize for it, and its weight."""

    node: Node
    data: Value
    weight: Value

    @property
    def name(self) -> str:
        """The node's name, or that of what it makes."""
        return self.node.name or self.node.outputs[0].name

    @property
    def axis(self) -> int:
        """The weight's axis of output channels."""
        return 0 if self.node.op == "Conv" or self.node.attributes.get("transB", 0) else 1

    @property
    def channel(self) -> int:
        """The data's axis of input channels."""
        return 1 if self.node.op == "Conv" else -1


def find_layers(graph: Graph, keep: Collection[str] = ()) -> list[Layer]:
    """The products with known weights, without those that `keep` names (by node, output or operator)."""
    producers = graph.producers()
    known = {name for n in graph.nodes for name in (n.name, n.op, *(v.name for v in n.outputs))}
    unknown = [name for name in keep if name not in known]
    if unknown:
        products = [n.name for n in graph.nodes if n.op in LAYERS][:8]
        raise ArgumentError(f"keep names {unknown}, which the model does not have; products are {products} …")
    found = []
    for node in graph.nodes:
        if node.domain or node.op not in LAYERS or {node.name, node.op, node.outputs[0].name} & set(keep):
            continue
        data, weight = node.inputs[0], node.inputs[1]
        if data is None or weight is None or not _is_weight(graph, node, weight):
            continue
        if isinstance(data.type, TensorType) and data.type.dtype == "float32" and data not in graph.constants:
            found.append(Layer(node, _origin(graph, data, producers), weight))
    return found


def _is_weight(graph: Graph, node: Node, weight: Value) -> bool:
    array = graph.constants.get(weight)
    if array is None or array.dtype != np.float32 or not array.size or not np.isfinite(array).all():
        return False
    return node.op == "Conv" or (array.ndim == 2 and not node.attributes.get("transA", 0))


def _origin(graph: Graph, value: Value, producers: Mapping[Value, Node]) -> Value:
    """Where the numbers of a value come from, before operators that only copy them."""
    while (node := producers.get(value)) is not None and has(node, "moves") and len(node.outputs) == 1:
        source = node.inputs[0]
        if source is None or source in graph.constants or not isinstance(source.type, TensorType):
            break
        value = source
    return value


def quantize_weight(
    array: Array, axis: int, per_channel: bool, powers: bool = False, kind: str = "int8"
) -> tuple[Array, Array]:
    """Signed bytes (or float8) and their scale, around 0: one for each output channel, or one; powers of two or any."""
    others = tuple(at for at in range(array.ndim) if at != axis)
    most = np.abs(array).max(axis=others if per_channel else None)
    top = 127 if kind == "int8" else LIMITS[kind][1]
    scale = np.asarray(np.where(most > 0, most / top, 1), np.float32)
    scale = power_of_two(scale) if powers else scale
    shape = [-1 if at == axis else 1 for at in range(array.ndim)]
    spread = scale.reshape(shape) if per_channel else scale
    if kind == "fp8":
        return np.clip(array / spread, -top, top).astype(NUMPY_TYPES[FLOAT8]), scale
    return np.clip(np.rint(array / spread), -127, 127).astype(np.int8), scale


class Insertion:
    """Makes the quantized graph."""

    def __init__(
        self,
        graph: Graph,
        layers: Collection[Layer],
        ranges: Mapping[Value, tuple[Array, Array]],
        powers: bool = False,
        kind: str = "int8",
    ) -> None:
        """With `powers` all scales are powers of two, and biases whole numbers of the scale of their sums.

        `kind` is what weights become, "int8" or "fp8".
        """
        self.graph, self.powers, self.kind = graph, powers, kind
        self.layers = {layer.node: layer for layer in layers}
        self.ranges = ranges
        self.names = Names(graph)
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.data: dict[Value, Value] = {}
        self.weights: dict[tuple[Value, int], tuple[Value, Array]] = {}
        self.shared = {layer.data for layer in layers if layer.node.op == "Conv"}

    def run(self, per_channel: bool = True, means: Mapping[Value, Array] | None = None) -> Graph:
        """The graph; with `means` of what layers read, biases make up for the mean error of the weights."""
        leads = self._leading_to_layers()
        for value in self.graph.inputs:
            self._after(value)
        for node in self.graph.nodes:
            layer = self.layers.get(node)
            if layer is None:
                inputs = [self._read(v, node in leads or v in self.shared) for v in node.inputs]
                self.nodes.append(node.replace(inputs=inputs))
            else:
                self.nodes.append(self._layer(layer, per_channel, None if means is None else means.get(layer.data)))
            for value in node.outputs:
                self._after(value)
        used = {v for node in self.nodes for v in node.inputs} | set(self.graph.outputs)
        inner = any(node.graphs for node in self.nodes)
        constants = {v: a for v, a in self.constants.items() if inner or v in used}
        return Graph(self.graph.name, self.graph.inputs, self.graph.outputs, self.nodes, constants)

    def _leading_to_layers(self) -> set[Node]:
        """The copying nodes between what is quantized and the layers that read it."""
        producers = self.graph.producers()
        found: set[Node] = set()
        for layer in self.layers.values():
            value = layer.node.inputs[0]
            while value is not None and value is not layer.data:
                node = producers[value]
                found.add(node)
                value = node.inputs[0]
        return found

    def _read(self, value: Value | None, quantized: bool) -> Value | None:
        return self.data.get(value, value) if value is not None and quantized else value

    def _layer(self, layer: Layer, per_channel: bool, mean: Array | None) -> Node:
        inputs = [*layer.node.inputs, None][:3]
        inputs[0] = self._read(inputs[0], True)
        inputs[1], error = self._weight(layer, per_channel)
        if mean is not None:
            inputs[2] = self._corrected(layer, error, mean)
        if self.powers:
            inputs[2] = self._whole(layer, inputs[2], per_channel)
        return layer.node.replace(inputs=inputs if inputs[2] is not None else inputs[:2])

    def _constant(self, array: Array, name: str) -> Value:
        value = Value(self.names.fresh(name), TensorType(str(array.dtype), array.shape))
        self.constants[value] = array
        return value

    def _made(self, op: str, inputs: list[Value | None], name: str, dtype: str, like: Value, **more: int) -> Value:
        output = Value(self.names.fresh(name), TensorType(dtype, like.tensor.shape))
        self.nodes.append(Node(op, inputs, [output], more, output.name, "quantize"))
        return output

    def _after(self, value: Value) -> None:
        """Quantizes a value once it is made, if it is to be."""
        if value not in self.ranges:
            return
        scale, zero = self.ranges[value]
        pair = self._constant(scale, f"{value.name}_scale"), self._constant(zero, f"{value.name}_zero")
        small = self._made("QuantizeLinear", [value, *pair], f"{value.name}_quantized", str(zero.dtype), value)
        self.data[value] = self._made("DequantizeLinear", [small, *pair], f"{value.name}_real", "float32", value)

    def _weight(self, layer: Layer, per_channel: bool) -> tuple[Value, Array]:
        """The quantized weight, and its error."""
        key = (layer.weight, layer.axis)
        if key not in self.weights:
            name, array, axis = layer.weight.name, self.graph.constants[layer.weight], layer.axis
            numbers, scale = quantize_weight(array, axis, per_channel, self.powers, self.kind)
            inputs: list[Value | None] = [self._constant(numbers, f"{name}_quantized")]
            inputs.append(self._constant(scale, f"{name}_scale"))
            made = self._made("DequantizeLinear", inputs, f"{name}_real", "float32", layer.weight, axis=axis)
            spread = scale.reshape([-1 if at == axis else 1 for at in range(array.ndim)]) if scale.ndim else scale
            self.weights[key] = made, numbers.astype(np.float32) * spread - array
        return self.weights[key]

    def _corrected(self, layer: Layer, error: Array, mean: Array) -> Value | None:
        """The bias, less what the rounded weights add to the mean of each output channel."""
        node, bias = layer.node, layer.node.inputs[2] if len(layer.node.inputs) > 2 else None
        known = None if bias is None else self.graph.constants.get(bias)
        plain = bias is None or (known is not None and known.ndim == 1 and float(node.attributes.get("beta", 1)) == 1)
        if node.op == "MatMul" or not plain:
            return bias
        made = (0 if known is None else known) - mean_effect(error, mean, node, layer.axis)
        return self._constant(np.asarray(made, np.float32), f"{layer.name}_bias")

    def _whole(self, layer: Layer, bias: Value | None, per_channel: bool) -> Value | None:
        """The bias as a whole number of the scale of the sums that it is added to, where it is known."""
        known = None if bias is None else self.constants.get(bias)
        if known is None or layer.node.op == "MatMul" or known.ndim != 1:
            return bias
        _, scale = quantize_weight(self.graph.constants[layer.weight], layer.axis, per_channel, True, self.kind)
        unit = scale * self.ranges[layer.data][0]
        return self._constant(np.asarray(np.rint(known / unit) * unit, np.float32), f"{layer.name}_bias")


def mean_effect(error: Array, mean: Array, node: Node, axis: int) -> Array:
    """What an error of the weights adds, on the average, to each output channel of a layer."""
    if node.op != "Conv":
        return np.asarray((error if axis == 0 else error.T) @ mean) * float(node.attributes.get("alpha", 1.0))
    group = int(node.attributes.get("group", 1))
    taps = error.sum(axis=tuple(range(2, error.ndim)))
    rows = mean.reshape(group, -1).repeat(error.shape[0] // group, axis=0)
    return np.asarray((taps * rows).sum(axis=1))
