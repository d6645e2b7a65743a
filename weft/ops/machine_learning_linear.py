"""Linear models of ai.onnx.ml, and the support vector machine of numbers: products."""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Array, TensorType, Type, Value
from weft.graph.opspec import Infer, Use
from weft.ops.expansion import Builder
from weft.ops.machine_learning_scores import (
    Labels,
    best,
    classified,
    classifier_types,
    compose,
    feature_rows,
    over,
    regressed,
    rows_of,
    transformed,
    two_columns,
)

# ---------------------------------------------------------------------------------------------------------- linear


def _linear(b: Builder, x: Value, targets: int) -> Value:
    rows, columns = feature_rows(b, x)
    given, kind = np.asarray(b.need("coefficients"), np.float32), rows.tensor.dtype
    if targets < 1 or given.size != targets * columns:
        raise b.error(f"{given.size} coefficients for {targets} targets of {columns} features")
    scores = b("MatMul", rows, b.constant(given.reshape(targets, -1).T, kind))
    intercepts = b.get("intercepts")
    return b("Add", scores, b.constant(intercepts, kind)) if intercepts else scores


def _regressor(b: Builder, x: Value) -> Value:
    return regressed(b, _linear(b, x, int(b.get("targets", 1))))


def _score_count(c: Use) -> int:
    """How many classes the coefficients speak of."""
    labels, intercepts = Labels(c).names, c.get("intercepts")
    return len(intercepts) if intercepts else max(len(labels), 1)


def _classifier_infer(c: Infer) -> list[Type]:
    labels = Labels(c)
    return classifier_types(c, labels, max(len(labels.names), _score_count(c)))


def _classifier(b: Builder, x: Value) -> list[Value]:
    """One score for two classes says how much the second is meant."""
    labels, count, transform = Labels(b.use), _score_count(b.use), str(b.get("post_transform", "NONE"))
    scores = _linear(b, x, count)
    if count == 1 and len(labels.names) == 2:
        return classified(b, labels, over(b, scores, 0.0), two_columns(b, scores, transform, True))
    return classified(b, labels, best(b, scores), transformed(b, transform, scores))


compose("LinearRegressor", _regressor, infer=lambda c: [TensorType("float32", (rows_of(c), int(c.get("targets", 1))))])
compose("LinearClassifier", _classifier, infer=_classifier_infer)


# ---------------------------------------------------------------------------------------- support vector machines


def kernel_rows(b: Builder, x: Value, vectors: Array) -> Value:
    """The kernel of every row with every vector, in the type of the rows."""
    gamma, shift, degree = (*(float(v) for v in b.get("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    name, kind = str(b.get("kernel_type", "LINEAR")), x.tensor.dtype
    if vectors.shape[1] != x.tensor.dims[1]:
        raise b.error(f"vectors of {vectors.shape[1]} numbers for {x.tensor.dims[1]} features")
    if name == "RBF":
        away = b("Sub", b("Unsqueeze", x, b.constant([1], np.int64)), b.constant(vectors, kind))
        distance = b("ReduceSumSquare", away, b.constant([-1], np.int64), keepdims=0)
        return b("Exp", b("Mul", distance, b.constant(-gamma, kind)))
    product = b("MatMul", x, b.constant(vectors.T, kind))
    if name == "LINEAR":
        return product
    if name not in ("POLY", "SIGMOID"):
        raise b.error(f"unknown kernel_type {name!r}")
    made = b("Add", b("Mul", product, b.constant(gamma, kind)), b.constant(shift, kind))
    return b("Pow", made, b.constant(degree, kind)) if name == "POLY" else b("Tanh", made)


def _svm_regressor(b: Builder, x: Value) -> Value:
    """A regressor, or the machine of one class; in double precision."""
    (rows, _), count = feature_rows(b, x), int(b.get("n_supports", 0))
    weights = np.asarray(b.get("coefficients") or [], np.float64)
    if count:
        vectors = np.asarray(b.get("support_vectors") or [], np.float64).reshape(count, -1)
    else:  # without vectors the coefficients are those of a plane
        vectors, weights = weights.reshape(1, -1), np.ones(1)
    kernel = kernel_rows(b, b.cast(rows, "float64"), vectors)
    rho = np.asarray(b.get("rho") or [0.0], np.float64)[:1]
    scores = b("MatMul", kernel, b.constant(weights.reshape(-1, 1), np.float64))
    scores = b("Add", scores, b.constant(rho, np.float64))
    if b.get("one_class", 0):
        positive = b("Greater", scores, b.constant(0.0, np.float64))
        scores = b("Where", positive, b.constant(1.0, np.float64), b.constant(-1.0, np.float64))
    return regressed(b, scores)


compose("SVMRegressor", _svm_regressor, infer=lambda c: [TensorType("float32", (rows_of(c), 1))])
