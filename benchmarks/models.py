"""Whole models against the peers: ours, ONNX Runtime, OpenVINO, PyTorch as it is and compiled; interleaved in one run.

    python -m benchmarks.models                                      everything: eight built-in models, timm's, the real
    python -m benchmarks.models --only resnet --threads 1 --peers onnxruntime openvino
    python -m benchmarks.models --built-in --precision bf16          ours against OpenVINO's, the eight built-in models
    python -m benchmarks.models --built-in --exact                   what `exact` costs, and what it is good for
    python -m benchmarks.models --seconds 8 --json models.json --plot models.png

Batch 1. Every candidate reads the same ONNX file and the same inputs, in a process of its own (see `workers`). Times
are medians of rounds, the best call in brackets. A ratio is the median of the ratios of the rounds, in brackets the
ratio of the best calls, which says more on a machine that others use too; 2.0 is twice as fast as the peer. The best
peer of a row is the one with the lowest median. An error is the greatest difference from ONNX Runtime's output relative
to the output's greatest element. bf16 has a table of its own: ours against OpenVINO's.

The real models are those of `benchmarks.real_models`; what is not installed is named and left out. Four of timm's (with
random weights) are exported by PyTorch.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import harness, real_models
from benchmarks.workers import CLOCKS, Prepared, Race, Task, Timing, best_ratio, geometric_mean, speed_ratio, told_ratio
from weft.graph.ir import Graph

PEERS = ("onnxruntime", "openvino", "torch", "torch.compile")
EXACT = "weft exact"
PEERS_OF = {"fp32": PEERS, "bf16": ("openvino",)}
"""Whom we are measured against in each precision."""
TIMM = ("mobilenetv3_large_100", "efficientnet_b0", "regnety_004", "ghostnet_100")

Feeds = dict[str, Any]
Compare = Callable[[Timing, Timing], float]


@dataclass(frozen=True)
class Workload:
    """A model in a file, and what to feed it."""

    name: str
    group: str
    path: Path
    feeds: Feeds


@dataclass
class Row:
    """One model with so many threads in one precision."""

    workload: str
    group: str
    threads: int
    precision: str
    ready: dict[str, Prepared]
    timings: dict[str, Timing]
    errors: dict[str, float] = field(default_factory=dict)
    allowed: float = 0.0

    @property
    def is_wrong(self) -> bool:
        """Whether our answer in float32 is not ONNX Runtime's, or missing."""
        return self.precision == "fp32" and not self.errors.get("weft", np.inf) <= self.allowed

    @property
    def best_peer(self) -> str | None:
        """The peer with the lowest median."""
        peers = [name for name in self.timings if name != "weft"]
        return min(peers, key=lambda name: self.timings[name].median) if peers else None

    def ratio(self, peer: str | None, compare: Compare = speed_ratio) -> float | None:
        """How many times as fast as a peer we are."""
        if peer is None or peer not in self.timings or "weft" not in self.timings:
            return None
        return compare(self.timings["weft"], self.timings[peer])

    def line(self) -> str:
        """The row in short."""
        times = ", ".join(f"{name} {_times(timing)}" for name, timing in self.timings.items())
        return f"{self.workload}, {self.precision}, {self.threads} threads: {times} ms; × best {_ratio([self], None)}"

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        return {
            "workload": self.workload,
            "group": self.group,
            "threads": self.threads,
            "precision": self.precision,
            "best_peer": self.best_peer,
            "ratio_to_best": self.ratio(self.best_peer),
            "ratios": {name: self.ratio(name) for name in self.timings if name != "weft"},
            "ratios_by_best_calls": {name: self.ratio(name, best_ratio) for name in self.timings if name != "weft"},
            "errors": self.errors,
            "allowed_error": self.allowed,
            "candidates": {
                name: {"ready_s": one.seconds, **one.notes, **self.timings[name].as_json()}
                if name in self.timings
                else {"problem": one.problem}
                for name, one in self.ready.items()
            },
        }


# --------------------------------------------------------------------------------------------------- workloads


def built_in(name: str, folder: Path) -> Workload:
    """A built-in model, written as ONNX into a folder."""
    import onnx

    from weft.cli.to_onnx import to_onnx
    from weft.models import make

    graph = make(name)
    path = folder / f"{name}.onnx"
    onnx.save(to_onnx(graph), path)
    return Workload(name, "built-in", path, random_feeds(graph))


def exported(name: str, folder: Path) -> Workload:
    """A model of timm's, written as ONNX by PyTorch."""
    import torch

    from benchmarks.architectures import import_timm

    torch.manual_seed(0)
    model, image = import_timm().create_model(name).eval(), torch.randn(1, 3, 224, 224)
    path = folder / f"{name}.onnx"
    torch.onnx.export(model, (image,), str(path), input_names=["image"], dynamo=False)
    return Workload(name, "timm", path, {"image": image.numpy()})


def random_feeds(graph: Graph) -> Feeds:
    """Inputs of a built-in model: numbers, or words of a small vocabulary."""
    random = np.random.default_rng(0)
    feeds: Feeds = {}
    for value in graph.inputs:
        kind = value.tensor
        words = "int" in kind.dtype
        made = random.integers(0, 1000, kind.static) if words else random.standard_normal(kind.static)
        feeds[value.name] = made.astype(kind.numpy)
    return feeds


def workloads(only: Sequence[str], folder: Path, console: Console, built_ins: bool = False) -> Iterator[Workload]:
    """Those that were asked for, one after the other; the real ones that are not there are named at the end."""
    from weft.models import names

    for name in names(decoders=False):
        if not only or any(part in name for part in only):
            yield built_in(name, folder)
    if built_ins:
        return
    missing = []
    for name in TIMM:
        if only and not any(part in name for part in only):
            continue
        if importlib.util.find_spec("timm") is None:
            missing.append(name)
        else:
            yield exported(name, folder)
    for model in real_models.MODELS:
        if only and not any(part in model.name for part in only):
            continue
        path = real_models.find(model, real_models.FOLDER)
        if path is None:
            missing.append(model.name)
        else:
            yield Workload(model.name, "real", path, model.feeds())
    if missing:
        console.print(
            f"[dim]left out, not installed (timm, python -m benchmarks.real_models --install): {', '.join(missing)}[/]"
        )


# --------------------------------------------------------------------------------------------------- measuring


def measure(
    workload: Workload, race: Race, threads: int, precision: str, peers: Sequence[str], seconds: float, clock: str
) -> Row:
    """One row: everybody gets ready, then they take turns."""
    wanted = ["weft", *(name for name in (*PEERS_OF[precision], EXACT) if name in peers)]
    task = Task(workload.path, workload.feeds, threads, precision, clock)
    ready = race.prepare(task, wanted)
    timings = race.run(seconds)
    row = Row(workload.name, workload.group, threads, precision, ready, timings)
    session = real_models.onnxruntime_session(workload.path, threads=1)  # here, after everybody's turn
    want, row.allowed = real_models.reference(workload.path, workload.feeds, session)
    row.errors = {name: real_models.relative_error(one.outputs, want) for name, one in ready.items() if not one.problem}
    for one in ready.values():
        one.outputs = []
    return row


# ----------------------------------------------------------------------------------------------------- showing


def show(rows: Sequence[Row], console: Console) -> None:
    """One table for each precision and number of threads, then means, then whatever could not be measured."""
    for precision in dict.fromkeys(row.precision for row in rows):
        for threads in dict.fromkeys(row.threads for row in rows):
            part = [row for row in rows if row.precision == precision and row.threads == threads]
            if part:
                show_table(part, f"{precision}, {threads} thread{'s' * (threads > 1)}, batch 1, ms a call", console)
    for row in rows:
        for name, one in row.ready.items():
            if one.problem:
                console.print(
                    f"{row.workload}, {row.precision}, {row.threads} threads: {name}: {one.problem}", markup=False
                )


def show_table(rows: Sequence[Row], title: str, console: Console) -> None:
    """A row for each model, then the geometric means of each group."""
    names = list(dict.fromkeys(name for row in rows for name in row.timings))
    has_runtime = "onnxruntime" in names
    columns = ["model", *names, *(["× ORT"] if has_runtime else []), "× best", "best peer", "error", "ready s"]
    lines: list[list[object]] = []
    for row in rows:
        times = [_times(row.timings.get(name)) for name in names]
        runtime = [_ratio([row], "onnxruntime")] if has_runtime else []
        error = row.errors.get("weft")
        ready = row.ready["weft"].seconds
        lines.append(
            [row.workload, *times, *runtime, _ratio([row], None), row.best_peer or "–",
             "–" if error is None else f"{error:.0e}", "–" if np.isnan(ready) else f"{ready:.1f}"]
        )  # fmt: skip
    for group in dict.fromkeys(row.group for row in rows):
        part = [row for row in rows if row.group == group]
        gap = [""] * len(names)
        means = [_ratio(part, "onnxruntime")] if has_runtime else []
        lines.append([f"geometric mean, {group}", *gap, *means, _ratio(part, None), "", "", ""])
    harness.print_table(title, columns, lines, console)


def show_exact(rows: Sequence[Row], console: Console) -> None:
    """The default beside `exact`: times, how many times as long exact takes, and errors."""
    lines: list[list[object]] = []
    for row in rows:
        if {"weft", EXACT} <= row.timings.keys():
            times = [_times(row.timings[name]) for name in ("weft", EXACT)]
            errors = [f"{row.errors[name]:.1e}" for name in ("weft", EXACT)]
            lines.append([row.workload, row.threads, *times, _ratio([row], EXACT), *errors])
    means = [
        [f"geometric mean, {threads} thread{'s' * (threads > 1)}", threads, "", "", _ratio(part, EXACT), "", ""]
        for threads in dict.fromkeys(row.threads for row in rows)
        if (part := [row for row in rows if row.threads == threads])
    ]
    columns = ["model", "threads", "default ms", "exact ms", "exact / default", "error", "error, exact"]
    harness.print_table("exact against the default, float32, batch 1", columns, [*lines, *means], console)


def mean_ratio(rows: Sequence[Row], peer: str | None, compare: Compare = speed_ratio) -> float | None:
    """The geometric mean of the ratios to a peer (None: the best of each row)."""
    ratios = [ratio for row in rows if (ratio := row.ratio(peer or row.best_peer, compare)) is not None]
    return geometric_mean(ratios) if ratios else None


def _ratio(rows: Sequence[Row], peer: str | None) -> str:
    return told_ratio(mean_ratio(rows, peer), mean_ratio(rows, peer, best_ratio))


def _times(timing: Timing | None) -> str:
    return "–" if timing is None else f"{_digits(timing.median * 1e3)} ({_digits(timing.minimum * 1e3)})"


def _digits(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars: every candidate's speed relative to ONNX Runtime (bf16: to OpenVINO), a chart for each table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    keys = list(dict.fromkeys((row.precision, row.threads) for row in rows if row.best_peer))
    if not keys:
        raise SystemExit("there is nothing to draw: no peer was measured")
    figure, charts = pyplot.subplots(len(keys), 1, figsize=(11, 3.2 * len(keys)), squeeze=False)
    for axes, (precision, threads) in zip(charts[:, 0], keys):
        part = [row for row in rows if (row.precision, row.threads) == (precision, threads)]
        base = "onnxruntime" if precision == "fp32" else "openvino"
        names = list(dict.fromkeys(name for row in part for name in row.timings))
        width = 0.8 / max(len(names), 1)
        for at, name in enumerate(names):
            heights = [_relative_speed(row, name, base) for row in part]
            axes.bar(np.arange(len(part)) + (at - (len(names) - 1) / 2) * width, heights, width, label=name)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(part)), [row.workload for row in part], rotation=20, ha="right", fontsize=8)
        axes.set_title(f"{precision}, {threads} thread{'s' * (threads > 1)}: speed relative to {base}", fontsize=9)
        axes.legend(fontsize=8, ncols=len(names))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _relative_speed(row: Row, name: str, base: str) -> float:
    if name not in row.timings or base not in row.timings:
        return 0.0
    return row.timings[base].median / row.timings[name].median


# ------------------------------------------------------------------------------------------------ command line


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a result of ours in fp32 is wrong or missing."""
    cores = harness.usable_cores()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="models whose name holds one of these")
    parser.add_argument("--built-in", action="store_true", help="only the eight built-in models")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, help="whom to measure beside us")
    parser.add_argument("--exact", action="store_true", help="ours against ours with `exact`, in fp32; no peers")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2][:cores], help="numbers of threads (1 2)")
    parser.add_argument("--precision", nargs="+", default=list(PEERS_OF), choices=list(PEERS_OF), help="which tables")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each row of a table (default 4)")
    parser.add_argument(
        "--clock", default="wall", choices=list(CLOCKS), help="cpu: time of the process, for busy machines; one thread"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there ('-' for the screen)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the speeds")
    given = parser.parse_args(arguments)
    if given.clock == "cpu" and given.threads != [1]:
        parser.error("--clock cpu adds up the times of all threads: it needs --threads 1")
    if given.exact and given.plot:
        parser.error("--plot draws the speeds relative to a peer's; with --exact there is none")
    if given.exact:
        given.peers, given.precision = [EXACT], ["fp32"]
    console = harness.wide_console()
    harness.print_system(console)
    with tempfile.TemporaryDirectory() as folder, Race(["weft", *given.peers]) as race:
        measured = (
            measure(workload, race, threads, precision, given.peers, given.seconds, given.clock)
            for workload in workloads(given.only, Path(folder), console, given.built_in)
            for precision in given.precision
            for threads in given.threads
        )
        rows = harness.collect(measured, console)
    (show_exact if given.exact else show)(rows, console)
    if given.json:
        harness.write_json(given.json, [row.as_json() for row in rows])
    if given.plot and rows:
        plot(rows, given.plot)
    wrong = [row.workload for row in rows if row.is_wrong]
    if wrong:
        console.print(f"[red]wrong or missing: {', '.join(dict.fromkeys(wrong))}[/]")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
