"""compute-sanitizer on one kernel of every family that Weft makes for NVIDIA GPUs.

    python -m benchmarks.sanitize                               every family, memcheck and racecheck
    python -m benchmarks.sanitize --only 'softmax|product'      the families whose name matches a regular expression
    python -m benchmarks.sanitize --tools synccheck --json out.json

Each family (`benchmarks.sanitize_families`) is a small model in a process of its own under each tool. Its values are
compared with the numpy meaning of the model, too. Two planted kernels, one that writes beyond its memory and one whose
threads race, show that the tools see what they should: where they do not, the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sanitize_families import FAMILIES, Family
from weft.codegen.c.program import DeviceKernel, DeviceProgram, Parameter
from weft.core.dtypes import dtype

TOOLS = ("memcheck", "racecheck")
SECONDS = 300.0
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer")
PLANTED = {
    "memcheck": "  x[threadIdx.x + 4096] = 1.0f;\n",
    "racecheck": (
        "  __shared__ float y[64];\n  y[threadIdx.x] = x[threadIdx.x];\n"
        "  x[threadIdx.x] = y[(threadIdx.x + 33) % 64];\n"
    ),
}
"""For each tool a kernel of 64 threads with a fault that it must find: `x` has 64 elements."""


@dataclass
class Row:
    """One line of the table: what each tool found."""

    family: str
    kernels: int = 0
    problem: str = ""
    """What is wrong with the run itself or its values."""
    found: dict[str, int] = field(default_factory=dict)
    reports: dict[str, str] = field(default_factory=dict)
    expects: str = ""
    """The tool that must find something: a planted kernel."""

    @property
    def is_good(self) -> bool:
        """Whether the row is as it should be."""
        if self.problem:
            return False
        return all((count > 0) if tool == self.expects else count == 0 for tool, count in self.found.items())


# --------------------------------------------------------------------------------------------------- under the tools


def run_family(family: Family, target: str = "cuda") -> dict[str, Any]:
    """Runs a family's model here: how many kernels it has, and what is wrong, in words."""
    import weft
    from weft.graph.interpreter import interpret_graph

    graph, arrays = family.graph(), family.arrays()
    module = weft.compile(graph, target=target, precision=family.precision)
    outputs = module.run(None, {value.name: array for value, array in zip(graph.inputs, arrays)})
    (one,) = module.specializations
    if one.host_nodes:
        return {"kernels": 0, "problem": f"{one.host_nodes[0]} runs on the host"}
    programs = list(one.runner.kernels.values())
    count = sum(len(program.kernels) for program in programs)
    if target.startswith("cuda") and not any(re.search(family.needs, program.source) for program in programs):
        return {"kernels": count, "problem": f"no kernel has {family.needs!r}: choose other sizes for the family"}
    for got, wanted in zip(outputs, interpret_graph(graph, arrays), strict=True):
        error = relative_error(got, wanted)
        if not error <= family.tolerance:
            return {"kernels": count, "problem": f"values differ by {error:.1e} of their size"}
    return {"kernels": count, "problem": ""}


def relative_error(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """The largest difference, as a part of the largest value."""
    if got.shape != wanted.shape:
        return float("inf")
    have, want = got.astype(np.float64), wanted.astype(np.float64)
    return float(np.abs(have - want).max() / max(1e-9, np.abs(want).max()))


def planted_program(tool: str) -> DeviceProgram:
    """A program with a fault that a tool must find."""
    source = f'extern "C" __global__ void planted(float *x) {{\n{PLANTED[tool]}}}\n'
    kernel = DeviceKernel("planted", (1, 1, 1), (64, 1, 1), 256, 0, ("x",))
    return DeviceProgram("planted", source, (Parameter("x", dtype("float32"), True, True, 64),), (kernel,), ())


def run_planted(tool: str) -> dict[str, Any]:
    """Runs the kernel with a fault, in a recording as models are."""
    from weft.core.errors import RuntimeFault
    from weft.targets.registry import find_target

    device: Any = find_target("cuda").device()
    memory = device.allocate(256)
    device.write(memory, np.ones(64, np.float32))
    try:
        device.record(device.load(planted_program(tool)).bind({"x": memory})).launch()
        device.synchronize()
    except RuntimeFault:
        pass  # memcheck ends a kernel that leaves its memory, and the driver tells
    return {"kernels": 1, "problem": ""}


# -------------------------------------------------------------------------------------------------------- the tools


def sanitizer() -> str:
    """The command; an error where it is not there."""
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *PLACES]))
    if found is None:
        raise SystemExit("compute-sanitizer was not found: it comes with the CUDA toolkit; put it on the PATH")
    return found


def check(command: str, tool: str, row: Row, folder: Path) -> None:
    """Runs one family under one tool, and notes in its row what was found."""
    log = folder / f"{abs(hash((row.family, tool)))}.log"
    child = [sys.executable, "-m", "benchmarks.sanitize", "--child", row.family]
    try:
        done = subprocess.run(
            [command, "--tool", tool, "--log-file", str(log), *child],
            capture_output=True, text=True, timeout=SECONDS, cwd=Path(__file__).resolve().parents[1],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        row.problem = row.problem or f"{tool}: no end after {SECONDS:.0f} s"
        return
    text = log.read_text(errors="replace") if log.is_file() else ""
    row.reports[tool] = text[:20_000]
    summary = SUMMARY.search(text)
    if summary is None or not done.stdout.strip():
        words = (done.stderr or text).strip().splitlines()
        row.problem = row.problem or f"{tool} did not run: {words[-1] if words else f'exit {done.returncode}'}"
        return
    row.found[tool] = int(summary[1] or summary[2] or 0)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    row.kernels = answer["kernels"]
    row.problem = row.problem or answer["problem"]


def run_all(families: Sequence[Family], tools: Sequence[str], jobs: int) -> list[Row]:
    """Every family under every tool, several at a time."""
    command = sanitizer()
    rows = [Row(f"planted for {tool}", expects=tool) for tool in tools if tool in PLANTED]
    rows += [Row(family.name) for family in families]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        work = [
            pool.submit(check, command, tool, row, Path(name))
            for row in rows
            for tool in tools
            if not row.expects or tool == row.expects
        ]
        for one in work:
            one.result()
    return rows


def table(rows: Sequence[Row], tools: Sequence[str]) -> str:
    """The rows as text."""
    lines = [f"{'family':32} {'kernels':>7}  " + "  ".join(f"{tool:12}" for tool in tools)]
    for row in rows:
        cells = []
        for tool in tools:
            count = row.found.get(tool)
            cells.append("-" if count is None else "clean" if count == 0 else f"{count} found")
        note = row.problem or ("(as it should)" if row.expects and row.is_good else "")
        lines.append(f"{row.family:32} {row.kernels:7}  " + "  ".join(f"{cell:12}" for cell in cells) + f"  {note}")
    bad = [row for row in rows if not row.is_good]
    lines.append(f"{len(rows) - len(bad)} of {len(rows)} rows are as they should be")
    return "\n".join(line.rstrip() for line in lines)


def child(name: str) -> int:
    """What runs under a tool: one family, and one line of JSON about it."""
    if name.startswith("planted for "):
        answer = run_planted(name.removeprefix("planted for "))
    else:
        answer = run_family(next(family for family in FAMILIES if family.name == name))
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the families and shows the table; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression of names of families")
    parser.add_argument("--tools", default=",".join(TOOLS), help="tools of compute-sanitizer, with commas between")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes at a time")
    parser.add_argument("--json", type=Path, help="where rows and the tools' reports are written")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return child(options.child)
    tools = [tool.strip() for tool in options.tools.split(",")]
    families = [family for family in FAMILIES if re.search(options.only, family.name)]
    rows = run_all(families, tools, options.jobs)
    sys.stdout.write(table(rows, tools) + "\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(not row.is_good for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
