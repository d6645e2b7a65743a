"""Borders are filled by the loops around what lies inside: all of it, whoever fills which part, and nothing else."""

import numpy as np
import pytest

from weft import te
from weft.compiler.kernels.borders import fill_borders
from weft.graph.passes.layout import Layout
from weft.loop.interpreter import interpret
from weft.loop.ir import Block, For, Seq
from weft.loop.tree import loops_in
from weft.loop.verifier import verify
from weft.loop.visit import walk_stmts


def program(channels, height, width, border, schedule):
    """Twice an image, in blocks of four channels inside a border; scheduled, with borders filled."""
    x = te.placeholder((1, channels, height, width), name="X")
    y = te.compute(x.shape, lambda n, c, h, w: x[n, c, h, w] * 2.0, name="Y")
    s = te.create_schedule(y.op)
    before, after = zip(*border)
    s.apply("lay_out", buffer="Y", dimension=1, factor=4, before=list(before), after=list(after))
    s.apply("split_axis", block="Y", axis="c", factor=4)
    schedule(s)
    (out,) = [buffer for buffer in s.func.buffers if buffer.name == "Y"]
    return fill_borders(s.func, [(out, Layout(4, tuple(border), fill=7))]), s


def sums_apart(depth):
    """Sums of their own in each round of so many loops, the outermost in parallel."""

    def schedule(s):
        local = s.cache_write("Y", "local")
        local.compute_at(s["Y"], s["Y"].axis[depth - 1])
        s["Y"].parallel(s["Y"].axis[1])

    return schedule


def check(func, channels, height, width, border):
    verify(func)
    array = np.random.default_rng(0).standard_normal((1, channels, height, width)).astype("f4")
    (top, bottom), (left, right) = border[2:]
    out = np.full((1, channels // 4, top + height + bottom, left + width + right, 4), np.nan, "f4")
    interpret(func, array, out)
    made = out.transpose(0, 1, 4, 2, 3).reshape(1, channels, *out.shape[2:4])
    pads = ((0, 0), (0, 0), *border[2:])
    np.testing.assert_array_equal(made, np.pad(array * 2, pads, constant_values=7))


BORDERS = [
    ((1, 1), (1, 1)), ((2, 2), (2, 2)), ((0, 1), (0, 1)), ((2, 0), (0, 3)), ((0, 0), (1, 2)), ((3, 1), (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("size", [(8, 5, 6), (40, 7, 7), (8, 12, 3), (12, 1, 9)])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_all_of_a_border_is_filled_and_nothing_else(border, size, depth):
    border = ((0, 0), (0, 0), *border)
    func, _ = program(*size, border, sums_apart(depth))
    check(func, *size, border)


def test_rounds_fill_their_shares():
    """No loop stands before the others, so no thread fills a border alone; few stores come together."""
    border = ((0, 0), (0, 0), (2, 2), (2, 2))
    func, s = program(40, 14, 7, border, sums_apart(3))
    assert isinstance(func.body, For) and func.body.kind == "serial" and isinstance(func.body.body, For)
    fills = [b for b in walk_stmts(func.body) if isinstance(b, Block) and "border" in b.name]
    assert len(fills) == 4
    rows = next(loop for loop in loops_in(func.body) if loop.var.name == s["Y"].axis[2].name)
    assert sum(isinstance(b, Block) and "border" in b.name for b in walk_stmts(rows)) == 2  # left and right, row by row


def test_stretches_are_cut_where_there_are_fewer_than_rounds():
    border = ((0, 0), (0, 0), (1, 1), (0, 0))

    def by_rows(s):
        y = s["Y"]
        y.reorder(y.axis[2], y.axis[1], y.axis[3])
        y.parallel(y.axis[2])

    func, _ = program(8, 6, 20, border, by_rows)
    check(func, 8, 6, 20, border)
    fills = [b for b in walk_stmts(func.body) if isinstance(b, Block) and "border" in b.name]
    assert not isinstance(func.body, Seq) and len(fills) == 2


def test_sums_that_grow_where_they_stay():
    """Border and sums are other elements: it does not matter how often a border is filled meanwhile."""
    x = te.placeholder((1, 4, 3, 3), name="X")
    k = te.reduce_axis(3, "k")
    y = te.compute((1, 4, 3, 3), lambda n, c, h, w: te.sum(x[n, c, h, k] * 2.0, axis=k), name="Y")
    s = te.create_schedule(y.op)
    s["Y"].reorder(s["Y"].reduce_axis[0], *s["Y"].axis)
    s.apply("lay_out", buffer="Y", dimension=1, factor=1, before=[0, 0, 0, 1], after=[0, 0, 0, 1])
    (out,) = [buffer for buffer in s.func.buffers if buffer.name == "Y"]
    func = fill_borders(s.func, [(out, Layout(1, ((0, 0), (0, 0), (0, 0), (1, 1))))])
    array = np.random.default_rng(1).standard_normal((1, 4, 3, 3)).astype("f4")
    made = np.full((1, 4, 3, 5), np.nan, "f4")
    interpret(func, array, made)
    want = np.repeat(2 * array.sum(-1, keepdims=True), 3, -1)
    np.testing.assert_allclose(made, np.pad(want, ((0, 0), (0, 0), (0, 0), (1, 1))), rtol=1e-5)
