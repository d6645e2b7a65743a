"""The processes of a pool: a scheduler, workers of devices, builders; and what starts them again when they die.

    python -m weft.pool.node scheduler '{"folder": …, "host": …, "port": …}'
    python -m weft.pool.node worker    '{"folder": …, "url": …, "kind": …, "device": …, …}'

Dask's workers end when their scheduler does: `Supervisor` starts each process again until it is told to stop.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weft.core.version import VERSION
from weft.pool import jobs, settings
from weft.pool.ca import security
from weft.pool.device import PoolError
from weft.pool.devices import open_device
from weft.pool.guard import guard
from weft.runtime.cache_folder import cache_folder
from weft.tuner.records import compiler_version

BUILD = "build"  # the resource of a builder


def device_resource(kind: str) -> str:
    """The resource of a worker with a device of a kind: it has one, and a measurement takes it."""
    return f"device:{kind}"


def free_port(host: str) -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])


def _quiet(kind: Any) -> Any:
    """A class of Dask's without the web server that each of its processes has: a port that asks nobody for a key.

    A scheduler gives a job to the next worker that has none, else to one with the fewest: each has one device. Dask
    would collect all workers of the kind for each job, and estimate for each of them when the job would begin.
    """

    def decide(self: Any, task: Any) -> Any:
        found, names = None, list(self.resources.get(next(iter(task.resource_restrictions or ()), None), ()))
        turn = self.n_tasks % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            one = self.workers[name]
            if one.status.name == "running" and (found is None or len(one.processing) < len(found.processing)):
                found = one
                if not one.processing:
                    break
        return found

    ours = {"start_http_server": lambda *_, **__: None, "decide_worker_non_rootish": decide}
    return type(kind.__name__, (kind,), ours)


async def _schedule(given: Mapping[str, Any]) -> None:
    from distributed import Scheduler
    from distributed.stealing import WorkStealing

    made = _quiet(Scheduler)(  # of its extensions (shuffles, queues, published data) a pool needs one
        host=given["host"], port=given["port"], protocol="tls", dashboard=False, extensions={"stealing": WorkStealing},
        security=security(Path(given["folder"]), "scheduler"),
    )  # fmt: skip
    async with made:
        sys.stdout.write(f"listening on {made.address}\n")
        sys.stdout.flush()
        await made.finished()


async def _work(given: Mapping[str, Any]) -> None:
    from distributed import Worker

    kind = given["kind"]
    about: dict[str, Any] = {"kind": kind, "version": VERSION, "compiler": compiler_version(), "pid": os.getpid()}
    if kind == BUILD:
        resources = {BUILD: 1.0}
    else:
        key = given.get("key") or str(Path(given["folder"]) / "device.key")
        jobs.device = open_device(given["device"], given["target"], Path(key))
        jobs.journal = jobs.Journal(_journal_path(given))
        resources = {device_resource(kind): 1.0}
        about |= {"device": given["device"], "unit": jobs.device.unit, "needs": jobs.device.needs}
        about["facts"] = jobs.device.facts
    try:
        made = _quiet(Worker)(
            given["url"], nthreads=1, name=given["name"], resources=resources, memory_limit=0, dashboard=False,
            security=security(Path(given["folder"]), "worker"), startup_information={"weft": lambda worker: about},
            local_directory=given["scratch"], heartbeat_interval="2s", death_timeout="60s",
            extensions={}, metrics={},
        )  # fmt: skip
        async with made:
            sys.stdout.write(f"joined {given['url']}\n")
            sys.stdout.flush()
            await made.finished()
    finally:
        if jobs.device is not None:
            jobs.device.close()


def _journal_path(given: Mapping[str, Any]) -> Path:
    folder = cache_folder("pool")
    if folder is None:
        raise PoolError("the cache folder cannot be used for the journal: name one of your own with WEFT_CACHE_DIR")
    return folder / f"journal-{quote(given['name'], safe='')}.jsonl"  # a name may have slashes


def command_of(role: str, given: Mapping[str, Any]) -> list[str]:
    """The command that starts one process."""
    return [sys.executable, "-m", "weft.pool.node", role, json.dumps(dict(given))]


class Supervisor:
    """Processes that are started again when they end, by their names."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self.commands = dict(commands)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, list[float]] = {name: [] for name in commands}

    def look(self) -> None:
        """Starts what is not running."""
        for name, command in self.commands.items():
            old = self.processes.get(name)
            if old is not None and old.poll() is None:
                continue
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            self._begun[name].append(time.monotonic())

    def run(self) -> None:
        """Until Ctrl-C, or until a process ends again and again as soon as it is started."""
        try:
            while True:
                self.look()
                time.sleep(settings.AGAIN_SECONDS)
                for name, begun in self._begun.items():
                    if len(begun) > (most := settings.MOST_STARTS) and begun[-1] - begun[-most] < 5.0 * most:
                        raise PoolError(f"{name} ends as soon as it is started: its own words are above")
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends them all."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def worker_command(folder: Path, url: str, name: str, given: Mapping[str, Any]) -> list[str]:
    """The command of a worker: `kind`, and for one with a device `device` ("here"), `target` ("native"), `key`."""
    made = {"device": "here", "target": "native", **given, "folder": str(folder), "url": url, "name": name}
    return command_of("worker", {"scratch": tempfile.gettempdir(), **made})


class LocalPool(Supervisor):
    """A scheduler with builders and devices of this machine, in the background of a `with` block."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", port: int = 0, builders: int = 1,
        devices: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self.port = port or free_port(host)
        self.url = f"tls://{host if host != '0.0.0.0' else '127.0.0.1'}:{self.port}"
        commands = {"scheduler": command_of("scheduler", {"folder": str(folder), "host": host, "port": self.port})}
        workers: dict[str, Mapping[str, Any]] = {f"builder-{number}": {"kind": BUILD} for number in range(builders)}
        for name, given in {**workers, **(devices or {})}.items():
            commands[name] = worker_command(folder, self.url, name, given)
        super().__init__(commands)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="weft-pool", daemon=True)

    def _watch(self) -> None:
        while not self._stopped.wait(settings.AGAIN_SECONDS):
            self.look()

    def __enter__(self) -> LocalPool:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopped.set()
        self._thread.join()
        self.stop()


def main(words: Sequence[str]) -> int:
    """One process of a pool."""
    role, given = words[0], json.loads(words[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with its parent
    guard()
    try:
        asyncio.run({"scheduler": _schedule, "worker": _work}[role](given))
    except (PoolError, OSError, RuntimeError, asyncio.TimeoutError) as error:
        sys.stderr.write(f"weft {role}: {error}{f' ({error.__cause__})' if error.__cause__ else ''}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 1


if __name__ == "__main__":
    # Jobs are looked up by name: the module that was started must be the one that they find.
    sys.exit(main(sys.argv[1:]))
