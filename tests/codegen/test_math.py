"""Accuracy of the elementary functions over their whole range, and their special values."""

import math

import numpy as np
import pytest

from tests.codegen.support import map_many, map_values, ulp_error
from tests.hosts import lesser
from weft.core.dtypes import dtype
from weft.core.errors import TargetError
from weft.expr.intrinsics import FLOAT_UNARY, PURE
from weft.expr.nodes import Call, const

rng = np.random.default_rng(3)
TARGETS = ["native", *lesser(x86=("-avx512f,-fma",))]
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45, 1.1754944e-38, -1.1754944e-38, 1e-39, 3.4e38, -3.4e38,
     88.72, 88.73, -87.3, -103.97, -104, -103.9, 0.5, 2, 1e6, 1e7, 1048576, 127.99, 128, -149, -150, -149.5, 0.9375,
     3.95],
    np.float32,
)  # fmt: skip
erf = np.vectorize(math.erf, otypes=[np.float64])
# name: reference, ranges looked at closely, allowed error in units of the last place
FUNCTIONS = {
    "exp": (np.exp, [(-104, 89), (-1, 1)], 1.5),
    "exp2": (np.exp2, [(-150, 128), (-1, 1)], 1.5),
    "expm1": (np.expm1, [(-20, 89), (-1, 1)], 2),
    "log": (np.log, [(0, 4), (0.5, 1.5), (0, 1e30)], 1.5),
    "log2": (np.log2, [(0, 4), (0.5, 1.5)], 2.5),
    "log10": (np.log10, [(0, 4), (0.5, 1.5)], 2.5),
    "log1p": (np.log1p, [(-1, 4), (-0.1, 0.1)], 2.5),
    "tanh": (np.tanh, [(-10, 10), (-1, 1)], 3),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), [(-104, 89), (-1, 1)], 3),
    "erf": (erf, [(-5, 5), (-1, 1)], 2.5),
    "sin": (np.sin, [(-10, 10), (-1e5, 1e5), (-1048576, 1048576), (1e6, 1e9)], 2),
    "cos": (np.cos, [(-10, 10), (-1e5, 1e5), (-1048576, 1048576), (1e6, 1e9)], 2),
}


def points(ranges, count=40_000):
    everything = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    close = [np.linspace(low, high, count).astype(np.float32) for low, high in ranges]
    return np.concatenate([SPECIAL, everything, *close, (np.linspace(-1, 1, count) ** 5 * 1e-3).astype(np.float32)])


def apply(name, kind, *arrays, lanes=16, target="native"):
    return map_values(
        lambda *v: Call(name, v, v[0].dtype), kind, *arrays, lanes=lanes, kinds=[kind] * len(arrays), target=target
    )


@pytest.mark.thin(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_accuracy(name, target):
    reference, ranges, allowed = FUNCTIONS[name]
    x = points(ranges)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64 if name == "erf" else np.longdouble))
        rounded = exact.astype(np.float32)
    got = apply(name, "float32", x, target=target)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    zero = got == 0
    np.testing.assert_array_equal(np.signbit(got)[zero], np.signbit(rounded)[zero])
    error = ulp_error(got, exact)
    if name == "sigmoid":  # it has no denormal results
        error[zero & (exact < 1.1755e-38)] = 0
    worst = int(np.argmax(error))
    assert error[worst] <= allowed, f"{name}({x[worst]!r}) = {got[worst]!r}, exactly {exact[worst]!r}"


@pytest.mark.parametrize("target", TARGETS)
def test_normal_cdf(target):
    """Near enough for a sum, and exact where it is 0 or NaN."""
    x = points([(-7, 7), (-1, 1)])
    got = apply("normal_cdf", "float32", x, target=target)
    inner = np.clip(np.nan_to_num(x.astype(np.float64)), -9, 9)
    exact = np.where(np.isnan(x), np.nan, 0.5 * (1 + erf(inner * 0.5**0.5)))
    np.testing.assert_allclose(got, exact, rtol=0, atol=4e-7)
    assert not got[x < -5.6].any() and np.all(got[~np.isnan(x)] >= 0)


@pytest.mark.parametrize("name", [*FUNCTIONS, "normal_cdf"])
def test_lane_counts_agree(name):
    """To the bit; one lane divides where a whole register is inverted (`math.inverse`): a unit or two apart."""
    x = np.concatenate([SPECIAL, np.random.default_rng(1).normal(size=3_000).astype(np.float32)])
    x = x[: len(x) // 48 * 48]
    vectors = apply(name, "float32", x, lanes=16)
    for lanes in (1, 3, 8):
        apart = 2.0**-22 if lanes == 1 and name in ("tanh", "sigmoid", "normal_cdf") else 0
        np.testing.assert_allclose(apply(name, "float32", x, lanes=lanes), vectors, rtol=apart, atol=0)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_every_pure_float_function(kind):
    numpy = dtype(kind).numpy
    wide = np.float64 if kind == "float64" else np.float32
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}[kind]
    makes = [lambda x, n=name: Call(n, (x,), x.dtype) for name in FLOAT_UNARY]
    for low, high in ((-0.9, 0.9), (1.1, 9.0)):
        x = np.linspace(low, high, 64).astype(numpy)
        for lanes in (1, 16):
            for got, name in zip(map_many(makes, [kind] * len(makes), x, lanes=lanes, kinds=[kind]), FLOAT_UNARY):
                with np.errstate(all="ignore"):
                    expected = np.asarray(PURE[name].evaluate(x.astype(wide))).astype(np.float64)
                np.testing.assert_allclose(
                    got.astype(np.float64), expected, rtol=tolerance, atol=tolerance / 10, err_msg=name
                )


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_functions_of_two(kind, lanes):
    numpy = dtype(kind).numpy
    x, y = (v.astype(numpy) for v in rng.normal(size=(2, 200)) * 3)
    for name in ("atan2", "fmod", "floor_fmod", "copysign", "pow"):
        a = np.abs(x) if name == "pow" else x
        with np.errstate(over="ignore"):
            expected = PURE[name].evaluate(a, y).astype(np.float64)
        np.testing.assert_allclose(
            apply(name, kind, a, y, lanes=lanes).astype(np.float64), expected, rtol=2e-3 if kind == "float16" else 1e-6
        )


@pytest.mark.parametrize("target", TARGETS)
def test_power_over_the_whole_range(target):
    """Every pair of special values, exponents that are whole numbers, and results from denormals to the largest."""
    exponents = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, 3, -3, 0.5, 1e9, 16777217, 8388609, -2.5], np.float32
    )
    x, y = (v.ravel() for v in np.meshgrid(np.concatenate([SPECIAL, [-2.5, -8.0]]), exponents))
    positive = np.exp(rng.uniform(-100, 88, 30_000))
    anything = np.concatenate([positive, rng.normal(size=10_000), 1 + rng.normal(size=10_000) * 1e-3])
    wanted = rng.uniform(-150, 130, len(anything))
    with np.errstate(all="ignore"):
        reach = np.where(anything > 0, wanted / np.log2(np.abs(anything)), np.round(rng.normal(size=len(anything)) * 9))
        a = np.concatenate([x, anything]).astype(np.float32)
        b = np.concatenate([y, reach]).astype(np.float32)
        exact = np.power(a.astype(np.float64), b.astype(np.float64))
        rounded = exact.astype(np.float32)
    got = apply("pow", "float32", a, b, target=target)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(rounded[~np.isnan(got)]))
    finite = np.isfinite(rounded) & np.isfinite(got)
    assert np.all(np.abs(got[~finite & ~np.isnan(got)]) > 3.4e38)
    assert np.max(ulp_error(got[finite], exact[finite])) <= 1.5


def test_power_with_constant_exponents():
    x = np.concatenate([SPECIAL, rng.normal(size=64).astype(np.float32)])
    for exponent in (2.0, 1.0, -1.0, 3.0, 0.0, -1.5):
        with np.errstate(all="ignore"):
            expected = np.power(x.astype(np.float64), exponent).astype(np.float32)
        got = map_values(lambda v, e=exponent: Call("pow", (v, const(e, v.dtype)), v.dtype), "float32", x)
        assert np.all(ulp_error(got, expected.astype(np.float64)) <= 1)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_classification(kind):
    with np.errstate(over="ignore"):
        x = SPECIAL.astype(dtype(kind).numpy) if kind != "int32" else np.arange(16, dtype=np.int32)
    for name, reference in (("isnan", np.isnan), ("isinf", np.isinf), ("isfinite", np.isfinite)):
        for lanes in (1, 16):
            make = lambda v, n=name: Call(n, (v,), dtype("bool").with_lanes(v.dtype.lanes))
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(map_values(make, "bool", x, lanes=lanes, kinds=[kind]), reference(x))


def test_rounding_functions():
    x = np.concatenate(
        [SPECIAL, np.arange(-5, 5, 0.25, dtype=np.float32), np.float32([0.49999997, 8388609.5, 2.5, -0.5])]
    )
    for name in ("floor", "ceil", "trunc", "round"):
        got = apply(name, "float32", x)
        expected = PURE[name].evaluate(x)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got[x == x]), np.signbit(expected[x == x]))
    away = apply("round_away", "float32", np.float32([0.5, -0.5, 1.5, 2.5, -2.5, 0.25, 3]))
    np.testing.assert_array_equal(away, np.float32([1, -1, 2, 3, -3, 0, 3]))


def test_functions_of_floats_refuse_integers():
    with pytest.raises(TargetError, match="exp is defined on floats, not on int32"):
        map_values(lambda v: Call("exp", (v,), v.dtype), "int32", np.arange(16, dtype=np.int32), lanes=1)
