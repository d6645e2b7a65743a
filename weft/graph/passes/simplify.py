"""Algebraic simplification, and one operator for what exporters write as several.

    %a = Transpose(%x, perm=[1, 0])
    %b = Transpose(%a, perm=[1, 0])
    %c = Sigmoid(%b)                      ->   %d = Swish(%x, alpha=1.0)
    %d = Mul(%b, %c)

The rules stand in `simplify_movement`, `simplify_arithmetic`, `simplify_windows` and `simplify_patterns`, by operator.
They are tried from the first node to the last, again and again until none applies.
"""

from __future__ import annotations

from weft.graph.ir import Graph, Node
from weft.graph.passes.simplify_arithmetic import ARITHMETIC_RULES
from weft.graph.passes.simplify_movement import MOVEMENT_RULES, reshape_later
from weft.graph.passes.simplify_patterns import PATTERN_RULES
from weft.graph.passes.simplify_windows import WINDOW_RULES
from weft.graph.passes.support import Replacement, Rule, Scope, until_stable

RULES: dict[str, list[Rule]] = {
    op: [
        *MOVEMENT_RULES.get(op, []),
        reshape_later,
        *ARITHMETIC_RULES.get(op, []),
        *WINDOW_RULES.get(op, []),
        *PATTERN_RULES.get(op, []),
    ]
    for op in (*MOVEMENT_RULES, *ARITHMETIC_RULES, *WINDOW_RULES, *PATTERN_RULES)
}
"""Every rule, by the operator of the node that it looks at."""


def simplify(graph: Graph) -> Graph:
    """The graph with every rule applied until none applies; the same object where none does."""
    return until_stable(graph, _rule)


def _rule(node: Node, scope: Scope) -> Replacement:
    if node.domain or not node.outputs:
        return None
    for rule in RULES.get(node.op, (reshape_later,)):
        found = rule(node, scope)
        if found is not None:
            scope.rule = rule
            return found
    return None
