"""placeholder, compute, reductions and the helpers: each against numpy, interpreted and compiled."""

import numpy as np
import pytest

from tests.te.support import check, numbers
from weft import te
from weft.core.errors import WeftError


def test_elementwise():
    A = te.placeholder((3, 5), name="A")
    B = te.compute((3, 5), lambda i, j: A[i, j] * 2.0 + 1.0, name="B")
    a = numbers(3, 5)
    check(B, {A: a}, a * 2 + 1)


def test_indices_are_values():
    B = te.compute((3, 4), lambda i, j: i * 10 + j, name="B")
    assert B.dtype.name == "int64"
    check(B, {}, np.arange(3)[:, None] * 10 + np.arange(4))


def test_a_compute_of_constants():
    check(te.compute((4,), lambda i: 1.5, name="B"), {}, np.full(4, 1.5, "float32"))
    check(te.compute((4,), lambda i: 3, dtype="uint8", name="B"), {}, np.full(4, 3, "uint8"))
    check(te.compute((4,), lambda i: True, dtype="bool", name="B"), {}, np.full(4, True))


def test_dtype_of_a_compute_casts_its_body():
    A = te.placeholder((6,), name="A")
    a = np.array([0.5, -1.5, 2.9, 100, 1e10, -1e10], "float32")
    B = te.compute((6,), lambda i: A[i], dtype="int32", name="B")
    check(B, {A: a}, np.array([0, -1, 2, 100, 2**31 - 1, -(2**31)], "int32"))


def test_variadic_functions_and_named_axes():
    A = te.placeholder((2, 3, 4), name="A")
    B = te.compute((2, 3, 4), lambda *i: A[i] + 1.0, name="B")
    C = te.compute((2, 3, 4), lambda batch, *rest: B(batch, *rest) * 2.0, name="C")
    assert [axis.name for axis in C.op.axis] == ["batch", "i1", "i2"]
    a = numbers(2, 3, 4)
    check(C, {A: a}, (a + 1) * 2)


def test_several_outputs():
    A = te.placeholder((3, 5), name="A")
    D, M = te.compute((3, 5), lambda i, j: (A[i, j] / 3.0, te.trunc(A[i, j]).astype("int8")), name="B")
    assert (D.name, M.name, D.dtype.name, M.dtype.name) == ("B_v0", "B_v1", "float32", "int8")
    a = numbers(3, 5, low=-9, high=9)
    check([D, M], {A: a}, [a / np.float32(3), np.trunc(a).astype("int8")])


def test_outputs_of_several_operations():
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
    C = te.compute((4,), lambda i: B[i] * B[i], name="C")
    a = numbers(4)
    check([C, B], {A: a}, [(a + 1) ** 2, a + 1])


def test_equal_names_are_told_apart():
    A = te.placeholder((4,), name="x")
    B = te.compute((4,), lambda x: A[x] + 1.0, name="x")
    C = te.compute((4,), lambda x: B[x] * 2.0, name="x")
    a = numbers(4)
    check(C, {A: a}, (a + 1) * 2)


def test_default_names():
    A = te.placeholder((4,))
    B = te.compute((4,), lambda i: A[i] + 1.0)
    C = te.compute((4,), lambda i: B[i] + 1.0)
    a = numbers(4)
    check(C, {A: a}, a + 2)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 1)])
def test_small_shapes(shape):
    A = te.placeholder(shape, name="A")
    B = te.compute(shape, lambda *i: A[i] + 1.0, name="B")
    a = numbers(*shape)
    check(B, {A: a}, a + np.float32(1))


def test_tensors_without_dimensions_stand_in_expressions():
    A, alpha = te.placeholder((4,), name="A"), te.placeholder((), name="alpha")
    k = te.reduce_axis(4)
    total = te.compute((), lambda: te.sum(A[k] * alpha, axis=k), name="total")
    B = te.compute((4,), lambda i: A[i] - total, name="B")
    C = te.compute((4,), lambda i: te.maximum(B[i], alpha), name="C")
    a, value = numbers(4), np.float32(0.25)
    total_value = (a * value).sum()
    check([C, total], {A: a, alpha: value}, [np.maximum(a - total_value, value), total_value])


# ------------------------------------------------------------------------------------------------------ reductions


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod"])
def test_reductions(name, dtype):
    A = te.placeholder((3, 6), dtype, name="A")
    k = te.reduce_axis((0, 6), name="k")
    B = te.compute((3,), lambda i: getattr(te, name)(A[i, k], axis=k), name="B")
    a = numbers(3, 6, dtype=dtype, low=0.5 if dtype[0] == "u" else -3, high=3)
    with np.errstate(over="ignore"):
        if a.dtype.kind in "iu":
            want = getattr(np, name)(a, axis=1, **({"dtype": a.dtype} if name in ("sum", "prod") else {}))
        else:
            want = getattr(np, name)(a.astype("float64"), axis=1)
    check(B, {A: a}, want, atol={"float16": 3e-2, "bfloat16": 2e-1}.get(dtype))


def test_matrix_product():
    A, B = te.placeholder((5, 7), name="A"), te.placeholder((7, 4), name="B")
    k = te.reduce_axis((0, 7), name="k")
    C = te.compute((5, 4), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    a, b = numbers(5, 7), numbers(7, 4, seed=1)
    check(C, {A: a, B: b}, a @ b)


def test_several_reduce_axes_and_one_axis_in_several_computes():
    A = te.placeholder((3, 4, 5), name="A")
    j, k = te.reduce_axis(4, name="j"), te.reduce_axis(5, name="k")
    B = te.compute((3,), lambda i: te.sum(A[i, j, k], axis=[j, k]), name="B")
    C = te.compute((3,), lambda i: te.max(A[i, j, k] - B[i], axis=(k, j)), name="C")
    a = numbers(3, 4, 5)
    total = a.sum((1, 2))
    check(C, {A: a}, (a - total[:, None, None]).max((1, 2)), atol=1e-4)


def test_reduction_where_a_condition_holds():
    A = te.placeholder((4, 9), name="A")
    k = te.reduce_axis(9)
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k, where=k <= i), name="B")
    C = te.compute((4,), lambda i: te.max(A[i, k], axis=k, where=A[i, k] < 1.0), name="C")
    a = numbers(4, 9)
    check(B, {A: a}, np.array([a[i, : i + 1].sum() for i in range(4)]))
    check(C, {A: a}, np.where(a < 1, a, -np.inf).max(1))


def test_reduction_from_an_initial_value():
    A = te.placeholder((4, 9), name="A")
    k = te.reduce_axis(9)
    B = te.compute((4,), lambda i: te.sum(A[i, k], axis=k, init=5.0), name="B")
    C = te.compute((4,), lambda i: te.sum(A[i, k], axis=k, where=k < 3, init=5.0), name="C")
    a = numbers(4, 9)
    check(B, {A: a}, a.sum(1) + 5)
    check(C, {A: a}, a[:, :3].sum(1) + 5)  # the start counts once, not for every element that is left out


@pytest.mark.parametrize("extent", [0, 1])
@pytest.mark.parametrize("name, identity", [("sum", 0.0), ("prod", 1.0), ("max", -np.inf), ("min", np.inf)])
def test_reduction_of_nothing_and_of_one(name, identity, extent):
    A = te.placeholder((3, extent), name="A")
    k = te.reduce_axis(extent)
    B = te.compute((3,), lambda i: getattr(te, name)(A[i, k], axis=k), name="B")
    a = numbers(3, extent)
    check(B, {A: a}, a[:, 0] if extent else np.full(3, identity, "float32"))


def test_any_and_all():
    A = te.placeholder((4, 5), "int32", name="A")
    k = te.reduce_axis(5)
    B = te.compute((4,), lambda i: te.any(A[i, k] > 2, axis=k), name="B")
    C = te.compute((4,), lambda i: te.all(A[i, k] > 0, A[i, k] < 4, axis=k), name="C")
    a = np.array([[0, 1, 2, 1, 0], [3, 0, 0, 0, 0], [1, 2, 3, 2, 1], [4, 4, 4, 4, 4]], "int32")
    check([B, C], {A: a}, [(a > 2).any(1), ((a > 0) & (a < 4)).all(1)])


def argmax():
    def combine(x, y):
        better = te.any(x[1] > y[1], te.all(te.equal(x[1], y[1]), x[0] < y[0]))
        return te.select(better, x[0], y[0]), te.select(better, x[1], y[1])

    return te.comm_reducer(combine, lambda t0, t1: (t0.max, t1.min), name="argmax")


def test_argmax():
    A = te.placeholder((4, 9), name="A")
    k = te.reduce_axis(9, name="k")
    index, value = te.compute((4,), lambda i: argmax()((k.astype("int32"), A[i, k]), axis=k), name="top")
    assert (index.dtype.name, value.dtype.name) == ("int32", "float32")
    a = np.round(numbers(4, 9, low=-3, high=3))
    check([index, value], {A: a}, [a.argmax(1).astype("int32"), a.max(1)])


def test_reducer_of_one_value():
    biggest = te.comm_reducer(lambda x, y: te.maximum(te.abs(x), te.abs(y)), lambda t: 0, name="biggest")
    A = te.placeholder((4, 9), name="A")
    k = te.reduce_axis(9, name="k")
    B = te.compute((4,), lambda i: biggest(A[i, k], axis=k), name="B")
    a = numbers(4, 9)
    check(B, {A: a}, np.abs(a).max(1))


def test_complex_product_as_a_tuple_reduction():
    product = te.comm_reducer(
        lambda x, y: (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]), lambda t0, t1: (1.0, 0.0), name="product"
    )
    R, I = te.placeholder((3, 5), "float64", name="R"), te.placeholder((3, 5), "float64", name="I")
    k = te.reduce_axis(5)
    re, im = te.compute((3,), lambda i: product((R[i, k], I[i, k]), axis=k), name="P")
    r, i = numbers(3, 5, dtype="float64"), numbers(3, 5, dtype="float64", seed=1)
    want = (r + 1j * i).prod(1)
    check([re, im], {R: r, I: i}, [want.real, want.imag])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: te.comm_reducer(lambda x, y: (x, y), lambda t: 0), "combines 1 values into 2"),
        (lambda: te.comm_reducer(lambda x, y: x + y, lambda t: (0, 0)), "gives 2 values for 1"),
        (lambda: te.comm_reducer(lambda x, y: x < y, lambda t: 0), "turns float32 into bool"),
    ],
)
def test_reducers_are_checked(make, message):
    A = te.placeholder((4, 9), name="A")
    k = te.reduce_axis(9, name="k")
    with pytest.raises(WeftError, match=message):
        te.create_schedule(te.compute((4,), lambda i: make()(A[i, k], axis=k)).op)


def test_softmax():
    A = te.placeholder((4, 9), name="A")
    k = te.reduce_axis(9, name="k")
    top = te.compute((4,), lambda i: te.max(A[i, k], axis=k), name="top")
    e = te.compute((4, 9), lambda i, j: te.exp(A[i, j] - top[i]), name="e")
    total = te.compute((4,), lambda i: te.sum(e[i, k], axis=k), name="total")
    S = te.compute((4, 9), lambda i, j: e[i, j] / total[i], name="S")
    a = numbers(4, 9)
    shifted = np.exp(a - a.max(1, keepdims=True))
    check(S, {A: a}, shifted / shifted.sum(1, keepdims=True))


# ---------------------------------------------------------------------------------------- conditions and broadcasting


def test_padding_reads_nothing_outside():
    A = te.placeholder((5, 6), name="A")
    P = te.compute(
        (7, 9),
        lambda y, x: te.if_then_else(te.all(y >= 1, y < 6, x >= 2, x < 8), A[y - 1, x - 2], 0.0),
        name="P",
    )
    a = numbers(5, 6)
    check(P, {A: a}, np.pad(a, ((1, 1), (2, 1))))


def test_convolution_with_stride_and_padding():
    X, W = te.placeholder((2, 3, 7, 7), name="X"), te.placeholder((4, 3, 3, 3), name="W")
    P = te.compute(
        (2, 3, 9, 9),
        lambda n, c, y, x: te.if_then_else(
            te.all(1 <= y, y < 8, 1 <= x, x < 8), X[n, c, y - 1, x - 1], te.cast(0, "float32")
        ),
        name="P",
    )
    c, dy, dx = te.reduce_axis(3, "c"), te.reduce_axis(3, "dy"), te.reduce_axis(3, "dx")
    Y = te.compute(
        (2, 4, 4, 4),
        lambda n, o, y, x: te.sum(P[n, c, y * 2 + dy, x * 2 + dx] * W[o, c, dy, dx], axis=[c, dy, dx]),
        name="Y",
    )
    x, w = numbers(2, 3, 7, 7), numbers(4, 3, 3, 3, seed=1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    check(Y, {X: x, W: w}, np.einsum("ncyxij,ocij->noyx", windows, w), atol=1e-4)


def test_gather():
    A, I = te.placeholder((6, 3), name="A"), te.placeholder((4,), "int32", name="I")
    B = te.compute((4, 3), lambda i, j: A[I[i], j], name="B")
    a, i = numbers(6, 3), np.array([5, 0, 0, 3], "int32")
    check(B, {A: a, I: i}, a[i])


def test_broadcasting():
    A, B = te.placeholder((4, 1, 5), name="A"), te.placeholder((3, 1), name="B")
    C = te.elementwise(lambda x, y: x * y + 1.0, A, B, name="C")
    D = te.broadcast_to(B, (2, 3, 4), name="D")
    a, b = numbers(4, 1, 5), numbers(3, 1, seed=1)
    check(C, {A: a, B: b}, a * b + 1)
    check(D, {B: b}, np.broadcast_to(b, (2, 3, 4)))
    n = te.var("n")
    assert te.broadcast_shapes((n, 1), (1, 4), (4,))[0] is n
    with pytest.raises(WeftError, match=r"\[2, 3\] and \[4\] do not broadcast"):
        te.broadcast_shapes((2, 3), (4,))
    with pytest.raises(WeftError, match="do not broadcast"):
        te.broadcast_to(A, (4, 2, 6))


def test_elementwise_with_a_tensor_without_dimensions():
    A, B = te.placeholder((4, 5), name="A"), te.placeholder((), name="B")
    a, b = numbers(4, 5), np.float32(3)
    check(te.elementwise(lambda x, y: x / y, A, B), {A: a, B: b}, a / b)
