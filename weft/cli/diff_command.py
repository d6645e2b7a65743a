"""weft diff A B: whether two models are one graph after the passes, and where they part.

Weights count by their shapes only: models without a difference get the same kernels, whichever door they came in by.
The first nodes that only one of them has are shown, with what each reads; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
from collections import Counter

import weft.ops  # noqa: F401 — fills the table of operators
from weft.cli.given import Given
from weft.cli.screen import Screen
from weft.cli.sources import open_graph
from weft.compiler.passes import optimize
from weft.graph.ir import Graph, Node, Value
from weft.graph.structural import parting, structure_key

MOST_SHOWN = 12
"""How many nodes of each model are shown."""


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("model", help="an .onnx, .pt2, .keras or .tflite file, or a built-in model")
    parser.add_argument("other", help="the model to compare it with")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(given: Given, screen: Screen) -> int:
    """The command."""
    names = [given.model, given.other]
    graphs = [optimize(open_graph(Given(model=name, batch=None), screen), {}, {}) for name in names]
    keys = [structure_key(one) for one in graphs]
    found = parting(*graphs)
    if screen.as_json:
        shown = [[_line(node, graph) for node in nodes] for nodes, graph in zip(found, graphs)]
        screen.figures({"models": names, "hashes": keys, "only": shown})
    elif keys[0] == keys[1]:
        screen.line(f"one graph of {len(graphs[0].nodes)} nodes, {keys[0]}")
    else:
        _show(names, graphs, keys, found, screen)
    return int(keys[0] != keys[1])


def _show(
    names: list[str], graphs: list[Graph], keys: list[str], found: tuple[list[Node], ...], screen: Screen
) -> None:
    counts = [Counter(node.op for node in graph.nodes) for graph in graphs]
    for turn, (name, graph, key, nodes) in enumerate(zip(names, graphs, keys, found)):
        more = counts[turn] - counts[1 - turn]
        screen.line(f"{name}: {len(graph.nodes)} nodes, {key}")
        if more:
            screen.line("  more of " + ", ".join(f"{op} ({count})" for op, count in more.most_common()))
        for node in nodes[:MOST_SHOWN]:
            screen.line(f"  {'-+'[turn]} {_line(node, graph)}")
        if len(nodes) > MOST_SHOWN:
            screen.line(f"  … and {len(nodes) - MOST_SHOWN} more that part first")
    if not any(found):
        screen.line("all nodes of one stand in the other: inputs, outputs or their order differ")


def _line(node: Node, graph: Graph) -> str:
    attributes = ", ".join(f"{key}={value!r}" for key, value in node.attributes.items() if not isinstance(value, Graph))
    reads = ", ".join("none" if v is None else _operand(v, graph) for v in node.inputs)
    origin = f'   @"{node.name}"' * bool(node.name) + f"   from {node.origin}" * bool(node.origin)
    return f"{node.outputs[0].type!r} = {node.op}({reads}{', ' + attributes if attributes else ''}){origin}"


def _operand(value: Value, graph: Graph) -> str:
    array = graph.constants.get(value)
    small = array is not None and array.size <= 8
    return f"{array.tolist()}" if small and array is not None else f"{'const ' * (array is not None)}{value.type!r}"
