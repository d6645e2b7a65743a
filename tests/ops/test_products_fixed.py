"""Products of a few rows with weights of 24-bit whole numbers."""

import numpy as np
import pytest

import weft
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.fix_weights import fix_weights
from weft.ops.fixed_weights import fix, may_fix
from weft.targets.registry import find_target

HOST = find_target("native")
far_from_cache = pytest.mark.skipif(
    HOST.vector_bytes < 64 or (HOST.cache_bytes[1] or 0) > 4 << 20,
    reason="this machine has short vectors, or a second-level cache that holds these weights",
)
rng = np.random.default_rng(11)


def normal(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def product(x, weight, op="MatMul", bias=None, relu=False, **attributes):
    """A graph of one product with a constant weight; with `relu` its input comes from one, in another kernel."""
    given, w = (Value(n, TensorType("float32", a.shape)) for n, a in (("x", x), ("w", weight)))
    columns = weight.shape[0] if attributes.get("transB") else weight.shape[1]
    out = Value("y", TensorType("float32", (*x.shape[:-1], columns)))
    inputs, constants, nodes = [given, w], {w: weight}, []
    if relu:
        first, second = (Value(n, given.type) for n in ("a", "b"))
        eye = Value("e", TensorType("float32", (x.shape[-1],) * 2))
        constants[eye] = np.eye(x.shape[-1], dtype=np.float32)
        nodes = [Node("MatMul", [given, eye], [first], {}), Node("Relu", [first], [second], {})]
        inputs[0] = second
    if bias is not None:
        inputs.append(Value("b", TensorType("float32", bias.shape)))
        constants[inputs[2]] = bias
    return Graph("g", [given], [out], [*nodes, Node(op, inputs, [out], attributes)], constants)


def always(weight, rows):
    return fix(weight) if may_fix(weight) else None


def compiled(graph, x, threads=2):
    module = weft.compile(graph, threads=threads)
    return np.asarray(module(x)), [launch.kernel.label for launch in module.specializations[0].launches]


@pytest.mark.parametrize(
    ("shape", "columns", "options"),
    [
        ((1, 70), 40, {}), ((3, 33), 17, {}), ((1, 1, 64), 50, {}), ((2, 1, 20), 96, {}),
        ((1, 70), 40, {"op": "Gemm", "transB": 1}), ((2, 70), 40, {"op": "Gemm", "bias": True}),
        ((1, 96), 40, {"relu": True}),
    ],
)  # fmt: skip
def test_the_same_product(shape, columns, options):
    x = normal(*shape)
    weight = normal(columns, shape[-1]) if options.get("transB") else normal(shape[-1], columns)
    bias = normal(columns) if options.get("bias") else None
    graph = product(x, weight, **{**options, "bias": bias})
    fixed = fix_weights(graph, always)
    assert fixed.nodes[-1].op == "FixedMatMul"
    (wanted,) = interpret_graph(graph, [x])
    (evaluated,) = interpret_graph(fixed, [x])
    made, _ = compiled(fixed, x)
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(evaluated, wanted, atol=2e-6 * scale)
    np.testing.assert_allclose(made, wanted, atol=2e-6 * scale)


@pytest.mark.parametrize("x", [[np.inf, 1.0], [-np.inf, 1.0], [np.nan, 1.0], [np.inf, -np.inf], [3e38, 1.0], [0, 1e36]])
def test_numbers_at_the_edge(x):
    x = np.array([[*x, *[0.0] * 30]], np.float32)
    weight = np.abs(normal(32, 32)) * 0.5
    weight[0, :3] = 1e-9, 0.0, -1e-9  # small against the rest of their columns, and nothing
    graph = product(x, weight)
    (wanted,) = interpret_graph(graph, [x])
    made, _ = compiled(fix_weights(graph, always), x)
    large = np.abs(weight[0]) > 1e-3
    np.testing.assert_allclose(made[:, large], wanted[:, large], rtol=1e-5)
    same = np.isinf(wanted) | np.isnan(wanted)
    np.testing.assert_array_equal(made[same], wanted[same])


def test_what_is_left_alone():
    x, weight = normal(1, 32), normal(32, 8)
    for graph in (
        product(x, weight, op="Gemm", alpha=2.0),
        product(normal(32, 1), weight, op="Gemm", transA=1),
        product(x, weight.astype(np.float32) * np.where(np.arange(32) == 3, 1e6, 1)[:, None].astype(np.float32)),
    ):
        assert fix_weights(graph, always) is graph


@pytest.mark.parametrize("relu", [False, True])
@far_from_cache
def test_far_weights_are_fixed_and_as_exact(relu):
    x, weight = normal(1, 1024), normal(1024, 640, scale=1 / 32)  # 2.6 MB
    graph = product(x, weight, relu=relu)
    made, labels = compiled(graph, x)
    assert any(label.startswith("fixed") for label in labels)
    with knobs.override(fixed_weights=False):
        plain, others = compiled(graph, x)
    assert not any(label.startswith("fixed") for label in others)
    wanted = np.maximum(x, 0) @ weight.astype(np.float64) if relu else x @ weight.astype(np.float64)
    errors = [np.abs(y - wanted).max() / np.abs(wanted).max() for y in (made, plain)]
    assert errors[0] < 1e-6 and errors[0] < 2 * errors[1] + 1e-7
    again, _ = compiled(graph, x, threads=1)
    np.testing.assert_allclose(again, made, atol=1e-6)


def test_many_rows_and_near_weights_stay():
    for x, weight in ((normal(16, 1024), normal(1024, 640)), (normal(1, 64), normal(64, 64))):
        _, labels = compiled(product(x, weight), x)
        assert not any(label.startswith("fixed") for label in labels)
