"""One task on arrays: the default built and run, and the trial of one point: build, check, time.

A trial gives an Outcome and raises nothing. Its result is compared with the default's; its time is taken in turns with
the default's, so that a machine that slows down slows both. For one thread the clock is that of the processor time,
which others cannot take away; for more it is the wall's.

A device is opened by the child that measures, never by the parent: an illegal access ends the child, not the search.
What is compiled for it needs no device, and goes from one process to another.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from weft.builder import Built, DeviceBuilt
from weft.compiler.kernels.build import Packing, lift_scheduled
from weft.compiler.kernels.program import GroupProgram
from weft.compiler.lowering.weights import WeightBlocks
from weft.compiler.steps import aligned_array
from weft.core import model
from weft.core.errors import InternalError, RuntimeFault, WeftError
from weft.loop.ir import Func
from weft.loop.verifier import verify
from weft.plan.overrides import apply_override
from weft.plan.sketch import Point
from weft.runtime.threads import get_threads
from weft.schedule.trace import Trace
from weft.targets.base import Target
from weft.tuner import on_device, settings
from weft.tuner.records import Outcome, Status, TuneError
from weft.tuner.space import Region
from weft.tuner.task import Task

Call = Callable[[int], None]
"""Runs a kernel so many times."""


class Kernel:
    """A scheduled program, compiled, with its arguments in memory of its own: what is timed."""

    trace = ""

    def __init__(self, task: Task, program: GroupProgram, arrays: Sequence[Any], threads: int) -> None:
        lifted = lift_scheduled(program, task.fixed)
        func = lifted.func.replace(name="trial")
        verify(func)
        self.task, self.threads, self.parameters = task, threads, lifted.parameters
        self.function = Built(func, task.target, "trial").load(threads)
        self.bind(arrays)

    def bind(self, arrays: Sequence[Any]) -> None:
        """Lays the arguments out as a model does: copies of constants in large pages, where they are worth that.

        There other kernels run before the next call, and constants leave a core's caches: several copies take turns.
        """
        task, blocks = self.task, WeightBlocks()
        self.results: list[Any] = []
        own, fixed = dict[int, Any](), dict[int, Any]()
        for at, parameter in enumerate(self.parameters):
            if isinstance(parameter, Packing):
                fixed[at] = parameter.apply(arrays[parameter.source])
            elif parameter < len(task.program.inputs) and task.program.inputs[parameter][0] in task.constants:
                fixed[at] = arrays[parameter]
            else:
                own[at] = aligned_array(np.array(arrays[parameter]))
                if parameter >= len(task.program.inputs):
                    self.results.append(own[at])
        size = sum(one.nbytes for one in fixed.values())
        second, last = (settings.COLD * task.target.cache_bytes[at] for at in (1, -1))
        filled = max(second, min(task.around, last, settings.MOST_COLD))
        copies = min(settings.MOST_COPIES, 1 + filled // size) if size else 1
        self._bound: list[Any] = []
        for _ in range(copies):
            for at, one in fixed.items():
                own[at] = blocks.copy(one) if one.nbytes >= model.NEAR_BYTES else aligned_array(np.array(one))
            self._bound.append(tuple(own[at] for at in range(len(self.parameters))))
        turns = list(map(self.function._fast, self._bound))
        if None in turns:
            raise TuneError(f"the arguments of {task.label} do not fit its program")
        self._turns: Iterator[Any] = itertools.cycle(turns)

    def run(self, times: int = 1) -> None:
        """Calls it; a RuntimeFault where it says that it failed."""
        entry, threads, turns = self.function._entry, self.threads, self._turns
        for slots in itertools.islice(turns, times - 1):
            entry(slots, threads)
        if times and entry(next(turns), threads):
            raise RuntimeFault("the kernel failed")


class DeviceKernel:
    """A scheduled program, compiled for a device; `bind` opens that, and puts program and arguments into its memory."""

    trace = ""
    _constants: frozenset[int] = frozenset()  # which of the task's arrays never change
    _around = 0

    def __init__(self, task: Task, program: GroupProgram, arrays: Sequence[Any], threads: int) -> None:
        lifted = lift_scheduled(program, task.fixed)
        self._constants = frozenset(at for at, (one, _) in enumerate(task.program.inputs) if one in task.constants)
        self._around = task.around
        self.load(lifted.func.replace(name="trial"), task.target, lifted.parameters, len(task.program.inputs))

    def load(self, func: Func, target: Target, parameters: Sequence[int | Packing], inputs: int) -> None:
        """Compiles a program whose parameters are these, the first so many of the task's being inputs."""
        self.parameters, self._inputs, self._target = parameters, inputs, target
        verify(func)
        self.program = DeviceBuilt(func, target, "trial").program
        self._codes = target.machine_codes([self.program])

    def bind(self, arrays: Sequence[Any], calls: int = settings.MOST_COPIES) -> None:
        """Copies the program and its arguments to the device.

        Where the constants of the model do not fit its cache, copies of the kernel's own take turns, as many as it has
        calls: as there, they have left the cache when they are read again.
        """
        device = self._device = self._target.device()
        executable = device.load_all([self.program], self._codes)[0]
        given: dict[str, Any] = {w.name: device.allocate(max(w.bytes, 1)) for w in self.program.workspaces}
        self._written: list[tuple[Any, Any]] = []
        fixed: dict[str, int] = {}
        for at, parameter in enumerate(self.program.parameters):
            if at >= len(self.parameters):  # where a kernel says that an index was wrong
                given[parameter.name] = device.allocate(64)
                device.write(given[parameter.name], np.zeros(16, np.int32))
                continue
            place = self.parameters[at]
            array = place.apply(arrays[place.source]) if isinstance(place, Packing) else arrays[place]
            memory = given[parameter.name] = device.allocate(max(array.nbytes, 1))
            device.write(memory, np.ascontiguousarray(array))
            if isinstance(place, Packing) or place in self._constants:
                fixed[parameter.name] = array.nbytes
            if not isinstance(place, Packing) and place >= self._inputs:
                self._written.append((memory, np.zeros_like(array)))
        self._launches = executable.bind(given)
        self._recording = device.record(self._launches)
        self._given, self._runs = [executable, given], [self._launches]
        size, cache = sum(fixed.values()), max(self._target.cache_bytes, default=0)
        filled = min(settings.COLD * cache, self._around, settings.MOST_COLD) if self._around > cache else 0
        for _ in range(min(settings.MOST_COPIES - 1, calls - 1, filled // size) if size else 0):
            other = {name: device.allocate(max(nbytes, 1)) for name, nbytes in fixed.items()}
            for name, nbytes in fixed.items():
                device.copy(other[name], given[name], nbytes)
            self._given.append(other)
            self._runs.append(executable.bind({**given, **other}))

    def launches(self, turn: int = 0) -> Sequence[Any]:
        """Those of a run: with other copies of the constants in each turn, where there are some."""
        launches: Sequence[Any] = self._runs[turn % len(self._runs)]
        return launches

    def timer(self) -> Callable[[], list[float]]:
        """What each launch takes by the device's own clock, whenever it is called."""
        return self._device.timer(self._launches)

    @property
    def results(self) -> list[Any]:
        """What it wrote, copied back."""
        for memory, array in self._written:
            self._device.read(memory, array)
        return [array for _, array in self._written]

    def run(self, times: int = 1) -> None:
        """Launches it, and waits."""
        for _ in range(times):
            self._recording.launch()
        self._device.synchronize()


def row_of(count: int, *kernels: DeviceKernel) -> Callable[[], float]:
    """What a run of each kernel takes together, in a row of so many such runs."""
    row = kernels[0]._device.stretch([launch for at in range(count) for one in kernels for launch in one.launches(at)])
    return lambda: row() / count


def length_of(*kernels: DeviceKernel) -> int:
    """How many runs of some kernels make a row that lasts a while, as far as that costs the host little."""
    begin = time.perf_counter()
    timer = kernels[0]._device.timer([one for kernel in kernels for one in kernel.launches()])
    taken = max(min(sum(timer()), sum(timer())), 1e-9)
    is_quick = time.perf_counter() - begin < settings.QUICK_SECONDS
    count = min(settings.MOST_COPIES, int(settings.ROW_SECONDS / taken) + 1)
    return max(count, *(len(one._runs) for one in kernels)) if is_quick else 1


class Bench:
    """A task, its arrays, and its default: what trials are compared with."""

    def __init__(self, task: Task, threads: int | None = None, seed: int = 0) -> None:
        self.task = task
        # A device is timed by the wall's clock, as several threads are.
        self.threads = 2 if task.target.on_device else threads or min(get_threads(), max(task.target.cores, 1))
        self.kernel: type[Kernel] | type[DeviceKernel] = DeviceKernel if task.target.on_device else Kernel
        self.arrays = task.arrays(np.random.default_rng(seed))
        self._default: Kernel | DeviceKernel | None = None
        self.expected: list[Any] = []
        """The default's results."""
        self.beside: tuple[Bench, ...] = ()
        """On a device: the tasks of the launches before and after it in a model, which a kernel overlaps with there."""
        self._rows: tuple[int, Sequence[DeviceKernel], list[Callable[[], float]]] | None = None
        self.calm = math.inf  # the seconds that the default takes when nobody disturbs it, as far as is known

    def to_send(self) -> tuple[Any, ...]:
        """What the process needs that has the device: it knows no task."""
        return self.arrays, self.planned, [(one.arrays, one.planned) for one in self.beside]

    @classmethod
    def sent(cls, arrays: Sequence[Any], planned: DeviceKernel, beside: Sequence[Any] = ()) -> Bench:
        """The same, there."""
        made = cls.__new__(cls)
        made.arrays, made.expected, made._default, made._rows = list(arrays), [], None, None
        made.beside = tuple(cls.sent(*one) for one in beside)
        vars(made)["planned"] = copy.copy(planned)  # a neighbour may be the same task
        return made

    @functools.cached_property
    def planned(self) -> Kernel | DeviceKernel:
        """The planner's kernel, compiled."""
        program = self.task.fresh()
        program.schedule.plan(self.task.target, self.task.fixed)
        return self.kernel(self.task, program, self.arrays, self.threads)

    @property
    def default(self) -> Kernel | DeviceKernel:
        """The planner's kernel, run once; a WeftError where it cannot be."""
        if self._default is None:
            made = self.planned
            made.bind(self.arrays)
            made.run()
            self._default, self.expected = made, made.results
        return self._default

    def build(self, region: Region, point: Point) -> Kernel | DeviceKernel | Outcome:
        """The kernel of a point, not run yet; an outcome where there is none."""
        program = self.task.fresh()
        try:
            region.take(program, point)
        except WeftError as error:
            return Outcome(Status.REFUSED, detail=_short(error))
        return self._built(program)

    def replay(self, trace: Trace) -> Kernel | DeviceKernel | Outcome:
        """The kernel of a schedule, not run yet; an outcome where there is none."""
        program = self.task.fresh()
        try:
            apply_override(program.schedule, trace, self.task.label)
        except WeftError as error:
            return Outcome(Status.REFUSED, detail=_short(error))
        return self._built(program)

    def _built(self, program: GroupProgram) -> Kernel | DeviceKernel | Outcome:
        trace = program.schedule.trace.to_json()
        try:
            made = self.kernel(self.task, program, self.arrays, self.threads)
        except (WeftError, InternalError, RuntimeError, ValueError, TypeError, LookupError, MemoryError) as error:
            return Outcome(Status.BUILD_ERROR, detail=_short(error), trace=trace)
        made.trace = trace
        return made

    def trial(self, kernel: Kernel | DeviceKernel) -> Outcome:
        """What comes of a kernel: run, its result compared with the default's, timed in turns with it."""
        trace = kernel.trace
        try:
            if isinstance(kernel, DeviceKernel):
                kernel.bind(self.arrays)
            kernel.run()
        except RuntimeFault as error:
            return Outcome(Status.FAULT, detail=_short(error), trace=trace)
        except WeftError as error:
            return Outcome(Status.BUILD_ERROR, detail=_short(error), trace=trace)
        default = self.default
        wrong = difference(self.expected, kernel.results)
        if wrong:
            return Outcome(Status.WRONG, detail=wrong, trace=trace)
        if isinstance(default, DeviceKernel) and isinstance(kernel, DeviceKernel):
            return self._by_its_clock(default, kernel)
        default.bind(self.arrays)  # memory of this process, as the candidate's
        calls = [default.run, kernel.run]
        (baseline, seconds), busy = self.calm_turns(calls)
        if seconds < baseline:  # perhaps by luck: the worse of two answers counts
            rounds = settings.ROUNDS if busy < settings.BUSY else 2 * settings.ROUNDS
            (base, again), other = self.calm_turns(calls, rounds)
            if base / again < baseline / seconds:
                baseline, seconds, busy = base, again, max(busy, other)
        return Outcome(Status.OK, seconds, baseline, busy, trace=trace)

    def _by_its_clock(self, default: DeviceKernel, kernel: DeviceKernel) -> Outcome:
        """The times of two kernels on a device, in turns: what each adds to a row of the kernels before and after it in
        the model; where these are not known, of the default. In a row of itself a kernel may overlap more, or less,
        than in a model: EfficientNet-B0 was to gain 1.37 by such rows, and gained 1.15; DQN 1.45, and 1.09 beside its
        default alone."""
        (count, around, rows), timers = self._defaults(default), [default.timer(), kernel.timer()]
        with on_device.turn(kernel._target):
            times = [[sum(timer()) for timer in timers] for _ in range(2)]
        if times[-1][1] <= settings.FAR * times[-1][0]:
            some = [*rows, row_of(count, *around[:1], kernel, *around[1:])]
            with on_device.turn(kernel._target):
                none, *both = map(min, zip(*([row() for row in some] for _ in range(settings.DEVICE_ROUNDS))))
            times = [[], [max(one - none, settings.LEAST_PART * times[-1][0]) for one in both]]
        baseline, seconds = map(min, zip(*times[1:]))
        if not min(baseline, seconds) > 0.0:
            return Outcome(Status.GARBAGE, detail="the device's clock says that it took no time", trace=kernel.trace)
        return Outcome(Status.OK, seconds, baseline, trace=kernel.trace)

    def _defaults(self, default: DeviceKernel) -> tuple[int, Sequence[DeviceKernel], list[Callable[[], float]]]:
        """The length of a row, the kernels beside that of this task, and what times a row of them, without and with its
        default."""
        if self._rows is None:
            around = [cast(DeviceKernel, one.default) for one in self.beside] or [default]
            with on_device.turn(default._target):
                count = length_of(*around, default)
            rows = [row_of(count, *around), row_of(count, *around[:1], default, *around[1:])]
            self._rows = count, around, rows
        return self._rows

    def calm_turns(self, calls: Sequence[Call], rounds: int = settings.ROUNDS) -> tuple[list[float], float]:
        """`in_turns`, again while the default takes longer than it is known to: the calmest answer counts."""
        best, end = in_turns(calls, self.threads, rounds), time.perf_counter() + settings.AGAIN_SECONDS
        while time.perf_counter() < end:
            (baseline, *_, last), _ = best
            if baseline <= settings.CALM * self.calm or last > settings.HOPELESS * baseline:
                break
            best = min(best, in_turns(calls, self.threads, rounds), key=lambda one: one[0][0])
        return best


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def difference(expected: Sequence[Any], found: Sequence[Any], least: float = 0.0) -> str:
    """Where results are no other order of the same sums; empty where they are the same, or lie at most so far apart."""
    for want, have in zip(expected, found, strict=True):
        if want.dtype.name not in settings.TOLERANCE:
            if not np.array_equal(want, have):
                return f"{int(np.sum(want != have))} of {want.size} elements differ"
            continue
        left, right = want.astype(np.float64), have.astype(np.float64)
        if not np.array_equal(np.isfinite(left), np.isfinite(right)):
            return f"{int(np.sum(np.isfinite(left) != np.isfinite(right)))} of {want.size} elements are not finite"
        left, right = (np.nan_to_num(one, posinf=0, neginf=0) for one in (left, right))
        scale = float(np.sqrt(np.mean(left**2))) if left.size else 0.0
        apart = np.abs(left - right) / (np.abs(left) + scale + 1e-30)
        if left.size and float(apart.max()) > max(settings.TOLERANCE[want.dtype.name], least):
            return f"results lie {float(apart.max()):.2g} of their magnitude apart"
    return ""


def in_turns(calls: Sequence[Call], threads: int, rounds: int = settings.ROUNDS) -> tuple[list[float], float]:
    """The best time of each call, taken in turns, and the share of the time that others took from us."""
    clock = time.process_time if threads == 1 else time.perf_counter
    times = [_repeats(call, clock) for call in calls]
    best = [float("inf")] * len(calls)
    used, passed = 0.0, 0.0
    for turn in range(max(rounds, settings.MOST_ROUNDS)):
        if turn >= rounds and passed > settings.LEAST_SECONDS:
            break
        for at, call in enumerate(calls):
            wall, own, begin = time.perf_counter(), time.process_time(), clock()
            call(times[at])
            taken = (clock() - begin) / times[at]
            passed += time.perf_counter() - wall
            used += time.process_time() - own
            if turn:
                best[at] = min(best[at], taken)
        if turn == 2 and best[-1] > settings.HOPELESS * best[0]:
            break
    return best, max(0.0, 1.0 - used / passed) if passed and threads == 1 else 0.0


def _repeats(call: Call, clock: Callable[[], float]) -> int:
    times = 1
    while True:
        begin = clock()
        call(times)
        taken = clock() - begin
        if taken >= settings.SAMPLE_SECONDS:
            return times
        times = max(2 * times, int(times * settings.SAMPLE_SECONDS / max(taken, 1e-7)) + 1)
