"""weft explore MODEL [-o page.html]: everything that the compiler does to a model, on one page for a browser.

The graph before and after each pass and why, fused groups, every kernel from its expression to machine code with its
plan and rivals, times, the memory plan, the tuner's records. The page needs no network and no other file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import add_compiling, add_inputs, add_model, duration, open_with_feeds, output_path
from weft.compiler.reports.profile import Profile
from weft.core.knobs import knobs
from weft.explore import explore
from weft.graph.passes.history import watching


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    add_inputs(parser)
    parser.add_argument("-o", "--output", type=Path, help="the page to write (default: the model's name and .html)")
    parser.add_argument("--seconds", type=duration, help="how long to measure kernels (default 1)")
    parser.add_argument("--no-times", action="store_true", help="do not run the model: a page without times")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.model.endswith(".weft"):
        raise UsageError(f"{given.model} is compiled already: this command takes the model that it was made from")
    if given.no_times:
        refuse(given, "seconds threads", "--no-times measures nothing")
    path = output_path(given, ".html")
    begun = time.perf_counter()
    # A form from the cache does not know how it came about, and would be compiled again for that.
    with knobs.override(cache=False), watching() as history:
        module, feeds, _ = open_with_feeds(given, screen)
        if not module.specializations:
            with screen.working("running once, for the shapes"):
                module.run(None, feeds)
    compiled = time.perf_counter()
    profile: Profile | None = None
    if not given.no_times:
        with screen.working(f"measuring for {given.seconds or 1:g} s"):
            profile = module.profile(feeds, threads=given.threads, seconds=given.seconds or 1.0)
    with screen.working("writing the page"):
        page = explore(module, profile, history)
        written = page.write(path)
    took = {"compile_s": compiled - begun, "page_s": time.perf_counter() - compiled}
    if screen.as_json:
        screen.figures({"page": path, "bytes": written, "kernels": len(page.kernels), **took})
        return 0
    count = len(page.kernels)
    screen.line(f"{path}: {count} kernel{'s' * (count != 1)}, {size(written)}; open it in a browser")
    screen.note(f"compiled in {seconds(took['compile_s'])}, the page took {seconds(took['page_s'])}")
    return 0
