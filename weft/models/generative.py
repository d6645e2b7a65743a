"""DQN (Mnih et al., 2015) and the generator of DCGAN (Radford et al., 2015)."""

from __future__ import annotations

from weft.graph.ir import Graph
from weft.models.builder import Builder


def dqn(batch: int = 1, seed: int = 0) -> Graph:
    """DQN: four frames of 84×84 to the values of 18 actions."""
    b = Builder("dqn", seed)
    x = b.input("frames", "float32", (batch, 4, 84, 84))
    x = b.relu(b.conv(x, 4, 32, kernel=8, stride=4, bias=True))
    x = b.relu(b.conv(x, 32, 64, kernel=4, stride=2, bias=True))
    x = b.relu(b.conv(x, 64, 64, kernel=3, bias=True))
    x = b.relu(b.linear(b.node("Flatten", x, axis=1), 64 * 7 * 7, 512))
    return b.build({"values": b.linear(x, 512, 18)})


def dcgan(batch: int = 1, seed: int = 0) -> Graph:
    """The generator of DCGAN: 100 random numbers to an image of 3×64×64."""
    b = Builder("dcgan", seed)
    x, channels = b.input("noise", "float32", (batch, 100, 1, 1)), 100
    for width, stride, padding in ((512, 1, 0), (256, 2, 1), (128, 2, 1), (64, 2, 1)):
        x = b.conv_transpose(x, channels, width, kernel=4, stride=stride, padding=padding)
        x = b.relu(b.batch_norm(x, width))
        channels = width
    return b.build({"image": b.node("Tanh", b.conv_transpose(x, channels, 3, kernel=4, stride=2, padding=1))})
