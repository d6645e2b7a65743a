"""How far from the optimum? A space measured as a whole, once; then what each way to choose regrets against that truth.

Searches are replayed over measured points: a pool is a table of points and their gains, and nothing is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from weft.tuner import cost_models
from weft.tuner.model import Tuning
from weft.tuner.records import Record
from weft.tuner.search import Proposer, Search, batch_after
from weft.tuner.settings import EPSILON, REPLAYED, WITHIN
from weft.tuner.space import Space

WAYS: dict[str, tuple[str, str, float]] = {
    "prior + learned": ("prior + learned", "exhaustive", EPSILON),
    "learned alone": ("learned", "annealing", EPSILON),
    "analytic": ("analytic", "exhaustive", 0.0),
    "genetic": ("none", "genetic", 0.0),
    "random": ("none", "random", 0.0),
}
"""Ways to search: cost model, explorer, and the share drawn at random."""


def measure_all(tuning: Tuning, search: Search, most: int, observe: Callable[[Tuning, Record | None], None]) -> int:
    """Measures every point of a task, in random order, those measured before left out; how many were measured now."""
    order = np.random.default_rng(0).permutation(search.space.legal)[:most]
    left = [int(number) for number in order if int(number) not in search.gains]
    tuning.stage = f"measuring {len(left)} points of {search.task.label}"
    for record in search.measure(left):
        tuning.trials += 1
        observe(tuning, record)
    search.gains.update(dict.fromkeys(search.space.known & search.gains.keys(), 1.0))  # the default beside itself
    return len(left)


def replay(space: Space, gains: Mapping[int, float], way: str, trials: int, seed: int = 0) -> list[float]:
    """A search over a measured pool: the best gain after each trial, the default's at first."""
    model, explorer, epsilon = WAYS[way]
    pool = space.restricted(np.fromiter(gains, np.int64, len(gains)))
    proposer = Proposer(pool, cost_models.cost_model(model, seed, space), explorer, seed, epsilon)
    if way in ("prior + learned", "analytic"):
        proposer.learn()
    best, first = list[float](), max((gains[number] for number in pool.known), default=0.0)
    while len(best) < min(trials, len(gains)):
        batch = proposer.propose(min(batch_after(len(best)), trials - len(best)))
        if not batch:
            break
        for number in batch:
            proposer.gains[number] = gains[number]
            best.append(max(best[-1] if best else first, gains[number]))
        proposer.learn()
    return best


def trials_to(curve: list[float], wanted: float) -> int | None:
    """After how many trials a search has so much; None where it never has."""
    return next((at + 1 for at, gain in enumerate(curve) if gain >= wanted), None)


def ways_here() -> list[str]:
    """The ways that can be taken with what is installed."""
    return [way for way, (model, _, _) in WAYS.items() if cost_models.has_learned() or "learned" not in model]


def regret_rows(search: Search, seeds: int = 3) -> list[tuple[str, str, str]]:
    """For each way: how much slower than the best its choice after 16 trials is, and how many it needs to 2 %."""
    gains = {number: gain for number, gain in search.gains.items() if gain > 0}
    if len(gains) < 2:
        return []
    best = max(gains.values())
    rows = [("default (no trial)", f"{100 * max(0.0, best - 1):.1f} %", "")]  # beside which gains are measured
    for way in ways_here():
        curves = [replay(search.space, search.gains, way, REPLAYED, seed) for seed in range(seeds)]
        regret = np.median([best / max(curve[min(15, len(curve) - 1)], 1e-9) - 1 for curve in curves])
        needed = np.median([trials_to(curve, WITHIN * best) or np.inf for curve in curves])
        rows.append((f"{way}, 16 trials", f"{100 * regret:.1f} %", f"{needed:.0f}".replace("inf", f"> {REPLAYED}")))
    return rows
