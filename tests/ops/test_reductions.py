"""Reductions and running totals against ONNX's cases and numpy."""

import numpy as np
import pytest

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, make, numbers, run_node
from weft.graph.ir import NUMPY_TYPES, GraphError, TensorType
from weft.graph.opspec import Infer, find_operator

OPERATORS = (
    "ArgMax ArgMin CumProd CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum ReduceSumSquare"
).split()
HOST = {c.name for c in cases(*OPERATORS) if "empty_set" in c.name and "non_reduced_axis_zero" not in c.name}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case) == (case.name not in HOST)


@pytest.mark.parametrize("case", kernels(*OPERATORS, host=HOST))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


MEANINGS = {
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceProd": np.prod,
    "ReduceL2": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0], [-1], [0, 2], [2, 1, 0], None])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
def test_axes(op, axes, keepdims):
    x = numbers(3, 4, 5)
    wanted = MEANINGS[op](x, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))
    check_node(op, [x] if axes is None else [x, np.array(axes)], wanted, keepdims=keepdims)


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int32", "int64", "uint32"])
@pytest.mark.parametrize("op", MEANINGS)
def test_types(op, kind):
    x = np.random.default_rng(0).integers(1, 5, (4, 6)).astype(NUMPY_TYPES[kind])
    host, compiled = run_node(op, x, np.array([1]))
    assert compiled is not None and compiled[0].dtype == x.dtype
    rtol = 1e-2 if kind in ("float16", "bfloat16") else 1e-9
    np.testing.assert_allclose(host[0].astype(np.float64), compiled[0].astype(np.float64), rtol=rtol)


def test_half_precision_sums_in_float32():
    """4,096 ones: float16 stops counting at 2,048."""
    check_node("ReduceSum", [np.ones(4096, np.float16)], np.full(1, 4096, np.float16))
    check_node("ReduceMean", [np.ones(4096, NUMPY_TYPES["bfloat16"])], np.ones(1))


def test_no_axes_is_no_reduction_but_the_rest_happens():
    x, none = numbers(3, 4), np.zeros(0, np.int64)
    check_node("ReduceSum", [x, none], x, noop_with_empty_axes=1)
    check_node("ReduceSumSquare", [x, none], x * x, noop_with_empty_axes=1)
    check_node("ReduceSum", [x, none], np.sum(x, keepdims=True))


def test_log_sum_exp_of_extremes():
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    wanted = np.array([1000 + np.log(2), -np.inf, np.inf], np.float32)
    check_node("ReduceLogSumExp", [x, np.array([1])], wanted, keepdims=0)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_bool_and_nan(op):
    x = np.array([[True, False], [False, False], [True, True]])
    check_node(op, [x, np.array([1])], x.any(1) if op == "ReduceMax" else x.all(1), keepdims=0)
    assert np.isnan(run_node(op, np.array([1, np.nan, 2], np.float32))[1][0][0])


def test_nothing_to_reduce():
    empty = np.zeros((2, 0), np.float32)
    for op, wanted in (("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)):
        assert run_node(op, empty, np.array([1]))[0][0].tolist() == [[wanted], [wanted]]


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_equals_and_nan(op, last):
    x = np.array([[2, 1, 1, 2], [np.nan, 5, np.nan, 0], [-np.inf] * 4, [np.inf] * 4], np.float32)
    host, compiled = run_node(op, x, axis=1, select_last_index=last, keepdims=0)
    extreme = [0, 3] if op == "ArgMax" else [1, 2]
    wanted = [extreme[last], [0, 2][last], [0, 3][last], [0, 3][last]]
    assert compiled is not None and host[0].tolist() == compiled[0].tolist() == wanted


@pytest.mark.parametrize("kind", "float16 float32 float64 int8 uint8 int32 uint32 int64 uint64".split())
def test_places_in_odd_sizes(kind):
    """Few values, so that most are met again; both zeros; the type's ends; infinities and NaN on either side."""
    is_float = kind.startswith("float")
    limits = (np.finfo if is_float else np.iinfo)(kind)
    values = [limits.min, limits.max, 0, 3, 3, 1, *([-0.0, np.inf, -np.inf, np.nan] if is_float else [])]
    g = np.random.default_rng(len(kind))
    for turn, (op, last) in enumerate((("ArgMax", 0), ("ArgMin", 1), ("ArgMax", 1), ("ArgMin", 0))):
        axis = (turn + limits.bits // 8) % 3
        x = np.array(values, kind)[g.integers(0, g.integers(1, len(values) + 1, (7, 1, 13)), (7, 37, 13))]
        seen = np.flip(x, axis) if last else x
        wanted = seen.argmax(axis) if op == "ArgMax" else seen.argmin(axis)
        wanted = x.shape[axis] - 1 - wanted if last else wanted
        _, compiled = run_node(op, x, axis=axis, select_last_index=last, keepdims=0)
        assert compiled is not None and compiled[0].dtype == np.int64
        np.testing.assert_array_equal(compiled[0], wanted)


@pytest.mark.thin(2)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_totals(axis, reverse, exclusive):
    x = numbers(3, 4, 5)
    y = np.flip(x, axis) if reverse else x
    wanted = np.cumsum(y, axis=axis)
    wanted = wanted - y if exclusive else wanted
    wanted = np.flip(wanted, axis) if reverse else wanted
    check_node("CumSum", [x, np.array(axis)], wanted, reverse=reverse, exclusive=exclusive, rtol=1e-4, atol=1e-5)


def test_axes_that_only_the_run_tells():
    spec = find_operator("ReduceSum")
    types = [TensorType("float32", (2, 3, 4)), TensorType("int64", (1,))]
    kept = spec.infer(Infer(make("ReduceSum", 2, 1, {}), types, [None, None]))[0]
    gone = spec.infer(Infer(make("ReduceSum", 2, 1, {"keepdims": 0}), types, [None, None]))[0]
    assert kept.rank == 3 and gone.rank == 2 and not kept.is_static


def test_errors():
    with pytest.raises(GraphError, match="axis 7"):
        run_node("ReduceSum", numbers(2, 3), np.array([7]))
    with pytest.raises(GraphError, match="twice"):
        run_node("ReduceSum", numbers(2, 3), np.array([1, -1]))
    with pytest.raises(GraphError, match="holds bool, not float"):
        run_node("ReduceSum", np.zeros(3, bool))
