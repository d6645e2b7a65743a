"""Reads outside a tensor are found where they are certain, and never where they are not."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import te
from weft.core.errors import ExpressionError, InterpreterError
from weft.loop.interpreter import interpret

A = te.placeholder((8, 6), name="A")
I = te.placeholder((8,), "int32", name="I")


def accepts(tensor):
    try:
        te.create_schedule(tensor.op)
    except ExpressionError as error:
        assert "elements" in str(error)
        return False
    return True


@pytest.mark.parametrize(
    "body",
    [
        lambda i, j: A[i, j],
        lambda i, j: A[7 - i, 5 - j],
        lambda i, j: A[(i + 3) % 8, j],
        lambda i, j: A[i // 2 * 2, j],
        lambda i, j: te.if_then_else(i < 7, A[i + 1, j], 0.0),
        lambda i, j: te.if_then_else(te.all(i >= 2, j >= 1), A[i - 2, j - 1], 0.0),
        lambda i, j: te.if_then_else(te.any(i >= 7, j >= 5), 0.0, A[i + 1, j + 1]),
        lambda i, j: A[te.minimum(i + 3, 7), te.maximum(j - 3, 0)],
        lambda i, j: A[I[i], j],
        lambda i, j: te.if_then_else(I[i] > 0, A[i, j], 1.0),
        lambda i, j: te.if_then_else(te.all(I[i] > 0, i < 7), A[i + 1, j], 1.0),
    ],
)
def test_right_programs_pass(body):
    assert accepts(te.compute((8, 6), body))


@pytest.mark.parametrize(
    "body",
    [
        lambda i, j: A[j, i],
        lambda i, j: A[i + 1, j],
        lambda i, j: A[i * 2, j],
        lambda i, j: A[i, j - 1],
        lambda i, j: te.if_then_else(i < 7, A[i, j], A[i + 1, j]),
        lambda i, j: te.if_then_else(te.any(i < 7, j < 5), A[i + 1, j], 0.0),
        lambda i, j: te.exp(A[i, 6]),
        lambda i, j: A[I[i + 1], j],
    ],
)
def test_wrong_programs_do_not(body):
    assert not accepts(te.compute((8, 6), body))


def test_the_error_shows_the_point():
    B = te.compute((8, 6), lambda i, j: A[i, j + 2], name="B")
    with pytest.raises(
        ExpressionError, match=r"B reads A\[i, j \+ 2\], and dimension 1 of A has 6 elements: at j = 5 the"
    ):
        te.create_schedule(B.op)


@given(
    st.integers(-3, 3),
    st.integers(-3, 3),
    st.integers(-6, 12),
    st.integers(1, 4),
    st.sampled_from(["none", "low", "both"]),
)
def test_agrees_with_the_interpreter(a, b, c, divisor, guard):
    """Affine indices: refused exactly when some iteration reads outside, which trying all of them tells."""
    X = te.placeholder((9,), name="X")

    def index(i, j):
        return (i * a + j * b + c) // divisor

    def body(i, j):
        at = index(i, j)
        if guard == "none":
            return X[at]
        condition = at >= 0 if guard == "low" else te.all(at >= 0, at < 9)
        return te.if_then_else(condition, X[at], 0.0)

    B = te.compute((3, 4), body, name="B")
    values = [index(i, j) for i, j in itertools.product(range(3), range(4))]
    reached = [v for v in values if guard == "none" or v >= 0 and (guard == "low" or v < 9)]
    wrong = any(not 0 <= v < 9 for v in reached)
    if not accepts(B):
        assert wrong
        return
    func = te.create_schedule(B.op).func
    x, out = np.zeros(9, "float32"), np.empty((3, 4), "float32")
    if wrong:  # only corners and middles are tried, so a wrong read may be left for the interpreter to find
        with pytest.raises(InterpreterError, match="out of bounds"):
            interpret(func, x, out)
    else:
        interpret(func, x, out)
