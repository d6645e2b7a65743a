"""Forms for sizes that come again, compiled beside the calls by another process.

A child process at the lowest priority compiles: a thread would take Python's lock from the calls it is meant to help.
What goes to it is a module file without compiled forms; what comes back is a file with one form, as the cache keeps
them. A thread of this process only waits for the child, reads the form, and runs it in turns with the form for all
sizes on the arrays that asked for it: the form is kept if it is faster. There is one child at a time, and at most
`model.MOST_WISHES` wishes; a wish beyond is dropped, and may come again.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core import model
from weft.core.errors import WeftError

logger = logging.getLogger("weft.compiler")

CHILD = "weft.compiler.sizes.background_child"
"""What a child runs."""


@dataclass
class Wish:
    """One form to make: for which shapes and how many cores, from what, and who takes it."""

    write: Callable[[Path], None]
    shapes: Mapping[str, Sequence[int]]
    cores: int
    read: Callable[[Path], Any]
    give: Callable[[Any], None]


_WISHES: queue.Queue[Wish] = queue.Queue(model.MOST_WISHES)
_THREAD: list[threading.Thread] = []
_CHILD: list[subprocess.Popen[bytes]] = []
_LOCK = threading.Lock()


def ask(wish: Wish) -> bool:
    """Puts a wish in line; False where the line is full."""
    with _LOCK:
        if not _THREAD or not _THREAD[0].is_alive():
            _THREAD[:] = [threading.Thread(target=_serve, name="weft-background", daemon=True)]
            _THREAD[0].start()
    try:
        _WISHES.put_nowait(wish)
    except queue.Full:
        return False
    return True


def settle(seconds: float = model.CHILD_SECONDS) -> bool:
    """Waits until nothing is under way; whether that was in time."""
    end = time.monotonic() + seconds
    while _WISHES.unfinished_tasks:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _serve() -> None:
    while True:
        wish = _WISHES.get()
        try:
            wish.give(_made(wish))
        except (WeftError, OSError, subprocess.SubprocessError, RuntimeError) as error:
            logger.info("no form was made in the background for %s: %s", dict(wish.shapes), error)
            wish.give(None)
        finally:
            _WISHES.task_done()


def _made(wish: Wish) -> Any:
    with tempfile.TemporaryDirectory(prefix="weft-", ignore_cleanup_errors=True) as folder:
        module, form = Path(folder) / "module.weft", Path(folder) / "form.weft"
        wish.write(module)
        command = [sys.executable, "-m", CHILD, str(module), json.dumps(wish.shapes), str(wish.cores), str(form)]
        paths = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths, "WEFT_SIZES": "bound"}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            _CHILD[:] = [child]
            try:
                _, said = child.communicate(timeout=model.CHILD_SECONDS)
            finally:
                child.kill()
        if child.returncode or not form.exists():
            raise RuntimeError(said.decode(errors="replace").strip().splitlines()[-1:] or child.returncode)
        return wish.read(form)


@atexit.register
def _end() -> None:
    """A child does not outlive the process that it works for."""
    for child in _CHILD:
        child.kill()


def is_faster(form: Any, other: Any, arrays: Sequence[Any], threads: int) -> bool:
    """Whether one form takes less time than another, run in turns, for longer than others keep a core to themselves."""
    best, rounds, end = [float("inf"), float("inf")], 0, time.perf_counter() + model.FORM_SECONDS
    while rounds < model.FORM_ROUNDS or time.perf_counter() < end:
        rounds += 1
        for at, one in enumerate((form, other)):
            start = time.perf_counter()
            one.runner.run(arrays, threads)
            best[at] = min(best[at], time.perf_counter() - start)
    return best[0] < best[1]


def copies_of(arrays: Sequence[Any]) -> list[Any]:
    """Arrays that nobody else writes to."""
    return [array.copy() if isinstance(array, np.ndarray) else array for array in arrays]
