"""A strided convolution of a few channels as a plain one of more: the places that a step skips become channels.

    %y = Conv(%x[n, 3, 224, 224], 7 × 7, strides 2, pads 3)
    ->  %d = SpaceToDepth(Pad(%x, a fourth channel of zeros), 2)        %d: [n, 16, 112, 112]
        %y = Conv(%d, 4 × 4, pads 2 and 1)                              its weight rearranged, zeros where nothing was

A matrix unit, or a dot product of four bytes, multiplies blocks of channels; three of them leave it idle. The zeros
that are added to the weight meet elements of the image that the window did not reach before: an infinity there (only
bfloat16 has one) gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from weft.core import model
from weft.graph.ir import Array, Graph, Node, TensorType
from weft.graph.passes.support import Replacement, Scope, rewritten

NARROW = ("bfloat16", "uint8", "int8")


def fold_strides(graph: Graph, kinds: Collection[str] = NARROW) -> Graph:
    """The graph with its strided convolutions of a few channels of these types folded; the same if there are none."""
    if not kinds:
        return graph
    return rewritten(graph, lambda node, scope: _fold(node, scope, kinds))


def _fold(node: Node, scope: Scope, kinds: Collection[str]) -> Replacement:
    if node.op not in ("Conv", "ConvInteger") or node.domain or not _fits(node, kinds):
        return None
    image, weight = node.inputs[:2]
    array = scope.constant(weight)
    assert image is not None and weight is not None
    if array is None:
        return None
    step = int(node.attributes["strides"][0])
    before = [int(p) for p in node.attributes.get("pads") or [0] * 4][:2]
    folds = [_Fold(array.shape[2 + d], step, before[d]) for d in (0, 1)]
    sizes = [size // step for size in image.tensor.static[2:]]
    after = [out - size - f.before + f.kernel - 1 for out, size, f in zip(_places(node), sizes, folds)]
    if min(after) < 0:
        return None
    missing = model.STRIDED_CHANNELS - image.tensor.static[1]
    pads = scope.new_constant(np.array([0, 0, 0, 0, 0, missing, 0, 0], np.int64), f"{image.name}_pads")
    deep = scope.make(node, "SpaceToDepth", [scope.make(node, "Pad", [image, pads])], blocksize=step)
    rearranged = scope.new_constant(_rearranged(array, folds, step), f"{weight.name}_deep")
    attributes = {
        **node.attributes,
        "strides": [1, 1],
        "kernel_shape": [f.kernel for f in folds],
        "pads": [f.before for f in folds] + after,
    }
    return [node.replace(inputs=[deep, rearranged, *node.inputs[2:]], attributes=attributes)]


def _fits(node: Node, kinds: Collection[str]) -> bool:
    """Whether a node is a strided convolution of a few channels, of an image that the steps divide."""
    image, weight = node.inputs[:2]
    types = [v.type if v is not None else None for v in (image, weight, node.outputs[0])]
    if not all(isinstance(kind, TensorType) and kind.is_static and len(kind.static) == 4 for kind in types):
        return False
    assert image is not None and weight is not None
    strides = [int(s) for s in node.attributes.get("strides") or [1, 1]]
    if node.op == "ConvInteger" and any(zero is not None for zero in node.inputs[2:]):
        return False
    plain = int(node.attributes.get("group", 1)) == 1 and set(node.attributes.get("dilations") or [1]) == {1}
    if not plain or str(node.attributes.get("auto_pad") or "NOTSET") != "NOTSET":
        return False
    if strides[0] != strides[1] or not 2 <= strides[0] <= model.MOST_STRIDE or image.tensor.dtype not in kinds:
        return False
    sizes = image.tensor.static
    return sizes[1] <= model.STRIDED_CHANNELS and all(size % strides[0] == 0 and size for size in sizes[2:])


def _places(node: Node) -> tuple[int, ...]:
    return node.outputs[0].tensor.static[2:]


class _Fold:
    """One dimension: a window of `size` taps that moves by `step`, as one that moves by one over whole steps."""

    def __init__(self, size: int, step: int, pad: int) -> None:
        self.first = math.floor(-pad / step)
        self.kernel = (size - 1 - pad) // step - self.first + 1
        self.before = -self.first
        self.places = [((tap - pad) // step - self.first, (tap - pad) % step) for tap in range(size)]
        """For each tap the place in the new window, and which of the places of a step."""


def _rearranged(weight: Array, folds: list[_Fold], step: int) -> Array:
    """The weight of the folded convolution: channels in the order of SpaceToDepth."""
    made = np.zeros(
        (weight.shape[0], step, step, model.STRIDED_CHANNELS, folds[0].kernel, folds[1].kernel), weight.dtype
    )
    for y, (place_y, part_y) in enumerate(folds[0].places):
        for x, (place_x, part_x) in enumerate(folds[1].places):
            made[:, part_y, part_x, : weight.shape[1], place_y, place_x] = weight[:, :, y, x]
    return made.reshape(weight.shape[0], step * step * model.STRIDED_CHANNELS, folds[0].kernel, folds[1].kernel)
