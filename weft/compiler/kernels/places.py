"""Pointwise convolutions over images as one long row: all places of an image lie side by side in memory.

    conv[n, c, h, w] = sum over k of x[n, k, h, w] * weight[c, k]     ->     the same, of x[n, k, 0, h*W + w]

In: the nodes of a group, a convolution with a 1 × 1 window and elementwise work around it, all of it laid out plainly.
Out: the same nodes on values of the other shape, in the same memory; None for another group. Lanes then lie along the
places without a rest at the end of each row. It pays where images fill vectors, but neither channels nor rows do, and
where how long a row is stays open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.graph.ir import Array, Dim, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.layout import is_elementwise
from weft.graph.shapes import same_shape, times


def merge_places(
    nodes: Sequence[Node], constants: Mapping[Value, Array], laid: Collection[Value], lanes: int
) -> tuple[list[Node], dict[Value, Value]] | None:
    """The nodes on merged places, and the new value for each old one."""
    anchors = [node for node in nodes if has(node, "convolution")]
    if len(anchors) != 1 or not _is_pointwise(anchors[0]):
        return None
    kind = anchors[0].outputs[0].tensor
    if kind.is_static:
        image = kind.static
        if image[1] % lanes == 0 or image[3] % lanes == 0 or image[2] * image[3] % lanes:
            return None
    if not all(node is anchors[0] or is_elementwise(node) for node in nodes):
        return None
    new = _merged_values(nodes, anchors[0], constants, laid)
    if new is None:
        return None
    made = [
        node.replace(inputs=[v if v is None else new[v] for v in node.inputs], outputs=[new[v] for v in node.outputs])
        for node in nodes
    ]
    return made, new


def _merged_values(
    nodes: Sequence[Node], anchor: Node, constants: Mapping[Value, Array], laid: Collection[Value]
) -> dict[Value, Value] | None:
    """For each value of the nodes one of the other shape; weight and bias of the convolution stay what they are."""
    image = anchor.outputs[0].tensor.dims[2:]
    kept = {v: v for v in anchor.inputs[1:] if v is not None}
    new: dict[Value, Value] = {}
    for value in {v: None for node in nodes for v in (*node.inputs, *node.outputs) if v is not None}:
        if value in kept:
            if any(value in node.inputs for node in nodes if node is not anchor):
                return None
            continue
        shape = _merged(value, image)
        if shape is None or value in laid or (value in constants and shape != value.tensor.dims):
            return None
        new[value] = value if shape == value.tensor.dims else Value(value.name, TensorType(value.tensor.dtype, shape))
    return {**kept, **new}


def _is_pointwise(node: Node) -> bool:
    """Whether each place of a convolution's result comes from the same place of its image alone."""
    weight, attributes = node.inputs[1], node.attributes
    if node.op != "Conv" or weight is None or len(weight.tensor.static) != 4 or weight.tensor.static[2:] != (1, 1):
        return False
    return not any(attributes.get("pads") or ()) and set(attributes.get("strides") or (1,)) == {1}


def _merged(value: Value, image: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The shape of a value with its places in one row; None where its places are others than the image's."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None:
        return None
    shape = kind.dims
    places = (1, 1, *shape)[-2:]
    if same_shape(places, (1, 1)):
        return shape
    return (*shape[:2], 1, times(*image)) if len(shape) == 4 and same_shape(places, image) else None
