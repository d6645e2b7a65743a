"""What quantization costs, layer by layer: the quantized model beside the float one, in one graph.

For every quantized layer two figures, each the ratio of the layer's output to its error in decibels (20 dB: a tenth,
40 dB: a hundredth):

    alone       only this layer is quantized, on the float model's activations: which layers are hard
    together    in the quantized model, with the errors of everything before it: what arrives there

The sums of squares are taken inside the compiled graph, so that no activation leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler import compile
from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Names, graph_values, substitute_values
from weft.ops.bits import CONVOLUTION, DENSE
from weft.quantization.insert import Layer


@dataclass(frozen=True)
class LayerError:
    """The error of one layer (or, with the operator "output", of one output of the model)."""

    name: str
    op: str
    alone: float
    together: float

    @property
    def relative(self) -> float:
        """The size of the error in the quantized model, relative to the layer's output (root mean squares)."""
        return float(10 ** (-self.together / 20))


class _Beside:
    """The two models in one graph, with sums of squares as outputs."""

    def __init__(self, graph: Graph, quantized: Graph) -> None:
        self.graph = graph
        self.names = Names(graph)
        new = {v: Value(self.names.fresh(f"quantized.{v.name}"), v.type) for v in graph_values(quantized)}
        new.update(zip(quantized.inputs, graph.inputs))
        self.copies = {v.name: copy for v, copy in new.items()}
        self.other = substitute_values(quantized, new)
        self.nodes: list[Node] = [*graph.nodes, *self.other.nodes]
        self.outputs: list[Value] = []
        self.makers = self.other.producers()

    def node(self, op: str, *inputs: Value | None, **attributes: Any) -> Value:
        output = Value(self.names.fresh(f"beside.{op.lower()}"))
        self.nodes.append(Node(op, inputs, [output], attributes, output.name, "quantize"))
        return output

    def squares(self, value: Value) -> None:
        """Adds the sum of the squares of a value to the outputs."""
        self.outputs.append(self.node("ReduceSumSquare", value, keepdims=0))

    def compare(self, exact: Value, *others: Value) -> None:
        """Adds the squares of a value, and those of how others differ from it."""
        self.squares(exact)
        for other in others:
            self.squares(self.node("Sub", exact, other))

    def alone(self, layer: Layer) -> Value:
        """The quantized layer on the float model's data."""
        node = self.makers[self.copies[layer.node.outputs[0].name]]
        by_bits = node.op in (CONVOLUTION, DENSE)
        parameters = self._parameters(layer.node.inputs[0] if by_bits and layer.node.inputs[0] else layer.data)
        small = self.node("QuantizeLinear", layer.node.inputs[0], *parameters)
        real = small if by_bits else self.node("DequantizeLinear", small, *parameters)
        output = Value(self.names.fresh("beside.layer"))
        self.nodes.append(node.replace(inputs=[real, *node.inputs[1:]], outputs=[output]))
        return output

    def _parameters(self, data: Value) -> list[Value]:
        """Scale and zero point with which the quantized model quantizes a value."""
        source = self.copies[data.name]
        maker = next(n for n in self.other.nodes if n.op == "QuantizeLinear" and n.inputs[0] is source)
        return [v for v in maker.inputs[1:] if v is not None]

    def finish(self) -> Graph:
        constants = {**self.graph.constants, **self.other.constants}
        return infer(Graph(f"{self.graph.name}_beside", self.graph.inputs, self.outputs, self.nodes, constants))


def layer_errors(
    graph: Graph, quantized: Graph, layers: Sequence[Layer], feeds: Sequence[Mapping[str, Array]], target: Any
) -> list[LayerError]:
    """The errors of all layers and outputs over some feeds, those that are hardest alone first, outputs last."""
    both = _Beside(graph, quantized)
    for layer in layers:
        value = layer.node.outputs[0]
        both.compare(value, both.alone(layer), both.copies[value.name])
    finals = [v for v in graph.outputs if isinstance(v.type, TensorType) and v.type.dtype == "float32"]
    for value in finals:
        both.compare(value, both.copies[value.name])
    module = compile(both.finish(), target)
    sums = np.sum([[float(x) for x in module.run(None, feed)] for feed in feeds], axis=0)
    found = [
        LayerError(layer.name, layer.node.op, *(decibels(sums[3 * at], sums[3 * at + i]) for i in (1, 2)))
        for at, layer in enumerate(layers)
    ]
    found.sort(key=lambda one: one.alone)
    start = 3 * len(layers)
    for at, value in enumerate(finals):
        ratio = decibels(sums[start + 2 * at], sums[start + 2 * at + 1])
        found.append(LayerError(value.name, "output", math.nan, ratio))
    return found


def decibels(signal: float, noise: float) -> float:
    """The ratio of two sums of squares; infinite where there is no noise."""
    if noise <= 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def error_table(errors: Sequence[LayerError]) -> str:
    """The errors as text, one line each."""
    width = max([5, *(len(one.name) for one in errors)])
    lines = [f"{'layer':{width}}  {'operator':8}  {'alone':>8}  {'together':>8}  relative error"]
    for one in errors:
        alone = "" if math.isnan(one.alone) else f"{one.alone:.1f} dB"
        lines.append(f"{one.name:{width}}  {one.op:8}  {alone:>8}  {one.together:>5.1f} dB  {one.relative:.2e}")
    return "\n".join(lines)
