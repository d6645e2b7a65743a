"""merge_loops, release_axis, steps that change places: the program means the same; what would change it is refused."""

from __future__ import annotations

import numpy as np
import pytest

from weft import te
from weft.core.errors import ScheduleError
from weft.loop.interpreter import interpret
from weft.loop.tree import block_of, block_path, loops_in
from weft.loop.verifier import verify


def two(shift=0):
    """B = A + 1, C[i] = B[(i + shift) % 8] * 2, in two loops."""
    a = te.placeholder((8,), "int32", name="A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((8,), lambda j: b[(j + shift) % 8 if shift else j] * 2, name="C")
    return te.create_schedule(c.op)


def scan():
    """S[t] = P[t] + S[t - 1] with P[t] = S[t - 1] * 2."""
    x = te.placeholder((5, 6), "int32", name="X")
    state = te.placeholder((5, 6), "int32", name="state")
    first = te.compute((1, 6), lambda t, i: x[0, i], name="first")
    doubled = te.compute((5, 6), lambda t, i: state[t - 1, i] * 2, name="P")
    update = te.compute((5, 6), lambda t, i: doubled[t, i] + state[t - 1, i] + x[t, i], name="U")
    return te.create_schedule(te.scan(first, update, state, inputs=[x], name="S").op)


def values(s, shape):
    """What a program of one input makes of the numbers from 0 on."""
    given, made = np.arange(np.prod(shape), dtype=np.int32).reshape(shape), np.zeros(shape, np.int32)
    interpret(s.func, given, made)
    return made


def names(s):
    """The loops of a schedule."""
    return [loop.var.name for loop in loops_in(s.func.body)]


def test_neighbours_become_one_loop():
    s = two()
    want = values(s, (8,))
    s.apply("merge_loops", first=names(s)[0], second=names(s)[1])
    verify(s.func)
    assert len(names(s)) == 1
    np.testing.assert_array_equal(values(s, (8,)), want)


def test_steps_of_a_recurrence_merge():
    s = scan()
    want = values(s, (5, 6))
    (own,), (other,) = ([v.name for v in s[n].loops[1:]] for n in ("P", "U"))
    s.apply("merge_loops", first=own, second=other)
    verify(s.func)
    assert s["P"].loops == s["U"].loops
    np.testing.assert_array_equal(values(s, (5, 6)), want)


def test_other_elements_are_refused():
    s = two(shift=1)
    with pytest.raises(ScheduleError, match="touches B where others do"):
        s.apply("merge_loops", first=names(s)[0], second=names(s)[1])


def test_loops_that_do_not_follow_or_fit_are_refused():
    s = two()
    first, second = names(s)
    with pytest.raises(ScheduleError, match="does not stand right after"):
        s.apply("merge_loops", first=second, second=first)
    s["B"].split(s["B"].axis[0], factor=2)
    with pytest.raises(ScheduleError, match="same extent"):
        s.apply("merge_loops", first=names(s)[0], second=second)


def test_a_block_without_a_past_of_its_own_is_released():
    s = scan()
    want = values(s, (5, 6))
    s.apply("release_axis", block="P", axis="t")
    verify(s.func)
    assert all(axis.kind == "spatial" for axis in block_of(block_path(s.func, "P", "test")).axes)
    np.testing.assert_array_equal(values(s, (5, 6)), want)
    with pytest.raises(ScheduleError, match="in order"):
        s["U"].parallel(s["U"].loops[0])


def test_what_keeps_the_order_is_not_released():
    s = scan()
    with pytest.raises(ScheduleError, match="reads other elements of what it writes"):
        s.apply("release_axis", block="U", axis="t")
    with pytest.raises(ScheduleError, match="no ordered axis"):
        s.apply("release_axis", block="P", axis="i")


def running(shift=0):
    """A running sum along the first axis; with a shift, each element takes its neighbour's sum of the step before."""
    x = te.placeholder((6, 5), "int32", name="X")
    state = te.placeholder((6, 5), "int32", name="R")
    start = te.compute((1, 5), lambda t, i: x[t, i], name="S0")
    step = te.compute((6, 5), lambda t, i: state[t - 1, (i + shift) % 5 if shift else i] + x[t, i], name="S")
    return te.create_schedule(te.scan(start, step, state, inputs=[x], name="total").op)


def test_elements_that_do_not_meet_run_their_steps_alone():
    s = running()
    want = values(s, (6, 5))
    t, i = s["S"].loops
    s["S"].reorder(i, t)
    verify(s.func)
    assert [loop.name for loop in s["S"].loops] == [i.name, t.name]
    s["S"].parallel(s["S"].loops[0])
    np.testing.assert_array_equal(values(s, (6, 5)), want)
    with pytest.raises(ScheduleError, match="in order"):
        s["S"].parallel(s["S"].loops[1])


def test_elements_that_take_their_neighbours_go_step_by_step():
    s = running(shift=1)
    t, i = s["S"].loops
    with pytest.raises(ScheduleError, match="in order"):
        s["S"].reorder(i, t)
