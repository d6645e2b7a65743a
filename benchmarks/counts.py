"""Instructions of single convolutions on AArch64, ours and ONNX Runtime's, under one emulator: the paper's figure 17.

    python -m benchmarks.counts                        ResNet-18's C1–C12 and MobileNet's D1–D9 (benchmarks.conv)
    python -m benchmarks.counts --only C2 D9 --json counts.json
    python -m benchmarks.counts --bytes                products and convolutions of bytes, with i8mm and without

Counts, never times: both run in Python under QEMU's user mode as the processor CPU, with the plugin that counts in a
pool (weft/pool/count.c), one thread, float32, batch 1. A figure is what one more call takes after two, the call from
Python included. This needs an AArch64 machine (the emulator runs this Python and this ONNX Runtime) and qemu-user.
Bytes are multiplied for a Neoverse V1 without vectors of scalable length, under qemu's processor of all features less
those: ONNX Runtime then takes the same instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from benchmarks.conv import CONVOLUTIONS, Convolution
from benchmarks.workers import geometric_mean
from weft.cli.to_onnx import to_onnx
from weft.models.builder import Builder
from weft.pool.server import can_count, emulator_of, make_counter

CPU = "neoverse-n1"
WITH_I8MM = "aarch64-unknown-linux-gnu,cpu=neoverse-v1,features=-sve"
EMULATED = "max,sve=off"
"""The processor that has all that WITH_I8MM has."""

CHILD = """
import ctypes, json, mmap, os, sys
import numpy as np, onnxruntime, weft
from weft.runtime.model import stored
stored._lacking = lambda part: []  # /proc/cpuinfo tells of this processor, not of the emulated one
MARK = 0x77656674
libc = ctypes.CDLL(None)
with open(os.environ["DEVICE_COUNTERS"], "rb") as file:
    seen = np.frombuffer(mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ), np.uint64)
def mark():
    libc.syscall(0x7FFF, ctypes.c_long(MARK), ctypes.c_long(MARK))
    return [int(seen[0]), int(seen[1])]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
folder = sys.argv[1]
for name in sys.argv[2:]:
    feeds = {"image": np.load(f"{folder}/{name}.npy")}
    session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
    module = weft.load(f"{folder}/{name}.weft")
    made, outputs = {"name": name}, []
    for who, one in (("weft", module), ("onnxruntime", session)):
        for _ in range(2):
            one.run(None, feeds)
        begin = mark()
        result = one.run(None, feeds)
        end = mark()
        outputs.append(np.asarray(result[0]))
        made[who], made[who + "_misses"] = end[0] - begin[0], end[1] - begin[1]
    outputs = [output.astype("float64") for output in outputs]
    made["error"] = float(np.max(np.abs(outputs[0] - outputs[1])) / np.max(np.abs(outputs[1])))
    print(json.dumps(made), flush=True)
"""


@dataclass(frozen=True)
class Row:
    """One convolution: instructions of a call, and its accesses that miss a modelled cache of 32 KB."""

    name: str
    weft: int
    onnxruntime: int
    weft_misses: int
    onnxruntime_misses: int
    error: float

    @property
    def ratio(self) -> float:
        """How many times as many instructions ONNX Runtime takes."""
        return self.onnxruntime / self.weft


def missing() -> str | None:
    """What this machine has to have and has not."""
    if platform.machine() != "aarch64":
        return "this is no AArch64 machine: there is no Python of that kind to run"
    emulator = emulator_of("aarch64")
    return (
        None if emulator and can_count(emulator) else "qemu-aarch64 with plugins is not installed (Debian: qemu-user)"
    )


@dataclass(frozen=True)
class Bytes:
    """A MatMulInteger of `rows` rows, or a QLinearConv of images of `size` places, of unsigned or signed bytes."""

    name: str
    kind: str
    channels: int
    rows: int = 0
    size: int = 0
    window: int = 1

    def write(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        """The ONNX model in a folder, and its input."""
        random, b = np.random.default_rng(0), Builder(self.name)
        shape = (self.rows, self.channels) if self.rows else (1, self.channels, self.size, self.size)
        sizes = (self.channels,) * 2 if self.rows else (*(self.channels,) * 2, *(self.window,) * 2)
        x, weight = b.input("image", shape, self.kind), b.constant(random.integers(-127, 128, sizes).astype(np.int8))
        if self.rows:
            y = b.node("MatMulInteger", x, weight)
        else:
            small, zero = b.constant(np.float32(0.02)), b.constant(np.zeros((), self.kind))
            own = weight, small, b.constant(np.int8(0))
            y = b.node(
                "QLinearConv", x, small, zero, *own, b.constant(np.float32(2.0)), zero,
                kernel_shape=[self.window] * 2, pads=[self.window // 2] * 4,
            )  # fmt: skip
        path = folder / f"{self.name}.onnx"
        path.write_bytes(to_onnx(b.finish(y)).SerializeToString())
        return path, {"image": random.integers(0, 128, shape).astype(self.kind)}


OF_BYTES = [
    *(Bytes(f"product of {kind}", kind, 768, rows=128) for kind in ("uint8", "int8")),
    *(Bytes(f"3x3 of {kind}", kind, 64, size=28, window=3) for kind in ("uint8", "int8")),
    Bytes("1x1 of uint8", "uint8", 256, size=14),
]


def count(
    chosen: Sequence[Convolution | Bytes],
    console: Console,
    target: str = f"aarch64-unknown-linux-gnu,cpu={CPU}",
    cpu: str = CPU,
) -> list[Row]:
    """A row for each convolution or product, printed as it comes; `cpu` is the processor that qemu shows."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="weft-counts-") as folder:
        for one in chosen:
            path, feeds = one.write(Path(folder))
            np.save(Path(folder) / f"{one.name}.npy", feeds["image"])
            weft.compile(path, target=target).save(Path(folder) / f"{one.name}.weft")
        counters = Path(folder) / "counters"
        counters.write_bytes(bytes(4096))
        command = [
            str(emulator_of("aarch64")),
            "-cpu",
            cpu,
            "-plugin",
            str(make_counter()),
            sys.executable,
            "-c",
            CHILD,
        ]
        settings = {"DEVICE_COUNTERS": str(counters), "WEFT_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(
            [*command, folder, *(one.name for one in chosen)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **settings},
        )  # fmt: skip
        assert child.stdout is not None
        for line in child.stdout:
            rows.append(Row(**json.loads(line)))
            console.print(f"{rows[-1].name}: {rows[-1].ratio:.2f}")
        if child.wait():
            raise RuntimeError(f"the emulated process ended with {child.returncode}")
    return rows


def count_bytes(console: Console) -> list[Row]:
    """The same for bytes, with the matrix instructions and without."""
    with_them = count(OF_BYTES, console, WITH_I8MM, EMULATED)
    without = count(OF_BYTES, console, f"{WITH_I8MM},-i8mm", EMULATED)
    for one, other in zip(with_them, without):
        console.print(f"{one.name}: {other.weft / one.weft:.1f} times as many instructions without i8mm")
    return [*with_them, *(replace(row, name=f"{row.name} without i8mm") for row in without)]


def show(rows: Sequence[Row], console: Console) -> None:
    """The table, and the geometric means."""
    table = Table("", "weft", "ONNX Runtime", "ratio", "misses", "theirs", "error", title="thousands of instructions")
    for row in rows:
        counts = [f"{value / 1e3:,.0f}" for value in (row.weft, row.onnxruntime)]
        misses = [f"{value / 1e3:,.0f}" for value in (row.weft_misses, row.onnxruntime_misses)]
        table.add_row(row.name, *counts, f"{row.ratio:.2f}", *misses, f"{row.error:.0e}")
    console.print(table)
    for label in ("C", "D", "") if rows[0].name[1:].isdigit() else ():
        part = [row.ratio for row in rows if row.name.startswith(label)]
        if part:
            console.print(f"{label or 'all'}: geometric mean {geometric_mean(part):.2f}, weakest {min(part):.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a result of ours is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="such as C2, or all of C or D")
    parser.add_argument("--bytes", action="store_true", help="products and convolutions of bytes")
    parser.add_argument("--json", type=Path, help="where the rows are written, too")
    given = parser.parse_args(arguments)
    console = Console()
    if problem := missing():
        console.print(problem)
        return 1
    chosen = [one for one in CONVOLUTIONS if not given.only or {one.name, one.family} & set(given.only)]
    rows = count_bytes(console) if given.bytes else count(chosen, console)
    show(rows, console)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.error > 1e-4 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
