"""The report of a tuning run as one HTML page: what was gained, curves, the best schedules as Python, loops before and
after, how well the cost model ranked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.errors import WeftError
from weft.core.html import Html, folded, preformatted, table, tag
from weft.tuner.exhaustive import regret_rows
from weft.tuner.model import Tuning
from weft.tuner.search import Search
from weft.tuner.shipped import said_of
from weft.tuner.view import summary

WIDTH, HEIGHT = 420, 120
LEAST_FOR_REGRET = 48  # measured points from which replayed searches say something


def write_report(tuning: Tuning) -> str:
    """The page."""
    rows = []
    for task in tuning.tasks:
        search = tuning.searches.get(task.key)
        if search is not None:
            failed = ", ".join(f"{count} {kind}" for kind, count in search.failures.most_common())
            kept = "in use" if task.key in tuning.kept else ""
            rows.append(
                (task.key[:6], task.label, task.calls, f"{1e6 * task.seconds:.1f}", f"{search.space.size:,}",
                 search.trials, f"{search.gain:.3f}", kept, failed)
            )  # fmt: skip
    header = ["task", "kernel", "calls", "µs in the model", "points", "trials", "gain", "", "failed"]
    parts = [
        tag("h1", f"weft tune {tuning.name}"),
        tag("p", f"{tuning.target.name}, {tuning.threads} threads: {summary(tuning)}; {said_of(tuning.target)}."),
        table(header, rows),
        *(_section(search) for search in tuning.searches.values() if search.trials),
    ]
    skipped = [(tuning_key[:6], reason) for tuning_key, reason in tuning.skipped.items()]
    if skipped:
        parts.append(folded("tasks that were left alone", table(["task", "why"], skipped)))
    style = "body{font-family:sans-serif;max-width:70em;margin:2em auto}td,th{padding:.1em .6em;text-align:left}"
    head = f"<!doctype html><meta charset='utf-8'><title>weft tune</title><style>{style}</style>"
    return head + tag("body", *parts)


def _section(search: Search) -> Html:
    last = search.quality[-1] if search.quality else None
    parts = [tag("h2", f"{search.task.key[:6]} {search.task.label}: {search.gain:.3f}×"), curve(search.curve)]
    parts.append(tag("p", f"space: {search.space.describe()}; nodes: {', '.join(search.task.nodes[:6])}"))
    if last is not None:
        ranked = "" if math.isnan(last.correlation) else f"rank correlation {last.correlation:.2f}, "
        known = f"{ranked}recall {last.recall:.2f}, regret {100 * last.regret:.1f} %"
        parts.append(tag("p", f"cost model {search.proposer.model.name}, last batch: {known}"))
    if len(search.gains) >= LEAST_FOR_REGRET:
        rows = [(way, regret, needed) for way, regret, needed in regret_rows(search, seeds=1)]
        parts.append(folded("regret against all that was measured", table(["choice", "regret", "trials to 2 %"], rows)))
    trace = search.trace
    if trace is not None and search.best is not None:
        point = " ".join(f"{knob}={number}" for knob, number in search.best.point.items())
        parts.append(folded(f"best: {search.best.sketch} {point}", preformatted(trace.as_python())))
    parts += _programs(search)
    return tag("div", *parts)


def _programs(search: Search) -> list[Html]:
    """The loops by default, and by the best schedule."""
    try:
        before, after = search.task.fresh().schedule, search.task.fresh().schedule
        before.plan(search.task.target, search.task.fixed)
        made = [folded("loops before", preformatted(repr(before.func)))]
        if search.trace is not None:
            begun = len(after.trace.steps)
            after.replay(type(search.trace)(search.trace.steps[begun:]))
            made.append(folded("loops after", preformatted(repr(after.func))))
        return made
    except WeftError as error:
        return [tag("p", f"the programs cannot be shown: {error}")]


def curve(points: Sequence[tuple[int, float]]) -> Html:
    """The best gain against trials, as a drawing."""
    if not points:
        return Html("")
    most, top = max(points[-1][0], 1), max(1.001, max(gain for _, gain in points))
    low = min(1.0, min(gain for _, gain in points))

    def place(trials: float, gain: float) -> str:
        return f"{WIDTH * trials / most:.1f},{HEIGHT - 4 - (HEIGHT - 8) * (gain - low) / (top - low):.1f}"

    steps = [place(0, 1.0)]
    for (trials, gain), (_, before) in zip(points, [(0, 1.0), *points]):
        steps += [place(trials, before), place(trials, gain)]
    line = f"<polyline fill='none' stroke='#36c' stroke-width='1.5' points='{' '.join(steps)}'/>"
    text = f"<text x='4' y='12' font-size='11'>{top:.3f}× after {most} trials</text>"
    return Html(f"<svg width='{WIDTH}' height='{HEIGHT}' style='background:#f6f6f6'>{line}{text}</svg>")
