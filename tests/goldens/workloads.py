"""The workloads: layers of real models, sizes that no default was fitted to, and what is no product."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.graph.ir import Graph, Value
from weft.models.builder import Builder

WORKLOADS: dict[str, Callable[[], Graph]] = {}
"""Every workload by name, in the order of the goldens."""


class _Builder(Builder):
    """Draws a few weights of each kind again and again: a schedule asks for their sizes."""

    def normal(self, *shape: int, scale: float = 1.0, name: str = "weight") -> Value:
        """See Builder."""
        drawn = self.random.standard_normal(min(math.prod(shape), 1 << 16), np.float32)
        return self.constant(np.resize(drawn * np.float32(scale), shape), name)


def _add(name: str, body: Callable[[Builder], Value]) -> None:
    def make() -> Graph:
        b = _Builder(name)
        return b.finish(body(b), names=["out"])

    assert name not in WORKLOADS, name
    WORKLOADS[name] = make


# ------------------------------------------------------------------------------------------------------ convolutions


def _conv(b: Builder, inputs: int, outputs: int, size: int, kernel: int, stride: int, groups: int, batch: int) -> Value:
    """A convolution between two that exchange blocks of channels with it, so that it is seen as inside a model."""
    x = b.input("x", (batch, inputs, size, size))
    x = b.relu(x)
    return b.relu(b.conv(x, inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=True))


def _convs(kind: str, shapes: list[tuple[int, ...]]) -> None:
    for inputs, outputs, size, kernel, stride, groups, *batch in shapes:
        count = batch[0] if batch else 1
        mark = f"_s{stride}" * (stride > 1) + f"_g{groups}" * (1 < groups < inputs) + f"_n{count}" * (count > 1)
        name = f"{kind}_{kernel}x{kernel}_{inputs}_{outputs}_{size}{mark}"
        _add(name, lambda b, s=(inputs, outputs, size, kernel, stride, groups, count): _conv(b, *s))


_convs(
    "conv",
    [  # layers of the built-in models
        (3, 64, 224, 7, 2, 1),
        (64, 64, 56, 3, 1, 1),
        (64, 128, 56, 3, 2, 1),
        (64, 128, 56, 1, 2, 1),
        (128, 128, 28, 3, 1, 1),
        (256, 256, 14, 3, 1, 1),
        (512, 512, 7, 3, 1, 1),
        (64, 256, 56, 1, 1, 1),
        (256, 64, 56, 1, 1, 1),
        (1024, 256, 14, 1, 1, 1),
        (2048, 512, 7, 1, 1, 1),
        (3, 32, 224, 3, 2, 1),
        (32, 64, 112, 1, 1, 1),
        (24, 144, 56, 1, 1, 1),
        (320, 1280, 7, 1, 1, 1),
        (64, 64, 56, 3, 1, 1, 4),
    ],
)
_convs(
    "conv",
    [  # channels and sizes that fill no blocks
        (120, 120, 28, 3, 1, 1),
        (40, 72, 35, 3, 1, 1),
        (24, 24, 80, 3, 1, 1),
        (72, 24, 56, 1, 1, 1),
        (40, 120, 28, 1, 1, 1),
        (112, 112, 14, 3, 1, 1),
        (160, 160, 19, 3, 1, 1),
        (112, 672, 14, 1, 1, 1),
        (17, 33, 28, 3, 1, 1),
        (100, 10, 19, 1, 1, 1),
        (48, 96, 35, 5, 2, 1),
        (3, 24, 160, 3, 2, 1),
        (6, 16, 14, 5, 1, 1),
        (20, 50, 24, 5, 1, 1),
        (88, 88, 40, 3, 2, 1),
    ],
)
_convs(
    "groups",
    [
        (128, 128, 56, 3, 1, 32),
        (96, 96, 28, 3, 1, 4),
        (240, 240, 14, 3, 1, 15),
        (64, 64, 35, 3, 2, 2),
        (48, 48, 28, 5, 1, 12),
        (96, 256, 27, 5, 1, 2),
        (72, 72, 28, 3, 1, 6),
        (32, 256, 28, 3, 1, 32, 2),
    ],
)
_convs(
    "depthwise",
    [
        (32, 32, 112, 3, 1, 32),
        (64, 64, 112, 3, 2, 64),
        (512, 512, 14, 3, 1, 512),
        (1024, 1024, 7, 3, 1, 1024),
        (120, 120, 28, 5, 2, 120),
        (72, 72, 56, 5, 1, 72),
        (40, 40, 80, 3, 1, 40),
        (576, 576, 14, 5, 1, 576),
        (19, 19, 28, 7, 1, 19),
        (144, 144, 19, 3, 1, 144),
    ],
)


def _transposed(b: Builder, inputs: int, outputs: int, size: int, kernel: int, stride: int, pad: int) -> Value:
    weight = b.normal(inputs, outputs, kernel, kernel, scale=0.05)
    x = b.input("x", (1, inputs, size, size))
    return b.relu(b.node("ConvTranspose", x, weight, strides=[stride] * 2, pads=[pad] * 4, kernel_shape=[kernel] * 2))


for _shape in [
    (512, 256, 8, 4, 2, 1),
    (128, 3, 32, 4, 2, 1),
    (72, 40, 19, 4, 2, 1),
    (64, 64, 28, 2, 2, 0),
    (100, 512, 1, 4, 1, 0),
]:
    _add("transposed_" + "_".join(map(str, _shape)), lambda b, s=_shape: _transposed(b, *s))


def _conv1d(b: Builder, inputs: int, outputs: int, length: int, kernel: int, stride: int, dilation: int) -> Value:
    weight = b.normal(outputs, inputs, kernel, scale=0.05)
    pad = dilation * (kernel // 2)
    x = b.input("x", (1, inputs, length))
    return b.relu(b.node("Conv", x, weight, strides=[stride], pads=[pad] * 2, dilations=[dilation]))


for _shape in [(80, 512, 3000, 3, 1, 1), (512, 512, 1500, 3, 2, 1), (40, 40, 197, 5, 1, 2), (1, 10, 16000, 10, 5, 1)]:
    _add("conv1d_" + "_".join(map(str, _shape)), lambda b, s=_shape: _conv1d(b, *s))


def _conv3d(b: Builder) -> Value:
    weight = b.normal(64, 32, 3, 3, 3, scale=0.05)
    return b.relu(b.node("Conv", b.input("x", (1, 32, 8, 28, 28)), weight, pads=[1] * 6))


def _dilated(b: Builder) -> Value:
    weight = b.normal(256, 256, 3, 3, scale=0.02)
    return b.relu(b.node("Conv", b.input("x", (1, 256, 28, 28)), weight, pads=[12] * 4, dilations=[12, 12]))


_add("conv3d_32_64_28", _conv3d)
_add("dilated_256_256_28_d12", _dilated)


def _basic_block(b: Builder, channels: int, size: int) -> Value:
    x = b.input("x", (1, channels, size, size))
    y = b.relu(b.conv(x, channels, channels, 3, 1, 1, bias=True))
    return b.relu(b.add(b.conv(y, channels, channels, 3, 1, 1, bias=True), x))


def _inverted(b: Builder, inputs: int, middle: int, size: int, stride: int) -> Value:
    x = b.input("x", (1, inputs, size, size))
    y = b.relu(b.conv(x, inputs, middle, 1, bias=True))
    y = b.relu(b.conv(y, middle, middle, 5, stride, 2, groups=middle, bias=True))
    y = b.conv(y, middle, inputs, 1, bias=True)
    return b.add(y, x) if stride == 1 else y


for _channels, _size in ((64, 56), (120, 28), (72, 35)):
    _add(f"basic_block_{_channels}_{_size}", lambda b, c=_channels, n=_size: _basic_block(b, c, n))
for _shape in ((24, 144, 56, 1), (40, 120, 28, 1), (112, 672, 14, 2)):
    _add("inverted_" + "_".join(map(str, _shape)), lambda b, s=_shape: _inverted(b, *s))


def _squeeze_excite(b: Builder, channels: int, middle: int, size: int) -> Value:
    """Channels that are weighed by what they all are on average: convolutions of an image of one place, in blocks."""
    x = b.relu(b.conv(b.input("x", (1, 40, size, size)), 40, channels, 1, bias=True))
    y = b.relu(b.conv(b.node("GlobalAveragePool", x), channels, middle, 1, bias=True))
    return b.node("Mul", x, b.node("HardSigmoid", b.conv(y, middle, channels, 1, bias=True), alpha=1 / 6))


_add("squeeze_excite_240_64_14", lambda b: _squeeze_excite(b, 240, 64, 14))


def _bottleneck(b: Builder, channels: int, size: int, groups: int, stride: int) -> Value:
    """A convolution in groups between two that mix them: small groups take turns in a vector, where that pays."""
    x = b.relu(b.conv(b.input("x", (1, 64, size, size)), 64, channels, 1, bias=True))
    x = b.relu(b.conv(x, channels, channels, 3, stride, 1, groups=groups, bias=True))
    return b.conv(x, channels, 64, 1, bias=True)


for _shape in ((208, 14, 26, 1), (128, 56, 32, 2), (104, 28, 13, 1)):
    _add("bottleneck_" + "_".join(map(str, _shape)), lambda b, s=_shape: _bottleneck(b, *s))


def _quantized_conv(b: Builder, inputs: int, outputs: int, size: int, kernel: int) -> Value:
    """uint8 image, int8 weights, as QDQ models have them."""
    scale, zero = b.constant(np.float32(0.02)), b.constant(np.uint8(128))
    weight = b.constant(b.random.integers(-127, 128, (outputs, inputs, kernel, kernel)).astype(np.int8))
    small, none = b.constant(np.float32(0.01)), b.constant(np.int8(0))
    x = b.input("x", (1, inputs, size, size), "uint8")
    return b.node("QLinearConv", x, scale, zero, weight, small, none, scale, zero, pads=[kernel // 2] * 4)


for _shape in ((64, 64, 56, 3), (256, 64, 28, 1), (40, 72, 35, 3)):
    _add("qlinear_conv_" + "_".join(map(str, _shape)), lambda b, s=_shape: _quantized_conv(b, *s))

# ----------------------------------------------------------------------------------------------------------- products


def _dense(b: Builder, m: int, k: int, n: int, after: str) -> Value:
    x = b.input("x", (m, k))
    y = b.dense(x, k, n)
    return y if not after else b.node(after, y)


for _m, _k, _n, _after in [
    (1, 1024, 1000, ""),
    (1, 25088, 4096, "Relu"),
    (1, 650, 10000, ""),
    (4, 512, 512, "Relu"),
    (16, 768, 768, ""),
    (128, 768, 3072, "Gelu"),
    (128, 3072, 768, ""),
    (77, 768, 768, ""),
    (197, 384, 1536, "Gelu"),
    (577, 192, 576, ""),
    (512, 512, 512, ""),
    (35, 650, 2600, ""),
    (100, 100, 100, "Relu"),
    (7, 31, 13, ""),
    (1, 4096, 1, ""),
    (2048, 64, 10, ""),
    (33, 129, 257, "Tanh"),
    (1000, 3, 64, "Relu"),
]:
    _add(f"dense_{_m}_{_k}_{_n}", lambda b, s=(_m, _k, _n, _after): _dense(b, *s))


def _matmul(b: Builder, left: tuple[int, ...], right: tuple[int, ...], transposed: bool) -> Value:
    x, y = b.input("x", left), b.input("y", right)
    if transposed:
        order = [*range(len(right) - 2), len(right) - 1, len(right) - 2]
        y = b.node("Transpose", y, perm=order)
    return b.node("MatMul", x, y)


for _name, _left, _right, _turned in [
    ("square_512", (512, 512), (512, 512), False),
    ("turned_512", (512, 512), (512, 512), True),
    ("batch_12_128_64", (12, 128, 64), (12, 64, 128), False),
    ("batch_12_128_64_turned", (12, 128, 64), (12, 128, 64), True),
    ("batch_49_512_49", (1, 49, 512), (1, 512, 49), False),
    ("batch_64_49_32", (64, 49, 32), (64, 49, 32), True),
    ("vector_1024", (1, 1024), (1024, 1024), False),
    ("column_1024", (1024, 1024), (1024, 1), False),
    ("uneven_77_197_33", (77, 197), (197, 33), False),
    ("heads_8_577_64", (8, 577, 64), (8, 577, 64), True),
]:
    _add(f"matmul_{_name}", lambda b, s=(_left, _right, _turned): _matmul(b, *s))


def _integer(b: Builder, m: int, k: int, n: int) -> Value:
    weight = b.constant(b.random.integers(-127, 128, (k, n)).astype(np.int8))
    return b.node("MatMulInteger", b.input("x", (m, k), "uint8"), weight, b.constant(np.uint8(3)))


for _m, _k, _n in ((1, 1024, 1024), (128, 768, 768), (33, 129, 65)):
    _add(f"integer_{_m}_{_k}_{_n}", lambda b, s=(_m, _k, _n): _integer(b, *s))


def _attention(b: Builder, heads: int, queries: int, keys: int, size: int, causal: bool) -> Value:
    q, k, v = (b.input(n, (1, heads, rows, size)) for n, rows in (("q", queries), ("k", keys), ("v", keys)))
    return b.node("Attention", q, k, v, is_causal=int(causal))


for _shape in [
    (12, 128, 128, 64, False),
    (8, 77, 77, 64, False),
    (12, 197, 197, 64, False),
    (16, 1, 1024, 64, False),
    (12, 1024, 1024, 64, True),
    (6, 49, 49, 32, False),
]:
    _add("attention_" + "_".join(str(int(x)) for x in _shape), lambda b, s=_shape: _attention(b, *s))

# ---------------------------------------------------------------------------------------------- rows, reductions, rest


def _unary(op: str, shape: tuple[int, ...], **attributes: object) -> Callable[[Builder], Value]:
    return lambda b: b.node(op, b.input("x", shape), **attributes)


for _rows, _length in ((128, 768), (1, 30522), (4096, 49), (8, 100003), (197, 197)):
    _add(f"softmax_{_rows}_{_length}", _unary("Softmax", (_rows, _length), axis=-1))
_add("softmax_channels", _unary("Softmax", (1, 21, 65, 65), axis=1))
_add("log_softmax_1000", _unary("LogSoftmax", (16, 1000), axis=-1))
for _rows, _length in ((128, 768), (197, 192), (1, 4096), (3136, 96)):
    _add(f"layer_norm_{_rows}_{_length}", lambda b, r=_rows, n=_length: b.layer_norm(b.input("x", (1, r, n)), n))


def _normalized(op: str, shape: tuple[int, ...], **attributes: object) -> Callable[[Builder], Value]:
    def body(b: Builder) -> Value:
        scale, shift = b.normal(shape[1]), b.normal(shape[1])
        return b.node(op, b.input("x", shape), scale, shift, **attributes)

    return body


_add("group_norm_320_32", _normalized("GroupNormalization", (1, 320, 32, 32), num_groups=32))
_add("instance_norm_64_128", _normalized("InstanceNormalization", (1, 64, 128, 128)))


def _reduced(op: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> Callable[[Builder], Value]:
    return lambda b: b.node(op, b.input("x", shape), b.ints(*axes), keepdims=0)


for _op, _shape2, _axes in [
    ("ReduceMean", (1, 512, 7, 7), (2, 3)),
    ("ReduceSum", (1000, 1000), (0,)),
    ("ReduceSum", (1000, 1000), (1,)),
    ("ReduceMax", (1, 1000000), (1,)),
    ("ReduceSum", (64, 33, 17), (1,)),
    ("ReduceL2", (197, 768), (1,)),
    ("ReduceMean", (8, 120, 28, 28), (0, 2, 3)),
    ("ReduceProd", (5, 7), (0, 1)),
]:
    _label = "x".join(map(str, _shape2)) + "_over_" + "".join(map(str, _axes))
    _add(f"{_op.lower()}_{_label}", _reduced(_op, _shape2, _axes))
_add("argmax_8_30522", _unary("ArgMax", (8, 30522), axis=1))
_add("cumsum_64_1000", lambda b: b.node("CumSum", b.input("x", (64, 1000)), b.constant(np.int64(1))))
for _kernel, _stride, _shape2 in ((3, 2, (1, 64, 112, 112)), (2, 2, (1, 40, 35, 35)), (5, 1, (1, 256, 20, 20))):
    _name = f"max_pool_{_kernel}_{_stride}_{_shape2[1]}"
    _attributes = {"kernel_shape": [_kernel] * 2, "strides": [_stride] * 2, "pads": [_kernel // 2] * 4}
    _add(_name, _unary("MaxPool", _shape2, **_attributes))
_add("average_pool_3_1_72", _unary("AveragePool", (1, 72, 35, 35), kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
for _shape2, _order in [
    ((1024, 1024), (1, 0)),
    ((1, 128, 12, 64), (0, 2, 1, 3)),
    ((1, 3, 224, 224), (0, 2, 3, 1)),
    ((1, 72, 35, 35), (0, 2, 3, 1)),
    ((19, 7, 33), (2, 0, 1)),
]:
    _add(
        "transpose_" + "x".join(map(str, _shape2)) + "_" + "".join(map(str, _order)),
        _unary("Transpose", _shape2, perm=list(_order)),
    )


def _chain(b: Builder) -> Value:
    x = b.input("x", (1, 77, 768))
    return b.node("Mul", b.node("Sigmoid", b.add(x, b.normal(768))), b.node("Tanh", x))


_add("chain_77_768", _chain)
_add("gelu_128_3072", _unary("Gelu", (128, 3072)))
_add("erf_197_1536", _unary("Erf", (197, 1536)))
_add(
    "concat_channels",
    lambda b: b.node("Concat", b.relu(b.input("x", (1, 24, 56, 56))), b.input("y", (1, 40, 56, 56)), axis=1),
)
_add("gather_rows", lambda b: b.node("Gather", b.normal(1000, 64), b.input("i", (128,), "int64"), axis=0))
_add(
    "resize_2_72",
    lambda b: b.node(
        "Resize", b.input("x", (1, 72, 19, 19)), None, b.constant(np.float32([1, 1, 2, 2])), mode="linear"
    ),
)
_add(
    "where_broadcast",
    lambda b: b.node("Where", b.input("c", (128, 1), "bool"), b.input("x", (128, 77)), b.input("y", (77,))),
)
_add("topk_25200", lambda b: b.node("TopK", b.input("x", (1, 25200)), b.ints(100), outputs=2)[0])
_add("sort_1000", lambda b: b.node("TopK", b.input("x", (16, 1000)), b.ints(1000), outputs=2)[0])
_add("narrow_cast", lambda b: b.node("Cast", b.input("x", (128, 768), "float16"), to=1))


def _recurrent(op: str, gates: int, steps: int, batch: int, inputs: int, hidden: int) -> Callable[[Builder], Value]:
    def body(b: Builder) -> Value:
        weight, again = b.normal(1, gates * hidden, inputs, scale=0.05), b.normal(1, gates * hidden, hidden, scale=0.05)
        return b.node(
            op, b.input("x", (steps, batch, inputs)), weight, again, b.normal(1, 2 * gates * hidden), hidden_size=hidden
        )

    return body


for _op, _gates, *_shape3 in [
    ("LSTM", 4, 35, 1, 650, 650),
    ("LSTM", 4, 20, 16, 128, 256),
    ("GRU", 3, 50, 1, 40, 100),
    ("RNN", 1, 10, 4, 33, 65),
]:
    _add(f"{_op.lower()}_" + "_".join(map(str, _shape3)), _recurrent(_op, _gates, *_shape3))
