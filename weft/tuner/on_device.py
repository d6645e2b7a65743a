"""Time on a device: kernels one after another, as in a model, by the device's own clock, while nobody else has it.

On a GPU a kernel begins while the one before it ends. Events between two of them would forbid that: of 2 µs that a
kernel adds to a model they show 3. So a kernel is timed in a row of itself; and what a launch adds to a model is what
the model takes up to it, less what it takes up to the one before.

Several tunings on one device take turns: a lock that the system takes back from whoever ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from weft.targets.base import Device, Target
from weft.tuner.settings import INSIDE_ROUNDS, RUN_ROUNDS, RUN_TURNS


@contextmanager
def turn(target: Target) -> Iterator[None]:
    """While this is held no other tuning of this user measures on the device."""
    import fcntl

    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    name = "".join(one if one.isalnum() else "-" for one in f"{os.getuid()}-{target.name.partition(',')[0]}-{seen}")
    handle = os.open(Path(tempfile.gettempdir()) / f"weft-device-{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Run:
    """A compiled model on the device, ready to be timed."""

    def __init__(self, module: Any, feeds: Mapping[str, Any]) -> None:
        self._target: Target = module.target
        self._device: Device = self._target.device()
        self._bound = module.bind(feeds)
        found: tuple[list[list[Any]], Any] | None = self._bound.calls()
        self.calls: list[list[Any]] | None = None if found is None else found[0]
        """The launches of each kernel; None for a model of which the host does a part."""
        self._alive = found

    def whole(self, changed: Mapping[int, list[Any]] | None = None) -> Callable[[], float]:
        """What tells the seconds of a run, with other launches for some of the calls."""
        calls = [(changed or {}).get(at, call) for at, call in enumerate(self.calls or [])]
        return self._device.stretch([one for call in calls for one in call])

    def launches(self) -> list[float]:
        """What each call adds to a run."""
        calls = self.calls or []
        flat, ends = [one for call in calls for one in call], [0, *accumulate(map(len, calls))]
        upto = {end: self._device.stretch(flat[:end]) for end in dict.fromkeys(ends) if end}
        best = dict.fromkeys(upto, float("inf"))
        for _ in range(INSIDE_ROUNDS):
            with turn(self._target):
                for end, seconds in upto.items():
                    best[end] = min(best[end], seconds(), seconds())
        best[0] = 0.0
        return [best[end] - best[begin] for begin, end in zip(ends, ends[1:])]


def times_of(timers: Sequence[Callable[[], float]], target: Target, rounds: int) -> list[float]:
    """The best times of some that take so many turns."""
    with turn(target):
        return [min(times) for times in zip(*([one() for one in timers] for _ in range(rounds)))]


def in_turns(runs: Sequence[Run], target: Target) -> list[list[float]]:
    """The times of models that take turns, each the best of some runs."""
    timers, times = [run.whole() for run in runs], list[list[float]]()
    for at in range(RUN_TURNS + 1):
        with turn(target):
            order = range(len(timers)) if at % 2 else reversed(range(len(timers)))
            times.append([0.0] * len(timers))
            for place in order:
                times[-1][place] = min(timers[place]() for _ in range(RUN_ROUNDS))
    return [list(one) for one in zip(*times[1:])]
