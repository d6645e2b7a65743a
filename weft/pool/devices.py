"""What a worker measures on.

    ServerDevice     a device server: a board, this machine, an emulated one that counts; WebAssembly in Node
    ProgramDevice    a device with programs of its own (a GPU, the accelerator's simulator), in a child for each job
    Simulated        nothing: a fixed time, and a figure that follows from the point; for trying out a pool

Each takes a job (JSON of `runner.job_of`) and the libraries that were built for it, and gives an Outcome.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np

from weft.pool import settings
from weft.pool.device import Call, Connection, PoolError, Ran, Result, Samples, Scratch, read_key
from weft.pool.kinds import INSTRUCTIONS, SECONDS, facts_of, make_arrays, packing_of, target_of
from weft.pool.server import LocalServer, architecture_of, start_server
from weft.pool.web import Node
from weft.targets.registry import find_target
from weft.tuner.bench import difference
from weft.tuner.records import Outcome, Status
from weft.tuner.settings import ROUNDS, SAMPLE_SECONDS

LIBRARY, PROGRAM, NOTHING = "library", "program", "nothing"
"""What a job brings: shared libraries built before, the text of programs, or no code at all."""


def open_device(text: str, target: str, key: Path | None) -> WorkerDevice:
    """The device that `weft worker --device` names.

    "here": this machine (or, for a target with a device of its own, that). "HOST:PORT": a device server elsewhere.
    "emulated" and "counted": this machine's emulator of the target, which times or counts. "simulated:SECONDS".
    """
    kind, _, rest = text.partition(":")
    found = find_target(target)
    if kind == "simulated":
        return Simulated(float(rest or 0), facts_of(found))
    if found.on_device:
        return ProgramDevice(target)
    if found.triple.startswith("wasm") and kind == "here":
        return ServerDevice(Node, facts_of(found))
    name = architecture_of(found.triple)  # for WebAssembly there is no server, nor an emulator
    if kind in ("here", "emulated", "counted"):
        if kind == "here" and not found.is_host:
            raise PoolError(f"{target} is no machine that is here: emulated or counted run it under QEMU")
        server = start_server(name, kind != "here", kind == "counted")
        return ServerDevice(server.connect, facts_of(found), INSTRUCTIONS if kind == "counted" else SECONDS, server)
    if not rest.isdigit() or key is None:
        raise PoolError(f"{text!r} is no device: here, emulated, counted, simulated:SECONDS, or HOST:PORT and a --key")
    secret = read_key(key)
    return ServerDevice(lambda: Connection(kind, int(rest), secret), facts_of(found), SECONDS)


class ServerDevice:
    """A device server, at the other end of a connection that is made again when it is lost."""

    needs = LIBRARY

    def __init__(
        self, connect: Any, facts: Mapping[str, Any], unit: str = SECONDS, server: LocalServer | None = None
    ) -> None:
        self._connect, self.facts, self.unit, self._server = connect, facts, unit, server
        self._connection: Connection | Node | None = None
        found, wanted = self._device().info().get("architecture"), architecture_of(target_of(facts).triple)
        if found != wanted:
            self.close()
            raise PoolError(f"the device server is of {found}, and the target of {wanted}")

    def _device(self) -> Connection | Node:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        """Hangs up, and ends the server if it is ours."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._server is not None:
            self._server.stop()

    def measure(self, job: Mapping[str, Any], libraries: Sequence[bytes]) -> Outcome:
        """The default and the candidate in turns; the better of two answers is not believed."""
        calls, shapes = [], []
        arrays = make_arrays(json.dumps(job["arrays"]))
        for library, parameters in zip(libraries, job["parameters"]):
            calls.append(Call(library, job["symbol"], [_argument(one, arrays, job["inputs"]) for one in parameters]))
            shapes.append([arrays[one] for one in parameters if isinstance(one, int) and one >= job["inputs"]])
        try:
            first = self._run(calls)
            if first.status is not Status.OK:
                return Outcome(first.status, detail=first.detail)
            results = [
                [np.frombuffer(data, like.dtype).reshape(like.shape) for data, like in zip(parts, wanted)]
                for parts, wanted in zip(first.results, shapes)
            ]
            wrong = difference(results[0], results[-1])
            if wrong:
                return Outcome(Status.WRONG, detail=wrong)
            found = _costs(first, self.unit)
            if self.unit == SECONDS and found[0] < found[1] and len(calls) > 1:
                again = self._run(calls)
                if again.status is Status.OK:
                    found = min(found, _costs(again, self.unit), key=lambda pair: pair[1] / pair[0])
        except PoolError:
            self._connection = None  # the next job connects anew
            raise
        misses = f"{first.samples[-1].rounds[0][1]} accesses missed a modelled cache of 32 KB"
        return Outcome(Status.OK, *found, misses if self.unit == INSTRUCTIONS else "")

    def bench(self, job: Mapping[str, Any], library: bytes, weights: bytes) -> Ran:
        """A whole model (`models.model_of`), some times one after the other."""
        arrays = make_arrays(json.dumps(job["arrays"]))
        given = [np.ascontiguousarray(array).tobytes() for array in arrays[: job["inputs"]]]
        made = [Result(int(array.nbytes)) for array in arrays[job["inputs"] :]]
        call = Call(library, job["symbol"], [weights, *given, Scratch(job["arena"]), *made])
        try:
            return self._run([call], settings.BENCH_SECONDS)
        except PoolError:
            self._connection = None
            raise

    def _run(self, calls: Sequence[Call], seconds: int = settings.RUN_SECONDS) -> Ran:
        counts = self.unit == INSTRUCTIONS
        return self._device().run(calls, ROUNDS, SAMPLE_SECONDS, seconds, counts=counts)


def _argument(parameter: Any, arrays: Sequence[Any], inputs: int) -> bytes | Result:
    place = packing_of(parameter)
    if isinstance(place, int) and place >= inputs:
        return Result(int(arrays[place].nbytes))
    array = arrays[place] if isinstance(place, int) else place.apply(arrays[place.source])
    return np.ascontiguousarray(array).tobytes()


def _costs(ran: Ran, unit: str) -> tuple[float, float, float]:
    """What a call of the candidate took, what one of the default, and the share of the time that others had."""
    costs = [_cost(one, unit) for one in ran.samples]
    own, wall = (sum(pair[at] for one in ran.samples for pair in one.rounds) for at in (0, 1))
    return costs[-1], costs[0], max(0.0, 1 - own / wall) if unit == SECONDS and wall else 0.0


def _cost(samples: Samples, unit: str) -> float:
    own = [pair[0] for pair in samples.rounds]
    return float(own[0]) if unit == INSTRUCTIONS else 1e-9 * min(own[1:] or own) / samples.repeats


class _Closed:
    def close(self) -> None:
        """Nothing is left open."""


class ProgramDevice(_Closed):
    """A device that runs programs of its own: each job in a child, which may crash."""

    needs, unit = PROGRAM, SECONDS

    def __init__(self, target: str) -> None:
        self.facts: Mapping[str, Any] = {"text": target}

    def measure(self, job: Mapping[str, Any], libraries: Sequence[bytes]) -> Outcome:
        """The default and the candidate, by the device's own clock."""
        command = [sys.executable, "-m", "weft.pool.child", str(settings.RUN_SECONDS)]
        sent = json.dumps(dict(job)).encode()
        try:
            done = subprocess.run(command, input=sent, capture_output=True, timeout=10 * settings.RUN_SECONDS)
        except subprocess.TimeoutExpired:
            return Outcome(Status.HANG, detail=f"it did not finish in {10 * settings.RUN_SECONDS} s")
        if done.returncode == -signal.SIGXCPU:
            return Outcome(Status.HANG, detail=f"it did not finish in {settings.RUN_SECONDS} s of the processor's time")
        if done.returncode:
            said = done.stderr.decode(errors="replace")[-200:]
            return Outcome(Status.CRASH, detail=f"code {done.returncode}: {said}")
        try:
            return Outcome.from_json(done.stdout.decode().splitlines()[-1])
        except (ValueError, TypeError, IndexError) as error:
            return Outcome(Status.GARBAGE, detail=str(error)[:300])


class Simulated(_Closed):
    """A device that takes a fixed time, and gives a figure that follows from the point."""

    needs, unit = NOTHING, SECONDS

    def __init__(self, seconds: float, facts: Mapping[str, Any]) -> None:
        self.seconds, self.facts = seconds, facts

    def measure(self, job: Mapping[str, Any], libraries: Sequence[bytes]) -> Outcome:
        """Waits."""
        time.sleep(self.seconds)
        digest = hashlib.sha256(json.dumps(job["record"]["point"], sort_keys=True).encode()).digest()
        return Outcome(Status.OK, 1e-3 * (0.5 + digest[0] / 256), 1e-3)


WorkerDevice = Union[ServerDevice, ProgramDevice, Simulated]
"""Has `needs` (what a job brings), `unit` (of its figures), `facts` (for `kinds.target_of`), `measure` and `close`."""
