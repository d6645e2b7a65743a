"""weft cache list | size | clear: what is kept of models that were compiled.

list     compiled models, those used last first
size     how many there are, and what they take
clear    removes all of them
"""

from __future__ import annotations

import argparse
import time

from weft.cli.screen import Screen, size
from weft.core.knobs import knobs
from weft.executor import cache
from weft.runtime.cache_folder import remove

PARTS = ("kernels", "runtime")
"""Folders of single pieces of object code."""


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("action", choices=("list", "size", "clear"))
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    found = sorted(cache.entries(), reverse=True)
    kernels = [path for part in PARTS for path in sorted((knobs.cache_dir / part).glob("*.o"))]
    taken = {"models": sum(one for _, one, _ in found), "kernels": sum(path.stat().st_size for path in kernels)}
    if given.action == "clear":
        cache.clear()
        for path in kernels:
            remove(path)
    if screen.as_json:
        rows = [{"file": path.name, "bytes": bytes_, "used": used} for used, bytes_, path in found]
        screen.figures({"folder": str(knobs.cache_dir), "models": rows, "bytes": taken})
        return 0
    if given.action == "list":
        hours = [f"{(time.time() - used) / 3600:.1f} hours ago" for used, _, _ in found]
        rows_ = [(path.stem, size(bytes_), ago) for (_, bytes_, path), ago in zip(found, hours)]
        screen.table(("model", "size>", "last used>"), rows_)
    models = f"{len(found)} models ({size(taken['models'])}), {len(kernels)} kernels ({size(taken['kernels'])})"
    screen.line(f"{'removed' if given.action == 'clear' else 'kept'} in {knobs.cache_dir}: {models}")
    return 0
