"""merge_products: products of one value with constant matrices are one, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.compiler.graphs import check, random_inputs
from weft.expr.nodes import Var
from weft.graph.interpreter import Interpreter
from weft.graph.ir import NUMPY_TYPES
from weft.graph.passes.merge_products import merge_products
from weft.models.builder import Builder
from weft.models.llama import quantize
from weft.targets.base import Target
from weft.targets.registry import find_target


def always(rows, inner, columns, epilogues):
    return True


def operators(graph):
    return [node.op for node in graph.nodes]


def weights(b, *shape, kind="float32"):
    return b.constant(b.random.standard_normal(shape).astype(NUMPY_TYPES[kind]).astype(np.float32), "weight")


def parts(kind="float32", rows=3, counts=(4, 2, 2), size=8, bias=False, heads=True, inner=32):
    """Queries, keys and values, in heads or as they are."""
    b = Builder("parts")
    x = b.input("x", (1, rows, inner))
    made = []
    for count in counts:
        width = count * size
        if kind == "nbits":
            codes, scales = quantize(b.random.standard_normal((width, inner)).astype(np.float32), 4, 32)
            zeros = b.random.integers(0, 16, (width, -(-inner // 64))).astype(np.uint8)
            given = [b.constant(array, "codes") for array in (codes, scales, zeros)]
            attributes = {"K": inner, "N": width, "bits": 4, "block_size": 32}
            y = b.node("MatMulNBits", x, *given, domain="com.microsoft", **attributes)
        else:
            y = b.node("MatMul", x, weights(b, inner, width, kind=kind))
        if bias:
            y = b.node("Add", y, weights(b, width))
        if heads:
            y = b.node("Transpose", b.node("Reshape", y, b.ints(0, 0, count, size)), perm=[0, 2, 1, 3])
        made.append(y)
    return b.finish(*made)


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "nbits"])
@pytest.mark.parametrize("bias,rows", [(False, 1), (True, 3)])
def test_heads_are_read_from_one_product(kind, bias, rows):
    graph = parts(kind, rows, bias=bias)
    made = merge_products(graph, always)
    product = "MatMulNBits" if kind == "nbits" else "MatMul"
    assert operators(made) == [product, *["Add"] * bias, "Reshape", "Split", *["Transpose"] * 3]
    feeds = random_inputs(graph)
    check(made, feeds)
    for ours, wanted in zip(interpreted(made, feeds), interpreted(graph, feeds)):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


def interpreted(graph, feeds):
    return Interpreter().run(graph, list(feeds.values()) if isinstance(feeds, dict) else feeds, {})


def test_what_is_no_head_is_split_as_it_is():
    graph = parts(heads=False)
    made = merge_products(graph, always)
    assert operators(made) == ["MatMul", "Split"]
    assert [v.name for v in made.outputs] == [v.name for v in graph.outputs]
    check(made, random_inputs(graph))


def test_gemm():
    b = Builder("gemm")
    x = b.input("x", (5, 16))
    made = [b.node("Gemm", x, weights(b, n, 16), weights(b, n), transB=1) for n in (8, 3)]
    graph = b.finish(*made, b.node("Gemm", x, weights(b, 16, 4), alpha=2.0))
    merged = merge_products(graph, always)
    assert operators(merged).count("Gemm") == 2
    check(merged, random_inputs(graph))


def test_only_what_is_alike_is_merged():
    b = Builder("unlike")
    x, y = b.input("x", (2, 8)), b.input("y", (2, 8))
    made = [b.node("MatMul", x, weights(b, 8, 4)), b.node("MatMul", y, weights(b, 8, 4))]
    made += [b.node("MatMul", x, weights(b, 8, 4, kind="bfloat16")), b.node("MatMul", x, y_turned(b, y))]
    graph = b.finish(*made)
    assert merge_products(graph, always) is graph
    assert merge_products(parts(), lambda *given: False).nodes


def y_turned(b, y):
    return b.node("Transpose", y, perm=[1, 0])


def test_a_machine_is_asked_with_what_it_needs():
    seen = []
    b = Builder("gated")
    x = b.input("x", (1, 7, 8))
    gate, up = (b.node("MatMul", x, weights(b, 8, 4)) for _ in range(2))
    graph = b.finish(b.node("Mul", b.node("Sigmoid", gate), up))
    assert merge_products(graph, lambda *given: seen.append(given)) is graph
    assert seen == [(7, 8, [4, 4], True)]


def gated(kind="float32", rows=1, columns=(32, 32), act="Sigmoid", read=False, bias=False):
    """A hidden layer with a gate; the gate may be read by others."""
    b = Builder("gated")
    x = b.input("x", (1, rows, 16))
    if kind == "nbits":
        codes = [quantize(b.random.standard_normal((n, 16)).astype(np.float32), 4, 16) for n in columns]
        zeros = [b.random.integers(0, 16, (n, 1)).astype(np.uint8) for n in columns]
        more = {"K": 16, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
        gate, up = (
            b.node("MatMulNBits", x, *(b.constant(a, "codes") for a in (*code, zero)), N=n, **more)
            for code, zero, n in zip(codes, zeros, columns)
        )
    else:
        gate, up = (b.node("MatMul", x, weights(b, 16, n, kind=kind)) for n in columns)
    if bias:
        gate, up = (b.node("Add", one, weights(b, n)) for one, n in zip((gate, up), columns))
    made = b.node("Mul", b.node(act, gate), up if columns[0] == columns[1] else b.node("ReduceSum", up, b.ints(-1)))
    return b.finish(b.node("MatMul", made, weights(b, columns[0], 8)), *[gate] * read)


@pytest.mark.parametrize("kind,act,bias", [
    ("float32", "Sigmoid", False), ("bfloat16", "Gelu", True), ("nbits", "Sigmoid", False),
])  # fmt: skip
@pytest.mark.parametrize("read", [False, True])
def test_columns_that_meet_again_take_turns(kind, act, bias, read):
    graph = gated(kind, act=act, bias=bias, read=read)
    made = merge_products(graph, always, lambda rows, inner: rows == 1 and inner == 16)
    product = "MatMulNBits" if kind == "nbits" else "MatMul"
    assert operators(made) == [product, *["Add"] * bias, "Slice", "Slice", act, "Mul", "MatMul"]
    check(made, random_inputs(graph))
    feeds = random_inputs(graph)
    for ours, wanted in zip(interpreted(made, feeds), interpreted(graph, feeds)):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [{"rows": 3}, {"columns": (32, 16)}])
def test_columns_that_do_not_meet_stay_beside_each_other(given):
    made = merge_products(gated(**given), always, lambda rows, inner: rows == 1)
    assert "Slice" not in operators(made) and "Split" in operators(made)


def test_a_gate_is_the_epilogue_of_its_product():
    """One kernel for both products and the gate, on a machine that streams weights; values as the interpreter has."""
    module = weft.compile(gated("bfloat16"), target="cuda:sm_90a")
    labels = [launch.kernel.label for launch in module.specializations[0].launches]
    assert len(labels) == 2 and "slice" in labels[0], labels


def test_open_rows():
    graph = parts(rows=Var("rows"))
    made = merge_products(graph, always)
    assert operators(made)[:3] == ["MatMul", "Reshape", "Split"]
    module = weft.compile(graph)
    for rows in (5, 1, 7):
        x = np.random.default_rng(rows).standard_normal((1, rows, 32)).astype(np.float32)
        for ours, wanted in zip(module(x), interpreted(graph, [x])):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name,gated", [("native", False), ("cuda:sm_90", True)])
def test_machines(name, gated):
    target: Target = find_target(name)
    merger = target.spec.algorithms.merged(target)
    assert merger(1, 768, [768] * 3, False)
    assert merger(1, 768, [2048] * 2, True) == gated
    assert not merger(512, 768, [2048] * 2, True)


@pytest.mark.parametrize("scaled", [True, False])
def test_narrow_weights_and_their_scales(scaled):
    """Weights of float8 are one matrix, their scales one vector; a sum behind some of them keeps them apart."""
    b, made = Builder("parts"), []
    x = b.input("x", (1, 32))
    for width in (16, 8):
        codes = b.constant(b.random.standard_normal((32, width)).astype(NUMPY_TYPES["float8_e4m3fn"]), "codes")
        y = b.node("NarrowMatMul", x, codes, domain="weft")
        made.append(b.node("Mul" if scaled or width == 8 else "Add", y, weights(b, width)))
    graph = b.finish(*made)
    merged = merge_products(graph, always)
    assert operators(merged) == (["NarrowMatMul", "Mul", "Split"] if scaled else operators(graph))
    given = random_inputs(graph)
    for got, want in zip(interpreted(merged, given), interpreted(graph, given)):
        np.testing.assert_allclose(got, want, rtol=1e-6)
