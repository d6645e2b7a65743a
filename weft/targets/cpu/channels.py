"""What operators take with more or fewer channels: the prices by which `pad_channels` chooses.

The same estimates as those of the sketches that such operators get (`sketches/conv.py`, `conv_rows.py`) and of the
choice between algorithms (`algorithms.py`): a convolution in blocks of as many channels as divide both its own and a
vector's, in rows where there are none, or by Winograd's method where both of its sides are whole vectors.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from weft.core.knobs import knobs
from weft.core.model import LEAST_BLOCK
from weft.graph.ir import Node
from weft.graph.opspec import Use, has
from weft.graph.passes.pad_channels import Prices, Sides
from weft.ops.convolution_window import Window
from weft.plan.sketch import ceildiv
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.algorithms import Convolution, convolution_of, ranked_tiles, winograd_cycles
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.machine import core_of, seconds
from weft.targets.cpu.sketches import conv, conv_rows


def prices(target: Target, model_bytes: int) -> Prices | None:
    """What `pad_channels` asks, for one machine and a model with so many bytes of weights."""
    lanes = target.vector_bytes // 4
    if lanes < LEAST_BLOCK or not target.blocks_channels or not knobs.layout:
        return None
    priced = _Priced(target, lanes, model_bytes)
    return Prices(lanes, priced.node, priced.copy, model.PADDING_SAVES, model.TURNS_SAVE)


@dataclass(frozen=True)
class _Sizes:
    """A convolution: `frames` images of `height` × `width` results, from windows that move by `step` rows."""

    inputs: int
    outputs: int
    groups: int
    taps: tuple[int, ...]
    frames: int
    height: int
    width: int
    step: int
    image: int
    """Elements of a channel of what it reads."""
    turns: int
    """Groups that take turns in a block."""
    window: Convolution | None
    """What Winograd's method sees; None where it does not know the window."""


class _Priced:
    """One machine."""

    def __init__(self, target: Target, lanes: int, model_bytes: int) -> None:
        self.target = target
        self.lanes = lanes
        self.model_bytes = model_bytes
        self.convolution = functools.lru_cache(maxsize=None)(self._convolution)

    def node(self, node: Node, sides: Sides) -> float:
        """Seconds of an operator."""
        made, image, outputs = node.outputs[0].tensor.static, node.inputs[0], sides.outputs
        if has(node, "convolution"):
            return self.convolution(self.sizes(node, sides), sides.inner_input, sides.inner_output)
        read = 0 if image is None else math.prod(image.tensor.static)
        taps = math.prod(node.attributes.get("kernel_shape", ())) if has(node, "windowed") else 1
        elements = max(math.prod(made) * taps, read) // made[1] * outputs
        return float(seconds(model.STEP_CYCLES * elements / (self.block(outputs) or self.lanes), self.target))

    def copy(self, elements: int) -> float:
        """Seconds of a copy that reads and writes so many elements together."""
        return float(seconds(self.cycles(4 * elements), self.target))

    def block(self, channels: int) -> int:
        """The channels of a block; 0 where they are stored plainly."""
        found = math.gcd(channels, self.lanes)
        return found if found >= LEAST_BLOCK else 0

    def _convolution(self, sizes: _Sizes, inner_input: bool, inner_output: bool) -> float:
        """Seconds of a convolution; what stays between kernels is stored in blocks."""
        if sizes.height * sizes.width == 1:  # a product of matrices
            return self.in_register_tiles(sizes, self.lanes)
        block = self.block(sizes.outputs)
        if 1 < sizes.groups < sizes.outputs:  # a block would mix groups, unless they take turns
            if sizes.turns == 1:
                return self.in_rows(sizes)
            return self.in_blocks(sizes) if inner_input and inner_output else math.inf
        ways = [self.in_register_tiles(sizes, block if block and inner_output else self.lanes)]
        if block and (inner_output or block == self.lanes):
            ways.append(self.in_blocks(sizes))
        # Neighbours of a row are not far apart where the image is plain, or its blocks are small.
        near = not inner_input or self.block(sizes.inputs) <= model.LARGEST_STEP_OF_ROWS
        if not block or (near and not inner_output):
            ways.append(self.in_rows(sizes))
        facts = sizes.window
        if facts is not None and knobs.winograd:
            moved = 0 if inner_input else math.prod(facts.strides) * sizes.inputs
            plain = moved + (0 if inner_output else sizes.outputs)
            turned = model.TURNED_CYCLES * plain * facts.elements
            for tile in ranked_tiles(facts, self.target)[:1]:
                ways.append(float(seconds(winograd_cycles(facts, tile, self.target) + turned, self.target)))
        return min(ways)

    def in_blocks(self, sizes: _Sizes) -> float:
        """As `sketches/conv.py` estimates it."""
        block, taps = self.block(sizes.outputs), math.prod(sizes.taps)
        depthwise, apart = sizes.groups == sizes.outputs > 1, sizes.groups > 1
        depth = taps * sizes.inputs // sizes.groups
        blocks, pixels = sizes.outputs // block, sizes.width
        registers, read = max(self.target.vector_registers, 8), tuple[int, ...]()
        if depthwise:
            pixels = min(pixels, max(4, model.MOST_UNROLLED // depth))
        if apart:
            read = conv.pixels_read(range(sizes.taps[-1]), sizes.step, min(pixels, registers))
        written = 1 if depthwise else sizes.taps[-1] if apart else 1
        size = conv.Size(1 if apart else blocks, sizes.height, pixels, registers, read=read, taps=written)
        pitch = 0 if depthwise else 4 * block * sizes.step
        walk = conv.walk_of(self.target, depth, 4 * depth * block, 4 * depth * sizes.outputs, pitch)
        again = sizes.frames * (blocks * (ceildiv(sizes.width, pixels) if depthwise else 1) if apart else 1)
        return float(seconds(again * depth * size.least(walk), self.target))

    def in_register_tiles(self, sizes: _Sizes, lanes: int) -> float:
        """As `sketches/register_tile.py` estimates it, with so many lanes of a vector."""
        pixels = sizes.frames * sizes.height * sizes.width
        depth = sizes.inputs // sizes.groups * math.prod(sizes.taps)
        registers = max(self.target.vector_registers, 8)
        tiles = model.Tiles(core_of(self.target), pixels, ceildiv(sizes.outputs, lanes), depth, registers)
        return float(seconds(model.UNBLOCKED * tiles.best[1], self.target))

    def in_rows(self, sizes: _Sizes) -> float:
        """As `sketches/conv_rows.py` estimates it."""
        if sizes.step == 1 and math.prod(sizes.taps) == 1 and sizes.outputs // sizes.groups % self.lanes:  # one row
            sizes = replace(sizes, height=1, width=sizes.height * sizes.width)
        down = conv_rows.Taps(sizes.taps[-2] if len(sizes.taps) > 1 else 1, 1, sizes.step)
        registers, wide = max(8, self.target.vector_registers), ceildiv(sizes.width, self.lanes)
        group, depth = sizes.outputs // sizes.groups, sizes.inputs // sizes.groups * math.prod(sizes.taps)
        core, masks = core_of(self.target), has_masks(self.target.features, 32)
        size = conv_rows.Size(core, group, sizes.height, wide, registers, down, depth, masks=masks)
        computing = model.crossed(self.target) * sizes.frames * sizes.groups * depth / down.count * size.least()
        image, made = 4 * sizes.inputs * sizes.image, 4 * sizes.frames * sizes.height * sizes.width * sizes.outputs
        streaming = self.cycles(image + made + 4 * depth * sizes.outputs, 2)
        return float(seconds(model.overlapped(computing, streaming) + self.cycles(2 * image), self.target))

    def cycles(self, size: int, times: int = 1) -> float:
        """Cycles in which so many bytes come from where so many times as many lie."""
        return size / model.bytes_a_cycle(times * size, self.target)

    def sizes(self, node: Node, sides: Sides) -> _Sizes:
        """Those of a convolution with other channels."""
        image, weight = node.inputs[:2]
        assert image is not None and weight is not None
        made, taps = node.outputs[0].tensor.static, weight.tensor.static[2:]
        groups = 1 if int(node.attributes.get("group", 1)) == 1 else sides.outputs // weight.tensor.static[1]
        height = made[-2] if len(made) > 3 else 1
        found = convolution_of(node, weight.tensor, self.model_bytes)
        return _Sizes(
            sides.inputs, sides.outputs, groups, taps, math.prod(made) // (made[1] * height * made[-1]), height,
            made[-1], Window(Use(node), taps).strides[-2] if len(taps) > 1 else 1,
            math.prod(image.tensor.static) // image.tensor.static[1], sides.turns,
            None if found is None else replace(found[0], inputs=sides.inputs, outputs=sides.outputs),
        )  # fmt: skip
