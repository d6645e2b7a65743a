"""Precision lowering: what is narrow, what stays float32, and that the meaning stays near."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import weft.ops  # noqa: F401
from tests.compiler.graphs import attention, convnet, mlp, random_inputs, recurrent
from tests.conftest import FULL
from tests.graph.strategies import arrays_for, graphs
from tests.graph.verifier import verify_graph
from weft.compiler import compile
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import GraphError
from weft.graph.passes.fuse import fuse
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize
from weft.graph.passes.precision import lower_precision
from weft.graph.text import parse_graph


def lowered(text, precision="bf16"):
    return lower_precision(infer(parse_graph(text)), precision)


def kinds(graph):
    """operator: element types of its inputs -> that of its output."""
    types = [
        (n.op, [v.tensor.dtype for v in n.inputs if v is not None], n.outputs[0].tensor.dtype) for n in graph.nodes
    ]
    return [f"{op} {' '.join(read)} -> {made}" for op, read, made in types]


def groups(graph):
    return [" ".join(n.op for n in g.nodes) for g in fuse(graph)]


TWO_LAYERS = """
graph g(%x: float32[4, 8], %v: float32[8, 8], %w: float32[8, 8], %b: float32[8]) -> (%y) {
    %p = MatMul(%x, %v)
    %q = Add(%p, %b)
    %r = Relu(%q)
    %y = MatMul(%r, %w)
}
"""


def test_a_value_is_rounded_once_at_the_end_of_its_group():
    graph = lowered(TWO_LAYERS)
    assert [k for k in kinds(graph) if not k.startswith("Cast")] == [
        "MatMul bfloat16 bfloat16 -> float32",
        "Add float32 float32 -> float32",
        "Relu float32 -> float32",
        "MatMul bfloat16 bfloat16 -> float32",
    ]
    assert groups(graph)[-2:] == ["MatMul Add Relu Cast", "MatMul"]


def test_inputs_and_outputs_keep_their_types():
    graph = lowered(TWO_LAYERS)
    assert [v.tensor.dtype for v in (*graph.inputs, *graph.outputs)] == ["float32"] * 5


def test_constants_are_converted_now():
    graph = lower_precision(normalize(mlp()), "bf16")
    dtypes = sorted(str(a.dtype) for a in graph.constants.values() if a.ndim == 2)
    assert dtypes == ["bfloat16"] * 3
    assert [k for k in kinds(graph) if k.startswith("Cast")] == ["Cast float32 -> bfloat16"] * 3  # x, and two results


def test_a_residual_is_stored_narrow_and_added_in_float32():
    graph = lower_precision(normalize(convnet()), "bf16")
    assert "Add float32 float32 -> float32" in kinds(graph)
    assert "Conv Cast Add Relu Cast" in groups(graph)
    assert "MaxPool bfloat16 -> bfloat16" in kinds(graph)


def test_depthwise_weights_and_what_follows_the_last_product_stay():
    found = kinds(lower_precision(normalize(convnet()), "bf16"))
    assert "Conv bfloat16 float32 float32 -> float32" in found
    assert "Softmax float32 -> float32" in found


def test_views_and_copies_work_on_narrow_values():
    found = kinds(lower_precision(normalize(attention()), "bf16"))
    assert [k for k in found if k.startswith(("Reshape", "Transpose", "Split"))]
    assert not [k for k in found if k.startswith(("Reshape float32", "Transpose float32", "Split float32"))]


def test_positions_stay_exact():
    graph = lowered("""
graph g(%x: float32[4, 8], %v: float32[8, 8], %w: float32[8, 8], %n: int64[4, 8]) -> (%y) {
    %f = Cast(%n, to=1)
    %s = ReduceSum(%f)
    %p = MatMul(%x, %v)
    %t = Add(%p, %s)
    %y = MatMul(%t, %w)
}
""")
    assert "ReduceSum float32 -> float32" in kinds(graph)
    assert "Add float32 float32 -> float32" in kinds(graph)


def test_weights_outside_the_range_keep_a_product_as_it_is():
    text = (
        "graph g(%x: float32[2, 2]) -> (%y) { const %w: float32[2, 2] = [[1e6, 1.0], [2.0, 3.0]] %y = MatMul(%x, %w) }"
    )
    text = text.replace("] %y", "]\n%y").replace("{ const", "{\nconst").replace(") }", ")\n}")
    assert kinds(lowered(text, "fp16"))[-1] == "MatMul float32 float32 -> float32"
    assert kinds(lowered(text, "bf16"))[-1] == "MatMul bfloat16 bfloat16 -> float32"


def test_a_graph_without_products_stays():
    graph = infer(parse_graph("graph g(%x: float32[4]) -> (%y) {\n%y = Exp(%x)\n}"))
    assert lower_precision(graph, "bf16") is graph
    with pytest.raises(GraphError, match="fp8"):
        lower_precision(graph, "fp8")


def test_without_matrix_instructions_only_what_waits_for_weights_is_narrow():
    graph = normalize(convnet())
    assert not [k for k in kinds(lower_precision(graph, "bf16", False)) if k.startswith("Conv bfloat16")]
    for rows, narrow in ((1, True), (4, True), (5, False)):
        text = (
            f"graph g(%x: float32[{rows}, 2]) -> (%y) {{\nconst %w: float32[2, 2] = [[1.0, 1.0], [2.0, 3.0]]\n"
            f"%y = MatMul(%x, %w)\n}}"
        )
        found = kinds(lower_precision(infer(parse_graph(text)), "bf16", False))
        assert ("MatMul bfloat16 bfloat16 -> float32" in found) == narrow


def test_lowering_twice_changes_nothing_more():
    once = lowered(TWO_LAYERS)
    assert lower_precision(once, "bf16") is once


SMOOTH = frozenset("MatMul Add Sub Mul Relu Neg Abs Tanh Sigmoid Erf Transpose Reshape Slice Concat Cast".split())


@settings(max_examples=80 if FULL else 20, deadline=None)
@given(graphs())
def test_random_graphs_stay_near_and_valid(drawn):
    graph = normalize(drawn)
    made = lower_precision(graph, "bf16")
    verify_graph(infer(made))
    inputs = arrays_for(graph)
    for a, b in zip(interpret_graph(graph, inputs), interpret_graph(made, inputs)):
        assert a.dtype == b.dtype and a.shape == b.shape
        if SMOOTH.issuperset(n.op for n in graph.nodes):  # the others may jump, or divide by a difference
            np.testing.assert_allclose(b, a, rtol=0, atol=0.1 * max(1.0, np.abs(a).max(initial=0)))


@pytest.mark.thin(2)
@pytest.mark.parametrize("make", [convnet, mlp, attention, recurrent])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_compiled_models_stay_near_float32_and_give_the_graphs_meaning(make, precision):
    graph = make()
    inputs = random_inputs(graph)
    exact = interpret_graph(graph, inputs)[0]
    module = compile(graph, precision=precision)
    found = module(*inputs)
    scale = np.abs(exact).max()
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() <= 2e-2 * scale
    meaning = interpret_graph(module.specializations[0].graph, inputs)[0]
    np.testing.assert_allclose(found, meaning, rtol=0, atol=8e-3 * scale)
    assert not module.specializations[0].host_nodes


def test_symbolic_batches_are_lowered_when_they_are_met():
    graph = mlp(Var("n"))
    module = compile(graph, precision="bf16")
    x = np.random.default_rng(0).standard_normal((3, 20), np.float32)
    exact = interpret_graph(graph, [x])[0]
    assert 0 < np.abs(module(x) - exact).max() <= 2e-2 * np.abs(exact).max()
