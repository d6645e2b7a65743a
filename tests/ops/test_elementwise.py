"""Elementwise arithmetic against ONNX's cases, in every element type, and at the edges of the types."""

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, check_symbolic, numbers, run_node
from weft.graph.ir import NUMPY_TYPES, Graph, GraphError, Node, TensorType, Value

OPERATORS = (
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Clip Cos Cosh Div Erf Exp Floor Identity Log Max Mean Min Mod Mul "
    "Neg Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Tanh Where"
).split()
HOST = {"test_identity_sequence", "test_identity_opt", "test_pow_types_int32_int32", "test_pow_types_int64_int64"}
INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
FLOATS = "float16 bfloat16 float32 float64".split()


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case) == (case.name not in HOST)


@pytest.mark.parametrize("case", kernels(*OPERATORS, host=HOST))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


def both(op, *arrays, rtol=1e-6, **options):
    """Both meanings give the same; returns it."""
    host, compiled = run_node(op, *arrays, **options)
    assert compiled is not None
    for a, b in zip(host, compiled):
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            wide = np.float64
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=rtol, atol=rtol)
    return host[0]


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", INTEGERS + FLOATS)
@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Mod", "Max"])
def test_two_inputs_in_every_type(op, kind):
    a = numbers(3, 1, 4, dtype="int32").astype(NUMPY_TYPES[kind])
    b = numbers(5, 1, seed=1, dtype="int32").astype(NUMPY_TYPES[kind])
    made = both(op, a, b, rtol=1e-2 if kind in ("float16", "bfloat16") else 1e-6)
    assert made.shape == (3, 5, 4) and made.dtype == NUMPY_TYPES[kind]


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("op", ["Exp", "Tanh", "Erf", "Sqrt"])
def test_one_input_in_every_float(op, kind):
    x = np.abs(numbers(40)).astype(NUMPY_TYPES[kind])
    assert both(op, x, rtol=1e-2 if kind in ("float16", "bfloat16") else 1e-5).dtype == NUMPY_TYPES[kind]


def test_integer_division_rounds_to_zero_and_survives_zero():
    low = np.iinfo(np.int32).min
    a = np.array([7, -7, 7, -7, 5, low], np.int32)
    b = np.array([2, 2, -2, -2, 0, -1], np.int32)
    np.testing.assert_array_equal(both("Div", a, b), [3, -3, -3, 3, 0, low])


@pytest.mark.parametrize(("fmod", "wanted"), [(0, [1, 1, -1, -1]), (1, [1, -1, 1, -1])])
def test_modulo_has_the_sign_of_divisor_or_dividend(fmod, wanted):
    a, b = np.array([7, -7, 7, -7], np.int64), np.array([2, 2, -2, -2], np.int64)
    np.testing.assert_array_equal(both("Mod", a, b, fmod=fmod), wanted)
    np.testing.assert_array_equal(both("Mod", a.astype(np.float32), b.astype(np.float32), fmod=fmod), wanted)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_nan_wins(op):
    a, b = np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 3], np.float32)
    assert np.isnan(both(op, a, b)).tolist() == [True, True, False]


def test_clip_keeps_nan_and_prefers_the_upper_bound():
    x = np.array([np.nan, -5, 0, 5], np.float32)
    low, high = np.array(2, np.float32), np.array(1, np.float32)
    np.testing.assert_array_equal(both("Clip", x, low, high), np.array([np.nan, 1, 1, 1], np.float32))
    np.testing.assert_array_equal(both("Clip", x, None, high, known=(2,)), np.array([np.nan, -5, 0, 1], np.float32))
    np.testing.assert_array_equal(both("Clip", x, low), np.array([np.nan, 2, 2, 5], np.float32))


def test_round_goes_to_even():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    np.testing.assert_array_equal(both("Round", x), [0, 2, 2, -0.0, -2])


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 0.5, -1.0])
def test_powers_that_are_known(exponent):
    x = np.abs(numbers(20)) + 0.1
    check_node("Pow", [x, np.array(exponent, np.float32)], x**exponent, known=(1,), rtol=1e-5)


def test_integer_powers_wrap():
    x = np.array([3, -2, 70000], np.int32)
    np.testing.assert_array_equal(both("Pow", x, np.array(3, np.int64), known=(1,)), x * x * x)
    for kind in (np.int64, np.int32):
        host, compiled = run_node("Pow", np.array([2, 3, 7], kind), np.array([106, 106, -1], kind))
        assert compiled is None and host[0].tolist() == [0, np.array(3**106 % 2**64, np.uint64).astype(kind), 0]
    wanted = [1, 0, 1, -1]
    x = np.array([1, 2, -1, -1], np.int64)
    np.testing.assert_array_equal(run_node("Pow", x, np.array([-3, -3, -2, -3], np.int64))[0][0], wanted)


def test_sign_of_everything():
    x = np.array([-3, 0, 7, np.nan], np.float32)
    np.testing.assert_array_equal(both("Sign", x), np.array([-1, 0, 1, np.nan], np.float32))
    np.testing.assert_array_equal(both("Sign", np.array([0, 9], np.uint8)), [0, 1])


def test_where_of_strings_and_narrow_types_is_on_the_host():
    condition = np.array([True, False])
    host, compiled = run_node("Where", condition, np.array(["a", "b"], object), np.array(["c", "d"], object))
    assert compiled is None and host[0].tolist() == ["a", "d"]
    x = np.array([1, 2], ml_dtypes.int4)
    host, compiled = run_node("Where", condition, x, x)
    assert compiled is None and host[0].dtype == x.dtype


def test_no_elements():
    host, compiled = run_node("Add", np.zeros((0, 3), np.float32), np.zeros((1, 3), np.float32))
    assert host[0].shape == (0, 3) and compiled is not None


@pytest.mark.filterwarnings("error")  # nothing runs on the host
def test_no_elements_are_no_reason_for_the_host():
    x, bias, total = (Value(n, TensorType("float32", s)) for n, s in (("x", (0, 3)), ("bias", (3,)), ("y", (0, 3))))
    module = weft.compile(Graph("main", [x, bias], [total], [Node("Add", [x, bias], [total])]))
    assert module(np.zeros((0, 3), np.float32), numbers(3)).shape == (0, 3)


def test_named_sizes_broadcast():
    check_symbolic("Add", [numbers(2, 3), numbers(3)], {(0, 0): "n", (0, 1): "m", (1, 0): "m"})


@pytest.mark.parametrize(
    ("op", "arrays", "text"),
    [
        ("Add", [numbers(2), numbers(3)], "broadcast"),
        ("Add", [numbers(2), numbers(2).astype(np.float64)], "holds float64, not a .float32."),
        ("Exp", [numbers(2, dtype="int32")], "holds int32, not float"),
        ("Where", [numbers(2), numbers(2), numbers(2)], "holds float32, not bool"),
    ],
)
def test_errors_name_the_node(op, arrays, text):
    with pytest.raises(GraphError, match=f"node 'test' .*{text}"):
        run_node(op, *arrays)
