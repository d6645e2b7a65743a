"""Sizes that are known only when the function is called."""

import numpy as np
import pytest

import weft
from tests.te.support import check, numbers
from weft import te
from weft.core.errors import WeftError

SIZES = [0, 1, 2, 17]


def test_one_size():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * 2.0, name="B")
    for size in SIZES:
        a = numbers(size)
        check(B, {A: a}, a * 2)


def test_matrix_product_of_symbolic_sizes():
    m, n, size_k = te.var("m"), te.var("n"), te.var("size_k")
    A, B = te.placeholder((m, size_k), name="A"), te.placeholder((size_k, n), name="B")
    k = te.reduce_axis((0, size_k), name="k")
    C = te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    for shape in [(0, 1, 2), (1, 1, 1), (3, 5, 4), (2, 0, 3), (2, 3, 0)]:
        a, b = numbers(shape[0], shape[2]), numbers(shape[2], shape[1], seed=1)
        check(C, {A: a, B: b}, a @ b)


@pytest.mark.parametrize("size", SIZES)
def test_derived_sizes(size):
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    double = te.compute((n * 2,), lambda i: A[i // 2], name="double")
    half = te.compute(((n + 1) // 2,), lambda i: A[i * 2], name="half")
    padded = te.compute((n + 2,), lambda i: te.if_then_else(te.all(i >= 1, i < n + 1), A[i - 1], 0.0), name="padded")
    a = numbers(size)
    check([double, half, padded], {A: a}, [np.repeat(a, 2), a[::2], np.pad(a, 1)])


def test_a_size_that_only_a_derived_shape_gives():
    n = te.var("n")
    A = te.placeholder((n * 2,), name="A")
    B = te.compute((n,), lambda i: A[i * 2] + A[i * 2 + 1], name="B")
    for size in SIZES:
        a = numbers(size * 2)
        check(B, {A: a}, a[::2] + a[1::2])


def test_symbolic_sizes_with_a_schedule():
    n = te.var("n")
    A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((n, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    i, j = s[C].op.axis
    io, jo, ii, ji = s[C].tile(i, j, 4, 8)
    (k,) = s[C].op.reduce_axis
    s[C].reorder(io, jo, k, ii, ji)
    s[C].vectorize(ji)
    s[C].parallel(io)
    for size in [0, 1, 3, 8, 13]:
        a, b = numbers(size, size), numbers(size, size, seed=1)
        check(C, {A: a, B: b}, a @ b, schedule=s, atol=1e-4)


def test_a_scalar_argument():
    n, alpha = te.var("n"), te.var("alpha", "float32")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] * alpha, name="B")
    f = weft.build(te.create_schedule(B.op), [A, alpha, B])
    a, b = numbers(5), np.empty(5, "float32")
    f(a, 2.5, b)
    np.testing.assert_array_equal(b, a * np.float32(2.5))
    with pytest.raises(WeftError, match="alpha"):
        weft.build(te.create_schedule(B.op), [A, B])


def test_the_size_as_an_argument():
    n = te.var("n")
    A, B = te.placeholder((n,), name="A"), None
    B = te.compute((n,), lambda i: A[i] + n.astype("float32"), name="B")
    f = weft.build(te.create_schedule(B.op), [n, A, B])
    a, b = numbers(5), np.empty(5, "float32")
    f(5, a, b)
    np.testing.assert_array_equal(b, a + 5)
    with pytest.raises(WeftError, match="n"):
        f(6, a, b)


def test_sizes_must_agree():
    n = te.var("n")
    A, B = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    C = te.compute((n,), lambda i: A[i] + B[i], name="C")
    f = weft.build(te.create_schedule(C.op), [A, B, C])
    with pytest.raises(WeftError, match="B.*5"):
        f(numbers(4), numbers(5), numbers(4))
