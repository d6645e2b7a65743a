"""Single convolutions against the peers: the TVM paper's table 2, ResNet-18's C1–C12 and MobileNet's depthwise D1–D9.

    python -m benchmarks.conv                                        both thread counts
    python -m benchmarks.conv --only C2 D9 --threads 1 --seconds 2
    python -m benchmarks.conv --json conv.json

float32, batch 1. Ours is `weft.compile` of a graph of one Conv with constant weights; image and result are in the
caller's layout (NCHW). The peers are PyTorch (oneDNN: the best of NCHW and channels-last, weights packed beforehand or
not) and ONNX Runtime (a model of one node). `alone` is our kernel inside our module, without the call from Python and
without conversions of layouts around it: what the convolution costs in the middle of a model. A ratio is the median of
the ratios of the rounds, in brackets the ratio of the best calls, which says more on a machine that others use too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from benchmarks import harness, real_models
from benchmarks.workers import Race, Task, Timing, best_ratio, geometric_mean, speed_ratio, told_ratio
from weft.cli import facts

PEERS = ("torch", "onnxruntime")
ALONE = "convolution alone"


class Single(Protocol):
    """One convolution that can be measured."""

    @property
    def name(self) -> str:
        """What a row is called."""

    @property
    def family(self) -> str:
        """With which others it has a mean of its own."""

    @property
    def shape(self) -> str:
        """Its sizes, for the table."""

    @property
    def operations(self) -> int:
        """Floating-point operations: two for every product."""

    def write(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        """The ONNX model in a folder, and its input."""

    def reference(self, path: Path, feeds: dict[str, Any]) -> np.ndarray[Any, Any]:
        """What the result should be."""

    def as_json(self) -> dict[str, Any]:
        """Its sizes."""


@dataclass(frozen=True)
class Convolution:
    """One row of the paper's table: a square image, channels in and out, a square window, a stride; padding SAME."""

    name: str
    size: int
    inputs: int
    outputs: int
    window: int
    stride: int
    depthwise: bool = False

    @property
    def operations(self) -> int:
        """Floating-point operations: two for every product."""
        out = -(-self.size // self.stride)
        return 2 * out * out * self.outputs * (1 if self.depthwise else self.inputs) * self.window**2

    @property
    def family(self) -> str:
        """C or D."""
        return "D" if self.depthwise else "C"

    @property
    def shape(self) -> str:
        """Its sizes, for the table."""
        return f"{self.size}², {self.inputs}→{self.outputs}, {self.window}/{self.stride}"

    def write(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        """The ONNX model in a folder, and its input."""
        import onnx

        from weft.cli.to_onnx import to_onnx
        from weft.models.builder import Builder

        b = Builder(self.name)
        image = b.input("image", (1, self.inputs, self.size, self.size))
        groups = self.inputs if self.depthwise else 1
        made = b.conv(image, self.inputs, self.outputs, self.window, self.stride, self.window // 2, groups=groups)
        path = folder / f"{self.name}.onnx"
        onnx.save(to_onnx(b.finish(made)), path)
        values = np.random.default_rng(0).standard_normal((1, self.inputs, self.size, self.size), "float32")
        return path, {"image": values}

    def reference(self, path: Path, feeds: dict[str, Any]) -> np.ndarray[Any, Any]:
        """ONNX Runtime's answer, without its optimisations."""
        session = real_models.onnxruntime_session(path, threads=1, optimised=False)
        return np.asarray(session.run(None, feeds)[0])

    def as_json(self) -> dict[str, Any]:
        """Its sizes."""
        return {
            "size": self.size, "inputs": self.inputs, "outputs": self.outputs, "window": self.window,
            "stride": self.stride, "depthwise": self.depthwise,
        }  # fmt: skip


RESNET = [
    (224, 3, 64, 7, 2), (56, 64, 64, 3, 1), (56, 64, 64, 1, 1), (56, 64, 128, 3, 2), (56, 64, 128, 1, 2),
    (28, 128, 128, 3, 1), (28, 128, 256, 3, 2), (28, 128, 256, 1, 2), (14, 256, 256, 3, 1), (14, 256, 512, 3, 2),
    (14, 256, 512, 1, 2), (7, 512, 512, 3, 1),
]  # fmt: skip
"""C1 to C12: size, channels in, channels out, window, stride."""

MOBILENET = [
    (112, 32, 3, 1), (112, 64, 3, 2), (56, 128, 3, 1), (56, 128, 3, 2), (28, 256, 3, 1), (28, 256, 3, 2),
    (14, 512, 3, 1), (14, 512, 3, 2), (7, 1024, 3, 1),
]  # fmt: skip
"""D1 to D9: size, channels, window, stride."""

CONVOLUTIONS = [
    *(Convolution(f"C{n}", *row) for n, row in enumerate(RESNET, 1)),
    *(
        Convolution(f"D{n}", size, c, c, window, stride, True)
        for n, (size, c, window, stride) in enumerate(MOBILENET, 1)
    ),
]


@dataclass
class Row:
    """One convolution with so many threads."""

    convolution: Single
    threads: int
    timings: dict[str, Timing]
    variant: str
    error: float
    problems: dict[str, str]

    @property
    def best_peer(self) -> str | None:
        """The peer with the lowest median."""
        peers = [name for name in self.timings if name in PEERS]
        return min(peers, key=lambda name: self.timings[name].median) if peers else None

    def ratio(self, ours: str, compare: Callable[[Timing, Timing], float] = speed_ratio) -> float | None:
        """How many times as fast as the best peer we are: whole calls ("weft"), or the kernel (ALONE)."""
        if self.best_peer is None or ours not in self.timings:
            return None
        return compare(self.timings[ours], self.timings[self.best_peer])

    def line(self) -> str:
        """The row in short."""
        times = ", ".join(f"{name} {_time(timing)}" for name, timing in self.timings.items())
        ratios = told_ratio(self.ratio("weft"), self.ratio("weft", best_ratio))
        return f"{self.convolution.name}, {self.threads} threads: {times} µs; × best {ratios}"

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        one = self.convolution
        return {
            "name": one.name, **one.as_json(), "threads": self.threads, "operations": one.operations,
            "times": {name: timing.as_json() for name, timing in self.timings.items()}, "best_peer": self.best_peer,
            "ratio_to_best": self.ratio("weft"), "alone_to_best": self.ratio(ALONE),
            "ratio_by_best_calls": self.ratio("weft", best_ratio),
            "torch_variant": self.variant, "error": self.error, "problems": self.problems,
        }  # fmt: skip


def measure(one: Single, race: Race, threads: int, seconds: float, folder: Path) -> Row:
    """One row: everybody gets ready, then they take turns."""
    path, feeds = one.write(folder)
    ready = race.prepare(Task(path, feeds, threads))
    timings = race.run(seconds)
    made = ready["weft"].outputs
    return Row(
        one,
        threads,
        timings,
        str(ready["torch"].notes.get("variant", "")) if "torch" in ready else "",
        facts.relative_error(made[0], one.reference(path, feeds)) if made else float("inf"),
        {name: state.problem for name, state in ready.items() if state.problem},
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """A table for each number of threads, the geometric means, and whatever could not be measured."""
    for threads in dict.fromkeys(row.threads for row in rows):
        part = [row for row in rows if row.threads == threads]
        names = list(dict.fromkeys(name for row in part for name in row.timings))
        lines = [
            [row.convolution.name, row.convolution.shape, *(_time(row.timings.get(name)) for name in names),
             _rate(row), row.ratio("weft"), row.ratio("weft", best_ratio), row.ratio(ALONE), row.best_peer or "–",
             f"{row.error:.0e}"]
            for row in part
        ]  # fmt: skip
        titles = ["alone" if name == ALONE else name for name in names]
        columns = ["", "H×W, in→out, k/s", *titles, "GFLOP/s", "× best", "(best)", "alone ×", "best peer", "error"]
        title = f"fp32, {threads} thread{'s' * (threads > 1)}, batch 1, µs a call: median (best)"
        harness.print_table(title, columns, lines, console)
        for label in dict.fromkeys(row.convolution.family for row in part):
            show_mean(label, [row for row in part if row.convolution.family == label], console)
        show_mean("all", part, console)
    problems: dict[str, list[str]] = {}
    for row in rows:
        for name, problem in row.problems.items():
            problems.setdefault(f"{name}: {problem}", []).append(row.convolution.name)
    for problem, where in problems.items():
        console.print(f"{', '.join(dict.fromkeys(where))}: {problem}", markup=False)


def show_mean(label: str, rows: Sequence[Row], console: Console) -> None:
    """The geometric mean of some rows, and the weakest of them."""
    ratios = {row.convolution.name: ratio for row in rows if (ratio := row.ratio("weft")) is not None}
    calls = [ratio for row in rows if (ratio := row.ratio("weft", best_ratio)) is not None]
    alone = [ratio for row in rows if (ratio := row.ratio(ALONE)) is not None]
    if ratios:
        worst = min(ratios, key=ratios.__getitem__)
        console.print(
            f"{label}: geometric mean {geometric_mean(list(ratios.values())):.2f} of the best peer (by best calls "
            f"{geometric_mean(calls):.2f}), weakest {worst} {ratios[worst]:.2f}; alone {geometric_mean(alone):.2f}"
        )


def _time(timing: Timing | None) -> str:
    return "–" if timing is None else f"{timing.median * 1e6:.1f} ({timing.minimum * 1e6:.1f})"


def _rate(row: Row) -> float | None:
    """Of our best call."""
    return row.convolution.operations / row.timings["weft"].minimum / 1e9 if "weft" in row.timings else None


def run(convolutions: Sequence[Single], description: str | None, arguments: Sequence[str] | None) -> int:
    """The command for a list of convolutions; 1 where a result of ours is wrong."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = list(dict.fromkeys(one.family for one in convolutions))
    only = f"such as {convolutions[1].name}, or all of a family: {', '.join(families)}"
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=only)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, help="whom to measure beside us")
    cores = harness.usable_cores()
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2][:cores], help="numbers of threads (1 2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there ('-' for the screen)")
    given = parser.parse_args(arguments)
    chosen = [one for one in convolutions if not given.only or {one.name, one.family} & set(given.only)]
    if not chosen:
        parser.error(f"--only: there are {', '.join(one.name for one in convolutions)}")
    console = harness.wide_console()
    harness.print_system(console)
    with tempfile.TemporaryDirectory() as folder, Race(["weft", ALONE, *given.peers]) as race:
        measured = (
            measure(one, race, threads, given.seconds, Path(folder)) for threads in given.threads for one in chosen
        )
        rows = harness.collect(measured, console)
    show(rows, console)
    if given.json:
        harness.write_json(given.json, [row.as_json() for row in rows])
    return 0 if all(row.error <= real_models.TOLERANCE for row in rows) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a result of ours is wrong."""
    return run(CONVOLUTIONS, __doc__, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
