"""A model tuned for devices of a pool, kernel by kernel.

The search is the tuner's. What differs: a task's default is measured on a device, not profiled in a run of the whole
model; algorithms are left as they are; and what was found is put into use by what each kernel gained alone, in turns
with its default, since no whole model runs there. Counts are no times: by them nothing is put into use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from weft.plan.overrides import Records
from weft.pool.device import PoolError
from weft.pool.kinds import SECONDS
from weft.pool.runner import PoolRunner
from weft.tuner.bench import Bench
from weft.tuner.model import Tuning
from weft.tuner.records import Outcome, Status, TuneError
from weft.tuner.task import Task


@dataclass
class PoolTuning(Tuning):
    """A model being tuned in a pool."""

    @property
    def pool(self) -> PoolRunner:
        """What measures."""
        if not isinstance(self.runner, PoolRunner):
            raise PoolError("a tuning in a pool needs a runner of that pool")
        return self.runner

    def launch_seconds(self, chosen: Records) -> list[float]:
        """Nothing: no whole model runs here."""
        return []

    def prepare(self) -> None:
        """Finds the tasks, measures each default on a device, and takes what workers have measured before."""
        super().prepare()
        costs = defaults(self.pool, self.tasks)
        for task, cost in zip(self.tasks, costs):
            if cost.status is not Status.OK:
                self.skipped[task.key] = f"{cost.status.value}: {cost.detail}"
        weighed = [replace(task, seconds=task.calls * cost.seconds if cost.status is Status.OK else 0.0)
                   for task, cost in zip(self.tasks, costs)]  # fmt: skip
        self.tasks = sorted(weighed, key=lambda task: -task.seconds)
        if len(self.skipped) == len(self.tasks):
            raise TuneError(f"no kernel of {self.name} runs on {self.pool.kind}: {next(iter(self.skipped.values()))}")
        self.pool.gather(self.database, self.target, {task.key for task in self.tasks})

    def try_default(self, bench: Bench) -> None:
        """It was measured already."""

    def choose(self, observe: Any) -> None:
        """Algorithms are chosen by the time of the whole model, which is not measured here."""

    def accept(self) -> bool:
        """Puts what each kernel gained by itself into use, where that is time; there is nothing to look at again."""
        self.pool.gather(self.database, self.target, {task.key for task in self.tasks})
        found = self.found()
        if found and self.pool.unit == SECONDS:
            before, self.kept = sum(task.seconds for task in self.tasks), found
            self.database.accept(self.name, self.target, before, before / self.expected_gain(), found)
        return False

    def says(self) -> str:
        """What came of it, in a sentence or two."""
        tried = f"{self.trials} trials on {len(self.searches)} of {len(self.tasks)} tasks, on {self.pool.kind}"
        gain = f"{self.expected_gain():.3f}"
        if self.pool.unit != SECONDS:
            return f"{tried}; {gain} times fewer {self.pool.unit}. By counts nothing is put into use: see weft db best"
        if not self.kept:
            return f"{tried}; nothing is faster than what is in use"
        return f"{tried}; {len(self.kept)} schedules are in use now, by kernels alone: expected {gain}×"


def defaults(pool: PoolRunner, tasks: list[Task]) -> list[Outcome]:
    """What the planner's kernels of tasks take on a device."""
    jobs = []
    for task in tasks:
        try:
            jobs.append(pool.job_of(Bench(task, 1), None, {}))
        except TuneError as error:
            jobs.append(Outcome(Status.REFUSED, detail=str(error).splitlines()[0]))
    return list(pool.outcomes(jobs))
