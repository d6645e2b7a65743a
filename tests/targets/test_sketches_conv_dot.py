"""Convolutions of bytes by dot products of vector registers: exact for every window, step and number of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401  (the table of operators)
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.targets.registry import find_target

NATIVE = find_target("native")
X86, ARM = "avx512vnni" in NATIVE.features, "dotprod" in NATIVE.features
pytestmark = pytest.mark.skipif(not (X86 or ARM), reason="this machine has no dot products in vector registers")
needs_vnni = pytest.mark.skipif(not X86, reason="this machine has no AVX-512 VNNI")
WITHOUT_TILES = "native,features=-amx-tile,-amx-int8,-amx-bf16" if X86 else "native"
KIND, LOW_BITS, CAST = ("uint8", 255, 2) if X86 else ("int8", 127, 3)
"""The bytes that the instruction multiplies with signed ones, what keeps sums in them, and ONNX's number for them."""


class Net:
    """A chain of integer convolutions; between them sums become unsigned bytes again by steps that are exact."""

    def __init__(self, seed: int, *shape: int) -> None:
        self.random = np.random.default_rng(seed)
        self.input = self.last = Value("x", TensorType(KIND, shape))
        self.nodes: list[Node] = []
        self.constants: dict[Value, Any] = {}

    def constant(self, array: Any) -> Value:
        value = Value(f"w{len(self.constants)}", TensorType(array.dtype.name, array.shape))
        self.constants[value] = array
        return value

    def add(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        made = Value(f"v{len(self.nodes)}")
        self.nodes.append(Node(op, list(inputs), [made], attributes, name=f"n{len(self.nodes)}"))
        self.last = made
        return made

    def conv(self, ci: int, co: int, k: int, border: int = 0, **attributes: Any) -> None:
        weight = self.constant(self.random.integers(-128, 128, (co, ci, k, k)).astype(np.int8))
        self.add("ConvInteger", self.last, weight, kernel_shape=[k, k], border=border, **attributes)

    def narrow(self) -> None:
        """int32 -> bytes: the low bits of the sums."""
        number = self.add("BitwiseAnd", self.last, self.constant(np.array(LOW_BITS, np.int32)))
        self.add("Cast", number, to=CAST)

    def graph(self) -> Graph:
        return infer(Graph("net", [self.input], [self.last], self.nodes, self.constants))


def check(graph: Graph, by_dots: int, threads: int = 1) -> None:
    """The graph against numpy, exactly; so many of its kernels use dot products."""
    x = np.random.default_rng(1).integers(0, 256, graph.inputs[0].tensor.static).astype(KIND)
    (want,) = interpret_graph(graph, [x])
    with knobs.override(cache=False):
        module = weft.compile(graph, target=WITHOUT_TILES, threads=threads)
        (made,) = module.run(None, {"x": x})
    np.testing.assert_array_equal(made, want)
    (one,) = module.specializations
    found = sum(("vnni_" if X86 else "neon_") in repr(launch.kernel.scheduled) for launch in one.launches)
    assert found == by_dots if X86 else found >= 1


SHAPES = [
    # channels, between, height, width, kernel, stride, pad
    (64, 64, 14, 14, 3, 1, 1),
    (64, 32, 7, 7, 3, 1, 1),
    (128, 64, 9, 17, 3, 1, 1),
    (32, 48, 8, 28, 3, 2, 1),
    (96, 32, 5, 35, 5, 1, 2),
    (16, 80, 6, 13, 1, 1, 0),
    (48, 16, 7, 19, 1, 2, 0),
    (40, 24, 3, 5, 3, 1, 1),
    (64, 96, 3, 2, 3, 1, 1),
    (8, 72, 6, 31, 2, 1, 0),
    (64, 192, 4, 57, 1, 1, 0),
]


@pytest.mark.parametrize("shape", SHAPES if X86 else SHAPES[5:7])
def test_convolutions_of_every_shape(shape: tuple[int, ...]) -> None:
    channels, between, height, width, k, stride, pad = shape
    net = Net(0, 1, 5, height, width)
    net.conv(5, channels, 1)
    net.narrow()
    net.conv(channels, between, k, strides=[stride] * 2, pads=[pad] * 4, border=7 if pad else 0)
    net.narrow()
    net.conv(between, 16, 1)
    check(net.graph(), by_dots=3, threads=1 + width % 2)


@needs_vnni
def test_batches_dilations_and_unequal_pads() -> None:
    net = Net(1, 2, 5, 10, 12)
    net.conv(5, 64, 3, pads=[1, 1, 1, 1])
    net.narrow()
    net.conv(64, 64, 3, pads=[2, 2, 2, 2], dilations=[2, 2], border=130)
    net.narrow()
    net.conv(64, 32, 3, pads=[0, 1, 2, 0])
    check(net.graph(), by_dots=3, threads=2)


@needs_vnni
@pytest.mark.parametrize("size,k,stride,pad", [(28, 7, 2, 3), (28, 3, 2, 1), (32, 4, 4, 0)])
def test_a_strided_convolution_of_three_channels_is_folded(size: int, k: int, stride: int, pad: int) -> None:
    net = Net(2, 1, 3, size, size)
    net.conv(3, 32, k, strides=[stride] * 2, pads=[pad] * 4, border=124 if pad else 0)
    check(net.graph(), by_dots=1)


@needs_vnni
def test_a_quantized_model_gives_what_the_float_model_gives() -> None:
    random = np.random.default_rng(3)
    x = Value("x", TensorType("float32", (1, 3, 16, 16)))
    sizes = [(32, 3, 3, 3), (64, 32, 3, 3), (32, 64, 1, 1)]
    weights = [Value(f"w{i}", TensorType("float32", shape)) for i, shape in enumerate(sizes)]
    arrays = [(random.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype("f4") for s in sizes]
    nodes, last = [], x
    for i, weight in enumerate(weights):
        pads = [sizes[i][2] // 2] * 4
        made, positive = Value(f"c{i}"), Value(f"r{i}")
        nodes.append(Node("Conv", [last, weight], [made], {"kernel_shape": list(sizes[i][2:]), "pads": pads}))
        nodes.append(Node("Relu", [made], [positive]))
        last = positive
    graph = infer(Graph("net", [x], [last], nodes, dict(zip(weights, arrays))))
    feeds = {"x": random.standard_normal(x.tensor.static).astype("f4")}
    (want,) = interpret_graph(graph, [feeds["x"]])
    with knobs.override(cache=False):
        module = weft.compile(weft.quantize(graph, [feeds]), target=WITHOUT_TILES, threads=1)
        (made_by_bytes,) = module.run(None, feeds)
    assert np.abs(made_by_bytes - want).max() <= 0.03 * np.abs(want).max()
    (one,) = module.specializations
    assert sum("vnni_" in repr(launch.kernel.scheduled) for launch in one.launches) >= 2
