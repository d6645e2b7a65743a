"""Runs cases in worker processes, keeps what was found, and tells of it.

A worker is forked, runs one case after another and answers each over a pipe. One that dies or takes too long is
replaced; the case it was at is the finding. The state is a SQLite file: for each kind and version of the code how many
cases had which outcome, the next number, and the findings with their smallest case. A later run goes on from there.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import sqlite3
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.fuzz.kinds import OUTCOMES, Case, Kind, Result, attempt, find_kind

ROOT = Path(__file__).resolve().parents[2]
CASES_OF_A_WORKER = 2000
"""A worker is replaced after so many, so that what one case leaves behind does not explain the next."""
PEER = 1
"""What the byte of a worker says while another program's code runs: its faults are not ours."""

_stage: mmap.mmap | None = None


@contextlib.contextmanager
def peer() -> Any:
    """Around code of others, whose faults are not Weft's."""
    if _stage is not None:
        _stage[0] = PEER
    try:
        yield
    finally:
        if _stage is not None:
            _stage[0] = 0


# ------------------------------------------------------------------------------------------------------------- worker


class Worker:
    """A process that runs cases."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.stage = mmap.mmap(-1, 1)
        self.log = folder / f"worker-{os.getpid()}-{id(self)}.log"
        self.process = context.Process(target=_serve, args=(theirs, self.stage, self.log), daemon=True)
        self.process.start()
        theirs.close()
        self.task: tuple[Kind, Any] | None = None
        self.began = 0.0
        self.done = 0

    def give(self, kind: Kind, case: int | Case) -> None:
        """Starts a case, by its number or itself."""
        self.task, self.began = (kind, case), time.monotonic()
        self.connection.send((kind.name, case))

    def is_late(self) -> bool:
        """Whether even a busy machine would have answered; processor time is limited in the worker itself."""
        return self.task is not None and time.monotonic() - self.began > 15 * self.task[0].seconds

    def take(self) -> Result:
        """The result of the case; a worker that died is a result too."""
        assert self.task is not None
        try:
            result: Result = self.connection.recv()
            self.done += 1
        except (EOFError, ConnectionResetError, pickle.UnpicklingError):
            self.process.join()
            result = self._death(self.process.exitcode or 0)
        self.task = None
        return result

    def _death(self, code: int) -> Result:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        tail = self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
        if self.stage[0] == PEER:
            return Result("explained", "the peer's own fault", f"{name}\n{tail}")
        outcome = "hang" if name in ("SIGXCPU", "SIGKILL") else "fault"
        where = [
            line.split('"')[-2].rpartition("/weft/")[2]
            for line in tail.splitlines()
            if "/weft/" in line and line.count('"') > 1
        ]
        kind, task = self.task or (None, None)
        case = kind.make(task) if kind is not None and isinstance(task, int) else task
        reason = kind.excuse(case) if name == "SIGXCPU" and kind is not None and case is not None else None
        if reason is not None:
            return Result("explained", reason, tail)
        label = getattr(case, "more", {}).get("label", "")
        return Result(outcome, f"{name} in {where[0] if where else '?'} {label}".strip(), tail)

    def end(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.log.unlink(missing_ok=True)


def _serve(connection: Connection, stage: mmap.mmap, log: Path) -> None:
    global _stage
    _stage = stage
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    complaints = open(log, "w")  # noqa: SIM115
    os.dup2(complaints.fileno(), 2)
    os.dup2(complaints.fileno(), 1)
    faulthandler.enable(complaints)
    faulthandler.register(signal.SIGXCPU, complaints, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    ready: set[str] = set()
    while True:
        try:
            name, case = connection.recv()
        except EOFError:
            os._exit(0)
        kind = find_kind(name)
        if name not in ready:
            kind.setup()
            ready.add(name)
        with time_limit(kind.seconds), memory_limit(kind.memory):
            connection.send(attempt(kind, kind.make(case) if isinstance(case, int) else case))
        complaints.seek(0)
        complaints.truncate()


@contextlib.contextmanager
def time_limit(seconds: float) -> Any:
    """Ends the process by SIGXCPU when the block takes more processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


@contextlib.contextmanager
def memory_limit(size: int | None) -> Any:
    """In the block the process may map so many bytes more than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if size is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -------------------------------------------------------------------------------------------------------------- state


def code_version() -> str:
    """A hash of the package and of the nets themselves: counts of another version are not these counts."""
    digest = hashlib.sha256()
    for folder in ("weft", "tests/fuzz", "tests/schedule"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)} ".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class State:
    """What was run and found, in a file."""

    def __init__(self, path: Path, version: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.version = version
        self.base = sqlite3.connect(path)
        self.base.executescript(
            "create table if not exists counts (version, kind, outcome, reason, count, primary key"
            " (version, kind, outcome, reason));"
            "create table if not exists progress (version, kind, next, seconds, primary key (version, kind));"
            "create table if not exists findings (version, kind, seed, outcome, reason, detail, smallest, primary key"
            " (version, kind, outcome, reason));"
        )

    def next(self, kind: str) -> int:
        """The number of the next case."""
        row = self.base.execute("select next from progress where version=? and kind=?", (self.version, kind)).fetchone()
        return int(row[0]) if row else 0

    def add(self, kind: str, result: Result, seconds: float) -> bool:
        """Counts a result; whether it is the first of its like."""
        key = (self.version, kind, result.outcome, result.reason)
        known = self.base.execute(
            "select 1 from counts where version=? and kind=? and outcome=? and reason=?", key
        ).fetchone()
        self.base.execute("insert into counts values (?,?,?,?,1) on conflict do update set count = count + 1", key)
        self.base.execute(
            "insert into progress values (?,?,0,?) on conflict do update set seconds = seconds + excluded.seconds",
            (self.version, kind, seconds),
        )
        return known is None

    def advance(self, kind: str, number: int) -> None:
        """Says that all cases below a number are done."""
        self.base.execute(
            "insert into progress values (?,?,?,0) on conflict do update set next = excluded.next",
            (self.version, kind, number),
        )
        self.base.commit()

    def keep(self, kind: str, seed: int, result: Result, smallest: str) -> None:
        """Keeps a finding."""
        row = (self.version, kind, seed, result.outcome, result.reason, result.detail, smallest)
        self.base.execute("insert or replace into findings values (?,?,?,?,?,?,?)", row)
        self.base.commit()

    def findings(self) -> list[tuple[Any, ...]]:
        """The findings of this version."""
        return self.base.execute(
            "select kind, seed, outcome, reason, detail, smallest from findings where version=? order by kind",
            (self.version,),
        ).fetchall()

    def table(self) -> str:
        """Counts for each kind by outcome, and cases in a second of one worker."""
        rows: dict[str, dict[str, int]] = {}
        for kind, outcome, count in self.base.execute(
            "select kind, outcome, sum(count) from counts where version=? group by kind, outcome", (self.version,)
        ):
            rows.setdefault(kind, {})[outcome] = count
        speed = dict(
            self.base.execute("select kind, seconds from progress where version=?", (self.version,)).fetchall()
        )
        lines = [f"{'kind':14}{'cases':>9}" + "".join(f"{one:>15}" for one in OUTCOMES) + f"{'cases/s':>10}"]
        for kind, found in rows.items():
            total = sum(found.values())
            numbers = "".join(f"{found.get(one, 0):>15,}" for one in OUTCOMES)
            lines.append(f"{kind:14}{total:>9,}{numbers}{total / max(speed.get(kind, 0), 1e-9):>10.1f}")
        return "\n".join(lines)

    def reasons(self) -> str:
        """How often what was refused or explained."""
        found = self.base.execute(
            "select kind, outcome, reason, count from counts where version=? and outcome in ('refused', 'explained')"
            " order by kind, outcome, count desc",
            (self.version,),
        )
        return "\n".join(f"  {kind:14}{outcome:11}{count:>8,}  {reason}" for kind, outcome, reason, count in found)


# ---------------------------------------------------------------------------------------------------------- the loop


@dataclass
class Driver:
    """Runs kinds until a time, or so many cases of each."""

    kinds: Sequence[Kind]
    state: State
    jobs: int
    folder: Path
    say: Callable[[str], None]

    def run(self, minutes: float, most: int | None = None) -> None:
        """Goes on from where the last run ended."""
        end = time.monotonic() + minutes * 60
        next_number = {kind.name: self.state.next(kind.name) for kind in self.kinds}
        spent = dict.fromkeys(next_number, 0.0)
        limits = {name: None if most is None else number + most for name, number in next_number.items()}
        open_numbers: dict[str, set[int]] = {name: set() for name in next_number}
        workers = [Worker(self.folder) for _ in range(self.jobs)]
        told = time.monotonic()
        try:
            while True:
                for worker in workers:
                    kind = self._choose(spent, next_number, limits) if time.monotonic() < end else None
                    if worker.task is None and kind is not None:
                        worker.give(kind, next_number[kind.name])
                        open_numbers[kind.name].add(next_number[kind.name])
                        next_number[kind.name] += 1
                busy = [worker for worker in workers if worker.task is not None]
                if not busy:
                    return
                for worker in busy:
                    if worker.is_late():
                        worker.process.kill()
                        worker.process.join()
                for done in wait([worker.connection for worker in busy], 5):
                    at = next(i for i, worker in enumerate(workers) if worker.connection is done)
                    worker = workers[at]
                    assert worker.task is not None
                    (kind, number), began = worker.task, worker.began
                    result = worker.take()
                    seconds = time.monotonic() - began
                    spent[kind.name] += seconds
                    if self.state.add(kind.name, result, seconds) and not result.is_good:
                        self._found(kind, number, result)
                    open_numbers[kind.name].discard(number)
                    self.state.advance(kind.name, min(open_numbers[kind.name], default=next_number[kind.name]))
                    if not worker.process.is_alive() or worker.done >= CASES_OF_A_WORKER:
                        worker.end()
                        workers[at] = Worker(self.folder)
                if time.monotonic() - told > 60:
                    told = time.monotonic()
                    self.say(self.state.table())
        finally:
            for worker in workers:
                worker.end()

    def _choose(self, spent: dict[str, float], numbers: dict[str, int], limits: dict[str, int | None]) -> Kind | None:
        """The kind that had least of its share of the time."""
        left = [k for k in self.kinds if limits[k.name] is None or numbers[k.name] < (limits[k.name] or 0)]
        return min(left, key=lambda kind: spent[kind.name] / kind.share) if left else None

    def _found(self, kind: Kind, number: int, result: Result) -> None:
        case, smallest = minimise(kind, number, result, self.folder)
        self.say(f"FOUND {kind.name} {number}: {result.signature}\n{smallest}\n{result.detail[-1500:]}\n")
        self.state.keep(kind.name, number, result, smallest)


def minimise(kind: Kind, number: int, result: Result, folder: Path, tries: int = 40) -> tuple[Case, str]:
    """The smallest case found that fails in the same way, and its words."""
    runner = _Retry(kind, folder)
    case = kind.make(number)
    if result.outcome == "hang":
        tries = min(tries, 2)
    try:
        found = True
        while found and tries > 0:
            found = False
            for candidate in case.smaller():
                tries -= 1
                if tries < 0:
                    break
                if runner(candidate).signature == result.signature:
                    case, found = candidate, True
                    break
        return case, kind.show(case)
    finally:
        runner.worker.end()


class _Retry:
    """Runs single cases in a worker of its own."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder, self.worker = kind, folder, Worker(folder)

    def __call__(self, case: int | Case) -> Result:
        self.worker.give(self.kind, case)
        while not self.worker.connection.poll(1):
            if self.worker.is_late():
                self.worker.process.kill()
        result = self.worker.take()
        if not self.worker.process.is_alive():
            self.worker.end()
            self.worker = Worker(self.folder)
        return result


def run_one(kind: Kind, number: int, folder: Path) -> tuple[Result, str]:
    """One case again, by its number: what becomes of it, and the smallest case that does the same."""
    runner = _Retry(kind, folder)
    try:
        result = runner(number)
    finally:
        runner.worker.end()
    case = kind.make(number)
    return result, kind.show(case) if result.is_good else minimise(kind, number, result, folder)[1]


def freeze() -> None:
    """Before forking: what the parent holds is not touched by the children's collectors."""
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
