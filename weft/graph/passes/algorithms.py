"""Other algorithms for the same operator: a convolution by Winograd's method, with its weight transformed ahead.

    %y = Conv(%x, const w, %b)     ->     %y = WinogradConv(%x, const u, const w, %b)       u: made from w now

What there is to choose from, and what it is worth on a machine, a callback says: `propose(node, weight)` gives the
alternatives for a node with a constant weight, the best first. An alternative may need a larger weight; all of them
together may let the constants of a model grow by a share (GROWTH), and those that save most for each byte come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.graph.ir import Array, Graph, Node
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite

GROWTH = 0.5
"""The share by which the constants of a model may grow."""

SMALL_GROWTH = 4 << 20
"""So many bytes more are nothing, whatever the size of a model."""


@dataclass(frozen=True)
class Alternative:
    """Another operator in a node's place: the same inputs but for the weight, for which stand those of `weights()`."""

    op: str
    domain: str
    attributes: Mapping[str, Any]
    weights: Callable[[], Sequence[Array]]
    saved: float
    """Time saved by it, in any unit that is the same for all alternatives."""
    extra_bytes: int
    """How much larger its weights are."""


Propose = Callable[[Node, Array], Sequence[Alternative]]


def choose_algorithms(graph: Graph, propose: Propose) -> Graph:
    """The graph with the alternatives that are worth it; the same object where there are none."""
    chosen = _choose(graph, propose)
    if not chosen:
        return graph

    def rule(node: Node, scope: Scope) -> Replacement:
        found = chosen.get(node.outputs[0]) if scope.parent is None else None
        if found is None or node.inputs[1] is None:
            return None
        name = f"{node.inputs[1].name}_{found.op.lower()}"
        weights = [scope.new_constant(array, name) for array in found.weights()]
        inputs = [node.inputs[0], *weights, *node.inputs[2:]]
        return [Node(found.op, inputs, node.outputs, found.attributes, node.name, node.origin, found.domain)]

    made, _ = rewrite(graph, rule)
    return infer(dead(made))


def _choose(graph: Graph, propose: Propose) -> dict[Any, Alternative]:
    """For the outputs of nodes, what takes the node's place: the most saved for each byte first, while bytes last."""
    offers: list[tuple[Node, Sequence[Alternative]]] = []
    for node in graph.nodes:
        weight = graph.constants.get(node.inputs[1]) if _may_ask(node) else None  # type: ignore[arg-type]
        found = [] if weight is None else propose(node, weight)
        if found:
            offers.append((node, found))
    room = max(SMALL_GROWTH, int(GROWTH * sum(array.nbytes for array in graph.constants.values())))
    chosen: dict[Any, Alternative] = {}
    for node, found in sorted(offers, key=lambda offer: -offer[1][0].saved / max(offer[1][0].extra_bytes, 1)):
        fits = [one for one in found if one.extra_bytes <= room]
        if fits:
            chosen[node.outputs[0]] = fits[0]
            room -= max(fits[0].extra_bytes, 0)
    return chosen


def _may_ask(node: Node) -> bool:
    return node.op == "Conv" and not node.domain and len(node.inputs) > 1 and node.inputs[1] is not None
