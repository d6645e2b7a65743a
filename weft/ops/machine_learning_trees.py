"""Ensembles of decision trees, as TreeEnsemble and the older TreeEnsembleClassifier and …Regressor describe them.

All three become one `Forest`: arrays of nodes that every row of features walks, all trees at once, from root to leaf.

    TreeScores(x)        what the trees add up to; a node's own attributes describe them          domain "weft"

is that walk on the host, for what has no kernel (`machine_learning_forest.py`): least and greatest leaves, members.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from weft.graph.ir import Array, Node, TensorType
from weft.graph.opspec import Evaluate, Use, register
from weft.graph.signature import Between, OneOf, Relation, SameLength
from weft.ops.machine_learning_scores import Labels

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

    def scores(self, x: Array, how: str) -> Array:
        """What the trees give together, (rows, targets)."""
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
        return total


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


@functools.lru_cache(maxsize=64)
def forest_of(node: Node) -> Forest:
    """The forest that a node's attributes describe."""
    use = Use(node)
    if "leaf_targetids" in use.attributes:
        return _new_forest(use)
    if "class_ids" not in use.attributes:
        return _old_forest(use, "target", regression_targets(use))
    most = max((int(i) for i in use.need("class_ids")), default=0)
    return _old_forest(use, "class", max(class_count(use), most + 1))


def regression_targets(c: Use) -> int:
    """How many numbers a TreeEnsembleRegressor gives for a row."""
    return int(c.get("n_targets") or 1)


def class_count(c: Use) -> int:
    """How many scores a TreeEnsembleClassifier gives for a row."""
    return max(len(Labels(c, "classlabels_int64s").names), 1)


def _scores(c: Evaluate, x: Array) -> Array:
    try:
        return forest_of(c.node).scores(x, str(c.need("aggregate")))
    except ValueError as problem:
        raise c.error(str(problem)) from None


register(
    "TreeScores",
    lambda c: [TensorType("float64", (c.tensor(0).dims[0], forest_of(c.node).weights.shape[1]))],
    _scores,
    domain="weft",
    takes="X:float[_ _]",
)
