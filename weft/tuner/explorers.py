"""Which points to measure next: functions of one form, by name in `EXPLORERS`, that give candidates, best first.

A batch is made of them here: points that differ in many knobs before those that differ in few, and a share of points
drawn at random, so that a cost model also learns where it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.tuner.settings import DIVERSE, EPSILON, GENERATIONS, NEAR, POPULATION, STEPS, WALKERS
from weft.tuner.space import Space

Array = Any
Score = Callable[[Array], Array]
"""What a model says of points, by their numbers."""


class Asked(NamedTuple):
    """What an explorer knows, and how many points it is asked for."""

    space: Space
    score: Score
    measured: Array
    gains: Array
    """Of the measured points, in their order."""
    wanted: int
    random: np.random.Generator

    @property
    def best_measured(self) -> Array:
        """The measured points, best first."""
        return self.measured[np.argsort(-self.gains, kind="stable")]

    def some(self, count: int) -> Array:
        """Any points."""
        return self.random.choice(self.space.legal, min(len(self.space.legal), count), replace=False)

    def scored(self, points: Array) -> Array:
        """Scores; the worst for points that make no sense."""
        return np.where(np.isfinite(self.space.estimates[points]), self.score(points), -np.inf)


def exhaustive(asked: Asked) -> Array:
    """The points of the whole space with the best scores: what a space of up to a million allows in seconds."""
    scores, legal = asked.score(asked.space.legal), asked.space.legal
    most = min(len(scores), asked.wanted + len(asked.measured))
    best = np.argpartition(-scores, most - 1)[:most] if most < len(scores) else np.arange(len(scores))
    return legal[best[np.argsort(-scores[best], kind="stable")]]


def annealing(asked: Asked) -> Array:
    """Simulated annealing by many walkers at once, some from the best that were measured: the best points met."""
    begin = asked.best_measured[: WALKERS // 4]
    at = np.concatenate([begin, asked.random.choice(asked.space.legal, WALKERS - len(begin))]).astype(np.int64)
    value = asked.scored(at)
    points, values = [at], [value]
    for step in range(STEPS):
        heat = max(float(np.std(value)), 1e-6) * (1.0 - step / STEPS)
        there = asked.space.neighbours(at, asked.random)
        found = asked.scored(there)
        takes = asked.random.random(len(at)) < np.exp(np.minimum((found - value) / max(heat, 1e-9), 0.0))
        at, value = np.where(takes, there, at), np.where(takes, found, value)
        points.append(at)
        values.append(value)
    return _best(np.concatenate(points), np.concatenate(values))


def evolutionary(asked: Asked) -> Array:
    """The best of generations that the cost model selects."""
    good = asked.best_measured[: POPULATION // 4]
    people = np.concatenate([good, asked.random.choice(asked.space.legal, POPULATION - len(good))]).astype(np.int64)
    points, values = [], []
    for _ in range(GENERATIONS):
        value = asked.scored(people)
        points.append(people)
        values.append(value)
        people = _children(asked, people[np.argsort(-value, kind="stable")], POPULATION)
    return _best(np.concatenate(points), np.concatenate(values))


def genetic(asked: Asked) -> Array:
    """Children of the best measured points, in any order, as a tuner without a cost model makes them."""
    if len(asked.measured) < 2:
        return asked.some(4 * asked.wanted)
    made = np.unique(_children(asked, asked.best_measured, 16 * asked.wanted))
    made = asked.random.permutation(made[np.isfinite(asked.space.estimates[made])])
    return np.concatenate([made, asked.some(asked.wanted)])


def at_random(asked: Asked) -> Array:
    """Any points."""
    return asked.some(asked.wanted + len(asked.measured))


EXPLORERS: dict[str, Callable[[Asked], Array]] = {
    "exhaustive": exhaustive, "annealing": annealing, "evolutionary": evolutionary, "genetic": genetic,
    "random": at_random,
}  # fmt: skip


def _best(points: Array, values: Array) -> Array:
    """Points that make sense, once each, best first."""
    order = np.argsort(-values, kind="stable")[: int(np.isfinite(values).sum())]
    found, first = np.unique(points[order], return_index=True)
    return found[np.argsort(first)]


def _children(asked: Asked, ranked: Array, count: int) -> Array:
    """Children of points of which the first are the best: crossed, and half of them changed in one knob."""
    parents = [ranked[(len(ranked) * asked.random.random(count) ** 2).astype(np.int64)] for _ in range(2)]
    made = asked.space.crossed(parents[0], parents[1], asked.random)
    return np.where(asked.random.random(count) < 0.5, asked.space.neighbours(made, asked.random), made)


def choose_batch(
    space: Space, ranked: Sequence[int] | Array, scores: Score, seen: Collection[int], count: int,
    random: np.random.Generator, epsilon: float = EPSILON,
) -> list[int]:  # fmt: skip
    """A batch out of ranked candidates: the best, such that they differ, and some at random."""
    fresh = [number for number in dict.fromkeys(map(int, ranked)) if number not in seen]
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
    any_ = (int(one) for one in random.permutation(near)[: 8 * count])
    others = [one for one in any_ if one not in seen and one not in chosen]
    if not chosen and not others:  # all that is near is known: whatever is left
        others = [int(one) for one in random.permutation(space.legal) if int(one) not in seen]
    return chosen + others[: count - len(chosen)]
