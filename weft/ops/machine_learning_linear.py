"""Linear models of ai.onnx.ml, and the support vector machine of numbers: products."""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Array, Node, TensorType, Type, Value
from weft.graph.opspec import Infer, Use
from weft.graph.passes.support import Replacement, Scope
from weft.ops.expansion import Builder
from weft.ops.machine_learning_scores import (
    Labels,
    best,
    classified,
    classifier_types,
    expanding,
    feature_rows,
    over,
    regressed,
    rows_of,
    transformed,
    two_columns,
)

# ---------------------------------------------------------------------------------------------------------- linear


def _linear(b: Builder, use: Use, targets: int) -> Value | None:
    features = feature_rows(b)
    given = np.asarray(use.need("coefficients"), np.float32)
    if features is None:
        return None
    if targets < 1 or given.size != targets * features[1]:
        raise use.error(f"{given.size} coefficients for {targets} targets of {features[1]} features")
    x, kind = features[0], features[0].tensor.dtype
    scores = b("MatMul", x, b.constant(given.reshape(targets, -1).T, kind))
    intercepts = use.get("intercepts")
    return b("Add", scores, b.constant(intercepts, kind)) if intercepts else scores


def _regressor(node: Node, scope: Scope) -> Replacement:
    use, b = Use(node), Builder(node, scope)
    scores = _linear(b, use, int(use.get("targets", 1)))
    return None if scores is None else regressed(b, str(use.get("post_transform", "NONE")), scores)


def _score_count(c: Use) -> int:
    """How many classes the coefficients speak of."""
    labels, intercepts = Labels(c).names, c.get("intercepts")
    return len(intercepts) if intercepts else max(len(labels), 1)


def _classifier_infer(c: Infer) -> list[Type]:
    labels = Labels(c)
    return classifier_types(c, labels, max(len(labels.names), _score_count(c)))


def _classifier(node: Node, scope: Scope) -> Replacement:
    """One score for two classes says how much the second is meant."""
    use, b = Use(node), Builder(node, scope)
    labels, count, transform = Labels(use), _score_count(use), str(use.get("post_transform", "NONE"))
    scores = _linear(b, use, count)
    if scores is None:
        return None
    if count == 1 and len(labels.names) == 2:
        return classified(b, labels, over(b, scores, 0.0), two_columns(b, scores, transform, True))
    return classified(b, labels, best(b, scores), transformed(b, transform, scores))


expanding("LinearRegressor", lambda c: [TensorType("float32", (rows_of(c), int(c.get("targets", 1))))], _regressor)
expanding("LinearClassifier", _classifier_infer, _classifier)


# ---------------------------------------------------------------------------------------- support vector machines


def kernel_rows(b: Builder, use: Use, x: Value, vectors: Array) -> Value:
    """The kernel of every row with every vector, in the type of the rows."""
    gamma, shift, degree = (*(float(v) for v in use.get("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    name, kind = str(use.get("kernel_type", "LINEAR")), x.tensor.dtype
    if vectors.shape[1] != x.tensor.dims[1]:
        raise use.error(f"vectors of {vectors.shape[1]} numbers for {x.tensor.dims[1]} features")
    if name == "RBF":
        away = b("Sub", b("Unsqueeze", x, b.constant([1], np.int64)), b.constant(vectors, kind))
        distance = b("ReduceSumSquare", away, b.constant([-1], np.int64), keepdims=0)
        return b("Exp", b("Mul", distance, b.constant(-gamma, kind)))
    product = b("MatMul", x, b.constant(vectors.T, kind))
    if name == "LINEAR":
        return product
    if name not in ("POLY", "SIGMOID"):
        raise use.error(f"unknown kernel_type {name!r}")
    made = b("Add", b("Mul", product, b.constant(gamma, kind)), b.constant(shift, kind))
    return b("Pow", made, b.constant(degree, kind)) if name == "POLY" else b("Tanh", made)


def _svm_regressor(node: Node, scope: Scope) -> Replacement:
    """A regressor, or the machine of one class; in double precision."""
    use, b = Use(node), Builder(node, scope)
    features, count = feature_rows(b), int(use.get("n_supports", 0))
    if features is None:
        return None
    weights = np.asarray(use.get("coefficients") or [], np.float64)
    if count:
        vectors = np.asarray(use.get("support_vectors") or [], np.float64).reshape(count, -1)
    else:  # without vectors the coefficients are those of a plane
        vectors, weights = weights.reshape(1, -1), np.ones(1)
    kernel = kernel_rows(b, use, b.cast(features[0], "float64"), vectors)
    rho = np.asarray(use.get("rho") or [0.0], np.float64)[:1]
    scores = b("MatMul", kernel, b.constant(weights.reshape(-1, 1), np.float64))
    scores = b("Add", scores, b.constant(rho, np.float64))
    if use.get("one_class", 0):
        positive = b("Greater", scores, b.constant(0.0, np.float64))
        scores = b("Where", positive, b.constant(1.0, np.float64), b.constant(-1.0, np.float64))
    return regressed(b, str(use.get("post_transform", "NONE")), scores)


expanding("SVMRegressor", lambda c: [TensorType("float32", (rows_of(c), 1))], _svm_regressor)
