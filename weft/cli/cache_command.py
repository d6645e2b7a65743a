"""weft cache list | size | clear: what is kept of models that were compiled.

list     compiled models with their names, those used last first
size     how many there are, and what they take
clear    removes all of them
"""

from __future__ import annotations

import argparse
import json
import time
import zipfile
from pathlib import Path

from weft.cli.screen import Screen, size
from weft.compiler.cache import models as cache
from weft.core.knobs import knobs
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
        rows = [{"file": p.name, "model": model_of(p), "bytes": bytes_, "used": used} for used, bytes_, p in found]
        screen.figures({"folder": str(knobs.cache_dir), "models": rows, "bytes": taken})
        return 0
    if given.action == "list":
        rows_ = [
            (model_of(path), path.stem[:12], size(bytes_), ago(time.time() - used)) for used, bytes_, path in found
        ]
        screen.table(("model", "file", "size>", "last used>"), rows_)
    models = f"{len(found)} models ({size(taken['models'])}), {len(kernels)} kernels ({size(taken['kernels'])})"
    screen.line(f"{'removed' if given.action == 'clear' else 'kept'} in {knobs.cache_dir}: {models}")
    return 0


def model_of(path: Path) -> str:
    """The name of the model that a file holds; where it cannot be read, why."""
    try:
        with zipfile.ZipFile(path) as archive:
            return str(json.loads(archive.read("manifest.json"))["name"])
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        return f"not readable ({type(error).__name__})"


def ago(seconds: float) -> str:
    """How long something is past."""
    unit, count = next(((u, n) for u, n in (("days", 86400), ("hours", 3600)) if seconds >= 2 * n), ("minutes", 60))
    return f"{seconds / count:.0f} {unit} ago"
