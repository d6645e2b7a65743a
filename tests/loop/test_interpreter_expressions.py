"""Random expressions: the interpreter against numpy, as scalars and as vectors."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.dtypes import BOOL, dtype
from weft.expr import nodes
from weft.expr.nodes import Broadcast, Buffer, Call, Cast, Const, Load, Not, Ramp, Select, Var, const
from weft.expr.visit import children
from weft.loop.interpreter import interpret
from weft.loop.ir import For, Func, Store

N = 8
INTEGERS = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def edge_values(kind):
    element = dtype(kind)
    if element.is_float:
        limit = {"float16": 65504.0, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}[kind]
        special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, limit, -limit, np.inf, -np.inf, np.nan, 1e-6])
        return st.one_of(special, st.floats(-100, 100))
    special = st.sampled_from([element.min, element.max, 0, 1, element.max // 2])
    return st.one_of(special, st.integers(element.min, element.max))


def arrays(kind):
    def build(values):
        return (
            np.array(values).astype(dtype(kind).numpy) if dtype(kind).is_float else np.array(values, dtype(kind).numpy)
        )

    return st.lists(edge_values(kind), min_size=N, max_size=N).map(build)


# ------------------------------------------------------------------------------- what expressions mean in numpy


def wrapped(values, element):
    """Python integers (an object array) reduced to a dtype."""
    return np.array([nodes.wrap(int(v), element) for v in values], object)


def on_integers(name, a, b):
    def trunc(x, y):
        quotient = abs(x) // abs(y)
        return quotient if (x < 0) == (y < 0) else -quotient

    table = {
        "Add": lambda x, y: x + y,
        "Sub": lambda x, y: x - y,
        "Mul": lambda x, y: x * y,
        "FloorDiv": lambda x, y: x // y,
        "FloorMod": lambda x, y: x % y,
        "TruncDiv": trunc,
        "TruncMod": lambda x, y: x - trunc(x, y) * y,
        "Min": min,
        "Max": max,
    }
    return [table[name](int(x), int(y)) for x, y in zip(a, b)]


ON_FLOATS = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Min": np.minimum, "Max": np.maximum,
}  # fmt: skip
COMPARE = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
}


def reference(e, inputs):
    """The value of an expression for all of range(N) at once, by numpy (integers as Python's, then wrapped)."""
    kind, name = e.dtype, type(e).__name__
    if isinstance(e, Const):
        return np.full(N, e.value, object if kind.is_integer else kind.numpy)
    if isinstance(e, Load):
        return inputs[e.buffer]
    parts = [reference(child, inputs) for child in children(e)]
    if name in COMPARE:
        return COMPARE[name](*parts).astype(bool)
    if isinstance(e, Not):
        return ~parts[0]
    if isinstance(e, Select):
        return np.where(*parts)
    if isinstance(e, Cast):
        return converted(parts[0], e.value.dtype, kind)
    if kind.is_integer:
        return wrapped(on_integers(name, *parts), kind)
    result = ON_FLOATS[name](*parts)
    assert result.dtype == kind.numpy
    return result


def converted(values, source, target):
    if target.is_bool:
        return (values != 0).astype(bool)
    if target.is_integer:
        if not source.is_float:
            return wrapped(values, target)
        clipped = []
        for value in values.astype(np.float64):
            value = 0.0 if np.isnan(value) else value
            clipped.append(target.max if value >= target.max else target.min if value <= target.min else int(value))
        return np.array(clipped, object)
    if source.is_integer:
        values = values.astype(source.numpy)
    return values.astype(np.float32).astype(target.numpy) if target.bits == 16 else values.astype(target.numpy)


# ------------------------------------------------------------------------------------------- random expressions


def expressions(kind, leaves):
    """Expressions of one dtype: arithmetic on the leaves, choices by comparisons, casts there and back."""
    element = dtype(kind)
    names = ["Add", "Sub", "Mul", "Min", "Max"] + (["Div"] if element.is_float else [])
    constants = edge_values(kind).map(lambda value: const(value, kind))

    def grow(inner):
        binary = st.builds(lambda name, a, b: getattr(nodes, name)(a, b), st.sampled_from(names), inner, inner)
        truth = st.builds(
            lambda name, a, b: getattr(nodes, name)(a, b), st.sampled_from(["EQ", "NE", "LT", "LE"]), inner, inner
        )
        truth = st.one_of(truth, st.builds(nodes.And, truth, truth), st.builds(nodes.Or, truth, truth), truth.map(Not))
        others = ["int8", "uint8", "int32", "float32", "float64", kind]
        there = st.builds(lambda a, to: Cast(element, Cast(dtype(to), a)), inner, st.sampled_from(others))
        parts = [binary, binary, st.builds(Select, truth, inner, inner), there, truth.map(lambda t: Cast(element, t))]
        if element.is_integer:
            divisor = st.integers(element.min, element.max).filter(bool).map(lambda value: Const(value, element))
            division = st.sampled_from(["FloorDiv", "FloorMod", "TruncDiv", "TruncMod"])
            parts.append(st.builds(lambda name, a, b: getattr(nodes, name)(a, b), division, inner, divisor))
        return st.one_of(parts)

    return st.recursive(st.one_of(st.sampled_from(leaves), constants), grow, max_leaves=12)


def vector_of(e):
    """The same expression on all N lanes at once."""

    def lift(node):
        if isinstance(node, Const):
            return Broadcast(node, N)
        if isinstance(node, Load):
            return Load(node.buffer, (Ramp(const(0), const(1), N),))
        if isinstance(node, Cast):
            return Cast(node.dtype.with_lanes(N), lift(node.value))
        made = [lift(child) for child in children(node)]
        return type(node)(*made)

    return lift(e)


@functools.cache
def problem(kind):
    """Buffers, loop variable and strategies of a dtype, built once: building strategies takes Hypothesis long."""
    A, B, C, i = (*(Buffer(name, dtype(kind), (N,)) for name in "ABC"), Var("i"))
    return A, B, C, i, st.tuples(expressions(kind, [Load(A, (i,)), Load(B, (i,))]), arrays(kind), arrays(kind))


def same(actual, expected):
    if actual.dtype.kind in "fV":  # numpy's comparison does not know that a bfloat16 can be NaN
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("kind", INTEGERS + FLOATS)
@given(data=st.data())
def test_expressions_agree_with_numpy(kind, data):
    A, B, C, i, strategy = problem(kind)
    e, a, b = data.draw(strategy)
    with np.errstate(all="ignore"):
        expected = np.array(reference(e, {A: a, B: b})).astype(dtype(kind).numpy)
    ramp = Ramp(const(0), const(1), N)
    for body in (For(i, N, Store(C, (i,), e)), Store(C, (ramp,), vector_of(e))):
        c = np.zeros(N, dtype(kind).numpy)
        interpret(Func("f", [A, B, C], body), a, b, c)
        same(c, expected)


BITS = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}


@pytest.mark.parametrize("kind", INTEGERS)
@given(data=st.data())
def test_bit_intrinsics_agree_with_numpy(kind, data):
    element = dtype(kind)
    A, B, C, i = (*(Buffer(name, element, (N,)) for name in "ABC"), Var("i"))
    a, b = data.draw(arrays(kind)), data.draw(arrays(kind))
    shift = np.array(data.draw(st.lists(st.integers(0, element.bits - 1), min_size=N, max_size=N)), element.numpy)
    x, y = Load(A, (i,)), Load(B, (i,))
    cases = [(Call(name, (x, y), element), b, f(a, b)) for name, f in BITS.items()]
    cases += [
        (x << y, shift, a << shift),
        (x >> y, shift, a >> shift),
        (~x, b, ~a),
        (Call("abs", (x,), element), b, np.abs(a)),
    ]
    for e, second, expected in cases:
        c = np.zeros(N, element.numpy)
        interpret(Func("f", [A, B, C], For(i, N, Store(C, (i,), e))), a, second, c)
        np.testing.assert_array_equal(c, expected.astype(element.numpy))


def test_shifts_by_too_much_shift_everything_out():
    A, B, C, i = (*(Buffer(name, dtype("int8"), (4,)) for name in "ABC"), Var("i"))
    a, by = np.array([-5, 5, -5, 5], np.int8), np.array([8, 8, -1, 100], np.int8)
    for e, expected in (
        (Load(A, (i,)) << Load(B, (i,)), [0, 0, 0, 0]),
        (Load(A, (i,)) >> Load(B, (i,)), [-1, 0, -1, 0]),
    ):
        c = np.zeros(4, np.int8)
        interpret(Func("f", [A, B, C], For(i, 4, Store(C, (i,), e))), a, by, c)
        np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("kind", ["int4", "uint2", "int8", "uint32", "int64"])
def test_counting_bits_counts_the_bits_of_the_dtype(kind):
    element = dtype(kind)
    value, C = Var("value", element), Buffer("C", dtype("int64"), (1,))
    for given_value in (0, 1, element.max, element.min):
        bits = given_value & ((1 << element.bits) - 1)
        for name, expected in (("popcount", bin(bits).count("1")), ("clz", element.bits - bits.bit_length())):
            c = np.zeros(1, np.int64)
            count = Cast(dtype("int64"), Call(name, (value,), element))
            interpret(Func("f", [C, value], Store(C, (const(0),), count)), c, given_value)
            assert c[0] == nodes.wrap(expected, element)


FUNCTIONS = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "round": np.rint, "neg": np.negative, "abs": np.abs, "sin": np.sin, "log1p": np.log1p,
}  # fmt: skip


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float_intrinsics_agree_with_numpy(kind, name):
    element = dtype(kind)
    A, C, i = Buffer("A", element, (N,)), Buffer("C", element, (N,)), Var("i")
    a = np.array([0.0, -0.0, 0.5, 2.5, -1.5, np.inf, -np.inf, np.nan]).astype(element.numpy)
    c = np.zeros(N, element.numpy)
    interpret(Func("f", [A, C], For(i, N, Store(C, (i,), Call(name, (Load(A, (i,)),), element)))), a, c)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float32) if element.bits == 16 else a
        same(c, FUNCTIONS[name](wide).astype(element.numpy))


@pytest.mark.parametrize("name, expected", [("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)])
def test_float_tests(name, expected):
    A, C, i = Buffer("A", dtype("float32"), (4,)), Buffer("C", BOOL, (4,)), Var("i")
    a, c = np.array([1, np.nan, np.inf, -np.inf], np.float32), np.zeros(4, bool)
    interpret(Func("f", [A, C], For(i, 4, Store(C, (i,), Call(name, (Load(A, (i,)),), BOOL)))), a, c)
    np.testing.assert_array_equal(c, expected(a))


@pytest.mark.parametrize("a", [5.5, -5.5, 0.0, np.inf, np.nan])
@pytest.mark.parametrize("b", [2.0, -2.0, 0.0, np.inf, np.nan])
def test_float_remainders(a, b):
    C, x, y = Buffer("C", dtype("float64"), (3,)), Var("x", dtype("float64")), Var("y", dtype("float64"))
    values = [nodes.TruncMod(x, y), nodes.FloorMod(x, y), nodes.FloorDiv(x, y)]
    with np.errstate(all="ignore"):
        expected = [np.fmod(a, b), np.mod(a, b), np.floor(np.float64(a) / b)]
    for n, value in enumerate(values):
        c = np.zeros(3)
        interpret(Func("f", [C, x, y], Store(C, (const(n),), value)), c, a, b)
        np.testing.assert_array_equal(c[n], expected[n])


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=N, max_size=N), to=st.sampled_from(FLOATS))
def test_wide_integers_round_once_to_floats(values, to):
    element = dtype(to)
    A, C, i = Buffer("A", dtype("int64"), (N,)), Buffer("C", element, (N,)), Var("i")
    a, c = np.array(values), np.zeros(N, element.numpy)
    interpret(Func("f", [A, C], For(i, N, Store(C, (i,), Cast(element, Load(A, (i,)))))), a, c)
    wide = a.astype(np.float32) if to != "float64" else a.astype(np.float64)
    with np.errstate(all="ignore"):
        same(c, wide.astype(element.numpy))


@given(st.integers(-40, 40), st.integers(1, 9), st.integers(-9, -1))
def test_index_arithmetic_of_constants_and_loops_agrees(value, positive, negative):
    """Ranges fold constants at translation; a loop of one iteration keeps the same arithmetic dynamic or not."""
    C, i, x = Buffer("C", dtype("int64"), (1,)), Var("i"), Var("x")
    for divisor in (positive, negative):
        for kind in (nodes.FloorDiv, nodes.FloorMod, nodes.TruncDiv, nodes.TruncMod):
            folded, dynamic = np.zeros(1, np.int64), np.zeros(1, np.int64)
            interpret(Func("f", [C], Store(C, (const(0),), kind(const(value), const(divisor)))), folded)
            body = For(i, 1, Store(C, (i,), kind(Load(C, (i,)), x)))
            dynamic[0] = value
            interpret(Func("f", [C, x], body), dynamic, divisor)
            expected = on_integers(kind.__name__, [value], [divisor])
            assert folded[0] == dynamic[0] == expected[0]
