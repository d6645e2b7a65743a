"""Ensembles of decision trees: the numpy meaning of TreeEnsemble and the older TreeEnsembleClassifier and …Regressor.

All three become one `Forest`: arrays of nodes that every row of features walks, all trees at once, from root to leaf.
The compiled form of the older two, which are what exporters write, is in machine_learning_forest.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, Node, TensorType, Type
from weft.graph.opspec import Evaluate, Infer, Use, register
from weft.graph.signature import Below, Between, OneOf, Relation, SameLength
from weft.ops.machine_learning_scores import (
    DOMAIN,
    Labels,
    as_rows,
    classifier_types,
    rows_of,
    second_class,
    transformed,
)

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEAF, MEMBER = MODES.index("LEAF"), MODES.index("BRANCH_MEMBER")


NODES = (
    Between("nodes_featureids", 0),
    SameLength(
        (
            "nodes_featureids", "nodes_treeids", "nodes_nodeids", "nodes_values", "nodes_values_as_tensor",
            "nodes_modes", "nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true", "nodes_splits",
            "nodes_trueleafs", "nodes_falseleafs",
        )
    ),
)  # fmt: skip
"""What all operators of trees ask of the lists that describe nodes."""


def entries(prefix: str) -> tuple[Relation, ...]:
    """What the older operators ask of the modes of nodes, by name, and of the lists that describe leaves."""
    names = (f"{prefix}_{part}" for part in ("ids", "nodeids", "treeids", "weights", "weights_as_tensor"))
    return OneOf("nodes_modes", MODES, each=True), Between(f"{prefix}_ids", 0), SameLength(tuple(names))


class Forest:
    """Nodes of all trees: where they branch and, for leaves, what they add to each target."""

    __slots__ = ("mode", "feature", "split", "yes", "no", "missing", "members", "roots", "weights", "given")

    def __init__(self, mode: Array, feature: Array, split: Array, children: list[Array], missing: Array) -> None:
        self.mode, self.feature, self.split = mode, feature, split
        (self.yes, self.no), self.missing = children, missing
        self.members: dict[int, Array] = {}
        self.roots: Array = np.zeros(0, np.int64)
        self.weights: Array = np.zeros((0, 0))
        self.given: Array = np.zeros((0, 0), bool)

    def leaves(self, x: Array) -> Array:
        """The leaf of every row in every tree, (rows, trees)."""
        at = np.broadcast_to(self.roots, (x.shape[0], len(self.roots))).copy()
        rows = np.arange(x.shape[0])[:, None]
        for _ in range(len(self.mode)):
            mode = self.mode[at]
            if (mode == LEAF).all():
                return at
            value = x[rows, self.feature[at]]
            go = self._branch(mode, value, at)
            at = np.where(mode == LEAF, at, np.where(go, self.yes[at], self.no[at]))
        if not (self.mode[at] == LEAF).all():
            raise ValueError("the trees have a cycle")
        return at

    def _branch(self, mode: Array, value: Array, at: Array) -> Array:
        split = self.split[at].astype(value.dtype)
        tests = (value <= split, value < split, value >= split, value > split, value == split, value != split)
        go = np.select([mode == k for k in range(len(tests))], tests, False)
        for node, members in self.members.items():
            here = at == node
            go = np.where(here, np.isin(value, members), go)
        return np.asarray(go | (np.isnan(value) & self.missing[at]))

    def scores(self, x: Array, how: str) -> tuple[Array, Array]:
        """What the trees give together, and whether any leaf spoke of a target: both (rows, targets)."""
        leaves = self.leaves(x)
        total = np.zeros((x.shape[0], self.weights.shape[1]))
        spoken = np.zeros(total.shape, bool)
        least = how == "MIN"
        best = np.full(total.shape, np.inf if least else -np.inf)
        for tree in range(leaves.shape[1]):
            weight, given = self.weights[leaves[:, tree]], self.given[leaves[:, tree]]
            spoken |= given
            if how in ("MIN", "MAX"):
                combined = np.minimum(best, weight) if least else np.maximum(best, weight)
                best = np.where(given, combined, best)
            else:
                total += weight
        if how in ("MIN", "MAX"):
            total = np.where(spoken, best, 0.0)
        elif how == "AVERAGE":
            total /= max(len(self.roots), 1)
        elif how != "SUM":
            raise ValueError(f"unknown aggregate_function {how!r}")
        return total, spoken


def floats(c: Use, name: str) -> Array | None:
    """An attribute of floats, which may be given as a tensor of doubles instead."""
    tensor = c.get(f"{name}_as_tensor")
    if tensor is not None and len(tensor):
        return np.asarray(tensor, np.float64)
    plain = c.get(name)
    return None if plain is None or not len(plain) else np.asarray(plain, np.float64)


def _old_forest(c: Use, prefix: str, targets: int) -> Forest:
    """The forest of an older operator: nodes named by (tree, node), leaves by lists of (tree, node, target, weight)."""
    trees, nodes = list(c.need("nodes_treeids")), list(c.need("nodes_nodeids"))
    names = {key: position for position, key in enumerate(zip(trees, nodes))}
    count = len(nodes)
    mode = np.array([MODES.index(m) for m in c.need("nodes_modes")], np.int64)
    split = floats(c, "nodes_values")
    missing = c.get("nodes_missing_value_tracks_true") or [0] * count
    children: list[Array] = []
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        given = list(c.need(name))
        try:
            found = [0 if mode[k] == LEAF else names[(trees[k], given[k])] for k in range(count)]
        except KeyError as key:
            raise c.error(f"{name} speaks of a node {key} that does not exist") from None
        children.append(np.array(found, np.int64))
    feature = np.where(mode == LEAF, 0, np.array(c.need("nodes_featureids"), np.int64))
    forest = Forest(
        mode, feature, np.zeros(count) if split is None else split, children, np.array(missing[:count], bool)
    )
    inner = {int(k) for side in children for k in side[mode != LEAF]}
    forest.roots = np.array([k for k in range(count) if k not in inner], np.int64)
    weights = floats(c, f"{prefix}_weights")
    leaves = [names[key] for key in zip(c.need(f"{prefix}_treeids"), c.need(f"{prefix}_nodeids"))]
    _set_leaves(forest, count, targets, leaves, c.need(f"{prefix}_ids"), weights)
    return forest


def _set_leaves(forest: Forest, count: int, targets: int, leaves: Any, ids: Any, weights: Any) -> None:
    forest.weights, forest.given = np.zeros((count, targets)), np.zeros((count, targets), bool)
    at = (np.asarray(leaves, np.int64), np.asarray(ids, np.int64))
    np.add.at(forest.weights, at, np.asarray(weights, np.float64))
    forest.given[at] = True


def _new_forest(c: Use) -> Forest:
    """The forest of a TreeEnsemble: leaves are numbered apart, and come after the nodes here."""
    count, leaves = len(c.need("nodes_featureids")), len(c.need("leaf_targetids"))

    def joined(values: Any, kind: Any, rest: Any = 0) -> Array:
        return np.concatenate([np.asarray(values).astype(kind), np.full(leaves, rest, kind)])

    children: list[Array] = []
    for side in ("true", "false"):
        ids, is_leaf = np.asarray(c.need(f"nodes_{side}nodeids")), np.asarray(c.need(f"nodes_{side}leafs"))
        if ((ids < 0) | (ids >= np.where(is_leaf != 0, leaves, count))).any():
            raise c.error(f"nodes_{side}nodeids speaks of a node or leaf that does not exist")
        children.append(joined(ids + np.where(is_leaf != 0, count, 0), np.int64))
    forest = Forest(
        joined(c.need("nodes_modes"), np.int64, LEAF),
        joined(c.need("nodes_featureids"), np.int64),
        joined(c.need("nodes_splits"), np.float64),
        children,
        joined(c.get("nodes_missing_value_tracks_true") or [0] * count, bool),
    )
    forest.roots = np.array(c.need("tree_roots"), np.int64)
    ids = np.asarray(c.need("leaf_targetids"), np.int64)
    targets = int(c.get("n_targets") or ids.max(initial=-1) + 1)
    _set_leaves(forest, count + leaves, targets, np.arange(count, count + leaves), ids, c.need("leaf_weights"))
    values = c.get("membership_values")
    if values is not None:
        ends = np.nonzero(np.isnan(np.asarray(values, np.float64)))[0]
        groups = np.split(np.asarray(values, np.float64), ends)
        nodes = [k for k in range(count) if forest.mode[k] == MEMBER]
        forest.members = {node: group[~np.isnan(group)] for node, group in zip(nodes, groups)}
    return forest


def _forest(c: Use, make: Any) -> Forest:
    """The forest of a node, made once."""
    key: Node = c.node
    cached = _CACHE.get(id(key))
    if cached is not None and cached[0] is key:
        return cached[1]
    if len(_CACHE) >= MOST_CACHED:
        _CACHE.clear()
    made: Forest = make()
    _CACHE[id(key)] = (key, made)
    return made


_CACHE: dict[int, tuple[Node, Forest]] = {}
MOST_CACHED = 64


def _run(c: Evaluate, forest: Forest, x: Array, how: str) -> tuple[Array, Array]:
    rows = as_rows(x)
    if forest.feature.max(initial=-1) >= rows.shape[1]:
        raise c.error(f"the trees ask for feature {forest.feature.max()} of {rows.shape[1]}")
    try:
        return forest.scores(rows, how)
    except ValueError as problem:
        raise c.error(str(problem)) from None


# ----------------------------------------------------------------------------------------------------- regressors


def _ensemble_infer(c: Infer) -> list[Type]:
    ids = np.asarray(c.need("leaf_targetids"))
    targets = int(c.get("n_targets") or ids.max(initial=-1) + 1)
    return [TensorType(c.tensor(0).dtype, (rows_of(c), targets))]


def _ensemble(c: Evaluate, x: Array) -> Array:
    how = ("AVERAGE", "SUM", "MIN", "MAX")[int(c.get("aggregate_function", 1))]
    scores, _ = _run(c, _forest(c, lambda: _new_forest(c)), x, how)
    name = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[int(c.get("post_transform", 0))]
    return transformed(c, name, scores).astype(x.dtype)


register(
    "TreeEnsemble",
    _ensemble_infer,
    _ensemble,
    domain=DOMAIN,
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


def regression_targets(c: Use) -> int:
    """How many numbers a TreeEnsembleRegressor gives for a row."""
    return int(c.get("n_targets") or 1)


def regression_forest(c: Use) -> Forest:
    """The forest of a TreeEnsembleRegressor."""
    return _old_forest(c, "target", regression_targets(c))


def regressor(c: Evaluate, x: Array) -> Array:
    """TreeEnsembleRegressor."""
    forest = _forest(c, lambda: regression_forest(c))
    scores, _ = _run(c, forest, x, str(c.get("aggregate_function", "SUM")))
    base = floats(c, "base_values")
    if base is not None:
        scores = scores + base
    return transformed(c, str(c.get("post_transform", "NONE")), scores).astype(np.float32)


# ----------------------------------------------------------------------------------------------------- classifier


def _class_count(c: Use) -> int:
    return len(Labels(c, "classlabels_int64s").names)


def class_forest(c: Use) -> Forest:
    """The forest of a TreeEnsembleClassifier."""
    most = max((int(i) for i in c.need("class_ids")), default=0)
    return _old_forest(c, "class", max(_class_count(c), most + 1, 1))


def classifier_infer(c: Infer) -> list[Type]:
    """The types of a TreeEnsembleClassifier."""
    columns: Dim = max(_class_count(c), 1)
    return classifier_types(c, Labels(c, "classlabels_int64s"), columns)


def classifier(c: Evaluate, x: Array) -> tuple[Array, Array]:
    """TreeEnsembleClassifier."""
    labels, count = Labels(c, "classlabels_int64s"), max(_class_count(c), 1)
    ids = [int(i) for i in c.need("class_ids")]
    forest = _forest(c, lambda: class_forest(c))
    scores, _ = _run(c, forest, x, "SUM")
    base, transform = floats(c, "base_values"), str(c.get("post_transform", "NONE"))
    if count == 2 and len(set(ids)) == 1 and (ids[0] == 1 or base is None or len(base) == 1):
        weights = floats(c, "class_weights")
        shares = weights is not None and bool((weights >= 0).all())
        places, made = _one_score(c, scores, ids[0], base, shares, transform)
    else:
        made = scores[:, :count] if base is None else scores[:, :count] + base
        places, made = made.argmax(axis=1), transformed(c, transform, made)
    return labels.pick(places), made.astype(np.float32)


def _one_score(
    c: Use, scores: Array, class_id: int, base: Array | None, shares: bool, transform: str
) -> tuple[Array, Array]:
    """Two classes of which the trees speak of one: they add up shares where no weight is negative, else distances.

    Trees that speak of class 0 mean the second class by it: so do the exporters, and so do other runtimes.
    """
    score = scores[:, class_id]
    if class_id == 0:
        score = score if base is None else score + base[0]
        made = second_class(score, transform, shares)
    else:
        made = transformed(c, transform, scores[:, :2])
    return (score > (0.5 if shares else 0.0)).astype(np.int64), made
