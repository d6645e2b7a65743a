"""The graph before and after each pass, and the model's own nodes: where each came from, and what became of it.

In: the history of the passes (`weft.graph.passes.history`), the graph as it was loaded, the rows of the schedule of
kernels. Out: plain data. Graphs are lists of numbers of lines, each line is kept once.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from weft.graph.ir import Graph, Node, Value, reads
from weft.graph.passes.history import History, Run
from weft.graph.text import format_graph

LONGEST_LINE = 400
"""Characters of a line of a graph; constants of a few elements are written out, and may be long."""

UNNAMED = ("rule", "lambda")
"""Rules that are called by what they are part of."""

_PLACE = re.compile(r"(?P<file>[^\s\"]+\.py):(?P<line>\d+)$")


class Lines:
    """Lines, each kept once and known by its number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def numbers(self, lines: Sequence[str]) -> list[int]:
        """The numbers of some lines."""
        found = []
        for line in lines:
            number = self._numbers.setdefault(line, len(self.all))
            if number == len(self.all):
                self.all.append(line)
            found.append(number)
        return found


def pass_data(history: History) -> dict[str, Any]:
    """The graphs, by the numbers of their lines, and the passes between them: those that changed a line."""
    lines, texts = Lines(), dict[int, list[int]]()
    graphs: list[list[int]] = []
    runs: list[dict[str, Any]] = []

    def text(graph: Graph) -> list[int]:
        if id(graph) not in texts:
            cut = [line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " …" for line in _lines(graph)]
            texts[id(graph)] = lines.numbers(cut)
        return texts[id(graph)]

    for run in history.runs:
        before, after = text(run.before), text(run.after)
        if before == after:
            continue
        if not graphs or graphs[-1] != before:
            graphs.append(before)
        graphs.append(after)
        nodes = [len(run.before.nodes), len(run.after.nodes)]
        runs.append(
            {"name": run.name, "reason": run.reason, "from": len(graphs) - 2, "to": len(graphs) - 1, "nodes": nodes,
             "rewrites": _rewrites(run)}
        )  # fmt: skip
    return {"lines": lines.all, "graphs": graphs, "runs": runs}


def _lines(graph: Graph) -> list[str]:
    """The lines of a graph, its nodes before its constants: what one wants to see of a change comes first."""
    lines = [line.removeprefix("    ") for line in format_graph(graph).splitlines()]
    constants = [line for line in lines if line.startswith("const ")]
    return [*(line for line in lines if not line.startswith("const ")), *constants]


def _rewrites(run: Run) -> list[dict[str, Any]]:
    """What the rules of a pass did: each rule once, with the nodes that it took the place of."""
    found = sorted(run.rewrites, key=lambda one: one[:2])
    return [
        {"rule": run.name if rule in UNNAMED else rule, "reason": reason, "nodes": [_named(node) for *_, node in group]}
        for (rule, reason), group in groupby(found, key=lambda one: one[:2])
    ]


def _named(node: Node) -> list[str]:
    return [node.op, node.name or (node.outputs[0].name if node.outputs else "")]


# ------------------------------------------------------------------------------------------------- the model's nodes


def node_data(graph: Graph, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The nodes of a model as it was loaded: what each is, where it was written, which rows compute it.

    A node is computed where one of its name, or one that makes its output, is; else it went into what reads it; one
    that only constants reach was folded away.
    """
    by_name: dict[str, set[int]] = {}
    by_output: dict[str, set[int]] = {}
    for at, row in enumerate(rows):
        for node in row["nodes"]:
            by_name.setdefault(node["name"], set()).add(at)
            for output in node["outputs"]:
                by_output.setdefault(output, set()).add(at)
    constant = _constant_values(graph)
    readers = graph.consumers()
    places: dict[Node, set[int]] = {}
    fates: dict[Node, str] = {}
    for node in reversed(graph.nodes):
        found = set(by_name.get(node.name, ())) if node.name else set()
        for value in node.outputs:
            found |= by_output.get(value.name, set())
        fate = "computed"
        if not found and all(value in constant for value in node.outputs):
            fate = "folded into a constant"
        elif not found:
            inside = {row for value in node.outputs for reader in readers.get(value, ()) for row in places[reader]}
            found = {kernel for row in inside for kernel in _behind(row, rows)}
            fate = "became part of what reads it" if found else "not needed"
        places[node], fates[node] = found, fate
    return [
        {**plain_node(node), "rows": sorted(places[node]), "fate": fates[node], "source": source_line(node.origin)}
        for node in graph.nodes
    ]


def _behind(at: int, rows: Sequence[Mapping[str, Any]]) -> set[int]:
    """A row; for a reshape, which has no code, the rows that read its result."""
    row = rows[at]
    if row.get("kind") != "view":
        return {at}
    made = {name for name, _ in row["makes"]}
    readers = [later for later in range(at + 1, len(rows)) if made & set(rows[later]["reads"])]
    return {kernel for later in readers for kernel in _behind(later, rows)} or {at}


def plain_node(node: Node) -> dict[str, Any]:
    """A node as plain data."""
    return {
        "op": f"{node.domain}::{node.op}" if node.domain else node.op,
        "name": node.name,
        "origin": node.origin,
        "inputs": ["" if value is None else value.name for value in node.inputs],
        "outputs": [value.name for value in node.outputs],
        "types": [repr(value.type) for value in node.outputs],
    }


def _constant_values(graph: Graph) -> set[Value]:
    known: set[Value] = {*graph.constants}
    for node in graph.nodes:
        if all(value in known for value in reads(node)):
            known.update(node.outputs)
    return known


def source_line(origin: str) -> str:
    """The line of the user's Python file that an origin names; empty where there is none."""
    found = _PLACE.search(origin)
    return linecache.getline(found["file"], int(found["line"])).strip() if found else ""
