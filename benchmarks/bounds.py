"""What it costs that every access of a kernel is proven, guarded or tested (`loop/passes/check_bounds.py`).

    python -m benchmarks.bounds                       the built-in models
    python -m benchmarks.bounds bert_base dqn         some of them
    python -m benchmarks.bounds --conformance         how many accesses of ONNX's own cases are proven, guarded, flagged

Each model is compiled several times with nothing kept from before: processor seconds in all, and the share that the
two passes take (the least of each). One compiled with them and one without are then called in turns: the best, and
the median of the ratios of neighbouring calls.
"""

from __future__ import annotations

import argparse
import collections
import functools
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import weft
from weft.compiler.kernels import build as kernels
from weft.loop.passes.check_bounds import check_bounds, check_regions
from weft.targets.cpu import pipeline

Counts = collections.Counter[str]
SPENT = "spent"


@contextmanager
def passes(counts: Counts | None) -> Iterator[None]:
    """The pipeline with the pass, counting what it finds; without it where there is nothing to count into."""
    whole = pipeline.PASSES

    def timed(run: Any, func: Any) -> Any:
        assert counts is not None
        start = time.thread_time_ns()
        made = run(func)
        counts[SPENT] += time.thread_time_ns() - start
        counts.update(made.annotations["bounds"] if run is check_bounds else {})
        return made

    ours = (check_bounds, check_regions)
    if counts is None:
        pipeline.PASSES = tuple(run for run in whole if run not in ours)
    else:
        pipeline.PASSES = tuple(functools.partial(timed, run) if run in ours else run for run in whole)
    kernels._CACHE.clear()
    try:
        yield
    finally:
        pipeline.PASSES = whole
        kernels._CACHE.clear()


def inputs_of(module: Any) -> list[Any]:
    """Random floats; zeros, which are right as indices, for whole numbers."""
    rng = np.random.default_rng(0)
    kinds = [(port.shape, np.dtype(port.dtype)) for port in module.inputs]
    return [rng.standard_normal(s).astype(d) if d.kind == "f" else np.zeros(s, d) for s, d in kinds]


def measure(name: str, seconds: float, rounds: int) -> str:
    """One line of the table."""
    times: list[float] = []
    spent: list[float] = []
    modules: dict[bool, Any] = {}
    with passes(None):
        modules[False] = weft.compile(weft.models.make(name), threads=1)
    for _ in range(rounds):
        found: Counts = collections.Counter()
        with passes(found):
            graph = weft.models.make(name)
            start = time.process_time()
            modules[True] = weft.compile(graph, threads=1)
            times.append(time.process_time() - start)
            spent.append(found[SPENT] / 1e9)
    given = inputs_of(modules[True])
    calls: dict[bool, list[float]] = {True: [], False: []}
    for module in modules.values():
        module(*given)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(calls[True]) < 5:
        for with_pass, module in modules.items():
            start = time.perf_counter()
            module(*given)
            calls[with_pass].append(time.perf_counter() - start)
    best = min(calls[True]) / min(calls[False])
    middle = statistics.median(a / b for a, b in zip(calls[True], calls[False], strict=True))
    accesses = " ".join(f"{found.get(kind, 0):6}" for kind in ("proven", "guarded", "flagged"))
    compiled = f"{min(times):6.2f} s {min(spent) / min(times):6.1%}"
    shown = f"{compiled}  {min(calls[True]) * 1e3:8.2f} ms {best:6.3f} {middle:6.3f}"
    return f"{name:13} {accesses}  {shown}"


def conformance() -> None:
    """Counts over ONNX's own cases."""
    from benchmarks.conformance import find_cases, run_case

    warnings.simplefilter("ignore")
    counts: Counts = collections.Counter()
    outcomes: Counts = collections.Counter()
    with passes(counts), weft.knobs.override(cache=False):
        for case in find_cases():
            outcomes[run_case(case).outcome] += 1
    del counts[SPENT]
    print(f"{sum(outcomes.values())} cases {dict(outcomes)}; accesses {dict(counts)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of built-in models; all of them by default")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to call each model")
    parser.add_argument("--rounds", type=int, default=3, help="how often to compile each model both ways")
    parser.add_argument("--conformance", action="store_true", help="count the accesses of ONNX's own cases instead")
    given = parser.parse_args(arguments)
    if given.conformance:
        return conformance()
    print(
        f"{'model':13} proven guarded flagged  compile, the passes' share   call, with/without (best, median of pairs)"
    )
    with weft.knobs.override(cache=False):
        for name in given.models or weft.models.names(decoders=False):
            print(measure(name, given.seconds, given.rounds), flush=True)
    return None


if __name__ == "__main__":
    main()
