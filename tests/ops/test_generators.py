"""Operators that make tensors from little, against ONNX's cases and numpy."""

import numpy as np
import pytest

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, numbers, run_node
from weft.graph.ir import GraphError
from weft.ops.elementwise_support import ELEMENT_TYPES

OPERATORS = "BlackmanWindow Constant ConstantOfShape EyeLike HammingWindow HannWindow MelWeightMatrix Range".split()
HOST = {"test_constant", "test_melweightmatrix"}
NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case) == (case.name not in HOST)


@pytest.mark.parametrize("case", kernels(*OPERATORS, host=HOST))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


@pytest.mark.parametrize(
    ("attributes", "wanted"),
    [
        ({"value": np.arange(3, dtype=np.int8)}, np.arange(3, dtype=np.int8)),
        ({"value_float": 1.5}, np.array(1.5, np.float32)),
        ({"value_floats": [1.5, 2]}, np.array([1.5, 2], np.float32)),
        ({"value_int": 7}, np.array(7)),
        ({"value_ints": [7, 8]}, np.array([7, 8])),
        ({"value_string": "x"}, np.array("x", object)),
        ({"value_strings": ["x", "yz"]}, np.array(["x", "yz"], object)),
    ],
)
def test_constants(attributes, wanted):
    made = run_node("Constant", **attributes)[0][0]
    assert made.dtype == wanted.dtype and made.shape == wanted.shape and (made == wanted).all()


def test_a_constant_needs_one_value():
    with pytest.raises(GraphError, match="exactly one"):
        run_node("Constant")


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", ["int16", "int32", "int64", "float32", "float64", "float16"])
@pytest.mark.parametrize(("start", "limit", "step"), [(0, 10, 3), (10, 0, -3), (5, 5, 1), (0, -1, 1), (-3, 3, 2)])
def test_ranges(start, limit, step, kind):
    given = [np.array(v, kind) for v in (start, limit, step)]
    host, compiled = run_node("Range", *given)
    np.testing.assert_array_equal(host[0], np.arange(start, limit, step).astype(kind))
    assert compiled is not None
    if compiled is not None:
        np.testing.assert_array_equal(compiled[0], host[0])


def test_a_range_needs_a_step():
    with pytest.raises(GraphError, match="must not be 0"):
        run_node("Range", *[np.array(v) for v in (0, 3, 0)])


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_eyes(k):
    check_node("EyeLike", [numbers(3, 5)], np.eye(3, 5, k=k), k=k, dtype=NUMBERS["int32"])


@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
def test_constants_of_a_shape(kind):
    value = np.ones(1, kind)
    check_node("ConstantOfShape", [np.array([2, 3])], np.ones((2, 3), kind), value=value)


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize(("op", "meaning"), [("HannWindow", np.hanning), ("BlackmanWindow", np.blackman)])
def test_windows(op, meaning, periodic):
    wanted = meaning(10 + periodic)[:10]
    check_node(op, [np.array(10)], wanted, periodic=periodic, atol=1e-6)
