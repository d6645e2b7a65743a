"""Constant folding: what follows from constants and static shapes is computed now.

    const %a = 2.0, const %b = 3.0
    %c = Mul(%a, %b)                  ->   const %c = 6.0
    %s = Shape(%x: float32[2, 8])          const %s = [2, 8]
    %y = If(%true) {then, else}            the nodes of the branch
    %y = Loop(0, _, %x) {body}             %y is %x

A result that is much larger than what it is made of (Expand, Tile, ConstantOfShape …) stays a computation, and so does
one that takes long (a window of a million elements at each point): a compiled kernel is faster than the host, and
whoever compiles a model may never run it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from weft.core import model
from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer_values, is_random, results_of, static_size
from weft.graph.passes.support import Replacement, Scope, rewrite, substitute_values
from weft.graph.steps import elements_of, steps_of

logger = logging.getLogger("weft.graph")


def fold(graph: Graph) -> Graph:
    """The graph with everything that is constant computed."""
    typed, known = infer_values(graph)
    left = model.FOLDED_STEPS

    def rule(node: Node, scope: Scope) -> Replacement:
        if node.op == "If" and not node.domain:
            return _chosen_branch(node, scope)
        if node.op == "Loop" and not node.domain:
            return _no_turns(node, scope)
        if node.graphs or is_random(node) or not node.outputs:
            return None
        made = [known[v] for v in node.outputs if v in known]
        results: Sequence[Array] | None = made
        if len(made) != len(node.outputs):
            nonlocal left
            results, spent = _computed(node, [scope.constant(v) for v in node.inputs], left)
            left -= spent
        if results is None:
            return None
        for value, array in zip(node.outputs, results):
            scope.constants[value] = array
        return []

    made, changed = rewrite(typed, rule)
    return dead(made) if changed else dead(typed)


def _computed(node: Node, arrays: list[Array | None], left: int) -> tuple[list[Array] | None, int]:
    """What a node gives, None where it stays, and the steps that were spent of those that are left."""
    if any(value is not None and array is None for value, array in zip(node.inputs, arrays)):
        return None, 0
    allowed = max(model.FOLDED_BYTES, model.FOLDED_GROWTH * sum(a.nbytes for a in arrays if a is not None))
    if not node.inputs:
        allowed = model.FOLDED_BYTES if has(node, "grows") else 1 << 62  # a Constant node is as large as it is
    for value in node.outputs:
        size = static_size(value.type)
        if size is None and has(node, "grows"):
            return None, 0
        if isinstance(value.type, TensorType) and size is not None and size * value.type.numpy.itemsize > allowed:
            return None, 0
    steps = steps_of(node, arrays)
    spent = steps if steps > model.FEW_STEPS * elements_of(node, arrays) else 0
    if spent > left:
        logger.debug("%s is not computed now: about %d steps", node.describe(), steps)
        return None, 0
    made = results_of(node, arrays)
    if made is None or len(made) < len(node.outputs) or sum(a.nbytes for a in made) > allowed:
        return None, spent
    return made, spent


def _chosen_branch(node: Node, scope: Scope) -> Replacement:
    condition = scope.constant(node.inputs[0])
    if condition is None or condition.size != 1:
        return None
    chosen = node.attributes["then_branch" if bool(np.asarray(condition).reshape(())) else "else_branch"]
    return inlined(node, chosen, [], scope)


def _no_turns(node: Node, scope: Scope) -> Replacement:
    """A loop that certainly never runs and stacks nothing gives its states back."""
    count = scope.constant(node.inputs[0]) if node.inputs else None
    condition = scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    never = (count is not None and int(count.reshape(())) <= 0) or (
        condition is not None and not bool(condition.reshape(()))
    )
    states = node.inputs[2:]
    if not never or len(states) != len(node.outputs) or any(v is None for v in states):
        return None
    return [Node("Identity", [v], [o], {}, node.name, node.origin) for v, o in zip(states, node.outputs)]


def inlined(node: Node, body: Graph, given: Sequence[Value], scope: Scope) -> list[Node]:
    """The nodes of a subgraph in the place of the node that has it."""
    new: dict[Value, Value] = dict(zip(body.inputs, given))
    for value in (*body.constants, *(v for n in body.nodes for v in n.outputs)):
        if scope.names.taken[value.name] > 1:  # a graph beside this one uses the name too
            new[value] = Value(scope.names.fresh(value.name), value.type)
    made = substitute_values(body, new)
    scope.constants.update(made.constants)
    for inner in made.nodes:
        scope.uses.update(v for v in inner.inputs if v is not None)
    copies = [Node("Identity", [v], [o], {}, node.name, node.origin) for v, o in zip(made.outputs, node.outputs)]
    return [*made.nodes, *copies]
