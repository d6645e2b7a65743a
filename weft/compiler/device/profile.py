"""A model on a device with the time of every kernel: the same kernels, memory and order, with the device's own clock.

What a call takes beyond its kernels holds the copies of inputs and outputs, and what the measuring itself costs.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.compiler.device.runner import DeviceRunner, Values
from weft.compiler.form import Specialization
from weft.compiler.reports.cost import Cost
from weft.compiler.reports.recorder import Recorder, TimedRest
from weft.compiler.steps import HostStep, NativeStep, RestStep, Step

Timer = Callable[[], list[float]]


class TimedDeviceRunner(DeviceRunner):
    """A runner on a device that measures each launch; weights and code are those of the model it is made from."""

    def __init__(self, one: Specialization, recorder: Recorder) -> None:
        assert isinstance(one.runner, DeviceRunner)
        self._recorder = recorder
        self._rows: dict[int, list[int]] = {}
        self._timers: dict[Any, tuple[list[Any], list[int], Timer]] = {}
        launches = iter(one.launches)
        steps: list[Step] = []
        for at, step in enumerate(one.runner.program.steps):
            if isinstance(step, NativeStep):
                self._rows[at] = [recorder.add_launch(next(launches), one.graph, recorder.target) for _ in step.calls]
            elif isinstance(step, HostStep):
                self._rows[at] = [recorder.add(step.node.op, "host", [step.node], Cost(0, 0, ""))]
            steps.append(_timed(step, recorder))
        self._places = {id(step): at for at, step in enumerate(steps)}
        recorder.specializations.append(one)
        program = dataclasses.replace(one.runner.program, steps=steps)
        super().__init__(program, one.runner.kernels, one.runner.target, one.runner._inner, one.runner.loaded())

    def _stretch(self, at: int, step: NativeStep, values: Values) -> None:
        bases = self._bases(step, values)
        key = (at, id(values.slot))
        held = self._timers.get(key)
        if held is None or any(a is not b for a, b in zip(held[0], bases)):
            calls = values.slot.model.launches(step, bases, values.slot.arena, values.slot.errors)
            for row, call in zip(self._rows[at], calls):
                found = map(values.device.residence, call)
                self._recorder.kernels[row].launches = [one for one in found if one is not None]
            timer = values.device.timer([launch for call in calls for launch in call])
            held = self._timers[key] = (bases, [len(call) for call in calls], timer)
        begin = time.perf_counter_ns()
        seconds = iter(held[2]())
        spans = [int(sum(itertools.islice(seconds, count)) * 1e9) for count in held[1]]
        clock = [begin, *(begin + span for span in itertools.accumulate(spans))]
        self._recorder.note(self._rows[at], np.array([[0, moment] for moment in clock]))

    def _on_host(self, step: HostStep, values: Values, threads: int) -> None:
        begin = time.perf_counter_ns()
        super()._on_host(step, values, threads)
        times = np.array([[0, begin], [0, time.perf_counter_ns()]])
        self._recorder.note(self._rows[self._places[id(step)]], times)


def _timed(step: Step, recorder: Recorder) -> Step:
    if isinstance(step, RestStep):
        return dataclasses.replace(step, executor=TimedRest(step.executor, recorder))
    return step
