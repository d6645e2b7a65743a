"""Images of a few channels filled up with zeros, where channels of a place are fetched or multiplied together.

    %y = Conv(%x: [n, 3, h, w], %w: [64, 3, 7, 7])   ->   %y = Conv(Pad(%x): [n, 4, h, w], [64, 4, 7, 7])

The first layer of most networks reads 3 channels: no vector, so that each would be fetched by itself, and no four bytes
for a dot product. What fills them is written by the kernel that converts or moves the image anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.graph.ir import Graph, Node, TensorType
from weft.graph.passes.infer import infer
from weft.graph.passes.layout import CHANNEL
from weft.graph.passes.support import Replacement, Scope, rewrite


def fill_rows(graph: Graph, together: Mapping[tuple[str, str], int]) -> Graph:
    """The graph with such images filled, of operators and types that want so many channels together; the same if there
    are none."""

    def rule(node: Node, scope: Scope) -> Replacement:
        return _filled(node, scope, together)

    made, changed = rewrite(graph, rule)
    return infer(made) if changed else graph


def _filled(node: Node, scope: Scope, together: Mapping[tuple[str, str], int]) -> Replacement:
    image, weight, _, shift = (*node.inputs, *[None] * 4)[:4]
    kind, known = None if image is None else image.type, scope.constant(weight)
    if node.domain or known is None or not isinstance(kind, TensorType) or kind.shape is None or kind.rank < 4:
        return None
    channels, wanted = kind.dims[CHANNEL], together.get((node.op, kind.dtype), 1)
    if not isinstance(channels, int) or channels % wanted == 0 or int(node.attributes.get("group", 1)) != 1:
        return None
    if shift is not None and np.any(scope.constant(shift) != 0):  # weights of 0 would not count for nothing
        return None
    none, more = [0] * kind.rank, -channels % wanted
    pads = scope.new_constant(np.asarray([*none, 0, more, *none[2:]], np.int64), f"{node.outputs[0].name}_fill")
    wide = np.pad(known, [(0, 0), (0, more), *[(0, 0)] * (known.ndim - 2)])
    kernel = scope.new_constant(wide, f"{node.outputs[0].name}_kernel")
    return [node.replace(inputs=[scope.make(node, "Pad", [image, pads]), kernel, *node.inputs[2:]])]
