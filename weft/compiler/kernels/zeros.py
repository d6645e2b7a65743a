"""Which inputs of a kernel hold many zeros: a product of one row passes over them, if all its weights are finite.

In: a graph, then the nodes of a group. Out: the values that a Relu made, and those among them that only products with
finite constant weights read in the group; and the finite weights of recurrences, which start from a state of zeros,
and of convolutions with zeros around their images. An infinite weight, or one that is no number, turns a zero into
NaN, so there no zero may be passed over.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from weft.core import model
from weft.graph.ir import Array, Graph, Node, Value
from weft.graph.opspec import has

RELU = "Relu"


def often_zero(graph: Graph) -> set[Value]:
    """The values that a Relu made, as they are or in another shape."""
    found: set[Value] = set()
    for node in graph.nodes:
        if node.domain:
            continue
        handed_on = has(node, "reshapes") and node.inputs[0] in found
        if node.op == RELU or handed_on:
            found.add(node.outputs[0])
    return found


def skippable(nodes: Sequence[Node], zeros: Collection[Value], constants: Mapping[Value, Array]) -> list[Value]:
    """The inputs of a group of one row that are often 0, and whose zeros add nothing to the products that read them."""
    made = {value for node in nodes for value in node.outputs}
    wanted = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v in zeros and v not in made)
    return [value for value in wanted if all(_adds_nothing(node, value, constants) for node in nodes)]


def _adds_nothing(node: Node, value: Value, constants: Mapping[Value, Array]) -> bool:
    """Whether zeros of a value leave what a node makes of it as it is."""
    if value not in node.inputs:
        return True
    if not has(node, "product") or list(node.inputs).count(value) != 1 or node.inputs[0] is not value:
        return False
    array = _finite(node.inputs[1], constants)
    if array is None or array.ndim != 2 or array.nbytes < model.NEAR_BYTES:
        return False
    return math.prod(value.tensor.static) in array.shape  # one row


def finite_weights(nodes: Sequence[Node], constants: Mapping[Value, Array]) -> list[Value]:
    """The weights of a group's recurrences and convolutions with padding that are constant and finite."""
    weights = [node.inputs[2] for node in nodes if has(node, "recurrent")]
    weights += [node.inputs[1] for node in nodes if _has_padding(node)]
    return [weight for weight in weights if weight is not None and _finite(weight, constants) is not None]


def _has_padding(node: Node) -> bool:
    return node.op == "Conv" and (any(node.attributes.get("pads") or ()) or "auto_pad" in node.attributes)


def _finite(weight: Value | None, constants: Mapping[Value, Array]) -> Array | None:
    """A constant of which every number is finite; None for another operand."""
    array = None if weight is None else constants.get(weight)
    if array is None or array.dtype.kind not in "fiuV":  # V: floats that numpy does not know itself
        return None
    return array if array.dtype.kind in "iu" or np.isfinite(array).all() else None
