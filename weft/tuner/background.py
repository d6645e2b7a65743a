"""Tuning beside a service: a child at idle priority measures, and better kernels are swapped in between calls.

The child is forked when the model is compiled, writes what it measures like any other search, and puts schedules into
use by the same rule: the whole model measured faster, its results within the tolerance of a trial. A thread of this
process then compiles the model again, with what is in use, and gives the module its new code: a call that has begun
ends with the old.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from weft.core.errors import WeftError
from weft.runtime.threads import set_threads
from weft.tuner.model import Tuning
from weft.tuner.runner import ChildError, Say, in_child
from weft.tuner.settings import IDLE, PATIENCE
from weft.tuner.view import summary

logger = logging.getLogger("weft.tuner")


class Background:
    """A module that is tuned while it is used."""

    def __init__(self, module: Any, tuning: Tuning, again: Callable[[], Any]) -> None:
        self._module, self._tuning, self._again = module, tuning, again
        self._stopped = threading.Event()
        self.said: list[str] = [f"tuning {tuning.name} for {tuning.budget:.0f} s, at idle priority"]
        self._thread = threading.Thread(target=self._run, name="weft-tuner", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Waits for its end."""
        self._thread.join(seconds)

    def stop(self) -> None:
        """Ends it; what was measured is kept, and what was swapped in stays."""
        self._stopped.set()
        self.wait()

    def _run(self) -> None:
        try:
            limit = PATIENCE * self._tuning.budget + 60.0
            text = in_child(self._in_child, limit, stop=self._stopped.is_set)
            self.said.append(text.removeprefix("+ "))
            if not text.startswith("+"):
                return
            made = self._again()
            self._swap(made._executor)
            self.said.append("the module has its new kernels")
        except (WeftError, ChildError, OSError) as error:
            self.said.append("stopped; what was measured is kept" if self._stopped.is_set() else f"it ended: {error}")
        logger.info("%s", self.said[-1])

    def _in_child(self, say: Say) -> str:
        os.nice(IDLE)
        from weft.tuner.database import Database

        self._tuning.database = Database(self._tuning.database.path)  # a connection does not survive a fork
        self._tuning.started = time.monotonic()
        set_threads(1)  # what is built takes one core
        self._tuning.run()
        return ("+ " if self._tuning.kept or self._tuning.chose_algorithms else "") + summary(self._tuning)

    def _swap(self, executor: Any) -> None:
        """Gives the module another executor; the short way of a call that was begun with the old one is forgotten."""
        module = self._module
        module._executor = executor
        known = executor.specializations
        for _ in range(3):
            if module._fast_of not in known:
                module._fast = module._fast_of = None
            time.sleep(0.01)
