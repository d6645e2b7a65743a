"""Tuning beside a service: a child at idle priority measures, and better kernels are swapped in between calls.

The child is forked when the model is compiled, writes what it measures like any other search, and puts schedules into
use by the same rule: the whole model measured faster, its results within the tolerance of a trial. A thread of this
process then compiles the model again, with what is in use, and gives the module its new code: a call that has begun
ends with the old.

A model whose sizes are open is tuned for shapes that it is called with, one after another: for those that have a form
of their own, which are the first and what comes often (docs/sizes.md).
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.core.errors import WeftError
from weft.runtime.threads import set_threads
from weft.tuner.database import Database
from weft.tuner.model import Tuning
from weft.tuner.runner import ChildError, Say, in_child
from weft.tuner.settings import BACKGROUND_SECONDS, IDLE, MET_SECONDS, PATIENCE
from weft.tuner.view import summary

logger = logging.getLogger("weft.tuner")

Shapes = Mapping[str, Sequence[int]]
"""Of the inputs, by their names; none where the model's own are fixed."""


class Background:
    """A module that is tuned while it is used."""

    def __init__(
        self, module: Any, tuning: Tuning | Callable[[Shapes], Tuning], again: Callable[[Shapes], Any]
    ) -> None:
        """`tuning` is a function where sizes are open; `again` compiles, for these shapes where there are any."""
        self._module, self._tuning, self._again = module, tuning, again
        self._stopped = threading.Event()
        name, budget = module._executor.signature.name, BACKGROUND_SECONDS
        which = "" if isinstance(tuning, Tuning) else " for the shapes that it meets, each"
        self.said: list[str] = [f"tuning {name}{which} for {budget:.0f} s, at idle priority"]
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
        if isinstance(self._tuning, Tuning):
            self._tune(self._tuning, {})
            return
        names, done = [value.name for value in self._module._executor.signature.inputs], set[Any]()
        while not self._stopped.wait(MET_SECONDS):
            for key in (key for key, _ in self._module._executor.items() if key not in done):
                done.add(key)
                shapes = {name: shape for name, (shape, _) in zip(names, key)}
                self.said.append("for " + ", ".join(f"{name}{[*shape]}" for name, shape in shapes.items()))
                self._tune(self._tuning, shapes)
                if self._stopped.is_set():
                    return

    def _tune(self, tuning: Tuning | Callable[[Shapes], Tuning], shapes: Shapes) -> None:
        try:
            made = tuning if isinstance(tuning, Tuning) else tuning(shapes)
            text = in_child(functools.partial(_tuned, made), PATIENCE * made.budget + 60.0, stop=self._stopped.is_set)
            self.said.append(text.removeprefix("+ "))
            if text.startswith("+"):
                self._swap(self._again(shapes)._executor, bool(shapes))
                self.said.append("the module has its new kernels")
        except (WeftError, ChildError, OSError) as error:
            self.said.append("stopped; what was measured is kept" if self._stopped.is_set() else f"it ended: {error}")
        logger.info("%s", self.said[-1])

    def _swap(self, executor: Any, is_one: bool) -> None:
        """Gives the module another executor, or one form of it; the short way of a call that was begun with the old one
        is forgotten."""
        module = self._module
        for key, form in executor.items() if is_one else ():
            module._executor.keep(key, form)
        module._executor = module._executor if is_one else executor
        known = module._executor.specializations
        for _ in range(3):
            if module._fast_of not in known:
                module._fast = module._fast_of = None
            time.sleep(0.01)


def _tuned(tuning: Tuning, say: Say) -> str:
    """What came of it, after a plus where something is in use now; in a child."""
    os.nice(IDLE)
    tuning.database = Database(tuning.database.path)  # a connection does not survive a fork
    tuning.started = time.monotonic()
    set_threads(1)  # what is built takes one core
    tuning.run()
    return ("+ " if tuning.kept or tuning.chose_algorithms else "") + summary(tuning)
