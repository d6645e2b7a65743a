"""Searches side by side, as in figure 12 of the TVM paper: the best speed that was found, against trials.

    python -m benchmarks.search --pool pool.json            measures pools of points of five tasks, once
    python -m benchmarks.search --pool pool.json --plot f   replays the searches over them: curves, and a table
    python -m benchmarks.search --live --trials 64          the searches themselves, each point measured when it is met
    python -m benchmarks.search --rate                      how many candidates are scored in a second

A pool is a table of points with their measured times: points drawn evenly from the whole space, others among those that
are estimated at up to twice the best, and the best by estimate. Replayed searches choose from the pool alone, so that
all see the same machine; random is helped by that, because a third of the pool is good by estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft.ops  # noqa: F401 — fills the table of operators
from benchmarks.cost_model import _conv, _dense, _matmul
from weft.core.knobs import knobs
from weft.executor.module import bind_shapes
from weft.executor.passes import for_target, optimize
from weft.executor.specialize import lower_graph
from weft.graph.ir import Graph
from weft.plan.overrides import Records, recording
from weft.targets.registry import find_target
from weft.tuner import cost_models
from weft.tuner.bench import Bench
from weft.tuner.database import Database
from weft.tuner.exhaustive import NEAR, WAYS, replay, trials_to, ways_here
from weft.tuner.explorers import EXPLORERS
from weft.tuner.runner import LocalRunner
from weft.tuner.search import Proposer, Search
from weft.tuner.space import Space, space_of
from weft.tuner.task import Task, tasks_of

TASKS: dict[str, Any] = {
    "conv 3x3 64→64 28": lambda: _conv(64, 64, 28, 3),
    "conv 1x1 96→192 28": lambda: _conv(96, 192, 28, 1),
    "depthwise 3x3 96 56": lambda: _conv(96, 96, 56, 3, 1, 96),
    "matmul 128×256×192": lambda: _dense(128, 256, 192),
    "batched 8: 49×64×49": lambda: _matmul(8, 49, 64, 49),
}

SEEDS = 3


def task_of(graph: Graph, target: str) -> Task:
    """The heaviest task of a small model."""
    machine = find_target(target)
    with recording(Records()), knobs.override(cache=False, winograd=False):
        made = for_target(optimize(bind_shapes(graph, None), {}, {}), machine, None)
        lowered = lower_graph(made, machine, lambda rest: None)
    wanted = [
        task for task in tasks_of(made, lowered, machine) if any(op in task.label for op in ("conv", "gemm", "matmul"))
    ]
    return max(wanted, key=lambda task: space_of(task).size)


def chosen_points(space: Space, count: int) -> list[int]:
    """The points of a pool."""
    random = np.random.default_rng(0)
    best = space.legal[np.argsort(space.estimates[space.legal], kind="stable")][: count // 5]
    near = space.legal[space.prior[space.legal] >= -1.0]
    drawn = [random.permutation(space.legal)[: count // 2], random.permutation(near)[: count - count // 2 - count // 5]]
    return list(dict.fromkeys(int(number) for number in np.concatenate([best, *drawn])))


def measure_pool(name: str, target: str, count: int, threads: int) -> dict[str, Any]:
    """The pool of one task: points, gains and failures."""
    task = task_of(TASKS[name](), target)
    space, bench = space_of(task), Bench(task, threads)
    numbers = chosen_points(space, count)
    begin = time.time()
    rows = []
    for number in numbers:
        region, _ = space.region_of(number)
        sketch, point = space.point(number)
        (outcome,) = LocalRunner().measure(bench, [(region, point)])
        rows.append([sketch, point, outcome.gain, outcome.status.value, outcome.busy])
    taken = time.time() - begin
    return {"rows": rows, "size": space.size, "seconds": taken, "load": os.getloadavg()[0], "target": target}


def gains_of(space: Space, rows: list[Any]) -> dict[int, float]:
    """The pool as numbers of points and their gains."""
    found = {space.find(sketch, point): gain for sketch, point, gain, *_ in rows}
    return {number: gain for number, gain in found.items() if number is not None}


def live(name: str, target: str, way: str, trials: int, seed: int, folder: Path) -> list[float]:
    """A search that measures: the best gain after each trial."""
    model, explorer, epsilon = WAYS[way]
    task = task_of(TASKS[name](), target)
    proposer = Proposer(space_of(task), cost_models.cost_model(model, seed), EXPLORERS[explorer](), seed, epsilon)
    with Database(folder / f"{way} {seed}.sqlite".replace(" ", "_")) as database:
        search = Search(task, Bench(task, 1), proposer, LocalRunner(), database)
        while search.trials < trials and not search.is_done:
            list(search.round(min(8, trials - search.trials)))
        return [gain for _, gain in search.curve]


def rate() -> float:
    """Candidates scored in a second of one core, features and model included."""
    space = max((space_of(task_of(TASKS[name](), "native,cores=1")) for name in TASKS), key=lambda one: one.size)
    model = cost_models.cost_model()
    random = np.random.default_rng(0)
    some = random.choice(space.legal, 256, replace=False)
    model.fit([cost_models.Group(space.features(some), space.prior[some], random.random(256))])
    begin, count = time.process_time(), 0
    while time.process_time() - begin < 2.0:
        space.scores(model.score)
        count += space.size
    return count / (time.process_time() - begin)


def report(curves: dict[str, dict[str, list[list[float]]]], console: Console) -> None:
    """For each task and way: trials until 2 % from the best, and until random's best; geometric means at the end."""
    ways = list(next(iter(curves.values())))
    table = Table("task", *(f"{way}: to 2 % / to random's best" for way in ways))
    totals: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for name, by_way in curves.items():
        best = max(curve[-1] for found in by_way.values() for curve in found)
        ends = [curve[-1] for curve in by_way.get("random", [[best]])]
        cells = []
        for way in ways:
            needs = [
                np.mean([trials_to(curve, wanted) or len(curve) for curve in by_way[way]])
                for wanted in (NEAR * best, min(ends))
            ]
            totals[way].append((float(needs[0]), float(needs[1])))
            cells.append(f"{needs[0]:.0f} / {needs[1]:.0f}")
        table.add_row(name, *cells)
    means = [np.exp(np.mean(np.log(totals[way]), axis=0)) for way in ways]
    table.add_row("geometric mean", *(f"{mean[0]:.1f} / {mean[1]:.1f}" for mean in means))
    console.print(table)


def plot(curves: dict[str, dict[str, list[list[float]]]], path: str) -> None:
    """The curves, a panel for each task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(curves), figsize=(4 * len(curves), 3.2))
    for panel, (name, by_way) in zip(np.atleast_1d(panels), curves.items()):
        for way, found in by_way.items():
            length = min(map(len, found))
            panel.plot(range(1, length + 1), np.mean([curve[:length] for curve in found], axis=0), label=way)
        panel.set(title=name, xlabel="trials", xscale="log")
    np.atleast_1d(panels)[0].set_ylabel("speed, default = 1")
    np.atleast_1d(panels)[-1].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--target", default="native,cores=1")
    parser.add_argument("--pool", default="pool.json", help="where the measured pools are (made where there is none)")
    parser.add_argument("--points", type=int, default=160, help="of a pool")
    parser.add_argument("--trials", type=int, default=800)
    parser.add_argument("--live", action="store_true", help="measure, instead of replaying over pools")
    parser.add_argument("--folder", default=".", help="with --live: where the records go")
    parser.add_argument("--rate", action="store_true", help="only how many candidates are scored in a second")
    parser.add_argument("--plot", metavar="FILE")
    given = parser.parse_args()
    console = Console(width=200)
    if given.rate:
        console.print(f"{rate():,.0f} candidates a second on one core ({cost_models.cost_model().name})")
        return
    names = [name for name in TASKS if not given.only or any(part in name for part in given.only)]
    curves: dict[str, dict[str, list[list[float]]]] = {}
    pools = json.loads(Path(given.pool).read_text()) if Path(given.pool).exists() and not given.live else {}
    for name in names:
        if given.live:
            folder = Path(given.folder) / name.replace(" ", "_")
            folder.mkdir(parents=True, exist_ok=True)
            found = {
                w: [live(name, given.target, w, given.trials, s, folder) for s in range(SEEDS)] for w in ways_here()
            }
        else:
            if name not in pools:
                pools[name] = measure_pool(name, given.target, given.points, 1)
                Path(given.pool).write_text(json.dumps(pools))
            space = space_of(task_of(TASKS[name](), given.target))
            gains = gains_of(space, pools[name]["rows"])
            failed = sum(row[3] != "ok" for row in pools[name]["rows"])
            console.print(
                f"{name}: {len(gains)} of {pools[name]['size']:,} points, {failed} failed, best "
                f"{max(gains.values()):.3f} of the default, {pools[name]['seconds']:.0f} s, "
                f"load {pools[name]['load']:.1f}"
            )
            found = {w: [replay(space, gains, w, given.trials, s) for s in range(SEEDS)] for w in ways_here()}
        curves[name] = found
    report(curves, console)
    if given.plot:
        plot(curves, given.plot)
        console.print(f"wrote {given.plot}")


if __name__ == "__main__":
    main()
