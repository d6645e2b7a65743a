"""weft bench MODEL [--against ort]: seconds a call, how far they spread, and what else the machine was doing.

Candidates take turns, so that drift is fair to all. Who is faster is said only where it can be: there are enough
rounds, the middle halves of the samples lie apart, and the threads that were measured had cores for themselves.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.cli.facts import array_facts, module_facts, relative_error
from weft.cli.given import UsageError, refuse
from weft.cli.pool_command import add_certificates, folder_of
from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import (
    add_compiling,
    add_inputs,
    add_model,
    count,
    duration,
    input_shapes,
    open_graph,
    open_with_feeds,
)
from weft.compiler.module import bind_shapes
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.models.llama import WEIGHTS

ENOUGH_ROUNDS = 20
"""Rounds that a comparison needs; measuring goes on for them, up to PATIENCE times as long as was asked for."""
PATIENCE = 10
LEAST_ROUNDS = 5
SECONDS = 3.0
SAMPLE_SECONDS = 200e-6
"""A call that takes less is repeated until a sample lasts that long."""
SETTLE_SECONDS = 0.05
"""Before each sample: the threads of the candidate before must have stopped spinning (ONNX Runtime's take 30 ms)."""
SLACK = 0.1
"""The share of a core that others may take from each thread before the machine counts as busy."""

Times = dict[str, list[float]]


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    add_inputs(parser)
    parser.add_argument("--against", choices=["ort", "interpreter"], help="also measure this, in the same run")
    parser.add_argument("--seconds", type=duration, help="how long to measure (default 3)")
    parser.add_argument("--pool", metavar="URL", help="on a pool's device; --target is its kind (docs/pool.md)")
    add_certificates(parser)
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--decode", type=count, metavar="N", help="llama_110m: so many tokens, one by one")
    parser.add_argument("--prompt", type=count, metavar="N", help="with --decode: tokens of the prompt (default 128)")
    parser.add_argument("--weights", choices=WEIGHTS, help="with --decode: the type of the weights (default float32)")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.decode:
        from weft.cli import decoding

        return decoding.run(given, screen)
    refuse(given, "prompt weights", "it belongs to --decode")
    if given.pool:
        return _in_pool(given, screen)
    refuse(given, "certificates", "it belongs to --pool")
    if given.against and given.model.endswith(".weft"):
        raise UsageError("--against needs the model itself: an .onnx file or a built-in model")
    start = time.perf_counter()
    module, feeds, graph = open_with_feeds(given, screen)
    candidates: dict[str, Callable[[], Any]] = {"weft": lambda: module.run(None, feeds)}
    with screen.working("first run"):
        got = candidates["weft"]()
    facts: dict[str, Any] = {
        "model": given.model, "ready_s": time.perf_counter() - start, **module_facts(module)
    }  # fmt: skip
    facts["inputs"] = {name: array_facts(array) for name, array in feeds.items()}
    if given.against:
        with screen.working(f"preparing {given.against}"):
            candidates[given.against] = peer(given, graph, feeds, facts["threads"])
            facts["error"] = max(map(relative_error, got, candidates[given.against]()), default=0.0)
    limit = given.seconds or SECONDS
    with screen.working(f"measuring for {limit:g} s"):
        before = Usage.now()
        samples = interleave(candidates, limit)
        facts["machine"] = Usage.now().since(before)
    facts["times"] = {name: summary(taken) for name, taken in samples.items()}
    if given.against:
        facts["comparison"] = compare(samples, given.against, facts["threads"], facts["machine"])
    if screen.as_json:
        screen.figures(facts)
    else:
        show(facts, given.against, screen)
    return 0


def _in_pool(given: argparse.Namespace, screen: Screen) -> int:
    """What a whole model takes on a device of a pool."""
    from weft.pool.guard import guard
    from weft.pool.models import bench_whole
    from weft.pool.runner import PoolRunner

    refuse(given, "threads input seed seconds", "it is for this machine; a pool's device measures one core")
    if not given.target:
        raise UsageError("--target KIND says which devices of the pool; weft devices --pool URL lists them")
    guard()
    graph = open_graph(given, screen)
    bound = bind_shapes(graph, input_shapes(graph.inputs, given, screen))
    precision = None if given.precision in (None, "fp32") else given.precision
    runner = PoolRunner(given.pool, given.target, folder_of(given))
    try:
        with knobs.override(**({"exact": True} if given.exact else {})), screen.working(f"measuring on {runner.kind}"):
            found = bench_whole(bound, runner, precision)
    finally:
        runner.close()
    feeds, got = found.pop("inputs"), found.pop("outputs")
    if given.against:
        found["error"] = max(map(relative_error, got, peer(given, graph, feeds, 1)()), default=0.0)
    if screen.as_json:
        screen.figures(found)
    else:
        error = f"; outputs differ by {found['error']:.1e} from {given.against}'s" if given.against else ""
        screen.line(f"{given.model} on {runner.kind}: {found['says']}{error}")
    return 0


# ------------------------------------------------------------------------------------------------------- the machine


@dataclass(frozen=True)
class Usage:
    """How much of the processor was used until now, in seconds: by everybody (None where nobody says), and by us."""

    clock: float
    everybody: float | None
    ours: float

    @staticmethod
    def now() -> Usage:
        """As of now."""
        try:
            # user nice system idle iowait irq softirq steal: what is no idling, in hundredths of a second.
            fields = list(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]))
            busy: float | None = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError):
            busy = None
        return Usage(time.perf_counter(), busy, sum(os.times()[:2]))

    def since(self, before: Usage) -> dict[str, Any]:
        """The load of the machine, and how many of its cores others kept busy since then."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        others: float | None = None
        if self.everybody is not None and before.everybody is not None:
            theirs = self.everybody - before.everybody - (self.ours - before.ours)
            others = max(0.0, theirs / (self.clock - before.clock))
        cores, taken = os.cpu_count() or 1, self.clock - before.clock
        return {"measured_s": taken, "cores": cores, "load_average": load, "cores_used_by_others": others}


def busy(machine: Mapping[str, Any], threads: int) -> str | None:
    """Why threads did not have cores for themselves; None where they had.

    Where the system does not count what others use, its load says it, less what we add to it ourselves.
    """
    cores, others, load = machine["cores"], machine["cores_used_by_others"], machine["load_average"]
    taken = others if others is not None else max(0.0, (load or 0.0) - threads)
    if taken <= max(0, cores - threads) + SLACK * threads:
        return None
    return f"the machine is busy: other programs used {taken:.1f} of its {cores} cores meanwhile"


# ------------------------------------------------------------------------------------------------------- comparing


def compare(samples: Times, against: str, threads: int, machine: Mapping[str, Any]) -> dict[str, Any]:
    """How many times as fast we are, round by round; `speed_ratio` only where that can be concluded."""
    ratios = [theirs / ours for ours, theirs in zip(samples["weft"], samples[against])]
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    why = doubt(samples["weft"], samples[against]) or busy(machine, threads)
    found: dict[str, Any] = {"against": against, "speed_ratio": None if why else middle, "no_conclusion": why}
    return found | {"ratio_lower_quartile": lower, "ratio_median": middle, "ratio_upper_quartile": upper}


def doubt(ours: list[float], theirs: list[float]) -> str | None:
    """Why samples do not say who is faster; None where they do."""
    if len(ours) < ENOUGH_ROUNDS:
        return f"{len(ours)} samples are too few ({ENOUGH_ROUNDS} are needed): give more --seconds"
    (a, _, b), (c, _, d) = statistics.quantiles(ours, n=4), statistics.quantiles(theirs, n=4)
    if max(a, c) <= min(b, d):
        return "the middle halves of the samples overlap"
    return None


def peer(given: argparse.Namespace, graph: Graph | None, feeds: dict[str, Any], threads: int) -> Callable[[], Any]:
    """What we are measured against, as a function without arguments."""
    assert graph is not None
    if given.against == "interpreter":
        from weft.graph.interpreter import interpret_graph

        return lambda: interpret_graph(graph, feeds)
    from weft.cli.reference import model_of, open_session, run_session

    session = open_session(model_of(given, graph), threads)
    run_session(session, feeds)
    return lambda: session.run(None, feeds)


def interleave(candidates: Mapping[str, Callable[[], Any]], limit: float) -> dict[str, list[float]]:
    """Seconds a call: every round takes one sample of every candidate, in a new order."""
    repeats = {name: _repeats(call) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    order, shuffle = list(candidates), random.Random(0).shuffle
    start = time.perf_counter()
    while _goes_on(len(samples[order[0]]), time.perf_counter() - start, limit, len(candidates) > 1):
        shuffle(order)
        for name in order:
            time.sleep(SETTLE_SECONDS)
            candidates[name]()
            samples[name].append(_time(candidates[name], repeats[name]) / repeats[name])
    return samples


def _goes_on(rounds: int, taken: float, limit: float, compares: bool) -> bool:
    """Whether to measure on: to the end of the time, and beyond it for the rounds that a comparison needs."""
    wanted = ENOUGH_ROUNDS if compares and taken < PATIENCE * limit else LEAST_ROUNDS
    return taken < limit or rounds < wanted


def _time(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def _repeats(call: Callable[[], Any]) -> int:
    call()
    taken = _time(call, 1)
    return max(1, round(SAMPLE_SECONDS / max(taken, 1e-7)))


def summary(samples: list[float]) -> dict[str, float]:
    """The figures of one candidate; the spread is the middle half of the samples, as a share of their median."""
    quarters = statistics.quantiles(samples, n=4)
    return {
        "median_s": quarters[1],
        "minimum_s": min(samples),
        "lower_quartile_s": quarters[0],
        "upper_quartile_s": quarters[2],
        "spread": (quarters[2] - quarters[0]) / quarters[1],
        "samples": len(samples),
    }


def show(facts: dict[str, Any], against: str | None, screen: Screen) -> None:
    """The figures as a table."""
    screen.line(
        f"{facts['model']}: {facts['kernels']} kernels, {facts['host_nodes']} nodes on the host, weights "
        f"{size(facts['weight_bytes'])}, arena {size(facts['arena_bytes'])}, {facts['threads']} threads; "
        f"ready in {seconds(facts['ready_s'])}"
    )
    rows = [
        [name, *(seconds(one[key]) for key in ("median_s", "minimum_s", "lower_quartile_s", "upper_quartile_s")),
         f"{one['spread']:.0%}", str(one["samples"])]
        for name, one in facts["times"].items()
    ]  # fmt: skip
    screen.table(["", "median>", "best>", "lower quartile>", "upper quartile>", "spread>", "samples>"], rows)
    machine = facts["machine"]
    others = machine["cores_used_by_others"]
    said = [] if machine["load_average"] is None else [f"load average {machine['load_average']:.2f}"]
    said += [] if others is None else [f"other programs used {others:.2f} of {machine['cores']} cores meanwhile"]
    screen.line("; ".join(said))
    if against is None:
        if why := busy(machine, facts["threads"]):
            screen.line(f"take these times with care: {why}")
        return
    found = facts["comparison"]
    middle = f"{found['ratio_lower_quartile']:.2f} to {found['ratio_upper_quartile']:.2f}"
    if found["no_conclusion"]:
        screen.line(f"no conclusion: {found['no_conclusion']} (rounds gave {found['ratio_median']:.2f}, {middle})")
    else:
        screen.line(f"weft is {found['speed_ratio']:.2f} times as fast as {against} (half of the rounds: {middle})")
    screen.line(f"outputs differ by {facts['error']:.1e}")
