"""Schedules of programs with open sizes: a twin's steps, on the program itself."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import te
from weft.expr.nodes import const
from weft.loop.tree import blocks_in
from weft.plan.typical import plan_typical, with_sizes
from weft.targets.registry import find_target


def product(n, k: int = 24, m: int = 40):
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    axis = te.reduce_axis(k, "k")
    sums = te.compute((n, m), lambda i, j: te.sum(a[i, axis.var] * b[axis.var, j], axis=axis), name="C")
    out = te.compute((n, m), lambda i, j: te.maximum(sums[i, j], 0.0), name="D")
    return te.create_schedule(out.op), [a, b, out]


@pytest.mark.parametrize("sizes", [{}, {"n": 100}, {"n": 1}])
def test_a_product_is_right_for_every_size(sizes):
    n = te.var("n")
    s, args = product(n)
    plan_typical(s, find_target("native"), [], sizes)
    f = weft.build(s, args)
    random = np.random.default_rng(0)
    for rows in (1, 2, 7, 8, 9, 33, 100):
        a = random.standard_normal((rows, 24)).astype("float32")
        b = random.standard_normal((24, 40)).astype("float32")
        d = np.full((rows, 40), np.nan, "float32")
        f(a, b, d)
        np.testing.assert_allclose(d, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "target",
    ["x86_64-unknown-linux-gnu,cpu=skylake-avx512,cores=1", "aarch64-unknown-linux-gnu,cpu=neoverse-n1,cores=2"],
)
def test_tiles_at_the_edge_have_no_tests_in_their_sums(target):
    s, _ = product(te.var("n"))
    plan_typical(s, find_target(target), [], {"n": 64})
    sums = next(block for block in blocks_in(s.func.body) if block.name == "C")
    assert "min(" in repr(s.func) and repr(sums.predicate) == "true"


def test_a_twin_has_numbers_everywhere():
    n = te.var("n")
    s, _ = product(n)
    func, buffers = with_sizes(s.func, {n: const(12)})
    assert not func.size_vars and {b.name for b in buffers} == {"A", "C", "D"}
