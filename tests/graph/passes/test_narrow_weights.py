"""Weights that hold no more than 16 bits stay so narrow, and mean the same."""

import numpy as np
import pytest

import weft
from tests.ops.nodes import make
from weft.graph.ir import NUMPY_TYPES, Graph, TensorType, Value
from weft.graph.passes.infer import infer
from weft.graph.passes.narrow_weights import narrow_weights


def product(op, weight, rows=1, bias=None, **attributes):
    arrays = [weight] if bias is None else [weight, bias]
    node = make(op, 1 + len(arrays), 1, attributes)
    inner = weight.shape[1] if attributes.get("transB") else weight.shape[0]
    values = [Value(f"w{i}", TensorType("float32", a.shape)) for i, a in enumerate(arrays)]
    x = Value("x", TensorType("float32", (rows, inner)))
    graph = Graph("g", [x], node.outputs, [node.replace(inputs=[x, *values])], dict(zip(values, arrays)))
    return infer(graph)


def weights(kind, *shape):
    return np.random.default_rng(0).standard_normal(shape).astype(NUMPY_TYPES[kind]).astype(np.float32)


def always(rows, size):
    return True


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_matmul(kind):
    made = narrow_weights(product("MatMul", weights(kind, 8, 6)), always)
    assert [node.op for node in made.nodes] == ["NarrowMatMul"]
    assert [value.type.dtype for value in made.constants] == [kind]


def test_gemm():
    made = narrow_weights(product("Gemm", weights("bfloat16", 6, 8), 2, np.ones(6, np.float32), transB=1), always)
    assert [node.op for node in made.nodes] == ["NarrowMatMul", "Add"]


def test_weights_that_need_their_bits_stay():
    wide = weights("bfloat16", 200, 60)
    wide[-1, -1] = np.float32(1) + np.float32(2) ** -23  # behind what is looked at first
    for array in (wide, weights("float32", 8, 6)):
        graph = product("MatMul", array)
        assert narrow_weights(graph, always) is graph
    graph = product("MatMul", weights("bfloat16", 8, 6))
    assert narrow_weights(graph, lambda rows, size: False) is graph


@pytest.mark.parametrize("kind,rows", [("bfloat16", 1), ("float16", 3)])
def test_compiled(kind, rows):
    weight = weights(kind, 768, 768)  # far enough from the caches to be worth it
    module = weft.compile(product("Gemm", weight, rows, np.ones(768, np.float32)))
    assert "narrowmatmul" in module.report()
    x = np.random.default_rng(1).standard_normal((rows, 768)).astype(np.float32)
    want = x.astype(np.float64) @ weight + 1
    np.testing.assert_allclose(module(x), want, rtol=0, atol=1e-6 * np.abs(want).max() * 10)
