"""WebAssembly in Node, by the same interface as a device server: each run is a process of its own (`run.mjs`)."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from weft.pool.device import KINDS, Call, PoolError, Ran, read_ran
from weft.tuner.records import Status


class Node:
    """Node on this machine; a PoolError where it is not installed."""

    def __init__(self) -> None:
        found = shutil.which("node")
        if found is None:
            raise PoolError("there is no node here to run WebAssembly: install Node.js")
        self._command = [found, str(Path(__file__).with_name("run.mjs"))]
        self._limit = ["/bin/sh", "-c", 'ulimit -t "$0"; exec "$@"']  # so that none is left that hangs, whoever dies

    def close(self) -> None:
        """Nothing is left open."""

    def info(self) -> dict[str, str]:
        """The facts of the device."""
        return {"architecture": "wasm32"}

    def run(
        self, calls: Sequence[Call], rounds: int = 5, sample: float = 300e-6, seconds: int = 10, counts: bool = False
    ) -> Ran:
        """Calls functions in turns, as `Connection.run` does."""
        blobs: dict[bytes, int] = {}
        told = [
            {"name": call.name, "library": blobs.setdefault(call.library, len(blobs)), "arguments": [
                blobs.setdefault(one, len(blobs)) if isinstance(one, bytes) else
                {"bytes": one.bytes, "kind": KINDS[type(one)]} for one in call.arguments
            ]} for call in calls
        ]  # fmt: skip
        asked = {"rounds": rounds, "sample": int(sample * 1e9), "calls": told, "blobs": list(map(len, blobs))}
        head = json.dumps(asked).encode()
        try:
            whole = b"".join([struct.pack("<I", len(head)), head, *blobs])
            command = [*self._limit, str(seconds), *self._command]
            done = subprocess.run(command, input=whole, capture_output=True, timeout=10 * seconds)
        except subprocess.TimeoutExpired:
            return Ran(Status.HANG, f"it did not finish in {10 * seconds} s")
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return Ran(Status.HANG, f"it did not finish in {seconds} s of the processor's time")
        if done.returncode:
            return Ran(Status.CRASH, f"code {done.returncode}: {done.stderr.decode(errors='replace')[-200:]}")
        return read_ran(done.stdout, calls)
