"""turn_later: transposes go where they cost nothing, and the meaning stays."""

from __future__ import annotations

import numpy as np

import weft.ops  # noqa: F401
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph
from weft.graph.passes.infer import infer
from weft.graph.passes.turn_later import turn_later
from weft.models.builder import Builder

KIND = {"float32"}


def turned(graph: Graph) -> list[str]:
    """The operators behind the pass, which must mean the same."""
    made = turn_later(infer(graph), KIND)
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(v.tensor.static).astype(v.tensor.dtype) for v in graph.inputs]
    for want, found in zip(interpret_graph(graph, arrays), interpret_graph(made, arrays)):
        assert want.shape == found.shape
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    return [node.op for node in made.nodes]


def test_elementwise_work_comes_before_a_transpose():
    b = Builder("scaled")
    rows = b.node("MatMul", b.input("x", (2, 5, 6, 8)), b.normal(8, 4))
    other = b.node("Transpose", b.input("r", (2, 5, 6, 4)), perm=[0, 3, 1, 2])
    y = b.node("Mul", b.node("Transpose", rows, perm=[0, 3, 1, 2]), b.normal(4, 1, 1))
    assert turned(b.finish(b.node("Add", other, y))) == ["MatMul", "Mul", "Add", "Transpose"]


def test_an_image_is_turned_for_the_sum_with_rows():
    b = Builder("residual")
    image = b.node("Conv", b.input("x", (2, 3, 5, 6)), b.normal(4, 3, 1, 1))
    rows = b.node("Transpose", b.node("MatMul", b.input("y", (2, 5, 6, 8)), b.normal(8, 4)), perm=[0, 3, 1, 2])
    found = turned(b.finish(b.node("Conv", b.node("Add", image, rows), b.normal(2, 4, 1, 1))))
    assert found == ["Conv", "MatMul", "Transpose", "Add", "Transpose", "Conv"]


def test_values_that_nobody_keeps_with_channels_together_stay():
    b = Builder("plain")
    rows = b.node("Transpose", b.input("y", (2, 5, 6, 4)), perm=[0, 3, 1, 2])
    assert turned(b.finish(b.node("Add", b.input("x", (2, 4, 5, 6)), rows))) == ["Transpose", "Add"]
    b = Builder("channels")
    rows = b.node("Transpose", b.input("y", (2, 5, 6, 4)), perm=[0, 3, 1, 2])
    four = [b.normal(4) for _ in range(3)]
    norm = b.node("BatchNormalization", rows, *four, b.constant(np.ones(4, np.float32)))
    assert turned(b.finish(norm)) == ["Transpose", "BatchNormalization"]
    graph = b.finish(norm)
    assert turn_later(infer(graph), {"float16"}).nodes == infer(graph).nodes


def test_places_are_joined_behind_a_transpose_and_taken_apart_before_it():
    b = Builder("places")
    flat = b.node("Reshape", b.node("Conv", b.input("x", (2, 3, 4, 5)), b.normal(8, 3, 1, 1)), b.ints(2, 8, 20))
    rows = b.node("Relu", b.node("Transpose", flat, perm=[0, 2, 1]))
    image = b.node("Reshape", b.node("Transpose", rows, perm=[0, 2, 1]), b.ints(2, 8, 4, 5))
    found = turned(b.finish(b.node("Conv", image, b.normal(3, 8, 1, 1))))
    assert found == ["Conv", "Transpose", "Reshape", "Relu", "Reshape", "Transpose", "Conv"]


def attention(through) -> Graph:
    """Attention as PyTorch's MultiheadAttention writes it: words first, then the batch."""
    b = Builder("heads")
    x = b.node("Relu", b.input("x", (3, 5, 8)))
    packed = b.node("MatMul", b.node("Transpose", x, perm=[1, 0, 2]), b.normal(8, 24))
    packed = b.node("Add", packed, b.normal(24))
    parts = [
        b.node("Transpose", b.node("Reshape", one, b.ints(5, 3, 2, 4)), perm=[1, 2, 0, 3])
        for one in (b.node("Slice", packed, b.ints(at), b.ints(at + 8), b.ints(2)) for at in (0, 8, 16))
    ]
    y = b.node("Transpose", b.node("Attention", *parts), perm=[2, 0, 1, 3])
    y = b.node("Gemm", b.node("Reshape", y, b.ints(15, 8)), b.normal(8, 8), b.normal(8))
    y = b.node("Transpose", b.node("Reshape", y, b.ints(5, 3, 8)), perm=[1, 0, 2])
    return b.finish(b.node("Add", b.node("Add", x, y), through(b, packed)))


def test_rows_of_attention_stay_in_order():
    found = turned(attention(lambda b, packed: b.normal(8)))
    assert found[:4] == ["Relu", "MatMul", "Add", "Transpose"]  # what attention reads its operands through
    assert found[-4:] == ["Gemm", "Reshape", "Add", "Add"]


def test_rows_that_others_read_are_turned_first():
    found = turned(attention(lambda b, packed: b.node("ReduceSum", packed)))
    assert found[:4] == ["Relu", "Transpose", "MatMul", "Add"]
