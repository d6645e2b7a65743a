"""Signed data for integer products: the same sums, made signed where the data is made; channels in fours."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.passes.test_quantized import Build, feeds, island, named, ops
from weft.compiler import compile
from weft.compiler.passes import for_target
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.passes.quantized import quantized
from weft.graph.passes.signed_data import signed_data
from weft.targets.registry import find_target

DOTS = "aarch64-unknown-linux-gnu,cpu=neoverse-n1"
MIXED = "aarch64-unknown-linux-gnu,cpu=neoverse-v1"


def check(graph):
    """The pass changes no answer; neither does a compile for this machine."""
    made = signed_data(graph)
    given = feeds(graph)
    wanted = interpret_graph(graph, given)
    for found in (interpret_graph(made, given), compile(graph).run(None, named(graph, given))):
        for a, b in zip(wanted, found):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    for node in made.nodes:
        if node.op in ("ConvInteger", "MatMulInteger"):
            assert [v.tensor.dtype for v in node.inputs] == ["int8", "int8"]
    return made


def quantize(b, x, zero=7):
    return b("QuantizeLinear", x, b.scale(0.05), b.constant(np.array(zero, "uint8")))


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_convolution_with_a_border(group):
    b = Build()
    x = quantize(b, b.input("float32", 2, 4, 7, 6), 131)
    made = b("ConvInteger", x, b.numbers("int8", 8, 4 // group, 3, 3), pads=[1] * 4, group=group, border=131)
    shifted = b("Add", made, b.constant(b.random.integers(-9, 9, (1, 8, 1, 1)).astype("int32")))
    done = check(b.graph(shifted))
    assert ops(done) == ["QuantizeLinear", "ConvInteger", "Add"]
    assert next(n for n in done.nodes if n.op == "ConvInteger").attributes["border"] == 3


@pytest.mark.parametrize("rank", [2, 3])
def test_a_product(rank):
    b = Build()
    x = b.input("uint8", *(2, 5, 12)[-rank:])
    done = check(b.graph(b("MatMulInteger", x, b.numbers("int8", 12, 6))))
    assert ops(done) == ["BitwiseXor", "BitCast", "MatMulInteger", "Add"]


def test_copies_and_largest_numbers_stay_signed_and_others_read_what_they_did():
    b = Build()
    first, second = quantize(b, b.input("float32", 1, 4, 6, 6)), quantize(b, b.input("float32", 1, 4, 6, 6))
    pooled = b("MaxPool", b("Concat", first, second, axis=1), kernel_shape=[2, 2], pads=[1] * 4, strides=[2, 2])
    made = b("ConvInteger", pooled, b.numbers("int8", 8, 8, 1, 1), border=7)
    real = b("DequantizeLinear", first, b.scale(0.05), b.constant(np.array(7, "uint8")))
    done = check(b.graph(made, real, pooled))
    pool = next(n for n in done.nodes if n.op == "MaxPool")
    assert pool.outputs[0].tensor.dtype == "int8" and ops(done).count("BitwiseXor") == 1  # the output of the graph
    back = next(n for n in done.nodes if n.op == "DequantizeLinear")
    assert back.inputs[0].tensor.dtype == "int8"


def test_what_is_no_such_product_is_left_alone():
    b = Build()
    x, y = b.input("uint8", 3, 8), b.input("int8", 8, 4)
    graph = b.graph(b("MatMulInteger", x, y), b("MatMulInteger", x, b.numbers("uint8", 8, 4)))
    assert signed_data(graph) is graph


def test_which_machines_want_it():
    b = Build()
    graph = quantized(b.graph(island(b)))
    kinds = {}
    for name in (DOTS, MIXED):
        made = for_target(graph, find_target(name))
        node = next(n for n in made.nodes if n.op == "ConvInteger")
        kinds[name] = node.inputs[0].tensor.dtype
    assert kinds == {DOTS: "int8", MIXED: "uint8"}


def test_channels_come_in_fours():
    b = Build()
    x = quantize(b, b.input("float32", 1, 3, 9, 9))
    graph = b.graph(b("ConvInteger", x, b.numbers("int8", 8, 3, 3, 3), pads=[1] * 4, border=7))
    check(graph)
    made = for_target(graph, find_target(DOTS))
    assert next(n for n in made.nodes if n.op == "ConvInteger").inputs[0].tensor.static[1] == 4
    given = feeds(graph)
    np.testing.assert_array_equal(interpret_graph(graph, given)[0], interpret_graph(made, given)[0])


@pytest.mark.parametrize("exact", [False, True])
def test_a_division_goes_into_constants(exact):
    b = Build()
    graph = b.graph(island(b))
    with knobs.override(exact=exact):
        made = quantized(graph)
    last = made.nodes[-1]
    assert last.op == "QuantizeLinear"
    assert float(made.constants[last.inputs[1]]) == pytest.approx(0.05 if exact else 1.0)
    wanted, found = (interpret_graph(g, feeds(graph))[0].astype(int) for g in (graph, made))
    assert np.abs(wanted - found).max() <= 1 and (wanted != found).mean() < 0.01


def test_a_value_that_others_read_is_divided_as_it_is():
    b = Build()
    x = b("Mul", b.input("float32", 3, 8), b.scale(0.3))
    graph = b.graph(b("QuantizeLinear", x, b.scale(0.05), b.constant(np.array(7, "uint8"))), x)
    assert quantized(graph) is graph
