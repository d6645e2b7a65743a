"""weft compile MODEL [-o FILE]: a model to a module file, which `weft run` and `weft.load` take."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from weft.cli.facts import module_facts
from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import add_compiling, add_model, input_shapes, open_graph
from weft.executor import compile


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default: the model's name with .weft)")
    parser.add_argument("--report", action="store_true", help="say what runs where, and how much memory it takes")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    graph = open_graph(given, screen)
    shapes = input_shapes(graph.inputs, given, screen)
    output: Path = given.output or Path(Path(given.model).stem + ".weft")
    start = time.perf_counter()
    with screen.working(f"compiling {graph.name}"):
        module = compile(graph, given.target, shapes, given.precision, given.threads)
        compiled = time.perf_counter() - start
        module.save(output)
    facts = {"file": str(output), "bytes": output.stat().st_size, "compile_s": compiled, **module_facts(module)}
    if screen.as_json:
        screen.figures(facts)
        return 0
    if given.report:
        screen.line(module.report())
    screen.line(
        f"{output}: {size(facts['bytes'])}, compiled in {seconds(compiled)}; "
        f"{facts['kernels']} kernels, {facts['host_nodes']} nodes on the host"
    )
    return 0
