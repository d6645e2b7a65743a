"""Shapes that nobody fitted anything to, against the best of PyTorch, ONNX Runtime and OpenVINO.

    python -m benchmarks.odd                                         all shapes, one and two threads
    python -m benchmarks.odd --only depthwise conv3_120_28 --threads 1 --json odd.json
    python -m benchmarks.odd --native-vs avx2                        this machine's code against that of a lesser one
    python -m benchmarks.odd --list

Channels that fill no blocks of 8 or 16 evenly (24, 40, 72, 112, 120, 160), images of 19, 28, 35 and 80, groups, 5 × 5
windows over single channels, 77, 197 and 577 tokens, one dimension, transposed. No rule, constant or model of costs may
be fitted to these: they show what the choice of schedules does where nobody looked. float32, the caller's layout in and
out, candidates that take turns; a ratio is the median of the ratios of the rounds, in brackets that of the best calls.
A peer that is not installed is left out, with a note. Values are compared with PyTorch's in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.nn import functional as nn

from benchmarks import harness, programs, real_models
from benchmarks.conv_kinds import Kind
from benchmarks.program_case import Case, normal
from benchmarks.program_layers import attention
from benchmarks.programs import Row
from benchmarks.workers import Race, Task
from weft.core.errors import TargetError
from weft.targets.cpu.facts import architecture
from weft.targets.registry import find_target

PEERS = ("torch", "onnxruntime", "openvino")
LESSER = "weft lesser"
LESSER_MACHINES = {
    "x86_64": {
        "avx2": "native,features=-avx512f,-amx-tile,-amx-int8,-amx-bf16",
        "sse4.2": "native,features=-avx,-avx2,-avx512f,-amx-tile,-amx-int8,-amx-bf16",
    },
    "aarch64": {"scalar": "native,features=-neon"},
}
TARGETS = LESSER_MACHINES.get(architecture(find_target("native").triple) or "", {})
"""Machines with less than this one has, by name."""


# -------------------------------------------------------------------------------------------------------- the shapes


def _conv(family: str, name: str, size: int, inputs: int, outputs: int, window: int, **more: Any) -> Kind:
    return Kind(family, name, (size, size), inputs, outputs, window, pads=window // 2, **more)


def _depthwise(name: str, size: int, channels: int, window: int, strides: int = 1) -> Kind:
    return _conv("depthwise", name, size, channels, channels, window, strides=strides, groups=channels)


CONVOLUTIONS = [
    _conv("3×3", "conv3_120_28", 28, 120, 120, 3),
    _conv("3×3", "conv3_40_72_35", 35, 40, 72, 3),
    _conv("3×3", "conv3_24_80", 80, 24, 24, 3),
    _conv("3×3", "conv3_112_160_19", 19, 112, 160, 3),
    _conv("3×3", "conv3_72_112_80_s2", 80, 72, 112, 3, strides=2),
    _conv("3×3", "conv3_160_72_19_n4", 19, 160, 72, 3, batch=4),
    _conv("3×3", "conv3_3_40_80_s2", 80, 3, 40, 3, strides=2),
    _conv("1×1 and 5×5", "conv1_24_72_80", 80, 24, 72, 1),
    _conv("1×1 and 5×5", "conv1_120_40_28", 28, 120, 40, 1),
    _conv("1×1 and 5×5", "conv1_160_112_19", 19, 160, 112, 1),
    _conv("1×1 and 5×5", "conv1_40_120_35", 35, 40, 120, 1),
    _conv("1×1 and 5×5", "conv5_40_35", 35, 40, 40, 5),
    Kind("1×1 and 5×5", "conv1x5_112_28", (28, 28), 112, 112, (1, 5), pads=(0, 2)),
    _conv("grouped", "grouped_24_28", 28, 120, 120, 3, groups=5),
    _conv("grouped", "grouped_24_35_s2", 35, 72, 72, 3, strides=2, groups=3),
    _conv("grouped", "grouped_20_19", 19, 160, 160, 3, groups=8),
    _conv("grouped", "grouped_16_28", 28, 112, 112, 3, groups=7),
    _conv("grouped", "grouped_1x1_35", 35, 40, 120, 1, groups=4),
    _depthwise("depthwise5_120_28", 28, 120, 5),
    _depthwise("depthwise5_120_35_s2", 35, 120, 5, 2),
    _depthwise("depthwise5_72_80_s2", 80, 72, 5, 2),
    _depthwise("depthwise3_40_80", 80, 40, 3),
    _depthwise("depthwise3_160_19", 19, 160, 3),
    _depthwise("depthwise3_112_35_s2", 35, 112, 3, 2),
    _depthwise("depthwise7_24_35", 35, 24, 7),
    Kind("1-D", "line5_40_72_577", (577,), 40, 72, 5, pads=2),
    Kind("1-D", "line3_120_800", (800,), 120, 120, 3, pads=1),
    Kind("1-D", "line9_160_350_depthwise", (350,), 160, 160, 9, pads=4, groups=160),
    Kind("1-D", "line7_24_112_1900_s2", (1900,), 24, 112, 7, 2, 3),
    Kind("transposed", "transposed4_72_40_19", (19, 19), 72, 40, 4, 2, 1, transposed=True),
    Kind("transposed", "transposed2_160_112_28", (28, 28), 160, 112, 2, 2, transposed=True),
    Kind("transposed", "transposed3_24_35", (35, 35), 24, 24, 3, 2, 1, behind=1, transposed=True),
    Kind("transposed", "transposed8_120_40_190", (190,), 120, 40, 8, 4, 2, transposed=True),
]


def _linear(tokens: int, inputs: int, outputs: int) -> Case:
    """A layer of a transformer: tokens by a constant weight, with a bias."""

    return Case(
        f"linear_{tokens}_{inputs}_{outputs}", "tokens", "y = Gemm<transB=1>(x, w, b)", {"x": normal(tokens, inputs)},
        lambda t: lambda: nn.linear(t.x, t.w, t.b), {"w": normal(outputs, inputs, scale=0.05), "b": normal(outputs)},
    )  # fmt: skip


def _product(batch: int, m: int, k: int, n: int) -> Case:
    inputs = {"x": normal(batch, m, k), "z": normal(batch, k, n, seed=1)}
    return Case(f"product_{m}_{k}_{n}", "tokens", "y = MatMul(x, z)", inputs, lambda t: lambda: t.x @ t.z)


def _attention(tokens: int, heads: int, size: int) -> Case:
    return replace(attention(f"attention_{tokens}_{size}", heads, tokens, tokens, size), family="tokens")


SHAPES: list[Kind | Case] = [
    *CONVOLUTIONS,
    _linear(77, 160, 640),
    _linear(197, 112, 336),
    _linear(577, 120, 480),
    _product(8, 77, 40, 77),
    _attention(77, 8, 40),
    _attention(197, 3, 72),
    _attention(577, 4, 24),
]


# ----------------------------------------------------------------------------------------------------- measuring them


class Shape:
    """A convolution or a program, as a row of the table wants it."""

    tolerance = real_models.TOLERANCE

    def __init__(self, what: Kind | Case) -> None:
        self.what, self.name, self.family = what, what.name, what.family

    @property
    def torch(self) -> str:
        """The candidate that is PyTorch at its best: layers in either layout, or the case's own form of it."""
        return "torch" if isinstance(self.what, Kind) else "torch program"

    def write(self, folder: Path) -> tuple[Path, Mapping[str, Any]]:
        """The model in a folder, and its inputs."""
        return self.what.write(folder) if isinstance(self.what, Kind) else (self.what.write(folder), self.what.inputs)

    def reference(self, path: Path, feeds: Mapping[str, Any]) -> list[Any]:
        """What it gives: computed in float64, rounded at the end."""
        if isinstance(self.what, Kind):
            return [self.what.reference(path, dict(feeds)).astype("float32")]
        return self.what.reference()


def measure(shape: Shape, race: Race, threads: int, seconds: float, folder: Path, lesser: str = "") -> Row:
    """One row: everybody gets ready, then they take turns."""
    path, feeds = shape.write(folder)
    others = {"torch", "torch program"} - {shape.torch}
    ready = race.prepare(
        Task(path, feeds, threads, lesser=lesser), [name for name in race.workers if name not in others]
    )
    timings = {_called(name): timing for name, timing in race.run(seconds).items()}
    made = ready["weft"].outputs
    error = real_models.relative_error(made, shape.reference(path, feeds)) if made else float("inf")
    return Row(shape, threads, timings, error, {_called(n): one.problem for n, one in ready.items() if one.problem})


def _called(name: str) -> str:
    return "torch" if name == "torch program" else name


def show_slower(rows: Sequence[Row], lesser: str, console: Console) -> None:
    """Where this machine's own code is slower than that of a lesser machine: nowhere, one hopes."""
    found = [row for row in rows if max(row.ratio() or 1.0, row.ratio(best=True) or 1.0) < 1.0]
    console.print(f"slower than {lesser}: {len(found)} of {len(rows)} by rounds and by best calls", markup=False)
    for row in found:
        console.print(f"  {row.case.name}, {row.threads} threads: {row.ratio():.2f} ({row.ratio(best=True):.2f})")


def installed(peers: Sequence[str], console: Console) -> list[str]:
    """The candidates of those peers that this Python has."""
    found: list[str] = []
    for name in peers:
        if importlib.util.find_spec(name) is None:
            console.print(f"{name} is not installed: left out")
        else:
            found += ["torch", "torch program"] if name == "torch" else [name]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a result of ours is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="shapes or families")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS, help="whom to measure beside us")
    text = f"measure beside our code for a lesser machine instead: {', '.join(TARGETS)}, or any target"
    parser.add_argument("--native-vs", metavar="TARGET", help=text)
    cores = harness.usable_cores()
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2][:cores], help="numbers of threads (1 2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each row (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there ('-' for the screen)")
    parser.add_argument("--list", action="store_true", help="only print the names")
    given = parser.parse_args(arguments)
    lesser = TARGETS.get(given.native_vs, given.native_vs) if given.native_vs else ""
    try:
        find_target(lesser or "native")
    except TargetError as error:
        parser.error(f"--native-vs: here that is {', '.join(TARGETS)}, or any target; {error}")
    chosen = [Shape(one) for one in SHAPES if not given.only or {one.name, one.family} & set(given.only)]
    console = harness.wide_console()
    if given.list or not chosen:
        console.print("\n".join(f"{one.family}: {one.name}" for one in SHAPES), markup=False)
        return 0 if given.list else 2
    harness.print_system(console)
    names = [LESSER] if lesser else installed(given.peers, console)
    with tempfile.TemporaryDirectory() as folder, Race(["weft", *names]) as race:
        measured = (
            measure(one, race, threads, given.seconds, Path(folder), lesser)
            for threads in given.threads
            for one in chosen
        )
        rows = harness.collect(measured, console)
    programs.show(rows, console)
    if lesser:
        show_slower(rows, given.native_vs, console)
    if given.json:
        harness.write_json(given.json, [row.as_json() for row in rows])
    return 0 if all(row.error <= row.case.tolerance for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
