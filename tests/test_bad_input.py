"""What a person can get wrong: each mistake is a WeftError that says what happened, never a crash or a wrong answer."""

import ml_dtypes
import numpy as np
import pytest
import torch

import weft
from weft import te
from weft.core.errors import (
    ArgumentError,
    DTypeError,
    ExpressionError,
    ScheduleError,
    ShapeError,
    TargetError,
    WeftError,
)


def scale(n=8, dtype="float32"):
    A = te.placeholder((n,), dtype, name="A")
    B = te.compute((n,), lambda i: A[i] * 2, name="B")
    return A, B


@pytest.fixture(scope="module")
def double():
    """B = 2 A for eight floats."""
    A, B = scale()
    return weft.build(te.create_schedule(B.op), [A, B], name="double")


def array(*shape, dtype="float32"):
    return np.ones(shape, dtype)


# ------------------------------------------------------------------------------------ arguments of a compiled function


@pytest.mark.parametrize(
    "arguments, message",
    [
        (lambda: (array(8),), r"double.*2 arguments|takes 2"),
        (lambda: (array(8), array(8), array(8)), r"2 arguments|takes 2"),
        (lambda: (array(9), array(8)), r"A.*\(9,\)"),
        (lambda: (array(8), array(7)), r"B.*\(7,\)"),
        (lambda: (array(8, 1), array(8)), r"A.*\(8, 1\)"),
        (lambda: (array(), array(8)), r"A.*\(\)"),
        (lambda: (array(8, dtype="float64"), array(8)), "A.*float32.*float64"),
        (lambda: (array(8, dtype="int32"), array(8)), "A.*float32.*int32"),
        (lambda: (array(8).astype(">f4"), array(8)), "A.*float32"),
        (lambda: (array(8).astype("complex64"), array(8)), "A.*float32.*complex64"),
        (lambda: ([1.0] * 8, array(8)), "A.*list"),
        (lambda: (3.0, array(8)), "A.*float"),
        (lambda: (None, array(8)), "A.*None"),
        (lambda: ("text", array(8)), "A.*str"),
        (lambda: (array(16)[::2], array(8)), "A.*(contiguous|strides)"),
        (lambda: (array(8), array(16)[::2]), "B.*(contiguous|strides)"),
        (lambda: (array(8), array(8)[::-1]), "B.*(contiguous|strides)"),
        (lambda: (torch.ones(9), array(8)), r"A.*\(9,\)"),
        (lambda: (torch.ones(8, dtype=torch.float64), array(8)), "A.*float32.*float64"),
        (lambda: (torch.ones(16)[::2], array(8)), "A.*(contiguous|strides)"),
        (lambda: (torch.ones(8, requires_grad=True), array(8)), "A.*grad"),
        (lambda: (array(8).astype(object), array(8)), "A.*object"),
    ],
)
def test_wrong_arguments(double, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        double(*arguments())


def test_read_only_arrays(double):
    fixed = array(8)
    fixed.flags.writeable = False
    out = array(8)
    double(fixed, out)
    np.testing.assert_array_equal(out, 2)
    with pytest.raises(ArgumentError, match="B.*read-only"):
        double(out, fixed)


def test_arrays_that_share_memory(double):
    both = array(8)
    with pytest.raises(ArgumentError, match="A.*B|B.*A"):
        double(both, both)
    whole = array(12)
    with pytest.raises(ArgumentError, match="(overlap|share)"):
        double(whole[:8], whole[4:])


def test_two_inputs_may_share_memory():
    A, B = te.placeholder((8,), name="A"), te.placeholder((8,), name="B")
    C = te.compute((8,), lambda i: A[i] + B[i], name="C")
    f = weft.build(te.create_schedule(C.op), [A, B, C])
    a, c = array(8), array(8)
    f(a, a, c)
    np.testing.assert_array_equal(c, 2)


def test_torch_tensors_are_arrays(double):
    out = torch.zeros(8)
    double(torch.ones(8), out)
    assert (out == 2).all()


@pytest.mark.parametrize("threads", [0, -1, 2**31, 1.5, "two", True])
def test_wrong_thread_counts(double, threads):
    with pytest.raises(WeftError, match="threads"):
        double(array(8), array(8), threads=threads)
    A, B = scale()
    with pytest.raises(WeftError, match="threads"):
        weft.build(te.create_schedule(B.op), [A, B], threads=threads)


def test_packed_arguments_of_the_wrong_size():
    A, B = scale(9, "uint4")
    f = weft.build(te.create_schedule(B.op), [A, B])
    with pytest.raises(ArgumentError, match=r"A"):
        f(array(9, dtype="uint8"), array(5, dtype="uint8"))
    with pytest.raises(ArgumentError, match="A.*uint4"):
        f(array(5, dtype="int8"), array(5, dtype="uint8"))


def test_a_misaligned_array_is_read_correctly(double):
    memory = np.zeros(8 * 4 + 1, "uint8")
    odd = memory[1:].view("float32")
    odd[:] = 3
    out = array(8)
    try:
        double(odd, out)
    except ArgumentError as error:
        assert "align" in str(error)
    else:
        np.testing.assert_array_equal(out, 6)


# -------------------------------------------------------------------------------------------------------- weft.build


@pytest.mark.parametrize(
    "target, message",
    [
        ("frobnicator", "unknown target 'frobnicator'"),
        ("", "unknown target ''"),
        ("native,cpu=pentium99", "pentium99"),
        ("native,features=+frob", "frob"),
        ("x86_64-unknown-linux-gnu,cores=none", "cores"),
        (None, "a target is a text"),
        (3, "a target is a text"),
    ],
)
def test_wrong_targets(target, message):
    A, B = scale()
    with pytest.raises(TargetError, match=message):
        weft.build(te.create_schedule(B.op), [A, B], target=target)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (lambda A, B: [A], "B must be among the arguments"),
        (lambda A, B: [B], "A must be among the arguments"),
        (lambda A, B: [], "A, B must be among the arguments"),
        (lambda A, B: [A, B, B], "twice"),
        (lambda A, B: [A, B, te.placeholder((3,), name="Z")], "Z is among the arguments but"),
        (lambda A, B: [A, B, 3], "not 3"),
        (lambda A, B: [A, B.op], "not ComputeOp"),
        (lambda A, B: ["A", "B"], "not 'A'"),
        (lambda A, B: A, "list of tensors"),
        (lambda A, B: 7, "list of tensors"),
    ],
)
def test_wrong_argument_lists(arguments, message):
    A, B = scale()
    with pytest.raises(ExpressionError, match=message):
        weft.build(te.create_schedule(B.op), arguments(A, B))


@pytest.mark.parametrize("name", ["", "two words", "1st", 3, "näme", "a-b"])
def test_wrong_names(name):
    A, B = scale()
    with pytest.raises(ExpressionError, match="cannot name a function"):
        weft.build(te.create_schedule(B.op), [A, B], name=name)


@pytest.mark.parametrize("what", [None, 3, "s", lambda: 0])
def test_what_cannot_be_built(what):
    with pytest.raises(TargetError, match="a schedule or a loop program"):
        weft.build(what)


def test_an_operation_cannot_be_built():
    with pytest.raises(TargetError, match="a schedule or a loop program, not"):
        weft.build(scale()[1].op)


# -------------------------------------------------------------------------------------------------- tensor expressions

A8 = te.placeholder((8,), name="A8")
I8 = te.placeholder((8,), "int32", name="I8")
K = te.reduce_axis(8, name="K")


@pytest.mark.parametrize(
    "make, kind, message",
    [
        # shapes
        (lambda: te.placeholder((-1,)), ShapeError, "negative"),
        (lambda: te.placeholder((1 << 40,)), ShapeError, "larger than any memory"),
        (lambda: te.placeholder((2.5,)), ShapeError, "2.5"),
        (lambda: te.placeholder(("n",)), ShapeError, "'n'"),
        (lambda: te.placeholder("n"), ShapeError, "'n'"),
        (lambda: te.placeholder((True,)), ShapeError, "True"),
        (lambda: te.placeholder(None), ShapeError, "None"),
        (lambda: te.placeholder((K,)), ShapeError, "reduce axis K"),
        (lambda: te.placeholder((I8[0],)), ShapeError, "cannot be read from a tensor"),
        (lambda: te.compute((-3,), lambda i: 0.0), ShapeError, "negative"),
        (lambda: te.reduce_axis(-1), ShapeError, "negative"),
        (lambda: te.reduce_axis((1, 8)), ExpressionError, "runs from 0"),
        (lambda: te.reduce_axis((0, 8, 2)), ExpressionError, "runs from 0"),
        (lambda: te.thread_axis("threadIdx.q"), ExpressionError, "unknown thread axis"),
        # dtypes
        (lambda: te.placeholder((1,), "float12"), DTypeError, "float12"),
        (lambda: te.placeholder((1,), "float32x4"), DTypeError, "float32x4"),
        (lambda: te.placeholder((1,), "handle"), DTypeError, "handle"),
        (lambda: te.placeholder((1,), "complex64"), DTypeError, "complex64"),
        (lambda: te.var("n", "int32x2"), DTypeError, "int32x2"),
        # names
        (lambda: te.placeholder((1,), name="two words"), ExpressionError, "cannot name a tensor"),
        (lambda: te.compute((1,), lambda i: 0.0, name="a.b"), ExpressionError, "cannot name a tensor"),
        (lambda: te.var("1n"), ExpressionError, "cannot name a variable"),
        (lambda: te.reduce_axis(3, name="a b"), ExpressionError, "cannot name an axis"),
        # indices
        (lambda: A8[0, 0], ShapeError, "A8 has 1 dimensions and was indexed with 2"),
        (lambda: A8[()], ShapeError, "indexed with 0"),
        (lambda: A8[1:3], ExpressionError, "slice"),
        (lambda: A8[...], ExpressionError, "slice"),
        (lambda: A8[None], ExpressionError, "slice"),
        (lambda: A8[1.5], DTypeError, "integer"),
        (lambda: A8[A8[0]], DTypeError, "integer, not float32"),
        (lambda: A8["x"], DTypeError, "'x'"),
        (lambda: list(A8), ExpressionError, "cannot be iterated"),
        (lambda: A8 + 1.0, ExpressionError, "stands in a scalar expression; index it"),
        (lambda: te.exp(A8), ExpressionError, "stands in a scalar expression; index it"),
        # computes
        (lambda: te.compute((8,), lambda i, j: A8[i]), ShapeError, "takes 2 indices for a shape of 1"),
        (lambda: te.compute((8, 8), lambda i: A8[i]), ShapeError, "takes 1 indices for a shape of 2"),
        (lambda: te.compute((8,), lambda i: None), ExpressionError, "None"),
        (lambda: te.compute((8,), lambda i: ()), ExpressionError, "no value"),
        (lambda: te.compute((8,), lambda i: "x"), ExpressionError, "'x'"),
        (lambda: te.compute((8,), 3), ExpressionError, "takes a function of the indices, not 3"),
        (lambda: te.compute((8,), lambda i: A8), ExpressionError, "index it"),
        (lambda: te.compute((8,), lambda i: A8[i] if A8[i] > 0 else 0), ExpressionError, "no truth value"),
        (lambda: te.compute((8,), lambda i: not A8[i]), ExpressionError, "no truth value"),
        (lambda: te.compute((8,), lambda i: 300, dtype="uint8"), DTypeError, "300 does not fit uint8"),
        (lambda: te.compute((8,), lambda i: A8[i] + I8[i] + "x"), ExpressionError, "'x'"),
        # reductions
        (lambda: te.compute((8,), lambda i: te.sum(A8[K], axis=K) + 1.0), ExpressionError, "whole body"),
        (lambda: te.compute((8,), lambda i: 2.0 * te.sum(A8[K], axis=K)), ExpressionError, "whole body"),
        (lambda: te.compute((8,), lambda i: te.exp(te.sum(A8[K], axis=K))), ExpressionError, "whole body"),
        (lambda: te.compute((8,), lambda i: te.maximum(te.sum(A8[K], axis=K), 0.0)), ExpressionError, "whole body"),
        (lambda: te.sum(te.sum(A8[K], axis=K), axis=K), ExpressionError, "whole body"),
        (lambda: te.compute((8,), lambda i: [te.sum(A8[K], axis=K)] * 2), ExpressionError, "several reductions"),
        (lambda: te.compute((8,), lambda i: te.sum(A8[K], axis=K), dtype="int32"), DTypeError, "cast the source"),
        (lambda: te.sum(A8[K], axis=3), ExpressionError, "made by te.reduce_axis, not 3"),
        (lambda: te.sum(A8[K], axis=[]), ExpressionError, "at least one reduce axis"),
        (lambda: te.sum(A8[K], axis=[K, K]), ExpressionError, "twice"),
        (lambda: te.sum(A8[K], axis=te.thread_axis("vthread")), ExpressionError, "made by te.reduce_axis"),
        (lambda: te.sum(A8[K] > 0.0, axis=K), DTypeError, "te.sum of bool"),
        (lambda: te.max(A8[K], axis=K, where=A8[K]), DTypeError, "must be bool, not float32"),
        (lambda: te.any(A8[K], axis=K), DTypeError, "needs a bool"),
        (lambda: te.sum((A8[K], A8[K]), axis=K), ExpressionError, "cannot stand"),
        # mixing dtypes
        (lambda: I8[0] + te.cast(I8[0], "uint32"), DTypeError, "mixes int32 and uint32"),
        (lambda: te.cast(A8[0], "float16") + te.cast(A8[0], "bfloat16"), DTypeError, "mixes float16 and bfloat16"),
        (lambda: (A8[0] > 0.0) + 1, DTypeError, "bool"),
        (lambda: (A8[0] > 0.0) + (A8[1] > 0.0), DTypeError, "not defined on bool"),
        (lambda: I8[0] / I8[1], DTypeError, "use //"),
        (lambda: A8[0] & 1, DTypeError, "integers"),
        (lambda: A8[0] << 1, DTypeError, "integers"),
        (lambda: ~A8[0], DTypeError, "integers"),
        (lambda: I8[0] // 0, ExpressionError, "by zero"),
        (lambda: I8[0] % 0, ExpressionError, "by zero"),
        (lambda: te.truncdiv(A8[0], 2), DTypeError, "integers"),
        (lambda: I8[0] + 2**40, DTypeError, "does not fit int32"),
        (lambda: te.cast(A8[0], "handle"), DTypeError, "handle"),
        (lambda: te.reinterpret(A8[0], "int64"), DTypeError, "one width"),
        (lambda: te.reinterpret(A8[0], "bool"), DTypeError, "one width"),
        # conditions and functions
        (lambda: te.if_then_else(A8[0], 1.0, 0.0), DTypeError, "needs a bool, not float32"),
        (lambda: te.if_then_else(I8[0], 1.0, 0.0), DTypeError, "needs a bool, not int32"),
        (lambda: te.if_then_else(A8[0] == 0.0, 1.0, 0.0), DTypeError, "write te.equal"),
        (lambda: te.all(A8[0] > 0.0, A8[0] != 1.0), DTypeError, "write te.equal"),
        (lambda: te.any(A8[0] == 1.0), DTypeError, "write te.equal"),
        (lambda: te.sum(A8[K], axis=K, where=A8[K] == 1.0), DTypeError, "write te.equal"),
        (lambda: te.compute((8,), lambda i: A8[i] == 1.0), DTypeError, "write te.equal"),
        (lambda: I8[0] ** 2, DTypeError, "power"),
        (lambda: 1.5 << I8[0], DTypeError, "integers"),
        (lambda: te.all(A8[0] > 0.0, I8[0]), DTypeError, "needs a bool, not int32"),
        (lambda: te.select(A8[0] > 0.0, A8[0], "x"), ExpressionError, "'x'"),
        (lambda: te.exp(I8[0]), DTypeError, "te.exp needs a float, not int32"),
        (lambda: te.sqrt(2), DTypeError, "te.sqrt needs a float"),
        (lambda: te.exp(None), ExpressionError, "None"),
        (lambda: te.power(I8[0], I8[1]), DTypeError, "power. needs floats"),
        (lambda: te.popcount(A8[0]), DTypeError, "needs an integer"),
        (lambda: te.fma(I8[0], I8[1], I8[2]), DTypeError, "te.fma needs floats"),
        (lambda: te.abs(A8[0] > 0.0), DTypeError, "te.abs of bool"),
        (lambda: te.call_extern("two words", A8[0]), ExpressionError, "two words"),
        (lambda: te.access_ptr(A8, "x"), ExpressionError, "'r', 'w' or 'rw'"),
        (lambda: te.access_ptr(3), ExpressionError, "takes tensors, not 3"),
        (lambda: te.elementwise(lambda x: x, 3), ExpressionError, "takes tensors, not 3"),
        (lambda: te.decl_tensor_intrin(A8.op, lambda i, o: None), ExpressionError, "described by a te.compute"),
        # schedules
        (lambda: te.create_schedule(A8.op), ExpressionError, "nothing to compute"),
        (lambda: te.create_schedule(3), ExpressionError, "takes operations or tensors, not 3"),
        (lambda: te.create_schedule([]), ExpressionError, "at least one"),
    ],
)  # fmt: skip
def test_bad_tensor_expressions(make, kind, message):
    with pytest.raises(kind, match=message) as caught:
        make()
    assert isinstance(caught.value, WeftError)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: te.compute((8,), lambda i: A8[i + 1], name="B"), r"B reads A8\[i \+ 1\].*8 elements: at i = 7.*is 8"),
        (lambda: te.compute((9,), lambda i: A8[i], name="B"), "at i = 8 the index is 8"),
        (lambda: te.compute((8,), lambda i: A8[i - 1], name="B"), "at i = 0 the index is -1"),
        (lambda: te.compute((8,), lambda i: A8[9], name="B"), "the index is 9"),
        (lambda: te.compute((8,), lambda i: te.sum(A8[i + K], axis=K), name="B"), "i = .*K = "),
        (lambda: te.compute((8,), lambda i: te.if_then_else(i < 9, A8[i + 1], 0.0), name="B"), "at i = 7"),
    ],
)
def test_reads_outside_a_tensor(make, message):
    with pytest.raises(ExpressionError, match=message):
        te.create_schedule(make().op)


def test_reads_outside_a_tensor_of_symbolic_size():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    with pytest.raises(ExpressionError, match=r"A\[i \+ 1\]"):
        te.create_schedule(te.compute((n,), lambda i: A[i + 1], name="B").op)
    for fine in (
        te.compute((n - 1,), lambda i: A[i + 1]),
        te.compute((n // 4,), lambda i: A[i * 4 + 3]),
        te.compute((n * 2,), lambda i: A[i // 2]),
        te.compute((n,), lambda i: A[n - 1 - i]),
        te.compute((n,), lambda i: te.if_then_else(i + 1 < n, A[i + 1], 0.0)),
        te.compute((te.var("m"),), lambda i: A[i]),
    ):
        te.create_schedule(fine.op)


def test_an_axis_that_is_not_reduced():
    B = te.compute((8,), lambda i: A8[K] + A8[i], name="B")
    with pytest.raises(WeftError, match="K"):
        weft.build(te.create_schedule(B.op), [A8, B])


def test_a_tensor_larger_than_memory():
    n = 1 << 39
    A = te.placeholder((n, n), "float64", name="A")
    B = te.compute((4,), lambda i: te.cast(A[i, 0], "float32"), name="B")
    with pytest.raises(WeftError, match="A"):
        weft.build(te.create_schedule(B.op), [A, B])(array(4), array(4))


def test_an_intermediate_larger_than_memory():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    huge = te.compute((n, 1 << 38), lambda i, j: A[i], name="huge")
    k = te.reduce_axis(1 << 38)
    B = te.compute((n,), lambda i: te.sum(huge[i, k], axis=k), name="B")
    f = weft.build(te.create_schedule(B.op), [A, B])
    with pytest.raises(WeftError, match="memory"):
        f(array(100), array(100))


@pytest.mark.parametrize("terms", [1000, 5000])
def test_an_expression_that_nests_too_deep(terms):
    def body(i):
        value = A8[i]
        for _ in range(terms):
            value = value * 0.5 + A8[i]
        return value

    B = te.compute((8,), body, name="B")
    with pytest.raises(ExpressionError, match="nests too deep"):
        weft.build(te.create_schedule(B.op), [A8, B])


def test_errors_of_operations_name_their_line():
    B = te.compute((8,), lambda i: A8[i + 1], name="B")
    with pytest.raises(ExpressionError, match=r"test_bad_input\.py:\d+"):
        te.create_schedule(B.op)


# --------------------------------------------------------------------------------------------------- illegal schedules


def product():
    A, B = te.placeholder((16, 16), name="A"), te.placeholder((16, 16), name="B")
    k = te.reduce_axis(16, name="k")
    C = te.compute((16, 16), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((16, 16), lambda i, j: C[i, j] + 1.0, name="D")
    return te.create_schedule(D.op), A, B, C, D, k


@pytest.mark.parametrize(
    "act, primitive, reason",
    [
        (lambda s, A, B, C, D, k: s[C].split(k, factor=0), "split", "at least 1"),
        (lambda s, A, B, C, D, k: s[C].split(k), "split", "factor"),
        (lambda s, A, B, C, D, k: s[C].split(k, factor=2.5), "split", "whole number"),
        (lambda s, A, B, C, D, k: s[C].split("nowhere", factor=2), "split", "nowhere"),
        (lambda s, A, B, C, D, k: s[D].split(k, factor=2), "split", "k is not an axis of D"),
        (lambda s, A, B, C, D, k: s[C].fuse(*s[C].op.axis[::-1]), "fuse", "not directly inside"),
        (lambda s, A, B, C, D, k: s[C].reorder(s[C].op.axis[0], s[C].op.axis[0]), "reorder", "twice"),
        (lambda s, A, B, C, D, k: s[C].reorder(s[C].op.axis[0], s[D].op.axis[0]), "reorder", "same loop nest"),
        (lambda s, A, B, C, D, k: s[C].parallel(k), "parallel", "reduces along it"),
        (lambda s, A, B, C, D, k: s[C].vectorize(k), "vectorize", "reduces along it"),
        (lambda s, A, B, C, D, k: s[C].bind(s[C].op.axis[0], "threadIdx.q"), "bind", "unknown thread axis"),
        (lambda s, A, B, C, D, k: s[C].bind(s[C].op.axis[0], te.thread_axis((0, 3), "threadIdx.x")), "bind", "16.*3"),
        (lambda s, A, B, C, D, k: s[C].compute_inline(), "compute_inline", "reduction"),
        (lambda s, A, B, C, D, k: s[D].compute_inline(), "compute_inline", "output"),
        (lambda s, A, B, C, D, k: s[D].compute_at(s[C], s[C].op.axis[0]), "compute_at", "D"),
        (lambda s, A, B, C, D, k: s[A].split("x", factor=2), "schedule", "A"),
        (lambda s, A, B, C, D, k: s.cache_read(A, "shared", [D]), "cache_read", "does not read A"),
        (lambda s, A, B, C, D, k: s.cache_read(A, "no scope!"), "cache_read", "scope"),
        (lambda s, A, B, C, D, k: s.cache_write(A, "local"), "", "A"),
        (lambda s, A, B, C, D, k: s[D].set_scope("local"), "set_scope", "parameter"),
        (lambda s, A, B, C, D, k: s.rfactor(C, s[C].op.axis[0]), "rfactor", "reduc"),
        (lambda s, A, B, C, D, k: s.transform_layout(C, lambda i, j: (i, 0)), "transform_layout", "same place"),
        (lambda s, A, B, C, D, k: s[C].tensorize(k, "nothing"), "tensorize", "no tensor intrinsic"),
        (lambda s, A, B, C, D, k: s["nothing"], "", "nothing"),
        (lambda s, A, B, C, D, k: s[3], "schedule", "name a tensor"),
        (lambda s, A, B, C, D, k: s.apply("explode", loop="i"), "explode", "no such primitive"),
    ],
)  # fmt: skip
def test_illegal_schedules(act, primitive, reason):
    s, *rest = product()
    before = str(s)
    with pytest.raises(ScheduleError, match=reason) as caught:
        act(s, *rest)
    assert caught.value.primitive == primitive or not primitive
    assert str(s) == before  # nothing half done


# ------------------------------------------------------------------------------------------------------ sizes 0 and 1


@pytest.mark.parametrize("size", [0, 1])
def test_sizes_zero_and_one_with_a_schedule(size):
    A, B = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    k = te.reduce_axis(size, name="k")
    C = te.compute((size, size), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = te.create_schedule(C.op)
    io, jo, ii, ji = s[C].tile(*s[C].op.axis, 8, 8)
    s[C].vectorize(ji)
    s[C].parallel(io)
    a, b, c = array(size, size) * 3, array(size, size) * 2, array(size, size)
    weft.build(s, [A, B, C])(a, b, c)
    np.testing.assert_array_equal(c, a @ b)


def test_an_empty_torch_tensor():
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i] + 1.0, name="B")
    weft.build(te.create_schedule(B.op), [A, B])(torch.empty(0), torch.empty(0))


# ------------------------------------------------------------------------------------- NaN and infinities, vectorized


def test_special_values_flow_through_vectors():
    n = 64
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1.5], "float32")
    a, b = np.resize(special, n), np.resize(np.repeat(special, 8), n)
    A, B = te.placeholder((n,), name="A"), te.placeholder((n,), name="B")
    makes = {
        "top": (te.maximum, np.maximum), "low": (te.minimum, np.minimum), "sum": (lambda x, y: x + y, np.add),
        "product": (lambda x, y: x * y, np.multiply), "quotient": (lambda x, y: x / y, np.divide),
        "exp": (lambda x, y: te.exp(x), lambda x, y: np.exp(x)), "less": (lambda x, y: x < y, np.less),
        "differ": (te.not_equal, np.not_equal), "sqrt": (lambda x, y: te.sqrt(x), lambda x, y: np.sqrt(x)),
        "int8": (lambda x, y: x.astype("int8"), None),
        "half": (lambda x, y: x.astype("float16"), lambda x, y: x.astype("float16")),
        "brain": (lambda x, y: x.astype("bfloat16"), lambda x, y: x.astype(ml_dtypes.bfloat16)),
    }  # fmt: skip
    outputs = [te.compute((n,), lambda i, f=f: f(A[i], B[i]), name=name) for name, (f, _) in makes.items()]
    s = te.create_schedule([t.op for t in outputs])
    for t in outputs:
        _, inner = s[t].split(s[t].op.axis[0], factor=16)
        s[t].vectorize(inner)
    results = [np.empty(n, t.dtype.numpy) for t in outputs]
    weft.build(s, [A, B, *outputs])(a, b, *results)
    with np.errstate(all="ignore"):
        for (name, (_, reference)), got in zip(makes.items(), results):
            if reference is None:
                want = np.clip(np.nan_to_num(np.trunc(a), nan=0), -128, 127).astype("int8")
            else:
                want = reference(a, b)
            if got.dtype.kind == "b" or got.dtype == np.int8:
                np.testing.assert_array_equal(got, want, err_msg=name)
            else:
                got, want = got.astype("float64"), want.astype("float64")
                np.testing.assert_allclose(got, want, rtol=1e-6, equal_nan=True, err_msg=name)
