"""Rules about windows and means: what different frameworks write around convolutions and pooling becomes one form.

Conv(Pad(x, zeros))                        ->  Conv with larger pads; MaxPool where no number is negative
Conv of stride 1 that mostly reads padding ->  ConvTranspose, which does not multiply the padding
ReduceSum(x) / number of its elements      ->  ReduceMean(x)
Add(x, const [1, 1, n])                    ->  Add(x, const [n])
Reshape(Slice of one element of an axis)   ->  Gather of that element
"""

from __future__ import annotations

import math

import numpy as np

from weft.graph.ir import Node, TensorType, Value
from weft.graph.passes.support import Replacement, Rule, Scope, swap


def _static(value: Value | None) -> tuple[int, ...] | None:
    kind = value.type if value is not None else None
    return kind.static if isinstance(kind, TensorType) and kind.is_static else None


def pad_into_window(node: Node, scope: Scope) -> Replacement:
    """Conv(Pad(x, zeros)) -> Conv with larger pads; the same for a MaxPool of what is not negative."""
    before = scope.single(node.inputs[0], "Pad")
    shape = _static(node.inputs[0])
    if before is None or shape is None or before.attributes.get("mode", "constant") != "constant":
        return None
    if len(before.inputs) > 3 and before.inputs[3] is not None:
        return None
    amounts = scope.constant(before.inputs[1])
    fill = 0.0 if len(before.inputs) < 3 or before.inputs[2] is None else scope.scalar(before.inputs[2])
    rank = len(shape)
    if amounts is None or fill != 0 or amounts.size != 2 * rank:
        return None
    if node.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    pads = [int(one) for one in amounts]
    spatial = [*pads[2:rank], *pads[rank + 2 :]]
    if min(pads) < 0 or any((*pads[:2], *pads[rank : rank + 2])):
        return None
    window = node.attributes.get("kernel_shape") or (_static(node.inputs[1]) or ())[2:]
    if node.op == "MaxPool":
        maker = scope.producer(before.inputs[0], "Relu", "Clip", "Sigmoid")
        low = None if maker is None else 0.0 if maker.op != "Clip" else scope.scalar(maker.inputs[1])
        size = len(window)
        have = node.attributes.get("pads", [0] * (2 * size))
        if low is None or low < 0 or len(node.outputs) > 1 or node.attributes.get("ceil_mode") or any(have):
            return None
        if any(one >= taps for one, taps in zip(spatial, [*window, *window])):
            return None  # a window in which there would be no element at all
    have = node.attributes.get("pads", [0] * len(spatial))
    total = [one + more for one, more in zip(have, spatial)]
    return [node.replace(inputs=[before.inputs[0], *node.inputs[1:]], attributes={**node.attributes, "pads": total})]


def mostly_padding(node: Node, scope: Scope) -> Replacement:
    """A convolution of stride 1 with at least twice as many results as elements -> the transposed one."""
    image, result, weight = _static(node.inputs[0]), _static(node.outputs[0]), scope.constant(node.inputs[1])
    if image is None or result is None or weight is None or node.attributes.get("group", 1) != 1:
        return None
    gaps = node.attributes.get("dilations", [1] * (len(image) - 2))
    if max(node.attributes.get("strides", [1])) > 1 or node.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    if 2 * math.prod(image[2:]) > math.prod(result[2:]) or weight.ndim != len(image):
        return None
    window, count = weight.shape[2:], len(image) - 2
    have = node.attributes.get("pads", [0] * (2 * count))
    pads = [(window[at % count] - 1) * gaps[at % count] - one for at, one in enumerate(have)]
    if min(pads) < 0:
        return None
    turned = np.flip(weight, tuple(range(2, weight.ndim))).swapaxes(0, 1)
    made = scope.new_constant(np.ascontiguousarray(turned), f"{node.outputs[0].name}_weight")
    attributes = {
        "kernel_shape": list(window), "strides": [1] * count, "dilations": list(gaps), "group": 1, "pads": pads,
    }  # fmt: skip
    return swap(node, "ConvTranspose", [node.inputs[0], made, *node.inputs[2:]], **attributes)


_USUAL = {
    "ceil_mode": 0, "storage_order": 0, "auto_pad": "NOTSET", "count_include_pad": 0, "direction": "forward",
    "input_forget": 0, "layout": 0, "linear_before_reset": 0, "output_padding": [0, 0], "stash_type": 1,
}  # fmt: skip


def plainly(node: Node, scope: Scope) -> Replacement:
    """What a layer does anyway is not said: exporters differ in what they say."""
    kept = {key: value for key, value in node.attributes.items() if key not in _USUAL or _USUAL[key] != value}
    if "Pool" in node.op and set(kept.get("dilations", [2])) == {1}:
        del kept["dilations"]
    return [node.replace(attributes=kept)] if len(kept) != len(node.attributes) else None


def mean_of_sum(node: Node, scope: Scope) -> Replacement:
    """ReduceSum(x) / n -> ReduceMean(x), for the number n of elements of each sum."""
    before = scope.single(node.inputs[0], "ReduceSum")
    number, whole, sums = scope.scalar(node.inputs[1]), None, None
    if before is not None:
        whole, sums = _static(before.inputs[0]), _static(before.outputs[0])
    if before is None or number is None or not whole or sums is None or not math.prod(sums):
        return None
    if node.outputs[0].tensor.dtype not in ("float32", "float64") or len(sums) != node.outputs[0].tensor.rank:
        return None
    count = math.prod(whole) // math.prod(sums)
    wanted = count if node.op == "Div" else 1 / count
    exact = number == wanted or (node.op == "Mul" and number == float(np.float32(wanted)))
    return [before.replace(op="ReduceMean", outputs=node.outputs)] if exact and count > 1 else None


def lean_constant(node: Node, scope: Scope) -> Replacement:
    """A constant operand without the axes of size 1 that it begins with."""
    inputs = list(node.inputs)
    most = max((len(_static(v) or ()) for v in inputs if scope.constant(v) is None), default=0)
    for at, value in enumerate(inputs):
        array = scope.constant(value)
        if value is None or array is None or array.ndim < 2 or array.shape[0] != 1 or array.ndim > most:
            continue
        if node.op == "Gemm" and at != 2:
            continue
        lead = next((axis for axis, size in enumerate(array.shape) if size != 1), array.ndim)
        inputs[at] = scope.new_constant(array.reshape(array.shape[lead:]), f"{value.name}_lean")
    return [node.replace(inputs=inputs)] if inputs != list(node.inputs) else None


def element_of_slice(node: Node, scope: Scope) -> Replacement:
    """Reshape(Slice(x, one element of an axis)) without that axis -> Gather(x, that element)."""
    before = scope.single(node.inputs[0], "Slice")
    if before is None or len(before.inputs) < 4:
        return None
    source, cut, shape = before.inputs[0], _static(before.outputs[0]), _static(node.outputs[0])
    whole = _static(source)
    starts, axes = scope.constant(before.inputs[1]), scope.constant(before.inputs[3])
    if starts is None or axes is None or starts.size != 1 or whole is None or cut is None or shape is None:
        return None
    axis = int(axes.reshape(())) % len(whole)
    if cut[axis] != 1 or whole[axis] == 1 or shape != cut[:axis] + cut[axis + 1 :]:
        return None
    place = int(starts.reshape(()))
    place = min(max(place + whole[axis] * (place < 0), 0), whole[axis] - 1)
    index = scope.new_constant(np.array(place, np.int64), f"{node.outputs[0].name}_place")
    return swap(node, "Gather", [source, index], axis=axis) if axis else swap(node, "Gather", [source, index])


WINDOW_RULES: dict[str, list[Rule]] = {
    "Conv": [pad_into_window, mostly_padding, plainly],
    "ConvTranspose": [plainly],
    "LSTM": [plainly],
    "GRU": [plainly],
    "LayerNormalization": [plainly],
    "MaxPool": [pad_into_window, plainly],
    "AveragePool": [plainly],
    "Div": [lean_constant, mean_of_sum],
    "Mul": [lean_constant, mean_of_sum],
    "Reshape": [element_of_slice],
    "Add": [lean_constant],
    "Sub": [lean_constant],
    "Max": [lean_constant],
    "Min": [lean_constant],
    "Pow": [lean_constant],
    "Gemm": [lean_constant],
}
"""The rules by operator."""
