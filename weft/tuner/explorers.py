"""Which points to measure next, by one interface.

    exhaustive     every point of the space is scored: what a space of up to a million allows in seconds
    annealing      many walkers at once, each step one knob; worse points are taken less and less often
    evolutionary   the best by the cost model and children of theirs, generation after generation
    genetic        children of the best *measured* points; the cost model is not asked
    random         any

An explorer gives candidates, best first. A batch is made of them here: points that differ in many knobs before those
that differ in few, and a share of points drawn at random, so that a cost model also learns where it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np

from weft.tuner.space import Space

Array = Any
Score = Callable[[Array], Array]
"""What a model says of points, by their numbers."""

EPSILON = 0.15
"""The share of a batch that is drawn at random."""

NEAR = -3.0
"""Drawn are points that are estimated at up to eight times the best: 2 ** -NEAR."""

DIVERSE = 0.05
"""How much of the spread of scores a knob is worth that no other point of the batch has so."""


class Explorer(Protocol):
    """Looks for points with good scores."""

    name: str

    def propose(
        self, space: Space, score: Score, measured: Array, gains: Array, count: int, random: np.random.Generator
    ) -> Array:
        """At least so many points where there are as many, best first; `measured` with their `gains` are known."""


class Exhaustive:
    """All points of the space."""

    name = "exhaustive"

    def propose(
        self, space: Space, score: Score, measured: Array, gains: Array, count: int, random: np.random.Generator
    ) -> Array:
        """The points with the best scores."""
        scores = score(space.legal)
        most = min(len(scores), count + len(measured))
        best = np.argpartition(-scores, most - 1)[:most] if most < len(scores) else np.arange(len(scores))
        return space.legal[best[np.argsort(-scores[best], kind="stable")]]


class Annealing:
    """Simulated annealing by many walkers at once; those of one batch go on in the next."""

    name = "annealing"

    def __init__(self, walkers: int = 128, steps: int = 60) -> None:
        self.walkers, self.steps = walkers, steps
        self._at: Array = None

    def propose(
        self, space: Space, score: Score, measured: Array, gains: Array, count: int, random: np.random.Generator
    ) -> Array:
        """The best points that were met."""
        at = random.choice(space.legal, self.walkers) if self._at is None else self._at
        value = score(at)
        points, values = [at], [value]
        for step in range(self.steps):
            heat = max(float(np.std(value)), 1e-6) * (1.0 - step / self.steps)
            there = space.neighbours(at, random)
            found = np.where(np.isfinite(space.estimates[there]), score(there), -np.inf)
            takes = random.random(len(at)) < np.exp(np.minimum((found - value) / max(heat, 1e-9), 0.0))
            at, value = np.where(takes, there, at), np.where(takes, found, value)
            points.append(at)
            values.append(value)
        self._at = at
        return _best(np.concatenate(points), np.concatenate(values))


class Evolutionary:
    """Generations that the cost model selects."""

    name = "evolutionary"

    def __init__(self, population: int = 256, generations: int = 8) -> None:
        self.population, self.generations = population, generations

    def propose(
        self, space: Space, score: Score, measured: Array, gains: Array, count: int, random: np.random.Generator
    ) -> Array:
        """The best of all generations."""
        good = measured[np.argsort(-gains, kind="stable")[: self.population // 4]]
        people = np.concatenate([good, random.choice(space.legal, self.population - len(good))]).astype(np.int64)
        points, values = [], []
        for _ in range(self.generations):
            value = np.where(np.isfinite(space.estimates[people]), score(people), -np.inf)
            points.append(people)
            values.append(value)
            people = _children(space, people[np.argsort(-value, kind="stable")], self.population, random)
        return _best(np.concatenate(points), np.concatenate(values))


class Genetic:
    """Children of the best measured points, as a tuner without a cost model makes them."""

    name = "genetic"

    def propose(
        self, space: Space, score: Score, measured: Array, gains: Array, count: int, random: np.random.Generator
    ) -> Array:
        """Children, in any order; random points while nothing is measured."""
        if len(measured) < 2:
            return random.permutation(space.legal)[: 4 * count]
        made = _children(space, measured[np.argsort(-gains, kind="stable")], 16 * count, random)
        made = made[np.isfinite(space.estimates[made])]
        return np.concatenate([np.unique(made)[random.permutation(len(np.unique(made)))], _some(space, count, random)])


class Random:
    """Any points."""

    name = "random"

    def propose(
        self, space: Space, score: Score, measured: Array, gains: Array, count: int, random: np.random.Generator
    ) -> Array:
        """Points in any order."""
        return _some(space, count + len(measured), random)


def _some(space: Space, count: int, random: np.random.Generator) -> Array:
    return random.choice(space.legal, min(len(space.legal), count), replace=False)


def _best(points: Array, values: Array) -> Array:
    """Points that make sense, once each, best first."""
    order = np.argsort(-values, kind="stable")[: int(np.isfinite(values).sum())]
    found, first = np.unique(points[order], return_index=True)
    return found[np.argsort(first)]


def _children(space: Space, ranked: Array, count: int, random: np.random.Generator) -> Array:
    """Children of points of which the first are the best: crossed, and half of them changed in one knob."""
    parents = [ranked[(len(ranked) * random.random(count) ** 2).astype(np.int64)] for _ in range(2)]
    made = space.crossed(parents[0], parents[1], random)
    return np.where(random.random(count) < 0.5, space.neighbours(made, random), made)


EXPLORERS: dict[str, Any] = {one.name: one for one in (Exhaustive, Annealing, Evolutionary, Genetic, Random)}


def explorer_for(space: Space, name: str | None = None) -> Explorer:
    """An explorer by name; None is the one that scores the whole space."""
    made: Explorer = EXPLORERS[name or "exhaustive"]()
    return made


def choose_batch(
    space: Space,
    ranked: Sequence[int] | Array,
    scores: Score,
    seen: Collection[int],
    count: int,
    random: np.random.Generator,
    epsilon: float = EPSILON,
) -> list[int]:
    """A batch out of ranked candidates: the best, such that they differ, and some at random."""
    fresh = [int(number) for number in ranked if int(number) not in seen]
    drawn = sum(random.random() < epsilon for _ in range(count)) if len(fresh) > count else 0
    pool = fresh[: 4 * count]
    values = np.asarray(scores(np.array(pool, np.int64)), np.float64) if pool else np.zeros(0)
    spread = float(np.ptp(values)) if len(values) else 0.0
    points = [space.point(number) for number in pool]
    chosen: list[int] = []
    known: set[tuple[str, str, int]] = set()
    left = list(range(len(pool)))
    while left and len(chosen) < count - drawn:
        new = [
            sum((sketch, *pair) not in known for pair in point.items()) for sketch, point in (points[i] for i in left)
        ]
        best = max(range(len(left)), key=lambda at: (values[left[at]] + DIVERSE * spread * new[at], -at))
        number = left.pop(best)
        chosen.append(pool[number])
        known |= {(points[number][0], *pair) for pair in points[number][1].items()}
    near = space.legal[space.prior[space.legal] >= NEAR]
    others = [
        int(one) for one in random.permutation(near)[: 8 * count] if int(one) not in seen and int(one) not in chosen
    ]
    return chosen + others[: count - len(chosen)]
