"""Structural equality, hash and unification."""

from weft.core.dtypes import dtype
from weft.expr.nodes import Address, Broadcast, Buffer, Call, Cast, Const, Load, Ramp, Select, Var, const, index_expr
from weft.expr.structural import structural_equal, structural_key

F32 = dtype("float32")
i, j, k = Var("i"), Var("j"), Var("k")
A, B = Buffer("A", F32, [8]), Buffer("B", F32, [8])


def build(u, v, buffer):
    load = Load(buffer, (u * 4 + v,))
    picked = Select(u < v, load, Cast(F32, v))
    return Call("fma", (picked, load, const(1.5, F32)), F32)


def test_equal_by_structure():
    assert structural_equal(build(i, j, A), build(i, j, A))
    assert structural_key(build(i, j, A)) == structural_key(build(i, j, A))
    for other in (build(j, i, A), build(i, j, B), build(i, i, A), i + j):
        assert not structural_equal(build(i, j, A), other)
    assert structural_equal(Ramp(i, index_expr(1), 4), Ramp(i, index_expr(1), 4))
    assert not structural_equal(Ramp(i, index_expr(1), 4), Broadcast(i, 4))
    assert not structural_equal(Address(A, (i,), "r"), Address(A, (i,), "w"))


def test_mappings():
    assert structural_equal(build(i, j, A), build(k, j, B), {i: k}, {A: B})
    assert not structural_equal(build(i, j, A), build(k, j, B), {i: k})


def test_unification_is_one_to_one():
    mapping, buffers = {}, {}
    assert structural_equal(build(i, j, A), build(j, k, B), mapping, buffers, map_free=True)
    assert mapping == {i: j, j: k} and buffers == {A: B}
    assert not structural_equal(i + j, k + k, {}, map_free=True)
    assert not structural_equal(i + i, j + k, {}, map_free=True)
    assert not structural_equal(i, Var("f", F32), {}, map_free=True)
    other = Buffer("C", dtype("int32"), [8])
    assert not structural_equal(Load(A, (i,)), Load(other, (i,)), {}, {}, map_free=True)


def test_literals():
    zero, minus, nan = Const(0.0, F32), Const(-0.0, F32), Const(float("nan"), F32)
    assert not structural_equal(zero, minus)
    assert structural_equal(nan, Const(float("nan"), F32))
    assert structural_key(nan) == structural_key(Const(float("nan"), F32))
    assert not structural_equal(const(1, "int32"), const(1, "int64"))
