"""turn_products: one row times a transposed matrix reads the matrix where it lies."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graphs import check, random_inputs
from weft.graph.passes.turn_products import turn_products
from weft.models.builder import Builder


def product(left, right, order, dtype="float32"):
    """MatMul(q, Transpose(k))."""
    b = Builder("product")
    q, k = b.input("q", left, dtype), b.input("k", right, dtype)
    return b.finish(b.node("MatMul", q, b.node("Transpose", k, perm=order)))


def operators(graph):
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize(
    "left,right,order,wanted",
    [
        ((1, 4, 1, 32), (1, 4, 50, 32), [0, 1, 3, 2], ["Reshape", "MatMul", "Reshape"]),
        ((1, 32), (50, 32), [1, 0], ["Reshape", "MatMul", "Reshape"]),
        ((3, 1, 8), (20, 8), [1, 0], ["Reshape", "MatMul", "Reshape"]),
        ((2, 4, 1, 32), (2, 50, 4, 32), [0, 2, 3, 1], ["Transpose", "Reshape", "MatMul", "Reshape"]),
        ((2, 4, 2, 32), (2, 4, 50, 32), [0, 1, 3, 2], ["Transpose", "MatMul"]),
        ((4, 1, 50), (32, 4, 50), [1, 2, 0], ["Reshape", "Transpose", "MatMul", "Reshape"]),
        ((4, 1, 32), (32, 50, 4), [2, 0, 1], ["Transpose", "MatMul"]),
        ((1, 2, 1, 20), (1, 2, 0, 20), [0, 1, 3, 2], ["Transpose", "MatMul"]),
    ],
)
def test_rows_are_turned_and_the_meaning_stays(left, right, order, wanted):
    graph = product(left, right, order)
    made = turn_products(graph)
    assert sorted(operators(made)) == sorted(wanted)
    check(graph, random_inputs(graph))
    check(made, random_inputs(graph))


def test_other_types_and_graphs_without_transposes_stay():
    graph = product((1, 4), (5, 4), [1, 0], "int32")
    assert operators(turn_products(graph)) == ["Transpose", "MatMul"]
    b = Builder("plain")
    plain = b.finish(b.node("MatMul", b.input("q", (1, 4)), b.input("k", (4, 5))))
    assert turn_products(plain) is plain


def test_a_product_that_meets_each_element_once_packs_nothing():
    b = Builder("vector")
    y = b.node("MatMul", b.input("a", (300, 64)), b.input("x", (64,)))
    graph = b.finish(b.node("Relu", b.node("Add", y, b.constant(np.ones(300, "float32")))))
    module = check(graph, random_inputs(graph))
    kernels = module.specializations[0].lowered.kernels
    assert len(kernels) == 1 and "in0_global" not in repr(kernels[0].scheduled)
