"""The list of passes that bring a graph to one form, so that one model from different exporters gives one graph.

infer -> expand -> stack_sequences; then fold -> expand -> simplify -> recurrent -> select_branches -> fold_batch_norm
-> crop_windows -> common -> dead, until nothing changes (what an operator is made of may depend on a value that only
folding tells)
"""

from __future__ import annotations

from collections.abc import Callable

from weft.graph.ir import Graph, all_graphs
from weft.graph.passes.common import common
from weft.graph.passes.crop_windows import crop_windows
from weft.graph.passes.dead import dead
from weft.graph.passes.expand import expand
from weft.graph.passes.fold import fold
from weft.graph.passes.fold_batch_norm import fold_batch_norm
from weft.graph.passes.history import run
from weft.graph.passes.infer import infer
from weft.graph.passes.recurrent import recurrent
from weft.graph.passes.select_branches import select_branches
from weft.graph.passes.simplify import simplify
from weft.graph.passes.stack_sequences import stack_sequences
from weft.graph.structural import quick_key

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    fold, expand, simplify, recurrent, select_branches, fold_batch_norm, crop_windows, common, dead,
)  # fmt: skip
"""The passes in order."""

MOST_ROUNDS = 6


def normalize(graph: Graph) -> Graph:
    """The graph in its normal form, every type inferred."""
    graph = run(stack_sequences, run(expand, infer(graph)))
    for _ in range(MOST_ROUNDS):
        before = graph
        for step in PASSES:
            graph = run(step, graph)
        if _are_alike(graph, before):
            break
    return infer(graph)


def _are_alike(a: Graph, b: Graph) -> bool:
    """Whether no pass has done anything; most that did have changed how many nodes there are."""
    counts = [sum(len(inner.nodes) for inner in all_graphs(one)) for one in (a, b)]
    return a is b or (counts[0] == counts[1] and quick_key(a) == quick_key(b))
