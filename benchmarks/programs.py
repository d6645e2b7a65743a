"""Tensor programs that are no convolutions against PyTorch and ONNX Runtime: pooling, reductions, norms, movement, ….

    python -m benchmarks.programs                                    all cases, one and two threads
    python -m benchmarks.programs --only softmax "lstm bidirectional" --threads 1
    python -m benchmarks.programs --json programs.json --list

float32 mostly, small batches; each case is an ONNX model of a few nodes (`benchmarks/program_tables.py`) that real
networks have, called as a user calls it. Ours is `weft.compile` with the default schedules, zero trials; the peers are
ONNX Runtime and PyTorch's eager form of the same program. Values are compared with a reference in float64. A ratio is
the median of the ratios of the rounds, in brackets that of the best calls, which says more on a machine that others use
too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import harness, real_models
from benchmarks.program_case import Case
from benchmarks.program_tables import CASES
from benchmarks.workers import Race, Task, Timing, best_ratio, geometric_mean, speed_ratio, told_ratio

PEERS = {"onnxruntime": "onnxruntime", "torch": "torch program"}
"""The peers by the names of their candidates."""
WEAK = 0.7


@dataclass
class Row:
    """One case with so many threads: a `Case`, or whatever else has a name, a family and a tolerance."""

    case: Any
    threads: int
    timings: dict[str, Timing]
    error: float
    problems: dict[str, str]

    def best_peer(self, by: Callable[[Timing], float]) -> str | None:
        """The fastest peer, by median or by best call."""
        peers = [name for name in self.timings if name != "weft"]
        return min(peers, key=lambda name: by(self.timings[name])) if peers else None

    def ratio(self, best: bool = False) -> float | None:
        """How many times as fast as the best peer we are: by rounds, or by best calls."""
        peer = self.best_peer((lambda one: one.minimum) if best else (lambda one: one.median))
        if peer is None or "weft" not in self.timings:
            return None
        return (best_ratio if best else speed_ratio)(self.timings["weft"], self.timings[peer])

    def line(self) -> str:
        """The row in short."""
        times = ", ".join(f"{name} {_time(timing)}" for name, timing in self.timings.items())
        return (
            f"{self.case.name}, {self.threads} threads: {times} µs; × best {told_ratio(self.ratio(), self.ratio(True))}"
        )

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        return {
            "name": self.case.name, "family": self.case.family, "threads": self.threads,
            "times": {name: timing.as_json() for name, timing in self.timings.items()},
            "best_peer": self.best_peer(lambda one: one.median), "ratio_to_best": self.ratio(),
            "ratio_by_best_calls": self.ratio(best=True), "error": self.error, "problems": self.problems,
        }  # fmt: skip


def measure(case: Case, race: Race, threads: int, seconds: float, folder: Path) -> Row:
    """One row: everybody gets ready, then they take turns."""
    task = Task(case.write(folder), case.inputs, threads)
    names = [name for name in race.workers if case.in_torch or name != PEERS["torch"]]
    ready = race.prepare(task, names)
    timings = race.run(seconds)
    error = real_models.relative_error(ready["weft"].outputs, case.reference())
    return Row(case, threads, timings, error, {name: one.problem for name, one in ready.items() if one.problem})


def show(rows: Sequence[Row], console: Console) -> None:
    """A table for each number of threads, the weakest last, the means by family, and what could not be measured."""
    for threads in dict.fromkeys(row.threads for row in rows):
        part = sorted((row for row in rows if row.threads == threads), key=lambda row: -(row.ratio(True) or 0))
        names = list(dict.fromkeys(["weft", *(name for row in part for name in row.timings)]))
        lines = [
            [row.case.family, row.case.name, *(_time(row.timings.get(name)) for name in names), row.ratio(),
             row.ratio(best=True), row.best_peer(lambda one: one.minimum) or "–", f"{row.error:.0e}"]
            for row in part
        ]  # fmt: skip
        columns = ["family", "case", *names, "× best", "(best)", "best peer", "error"]
        title = f"{threads} thread{'s' * (threads > 1)}, µs a call: median (best)"
        harness.print_table(title, columns, lines, console)
        for family in dict.fromkeys(row.case.family for row in rows):
            show_mean(family, [row for row in part if row.case.family == family], console)
        show_mean("all", part, console)
    for row in rows:
        for name, problem in row.problems.items():
            console.print(f"{row.case.name}: {name}: {problem}", markup=False)
        if not row.error <= row.case.tolerance:
            console.print(f"WRONG: {row.case.name}, {row.threads} threads: error {row.error:.1e}", markup=False)


def show_mean(label: str, rows: Sequence[Row], console: Console) -> None:
    """The geometric mean of some rows, the weakest of them, and how many are weak."""
    ratios = {row.case.name: ratio for row in rows if (ratio := row.ratio()) is not None}
    calls = {row.case.name: ratio for row in rows if (ratio := row.ratio(best=True)) is not None}
    if ratios:
        worst = min(calls, key=calls.__getitem__)
        console.print(
            f"{label}: geometric mean {geometric_mean(list(ratios.values())):.2f} of the best peer (by best calls "
            f"{geometric_mean(list(calls.values())):.2f}), weakest {worst} {ratios[worst]:.2f} ({calls[worst]:.2f}); "
            f"{sum(one < WEAK for one in calls.values())} of {len(calls)} under {WEAK}",
            markup=False,
        )


def _time(timing: Timing | None) -> str:
    return "–" if timing is None else f"{timing.median * 1e6:.1f} ({timing.minimum * 1e6:.1f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a result of ours is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases or families")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, help="whom to measure beside us")
    cores = harness.usable_cores()
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2][:cores], help="numbers of threads (1 2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there ('-' for the screen)")
    parser.add_argument("--list", action="store_true", help="only print the names")
    given = parser.parse_args(arguments)
    chosen = [case for case in CASES if not given.only or {case.name, case.family} & set(given.only)]
    console = harness.wide_console()
    if given.list or not chosen:
        console.print("\n".join(f"{case.family}: {case.name}" for case in CASES), markup=False)
        return 0 if given.list else 2
    harness.print_system(console)
    with tempfile.TemporaryDirectory() as folder, Race(["weft", *(PEERS[name] for name in given.peers)]) as race:
        measured = (
            measure(one, race, threads, given.seconds, Path(folder)) for threads in given.threads for one in chosen
        )
        rows = harness.collect(measured, console)
    show(rows, console)
    if given.json:
        harness.write_json(given.json, [row.as_json() for row in rows])
    return 0 if all(row.error <= row.case.tolerance for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
