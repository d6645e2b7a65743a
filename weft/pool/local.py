"""A pool's processes on one machine: the scheduler, builders, workers of devices, each started again when it dies.

with LocalPool(folder, builders=1, devices={"desk": {"kind": "desk"}}) as pool:
    PoolRunner(pool.url, "desk", folder)
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.pool.node import AGAIN_SECONDS, BUILD, Supervisor, command_of, free_port


def worker_command(folder: Path, url: str, name: str, given: Mapping[str, Any]) -> list[str]:
    """The command of a worker: `kind`, and for one with a device `device` ("here"), `target` ("native"), `key`."""
    made = {"device": "here", "target": "native", **given, "folder": str(folder), "url": url, "name": name}
    return command_of("worker", {"scratch": tempfile.gettempdir(), **made})


class LocalPool:
    """A scheduler with builders and devices of this machine."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", port: int = 0, builders: int = 1,
        devices: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self.port = port or free_port(host)
        self.url = f"tls://{host if host != '0.0.0.0' else '127.0.0.1'}:{self.port}"
        commands = {"scheduler": command_of("scheduler", {"folder": str(folder), "host": host, "port": self.port})}
        for number in range(builders):
            commands[f"builder {number}"] = worker_command(folder, self.url, f"builder-{number}", {"kind": BUILD})
        for name, given in (devices or {}).items():
            commands[name] = worker_command(folder, self.url, name, given)
        self.supervisor = Supervisor(commands)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="weft-pool", daemon=True)

    def _look(self) -> None:
        while not self._stopped.wait(AGAIN_SECONDS):
            self.supervisor.look()

    def __enter__(self) -> LocalPool:
        self.supervisor.look()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopped.set()
        self._thread.join()
        self.supervisor.stop()
