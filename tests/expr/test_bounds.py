"""Ranges, intervals, proofs and symbolic bounds, case by case."""

import pytest

from weft.core.dtypes import dtype
from weft.expr.bounds import Ranges, interval, lower_bound, prove, upper_bound
from weft.expr.nodes import (
    TRUE,
    And,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Load,
    Not,
    Or,
    Ramp,
    Var,
    ceildiv,
    const,
    equal,
    index_expr,
    maximum,
    minimum,
    not_equal,
    select,
)  # fmt: skip

n, m, x, i, j, io, ii, yo, yi = (Var(name) for name in ("n", "m", "x", "i", "j", "io", "ii", "yo", "yi"))
SIZES = Ranges().with_sizes((n, m))


def test_ranges():
    ranges = SIZES.with_loop(i, n).with_range(x, -3, 7)
    low, high = ranges.get(i)
    assert (low.value, repr(high)) == (0, "n - 1")
    assert [bound.value for bound in ranges.get(x)] == [-3, 7]
    assert ranges.get(j) is None and j not in ranges and i in ranges
    assert SIZES.get(i) is None, "extending leaves the original as it is"
    assert interval(n, SIZES) == (0, None) and interval(n, ranges) == (1, None), "inside a loop of n, n is at least 1"
    bound = Ranges()
    bound.bind(i, 8)
    assert interval(i, bound) == (0, 7)
    bound.bind(i, 4)
    assert interval(i, bound) == (0, 3)
    assert list(bound) == [i]


@pytest.mark.parametrize(
    ("extent", "fact"),
    [(n, n >= 1), (n - 4, n >= 5), (ceildiv(n, 4), n >= 1), (n // 4, n >= 4), (minimum(n - 2, m), And(n >= 3, m >= 1)),
     (n * m, And(n >= 1, m >= 1)), (n - m, m < n), (9 - n, n <= 8), (n + m - 3, 4 <= m + n),
     (ceildiv(n, 4) * 8, n >= 1), ((n // 2) * 3 - 7, n >= 6)],
    ids=repr,
)  # fmt: skip
def test_a_loop_that_runs_has_an_extent_of_at_least_one(extent, fact):
    assert not prove(fact, SIZES)
    assert prove(fact, SIZES.with_loop(i, extent))


def test_intervals():
    ranges = SIZES.with_loop(yo, 4).with_loop(yi, 32).with_range(x, -5, 5)
    byte = Load(Buffer("B", dtype("uint8"), [4]), (yo,))
    cases = [
        (yo * 32 + yi, (0, 127)), (yi - yo * 2, (-6, 31)), (x // 4, (-2, 1)), (x % 4, (0, 3)), ((x + 8) % 16, (3, 13)),
        (minimum(x, n), (-5, 5)), (maximum(x, n), (0, None)), (select(x < n, yi, x), (-5, 31)), (x * x, (-25, 25)),
        (Cast(dtype("int64"), byte), (0, 255)), (byte, (0, 255)), (x - x, (0, 0)), (n * n, (0, None)),
        (j, (None, None)),
        (Ramp(yi, index_expr(2), 4), (0, 37)), (Broadcast(yo, 4), (0, 3)),
        (Ramp(yi * 4, index_expr(1), 4) // 4, (0, 31)),
        (Cast(dtype("int8"), yo * 100), (-128, 127)), (Cast(dtype("int8"), yi), (0, 31)), (x < 3, (0, 1)),
        (Call("bit_and", (yi, index_expr(7)), yi.dtype), (0, 7)), (yi // n, (None, None)), (yi // (n + 1), (0, 31)),
        (yi % (n + 1), (0, 31)), (Cast(dtype("uint16"), Cast(dtype("int8"), x)), (0, 65535)),
    ]  # fmt: skip
    for e, expected in cases:
        assert interval(e, ranges) == expected, e
    assert interval(const(7, "int32"), ranges) == (7, 7)
    small = Var("s", dtype("int8"))
    assert interval(small + small, ranges) == (-128, 127)
    assert interval(small // const(2, "int8") + const(1, "int8"), ranges) == (-63, 64)


def loops(*pairs):
    ranges = SIZES
    for var, extent in pairs:
        ranges = ranges.with_loop(var, extent)
    return ranges


PROVEN = [
    (i < n, loops((i, n))),
    (i - n < 0, loops((i, n))),
    (i <= n - 1, loops((i, n))),
    (io * 32 + ii < 1024, loops((io, 32), (ii, 32))),
    (io * 4 < n, loops((io, ceildiv(n, 4)))),
    (io * 4 + ii < ceildiv(n, 4) * 4, loops((io, ceildiv(n, 4)), (ii, 4))),
    (io * 4 + ii < n, loops((io, n // 4), (ii, 4))),
    (i * n + j < m * n, loops((i, m), (j, n))),
    (i * n + j >= 0, loops((i, m), (j, n))),
    (i // 4 < ceildiv(n, 4), loops((i, n))),
    (n // 4 * 4 <= n, SIZES),
    (n - n % 4 >= 0, SIZES),
    (io * 32 + i < n, loops((io, ceildiv(n, 32)), (i, minimum(n - io * 32, 32)))),
    (i < minimum(n, n + 4), loops((i, n))),
    (minimum(i, x) < n, loops((i, n))),
    (maximum(i, 0) < n, loops((i, n))),
    (And(i < n, i >= 0), loops((i, n))),
    (Or(x < 3, i < n), loops((i, n))),
    (Not(i >= n), loops((i, n))),
    (Not(Or(i >= n, i < 0)), loops((i, n))),
    (Not(And(x < 3, i >= n)), loops((i, n))),
    (equal(i + j - i, j), SIZES),
    (not_equal(i, n), loops((i, n))),
    (equal((io * 4 + ii) // 4, io), loops((io, n), (ii, 4))),
    (i + j < n + m - 1, loops((i, n), (j, m))),
    (j <= i, loops((i, n), (j, i + 1))),
    (j < n, loops((i, n), (j, i + 1))),
    (TRUE, SIZES),
    (Ramp(i * 4, index_expr(1), 4) < Broadcast(n * 4, 4), loops((i, n))),
    (x < n, SIZES.with_condition(x < n)),
    (x * 4 + 3 < n * 4, SIZES.with_condition(And(x < n, x >= 0))),
    (x + 1 < n + 1, SIZES.with_condition(Not(n <= x))),
    (equal(x, 4), SIZES.with_condition(equal(x, 4))),
    (io * 4 + ii + 1 <= n, loops((io, ceildiv(n, 4)), (ii, 4)).with_condition(io * 4 + ii < n)),
]
UNPROVEN = [
    (io * 4 + ii < n, loops((io, ceildiv(n, 4)), (ii, 4))),
    (i < n - 1, loops((i, n))),
    (x < n, loops((i, n))),
    (n >= 1, SIZES),
    (i * n + j < m * n, loops((i, n), (j, n))),
    (equal(i, 0), loops((i, n))),
    (Or(i < 3, i >= 3), SIZES),
    (Var("flag", dtype("bool")), SIZES),
    (i < minimum(n, m), loops((i, n))),
    (Var("f", dtype("float32")) < Var("g", dtype("float32")), SIZES),
    (x // m <= x, SIZES),
]


@pytest.mark.parametrize(("condition", "ranges"), PROVEN, ids=repr)
def test_proven(condition, ranges):
    assert prove(condition, ranges)


@pytest.mark.parametrize(("condition", "ranges"), UNPROVEN, ids=repr)
def test_not_proven(condition, ranges):
    assert not prove(condition, ranges)


def test_symbolic_bounds():
    ranges = SIZES.with_loop(yo, ceildiv(n, 32)).with_loop(yi, 32).with_loop(i, m).with_loop(j, i + 1)
    flags = Buffer("F", dtype("int64"), [8])
    cases = [
        (yo * 32 + yi, {yi}, "yo*32", "yo*32 + 31"),
        (yo * 32 - yi, {yi}, "yo*32 - 31", "yo*32"),
        (yo * 32 + yi, {yo, yi}, "0", "(n + 31)//32*32 - 1"),
        (yi * m + x, {yi}, "x", "x + m*31"),
        (yi * x, {yi}, None, None),
        (x, {yi}, "x", "x"),
        (yi // 4 + x, {yi}, "x", "x + 7"),
        ((x + yi) // 4, {yi}, "x // 4", "(x + 3)//4 + 7"),
        ((x + yi) % 64, {yi}, "0", "63"),
        ((yo * 64 + yi) % 128, {yi}, "yo % 2 * 64", "yo%2*64 + 31"),
        (minimum(yi + x, 9), {yi}, "min(x, 9)", "min(x + 31, 9)"),
        (select(x < 3, yi, x), {yi}, "min(0, x)", "max(31, x)"),
        (j, {j}, "0", "i"),
        (j, {i, j}, "0", "m - 1"),
        (Load(flags, (yi,)), {yi}, None, None),
        (Ramp(yi * 4 + x, index_expr(1), 4), {yi}, "x", "x + 127"),
    ]
    for e, gone, low, high in cases:
        made = lower_bound(e, gone, ranges), upper_bound(e, gone, ranges)
        written = [None if bound is None else repr(bound).replace(" ", "") for bound in made]
        assert written == [None if text is None else text.replace(" ", "") for text in (low, high)], e
    assert upper_bound(x + j, {x}, ranges) is None, "a variable of which nothing is known"
    assert upper_bound(Var("f", dtype("float32")), {x}, ranges) is None


def test_the_greater_side_of_a_least_value_tells_of_the_other():
    tile = Ranges().with_loop(i, 4).with_loop(j, index_expr(2) - minimum(index_expr(2), index_expr(7) - i * 2))
    assert interval(i, tile) == (3, 3)
    assert interval(i, Ranges().with_loop(i, 4).with_condition(minimum(n, i) <= 0)) == (0, 3)  # n may be the least


def test_a_block_of_an_element_that_there_is():
    """Groups of blocks of elements: proofs that go from the loops outward look at too much before they see the test."""
    test = yo * 128 + yi * 8 + x * 4 + j
    for rounds, end, blocks in [((n + 127) // 128, n, (n + 7) // 8), ((n + 509) // 512, (n + 1) // 4, (n + 29) // 32)]:
        nest = SIZES.with_loop(yo, rounds).with_loop(yi, 16).with_loop(x, 2).with_loop(j, 4).with_condition(test < end)
        assert prove(yo * 16 + yi < blocks, nest)
        assert not prove(yo * 16 + yi < blocks - 1, nest)


def test_whole_groups_of_elements_end_with_the_last_group():
    """Three elements of each pair of places, of which there are as many as fit."""
    nest = SIZES.with_loop(io, (n + 105) // 112).with_loop(ii, 7).with_loop(j, 3).with_loop(x, 2)
    nest = nest.with_condition(io * 14 + ii * 2 + x < (n + 1) // 8)
    assert prove(io * 21 + ii * 3 + j < (n + 9) // 16 * 3, nest)
    assert not prove(io * 21 + ii * 3 + j < (n + 9) // 16 * 3 - 1, nest)
