"""What one sees while a model is tuned: tasks with their best, the gain so far, failures, the time left."""

from __future__ import annotations

import os
import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weft.tuner.model import Tuning
from weft.tuner.records import Record
from weft.tuner.settings import EVERY_SECONDS, LINE_SECONDS, MOST_ROWS


class View:
    """A live table on a terminal; a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        # No thread of its own draws: children are forked while this goes on.
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._drawn = 0.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, tuning: Tuning, record: Record | None) -> None:
        """Draws what is known now."""
        now = time.monotonic()
        every = EVERY_SECONDS if self._live is not None else LINE_SECONDS
        if record is not None and now - self._drawn < every:
            return
        self._drawn = now
        if self._live is not None:
            self._live.update(Group(status_line(tuning), task_table(tuning)), refresh=True)
        else:
            self.console.print(status_line(tuning), soft_wrap=True)


def status_line(tuning: Tuning) -> Text:
    """One line: how far it is."""
    passed = max(time.monotonic() - tuning.started, 1e-9)
    parts = [f"{tuning.name}: {tuning.stage}"]
    if tuning.searches:
        parts.append(f"expected {tuning.expected_gain():.3f}×")
        parts.append(f"{tuning.trials} trials, {tuning.trials / passed:.1f}/s")
    if tuning.failures:
        parts.append("failed: " + ", ".join(f"{count} {kind}" for kind, count in tuning.failures.most_common()))
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        parts.append(f"the machine is busy: load {load:.1f} on {cores} cores")
    parts.append(f"{tuning.left:.0f} s left")
    return Text(" · ".join(parts))


def task_table(tuning: Tuning, most: int = MOST_ROWS) -> Table:
    """A row for each of the heaviest tasks."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("task", "calls", "share", "points", "trials", "best", "sketch"):
        fits: dict[str, Any] = {"max_width": 90} if name in ("task", "sketch") else {"min_width": 7, "justify": "right"}
        table.add_column(name, overflow="ellipsis", no_wrap=True, **fits)
    total = sum(task.seconds for task in tuning.tasks) or 1.0
    for task in tuning.tasks[:most]:
        search = tuning.searches.get(task.key)
        row = [f"{task.key[:6]} {task.label}", str(task.calls), f"{100 * task.seconds / total:.1f} %"]
        if search is None:
            table.add_row(*row, "", "", "", tuning.skipped.get(task.key, "")[:60])
            continue
        best = search.best
        named = "" if best is None else f"{best.sketch} " + " ".join(f"{k}={v}" for k, v in best.point.items())
        table.add_row(*row, f"{search.space.size:,}", str(search.trials), f"{search.gain:.3f}×", named)
    if len(tuning.tasks) > most:
        table.add_row(f"and {len(tuning.tasks) - most} more")
    return table


def summary(tuning: Tuning) -> str:
    """What came of it, in a sentence or two."""
    tried = f"{tuning.trials} trials on {len(tuning.searches)} of {len(tuning.tasks)} tasks"
    tried += "; another form of the model is in use now" if tuning.chose_algorithms else ""
    again = " (stopped: the same command goes on)" if tuning.stopped else ""
    verdict = tuning.verdict
    is_over = not tuning.left or not (tuning.searches or tuning.skipped)
    if not tuning.trials and not tuning.stopped and verdict is None and is_over:
        return f"{tried}: the time was over before; looking at the model takes {tuning.model_seconds:.0f} s of it"
    if verdict is None:
        return f"{tried}{again}; no schedule is faster than what is in use"
    if verdict.problem:
        return f"{tried}{again}; what was found is not used: {verdict.problem}"
    taken = f"{1e3 * verdict.before:.3f} ms before, {1e3 * verdict.after:.3f} ms after, {verdict.ratio:.3f}×"
    if tuning.kept:
        return f"{tried}{again}; {len(tuning.kept)} schedules are in use now: the whole model took {taken}"
    return f"{tried}{again}; what was found is not used: the whole model took {taken}"
