"""Linear models and support vector machines of ai.onnx.ml."""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Evaluate, Infer, Use, register
from weft.ops.machine_learning_expand import expand_linear_classifier, expand_linear_regressor, expand_svm_regressor
from weft.ops.machine_learning_scores import (
    DOMAIN,
    Labels,
    as_rows,
    classifier_types,
    rows_of,
    second_class,
    transformed,
)

# ---------------------------------------------------------------------------------------------------------- linear


def _linear(c: Use, x: Array, targets: int) -> Array:
    rows = as_rows(x)
    coefficients = np.asarray(c.need("coefficients"), np.float32)
    if targets < 1 or coefficients.size != targets * rows.shape[1]:
        raise c.error(f"{coefficients.size} coefficients for {targets} targets of {rows.shape[1]} features")
    scores = rows @ coefficients.reshape(targets, -1).T.astype(rows.dtype)
    intercepts = c.get("intercepts")
    return np.asarray(scores + np.asarray(intercepts, rows.dtype) if intercepts else scores)


def _regressor(c: Evaluate, x: Array) -> Array:
    scores = _linear(c, x, int(c.get("targets", 1)))
    return transformed(c, str(c.get("post_transform", "NONE")), scores).astype(np.float32)


register(
    "LinearRegressor",
    lambda c: [TensorType("float32", (rows_of(c), int(c.get("targets", 1))))],
    _regressor,
    domain=DOMAIN,
    expand=expand_linear_regressor,
    takes="X:number",
)


def _score_count(c: Use) -> int:
    """How many classes the coefficients speak of."""
    labels, intercepts = Labels(c).names, c.get("intercepts")
    return len(intercepts) if intercepts else max(len(labels), 1)


def _classifier_infer(c: Infer) -> list[Type]:
    labels = Labels(c)
    return classifier_types(c, labels, max(len(labels.names), _score_count(c)))


def _classifier(c: Evaluate, x: Array) -> tuple[Array, Array]:
    labels, count = Labels(c), _score_count(c)
    scores = _linear(c, x, count)
    transform = str(c.get("post_transform", "NONE"))
    if count == 1 and len(labels.names) == 2:
        return labels.pick((scores[:, 0] > 0).astype(np.int64)), second_class(scores[:, 0], transform, True).astype(
            np.float32
        )
    return labels.pick(scores.argmax(axis=1)), transformed(c, transform, scores).astype(np.float32)


register(
    "LinearClassifier", _classifier_infer, _classifier, domain=DOMAIN, expand=expand_linear_classifier, takes="X:number"
)


# ---------------------------------------------------------------------------------------- support vector machines


def _kernel(c: Use, x: Array, vectors: Array) -> Array:
    """The kernel of every row with every vector."""
    gamma, constant, degree = (*(float(v) for v in c.get("kernel_params") or []), 0.0, 0.0, 0.0)[:3]
    kind = str(c.get("kernel_type", "LINEAR"))
    if kind == "RBF":
        distance = ((x[:, None, :] - vectors[None, :, :]) ** 2).sum(axis=2)
        return np.asarray(np.exp(-gamma * distance))
    product = x @ vectors.T
    if kind == "LINEAR":
        return np.asarray(product)
    if kind == "POLY":
        return np.asarray((gamma * product + constant) ** degree)
    if kind == "SIGMOID":
        return np.asarray(np.tanh(gamma * product + constant))
    raise c.error(f"unknown kernel_type {kind!r}")


def _svm_regressor(c: Evaluate, x: Array) -> Array:
    rows = as_rows(x).astype(np.float64)
    coefficients = np.asarray(c.get("coefficients") or [], np.float64)
    count = int(c.get("n_supports", 0))
    if count:
        vectors = np.asarray(c.get("support_vectors") or [], np.float64).reshape(count, -1)
    else:  # without vectors the coefficients are those of a plane
        vectors, coefficients = coefficients.reshape(1, -1), np.ones(1)
    scores = _kernel(c, rows, vectors) @ coefficients.reshape(-1, 1)
    scores = scores + np.asarray(c.get("rho") or [0.0], np.float64)[:1]
    if c.get("one_class", 0):
        scores = np.where(scores > 0, 1.0, -1.0)
    return transformed(c, str(c.get("post_transform", "NONE")), scores).astype(np.float32)


register(
    "SVMRegressor",
    lambda c: [TensorType("float32", (rows_of(c), 1))],
    _svm_regressor,
    domain=DOMAIN,
    expand=expand_svm_regressor,
    takes="X:number",
)


class Machine:
    """The attributes of an SVMClassifier."""

    __slots__ = ("labels", "per_class", "vectors", "coefficients", "rho", "prob_a", "prob_b", "classes")

    def __init__(self, c: Use) -> None:
        self.labels = Labels(c)
        self.per_class = [int(v) for v in c.get("vectors_per_class") or []]
        self.coefficients = np.asarray(c.get("coefficients") or [], np.float64)
        self.rho = np.asarray(c.get("rho") or [], np.float64)
        self.prob_a = np.asarray(c.get("prob_a") or [], np.float64)
        self.prob_b = np.asarray(c.get("prob_b") or [], np.float64)
        self.classes = len(self.per_class) or len(self.labels.names)
        total = sum(self.per_class)
        self.vectors = np.asarray(c.get("support_vectors") or [], np.float64).reshape(total, -1) if total else None

    @property
    def columns(self) -> int:
        """How many scores a row gets."""
        if self.vectors is None or len(self.prob_a):
            return max(self.classes, 1)
        pairs = self.classes * (self.classes - 1) // 2
        return 2 if pairs == 1 else pairs


def machine_infer(c: Infer) -> list[Type]:
    """Labels and scores of an SVMClassifier."""
    found = Machine(c)
    return classifier_types(c, found.labels, found.columns)


def machine(c: Evaluate, x: Array) -> tuple[Array, Array]:
    """The meaning of SVMClassifier; machine_learning_vectors.py has its compiled form."""
    m, rows = Machine(c), as_rows(x).astype(np.float64)
    transform = str(c.get("post_transform", "NONE"))
    if m.vectors is None:
        weights = m.coefficients.reshape(m.classes, -1)
        scores = _kernel(c, rows, weights) + (m.rho[:1] if len(m.rho) else 0.0)
        return m.labels.pick(scores.argmax(axis=1)), transformed(c, transform, scores).astype(np.float32)
    decisions = _decisions(m, _kernel(c, rows, m.vectors))
    labels = m.labels.pick(_votes(m, decisions).argmax(axis=1))
    if len(m.prob_a):
        return labels, transformed(c, transform, _chances(m, decisions)).astype(np.float32)
    if decisions.shape[1] == 1:
        return labels, second_class(decisions[:, 0], transform, transform != "NONE").astype(np.float32)
    return labels, transformed(c, transform, decisions).astype(np.float32)


def class_pairs(classes: int) -> list[tuple[int, int]]:
    """The pairs of classes, in the order of their coefficients."""
    return [(i, j) for i in range(classes) for j in range(i + 1, classes)]


def pair_table(m: Machine) -> Array:
    """What each vector (a row) counts in the decision between each pair of classes (a column)."""
    assert m.vectors is not None
    starts = np.cumsum([0, *m.per_class])
    given = m.coefficients.reshape(-1, len(m.vectors))
    pairs = class_pairs(m.classes)
    table = np.zeros((len(m.vectors), len(pairs)))
    for number, (i, j) in enumerate(pairs):
        of_i, of_j = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        table[of_i, number], table[of_j, number] = given[j - 1, of_i], given[i, of_j]
    return table


def _decisions(m: Machine, kernels: Array) -> Array:
    """One value for each pair of classes: positive speaks for the first."""
    table = pair_table(m)
    return np.asarray(kernels @ table + m.rho[: table.shape[1]])


def _votes(m: Machine, decisions: Array) -> Array:
    votes = np.zeros((len(decisions), m.classes))
    for number, (i, j) in enumerate(class_pairs(m.classes)):
        first = decisions[:, number] > 0
        votes[:, i] += first
        votes[:, j] += ~first
    return votes


CHANCE_MARGIN = 1e-7
"""No class of a pair is taken to be more certain than one less this."""


def most_rounds(classes: int) -> int:
    """How many rounds the probabilities of classes get to settle."""
    return max(100, classes)


def enough(classes: int) -> float:
    """How far off they may be in the end."""
    return 0.005 / classes


def _chances(m: Machine, decisions: Array) -> Array:
    """Probabilities of the classes, from those of each pair."""
    chance = 1.0 / (1.0 + np.exp(decisions * m.prob_a + m.prob_b))
    return coupled(np.clip(chance, CHANCE_MARGIN, 1 - CHANCE_MARGIN), m.classes)


def coupled(chances: Array, classes: int) -> Array:
    """Probabilities of the classes from those of each pair, by the iteration of Wu, Lin and Weng (2004)."""
    pairwise = np.zeros((len(chances), classes, classes))
    for number, (i, j) in enumerate(class_pairs(classes)):
        pairwise[:, i, j], pairwise[:, j, i] = chances[:, number], 1 - chances[:, number]
    return np.array([_couple(one) for one in pairwise]).reshape(len(chances), classes)


def _couple(pairwise: Array) -> Array:
    classes = len(pairwise)
    q = -pairwise * pairwise.T
    np.fill_diagonal(q, (pairwise**2).sum(axis=0))
    p = np.full(classes, 1.0 / classes)
    for _ in range(most_rounds(classes)):
        product = q @ p
        total = float(p @ product)
        if np.abs(product - total).max() < enough(classes):
            break
        for t in range(classes):
            change = (total - product[t]) / q[t, t]
            p[t] += change
            total = (total + change * (change * q[t, t] + 2 * product[t])) / (1 + change) ** 2
            product = (product + change * q[t]) / (1 + change)
            p = p / (1 + change)
    return p
