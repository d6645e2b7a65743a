"""Candidates in processes of their own, which take turns: a burst of calls of one, then of the next.

    with Race(["weft", "onnxruntime"], threads=2) as race:
        ready = race.prepare(Task("model.onnx", feeds, threads=2))       what each says: seconds to get ready, outputs
        timings = race.run(seconds=4.0)                                  {"weft": Timing, "onnxruntime": Timing}
        speed_ratio(timings["weft"], timings["onnxruntime"])

Libraries keep their threads spinning for a while after a call (ONNX Runtime 1.31 with two threads for about 30 ms,
PyTorch 2.13 for about 5): on a machine of two cores that takes a core away from whoever comes next. So a process that
is not having its turn is stopped (SIGSTOP), threads and all, and no two libraries meet in one process either. Every
burst begins with calls that are not counted: they wake up the threads and fill the caches.

A process has OMP_NUM_THREADS in its environment, and is another one where a task has other threads: not all keep to
what they are told later. PyTorch 2.13 on Arm multiplies on all cores after `set_num_threads(1)`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

BURST_SECONDS = 0.06
"""One turn of a candidate, or two calls where those take longer."""
LEAST_ROUNDS = 5
PATIENCE_SECONDS = 600.0
"""A candidate that has not answered by then is given up: compiling may take minutes, hanging takes longer."""
CAN_STOP = hasattr(signal, "SIGSTOP")

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""What a second is: "cpu" counts what all threads of the process ran, and not what others took from it."""

Call = Callable[[], Any]
"""What is measured. One that has a method `burst(seconds)` measures itself."""


class WorkerProblem(RuntimeError):
    """A candidate cannot do what is asked, or died; the text says why."""


@dataclass(frozen=True)
class Task:
    """What to compute: an ONNX model, its inputs, and how."""

    model: Path
    feeds: Mapping[str, np.ndarray[Any, Any]]
    threads: int = 1
    precision: str = "fp32"
    clock: str = "wall"
    lesser: str = ""
    """The target of the candidate "weft lesser"."""


@dataclass
class Prepared:
    """A candidate that is ready: seconds that took, its outputs, and what it says about itself."""

    seconds: float = float("nan")
    outputs: list[Any] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median of each round, in order, and the best call of all."""

    rounds: tuple[float, ...]
    minimum: float
    calls: int

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.rounds)

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        return {"median_s": self.median, "minimum_s": self.minimum, "rounds": len(self.rounds), "calls": self.calls}


def speed_ratio(ours: Timing, theirs: Timing) -> float:
    """How many times as fast ours is: the middle of the ratios of each round, so that drift cancels."""
    return statistics.median(b / a for a, b in zip(ours.rounds, theirs.rounds, strict=True))


def best_ratio(ours: Timing, theirs: Timing) -> float:
    """The same by best calls: what a machine would show that nobody else uses."""
    return theirs.minimum / ours.minimum


def told_ratio(middle: float | None, best: float | None) -> str:
    """A ratio by rounds, and in brackets by best calls."""
    return "–" if middle is None or best is None else f"{middle:.2f} ({best:.2f})"


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean of ratios; nan where there is none."""
    return statistics.geometric_mean(ratios) if ratios else float("nan")


# ---------------------------------------------------------------------------------------------------- the child


def burst(call: Call, seconds: float, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Seconds of each call in one turn; a fifth of the turn, at least one call, goes before and is not counted."""
    start = clock()
    call()
    while clock() - start < seconds / 5:
        call()
    taken: list[float] = []
    start = last = clock()
    while len(taken) < 2 or last - start < seconds:
        begin = clock()
        call()
        last = clock()
        taken.append(last - begin)
    return taken


def serve(name: str, pipe: Any) -> None:
    """A child: gets ready for tasks and runs bursts as it is told, until the pipe closes."""
    from benchmarks import candidates

    _end_with_parent()
    make = candidates.CANDIDATES[name]
    call: Any = None
    clock = CLOCKS["wall"]
    gc.disable()  # a collection in the middle of a burst would be counted
    while True:
        try:
            what, value = pipe.recv()
        except EOFError:
            return
        try:
            if what == "prepare":
                call = None
                gc.collect()
                call, answer = _prepare(make, value)
                clock = CLOCKS[value.clock]
            else:
                assert call is not None
                answer = call.burst(value) if hasattr(call, "burst") else burst(call, value, clock)
        except Exception as problem:  # noqa: BLE001  (whatever it is, it is a cell of the table)
            last = traceback.extract_tb(problem.__traceback__)[-1]
            text = str(problem).strip().splitlines() or [""]
            answer = WorkerProblem(
                f"{type(problem).__name__}: {text[0][:200]} ({Path(last.filename).name}:{last.lineno})"
            )
            if isinstance(problem, WorkerProblem):
                answer = problem
        pipe.send(answer)


def _end_with_parent() -> None:
    """A stopped process does not notice that nobody is left who could wake it: Linux can be asked to end it."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _prepare(make: Callable[[Task, dict[str, Any]], Callable[[], list[Any]]], task: Task) -> tuple[Call, Prepared]:
    start = time.perf_counter()
    notes: dict[str, Any] = {}
    call = make(task, notes)
    outputs = call()
    seconds = time.perf_counter() - start
    return call, Prepared(seconds, [np.array(one) for one in outputs], notes)


# ---------------------------------------------------------------------------------------------------- the parent


@contextlib.contextmanager
def _environment(**wanted: str) -> Iterator[None]:
    """What a process that is started now finds in its environment."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class Worker:
    """One candidate's process. Outside its turns it is stopped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._context = multiprocessing.get_context("spawn")
        self._threads = 0
        self._process: Any = None
        self._pipe: Any = None

    def ask(self, what: str, value: Any) -> Any:
        """The answer to one request; a WorkerProblem where there is none."""
        if self._process is not None and not self._process.is_alive():
            self._died()
        if isinstance(value, Task) and value.threads != self._threads:
            self._threads = value.threads
            self.close()
        if self._process is None:
            self._start()
        self._signal("SIGCONT")
        try:
            self._pipe.send((what, value))
            if not self._pipe.poll(PATIENCE_SECONDS):
                self.close()
                raise WorkerProblem(f"no answer in {PATIENCE_SECONDS:.0f} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._died()
        self._signal("SIGSTOP")
        if isinstance(answer, WorkerProblem):
            raise answer
        return answer

    def _died(self) -> NoReturn:
        self._process.join()
        code = self._process.exitcode
        self.close()
        raise WorkerProblem(f"its process ended with {code}") from None

    def _start(self) -> None:
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=serve, args=(self.name, theirs))
        with _environment(OMP_NUM_THREADS=str(self._threads or 1)):
            self._process.start()
        theirs.close()

    def _signal(self, name: str) -> None:
        if CAN_STOP and self._process is not None and self._process.is_alive():
            os.kill(self._process.pid, getattr(signal, name))
            if name == "SIGSTOP":  # it takes a moment until its last thread has stopped
                os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


class Race:
    """Candidates that are measured against each other."""

    def __init__(self, names: Sequence[str]) -> None:
        self.workers = {name: Worker(name) for name in names}
        self._ready: dict[str, Prepared] = {}

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.close()

    def prepare(self, task: Task, names: Sequence[str] | None = None) -> dict[str, Prepared]:
        """Gets every candidate ready, one after the other; those that cannot say why and do not run."""
        found: dict[str, Prepared] = {}
        for name in self.workers if names is None else names:
            try:
                found[name] = self.workers[name].ask("prepare", task)
            except WorkerProblem as problem:
                found[name] = Prepared(problem=str(problem))
        self._ready = found
        return found

    def run(self, seconds: float, seed: int = 0) -> dict[str, Timing]:
        """Bursts of every candidate that is ready, in a new random order each round, for about so many seconds.

        One that fails now is left out, and its `Prepared` says why.
        """
        order = [name for name, one in self._ready.items() if not one.problem]
        bursts: dict[str, list[list[float]]] = {name: [] for name in order}
        shuffle = random.Random(seed).shuffle
        start = time.perf_counter()
        rounds = 0
        while order and (rounds < LEAST_ROUNDS or time.perf_counter() - start < seconds):
            shuffle(order)
            for name in tuple(order):
                try:
                    bursts[name].append(self.workers[name].ask("burst", BURST_SECONDS))
                except WorkerProblem as problem:
                    self._ready[name].problem = str(problem)
                    order.remove(name)
                    del bursts[name]
            rounds += 1
        return {
            name: Timing(tuple(map(statistics.median, taken)), min(map(min, taken)), sum(map(len, taken)))
            for name, taken in bursts.items()
            if taken
        }
