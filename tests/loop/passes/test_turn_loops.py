"""Loops that run backwards in every second round: the order, on one thread and on several, and the same result."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import weft
from weft import te
from weft.codegen.llvm.calls import TURN_BIT
from weft.core.errors import ScheduleError
from weft.loop.interpreter import interpret
from weft.loop.passes.turn_loops import turn_loops, turns_by_call


def rounds(steps: int = 4, size: int = 7):
    """A program that writes a matrix row by row."""
    a = te.placeholder((steps, size), name="A")
    b = te.compute((steps, size), lambda t, i: a[t, i] * 2.0, name="B")
    return te.create_schedule(b.op), a, b


def test_the_place_counts_down_in_odd_rounds():
    s, _, b = rounds()
    t, i = s[b].axis
    s[b].zigzag(i, t)
    text = repr(turn_loops(s.func))
    assert "let i_at = select(t%2 == 0, i, 6 - i)" in text and "zigzag" not in text


@pytest.mark.parametrize("parallel", [False, True])
def test_results_stay(parallel):
    s, a, b = rounds()
    t, i = s[b].axis
    if parallel:
        s[b].parallel(i)
    s[b].zigzag(i, t)
    x = np.arange(28, dtype=np.float32).reshape(4, 7)
    for threads in (1, 2, 3):
        y = np.zeros_like(x)
        weft.build(s, [a, b])(x, y, threads=threads)
        np.testing.assert_array_equal(y, 2 * x)


def test_calls_are_counted_by_whoever_calls():
    s, _, b = rounds()
    t, i = s[b].axis
    s[b].zigzag(t)
    s[b].zigzag(i, t)
    turned = turn_loops(s.func)
    assert "let calls = turn()" in repr(turned) and "let t_at = select(calls%2 == 0, t, 3 - t)" in repr(turned)
    assert turns_by_call(turned) and not turns_by_call(s.func)
    x = np.arange(28, dtype=np.float32).reshape(4, 7)
    y = np.zeros_like(x)
    interpret(turned, x, y)
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize("parallel", [False, True])
def test_odd_calls_run_backwards(parallel):
    """Each iteration draws the next random number of the C library: their order is the order of the iterations."""
    library = ctypes.CDLL(None)
    b = te.compute((6,), lambda i: te.call_extern("random", dtype="int64"), name="B")
    s = te.create_schedule(b.op)
    if parallel:
        s[b].parallel(s[b].axis[0])
    s[b].zigzag(s[b].axis[0])
    function = weft.build(s, [b])
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)(function.address)
    made = []
    for turn in (0, 1, 0):
        library.srandom(7)
        y = np.zeros(6, np.int64)
        assert entry(np.array([y.ctypes.data], np.int64).ctypes.data, 1 | turn << TURN_BIT) == 0
        made.append(y.tolist())
    assert made[0] == made[2] == made[1][::-1] and len(set(made[0])) == 6


def test_refuses():
    s, _, b = rounds()
    t, i = s[b].axis
    with pytest.raises(ScheduleError, match="not a loop around"):
        s[b].zigzag(t, i)
    s[b].vectorize(i)
    with pytest.raises(ScheduleError, match="its order is not given"):
        s[b].zigzag(i, t)
    k = te.reduce_axis(4, "k")
    x = te.placeholder((3, 4), name="X")
    c = te.compute((3,), lambda j: te.sum(x[j, k.var], axis=k), name="C")
    s = te.create_schedule(c.op)
    with pytest.raises(ScheduleError, match="reduces along it"):
        s[c].zigzag(s[c].reduce_axis[0], s[c].axis[0])
