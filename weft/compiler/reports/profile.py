"""Where the time of a model goes: every kernel measured inside whole runs, beside what the machine could do.

    p = module.profile()                 random inputs; or profile(x), profile(image=x, threads=1, seconds=2)
    print(p)                             a table, with the model's names of the nodes that a kernel computes
    p.kernels[0].seconds                 the median of its runs
    p.as_json()                          plain data
    p.save_trace("model.trace.json")     open it in ui.perfetto.dev or chrome://tracing

The model runs as always, one kernel after the other, with warm caches and the same memory: only its drivers are
replaced by ones that read the clock after each kernel (about 30 ns). What runs on the host is measured around the node.
The time outside kernels is that of the checked way through `Runner.run`; ordinary calls take a shorter one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.codegen.llvm import compile as llvm_compile
from weft.compiler.device.profile import TimedDeviceRunner
from weft.compiler.device.runner import DeviceRunner
from weft.compiler.form import Specialization
from weft.compiler.lowering.native import driver_ir
from weft.compiler.reports.cost import Cost
from weft.compiler.reports.inputs import random_array
from weft.compiler.reports.profile_text import profile_html, profile_text
from weft.compiler.reports.recorder import KernelProfile, Recorder, TimedRest
from weft.compiler.run import OpenRunner, Runner
from weft.compiler.steps import HostStep, NativeStep, RestStep, Step
from weft.core import model
from weft.core.errors import ArgumentError
from weft.expr.nodes import Var
from weft.runtime.jit import JitModule, defined_names
from weft.runtime.model.runner import OpenSizes
from weft.runtime.threads import check_threads, get_threads
from weft.targets.base import Target
from weft.targets.peaks import Peaks, has_peaks, machine_peaks

LEAST_RUNS = 5
MOST_RUNS = 20_000
"""More runs say nothing new, and their times take memory."""


@dataclass(repr=False)
class Profile:
    """What `Module.profile` gives."""

    model: str
    target: str
    threads: int
    kernels: list[KernelProfile]
    call_samples: list[float]
    outside_samples: list[float]
    """Of each call, what it took beyond its kernels and host nodes."""
    peaks: Peaks | None
    weight_bytes: int
    arena_bytes: int
    timeline: list[tuple[int, int, int]]
    """The run whose time was the median: (number of the kernel, begin, end), in nanoseconds of the clock."""

    @property
    def seconds(self) -> float:
        """A whole call: the median."""
        return statistics.median(self.call_samples)

    @property
    def overhead(self) -> float:
        """What a call takes beyond its kernels and host nodes: the median."""
        return statistics.median(self.outside_samples)

    def peak_share(self, kernel: KernelProfile) -> float | None:
        """The part of the machine's peak rate of multiply-adds that a kernel reaches."""
        return kernel.gflops / self.peaks.of(kernel.cost.dtype) if self.peaks and kernel.cost.operations else None

    def memory_share(self, kernel: KernelProfile) -> float | None:
        """The same for the rate of a large copy; more than 1 where caches serve the kernel."""
        return kernel.gigabytes / self.peaks.gigabytes if self.peaks and kernel.cost.bytes else None

    def waits_for(self, kernel: KernelProfile) -> str:
        """What keeps a kernel on a device, by what is counted; "" elsewhere."""
        if not kernel.launches:
            return ""
        widest = max(kernel.launches, key=lambda one: one.blocks)
        if max(self.peak_share(kernel) or 0.0, self.memory_share(kernel) or 0.0) >= model.NEAR_PEAK:
            return "memory" if (self.memory_share(kernel) or 0.0) >= (self.peak_share(kernel) or 0.0) else "arithmetic"
        if kernel.minimum < model.LAUNCH_SECONDS * len(kernel.launches):
            return "its launch"
        if widest.blocks < widest.multiprocessors:
            return "few blocks"
        if widest.waves > 1 and widest.waves / math.ceil(widest.waves) < model.FULL_WAVES:
            return "its last wave"
        return "few threads" if widest.occupancy < model.FEW_THREADS else "latency"

    def __repr__(self) -> str:
        return profile_text(self)

    def _repr_html_(self) -> str:
        return profile_html(self)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        peaks = None if self.peaks is None else dataclasses.asdict(self.peaks)
        return {
            "model": self.model, "target": self.target, "threads": self.threads, "runs": len(self.call_samples),
            "seconds": self.seconds, "minimum_s": min(self.call_samples), "overhead_s": self.overhead,
            "weight_bytes": self.weight_bytes, "arena_bytes": self.arena_bytes, "peaks": peaks,
            "kernels": [self._kernel_json(kernel) for kernel in self.kernels],
        }  # fmt: skip

    def _kernel_json(self, kernel: KernelProfile) -> dict[str, Any]:
        return {
            "number": kernel.number, "label": kernel.label, "kind": kernel.kind, "nodes": list(kernel.nodes),
            "seconds": kernel.seconds, "minimum_s": kernel.minimum, "operations": kernel.cost.operations,
            "bytes": kernel.cost.bytes, "dtype": kernel.cost.dtype, "gflops": kernel.gflops,
            "gigabytes_per_s": kernel.gigabytes, "share_of_peak": self.peak_share(kernel),
            "share_of_copy_bandwidth": self.memory_share(kernel),
            "launches": [{**dataclasses.asdict(one), "waves": one.waves, "occupancy": one.occupancy}
                         for one in kernel.launches],
            "waits_for": self.waits_for(kernel),
        }  # fmt: skip

    def trace(self) -> dict[str, Any]:
        """One run as Chrome and Perfetto read it."""
        start = self.timeline[0][1] if self.timeline else 0
        names = {"process_name": f"{self.model}, {self.threads} threads", "thread_name": "kernels"}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": 1, "name": key, "args": {"name": name}} for key, name in names.items()
        ]
        for number, begin, end in self.timeline:
            kernel = self.kernels[number]
            events.append(
                {"ph": "X", "pid": 1, "tid": 1, "name": kernel.label, "cat": kernel.kind, "ts": (begin - start) / 1e3,
                 "dur": (end - begin) / 1e3, "args": self._kernel_json(kernel)}
            )  # fmt: skip
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace to a file."""
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------- measuring


class TimedRunner(Runner):
    """A runner whose drivers read the clock."""

    def __init__(
        self, one: Specialization, recorder: Recorder, target: Target, sizes: Mapping[Var, int] | None = None
    ) -> None:
        self._recorder = recorder
        self._rows: dict[int, list[int]] = {}
        self._clocks: dict[int, Any] = {}
        program, launches = one.lowered.program, iter(one.launches)
        steps: list[Step] = []
        weights = list(program.weights)
        drivers: list[str] = []
        for step in program.steps:
            made = _timed(step, recorder, len(weights))
            if isinstance(step, NativeStep) and isinstance(made, NativeStep):
                drivers.append(driver_ir(made.symbol, step.calls, target.triple, len(step.bases)))
                clock = np.zeros((len(step.calls) + 1, 2), np.int64)
                weights.append(clock)
                self._clocks[id(made)] = clock
                rows = [recorder.add_launch(next(launches), one.graph, target, sizes) for _ in step.calls]
                self._rows[id(made)] = rows
            elif isinstance(step, HostStep):
                self._rows[id(made)] = [recorder.add(step.node.op, "host", [step.node], Cost(0, 0, ""))]
            steps.append(made)
        recorder.specializations.append(one)
        timed = dataclasses.replace(program, steps=steps, weights=weights)
        super().__init__(timed, _engine(one, drivers, target), one.runner._inner)

    def _native(self, step: NativeStep, *rest: Any) -> None:
        super()._native(step, *rest)
        self._recorder.note(self._rows[id(step)], self._clocks[id(step)].copy())

    def _host(self, step: HostStep, *rest: Any) -> None:
        begin = time.perf_counter_ns()
        super()._host(step, *rest)
        self._recorder.note(self._rows[id(step)], np.array([[0, begin], [0, time.perf_counter_ns()]]))


class TimedOpenRunner(OpenSizes, TimedRunner):
    """The same for a program for every size; what its kernels do is counted for the sizes of some arrays."""

    def __init__(
        self, one: Specialization, runner: OpenRunner, recorder: Recorder, target: Target, arrays: Sequence[Any]
    ) -> None:
        found = runner.find(arrays)
        sizes = None if found is None else dict(zip(one.graph.symbols.values(), found[0]))
        TimedRunner.__init__(self, one, recorder, target, sizes)
        self.open(runner.conditions.take, runner.interpret)


def _timed(step: Step, recorder: Recorder, clock: int) -> Step:
    """A step for a timed runner; a native one takes one more base, the clock, which lies among the weights."""
    if isinstance(step, NativeStep):
        bases = [*step.bases, ("weight", clock)]
        return dataclasses.replace(step, symbol=f"{step.symbol}_timed", bases=bases, entry=None)
    if isinstance(step, RestStep):
        return dataclasses.replace(step, executor=TimedRest(step.executor, recorder))
    return dataclasses.replace(step)


def _engine(one: Specialization, drivers: Sequence[str], target: Target) -> JitModule | None:
    """The kernels linked once more, with the drivers that read the clock."""
    if not drivers:
        return None
    objects = [kernel.object_code for kernel in one.lowered.kernels]
    objects += [llvm_compile.emit_object(text, target) for text in drivers]
    names = [name for text in drivers for name in defined_names(text)]
    return llvm_compile.load(objects, names, one.native.externals, target)


def timed_runner(
    one: Specialization, recorder: Recorder, target: Target, arrays: Sequence[Any] = ()
) -> TimedRunner | DeviceRunner:
    """A runner that measures, for the machine that a form was compiled for."""
    if isinstance(one.runner, DeviceRunner):
        return TimedDeviceRunner(one, recorder)
    whole = one.whole().runner if isinstance(one.runner, OpenSizes) else one.runner
    if isinstance(whole, OpenRunner):
        return TimedOpenRunner(one, whole, recorder, target, arrays)
    return TimedRunner(one, recorder, target)


def profile_module(module: Any, feeds: Mapping[str, Any], threads: int | None = None, seconds: float = 1.0) -> Profile:
    """Runs a module for so many seconds, and says where the time goes."""
    count = check_threads(threads) if threads is not None else module.threads or get_threads()
    arrays, _ = module._bind(_filled(module, feeds))
    found = module._executor.measured(arrays)
    if any(isinstance(step, NativeStep) and not step.calls for step in found.lowered.program.steps):
        raise ArgumentError("a module from a file does not know its kernels: profile the model it was compiled from")
    recorder = Recorder(module.target, timed_runner)
    runner = timed_runner(found, recorder, module.target, arrays)
    calls, outside, timeline = _measure(runner, recorder, arrays, count, seconds)
    programs = [one.lowered.program for one in recorder.specializations]
    made = Profile(
        module.graph.name,
        module.target.name,
        count,
        [kernel for kernel in recorder.kernels if kernel.samples],
        calls,
        outside,
        None,
        sum(int(array.nbytes) for program in programs for array in program.weights),
        max(int(program.arena_bytes) for program in programs),
        [],
    )
    places = {kernel.number: at for at, kernel in enumerate(made.kernels)}
    made.timeline = [(places[number], begin, end) for number, begin, end in timeline]
    made.peaks = _peaks(made, module.target)
    return made


def _measure(
    runner: TimedRunner | DeviceRunner, recorder: Recorder, arrays: Sequence[Any], threads: int, seconds: float
) -> tuple[list[float], list[float], list[tuple[int, int, int]]]:
    """Seconds of every call, those outside kernels, and the timeline of the call in the middle.

    The first call, which may compile, is left out.
    """
    runner.run(arrays, threads)
    recorder.take()
    calls: list[float] = []
    outside: list[float] = []
    middle: list[tuple[float, list[tuple[int, int, int]]]] = []
    start = time.perf_counter()
    while len(calls) < LEAST_RUNS or (time.perf_counter() - start < seconds and len(calls) < MOST_RUNS):
        begin = time.perf_counter()
        runner.run(arrays, threads)
        calls.append(time.perf_counter() - begin)
        timeline = recorder.take()
        for number, first, last in timeline:
            recorder.kernels[number].samples.append((last - first) / 1e9)
        outside.append(calls[-1] - sum(last - first for _, first, last in timeline) / 1e9)
        middle.append((calls[-1], timeline))
        if len(middle) > 64:  # those at the ends are not the one in the middle
            middle = sorted(middle, key=lambda one: one[0])[16:48]
    median = statistics.median(calls)
    return calls, outside, min(middle, key=lambda one: abs(one[0] - median))[1]


def _filled(module: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs: those given, and random ones."""
    random = np.random.default_rng(0)
    made = dict(feeds)
    for port in module.inputs:
        if port.name in made:
            continue
        if port.shape is None or not all(isinstance(size, int) for size in port.shape):
            raise ArgumentError(f"the shape of input {port.name!r} is open: give an array for it, as in a call")
        made[port.name] = random_array(port.dtype, port.shape, random)
    return made


_measured_again: set[int] = set()


def _peaks(profile: Profile, target: Target) -> Peaks | None:
    """The machine's peaks; where a kernel is above them they were perhaps taken on a busy machine: once more, then."""
    if not has_peaks(target):
        return None
    profile.peaks = machine_peaks(target, profile.threads)
    above = any((profile.peak_share(kernel) or 0.0) > 1.0 for kernel in profile.kernels)
    if above and profile.threads not in _measured_again:
        _measured_again.add(profile.threads)
        profile.peaks = machine_peaks(target, profile.threads, again=True)
    return profile.peaks
