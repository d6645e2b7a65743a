"""What a worker of a pool does. A pool calls these functions by their names, with bytes, and gets bytes.

    build(program) -> library           on a builder: "=" and a shared library, or "!" and why there is none
    kernel(program) -> object code      on a builder, for a model that is compiled elsewhere
    measure(job, libraries…) -> record  on a device's worker, one at a time
    bench(job, library, weights)        on a device's worker: a whole model
    collect(wanted) -> records          on any worker: what it measured for somebody who may not have heard of it

A measurement is in the worker's journal before anybody is told. What was measured already is answered from there, and
what a killed scheduler or client did not pass on is collected from there.
"""

from __future__ import annotations

import functools
import json
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from weft.builder import Built
from weft.codegen.llvm import compile as llvm_compile
from weft.codegen.llvm.generate import entry_symbol
from weft.compiler.export import tools
from weft.compiler.export.serial import serial_ir
from weft.compiler.kernels.build import KernelCompiler
from weft.core.errors import InternalError, WeftError
from weft.loop.ir import Func
from weft.loop.parser import parse_func
from weft.pool import settings
from weft.pool.device import PoolError, Ran
from weft.pool.devices import ServerDevice, WorkerDevice
from weft.pool.kinds import target_of
from weft.targets.base import Target
from weft.tuner.records import Outcome, Status

logger = logging.getLogger("weft.pool")

T = TypeVar("T")

NAME = "trial"
SYMBOL = entry_symbol(NAME)


class Journal:
    """The measurements that a worker finished, by the names of their jobs: a line of JSON each, in a file.

    A last line whose writer was killed was told to nobody, and goes. Others that are damaged go to a file beside it.
    """

    def __init__(self, path: Path) -> None:
        self.lines: dict[str, str] = {}
        *whole, torn = path.read_bytes().split(b"\n") if path.exists() else [b""]
        kept, damaged = [], []
        for line in filter(None, whole):
            try:
                entry = json.loads(line)
                if not {"machine", "task", "outcome"} <= json.loads(entry["record"]).keys():
                    raise ValueError("no record")
                self.lines[str(entry["id"])] = entry["record"]
                kept.append(line + b"\n")
            except (ValueError, KeyError, TypeError, AttributeError):
                damaged.append(line + b"\n")
        if damaged:
            with (aside := path.with_suffix(".damaged")).open("ab") as file:
                file.writelines(damaged)
            logger.error("%d lines of %s are no measurements: they are in %s now", len(damaged), path, aside)
        if torn or damaged or len(kept) > settings.JOURNAL_LINES:
            (new := path.with_suffix(".new")).write_bytes(b"".join(kept[-settings.JOURNAL_LINES :]))
            new.replace(path)
        self._file = path.open("ab", buffering=0)

    def add(self, name: str, record: str) -> None:
        """Writes a measurement down; when this returns, no death of this process loses it, unless the disk is full."""
        line, end = json.dumps({"id": name, "record": record}).encode() + b"\n", self._file.seek(0, 2)
        self.lines[name] = record
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk is full")
        except OSError as error:
            self._file.truncate(end)
            logger.error("a measurement is not in the journal, only in this process: %s", error)


device: WorkerDevice | None = None
"""What this worker measures on; set when it starts."""

journal: Journal | None = None


def build(program: bytes) -> bytes:
    """Compiles a scheduled program for a machine that need not be this one."""
    return _answer(program, lambda func, target: library_of(Built(func.replace(name=NAME), target, NAME)))


def kernel(program: bytes) -> bytes:
    """Compiles a kernel of a model, whose process links it: a line of JSON, its LLVM IR, its object code."""

    def make(func: Func, target: Target) -> bytes:
        code = KernelCompiler(target).code(func, func.name)
        text = code.llvm_ir.encode()
        return json.dumps([len(text), code.turns]).encode() + b"\n" + text + code.object_code

    return _answer(program, make)


def _answer(program: bytes, make: Callable[[Func, Target], bytes]) -> bytes:
    data = json.loads(program)
    try:
        target = replace(target_of(data["target"]), is_host=False)  # its code does not run in this process
        return b"=" + make(parse_func(data["program"]), target)
    except (WeftError, InternalError, RuntimeError, ValueError, TypeError, LookupError) as error:
        return b"!" + f"{type(error).__name__}: {error}".splitlines()[0][:300].encode()


def library_of(built: Built) -> bytes:
    """A compiled program as device servers take it: its own code, which finds the runtime there."""
    return link([built.object_code()], built.target, entry_symbol(built.lowered.name))


def link(objects: Sequence[bytes], target: Target, symbol: str) -> bytes:
    """Object files as one library that a device runs a function of."""
    with tempfile.TemporaryDirectory(prefix="weft-pool-") as folder:
        path = Path(folder) / "library"
        if not target.triple.startswith("wasm"):
            llvm_compile.link_shared(objects, path, target)
            return path.read_bytes()
        codes = [*objects, llvm_compile.emit_object(serial_ir(target), target)]  # Node has no runtime of ours
        files = [path.with_suffix(f".{at}.o") for at in range(len(codes))]
        for file, code in zip(files, codes):
            file.write_bytes(code)
        tools.link_wasm(files, path, [symbol, "weft_allocate"], target)
        return path.read_bytes()


def measure(data: bytes, *libraries: bytes) -> bytes:
    """Measures on this worker's device, writes it down, and tells who listens."""
    from distributed import get_worker

    job = json.loads(data)
    assert device is not None and journal is not None, "a builder was asked to measure"
    name = str(job["id"])
    if name not in journal.lines:
        outcome = replace(_outcome(device, job, libraries), trace=job["trace"])
        made = {**job["record"], "outcome": outcome.to_json(), "at": time.time()}
        journal.add(name, json.dumps(made))
    # Told beside the news that the job is done: nobody has to connect to this worker to fetch it.
    get_worker().log_event(topic_of(name), [name, journal.lines[name]])
    return journal.lines[name].encode()


def topic_of(job: str) -> str:
    """What the client of a job listens to: jobs are numbered after the name of its run."""
    return f"weft-{job.rpartition('-')[0]}"


def _outcome(where: WorkerDevice, job: dict[str, Any], libraries: tuple[bytes, ...]) -> Outcome:
    failed = next((one for one in reversed(libraries) if one[:1] != b"="), None)
    if failed is not None:
        return Outcome(Status.BUILD_ERROR, detail=failed[1:].decode(errors="replace"))
    try:
        return _patient(lambda: where.measure(job, [one[1:] for one in libraries]))
    except PoolError as error:
        return Outcome(Status.CRASH, detail=str(error)[:300])


def _patient(ask: Callable[[], T]) -> T:
    """What a device answers; asked again where its server was lost meanwhile."""
    for attempt in range(1, settings.ATTEMPTS):
        try:
            return ask()
        except PoolError as error:
            logger.warning("a device is asked again: %s", error)
            time.sleep(0.2 * attempt)
    return ask()


def bench(data: bytes, library: bytes, weights: bytes) -> bytes:
    """Runs a whole model on this worker's device: a line of JSON, and what it computed behind it."""
    assert isinstance(device, ServerDevice), "a worker without such a device was asked to run a model"
    try:
        ran = _patient(functools.partial(device.bench, json.loads(data), library, weights))
    except PoolError as error:
        ran = Ran(Status.CRASH, str(error)[:300])
    told = {"status": ran.status.value, "detail": ran.detail, "samples": ran.samples}
    return json.dumps(told).encode() + b"\n" + b"".join(part for parts in ran.results for part in parts)


def collect(wanted: bytes) -> bytes:
    """What this worker measured of a machine and some tasks: JSON, records by the names of their jobs."""
    asked = json.loads(wanted)
    found = {}
    for name, line in () if journal is None else tuple(journal.lines.items()):
        record = json.loads(line)
        if name.startswith(asked["run"]) and record["machine"] == asked["machine"] and record["task"] in asked["tasks"]:
            found[name] = line
    return json.dumps(found).encode()
