"""weft compile MODEL [--target A,B] [-o FILE]: a model to a module file, which `weft run` and `weft.load` take."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.cli.facts import module_facts
from weft.cli.given import UsageError, refuse
from weft.cli.pool_command import add_certificates, folder_of
from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import add_compiling, add_model, compiled, input_shapes, open_graph, output_path
from weft.compiler.saved.store import save_modules


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser, runs=False)
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default: the model's name with .weft)")
    parser.add_argument("--pool", metavar="URL", help="kernels are compiled by a pool's builders (docs/pool.md)")
    add_certificates(parser)
    parser.add_argument("--report", action="store_true", help="say what runs where, and how much memory it takes")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def targets(text: str | None) -> list[str]:
    """The machines of --target: "native,x86_64-unknown-linux-gnu,cpu=haswell" are two."""
    found: list[str] = []
    for part in (text or "auto").split(","):
        if found and ("=" in part or part.strip()[:1] in ("+", "-")):
            found[-1] += f",{part}"
        else:
            found.append(part)
    if twice := [one for at, one in enumerate(found) if one in found[:at]]:
        raise UsageError(f"--target names {twice[0]} twice")
    return found


@contextmanager
def _builders(given: argparse.Namespace) -> Iterator[None]:
    """The builders of --pool, where it is given."""
    if given.pool is None:
        refuse(given, "certificates", "it belongs to --pool")
        yield
        return
    from weft.pool.guard import guard
    from weft.pool.models import compiling
    from weft.pool.runner import connect

    folder = folder_of(given)
    guard()
    with connect(given.pool, folder, 60.0) as client, compiling(client):
        yield


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    graph = open_graph(given, screen)
    shapes = input_shapes(graph.inputs, given, screen)
    output = output_path(given, ".weft")
    start = time.perf_counter()
    with _builders(given):
        modules = [compiled(graph, shapes, given, screen, one) for one in targets(given.target)]
    taken, module = time.perf_counter() - start, modules[0]
    with screen.working("linking"):
        found = zip(modules, save_modules([one._executor for one in modules], output))
        needs = [f"for {one.target.name}, {why}" if len(modules) > 1 else why for one, why in found if why]
    facts: dict[str, Any] = {"file": str(output), "bytes": output.stat().st_size, "compile_s": taken, "needs": needs}
    facts |= module_facts(module)
    report = module.report() if given.report else None
    if screen.as_json:
        screen.figures(facts if report is None else {**facts, "report": report})
        return 0
    if report is not None:
        screen.line(report)
    screen.line(
        f"{output}: {size(facts['bytes'])}, compiled in {seconds(taken)}; "
        f"{facts['kernels']} kernels, {facts['host_nodes']} nodes on the host"
    )
    screen.line(f"it needs the compiler to run: {needs[0]}" if needs else "it runs with numpy alone")
    return 0
