"""How well a target's cost model ranks schedules: points of sketches measured, on shapes that no number was fitted to.

    python -m benchmarks.cost_model                       every shape, one thread
    python -m benchmarks.cost_model --only conv_3x3 --points 40 --jobs 8 --json cost_model.json
    python -m benchmarks.cost_model --target native,features=-avx512f     another machine that this one can play
    python -m benchmarks.cost_model --target cuda --precision fp16        a device: its own clock, the kernel alone

For each shape the sketches of its heaviest block are taken as the planner takes them, with all their points. Some are
measured: the best by estimate, and others drawn at random from those that are estimated at up to eight times as long.
Reported are Spearman's rank correlation of estimate and time, and how much longer the default takes than the best that
was found. A point that is refused, or fails, is counted. Shapes marked * were used to fit; all others are held out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.graph.ir import Graph, Value
from weft.models.builder import Builder
from weft.plan.planner import Choice, Unit, analytic, picking
from weft.plan.sketch import Sketch

ROUNDS = 5
"""Points are called in turns; the first turn is for warming up."""

MOST_RATIO = 8.0
"""Points that are estimated to take longer than so many times the best are not measured."""


def _image(b: Builder, channels: int, size: int) -> Value:
    return b.relu(b.input("x", (1, channels, size, size)))


def _conv(inputs: int, outputs: int, size: int, kernel: int, stride: int = 1, groups: int = 1) -> Graph:
    b = Builder("conv")
    y = b.conv(_image(b, inputs, size), inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=True)
    return b.finish(b.relu(y), names=["out"])


def _dense(m: int, k: int, n: int) -> Graph:
    b = Builder("dense")
    return b.finish(b.relu(b.dense(b.input("x", (m, k)), k, n)), names=["out"])


def _matmul(batch: int, m: int, k: int, n: int) -> Graph:
    b = Builder("matmul")
    return b.finish(b.node("MatMul", b.input("x", (batch, m, k)), b.input("y", (batch, k, n))), names=["out"])


SHAPES: dict[str, Any] = {
    "dense 128×768×3072 *": lambda: _dense(128, 768, 3072),
    "dense 512×512×512 *": lambda: _dense(512, 512, 512),
    "dense 77×640×1280": lambda: _dense(77, 640, 1280),
    "dense 197×192×768": lambda: _dense(197, 192, 768),
    "dense 49×1024×320": lambda: _dense(49, 1024, 320),
    "dense 23×511×129": lambda: _dense(23, 511, 129),
    "dense 6×2048×513": lambda: _dense(6, 2048, 513),
    "dense 300×96×96": lambda: _dense(300, 96, 96),
    "matmul 49×512×49": lambda: _matmul(1, 49, 512, 49),
    "matmul 8: 100×64×100": lambda: _matmul(8, 100, 64, 100),
    "matmul 16: 197×48×197": lambda: _matmul(16, 197, 48, 197),
    "conv 1x1 64→256 56 *": lambda: _conv(64, 256, 56, 1),
    "conv 3x3 s2 64→128 56 *": lambda: _conv(64, 128, 56, 3, 2),
    "conv 1x1 96→192 35": lambda: _conv(96, 192, 35, 1),
    "conv 1x1 160→960 7": lambda: _conv(160, 960, 7, 1),
    "conv 3x3 s2 48→96 41": lambda: _conv(48, 96, 41, 3, 2),
    "conv 5x5 32→48 28": lambda: _conv(32, 48, 28, 5),
    "conv 3x3 s2 160→320 14": lambda: _conv(160, 320, 14, 3, 2),
    "conv 1x1 40→120 28": lambda: _conv(40, 120, 28, 1),
    "conv 1x1 72→24 57": lambda: _conv(72, 24, 57, 1),
    "conv 3x3 s2 24→40 80": lambda: _conv(24, 40, 80, 3, 2),
    "conv 3x3 g6 72→72 28": lambda: _conv(72, 72, 28, 3, 1, 6),
    "conv 3x3 17→33 30": lambda: _conv(17, 33, 30, 3),
    "depthwise 3x3 96 56 *": lambda: _conv(96, 96, 56, 3, 1, 96),
    "depthwise 5x5 s2 120 28": lambda: _conv(120, 120, 28, 5, 2, 120),
    "depthwise 3x3 72 57": lambda: _conv(72, 72, 57, 3, 1, 72),
    "depthwise 5x5 480 14": lambda: _conv(480, 480, 14, 5, 1, 480),
}


@dataclass
class Measured:
    """One point of a shape."""

    sketch: str
    point: dict[str, int]
    estimate: float
    seconds: float


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
        if len(self.points) < 3:
            return float("nan")
        ranks = [np.argsort(np.argsort([getattr(p, key) for p in self.points])) for key in ("estimate", "seconds")]
        return float(np.corrcoef(*ranks)[0, 1])

    @property
    def behind(self) -> float:
        """How many times as long as the best measured point the default takes."""
        return self.points[0].seconds / min(p.seconds for p in self.points)


class _First:
    """A pick that tries one point of the heaviest unit's sketches first, and notes what there is to choose from."""

    def __init__(self, wanted: tuple[str, dict[str, int]] | None) -> None:
        self.wanted, self.work = wanted, 0
        self.sketches: list[Sketch] = []

    def __call__(self, unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        work = unit.facts.points * unit.facts.depth
        if work >= self.work and sketches:
            self.work, self.sketches = work, list(sketches)
            for sketch in sketches:
                if (
                    self.wanted is not None
                    and sketch.name == self.wanted[0]
                    and sketch.knobs.keys() == self.wanted[1].keys()
                ):
                    yield sketch, self.wanted[1], 0.0
        yield from analytic(unit, sketches)


def _compiled(
    graph: Graph, target: str, precision: str | None, wanted: tuple[str, dict[str, int]] | None
) -> tuple[Any, _First]:
    pick = _First(wanted)
    with knobs.override(cache=False, winograd=False), picking(pick):
        return weft.compile(graph, target=target, precision=precision), pick


def _seconds(modules: Sequence[Any], inputs: Sequence[Any], least: float) -> list[float]:
    """The best call of each, taken in turns; on a device the heaviest kernel, by the device's clock."""
    best = [float("inf")] * len(modules)
    for round_ in range(ROUNDS):
        for at, module in enumerate(modules):
            if module.target.spec.device is not None:
                kernels = module.profile(*inputs, seconds=least / ROUNDS).kernels
                best[at] = min(best[at], max(kernels, key=lambda kernel: kernel.cost.operations).seconds)
                continue
            module(*inputs)
            until = time.perf_counter() + least / ROUNDS
            while True:
                start = time.perf_counter()
                module(*inputs)
                end = time.perf_counter()
                best[at] = min(best[at], end - start) if round_ else best[at]
                if end > until:
                    break
    return best


def measure(name: str, target: str, precision: str | None, count: int, seconds: float) -> Row:
    """The points of a shape, measured."""
    knobs.num_threads = 1
    graph = SHAPES[name]()
    module, pick = _compiled(graph, target, precision, None)
    random = np.random.default_rng(len(name))
    inputs = [random.standard_normal(value.tensor.static).astype(np.float32) for value in graph.inputs]
    right = module(*inputs)
    offers: list[tuple[float, Sketch, dict[str, int]]] = []
    for sketch in pick.sketches:
        columns = sketch.columns()
        cost = np.where(sketch.legal(columns), sketch.cost(columns), np.inf)
        best = np.argsort(cost, kind="stable")[: count // 3]
        near = np.flatnonzero(cost <= MOST_RATIO * cost.min())
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
        tolerance = 1e-3 if precision is None else 5e-2
        np.testing.assert_allclose(made(*inputs), right, rtol=tolerance, atol=tolerance)
        points.append(Measured(sketch.name, point, cost_, 0.0))
        modules.append(made)
    for one, taken in zip(points, _seconds(modules, inputs, seconds)):
        one.seconds = taken
    return Row(name, points, refused, sum(sketch.size for sketch in pick.sketches))


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_model", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--target", default="native,cores=1")
    parser.add_argument("--precision", choices=("bf16", "fp16", "tf32"))
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=0.05, help="how long each point is called")
    parser.add_argument("--jobs", type=int, default=1, help="shapes at the same time: only on as many idle cores")
    parser.add_argument("--json")
    given = parser.parse_args()
    names = [name for name in SHAPES if not given.only or any(part in name for part in given.only)]
    arguments = [(name, given.target, given.precision, given.points, given.seconds) for name in names]
    with ProcessPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(measure, *zip(*arguments)))
    console = Console(width=None if sys.stdout.isatty() else 220)
    table = Table("shape", "points", "measured", "refused", "Spearman", "default / best", "default", "best")
    for row in rows:
        best = min(row.points, key=lambda p: p.seconds)
        named = [f"{p.sketch} {' '.join(f'{k}={v}' for k, v in p.point.items())}" for p in (row.points[0], best)]
        figures = [f"{row.size:,}", str(len(row.points)), str(row.refused), f"{row.spearman:.2f}", f"{row.behind:.2f}"]
        table.add_row(row.name, *figures, *named)
    console.print(table)
    held = [row for row in rows if not row.name.endswith("*")]
    if held:
        ranks, behind = [row.spearman for row in held], [row.behind for row in held]
        console.print(
            f"held out, {len(held)} shapes: Spearman median {np.nanmedian(ranks):.2f}, least {np.nanmin(ranks):.2f}; "
            f"default / best median {np.median(behind):.2f}, most {max(behind):.2f}"
        )
    if given.json:
        with open(given.json, "w") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
