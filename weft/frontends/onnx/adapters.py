"""Older versions of operators, brought to the newest one.

An adapter changes a Draft in place. The table at the end says for each operator below which version (of its operator
set) which adapter is needed; what is not in the table never changed its meaning, only the types it takes.

    Squeeze(x) {axes=[1]}          opset 11   ->   Squeeze(x, constant [1])
    Softmax(x) {axis=1}            opset 11   ->   Reshape(Softmax(Flatten(x) {axis=1}) {axis=-1}, Shape(x))
    Upsample(x, scales)            opset 9    ->   Resize(x, None, scales) {asymmetric, floor}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontends.onnx.scope import Draft
from weft.graph.ir import Array, Graph, Node, Value

Adapter = Callable[[Draft], None]


def int64s(values: Sequence[int]) -> Array:
    """Whole numbers as ONNX wants them in an input."""
    return np.array(list(values), np.int64)


def typed_like(draft: Draft, number: float, reference: Value, label: str) -> Value:
    """A scalar constant of another value's element type."""
    kind = draft.tensor_type(reference)
    if kind is not None:
        return draft.constant(np.asarray(number).astype(kind.numpy), label)
    plain = draft.constant(np.asarray(number, np.float32), label)
    return draft.emit("CastLike", [plain, reference])


def attribute_to_input(attribute: str, position: int) -> Adapter:
    """A list of whole numbers moves from an attribute to an input. An empty list counts as none."""

    def adapt(draft: Draft) -> None:
        values = draft.pop(attribute)
        if values:
            draft.set_input(position, draft.constant(int64s(values), attribute))

    return adapt


def unsqueeze(draft: Draft) -> None:
    """axes is required here, and may be empty."""
    draft.set_input(1, draft.constant(int64s(draft.pop("axes", [])), "axes"))


def clip(draft: Draft) -> None:
    """min and max were attributes; the extreme floats stood for none."""
    data = draft.need(0)
    for position, name in ((1, "min"), (2, "max")):
        limit = draft.pop(name)
        if limit is not None and abs(limit) < float(np.finfo(np.float32).max):
            draft.set_input(position, typed_like(draft, limit, data, name))


def dropout(draft: Draft) -> None:
    """Models that run infer: nothing is dropped. Before opset 10 the mask had the type of the data."""
    draft.attributes.clear()
    draft.inputs = draft.inputs[:1]
    if len(draft.outputs) > 1 and draft.version < 10:
        wanted = draft.outputs[1]
        draft.outputs[1] = draft.new_value("mask")
        draft.follow("CastLike", [draft.outputs[1], draft.need(0)], wanted)


def pad(draft: Draft) -> None:
    """pads and value were attributes."""
    pads, value = draft.pop("pads", draft.pop("paddings", [])), draft.pop("value", 0.0)
    draft.set_input(1, draft.constant(int64s(pads), "pads"))
    if value:
        draft.set_input(2, typed_like(draft, value, draft.need(0), "value"))


def slice_(draft: Draft) -> None:
    """starts, ends and axes were attributes."""
    for position, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        values = draft.pop(name)
        if values is not None:
            draft.set_input(position, draft.constant(int64s(values), name))
        elif name != "axes":
            raise draft.error(f"the attribute {name!r} is missing")


def split(draft: Draft) -> None:
    """The sizes were an attribute, and without sizes the number of outputs was that of the node."""
    sizes = draft.pop("split")
    if sizes:
        draft.set_input(1, draft.constant(int64s(sizes), "split"))
    if draft.input(1) is None:
        draft.attributes["num_outputs"] = len(draft.outputs)


def topk(draft: Draft) -> None:
    """k was an attribute."""
    if "k" not in draft.attributes:
        raise draft.error("the attribute 'k' is missing")
    draft.set_input(1, draft.constant(int64s([draft.pop("k")]), "k"))


def coerced_axis(draft: Draft) -> None:
    """Softmax, LogSoftmax and Hardmax worked on the tensor as a matrix, cut at the axis."""
    axis = int(draft.attributes.get("axis", 1))
    data = draft.need(0)
    rank = draft.rank(data)
    if axis == -1 or (rank is not None and axis % max(rank, 1) == rank - 1):
        draft.attributes["axis"] = -1
        return
    flat = draft.emit("Flatten", [data], axis=axis)
    done = draft.emit(draft.op, [flat], axis=-1)
    shape = draft.emit("Shape", [data])
    draft.op, draft.inputs, draft.attributes = "Reshape", [done, shape], {}


def upsample(draft: Draft) -> None:
    """Upsample always scaled by flooring the plain quotient of positions."""
    scales = draft.pop("scales")
    if "height_scale" in draft.attributes:
        scales = [1.0, 1.0, draft.pop("height_scale"), draft.pop("width_scale", 1.0)]
    factors = draft.input(1) if scales is None else draft.constant(np.array(scales, np.float32), "scales")
    mode = draft.attributes.get("mode", "nearest")
    draft.op = "Resize"
    draft.inputs = [draft.need(0), None, factors]
    draft.attributes = {
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }


def resize(draft: Draft) -> None:
    """Opset 10 had no modes for positions; opset 11 demanded roi and scales even where they were empty."""
    if draft.version < 11:
        scales = draft.known(draft.input(1))
        shrinks = scales is not None and bool((scales < 1).any())
        upsample(draft)
        draft.attributes["nearest_mode"] = "ceil" if shrinks else "floor"  # as the test of that version has it
        return
    if draft.input(3) is not None:
        draft.set_input(2, None)
    roi = draft.known(draft.input(1))
    if roi is not None and roi.size == 0:
        draft.set_input(1, None)


def batch_normalization(draft: Draft) -> None:
    """Training was told by the outputs asked for; the two saved ones are gone. spatial=0 normalised each position."""
    draft.pop("is_test")
    outputs = [v for v in draft.outputs if v not in draft.unread]
    if any(v in outputs for v in draft.outputs[3:]):
        raise draft.error("its outputs saved_mean and saved_var exist only for training and are read here")
    training = any(v in outputs for v in draft.outputs[1:3])
    draft.outputs = draft.outputs[:3] if training else draft.outputs[:1]
    if not draft.pop("spatial", 1):
        if training:
            raise draft.error("training with spatial=0 is not supported")
        _normalise_positions(draft)
    elif training:
        draft.attributes["training_mode"] = 1


def _normalise_positions(draft: Draft) -> None:
    data, scale, bias, mean, variance = (draft.need(i) for i in range(5))
    epsilon = typed_like(draft, draft.attributes.get("epsilon", 1e-5), variance, "epsilon")
    deviation = draft.emit("Sqrt", [draft.emit("Add", [variance, epsilon])])
    normal = draft.emit("Div", [draft.emit("Sub", [data, mean]), deviation])
    scaled = draft.emit("Mul", [normal, scale])
    draft.op, draft.inputs, draft.attributes = "Add", [scaled, bias], {}


def group_normalization(draft: Draft) -> None:
    """Scale and bias were one number a group; now they are one a channel."""
    data, groups = draft.need(0), int(draft.attributes.get("num_groups", 1))
    count = draft.constant(int64s([groups]), "groups")
    channels = draft.emit("Shape", [data], start=1, end=2)
    target = draft.emit("Concat", [count, draft.emit("Div", [channels, count])], axis=0)
    axes = draft.constant(int64s([1]), "axes")
    flat = draft.constant(int64s([-1]), "flat")
    for position in (1, 2):
        column = draft.emit("Unsqueeze", [draft.need(position), axes])
        draft.set_input(position, draft.emit("Reshape", [draft.emit("Expand", [column, target]), flat]))


def dft(draft: Draft) -> None:
    """The axis was an attribute."""
    axis = draft.constant(np.asarray(draft.pop("axis", 1), np.int64), "axis")
    draft.set_input(2, axis)


def grid_sample(draft: Draft) -> None:
    """The modes had the names of their two-dimensional form."""
    mode = draft.attributes.get("mode", "bilinear")
    draft.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


def roi_align(draft: Draft) -> None:
    """Positions were not shifted by half a pixel."""
    draft.attributes.setdefault("coordinate_transformation_mode", "output_half_pixel")


def one_hot(draft: Draft) -> None:
    """Negative indices meant no hot position at all; now they count from the end."""
    indices = draft.need(0)
    kind = draft.tensor_type(indices)
    if kind is not None and kind.dtype.startswith("uint"):
        return
    zero, depth = typed_like(draft, 0, indices, "zero"), draft.need(1)
    scalar = draft.constant(int64s([]), "scalar")
    beyond = draft.emit("CastLike", [draft.emit("Reshape", [depth, scalar]), indices])
    draft.set_input(0, draft.emit("Where", [draft.emit("Less", [indices, zero]), beyond, indices]))


def scatter(draft: Draft) -> None:
    """Scatter is called ScatterElements now."""
    draft.op = "ScatterElements"


def scan(draft: Draft) -> None:
    """Scan had a batch dimension in front of everything: a scan over the batch of scans over the sequences."""
    if draft.input(0) is not None:
        raise draft.error("lengths of sequences (the first input of Scan in opset 8) are not supported")
    body = draft.attributes.get("body")
    count = draft.attributes.get("num_scan_inputs")
    if not isinstance(body, Graph) or not isinstance(count, int):
        raise draft.error("the attributes 'body' and 'num_scan_inputs' must be there")
    given = draft.inputs[1:]
    inner = {"body": body, "num_scan_inputs": count, "scan_input_directions": draft.pop("directions", [0] * count)}
    arguments = [draft.new_value("element") for _ in given]
    results = [draft.new_value("result") for _ in draft.outputs]
    node = Node("Scan", arguments, results, inner, f"{draft.name}.sequence", draft.origin)
    draft.inputs = list(given)
    draft.attributes = {"body": Graph("sequence", arguments, results, [node]), "num_scan_inputs": len(given)}


def broadcast_axis(draft: Draft) -> None:
    """Before opset 7 the second operand was laid along the first from a given axis on."""
    axis = draft.pop("axis")
    broadcasts = draft.pop("broadcast", 0)
    draft.pop("consumed_inputs")
    if not broadcasts or axis is None:
        return
    _align(draft, int(axis))


def _align(draft: Draft, axis: int) -> None:
    left, right = draft.need(0), draft.need(1)
    ranks = draft.rank(left), draft.rank(right)
    if ranks[0] is None or ranks[1] is None:
        raise draft.error("to broadcast along an axis, the ranks of both operands must be known")
    missing = ranks[0] - axis % max(ranks[0], 1) - ranks[1]
    if missing > 0:
        axes = draft.constant(int64s(range(ranks[1], ranks[1] + missing)), "axes")
        draft.set_input(1, draft.emit("Unsqueeze", [right, axes]))


def prelu(draft: Draft) -> None:
    """Before opset 7 a list of slopes was one a channel."""
    slope = draft.tensor_type(draft.need(1))
    if slope is not None and slope.shape is not None and len(slope.shape) == 1 and slope.shape[0] != 1:
        _align(draft, 1)


def gemm(draft: Draft) -> None:
    """Broadcasting of C had to be asked for."""
    draft.pop("broadcast")


def recurrent(draft: Draft) -> None:
    """Whether the sequence is an output was an attribute before opset 7."""
    draft.pop("output_sequence")


def label_encoder(draft: Draft) -> None:
    """Strings to their positions in a list, or back: which of them the type of the input decided."""
    classes = draft.pop("classes_strings", [])
    kind = draft.tensor_type(draft.need(0))
    if kind is None:
        raise draft.error("the element type of its input must be known")
    positions = list(range(len(classes)))
    forward: dict[str, Any] = {"keys_strings": classes, "values_int64s": positions}
    backward: dict[str, Any] = {"keys_int64s": positions, "values_strings": classes}
    draft.attributes.update(forward if kind.dtype == "string" else backward)


def quantized_convolution(draft: Draft) -> None:
    """com.microsoft's is ONNX's own, also for images whose channels are last; weights have theirs second either way."""
    draft.domain = ""
    if not draft.pop("channels_last", 0):
        return
    rank = draft.rank(draft.need(3)) or draft.rank(draft.need(0))
    if rank is None:
        raise draft.error("the number of dimensions of its weight must be known")
    draft.set_input(0, draft.emit("Transpose", [draft.need(0)], perm=[0, rank - 1, *range(1, rank - 1)]))
    wanted = draft.outputs[0]
    draft.outputs[0] = draft.new_value("channels_second")
    draft.follow("Transpose", [draft.outputs[0]], wanted, perm=[0, *range(2, rank), 1])


REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare".split()

ALWAYS = 2**31
"""Below this version stands every version: the operator itself is gone."""

ADAPTERS: dict[tuple[str, str], tuple[int, Adapter]] = {
    **{("", f"Reduce{name}"): (18, attribute_to_input("axes", 1)) for name in REDUCTIONS},
    **{("", name): (13, coerced_axis) for name in ("Softmax", "LogSoftmax", "Hardmax")},
    **{
        ("", name): (7, broadcast_axis)
        for name in ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
    },
    **{("", name): (7, recurrent) for name in ("RNN", "GRU", "LSTM")},
    ("", "BatchNormalization"): (14, batch_normalization),
    ("", "Clip"): (11, clip),
    ("", "DFT"): (20, dft),
    ("", "Dropout"): (12, dropout),
    ("", "Gemm"): (7, gemm),
    ("", "GridSample"): (20, grid_sample),
    ("", "GroupNormalization"): (21, group_normalization),
    ("", "OneHot"): (11, one_hot),
    ("", "PRelu"): (7, prelu),
    ("", "Pad"): (11, pad),
    ("", "ReduceSum"): (13, attribute_to_input("axes", 1)),
    ("", "Resize"): (13, resize),
    ("", "RoiAlign"): (16, roi_align),
    ("", "Scan"): (9, scan),
    ("", "Scatter"): (ALWAYS, scatter),
    ("", "Slice"): (10, slice_),
    ("", "Split"): (18, split),
    ("", "Squeeze"): (13, attribute_to_input("axes", 1)),
    ("", "TopK"): (10, topk),
    ("", "Unsqueeze"): (13, unsqueeze),
    ("", "Upsample"): (ALWAYS, upsample),
    ("ai.onnx.ml", "LabelEncoder"): (2, label_encoder),
    ("com.microsoft", "QLinearConv"): (ALWAYS, quantized_convolution),
}
"""(domain, operator): (below this version of the operator set, this adapter)."""


def adapt(draft: Draft) -> None:
    """Brings a node to the newest version of its operator."""
    below, adapter = ADAPTERS.get((draft.domain, draft.op), (0, None))
    if adapter is not None and draft.version < below:
        adapter(draft)
