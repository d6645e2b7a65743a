"""Kernels of transposed convolutions filled up with zeros to whole steps.

    %y = ConvTranspose(%x, 3 × 3, strides 2, pads 1)   ->   %y = ConvTranspose(%x, 4 × 4, pads 1 in front, 2 behind)

The result is computed phase by phase (ops/convolution_transposed.py), and every phase has as many taps. Filled here,
once, the kernel stays a constant that a schedule can pack. Where a target passes over what is `filled`, that is noted:
its programs test for it, and loops are cut by the test.
"""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Graph, Node, TensorType
from weft.graph.passes.support import Replacement, Scope, rewrite


def fill_kernels(graph: Graph, skipped: bool = False) -> Graph:
    """The graph with such kernels filled, where zeros are `skipped` with a note; the same if there are none."""
    return rewrite(graph, lambda node, scope: _fill(node, scope, skipped))[0]


def _fill(node: Node, scope: Scope, skipped: bool) -> Replacement:
    if node.op != "ConvTranspose" or node.domain or str(node.attributes.get("auto_pad") or "NOTSET") != "NOTSET":
        return None
    weight, image = scope.constant(node.inputs[1]), node.inputs[0]
    if weight is None or node.attributes.get("output_shape") or image is None:
        return None
    if not isinstance(image.type, TensorType) or not image.type.is_static:
        return None
    rank = weight.ndim - 2
    strides = [int(s) for s in node.attributes.get("strides") or [1] * rank]
    dilations = [int(d) for d in node.attributes.get("dilations") or [1] * rank]
    # One place has no neighbours: its kernel is not divided (and one that is dilated is computed in another way).
    more = [
        -taps % step if size > 1 and gap == 1 else 0
        for taps, step, gap, size in zip(weight.shape[2:], strides, dilations, image.type.static[2:])
    ]
    if not any(more):
        return None
    filled = np.pad(weight, [(0, 0), (0, 0), *((0, n) for n in more)])
    pads = [int(p) for p in node.attributes.get("pads") or [0] * (2 * rank)]
    attributes = {
        **node.attributes,
        "kernel_shape": list(filled.shape[2:]),
        "pads": [*pads[:rank], *(p + n for p, n in zip(pads[rank:], more))],
    }
    if skipped:
        attributes["filled"] = more
    kernel = scope.new_constant(filled, f"{node.outputs[0].name}_kernel")
    return [node.replace(inputs=[image, kernel, *node.inputs[2:]], attributes=attributes)]
