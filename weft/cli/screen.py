"""What a command says, and where: results on stdout, everything else on stderr.

With --json a command prints one JSON object on stdout and nothing else there. Progress is shown on a terminal only, and
only for what takes more than a second.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from weft.core.progress import listening

PATIENCE = 1.0
"""Seconds before anything is said about work that goes on."""

WIDE = 200
"""The width of tables where the output is not a terminal: no column is cut."""


class Screen:
    """Where one run of the program writes."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out = Console(width=None if sys.stdout.isatty() else WIDE)
        self.err = Console(stderr=True, width=None if sys.stderr.isatty() else WIDE)

    def figures(self, data: dict[str, Any]) -> None:
        """The one JSON object of a command that was asked for it."""
        sys.stdout.write(json.dumps(plain(data), indent=2) + "\n")

    def line(self, text: str = "", style: str | None = None) -> None:
        """A line of the result; square brackets mean themselves."""
        self.out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """A remark beside the result."""
        self.err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def error(self, text: str) -> None:
        """What went wrong, in one line where possible."""
        self.err.print(f"weft: {text}", style="red", markup=False, highlight=False, soft_wrap=True)

    def code(self, text: str, language: str) -> None:
        """Source text; coloured on a terminal, as it is elsewhere."""
        if self.out.is_terminal:
            self.out.print(Syntax(text, language, background_color="default", word_wrap=False))
        else:
            sys.stdout.write(text.rstrip("\n") + "\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
        """A table; columns whose name ends in ">" stand right."""
        made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            made.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
        for row in rows:
            made.add_row(*row)
        self.out.print(made, markup=False, highlight=False)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Says what goes on, how far it is and how long it will take, on a terminal, once it takes over a second."""
        if not self.err.is_terminal:
            yield
            return
        status, start = self.err.status(what), time.monotonic()

        def tell(done: int, total: int) -> None:
            left = f", about {seconds((time.monotonic() - start) / done * (total - done))} left" if done else ""
            filled = round(20 * done / max(total, 1))
            status.update(f"{what} {'█' * filled}{'░' * (20 - filled)} {done} of {total} kernels{left}")

        timer = threading.Timer(PATIENCE, status.start)
        timer.daemon = True
        timer.start()
        try:
            with listening(tell):
                yield
        finally:
            timer.cancel()
            status.stop()


def plain(value: Any) -> Any:
    """A value as JSON has it: numpy's numbers as Python's, what is not finite as null, the rest as text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def seconds(value: float) -> str:
    """A time for people."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"
