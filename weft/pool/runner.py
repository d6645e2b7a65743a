"""A search's measurements in a pool: programs built by builders, measured by workers of one kind of device.

`PoolRunner` is a `tuner.runner.Runner`. A point becomes two of Dask's tasks: a build, known by its content, and a
measurement, which takes the one device that a worker has. When the scheduler is lost the runner connects again,
collects what workers finished meanwhile, and sends only the rest again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.compiler.kernels.build import lift_scheduled
from weft.compiler.kernels.program import GroupProgram
from weft.core.errors import WeftError
from weft.loop.verifier import verify
from weft.plan.sketch import Point
from weft.pool import jobs, settings
from weft.pool.ca import default_folder, security
from weft.pool.device import PoolError
from weft.pool.devices import LIBRARY, PROGRAM
from weft.pool.kinds import arrays_of, facts_of, parameters_of, target_of
from weft.pool.node import BUILD, device_resource
from weft.targets.base import Target
from weft.tuner.bench import Bench
from weft.tuner.database import Database
from weft.tuner.records import Outcome, Record, Status, compiler_version, machine_key
from weft.tuner.space import Region

logger = logging.getLogger("weft.pool")

LOST = ("lost", "cancelled")
DEFAULT = "default"  # what the record of a task's default has for a sketch

Job = Mapping[str, Any]
"""What a worker needs to measure a point: JSON."""


def fleet(client: Any) -> list[dict[str, Any]]:
    """The workers of a pool, as they described themselves."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [
        {**one["weft"], "name": str(one["name"]), "address": address, "at_work": bool(one["metrics"].get("executing"))}
        for address, one in workers.items() if isinstance(one.get("weft"), dict)
    ]  # fmt: skip


def connect(url: str, folder: Path, seconds: float) -> Any:
    """A connection to a scheduler; a PoolError where none answers for so long."""
    from distributed import Client

    end, problem = time.monotonic() + seconds, ""
    while time.monotonic() < end:
        try:
            return Client(url, security=security(folder, "client"), timeout=5, set_as_default=False)
        except (OSError, TimeoutError) as error:
            problem = str(error)
            time.sleep(settings.LOOK_SECONDS)
    raise PoolError(f"no scheduler of a pool answers at {url}, with our certificates: {problem}")


def send(client: Any, tasks: Mapping[str, tuple[Any, ...]], resource: str) -> list[Any]:
    """Sends calls, functions with bytes or the keys of others' results, in one message; their futures, in order."""
    from dask._expr import LLGExpr
    from dask._task_spec import Task, TaskRef

    made = {
        key: Task(key, function, *(TaskRef(one) if isinstance(one, str) else one for one in given))
        for key, (function, *given) in tasks.items()
    }
    if not made:
        return []
    graph = LLGExpr(made, _determ_token=uuid.uuid4().hex)  # Dask would hash all of it
    return list(client.get(graph, list(made), sync=False, retries=2, resources={resource: 1}))


@dataclass
class PoolRunner:
    """Measures points on devices of one kind."""

    url: str
    kind: str
    folder: Path = field(default_factory=default_folder)
    """Of the certificates."""
    deadline: float = 60.0
    """Seconds that a kind may be without a worker before that is said."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    """What the names of this runner's jobs begin with: no other job has them."""

    def __post_init__(self) -> None:
        self._client: Any = None
        self.built: dict[str, Any] = {}
        self.told: dict[str, str] = {}
        self._defaults: dict[str, tuple[str, list[Any]]] = {}
        self._sent = 0
        self.about = self._wait_for_kind()

    @property
    def target(self) -> Target:
        """The machine that devices of the kind are."""
        return target_of(self.about["facts"])

    @property
    def unit(self) -> str:
        """What is measured: seconds, or instructions where time means nothing."""
        return str(self.about["unit"])

    @property
    def width(self) -> int:
        """How many devices there are now."""
        return max(1, len([one for one in self.ask(fleet) if one["kind"] == self.kind]))

    def client(self) -> Any:
        """A connection to the scheduler, made anew where there is none; a PoolError where that takes too long."""
        if self._client is not None and self._client.status == "running":
            return self._client
        self.close()
        self._client = connect(self.url, self.folder, self.deadline)
        self._client.subscribe_topic(jobs.topic_of(f"{self.run}-0"), lambda event: self.told.update([event[1]]))
        return self._client

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """The answer to a question; asked again where the scheduler dies over it, until the deadline."""
        end = time.monotonic() + self.deadline
        while True:
            try:
                return question(self.client())
            except (OSError, TimeoutError, CancelledError) as error:
                logger.warning("the pool was lost while it was asked: %s", error)
                if time.monotonic() > end:
                    raise PoolError(f"the pool at {self.url} was lost again and again: {error}") from error
            self.close()
            time.sleep(settings.LOOK_SECONDS)

    def close(self) -> None:
        """Leaves the pool."""
        client, self._client = self._client, None
        self.built.clear()
        if client is not None:
            client.close(timeout=2)

    def _wait_for_kind(self) -> dict[str, Any]:
        """What devices of the kind say of themselves; a PoolError where there is none until the deadline."""
        end = time.monotonic() + self.deadline
        while True:
            seen = self.ask(fleet)
            found = [one for one in seen if one["kind"] == self.kind]
            builders = [one for one in seen if one["kind"] == BUILD and found and found[0]["needs"] == LIBRARY]
            if found and (builders or found[0]["needs"] != LIBRARY):
                return agreed(found, builders)
            if time.monotonic() > end:
                there, wanted = ", ".join(sorted({str(one["kind"]) for one in seen})), BUILD if found else self.kind
                raise PoolError(
                    f"no worker of kind {wanted!r} has been in the pool for {self.deadline:.0f} s (there: "
                    f"{there or 'nobody'}): start one with weft worker --join {self.url} --kind {wanted}"
                )
            time.sleep(settings.LOOK_SECONDS)

    def _program(self, bench: Bench, program: GroupProgram) -> tuple[str, list[Any]]:
        """The text of a scheduled program, and its parameters."""
        lifted = lift_scheduled(program, bench.task.fixed)
        func = lifted.func.replace(name=jobs.NAME)
        verify(func)
        return repr(func), parameters_of(lifted.parameters)

    def _default(self, bench: Bench) -> tuple[str, list[Any]]:
        if bench.task.key not in self._defaults:
            program = bench.task.fresh()
            program.schedule.plan(bench.task.target, bench.task.fixed)
            self._defaults[bench.task.key] = self._program(bench, program)
        return self._defaults[bench.task.key]

    def job_of(self, bench: Bench, region: Region | None, point: Point) -> Job | Outcome:
        """All that a worker needs to measure a point (None: the default); an outcome where it cannot be tried."""
        task, program, trace = bench.task, bench.task.fresh(), ""
        pairs = [self._default(bench)]
        try:
            if region is not None:
                region.take(program, point)
                trace = program.schedule.trace.to_json()
                pairs.append(self._program(bench, program))
        except WeftError as error:
            status = Status.BUILD_ERROR if trace else Status.REFUSED
            return Outcome(status, detail=str(error).splitlines()[0][:300], trace=trace)
        self._sent += 1
        record = Record(
            task.key, machine_key(task.target, self.unit), compiler_version(),
            region.sketch.name if region is not None else DEFAULT, dict(point), Outcome(Status.OK),
            label=task.label,
        )  # fmt: skip
        return {
            "id": f"{self.run}-{self._sent}", "target": facts_of(task.target), "symbol": jobs.SYMBOL, "trace": trace,
            "record": {**json.loads(record.to_json()), "outcome": None}, "arrays": arrays_of(bench),
            "inputs": len(task.program.inputs), "programs": [text for text, _ in pairs],
            "parameters": [parameters for _, parameters in pairs],
        }  # fmt: skip

    def submit(self, client: Any, given: Sequence[Job]) -> list[Any]:
        """Sends jobs as one message, and what they need built as one before it; the futures of their records."""
        needs, built, tasks = self.about["needs"], {}, {}  # type: Any, dict[str, Any], dict[str, Any]
        if len(self.built) > 256:  # Dask forgets what nobody refers to
            self.built.clear()
        for job in given:
            wanted = [(job["target"], text) for text in job["programs"] if needs == LIBRARY]
            orders = [json.dumps({"target": target, "program": text}).encode() for target, text in wanted]
            keys = [f"build-{hashlib.sha256(data).hexdigest()}" for data in orders]
            built |= {key: (jobs.build, data) for key, data in zip(keys, orders) if key not in self.built}
            sent = {**job, "programs": job["programs"] if needs == PROGRAM else []}
            tasks[f"measure-{job['id']}-{job.get('again', 0)}"] = (jobs.measure, json.dumps(sent).encode(), *keys)
        self.built |= zip(built, send(client, built, BUILD))
        return send(client, tasks, device_resource(self.kind))

    def measure(self, bench: Bench, points: Sequence[tuple[Region, Point]]) -> Iterator[Outcome]:
        """The outcomes, in order, each when it is known; devices are at work while later points are planned."""
        return self.outcomes(self.job_of(bench, region, point) for region, point in points)

    def outcomes(self, made: Iterable[Job | Outcome]) -> Iterator[Outcome]:
        """What comes of jobs, in order."""
        found, known, place = self._found(made), {}, 0  # type: Any, dict[int, Outcome], int
        try:
            for at, outcome in found:
                known[at] = outcome
                while place in known:
                    yield known.pop(place)
                    place += 1
        finally:
            found.close()

    def _found(self, made: Iterable[Job | Outcome]) -> Iterator[tuple[int, Outcome]]:
        """The outcomes of jobs as they come; connects and sends again when the pool was lost."""
        sent, batch, last = _Sent(self), {}, 0.0  # type: _Sent, dict[int, Job], float
        try:
            for at, one in enumerate(made):
                if isinstance(one, Outcome):
                    yield at, one
                else:
                    batch[at] = one
                if time.monotonic() - last > settings.BATCH_SECONDS:
                    sent.send(batch)
                    batch, last = {}, time.monotonic()
            sent.send(batch)
            last = time.monotonic()
            while sent.waiting:
                for at, outcome in sent.ready():
                    last = time.monotonic()
                    yield at, outcome
                if sent.is_lost():
                    logger.warning("the pool was lost, with %d jobs waiting: connecting again", len(sent.waiting))
                    self.close()
                    yield from self._finished_meanwhile(sent.waiting)
                    waiting, sent = sent.waiting, _Sent(self)
                    sent.send(waiting)
                elif time.monotonic() - last > self.deadline:
                    self._wait_for_kind()
                    last = time.monotonic()
        finally:
            sent.cancel()

    def _finished_meanwhile(self, waiting: dict[int, Job]) -> Iterator[tuple[int, Outcome]]:
        """What workers that came back have in their journals."""
        about = next(iter(waiting.values()))["record"]
        self._wait_for_kind()
        known = self.collect(about["machine"], {job["record"]["task"] for job in waiting.values()}, self.run)
        for at, record in [(at, known[job["id"]]) for at, job in waiting.items() if job["id"] in known]:
            del waiting[at]
            yield at, replace(record.outcome, at=record.at)

    def collect(self, machine: str, tasks: set[str], run: str = "") -> dict[str, Record]:
        """What workers have measured of tasks, by the names of jobs, whether or not we were told; of one run or all."""
        asked = json.dumps({"machine": machine, "tasks": sorted(tasks), "run": run}).encode()
        said = self.ask(lambda client: client.run(jobs.collect, asked, on_error="ignore"))
        found = {}
        for name, line in (pair for one in said.values() for pair in json.loads(one).items()):
            try:
                found[name] = Record.from_json(line)
            except WeftError as error:
                logger.error("a worker's journal holds what is no measurement: %s", error)
        return found

    def gather(self, database: Database, target: Target, tasks: set[str]) -> int:
        """Takes over what workers measured of tasks and nobody wrote down; how many that was.

        A point that has a row gets no second one: where a job ran twice, because its worker was lost for a while, one
        of the two counts.
        """
        machine = machine_key(target, self.unit)
        found = self.collect(machine, tasks).values()
        known = {_place(record) for record in database.records(machine=machine, version=compiler_version())}
        new = {_place(record): record for record in found if record.sketch != DEFAULT and _place(record) not in known}
        return database.add(record for record in new.values() if record.version == compiler_version())


def agreed(found: list[dict[str, Any]], builders: list[dict[str, Any]]) -> dict[str, Any]:
    """What devices of one kind have in common: all that they say; and builders compile what we would."""
    for one in found:
        if one["facts"] != found[0]["facts"] or one["unit"] != found[0]["unit"]:
            raise PoolError(f"{found[0]['name']} and {one['name']} are not of one kind: give one of them another name")
    for one in found + builders:
        if one["compiler"] != compiler_version():
            raise PoolError(f"{one['name']} runs {one['compiler']}, and this is {compiler_version()}")
    return (found or builders)[0]


def _told(data: bytes) -> Outcome:
    try:
        record = Record.from_json(data.decode())
        return replace(record.outcome, at=record.at)
    except (ValueError, TypeError, KeyError, WeftError) as error:
        return Outcome(Status.GARBAGE, detail=str(error)[:300])


def _place(record: Record) -> tuple[str, str, str]:
    return record.task, record.sketch, json.dumps(dict(record.point), sort_keys=True)


class _Sent:
    """Jobs that were sent, and Dask's futures of them."""

    def __init__(self, runner: PoolRunner) -> None:
        self.runner, self.client = runner, runner.client()
        self.waiting: dict[int, Job] = {}
        self.futures: dict[int, Any] = {}
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()

    def send(self, given: Mapping[int, Job]) -> None:
        """Sends jobs, if the pool is there."""
        from distributed.client import ClosedClientError

        self.waiting |= given
        try:
            for at, future in zip(given, self.runner.submit(self.client, list(given.values()))):
                self.futures[at] = future
                future.add_done_callback(lambda _, at=at: self._done.put(at))
        except (ClosedClientError, OSError):
            return  # `is_lost` tells, when all are sent

    def is_lost(self) -> bool:
        """Whether the pool forgot a job."""
        states = [self.futures[at].status if at in self.futures else LOST[0] for at in self.waiting]
        return bool(states) and (self.client.status != "running" or any(one in LOST for one in states))

    def ready(self) -> Iterator[tuple[int, Outcome]]:
        """What came in; waits for a moment where nothing did."""
        try:
            places = {self._done.get(timeout=settings.LOOK_SECONDS)}
            while not self._done.empty():
                places.add(self._done.get())
        except queue.Empty:
            places = {at for at in self.waiting if at in self.futures and self.futures[at].done()}
        again, done = {}, {}
        for at in sorted(places & self.waiting.keys()):
            job, status = self.waiting[at], self.futures[at].status
            if status == "error" and job.get("again", 0) < settings.MOST_AGAIN:
                # Jobs raise nothing: a worker was stopped in the middle of one. Who finished it has it in a journal.
                self.runner.built.clear()  # a build may have failed with its builder
                again[at] = {**job, "again": job.get("again", 0) + 1}
            elif status not in LOST:
                done[at] = self.futures[at]
        self.send(again)
        for at, outcome in self._outcomes(done).items():
            del self.waiting[at]
            yield at, outcome

    def _outcomes(self, done: Mapping[int, Any]) -> dict[int, Outcome]:
        """What came of jobs: most were told, the rest is fetched by one question."""
        from distributed import KilledWorker

        found = {}
        try:
            for at, future in done.items():
                if future.status == "error":
                    error = future.exception(timeout=10)
                    found[at] = Outcome(Status.CRASH, detail=f"{type(error).__name__}: {error}".splitlines()[0][:300])
                elif told := self.runner.told.pop(self.waiting[at]["id"], ""):
                    found[at] = _told(told.encode())
            fine = {at: future for at, future in done.items() if at not in found}  # what was told before we listened
            fetch = functools.partial(self.client.gather, list(fine.values()), asynchronous=True)
            for at, data in zip(fine, self.client.sync(fetch, callback_timeout=20) if fine else ()):
                found[at] = _told(bytes(data))
        except (OSError, TimeoutError, CancelledError, KeyError, KilledWorker) as error:
            # The scheduler or a worker went while they were fetched: they are asked for, or sent, again.
            logger.info("results were lost on their way: %s", error)
        return found

    def cancel(self) -> None:
        """Calls back what was not begun."""
        for future in self.futures.values():
            if self.client.status == "running" and not future.done():
                future.cancel()
