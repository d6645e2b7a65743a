"""Quantization against ONNX's cases, in every granularity."""

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, numbers, run_node
from weft.graph.ir import GraphError

OPERATORS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
HOST_TYPES = ("int4", "int2", "float4")
HOST = {c.name for c in cases(*OPERATORS) if any(kind in c.name for kind in HOST_TYPES)}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case) == (case.name not in HOST)


@pytest.mark.parametrize("case", kernels(*OPERATORS, quick=3, host=HOST))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("granularity", ["tensor", "axis", "block"])
def test_there_and_back(granularity, kind):
    x = numbers(4, 6) * 10
    shape = {"tensor": (), "axis": (6,), "block": (4, 2)}[granularity]
    scale = np.abs(numbers(*shape, seed=1)) + 0.1
    zero = np.full(shape, 3, kind)
    options = {"axis": 1, "block_size": 4} if granularity == "block" else {"axis": 1}
    spread = np.repeat(scale, 4, 1)[:, :6] if granularity == "block" else scale
    limits = np.iinfo(kind)
    levels = np.clip(np.rint(x / spread) + 3, limits.min, limits.max).astype(kind)
    check_node("QuantizeLinear", [x, scale, zero], levels, **options)
    check_node("DequantizeLinear", [levels, scale, zero], (levels.astype(np.float32) - 3) * spread, **options)


def test_saturates_and_rounds_to_even():
    x = np.array([-1e9, 1e9, 0.5, 1.5, 2.5, np.inf, -np.inf], np.float32)
    check_node("QuantizeLinear", [x, np.array(1, np.float32)], np.array([0, 255, 0, 2, 2, 255, 0], np.uint8))


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2"])
def test_narrow_integers_on_the_host(kind):
    numpy_type = getattr(ml_dtypes, kind)
    info = ml_dtypes.iinfo(numpy_type)
    x = np.array([-100, -1, 0, 1, 100], np.float32)
    host, compiled = run_node("QuantizeLinear", x, np.array(1, np.float32), np.array(0, numpy_type))
    assert compiled is None
    assert host[0].astype(int).tolist() == np.clip(x, info.min, info.max).astype(int).tolist()


def test_float8_saturates_unless_told():
    x, scale = np.array([1e6, 1.0], np.float32), np.array(1, np.float32)
    zero = np.array(0, ml_dtypes.float8_e4m3fn)
    assert run_node("QuantizeLinear", x, scale, zero)[0][0].astype(float).tolist() == [448, 1]
    assert np.isnan(run_node("QuantizeLinear", x, scale, zero, saturate=0)[0][0].astype(float)[0])


def test_int32_without_zero_point():
    x = np.array([[100000, -7]], np.int32)
    check_node("DequantizeLinear", [x, np.array([0.5, 2], np.float32)], np.array([[50000, -14]]), axis=1)


def test_dynamic():
    x = numbers(3, 5)
    low, high = min(0, x.min()), max(0, x.max())
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    levels = np.clip(np.rint(x / scale) + zero, 0, 255)
    check_node("DynamicQuantizeLinear", [x], [levels, scale, zero], atol=1e-6)
    check_node("DynamicQuantizeLinear", [np.zeros(4, np.float32)], [np.zeros(4), np.float32(1), np.uint8(0)])


def test_errors():
    x = numbers(2, 3)
    with pytest.raises(GraphError, match="4 elements for 3 places"):
        run_node("QuantizeLinear", x, np.ones(4, np.float32))
    with pytest.raises(GraphError, match="one shape"):
        run_node("QuantizeLinear", x, np.ones(3, np.float32), np.zeros(2, np.uint8))
    with pytest.raises(GraphError, match="blocks of 2"):
        run_node("QuantizeLinear", x, np.ones((2, 3), np.float32), block_size=2)
