"""Arithmetic, comparisons and conversions of every dtype, scalar and vector, against numpy."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.support import elementwise, map_many, map_values
from tests.hosts import lesser
from weft.codegen.llvm.compile import emit_assembly
from weft.codegen.llvm.generate import generate
from weft.core.dtypes import dtype
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    And,
    Call,
    Cast,
    Const,
    Div,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    const,
)
from weft.targets.registry import find_target

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
LANES = [1, 16]
rng = np.random.default_rng(7)


def integers(kind, count=96):
    info = np.iinfo(kind)
    edge = np.array([info.min, info.max, 0, 1, info.max - 1, info.min + 1, 2, 7], kind)
    if info.min < 0:
        edge = np.concatenate([edge, np.array([-1, -2, -7], kind)])
    rest = rng.integers(info.min, info.max, count, dtype=kind, endpoint=True)
    return np.concatenate([edge, rest, (rest >> (info.bits // 2)).astype(kind)])


def pairs(kind):
    values = integers(kind, 40)
    a, b = np.meshgrid(values, values)
    return np.ascontiguousarray(a.ravel()), np.ascontiguousarray(b.ravel())


def floats(kind, count=400):
    numpy = dtype(kind).numpy
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-6, -3.5, 65504, 1e-8, 2.5], np.float64)
    wide = np.concatenate([special, rng.normal(size=count), rng.normal(size=count) * 1e4])
    return wide.astype(numpy)


def same(a, b):
    np.testing.assert_array_equal(np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64))


def python_division(kind, a, b, quotient):
    """What FloorDiv, FloorMod, TruncDiv, TruncMod give, by Python's own integers."""
    bits = np.iinfo(kind).bits
    out = []
    for x, y in zip(a.tolist(), b.tolist()):
        value = 0 if y == 0 else quotient(x, y)
        value &= (1 << bits) - 1
        out.append(value - (1 << bits) if np.iinfo(kind).min < 0 and value >> (bits - 1) else value)
    return np.array(out, kind)


def trunc_quotient(x, y):
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


DIVISIONS = {
    FloorDiv: lambda x, y: x // y,
    FloorMod: lambda x, y: x % y,
    TruncDiv: trunc_quotient,
    TruncMod: lambda x, y: x - trunc_quotient(x, y) * y,
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_arithmetic_wraps(kind, lanes):
    a, b = pairs(kind)
    table = {Add: np.add, Sub: np.subtract, Mul: np.multiply, Min: np.minimum, Max: np.maximum}
    results = map_many(list(table), [kind] * len(table), a, b, lanes=lanes)
    for got, reference in zip(results, table.values()):
        with np.errstate(all="ignore"):
            same(got, reference(a, b))


@pytest.mark.thin(2)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8", "uint32"])
def test_division_by_run_time_values_never_traps(kind, lanes):
    a, b = pairs(kind)
    results = map_many(list(DIVISIONS), [kind] * 4, a, b, lanes=lanes)
    for got, quotient in zip(results, DIVISIONS.values()):
        np.testing.assert_array_equal(got, python_division(kind, a, b, quotient))


@given(
    st.sampled_from(sorted(DIVISIONS, key=lambda n: n.__name__)),
    st.sampled_from(["int8", "int64", "uint16"]),
    st.integers(-140, 140).filter(lambda v: v != 0),
    st.sampled_from(LANES),
)
def test_division_by_constants(node, kind, divisor, lanes):
    info = np.iinfo(kind)
    divisor = max(min(divisor, info.max), info.min) if info.min < 0 else abs(divisor)
    a = integers(kind, 40)
    got = map_values(lambda x: node(x, const(divisor, x.dtype)), kind, a, lanes=lanes)
    np.testing.assert_array_equal(got, python_division(kind, a, np.full_like(a, divisor), DIVISIONS[node]))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", FLOATS)
def test_float_arithmetic(kind, lanes):
    a, b = floats(kind), floats(kind)[::-1].copy()
    wide = np.float32 if dtype(kind).bits == 16 else dtype(kind).numpy
    with np.errstate(all="ignore"):
        table = {Add: np.add, Sub: np.subtract, Mul: np.multiply, Div: np.divide}
        results = map_many(list(table), [kind] * 4, a, b, lanes=lanes, kinds=[kind, kind])
        for got, reference in zip(results, table.values()):
            same(got, reference(a.astype(wide), b.astype(wide)).astype(dtype(kind).numpy))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", FLOATS)
def test_min_and_max_keep_nan(kind, lanes):
    values = floats(kind, 20)
    a, b = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(values, values))
    for node, reference in ((Min, np.minimum), (Max, np.maximum)):
        makes = [node, lambda x, y, n=node: n(x, const(0.5, x.dtype)), lambda x, y, n=node: n(const(0.5, x.dtype), x)]
        got = map_many(makes, [kind] * 3, a, b, lanes=lanes, kinds=[kind, kind])
        with np.errstate(invalid="ignore"):
            same(got[0], reference(a, b))
            same(got[1], reference(a, a.dtype.type(0.5)))
        same(got[2], got[1])


@pytest.mark.thin(2)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "uint64", *FLOATS])
def test_comparisons(kind, lanes):
    a = floats(kind, 30) if kind in FLOATS else integers(kind, 30)
    a, b = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(a, a))
    table = {EQ: np.equal, NE: np.not_equal, LT: np.less, LE: np.less_equal}
    results = map_many(list(table), ["bool"] * 4, a, b, lanes=lanes, kinds=[kind, kind])
    for got, reference in zip(results, table.values()):
        with np.errstate(invalid="ignore"):
            same(got, reference(a, b))


@pytest.mark.parametrize("lanes", LANES)
def test_connectives_and_select(lanes):
    a, b = rng.integers(0, 2, 256).astype(bool), rng.integers(0, 2, 256).astype(bool)
    same(map_values(And, "bool", a, b, lanes=lanes), a & b)
    same(map_values(Or, "bool", a, b, lanes=lanes), a | b)
    same(map_values(Not, "bool", a, lanes=lanes), ~a)
    same(map_values(lambda x, y: Select(x, y, Not(y)), "bool", a, b, lanes=lanes), np.where(a, b, ~b))
    x, y = rng.normal(size=(2, 256)).astype(np.float32)
    same(map_values(lambda p, q: Select(LT(p, q), p, q), "float32", x, y, lanes=lanes), np.minimum(x, y))


def reference_cast(values, source, to):
    kind = dtype(to)
    if kind.is_bool:
        return values != 0
    if dtype(source).is_float and kind.is_integer:
        info = np.iinfo(to)
        wide = np.nan_to_num(np.trunc(values.astype(np.float64)), nan=0.0, posinf=2.0**100, neginf=-(2.0**100))
        return np.array([min(max(int(v), info.min), info.max) for v in wide], to)
    if kind.is_float and kind.bits == 16 and source in INTEGERS:
        values = values.astype(np.float32)
    with np.errstate(all="ignore"):
        return values.astype(kind.numpy)


@pytest.mark.parametrize("source", [*INTEGERS, *FLOATS, "bool"])
def test_casts(source):
    values = rng.integers(0, 2, 64).astype(bool) if source == "bool" else None
    if values is None:
        values = floats(source) if source in FLOATS else integers(source)
    kinds = [*INTEGERS, *FLOATS, "bool"]
    makes = [lambda x, t=to: Cast(dtype(t).with_lanes(x.dtype.lanes), x) for to in kinds]
    for lanes in LANES:
        for got, to in zip(map_many(makes, kinds, values, lanes=lanes, kinds=[source]), kinds):
            same(got, reference_cast(values, source, to))


@pytest.mark.parametrize("target", ["native", *lesser(x86=("-avx512f,-f16c,-avx2,-fma",))])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_all_sixteen_bit_floats_convert_both_ways(kind, target):
    numpy = dtype(kind).numpy
    every = np.arange(1 << 16, dtype=np.uint16).view(numpy)
    wide = map_values(lambda x: Cast(dtype("float32").with_lanes(16), x), "float32", every, kinds=[kind], target=target)
    with np.errstate(invalid="ignore"):
        same(wide, every.astype(np.float32))
    # Values halfway between neighbours and beside them, which show the rounding.
    near = every.astype(np.float32)
    with np.errstate(all="ignore"):
        values = np.concatenate([near, (near[:-1] + near[1:]) / 2, near * np.float32(1.0001)])
    values = values[~(np.abs(values) < 1.2e-38) | (values == 0)] if kind == "bfloat16" else values
    with np.errstate(all="ignore"):
        expected = values.astype(numpy)
    got = map_values(lambda x: Cast(dtype(kind).with_lanes(16), x), kind, values, target=target)
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), np.isnan(values))
    known = ~np.isnan(values)
    np.testing.assert_array_equal(got.view(np.uint16)[known], expected.view(np.uint16)[known])


def test_double_to_half_rounds_once():
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 2049.0000001, -65519.999999], np.float64)
    got = map_values(lambda v: Cast(dtype("float16").with_lanes(v.dtype.lanes), v), "float16", x, lanes=4)
    same(got, x.astype(np.float16))
    got = map_values(lambda v: Cast(dtype("bfloat16").with_lanes(v.dtype.lanes), v), "bfloat16", x, lanes=1)
    assert np.asarray(got, np.float64)[2] == 2048 and got.dtype == ml_dtypes.bfloat16


def test_product_and_sum_are_fused_where_the_machine_can():
    a, b, c = rng.normal(size=(3, 512)).astype(np.float32)
    exact = (a.astype(np.longdouble) * b + c).astype(np.float32)
    if find_target("native").has_fma:
        for make, expected in (
            (lambda x, y, z: Add(Mul(x, y), z), exact),
            (lambda x, y, z: Add(z, Mul(x, y)), exact),
            (lambda x, y, z: Sub(Mul(x, y), z), (a.astype(np.longdouble) * b - c).astype(np.float32)),
            (lambda x, y, z: Sub(z, Mul(x, y)), (c - a.astype(np.longdouble) * b).astype(np.float32)),
            (lambda x, y, z: Call("fma", (x, y, z), x.dtype), exact),
        ):
            same(map_values(make, "float32", a, b, c), expected)
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    func = elementwise(lambda x, y, z: Add(Mul(x, y), z), 64, 16, "float32", "float32", "float32", "float32")
    assert "vfmadd" in emit_assembly(generate(func, x86), x86)
    plain = find_target("x86_64-unknown-linux-gnu")
    text = emit_assembly(generate(func, plain), plain)
    assert "mulps" in text and "fma" not in text


def test_relu_is_one_instruction():
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    text = emit_assembly(
        generate(elementwise(lambda x: Max(x, const(0.0, x.dtype)), 16, 16, "float32", "float32"), x86), x86
    )
    assert text.count("vmaxps") == 1 and "vcmp" not in text and "vblend" not in text


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint64"])
def test_bit_operations(kind, lanes):
    a, b = integers(kind, 50), integers(kind, 50)[::-1].copy()
    for name, reference in (("bit_and", np.bitwise_and), ("bit_or", np.bitwise_or), ("bit_xor", np.bitwise_xor)):
        same(map_values(lambda x, y, n=name: Call(n, (x, y), x.dtype), kind, a, b, lanes=lanes), reference(a, b))
    same(map_values(lambda x: Call("bit_not", (x,), x.dtype), kind, a, lanes=lanes), np.invert(a))
    bits = np.iinfo(kind).bits
    amounts = (np.arange(len(a)) % (bits + 3)).astype(kind)
    for name, reference in (("shift_left", np.left_shift), ("shift_right", np.right_shift)):
        got = map_values(lambda x, y, n=name: Call(n, (x, y), x.dtype), kind, a, amounts, lanes=lanes)
        same(got, reference(a, amounts))
        got = map_values(lambda x, n=name: Call(n, (x, const(3, x.dtype)), x.dtype), kind, a, lanes=lanes)
        same(got, reference(a, a.dtype.type(3)))
    unsigned = [int(v) & ((1 << bits) - 1) for v in a]
    same(
        map_values(lambda x: Call("popcount", (x,), x.dtype), kind, a, lanes=lanes),
        [bin(v).count("1") for v in unsigned],
    )
    same(
        map_values(lambda x: Call("clz", (x,), x.dtype), kind, a, lanes=lanes),
        [bits - v.bit_length() for v in unsigned],
    )
    if kind.startswith("int"):
        same(map_values(lambda x: Call("abs", (x,), x.dtype), kind, a, lanes=lanes), np.abs(a))
        same(map_values(lambda x: Call("neg", (x,), x.dtype), kind, a, lanes=lanes), np.negative(a))


def test_reinterpret():
    a = rng.normal(size=64).astype(np.float32)
    got = map_values(lambda x: Call("reinterpret", (x,), dtype("int32").with_lanes(x.dtype.lanes)), "int32", a)
    np.testing.assert_array_equal(got, a.view(np.int32))
    half = rng.normal(size=64).astype(np.float16)
    got = map_values(lambda x: Call("reinterpret", (x,), dtype("uint16").with_lanes(x.dtype.lanes)), "uint16", half)
    np.testing.assert_array_equal(got, half.view(np.uint16))


def test_literals_of_every_dtype_are_exact():
    for kind in [*INTEGERS, *FLOATS, "bool"]:
        numpy = dtype(kind)
        values = [0.1, -2.5, float("inf"), float("nan")] if numpy.is_float else [numpy.max, numpy.min]
        for value in values:
            zero = np.zeros(4, numpy.numpy)
            got = map_values(lambda x, v=value: Const(v, x.dtype.scalar), kind, zero, lanes=1, kinds=[kind])
            same(
                got,
                np.full(4, value, np.float64).astype(numpy.numpy) if numpy.is_float else np.full(4, value, numpy.numpy),
            )
