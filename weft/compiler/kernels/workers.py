"""Jobs made by all cores at once: by this process, and by forked ones that know what is to be done without being told.

In: functions that make picklable results, the same whoever calls them. Out: the results. In a process llvmlite takes
one thread at a time, and Python does: threads would gain little. A fresh process would spend a second on imports; a
forked one has modules, programs and settings as they are here. It takes the jobs that were there when it was forked,
those of the longest programs first, while this process plans further ones, and then makes jobs, too.

A process that is forked while other threads run (torch's, BLAS's) finds their locks as they were. LLVM's are taken
before; for whatever else a child might wait for, nobody depends on one: a job that fails there, or of which nothing is
heard for long, is made here. Where there is no fork that other libraries bear (anywhere but on Linux, or
beside JAX, which warns of it), and with one thread, this process makes all jobs.
"""

from __future__ import annotations

import gc
import logging
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from weft.codegen.llvm.child import nobody_in_llvm
from weft.core import model
from weft.runtime.threads import get_threads

logger = logging.getLogger("weft.compiler")

T = TypeVar("T")

_MOST_JOBS = 1 << 16
_ROW = struct.Struct("<qqqd")
"""What a child tells: which job it has made (-1: it ends), where the result is, and the seconds that it took."""
_is_warm = False
_spent, _letters = model.JOB_SECONDS, float(model.JOB_LETTERS)
"""What jobs have taken, and how long their programs were; the older the less they count."""
_END = _ROW.pack(-1, 0, 0, 0.0)


def _note(seconds: float, size: int) -> None:
    global _spent, _letters
    _spent, _letters = model.JOB_MEMORY * _spent + seconds, model.JOB_MEMORY * _letters + size


class Job(Generic[T]):
    """Something to be made once, of a program of so many letters."""

    def __init__(self, make: Callable[[], T], size: int = model.JOB_LETTERS) -> None:
        self._make: Callable[[], T] | None = make
        self._made: T | None = None
        self.size = size

    @classmethod
    def of(cls, made: T) -> Job[T]:
        """One that has its result."""
        return cls(lambda: made)

    @property
    def is_made(self) -> bool:
        """Whether the result is there."""
        return self._make is None

    def result(self) -> T:
        """The result; it is made now if it is not there."""
        make = self._make
        if make is not None:
            self.put(make())
        return self._made  # type: ignore[return-value]

    def put(self, made: T) -> None:
        """Takes a result."""
        self._made = made
        self._make = None


elsewhere: ContextVar[Callable[[Any, Any], Callable[[], Any]] | None] = ContextVar("elsewhere", default=None)
"""Sends a program for a machine to others that compile it; what it gives waits for what they say (`weft.pool`)."""


class _Child:
    """A forked process, the pipe that it tells of its jobs by, and the file of its results."""

    def __init__(self, pid: int, pipe: int, results: int) -> None:
        self.pid, self.pipe, self.results = pid, pipe, results

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # somebody takes the ends of all children
            os.waitpid(self.pid, 0)
        os.close(self.pipe)
        os.close(self.results)


class Workers:
    """Makes jobs; `finish` waits for all of them, `close` for none."""

    def __init__(self) -> None:
        self.jobs: list[Job[Any]] = []
        self._asked: list[tuple[Job[Any], Callable[[], Any]]] = []
        self._children: list[_Child] = []
        self._claims: mmap.mmap | None = None
        self._given = 0
        may_fork = sys.platform == "linux" and "jax" not in sys.modules
        self._most = min(get_threads() - 1, model.MOST_CHILDREN) if may_fork else 0

    def submit(self, job: Job[Any], asked: Callable[[], Any] | None = None) -> None:
        """Has a job made at some time; by others, where they were asked."""
        global _is_warm
        if asked is not None:
            self._asked.append((job, asked))
            return
        self.jobs.append(job)
        if not _is_warm:  # the first loads what all need, in this process and so in its children
            _is_warm = True
            with suppress(Exception):  # raised again to who asks for the result
                job.result()
        self._fork(model.ENOUGH_JOBS)

    def tend(self) -> None:
        """Forks where a child has ended and jobs wait, while this process does something else."""
        self._fork(model.ENOUGH_JOBS)

    def finish(self) -> None:
        """Makes what is not made yet. A job that fails stays as it is: its error is raised to who asks for it."""
        while self._asked:
            job, asked = self._asked.pop(0)
            try:
                job.put(asked())
            except Exception as error:  # noqa: BLE001 — of any kind: what others cannot make is made here
                logger.warning("a kernel is compiled here, since nobody else did: %s", error)
                self.jobs.append(job)
        for at in self._longest_first(self._given):
            self._fork(2)
            self._try(at)
        while self._children:
            self._hear(model.PATIENCE_SECONDS)
        self.jobs = [job for job in self.jobs if not job.is_made]
        for job in self.jobs:
            with suppress(Exception):
                job.result()
        self.jobs = []
        self._claims = None

    def close(self) -> None:
        """Ends the children, whatever they do."""
        self._end_children()
        self.jobs, self._asked = [], []

    def _waiting(self) -> list[Job[Any]]:
        claims = self._claims
        return [job for at, job in enumerate(self.jobs) if not job.is_made and not (claims and claims[at])]

    def _longest_first(self, given: int = 0) -> list[int]:
        """The jobs so that the last ones, for which one process may wait, are short; after those that no child knows
        the ones that were given to it."""
        return sorted(range(len(self.jobs)), key=lambda at: (at < given, -self.jobs[at].size))

    def _try(self, at: int) -> bool:
        """Makes a job that nobody has taken; whether that went well. Two that take one at once make the same."""
        job, claims = self.jobs[at], self._claims
        if job.is_made or (claims is not None and claims[at]):
            return False
        if claims is not None:
            claims[at] = 1
        start = time.thread_time()
        try:
            job.result()
        except Exception as error:  # noqa: BLE001 — raised again to who asks for the result
            logger.debug("a job failed: %r", error)
            return False
        _note(time.thread_time() - start, job.size)
        return True

    def _fork(self, least: int) -> None:
        """Forks a child where a core is free for it and enough jobs wait."""
        if self._most < 1 or len(self.jobs) > _MOST_JOBS:
            return
        self._hear(0)
        waiting = self._waiting()
        likely = sum(job.size for job in waiting) * _spent / _letters
        if len(self._children) >= self._most or len(waiting) < least or likely < model.ENOUGH_SECONDS:
            return
        try:
            self._claims = self._claims or mmap.mmap(-1, _MOST_JOBS)
            with tempfile.TemporaryFile() as file:
                results = os.dup(file.fileno())
            reading, writing = os.pipe()
            with nobody_in_llvm(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork: see above
                pid = os.fork()
        except OSError as error:
            logger.info("kernels are compiled by one process: %s", error)
            self._most = 0
            return
        if pid == 0:
            self._child(writing, results)
        os.close(writing)
        self._given = len(self.jobs)
        self._children.append(_Child(pid, reading, results))

    def _child(self, pipe: int, results: int) -> None:
        """What a forked process does; it does not return."""
        try:
            gc.disable()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            end = 0
            for at in self._longest_first():
                start = time.thread_time()
                if self._try(at):
                    data = pickle.dumps(self.jobs[at].result(), pickle.HIGHEST_PROTOCOL)
                    os.pwrite(results, data, end)
                    os.write(pipe, _ROW.pack(at, end, len(data), time.thread_time() - start))
                    end += len(data)
            os.write(pipe, _END)
        finally:
            os._exit(0)

    def _hear(self, seconds: float) -> None:
        """Takes what children have made; waits so long for a first word, and gives all of them up that say none."""
        pipes = {child.pipe: child for child in self._children}
        poll = select.poll()
        for pipe in pipes:
            poll.register(pipe, select.POLLIN)
        ready = poll.poll(seconds * 1000) if pipes else []
        if seconds and not ready:
            logger.info("%d processes that compile kernels are stuck: this one makes what they should", len(pipes))
            self._end_children()
        for pipe, _ in ready:
            for row in _ROW.iter_unpack(os.read(pipe, _ROW.size << 6) or _END):
                self._take(pipes[pipe], *row)

    def _take(self, child: _Child, at: int, start: int, size: int, seconds: float) -> None:
        if at < 0:
            self._children.remove(child)
            child.close()
        elif not self.jobs[at].is_made:
            _note(seconds, self.jobs[at].size)
            self.jobs[at].put(pickle.loads(os.pread(child.results, size, start)))

    def _end_children(self) -> None:
        while self._children:
            self._children.pop().close()
