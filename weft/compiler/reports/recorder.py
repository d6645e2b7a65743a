"""What a profile notes while a model runs: a row for each call of a kernel and each host node, and its times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.device.runner import DeviceRunner
from weft.compiler.form import Compiled, Specialization
from weft.compiler.lowering.items import Launch
from weft.compiler.reports.cost import Cost, kernel_cost
from weft.compiler.run import Runner
from weft.expr.nodes import Var
from weft.graph.ir import Graph, Node
from weft.targets.base import Residence, Target

MakeRunner = Callable[[Specialization, "Recorder", Target, "Sequence[Any]"], "Runner | DeviceRunner"]
"""Makes a runner that measures, for the machine that a form was compiled for, and the arrays that it will be given."""


@dataclass
class KernelProfile:
    """One call of a kernel, or one node on the host: its times in every run, and what it has to do."""

    number: int
    label: str
    kind: str
    nodes: tuple[str, ...]
    cost: Cost
    samples: list[float] = field(default_factory=list)
    launches: list[Residence] = field(default_factory=list)
    """How its launches lie on a device, where that is known."""

    @property
    def seconds(self) -> float:
        """The median of its runs."""
        return statistics.median(self.samples)

    @property
    def minimum(self) -> float:
        """The best of its runs."""
        return min(self.samples)

    @property
    def gflops(self) -> float:
        """Billions of operations a second in the best run."""
        return self.cost.operations / max(self.minimum, 1e-9) / 1e9

    @property
    def gigabytes(self) -> float:
        """Billions of bytes a second that have to be read and written, in the best run; caches may serve them."""
        return self.cost.bytes / max(self.minimum, 1e-9) / 1e9


class Recorder:
    """The kernels met so far, and what each run took."""

    def __init__(self, target: Target, runner: MakeRunner) -> None:
        self.target, self.runner = target, runner
        self.kernels: list[KernelProfile] = []
        self._met: list[tuple[list[int], Any]] = []
        self.specializations: list[Specialization] = []
        self._costs: dict[Any, Cost] = {}

    def add(self, label: str, kind: str, nodes: Sequence[Node], cost: Cost) -> int:
        """A new row; its number."""
        names = tuple(node.name or (node.outputs[0].name if node.outputs else node.op) for node in nodes)
        self.kernels.append(KernelProfile(len(self.kernels), label, kind, names, cost))
        return len(self.kernels) - 1

    def add_launch(self, launch: Launch, graph: Graph, target: Target, sizes: Mapping[Var, int] | None = None) -> int:
        """The row of one call of a kernel; calls of the same kernel cost the same. Other targets are named."""
        cost = self._costs.get((launch.kernel.symbol, launch.sizes))
        if cost is None:
            cost = kernel_cost(launch, graph.constants, sizes)
            self._costs[launch.kernel.symbol, launch.sizes] = cost
        kind = "kernel" if target is self.target else target.name
        return self.add(launch.kernel.label, kind, launch.nodes, cost)

    def note(self, rows: list[int], times: Any) -> None:
        """The clock before and after each of these rows, in the run that goes on: seconds and nanoseconds."""
        self._met.append((rows, times))

    def take(self) -> list[tuple[int, int, int]]:
        """The timeline of the run that has ended."""
        found: list[tuple[int, int, int]] = []
        for rows, times in self._met:
            clock = (times @ np.array([1_000_000_000, 1])).tolist()
            found += zip(rows, clock, clock[1:])
        self._met = []
        return found


class TimedRest:
    """The rest of a graph, which is specialised when the shapes are known that a host node makes."""

    def __init__(self, executor: Any, recorder: Recorder) -> None:
        self._executor: Compiled = executor
        self.graph = executor.graph
        self._recorder = recorder
        self._runners: dict[int, Runner | DeviceRunner] = {}

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """The outputs, measured."""
        found = self._executor.measured(arrays)
        runner = self._runners.get(id(found))
        if runner is None:
            runner = self._recorder.runner(found, self._recorder, self._executor.target, arrays)
            self._runners[id(found)] = runner
        return runner.run(arrays, threads)
