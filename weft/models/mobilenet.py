"""MobileNet v1 (Howard et al., 2017) and v2 (Sandler et al., 2018)."""

from __future__ import annotations

from weft.graph.ir import Graph, Value
from weft.models.builder import Builder

_V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
_V2 = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def mobilenet_v1(batch: int = 1, seed: int = 0) -> Graph:
    """MobileNet v1: images of 3×224×224 to 1000 logits."""
    b = Builder("mobilenet_v1", seed)
    x = b.input("image", "float32", (batch, 3, 224, 224))
    x, channels = b.relu(b.batch_norm(b.conv(x, 3, 32, kernel=3, stride=2, padding=1), 32)), 32
    for width, stride in _V1:
        depthwise = b.conv(x, channels, channels, kernel=3, stride=stride, padding=1, groups=channels)
        x = b.relu(b.batch_norm(depthwise, channels))
        x = b.relu(b.batch_norm(b.conv(x, channels, width, kernel=1), width))
        channels = width
    return b.build({"logits": b.linear(b.pooled(x), channels, 1000)})


def mobilenet_v2(batch: int = 1, seed: int = 0) -> Graph:
    """MobileNet v2: images of 3×224×224 to 1000 logits."""
    b = Builder("mobilenet_v2", seed)
    x = b.input("image", "float32", (batch, 3, 224, 224))
    x, channels = b.relu6(b.batch_norm(b.conv(x, 3, 32, kernel=3, stride=2, padding=1), 32)), 32
    for expansion, width, count, stride in _V2:
        for i in range(count):
            x = _inverted_residual(b, x, channels, width, stride if i == 0 else 1, expansion)
            channels = width
    x = b.relu6(b.batch_norm(b.conv(x, channels, 1280, kernel=1), 1280))
    return b.build({"logits": b.linear(b.pooled(x), 1280, 1000)})


def _inverted_residual(b: Builder, x: Value, channels: int, width: int, stride: int, expansion: int) -> Value:
    """Wide inside, narrow at its ends; the input goes around it where the shapes allow."""
    hidden, y = channels * expansion, x
    if expansion != 1:
        y = b.relu6(b.batch_norm(b.conv(y, channels, hidden, kernel=1), hidden))
    y = b.relu6(b.batch_norm(b.conv(y, hidden, hidden, kernel=3, stride=stride, padding=1, groups=hidden), hidden))
    y = b.batch_norm(b.conv(y, hidden, width, kernel=1), width)
    return b.add(x, y) if stride == 1 and channels == width else y
