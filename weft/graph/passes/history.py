"""What each pass did to a graph and why, for whoever watches: `weft explore`.

    with watching() as history:
        normalize(graph)
    for run in history.runs:
        run.name, run.reason, run.before, run.after, run.rewrites      only passes that changed something are noted

A pass is called through `run`; rules that `rewrite` applies are noted with the node that each took the place of. The
reason is what the code says of itself: how the docstring of the pass's file begins, and that of the rule.
"""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from weft.core.context import setting
from weft.core.errors import InternalError
from weft.core.knobs import knobs
from weft.core.model import LOGGED_SECONDS
from weft.graph.ir import Graph, Node, reads

logger = logging.getLogger("weft.compiler")


@dataclass
class Run:
    """One pass that changed a graph: what it is for, both graphs, and what its rules did: (rule, reason, node)."""

    name: str
    reason: str
    before: Graph
    after: Graph
    rewrites: list[tuple[str, str, Node]]


@dataclass
class History:
    """The passes that changed a graph, in order."""

    runs: list[Run] = field(default_factory=list)
    pending: list[tuple[str, str, Node]] = field(default_factory=list)
    """What rules did since the last pass ended."""


_HISTORY: ContextVar[History | None] = ContextVar("history", default=None)


@contextmanager
def watching() -> Iterator[History]:
    """Notes what passes do inside."""
    with setting(_HISTORY, history := History()):
        yield history


def run(step: Callable[..., Graph], graph: Graph, *given: Any) -> Graph:
    """What a pass makes of a graph, timed, checked where that is asked for, and noted where somebody watches."""
    start = time.thread_time()
    made, history = step(graph, *given), _HISTORY.get()
    if (taken := time.thread_time() - start) >= LOGGED_SECONDS:
        logger.debug("pass %s: %.3f s over %d nodes", step.__name__, taken, len(graph.nodes))
    if knobs.verify and made is not graph:
        check_order(made, step.__name__)
    if history is not None:
        rewrites, history.pending = history.pending, []
        if made is not graph:
            reason = reason_of(sys.modules[step.__module__]) or reason_of(step)
            history.runs.append(Run(step.__name__, reason, graph, made, rewrites))
    return made


def check_order(graph: Graph, name: str) -> None:
    """Raises where a node of a graph, or an output, reads what nothing before it makes."""
    made = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for value in reads(node):
            if value not in made:
                raise InternalError(
                    f"after the pass {name}, {node.describe()} reads {value.name!r}, made by nothing before"
                )
        made.update(node.outputs)
    for value in graph.outputs:
        if value not in made:
            raise InternalError(f"after the pass {name}, nothing makes the output {value.name!r} of {graph.name}")


def note(rule: Callable[..., Any], node: Node) -> None:
    """A rule has found something to put in the place of a node."""
    history = _HISTORY.get()
    if history is not None:
        history.pending.append((rule.__name__.strip("_<>"), reason_of(rule), node))


def reason_of(code: Any) -> str:
    """The first paragraph of a docstring; empty where there is none."""
    text = inspect.getdoc(code) or ""
    return " ".join(text.partition("\n\n")[0].split())
