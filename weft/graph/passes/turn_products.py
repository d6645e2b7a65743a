"""One row times a matrix that would have to be transposed: the matrix as it lies times the row as a column.

    %t = Transpose(%k, perm = [0, 1, 3, 2])             %c = Reshape(%q)              [.., d, 1]
    %y = MatMul(%q, %t)          q: [.., 1, d]    ->    %p = MatMul(%k, %c)           [.., n, 1]
                                                        %y = Reshape(%p)              [.., 1, n]

A row and a column are the same memory, so that neither reshape costs anything, and the keys of attention are read once
where they lie instead of being copied first. The pass comes after attention has become single nodes.
"""

from __future__ import annotations

from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.support import Replacement, Scope, rewritten, swap
from weft.graph.passes.turn_later import shape_constant

KINDS = ("float32", "float64")


def turn_products(graph: Graph) -> Graph:
    """The graph with such products turned; the same object where there are none."""
    if not any(node.op == "Transpose" for node in graph.nodes):
        return graph
    return rewritten(graph, _turn)


def _turn(node: Node, scope: Scope) -> Replacement:
    if node.op != "MatMul" or node.domain:
        return None
    row, turned = node.inputs
    before = scope.producer(turned, "Transpose")
    if row is None or before is None or before.inputs[0] is None:
        return None
    shape, wanted = _static(row), _static(node.outputs[0])
    if shape is None or wanted is None or len(shape) < 2 or shape[-2] != 1 or 0 in (*shape, *wanted):
        return None
    matrix = _lying(before, scope)
    if matrix is None:
        return None
    column = scope.make(node, "Reshape", [row, shape_constant(node, *shape[:-2], shape[-1], 1, scope=scope)])
    product = scope.make(node, "MatMul", [matrix, column])
    return swap(node, "Reshape", [product, shape_constant(node, *wanted, scope=scope)])


def _lying(before: Node, scope: Scope) -> Value | None:
    """The matrix with its last two axes the other way round, if its rows then lie together; None otherwise."""
    source = before.inputs[0]
    assert source is not None
    shape = _static(source)
    if shape is None or len(shape) < 2:
        return None
    order = list(before.attributes.get("perm") or range(len(shape))[::-1])
    order[-2:] = order[:-3:-1]
    if order[-1] != len(shape) - 1:
        return None
    return source if order == sorted(order) else scope.make(before, "Transpose", [source], perm=order)


def _static(value: Value) -> list[int] | None:
    kind = value.type
    if not isinstance(kind, TensorType) or not kind.is_static or kind.dtype not in KINDS:
        return None
    return [int(size) for size in kind.static]
