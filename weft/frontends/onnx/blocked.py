"""Models that ONNX Runtime saved after its last optimisations: operators of com.microsoft.nchwc, made plain again.

There, images lie in blocks of channels, and weights in the order that its kernels read. The shapes in the file are
those of plain images whose channels fill whole blocks, so that the same graph over plain images means the same; which
layout suits the machine is for our own passes to say.

    ReorderInput(x)                         ->   Pad(x), so that channels fill blocks
    Conv(x, w blocked, bias, sum)           ->   com.microsoft.FusedConv(x, w plain, bias, sum)
    Upsample(x) {scales}                    ->   Resize(x, None, scales) {asymmetric, floor}
    ReorderOutput(x) {channels=c}           ->   Slice(x) of the first c channels

The file does not say how large a block is: it is a vector of the machine that wrote it, 16 numbers or 8. It is 8 where
some convolution's channels do not fill blocks of 16; otherwise it is taken to be 16, with a warning that says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from weft.core.errors import FrontendError
from weft.frontends.onnx.scope import Draft
from weft.graph.ir import Array

DOMAIN = "com.microsoft.nchwc"


class BlockWarning(UserWarning):
    """A file of which we had to guess how its weights lie."""


GUESSED = (
    f"the weights of {DOMAIN} are taken to lie in blocks of 16 channels, as ONNX Runtime writes them on processors "
    "with AVX-512; the file does not say so, and one from another processor (blocks of 8) would give wrong results. "
    "Save the model with ONNX Runtime's optimisation level 'extended' or lower, or give the original, to be sure"
)


def block_size(graph: Any) -> int:
    """How many channels are in a block of the images of a graph of the file."""
    counts = set(_output_channels(graph))
    if all(count % 16 == 0 for count in counts):
        if counts:
            warnings.warn(GUESSED, BlockWarning, stacklevel=2)
        return 16
    if all(count % 8 == 0 for count in counts):
        return 8
    raise FrontendError(f"convolutions of {DOMAIN} make {sorted(counts)} channels, which fill no blocks of 8 or 16")


def _output_channels(graph: Any) -> Iterator[int]:
    """The channels that each blocked convolution of a graph and of those inside it makes."""
    dims = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type == "Conv" and len(node.input) > 1 and dims.get(node.input[1]):
            yield int(dims[node.input[1]][0])
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _output_channels(inner)


def adapt_blocked(draft: Draft, block: int) -> None:
    """Brings a node of the domain to plain operators."""
    OPERATORS[draft.op](draft, block)
    draft.domain = "com.microsoft" if draft.op == "FusedConv" else ""


def _reorder_input(draft: Draft, block: int) -> None:
    """Channels behind the last one are zeros."""
    image = draft.need(0)
    if draft.pop("channels_last", 0):
        image = draft.emit("Transpose", [image], perm=[0, 3, 1, 2])
    channels = draft.emit("Shape", [image], start=1, end=2)
    size = draft.constant(np.array([block], np.int64), "block")
    missing = draft.emit("Mod", [draft.emit("Neg", [channels]), size])
    axes = draft.constant(np.array([1], np.int64), "axes")
    none = draft.constant(np.array([0], np.int64), "none")
    draft.op, draft.inputs = "Pad", [image, draft.emit("Concat", [none, missing], axis=0), None, axes]


def _reorder_output(draft: Draft, block: int) -> None:
    """The channels that fill the last block go away."""
    if "channels" not in draft.attributes:
        raise draft.error("the attribute 'channels' is missing")
    ends = [draft.constant(np.array([n], np.int64), name) for n, name in ((0, "start"), (draft.pop("channels"), "end"))]
    axes = draft.constant(np.array([1], np.int64), "axes")
    inputs = [draft.need(0), *ends, axes]
    if draft.pop("channels_last", 0):
        draft.op, draft.inputs = "Transpose", [draft.emit("Slice", inputs)]
        draft.attributes = {"perm": [0, 2, 3, 1]}
    else:
        draft.op, draft.inputs = "Slice", [*inputs]


def _conv(draft: Draft, block: int) -> None:
    """A convolution with a bias, something added, and an activation."""
    weight = draft.known(draft.need(1))
    if weight is None or weight.ndim != 4:
        raise draft.error("its weight must be a constant of four dimensions")
    if weight.shape[0] % block:
        raise draft.error(f"{weight.shape[0]} channels do not fill blocks of {block}")
    plain = plain_weight(weight, block, int(draft.attributes.get("group", 1)))
    if plain is None:
        raise draft.error(f"a weight of {weight.shape} does not lie in blocks of {block}")
    draft.set_input(1, draft.constant(plain, "weight"))
    draft.op = "FusedConv"


def plain_weight(weight: Array, block: int, groups: int) -> Array | None:
    """A weight as ONNX orders it; None where its sizes fit no blocks.

    A window for each channel, or an image with fewer channels than a block, has blocks of output channels only.
    """
    outputs, inputs, height, width = weight.shape
    if (groups > 1 and inputs == 1) or (groups == 1 and inputs < block):
        blocks = weight.reshape(outputs // block, inputs, height, width, block)
        return np.ascontiguousarray(blocks.transpose(0, 4, 1, 2, 3)).reshape(weight.shape)
    if inputs % block:
        return None
    blocks = weight.reshape(outputs // block, inputs // block, height, width, block, block)
    return np.ascontiguousarray(blocks.transpose(0, 5, 1, 4, 2, 3)).reshape(weight.shape)


def _upsample(draft: Draft, block: int) -> None:
    """Images grow by whole numbers."""
    scales = draft.pop("scales")
    if scales is None:
        raise draft.error("the attribute 'scales' is missing")
    factors = draft.constant(np.array(scales, np.float32), "scales")
    mode = draft.pop("mode", "nearest")
    transform = draft.pop("coordinate_transformation_mode", "asymmetric")
    draft.op, draft.inputs = "Resize", [draft.need(0), None, factors]
    draft.attributes = {"mode": mode, "nearest_mode": "floor"}
    draft.attributes["coordinate_transformation_mode"] = "asymmetric" if mode == "nearest" else transform


def _same(draft: Draft, block: int) -> None:
    """Pools treat each channel alike."""


OPERATORS: dict[str, Callable[[Draft, int], None]] = {
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Conv": _conv,
    "Upsample": _upsample,
    "MaxPool": _same,
    "AveragePool": _same,
    "GlobalMaxPool": _same,
    "GlobalAveragePool": _same,
}
"""What becomes of each operator of the domain."""
