"""Converters of convolutions, pooling, products of matrices, normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Unsupported
from weft.frontends.tflite.table import moves, operator
from weft.graph.ir import Value

_ACTIVATIONS = {1: "Relu", 4: "Tanh"}
_BOUNDS = {2: (-1.0, 1.0), 3: (0.0, 6.0)}


def activated(c: Any, x: Value, code: int) -> Value:
    """x under the activation that an operator ends with."""
    if code in _BOUNDS:
        low, high = _BOUNDS[code]
        return c.op("Clip", x, c.value(low, x.tensor.dtype), c.value(high, x.tensor.dtype))  # type: ignore[no-any-return]
    if code in _ACTIVATIONS:
        return c.op(_ACTIVATIONS[code], x)  # type: ignore[no-any-return]
    if code:
        raise Unsupported(f"the activation {code}")
    return x


def same_pads(sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], gaps: Sequence[int]) -> list[int]:
    """Padding by which there is one result for each stride, the odd element behind."""
    totals = []
    for size, taps, stride, gap in zip(sizes, window, strides, gaps):
        reach = (taps - 1) * gap + 1
        totals.append(max((-(-size // stride) - 1) * stride + reach - size, 0))
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def to_first(c: Any, x: Value) -> Value:
    """Channels from the last axis to the second."""
    rank = x.tensor.rank
    return c.transpose(x, [0, rank - 1, *range(1, rank - 1)])  # type: ignore[no-any-return]


def to_last(c: Any, x: Value) -> Value:
    """Channels from the second axis to the last."""
    rank = x.tensor.rank
    return c.transpose(x, [0, *range(2, rank), 1])  # type: ignore[no-any-return]


def _pads(padding: int, x: Value, window: Sequence[int], strides: Sequence[int], gaps: Sequence[int]) -> list[int]:
    sizes = x.tensor.static[1:-1]
    return same_pads(sizes, window, strides, gaps) if padding == 0 else [0] * (2 * len(sizes))


def _convolved(
    c: Any, x: Value, weight: Value, bias: Value | None, order: Sequence[int], groups: int, padding: int,
    strides: list[int], gaps: list[int], activation: int,
) -> Value:  # fmt: skip
    weight = c.transpose(weight, order)
    window = list(weight.tensor.static[2:])
    made = c.op(
        "Conv", to_first(c, x), weight, bias, kernel_shape=window, strides=strides, dilations=gaps, group=groups,
        pads=_pads(padding, x, window, strides, gaps),
    )  # fmt: skip
    return to_last(c, activated(c, made, activation))


@operator("CONV_2D")
def _conv(c: Any, op: Any, x: Value, weight: Value, bias: Value | None = None) -> Value:
    strides, gaps = [op.option(2), op.option(1)], [op.option(5, default=1), op.option(4, default=1)]
    groups = x.tensor.static[3] // weight.tensor.static[3]
    return _convolved(
        c, x, weight, bias, [0, 3, 1, 2], groups, op.option(0, "b"), strides, gaps, op.option(3, "b")
    )  # fmt: skip


@operator("DEPTHWISE_CONV_2D")
def _depthwise(c: Any, op: Any, x: Value, weight: Value, bias: Value | None = None) -> Value:
    strides, gaps = [op.option(2), op.option(1)], [op.option(6, default=1), op.option(5, default=1)]
    return _convolved(
        c, x, weight, bias, [3, 0, 1, 2], x.tensor.static[3], op.option(0, "b"), strides, gaps, op.option(4, "b")
    )


@operator("CONV_3D")
def _conv3d(c: Any, op: Any, x: Value, weight: Value, bias: Value | None = None) -> Value:
    strides = [op.option(1), op.option(3), op.option(2)]
    gaps = [op.option(5, default=1), op.option(7, default=1), op.option(6, default=1)]
    return _convolved(c, x, weight, bias, [4, 3, 0, 1, 2], 1, op.option(0, "b"), strides, gaps, op.option(4, "b"))


def transposed(
    c: Any, x: Value, weight: Value, bias: Value | None, shape: Sequence[int], padding: int, strides: list[int]
) -> Value:
    """A transposed convolution to a shape; the weight has the axes output, height, width, input."""
    window = list(weight.tensor.static[1:3])
    sizes = list(shape[1:3])
    pads = same_pads(sizes, window, strides, [1, 1]) if padding == 0 else [0] * 4
    have = x.tensor.static[1:3]
    more = [
        want - ((size - 1) * stride + taps - pads[at] - pads[at + 2])
        for at, (want, size, stride, taps) in enumerate(zip(sizes, have, strides, window))
    ]
    made = c.op(
        "ConvTranspose", to_first(c, x), c.transpose(weight, [3, 0, 1, 2]), bias, kernel_shape=window, strides=strides,
        pads=pads, output_padding=more if any(more) else None,
    )  # fmt: skip
    return to_last(c, made)


@operator("TRANSPOSE_CONV")
def _transpose_conv(c: Any, op: Any, shape: Value, weight: Value, x: Value, bias: Value | None = None) -> Value:
    made = transposed(c, x, weight, bias, c.ints(shape), op.option(0, "b"), [op.option(2), op.option(1)])
    return activated(c, made, op.option(3, "b"))


@operator("CUSTOM Convolution2DTransposeBias")
def _transpose_bias(c: Any, op: Any, x: Value, weight: Value, bias: Value) -> Value:
    """MediaPipe's: its options are three numbers, padding and the strides."""
    padding, width, height = np.frombuffer(op.custom[:12], "<i4").tolist()
    shape = op.outputs[0].shape
    return transposed(c, x, weight, bias, shape, 0 if padding == 1 else 1, [height, width])


def _pooled(c: Any, op: Any, x: Value, name: str) -> Value:
    strides, window = [op.option(2), op.option(1)], [op.option(4), op.option(3)]
    pads = _pads(op.option(0, "b"), x, window, strides, [1, 1])
    made = c.op(name, to_first(c, x), kernel_shape=window, strides=strides, pads=pads)
    return to_last(c, activated(c, made, op.option(5, "b")))


@moves("MAX_POOL_2D")
def _max_pool(c: Any, op: Any, x: Value) -> Value:
    if x.tensor.dtype.startswith(("int", "uint")) and op.option(5, "b"):
        raise Unsupported("a quantized MAX_POOL_2D with an activation")
    return _pooled(c, op, x, "MaxPool")


@operator("AVERAGE_POOL_2D")
def _average_pool(c: Any, op: Any, x: Value) -> Value:
    return _pooled(c, op, x, "AveragePool")


@operator("L2_POOL_2D")
def _l2_pool(c: Any, op: Any, x: Value) -> Value:
    return c.op("Sqrt", _pooled(c, op, c.op("Mul", x, x), "AveragePool"))  # type: ignore[no-any-return]


@operator("FULLY_CONNECTED")
def _dense(c: Any, op: Any, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if op.option(1, "b"):
        raise Unsupported("shuffled weights")
    rows, length = weight.tensor.static
    keeps = bool(op.option(2, "?", False))
    lead = list(x.tensor.static[:-1]) if keeps else [int(np.prod(x.tensor.static)) // length]
    if weight not in c.constants and weight.tensor.dtype != "float32":
        weight = c.cast(weight, "float32")
    made = c.op("MatMul", c.reshape(x, [*lead, length]), c.transpose(weight, [1, 0]))
    made = made if bias is None else c.op("Add", made, bias)
    return activated(c, made, op.option(0, "b"))


@operator("BATCH_MATMUL")
def _matmul(c: Any, op: Any, a: Value, b: Value) -> Value:
    a = c.swap(a, -2, -1) if op.option(0, "?", False) else a
    b = c.swap(b, -2, -1) if op.option(1, "?", False) else b
    return c.op("MatMul", a, b)  # type: ignore[no-any-return]


@operator("L2_NORMALIZATION")
def _l2(c: Any, op: Any, x: Value) -> Value:
    total = c.op("ReduceSum", c.op("Mul", x, x), [-1], keepdims=1)
    return c.op("Div", x, c.op("Sqrt", c.op("Max", total, np.float32(1e-6))))  # type: ignore[no-any-return]


@operator("LOCAL_RESPONSE_NORMALIZATION")
def _lrn(c: Any, op: Any, x: Value) -> Value:
    size = 2 * op.option(0) + 1
    bias, alpha, beta = (op.option(at, "f", 0.0) for at in (1, 2, 3))
    return to_last(c, c.op("LRN", to_first(c, x), size=size, bias=bias, alpha=alpha * size, beta=beta))


def _resized(c: Any, x: Value, size: Value, mode: str, aligned: bool, halves: bool) -> Value:
    wanted = c.ints(size)
    how = "align_corners" if aligned else "half_pixel" if halves else "asymmetric"
    given: dict[str, Any] = {"coordinate_transformation_mode": how, "mode": mode}
    if mode == "nearest":
        given["nearest_mode"] = "round_prefer_ceil" if aligned or halves else "floor"
    sizes = [x.tensor.static[0], x.tensor.static[3], *wanted]
    return to_last(c, c.op("Resize", to_first(c, x), None, None, sizes, **given))


@operator("RESIZE_BILINEAR")
def _bilinear(c: Any, op: Any, x: Value, size: Value) -> Value:
    return _resized(c, x, size, "linear", bool(op.option(2, "?", False)), bool(op.option(3, "?", False)))


@moves("RESIZE_NEAREST_NEIGHBOR")
def _nearest(c: Any, op: Any, x: Value, size: Value) -> Value:
    return _resized(c, x, size, "nearest", bool(op.option(0, "?", False)), bool(op.option(1, "?", False)))


@operator("SOFTMAX")
def _softmax(c: Any, op: Any, x: Value) -> Value:
    beta = op.option(0, "f", 0.0)
    scaled = x if beta == 1.0 else c.op("Mul", x, np.float32(beta))
    return c.op("Softmax", scaled, axis=-1)  # type: ignore[no-any-return]


@operator("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(c: Any, op: Any, x: Value, *rest: Value | None) -> Value:
    """Inputs 1 to 4 are weights of the input (i, f, c, o), 5 to 8 of the state, 12 to 15 biases, 18 and 19 states."""
    given = [x, *rest, *[None] * 24]
    if any(given[at] is not None for at in (9, 10, 11, 16, 17, 20, 21, 22, 23)) or given[1] is None:
        raise Unsupported("an LSTM with peepholes, projection, normalisation or coupled gates")
    if op.option(1, "f", 0.0) or op.option(0, "b") != 4 or any(given[at] is None for at in (18, 19)):
        raise Unsupported("an LSTM with clipping, or another activation than tanh")
    order = (0, 3, 1, 2)  # ONNX has input, output, forget, cell
    weights, states, biases = (c.concat([given[base + at] for at in order], 0) for base in (1, 5, 12))
    width = states.tensor.static[1]
    bias = c.concat([biases, c.constant(np.zeros(4 * width, np.float32))], 0)
    x = x if op.option(3, "?", False) else c.swap(x, 0, 1)
    first = [c.unsqueeze(given[at], 0) for at in (18, 19)]
    made = c.several(
        3, "LSTM", x, c.unsqueeze(weights, 0), c.unsqueeze(states, 0), c.unsqueeze(bias, 0), None, *first,
        hidden_size=width,
    )[0]  # fmt: skip
    made = c.squeeze(made, 1)
    return made if op.option(3, "?", False) else c.swap(made, 0, 1)  # type: ignore[no-any-return]
