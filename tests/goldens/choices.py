"""What a workload gets on a machine: its kernels, the sketches that stand, and their steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.goldens.workloads import WORKLOADS
from weft.compiler.kernels.build import Kernel, KernelCompiler
from weft.compiler.lowering.items import Launch, OnHost, items_in_layouts
from weft.compiler.passes import for_target, optimize
from weft.graph.ir import Graph
from weft.graph.passes.fuse import fuse
from weft.targets.base import Target
from weft.targets.registry import find_target

TARGETS = {
    "avx512_amx": "x86_64-unknown-linux-gnu,cpu=sapphirerapids,cores=2",
    "avx2": "x86_64-unknown-linux-gnu,cpu=haswell,cores=2",
    "neoverse": "aarch64-unknown-linux-gnu,cpu=neoverse-n1,cores=2",
    "sm_90": "cuda:sm_90",
    "sm_90a": "cuda:sm_90a",
    "opencl": "opencl:generic",
}
"""The machines of the goldens, by facts alone."""

NARROW = {"avx512_amx": "bf16", "sm_90": "fp16", "sm_90a": "fp16"}
"""Machines whose matrix instructions take 16-bit operands: heavy workloads are planned in that precision too."""
HEAVY = ("conv", "dense", "matmul", "attention", "basic_block", "groups")
ONLY_NARROW = {"sm_90a"}
"""Machines that differ from another in what they do with such operands alone."""


@dataclass
class Chosen:
    """One kernel: its label, its schedule as the layouts of its values made it, and as it was chosen."""

    label: str
    start: Any
    schedule: Any
    kernel: Kernel


class _Planner(KernelCompiler):
    """Schedules programs and makes no code."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.chosen: dict[int, Chosen] = {}

    def compile(self, program: Any, constants: Any, label: str, given: Any = None) -> Any:
        fixed = [buffer for value, buffer in program.inputs if value in constants]
        start = program.schedule.copy()
        kernel, parameters = self._make(program, fixed, label)
        self.chosen[id(kernel)] = Chosen(label, start, program.schedule, kernel)
        return kernel, parameters

    def _generated(self, func: Any, label: str, size: int) -> Kernel:
        return Kernel(func.name, label, func)


def kernels_of(workload: str, target: Target, precision: str | None = None) -> Iterator[Chosen | str]:
    """The kernels of a workload on a machine, in order; a text for what runs on the host."""
    return kernels_in(WORKLOADS[workload](), target, precision)


def kernels_in(graph: Graph, target: Target, precision: str | None = None) -> Iterator[Chosen | str]:
    """The kernels of a graph on a machine."""
    shapes = {value.name: value.tensor.static for value in graph.inputs}
    graph = for_target(optimize(graph, shapes, {}), target, precision)
    planner = _Planner(target)
    try:
        items = items_in_layouts(graph, fuse(graph), planner)
    finally:
        planner.close()
    for item in items:
        if isinstance(item, Launch):
            yield planner.chosen[id(item.kernel)]
        elif isinstance(item, OnHost):
            yield f"on the host: {item.node.op}, {item.reason}"


def cases(only: str | None = None) -> Iterator[tuple[str, str, str | None]]:
    """Target, workload and precision of every golden."""
    for name in TARGETS if only is None else [only]:
        for workload in WORKLOADS:
            if name not in ONLY_NARROW:
                yield name, workload, None
            if name in NARROW and workload.startswith(HEAVY):
                yield name, workload, NARROW[name]


def text_of(target: str, workload: str, precision: str | None, steps: bool = False) -> str:
    """The golden of a workload on a machine; its steps are told by their number and digest, or written out."""
    lines = [f"{workload}{'' if precision is None else ' ' + precision}"]
    for chosen in kernels_of(workload, find_target(TARGETS[target]), precision):
        if isinstance(chosen, str):
            lines.append(f"  {chosen}")
            continue
        written = [step.as_python() for step in chosen.schedule.trace.steps]
        digest = hashlib.sha256("\n".join(written).encode()).hexdigest()[:8]
        lines.append(f"  {chosen.label}: {len(written)} steps {digest}")
        lines += [f"    {'- ' if tried.refused else '+ '}{tried}" for tried in getattr(chosen.schedule, "tried", ())]
        if steps:
            lines += [f"      {line}" for line in written]
    return "\n".join(lines) + "\n"


def path_of(target: str) -> Path:
    """The file with the goldens of a machine."""
    return Path(__file__).parent / f"{target}.txt"


def read(target: str) -> dict[str, str]:
    """The goldens of a machine, by workload and precision."""
    found: dict[str, str] = {}
    title = ""
    for line in path_of(target).read_text().splitlines(keepends=True):
        if not line.startswith(" "):
            title = line.strip()
        found[title] = found.get(title, "") + line
    return found
