"""SVMClassifier in other operators: products for what each pair of classes decides, and one kernel for chances.

    kernel = K(x, support vectors)                 one column for each vector
    decisions = kernel @ coefficients + rho        one column for each pair of classes: positive speaks for the first
    votes = (decisions > 0) @ signs + offsets      how many pairs speak for each class; the label is that of most
    chances = Couple(1 / (1 + exp(decisions * a + b)))                                       domain "weft"

Couple finds the probabilities of classes that fit those of the pairs best, by the iteration of Wu, Lin and Weng (2004);
each row stops when it is close enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, Var, index_expr, logical_not
from weft.graph.ir import Array, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.loop.ir import For, If, Let, Stmt, Store, seq
from weft.ops.expansion import Builder
from weft.ops.machine_learning_linear import kernel_rows
from weft.ops.machine_learning_scores import (
    Labels,
    best,
    classified,
    classifier_types,
    compose,
    feature_rows,
    transformed,
    two_columns,
)

CHANCE_MARGIN = 1e-7
"""No class of a pair is taken to be more certain than one less this."""


def _most_rounds(classes: int) -> int:
    """How many rounds the probabilities of classes get to settle."""
    return max(100, classes)


def _enough(classes: int) -> float:
    """How far off they may be in the end."""
    return 0.005 / classes


# ------------------------------------------------------------------------------------------------------ the operator


def _classes(c: Use) -> int:
    return int(c.need("classes"))


def _couple_infer(c: Infer) -> list[Type]:
    chances, classes = c.tensor(0), _classes(c)
    if isinstance(chances.dims[1], int) and chances.dims[1] < classes * (classes - 1) // 2:
        raise c.error(f"{chances!r} has too few columns for the pairs of {classes} classes")
    return [TensorType("float64", (chances.dims[0], classes))]


def _couple(c: Evaluate, chances: Array) -> Array:
    classes = _classes(c)
    pairwise = np.zeros((len(chances), classes, classes))
    for number, (i, j) in enumerate(_class_pairs(classes)):
        pairwise[:, i, j], pairwise[:, j, i] = chances[:, number], 1 - chances[:, number]
    return np.array([_settled(one) for one in pairwise]).reshape(len(chances), classes)


def _settled(pairwise: Array) -> Array:
    classes = len(pairwise)
    q = -pairwise * pairwise.T
    np.fill_diagonal(q, (pairwise**2).sum(axis=0))
    p = np.full(classes, 1.0 / classes)
    for _ in range(_most_rounds(classes)):
        product = q @ p
        total = float(p @ product)
        if np.abs(product - total).max() < _enough(classes):
            break
        for t in range(classes):
            change = (total - product[t]) / q[t, t]
            p[t] += change
            total = (total + change * (change * q[t, t] + 2 * product[t])) / (1 + change) ** 2
            product = (product + change * q[t]) / (1 + change)
            p = p / (1 + change)
    return p


def _couple_compute(c: Compute, chances: te.Tensor) -> Any:
    (rows, classes) = c.out_shape()
    if classes < 2:
        return None
    shapes = [(rows, classes), (rows, classes, classes), (rows, classes), (rows, 2)]

    def statement(inputs: Any, outputs: Any) -> Stmt:
        row = Var("r")
        return For(row, rows, _Coupling(inputs[0], outputs, row, classes).statement())

    made = te.extern(shapes, [chances], statement, "couple", ["float64"] * 4)
    return made[0]


class _Coupling:
    """The iteration for one row, as loops. `state` holds the present total, and 1 once the row is done."""

    def __init__(self, chances: te.Tensor, buffers: Any, row: Var, classes: int) -> None:
        self.chances, self.row, self.classes = chances, row, classes
        self.p, self.q, self.product, self.state = buffers

    def statement(self) -> Stmt:
        """All of it."""
        zero = te.const(0, "float64")
        start = self.each(lambda t: Store(self.p, (self.row, t), te.const(1.0 / self.classes, "float64")), "first")
        undone = logical_not(self.state[self.row, 1] > zero)
        turn = Var("turn")
        rounds = For(turn, _most_rounds(self.classes), If(undone, self.one_round()))
        return seq(start, self.matrix(), self.put(1, zero), rounds)

    def put(self, place: int, value: Expr) -> Stmt:
        """Sets the total (0), or whether the row is done (1)."""
        return Store(self.state, (self.row, index_expr(place)), value)

    def each(self, body: Any, name: str) -> Stmt:
        """A statement for each class."""
        var = Var(name)
        return For(var, self.classes, body(var))

    def matrix(self) -> Stmt:
        """-p(i beats j) p(j beats i), and on the diagonal the squares of what beats the class."""
        r, i, j, one = self.row, Var("i"), Var("j"), te.const(1.0, "float64")
        # Pairs stand in the order (0, 1), (0, 2), …, (1, 2), …: those of the first i classes stand before (i, i + 1).
        number = te.maximum(i * (2 * self.classes - 1 - i) // 2 + j - i - 1, 0)
        first = Var("first_wins", self.p.dtype)
        second = one - first
        both = [Store(self.q, (r, *at), -(first * second)) for at in ((i, j), (j, i))]
        squares = [
            Store(self.q, (r, j, j), self.q[r, j, j] + first * first),
            Store(self.q, (r, i, i), self.q[r, i, i] + second * second),
        ]
        pair = If(i < j, Let(first, self.chances[r, number], seq(*both, *squares)))
        clear = self.each(lambda k: Store(self.q, (r, k, k), te.const(0, "float64")), "k0")
        return seq(clear, For(i, self.classes, For(j, self.classes, pair)))

    def one_round(self) -> Stmt:
        """The products with the present probabilities; then done, or one step for each class."""
        r, zero = self.row, te.const(0, "float64")
        row, column, place, worst = Var("t0"), Var("j0"), Var("t1"), Var("t2")
        add = Store(self.product, (r, row), self.product[r, row] + self.q[r, row, column] * self.p[r, column])
        products = For(row, self.classes, seq(Store(self.product, (r, row), zero), For(column, self.classes, add)))
        total = self.state[r, 0]
        sums = For(place, self.classes, self.put(0, total + self.p[r, place] * self.product[r, place]))
        # The row is done unless one class is too far off.
        off = te.abs(self.product[r, worst] - total) >= te.const(_enough(self.classes), "float64")
        test = For(worst, self.classes, If(off, self.put(1, zero)))
        done = self.put(1, te.const(1, "float64"))
        change = If(logical_not(self.state[r, 1] > zero), self.each(self.step, "t"))
        return seq(products, self.put(0, zero), sums, done, test, change)

    def step(self, t: Var) -> Stmt:
        """The best probability of one class, the others being what they are; all are then scaled to sum to one."""
        r, total = self.row, self.state[self.row, 0]
        diagonal, here = self.q[r, t, t], self.product[r, t]
        kind = self.p.dtype
        change, scale, k = Var("change", kind), Var("scale", kind), Var("k")

        def scaled(value: Expr) -> Expr:
            return value / scale

        grown = (total + change * (change * diagonal + te.const(2, "float64") * here)) / (scale * scale)
        update = seq(
            Store(self.p, (r, t), self.p[r, t] + change),
            self.put(0, grown),
            For(
                k,
                self.classes,
                seq(
                    Store(self.product, (r, k), scaled(self.product[r, k] + change * self.q[r, t, k])),
                    Store(self.p, (r, k), scaled(self.p[r, k])),
                ),
            ),
        )
        return Let(change, (total - here) / diagonal, Let(scale, te.const(1, "float64") + change, update))


register("Couple", _couple_infer, _couple, _couple_compute, domain="weft", takes="chances:float64[_ _]")


# ---------------------------------------------------------------------------------------------------- the classifier


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


def _class_pairs(classes: int) -> list[tuple[int, int]]:
    """The pairs of classes, in the order of their coefficients."""
    return [(i, j) for i in range(classes) for j in range(i + 1, classes)]


def _pair_table(m: Machine) -> Array:
    """What each vector (a row) counts in the decision between each pair of classes (a column)."""
    assert m.vectors is not None
    starts = np.cumsum([0, *m.per_class])
    given = m.coefficients.reshape(-1, len(m.vectors))
    pairs = _class_pairs(m.classes)
    table = np.zeros((len(m.vectors), len(pairs)))
    for number, (i, j) in enumerate(pairs):
        of_i, of_j = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        table[of_i, number], table[of_j, number] = given[j - 1, of_i], given[i, of_j]
    return table


def _classifier(b: Builder, x: Value) -> list[Value]:
    """Products, in double precision."""
    m, transform = Machine(b.use), str(b.get("post_transform", "NONE"))
    rows = b.cast(feature_rows(b, x)[0], "float64")
    if m.vectors is None:  # the coefficients are those of one plane for each class
        scores = kernel_rows(b, rows, m.coefficients.reshape(m.classes, -1))
        if len(m.rho):
            scores = b("Add", scores, b.constant(m.rho[:1], np.float64))
        return classified(b, m.labels, best(b, scores), transformed(b, transform, scores))
    pairs = len(_class_pairs(m.classes))
    decisions = b("MatMul", kernel_rows(b, rows, m.vectors), b.constant(_pair_table(m), np.float64))
    decisions = b("Add", decisions, b.constant(m.rho[:pairs], np.float64))
    places = best(b, _votes(b, m, decisions))
    if len(m.prob_a):
        scores = transformed(b, transform, _chances(b, m, decisions))
    elif pairs == 1:
        scores = two_columns(b, decisions, transform, transform != "NONE")
    else:
        scores = transformed(b, transform, decisions)
    return classified(b, m.labels, places, scores)


def _votes(b: Builder, m: Machine, decisions: Value) -> Value:
    """How many pairs speak for each class: those that it is second in, but for those that speak for the first."""
    pairs = _class_pairs(m.classes)
    signs, offsets = np.zeros((len(pairs), m.classes), np.float32), np.zeros(m.classes, np.float32)
    for number, (i, j) in enumerate(pairs):
        signs[number, i], signs[number, j] = 1, -1
        offsets[j] += 1
    first = b.cast(b("Greater", decisions, b.constant(0.0, np.float64)), "float32")
    return b("Add", b("MatMul", first, b.constant(signs, np.float32)), b.constant(offsets, np.float32))


def _chances(b: Builder, m: Machine, decisions: Value) -> Value:
    slope = b("Mul", decisions, b.constant(-m.prob_a, np.float64))
    chance = b("Sigmoid", b("Sub", slope, b.constant(m.prob_b, np.float64)))
    low, high = (b.constant(v, np.float64) for v in (CHANCE_MARGIN, 1 - CHANCE_MARGIN))
    return b("Couple", b("Clip", chance, low, high), domain="weft", classes=m.classes)


def _infer(c: Infer) -> list[Type]:
    found = Machine(c)
    return classifier_types(c, found.labels, found.columns)


compose("SVMClassifier", _classifier, infer=_infer)
