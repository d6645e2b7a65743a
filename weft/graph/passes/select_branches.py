"""An If with two cheap branches computes both, and selects.

    %y = If(%c) {then: %a = Tanh(%x)  else: %b = Neg(%x)}   ->   %a = Tanh(%x), %b = Neg(%x), %y = Where(%c, %a, %b)

A branch on the host costs some tens of microseconds, and cuts what stands around it into several native calls; small
branches cost less than that together. Only operators that take any value may be computed where they are not asked for
(elementwise and "speculatable" ones): nothing is looked up, and no integers are divided.
"""

from __future__ import annotations

import math

import numpy as np

from weft.core import model
from weft.graph.interpreter import operator_of
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.fold import inlined
from weft.graph.passes.infer import infer, is_random, same_type
from weft.graph.passes.support import Replacement, Scope, rewrite


def select_branches(graph: Graph) -> Graph:
    """The graph without such Ifs."""
    if not any(node.op == "If" or node.graphs for node in graph.nodes):
        return graph
    typed = infer(graph)
    made, changed = rewrite(typed, _rule)
    return infer(made) if changed else graph


def _rule(node: Node, scope: Scope) -> Replacement:
    if node.op != "If" or node.domain or not node.outputs:
        return None
    branches = [node.attributes.get(key) for key in ("then_branch", "else_branch")]
    condition = node.inputs[0]
    if condition is None or size_of(condition) != 1 or not all(isinstance(one, Graph) for one in branches):
        return None
    then, other = (one for one in branches if isinstance(one, Graph))
    costs = [operations(then), operations(other)]
    if None in costs or sum(cost or 0 for cost in costs) > model.BOTH_BRANCHES:
        return None
    pairs = list(zip(then.outputs, other.outputs, strict=True))
    if not all(size_of(a) and same_type(a.type, b.type) for a, b in pairs):
        return None
    if condition.tensor.shape:
        condition = scope.make(node, "Reshape", [condition, scope.new_constant(np.zeros(0, np.int64))])
    nodes: list[Node] = []
    made: list[list[Value]] = []
    for branch in (then, other):
        outputs = [Value(scope.names.fresh(v.name), v.type) for v in branch.outputs]
        nodes += inlined(node.replace(outputs=outputs), branch, [], scope)
        made.append(outputs)
    for a, b, output in zip(*made, node.outputs):
        nodes.append(Node("Where", [condition, a, b], [output], {}, node.name, node.origin))
    return nodes


def size_of(value: Value) -> int | None:
    """The number of elements of a tensor that kernels know; None for anything else."""
    kind = value.type
    if not isinstance(kind, TensorType) or not kind.is_static or kind.core is None:
        return None
    return math.prod(kind.static)


def operations(graph: Graph) -> int | None:
    """What a branch costs; None where it may not be computed without being asked for."""
    total = 0
    for node in graph.nodes:
        values = [*(v for v in node.inputs if v is not None), *node.outputs]
        sizes = [size_of(value) for value in values]
        if node.domain or node.graphs or not all(sizes):
            return None
        most = max(size or 0 for size in sizes)
        if has(node, "product") and values[0].tensor.shape:
            total += 2 * (sizes[-1] or 0) * max(values[0].tensor.static)
        elif _takes_any(node):
            total += most * (model.TRANSCENDENTAL if has(node, "transcendental") else 1)
        else:
            return None
    return total


def _takes_any(node: Node) -> bool:
    """Whether there is a result for any values of the inputs."""
    if has(node, "traps") and not node.outputs[0].tensor.dtype.startswith(("float", "bfloat")):
        return False
    return has(node, "speculatable") or (operator_of(node).kind_of(node) == "elementwise" and not is_random(node))
