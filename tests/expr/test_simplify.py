"""What simplify makes of expressions, case by case."""

import pytest

from tests.work import calls_of
from weft.core.dtypes import dtype
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    FALSE,
    TRUE,
    Add,
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
    Var,
    const,
    equal,
    index_expr,
    logical_and,
    logical_not,
    maximum,
    minimum,
    not_equal,
    select,
    truncdiv,
    truncmod,
)  # fmt: skip
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal

n, m, x, a, b = (Var(name) for name in ("n", "m", "x", "a", "b"))
i, j, k, yo, yi, io, ii = (Var(name) for name in ("i", "j", "k", "yo", "yi", "io", "ii"))
RANGES = Ranges().with_size(n).with_size(m)
for _var, _extent in ((yo, 32), (yi, 32), (i, 16), (j, 8), (k, 4), (ii, 32)):
    RANGES = RANGES.with_loop(_var, _extent)
F32, I32, U8 = dtype("float32"), dtype("int32"), dtype("uint8")
one = index_expr(1)
A = Buffer("A", F32, [64, 64])
p, q = Var("p", I32), Var("q", I32)
f, g = Var("f", F32), Var("g", F32)

INDEX_CASES = [
    ((yo * 32 + yi) // 32, yo),
    ((yo * 32 + yi) % 32, yi),
    ((a * 64 + b) // 32, a * 2 + b // 32),
    ((a * 64 + b) % 32, b % 32),
    ((x // 4) * 4 + x % 4, x),
    (x % 4 + x // 4 * 4, x),
    ((x // 4) // 8, x // 32),
    ((x % 32) % 8, x % 8),
    ((x % 32) // 8, x // 8 % 4),
    (x // 8 % 4 * 8 + x % 8, x % 32),
    (((x // 4) // 8) * 32 + (x // 4) % 8 * 4 + x % 4, x),
    ((a * 64 + x) % 1824 // 38 * 38 + (a * 64 + x) % 38, (a * 64 + x) % 1824),
    ((a * 32 + ii) % 1824 // 38 * 38 + (a * 32 + ii) % 38, a % 57 * 32 + ii),
    ((a * 32 + ii) // 38 % 48 * 38 + (a * 32 + ii) % 38, a % 57 * 32 + ii),
    (a // 57 * 1824 + (a * 32 + ii) // 38 % 48 * 38 + (a * 32 + ii) % 38, a * 32 + ii),
    ((a * 40 + x) // 38 % 48 * 76 + (a * 2 + x) % 38 * 2 + b, b + (a * 40 + x) % 1824 * 2),
    ((x + 1) // 8 * 8 + x % 8, (x + 1) // 8 * 8 + x % 8),
    ((x // 8 + a) % 4 * 8 + x % 8, (x + a * 8) % 32),
    (((i * 8 + j) * 4 + k) // 32, i),
    (((i * 8 + j) * 4 + k) % 32, j * 4 + k),
    (((i * 8 + j) * 4 + k) // 4 % 8, j),
    ((a * 32 + j * 4 + k) // 8, a * 4 + j // 2),
    ((x * 4) // 8, x // 2),
    ((x * 4) % 32, x % 8 * 4),
    ((x * 4 + 3) // 8, x // 2),
    ((x + 8) // 4, x // 4 + 2),
    ((x + 32) % 8, x % 8),
    (x // -4, Sub(index_expr(0), x) // 4),
    (x - x, index_expr(0)),
    (x * 3 - x - x, x),
    (Add(Add(x, one), one), x + 2),
    (Sub(index_expr(0), x) + a, a - x),
    (minimum(yi, 32), yi),
    (maximum(yi - 40, 0), index_expr(0)),
    (minimum(minimum(x, 4), 8), minimum(x, 4)),
    (maximum(x, x + 1), x + 1),
    (truncdiv(yi, 4), yi // 4),
    (truncmod(yi, 64), yi),
    (truncdiv(x, 4), truncdiv(x, 4)),
    ((x * n) * m - n * m * x, index_expr(0)),
    (Mul(index_expr(4), x), x * 4),
    (FloorDiv(FloorDiv(x, index_expr(2)) * 2 + 5, index_expr(2)), x // 2 + 2),
]


@pytest.mark.parametrize(("before", "after"), INDEX_CASES, ids=lambda e: repr(e))
def test_index_arithmetic(before, after):
    made = simplify(before, RANGES)
    assert structural_equal(made, after), made
    assert simplify(made, RANGES) is made


def test_symbolic_extents():
    ranges = Ranges().with_size(n).with_size(m).with_loop(i, m).with_loop(j, n)
    assert simplify((i * n + j) // n, ranges) is i
    assert simplify((i * n + j) % n, ranges) is j
    assert simplify((n * i + j + n) // n, ranges) is not None
    assert repr(simplify((n * i + j + n) // n, ranges)) == "i + 1"
    assert repr(simplify((i * (n * 4) + j * 4 + 3) // (n * 4), ranges)) == "i"
    assert repr(simplify((i * (n + 1) + j) // (n + 1), ranges)) == "i"
    assert repr(simplify((a // n) * n + a % n, ranges)) == "a"
    assert simplify(n // n, ranges).value == 1
    assert simplify(minimum(j, n), ranges) is j
    assert simplify(i < m, ranges) is TRUE


def test_division_by_what_may_be_zero_stays():
    ranges = Ranges().with_size(n)
    for e in (n // n, (x * n) // n, n % n, FloorDiv(x, index_expr(0)), FloorMod(x, index_expr(0))):
        assert simplify(e, ranges) is e
    assert type(simplify((x // n) * n + x % n, ranges)) is Add


def test_source_order_is_kept_and_the_constant_is_last():
    assert repr(simplify(3 + b * 2 + a, RANGES)) == "b*2 + a + 3"
    assert repr(simplify(Sub(index_expr(5), x) + 1)) == "6 - x"
    assert repr(simplify((io * 32 + ii) * n + k, RANGES)) == "(io*32 + ii)*n + k"


def test_unchanged_expressions_are_the_same_object():
    for e in (x * 4 + a, (x + 3) // 4, x < n, Load(A, (x, i * 4 + k)) * 2.0, select(x < 4, f, g), x % 7 * 3 - a // 5):
        assert simplify(e, RANGES) is e


CONDITIONS = [
    (i * 4 + 3 < 16, i < 4),
    (i * 4 + 3 <= 16, i <= 3),
    (x - n < 0, x < n),
    (x + a < a + 4, x < 4),
    (io * 32 + ii < 1024, io < 32),
    (io * 32 + ii < 1000, io * 32 + ii < 1000),
    (equal(x * 4, 8), equal(x, 2)),
    (equal(x * 4, 7), FALSE),
    (not_equal(x * 4, 7), TRUE),
    (equal(4, x), equal(x, 4)),
    (yi < 32, TRUE),
    (yi >= 32, FALSE),
    (equal(x + 1, x), FALSE),
    (logical_and(yi < 32, x < 4), x < 4),
    (logical_and(x < 4, x < 5), x < 4),
    (Or(x < 4, yi < 32), TRUE),
    (And(x < 4, And(x < 4, yi < 40)), x < 4),
    (Not(x < 4), index_expr(4) <= x),
    (Not(Not(equal(x, 1))), equal(x, 1)),
    (select(x < 4, TRUE, FALSE), x < 4),
]


@pytest.mark.parametrize(("before", "after"), CONDITIONS, ids=lambda e: repr(e))
def test_conditions(before, after):
    made = simplify(before, RANGES)
    assert structural_equal(made, after), made


def test_select_uses_its_condition():
    assert structural_equal(simplify(select(i < 8, minimum(i, 8), x), RANGES), select(i < 8, i, x))
    assert structural_equal(simplify(select(i < 8, x, maximum(i, 8)), RANGES), select(i < 8, x, i))
    nested = select(x < 4, select(x < 6, f, g), g)
    assert structural_equal(simplify(nested, RANGES), select(x < 4, f, g))
    assert simplify(select(x < n, f, f), RANGES) is f
    load = Load(A, (x, x))
    assert structural_equal(
        simplify(Select(Not(And(x < 4, a < 5)), f, load), RANGES), select(And(x < 4, a < 5), load, f)
    )
    guarded = select(x < 4, load, const(0.0, F32))
    assert simplify(guarded, RANGES) is guarded


def test_floats_keep_their_value():
    zero, unit = const(0.0, F32), const(1.0, F32)
    for e in (Mul(f, zero), Add(f, zero), Sub(f, f), Add(Add(f, g), const(-1.0, F32)), Min(f, g), Div(f, f), Max(g, f)):
        assert simplify(e) is e
    assert simplify(Mul(f, unit)) is f and simplify(Mul(unit, f)) is f and simplify(Div(f, unit)) is f
    assert simplify(Add(const(0.1, F32), const(0.2, F32))).value == pytest.approx(0.3, rel=1e-6)
    nan = equal(f, f)
    assert simplify(nan) is nan
    overflow = Mul(const(1e38, F32), const(1e38, F32))
    assert simplify(overflow) is overflow
    half = dtype("float16")
    assert simplify(Add(const(1.0, half), const(0.0001, half))).value == 1.0


def test_integers_that_wrap():
    big = const(2**31 - 1, I32)
    stays = (p + 1 < p, (p * 2) // const(2, I32), p - q < const(0, I32))
    for e in stays:
        assert simplify(e) is e
    assert simplify(Add(big, const(1, I32))).value == -(2**31)
    assert simplify(Add(p, const(0, I32))) is p
    assert simplify(Sub(p, p)).value == 0
    assert structural_equal(simplify(Add(Add(p, big), big)), Add(p, const(-2, I32)))
    byte = Var("byte", U8)
    assert simplify(byte <= const(255, U8)) is TRUE
    assert simplify(Cast(I32, byte) < const(256, I32)) is TRUE
    assert simplify(Min(byte, const(0, U8))).value == 0
    assert simplify(Cast(dtype("int64"), byte) // 256).value == 0


def test_casts():
    byte = Var("byte", U8)
    assert simplify(Cast(U8, Cast(I32, byte))) is byte
    assert structural_equal(simplify(Cast(F32, Cast(I32, byte))), Cast(F32, byte))
    narrowing = Cast(I32, Cast(U8, p))
    assert simplify(narrowing) is narrowing
    signs = Cast(U8, Cast(F32, Var("s", dtype("int8"))))  # a float saturates where an integer wraps
    assert simplify(signs) is signs
    literals = {3.9: 3, -3.9: -3, 1e20: 2**31 - 1, float("nan"): 0, float("-inf"): -(2**31)}
    for number, expected in literals.items():
        assert simplify(Cast(I32, Const(number, F32))).value == expected
    assert simplify(Cast(U8, const(300, I32))).value == 44
    assert simplify(Cast(dtype("bool"), const(2, I32))) is TRUE


VECTORS = [
    (Ramp(k * 32, one, 16) // 32, Broadcast(k, 16)),
    (Ramp(k * 32, one, 16) % 32, Ramp(index_expr(0), one, 16)),
    (Broadcast(a, 8) + Ramp(b, index_expr(2), 8), Ramp(a + b, index_expr(2), 8)),
    (
        Broadcast(a, 4) + select(Ramp(one, one, 4) < Broadcast(n * 0 + 9, 4), Ramp(one, one, 4), Ramp(b, one, 4)),
        Ramp(a + 1, one, 4),
    ),
    (Ramp(a, one, 8) * 4, Ramp(a * 4, index_expr(4), 8)),
    (Ramp(a, one, 8) * Broadcast(n, 8), Ramp(a * n, n, 8)),
    (Ramp(a, one, 8) + Ramp(b, one, 8), Ramp(a + b, index_expr(2), 8)),
    (Ramp(a, one, 8) - Ramp(a, one, 8), Broadcast(index_expr(0), 8)),
    (Add(Broadcast(a, 4), Broadcast(b, 4)), Broadcast(a + b, 4)),
    (Add(Broadcast(f, 4), Broadcast(g, 4)), Broadcast(f + g, 4)),
    (Ramp(a, index_expr(0), 4), Broadcast(a, 4)),
    (Ramp(b, one, 8) < Broadcast(b + 8, 8), Broadcast(TRUE, 8)),
    (Ramp(io * 8, one, 8) < Broadcast(n * 8, 8), Broadcast(io < n, 8)),
    (Select(Broadcast(x < 4, 4), Broadcast(f, 4), Broadcast(g, 4)), Broadcast(select(x < 4, f, g), 4)),
    (Cast(F32.with_lanes(4), Broadcast(p, 4)), Broadcast(Cast(F32, p), 4)),
    (Load(A, (i, Broadcast(k, 4))), Broadcast(Load(A, (i, k)), 4)),
    (logical_not(And(Broadcast(x < 4, 4), Broadcast(a < 4, 4))), Broadcast(Not(And(x < 4, a < 4)), 4)),
]


@pytest.mark.parametrize(("before", "after"), VECTORS, ids=lambda e: repr(e))
def test_vectors(before, after):
    made = simplify(before, RANGES)
    assert structural_equal(made, after), made


def test_vectors_that_stay():
    for e in (Ramp(b, index_expr(2), 8) % 7, Load(A, (i, Ramp(x, one, 8))), Ramp(x, n, 4)):
        assert simplify(e, RANGES) is e


def test_calls_with_effects_are_neither_merged_nor_dropped():
    draw = Call("draw_random", (), dtype("int64"))
    e = Sub(draw, draw)
    assert simplify(e) is e
    e = Sub(Cast(I32, draw), Cast(I32, draw))
    assert simplify(e) is e
    e = (draw + 2 - 2) < draw
    assert type(simplify(e)) is not Const


def test_typical_index_expressions_are_little_work():
    """A few calls for each of the ten nodes."""
    e = (yo * 32 + yi) * 1024 + (i * 4 + k)
    simplify(e, RANGES.copy())
    assert calls_of(lambda: simplify(e, RANGES.copy())) < 70


def test_truncdiv_of_unknown_sign_stays():
    e = TruncDiv(x, index_expr(4))
    assert simplify(e) is e
