"""Other forms of a model, by its whole time. What can be chosen is said when it is compiled (`asked` in graph/passes):
for a node (Winograd with tiles of 2 or 4, or direct), for the model (attention fused, channels padded, layouts between
kernels, the precision that the user allows or float32), for each place where a kernel may end. Nodes of one shape are
one choice, places before one operator too. Each label is tried, the model compiled with it in a child and measured in
turns with what stands. What makes it faster stays, and the next choice is tried on top. On a device, where schedules
gain more than forms do, one that is about as fast as what stands is searched too (`Tuning.close`), and judged again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.graph.ir import Graph
from weft.graph.passes.algorithms import DIRECT
from weft.graph.passes.fuse import APART
from weft.graph.structural import structure_key
from weft.plan.overrides import Records
from weft.tuner.settings import CLOSE, LEAST_GAIN, SHARE

if TYPE_CHECKING:
    from weft.tuner.model import Tuning


class Choice(NamedTuple):
    """What is chosen together: what it is called, the names of its parts, their labels, and the one that they have."""

    kind: str
    names: list[str]
    labels: list[str]
    has: str


def choices_of(
    graph: Graph, offered: Mapping[str, list[str]], chosen: Mapping[str, str], seconds: Mapping[str, float]
) -> list[Choice]:
    """What there is to choose in a model that was compiled with some labels: what concerns all of it first, then
    convolutions, then where kernels end; of these what takes longest, by the seconds of the kernel of each node."""
    found: dict[str, Choice] = {}
    taken: dict[str, float] = defaultdict(float)

    def add(key: str, kind: str, name: str, has: str | None = None) -> None:
        made = Choice(kind, [], offered[name], has or chosen.get(name, offered[name][0]))
        found.setdefault(key, made).names.append(name)

    for name in (one for one in offered if one.startswith("* ")):
        add(name, name[2:], name)
    for node in (one for one in graph.nodes if one.outputs):
        name, place = node.outputs[0].name, f"{APART} {node.outputs[0].name}"
        if name in offered and node.inputs[0] is not None:
            has = DIRECT if node.op == "Conv" else f"{node.op} {node.attributes['tile']}"
            key = f"{node.inputs[0].type} {node.outputs[0].type} {offered[name]}"
            add(key, "convolutions", name, has)
            taken[key] += seconds.get(node.name, 0.0)
        if place in offered:
            add(f"{APART} {node.op}", node.op, place)
            taken[f"{APART} {node.op}"] += seconds.get(node.name, 0.0)
    last = {key: key.startswith(APART) - key.startswith("* ") for key in found}
    return [found[key] for key in sorted(found, key=lambda key: (last[key], -taken[key]))]


def choose_algorithms(tuning: Tuning, observe: Callable[[Any, Any], None]) -> None:
    """Tries the forms of a model, and puts those into use that make it faster."""
    graph, in_use = structure_key(tuning.graph), tuning.database.accepted(tuning.target)
    labels = dict(in_use.algorithms.get(graph, {}))
    until = (1.0 - SHARE) * tuning.left
    lasts = tuning.model_seconds
    has_schedules = any(task.key in in_use.traces for task in tuning.tasks)
    seconds = {name: task.seconds / task.calls for task in tuning.tasks for name in task.nodes}
    offers = choices_of(tuning.made, tuning.offered, labels, seconds)
    if tuning.target.on_device:  # where kernels that end earlier are more launches: 0.76 and 0.85 on an H200
        offers = [one for one in offers if not one.names[0].startswith(APART)]
    for kind, names, choices, has in offers:
        for label in (one for one in choices if one != has):
            if tuning.left - lasts < until:
                return
            tuning.stage = f"trying {label} for {len(names)} {kind}"
            observe(tuning, None)
            tried, begun = {**labels, **dict.fromkeys(names, label)}, tuning.left
            found = tuning.measure(with_labels(in_use, graph, labels), with_labels(in_use, graph, tried))
            lasts = begun - tuning.left
            tuning.model_seconds = min(tuning.model_seconds, lasts)
            tuning.algorithms.append((f"{label} for {kind}", names, found.ratio if not found.problem else 0.0))
            is_faster, loser = found.is_faster and found.ratio >= LEAST_GAIN, tried
            if has_schedules and tuning.target.on_device and not is_faster:  # which the other has not
                found = tuning.measure(with_labels(Records(), graph, labels), with_labels(Records(), graph, tried))
            if is_faster:
                labels, loser, tuning.chose_algorithms = tried, labels, True
                tuning.database.accept_algorithms(tuning.name, graph, tuning.target, labels, found.ratio)
            if tuning.target.on_device and not found.problem and 1.0 / CLOSE < found.ratio < CLOSE:
                tuning.close.append((found.ratio if loser is tried else 1.0 / found.ratio, loser))


def with_labels(in_use: Records, graph: str, labels: Mapping[str, str]) -> Records:
    """Records with other labels for a model."""
    return replace(in_use, algorithms={**in_use.algorithms, graph: labels})
