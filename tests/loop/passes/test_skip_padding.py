"""Rounds of a reduction that read nothing but the zeros around an image are passed over: the same sums."""

from __future__ import annotations

import numpy as np
import pytest

from weft import te
from weft.builder import with_arguments
from weft.loop.interpreter import interpret
from weft.loop.ir import If, Store
from weft.loop.passes.skip_padding import image_in, skip_padding
from weft.loop.tree import writers
from weft.loop.visit import walk_stmts
from weft.schedule.facts import names_of
from weft.targets.cpu.pipeline import PASSES


def convolution(size: int, gap: int, pad: int, tile: int = 1, fill: float = 0.0):
    """y[i] = sum of x[i + gap·k − pad] · w[k] along a line, in tiles, that passes over what is beside x."""
    x, w = te.placeholder((size,), name="x"), te.placeholder((3,), name="w")
    behind = size + pad
    padded = te.compute(
        (size + 2 * pad,),
        lambda i: te.if_then_else(te.all(i >= pad, i < behind), x[i - pad], te.const(fill, "float32")),
        name="padded",
    )
    k = te.reduce_axis(3, "k")
    y = te.compute((size + 2 * pad - 2 * gap,), lambda i: te.sum(padded[i + gap * k.var] * w[k.var], axis=k), name="y")
    s = te.create_schedule(y.op)
    outer, inner = s[y].split(s[y].axis[0], factor=tile)
    s[y].reorder(outer, s[y].reduce_axis[0], inner)
    s[y].annotate("skip_padding", "padded", s[y].reduce_axis[0])
    return s, [x, w, y]


def lowered(func, done):
    """A program after all passes up to the one that is tested, with it or without."""
    at = PASSES.index(skip_padding)
    for run in (*PASSES[:at], *([skip_padding] if done else []), *PASSES[at + 1 :]):
        func = run(func)
    return func


@pytest.mark.parametrize("size,gap,pad,tile", [(13, 5, 5, 1), (13, 5, 5, 4), (9, 7, 7, 3), (6, 2, 3, 2), (5, 9, 9, 5)])
def test_the_same_sums(size, gap, pad, tile):
    s, tensors = convolution(size, gap, pad, tile)
    func = with_arguments(s.func, tensors)
    x, w = (np.random.default_rng(at).standard_normal(n).astype(np.float32) for at, n in enumerate((size, 3)))
    want, have = (np.full(size + 2 * pad - 2 * gap, np.nan, np.float32) for _ in range(2))
    interpret(lowered(func, False), x, w, want)
    interpret(lowered(func, True), x, w, have)
    np.testing.assert_array_equal(have, want)


def test_what_is_passed_over_is_neither_read_nor_written():
    """A tap that meets zeros only may be infinite; and the zeros that single places read are not written at all."""
    s, tensors = convolution(3, 5, 5)
    w, y = np.asarray([np.inf, 2, np.nan], np.float32), np.empty(3, np.float32)
    interpret(lowered(with_arguments(s.func, tensors), True), np.ones(3, np.float32), w, y)
    np.testing.assert_array_equal(y, [2, 2, 2])
    (copy,) = writers(skip_padding(s.func).body, s.func.allocations[0])
    assert "5 <= i" in repr(copy.predicate) and "< 8" in repr(copy.predicate)


def test_an_image_is_where_its_copy_says():
    s, _ = convolution(13, 5, 4)
    box = image_in(s.func, s.func.allocations[0])
    assert [tuple(map(repr, pair)) for pair in box] == [("4", "17")]
    assert image_in(s.func, s.func.buffers[0]) is None


def test_numbers_that_are_not_zero_are_multiplied():
    s, _ = convolution(13, 5, 5, fill=1.0)
    assert names_of(s) == ["padded", "y"]
    assert not any(isinstance(one, If) for one in walk_stmts(skip_padding(s.func).body))


def test_a_border_that_the_caller_keeps():
    """`lay_out` notes it: the loop passes over it, too, and nothing is written there."""
    s, tensors = convolution(8, 6, 6)
    s["padded"].compute_inline()
    s.apply("lay_out", buffer="x", dimension=0, factor=1, before=[6], after=[6])
    assert s.func.annotations["borders"] == {"x": [[6, 6]]}
    s[tensors[-1]].annotate("skip_padding", "x", s[tensors[-1]].reduce_axis[0])
    made = skip_padding(s.func)
    assert any(isinstance(one, If) for one in walk_stmts(made.body))
    x, w, y = np.zeros(20, np.float32), np.asarray([1, 10, 100], np.float32), np.empty(8, np.float32)
    x[6:14] = np.arange(8)
    interpret(lowered(s.func, True), x, w, y)
    np.testing.assert_array_equal(y, [x[i] + 10 * x[i + 6] + 100 * x[i + 12] for i in range(8)])
    assert not any(isinstance(one, Store) and one.buffer.name == "x" for one in walk_stmts(made.body))
