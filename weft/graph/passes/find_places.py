"""NonZero in native code. Its size is data, so it is done in two parts, with room made between them:

    %places = NonZero(%x)     ->     %flags = Cast(%x);  %count = ReduceSum(Cast(Reshape(%flags)))
                                     %room = weft.Room(%count);  %places = weft.FoundPlaces(%flags, %room)

`Room` is all that has no kernel: a value that nobody reads, as long as the count says (weft/ops/indexing.py).
"""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite
from weft.graph.signature import ELEMENTS

NUMBERS = {"bool": 9, "int64": 7}
"""Element types as a Cast names them."""


def find_places(graph: Graph) -> Graph:
    """The graph with such nodes; the same object where there are none."""
    if not any(node.op == "NonZero" for node in graph.nodes):
        return graph
    made, changed = rewrite(graph, _found)
    return infer(dead(made)) if changed else graph


def _found(node: Node, scope: Scope) -> Replacement:
    if node.op != "NonZero" or node.domain or node.outputs[0].is_static or node.outputs[0] in scope.graph.outputs:
        return None
    (x,) = node.inputs
    assert x is not None
    known = isinstance(x.type, TensorType) and x.type.dtype in {*ELEMENTS["number"], "bool"}
    if not known or not x.tensor.shape or 0 in x.tensor.shape:  # a scalar has no places
        return None

    def cast(value: Value, dtype: str) -> Value:
        return value if value.tensor.dtype == dtype else scope.make(node, "Cast", [value], to=NUMBERS[dtype])

    flags = cast(x, "bool")
    flat = scope.make(node, "Reshape", [flags, scope.new_constant(np.array([-1]))])
    count = scope.make(node, "ReduceSum", [cast(flat, "int64")], keepdims=0)
    room = scope.make(node, "Room", [count], "weft")
    return [Node("FoundPlaces", [flags, room], node.outputs, {}, node.name, node.origin, "weft")]
