"""Batch normalisation folded into the weights before it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.strategies import same_meaning
from weft.graph.passes.fold_batch_norm import fold_batch_norm
from weft.graph.text import parse_graph

BN = """
    const %s: float32[4] = [1.0, 2.0, -0.5, 1.5]
    const %b: float32[4] = [0.1, 0.2, 0.3, 0.4]
    const %m: float32[4] = [0.0, 1.0, -1.0, 0.5]
    const %v: float32[4] = [1.0, 0.5, 2.0, 0.25]
"""
RNG = np.random.default_rng(0)


def operators(nodes, inputs, weight=None, constants=BN):
    declared = ""
    if weight is not None:
        declared = f"\n    const %w: float32[{', '.join(map(str, weight))}] = ...\n"
    table = {} if weight is None else {"w": RNG.uniform(-1, 1, weight).astype(np.float32)}
    graph = parse_graph(f"graph g({inputs}) -> (%y) {{{constants}{declared}{nodes}\n}}", table)
    made = fold_batch_norm(graph)
    same_meaning(graph, made)
    return [n.op for n in made.nodes]


NORM = "%y = BatchNormalization(%c, %s, %b, %m, %v)"


@pytest.mark.parametrize(
    ("nodes", "inputs", "weight", "left"),
    [
        ("%c = Conv(%x, %w)", "%x: float32[1, 2, 5, 5]", (4, 2, 3, 3), "Conv"),
        ("%c = Conv(%x, %w, %b, group=2)", "%x: float32[1, 2, 6]", (4, 1, 3), "Conv"),
        ("%c = ConvTranspose(%x, %w)", "%x: float32[1, 2, 5, 5]", (2, 4, 3, 3), "ConvTranspose"),
        ("%c = ConvTranspose(%x, %w, %m, group=2)", "%x: float32[1, 4, 5, 5]", (4, 2, 3, 3), "ConvTranspose"),
        ("%c = Gemm(%x, %w, %b, transB=1, alpha=0.5, beta=2.0)", "%x: float32[3, 5]", (4, 5), "Gemm"),
        ("%c = Gemm(%x, %w)", "%x: float32[3, 5]", (5, 4), "Gemm"),
        ("%c = MatMul(%x, %w)", "%x: float32[3, 5]", (5, 4), "Gemm"),
    ],
)
def test_folded_into_weights(nodes, inputs, weight, left):
    assert operators(f"{nodes}\n{NORM}", inputs, weight) == [left]


def test_written_out_scale_and_shift():
    constants = """
    const %s: float32[4, 1, 1] = [[[1.0]], [[2.0]], [[-0.5]], [[1.5]]]
    const %b: float32[1, 4, 1, 1] = [[[[0.1]], [[0.2]], [[0.3]], [[0.4]]]]
    const %k: float32[] = 0.5
"""
    nodes = "%c = Conv(%x, %w)\n%p = Mul(%c, %s)\n%q = Add(%p, %b)\n%y = Add(%q, %k)"
    assert operators(nodes, "%x: float32[1, 2, 5, 5]", (4, 2, 3, 3), constants) == ["Conv"]
    columns = "\n    const %s: float32[3] = [1.0, 2.0, 3.0]\n"
    assert operators("%c = Conv(%x, %w)\n%y = Mul(%c, %s)", "%x: float32[1, 2, 5, 5]", (4, 2, 3, 3), columns) == [
        "Conv",
        "Mul",
    ]


def test_alone_it_becomes_a_product_and_a_sum():
    assert operators(NORM.replace("%c", "%x"), "%x: float32[2, 4, 3]") == ["Mul", "Add"]
    assert operators(NORM.replace("%c", "%x"), "%x: float32[2, 4]") == ["Mul", "Add"]


def test_what_stays():
    conv = "%c = Conv(%x, %w)\n"
    shared = f"{conv}%n = BatchNormalization(%c, %s, %b, %m, %v)\n%y = Add(%n, %c)"
    assert operators(shared, "%x: float32[1, 2, 5, 5]", (4, 2, 3, 3)) == ["Conv", "Mul", "Add", "Add"]
    moving = f"{conv}%y = BatchNormalization(%c, %z, %b, %m, %v)"
    assert operators(moving, "%x: float32[1, 2, 5, 5], %z: float32[4]", (4, 2, 3, 3))[-1] == "BatchNormalization"
    product = f"%c = MatMul(%x, %w)\n{NORM}"
    assert operators(product, "%x: float32[2, 4, 5]", (5, 4)) == ["MatMul", "Mul", "Add"]
