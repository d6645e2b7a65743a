"""The search of one task: propose, measure, write down, learn; and again.

What was measured before, by this process or another, is read from the database first: the same search goes on.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.runtime.threads import get_threads
from weft.schedule.trace import Trace
from weft.tuner.bench import Bench
from weft.tuner.cost_models import CostModel, Group, has_learned, rank_correlation, recall
from weft.tuner.database import Database
from weft.tuner.explorers import EXPLORERS, Asked, choose_batch
from weft.tuner.records import Outcome, Record, Status, compiler_version, machine_key
from weft.tuner.runner import Runner, in_child
from weft.tuner.settings import (
    BATCH,
    BUILD_SECONDS,
    BUILDERS,
    EARLY,
    EARLY_BATCH,
    EPSILON,
    HOPELESS,
    HOPELESS_TASKS,
    INSIDE,
    LEAST_GAIN,
    MIXED,
    MOST_OTHERS,
    NEARLY,
)
from weft.tuner.space import Space
from weft.tuner.task import Task


def batch_after(trials: int) -> int:
    """Points that are measured at once after so many trials."""
    return EARLY_BATCH if trials < EARLY else BATCH


@dataclass(frozen=True)
class Quality:
    """How well the cost model knew a batch before it was measured."""

    trials: int
    correlation: float
    recall: float
    regret: float  # how much slower than the best so far the point was that it liked best; 0 is none


@dataclass
class Proposer:
    """What chooses the next points of a space from what is known of it, and learns."""

    space: Space
    model: CostModel
    explorer: str = "exhaustive"
    seed: int = 0
    epsilon: float = EPSILON
    gains: dict[int, float] = field(default_factory=dict)
    """What is known of points: how many times as fast as the default, 0 for a failure."""

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def score(self, numbers: Any) -> Any:
        """What the cost model says of points."""
        return self.space.scores(self.model, numbers)

    def propose(self, count: int, trials: int = 0, others: Sequence[Proposer] = ()) -> list[int]:
        """The points to measure next; whoever has made none of the trials says how many there were.

        First those that are the best of other spaces with the same knobs, as far as these are faster there.
        """
        self._random = np.random.default_rng([self.seed, trials]) if trials else self._random
        measured = np.fromiter(self.gains, np.int64, len(self.gains))
        known = np.fromiter(self.gains.values(), np.float64, len(self.gains))
        ranked = EXPLORERS[self.explorer](Asked(self.space, self.score, measured, known, 4 * count, self._random))
        seen = self.space.known | self.gains.keys()
        batch = choose_batch(self.space, ranked, self.score, seen, count, self._random, self.epsilon)
        if self.explorer != "exhaustive" or count < 2:
            return batch
        won = [number for number in self._won_elsewhere(others) if number not in seen][: count // 2]
        batch = [*won, *(number for number in batch if number not in won)][:count]
        new = self._untried(batch, others)
        return batch if new is None else [*batch[: count - 1], new]

    def near(self, others: Sequence[Proposer]) -> list[Proposer]:
        """Those of other spaces with the same knobs of which something is known."""
        return [one for one in others if one is not self and one.space.signature == self.space.signature and one.gains]

    def _won_elsewhere(self, others: Sequence[Proposer]) -> list[int]:
        """The points that are the best known of other spaces with the same knobs, those that gained most first."""
        best = [(*max((gain, number) for number, gain in one.gains.items()), one) for one in self.near(others)]
        ranked = sorted((one for one in best if one[0] >= LEAST_GAIN), key=lambda one: -one[0])
        found = (self.space.find(*other.space.point(number)) for _, number, other in ranked)
        return list(dict.fromkeys(number for number in found if number is not None))

    def _best_by_sketch(self) -> dict[tuple[str, ...], float]:
        """The best gain that is known in each sketch of which something is."""
        found: dict[tuple[str, ...], float] = {}
        for number, gain in self.gains.items():
            region, _ = self.space.region_of(number)
            key = (region.sketch.name, *region.choices)
            found[key] = max(gain, found.get(key, 0.0))
        return found

    def _untried(self, batch: Sequence[int], others: Sequence[Proposer] = ()) -> int | None:
        """The point that the model likes best of a sketch of which nothing is known: between sketches it errs most.

        One that was hopeless in other tasks is left alone.
        """
        starts, legal = self.space.starts, self.space.legal
        known = set((np.searchsorted(starts, [*self.space.known, *self.gains, *batch], "right") - 1).tolist())
        elsewhere = [one._best_by_sketch() for one in others if one is not self]
        for place, key in enumerate(self.space.signature):
            gains = [found[key] for found in elsewhere if key in found]
            if len(gains) >= HOPELESS_TASKS and HOPELESS * max(gains) < 1:
                known.add(place)
        at = np.searchsorted(starts, legal, "right") - 1
        left = legal[~np.isin(at, [*known])]
        return int(left[np.argmax(self.score(left))]) if len(left) else None

    def group(self) -> Group:
        """What is known of the space, and of the default."""
        gains = {**dict.fromkeys(self.space.known, 1.0), **self.gains}
        numbers = np.fromiter(gains, np.int64, len(gains))
        values = np.fromiter(gains.values(), np.float64, len(gains))
        return Group(self.model.look(self.space, numbers), self.space.prior[numbers], values)

    def learn(self, others: Sequence[Proposer] = ()) -> None:
        """Trains the model on all that is known, here and of other spaces with the same knobs."""
        self.model.fit([self.group(), *(one.group() for one in self.near(others)[-MOST_OTHERS:])])


@dataclass
class Search:
    """A task being searched."""

    task: Task
    bench: Bench
    proposer: Proposer
    runner: Runner
    database: Database
    best: Record | None = None
    failures: Counter[str] = field(default_factory=Counter)
    curve: list[tuple[int, float]] = field(default_factory=list)  # after so many trials, the best gain
    quality: list[Quality] = field(default_factory=list)
    idle: float = 0.0  # batches of the usual size since something better was found
    spent: float = 0.0  # seconds that the trials of this process took
    resumed: int = 0

    def __post_init__(self) -> None:
        self._said: dict[int, float] = {}
        self._machine, self._version = machine_key(self.task.target, self.runner.unit), compiler_version()
        for record in self.database.records(self.task.key, self._machine, self._version):
            if record.threads == self.bench.threads:
                self._note(record)
        self.resumed, self.idle = self.trials, 0.0

    @property
    def space(self) -> Space:
        """The points."""
        return self.proposer.space

    @property
    def gains(self) -> dict[int, float]:
        """What is known of points."""
        return self.proposer.gains

    @property
    def trials(self) -> int:
        """Points measured, failures too."""
        return len(self.gains)

    @property
    def gain(self) -> float:
        """How many times as fast as the default the best point is; at least 1, which is the default."""
        return max(1.0, self.best.outcome.gain) if self.best is not None else 1.0

    @property
    def trial_seconds(self) -> float:
        """What a trial takes."""
        return self.spent / max(1, self.trials - self.resumed)

    @property
    def is_done(self) -> bool:
        """Whether every point is known."""
        return len(self.space.known | self.gains.keys()) >= self.space.size

    @property
    def trace(self) -> Trace | None:
        """The steps of the best point; None while the default is the best."""
        return Trace.from_json(self.best.outcome.trace) if self.best is not None and self.gain > 1.0 else None

    @property
    def best_traces(self) -> list[tuple[Trace, float]]:
        """The steps of the best points that are faster than the default, with their gains, best first; on a device more
        of them, and some that are nearly as fast: there each is tried in the model."""
        known = self.database.records(self.task.key, self._machine, self._version)
        most, least = (MIXED, NEARLY) if self.task.target.on_device else (INSIDE, LEAST_GAIN)
        mine = [one.outcome for one in known if one.threads == self.bench.threads]
        gains = {one.trace: one.gain for one in mine if one.gain >= least}
        return [(Trace.from_json(text), gains[text]) for text in sorted(gains, key=lambda text: -gains[text])[:most]]

    @property
    def batch(self) -> int:
        """Points that are measured before the cost model learns from them: more where they are built beside others."""
        if self.task.target.on_device:
            return BATCH * self.runner.width * (1 if self.trials < EARLY else 2)
        beside = self.runner.width
        return max(batch_after(self.trials), min(get_threads(), BUILDERS)) if beside == 1 else BATCH * beside

    def round(
        self, count: int, stop: Callable[[], bool] = lambda: False, others: Sequence[Proposer] = ()
    ) -> Iterator[Record]:
        """Measures a batch; each record when it is written. `stop` is asked before each point."""
        begun = time.monotonic()
        said = self._proposed(count, others)
        numbers, before, found = list(said), self.gain, 0
        records = self.measure(numbers)
        for number in numbers:
            if stop():
                break
            yield next(records)
            self._said[number] = float(said[number])
            found += 1
        self.spent += time.monotonic() - begun
        self.idle = 0.0 if self.gain > 1.005 * before else self.idle + found / BATCH
        if len(self._said) >= BATCH or (self._said and found < count):
            scores, gains = np.array([*self._said.values()]), np.array([self.gains[number] for number in self._said])
            regret = max(self.gain, 1.0) / max(float(gains[int(np.argmax(scores))]), 1e-9) - 1.0
            correlation, top = rank_correlation(scores, gains), recall(scores, gains, max(1, len(gains) // 4))
            self.quality.append(Quality(self.trials, correlation, top, regret))
            self._said = {}

    def _proposed(self, count: int, others: Sequence[Proposer]) -> dict[int, float]:
        """The points to measure next, and what the model says of each; for a device they are chosen in a child: what
        learns may open it, and then no child of this process could."""

        def chosen() -> str:
            self.proposer.learn(others)
            numbers = self.proposer.propose(count, self.trials, others)
            return json.dumps([numbers, self.proposer.score(np.array(numbers, np.int64)).tolist()])

        if self.task.target.on_device and has_learned():
            import xgboost  # noqa: F401  (once for all of these children; learning opens a device, this does not)
        text = in_child(lambda say: chosen(), BUILD_SECONDS) if self.task.target.on_device else chosen()
        return dict(zip(*json.loads(text)))

    def measure(self, numbers: Sequence[int]) -> Iterator[Record]:
        """Measures points, and writes each down."""
        points = [self.space.point(number) for number in numbers]
        regions = [self.space.region_of(number)[0] for number in numbers]
        outcomes = self.runner.measure(self.bench, [(region, point) for region, (_, point) in zip(regions, points)])
        for number, (sketch, point), outcome in zip(numbers, points, outcomes):
            record = self.record(sketch, point, outcome, float(self.space.estimates[number]))
            self.database.add([record])
            self._note(record)
            yield record

    def record(self, sketch: str, point: dict[str, int], outcome: Outcome, estimate: float) -> Record:
        """A row for the database."""
        return Record(
            self.task.key, self._machine, self._version, sketch, point, replace(outcome, at=0.0), self.bench.threads,
            estimate, outcome.at or time.time(), self.task.label,
        )  # fmt: skip

    def _note(self, record: Record) -> None:
        number = self.space.find(record.sketch, record.point)
        if number is None:
            return  # of a space that this Weft does not have any more
        self.gains[number] = record.outcome.gain
        if record.outcome.status is not Status.OK:
            self.failures[record.outcome.status.value] += 1
        elif self.best is None or record.outcome.gain > self.best.outcome.gain:
            self.best = record
        self.curve.append((self.trials, self.gain))
