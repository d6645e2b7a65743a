"""Expressions as text."""

import math

import pytest

from weft.core.dtypes import BOOL, FLOAT32, INDEX, INT32, dtype
from weft.expr.nodes import (
    EQ,
    LT,
    Add,
    Address,
    And,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Div,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    const,
    index_expr,
)
from weft.expr.text import call_dtype, format_expr, is_dtype_name, is_identifier, is_reserved

i, j, k, n = map(Var, "ijkn")
x, p, q = Var("x", FLOAT32), Var("p", BOOL), Var("q", BOOL)
A, B = Buffer("A", FLOAT32, [8, 8]), Buffer("B", FLOAT32, [8, 8])


@pytest.mark.parametrize(
    "expression, text",
    [
        (i * 32 + j, "i*32 + j"),
        (Load(A, [k, i]) * Load(B, [k, j]), "A[k, i] * B[k, j]"),
        (And(i < n, j < 4), "i < n and j < 4"),
        (i > n, "n < i"),
        (Or(And(p, q), p), "p and q or p"),
        (And(p, Or(q, p)), "p and (q or p)"),
        (And(And(p, q), p), "p and q and p"),
        (And(p, And(q, p)), "p and (q and p)"),
        (Not(p), "not p"),
        (Not(Not(p)), "not (not p)"),
        (Not(i < n), "not (i < n)"),
        (And(Not(p), q), "not p and q"),
        (EQ(Not(p), q), "(not p) == q"),
        (EQ(LT(i, n), p), "(i < n) == p"),
        (Sub(i, Sub(j, k)), "i - (j - k)"),
        (Sub(Sub(i, j), k), "i - j - k"),
        (Add(i, Add(j, k)), "i + (j + k)"),
        (Mul(Add(i, j), k), "(i + j) * k"),
        (Mul(i, Mul(j, k)), "i * (j*k)"),
        (FloorMod(FloorDiv(i, j), k), "i // j % k"),
        (FloorDiv(i, FloorMod(j, k)), "i // (j%k)"),
        (Add(FloorDiv(i, j), FloorMod(j, k)), "i//j + j%k"),
        (Div(x, x), "x / x"),
        (TruncDiv(i, j), "truncdiv(i, j)"),
        (TruncMod(i * 2, j), "truncmod(i*2, j)"),
        (Min(i, Max(j, k)), "min(i, max(j, k))"),
        (Select(p, i, j), "select(p, i, j)"),
        (Cast(dtype("float16"), x), "float16(x)"),
        (Cast(dtype("float16x4"), Broadcast(x, 4)), "float16x4(broadcast(x, 4))"),
        (Call("exp", [x], FLOAT32), "exp(x)"),
        (Call("exp", [x], INDEX), "exp(x) -> int64"),
        (Call("isnan", [x], BOOL), "isnan(x)"),
        (Call("reinterpret", [x], INT32), "reinterpret(x) -> int32"),
        (Call("mma", [], INT32), "mma()"),
        (Call("mma", [], FLOAT32), "mma() -> float32"),
        (Call("two words", [x], INT32), 'call("two words", x)'),
        (Call("min", [x], INT32), 'call("min", x)'),
        (Ramp(i, index_expr(1), 16), "ramp(i, 1, 16)"),
        (Address(A, [i, j], "r"), 'address(A[i, j], "r")'),
        (Address(A, [i, j]), "address(A[i, j])"),
        (Add(i, Const(-3, INDEX)), "i + -3"),
        (Load(Buffer("s", FLOAT32, []), []), "s[]"),
    ],
)
def test_shape_of_the_text(expression, text):
    assert format_expr(expression) == text
    assert repr(expression) == text


@pytest.mark.parametrize(
    "value, kind, text",
    [
        (3, "int64", "3"), (-3, "int64", "-3"), (3, "int32", "3i32"), (255, "uint8", "255u8"), (-1, "int1", "-1i1"),
        (2**64 - 1, "uint64", "18446744073709551615u64"), (True, "bool", "true"), (False, "bool", "false"),
        (0.0, "float32", "0.0"), (-0.0, "float32", "-0.0"), (1 / 3, "float64", "0.3333333333333333f64"),
        (1.5, "float16", "1.5f16"), (2.0, "bfloat16", "2.0bf16"), (math.inf, "float32", "inf"),
        (-math.inf, "float16", "-inf_f16"), (math.nan, "float32", "nan"), (math.nan, "bfloat16", "nan_bf16"),
        (7, "handle", "7h"),
    ],
)  # fmt: skip
def test_literals(value, kind, text):
    assert format_expr(const(value, kind)) == text


def test_names_are_asked_for_every_variable_and_buffer():
    assert format_expr(Load(A, [i, n]) + x, lambda thing: f"<{thing.name}>") == "<A>[<i>, <n>] + <x>"


def test_a_long_sum_does_not_use_up_the_stack():
    total = i
    for _ in range(5000):
        total = Add(total, j)
    assert format_expr(total) == "i" + " + j" * 5000


def test_words():
    assert is_identifier("threadIdx.x") and is_identifier("_a1")
    assert not is_identifier("a b") and not is_identifier("1a")
    assert not is_identifier("é") and not is_identifier("") and not is_identifier("a.") and not is_identifier("a\n")
    assert is_reserved("for") and is_reserved("float32") and is_reserved("inf_f16") and not is_reserved("yo")
    assert is_dtype_name("float32x4") and not is_dtype_name("int7") and not is_dtype_name("float32x9999")
    assert call_dtype("isnan", [Broadcast(x, 4)]) is dtype("boolx4")
