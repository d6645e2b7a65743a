"""weft tune MODEL --budget 5m: finds faster schedules for the kernels of a model, by measuring on this machine.

What is found is written down when it is measured; the same command goes on where it stopped. A set of schedules is put
into use when the whole model measured faster with it, and `weft.compile` takes it from then on.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any, cast

from weft.cli.given import UsageError, refuse
from weft.cli.pool_command import add_certificates, folder_of
from weft.cli.screen import Screen
from weft.cli.sources import add_compiling, add_model, count, input_shapes, natural, open_graph
from weft.cli.tune_report import write_report
from weft.compiler.module import bind_shapes
from weft.core.install import hint
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.tuner.cost_models import MODELS, has_learned
from weft.tuner.database import Database
from weft.tuner.exhaustive import measure_all, regret_rows
from weft.tuner.explorers import EXPLORERS
from weft.tuner.model import Tuning, make_tuning
from weft.tuner.runner import ChildError, Say, in_child
from weft.tuner.settings import MODEL_SECONDS
from weft.tuner.shipped import said_of
from weft.tuner.view import View, summary, task_table


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    parser.add_argument("--budget", help="how long to look: 30s, 5m, 1h (default 5m)")
    parser.add_argument("--trials", type=count, help="at most so many points, besides the time")
    parser.add_argument("--cost-model", choices=list(MODELS), help="what ranks points (default: prior + learned)")
    parser.add_argument("--explorer", choices=list(EXPLORERS), help="what looks for them (default: exhaustive)")
    parser.add_argument("--seed", type=natural, help="of whatever is drawn at random (default 0)")
    parser.add_argument("--report", metavar="FILE", help="write curves, schedules and programs as HTML")
    parser.add_argument("--exhaustive", metavar="TASK", help="measure every point of one task, and what choices regret")
    parser.add_argument(
        "--points", type=count, help="with --exhaustive: at most so many, drawn at random (default 4000)"
    )
    parser.add_argument(
        "--pool", metavar="URL", help="measure on a pool's devices; --target is their kind (docs/pool.md)"
    )
    add_certificates(parser)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if "learned" in (given.cost_model or "") and not has_learned():
        raise UsageError(f"--cost-model {given.cost_model} needs XGBoost: {hint('tune')}")
    graph = _graph(given, screen)
    bound = bind_shapes(graph, input_shapes(graph.inputs, given, screen))
    precision = None if given.precision in (None, "fp32") else given.precision
    with Database() as database, knobs.override(**({"exact": True} if given.exact else {})):
        options = {"model": given.cost_model, "explorer": given.explorer, "seed": given.seed or 0, "most": given.trials}
        if given.pool:
            return _in_pool(given, bound, precision, database, options, screen)
        refuse(given, "certificates", "it belongs to --pool")
        tuning = make_tuning(
            bound, given.budget or "5m", given.target or "auto", precision, given.threads, database, **options
        )
        if given.exhaustive:
            refuse(given, "budget trials cost_model explorer report", "--exhaustive measures every point")
            return _exhaustive(given, tuning, screen)
        if given.points:
            raise UsageError("--points goes with --exhaustive")
        if given.report and not Path(given.report).absolute().parent.is_dir():
            raise UsageError(f"--report {given.report}: there is no such folder")
        if given.report and not _can_write(Path(given.report)):
            raise UsageError(f"--report {given.report}: this cannot be written")
        with View(screen.err) as view:
            tuning.run(view)
        if given.report:
            Path(given.report).write_text(write_report(tuning), encoding="utf-8")
            screen.note(f"wrote {given.report}")
        if screen.as_json:
            screen.figures(_figures(tuning))
            return 0
        screen.out.print(task_table(tuning, len(tuning.tasks)))
        screen.line(summary(tuning))
        if has_learned() and tuning.model in (None, "prior + learned"):
            screen.note(said_of(tuning.target))
    return 0


def _can_write(path: Path) -> bool:
    return not path.is_dir() and os.access(path if path.exists() else path.absolute().parent, os.W_OK)


def _graph(given: argparse.Namespace, screen: Screen) -> Graph:
    """The model; one that another framework reads for a device is read in a child, because that may open the device."""
    if not (given.target or "").startswith(("cuda", "opencl")) or not given.model.endswith((".pt2", ".keras")):
        return open_graph(given, screen)
    with tempfile.TemporaryFile() as file:

        def read(say: Say) -> str:
            pickle.dump(open_graph(given, screen), file)
            file.flush()
            return "read"

        try:
            in_child(read, MODEL_SECONDS)
        except ChildError as error:
            raise UsageError(f"{given.model}: {error.detail}") from None
        file.seek(0)
        return cast(Graph, pickle.load(file))


def _in_pool(
    given: argparse.Namespace, graph: Any, precision: str | None, database: Database, options: dict[str, Any],
    screen: Screen,
) -> int:  # fmt: skip
    from weft.pool.guard import guard
    from weft.pool.runner import PoolRunner
    from weft.pool.tuning import PoolTuning

    refuse(given, "threads", "a device measures one core")
    refuse(given, "exhaustive points report", "it is not for pools")
    if not given.target:
        raise UsageError("--target KIND says which devices of the pool; weft devices --pool URL lists them")
    guard()
    runner = PoolRunner(given.pool, given.target, folder_of(given))
    try:
        tuning = make_tuning(
            graph, given.budget or "5m", runner.target, precision, 1, database, PoolTuning, runner=runner, **options
        )
        assert isinstance(tuning, PoolTuning)
        with View(screen.err) as view:
            tuning.run(view)
    finally:
        runner.close()
    if screen.as_json:
        screen.figures({**_figures(tuning), "kind": runner.kind, "unit": runner.unit})
        return 0
    screen.out.print(task_table(tuning, len(tuning.tasks)))
    screen.line(tuning.says())
    return 0


def _figures(tuning: Tuning) -> dict[str, Any]:
    tasks = [
        {"task": task.key, "label": task.label, "calls": task.calls, "seconds": task.seconds,
         "points": search.space.size, "trials": search.trials, "gain": search.gain,
         "failures": dict(search.failures), "curve": search.curve}
        for task in tuning.tasks if (search := tuning.searches.get(task.key)) is not None
    ]  # fmt: skip
    verdict = tuning.verdict
    whole = None if verdict is None else {"before": verdict.before, "after": verdict.after, "ratio": verdict.ratio}
    return {"model": tuning.name, "trials": tuning.trials, "tasks": tasks, "whole": whole, "kept": len(tuning.kept)}


def _exhaustive(given: argparse.Namespace, tuning: Tuning, screen: Screen) -> int:
    tuning.prepare()
    chosen = [task for task in tuning.tasks if task.key.startswith(given.exhaustive) or given.exhaustive in task.label]
    if not chosen:
        known = ", ".join(f"{task.key[:6]} {task.label}" for task in tuning.tasks[:20])
        raise UsageError(f"no task is called {given.exhaustive!r}; there are {known}")
    search = tuning.search_of(chosen[0])
    if search is None:
        raise UsageError(f"{chosen[0].label} cannot be measured: {tuning.skipped[chosen[0].key]}")
    with View(screen.err) as view:
        measured = measure_all(tuning, search, given.points or 4000, view)
    rows = regret_rows(search)
    if screen.as_json:
        screen.figures({"task": search.task.key, "points": search.space.size, "measured": measured, "regret": rows})
        return 0
    screen.line(
        f"{search.task.label}: {search.trials} of {search.space.size} points measured ({search.space.describe()})"
    )
    screen.table(["choice", "regret>", "trials to 2 %>"], [[name, *values] for name, *values in rows])
    return 0
