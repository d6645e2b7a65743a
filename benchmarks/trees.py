"""A cost model that reads loop programs: a recurrent network over their trees, as in the TVM paper, for comparison.

    python -m benchmarks.search --trees …       puts it beside the others; it needs torch (`weft-compiler[torch]`)

    for y (parallel)                 GRU(loop y, sum of its children)
      for x (vectorized)      ->       GRU(loop x, sum of its children)      ->    a score for the root
        block C                          GRU(block C, 0)

A loop is known by its kind, its iterations, those of all loops around it, and how the accesses below it use it: not at
all (reuse), or along the last axis (contiguous). Points of any spaces can be compared, but each costs a scheduled
program: of many points those with the best prior are read, and the others come after them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from weft.core.errors import WeftError
from weft.expr.nodes import Var, int_value
from weft.expr.visit import free_vars
from weft.loop.ir import LOOP_KINDS, Block, For, Stmt
from weft.loop.tree import blocks_in
from weft.loop.visit import child_stmts
from weft.tuner.cost_models import Array, Group
from weft.tuner.settings import LEAST_POINTS
from weft.tuner.space import Space

WIDTH, HIDDEN = len(LOOP_KINDS) + 5, 32
STEPS, RATE, PAIRS = 60, 1e-2, 1024
"""Of training after each batch: it goes on from what was learnt before."""

MOST = 192
"""Points of which programs are made in one go; a program takes some 20 ms."""


class Tree(NamedTuple):
    """A program as numbers: a row for each node, the number of its parent and its depth; node 0 is the root."""

    rows: Array
    parents: Array
    depths: Array


def tree_of(body: Stmt) -> Tree:
    """The tree of a scheduled program."""
    rows, parents, depths = [[0.0] * WIDTH], [0], [0]

    def visit(node: Stmt, parent: int, around: float) -> None:
        if not isinstance(node, (For, Block)):
            for child in child_stmts(node):
                visit(child, parent, around)
            return
        row = [0.0] * WIDTH
        if isinstance(node, For):
            iterations = math.log2(max(int_value(node.extent) or 1, 1))
            around += iterations
            uses = [use for block in blocks_in(node.body) for use in _uses(block, node.var)]
            row[LOOP_KINDS.index(node.kind)] = 1.0
            row[-5:] = iterations / 8, around / 16, _share(uses, 0), _share(uses, 2), 0.0
        else:
            reduces = any(axis.kind != "spatial" for axis in node.axes)
            row[-5:] = len(node.reads) / 4, around / 16, 0.0, float(reduces), 1.0
        rows.append(row)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        if isinstance(node, For):
            visit(node.body, len(rows) - 1, around)

    visit(body, 0, 0.0)
    return Tree(np.array(rows, np.float32), np.array(parents), np.array(depths))


def _uses(block: Block, loop: Var) -> list[int]:
    """How each access of a block uses a loop: not (0), along an axis (1), along the last one (2)."""
    bound = {axis.var for axis, binding in zip(block.axes, block.bindings) if loop in free_vars(binding)}
    found = []
    for region in (*block.reads, *block.writes):
        along = [any(var in bound for var in free_vars(first)) for first in region.mins]
        found.append(0 if not any(along) else 2 if along[-1] else 1)
    return found


def _share(uses: list[int], kind: int) -> float:
    return uses.count(kind) / max(len(uses), 1)


class TreeModel:
    """A gated recurrent network over trees, trained to rank."""

    name = "tree"

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._cell, self._last = torch.nn.GRUCell(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, 1)
        self._trainer = torch.optim.Adam([*self._cell.parameters(), *self._last.parameters()], RATE)
        self._known: WeakKeyDictionary[Space, dict[int, Tree | None]] = WeakKeyDictionary()

    def look(self, space: Space, numbers: Array) -> Array:
        """The trees of points; None for those that are refused, or that were too many to be read."""
        torch.set_num_threads(1)  # such small tensors only wait for each other's threads
        known, out = self._known.setdefault(space, {}), np.full(len(numbers), None, object)
        for at in np.argsort(-space.prior[numbers], kind="stable")[:MOST]:
            number = int(numbers[at])
            if number not in known:
                region, _ = space.region_of(number)
                program = region.fresh()
                try:
                    region.take(program, space.point(number)[1])
                    known[number] = tree_of(program.schedule.func.body)
                except WeftError:
                    known[number] = None  # a trial would say that it is refused
            out[at] = known[number]
        return out

    def _scores(self, trees: Sequence[Tree]) -> Any:
        starts = np.cumsum([0, *(len(tree.rows) for tree in trees)])
        rows = torch.from_numpy(np.concatenate([tree.rows for tree in trees]))
        parents = torch.from_numpy(np.concatenate([tree.parents + at for tree, at in zip(trees, starts)]))
        depths = np.concatenate([tree.depths for tree in trees])
        below = torch.zeros(len(rows), HIDDEN)
        for depth in range(int(depths.max()), -1, -1):  # nodes of one depth at a time: children before their parents
            here = torch.from_numpy(np.flatnonzero(depths == depth))
            state = self._cell(rows[here], below[here])
            below = below.index_add(0, parents[here], state) if depth else state
        return self._last(below)[:, 0]

    def fit(self, groups: Sequence[Group]) -> None:
        """Goes on learning from pairs of measured points of one task."""
        for group in groups:
            read = [at for at, tree in enumerate(group.features) if tree is not None]
            gains = np.asarray(group.gains, np.float32)[read]
            if len(read) < LEAST_POINTS or float(np.ptp(gains)) == 0.0:
                continue
            trees = [group.features[at] for at in read]
            for _ in range(STEPS):
                left, right = self._random.integers(0, len(read), (2, PAIRS))
                apart = torch.from_numpy(gains[left] - gains[right])
                scores = self._scores(trees)
                loss = (
                    torch.nn.functional.softplus(-apart.sign() * (scores[left] - scores[right])) * apart.abs()
                ).mean()
                self._trainer.zero_grad()
                loss.backward()
                self._trainer.step()

    def score(self, features: Array, prior: Array) -> Array:
        """The score of each tree."""
        read = np.flatnonzero([tree is not None for tree in features])
        with torch.no_grad():
            found = self._scores([features[at] for at in read]).numpy() if len(read) else np.zeros(0, np.float32)
        out = found.min(initial=0.0) - 1.0 + np.maximum(np.asarray(prior, np.float32), -30.0)
        out[read] = found
        return out
