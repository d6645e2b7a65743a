"""weft bench MODEL [--against ort]: seconds a call; candidates take turns, so that drift is fair to all."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from weft.cli.facts import module_facts, relative_error
from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import UsageError, add_compiling, add_inputs, add_model, open_with_feeds
from weft.graph.ir import Graph
from weft.runtime.threads import get_threads

LEAST_ROUNDS = 5
SAMPLE_SECONDS = 200e-6
"""A call that takes less is repeated until a sample lasts that long."""
SETTLE_SECONDS = 0.05
"""Before each sample: the threads of the candidate before must have stopped spinning (ONNX Runtime's take 30 ms)."""


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser)
    add_inputs(parser)
    parser.add_argument("--against", choices=["ort", "interpreter"], help="also measure this, in the same run")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to measure (default 3)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.against and given.model.endswith(".weft"):
        raise UsageError("--against needs the model itself: an .onnx file or a built-in model")
    start = time.perf_counter()
    module, feeds, graph = open_with_feeds(given, screen)
    candidates: dict[str, Callable[[], Any]] = {"weft": lambda: module.run(None, feeds)}
    with screen.working("first run"):
        got = candidates["weft"]()
    ready, threads = time.perf_counter() - start, given.threads or get_threads()
    facts: dict[str, Any] = {"model": given.model, "threads": threads, "ready_s": ready, **module_facts(module)}
    if given.against:
        with screen.working(f"preparing {given.against}"):
            candidates[given.against] = peer(given, graph, feeds, threads)
            facts["error"] = max(map(relative_error, got, candidates[given.against]()), default=0.0)
    with screen.working(f"measuring for {given.seconds:g} s"):
        samples = interleave(candidates, given.seconds)
    facts["times"] = {name: summary(taken) for name, taken in samples.items()}
    if given.against:
        ratios = [theirs / ours for ours, theirs in zip(samples["weft"], samples[given.against])]
        facts["speed_ratio"] = statistics.median(ratios)
    if screen.as_json:
        screen.figures(facts)
    else:
        show(facts, given.against, screen)
    return 0


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
    while len(samples[order[0]]) < LEAST_ROUNDS or time.perf_counter() - start < limit:
        shuffle(order)
        for name in order:
            time.sleep(SETTLE_SECONDS)
            candidates[name]()
            samples[name].append(_time(candidates[name], repeats[name]) / repeats[name])
    return samples


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
    """The figures of one candidate."""
    quarters = statistics.quantiles(samples, n=4)
    return {
        "median_s": statistics.median(samples),
        "minimum_s": min(samples),
        "lower_quartile_s": quarters[0],
        "upper_quartile_s": quarters[2],
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
         str(one["samples"])]
        for name, one in facts["times"].items()
    ]  # fmt: skip
    screen.table(["", "median>", "best>", "lower quartile>", "upper quartile>", "samples>"], rows)
    if against:
        screen.line(
            f"weft is {facts['speed_ratio']:.2f} times as fast as {against}; outputs differ by {facts['error']:.1e}"
        )
