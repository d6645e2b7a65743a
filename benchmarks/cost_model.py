"""How well a target's cost model ranks schedules: points of sketches measured, on shapes that no number was fitted to.

    python -m benchmarks.cost_model                       every shape, one thread
    python -m benchmarks.cost_model --only conv_3x3 --points 40 --jobs 8 --json cost_model.json
    python -m benchmarks.cost_model --target native,features=-avx512f     another machine that this one can play
    python -m benchmarks.cost_model --target cuda --precision fp16 --jobs 8 --lock /tmp/l    a device: by its clock
    python -m benchmarks.cost_model --fitted --points 40 --json fit.json  the shapes that numbers are fitted to

For each shape the sketches of its heaviest block are taken as the planner takes them, with all their points. Some are
measured: the best by estimate, and others drawn at random from those that are estimated at up to eight times as long.
Reported are Spearman's rank correlation of estimate and time, with that of the times of odd and even rounds beside it
(what noise leaves: no estimate can rank better), and how much longer the default takes than the best that was found. A
point that is refused, or fails, is counted. No number is fitted to `SHAPES`; `FITTED` are those that were used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from benchmarks.decoding_gpu import alone
from benchmarks.harness import collect
from weft.compiler.reports.cost import kernel_cost
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.plan.contraction import producers_of_epilogue
from weft.plan.planner import Choice, Unit, analytic, picking
from weft.plan.sketch import Sketch
from weft.tuner.cost_models import rank_correlation

ROUNDS = 30
"""Points are called in turns; the first turn is for warming up."""

MOST_RATIO = 8.0
"""Points that are estimated to take longer than so many times the best are not measured."""


def _conv(inputs: int, outputs: int, size: int, kernel: int, stride: int = 1, groups: int = 1, batch: int = 1) -> Graph:
    b = Builder("conv")
    image = b.relu(b.input("x", (batch, inputs, size, size)))
    y = b.conv(image, inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=True)
    return b.finish(b.relu(y), names=["out"])


def _dense(m: int, k: int, n: int) -> Graph:
    b = Builder("dense")
    return b.finish(b.relu(b.dense(b.input("x", (m, k)), k, n)), names=["out"])


def _matmul(batch: int, m: int, k: int, n: int) -> Graph:
    b = Builder("matmul")
    return b.finish(b.node("MatMul", b.input("x", (batch, m, k)), b.input("y", (batch, k, n))), names=["out"])


SHAPES: dict[str, Any] = {
    "dense 77×640×1280": lambda: _dense(77, 640, 1280),
    "dense 197×192×768": lambda: _dense(197, 192, 768),
    "dense 49×1024×320": lambda: _dense(49, 1024, 320),
    "dense 23×511×129": lambda: _dense(23, 511, 129),
    "dense 6×2048×513": lambda: _dense(6, 2048, 513),
    "dense 300×96×96": lambda: _dense(300, 96, 96),
    "matmul 49×512×49": lambda: _matmul(1, 49, 512, 49),
    "matmul 8: 100×64×100": lambda: _matmul(8, 100, 64, 100),
    "matmul 16: 197×48×197": lambda: _matmul(16, 197, 48, 197),
    "conv 1x1 96→192 35": lambda: _conv(96, 192, 35, 1),
    "conv 1x1 160→960 7": lambda: _conv(160, 960, 7, 1),
    "conv 1x1 40→120 28": lambda: _conv(40, 120, 28, 1),
    "conv 1x1 72→24 57": lambda: _conv(72, 24, 57, 1),
    "conv 3x3 s2 48→96 41": lambda: _conv(48, 96, 41, 3, 2),
    "conv 5x5 32→48 28": lambda: _conv(32, 48, 28, 5),
    "conv 3x3 s2 160→320 14": lambda: _conv(160, 320, 14, 3, 2),
    "conv 3x3 s2 24→40 80": lambda: _conv(24, 40, 80, 3, 2),
    "conv 3x3 g6 72→72 28": lambda: _conv(72, 72, 28, 3, 1, 6),
    "conv 3x3 17→33 30": lambda: _conv(17, 33, 30, 3),
    "depthwise 5x5 s2 120 28": lambda: _conv(120, 120, 28, 5, 2, 120),
    "depthwise 3x3 72 57": lambda: _conv(72, 72, 57, 3, 1, 72),
    "depthwise 5x5 480 14": lambda: _conv(480, 480, 14, 5, 1, 480),
}
"""Shapes that no number was fitted to."""

FITTED: dict[str, Any] = {
    "dense 128×768×3072": lambda: _dense(128, 768, 3072),
    "dense 512×512×512": lambda: _dense(512, 512, 512),
    "dense 64×384×1536": lambda: _dense(64, 384, 1536),
    "dense 100×256×1000": lambda: _dense(100, 256, 1000),
    "dense 12×1024×700": lambda: _dense(12, 1024, 700),
    "dense 31×300×200": lambda: _dense(31, 300, 200),
    "dense 256×128×144": lambda: _dense(256, 128, 144),
    "matmul 65×400×65": lambda: _matmul(1, 65, 400, 65),
    "matmul 12: 128×64×128": lambda: _matmul(12, 128, 64, 128),
    "matmul 6: 50×32×200": lambda: _matmul(6, 50, 32, 200),
    "conv 1x1 64→256 56": lambda: _conv(64, 256, 56, 1),
    "conv 1x1 48→144 40": lambda: _conv(48, 144, 40, 1),
    "conv 1x1 80→480 14": lambda: _conv(80, 480, 14, 1),
    "conv 1x1 128→64 28": lambda: _conv(128, 64, 28, 1),
    "conv 1x1 144→32 56": lambda: _conv(144, 32, 56, 1),
    "conv 1x1 56→136 30": lambda: _conv(56, 136, 30, 1),
    "conv 3x3 s2 64→128 56": lambda: _conv(64, 128, 56, 3, 2),
    "conv 3x3 s2 96→192 20": lambda: _conv(96, 192, 20, 3, 2),
    "conv 5x5 24→64 24": lambda: _conv(24, 64, 24, 5),
    "conv 3x3 136→136 15": lambda: _conv(136, 136, 15, 3),
    "conv 3x3 g4 64→64 32": lambda: _conv(64, 64, 32, 3, 1, 4),
    "conv 3x3 20→50 26": lambda: _conv(20, 50, 26, 3),
    "depthwise 3x3 96 56": lambda: _conv(96, 96, 56, 3, 1, 96),
    "depthwise 5x5 88 30": lambda: _conv(88, 88, 30, 5, 1, 88),
    "depthwise 3x3 s2 144 40": lambda: _conv(144, 144, 40, 3, 2, 144),
    "depthwise 5x5 s2 240 20": lambda: _conv(240, 240, 20, 5, 2, 240),
}
"""Shapes that numbers of a `model.py` were fitted to."""

DEVICE_FITTED: dict[str, Any] = {
    **FITTED,
    "dense 1024×1024×1024": lambda: _dense(1024, 1024, 1024),
    "dense 577×192×576": lambda: _dense(577, 192, 576),
    "dense 2048×768×768": lambda: _dense(2048, 768, 768),
    "dense 256×2048×512": lambda: _dense(256, 2048, 512),
    "dense 384×768×2304": lambda: _dense(384, 768, 2304),
    "dense 200×1536×384": lambda: _dense(200, 1536, 384),
    "dense 4096×64×256": lambda: _dense(4096, 64, 256),
    "dense 16×768×3072": lambda: _dense(16, 768, 3072),
    "dense 10×1280×1000": lambda: _dense(10, 1280, 1000),
    "dense 40×333×250": lambda: _dense(40, 333, 250),
    "dense 1500×333×150": lambda: _dense(1500, 333, 150),
    "matmul 12: 512×64×512": lambda: _matmul(12, 512, 64, 512),
    "matmul 12: 512×512×64": lambda: _matmul(12, 512, 512, 64),
    "matmul 64: 64×32×64": lambda: _matmul(64, 64, 32, 64),
    "matmul 10: 261×80×261": lambda: _matmul(10, 261, 80, 261),
    "matmul 3: 333×80×77": lambda: _matmul(3, 333, 80, 77),
    "matmul 150×300×75": lambda: _matmul(1, 150, 300, 75),
    "conv 1x1 64→256 56 batch 8": lambda: _conv(64, 256, 56, 1, batch=8),
    "conv 1x1 512→128 28 batch 16": lambda: _conv(512, 128, 28, 1, batch=16),
    "conv 1x1 1024→256 14": lambda: _conv(1024, 256, 14, 1),
    "conv 1x1 320→1280 7": lambda: _conv(320, 1280, 7, 1),
    "conv 1x1 32→16 112": lambda: _conv(32, 16, 112, 1),
    "conv 1x1 200→100 13": lambda: _conv(200, 100, 13, 1),
    "conv 3x3 64→64 56": lambda: _conv(64, 64, 56, 3),
    "conv 3x3 256→256 14": lambda: _conv(256, 256, 14, 3),
    "conv 3x3 512→512 7": lambda: _conv(512, 512, 7, 3),
    "conv 3x3 128→128 28 batch 8": lambda: _conv(128, 128, 28, 3, batch=8),
    "conv 3x3 320→320 32 batch 4": lambda: _conv(320, 320, 32, 3, batch=4),
    "conv 3x3 s2 100→60 33": lambda: _conv(100, 60, 33, 3, 2),
    "conv 3x3 s2 3→32 224": lambda: _conv(3, 32, 224, 3, 2),
    "conv 7x7 s2 3→64 224": lambda: _conv(3, 64, 224, 7, 2),
    "conv 3x3 g32 128→128 56": lambda: _conv(128, 128, 56, 3, 1, 32),
    "conv 3x3 g8 256→256 14": lambda: _conv(256, 256, 14, 3, 1, 8),
    "conv 5x5 g2 96→256 27": lambda: _conv(96, 256, 27, 5, 1, 2),
    "conv 3x3 s2 g16 160→160 20": lambda: _conv(160, 160, 20, 3, 2, 16),
    "conv 3x3 g3 48→96 25": lambda: _conv(48, 96, 25, 3, 1, 3),
    "depthwise 3x3 144 56 batch 8": lambda: _conv(144, 144, 56, 3, 1, 144, 8),
    "depthwise 7x7 96 56": lambda: _conv(96, 96, 56, 7, 1, 96),
    "depthwise 3x3 s2 32 112": lambda: _conv(32, 32, 112, 3, 2, 32),
    "depthwise 3x3 960 7": lambda: _conv(960, 960, 7, 3, 1, 960),
}
"""The same, and what devices do besides."""


def _family(name: str) -> str:
    """Whose mean a shape belongs to: products, windows of one element, of several, and those over single channels."""
    kind, window = name.split()[:2]
    return kind if kind != "conv" else "conv 1x1" if window == "1x1" else "conv k×k"


@dataclass
class Measured:
    """One point of a shape."""

    sketch: str
    point: dict[str, int]
    estimate: float
    rounds: list[float]
    """The best call of each round."""

    @property
    def seconds(self) -> float:
        """The best call."""
        return min(self.rounds)


@dataclass
class Row:
    """One shape: its points, the default first."""

    name: str
    points: list[Measured]
    refused: int
    size: int

    @property
    def spearman(self) -> float:
        """The rank correlation of estimates and times."""
        return rank_correlation(*np.asarray([(p.estimate, p.seconds) for p in self.points]).T)

    @property
    def repeated(self) -> float:
        """That of the times of odd and even rounds: what noise leaves to an estimate."""
        return rank_correlation(*np.asarray([(min(p.rounds[::2]), min(p.rounds[1::2])) for p in self.points]).T)

    @property
    def behind(self) -> float:
        """How many times as long as the best measured point the default takes."""
        return self.points[0].seconds / min(p.seconds for p in self.points)

    def line(self) -> str:
        """The row in short."""
        best = min(self.points, key=lambda point: point.seconds)
        told = ", ".join(f"{one.sketch} {one.point} {one.seconds * 1e6:.1f} µs" for one in (self.points[0], best))
        return (
            f"{self.name}: Spearman {self.spearman:.2f} ({self.repeated:.2f}), default / best {self.behind:.2f}: {told}"
        )


class _First:
    """A pick that tries one point of the heaviest unit's sketches first, and notes what there is to choose from."""

    def __init__(self, wanted: tuple[str, dict[str, int]] | None) -> None:
        self.wanted, self.work, self.refused = wanted, 0, False
        self.sketches: list[Sketch] = []

    def __call__(self, unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        makers = [] if unit.facts.is_reduction else [one for one, _ in producers_of_epilogue(unit.schedule, unit.facts)]
        work = sum(one.points * one.depth for one in (unit.facts, *makers))  # with sums that its threads may make
        if work >= self.work and sketches:
            self.work, self.sketches = work, list(sketches)
            for sketch in sketches:
                if (
                    self.wanted is not None
                    and sketch.name == self.wanted[0]
                    and sketch.knobs.keys() == self.wanted[1].keys()
                ):
                    yield sketch, self.wanted[1], 0.0
                    self.refused = True  # else nobody asks for another point
        yield from analytic(unit, sketches)


def _compiled(
    graph: Graph, target: str, precision: str | None, wanted: tuple[str, dict[str, int]] | None
) -> tuple[Any, _First]:
    pick = _First(wanted)
    with knobs.override(cache=False, winograd=False), picking(pick):
        return weft.compile(graph, target=target, precision=precision), pick


def _rounds(modules: Sequence[Any], inputs: Sequence[Any], least: float) -> list[list[float]]:
    """The best call of each in each round, taken in turns, in processor time: one thread computes, and others may run.

    On a device the heaviest kernel, by the device's clock.
    """
    best: list[list[float]] = [[] for _ in modules]
    on_device = [one.target.spec.device is not None for one in modules]
    calls = [
        _heaviest(one, inputs) if away else partial(_seconds, one, inputs) for one, away in zip(modules, on_device)
    ]
    for _ in range(ROUNDS):
        for found, call, away in zip(best, calls, on_device):
            clock = time.perf_counter if away else time.thread_time
            call()
            until, shortest = clock() + least / ROUNDS, float("inf")
            while clock() < until or shortest == float("inf"):
                shortest = min(shortest, call())
            found.append(shortest)
    return [found[1:] for found in best]


def _seconds(module: Any, inputs: Sequence[Any]) -> float:
    """The processor time of a call."""
    start = time.thread_time()
    module(*inputs)
    return time.thread_time() - start


def _heaviest(module: Any, inputs: Sequence[Any]) -> Callable[[], float]:
    """What tells the device's time for the heaviest kernel, all its launches one after another as in a model: what it
    reads lies on the device, as if the kernel before it had just written it."""
    bound = module.bind({port.name: array for port, array in zip(module.inputs, inputs)})
    calls, alive = bound.calls()
    (one,), device = module.specializations, module.target.device()
    work = [kernel_cost(launch, one.graph.constants).operations for launch in one.launches]
    device.stretch([launch for call in calls for launch in call])()
    timer = device.stretch(calls[int(np.argmax(work))])

    def seconds() -> float:
        assert bound is not None and alive is not None  # they hold the memory
        return float(timer())

    return seconds


def compiled(
    name: str, target: str, precision: str | None, count: int
) -> tuple[list[Measured], list[Any], list[Any], int, int]:
    """Points of a shape, the default first, each compiled; what they are called with; those refused, and all."""
    knobs.num_threads = 1
    graph = {**SHAPES, **DEVICE_FITTED}[name]()
    module, pick = _compiled(graph, target, precision, None)
    random = np.random.default_rng(len(name))
    inputs = [random.standard_normal(value.tensor.static).astype(np.float32) for value in graph.inputs]
    right = module(*inputs)
    offers: list[tuple[float, Sketch, dict[str, int]]] = []
    for sketch in pick.sketches:
        columns = sketch.columns()
        cost = np.where(sketch.legal(columns), sketch.cost(columns), np.inf)
        near = np.flatnonzero((cost <= MOST_RATIO * cost.min()) & np.isfinite(cost))
        best = near[np.argsort(cost[near], kind="stable")][: count // 3]
        drawn = random.choice(near, min(len(near), count), replace=False)
        offers += [(float(cost[at]), sketch, sketch.point(columns, int(at))) for at in dict.fromkeys([*best, *drawn])]
    offers.sort(key=lambda offer: offer[0])
    first, rest = offers[0], offers[1:]
    chosen = [first, *rest[: count // 3]]
    chosen += [rest[at] for at in sorted(random.choice(len(rest), min(len(rest), count - len(chosen)), replace=False))]
    points, modules, refused, seen = [], [], 0, set()
    for cost_, sketch, point in chosen:
        key = (sketch.name, tuple(point.items()))
        if key in seen:
            continue
        seen.add(key)
        try:
            made, tried = _compiled(graph, target, precision, (sketch.name, point))
        except WeftError:
            refused += 1
            continue
        if tried.refused:
            refused += 1
            continue
        tolerance = 1e-3 if precision is None else 5e-2
        try:
            np.testing.assert_allclose(made(*inputs), right, rtol=tolerance, atol=tolerance)
        except (AssertionError, WeftError) as error:
            error.add_note(f"{name}: {sketch.name} {point}")
            raise
        points.append(Measured(sketch.name, point, cost_, []))
        modules.append(made)
    return points, modules, inputs, refused, sum(sketch.size for sketch in pick.sketches)


def measure(name: str, target: str, precision: str | None, count: int, seconds: float, lock: Path | None) -> Row:
    """The points of a shape, measured."""
    points, modules, inputs, refused, size = compiled(name, target, precision, count)
    with alone(lock):
        for one, taken in zip(points, _rounds(modules, inputs, seconds)):
            one.rounds = taken
    return Row(name, points, refused, size)


def _kept(rows: Iterable[Row], path: str | None) -> Iterator[Row]:
    """The rows; what was measured stays in a file, whatever comes."""
    found = []
    for row in rows:
        found.append(asdict(row))
        if path:
            Path(path).write_text(json.dumps(found, indent=1))
        yield row


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_model", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--target", default="native,cores=1")
    parser.add_argument("--precision", choices=("bf16", "fp16", "tf32"))
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=0.05, help="how long each point is called")
    parser.add_argument("--jobs", type=int, default=1, help="shapes at the same time: only on as many idle cores")
    parser.add_argument(
        "--lock", type=Path, help="points compile beside others, and are measured while nobody holds it"
    )
    parser.add_argument("--fitted", action="store_true", help="the shapes that numbers were fitted to")
    parser.add_argument("--json")
    given = parser.parse_args()
    shapes = FITTED if given.fitted else SHAPES
    names = [name for name in shapes if not given.only or any(part in name for part in given.only)]
    arguments = [(name, given.target, given.precision, given.points, given.seconds, given.lock) for name in names]
    console = Console(width=None if sys.stdout.isatty() else 220)
    with ProcessPoolExecutor(given.jobs) as pool:
        rows = collect(_kept(pool.map(measure, *zip(*arguments)), given.json), console)
    heads = ("points", "measured", "refused", "Spearman", "repeated", "default / best", "default", "best")
    table = Table("shape", *heads)
    for row in rows:
        best = min(row.points, key=lambda p: p.seconds)
        named = [f"{p.sketch} {' '.join(f'{k}={v}' for k, v in p.point.items())}" for p in (row.points[0], best)]
        figures = [f"{row.size:,}", str(len(row.points)), str(row.refused)]
        figures += [f"{row.spearman:.2f}", f"{row.repeated:.2f}", f"{row.behind:.2f}"]
        table.add_row(row.name, *figures, *named)
    console.print(table)
    for family in (None, *dict.fromkeys(map(_family, names))):
        some = [row for row in rows if family in (None, _family(row.name))]
        ranks, behind = [row.spearman for row in some], [row.behind for row in some]
        console.print(
            f"{family or ('fitted' if given.fitted else 'held out')}, {len(some)} shapes: Spearman mean "
            f"{np.nanmean(ranks):.2f}, median {np.nanmedian(ranks):.2f}, least {np.nanmin(ranks):.2f} (repeated "
            f"{np.nanmean([row.repeated for row in some]):.2f}); default / best mean {np.mean(behind):.2f}, median "
            f"{np.median(behind):.2f}, most {max(behind):.2f}, over 1.10 {sum(ratio > 1.1 for ratio in behind)}"
        )


if __name__ == "__main__":
    main()
