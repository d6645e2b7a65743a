"""What the models of ai.onnx.ml share: rows of features, labels, and the transforms that end them.

Models are expanded (`expansion.py`) into products, additions, and one kernel for the walk through trees:

    LinearRegressor, LinearClassifier        Add(MatMul(x, coefficients), intercepts)
    TreeEnsemble…                            weft.Forest(x, nodes…), see machine_learning_forest.py
    SVMRegressor                             a kernel of every row with every support vector, and a product
    SVMClassifier                            the same for every pair of classes, see machine_learning_vectors.py

and then what all of them end with: a transform of the scores, and the label of the best.
"""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, TensorType, Type, Value
from weft.graph.opspec import Evaluate, Infer, Use, register
from weft.graph.shapes import unknown_dim
from weft.ops import expansion
from weft.ops.elementwise_support import infer_same
from weft.ops.expansion import Builder, Unexpanded

DOMAIN = "ai.onnx.ml"

compose = functools.partial(expansion.compose, domain=DOMAIN, takes="X:number", by_value=False)

# ----------------------------------------------------------------------------------------------------------- scores


def _unusual(c: Evaluate, scores: Array) -> Array:
    """The transforms that have no operator of their own, row by row."""
    name = str(c.need("name"))
    if name == "SOFTMAX_ZERO":
        powers = np.where(np.abs(scores) > 1e-7, np.exp(scores - scores.max(axis=1, keepdims=True)), 0.0)
        total = powers.sum(axis=1, keepdims=True)
        made = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
        return np.asarray(made, scores.dtype)
    if name != "PROBIT":
        raise c.error(f"unknown post_transform {name!r}")
    normal = NormalDist()
    made = [normal.inv_cdf(min(max(float(v), 1e-12), 1 - 1e-12)) for v in scores.ravel()]
    return np.array(made, scores.dtype).reshape(scores.shape)


register("Transform", infer_same, _unusual, domain="weft", takes="scores:float[_ _]")


def transformed(b: Builder, name: str, scores: Value) -> Value:
    """Scores after the transform of that name."""
    if name == "NONE":
        return scores
    if name == "SOFTMAX":
        return b("Softmax", scores, axis=-1)
    return b("Sigmoid", scores) if name == "LOGISTIC" else b("Transform", scores, domain="weft", name=name)


def regressed(b: Builder, scores: Value) -> Value:
    """The output of a regressor."""
    return b.cast(transformed(b, str(b.get("post_transform", "NONE")), scores), "float32")


def classified(b: Builder, labels: Labels, places: Value, scores: Value) -> list[Value]:
    """The two outputs of a classifier: the labels at places, and the scores."""
    if labels.names:
        table = b.constant(labels.names, object if labels.is_text else np.int64)
        places = b("Gather", table, places, axis=0)
    return [places, b.cast(scores, "float32")]


def best(b: Builder, scores: Value) -> Value:
    """The column of the highest score of each row."""
    return b("ArgMax", scores, axis=1, keepdims=0)


def two_columns(b: Builder, score: Value, transform: str, shares: bool) -> Value:
    """The scores of both classes from that of the second, a column: a share of one, or a distance from the border."""
    if transform == "LOGISTIC" or not shares:
        both = b("Concat", b("Neg", score), score, axis=1)
        return b("Sigmoid", both) if transform == "LOGISTIC" else both
    one = b.constant([[1.0]], score.tensor.dtype)
    return b("Concat", b("Sub", one, score), score, axis=1)


def over(b: Builder, score: Value, border: float) -> Value:
    """0 or 1 for each row of a column: whether the score is above the border."""
    above = b("Greater", score, b.constant([[border]], score.tensor.dtype))
    return b("Squeeze", b.cast(above, "int64"), b.constant([1], np.int64))


# ---------------------------------------------------------------------------------------------------- rows and labels


def feature_rows(b: Builder, x: Value) -> tuple[Value, int]:
    """The features as rows of floats, and how many."""
    rank, columns = len(b.dims(x)), b.dims(x)[-1:]
    if rank not in (1, 2) or not isinstance(columns[0], int):
        raise Unexpanded
    made = b.cast(x, "float64" if x.tensor.dtype == "float64" else "float32")
    return b("Unsqueeze", made, b.constant([0], np.int64)) if rank == 1 else made, columns[0]


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


def rows_of(c: Infer) -> Dim:
    """How many rows of features there are: one for a vector."""
    shape = c.tensor(0).shape
    return unknown_dim("rows") if shape is None else shape[0] if len(shape) > 1 else 1


def classifier_types(c: Infer, labels: Labels, columns: Dim) -> list[Type]:
    """Labels, and a score for each class."""
    rows = rows_of(c)
    return [TensorType(labels.dtype, (rows,)), TensorType("float32", (rows, columns))]
