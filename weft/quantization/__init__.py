"""Layer 9: post-training quantization of float models to 8 bits, or to one and two.

    small = weft.quantize("model.onnx", feeds)        feeds: an iterable of what the model is called with
    module = weft.compile(small)                      integer products, where the processor has them
    print(small.report())                             what it costs, layer by layer

data         calibration data, in the forms that people keep it in
observers    the range of every activation, from calibration data
insert       QuantizeLinear and DequantizeLinear put into the graph, weights as signed bytes
bits         products of one- and two-bit numbers in their place
errors       the quantized model beside the float one
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler import compile
from weft.core.errors import ArgumentError
from weft.graph.ir import Array, Graph, Value
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize
from weft.quantization.bits import BitInsertion, check_bits, fit_scale, takes
from weft.quantization.data import calls_of
from weft.quantization.errors import LayerError, error_table, layer_errors
from weft.quantization.insert import Insertion, Layer, find_layers
from weft.quantization.observers import LIMITS, METHODS, Observer, parameters
from weft.targets.registry import find_target
from weft.te.bitserial import LINE

__all__ = ["LayerError", "QuantizedModel", "quantize"]

FEEDS_OF_REPORT = 8
"""How many feeds the report looks at."""


class QuantizedModel(Graph):
    """A quantized model: a graph like any other, which also knows the float model that it came from."""

    __slots__ = ("original", "layers", "feeds", "target", "_errors")

    def __init__(
        self, graph: Graph, original: Graph, layers: Sequence[Layer], feeds: Sequence[Mapping[str, Array]], target: Any
    ) -> None:
        super().__init__(graph.name, graph.inputs, graph.outputs, graph.nodes, graph.constants)
        self.original = original
        self.layers = list(layers)
        self.feeds = list(feeds)
        self.target = target
        self._errors: list[LayerError] | None = None

    @property
    def errors(self) -> list[LayerError]:
        """The error of every quantized layer, the hardest first, and of the outputs at the end."""
        if self._errors is None:
            self._errors = layer_errors(self.original, self, self.layers, self.feeds, self.target)
        return self._errors

    def report(self) -> str:
        """The errors as a table."""
        return error_table(self.errors)


def quantize(
    model: Any,
    calibration_data: Iterable[Any],
    *,
    method: str = "mse",
    activations: str = "uint8",
    per_channel: bool = True,
    keep: Collection[str] = (),
    bias_correction: bool = True,
    scales: str = "any",
    bits: tuple[int, int] | None = None,
    target: Any = "auto",
) -> QuantizedModel:
    """A float model with its convolutions and matrix products quantized to 8 bits, or to one and two.

    `model` is what `weft.compile` takes. `calibration_data` gives what the model is called with: for each call a
    mapping from input names to arrays, a list of arrays, or one array; arrays of many calls may be stacked, and one
    array or one mapping may be all of it. `method` is how the range of an activation is chosen: "minmax", "percentile"
    or "mse". `activations` is "uint8", "int8" or "fp8" (matrix products alone, their weights too; NVIDIA's tensor cores
    multiply such numbers from sm_89 on, others compute with them as float32). `keep` names nodes, outputs
    or operators that stay float. `scales` is "any" or "powers_of_two": a machine without float arithmetic then
    requantizes by shifts, exactly. `bits=(2, 1)` is for products of two-bit activations and one-bit weights instead
    (either may be 1 or 2), of layers that read no negative numbers; others stay float, and of the options above only
    `keep` counts.
    """
    if method not in METHODS:
        raise ArgumentError(f"method is {method!r}; there are {', '.join(METHODS)}")
    if activations not in LIMITS:
        raise ArgumentError(f"activations is {activations!r}; there are {', '.join(LIMITS)}")
    if scales not in ("any", "powers_of_two"):
        raise ArgumentError(f"scales is {scales!r}; there are any, powers_of_two")
    if bits is not None:
        check_bits(bits)
    powers = scales == "powers_of_two"
    graph = _graph_of(model)
    _refuse_quantized(graph)
    graph = normalize(graph)
    layers = find_layers(graph, [keep] if isinstance(keep, str) else list(keep))
    if activations == "fp8":
        layers = [layer for layer in layers if layer.node.op != "Conv"]
    if not layers:
        raise ArgumentError(f"the model {graph.name!r} has no convolution or matrix product with known float32 weights")
    seen, feeds = _observe(graph, layers, calibration_data, target)
    if bits is not None:
        layers = [layer for layer in layers if takes(graph, layer, seen[layer.data])]
        if not layers:
            raise ArgumentError(
                f"the model {graph.name!r} has no layer that reads what a ReLU made: none can be of bits"
            )
        factors = {layer.data: fit_scale(seen[layer.data], bits[0]) for layer in layers}
        line = max(find_target("native" if target == "auto" else target).vector_bytes, LINE)
        small = infer(BitInsertion(graph, layers, factors, bits, line).run())
        return QuantizedModel(small, graph, layers, feeds, target)
    ranges = {
        value: parameters(*one.range(method, activations, powers), activations, powers) for value, one in seen.items()
    }
    # A reshape on the way to a matrix product moves the channels: their means mean nothing there.
    direct = {layer.data for layer in layers if layer.node.inputs[0] is layer.data}
    means = {value: one.mean for value, one in seen.items() if value in direct} if bias_correction else None
    kind = "fp8" if activations == "fp8" else "int8"
    made = infer(Insertion(graph, layers, ranges, powers, kind).run(per_channel, means))
    return QuantizedModel(made, graph, layers, feeds, target)


def _graph_of(model: Any) -> Graph:
    import weft.ops  # noqa: F401  (fills the table of operators)

    if isinstance(model, Graph):
        return infer(model)
    from weft.frontends.onnx import load

    return infer(load(model))


def _refuse_quantized(graph: Graph) -> None:
    """An error for a model that is quantized already, wholly or in part: its scales would be rounded once more."""
    for node in graph.nodes:
        if any(sign in node.op.lower() for sign in ("quantize", "qlinear", "integer", "nbits")):
            raise ArgumentError(
                f"the model {graph.name!r} is quantized already ({node.describe()}): quantize the float model that it "
                "was made from; weft.compile takes this one as it is"
            )


def _observe(
    graph: Graph, layers: Sequence[Layer], data: Iterable[Any], target: Any
) -> tuple[dict[Value, Observer], list[dict[str, Array]]]:
    """Runs the float model, and looks at what its layers read; the first feeds are kept for the report."""
    channel = {layer.data: layer.channel for layer in layers}
    values = list(channel)
    inside = [value for value in values if value not in graph.inputs]
    module = compile(graph.replace(outputs=inside), target) if inside else None
    observers = {value: Observer() for value in values}
    kept: list[dict[str, Array]] = []
    count = 0
    items = [data] if isinstance(data, (np.ndarray, Mapping)) else data
    for feeds in (call for item in items for call in calls_of(graph.inputs, item)):
        made = {} if module is None else dict(zip(inside, module.run(None, feeds)))
        for value in values:
            array = made[value] if value in made else np.asarray(feeds[value.name])
            observers[value].see(array, channel[value])
        count += 1
        if len(kept) < FEEDS_OF_REPORT:
            kept.append(feeds)
    if not count:
        raise ArgumentError("calibration_data is empty: quantization needs inputs that are like those in use")
    return observers, kept
