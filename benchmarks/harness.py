"""Fair measuring: candidates take turns in one run, beside the peaks that this machine reaches in the same run.

    stats = interleave({"weft": lambda: f(a, b, c), "torch": peer.run}, seconds=2.0)
    stats["weft"].minimum                             seconds per call
    speed_ratio(stats["weft"], stats["torch"])        how many times as fast, round against round
    fma_peak(threads=1)                               GFLOP/s of fused multiply-adds that never leave the registers
    copy_bandwidth()                                  GB/s of a large copy

Machines drift (frequency, neighbours), so a candidate measured alone is compared with another hour's weather: here
every round measures every candidate once, in random order. `print_table` and `write_json` show the outcome with what it
was measured on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar

import llvmlite.binding as llvm
import numpy as np
from rich.console import Console
from rich.table import Table

from weft.targets.cpu.peaks import copy_bandwidth, fma_peak

SAMPLE_SECONDS = 200e-6
"""One sample lasts at least this long: a call that takes less is repeated inside the sample."""

LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Stats:
    """Seconds per call of one candidate: one sample for each round, in order."""

    samples: tuple[float, ...]
    repeats: int

    @property
    def minimum(self) -> float:
        """The best sample."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The samples a quarter and three quarters up."""
        lower, upper = np.percentile(self.samples, [25, 75])
        return float(lower), float(upper)

    def as_json(self) -> dict[str, Any]:
        """The figures, without the samples."""
        lower, upper = self.quartiles
        return {
            "minimum_s": self.minimum,
            "median_s": self.median,
            "lower_quartile_s": lower,
            "upper_quartile_s": upper,
            "samples": len(self.samples),
            "repeats": self.repeats,
        }


def speed_ratio(ours: Stats, theirs: Stats) -> float:
    """How many times as fast ours is: the middle of the ratios of each round, so that drift cancels."""
    return statistics.median(b / a for a, b in zip(ours.samples, theirs.samples, strict=True))


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    seconds: float = 1.0,
    rounds: int | None = None,
    settle: float = 0.002,
    seed: int = 0,
) -> dict[str, Stats]:
    """Measure the candidates in turns, in a new random order each round.

    Runs so many rounds, or as many as fit in so many seconds (at least five). Before each sample comes a pause of
    `settle` seconds, in which the threads of the candidate before stop spinning, and one call that is not measured,
    which wakes up the candidate's own and warms its caches.
    """
    repeats = {name: _repeats_for(run) for name, run in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    shuffle = random.Random(seed).shuffle
    order = list(candidates)
    collected = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        done = 0
        while done < (rounds or LEAST_ROUNDS) or (rounds is None and time.perf_counter() - start < seconds):
            shuffle(order)
            for name in order:
                time.sleep(settle)
                candidates[name]()
                samples[name].append(_time_calls(candidates[name], repeats[name]) / repeats[name])
            done += 1
    finally:
        if collected:
            gc.enable()
    return {name: Stats(tuple(taken), repeats[name]) for name, taken in samples.items()}


def _time_calls(run: Callable[[], object], count: int) -> float:
    """Seconds that so many calls take."""
    calls = range(count)
    start = time.perf_counter()
    for _ in calls:
        run()
    return time.perf_counter() - start


def _repeats_for(run: Callable[[], object]) -> int:
    """How many calls one sample needs; the first call (which may compile) does not count."""
    run()
    count = 1
    while True:
        taken = min(_time_calls(run, count) for _ in range(2))
        if taken >= SAMPLE_SECONDS:
            return count
        # Aim a little past the mark, at most tenfold at a time: a short measurement says little about a long one.
        count = max(count + 1, int(count * min(10.0, 1.2 * SAMPLE_SECONDS / max(taken, 1e-9))))


# What it was measured on, and how it is shown.

_FEATURES = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni", "avxvnni", "avx512bf16", "avx512fp16",
    "amx-tile", "amx-int8", "amx-bf16", "neon", "dotprod", "i8mm", "bf16", "sve", "fullfp16",
)  # fmt: skip
_PACKAGES = ("weft", "numpy", "llvmlite", "torch", "onnxruntime", "openvino")


def describe_system() -> dict[str, Any]:
    """The processor, how much of it this process may use, and the versions of what is measured."""
    features = llvm.get_host_cpu_features()
    return {
        "processor": _processor_name(),
        "llvm_cpu": llvm.get_host_cpu_name(),
        "cores": usable_cores(),
        "cores_of_machine": os.cpu_count(),
        "features": [name for name in _FEATURES if features.get(name)],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def usable_cores() -> int:
    """Cores this process may use: the machine's, less what affinity or a container's quota takes away."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def print_system(console: Console | None = None) -> None:
    """Two lines that say what the figures were measured on."""
    system = describe_system()
    out = console or Console()
    out.print(f"{system['processor']} ({system['llvm_cpu']}), {system['cores']} cores; {' '.join(system['features'])}")
    out.print(", ".join(f"{name} {version}" for name, version in system["packages"].items()))


class Line(Protocol):
    """A row of a table that can be said in one line."""

    def line(self) -> str:
        """What was measured, in short."""


LineT = TypeVar("LineT", bound=Line)


def collect(rows: Iterable[LineT], console: Console) -> list[LineT]:
    """The rows, each told as soon as it is measured: a run that is cut short has shown what it had, and one that is
    interrupted still gets its tables."""
    found: list[LineT] = []
    try:
        for row in rows:
            found.append(row)
            console.print(row.line(), style="dim", markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print("[red]stopped; this is what there is so far[/]")
    return found


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], console: Console | None = None
) -> None:
    """A table; text stands left, figures right, floats with three significant digits."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        is_text = bool(rows) and isinstance(rows[0][i], str)
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    (console or wide_console()).print(table)


def wide_console() -> Console:
    """The screen; where the output goes to a file, wide enough that no column is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    # Three significant digits, but never an exponent for the sizes that occur here.
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark has."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures there ('-' for the screen)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row of the table (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads of every candidate (default 1)")


def write_json(path: Path, results: Any) -> None:
    """Write the results beside what they were measured on."""
    text = json.dumps({"system": describe_system(), "results": results}, indent=2)
    if str(path) == "-":
        sys.stdout.write(text + "\n")
    else:
        path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Print this machine's peaks: `python -m benchmarks.harness`."""
    parser = argparse.ArgumentParser(description="The peaks that this machine reaches.")
    add_arguments(parser)
    options = parser.parse_args()
    results = [
        {
            "threads": threads,
            "float32_gflops": fma_peak(threads),
            "float64_gflops": fma_peak(threads, "float64"),
            "copy_gb_s": copy_bandwidth(threads),
        }
        for threads in sorted({1, options.threads})
    ]
    print_system()
    print_table("Peaks", list(results[0]), [list(row.values()) for row in results])
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
