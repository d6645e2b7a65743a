"""lay_out, split_axis and last_axis: the program means the same, on arrays that lie in blocks and borders."""

import numpy as np
import pytest

from weft import te
from weft.core.errors import ScheduleError
from weft.loop.interpreter import interpret
from weft.loop.ir import Region, Store
from weft.loop.verifier import verify
from weft.schedule.schedule import Schedule


def padded_sum():
    x = te.placeholder((1, 8, 6, 5), name="X")
    p = te.compute(
        (1, 8, 8, 7),
        lambda n, c, h, w: te.if_then_else(te.all(h >= 1, h < 7, w >= 1, w < 6), x[n, c, h - 1, w - 1], 0.0),
        name="P",
    )
    k = te.reduce_axis(3, "k")
    y = te.compute((1, 8, 6, 7), lambda n, c, h, w: te.sum(p[n, c, h + k, w], axis=k), name="Y")
    return te.create_schedule(y.op), x, y


def run(schedule, array, shape):
    out = np.full(shape, np.nan, "f4")
    verify(schedule.func)
    interpret(schedule.func, array, out)
    return out


def expected(array):
    p = np.pad(array, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return p[:, :, 0:6] + p[:, :, 1:7] + p[:, :, 2:8]


def test_a_border_takes_the_place_of_the_test():
    s, x, y = padded_sum()
    array = np.random.default_rng(0).standard_normal((1, 8, 6, 5)).astype("f4")
    s.apply("lay_out", buffer="X", dimension=1, factor=4, before=[0, 0, 1, 1], after=[0, 0, 1, 1])
    assert "select" not in repr(s.func)
    blocks = np.pad(array, ((0, 0), (0, 0), (1, 1), (1, 1))).reshape(1, 2, 4, 8, 7).transpose(0, 1, 3, 4, 2)
    np.testing.assert_allclose(run(s, np.ascontiguousarray(blocks), (1, 8, 6, 7)), expected(array), rtol=1e-6)


def test_a_border_that_is_too_small_leaves_the_test():
    s, x, y = padded_sum()
    array = np.random.default_rng(1).standard_normal((1, 8, 6, 5)).astype("f4")
    s.apply("lay_out", buffer="X", dimension=1, factor=4, before=[0, 0, 1, 0], after=[0, 0, 1, 0])
    assert "select" in repr(s.func)
    blocks = np.pad(array, ((0, 0), (0, 0), (1, 1), (0, 0))).reshape(1, 2, 4, 8, 5).transpose(0, 1, 3, 4, 2)
    np.testing.assert_allclose(run(s, np.ascontiguousarray(blocks), (1, 8, 6, 7)), expected(array), rtol=1e-6)


@pytest.mark.parametrize("factor", [1, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_a_result_computed_elsewhere_leaves_its_border_alone(factor, shared):
    s, x, y = padded_sum()
    array = np.random.default_rng(4).standard_normal((1, 8, 6, 5)).astype("f4")
    s.apply("lay_out", buffer="Y", dimension=1, factor=factor, before=[0, 0, 2, 1], after=[0, 0, 1, 3])
    if factor > 1:
        s.apply("split_axis", block="Y", axis="c", factor=factor)
    local = s.cache_write("Y", "local")
    if shared:
        local.compute_at(s["Y"], s["Y"].axis[2])
    shape = (1, 8 // factor, 9, 11, factor) if factor > 1 else (1, 8, 9, 11)
    made = run(s, array, shape)
    if factor > 1:
        made = made.transpose(0, 1, 4, 2, 3).reshape(1, 8, 9, 11)
    np.testing.assert_allclose(made[:, :, 2:8, 1:8], expected(array), rtol=1e-6)
    made[:, :, 2:8, 1:8] = np.nan
    assert np.isnan(made).all()


def test_a_result_with_gaps_is_not_computed_elsewhere():
    """Every second element is written: a copy would have to know which."""
    x = te.placeholder((6,), name="X")
    s = te.create_schedule(te.compute((6,), lambda i: x[i] + 1.0, name="Y").op)
    block = s["Y"].block
    wide = block.writes[0].buffer.replace(shape=[12])
    store = Store(wide, [block.axes[0].var * 2], block.body.value)
    spread = block.replace(body=store, writes=[Region(wide, store.indices, [1])])
    loop = s.func.body
    func = s.func.replace(body=loop.replace(body=spread), params=[s.func.params[0], wide])
    with pytest.raises(ScheduleError, match="no box"):
        Schedule(func).cache_write("Y", "local")


@pytest.mark.parametrize("axis,factor", [("c", 4), ("h", 3), ("k", 3), ("c", 8), ("c", 3), ("h", 4)])
def test_split_axis_keeps_the_meaning(axis, factor):
    s, x, y = padded_sum()
    array = np.random.default_rng(2).standard_normal((1, 8, 6, 5)).astype("f4")
    s.apply("split_axis", block="Y", axis=axis, factor=factor)
    np.testing.assert_allclose(run(s, array, (1, 8, 6, 7)), expected(array), rtol=1e-6)
    replayed, *_ = padded_sum()
    assert repr(replayed.replay(s.trace).func) == repr(s.func)


@pytest.mark.parametrize("axis", ["n", "c", "h", "w", "k"])
def test_last_axis_keeps_the_meaning(axis):
    s, x, y = padded_sum()
    array = np.random.default_rng(3).standard_normal((1, 8, 6, 5)).astype("f4")
    s.apply("last_axis", block="Y", axis=axis)
    kept = [one.var.name for one in s["Y"].block.axes if one.kind == ("reduce" if axis == "k" else "spatial")]
    assert kept[-1] == axis
    np.testing.assert_allclose(run(s, array, (1, 8, 6, 7)), expected(array), rtol=1e-6)


@pytest.mark.parametrize(
    "step,arguments,message",
    [
        ("lay_out", {"buffer": "P", "dimension": 1, "factor": 4, "before": [0] * 4, "after": [0] * 4}, "no parameter"),
        (
            "lay_out",
            {"buffer": "X", "dimension": 1, "factor": 3, "before": [0] * 4, "after": [0] * 4},
            "does not divide",
        ),
        ("lay_out", {"buffer": "X", "dimension": 1, "factor": 4, "before": [0] * 3, "after": [0] * 4}, "give 4 widths"),
        ("lay_out", {"buffer": "X", "dimension": 1, "factor": 4, "before": [0, 1, 0, 0], "after": [0] * 4}, "a border"),
        ("split_axis", {"block": "Y", "axis": "k", "factor": 2}, "does not divide"),
        ("split_axis", {"block": "Y", "axis": "z", "factor": 2}, "the axes of Y are"),
        ("last_axis", {"block": "Y", "axis": "z"}, "the axes of Y are"),
    ],
)
def test_bad_arguments(step, arguments, message):
    s, *_ = padded_sum()
    with pytest.raises(ScheduleError, match=message):
        s.apply(step, **arguments)


def test_an_axis_whose_loop_is_divided_is_refused():
    s, x, y = padded_sum()
    s[y].split(s[y].axis[1], factor=2)
    with pytest.raises(ScheduleError, match="no plain loop of its own"):
        s.apply("split_axis", block="Y", axis="c", factor=2)
