"""The models of ai.onnx.ml in other operators: products, additions, and one kernel for the walk through trees.

    LinearRegressor, LinearClassifier        Add(MatMul(x, coefficients), intercepts)
    TreeEnsembleRegressor, …Classifier       weft.Forest(x, nodes…), see machine_learning_forest.py
    SVMRegressor                             a kernel of every row with every support vector, and a product
    SVMClassifier                            the same for every pair of classes, see machine_learning_vectors.py
    Scaler, Normalizer, Imputer              Mul(Sub(x, offset), scale), Div(x, its norm), Where(IsNaN(x), filling, x)

and then what all of them end with: a transform of the scores, and the label of the best. Uses that are not met in
practice (PROBIT, minima over trees, …) stay as they are, with their numpy meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Array, Node, TensorType, Value
from weft.graph.opspec import Use
from weft.graph.passes.support import Replacement, Scope
from weft.ops.elementwise_support import ELEMENT_TYPES
from weft.ops.machine_learning_scores import Labels

TYPE_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}
TRANSFORMS = {"NONE": "", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}


class Builder:
    """Makes the nodes that stand in a node's place."""

    def __init__(self, node: Node, scope: Scope) -> None:
        self.node, self.scope = node, scope

    def __call__(self, op: str, *inputs: Value, domain: str = "", **attributes: Any) -> Value:
        """The only output of a new node."""
        return self.scope.make(self.node, op, inputs, domain, **attributes)

    def constant(self, array: Any, kind: Any) -> Value:
        """A new constant."""
        return self.scope.new_constant(np.asarray(array, kind), f"{self.node.outputs[0].name}_constant")

    def cast(self, value: Value, dtype: str) -> Value:
        """A value in another type."""
        return value if value.tensor.dtype == dtype else self("Cast", value, to=TYPE_NUMBERS[dtype])

    def last(self, op: str, inputs: Sequence[Value], position: int, **attributes: Any) -> list[Node]:
        """The node that makes an output of the node replaced; none where nobody asks for that output."""
        if position >= len(self.node.outputs) or not self.node.outputs[position].name:
            return []
        outputs = [self.node.outputs[position]]
        return [Node(op, inputs, outputs, attributes, self.node.name, self.node.origin)]


def feature_rows(b: Builder) -> tuple[Value, int] | None:
    """The features as rows of floats, and how many; None where too little is known of them."""
    x = b.node.inputs[0]
    if x is None or not isinstance(x.type, TensorType) or x.type.shape is None or x.type.dtype == "string":
        return None
    columns = x.type.shape[-1] if x.type.rank in (1, 2) else None
    if not isinstance(columns, int):
        return None
    made = b.cast(x, "float64" if x.type.dtype == "float64" else "float32")
    return b("Unsqueeze", made, b.constant([0], np.int64)) if x.type.rank == 1 else made, columns


def transformed(b: Builder, name: str, scores: Value) -> Value:
    """Scores after one of TRANSFORMS."""
    op = TRANSFORMS[name]
    if not op:
        return scores
    return b(op, scores, axis=-1) if op == "Softmax" else b(op, scores)


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


# ---------------------------------------------------------------------------------------------------- linear models


def _linear(b: Builder, use: Use, targets: int) -> Value | None:
    features = feature_rows(b)
    given = np.asarray(use.need("coefficients"), np.float32)
    if features is None or targets < 1 or given.size != targets * features[1]:
        return None
    x, kind = features[0], features[0].tensor.dtype
    scores = b("MatMul", x, b.constant(given.reshape(targets, -1).T, kind))
    intercepts = use.get("intercepts")
    return b("Add", scores, b.constant(intercepts, kind)) if intercepts else scores


def expand_linear_regressor(node: Node, scope: Scope) -> Replacement:
    """LinearRegressor as a product."""
    use, b = Use(node), Builder(node, scope)
    transform = str(use.get("post_transform", "NONE"))
    scores = _linear(b, use, int(use.get("targets", 1))) if transform in TRANSFORMS else None
    if scores is None:
        return None
    return b.last("Cast", [transformed(b, transform, scores)], 0, to=TYPE_NUMBERS["float32"])


def expand_linear_classifier(node: Node, scope: Scope) -> Replacement:
    """LinearClassifier as a product; `count` scores, one for two classes says how much the second is meant."""
    use, b = Use(node), Builder(node, scope)
    labels, transform = Labels(use), str(use.get("post_transform", "NONE"))
    intercepts = use.get("intercepts")
    count = len(intercepts) if intercepts else max(len(labels.names), 1)
    one = count == 1 and len(labels.names) == 2
    if transform not in TRANSFORMS or (labels.names and not one and count > len(labels.names)):
        return None
    scores = _linear(b, use, count)
    if scores is None:
        return None
    if one:
        return classified(b, labels, over(b, scores, 0.0), two_columns(b, scores, transform, True))
    return classified(b, labels, best(b, scores), transformed(b, transform, scores))


def expand_scaler(node: Node, scope: Scope) -> Replacement:
    """Scaler as a difference and a product."""
    x = node.inputs[0]
    if x is None or not isinstance(x.type, TensorType) or x.type.dtype == "string":
        return None
    b, use = Builder(node, scope), Use(node)
    made = b.cast(x, "float32")
    offset, scale = (np.asarray(use.get(k) or d, np.float32) for k, d in (("offset", [0.0]), ("scale", [1.0])))
    columns = x.type.shape[-1] if x.type.shape else None
    if any(array.size not in (1, columns) for array in (offset, scale)):
        return None
    return b.last("Mul", [b("Sub", made, b.constant(offset, np.float32)), b.constant(scale, np.float32)], 0)


_NORMS = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}


def expand_normalizer(node: Node, scope: Scope) -> Replacement:
    """Normalizer as a quotient; rows whose norm is zero stay as they are."""
    x, norm = node.inputs[0], str(Use(node).get("norm", "MAX"))
    if norm not in _NORMS or x is None or not isinstance(x.type, TensorType) or not x.type.shape:
        return None
    if x.type.dtype == "string" or x.type.shape[-1] == 0:
        return None
    b = Builder(node, scope)
    rows = b.cast(x, "float32")
    size = b(_NORMS[norm], rows, b.constant([-1], np.int64), keepdims=1)
    zero, one = b.constant(0.0, np.float32), b.constant(1.0, np.float32)
    return b.last("Div", [rows, b("Where", b("Equal", size, zero), one, size)], 0)


def expand_imputer(node: Node, scope: Scope) -> Replacement:
    """Imputer as a choice."""
    x, use, b = node.inputs[0], Use(node), Builder(node, scope)
    if x is None or not isinstance(x.type, TensorType) or x.type.dtype not in ("float32", "float64", "int64"):
        return None
    kind, is_float = x.type.dtype, x.type.dtype != "int64"
    filling = use.get("imputed_value_floats" if is_float else "imputed_value_int64s")
    if not filling or not x.type.shape or len(filling) not in (1, x.type.shape[-1]):
        return None
    gap = use.get("replaced_value_float", 0.0) if is_float else use.get("replaced_value_int64", 0)
    holes = b("IsNaN", x) if is_float and np.isnan(gap) else b("Equal", x, b.constant(gap, kind))
    return b.last("Where", [holes, b.constant(filling, kind), x], 0)


# ------------------------------------------------------------------------------------------ support vector machines


def kernel_rows(b: Builder, use: Use, x: Value, vectors: Array) -> Value | None:
    """The kernel of every row with every vector, in the type of the rows."""
    gamma, shift, degree = (*(float(v) for v in use.get("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    name, kind = str(use.get("kernel_type", "LINEAR")), x.tensor.dtype
    if name == "RBF":
        away = b("Sub", b("Unsqueeze", x, b.constant([1], np.int64)), b.constant(vectors, kind))
        distance = b("ReduceSumSquare", away, b.constant([-1], np.int64), keepdims=0)
        return b("Exp", b("Mul", distance, b.constant(-gamma, kind)))
    product = b("MatMul", x, b.constant(vectors.T, kind))
    if name == "LINEAR":
        return product
    if name not in ("POLY", "SIGMOID"):
        return None
    made = b("Add", b("Mul", product, b.constant(gamma, kind)), b.constant(shift, kind))
    return b("Pow", made, b.constant(degree, kind)) if name == "POLY" else b("Tanh", made)


def expand_svm_regressor(node: Node, scope: Scope) -> Replacement:
    """SVMRegressor, and the machine of one class; in double precision, as its numpy meaning."""
    use, b = Use(node), Builder(node, scope)
    transform, count = str(use.get("post_transform", "NONE")), int(use.get("n_supports", 0))
    features = feature_rows(b)
    weights = np.asarray(use.get("coefficients") or [], np.float64)
    given = np.asarray(use.get("support_vectors") or [], np.float64)
    if features is None or transform not in TRANSFORMS or not weights.size:
        return None
    vectors = given.reshape(count, -1) if count else weights.reshape(1, -1)
    if vectors.shape[1] != features[1] or (count and weights.size != count):
        return None
    kernel = kernel_rows(b, use, b.cast(features[0], "float64"), vectors)
    if kernel is None:
        return None
    column = weights.reshape(-1, 1) if count else np.ones((1, 1))
    rho = np.asarray(use.get("rho") or [0.0], np.float64)[:1]
    scores = b("Add", b("MatMul", kernel, b.constant(column, np.float64)), b.constant(rho, np.float64))
    if use.get("one_class", 0):
        positive = b("Greater", scores, b.constant(0.0, np.float64))
        scores = b("Where", positive, b.constant(1.0, np.float64), b.constant(-1.0, np.float64))
    return b.last("Cast", [transformed(b, transform, scores)], 0, to=TYPE_NUMBERS["float32"])
