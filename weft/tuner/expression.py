"""`weft.tune`: one tensor expression, schedule or template, tuned by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.builder import AnyBuilt, build
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Trace
from weft.targets.base import Target
from weft.targets.registry import find_target
from weft.te.intrin import create_schedule
from weft.te.tensor import Tensor
from weft.tuner.bench import Bench
from weft.tuner.cost_models import MODELS, cost_model
from weft.tuner.database import Database
from weft.tuner.explorers import EXPLORERS
from weft.tuner.model import seconds_of
from weft.tuner.records import TuneError
from weft.tuner.runner import LocalRunner, Runner
from weft.tuner.search import Proposer, Search
from weft.tuner.space import Space, regions_of
from weft.tuner.task import task_of_schedule
from weft.tuner.template import Estimate, Template, template_region


@dataclass(frozen=True)
class Tuned:
    """What was found for one expression."""

    trace: Trace
    """The best steps; the planner's where nothing was faster."""
    gain: float
    """How many times as fast as the planner's schedule."""
    seconds: float
    """Of one call; infinite where nothing was measured."""
    search: Search
    args: tuple[Any, ...]

    @property
    def schedule(self) -> Schedule:
        """The program with the best steps taken."""
        return self.search.task.fresh().schedule.replay(self.trace)

    @property
    def function(self) -> AnyBuilt:
        """The best, compiled."""
        return build(self.schedule, list(self.args), self.search.task.target, threads=self.search.bench.threads)

    def __repr__(self) -> str:
        tried = f"{self.search.trials} of {self.search.space.size} points"
        return f"Tuned({self.search.task.label}: {self.gain:.2f} times as fast as the default, {tried} tried)"


def tune_expression(
    what: Any, args: Sequence[Any], budget: str | float = "30s", target: str | Target = "native",
    threads: int | None = None, template: Template | None = None, estimate: Estimate | None = None,
    trials: int | None = None, model: str | None = None, explorer: str | None = None, seed: int = 0,
    database: Database | None = None, runner: Runner | None = None,
) -> Tuned:  # fmt: skip
    """Looks for the best schedule of a tensor expression, for so long or so many trials, whichever ends first.

    `template` is a schedule with knobs (docs/tuning.md), instead of the planner's sketches. Ctrl-C ends the search, and
    gives what was found.
    """
    seconds, machine = seconds_of(budget), find_target(target)
    if not machine.is_host and runner is None:
        raise TuneError(f"the target {machine.name} is no machine that is here: nothing can be measured for it")
    for name, given, known in (("model", model, MODELS), ("explorer", explorer, EXPLORERS)):
        if given is not None and given not in known:
            raise TuneError(f"{name}= is one of {', '.join(known)}, not {given!r}")
    if trials is not None and (not isinstance(trials, int) or trials < 1):
        raise TuneError(f"trials= is a whole number from 1 up, not {trials!r}")
    schedule = what if isinstance(what, Schedule) else create_schedule(what) if isinstance(what, Tensor) else None
    if schedule is None:
        raise TuneError(f"weft.tune takes a tensor or a schedule, not a {type(what).__name__}; weft tune takes models")
    task = task_of_schedule(schedule, list(args), machine)
    space = Space(regions_of(task) if template is None else [template_region(task, template, estimate)], machine)
    bench = Bench(task, threads)
    own = database or Database()
    proposer = Proposer(space, cost_model(model, seed, space), explorer or "exhaustive", seed)
    search = Search(task, bench, proposer, runner or LocalRunner(), own)
    end = time.monotonic() + seconds
    most = search.trials + (trials or space.size)
    try:
        while time.monotonic() < end and search.trials < min(most, space.size):
            count = min(search.batch, most - search.trials)
            if not sum(1 for _ in search.round(count, lambda: time.monotonic() >= end)):
                break
    except KeyboardInterrupt:
        pass  # what was found so far is the answer
    finally:
        if database is None:
            own.close()
    trace = search.trace or task.default()
    taken = search.best.outcome.seconds if search.best is not None else float("inf")
    return Tuned(trace, search.gain, taken, search, tuple(args))
