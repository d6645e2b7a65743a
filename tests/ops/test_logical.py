"""Comparisons, connectives and bits against ONNX's cases, and at the edges."""

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import run_node

OPERATORS = (
    "And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater GreaterOrEqual IsInf IsNaN Less "
    "LessOrEqual Not Or Xor"
).split()
HOST = {"test_equal_string", "test_equal_string_broadcast"}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case) == (case.name not in HOST)


@pytest.mark.parametrize("case", kernels(*OPERATORS, host=HOST))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts_past_the_width(kind, direction):
    bits = np.dtype(kind).itemsize * 8
    x = np.array([5, -5, 5, -5, 1, -1], np.int64).astype(kind)
    amount = np.array([1, 1, bits, bits, bits - 1, 0], np.int64).astype(kind)
    host, compiled = run_node("BitShift", x, amount, direction=direction)
    assert compiled is not None
    np.testing.assert_array_equal(host[0], compiled[0])
    if direction == "RIGHT" and kind.startswith("int"):
        assert host[0].tolist() == [2, -3, 0, -1, 0, -1]


def test_comparisons_with_nan():
    x, y = np.array([np.nan, 1, np.inf], np.float32), np.array([np.nan, np.nan, np.inf], np.float32)
    for op, wanted in (("Equal", [0, 0, 1]), ("Less", [0, 0, 0]), ("GreaterOrEqual", [0, 0, 1])):
        host, compiled = run_node(op, x, y)
        assert compiled is not None and host[0].tolist() == compiled[0].tolist() == [bool(w) for w in wanted]


@pytest.mark.parametrize(
    ("up", "down", "wanted"), [(1, 1, [1, 1, 0]), (1, 0, [1, 0, 0]), (0, 1, [0, 1, 0]), (0, 0, [0] * 3)]
)
def test_signs_of_infinity(up, down, wanted):
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    host, compiled = run_node("IsInf", x, detect_positive=up, detect_negative=down)
    assert compiled is not None and host[0].tolist() == compiled[0].tolist() == [bool(w) for w in wanted]


def test_float8():
    x = np.array([np.nan, 1], ml_dtypes.float8_e5m2)
    host, compiled = run_node("IsNaN", x)
    assert compiled is not None and host[0].tolist() == compiled[0].tolist() == [True, False]
