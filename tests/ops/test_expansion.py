"""Operators that are made of others: open sizes, errors, and what is left out."""

import numpy as np
import pytest

import weft
from tests.ops.nodes import check_node, make, numbers
from weft.expr.nodes import Var
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import Infer, find_operator
from weft.graph.passes.expand import expand
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize
from weft.graph.passes.precision import lower_precision

MICROSOFT, LEARNING = "com.microsoft", "ai.onnx.ml"


@pytest.mark.filterwarnings("error")  # nothing runs on the host
def test_open_sizes_are_no_reason_for_the_host():
    x, y = Value("x", TensorType("float32", (Var("n"), 8))), Value("y")
    bias = Value("bias", TensorType("float32", (8,)))
    node = Node("FastGelu", [x, bias], [y], domain=MICROSOFT)
    module = weft.compile(Graph("main", [x], [y], [node], {bias: numbers(8)}))
    for rows in (3, 5):
        given = numbers(rows, 8, seed=rows)
        (wanted,) = find_operator("FastGelu", MICROSOFT).run(make("FastGelu", 2, 1, {}, MICROSOFT), [given, numbers(8)])
        np.testing.assert_allclose(module(given), wanted, rtol=1e-5, atol=1e-6)


def test_types_without_a_rank():
    spec, node = find_operator("SkipLayerNormalization", MICROSOFT), make("SkipLayerNormalization", 3, 1, {}, MICROSOFT)
    unknown, vector = TensorType("float32", None), TensorType("float32", (8,))
    (made,) = spec.types(Infer(node, [unknown, unknown, vector], [None] * 3))
    assert made.dtype == "float32" and made.shape is None


def test_what_does_not_fit_is_said_of_the_node():
    with pytest.raises(GraphError, match="3 offsets and 1 scales"):
        find_operator("Scaler", LEARNING).run(make("Scaler", 1, 1, {"offset": [1.0] * 3}, LEARNING), [numbers(2, 4)])
    cube = numbers(2, 3, 4)
    node = make("LinearRegressor", 1, 1, {"coefficients": [1.0] * 4}, LEARNING)
    with pytest.raises(GraphError, match="LinearRegressor.*not supported for float32"):
        find_operator("LinearRegressor", LEARNING).run(node, [cube])


def test_a_transform_without_an_operator():
    attributes = {"coefficients": [1.0, 0.0], "post_transform": "PROBIT"}
    (made,) = find_operator("LinearRegressor", LEARNING).run(
        make("LinearRegressor", 1, 1, attributes, LEARNING), [np.array([[0.5, 9], [0.975, 9]], "float32")]
    )
    np.testing.assert_allclose(made[:, 0], [0, 1.959964], atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 0), (0, 4)])
def test_hardmax_of_nothing(shape):
    check_node("Hardmax", [numbers(*shape)], numbers(*shape))


@pytest.mark.parametrize("size", [(2, 3, 0, 5), (2, 3, 5, 0), (0, 3, 4, 5)])
def test_a_grid_without_points(size):
    wanted = np.zeros((size[0], *size[2:], 2), "float32")
    check_node("AffineGrid", [numbers(size[0], 2, 3), np.array(size)], wanted)


def test_positions_of_a_grid_stay_float32():
    theta, size, y = (
        Value("theta", TensorType("float32", (2, 2, 3))),
        Value("size", TensorType("int64", (4,))),
        Value("y"),
    )
    graph = Graph("main", [theta], [y], [Node("AffineGrid", [theta, size], [y])], {size: np.array([2, 3, 224, 224])})
    made = lower_precision(normalize(expand(infer(graph))), "bf16")
    assert {value.tensor.dtype for node in made.nodes for value in node.outputs} == {"float32"}
