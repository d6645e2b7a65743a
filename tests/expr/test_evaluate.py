"""The evaluator: wrapping, saturation, laziness, vectors, intrinsics."""

import math

import numpy as np
import pytest

from weft.core.dtypes import dtype
from weft.core.errors import ExpressionError
from weft.expr.evaluate import evaluate
from weft.expr.nodes import (
    Address,
    And,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Div,
    FloorDiv,
    Load,
    Max,
    Min,
    Or,
    Ramp,
    Select,
    TruncDiv,
    TruncMod,
    Var,
    const,
    index_expr,
)  # fmt: skip

F16, F32, I8, I32, U8, BF16 = (dtype(name) for name in ("float16", "float32", "int8", "int32", "uint8", "bfloat16"))
i, j = Var("i"), Var("j")
A = Buffer("A", F32, [8])


def test_index_arithmetic_is_plain_integers():
    value = evaluate((i * 4 + j) // 3 % 5, {i: 7, j: -2})
    assert value == (7 * 4 - 2) // 3 % 5 and type(value) is int
    assert evaluate(TruncDiv(i, index_expr(2)), {i: -7}) == -3
    assert evaluate(TruncMod(i, index_expr(2)), {i: -7}) == -1
    assert evaluate(i < j, {i: 1, j: 2}) is True


def test_integers_wrap():
    x = Var("x", I8)
    assert evaluate(x + x, {x: 100}) == np.int8(-56)
    assert isinstance(evaluate(x, {x: 1}), np.int8)
    assert evaluate(FloorDiv(x, const(-1, I8)), {x: -128}) == -128
    assert evaluate(Cast(U8, x), {x: -1}) == 255
    assert evaluate(Cast(dtype("int4"), x), {x: 9}) == -7


@pytest.mark.parametrize(
    ("number", "expected"), [(3.9, 3), (-3.9, -3), (1e9, 127), (-1e9, -128), (math.nan, 0), (math.inf, 127)]
)
def test_float_to_integer_saturates(number, expected):
    assert evaluate(Cast(I8, Const(number, F32)), {}) == expected


def test_floats():
    x = Var("x", F32)
    assert evaluate(Div(x, const(0.0, F32)), {x: 1.0}) == np.inf
    assert math.isnan(evaluate(Min(x, const(1.0, F32)), {x: math.nan}))
    assert math.isnan(evaluate(Max(const(1.0, F32), x), {x: math.nan}))
    assert evaluate(x + const(1.0, F32), {x: 2.0**24}).dtype == np.float32
    assert evaluate(Cast(F16, x), {x: 1e6}) == np.inf
    assert float(evaluate(Cast(BF16, x), {x: 1.01})) == 1.0078125


def test_choices_are_lazy():
    def loads(load):
        index = load.indices[0].value
        assert 0 <= index < 8, "a load that should not happen"
        return index * 1.5

    guarded = Select(And(i < 8, i >= 0), Load(A, (i,)), const(-1.0, F32))
    assert evaluate(guarded, {i: 5}, loads) == 7.5
    assert evaluate(guarded, {i: 9}, loads) == -1.0
    late = Load(A, (i,)) < const(0.0, F32)
    assert evaluate(And(i < 8, late), {i: 9}, loads) is False
    assert evaluate(Or(i >= 8, late), {i: 9}, loads) is True


def test_vectors_go_lane_by_lane():
    vector = Ramp(i, index_expr(2), 4)
    np.testing.assert_array_equal(evaluate(vector * 3 + Broadcast(j, 4), {i: 1, j: 5}), [8, 14, 20, 26])
    loaded = evaluate(Load(A, (vector,)), {i: 1}, lambda load: load.indices[0].value)
    np.testing.assert_array_equal(loaded, np.array([1, 3, 5, 7], np.float32))
    picked = Select(vector < Broadcast(index_expr(4), 4), Load(A, (vector,)), Broadcast(const(0.0, F32), 4))
    np.testing.assert_array_equal(evaluate(picked, {i: 1}, lambda load: load.indices[0].value), [1, 3, 0, 0])


def test_intrinsics():
    x = Var("x", F32)
    assert evaluate(Call("exp", (x,), F32), {x: 1.0}) == np.exp(np.float32(1.0))
    assert evaluate(Call("reinterpret", (x,), I32), {x: 1.0}) == 0x3F800000
    assert evaluate(Call("shift_left", (i, index_expr(3)), i.dtype), {i: 5}) == 40
    assert evaluate(Call("isnan", (x,), dtype("bool")), {x: math.nan}) is True
    assert evaluate(Call("popcount", (i,), i.dtype), {i: 255}) == 8


def test_errors_say_what_is_missing():
    with pytest.raises(ExpressionError, match="variable i has no value"):
        evaluate(i + 1, {})
    with pytest.raises(ExpressionError, match="loads from A"):
        evaluate(Load(A, (i,)), {i: 0})
    with pytest.raises(ExpressionError, match="division by zero"):
        evaluate(FloorDiv(i, j), {i: 1, j: 0})
    with pytest.raises(ExpressionError, match="has effects"):
        evaluate(Call("barrier", (), I32), {})
    with pytest.raises(ExpressionError, match="Address"):
        evaluate(Address(A, (i,)), {i: 0})
