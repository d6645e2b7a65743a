"""Recurrences: te.scan against loops in numpy."""

import numpy as np
import pytest

import weft
from tests.te.support import check, numbers
from weft import te
from weft.core.errors import WeftError


def cumulative_sum(steps, width):
    X = te.placeholder((steps, width), name="X")
    state = te.placeholder((steps, width), name="state")
    init = te.compute((1, width), lambda t, i: X[t, i], name="init")
    update = te.compute((steps, width), lambda t, i: state[t - 1, i] + X[t, i], name="update")
    return X, te.scan(init, update, state, inputs=[X], name="S")


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_cumulative_sum(steps):
    X, S = cumulative_sum(steps, 5)
    x = numbers(steps, 5)
    check(S, {X: x}, np.cumsum(x, axis=0))


def test_cumulative_sum_over_a_symbolic_time():
    m, n = te.var("m"), te.var("n")
    X, S = cumulative_sum(m, n)
    for shape in [(1, 1), (4, 3), (6, 0)]:
        x = numbers(*shape)
        check(S, {X: x}, np.cumsum(x, axis=0))


def test_the_result_is_used_and_can_be_scheduled():
    X, S = cumulative_sum(6, 32)
    Y = te.compute((6, 32), lambda t, i: S[t, i] * 2.0, name="Y")
    s = te.create_schedule(Y.op)
    x = numbers(6, 32)
    update = s["update"]
    outer, inner = update.split(update.loops[-1], factor=8)
    update.vectorize(inner)
    check(Y, {X: x}, np.cumsum(x, axis=0) * 2, schedule=s)


def test_two_states():
    """Fibonacci numbers: (a, b) -> (b, a + b)."""
    steps = 20
    a_state = te.placeholder((steps, 1), "int64", name="a_state")
    b_state = te.placeholder((steps, 1), "int64", name="b_state")
    a_init = te.compute((1, 1), lambda t, i: 0, name="a_init")
    b_init = te.compute((1, 1), lambda t, i: 1, name="b_init")
    a_next = te.compute((steps, 1), lambda t, i: b_state[t - 1, i], name="a_next")
    b_next = te.compute((steps, 1), lambda t, i: a_state[t - 1, i] + b_state[t - 1, i], name="b_next")
    a, b = te.scan([a_init, b_init], [a_next, b_next], [a_state, b_state], name="fib")
    want = [0, 1]
    while len(want) <= steps:
        want.append(want[-1] + want[-2])
    check([a, b], {}, [np.array(want[:steps])[:, None], np.array(want[1:])[:, None]])


def test_two_steps_back():
    """x[t] = x[t-1] + x[t-2], from two first rows."""
    X0 = te.placeholder((2, 3), name="X0")
    state = te.placeholder((6, 3), name="state")
    init = te.compute((2, 3), lambda t, i: X0[t, i], name="init")
    update = te.compute((6, 3), lambda t, i: state[t - 1, i] + state[t - 2, i], name="update")
    S = te.scan(init, update, state, name="S")
    x0 = numbers(2, 3)
    rows = list(x0)
    for _ in range(4):
        rows.append(rows[-1] + rows[-2])
    check(S, {X0: x0}, np.array(rows))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_lstm_cell():
    """Gates from a matrix product inside the time loop, two states, a chain of operations between them."""
    steps, batch, inputs, hidden = 4, 2, 3, 5
    X = te.placeholder((steps, batch, inputs), name="X")
    Wx = te.placeholder((4, hidden, inputs), name="Wx")
    Wh = te.placeholder((4, hidden, hidden), name="Wh")
    h_state = te.placeholder((steps, batch, hidden), name="h_state")
    c_state = te.placeholder((steps, batch, hidden), name="c_state")
    h_init = te.compute((1, batch, hidden), lambda t, b, i: 0.0, name="h_init")
    c_init = te.compute((1, batch, hidden), lambda t, b, i: 0.0, name="c_init")
    ki, kh = te.reduce_axis(inputs, "ki"), te.reduce_axis(hidden, "kh")
    ix = te.compute(
        (steps, batch, 4, hidden), lambda t, b, g, j: te.sum(X[t, b, ki] * Wx[g, j, ki], axis=ki), name="ix"
    )
    hh = te.compute(
        (steps, batch, 4, hidden), lambda t, b, g, j: te.sum(h_state[t - 1, b, kh] * Wh[g, j, kh], axis=kh), name="hh"
    )
    gates = te.compute((steps, batch, 4, hidden), lambda *i: ix[i] + hh[i], name="gates")
    c_next = te.compute(
        (steps, batch, hidden),
        lambda t, b, j: (
            te.sigmoid(gates[t, b, 1, j]) * c_state[t - 1, b, j]
            + te.sigmoid(gates[t, b, 0, j]) * te.tanh(gates[t, b, 2, j])
        ),
        name="c_next",
    )
    h_next = te.compute(
        (steps, batch, hidden),
        lambda t, b, j: te.sigmoid(gates[t, b, 3, j]) * te.tanh(c_next[t, b, j]),
        name="h_next",
    )
    H, C = te.scan([h_init, c_init], [h_next, c_next], [h_state, c_state], inputs=[X], name="lstm")
    x, wx = numbers(steps, batch, inputs), numbers(4, hidden, inputs, seed=1)
    wh = numbers(4, hidden, hidden, seed=2)
    h, c = [np.zeros((batch, hidden), "float32")], [np.zeros((batch, hidden), "float32")]
    for t in range(1, steps):
        g = np.einsum("bi,gji->bgj", x[t], wx) + np.einsum("bi,gji->bgj", h[-1], wh)
        c.append(sigmoid(g[:, 1]) * c[-1] + sigmoid(g[:, 0]) * np.tanh(g[:, 2]))
        h.append(sigmoid(g[:, 3]) * np.tanh(c[-1]))
    check([H, C], {X: x, Wx: wx, Wh: wh}, [np.array(h), np.array(c)], atol=1e-4)


def test_two_scans_in_one_program():
    X, S = cumulative_sum(5, 3)
    state = te.placeholder((5, 3), name="peak")
    init = te.compute((1, 3), lambda t, i: S[t, i], name="first")
    update = te.compute((5, 3), lambda t, i: te.maximum(state[t - 1, i], S[t, i]), name="highest")
    M = te.scan(init, update, state, name="M")
    x = numbers(5, 3)
    check(M, {X: x}, np.maximum.accumulate(np.cumsum(x, axis=0), axis=0))


def test_the_time_loop_keeps_its_order():
    X, S = cumulative_sum(6, 32)
    s = te.create_schedule(S.op)
    time = s["update"].loops[0]
    with pytest.raises(WeftError, match="order"):
        s["update"].parallel(time)


def bad(init=(1, 3), update=(5, 3), state=(5, 3), kind="float32", op=True):
    whole = te.placeholder(state, name="whole")
    first = te.compute(init, lambda *i: 0.0, name="first")
    if op:
        step = te.compute(update, lambda *i: whole[(i[0] - 1, *i[1:])], name="step", dtype=kind)
    else:
        step = te.placeholder(update, name="step")
    return first, step, whole


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: te.scan(*bad(update=(4, 3))), "shapes of step and whole differ"),
        (lambda: te.scan(*bad(kind="float64")), "dtypes differ"),
        (lambda: te.scan(*bad(op=False)), "must be a te.compute"),
        (lambda: te.scan(*bad(init=(te.var("m"), 3))), "must be a constant"),
        (lambda: te.scan(*bad(init=(1, 4))), "shapes of first and whole differ"),
        (lambda: te.scan(*bad(init=(3,))), "ranks"),
        (lambda: te.scan(*bad(init=(6, 3))), "more first rows"),
        (lambda: te.scan(*bad(init=(0, 3))), "at least one first row"),
        (lambda: te.scan([], [], []), "at least one state"),
        (lambda: te.scan(bad()[0], [bad()[1]] * 2, bad()[2]), "1 initial states, 2 updates"),
        (lambda: te.scan(1, 2, 3), "takes tensors"),
        (lambda: te.scan(bad()[0], bad()[1], bad()[1]), "must be a te.placeholder"),
    ],
)
def test_bad_scans(make, message):
    with pytest.raises(WeftError, match=message):
        make()


def test_a_step_must_run_along_time():
    whole = te.placeholder((5, 3), name="whole")
    first = te.compute((1, 3), lambda t, i: 0.0, name="first")
    k = te.reduce_axis(5)
    total = te.compute((3,), lambda i: te.sum(whole[k, i], axis=k), name="total")
    step = te.compute((5, 3), lambda t, i: whole[t - 1, i] + total[i], name="step")
    with pytest.raises(WeftError, match="total depends on the state, so it must be a compute whose first axis is time"):
        te.create_schedule(te.scan(first, step, whole).op)


def test_a_step_reads_only_the_past():
    """Reading the present or the future of the state is found, in the interpreter and when the program is verified."""
    whole = te.placeholder((5, 3), name="whole")
    first = te.compute((1, 3), lambda t, i: 0.0, name="first")
    step = te.compute((5, 3), lambda t, i: whole[te.minimum(t + 1, 4), i] + 1.0, name="step")
    S = te.scan(first, step, whole, name="S")
    with pytest.raises(WeftError, match="past"):
        weft.build(te.create_schedule(S.op), [S])
