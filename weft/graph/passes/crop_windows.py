"""Taps of a convolution that read nothing but padding are cut off.

    %y = Conv(%x[n, 960, 9, 11], 3 × 3, dilations 12, pads 12)   ->   %y = Conv(%x, the 1 × 1 in the middle)

A window with large dilations over a small image, as the pyramids of segmentation models have them, multiplies zeros
with most of its weights, and the zeros around the image are many times the image.
"""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.support import Replacement, Scope, rewrite


def crop_windows(graph: Graph) -> Graph:
    """The graph with such taps gone; the same if there are none."""
    return rewrite(graph, _crop)[0]


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
