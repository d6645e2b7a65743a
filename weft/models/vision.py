"""Image models.

ResNet-18 and -50 (He et al., 2015), MobileNet v1 (Howard et al., 2017) and v2 (Sandler et al., 2018), DQN (Mnih et al.,
2015) and the generator of DCGAN (Radford et al., 2015).
"""

from __future__ import annotations

from weft.graph.ir import Graph, Value
from weft.models.builder import Builder

RESIDUAL = 0.4
"""The strength of what a residual block adds to its input: activations grow little from block to block."""


def _stem(b: Builder, x: Value) -> Value:
    x = b.relu(b.batch_norm(b.conv(x, 3, 64, 7, 2, 3), 64))
    made: Value = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return made


def _head(b: Builder, x: Value, channels: int) -> Graph:
    return b.finish(b.linear(b.pooled(x), channels, 1000), names=["logits"])


def _shortcut(b: Builder, x: Value, inputs: int, outputs: int, stride: int) -> Value:
    if stride == 1 and inputs == outputs:
        return x
    return b.batch_norm(b.conv(x, inputs, outputs, 1, stride), outputs)


def _basic(b: Builder, x: Value, inputs: int, outputs: int, stride: int) -> Value:
    y = b.relu(b.batch_norm(b.conv(x, inputs, outputs, 3, stride, 1), outputs))
    y = b.batch_norm(b.conv(y, outputs, outputs, 3, 1, 1), outputs, RESIDUAL)
    return b.relu(b.add(y, _shortcut(b, x, inputs, outputs, stride)))


def _bottleneck(b: Builder, x: Value, inputs: int, middle: int, stride: int) -> Value:
    outputs = middle * 4
    y = b.relu(b.batch_norm(b.conv(x, inputs, middle, 1), middle))
    y = b.relu(b.batch_norm(b.conv(y, middle, middle, 3, stride, 1), middle))
    y = b.batch_norm(b.conv(y, middle, outputs, 1), outputs, RESIDUAL)
    return b.relu(b.add(y, _shortcut(b, x, inputs, outputs, stride)))


def resnet18(batch: int = 1, seed: int = 0) -> Graph:
    """ResNet-18 for 224 × 224 images."""
    b = Builder("resnet18", seed)
    x = _stem(b, b.input("image", (batch, 3, 224, 224)))
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        x = _basic(b, x, inputs, outputs, stride)
        x = _basic(b, x, outputs, outputs, 1)
        inputs = outputs
    return _head(b, x, 512)


def resnet50(batch: int = 1, seed: int = 0) -> Graph:
    """ResNet-50 for 224 × 224 images."""
    b = Builder("resnet50", seed)
    x = _stem(b, b.input("image", (batch, 3, 224, 224)))
    inputs = 64
    for middle, stride, blocks in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for number in range(blocks):
            x = _bottleneck(b, x, inputs, middle, stride if number == 0 else 1)
            inputs = middle * 4
    return _head(b, x, 2048)


def mobilenet_v1(batch: int = 1, seed: int = 0) -> Graph:
    """MobileNet v1 for 224 × 224 images."""
    b = Builder("mobilenet_v1", seed)
    x = b.relu(b.batch_norm(b.conv(b.input("image", (batch, 3, 224, 224)), 3, 32, 3, 2, 1), 32))
    layers = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    layers += [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]
    for inputs, outputs, stride in layers:
        x = b.relu(b.batch_norm(b.conv(x, inputs, inputs, 3, stride, 1, groups=inputs), inputs))
        x = b.relu(b.batch_norm(b.conv(x, inputs, outputs, 1), outputs))
    return _head(b, x, 1024)


def _inverted(b: Builder, x: Value, inputs: int, outputs: int, stride: int, expand: int) -> Value:
    hidden = inputs * expand
    y = x
    if expand != 1:
        y = b.relu6(b.batch_norm(b.conv(y, inputs, hidden, 1), hidden))
    y = b.relu6(b.batch_norm(b.conv(y, hidden, hidden, 3, stride, 1, groups=hidden), hidden))
    y = b.batch_norm(b.conv(y, hidden, outputs, 1), outputs)
    return b.add(x, y) if stride == 1 and inputs == outputs else y


def mobilenet_v2(batch: int = 1, seed: int = 0) -> Graph:
    """MobileNet v2 for 224 × 224 images."""
    b = Builder("mobilenet_v2", seed)
    x = b.relu6(b.batch_norm(b.conv(b.input("image", (batch, 3, 224, 224)), 3, 32, 3, 2, 1), 32))
    inputs = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, outputs, blocks, stride in stages:
        for number in range(blocks):
            x = _inverted(b, x, inputs, outputs, stride if number == 0 else 1, expand)
            inputs = outputs
    x = b.relu6(b.batch_norm(b.conv(x, 320, 1280, 1), 1280))
    return _head(b, x, 1280)


def dqn(batch: int = 1, seed: int = 0) -> Graph:
    """The network of deep Q-learning: four frames of 84 × 84, 18 actions."""
    b = Builder("dqn", seed)
    x = b.input("frames", (batch, 4, 84, 84))
    for inputs, outputs, kernel, stride in ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)):
        x = b.relu(b.conv(x, inputs, outputs, kernel, stride, bias=True))
    x = b.relu(b.linear(b.node("Flatten", x, axis=1), 3136, 512))
    return b.finish(b.linear(x, 512, 18), names=["values"])


def dcgan(batch: int = 1, seed: int = 0) -> Graph:
    """The generator of DCGAN: 100 numbers to a 64 × 64 image."""
    b = Builder("dcgan", seed)
    x = b.input("noise", (batch, 100, 1, 1))
    channels = [100, 512, 256, 128, 64, 3]
    for number, (inputs, outputs) in enumerate(zip(channels, channels[1:])):
        stride, pad = (1, 0) if number == 0 else (2, 1)
        reached = inputs * (1 if number == 0 else 4)
        weight = b.normal(inputs, outputs, 4, 4, scale=(2 / reached) ** 0.5)
        x = b.node("ConvTranspose", x, weight, kernel_shape=[4, 4], strides=[stride] * 2, pads=[pad] * 4)
        x = b.node("Tanh", x) if outputs == 3 else b.relu(b.batch_norm(x, outputs))
    return b.finish(x, names=["image"])
