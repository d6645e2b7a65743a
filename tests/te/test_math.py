"""Every scalar function, for every float type: numpy, the interpreter and compiled code agree."""

import math

import numpy as np
import pytest

from tests.te.support import check, numbers
from weft import te
from weft.core.errors import WeftError

FLOATS = ["float32", "float64", "float16", "bfloat16"]
ERF = np.vectorize(math.erf)
# name -> (numpy's function on float64, the values it is asked for)
UNARY = {
    "exp": (np.exp, (-4, 4)), "exp2": (np.exp2, (-4, 4)), "expm1": (np.expm1, (-3, 3)), "log": (np.log, (0.01, 9)),
    "log2": (np.log2, (0.01, 9)), "log10": (np.log10, (0.01, 9)), "log1p": (np.log1p, (-0.9, 9)),
    "sqrt": (np.sqrt, (0, 9)), "rsqrt": (lambda x: 1 / np.sqrt(x), (0.1, 9)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-8, 8)), "erf": (ERF, (-3, 3)), "tanh": (np.tanh, (-4, 4)),
    "sin": (np.sin, (-7, 7)), "cos": (np.cos, (-7, 7)), "tan": (np.tan, (-1.4, 1.4)),
    "asin": (np.arcsin, (-1, 1)), "acos": (np.arccos, (-1, 1)), "atan": (np.arctan, (-9, 9)),
    "sinh": (np.sinh, (-4, 4)), "cosh": (np.cosh, (-4, 4)), "asinh": (np.arcsinh, (-9, 9)),
    "acosh": (np.arccosh, (1, 9)), "atanh": (np.arctanh, (-0.95, 0.95)),
    "floor": (np.floor, (-9, 9)), "ceil": (np.ceil, (-9, 9)), "trunc": (np.trunc, (-9, 9)), "round": (np.rint, (-9, 9)),
    "round_away": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), (-9, 9)),
    "neg": (np.negative, (-9, 9)), "abs": (np.abs, (-9, 9)), "sign": (np.sign, (-9, 9)),
    "relu": (lambda x: np.maximum(x, 0), (-9, 9)),
}  # fmt: skip
BINARY = {
    "power": (np.power, (0.1, 4), (-3, 3)), "atan2": (np.arctan2, (-4, 4), (-4, 4)),
    "fmod": (np.fmod, (-9, 9), (0.5, 3)), "copysign": (np.copysign, (-9, 9), (-9, 9)),
    "maximum": (np.maximum, (-9, 9), (-9, 9)), "minimum": (np.minimum, (-9, 9), (-9, 9)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_unary_functions(dtype):
    A = {name: te.placeholder((33,), dtype, name=f"A_{name}") for name in UNARY}
    B = [te.compute((33,), lambda i, name=name: getattr(te, name)(A[name][i]), name=name) for name in UNARY]
    given = {A[name]: numbers(33, dtype=dtype, low=low, high=high) for name, (_, (low, high)) in UNARY.items()}
    want = [function(given[A[name]].astype("float64")) for name, (function, _) in UNARY.items()]
    check(B, given, want, atol={"float16": 1e-2, "bfloat16": 1e-1, "float32": 1e-5}.get(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_binary_functions(dtype):
    A = {name: te.placeholder((33,), dtype, name=f"A_{name}") for name in BINARY}
    B = {name: te.placeholder((33,), dtype, name=f"B_{name}") for name in BINARY}
    C = [te.compute((33,), lambda i, n=name: getattr(te, n)(A[n][i], B[n][i]), name=name) for name in BINARY]
    given = {A[n]: numbers(33, dtype=dtype, low=r[0], high=r[1]) for n, (_, r, _) in BINARY.items()}
    given |= {B[n]: numbers(33, dtype=dtype, low=r[0], high=r[1], seed=1) for n, (_, _, r) in BINARY.items()}
    want = [f(given[A[n]].astype("float64"), given[B[n]].astype("float64")) for n, (f, _, _) in BINARY.items()]
    check(C, given, want, atol={"float16": 5e-2, "bfloat16": 2e-1}.get(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_arithmetic(dtype):
    A, B = te.placeholder((9,), dtype, name="A"), te.placeholder((9,), dtype, name="B")
    makes = [
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: 1.0 - x,
        lambda x, y: 2.0 / y, lambda x, y: -x, lambda x, y: x // y, lambda x, y: x % y,
    ]  # fmt: skip
    outputs = [te.compute((9,), lambda i, make=make: make(A[i], B[i]), name=f"C{n}") for n, make in enumerate(makes)]
    a, b = numbers(9, dtype=dtype), numbers(9, dtype=dtype, low=0.5, high=2, seed=1)
    exact = [make(a.astype("float64"), b.astype("float64")) for make in makes]
    check(outputs, {A: a, B: b}, exact, atol={"float16": 1e-2, "bfloat16": 1e-1}.get(dtype))


def test_fma_clip_and_constants():
    A = te.placeholder((9,), name="A")
    B = te.compute((9,), lambda i: te.fma(A[i], 2.0, A[i]), name="B")
    C = te.compute((9,), lambda i: te.clip(A[i], -1.0, 0.5), name="C")
    D = te.compute((9,), lambda i: te.power(2.0, A[i]) + (A[i] + 4.0) ** 2 + 2.0 ** A[i], name="D")
    a = numbers(9)
    check([B, C, D], {A: a}, [a * 2 + a, a.clip(-1, 0.5), 2**a + (a + 4) ** 2 + 2**a])


SPECIAL = [0.0, -0.0, 1.5, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_not_a_number_and_infinities(dtype):
    A = te.placeholder((9,), dtype, name="A")
    zero = te.cast(0.0, dtype)
    with np.errstate(all="ignore"):
        a = np.array(SPECIAL).astype(A.dtype.numpy)
        w = a.astype("float64")
        makes = {
            "isnan": (te.isnan, np.isnan(w)), "isinf": (te.isinf, np.isinf(w)),
            "isfinite": (te.isfinite, np.isfinite(w)),
            "top": (lambda x: te.maximum(x, zero), np.maximum(w, 0)),
            "low": (lambda x: te.minimum(x, zero), np.minimum(w, 0)),
            "clip": (lambda x: te.clip(x, -1.0, 1.0), w.clip(-1, 1)),
            "sign": (te.sign, np.sign(w)), "relu": (te.relu, np.maximum(w, 0)), "tanh": (te.tanh, np.tanh(w)),
            "sigmoid": (te.sigmoid, 1 / (1 + np.exp(-w))), "floor": (te.floor, np.floor(w)), "abs": (te.abs, np.abs(w)),
            "less": (lambda x: x < zero, w < 0), "equal": (lambda x: te.equal(x, x), w == w),
            "int32": (lambda x: x.astype("int32"), np.clip(np.nan_to_num(np.trunc(w), nan=0), -(2**31), 2**31 - 1)),
            "uint8": (lambda x: x.astype("uint8"), np.clip(np.nan_to_num(np.trunc(w), nan=0), 0, 255)),
            "bool": (lambda x: x.astype("bool"), w != 0),
        }  # fmt: skip
        outputs = [te.compute((9,), lambda i, f=f: f(A[i]), name=name) for name, (f, _) in makes.items()]
        wanted = [want.astype(t.dtype.numpy) for t, (_, want) in zip(outputs, makes.values())]
        check(outputs, {A: a}, wanted)


def test_sums_and_maxima_of_not_a_number():
    A = te.placeholder((3, 4), name="A")
    k = te.reduce_axis(4)
    outputs = [te.compute((3,), lambda i, f=f: f(A[i, k], axis=k), name=f.__name__) for f in (te.sum, te.max, te.min)]
    a = np.array([[1, np.nan, 2, 3], [np.inf, 1, 2, 3], [np.inf, -np.inf, 0, 1]], "float32")
    with np.errstate(all="ignore"):
        check(outputs, {A: a}, [a.sum(1), a.max(1), a.min(1)])


CASTS = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
]  # fmt: skip


@pytest.mark.parametrize("source", CASTS)
def test_casts(source):
    A = te.placeholder((8,), source, name="A")
    kind = A.dtype
    values = [0, 1, 2, 3, 100, kind.max if not kind.is_float else 1000, kind.min if not kind.is_float else -7.5, 50]
    a = np.array(values).astype(kind.numpy) if not kind.is_bool else np.array([0, 1] * 4, bool)
    outputs = [te.compute((8,), lambda i, to=to: A[i].astype(to), name=f"to_{to}") for to in CASTS]
    check(outputs, {A: a}, [convert(a, t.dtype) for t in outputs])


def convert(a, kind):
    """As Weft defines it: floats to integers round to zero and saturate, integers wrap."""
    if kind.is_integer and (a.dtype.kind == "f" or a.dtype.name == "bfloat16"):
        whole = [min(max(int(x), kind.min), kind.max) for x in a.astype("float64")]
        return np.array(whole, kind.numpy)
    with np.errstate(all="ignore"):
        return a.astype(kind.numpy)


def test_reinterpret():
    A = te.placeholder((5,), "float32", name="A")
    B = te.compute((5,), lambda i: te.reinterpret(A[i], "uint32"), name="B")
    C = te.compute((5,), lambda i: te.reinterpret(te.reinterpret(A[i], "int32") & 0x7FFFFFFF, "float32"), name="C")
    a = numbers(5)
    check([B, C], {A: a}, [a.view("uint32"), np.abs(a)])


@pytest.mark.parametrize("name", sorted([*UNARY, "popcount", "clz"]))
def test_functions_refuse_other_types(name):
    takes_integers = name in ("abs", "sign", "relu", "neg")
    refused = "bool" if takes_integers else "float32" if name in ("popcount", "clz") else "int32"
    A = te.placeholder((5,), refused, name="A")
    with pytest.raises(WeftError, match="bool|needs an? (float|integer)"):
        te.compute((5,), lambda i: getattr(te, name)(A[i]))
