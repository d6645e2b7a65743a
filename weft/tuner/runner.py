"""Where trials run: in children of this process, which may crash, hang or talk nonsense without harm.

A child is a fork: it has the task, its arrays and the default, ready made, for a millisecond. It says what it found in
one line through a pipe. One that dies, that takes too long, or whose line makes no sense gives a row of that kind, and
the search goes on. A child dies with its parent; Ctrl-C reaches the parent alone. A search knows only `Runner`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import math
import os
import pickle
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

from weft.plan.sketch import Point
from weft.runtime.threads import get_threads
from weft.schedule.trace import Trace
from weft.tuner.bench import Bench, in_turns
from weft.tuner.records import Outcome, Status, TuneError
from weft.tuner.settings import ASK_SECONDS, BUILD_SECONDS, BUILDERS_NICE, FORGOTTEN, MOST_LINE, NEARLY, RUN_SECONDS
from weft.tuner.space import Region

Say = Callable[[str], None]
"""Sends a line to the parent."""


class Runner(Protocol):
    """Measures points of a task."""

    @property
    def width(self) -> int:
        """How many points can be measured at the same time."""

    @property
    def unit(self) -> str:
        """What its figures are: "seconds", or what it counts."""

    def measure(self, bench: Bench, points: Sequence[tuple[Region, Point]]) -> Iterator[Outcome]:
        """The outcomes, in order, each when it is known."""


class ChildError(Exception):
    """A child that did not finish: how."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(f"{status.value}: {detail}")
        self.status, self.detail = status, detail


def in_child(
    work: Callable[[Say], str], limit: float, extended: float | None = None, stop: Callable[[], bool] | None = None
) -> str:
    """The text that a function gives in a child of its own; a ChildError where it gives none.

    `limit` is how many seconds it has; where `extended` is given, it has so many from its first line on. Where `stop`
    is given it is asked now and then, and ends the child.
    """
    answers = _said(*_fork(lambda say: iter([work(say)])), limit, extended, stop)
    try:
        return next(answers)
    finally:
        answers.close()


def _fork(work: Callable[[Say], Iterator[str]]) -> tuple[int, int]:
    """A child that does some work, and the end of a pipe on which it speaks."""
    if not hasattr(os, "fork"):
        raise TuneError("points are measured in forked children, and this system has none: tune on Linux or macOS")
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_child(work, read, write)
    os.close(write)
    return child, read


def _be_child(work: Callable[[Say], Iterator[str]], read: int, write: int) -> None:
    """Runs in the child, and never returns."""
    code = 1
    try:
        os.close(read)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.disable()  # a crash is expected here, and told by the parent
        gc.freeze()  # what the parent has is nothing to collect here: looking at it would copy it
        _die_with_parent()

        def say(text: str) -> None:
            data = f"{text}\n".encode()
            while data:
                data = data[os.write(write, data) :]

        for text in work(say):
            say("=" + text)
        code = 0
    except BaseException as error:  # noqa: BLE001 — whatever it is, the parent is told
        os.write(write, f"!{type(error).__name__}: {error}".splitlines()[0].encode()[:2000] + b"\n")
        code = 1
    finally:
        os._exit(code)  # nothing of the parent's is flushed, closed or removed twice


def _die_with_parent() -> None:
    """A child whose parent was killed measures for nobody. Core files would fill the disk."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _said(
    child: int, read: int, building: float, extended: float | None = None, stop: Callable[[], bool] | None = None
) -> Generator[str, None, None]:
    """The texts that a child gives one after another, each with the limits of `in_child`; it ends with them."""
    limit, end, data, said = building, time.monotonic() + building, b"", False
    try:
        while True:
            left = end - time.monotonic()
            ready = left > 0 and select.select([read], [], [], left if stop is None else min(left, ASK_SECONDS))[0]
            if stop is not None and stop():
                raise ChildError(Status.HANG, "it was stopped")
            if not ready and left > ASK_SECONDS and stop is not None:
                continue
            if not ready:
                raise ChildError(Status.HANG, f"it did not finish in {limit:.0f} s")
            part = os.read(read, 1 << 16)
            if not part:
                _, status = os.waitpid(child, 0)
                if os.WIFSIGNALED(status):
                    raise ChildError(Status.CRASH, signal.Signals(os.WTERMSIG(status)).name)
                code = os.waitstatus_to_exitcode(status)
                if said and not code:
                    return
                raise ChildError(Status.CRASH, f"it ended with code {code} and said nothing")
            data += part
            if len(data) > MOST_LINE:
                raise ChildError(Status.GARBAGE, "it says more than anyone wants to know")
            *lines, data = data.split(b"\n")
            for line in lines:
                if line[:1] == b"=":
                    yield line[1:].decode(errors="replace")
                    limit, said = building, True
                elif line[:1] == b"!":
                    raise ChildError(Status.BUILD_ERROR, line[1:].decode(errors="replace"))
                elif line[:1] != b"+":
                    raise ChildError(Status.GARBAGE, f"it said {line[:60]!r}")
                elif extended is not None:
                    limit = extended
                end = time.monotonic() + limit
    finally:
        os.close(read)
        _end(child)


def _end(child: int) -> None:
    """Ends a child, and waits for that; one that has ended already has been waited for."""
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended, and nobody is left to wait for


def beside_each_other(works: Sequence[Callable[[], object]], limit: float) -> Iterator[str | Outcome]:
    """What functions make, in order, as text, each in a child of its own, as many as there are cores; outcomes where
    a child fails. Building kernels needs no device."""
    left, started = deque(works), deque[tuple[int, int]]()
    try:
        while left or started:
            while left and len(started) < get_threads():
                started.append(_fork(functools.partial(_builds, left.popleft())))
            made = _said(*started.popleft(), limit)
            try:
                yield next(made)
            except ChildError as problem:
                yield Outcome(problem.status, detail=problem.detail)
            finally:
                made.close()
    finally:
        for child, read in started:
            os.close(read)
            _end(child)


def _builds(work: Callable[[], object], say: Say) -> Iterator[str]:
    """What a function makes, as text; whoever measures goes first."""
    os.nice(BUILDERS_NICE)
    yield pickle.dumps(work()).hex()


class _Owner:
    """The child that has a device open. Others build kernels, and it tries them, until one of them ends it."""

    def __init__(self) -> None:
        self._bench: Bench | None = None
        self._child: tuple[Generator[str, None, None], int] | None = None

    def trial(self, bench: Bench, built: str, limit: float) -> Outcome:
        """What comes of a kernel."""
        if self._child is None:
            wait, ask = os.pipe()
            self._child = _said(*_fork(functools.partial(_tries, wait, ask)), limit), ask
            os.close(wait)
        new = None if self._bench is bench else bench.to_send()
        text = pickle.dumps((new, built))
        with contextlib.suppress(BrokenPipeError), open(self._child[1], "wb", closefd=False) as pipe:
            pipe.write(len(text).to_bytes(8, "little") + text)
        self._bench = bench
        found = _outcome(self._child[0])
        if found is None or found.status in (Status.FAULT, Status.CRASH, Status.HANG, Status.GARBAGE):
            self.close()  # a device does nothing right any more in a process that went wrong there
        return found or Outcome(Status.CRASH, detail="it ended and said nothing")

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            answers, ask = self._child
            os.close(ask)
            answers.close()
        self._bench = self._child = None

    def __del__(self) -> None:
        self.close()


def _tries(wait: int, ask: int, say: Say) -> Iterator[str]:
    """Tries each kernel that is sent."""
    os.close(ask)
    bench: Bench | None = None
    with open(wait, "rb") as pipe:
        while size := pipe.read(8):
            new, built = pickle.loads(pipe.read(int.from_bytes(size, "little")))
            bench = bench if new is None else Bench.sent(*new)
            assert bench is not None
            kernel = pickle.loads(bytes.fromhex(built))
            if isinstance(kernel, Outcome):
                yield kernel.to_json()
                continue
            yield bench.trial(kernel).to_json()


class LocalRunner:
    """This machine: a child for each point; on a device one child for all, until one of them ends it."""

    width, unit = 1, "seconds"

    def __init__(self, build_seconds: float = BUILD_SECONDS, run_seconds: float = RUN_SECONDS) -> None:
        self.build_seconds, self.run_seconds = build_seconds, run_seconds
        self._owner = _Owner()
        self._built: dict[tuple[str, str], str] = {}  # for a device: the good ones of each task, by their traces

    def measure(self, bench: Bench, points: Sequence[tuple[Region, Point]]) -> Iterator[Outcome]:
        """The outcomes, in order."""
        running, each, together = self.run_seconds, get_threads(), self._one_by_one
        if bench.task.target.on_device:  # opened, and its default made, once for all of them
            each, running, together = len(points), 6 * running, self._on_device
            _ = bench.planned
            bench.task.target.machine_codes([])  # what compiles is loaded once for all children: that takes 0.4 s
        else:  # made before there are children: each has it for nothing
            bench.default.run()
            begin = time.perf_counter()
            bench.default.run()
            running += 500 * (time.perf_counter() - begin)
            if not math.isfinite(bench.calm):
                bench.calm = in_turns([bench.default.run], bench.threads)[0][0]
        left = list(points)
        while left:
            for outcome in together(bench, left[:each], running):
                left.pop(0)
                if outcome.status is Status.OK:
                    bench.calm = min(outcome.baseline, FORGOTTEN * bench.calm)
                yield outcome

    def _one_by_one(self, bench: Bench, points: list[tuple[Region, Point]], running: float) -> Iterator[Outcome]:
        """The outcomes of points that are built beside each other; when all are, each runs while the others wait."""
        started: list[tuple[Generator[str, None, None], int]] = []
        try:
            for at in points:
                wait, go = os.pipe()
                child = _fork(functools.partial(_gated, bench, at, wait))
                started.append((_said(*child, self.build_seconds, running), go))
                os.close(wait)
            built = [_outcome(answers) for answers, _ in started]
            for (answers, go), failed in zip(started, built):
                with contextlib.suppress(BrokenPipeError):  # one that has ended tells how
                    os.write(go, b".")
                yield failed or _outcome(answers) or Outcome(Status.GARBAGE, detail="it said nothing")
        finally:
            for answers, go in started:
                os.close(go)
                answers.close()

    def _on_device(self, bench: Bench, points: list[tuple[Region, Point]], running: float) -> Iterator[Outcome]:
        """The outcomes of points that are built beside each other, and tried by the child that has the device."""
        works = [functools.partial(bench.build, *at) for at in points]
        for built in beside_each_other(works, self.build_seconds):
            found = built if isinstance(built, Outcome) else self._owner.trial(bench, built, running)
            if found.gain >= NEARLY and isinstance(built, str):
                self._built[bench.task.key, found.trace] = built
            yield found

    def kernels(self, bench: Bench, traces: Sequence[Trace]) -> dict[int, str]:
        """Kernels of schedules of a task on a device, as text, by their places: those that were tried are known, others
        are built beside each other; none for what cannot be built."""
        key, texts = bench.task.key, [trace.to_json() for trace in traces]
        works = {text: functools.partial(bench.replay, trace) for text, trace in zip(texts, traces)}
        new = [text for text in works if (key, text) not in self._built]
        for text, built in zip(new, beside_each_other([works[one] for one in new], self.build_seconds)):
            if isinstance(built, str) and not isinstance(pickle.loads(bytes.fromhex(built)), Outcome):
                self._built[key, text] = built
        return {at: self._built[key, text] for at, text in enumerate(texts) if (key, text) in self._built}


def _gated(bench: Bench, at: tuple[Region, Point], gate: int, say: Say) -> Iterator[str]:
    """Builds a point, says so, and tries it when it is its turn."""
    built = bench.build(*at)
    yield ""
    if os.read(gate, 1):
        say("+")
        yield (built if isinstance(built, Outcome) else bench.trial(built)).to_json()


def _outcome(answers: Iterator[str]) -> Outcome | None:
    """What a child says next, how it ended otherwise; None where it says that it has built, or ended as it should."""
    try:
        text = next(answers, "")
        return Outcome.from_json(text) if text else None
    except ChildError as problem:
        return Outcome(problem.status, detail=problem.detail)
    except (ValueError, TypeError) as problem:
        return Outcome(Status.GARBAGE, detail=str(problem)[:300])
