"""ResNet-18 and ResNet-50: He et al., Deep Residual Learning for Image Recognition (2015)."""

from __future__ import annotations

from weft.graph.ir import Graph, Value
from weft.models.builder import Builder

RESIDUAL = 0.4
"""The strength of what a block adds to its input: activations grow little from block to block."""


def resnet18(batch: int = 1, seed: int = 0) -> Graph:
    """ResNet-18: images of 3×224×224 to 1000 logits."""
    b = Builder("resnet18", seed)
    x, channels = _stem(b, batch), 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        x = _basic(b, x, channels, width, stride)
        x = _basic(b, x, width, width, 1)
        channels = width
    return b.build({"logits": b.linear(b.pooled(x), 512, 1000)})


def resnet50(batch: int = 1, seed: int = 0) -> Graph:
    """ResNet-50: images of 3×224×224 to 1000 logits."""
    b = Builder("resnet50", seed)
    x, channels = _stem(b, batch), 64
    for width, stride, count in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for i in range(count):
            x = _bottleneck(b, x, channels, width, stride if i == 0 else 1)
            channels = 4 * width
    return b.build({"logits": b.linear(b.pooled(x), 2048, 1000)})


def _stem(b: Builder, batch: int) -> Value:
    x = b.input("image", "float32", (batch, 3, 224, 224))
    x = b.relu(b.batch_norm(b.conv(x, 3, 64, kernel=7, stride=2, padding=3), 64))
    return b.max_pool(x, kernel=3, stride=2, padding=1)


def _basic(b: Builder, x: Value, channels: int, width: int, stride: int) -> Value:
    """Two convolutions of 3×3 around which the input goes."""
    y = b.relu(b.batch_norm(b.conv(x, channels, width, kernel=3, stride=stride, padding=1), width))
    y = b.batch_norm(b.conv(y, width, width, kernel=3, padding=1), width, RESIDUAL)
    return b.relu(b.add(y, _shortcut(b, x, channels, width, stride)))


def _bottleneck(b: Builder, x: Value, channels: int, width: int, stride: int) -> Value:
    """A convolution of 3×3 between two of 1×1, the last four times as wide."""
    y = b.relu(b.batch_norm(b.conv(x, channels, width, kernel=1), width))
    y = b.relu(b.batch_norm(b.conv(y, width, width, kernel=3, stride=stride, padding=1), width))
    y = b.batch_norm(b.conv(y, width, 4 * width, kernel=1), 4 * width, RESIDUAL)
    return b.relu(b.add(y, _shortcut(b, x, channels, 4 * width, stride)))


def _shortcut(b: Builder, x: Value, channels: int, width: int, stride: int) -> Value:
    """The input itself, or where its shape does not fit, its projection."""
    if stride == 1 and channels == width:
        return x
    return b.batch_norm(b.conv(x, channels, width, kernel=1, stride=stride), width)
