"""Quantization to one and two bits: levels from 0 up for what layers read, and weights of -1 and 1 (or -3, -1, 1, 3).

    %y = Conv(%x, %w, %b)      ->      %q = QuantizeLinear(%x, %s, 0)
                                       %y = BitConv(%q, const codes, const scale, const %b)  bits=2

What a layer reads has to be at least 0 (a ReLU makes it): a layer that reads anything else stays as it is, and so do
convolutions in groups or with holes. The scale of an activation is the one whose rounding loses least of what was seen;
that of a filter's weights as well, with its codes. Models that are to be accurate are trained with these numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError
from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.dead import dead
from weft.graph.passes.support import Names
from weft.ops.bits import CONVOLUTION, DENSE, DOMAIN, pack_codes
from weft.quantization.insert import Layer
from weft.quantization.observers import SHRINKS, Observer

ROUNDS = 8
"""How often codes and their scale are fitted to one another; with one bit once would do."""


def _bias(node: Node) -> Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def takes(graph: Graph, layer: Layer, seen: Observer) -> bool:
    """Whether a layer has an operator of bits, and reads what is at least 0."""
    node, shape, bias = layer.node, layer.weight.tensor.static, _bias(layer.node)
    if seen.low < 0 or seen.high <= 0:
        return False
    if bias is not None and (bias not in graph.constants or graph.constants[bias].size not in (1, shape[layer.axis])):
        return False
    if node.op != "Conv":
        alone = all(float(node.attributes.get(name, 1)) == 1 for name in ("alpha", "beta"))
        return alone and node.inputs[0] is not None and node.inputs[0].tensor.rank == 2
    plain = all(int(one) == 1 for one in (*(node.attributes.get("dilations") or ()), node.attributes.get("group", 1)))
    even = all(len(set(node.attributes.get(name) or (0,))) == 1 for name in ("pads", "strides"))
    even = even and min(node.attributes.get("pads") or (0,)) >= 0
    return len(shape) == 4 and plain and even and str(node.attributes.get("auto_pad") or "NOTSET") == "NOTSET"


def fit_scale(seen: Observer, bits: int) -> Array:
    """The scale of levels from 0 to 2 ** bits - 1 that loses least of what was seen."""
    sample, most = np.concatenate(seen.kept), (1 << bits) - 1
    scales = [np.float32(seen.high * part / most) for part in SHRINKS]
    losses = [np.square(np.clip(np.rint(sample / s), 0, most) * s - sample, dtype=np.float64).mean() for s in scales]
    return np.asarray(scales[int(np.argmin(losses))], np.float32)


def fit_weight(rows: Array, planes: int) -> tuple[Array, Array]:
    """Codes uint8[f, …] and a scale for each row: code q stands for (2 q - (2 ** planes - 1)) times the scale."""
    flat, most = rows.reshape(len(rows), -1).astype(np.float64), (1 << planes) - 1
    scale = np.abs(flat).mean(1, keepdims=True) * 2 / (most + 1)
    for _ in range(ROUNDS if planes > 1 else 1):
        codes = np.clip(np.floor(flat / np.where(scale > 0, scale, 1) / 2 + (most + 1) / 2), 0, most)
        levels = 2 * codes - most
        scale = (flat * levels).sum(1, keepdims=True) / np.square(levels).sum(1, keepdims=True)
    return codes.astype(np.uint8).reshape(rows.shape), scale[:, 0].astype(np.float32)


class BitInsertion:
    """Makes the graph of bits: `scales` are those of what the layers read."""

    def __init__(
        self, graph: Graph, layers: Collection[Layer], scales: Mapping[Value, Array], bits: tuple[int, int], line: int
    ) -> None:
        self.graph, self.scales, self.bits, self.line = graph, scales, bits, line
        self.layers = {layer.node: layer for layer in layers}
        self.names = Names(graph)
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.levels: dict[Value, Value] = {}

    def run(self) -> Graph:
        """The graph."""
        nodes: list[Node] = []
        for node in self.graph.nodes:
            layer = self.layers.get(node)
            nodes += [node] if layer is None else self._layer(layer)
        return dead(Graph(self.graph.name, self.graph.inputs, self.graph.outputs, nodes, self.constants))

    def _constant(self, array: Array, name: str) -> Value:
        value = Value(self.names.fresh(name), TensorType(str(array.dtype), array.shape))
        self.constants[value] = array
        return value

    def _layer(self, layer: Layer) -> list[Node]:
        node, made = layer.node, []
        source, name = node.inputs[0], layer.weight.name
        assert source is not None
        if source not in self.levels:
            pair = (
                self._constant(self.scales[layer.data], f"{source.name}_scale"),
                self._constant(np.array(0, np.uint8), "zero"),
            )
            levels = Value(self.names.fresh(f"{source.name}_levels"), TensorType("uint8", source.tensor.shape))
            made.append(Node("QuantizeLinear", [source, *pair], [levels], {}, levels.name, "quantize"))
            self.levels[source] = levels
        weight = self.graph.constants[layer.weight]
        codes, scale = fit_weight(weight if layer.axis == 0 else weight.T, self.bits[1])
        packed = self._constant(pack_codes(codes, self.bits[1], self.line), f"{name}_codes")
        factor = self._constant(scale * self.scales[layer.data], f"{name}_factor")
        bias = _bias(node)
        if bias is not None:
            flat = np.broadcast_to(self.graph.constants[bias].reshape(-1), scale.shape)
            bias = self._constant(flat.astype(np.float32), f"{name}_bias")
        window = {key: node.attributes[key] for key in ("pads", "strides") if node.attributes.get(key)}
        attributes: dict[str, Any] = {"bits": self.bits[0]}
        if node.op == "Conv":
            attributes |= {"kernel_shape": list(weight.shape[2:]), **window}
        inputs = [self.levels[source], packed, factor, *([] if bias is None else [bias])]
        op = CONVOLUTION if node.op == "Conv" else DENSE
        return [*made, Node(op, inputs, node.outputs, attributes, node.name, node.origin, DOMAIN)]


def check_bits(bits: tuple[int, int]) -> None:
    """An error for what is no (activations, weights) of one or two bits."""
    if len(bits) != 2 or any(one not in (1, 2) for one in bits):
        raise ArgumentError(f"bits is {bits!r}: a pair for activations and weights, each 1 or 2")
