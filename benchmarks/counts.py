"""Instructions of single convolutions on AArch64, ours and ONNX Runtime's, under one emulator: the paper's figure 17.

    python -m benchmarks.counts                        ResNet-18's C1–C12 and MobileNet's D1–D9 (benchmarks.conv)
    python -m benchmarks.counts --only C2 D9 --json counts.json

Counts, never times: both run in Python under QEMU's user mode as the processor CPU, with the plugin that counts in a
pool (weft/pool/count.c), one thread, float32, batch 1. A figure is what one more call takes after two, the call from
Python included. This needs an AArch64 machine (the emulator runs this Python and this ONNX Runtime) and qemu-user.
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
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from benchmarks.conv import CONVOLUTIONS, Convolution
from benchmarks.workers import geometric_mean
from weft.pool.server import can_count, emulator_of, make_counter

CPU = "neoverse-n1"

CHILD = """
import ctypes, json, mmap, os, sys
import numpy as np, onnxruntime, weft
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


def count(chosen: Sequence[Convolution], console: Console) -> list[Row]:
    """A row for each convolution, printed as it comes."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="weft-counts-") as folder:
        for one in chosen:
            path, feeds = one.write(Path(folder))
            np.save(Path(folder) / f"{one.name}.npy", feeds["image"])
            module = weft.compile(path, target=f"aarch64-unknown-linux-gnu,cpu={CPU}")
            module.save(Path(folder) / f"{one.name}.weft")
        counters = Path(folder) / "counters"
        counters.write_bytes(bytes(4096))
        command = [
            str(emulator_of("aarch64")),
            "-cpu",
            CPU,
            "-plugin",
            str(make_counter()),
            sys.executable,
            "-c",
            CHILD,
        ]
        settings = {"DEVICE_COUNTERS": str(counters), "WEFT_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(
            [*command, "-c", CHILD, folder, *(one.name for one in chosen)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **settings},
        )  # fmt: skip
        assert child.stdout is not None
        for line in child.stdout:
            rows.append(Row(**json.loads(line)))
            console.print(f"{rows[-1].name}: {rows[-1].ratio:.2f}")
        if child.wait():
            raise RuntimeError(f"the emulated process ended with {child.returncode}")
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    """The table, and the geometric means."""
    table = Table("", "weft", "ONNX Runtime", "ratio", "misses", "theirs", "error", title="thousands of instructions")
    for row in rows:
        counts = [f"{value / 1e3:,.0f}" for value in (row.weft, row.onnxruntime)]
        misses = [f"{value / 1e3:,.0f}" for value in (row.weft_misses, row.onnxruntime_misses)]
        table.add_row(row.name, *counts, f"{row.ratio:.2f}", *misses, f"{row.error:.0e}")
    console.print(table)
    for label in ("C", "D", ""):
        part = [row.ratio for row in rows if row.name.startswith(label)]
        if part:
            console.print(f"{label or 'all'}: geometric mean {geometric_mean(part):.2f}, weakest {min(part):.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a result of ours is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="such as C2, or all of C or D")
    parser.add_argument("--json", type=Path, help="where the rows are written, too")
    given = parser.parse_args(arguments)
    console = Console()
    if problem := missing():
        console.print(problem)
        return 1
    chosen = [one for one in CONVOLUTIONS if not given.only or {one.name, one.family} & set(given.only)]
    rows = count(chosen, console)
    show(rows, console)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.error > 1e-4 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
