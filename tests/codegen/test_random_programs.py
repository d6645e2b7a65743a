"""Random flat programs: compiled code gives what the interpreter gives, bit for bit (without fused multiply-add)."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.support import Compiled, buffer, ramp
from tests.hosts import lesser
from weft.core.dtypes import BOOL, FLOAT32, INT32, INT64, dtype
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    And,
    Broadcast,
    Call,
    Cast,
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
from weft.loop.interpreter import interpret
from weft.loop.ir import Allocate, For, Func, If, Let, Store, seq
from weft.targets.registry import find_target

TARGETS = ["native", *lesser(x86=("-avx512f", "-avx"))]
COUNT = 32
A, B = buffer("A", "int32", COUNT), buffer("B", "float32", COUNT)
OUT_INT, OUT_FLOAT, OUT_BOOL = buffer("I", "int32", COUNT), buffer("F", "float32", COUNT), buffer("L", "bool", COUNT)
i, n = Var("i"), Var("n")


def index_of(draw, lanes):
    """An index into 32 elements, in many forms."""
    kind = draw(st.integers(0, 4))
    if lanes == 1:
        return [
            i,
            FloorMod(i * 7 + n, index_expr(COUNT)),
            index_expr(3),
            index_expr(COUNT - 1) - i,
            FloorDiv(i, index_expr(3)),
        ][kind]
    base = i * lanes
    gathered = FloorMod(
        Cast(INT64.with_lanes(lanes), Load(A, [Ramp(base, index_expr(1), lanes)])),
        const(COUNT, INT64.with_lanes(lanes)),
    )
    spread = Ramp(FloorMod(i, index_expr(2)), index_expr((COUNT - 2) // lanes), lanes)
    return [
        Ramp(base, index_expr(1), lanes),
        gathered,
        spread,
        Ramp(index_expr(COUNT - 1) - base, index_expr(-1), lanes),
        Broadcast(i, lanes),
    ][kind]


def number(draw, kind, lanes, depth):
    wide = kind.with_lanes(lanes)
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        choice = draw(st.integers(0, 3))
        if choice == 0:
            return const(draw(st.integers(-40, 40)), wide)
        if choice == 1 and kind is INT32:
            return Cast(wide, i if lanes == 1 else Ramp(i * lanes, index_expr(1), lanes))
        return Load(A if kind is INT32 else B, [index_of(draw, lanes)])
    choice = draw(st.integers(0, 6 if kind is INT32 else 7))
    sub = lambda: number(draw, kind, lanes, depth - 1)
    if choice <= 2:
        return draw(st.sampled_from([Add, Sub, Mul, Min, Max]))(sub(), sub())
    if choice == 3:
        return Select(truth(draw, lanes, depth - 1), sub(), sub())
    if kind is INT32:
        if choice == 4:
            divisor = draw(st.sampled_from([1, 2, 3, 8, -1, -3, -8, 100]))
            return draw(st.sampled_from([FloorDiv, FloorMod, TruncDiv, TruncMod]))(sub(), const(divisor, wide))
        if choice == 5:
            return Cast(wide, number(draw, FLOAT32, lanes, depth - 1))
        return Call(draw(st.sampled_from(["bit_and", "bit_or", "bit_xor"])), (sub(), sub()), wide)
    if choice == 4:
        return Cast(wide, number(draw, INT32, lanes, depth - 1))
    if choice == 5:
        return Call(draw(st.sampled_from(["floor", "ceil", "trunc", "round", "abs", "neg"])), (sub(),), wide)
    half = dtype(draw(st.sampled_from(["float16", "bfloat16", "float64"]))).with_lanes(lanes)
    return Cast(wide, Cast(half, sub()))


def truth(draw, lanes, depth):
    choice = draw(st.integers(0, 5 if depth else 2))
    if choice == 3:
        return draw(st.sampled_from([And, Or]))(truth(draw, lanes, depth - 1), truth(draw, lanes, depth - 1))
    if choice == 4:
        return Not(truth(draw, lanes, depth - 1))
    if choice == 5 and lanes > 1:
        return LT(Ramp(i * lanes, index_expr(1), lanes), Broadcast(n, lanes))
    kind = draw(st.sampled_from([INT32, FLOAT32]))
    depth = max(depth - 1, 0)
    compare = draw(st.sampled_from([EQ, NE, LT, LE]))
    return compare(number(draw, kind, lanes, depth), number(draw, kind, lanes, depth))


@st.composite
def programs(draw):
    lanes = draw(st.sampled_from([1, 4, 8, 16]))
    here = i if lanes == 1 else ramp(i * lanes, 1, lanes)
    stores = []
    for out, kind in ((OUT_INT, INT32), (OUT_FLOAT, FLOAT32), (OUT_BOOL, BOOL)):
        value = truth(draw, lanes, 3) if kind is BOOL else number(draw, kind, lanes, 3)
        predicate = truth(draw, lanes, 1) if draw(st.booleans()) else None
        stores.append(Store(out, [here], value, predicate))
    body = seq(*stores)
    if draw(st.booleans()):
        body = If(LT(i, n), body, stores[0])
    if draw(st.booleans()):
        temporary = buffer("T", "float32", draw(st.sampled_from([COUNT, 40 * COUNT])))
        copy = Store(temporary, [here], Load(B, [here]))
        body = Allocate(
            temporary, seq(copy, body, Store(OUT_FLOAT, [here], Load(temporary, [here]), truth(draw, lanes, 1)))
        )
    kind = draw(st.sampled_from(["serial", "parallel", "unrolled"]))
    return Func("random", [A, B, OUT_INT, OUT_FLOAT, OUT_BOOL, n], For(i, COUNT // lanes, body, kind))


@given(programs(), st.integers(0, 40), st.sampled_from(TARGETS))
def test_compiled_code_agrees_with_the_interpreter(func, size, text):
    rng = np.random.default_rng(size)
    a = rng.integers(-50, 50, COUNT).astype(np.int32)
    b = rng.choice(np.float32([0.0, -0.0, 1.5, -2.25, 3.0, 1e9, -7.5, np.inf, np.nan, 0.1]), COUNT)

    def outputs():
        return [np.zeros(COUNT, np.int32), np.zeros(COUNT, np.float32), np.zeros(COUNT, bool)]

    expected, got = outputs(), outputs()
    with np.errstate(all="ignore"):
        interpret(func, a.copy(), b.copy(), *expected, size)
    target = replace(find_target(text), has_fma=False)
    assert Compiled(func, target)(a.copy(), b.copy(), *got, size, threads=2) == 0
    for mine, theirs in zip(got, expected):
        np.testing.assert_array_equal(mine, theirs)


def test_let_of_random_values_is_evaluated_once():
    v = Var("v", FLOAT32)
    body = Let(v, Load(B, [i]), seq(Store(B, [i], Add(v, v)), Store(OUT_FLOAT, [i], v)))
    func = Func("named", [B, OUT_FLOAT], For(i, COUNT, body))
    b, out = np.arange(COUNT, dtype=np.float32), np.zeros(COUNT, np.float32)
    Compiled(func)(b, out)
    np.testing.assert_array_equal(out, np.arange(COUNT))
    np.testing.assert_array_equal(b, 2 * np.arange(COUNT))
