"""A forest of decision trees as one kernel, and the tree ensembles of ai.onnx.ml in terms of it.

    Forest(x, roots, depths, feature, split, child, target, weight, mode?, missing?)              domain "weft"

Trees stand in groups of 16 of about the same depth. A group's trees go down one level at a time, so that their steps do
not wait for one another; a leaf is its own child, so that all of a group take as many steps as its deepest tree.

    for group:  for row:  at[16] = roots[group]
                          for level in depths[group]:  for t in 16:  at[t] = child[at[t], x[row, …] <= split ? 0 : 1]
                          for t in 16:  total[row, target[at[t], m]] += weight[at[t], m]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, Var, index_expr, logical_and, logical_or
from weft.graph.ir import Array, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.signature import Below, Between, OneOf, SameLength
from weft.loop.ir import For, Let, Stmt, Store, seq
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
from weft.ops.machine_learning_trees import (
    LEAF,
    MEMBER,
    NODES,
    Forest,
    class_count,
    entries,
    floats,
    forest_of,
    regression_targets,
)

GROUP = 16
"""Trees that go down together: enough steps at once to hide how long each of them takes."""

MOST_ENTRIES = 1 << 24
"""Leaves whose weights would fill a larger table than this stay on the host."""


# ------------------------------------------------------------------------------------------------------- the tables


def tables(forest: Forest, kind: str) -> dict[str, Array] | None:
    """The arrays of a Forest node; None for trees that it has no words for (memberships, several roots to a node)."""
    count = len(forest.mode)
    leaf = forest.mode == LEAF
    if not count or not len(forest.roots) or (forest.mode == MEMBER).any():
        return None
    depth = _depths(forest)
    entries = max(int(forest.given.sum(axis=1).max(initial=0)), 1)
    if depth is None or (count + 1) * entries > MOST_ENTRIES:
        return None
    here = np.arange(count)
    child = np.stack([np.where(leaf, here, forest.yes), np.where(leaf, here, forest.no)], 1)
    order = np.argsort(-depth, kind="stable")
    groups = -(-len(order) // GROUP)
    roots = np.full(groups * GROUP, count)  # what fills up the last group is a leaf that adds nothing
    roots[: len(order)] = forest.roots[order]
    target, weight = _entries(forest, entries)
    made = {
        "roots": roots.reshape(groups, GROUP).astype(np.int32),
        "depths": depth[order][::GROUP].astype(np.int32),
        "feature": np.append(forest.feature, 0).astype(np.int32),
        "split": np.append(forest.split, 0).astype(kind),
        "child": np.append(child, [[count, count]], 0).astype(np.int32),
        "target": target,
        "weight": weight,
    }
    modes = np.unique(forest.mode[~leaf])
    if len(modes) > 1:
        made["mode"] = np.append(np.where(leaf, 0, forest.mode), 0).astype(np.int32)
    if forest.missing[~leaf].any():
        made["missing"] = np.append(forest.missing & ~leaf, False)
    return made


def _depths(forest: Forest) -> Array | None:
    """How many steps each tree takes at most; None where the trees are not trees."""
    at, steps = forest.roots.copy(), np.zeros(len(forest.roots), np.int64)
    owner = np.arange(len(at))
    for level in range(len(forest.mode) + 1):
        inner = forest.mode[at] != LEAF
        at, owner = at[inner], owner[inner]
        if not len(at):
            return steps
        if len(at) > len(forest.mode):
            return None
        steps[owner] = level + 1
        at, owner = np.concatenate([forest.yes[at], forest.no[at]]), np.concatenate([owner, owner])
    return None


def _entries(forest: Forest, most: int) -> tuple[Array, Array]:
    """What each node adds: pairs of target and weight, filled up with nothing added to the first target."""
    count = len(forest.mode)
    target, weight = np.zeros((count + 1, most), np.int32), np.zeros((count + 1, most))
    node, column = np.nonzero(forest.given)
    place = np.arange(len(node)) - np.searchsorted(node, node)
    target[node, place], weight[node, place] = column, forest.weights[node, column]
    return target, weight


# ------------------------------------------------------------------------------------------------------ the operator


def _forest_infer(c: Infer) -> list[Type]:
    return [TensorType("float64", (c.tensor(0).dims[0], int(c.need("targets"))))]


def _takes_branch(c: Use, value: Any, split: Any, mode: Any, tests: Any) -> Any:
    """The test of a node; `tests` are the six comparisons, as functions."""
    if mode is None:
        return tests[int(c.need("test"))](value, split)
    found = tests[0](value, split)
    for number in range(1, len(tests)):
        found = te.select(te.equal(mode, number), tests[number](value, split), found)
    return found


TESTS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a <= b,
    lambda a, b: a < b,
    lambda a, b: a >= b,
    lambda a, b: a > b,
    lambda a, b: te.equal(a, b) if isinstance(a, Expr) else a == b,
    lambda a, b: te.not_equal(a, b) if isinstance(a, Expr) else a != b,
)


def _forest(c: Evaluate, x: Array, *arrays: Any) -> Array:
    roots, depths, feature, split, child, target, weight = arrays[:7]
    mode, missing = (*arrays[7:], None, None)[:2]
    total, rows = np.zeros((len(x), int(c.need("targets")))), np.arange(len(x))[:, None]
    for group, depth in zip(roots, depths):
        at = np.broadcast_to(group, (len(x), len(group)))
        for _ in range(depth):
            value = x[rows, feature[at]]
            if mode is None:
                go = TESTS[int(c.need("test"))](value, split[at])
            else:
                go = np.select([mode[at] == k for k in range(len(TESTS))], [t(value, split[at]) for t in TESTS])
            if missing is not None:
                go = go | (np.isnan(value) & missing[at])
            at = child[at, np.where(go, 0, 1)]
        for t in range(at.shape[1]):
            np.add.at(total, (rows, target[at[:, t]]), weight[at[:, t]])
    return total


def _forest_compute(c: Compute, x: te.Tensor, *tensors: Any) -> Any:
    rows, targets = c.out_shape()
    if not rows or not targets or not c.shape(0)[1]:
        return None

    def statement(inputs: Any, outputs: Any) -> Stmt:
        return _walk(c, inputs, *outputs)

    given = [t for t in tensors if t is not None]
    total, _ = te.extern([(rows, targets), (rows, GROUP)], [x, *given], statement, "forest", ["float64", "int32"])
    return total


def _walk(c: Compute, inputs: Any, total: te.Tensor, at: te.Tensor) -> Stmt:
    x, roots, depths, feature, split, child, target, weight = inputs[:8]
    left = list(inputs[8:])
    mode = left.pop(0) if len(c.types) > 8 and c.types[8] is not None else None
    missing = left.pop(0) if left else None
    rows, targets = c.out_shape()
    r, g, t, m, k, level, first = (Var(n) for n in ("r", "g", "t", "m", "k", "level", "first"))
    node, leaf = Var("node", roots.dtype), Var("leaf", roots.dtype)

    def step(here: Expr) -> Stmt:
        value = x[r, index_expr(feature[here])]
        go = _takes_branch(c, value, split[here], None if mode is None else mode[here], TESTS)
        if missing is not None:
            go = logical_or(go, logical_and(te.isnan(value), missing[here]))
        return Let(node, at[r, t], Store(at, (r, t), child[here, te.select(go, index_expr(0), index_expr(1))]))

    def add(here: Expr) -> Stmt:
        place = (r, index_expr(target[here, m]))
        return Store(total, place, total[place] + weight[here, m])

    clear = For(first, rows, For(k, targets, Store(total, (first, k), te.const(0, "float64"))))
    start, gather = Var("t0"), Var("t1")
    walk = seq(
        For(start, GROUP, Store(at, (r, start), roots[g, start])),
        For(level, index_expr(depths[g]), For(t, GROUP, step(index_expr(node)))),
        For(gather, GROUP, Let(leaf, at[r, gather], For(m, c.shape(7)[1], add(index_expr(leaf))))),
    )
    return seq(clear, For(g, c.shape(1)[0], For(r, rows, walk)))


_TABLES = (
    f"x[r _], roots:int32[g {GROUP}], depths:int32[g], feature:int32[m], split[m], child:int32[m 2], "
    "target:int32[m e], weight:float64[m e], mode:int32[m]?, missing:bool[m]?"
)
register("Forest", _forest_infer, _forest, _forest_compute, domain="weft", takes=_TABLES)


# ------------------------------------------------------------------------------------------------- tree ensembles


def _scores(b: Builder, features: Value, how: str) -> Value:
    """What the trees add up to for each row, in float64."""
    (x, columns), forest = feature_rows(b, features), forest_of(b.node)
    if forest.feature.max(initial=-1) >= columns:
        raise b.error(f"the trees ask for feature {forest.feature.max()} of {columns}")
    arrays = tables(forest, x.tensor.dtype) if how in ("SUM", "AVERAGE") else None
    if arrays is None:
        return b("TreeScores", x, domain="weft", aggregate=how, **b.node.attributes)
    inner = forest.mode[forest.mode != LEAF]
    optional = [None if name not in arrays else b.constant(arrays[name], None) for name in ("mode", "missing")]
    while optional and optional[-1] is None:
        optional.pop()
    names = ("roots", "depths", "feature", "split", "child", "target", "weight")
    given = [x, *(b.constant(arrays[name], None) for name in names), *optional]
    targets, test = forest.weights.shape[1], int(inner[0]) if len(inner) else 0
    scores = b.scope.make(b.node, "Forest", given, "weft", targets=targets, test=test)
    return b("Div", scores, b.constant(max(len(forest.roots), 1), np.float64)) if how == "AVERAGE" else scores


def _ensemble_infer(c: Infer) -> list[Type]:
    ids = np.asarray(c.need("leaf_targetids"))
    targets = int(c.get("n_targets") or ids.max(initial=-1) + 1)
    return [TensorType(c.tensor(0).dtype, (rows_of(c), targets))]


def _ensemble(b: Builder, x: Value) -> Value:
    scores = _scores(b, x, ("AVERAGE", "SUM", "MIN", "MAX")[int(b.get("aggregate_function", 1))])
    name = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[int(b.get("post_transform", 0))]
    return b.cast(transformed(b, name, scores), x.tensor.dtype)


def _regressor(b: Builder, x: Value) -> Value:
    scores, base = _scores(b, x, str(b.get("aggregate_function", "SUM"))), floats(b.use, "base_values")
    return regressed(b, scores if base is None else b("Add", scores, b.constant(base, np.float64)))


def _classifier_infer(c: Infer) -> list[Type]:
    return classifier_types(c, Labels(c, "classlabels_int64s"), class_count(c))


def _classifier(b: Builder, x: Value) -> list[Value]:
    """The sums of the trees, or of the one class that they speak of."""
    labels, transform = Labels(b.use, "classlabels_int64s"), str(b.get("post_transform", "NONE"))
    count, ids = class_count(b.use), {int(i) for i in b.need("class_ids")}
    scores, base = _scores(b, x, "SUM"), floats(b.use, "base_values")
    if count == 2 and len(ids) == 1 and (1 in ids or base is None or len(base) == 1):
        return _one_class(b, labels, scores, next(iter(ids)), base, transform)
    if scores.tensor.dims[1] != count:
        scores = b("Gather", scores, b.constant(np.arange(count), np.int64), axis=1)
    if base is not None:
        scores = b("Add", scores, b.constant(base, np.float64))
    return classified(b, labels, best(b, scores), transformed(b, transform, scores))


def _one_class(
    b: Builder, labels: Labels, scores: Value, class_id: int, base: Array | None, transform: str
) -> list[Value]:
    """Two classes of which the trees speak of one: they add up shares where no weight is negative, else distances.

    Trees that speak of class 0 mean the second class by it: so do the exporters, and so do other runtimes.
    """
    weights = floats(b.use, "class_weights")
    shares = weights is not None and bool((weights >= 0).all())
    score = b("Gather", scores, b.constant([class_id], np.int64), axis=1)
    if class_id == 0:
        if base is not None:
            score = b("Add", score, b.constant(base[:1], np.float64))
        made = two_columns(b, score, transform, shares)
    else:
        made = transformed(b, transform, b("Gather", scores, b.constant([0, 1], np.int64), axis=1))
    return classified(b, labels, over(b, score, 0.5 if shares else 0.0), made)


compose(
    "TreeEnsemble",
    _ensemble,
    infer=_ensemble_infer,
    takes="X:float",
    requires=(
        *NODES,
        OneOf("nodes_modes", tuple(range(LEAF)), each=True),
        Below("leaf_targetids", "n_targets"),
        Between("leaf_targetids", 0),
        Below("tree_roots", "nodes_featureids"),
        SameLength(("leaf_targetids", "leaf_weights")),
        Between("aggregate_function", 0, 3),
        Between("post_transform", 0, 4),
    ),
)
compose(
    "TreeEnsembleRegressor",
    _regressor,
    infer=lambda c: [TensorType("float32", (rows_of(c), regression_targets(c)))],
    requires=(*NODES, *entries("target"), Below("target_ids", "n_targets")),
)
compose("TreeEnsembleClassifier", _classifier, infer=_classifier_infer, requires=(*NODES, *entries("class")))
