"""The network over loop programs that benchmarks.search puts beside the other cost models."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tuner.small import product_task
from weft.loop.tree import blocks_in, loops_in
from weft.tuner.cost_models import Group, rank_correlation
from weft.tuner.space import space_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trees():
    return pytest.importorskip("benchmarks.trees", reason="needs torch", exc_type=ImportError)


@pytest.fixture(scope="module")
def task():
    return product_task()


@pytest.fixture(scope="module")
def space(task):
    return space_of(task)


def test_a_tree_is_the_loops_and_blocks_of_a_program(trees, task, space, monkeypatch):
    body = task.fresh().schedule.func.body
    tree = trees.tree_of(body)
    assert len(tree.rows) == 1 + len(loops_in(body)) + len(blocks_in(body)) == len(tree.parents)
    assert tree.depths.tolist() == [0, 1, 2, 3, 4] and tree.parents.tolist() == [0, 0, 1, 2, 3]  # i, j, k, C
    i, j, k = tree.rows[1:4, -3:-1].tolist()  # of A[i, k], B[k, j], C[i, j]: not used by, contiguous along
    third = pytest.approx(1 / 3)
    assert (i, j, k) == ([third, 0.0], [third, pytest.approx(2 / 3)], [third, third])
    monkeypatch.setattr(trees, "MOST", 2)
    model = trees.TreeModel()
    scores = model.score(model.look(space, space.legal[:9]), space.prior[space.legal[:9]])
    best = np.argsort(-space.prior[space.legal[:9]], kind="stable")[:2]
    assert np.isfinite(scores).all() and set(np.argsort(-scores)[:2]) == set(best)  # others come after what was read


def test_the_network_learns_what_the_machine_likes(trees, space):
    points = np.random.default_rng(0).choice(space.legal, 60, replace=False)
    model, again = trees.TreeModel(), trees.TreeModel()
    rows, prior = model.look(space, points), space.prior[points]
    gains = np.array([1.0 + 0.2 * space.point(int(number))[1].get("rows", 0) for number in points])
    for _ in range(2):
        model.fit([Group(rows[:40], prior[:40], gains[:40])])
    assert rank_correlation(model.score(rows[40:], prior[40:]), gains[40:]) > 0.6
    assert np.array_equal(again.score(rows, prior), trees.TreeModel().score(rows, prior))  # its seed decides
