"""weft compare MODEL [--against ort|interpreter]: node by node, and the first node that differs by name.

The model is compiled twice: as it is, for its outputs; and with every value kept, so that each can be held against the
reference. A node that differs is then run alone on the reference's own inputs: that tells a wrong kernel from a small
error that a node makes large.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.cli.facts import relative_error
from weft.cli.given import UsageError, refuse
from weft.cli.reference import model_of, open_session, run_session, with_every_value
from weft.cli.screen import Screen
from weft.cli.sources import PRECISIONS, add_compiling, add_inputs, add_model, make_feeds, open_graph
from weft.compiler import Module, compile
from weft.core.errors import WeftError
from weft.graph.interpreter import interpret_graph, trace_graph
from weft.graph.ir import Graph, Node, TensorType, Value, dtype_name, reads


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    add_inputs(parser)
    parser.add_argument("--against", choices=["ort", "interpreter"], default="ort", help="the reference (default ort)")
    parser.add_argument("--engine", choices=["compiled", "interpreter"], default="compiled", help="what is checked")
    parser.add_argument(
        "--alone", action="store_true", help="give every node the reference's inputs: errors stay apart"
    )
    usual = ", ".join(f"{tolerance_of(name):.1g} in {name}" for name in PRECISIONS)
    parser.add_argument("--tolerance", type=tolerance, help=f"relative to a value's scale (default: {usual})")
    parser.add_argument("--all", action="store_true", help="list every node, not only those that differ")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


Arrays = dict[str, Any]


def tolerance(text: str) -> float:
    """A share of a value's scale, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up, such as 1e-4")
    return value


def tolerance_of(precision: str | None) -> float:
    """How far a right value may be from its reference: 1e-4 of its scale, and in narrower types 8 of their steps."""
    return max(1e-4, 8 * PRECISIONS[precision or "fp32"])


@dataclass
class Row:
    """One value: the node that makes it, and how far it is from the reference."""

    node: Node
    value: str
    error: float


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command; 1 where something differs."""
    if given.engine == "interpreter":
        refuse(given, "target precision exact", "--engine interpreter computes what the model says, as numpy does it")
        if given.against == "interpreter":
            raise UsageError("--engine interpreter --against interpreter compares a thing with itself")
    if screen.as_json:
        refuse(given, "all", "--json has all values")
    if given.tolerance is None:
        given.tolerance = tolerance_of(given.precision)
    graph = open_graph(given, screen)
    feeds = make_feeds(graph.inputs, given, screen)
    with screen.working(f"running {given.against}"):
        wanted = reference_values(graph, feeds, given)
    with screen.working("running weft"):
        outputs = our_outputs(graph, feeds, given)
        rows = (rows_alone if given.alone else rows_in_place)(graph, feeds, wanted, given)
    final = {value.name: relative_error(got, wanted[value.name]) for value, got in zip(graph.outputs, outputs)}
    first = next((row for row in rows if not row.error <= given.tolerance), None)
    alone = None if first is None else error_alone(first, graph, feeds, wanted, given)
    good = first is None and (given.alone or all(error <= given.tolerance for error in final.values()))
    if screen.as_json:
        screen.figures({"tolerance": given.tolerance, **_figures(rows, final, first, alone, good)})
    else:
        _show(rows, final, first, alone, given, screen)
    return 0 if good else 1


# ---------------------------------------------------------------------------------------------------------- values


def reference_values(graph: Graph, feeds: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """What every value should be, by name."""
    if given.against == "interpreter":
        return trace_graph(graph, feeds)
    model, names = with_every_value(model_of(given, graph))
    # Without its optimisations: they would replace the very nodes that are asked for.
    return dict(zip(names, run_session(open_session(model, given.threads, optimised=False), feeds)))


def our_outputs(graph: Graph, feeds: dict[str, Any], given: argparse.Namespace) -> list[Any]:
    """The outputs of the model as it is."""
    if given.engine == "interpreter":
        return interpret_graph(graph, feeds)
    return _module(graph, feeds, given).run(None, feeds)


def our_values(graph: Graph, feeds: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Every value that we compute, by name."""
    if given.engine == "interpreter":
        return trace_graph(graph, feeds)
    made = [value for node in graph.nodes for value in node.outputs]
    module = _module(graph.replace(outputs=list(dict.fromkeys([*graph.outputs, *made]))), feeds, given)
    return dict(zip([port.name for port in module.outputs], module.run(None, feeds)))


def _module(graph: Graph, feeds: Arrays, given: argparse.Namespace) -> Module:
    shapes = {name: array.shape for name, array in feeds.items()}
    return compile(graph, given.target or "auto", shapes, given.precision, given.threads, given.exact or None)


def rows_in_place(graph: Graph, feeds: Arrays, wanted: Arrays, given: argparse.Namespace) -> list[Row]:
    """The errors of all values when the model runs as a whole."""
    values = our_values(graph, feeds, given)
    return [
        Row(node, value.name, relative_error(values[value.name], wanted[value.name]))
        for node in graph.nodes
        for value in node.outputs
        if value.name in wanted and value.name in values
    ]


def rows_alone(graph: Graph, feeds: Arrays, wanted: Arrays, given: argparse.Namespace) -> list[Row]:
    """The errors of all values when every node gets the reference's own inputs."""
    rows = [Row(node, value.name, 0.0) for node in graph.nodes for value in node.outputs if value.name in wanted]
    found = []
    for row in rows:
        error = error_alone(row, graph, feeds, wanted, given)
        if error is not None:
            found.append(Row(row.node, row.value, error))
    return found


def error_alone(row: Row, graph: Graph, feeds: Arrays, wanted: Arrays, given: argparse.Namespace) -> float | None:
    """The error of one node when it gets the reference's own inputs; None where those are not all there."""
    given_arrays: dict[str, Any] = {}
    inputs: list[Value] = []
    for value in dict.fromkeys(reads(row.node)):
        if value in graph.constants:
            continue
        array = feeds.get(value.name, wanted.get(value.name))
        if not isinstance(array, np.ndarray):
            return None
        inputs.append(value)
        given_arrays[value.name] = array
    renamed = {
        value: Value(value.name, TensorType(dtype_name(given_arrays[value.name].dtype), given_arrays[value.name].shape))
        for value in inputs
    }
    if row.node.graphs:
        return None
    node = row.node.replace(inputs=[renamed.get(v, v) if v is not None else None for v in row.node.inputs])
    constants = {value: array for value, array in graph.constants.items() if value in row.node.inputs}
    outputs = [value for value in node.outputs if value.name == row.value]
    single = Graph(f"{graph.name}_alone", list(renamed.values()), outputs, [node], constants)
    try:
        made = our_outputs(single, given_arrays, given)
    except WeftError:
        return None
    return relative_error(made[0], wanted[row.value])


# ---------------------------------------------------------------------------------------------------------- showing


def _figures(
    rows: list[Row], final: dict[str, float], first: Row | None, alone: float | None, good: bool
) -> dict[str, Any]:
    return {
        "same": good,
        "compared": len(rows),
        "outputs": final,
        "first_difference": None
        if first is None
        else {"node": first.node.name, "operator": first.node.op, "value": first.value, "error": _finite(first.error),
              "error_alone": None if alone is None else _finite(alone)},
        "values": [
            {"node": r.node.name, "operator": r.node.op, "value": r.value, "error": _finite(r.error)} for r in rows
        ],
    }  # fmt: skip


def _finite(error: float) -> float | str:
    return error if np.isfinite(error) else "does not fit"


def _show(
    rows: list[Row],
    final: dict[str, float],
    first: Row | None,
    alone: float | None,
    given: argparse.Namespace,
    screen: Screen,
) -> None:
    shown = rows if given.all else [row for row in rows if not row.error <= given.tolerance][:20]
    if shown:
        screen.table(
            ["error>", "operator", "node", "value"],
            [[_error(row.error), row.node.op, row.node.name, row.value] for row in shown],
        )
    worst = max((row.error for row in rows), default=0.0)
    screen.line(
        f"{len(rows)} values compared with {given.against}; the greatest error is {_error(worst)} "
        f"(up to {given.tolerance:.1e} is tolerated)"
    )
    for name, error in final.items():
        screen.line(f"output {name}: error {_error(error)}")
    if first is None:
        if not given.alone and any(not error <= given.tolerance for error in final.values()):
            screen.line("only the fused model differs: no node does when every value is kept")
        return
    screen.line(f"the first difference: {first.node.describe()}, in its result {first.value!r}: {_error(first.error)}")
    if alone is not None:
        verdict = "the node itself is wrong" if not alone <= given.tolerance else "it only makes earlier errors larger"
        screen.line(f"alone, on the reference's inputs, its error is {_error(alone)}: {verdict}")


def _error(error: float) -> str:
    return f"{error:.1e}" if np.isfinite(error) else "does not fit"
