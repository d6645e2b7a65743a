"""Algorithms for the nodes of a model (Winograd with tiles of 2 or 4, or direct), by the time of the whole model.

What a target proposes for a node (`graph/passes/algorithms.py`) it ranks by a count of cycles. Here nodes of one shape
are one group; for each group the other labels are tried, the model compiled with each in a child and measured in turns
with what stands. What makes it faster stays, and the next group is tried on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.executor.passes import for_target, optimize
from weft.graph.ir import Graph, Node
from weft.graph.passes.algorithms import DIRECT, choosing
from weft.graph.structural import structure_key
from weft.plan.overrides import Records

if TYPE_CHECKING:
    from weft.tuner.model import Tuning

SHARE = 0.3
"""The part of the time that may go into this."""

LEAST_GAIN = 1.01
"""Of the whole model: another algorithm is worth that much at least."""


def groups_of(graph: Graph, offered: Mapping[str, list[str]]) -> list[tuple[list[str], list[str], str]]:
    """Values that nodes of one shape make, the labels that there are for them, and the one that they have."""
    found: dict[str, tuple[list[str], list[str], str]] = {}
    for node in graph.nodes:
        name = node.outputs[0].name if node.outputs else ""
        if name in offered and node.inputs[0] is not None:
            key = f"{node.inputs[0].type} {node.outputs[0].type} {offered[name]}"
            found.setdefault(key, ([], offered[name], _label(node)))[0].append(name)
    return list(found.values())


def _label(node: Node) -> str:
    return DIRECT if node.op == "Conv" else f"{node.op} {node.attributes['tile']}"


def choose_algorithms(tuning: Tuning, observe: Callable[[Any, Any], None]) -> None:
    """Tries the algorithms of a model, and puts those into use that make it faster."""
    offered: dict[str, list[str]] = {}
    with choosing({}, offered):
        for_target(optimize(tuning.graph, {}, {}), tuning.target, tuning.precision)
    if not offered:
        return
    graph, in_use = structure_key(tuning.graph), tuning.database.accepted(tuning.target)
    labels = dict(in_use.algorithms.get(graph, {}))
    with choosing(labels):
        made = for_target(optimize(tuning.graph, {}, {}), tuning.target, tuning.precision)
    until = (1.0 - SHARE) * tuning.budget
    for names, choices, has in groups_of(made, offered):
        for label in (one for one in choices if one != has):
            if tuning.left - tuning.model_seconds < until:
                return
            tuning.stage = f"trying {label} for {len(names)} convolutions"
            observe(tuning, None)
            tried = {**labels, **dict.fromkeys(names, label)}
            found = tuning.measure(_with(in_use, graph, labels), _with(in_use, graph, tried))
            tuning.algorithms.append((label, names, found.ratio if not found.problem else 0.0))
            if found.is_faster and found.ratio >= LEAST_GAIN:
                labels = tried
                tuning.database.accept_algorithms(tuning.name, graph, tuning.target, labels, found.ratio)


def _with(in_use: Records, graph: str, labels: Mapping[str, str]) -> Records:
    return replace(in_use, algorithms={**in_use.algorithms, graph: labels})
