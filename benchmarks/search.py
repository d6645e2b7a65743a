"""Searches side by side, as in figure 12 of the TVM paper: the best speed that was found, against trials.

    python -m benchmarks.search --pool pool.json            measures pools of points of five tasks, once
    python -m benchmarks.search --pool pool.json --plot f   replays the searches over them: curves, and a table
    python -m benchmarks.search --live --trials 64          the searches themselves, each point measured when it is met
    python -m benchmarks.search --live --jobs 8 --ways random "prior + learned=64" "learned alone=200" genetic=200
                                                            figure 12 as it is asked for: random has 800 trials
    python -m benchmarks.search --live --points 480         the same over tables: larger spaces with fewer choices, each
                                                            measured whole once; then a trial is a look into its table
    python -m benchmarks.search --exhaustive                five small spaces measured whole; trials to 2 % of the best
    python -m benchmarks.search --rate                      how many candidates are scored in a second
    python -m benchmarks.search --poor --trials 64          what is left of the speed of right facts, from poor ones

A pool is a table of points with their measured times: points drawn evenly from the whole space, others among those that
are estimated at up to twice the best, and the best by estimate. Replayed searches choose from the pool alone, so that
all see the same machine; random is helped by that, because a third of the pool is good by estimate.

A space of fewer points than trials, or with --points any, is measured whole, and the searches are replayed over that,
which the output says. What looks best is measured three times, each in a process of its own, where memory lies
elsewhere, and the median of all counts: the best of many is the luckiest of them, too. The default beside itself is 1,
whatever was measured.

What --live and --exhaustive measure is kept in --folder: with --seconds a run ends early, and the same command goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft.ops  # noqa: F401 — fills the table of operators
from benchmarks.cost_model import _conv, _dense, _matmul
from weft.compiler.lowering.graph import lower_graph
from weft.compiler.module import bind_shapes
from weft.compiler.passes import for_target, optimize
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.plan.overrides import Records, apply_override, recording
from weft.targets.base import Target
from weft.targets.registry import find_target
from weft.tuner import cost_models
from weft.tuner.bench import Bench, Kernel, in_turns
from weft.tuner.database import Database
from weft.tuner.exhaustive import WAYS, regret_rows, replay, trials_to, ways_here
from weft.tuner.runner import LocalRunner
from weft.tuner.search import Proposer, Search
from weft.tuner.settings import WITHIN
from weft.tuner.space import Space, space_of
from weft.tuner.task import Task, tasks_of

TASKS: dict[str, Any] = {
    "conv 3x3 64→64 28": lambda: _conv(64, 64, 28, 3),
    "conv 1x1 96→192 28": lambda: _conv(96, 192, 28, 1),
    "depthwise 3x3 96 56": lambda: _conv(96, 96, 56, 3, 1, 96),
    "matmul 128×256×192": lambda: _dense(128, 256, 192),
    "batched 8: 49×64×49": lambda: _matmul(8, 49, 64, 49),
}

SMALL: dict[str, Any] = {
    "conv 3x3 32→48 14": lambda: _conv(32, 48, 14, 3),
    "conv 1x1 64→96 14": lambda: _conv(64, 96, 14, 1),
    "depthwise 3x3 64 28": lambda: _conv(64, 64, 28, 3, 1, 64),
    "matmul 64×128×96": lambda: _dense(64, 128, 96),
    "batched 4: 49×32×49": lambda: _matmul(4, 49, 32, 49),
}
"""Tasks whose spaces are measured whole, with fewer choices of their knobs where they have more points than that."""

MOST_POINTS, SETTLED, MET, AGAIN = 1200, 24, 6, 3
"""Points of a space that is measured whole; of how many of the best more is asked there, of how many of a search, and
how often each of these is measured again."""

SEEDS = 3


def task_of(graph: Graph, target: str | Target) -> Task:
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


def live(name: str, target: str, way: str, trials: int, seed: int, folder: Path, until: float) -> list[float]:
    """A search that measures until a moment: the best gain after each trial, the default's at first."""
    model, explorer, epsilon = WAYS[way]
    task = task_of(TASKS[name](), target)
    space = space_of(task)
    proposer = Proposer(space, cost_models.cost_model(model, seed, space), explorer, seed, epsilon)
    with Database(folder / f"{way} {seed}.sqlite".replace(" ", "_")) as database:
        search = Search(task, Bench(task, 1), proposer, LocalRunner(), database)
        while search.trials < trials and not search.is_done and time.monotonic() < until:
            list(search.round(min(search.batch, trials - search.trials), lambda: time.monotonic() >= until))
        settle(search, MET, until, name, target)
        return [max(1.0, gain) for gain in itertools.accumulate([*search.gains.values()][:trials], max)]


def whole(
    name: str, target: str, folder: Path, until: float, most: int, ways: dict[str, int], seeds: int
) -> tuple[str, dict[str, list[list[float]]]]:
    """Searches replayed over a space that was measured whole, each with so many trials; and a word on the space."""
    search = exhaustive(name, target, folder, until, most)
    said = f"{search.trials} of {search.space.size} points measured, best {max(search.gains.values()):.3f}: replayed"
    curves = {
        way: [replay(search.space, search.gains, way, trials, seed) for seed in range(seeds)]
        for way, trials in ways.items()
    }
    return said, curves


def thinned(space: Space, most: int) -> Space:
    """A space with at most so many points: every second choice of the knob that has most is left out, again and again.

    All sketches stay, and so does the planner's choice.
    """
    default, at = space.region_of(space.default)
    kept = [dict(region.choices) for region in space.regions]
    while True:
        masks = [
            np.logical_and.reduce([np.isin(region.columns[knob], left) for knob, left in some.items()])
            & np.isfinite(region.estimates)
            for region, some in zip(space.regions, kept)
        ]
        counts = [int(mask.sum()) for mask in masks]
        if sum(counts) <= most:
            starts = space.starts[:-1]
            return space.restricted(np.concatenate([s + np.flatnonzero(mask) for s, mask in zip(starts, masks)]))
        some = kept[int(np.argmax(counts))]
        knob = max(some, key=lambda one: len(some[one]))
        region = space.regions[int(np.argmax(counts))]
        mine = region.columns[knob][at] if region is default else some[knob][0]
        some[knob] = some[knob][int(np.flatnonzero(some[knob] == mine)[0]) % 2 :: 2]


def exhaustive(name: str, target: str, folder: Path, until: float, most: int = MOST_POINTS) -> Search:
    """A space measured whole, or as much of it as there is time for."""
    task = task_of({**TASKS, **SMALL}[name](), target)
    space = thinned(space_of(task), most)
    database = Database(folder / f"{name}.sqlite".replace(" ", "_").replace("/", "_"))
    proposer = Proposer(space, cost_models.cost_model("none"), "random")
    search = Search(task, Bench(task, 1), proposer, LocalRunner(), database)
    left = [int(n) for n in np.random.default_rng(0).permutation(space.legal) if int(n) not in search.gains]
    for _ in search.measure(left):
        if time.monotonic() >= until:
            break
    settle(search, SETTLED, until, name, target)
    return search


def settle(search: Search, count: int, until: float, name: str, target: str) -> None:
    """Measures what looks best some times more. The best of many is the luckiest of them, too: the median counts.

    Each time in a process of its own: in one, and in all its forks, code and arrays lie where they lie, and a product
    of 128 × 256 × 192 took 0.94 to 1.05 of its time by that alone.
    """
    context = multiprocessing.get_context("spawn")
    for _ in range(AGAIN + 2):
        gains = _medians(search)
        best = sorted(gains, key=lambda number: -gains[number][0])[:count]
        left = [number for number in best if gains[number][1] <= AGAIN]
        if not left or time.monotonic() >= until:
            break
        with ProcessPoolExecutor(1, context) as pool:
            pool.submit(_again, name, target, search.database.path, left, until - time.monotonic()).result()
    search.gains.update({number: gain for number, (gain, _) in _medians(search).items()})
    search.gains.update(dict.fromkeys(search.space.known & search.gains.keys(), 1.0))


def _again(name: str, target: str, path: Path, numbers: list[int], seconds: float) -> None:
    """Measures points of a task once more, for so long."""
    until, task = time.monotonic() + seconds, task_of({**TASKS, **SMALL}[name](), target)
    with Database(path) as database:
        proposer = Proposer(space_of(task), cost_models.cost_model("none"))
        search = Search(task, Bench(task, 1), proposer, LocalRunner(), database)
        for _ in search.measure(numbers):
            if time.monotonic() >= until:
                break


def _medians(search: Search) -> dict[int, tuple[float, int]]:
    """What was measured of each point: the median of its gains, and how many there are."""
    found: dict[int, list[float]] = {}
    for record in search.database.records(search.task.key):
        number = search.space.find(record.sketch, record.point)
        if number is not None and number in search.gains:
            found.setdefault(number, []).append(record.outcome.gain)
    return {number: (float(np.median(gains)), len(gains)) for number, gains in found.items()}


def poor(target: Target) -> Target:
    """What a machine looks like that nobody has described: small caches, one port, long latencies."""
    facts = {
        "multiply_adds": 1.0,
        "loads": 0.5,
        "latency": 12.0,
        "second_level": 4.0,
        "third_level": 2.0,
        "memory": 1.0,
    }
    return replace(target, name="poor", cache_bytes=(4 << 10, 16 << 10, 64 << 10), measured=tuple(facts.items()))


def recovered(name: str, target: str, trials: int, folder: Path) -> tuple[float, float]:
    """The speed by poor facts, before and after tuning, as a share of that by right facts; measured in turns."""
    right = task_of(TASKS[name](), target)
    wrong = task_of(TASKS[name](), poor(find_target(target)))
    proposer = Proposer(space_of(wrong), cost_models.cost_model())
    with Database(folder / f"poor {name}.sqlite".replace(" ", "_")) as database:
        search = Search(wrong, Bench(wrong, 1), proposer, LocalRunner(), database)
        while search.trials < trials and not search.is_done:
            list(search.round(min(search.batch, trials - search.trials)))
    good, bench = Bench(right, 1), Bench(wrong, 1)
    calls = [good.default.run, bench.default.run]
    if search.trace is not None:
        program = wrong.fresh()
        apply_override(program.schedule, search.trace, "tuned")
        calls.append(Kernel(wrong, program, bench.arrays, 1).run)
    times, _ = in_turns(calls, 1, rounds=12)
    return times[0] / times[1], times[0] / times[-1]


def rate() -> float:
    """Candidates scored in a second of one core, features and model included."""
    space = max((space_of(task_of(TASKS[name](), "native,cores=1")) for name in TASKS), key=lambda one: one.size)
    model = cost_models.cost_model(None, 0, space)
    random = np.random.default_rng(0)
    some = random.choice(space.legal, 256, replace=False)
    model.fit([cost_models.Group(space.features(some), space.prior[some], random.random(256))])
    begin, count = time.process_time(), 0
    while time.process_time() - begin < 2.0:
        space.scores(model)
        count += space.size
    return count / (time.process_time() - begin)


def beside_each_other(jobs: list[tuple[Any, ...]], count: int, pinned: bool = True) -> list[Any]:
    """What calls give, so many at a time, each in a process; on a core of its own, as what is timed there wants."""
    if count <= 1:
        return [call(*words) for call, *words in jobs]
    context, here = multiprocessing.get_context("spawn"), sorted(os.sched_getaffinity(0))[:count]
    cores = context.Queue()
    for core in here:
        cores.put(core)
    apart = (len(here), context, _take_core, (cores,)) if pinned else (count, context)
    with ProcessPoolExecutor(*apart) as pool:
        return [one.result() for one in [pool.submit(call, *words) for call, *words in jobs]]


def _take_core(cores: Any) -> None:
    os.sched_setaffinity(0, {cores.get()})


def side_by_side(
    given: argparse.Namespace, names: list[str], until: float, console: Console
) -> dict[str, dict[str, list[list[float]]]]:
    """The searches of figure 12: in a space of more points than trials each measures what it meets; one of fewer is
    measured whole, and the searches are replayed over that."""
    asked = dict(one.partition("=")[::2] for one in given.ways) or dict.fromkeys(ways_here(), "")
    ways = {way: int(trials or given.trials) for way, trials in asked.items()}
    jobs: dict[tuple[str, str, int], tuple[Any, ...]] = {}
    for name in names:
        folder = Path(given.folder) / name.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        if given.points or space_of(task_of(TASKS[name](), given.target)).size <= given.trials:
            most = given.points or given.trials
            jobs[name, "", 0] = whole, name, given.target, Path(given.folder), until, most, ways, given.seeds
            continue
        for way, seed in itertools.product(ways, range(given.seeds)):
            jobs[name, way, seed] = live, name, given.target, way, ways[way], seed, folder, until
    order = sorted(jobs, key=lambda at: ["", *ways].index(at[1]))  # whole spaces first, then as the ways are given
    found = dict(zip(order, beside_each_other([jobs[at] for at in order], given.jobs)))
    curves: dict[str, dict[str, list[list[float]]]] = {name: {} for name in names}
    for name, way, seed in jobs:
        if way:
            curves[name].setdefault(way, []).append(found[name, way, seed])
        else:
            said, curves[name] = found[name, way, seed]
            console.print(f"{name}: {said}")
    return curves


def regrets(given: argparse.Namespace, until: float, console: Console) -> None:
    """The five small spaces: how much of each is measured, and what each way to search regrets there."""
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = Table("space", "points", "way", "regret after 16 trials", "trials to 2 %", f"of {given.seeds} seeds")
    known = {**SMALL, **TASKS} if given.only else SMALL
    names = [name for name in known if not given.only or any(part in name for part in given.only)]
    most = given.points or MOST_POINTS
    for rows in beside_each_other(
        [(regret, name, given.target, folder, until, most, given.seeds) for name in names], given.jobs
    ):
        for row in rows:
            table.add_row(*row)
    console.print(table)


def regret(name: str, target: str, folder: Path, until: float, most: int, seeds: int) -> list[tuple[str, ...]]:
    """The rows of one space."""
    search = exhaustive(name, target, folder, until, most)
    best = max(search.gains.values())
    many = f"{search.trials} of {search.space.size}, {sum(search.failures.values())} failed, best {best:.3f}"
    rows = []
    for row, (way, lost, needed) in enumerate(regret_rows(search, seeds)):
        curves = [replay(search.space, search.gains, way.split(",")[0], 64, s) for s in range(seeds) if row]
        each = " ".join(str(trials_to(curve, WITHIN * best) or "> 64") for curve in curves)
        rows.append((name if not row else "", many if not row else "", way, lost, needed, each))
    return rows


def report(curves: dict[str, dict[str, list[list[float]]]], console: Console) -> None:
    """For each task and way: trials until 2 % from the best, until random's best (of its seeds the median), the best
    of each seed; geometric means, in which a search that did not get there counts with all its trials."""
    ways = list(next(iter(curves.values())))
    table = Table("task", *(f"{way}: to 2 % / to random's best" for way in ways))
    totals: dict[str, list[list[float]]] = {way: [] for way in ways}
    for name, by_way in curves.items():
        best = max((curve[-1] for found in by_way.values() for curve in found if curve), default=1.0)
        random = float(np.median([curve[-1] for curve in by_way.get("random", [[best]]) if curve] or [best]))
        cells = []
        for way in ways:
            found = [curve for curve in by_way[way] if curve]
            needs = [[trials_to(curve, wanted) for curve in found] for wanted in (WITHIN * best, random)]
            means = [float(np.mean([n or len(c) for n, c in zip(some, found)])) for some in needs] if found else []
            totals[way] += [means] if means else []
            said = " / ".join(f"{'> ' if None in some else ''}{mean:.0f}" for some, mean in zip(needs, means))
            cells.append(f"{said} ({' '.join(f'{curve[-1]:.3f}' for curve in found)})")
        table.add_row(name, *cells)
    middle = [np.exp(np.mean(np.log(totals[way]), axis=0)) if totals[way] else (np.nan, np.nan) for way in ways]
    table.add_row("geometric mean", *(f"{mean[0]:.1f} / {mean[1]:.1f}" for mean in middle))
    console.print(table)


def replayed(given: argparse.Namespace, names: list[str], console: Console) -> dict[str, dict[str, list[list[float]]]]:
    """The searches over pools, which are measured where there are none."""
    curves = {}
    pools = json.loads(Path(given.pool).read_text()) if Path(given.pool).exists() else {}
    for name in names:
        if name not in pools:
            pools[name] = measure_pool(name, given.target, given.points or 160, 1)
            Path(given.pool).write_text(json.dumps(pools))
        space = space_of(task_of(TASKS[name](), given.target))
        gains = gains_of(space, pools[name]["rows"])
        failed = sum(row[3] != "ok" for row in pools[name]["rows"])
        console.print(
            f"{name}: {len(gains)} of {pools[name]['size']:,} points, {failed} failed, best "
            f"{max(gains.values()):.3f} of the default, {pools[name]['seconds']:.0f} s, "
            f"load {pools[name]['load']:.1f}"
        )
        curves[name] = {w: [replay(space, gains, w, given.trials, s) for s in range(given.seeds)] for w in ways_here()}
    return curves


COLORS = ("#c33", "#36c", "#393", "#c80", "#777")
WIDTH, HEIGHT = 300, 200


def plot(curves: dict[str, dict[str, list[list[float]]]], path: str) -> None:
    """The curves as SVG, a panel for each task: speed (the default's is 1) against trials, on a logarithmic scale."""
    parts = []
    for panel, (name, by_way) in enumerate(curves.items()):
        left, means = panel * (WIDTH + 40) + 40, {}
        for way, found in by_way.items():
            length = min(map(len, found))
            if not length:
                continue  # there was no time for it
            means[way] = np.mean([curve[:length] for curve in found], axis=0)
        most = max(map(len, means.values()))
        low, top = min(mean[0] for mean in means.values()), max(mean[-1] for mean in means.values())
        for color, mean in zip(COLORS, means.values()):
            across = left + WIDTH * np.log(np.arange(1, len(mean) + 1)) / max(np.log(most), 1e-9)
            down = 30 + HEIGHT * (1 - (mean - low) / max(top - low, 1e-9))
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down))
            parts.append(f"<polyline fill='none' stroke='{color}' stroke-width='1.5' points='{points}'/>")
        parts.append(f"<text x='{left}' y='14'>{name}: {low:.2f} to {top:.2f}, {most} trials</text>")
    for at, (color, way) in enumerate(zip(COLORS, next(iter(curves.values())))):
        parts.append(f"<text x='{40 + 150 * at}' y='{HEIGHT + 60}' fill='{color}'>{way}</text>")
    size = f"width='{len(curves) * (WIDTH + 40) + 40}' height='{HEIGHT + 80}'"
    style = "font-family='sans-serif' font-size='12'"
    Path(path).write_text(f"<svg xmlns='http://www.w3.org/2000/svg' {size} {style}>{''.join(parts)}</svg>")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--target", default="native,cores=1")
    parser.add_argument("--pool", default="pool.json", help="where the measured pools are (made where there is none)")
    parser.add_argument(
        "--points", type=int, default=0, help="of a pool (160); of a space measured whole (1200); with --live: all are"
    )
    parser.add_argument("--trials", type=int, default=800)
    parser.add_argument("--live", action="store_true", help="measure, instead of replaying over pools")
    parser.add_argument("--exhaustive", action="store_true", help="measure five small spaces whole")
    parser.add_argument("--ways", nargs="*", default=[], metavar="WAY[=TRIALS]", help="only these, with --live")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="so many at once, a core each")
    parser.add_argument("--seconds", type=float, default=1e9, help="with --live and --exhaustive: measure for so long")
    parser.add_argument("--folder", default=".", help="with --live and --poor: where the records go")
    parser.add_argument("--rate", action="store_true", help="only how many candidates are scored in a second")
    parser.add_argument("--poor", action="store_true", help="only what tuning recovers from poor facts")
    parser.add_argument("--trees", action="store_true", help="with a network over loop programs beside the others")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves as SVG")
    given = parser.parse_args()
    console = Console(width=200)
    if given.trees:
        from benchmarks.trees import TreeModel

        cost_models.MODELS["tree"], WAYS["trees"] = TreeModel, ("tree", "exhaustive", 0.15)
    if given.rate:
        console.print(f"{rate():,.0f} candidates a second on one core ({cost_models.cost_model().name})")
        return
    until = time.monotonic() + given.seconds
    if given.exhaustive:
        regrets(given, until, console)
        return
    names = [name for name in TASKS if not given.only or any(part in name for part in given.only)]
    if given.poor:
        jobs = [(recovered, name, given.target, given.trials, Path(given.folder)) for name in names]
        for name, (before, after) in zip(names, beside_each_other(jobs, given.jobs)):
            console.print(f"{name}: {before:.2f} of right facts before, {after:.2f} after {given.trials} trials")
        return
    if given.live:
        curves = side_by_side(given, names, until, console)
    else:
        curves = replayed(given, names, console)
    console.print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    report(curves, console)
    if given.plot:
        plot(curves, given.plot)
        console.print(f"wrote {given.plot}")


if __name__ == "__main__":
    main()
