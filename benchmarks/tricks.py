"""What each trick of the CPU's schedules still gains: a workload that it is for, with it and without.

    python -m benchmarks.tricks                       every trick, one thread, seconds of the processor
    python -m benchmarks.tricks --only zeros turned   some of them
    python -m benchmarks.tricks --threads 2           by the clock

A trick is switched off by putting a function in the place of the one that decides on it. Both modules are called in
turns, and the best call of each counts; the last column is how many times as long it takes without the trick. What is
1.00 on every machine gains nothing, and goes.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.plan.planner import Choice, Unit, analytic, picking
from weft.plan.sketch import Sketch

SKETCHES, LOOPS, STAGE = "weft.targets.cpu.sketches", "weft.targets.cpu.default_loops", "weft.schedule.schedule:Stage"
ROUNDS = 7
"""Modules are called in turns; the first turn is for warming up."""


def _one(name: str, shape: tuple[int, ...], make: Callable[[Builder, Any], Any]) -> Graph:
    b = Builder(name)
    return b.finish(make(b, b.input("x", shape)), names=["out"])


def _dense(rows: int, inputs: int, outputs: int) -> Graph:
    return _one("dense", (rows, inputs), lambda b, x: b.dense(b.relu(x), inputs, outputs))


def _conv(channels: int, size: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Graph:
    def make(b: Builder, x: Any) -> Any:
        return b.relu(b.conv(b.relu(x), channels, channels, kernel, stride, kernel // 2, groups=groups, bias=True))

    return _one("conv", (1, channels, size, size), make)


def _lstm(steps: int, hidden: int) -> Graph:
    def make(b: Builder, x: Any) -> Any:
        weights = [b.normal(1, 4 * hidden, hidden, scale=hidden**-0.5) for _ in range(2)]
        return b.node("LSTM", x, *weights, hidden_size=hidden)

    return _one("lstm", (steps, 1, hidden), make)


@dataclass(frozen=True)
class Trick:
    """What it is, the function that decides ("module:name"), what takes its place, and what it is for."""

    name: str
    decides: str
    instead: Any
    graph: Callable[[], Graph]


def _as_always(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
    """The usual pick under another name: kernels that it chose are not taken from those that the process knows."""
    return iter(analytic(unit, sketches))


def _never(*_: Any, **__: Any) -> bool:
    return False


def _none(*_: Any, **__: Any) -> None:
    return None


TRICKS = [
    Trick("turned: weights backwards in odd calls", f"{SKETCHES}.matmul:_Nest.meets_once", _never,
          lambda: _dense(1, 1024, 1024)),
    Trick("turned: weights backwards in odd steps", f"{STAGE}.zigzag", _none, lambda: _lstm(20, 650)),
    Trick("zeros of a Relu passed over", f"{SKETCHES}.matmul:_skips_zeros", _never, lambda: _dense(1, 3136, 512)),
    Trick("zeros of a first state passed over", f"{SKETCHES}.recurrent:_starts_from_zeros", _never,
          lambda: _lstm(4, 650)),
    Trick("24-bit weights of recurrences", "weft.targets.cpu.algorithms:weight_fixer", lambda _: _none,
          lambda: _lstm(20, 650)),
    Trick("copies where channels collide", f"{SKETCHES}.conv:_collides", _never, lambda: _conv(256, 32, 1)),
    Trick("fetching ahead: few rows", f"{STAGE}.prefetch", _none, lambda: _dense(4, 2048, 1024)),
    Trick("fetching ahead: convolutions", f"{STAGE}.prefetch", _none, lambda: _conv(512, 7)),
    Trick("windows: rows share what they read", f"{SKETCHES}.conv_rows:_down", _none,
          lambda: _conv(120, 28, 5, 1, 120)),
    Trick("transposition by squares", f"{LOOPS}:tile_transposed", _none,
          lambda: _one("turn", (512, 768), lambda b, x: b.node("Transpose", x, perm=[1, 0]))),
    Trick("reduction row after row", f"{LOOPS}:_row_after_row", _never,
          lambda: _one("rows", (1024, 2048), lambda b, x: b.node("ReduceSum", x, b.ints(0), keepdims=0))),
]  # fmt: skip


@contextmanager
def without(trick: Trick) -> Any:
    """The compiler without a trick."""
    module, _, path = trick.decides.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    with mock.patch.object(owner, name, trick.instead):
        yield


def seconds(modules: list[Any], inputs: list[Any], least: float, clock: Callable[[], float]) -> list[float]:
    """The best call of each, taken in turns."""
    best = [float("inf")] * len(modules)
    for round_ in range(ROUNDS):
        for at, module in enumerate(modules):
            until = clock() + least / ROUNDS
            while True:
                start = clock()
                module(*inputs)
                end = clock()
                best[at] = min(best[at], end - start) if round_ else best[at]
                if end > until:
                    break
    return best


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tricks", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="tricks with one of these in their names")
    parser.add_argument("--target", default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each module is called")
    given = parser.parse_args()
    knobs.num_threads = given.threads
    clock = time.process_time if given.threads == 1 else time.perf_counter
    table = Table("trick", "with it", "without", "times")
    for trick in TRICKS:
        if given.only and not any(part in trick.name for part in given.only):
            continue
        graph = trick.graph()
        with knobs.override(cache=False), picking(_as_always):
            modules = [weft.compile(graph, target=given.target)]
            with without(trick):
                modules.append(weft.compile(graph, target=given.target))
        random = np.random.default_rng(0)
        inputs = [random.standard_normal(value.tensor.static).astype(np.float32) for value in graph.inputs]
        np.testing.assert_allclose(modules[1](*inputs), modules[0](*inputs), rtol=1e-3, atol=1e-3)
        with_it, without_it = seconds(modules, inputs, given.seconds, clock)
        table.add_row(
            trick.name, f"{with_it * 1e6:,.0f} µs", f"{without_it * 1e6:,.0f} µs", f"{without_it / with_it:.2f}"
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
