"""weft bugreport [MODEL] [-o FILE]: one text file to attach to a report.

It holds what weft doctor found, and of a model its graph without the values of its weights, what happens when it is
compiled and run, and the log of that. It holds no environment variable but Weft's own settings, no path of the home
folder, no user's or machine's name: read it before you send it, it is plain text.
"""

from __future__ import annotations

import argparse
import platform
import re
from datetime import date
from pathlib import Path

from weft.cli.doctor_command import CHECKS, guarded
from weft.cli.given import UsageError
from weft.cli.screen import Screen, size
from weft.cli.sources import add_compiling, add_inputs, add_model, open_graph, open_with_feeds
from weft.core.version import VERSION
from weft.explore.bugreport import model_parts, without_private


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    model = next(action for action in parser._actions if action.dest == "model")
    model.nargs, model.help = "?", f"the model that goes wrong, if it is one: {model.help}"
    add_compiling(parser)
    add_inputs(parser)
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default weft-bugreport.txt)")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command; it is well also where the model is not."""
    path = given.output or Path("weft-bugreport.txt")
    if path.suffix not in (".txt", ".md"):
        raise UsageError(f"-o {path}: what is written here is a text: name a file that ends in .txt or .md")
    parts = {"System": _system(), "weft doctor": _doctor()}
    if given.model is not None:
        with screen.working("compiling and running the model"):
            parts.update(model_parts(lambda: open_graph(given, screen), lambda: _ran(given, screen), (UsageError,)))
    text = "\n".join(f"## {name}\n{body.rstrip()}\n" for name, body in parts.items())
    path.write_text(without_private(f"# Weft {VERSION}: bug report of {date.today()}\n\n{text}"), encoding="utf-8")
    if screen.as_json:
        screen.figures({"file": path, "bytes": path.stat().st_size, "parts": list(parts)})
    else:
        screen.line(f"{path}: {size(path.stat().st_size)}. Read it, say in a line what you expected, and attach it.")
    return 0


def _system() -> str:
    return (
        f"Weft {VERSION}, Python {platform.python_version()} ({platform.python_implementation()}), "
        f"{platform.system()} {platform.release()} {platform.machine()}"
    )


def _doctor() -> str:
    """What doctor finds, without folders that a setting names and variables that are none of Weft's."""
    found = [finding for check in CHECKS for finding in guarded(check)]
    found = [
        one for one in found if one.what != "setting" or (one.state == "ok" and not re.search(r"[/\\]", one.detail))
    ]
    return "\n".join(f"{one.state:8}{one.what}: {one.detail}" for one in found)


def _ran(given: argparse.Namespace, screen: Screen) -> str:
    module, feeds, _ = open_with_feeds(given, screen)
    made = module.run(None, feeds)
    shapes = [f"{port.name}: {getattr(one, 'dtype', type(one).__name__)}{list(getattr(one, 'shape', []))}"
              for port, one in zip(module.outputs, made)]  # fmt: skip
    return f"{module.report()}\n\nit ran, and gave {', '.join(shapes)}"
