"""The command `weft`: finds the command that was asked for, runs it, and turns errors into one clear line.

With -v or --debug, or WEFT_DEBUG=1 in the environment, Weft's log is printed (what each kernel and its passes take,
what is found in the cache) and an error shows where it comes from.

Exit codes: 0 all is well; 1 an error, or a comparison that found a difference; 2 a command line that argparse refuses;
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from weft.cli.given import Given, UsageError
from weft.cli.screen import Screen
from weft.core.errors import InternalError, WeftError, did_you_mean
from weft.core.install import DISTRIBUTION, MEND, hint_for
from weft.core.knobs import knobs
from weft.core.version import VERSION

COMMANDS = {
    "compile": "compile a model into a file that runs without the compiler",
    "run": "run a model once, on files or random numbers",
    "bench": "measure a model, alone or beside ONNX Runtime",
    "profile": "say where the time of a model goes, kernel by kernel",
    "inspect": "show what the compiler makes of a model, at any stage",
    "explore": "everything that the compiler does to a model, on one page for a browser",
    "diff": "show where two models part, after their passes and whatever their weights",
    "compare": "run a model node by node against a reference, and name the first node that differs",
    "tune": "find faster schedules for a model by measuring on this machine",
    "db": "look into the records of weft tune: stats, best, export, import, merge, prune",
    "quantize": "make an 8-bit model of a float one, and say what it costs layer by layer",
    "export": "write a model in another form",
    "sign": "sign a compiled model, so that weft.load(path, key=...) takes it and no other",
    "cache": "list, measure or clear what is kept of compiled models",
    "devices": "list what there is to run on",
    "pool": "make or run a pool of machines to measure on",
    "worker": "lend a device or a builder to a pool",
    "doctor": "say what was found here, what is missing, and the command that mends it",
    "bugreport": "write one file to attach to a report: versions, findings, a model without its weights",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The whole program; gives the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    screen, debugs = Screen(), not {"-v", "--debug"}.isdisjoint(words)
    try:
        refuse_strangers()
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: screen.note(f"warning: {message}")
            debugs = debugs or knobs.debug > 0
            with knobs.override(**({"debug": knobs.debug or 1} if debugs else {})):
                return run(words, screen)
    except BrokenPipeError:
        # Whoever read our output has enough: `weft inspect … | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        screen.error("stopped")
        return 130
    except (WeftError, InternalError, ImportError, OSError, MemoryError) as problem:
        if debugs:
            raise
        screen.error(explain(problem))
        return 1


def run(words: Sequence[str], screen: Screen) -> int:
    """Reads a command line, and runs its command."""
    parser = make_parser(words)
    given = parser.parse_args(words, Given())
    if given.command is None:
        parser.print_help()
        return 0
    screen.as_json = bool(getattr(given, "json", False))
    given.begin()
    code = int(_command(given.command).run(given, screen))
    ignored = [name for name in given.ignored() if name not in ("debug", "json")]
    if ignored and code == 0:
        raise InternalError(f"weft {given.command} did nothing with --{', --'.join(ignored)}")
    return code


def refuse_strangers() -> None:
    """An error where the package `weft` that Python found is that of another project, put over ours."""
    package = sys.modules["weft"]
    if getattr(package, "__version__", None) != VERSION:
        raise UsageError(
            f"{package.__file__} is not that of {DISTRIBUTION} {VERSION}, but of another project called weft "
            f"that was installed over it. To mend it: {MEND}"
        )


def explain(problem: BaseException) -> str:
    """An error as a person should read it."""
    if isinstance(problem, ImportError) and problem.name:
        top = problem.name.split(".")[0]
        return f"this needs the package {top}: {hint_for(top)}"
    if isinstance(problem, MemoryError):
        return "there is not enough memory for this"
    return str(problem) or type(problem).__name__


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command line; the options of a command are read only when it is the one that is asked for."""
    parser = argparse.ArgumentParser(prog="weft", description="Weft compiles deep-learning models to machine code.")
    parser.add_argument("--version", action="version", version=f"weft {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    asked = next((word for word in words if not word.startswith("-")), None)
    if asked is not None and asked not in COMMANDS:
        parser.error(f"there is no command {asked!r}{did_you_mean(asked, COMMANDS)}; weft --help lists them")
    for name, help_text in COMMANDS.items():
        one = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        one.add_argument(
            "-v", "--debug", action="store_true", help="print Weft's log, and show where an error comes from"
        )
        if name == asked:
            _command(name).add(one)
    return parser


def _command(name: str) -> Any:
    # `compile` and `inspect` are names of Python's own: files carry a suffix so that nothing hides those.
    return importlib.import_module(f"weft.cli.{name}_command")
