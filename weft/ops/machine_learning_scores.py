"""What the classifiers and regressors of ai.onnx.ml share: labels, and the transforms that end them."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Infer, Use
from weft.graph.shapes import unknown_dim

DOMAIN = "ai.onnx.ml"


def transformed(c: Use, name: str, scores: Array) -> Array:
    """Scores after the transform of that name, row by row."""
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return logistic(scores)
    if name == "SOFTMAX":
        return softmax(scores)
    if name == "SOFTMAX_ZERO":
        powers = np.where(np.abs(scores) > 1e-7, np.exp(scores - scores.max(axis=1, keepdims=True)), 0.0)
        total = powers.sum(axis=1, keepdims=True)
        return np.asarray(np.divide(powers, total, out=np.zeros_like(powers), where=total > 0))
    if name == "PROBIT":
        normal = NormalDist()
        return np.array([normal.inv_cdf(min(max(float(v), 1e-12), 1 - 1e-12)) for v in scores.ravel()]).reshape(
            scores.shape
        )
    raise c.error(f"unknown post_transform {name!r}")


def logistic(scores: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-scores)))


def softmax(scores: Array) -> Array:
    """Powers of e that sum to one in each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def second_class(score: Array, transform: str, shares: bool) -> Array:
    """The scores of both classes from that of the second: a share of one, or a distance from the border."""
    if transform == "LOGISTIC":
        return logistic(np.stack([-score, score], axis=1))
    return np.stack([1 - score if shares else -score, score], axis=1)


class Labels:
    """The classes of a classifier: strings or whole numbers."""

    __slots__ = ("names", "is_text")

    def __init__(self, c: Use, numbers: str = "classlabels_ints") -> None:
        words = c.get("classlabels_strings")
        self.is_text = bool(words)
        self.names: list[Any] = list(words or c.get(numbers) or [])

    @property
    def dtype(self) -> str:
        """The element type of the labels."""
        return "string" if self.is_text else "int64"

    def pick(self, places: Array) -> Array:
        """The labels at places."""
        if not self.names:
            return np.asarray(places, np.int64)
        table = np.array(self.names, object if self.is_text else np.int64)
        return np.asarray(table[places])


def rows_of(c: Infer) -> Dim:
    """How many rows of features there are: one for a vector."""
    shape = c.tensor(0).shape
    return unknown_dim("rows") if shape is None else shape[0] if len(shape) > 1 else 1


def classifier_types(c: Infer, labels: Labels, columns: Dim) -> list[Type]:
    """Labels, and a score for each class."""
    rows = rows_of(c)
    return [TensorType(labels.dtype, (rows,)), TensorType("float32", (rows, columns))]


def as_rows(x: Array, double: bool = False) -> Array:
    """Features as rows of floats."""
    kind = np.float64 if x.dtype == np.float64 or double else np.float32
    return np.atleast_2d(x).astype(kind)
