"""weft profile MODEL [--json FILE] [--trace FILE]: where the time of a model goes, kernel by kernel."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen, plain
from weft.cli.sources import add_compiling, add_inputs, add_model, duration, open_with_feeds
from weft.compiler.reports.profile_text import profile_rows, summary


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    add_inputs(parser)
    parser.add_argument("--seconds", type=duration, default=2.0, help="how long to measure (default 2)")
    parser.add_argument("--top", type=int, metavar="N", help="only the N kernels that take longest")
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const="-", help="print figures as JSON, or write them to a file"
    )
    parser.add_argument("--trace", metavar="FILE", help="write one run as a trace for ui.perfetto.dev")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.model.endswith(".weft"):
        raise UsageError("a module file does not know its kernels: profile the .onnx file that it was compiled from")
    if given.top is not None and given.top < 1:
        raise UsageError(f"--top is {given.top}; give a number from 1 up")
    if given.json == "-":
        refuse(given, "top", "--json has all kernels")
    module, feeds, _ = open_with_feeds(given, screen)
    with screen.working(f"measuring for {given.seconds:g} s"):
        profile = module.profile(feeds, threads=given.threads, seconds=given.seconds)
    if given.trace:
        profile.save_trace(given.trace)
    if given.json == "-":
        screen.figures(profile.as_json())
        return 0
    screen.line(summary(profile))
    header, rows = profile_rows(profile, given.top)
    screen.table([header[0], *(f"{name}>" for name in header[1:-1]), header[-1]], rows)
    if given.json:
        Path(given.json).write_text(json.dumps(plain(profile.as_json()), indent=2) + "\n", encoding="utf-8")
    for path in filter(None, (given.json, given.trace)):
        screen.note(f"wrote {path}")
    return 0
