"""Whole models tuned, then each measured again beside the planner's defaults: what tuning gains.

    python -m benchmarks.tuning --budget 5m --jobs 2 --folder tuned           eleven models, two at a time, a core each
    python -m benchmarks.tuning --only resnet18 dqn --budget 150s             some of them
    python -m benchmarks.tuning --target cuda --precision fp16 --jobs 11      on one GPU, all at once: they take turns
    python -m benchmarks.tuning --target cuda --precision fp16 --shipped      tunes nothing: what ships beside nothing

The eight built-in models, and MobileNetV3-large, EfficientNet-B0 and Swin-T of timm with random weights (needs torch
and timm); one image, one thread. Records are kept in the folder: the same command goes on. After tuning a model runs
with what is in use and with nothing, in turns, twice: the table has the worse of the two answers, by a median, and the
least that it may be by chance; 1 where nothing was put into use. What each trial gave is in the folder's logs.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.search import beside_each_other
from weft import models
from weft.graph.ir import Graph
from weft.graph.structural import structure_key
from weft.plan.overrides import Records, digest
from weft.schedule.trace import Trace
from weft.tuner.database import Database
from weft.tuner.model import Tuning, Verdict, make_tuning
from weft.tuner.records import Record
from weft.tuner.shipped import schedules
from weft.tuner.task import Task

BUILT_IN = ("bert_base", "resnet50", "resnet18", "mobilenet_v1", "mobilenet_v2", "lstm_lm", "dqn", "dcgan")
TIMM = ("swin_tiny_patch4_window7_224", "efficientnet_b0", "mobilenetv3_large_100")
SIDE, CHECKS = 224, 2


def graph_of(name: str) -> Graph:
    """A built-in model, or one of timm with random weights."""
    if name in models.names():
        return models.make(name)
    import torch

    from benchmarks.architectures import import_timm
    from weft.frontends.torch import load

    torch.manual_seed(0)
    module = import_timm().create_model(name, pretrained=False).eval()
    made = load(module, (torch.randn(1, 3, SIDE, SIDE),)).graph
    return made.replace(name=name)


def tuned(name: str, budget: str, target: str, precision: str | None, folder: Path) -> dict[str, Any]:
    """A model tuned, and what that gains: measured again. What is in use is written down, as `benchmarks.corpus` ships
    it. With a budget of 0 nothing is tuned: what ships is measured."""
    begun = time.monotonic()
    with Database(folder / f"{name}.sqlite") as database, (folder / f"{name}.log").open("w") as log:

        def observe(tuning: Tuning, record: Record | None) -> None:
            said = f"{time.monotonic() - begun:6.1f} s  {tuning.stage}, expected {tuning.expected_gain():.3f}"
            if record is not None:
                said = f"{said}: {record.label} {record.sketch} {dict(record.point)} {record.outcome.status.value} "
                said += f"{record.outcome.gain:.3f} of {1e6 * record.outcome.baseline:.2f} µs {record.outcome.detail}"
            print(said, file=log, flush=True)
            if record is None and (tuning.kept or tuning.chose_algorithms):
                (folder / f"{name}.json").write_text(json.dumps(used(tuning)))

        logging.basicConfig(stream=log, level=logging.INFO, force=True)
        threads = None if target.startswith("cuda") else 1
        # What loads models may open a GPU, which is then closed to children of its process.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            graph = pool.submit(graph_of, name).result()
        tuning = make_tuning(graph, budget or "1s", target, precision, threads, database)
        if budget:
            tuning.run(observe)
        for task in tuning.tasks:
            search = tuning.searches.get(task.key)
            said = f"{search.trials} trials, {search.gain:.3f}" if search else tuning.skipped.get(task.key, "")
            print(f"{1e6 * task.seconds:9.1f} µs  {task.calls} × {task.label}: {said}", file=log)
        in_use = database.accepted(tuning.target) if budget else schedules(tuning.target)
        print(f"{len(tuning.kept)} schedules put into use: {tuning.verdict}", file=log, flush=True)
        checks = [tuning.measure(Records(), in_use) for _ in range(CHECKS) if in_use.traces or in_use.algorithms]
        for one in checks:
            print(f"beside the defaults: {one}", file=log, flush=True)
        worse = min(checks, key=lambda one: one.ratio, default=Verdict(ratio=1.0, least=1.0))
        print(f"forms: {[(text, ratio) for text, _, ratio in tuning.algorithms]}", file=log)
        found = {"trials": tuning.trials, "expected": tuning.expected_gain(), "seconds": time.monotonic() - begun}
        return {"name": name, "verdict": worse, **found}


def used(tuning: Tuning) -> dict[str, Any]:
    """What is in use for a model, as `benchmarks.corpus` ships it."""
    in_use, key = tuning.database.accepted(tuning.target), structure_key(tuning.graph)
    gains = {task: gain for task, (_, gain) in tuning.kept.items()}
    rows = [
        {**row_of(task, in_use.traces[task.key]), "model": tuning.name, "gain": gains.get(task.key, 1.0)}
        for task in tuning.tasks
        if task.key in in_use.traces
    ]
    labels = in_use.algorithms.get(key)
    forms = [] if labels is None else [{"graph": key, "model": tuning.name, "labels": labels}]
    return {"schedules": [row for row in rows if row["beside"] != digest(in_use.traces[row["task"]])], "forms": forms}


def row_of(task: Task, trace: Trace) -> dict[str, Any]:
    """A schedule as it ships: with what the planner chose that it was measured beside."""
    steps = json.loads(trace.to_json())
    return {"task": task.key, "label": task.label, "trace": steps, "beside": digest(task.default())}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--budget", default="5m", help="for each model")
    parser.add_argument("--target", default="native,cores=1")
    parser.add_argument("--precision")
    parser.add_argument("--jobs", type=int, default=1, help="so many models at once, a core each")
    parser.add_argument("--shipped", action="store_true", help="tune nothing")
    parser.add_argument("--folder", default="tuned", help="where records and logs go")
    given = parser.parse_args()
    console, folder = Console(width=150), Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in BUILT_IN + TIMM if not given.only or name in given.only]
    budget = "" if given.shipped else given.budget
    jobs = [(tuned, name, budget, given.target, given.precision, folder) for name in names]
    table = Table("model", "before", "after", "times as fast", "at least", "expected of kernels", "trials", "seconds")
    ratios = []
    for row in beside_each_other(jobs, given.jobs, not given.target.startswith("cuda")):
        verdict: Verdict = row["verdict"]
        cells = [f"{1e3 * verdict.before:.3f} ms", f"{1e3 * verdict.after:.3f} ms", f"{verdict.ratio:.4f}"]
        cells += [f"{verdict.least:.4f} {verdict.problem}", f"{row['expected']:.3f}", str(row["trials"])]
        table.add_row(row["name"], *cells, f"{row['seconds']:.0f}")
        ratios.append(verdict.ratio)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios and min(ratios) > 0 else 0.0
    console.print(table)
    console.print(
        f"geometric mean of {len(ratios)}: {mean:.4f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
