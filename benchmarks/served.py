"""A process that answers lines with rows: what ends or hangs it costs one line, and the next begins another.

served = Served([sys.executable, "-m", "benchmarks.architectures", "--serve"])
served.ask("timm/vgg11", limit=120.0)      {"outcome": …}; a text that says how it ended where it gave no row
served.end()

answer(lambda line: {"outcome": …})        the other side: a row for each line that comes in, until none does
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MARK = "\0row "
"""What a line with a row begins with, since libraries write lines of their own."""

Row = dict[str, Any]


class Served:
    """The process, begun when it is first asked."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | None = None
        self.answered = 0
        self.kind = ""

    def ask(self, line: str, limit: float) -> Row | str:
        """The row for a line; where none came within so many seconds, how the process ended."""
        if self.process is None:
            self.log = tempfile.TemporaryFile()  # noqa: SIM115  it is read when the process has ended
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log, "text": True}
            self.process = subprocess.Popen(self.command, env=self.environment, start_new_session=True, **pipes)
        timer = threading.Timer(max(limit, 0.0), self._kill)
        timer.start()
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then it ended already, and says nothing
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        row = next((one for one in self.process.stdout if one.startswith(MARK)), None)
        timer.cancel()
        if row is not None:
            self.answered += 1
            return dict(json.loads(row[len(MARK) :]))
        status = self.end()
        self.log.seek(0)
        return f"exit status {status}: {self.log.read().decode(errors='replace')[-600:]}"

    def end(self) -> int:
        """Ends the process and those that it began; its status."""
        if self.process is None:
            return 0
        self._kill()
        status, self.process, self.answered = self.process.wait(), None, 0
        return status

    def _kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def answer(examine: Callable[[str], Row]) -> None:
    """The other side of `Served`; ends this process, and with it threads that libraries leave behind."""
    for line in sys.stdin:
        sys.stdout.write("\n" + MARK + json.dumps(examine(line.rstrip("\n"))) + "\n")
        sys.stdout.flush()
    os._exit(0)
