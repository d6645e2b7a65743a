"""Casts against ONNX's cases, and conversions at the ends of the types."""

import ml_dtypes
import numpy as np
import pytest

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import run_node
from weft.graph.ir import GraphError
from weft.ops.casts import cast_array
from weft.ops.elementwise_support import ELEMENT_TYPES

OPERATORS = ("BitCast", "Cast", "CastLike")
NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}
HOST_TYPES = ("FNUZ", "E8M0", "no_saturate_FLOAT_to_FLOAT8", "no_saturate_FLOAT16_to_FLOAT8", "FLOAT4", "INT4", "INT2")


def on_host(case):
    return any(kind in case.name for kind in HOST_TYPES)


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case) == (not on_host(case))


@pytest.mark.parametrize("case", kernels(*OPERATORS, quick=4, host=[c.name for c in cases(*OPERATORS) if on_host(c)]))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


@pytest.mark.thin(3)
@pytest.mark.parametrize("to", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16"])
def test_floats_to_integers_saturate(source, to):
    x = np.array([0, -0.0, 1.9, -1.9, 300, -300, 1e30, -1e30, np.nan, np.inf, -np.inf, 0.4])
    x = x.astype(ml_dtypes.bfloat16 if source == "bfloat16" else source)
    host, compiled = run_node("Cast", x, to=NUMBERS[to])
    assert compiled is not None
    np.testing.assert_array_equal(host[0], compiled[0])
    if to == "bool":
        assert host[0].tolist() == [False, False, *[True] * 10]
    else:
        limits = np.iinfo(to)
        assert host[0][:3].tolist() == [0, 0, 1]
        assert (host[0][6], host[0][7], host[0][8]) == (limits.max, limits.min, 0)


@pytest.mark.thin(3)
@pytest.mark.parametrize("to", ["int8", "uint16", "int32", "float16", "bfloat16", "float32", "bool"])
@pytest.mark.parametrize("source", ["int64", "uint8", "bool"])
def test_integers_drop_high_bits(source, to):
    x = np.array([0, 1, 200, 70000, -1, -200], np.int64).astype(source)
    host, compiled = run_node("Cast", x, to=NUMBERS[to])
    assert compiled is not None
    np.testing.assert_array_equal(host[0].astype(np.float64), compiled[0].astype(np.float64))


def test_strings():
    x = np.array(["3.14", "1e-5", "NaN", "-INF", "+inf", "42"], object)
    np.testing.assert_array_equal(
        run_node("Cast", x, to=NUMBERS["float32"])[0][0],
        np.array([3.14, 1e-5, np.nan, -np.inf, np.inf, 42], np.float32),
    )
    texts = run_node("Cast", np.array([0.47892547, np.nan, np.inf, -1.0], np.float32), to=NUMBERS["string"])[0][0]
    assert texts.tolist() == ["0.47892547", "NaN", "INF", "-1.0"]
    assert run_node("Cast", np.array(["100.5", "-7"], object), to=NUMBERS["int64"])[0][0].tolist() == [100, -7]
    with pytest.raises(GraphError, match="Hello"):
        run_node("Cast", np.array(["Hello World!"], object), to=NUMBERS["int64"])


def test_powers_of_two():
    """float8_e8m0 has only an exponent: every way to round to it."""
    x = np.array([0.0, 1.0, 1.1, 1.5, 1.9, 1e-45, 3e38, np.inf, np.nan], np.float32)
    to = "float8_e8m0fnu"
    assert cast_array(x, to).view(np.uint8).tolist() == [0, 127, 128, 128, 128, 0, 254, 254, 255]
    assert cast_array(x, to, round_mode="down").view(np.uint8).tolist() == [0, 127, 127, 127, 127, 0, 254, 254, 255]
    loose = cast_array(x, to, saturate=False, round_mode="nearest").view(np.uint8).tolist()
    assert loose == [255, 127, 127, 128, 128, 255, 255, 255, 255]


def test_bits_of_narrow_types():
    x = np.arange(-8, 8).astype(ml_dtypes.int4)
    unsigned = run_node("BitCast", x, to=NUMBERS["uint4"])[0][0]
    assert unsigned.astype(int).tolist() == [*range(8, 16), *range(8)]
    back = run_node("BitCast", unsigned, to=NUMBERS["int4"])[0][0]
    assert back.astype(int).tolist() == list(range(-8, 8))
    floats = run_node("BitCast", unsigned, to=NUMBERS["float4_e2m1fn"])[0][0]
    np.testing.assert_array_equal(
        run_node("BitCast", floats, to=NUMBERS["uint4"])[0][0].astype(int), unsigned.astype(int)
    )


def test_widths_must_agree():
    with pytest.raises(GraphError, match="one width"):
        run_node("BitCast", np.zeros(2, np.float32), to=NUMBERS["int64"])
    with pytest.raises(GraphError, match="element type 99"):
        run_node("Cast", np.zeros(2, np.float32), to=99)
