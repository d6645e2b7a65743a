"""Integer products for quantized models: the form that they take, and that they mean what ONNX says."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.compiler import compile
from weft.compiler.passes import optimize
from weft.core.array_types import numpy_type
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.expand import expand
from weft.graph.passes.fuse import fuse
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize
from weft.graph.passes.quantized import quantized

PLAIN = "x86_64-unknown-linux-gnu,cpu=haswell"
"""A machine without dot products of bytes: the graph is compiled as it stands."""


class Build:
    """A small graph of quantized operators."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants, self.inputs = [], {}, []

    def input(self, dtype, *shape):
        value = Value(f"x{len(self.inputs)}", TensorType(dtype, shape))
        self.inputs.append(value)
        return value

    def constant(self, array):
        array = np.asarray(array)
        value = Value(f"c{len(self.constants)}", TensorType(str(array.dtype), array.shape))
        self.constants[value] = array
        return value

    def numbers(self, dtype, *shape):
        limits = np.iinfo(dtype)
        return self.constant(self.random.integers(limits.min, limits.max + 1, shape).astype(dtype))

    def scale(self, value):
        return self.constant(np.asarray(value, np.float32))

    def __call__(self, op, *inputs, **attributes):
        value = Value(f"v{len(self.nodes)}")
        self.nodes.append(Node(op, inputs, [value], attributes, f"n{len(self.nodes)}"))
        return value

    def graph(self, *outputs):
        return infer(Graph("q", self.inputs, outputs, self.nodes, self.constants))


def ops(graph):
    return [node.op for node in graph.nodes]


def feeds(graph, seed=1):
    random = np.random.default_rng(seed)
    made = []
    for value in graph.inputs:
        kind = value.tensor
        if kind.dtype.startswith("float"):
            made.append(random.standard_normal(kind.static).astype(kind.numpy))
        else:
            limits = np.iinfo(kind.dtype)
            made.append(random.integers(limits.min, limits.max + 1, kind.static).astype(kind.numpy))
    return made


def check(graph, steps=1, compiled=True):
    """The pass keeps the meaning within so many quantisation steps (floats: nearly exactly), compiled too."""
    made = quantized(graph)
    given = feeds(graph)
    wanted = interpret_graph(graph, given)
    results = [interpret_graph(made, given)] + ([compile(graph).run(None, named(graph, given))] if compiled else [])
    for found in results:
        for a, b in zip(wanted, found):
            assert a.dtype == b.dtype and a.shape == b.shape
            if a.dtype.kind == "f":
                np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * np.abs(a).max())
            else:
                difference = np.abs(a.astype(int) - b.astype(int))
                assert difference.max() <= steps and (difference != 0).mean() < 0.02
    return made


def named(graph, arrays):
    return {value.name: array for value, array in zip(graph.inputs, arrays)}


def island(b, data="uint8", zero=131, weight="int8", weight_zero=None, each=True, group=1):
    """DequantizeLinear -> Conv with padding, bias and Relu -> QuantizeLinear."""
    x = b.input(data, 2, 4, 7, 8)
    real = b("DequantizeLinear", x, b.scale(0.02), b.constant(np.array(zero, data)))
    w = b.numbers(weight, 6, 4 // group, 3, 3)
    scale = b.scale(np.linspace(0.001, 0.003, 6)) if each else b.scale(0.002)
    more = [] if weight_zero is None else [b.constant(np.broadcast_to(np.array(weight_zero, weight), (6,) * each))]
    kernel = b("DequantizeLinear", w, scale, *more, axis=0)
    bias = b.scale(b.random.standard_normal(6))
    made = b("Relu", b("Conv", real, kernel, bias, pads=[1] * 4, strides=[2, 1], group=group))
    return b("QuantizeLinear", made, b.scale(0.05), b.constant(np.array(10, "uint8")))


@pytest.mark.parametrize("data,zero", [("uint8", 131), ("uint8", 0), ("int8", -3), ("int8", 0)])
@pytest.mark.parametrize("each", [False, True])
def test_a_convolution_of_dequantized_operands(data, zero, each):
    b = Build()
    made = check(b.graph(island(b, data, zero, each=each)))
    assert "Conv" not in ops(made) and "ConvInteger" in ops(made)
    node = next(n for n in made.nodes if n.op == "ConvInteger")
    assert node.attributes["border"] == zero and len(node.inputs) == 2
    assert made.constants[node.inputs[1]].dtype == np.int8


@pytest.mark.parametrize(
    "weight,zero,kind", [("uint8", 128, "int8"), ("uint8", 100, "int16"), ("int8", 5, "int16"), ("int8", None, "int8")]
)
@pytest.mark.parametrize("each", [False, True])
def test_zero_points_of_weights_go_into_them(weight, zero, kind, each):
    b = Build()
    made = check(b.graph(island(b, weight=weight, weight_zero=zero, each=each, group=2)))
    node = next(n for n in made.nodes if n.op == "ConvInteger")
    assert str(made.constants[node.inputs[1]].dtype) == kind


def test_the_compiled_island_is_one_kernel_with_8_bit_weights():
    b = Build()
    one = compile(b.graph(island(b)), target=PLAIN).specializations[0]
    assert len(one.launches) == 1 and not one.host_nodes
    weights = [a for v, a in one.graph.constants.items() if a.ndim == 4 and a.shape[:2] == (6, 4)]
    assert [str(a.dtype) for a in weights] == ["int8"]


def test_signed_data_becomes_unsigned_where_it_is_made():
    b = Build()
    x = b.input("float32", 3, 16)
    parameters = b.scale(0.03), b.constant(np.array(7, "int8"))
    real = b("DequantizeLinear", b("QuantizeLinear", x, *parameters), *parameters)
    w = b("DequantizeLinear", b.numbers("int8", 16, 5), b.scale(0.01))
    made = check(b.graph(b("MatMul", real, w)))
    product = next(n for n in made.nodes if n.op == "MatMulInteger")
    assert [v.tensor.dtype for v in product.inputs] == ["uint8", "int8"]


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("each", [False, True])
def test_gemm_with_bias(turned, each):
    b = Build()
    x = b("DequantizeLinear", b.input("uint8", 3, 16), b.scale(0.02), b.constant(np.array(120, "uint8")))
    w = b.numbers("int8", *((5, 16) if turned else (16, 5)))
    scale = b.scale(np.linspace(0.01, 0.02, 5)) if each else b.scale(0.01)
    kernel = b("DequantizeLinear", w, scale, axis=0 if turned else 1)
    made = check(b.graph(b("Gemm", x, kernel, b.scale(b.random.standard_normal(5)), transB=turned, alpha=0.5)))
    assert "Gemm" not in ops(made) and "MatMulInteger" in ops(made)


@pytest.mark.parametrize("kind,rows", [("float8_e4m3fn", 3), ("float8_e5m2", 1), (None, 3)])
def test_float8_with_scales_of_rows_and_columns(kind, rows):
    """Both operands of it, or the weights alone."""
    b, small = Build(), numpy_type(kind or "float8_e4m3fn")
    x = b.input("float32", 3, 16)
    if kind is not None:
        pair = b.scale(np.linspace(0.01, 0.02, rows)), b.constant(np.zeros(rows, small))
        x = b("DequantizeLinear", b("QuantizeLinear", x, *pair, axis=0), *pair, axis=0)
    kernel = b(
        "DequantizeLinear", b.constant(b.random.standard_normal((5, 16)).astype(small)), b.scale(np.ones(5)), axis=0
    )
    made = check(b.graph(b("Gemm", x, kernel, b.scale(b.random.standard_normal(5)), transB=1, alpha=0.5)))
    assert "Gemm" not in ops(made) and "NarrowMatMul" in ops(made)


def test_a_scale_along_the_summed_axis_stays_float():
    b = Build()
    x = b("DequantizeLinear", b.input("uint8", 3, 16), b.scale(0.02))
    kernel = b("DequantizeLinear", b.numbers("int8", 16, 5), b.scale(np.linspace(0.01, 0.02, 16)), axis=0)
    made = check(b.graph(b("MatMul", x, kernel)), compiled=False)
    assert "MatMul" in ops(made)


def test_weights_that_a_quantize_or_a_transpose_makes():
    b = Build()
    x = b("DequantizeLinear", b.input("uint8", 3, 16), b.scale(0.02), b.constant(np.array(120, "uint8")))
    scale, zero = b.scale(np.linspace(0.01, 0.02, 5)), b.constant(np.zeros(5, "int8"))
    w = b("QuantizeLinear", b.scale(b.random.standard_normal((5, 16)) * 0.5), scale, zero, axis=0)
    kernel = b("Transpose", b("DequantizeLinear", w, scale, zero, axis=0), perm=[1, 0])
    made = check(b.graph(b("MatMul", x, kernel)))
    assert "MatMulInteger" in ops(made) and "MatMul" not in ops(made)


@pytest.mark.parametrize("zeros", [(0, 0), (120, 0), (120, -4)])
def test_a_product_of_two_inputs(zeros):
    b = Build()
    x = b("DequantizeLinear", b.input("uint8", 2, 3, 16), b.scale(0.02), b.constant(np.array(zeros[0], "uint8")))
    y = b("DequantizeLinear", b.input("int8", 2, 16, 5), b.scale(0.01), b.constant(np.array(zeros[1], "int8")))
    assert "MatMulInteger" in ops(check(b.graph(b("MatMul", x, y))))


def test_copies_move_before_a_dequantize_and_pairs_vanish():
    b = Build()
    parameters = b.scale(0.02), b.constant(np.array(120, "uint8"))
    real = b("DequantizeLinear", b.input("uint8", 1, 4, 6, 6), *parameters)
    real = b("MaxPool", real, kernel_shape=[2, 2], strides=[2, 2])
    real = b("Reshape", real, b.constant(np.array([4, 9], "int64")))
    real = b("Transpose", real, perm=[1, 0])
    made = check(b.graph(b("QuantizeLinear", real, *parameters)), steps=0)
    assert ops(made) == ["MaxPool", "Reshape", "Transpose"]


def test_all_that_moves_elements_moves_before_a_dequantize_and_a_concatenation_does_not():
    b = Build()
    parameters = b.scale(0.02), b.constant(np.array(120, "uint8"))
    real = b("DequantizeLinear", b.input("uint8", 1, 4, 3, 3), *parameters)
    real = b("Tile", b("DepthToSpace", real, blocksize=2), b.constant(np.array([1, 2, 1, 1], "int64")))
    made = check(b.graph(b("QuantizeLinear", real, *parameters)), steps=0)
    assert ops(made) == ["DepthToSpace", "Tile"]
    b = Build()
    parameters = b.scale(0.02), b.constant(np.array(120, "uint8"))
    real = b("DequantizeLinear", b.input("uint8", 1, 4), *parameters)
    made = check(b.graph(b("Concat", real, b.input("float32", 1, 4), axis=1)), steps=0)
    assert ops(made) == ["DequantizeLinear", "Concat"]


def test_other_parameters_do_not_cancel():
    b = Build()
    real = b("DequantizeLinear", b.input("uint8", 8), b.scale(0.02), b.constant(np.array(120, "uint8")))
    made = check(b.graph(b("QuantizeLinear", real, b.scale(0.02), b.constant(np.array(121, "uint8")))), steps=0)
    assert ops(made) == ["DequantizeLinear", "QuantizeLinear"]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("zero", [0, 3])
def test_qlinear_conv(each, zero):
    b = Build()
    scale = b.scale(np.linspace(0.01, 0.02, 6)) if each else b.scale(0.01)
    zeros = b.constant(np.full((6,) * each, zero, "int8"))
    x, w = b.input("uint8", 1, 4, 6, 6), b.numbers("int8", 6, 4, 3, 3)
    bias = b.constant(b.random.integers(-5000, 5000, 6).astype("int32"))
    made = b(
        "QLinearConv", x, b.scale(0.1), b.constant(np.array(100, "uint8")), w, scale, zeros, b.scale(3.0),
        b.constant(np.array(120, "uint8")), bias, pads=[1] * 4,
    )  # fmt: skip
    done = normalize(check(expand(infer(b.graph(made))), steps=0))
    assert ops(done) == ["ConvInteger", "Add", "Cast", "Mul", "QuantizeLinear"]


def test_zero_points_of_channels_without_scales():
    b = Build()
    x, w = b.input("uint8", 1, 4, 6, 6), b.numbers("int8", 6, 4, 3, 3)
    zeros = b.constant(np.array([0, 1, -2, 3, 0, 5], "int8"))
    done = check(b.graph(b("ConvInteger", x, w, b.constant(np.array(100, "uint8")), zeros, pads=[1] * 4)), steps=0)
    assert ops(done) == ["ConvInteger", "Add"]


def test_qlinear_matmul():
    b = Build()
    inputs = [
        b.input("int8", 3, 16), b.scale(0.1), b.constant(np.array(4, "int8")), b.numbers("int8", 16, 5), b.scale(0.1),
        b.constant(np.array(0, "int8")), b.scale(3.0), b.constant(np.array(-20, "int8")),
    ]  # fmt: skip
    done = normalize(check(expand(infer(b.graph(b("QLinearMatMul", *inputs)))), steps=0))
    assert ops(done) == ["MatMulInteger", "Add", "Cast", "Mul", "QuantizeLinear"]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_zero_point_that_arrives_at_run_time(shape):
    """As DynamicQuantizeLinear makes it."""
    b = Build()
    a, a_zero = b.input("uint8", 3, 16), b.input("uint8", *shape)
    made = check(b.graph(b("MatMulInteger", a, b.numbers("uint8", 16, 5), a_zero, b.constant(np.uint8(128)))), steps=0)
    product = next(n for n in made.nodes if n.op == "MatMulInteger")
    assert len(product.inputs) == 2 and product.inputs[1].tensor.dtype == "int8"


def test_a_float_model_is_left_alone():
    b = Build()
    graph = b.graph(b("MatMul", b.input("float32", 2, 3), b.input("float32", 3, 4)))
    assert quantized(graph) is graph


def test_the_whole_pipeline_keeps_a_residual_block():
    b = Build()
    first = island(b)
    parameters = b.scale(0.05), b.constant(np.array(10, "uint8"))
    skip = b("DequantizeLinear", first, *parameters)
    w = b("DequantizeLinear", b.numbers("int8", 6, 6, 1, 1), b.scale(0.002))
    total = b("Relu", b("Add", b("Conv", skip, w), skip))
    made = b.graph(b("QuantizeLinear", total, *parameters))
    check(made)
    done = optimize(made, {}, {})
    assert ops(done).count("ConvInteger") == 2 and "Conv" not in ops(done)
    assert len(compile(made, target=PLAIN).specializations[0].launches) == 2
    stored = [value.tensor.dtype for group in fuse(done) for value in group.outputs]
    assert stored == ["uint8", "uint8"]


@pytest.mark.parametrize("zero", [0, 3])
def test_conv_integer_with_known_zero_points(zero):
    b = Build()
    x, w = b.input("uint8", 1, 4, 6, 6), b.numbers("int8", 6, 2, 3, 3)
    zeros = b.constant(np.array(100, "uint8")), b.constant(np.array(zero, "int8"))
    made = check(b.graph(b("ConvInteger", x, w, *zeros, pads=[1] * 4, group=2)), steps=0)
    assert ops(made) == ["ConvInteger", "Add"] and made.nodes[0].attributes["border"] == 100


def test_a_table_of_bytes_is_gathered_as_it_is():
    b = Build()
    table = b("DequantizeLinear", b.numbers("int8", 50, 8), b.scale(0.1), b.constant(np.array(3, "int8")))
    rows = Value("rows", TensorType("int64", (3,)))
    b.inputs.append(rows)
    graph = b.graph(b("Gather", table, rows, axis=0))
    made = optimize(graph, {}, {})
    assert ops(made) == ["Gather", "DequantizeLinear"]
    found = compile(graph)(np.array([4, 0, 49]))
    np.testing.assert_array_equal(found, interpret_graph(graph, [np.array([4, 0, 49])])[0])
