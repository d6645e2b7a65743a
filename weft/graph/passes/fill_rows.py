"""Images of a few channels filled up with zeros, where all channels of a place are to lie together.

    %y = Conv(%x: [n, 3, h, w], %w: [64, 3, 7, 7])   ->   %y = Conv(Pad(%x): [n, 4, h, w], [64, 4, 7, 7])

The first layer of most networks reads 3 channels: no vector, so that each would be fetched by itself. What fills them
is written by the kernel that converts or moves the image anyway.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from weft.core.model import ROW_BYTES
from weft.graph.ir import Graph, Node, TensorType
from weft.graph.passes.infer import infer
from weft.graph.passes.layout import CHANNEL
from weft.graph.passes.support import Replacement, Scope, rewrite


def fill_rows(graph: Graph, types: Collection[str]) -> Graph:
    """The graph with such images filled, of the given types; the same if there are none."""

    def rule(node: Node, scope: Scope) -> Replacement:
        return _filled(node, scope, types)

    made, changed = rewrite(graph, rule)
    return infer(made) if changed else graph


def _filled(node: Node, scope: Scope, types: Collection[str]) -> Replacement:
    image, weight = node.inputs[0], scope.constant(node.inputs[1]) if node.op == "Conv" else None
    if node.domain or weight is None or image is None or int(node.attributes.get("group", 1)) != 1:
        return None
    kind = image.type
    if not isinstance(kind, TensorType) or not kind.is_static or kind.dtype not in types or kind.core is None:
        return None
    more = -kind.static[CHANNEL] % (ROW_BYTES // int(kind.core.bytes))
    if not more or kind.rank < 4:
        return None
    none = [0] * kind.rank
    pads = scope.new_constant(np.asarray([*none, 0, more, *none[2:]], np.int64), f"{node.outputs[0].name}_fill")
    wide = np.pad(weight, [(0, 0), (0, more), *[(0, 0)] * (weight.ndim - 2)])
    kernel = scope.new_constant(wide, f"{node.outputs[0].name}_kernel")
    return [node.replace(inputs=[scope.make(node, "Pad", [image, pads]), kernel, *node.inputs[2:]])]
