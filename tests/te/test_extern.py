"""te.extern: statements and C calls written by hand."""

import numpy as np
import pytest

import weft
from tests.te.support import check, numbers
from weft import te
from weft.core.errors import WeftError
from weft.expr.nodes import Load, Var, index_expr
from weft.loop.interpreter import interpret
from weft.loop.ir import For, Let, Store, seq


def reverse(inputs, outputs):
    i = Var("i")
    source, target = inputs[0], outputs[0]
    return For(i, source.shape[0], Store(target, [i], Load(source, [source.shape[0] - 1 - i])))


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_statement(size):
    A = te.placeholder((size,), name="A")
    B = te.extern((size,), [A], reverse, name="B")
    a = numbers(size)
    check(B, {A: a}, a[::-1])


def test_between_computes():
    A = te.placeholder((7,), name="A")
    D = te.compute((7,), lambda i: A[i] * 2.0, name="D")
    B = te.extern((7,), [D], reverse, name="B")
    C = te.compute((7,), lambda i: B[i] + 1.0, name="C")
    a = numbers(7)
    check(C, {A: a}, a[::-1] * 2 + 1)


def test_several_outputs_and_dtypes():
    """A running sum and how many values were positive, in one pass."""

    def body(inputs, outputs):
        (source,), (total, count) = inputs, outputs
        i, value = Var("i"), Var("value", source.dtype)
        zero = index_expr(0)
        step = seq(
            Store(total, [zero], total[0] + value),
            Store(count, [zero], count[0] + te.select(value > 0.0, te.cast(1, "int32"), te.cast(0, "int32"))),
        )
        start = [Store(total, [zero], te.cast(0.0, "float32")), Store(count, [zero], te.cast(0, "int32"))]
        return [*start, For(i, source.shape[0], Let(value, source[i], step))]

    A = te.placeholder((9,), name="A")
    total, count = te.extern([(1,), (1,)], [A], body, name="E", dtype=["float32", "int32"])
    assert (total.name, count.name) == ("E_v0", "E_v1")
    a = numbers(9)
    check([total, count], {A: a}, [a.sum(keepdims=True), np.array([(a > 0).sum()], "int32")])


def test_a_c_function_of_values():
    A = te.placeholder((5,), "float64", name="A")
    B = te.compute((5,), lambda i: te.call_extern("cbrt", A[i], dtype="float64"), name="B")
    te.register_effect("extern:cbrt", np.cbrt)
    a = numbers(5, dtype="float64")
    check(B, {A: a}, np.cbrt(a))


def test_a_c_function_of_addresses():
    """memcpy(target, source, bytes)."""

    def copy(target, source, count):
        target.view((int(count) // 4,))[...] = source.view((int(count) // 4,))

    te.register_effect("extern:memcpy", copy)
    A = te.placeholder((6,), name="A")
    B = te.extern(
        (6,),
        [A],
        lambda ins, outs: te.call_extern(
            "memcpy", te.access_ptr(outs[0], "w"), te.access_ptr(ins[0], "r"), 24, dtype="handle"
        ),
        name="B",
    )
    a = numbers(6)
    check(B, {A: a}, a)


def test_an_offset_pointer():
    te.register_effect("extern:fabsf", abs)
    A = te.placeholder((6,), name="A")
    B = te.compute((6,), lambda i: te.call_extern("fabsf", A[i], dtype="float32"), name="B")
    a = numbers(6)
    check(B, {A: a}, np.abs(a))


def test_a_call_without_a_meaning_says_so():
    A = te.placeholder((6,), name="A")
    B = te.compute((6,), lambda i: te.call_extern("frobnicate", A[i], dtype="float32"), name="B")
    s = te.create_schedule(B.op)
    with pytest.raises(WeftError, match="'extern:frobnicate'.*register"):
        interpret(s.func, numbers(6), numbers(6))
    with pytest.raises(WeftError, match="the C function 'frobnicate', which is not in this process"):
        weft.build(s, [A, B])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda A: te.extern((6,), [A], lambda i, o: None), "expected a statement or a call, not None"),
        (lambda A: te.extern((6,), [A], lambda i, o: []), "gives no statement"),
        (lambda A: te.extern([(6,), (2,)], [A], reverse, dtype=["int8"]), "2 shapes and 1 dtypes"),
        (lambda A: te.extern((6,), [1], reverse), "takes tensors"),
        (lambda A: te.extern((-6,), [A], reverse), "negative"),
        (lambda A: te.extern((6,), [A], 3), "takes a function"),
    ],
)
def test_bad_externs(make, message):
    with pytest.raises(WeftError, match=message):
        make(te.placeholder((6,), name="A"))


def test_a_statement_may_touch_only_what_it_was_given():
    A, Z = te.placeholder((6,), name="A"), te.placeholder((6,), name="Z")
    B = te.extern((6,), [A], lambda i, o: Store(Z, [index_expr(0)], A[0]), name="B")
    with pytest.raises(WeftError, match="Z"):
        weft.build(te.create_schedule(B.op), [A, B])
