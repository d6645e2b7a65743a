"""Fusion: which nodes become one kernel."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.core.model import MOST_FUSED_INPUTS, MOST_FUSED_NODES
from weft.graph.passes.fuse import compilable, fuse
from weft.graph.passes.infer import infer
from weft.graph.text import parse_graph

CONSTANTS = """
    const %one: float32[] = 1.0
    const %last: int64[1] = [-1]
    const %six: int64[1] = [6]
    const %flat: int64[2] = [2, 12]
    const %half: int64[2] = [2, 2]
    const %start: int64[1] = [0]
    const %end: int64[1] = [2]
"""


def groups(nodes, inputs="%x: float32[2, 3, 4]", outputs="%y", host=()):
    graph = infer(parse_graph(f"graph g({inputs}) -> ({outputs}) {{{CONSTANTS}{nodes}\n}}"))
    plain = compilable(graph)
    return fuse(graph, lambda node: node.op not in host and plain(node))


def names(found):
    return [f"{g.kind}: {' '.join(n.op for n in g.nodes)}" for g in found]


CONV = "%x: float32[1, 4, 8, 8], %w: float32[4, 4, 3, 3], %b: float32[4], %z: float32[1, 4, 8, 8]"


def test_injective_chains():
    assert names(groups("%a = Exp(%x)\n%b = Add(%a, %one)\n%y = Transpose(%b, perm=[2, 0, 1])")) == [
        "injective: Exp Add Transpose"
    ]


def test_injective_before_a_reduction_and_elementwise_after_it():
    found = groups("%a = Mul(%x, %x)\n%s = ReduceSum(%a, %last)\n%b = Add(%s, %one)\n%y = Sqrt(%b)")
    assert names(found) == ["reduction: Mul ReduceSum Add Sqrt"]
    assert found[0].anchor.op == "ReduceSum" and [v.name for v in found[0].inputs] == ["x", "one"]


def test_what_takes_elements_from_other_places_is_no_epilogue():
    inputs = "%x: float32[1, 3, 8], %w: float32[8, 8], %f: float32[4, 4]"
    turned = "%y = RotaryEmbedding(%p, %f, %f, %i, num_heads=1)"
    found = groups(f"const %i: int64[1, 3] = [[0, 1, 2]]\n%p = MatMul(%x, %w)\n{turned}", inputs)
    assert names(found) == ["complex: MatMul", "injective: RotaryEmbedding"]


def test_a_reduction_does_not_take_what_broadcasts_its_result():
    found = groups("%s = ReduceMax(%x, %last)\n%d = Sub(%x, %s)\n%y = Exp(%d)")
    assert names(found) == ["reduction: ReduceMax", "injective: Sub Exp"]


def test_a_convolution_takes_bias_activation_and_residual():
    found = groups("%c = Conv(%x, %w, %b, pads=[1, 1, 1, 1])\n%a = Add(%c, %z)\n%y = Relu(%a)", CONV)
    assert names(found) == ["complex: Conv Add Relu"]
    assert [v.name for v in found[0].inputs] == ["x", "w", "b", "z"]


def test_a_convolution_does_not_take_producers_or_other_shapes():
    found = groups("%a = Relu(%x)\n%c = Conv(%a, %w, pads=[1, 1, 1, 1])\n%y = Transpose(%c, perm=[0, 2, 3, 1])", CONV)
    assert names(found) == ["injective: Relu", "complex: Conv", "injective: Transpose"]


def test_of_two_convolutions_the_later_takes_the_sum():
    found = groups(
        "%p = Conv(%x, %w, pads=[1, 1, 1, 1])\n%q = Conv(%z, %w, pads=[1, 1, 1, 1])\n%a = Add(%p, %q)\n%y = Relu(%a)",
        CONV,
    )
    assert names(found) == ["complex: Conv", "complex: Conv Add Relu"]


def test_softmax_and_layer_norm_with_their_neighbours():
    assert names(groups("%a = Mul(%x, %one)\n%s = Softmax(%a, axis=-1)\n%y = Relu(%s)")) == [
        "reduction: Mul Softmax Relu"
    ]


def test_what_others_need_is_an_output():
    found = groups("%a = Exp(%x)\n%b = Add(%a, %one)\n%y = Neg(%b)", outputs="%y, %a")
    assert names(found) == ["injective: Exp Add Neg"]
    assert [v.name for v in found[0].outputs] == ["a", "y"]


def test_no_way_out_and_back_in():
    # Exp and Add could be one kernel, but the reduction between them needs Exp's result.
    found = groups("%a = Exp(%x)\n%s = ReduceSum(%a, %last)\n%y = Div(%a, %s)")
    assert names(found) == ["injective: Exp", "reduction: ReduceSum", "injective: Div"]
    found = groups("%a = Exp(%x)\n%h = Sin(%a)\n%y = Add(%a, %h)", host=("Sin",))
    assert names(found) == ["injective: Exp", "host: Sin", "injective: Add"]


def test_expensive_values_are_not_computed_for_every_copy():
    inputs = "%x: float32[64, 1], %z: float32[64, 64]"
    assert names(groups("%a = Exp(%x)\n%y = Add(%z, %a)", inputs)) == ["injective: Exp", "injective: Add"]
    assert names(groups("%a = Neg(%x)\n%y = Add(%z, %a)", inputs)) == ["injective: Neg Add"]


def test_a_reshape_stays_a_view():
    found = groups("%a = Exp(%x)\n%r = Reshape(%a, %flat)\n%y = Neg(%r)")
    assert names(found) == ["injective: Exp", "injective: Reshape", "injective: Neg"]
    assert [g.is_view for g in found] == [False, True, False]
    assert names(groups("%a = Exp(%x)\n%r = Unsqueeze(%a, %last)\n%y = Neg(%r)")) == ["injective: Exp Unsqueeze Neg"]


def test_copies_are_repeated_in_every_reader():
    # An LSTM's gates: each reads its part of one product.
    nodes = """
%g = MatMul(%x, %w)
%i, %f, %o = Split(%g, axis=1, num_outputs=3)
%a = Sigmoid(%i)
%b = ReduceSum(%f, %last)
%c = Tanh(%o)
%d = Mul(%a, %c)
%y = Add(%d, %b)
"""
    found = groups(nodes, "%x: float32[2, 5], %w: float32[5, 9]")
    assert names(found) == ["complex: MatMul", "reduction: Split ReduceSum", "injective: Split Sigmoid Tanh Mul Add"]


def test_nodes_without_a_kernel():
    found = groups("%a = Exp(%x)\n%y = Neg(%a)", "%x: float32[n, 3]")
    assert names(found) == ["injective: Exp Neg"]  # a size of the inputs may stay open
    found = groups("%u = Unique(%x)\n%y = Neg(%u)", "%x: float32[6]")
    assert names(found) == ["host: Unique", "host: Neg"]
    found = groups("%s = Exp(%x)\n%y = Reshape(%s, %shape)", "%x: float32[2, 3], %shape: int64[2]")
    assert names(found) == ["injective: Exp", "host: Reshape"]
    assert [v.name for v in found[1].inputs] == ["s", "shape"]


def test_bounds():
    chain = "\n".join(f"%v{i + 1} = Exp(%v{i})" for i in range(60))
    found = groups(chain, "%v0: float32[4]", "%v60")
    assert all(len(g.nodes) <= MOST_FUSED_NODES for g in found) and len(found) == -(-60 // MOST_FUSED_NODES)
    inputs = ", ".join(f"%x{i}: float32[4]" for i in range(40))
    total = "\n".join(f"%s{i + 1} = Add(%s{i}, %x{i})" for i in range(40))
    found = groups(f"%s0 = Exp(%x0)\n{total}", inputs, "%s40")
    assert all(len(g.inputs) <= MOST_FUSED_INPUTS for g in found)


def test_large_graphs_are_quick():
    graph = infer(parse_graph(
        "graph g(%v0: float32[8, 8]) -> (%v3000) {\n"
        + "\n".join(f"%v{i + 1} = {'MatMul' if i % 7 == 0 else 'Add'}(%v{i}, %v{max(0, i - 5)})" for i in range(3000))
        + "\n}"
    ))  # fmt: skip
    found = fuse(graph)
    assert sum(len(g.nodes) for g in found) == 3000


@pytest.mark.parametrize("kind", ["string", "complex64"])
def test_types_without_kernels(kind):
    graph = infer(parse_graph(f"graph g(%x: {kind}[2]) -> (%y) {{\n %y = Identity(%x)\n}}"))
    assert names(fuse(graph)) == ["host: Identity"]
    assert np.all([g.outputs == graph.outputs for g in fuse(graph)])
