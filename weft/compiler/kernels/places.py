"""Axes that lie one behind the other in memory as one: places of an image, rows of all batches, all elements.

    conv[n, c, h, w] = sum over k of x[n, k, h, w] * weight[c, k]     ->     the same, of x[n, k, 0, h*W + w]
    y[b, i, n] = sum over k of x[b, i, k] * w[k, n]                   ->     y[r, n], r < batch * length
    y[b, c, i] = tanh(x[b, c, i])                                     ->     y[e], e < batch * channels * length

In: the nodes of a group, all of it laid out plainly: a convolution with a 1 × 1 window, a product with a matrix or an
operator along rows, and elementwise work around it; or such work alone. Out: the same nodes on values of the other
shape, in the same memory; None for another group. Lanes then go on from row to row, tiles meet one end, and threads
divide all rows. It pays where sizes are open; and where neither the channels of a group nor rows fill vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.graph.ir import Array, Dim, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.infer import is_random
from weft.graph.passes.layout import is_elementwise
from weft.graph.shapes import product, same_shape

Dims = tuple[Dim, ...]


def merge_places(
    nodes: Sequence[Node], constants: Mapping[Value, Array], laid: Collection[Value], lanes: int
) -> tuple[list[Node], dict[Value, Value]] | None:
    """The nodes on merged axes, and the new value for each old one."""
    values = {v: None for node in nodes for v in (*node.inputs, *node.outputs) if v is not None}
    anchors = [node for node in nodes if not is_elementwise(node) or "axis" in node.attributes or is_random(node)]
    if len(anchors) > 1 or not all(isinstance(v.type, TensorType) and v.type.shape is not None for v in values):
        return None
    merged = _elements(nodes[-1]) if not anchors else _places(anchors[0], lanes) or _rows(anchors[0])
    kept = {v for anchor in anchors if not has(anchor, "rowwise") for v in anchor.inputs[1:] if v is not None}
    if merged is None or any(v in kept for node in nodes if node not in anchors for v in node.inputs):
        return None
    new: dict[Value, Value] = {}
    for value in values:
        dims = value.tensor.dims
        shape = dims if value in kept else merged(dims)
        if shape is None or value in laid or (value in constants and not same_shape(shape, dims)):
            return None
        same = same_shape(shape, dims)
        new[value] = value if same else Value(value.name, TensorType(value.tensor.dtype, shape))
    made = [
        node.replace(
            inputs=[v if v is None else new[v] for v in node.inputs],
            outputs=[new[v] for v in node.outputs],
            attributes={**node.attributes, "axis": -1} if has(node, "rowwise") else node.attributes,
        )
        for node in nodes
    ]
    return made, new


def _places(node: Node, lanes: int) -> Callable[[Dims], Dims | None] | None:
    """For a convolution each place of whose result comes from the same place of its image alone."""
    weight, attributes = node.inputs[1] if len(node.inputs) > 1 else None, node.attributes
    if node.op != "Conv" or weight is None or len(weight.tensor.static) != 4 or weight.tensor.static[2:] != (1, 1):
        return None
    if any(attributes.get("pads") or ()) or set(attributes.get("strides") or (1,)) != {1}:
        return None
    _, channels, *image = node.outputs[0].tensor.dims
    if node.outputs[0].tensor.is_static:
        _, channels, _, width = node.outputs[0].tensor.static
        if channels // int(attributes.get("group", 1)) % lanes == 0 or width % lanes == 0:
            return None

    def merged(dims: Dims) -> Dims | None:
        places = (1, 1, *dims)[-2:]
        if same_shape(places, (1, 1)):
            return dims
        return (*dims[:2], 1, product(image)) if len(dims) == 4 and same_shape(places, image) else None

    return merged


def _rows(node: Node) -> Callable[[Dims], Dims | None] | None:
    """For a product of an open number of rows with a matrix, and for what works on each row by itself."""
    whole = node.outputs[0].tensor.dims
    if not node.domain and node.op == "MatMul":
        left, right = node.inputs
        if right is None or len(right.tensor.dims) != 2 or left is right:
            return None
    elif not has(node, "rowwise") or node.attributes.get("axis", -1) not in (-1, len(whole) - 1):
        return None
    around = whole[:-1]
    if len(around) < 2 or all(isinstance(n, int) for n in around):
        return None

    def merged(dims: Dims) -> Dims | None:
        if len(dims) <= 1:
            return dims
        return (product(around), dims[-1]) if same_shape(dims[:-1], around) else None

    return merged


def _elements(node: Node) -> Callable[[Dims], Dims | None] | None:
    """For elementwise work on an open number of elements."""
    whole = node.outputs[0].tensor.dims
    if len(whole) < 2 or all(isinstance(n, int) for n in whole):
        return None
    return lambda dims: (product(whole),) if same_shape(dims, whole) else dims if dims in ((), (1,)) else None
