"""Taps of a convolution that read nothing but padding are cut off.

    %y = Conv(%x[n, 960, 9, 11], 3 × 3, dilations 12, pads 12)   ->   %y = Conv(%x, the 1 × 1 in the middle)

Where taps read padding for many of the places, these get a convolution of their own, without them (`split_windows`,
for machines to which a few kernels more are cheap):

    %y = Conv(%x[n, 256, 33, 33], 3 × 3, dilations 12, pads 12)
    ->  %a = Conv(%x[0:24], 2 × 3);  %b = Conv(%x[0:33], 3 × 3);  %c = Conv(%x[9:33], 2 × 3);  %y = Concat(%a, %b, %c)

A window with large dilations over a small image, as the pyramids of segmentation models have them, multiplies zeros
with most of its weights, and the zeros around the image are many times the image.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from weft.core import model
from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.dead import dead
from weft.graph.passes.support import Replacement, Scope, rewrite


def crop_windows(graph: Graph) -> Graph:
    """The graph with such taps gone; the same if there are none."""
    return rewrite(graph, _crop)[0]


def split_windows(graph: Graph) -> Graph:
    """The graph with convolutions in parts, where taps read padding for many places; the same if there are none."""
    made, changed = rewrite(graph, _split)
    return split_windows(dead(made)) if changed else graph  # one axis after the other


def _crop(node: Node, scope: Scope) -> Replacement:
    if node.op != "Conv" or node.domain or str(node.attributes.get("auto_pad") or "NOTSET") != "NOTSET":
        return None
    image, output = node.inputs[0], node.outputs[0]
    weight = scope.constant(node.inputs[1])
    if weight is None or not _is_static(image) or not _is_static(output):
        return None
    assert image is not None
    cuts = [_Cut(node, axis, weight, image, output) for axis in range(weight.ndim - 2)]
    if all(cut.keeps_all for cut in cuts) or not np.isfinite(weight).all():  # zero times infinity is not zero
        return None
    kept = np.ascontiguousarray(weight[(slice(None), slice(None), *(cut.taps for cut in cuts))])
    attributes = {
        **node.attributes,
        "kernel_shape": list(kept.shape[2:]),
        "pads": [*(cut.before for cut in cuts), *(cut.after for cut in cuts)],
    }
    cropped = scope.new_constant(kept, f"{output.name}_taps")
    return [node.replace(inputs=[image, cropped, *node.inputs[2:]], attributes=attributes)]


def _is_static(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, TensorType) and value.type.is_static


class _Cut:
    """The taps along one axis that meet the image, and the padding that is left for them."""

    def __init__(self, node: Node, axis: int, weight: Array, image: Value, output: Value) -> None:
        rank, self.count = weight.ndim - 2, weight.shape[2 + axis]
        pads = [int(p) for p in node.attributes.get("pads") or [0] * (2 * rank)]
        step = int((node.attributes.get("strides") or [1] * rank)[axis])
        gap = int((node.attributes.get("dilations") or [1] * rank)[axis])
        size, places = image.tensor.static[2 + axis], output.tensor.static[2 + axis]
        self.before, self.after = pads[axis], pads[rank + axis]
        first, end = 0, self.count
        # A tap reads the places from k * gap - before on, in steps; padding must not become negative.
        while first < end - 1 and (places - 1) * step + first * gap < pads[axis] and self.before >= gap:
            first, self.before = first + 1, self.before - gap
        while end > first + 1 and (end - 1) * gap - pads[axis] >= size and self.after >= gap:
            end, self.after = end - 1, self.after - gap
        self.taps = slice(first, end)

    @property
    def keeps_all(self) -> bool:
        """Whether every tap meets the image somewhere."""
        return (self.taps.start, self.taps.stop) == (0, self.count)


def _split(node: Node, scope: Scope) -> Replacement:
    """A convolution with steps of 1 for each stretch of places that meets the image with the same taps."""
    if node.op != "Conv" or node.domain or str(node.attributes.get("auto_pad") or "NOTSET") != "NOTSET":
        return None
    image, output = node.inputs[0], node.outputs[0]
    weight = scope.constant(node.inputs[1])
    if weight is None or weight.shape[1] < model.LEAST_CUT_DEPTH or not _is_static(image) or not _is_static(output):
        return None
    if not np.isfinite(weight).all():
        return None
    rank = weight.ndim - 2
    for axis in range(rank):
        stretches = _stretches(node, axis, weight, image, output)
        if stretches:
            parts = [_stretch(node, axis, weight, scope, *one) for one in stretches]
            return [Node("Concat", parts, node.outputs, {"axis": 2 + axis}, node.name, node.origin)]
    return None


def _stretches(
    node: Node, axis: int, weight: Array, image: Value | None, output: Value
) -> list[tuple[int, int, int, int]]:
    """(first place, end, first tap, end) of the parts along an axis; none where cutting it is not worth it."""
    assert image is not None
    rank, taps = weight.ndim - 2, weight.shape[2 + axis]
    before = int((node.attributes.get("pads") or [0] * (2 * rank))[axis])
    step = int((node.attributes.get("strides") or [1] * rank)[axis])
    gap = int((node.attributes.get("dilations") or [1] * rank)[axis])
    size, places = image.tensor.static[2 + axis], output.tensor.static[2 + axis]
    if step != 1 or gap == 1 or not before:
        return []
    seen = [tuple(t for t in range(taps) if 0 <= at + t * gap - before < size) for at in range(places)]
    if not all(seen) or sum(map(len, seen)) > (1 - model.LEAST_TAPS_CUT) * taps * places:
        return []
    if sum(len(those) for those, _ in groupby(seen)) * weight.nbytes > taps * model.MOST_CUT_BYTES:
        return []
    made, start = [], 0
    for those, group in groupby(seen):
        end = start + len(list(group))
        made.append((start, end, those[0], those[-1] + 1))
        start = end
    return made


def _stretch(node: Node, axis: int, weight: Array, scope: Scope, start: int, end: int, first: int, last: int) -> Value:
    """The convolution of some places with some of the taps: it reads no padding along the axis."""
    rank = weight.ndim - 2
    attributes = dict(node.attributes)
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    gap = int((attributes.get("dilations") or [1] * rank)[axis])
    low, high = (at - pads[axis] for at in (start + first * gap, end + (last - 1) * gap))
    taps = np.ascontiguousarray(weight[(slice(None),) * (2 + axis) + (slice(first, last),)])
    pads[axis] = pads[rank + axis] = 0
    ends = [scope.new_constant(np.array([n], np.int64), "part") for n in (low, high, 2 + axis)]
    part = scope.make(node, "Slice", [node.inputs[0], *ends])
    kept = scope.new_constant(taps, f"{node.outputs[0].name}_taps")
    attributes |= {"pads": pads, "kernel_shape": list(taps.shape[2:])}
    return scope.make(node, "Conv", [part, kept, *node.inputs[2:]], **attributes)
