"""Reductions that pass over the zeros of an operand: the same sums, nothing read that a zero would meet."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import te
from weft.builder import with_arguments
from weft.loop.interpreter import interpret
from weft.loop.passes.skip_zeros import skip_zeros
from weft.targets.cpu.pipeline import PASSES


def product(n: int = 5, size: int = 23):
    """y[j] = sum of x[k] * W[k, j], whose loop over k passes over zeros."""
    x, w = te.placeholder((size,), name="x"), te.placeholder((size, n), name="W")
    k = te.reduce_axis(size, "k")
    y = te.compute((n,), lambda j: te.sum(x[k.var] * w[k.var, j], axis=k), name="y")
    s = te.create_schedule(y.op)
    s[y].annotate("skip_zeros", "x", s[y].reduce_axis[0])
    return s, [x, w, y]


def lowered(func):
    """A program up to the pass, and after it."""
    for run in PASSES[: PASSES.index(skip_zeros)]:
        func = run(func)
    return func, skip_zeros(func)


def row(size: int, share: float) -> np.ndarray:
    random = np.random.default_rng(int(100 * share))
    made = random.standard_normal(size).astype(np.float32)
    return np.where(random.random(size) < share, made, np.float32(-0.0 if share < 0.3 else 0.0))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_the_same_sums(share):
    s, tensors = product()
    x, w = row(23, share), np.random.default_rng(1).standard_normal((23, 5)).astype(np.float32)
    before, after = lowered(with_arguments(s.func, tensors))
    want, have, fast = (np.full(5, np.nan, np.float32) for _ in range(3))
    interpret(before, x, w, want)
    interpret(after, x, w, have)
    np.testing.assert_array_equal(have, want)
    weft.build(s, tensors)(x, w, fast)
    np.testing.assert_allclose(fast, x @ w, rtol=1e-5, atol=1e-6)


def test_what_a_zero_meets_is_not_read():
    s, tensors = product()
    x, w = row(23, 0.5), np.ones((23, 5), np.float32)
    w[x == 0] = np.nan
    y = np.empty(5, np.float32)
    weft.build(s, tensors)(x, w, y)
    np.testing.assert_allclose(y, x.sum(), rtol=1e-5)


def test_numbers_that_are_none_are_no_zeros():
    s, tensors = product()
    x, w = row(23, 0.5), np.ones((23, 5), np.float32)
    x[4] = np.nan
    y = np.empty(5, np.float32)
    weft.build(s, tensors)(x, w, y)
    assert np.isnan(y).all()


def test_several_loops_share_the_places():
    x, w = te.placeholder((12,), name="x"), te.placeholder((12, 4), name="W")
    k, q = te.reduce_axis(12, "k"), te.reduce_axis(12, "q")
    y = te.compute((4,), lambda j: te.sum(x[k.var] * w[k.var, j], axis=k), name="y")
    z = te.compute((4,), lambda j: te.sum(x[q.var] * w[q.var, j] * 2.0, axis=q), name="z")
    s = te.create_schedule([y.op, z.op])
    for one in (y, z):
        s[one].annotate("skip_zeros", "x", s[one].reduce_axis[0])
    _, after = lowered(s.func)
    assert repr(after).count("allocate places") == 1 and "skip_zeros" not in repr(after)


def test_an_operand_that_changes_with_other_loops_is_read_whole():
    x, w = te.placeholder((3, 8), name="x"), te.placeholder((8, 4), name="W")
    k = te.reduce_axis(8, "k")
    y = te.compute((3, 4), lambda i, j: te.sum(x[i, k.var] * w[k.var, j], axis=k), name="y")
    s = te.create_schedule(y.op)
    s[y].annotate("skip_zeros", "x", s[y].reduce_axis[0])
    _, after = lowered(s.func)
    assert "places" not in repr(after) and "skip_zeros" not in repr(after)
    have, a, b = np.empty((3, 4), np.float32), row(24, 0.5).reshape(3, 8), row(32, 1.0).reshape(8, 4)
    weft.build(s, [x, w, y])(a, b, have)
    np.testing.assert_allclose(have, a @ b, rtol=1e-5, atol=1e-6)


def test_a_reduction_that_does_not_run_in_the_first_round():
    x, w = te.placeholder((3, 8), name="x"), te.placeholder((8, 4), name="W")
    k = te.reduce_axis(8, "k")
    y = te.compute((3, 4), lambda t, j: te.sum(x[t, k.var] * w[k.var, j], axis=k), name="y")
    s = te.create_schedule(y.op)
    s[y].annotate("skip_first", s[y].axis[0].name, s[y].reduce_axis[0])
    _, after = lowered(with_arguments(s.func, [x, w, y]))
    a, b = row(24, 1.0).reshape(3, 8), row(32, 1.0).reshape(8, 4)
    have, fast = np.empty((3, 4), np.float32), np.empty((3, 4), np.float32)
    interpret(after, a, b, have)
    weft.build(s, [x, w, y])(a, b, fast)
    a[0] = 0
    for made in (have, fast):
        np.testing.assert_allclose(made, a @ b, rtol=1e-5, atol=1e-6)
