"""What the models of ai.onnx.ml share: rows of features, labels, and the transforms that end them.

Models are expanded (`expansion.py`) into products, additions, and one kernel for the walk through trees:

    LinearRegressor, LinearClassifier        Add(MatMul(x, coefficients), intercepts)
    TreeEnsemble…                            weft.Forest(x, nodes…), see machine_learning_forest.py
    SVMRegressor                             a kernel of every row with every support vector, and a product
    SVMClassifier                            the same for every pair of classes, see machine_learning_vectors.py

and then what all of them end with: a transform of the scores, and the label of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, Node, TensorType, Type, Value
from weft.graph.opspec import Evaluate, Infer, InferFunction, Use, register
from weft.graph.passes.support import Replacement, Rule
from weft.graph.shapes import unknown_dim
from weft.graph.signature import Relation
from weft.ops.elementwise_support import TYPE_NUMBERS, infer_same
from weft.ops.expansion import Builder, by_expansion

DOMAIN = "ai.onnx.ml"


def expanding(
    name: str, infer: InferFunction, expand: Rule, requires: Sequence[Relation] = (), takes: str = "X:number"
) -> None:
    """Registers an operator of the domain whose meaning is its expansion."""
    register(name, infer, by_expansion(expand), domain=DOMAIN, expand=expand, takes=takes, requires=requires)


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


def regressed(b: Builder, name: str, scores: Value) -> Replacement:
    """The output of a regressor."""
    return b.last("Cast", [transformed(b, name, scores)], 0, to=TYPE_NUMBERS["float32"])


def classified(b: Builder, labels: Labels, places: Value, scores: Value) -> Replacement:
    """The two outputs of a classifier: the labels at places, and the scores."""
    to_float = b.last("Cast", [scores], 1, to=TYPE_NUMBERS["float32"])
    if not labels.names:
        return [*b.last("Identity", [places], 0), *to_float]
    table = b.constant(labels.names, object if labels.is_text else np.int64)
    return [*b.last("Gather", [table, places], 0, axis=0), *to_float]


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


def known_input(node: Node) -> Value | None:
    """The features; None where not even their rank is known."""
    x = node.inputs[0]
    return x if x is not None and isinstance(x.type, TensorType) and x.type.shape is not None else None


def feature_rows(b: Builder) -> tuple[Value, int] | None:
    """The features as rows of floats, and how many; None where too little is known of them."""
    x = known_input(b.node)
    columns = x.tensor.dims[-1] if x is not None and x.tensor.rank in (1, 2) else None
    if x is None or not isinstance(columns, int):
        return None
    made = b.cast(x, "float64" if x.tensor.dtype == "float64" else "float32")
    return b("Unsqueeze", made, b.constant([0], np.int64)) if x.tensor.rank == 1 else made, columns


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
