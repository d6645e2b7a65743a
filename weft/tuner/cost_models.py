"""What a point is expected to be worth, by one interface: higher scores are measured first.

The learned one is XGBoost on features of points, trained to rank what was measured; it begins with the analytic
estimate (its base margin), so that with nothing measured it says what the estimate says: prior + correction. `MODELS`
has them by name; another (a network over loop programs, for comparison: benchmarks/trees.py) is put there.

Points of other tasks whose spaces have the same knobs are learnt from, too, so that the first batch of a task is better
than the estimate alone. Rank correlation and recall say how well a model did on a batch before it learnt from it.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weft.core.install import hint
from weft.tuner.settings import DEPTH, LEAST_POINTS, LEAST_WEIGHT, PRIOR_WEIGHT, RATE, TREES

if TYPE_CHECKING:
    from weft.tuner.space import Space

Array = Any


class Group(NamedTuple):
    """Measured points of one task: they are ranked among themselves."""

    features: Array
    prior: Array
    gains: Array  # how many times as fast as the default each is; 0 for those that failed


class CostModel(Protocol):
    """Scores points, and learns from measured ones."""

    name: str

    def look(self, space: Space, numbers: Array) -> Array:
        """What the model wants to know of points: a row for each."""

    def fit(self, groups: Sequence[Group]) -> None:
        """Learns from the measured points of tasks, the one in hand first."""

    def score(self, features: Array, prior: Array) -> Array:
        """What points are worth; higher is better."""


class Analytic:
    """The target's own estimate; nothing is learnt."""

    name = "analytic"

    def look(self, space: Space, numbers: Array) -> Array:
        """Knobs, in columns."""
        return space.features(numbers)

    def fit(self, groups: Sequence[Group]) -> None:
        """Nothing is learnt."""

    def score(self, features: Array, prior: Array) -> Array:
        """The estimate."""
        return np.asarray(prior, np.float32)


class Unknown(Analytic):
    """Nothing is known of any point: their scores are random."""

    name = "none"

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def score(self, features: Array, prior: Array) -> Array:
        """Random numbers."""
        return self._random.random(len(prior), np.float32)


class Learned(Analytic):
    """Gradient-boosted trees that rank points, on top of the analytic estimate, or without it."""

    def __init__(self, prior: bool = True, seed: int = 0, ahead: Any = None, trees: int = TREES) -> None:
        self.name = "prior + learned" if prior else "learned"
        self._prior, self._seed, self._ahead, self._trees = prior, seed, ahead, trees
        self.booster: Any = None
        self._weight = PRIOR_WEIGHT

    def _margin(self, features: Array, prior: Array, weight: float, ahead: Any) -> Array:
        if not self._prior:
            return np.zeros(len(prior), np.float32)
        # Points that the estimate takes to be hopeless may be wrong all the same: how hopeless does not matter.
        margin = np.maximum(np.asarray(prior, np.float32), -4.0) * np.float32(weight)
        return margin if ahead is None else self._add(ahead, features, margin)

    def _add(self, booster: Any, features: Array, margin: Array) -> Array:
        made: Array = booster.inplace_predict(features, base_margin=margin, predict_type="margin", strict_shape=False)
        return made

    def fit(self, groups: Sequence[Group]) -> None:
        """Trains anew on all that was measured; the prior counts as far as it was right, and trees made ahead too."""
        used = [one for one in groups if len(one.gains) >= LEAST_POINTS and float(np.ptp(one.gains)) > 0.0]
        if not used:
            return
        if self._prior:
            ways = [self._ahead, None] if self._ahead is not None else [None]
            right = [np.nan_to_num(np.mean([self._right(one, way) for one in used])) for way in ways]
            self._ahead = ways[int(np.argmax(right))]
            self._weight = max(LEAST_WEIGHT, PRIOR_WEIGHT * float(max(right)))
        import xgboost  # not before: it may open a GPU, which is then closed to children of this process

        features, prior, gains = map(np.concatenate, zip(*used))
        data = xgboost.DMatrix(features, label=np.asarray(gains, np.float32), nthread=1)
        data.set_group([len(one.gains) for one in used])
        data.set_base_margin(self._margin(features, prior, self._weight, self._ahead))
        parameters = {
            "objective": "rank:pairwise", "lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 8,
            "lambdarank_normalization": False, "max_depth": DEPTH, "eta": RATE, "min_child_weight": 0.1, "lambda": 1.0,
            "nthread": 1, "seed": self._seed, "tree_method": "hist", "verbosity": 0, "max_bin": 64,
        }  # fmt: skip
        self.booster = xgboost.train(parameters, data, self._trees)

    def _right(self, group: Group, ahead: Any) -> float:
        return rank_correlation(self._margin(group.features, group.prior, PRIOR_WEIGHT, ahead), group.gains)

    def score(self, features: Array, prior: Array) -> Array:
        """The margin of each point."""
        margin = self._margin(features, prior, self._weight, self._ahead)
        return margin if self.booster is None else self._add(self.booster, features, margin)


def has_learned() -> bool:
    """Whether the package that learns is installed."""
    return importlib.util.find_spec("xgboost") is not None


def cost_model(name: str | None = None, seed: int = 0, space: Space | None = None) -> CostModel:
    """A cost model by name; None is the best that is here: without XGBoost the analytic one, with a word.

    For a space on a machine of the kind that its corpus was measured on, the learned one begins with what ships.
    """
    if name is None and not has_learned():
        said = f"points are ranked by the analytic cost alone: {hint('tune')} brings the learned model"
        warnings.warn(said, stacklevel=2)
        return Analytic()
    ahead = None if space is None or name not in (None, "prior + learned") else space.trained_ahead()
    made: CostModel = MODELS[name or "prior + learned"](seed) if ahead is None else Learned(True, seed, ahead)
    return made


MODELS: dict[str, Any] = {
    "analytic": lambda seed: Analytic(),
    "prior + learned": lambda seed: Learned(True, seed),
    "learned": lambda seed: Learned(False, seed),
    "none": Unknown,
}


# ----------------------------------------------------------------------------------------------------- how good it is


def ranks(values: Array) -> Array:
    """The places of values in order; equals share theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse.reshape(-1)]


def rank_correlation(scores: Array, gains: Array) -> float:
    """Spearman's; NaN where there is nothing to rank."""
    if len(gains) < 3 or np.ptp(scores) == 0 or np.ptp(gains) == 0:
        return float("nan")
    return float(np.corrcoef(ranks(np.asarray(scores)), ranks(np.asarray(gains)))[0, 1])


def recall(scores: Array, gains: Array, top: int) -> float:
    """The share of the best points that are among those with the best scores."""
    count = min(top, len(gains))
    best, said = (set(np.argsort(-np.asarray(one), kind="stable")[:count].tolist()) for one in (gains, scores))
    return len(best & said) / count if count else float("nan")
