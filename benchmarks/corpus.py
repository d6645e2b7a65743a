"""The corpus of the cost model that ships with the tuner: points of many tasks, measured on this machine; its training.

    python -m benchmarks.corpus --folder corpus --seconds 600      measures; the same command goes on where it stopped
    python -m benchmarks.corpus --folder corpus --held-out         trained without one task, for each in turn: figures
    python -m benchmarks.corpus --folder corpus --train            writes the model for machines of this kind
    python -m benchmarks.corpus --schedules tuned/*.json --target cuda --precision fp16
                                                                   what benchmarks.tuning put into use ships

Records are those of `weft tune`. The tasks of benchmarks.search are never learnt from; where their records are given
(`--also`), they are held-out tasks too.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.cost_model import _conv, _dense, _matmul
from benchmarks.search import SMALL, TASKS, chosen_points, task_of
from weft.compiler.precision import machine_of
from weft.targets.base import Target
from weft.targets.registry import find_target
from weft.tuner.bench import Bench
from weft.tuner.cost_models import Group, Learned, cost_model, rank_correlation, recall
from weft.tuner.database import Database
from weft.tuner.records import compiler_version, machine_key
from weft.tuner.runner import LocalRunner
from weft.tuner.search import Proposer, Search
from weft.tuner.shipped import FILE, file_of, kind_of
from weft.tuner.space import Space, space_of
from weft.tuner.task import Task

CORPUS: dict[str, Any] = {
    "conv 3x3 32→32 28": lambda: _conv(32, 32, 28, 3),
    "conv 3x3 128→128 14": lambda: _conv(128, 128, 14, 3),
    "conv 3x3/2 64→128 28": lambda: _conv(64, 128, 28, 3, 2),
    "conv 1x1 24→144 28": lambda: _conv(24, 144, 28, 1),
    "conv 1x1 160→40 14": lambda: _conv(160, 40, 14, 1),
    "conv 1x1 64→256 7": lambda: _conv(64, 256, 7, 1),
    "depthwise 3x3 144 28": lambda: _conv(144, 144, 28, 3, 1, 144),
    "depthwise 3x3/2 64 28": lambda: _conv(64, 64, 28, 3, 2, 64),
    "depthwise 5x5 40 14": lambda: _conv(40, 40, 14, 5, 1, 40),
    "matmul 64×384×96": lambda: _dense(64, 384, 96),
    "matmul 16×512×256": lambda: _dense(16, 512, 256),
    "matmul 196×96×64": lambda: _dense(196, 96, 64),
    "batched 4: 64×32×64": lambda: _matmul(4, 64, 32, 64),
    "batched 12: 32×64×32": lambda: _matmul(12, 32, 64, 32),
    "batched 2: 100×24×80": lambda: _matmul(2, 100, 24, 80),
}

ALL = {**CORPUS, **TASKS, **SMALL}
POINTS = 48
TOP = 8
TREES = 20
"""Fewer than a search has: on held-out tasks more of them regret more."""


def measure(name: str, target: str, folder: Path, points: int, until: float) -> int:
    """Measures what is missing of a task's points; how many are left."""
    task = task_of(CORPUS[name](), target)
    space = space_of(task)
    with Database(folder / "corpus.sqlite") as database:
        proposer = Proposer(space, cost_model("none"), "random")
        search = Search(task, Bench(task, 1), proposer, LocalRunner(), database)
        left = [number for number in chosen_points(space, points) if number not in search.gains]
        for _ in search.measure(left):
            if time.monotonic() >= until:
                break
        return sum(number not in search.gains for number in left)


def measured(target: str, paths: list[Path]) -> dict[str, tuple[Task, Space, dict[int, float]]]:
    """What is known of each task: its space and the gains of points."""
    databases = [Database(path) for path in paths]
    found = {}
    for name, graph in ALL.items():
        task = task_of(graph(), target)
        space = space_of(task)
        gains = {}
        for database in databases:
            for row in database.records(task.key, machine_key(task.target), compiler_version()):
                number = space.find(row.sketch, row.point)
                if number is not None:
                    gains[number] = row.outcome.gain
        if len(gains) >= 16:
            found[name] = task, space, gains
    return found


def group_of(space: Space, gains: dict[int, float]) -> Group:
    """Measured points as a group to learn from."""
    numbers = np.fromiter(gains, np.int64, len(gains))
    return Group(space.features(numbers), space.prior[numbers], np.fromiter(gains.values(), np.float64, len(gains)))


def trained(groups: list[Group]) -> Learned:
    """The correction of the prior that these groups teach."""
    made = Learned(True, trees=TREES)
    made.fit(groups)
    return made


def write(kind: str, groups: dict[str, list[Group]]) -> None:
    """Writes the file that ships: trees for each signature of a space."""
    rows = {}
    for key, known in groups.items():
        trees = trained(known).booster.save_raw("ubj")
        rows[key] = {"tasks": len(known), "trees": base64.b64encode(trees).decode()}
    FILE.write_text(json.dumps({"kind": kind, "models": rows}, indent=1) + "\n")


def ship(paths: list[Path], wanted: str, target: Target) -> tuple[Path, int]:
    """Writes schedules that were put into use, of programs that several models have the one that gained most; of these
    models nothing else ships any more."""
    file, models = file_of(target), {path.stem for path in paths}
    found = [json.loads(path.read_text()) for path in [*([file] if file.exists() else []), *paths]]
    if file.exists():
        found[0] = {
            kind: [row for row in found[0][kind] if row["model"] not in models] for kind in found[0] if kind != "target"
        }
    by_gain = sorted((row for one in found for row in one["schedules"]), key=lambda row: row["gain"])
    rows = {row["task"]: row for row in by_gain}
    forms = {row["graph"]: row for one in found for row in one["forms"]}
    lines = [",\n".join(map(json.dumps, one.values())) for one in (rows, forms)]
    texts = f'{{"target": {json.dumps(wanted)}, "schedules": [\n{lines[0]}\n], "forms": [\n{lines[1]}\n]}}\n'
    file.write_text(texts)
    return file, len(rows)


def held_out(known: dict[str, tuple[Task, Space, dict[int, float]]], console: Console) -> None:
    """For each task: the prior alone, and with a model trained on the others of its kind, which never saw it."""
    table = Table("held-out task", "points", "learnt from", "rank correlation", f"recall of {TOP}", f"regret of {TOP}")
    every: list[list[float]] = []
    for name, (_, space, gains) in known.items():
        own = group_of(space, gains)
        near = [(n, s, g) for n, (_, s, g) in known.items() if n != name and n in CORPUS]
        others = [group_of(s, g) for _, s, g in near if s.signature == space.signature]
        if not others:
            continue
        scores = [own.prior, trained(others).score(own.features, own.prior)]
        row = [
            (rank_correlation(one, own.gains), recall(one, own.gains, TOP), own.gains.max() / _best(one, own) - 1)
            for one in scores
        ]
        every.append([figure for pair in zip(*row) for figure in pair])
        (a, b), (c, d), (e, f) = zip(*row)
        cells = f"{a:.2f} → {b:.2f}", f"{c:.2f} → {d:.2f}", f"{100 * e:.1f} → {100 * f:.1f} %"
        table.add_row(name, str(len(gains)), str(len(others)), *cells)
    a, b, c, d, e, f = np.mean(every, axis=0)
    table.add_row("mean", "", "", f"{a:.2f} → {b:.2f}", f"{c:.2f} → {d:.2f}", f"{100 * e:.1f} → {100 * f:.1f} %")
    console.print(table)


def _best(scores: Any, group: Group) -> float:
    """The best gain among the first batch: the points with the best scores."""
    return max(float(group.gains[np.argsort(-np.asarray(scores), kind="stable")[:TOP]].max()), 1e-9)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=".", help="where the records are")
    parser.add_argument("--target", default="native,cores=1")
    parser.add_argument("--points", type=int, default=POINTS, help="of each task")
    parser.add_argument("--seconds", type=float, default=0.0, help="measure for so long")
    parser.add_argument("--also", nargs="*", default=[], metavar="FILE", help="other databases that are read")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--schedules", nargs="*", default=[], metavar="FILE", help="of benchmarks.tuning: they ship")
    parser.add_argument("--precision", help="with --schedules: bf16, fp16 or tf32")
    given = parser.parse_args()
    console, folder = Console(width=160), Path(given.folder)
    if given.schedules:
        target = replace(machine_of(find_target(given.target), given.precision), is_host=True)  # where it is one's own
        written, count = ship([Path(one) for one in given.schedules], given.target, target)
        console.print(f"wrote {written}: {count} schedules")
        return
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.seconds
    if given.seconds:
        for name in CORPUS:
            if time.monotonic() < until:
                console.print(f"{name}: {measure(name, given.target, folder, given.points, until)} points left")
    if given.held_out or given.train:
        known = measured(given.target, [folder / "corpus.sqlite", *map(Path, given.also)])
        console.print(f"{sum(len(gains) for _, _, gains in known.values())} points of {len(known)} tasks")
        if given.held_out:
            held_out(known, console)
        if given.train:
            target = next(iter(known.values()))[0].target
            by_kind: dict[str, list[Group]] = {}
            for _, space, gains in (one for name, one in known.items() if name in CORPUS):
                by_kind.setdefault(repr(space.signature), []).append(group_of(space, gains))
            write(kind_of(target), by_kind)
            console.print(f"wrote {FILE} ({FILE.stat().st_size:,} bytes) for {kind_of(target)}")


if __name__ == "__main__":
    main()
