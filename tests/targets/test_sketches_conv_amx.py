"""Convolutions of bfloat16 on AMX tiles: right for every window, step, width of a row and number of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401  (the table of operators)
from tests.conftest import FULL
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.fold_strides import fold_strides
from weft.graph.passes.infer import infer
from weft.graph.passes.precision import lower_precision
from weft.loop.interpreter import interpret
from weft.loop.parser import parse_func
from weft.targets.base import run_passes
from weft.targets.cpu import amx
from weft.targets.cpu.pipeline import PASSES
from weft.targets.registry import find_target

needs_amx = pytest.mark.skipif(not amx.available(find_target("native")), reason="this machine has no AMX tiles")
TOLERANCE = 0.015


class Net:
    """A chain of convolutions with what stands between them."""

    def __init__(self, seed: int, *shape: int) -> None:
        self.random = np.random.default_rng(seed)
        self.input = self.last = Value("x", TensorType("float32", shape))
        self.nodes: list[Node] = []
        self.constants: dict[Value, Any] = {}

    def constant(self, *shape: int) -> Value:
        value = Value(f"w{len(self.constants)}", TensorType("float32", shape))
        scale = np.sqrt(max(1, np.prod(shape[1:])))
        self.constants[value] = (self.random.standard_normal(shape) / scale).astype("f4")
        return value

    def add(self, op: str, *others: Value, **attributes: Any) -> Value:
        made = Value(f"v{len(self.nodes)}")
        self.nodes.append(Node(op, [self.last, *others], [made], attributes, name=f"n{len(self.nodes)}"))
        self.last = made
        return made

    def conv(self, ci: int, co: int, k: int, group: int = 1, **attributes: Any) -> Value:
        others = [self.constant(co, ci // group, k, k), self.constant(co)]
        return self.add("Conv", *others, kernel_shape=[k, k], group=group, **attributes)

    def graph(self) -> Graph:
        return infer(Graph("net", [self.input], [self.last], self.nodes, self.constants))


def check(graph: Graph, on_tiles: int, threads: int = 1) -> None:
    """The graph in bfloat16 against itself in float32; so many of its kernels use tiles."""
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype("f4")
    (want,) = interpret_graph(graph, [x])
    with knobs.override(cache=False):
        module = weft.compile(graph, precision="bf16", threads=threads)
        (made,) = module.run(None, {"x": x})
    np.testing.assert_allclose(made, want, atol=TOLERANCE * float(np.abs(want).max()), rtol=0)
    (one,) = module.specializations
    assert sum("amx_dot" in repr(launch.kernel.scheduled) for launch in one.launches) == on_tiles


SHAPES = [
    # channels, between, height, width, kernel, stride, pad
    (32, 64, 14, 14, 3, 1, 1),
    (64, 32, 7, 7, 3, 1, 1),
    (64, 64, 9, 17, 3, 1, 1),
    (32, 48, 8, 28, 3, 2, 1),
    (96, 32, 5, 35, 5, 1, 2),
    (16, 80, 6, 13, 1, 1, 0),
    (48, 16, 7, 19, 1, 2, 0),
    (40, 32, 3, 5, 3, 1, 1),
    (64, 96, 3, 2, 3, 1, 1),
    (32, 32, 6, 31, 2, 1, 0),
    (16, 48, 14, 5, 3, 1, 1),  # two rows are left over of tiles of three
]


@needs_amx
@pytest.mark.parametrize("shape", SHAPES)
def test_convolutions_of_every_shape(shape):
    channels, between, height, width, k, stride, pad = shape
    net = Net(0, 1, 32, height, width)
    net.conv(32, channels, 1)
    net.add("Relu")
    net.conv(channels, between, k, strides=[stride] * 2, pads=[pad] * 4)
    net.add("Relu")
    net.conv(between, 32, 1)
    check(net.graph(), on_tiles=3, threads=1 + width % 2)


@needs_amx
def test_batches_dilations_and_residuals():
    net = Net(1, 2, 32, 10, 12)
    skip = net.conv(32, 64, 3, pads=[1, 1, 1, 1])
    net.conv(64, 64, 3, pads=[2, 2, 2, 2], dilations=[2, 2])
    net.add("Add", skip)
    net.add("Relu")
    net.conv(64, 32, 3, pads=[0, 1, 2, 0])
    check(net.graph(), on_tiles=3, threads=2)


@needs_amx
def test_one_block_of_channels_and_depthwise_between():
    net = Net(2, 1, 3, 20, 20)
    net.conv(3, 32, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    net.add("Relu")
    net.conv(32, 32, 3, group=32, pads=[1, 1, 1, 1])
    net.add("Relu")
    net.conv(32, 64, 1)
    net.conv(64, 64, 3, group=64, pads=[1, 1, 1, 1], strides=[2, 2])
    net.conv(64, 24, 1)
    net.conv(24, 32, 1)
    check(net.graph(), on_tiles=4)  # all that mix channels, the first by places of a square as channels


def compiled_for_tiles(graph: Graph, cores: int = 2) -> Any:
    """A graph in bfloat16, compiled for a machine that has tiles: nothing of it runs on the host."""
    target = find_target(f"x86_64-unknown-linux-gnu,cpu=sapphirerapids,cores={cores}")
    with knobs.override(cache=False):
        (one,) = weft.compile(graph, target=target, precision="bf16").specializations
    assert not one.host_nodes
    return one


def test_a_last_part_of_few_rows_has_a_kernel():
    net = Net(4, 1, 256, 33, 33)
    net.conv(256, 256, 3, pads=[12] * 4, dilations=[12, 12])  # `benchmarks.conv_kinds`, aspp_12
    one = compiled_for_tiles(net.graph())
    assert sum("amx_dot" in repr(launch.kernel.scheduled) for launch in one.launches) == 1


def test_tiles_of_sums_to_which_nothing_is_added_have_a_shape():
    func = parse_func("""
func f(A: float32[15, 16]):
    allocate T: float32[15, 16] amx.tile:
        amx_zero(address(T[0], "w"), 15, 16)
        amx_store(address(T[0], "r"), address(A[0], "w"), 16, 16, 15, 16)
""")
    assert "amx_configure(15, 64, 16, 64, " in repr(amx.configure_tiles(func))


@pytest.mark.parametrize("seed", range(40 if FULL else 6))
def test_random_convolutions_have_kernels(seed):
    random = np.random.default_rng(seed)
    k, gap = (int(random.choice(n)) for n in ((1, 2, 3, 3, 5), (1, 1, 2, 3, 6)))
    channels, between = (int(n) for n in random.choice((16, 24, 32, 40, 48, 64, 80), 2))
    net = Net(seed, 1, 32, *(int(n) for n in random.integers(1, 41, 2)))
    net.conv(32, channels, 1)
    net.add("Relu")
    net.conv(
        channels, between, k, pads=[gap * (k - 1)] * 4, dilations=[gap] * 2, strides=[int(random.integers(1, 4))] * 2
    )
    compiled_for_tiles(net.graph(), cores=int(random.choice((1, 2, 4, 16))))


@pytest.mark.parametrize("rows,gap", [(9, 3), (14, 1), (17, 2)])
def test_the_lowered_program_means_what_is_scheduled(rows, gap):
    net = Net(5, 1, 32, rows, 5)
    net.conv(32, 48, 3, pads=[gap] * 4, dilations=[gap] * 2)
    one = compiled_for_tiles(net.graph())
    (launch,) = [item for item in one.launches if "amx_dot" in repr(item.kernel.scheduled)]
    func, random = launch.kernel.scheduled, np.random.default_rng(6)
    arrays = [random.standard_normal([int(n.value) for n in p.shape]).astype(p.dtype.numpy) for p in func.buffers]
    for buffer, array in zip(func.buffers, arrays, strict=True):
        for axis, (before, after) in enumerate(func.annotations["borders"].get(buffer.name, ())):
            beside = np.arange(array.shape[axis])
            array[(slice(None),) * axis + ((beside < before) | (beside >= len(beside) - after),)] = 0
    results = [[array.copy() for array in arrays] for _ in range(2)]
    interpret(func, *results[0])
    interpret(run_passes(func, [step for step in PASSES if step is not amx.configure_tiles]), *results[1])
    for want, made in zip(*results, strict=True):
        np.testing.assert_allclose(made.astype("f4"), want.astype("f4"), rtol=1e-4, atol=1e-4)


@needs_amx
def test_the_scheduled_program_means_what_the_machine_computes():
    net = Net(3, 1, 32, 3, 6)
    net.conv(32, 32, 1)
    graph = net.graph()
    with knobs.override(cache=False):
        module = weft.compile(graph, precision="bf16", threads=1)
    (one,) = module.specializations
    (launch,) = [item for item in one.launches if "amx_dot" in repr(item.kernel.scheduled)]
    func = launch.kernel.scheduled
    random = np.random.default_rng(4)
    arrays = {p.name: random.standard_normal([int(n.value) for n in p.shape]) for p in func.buffers}
    arrays = {p.name: arrays[p.name].astype(p.dtype.numpy) for p in func.buffers}
    image, weight = (arrays[p.name].astype("f4") for p in func.buffers if p.dtype.name == "bfloat16")
    interpret(func, *arrays.values())
    bias, out = sorted((arrays[p.name] for p in func.buffers if p.dtype.name == "float32"), key=np.ndim)
    columns = weight.reshape(-1, 16, 16, 2).transpose(1, 3, 0, 2).reshape(32, 32)
    want = np.einsum("hwc,co->ohw", image[0, 0, :3, :6], columns)
    np.testing.assert_allclose(out[0], want + bias[:, None, None], rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------- folded strides


@pytest.mark.parametrize(
    "size,k,stride,pad,channels",
    [(28, 7, 2, 3, 3), (28, 3, 2, 1, 3), (28, 3, 2, 0, 3), (32, 4, 4, 0, 3), (24, 5, 2, 2, 1), (27, 3, 3, 1, 2)],
)
def test_a_folded_convolution_is_the_same(size, k, stride, pad, channels):
    net = Net(5, 1, channels, size, size)
    net.conv(channels, 16, k, strides=[stride] * 2, pads=[pad] * 4)
    narrow = lower_precision(net.graph(), "bf16")
    folded = fold_strides(narrow)
    assert [n.op for n in folded.nodes].count("SpaceToDepth") == 1
    x = np.random.default_rng(6).standard_normal((1, channels, size, size)).astype("f4")
    (want,), (made,) = interpret_graph(narrow, [x]), interpret_graph(folded, [x])
    np.testing.assert_allclose(made, want, rtol=1e-3, atol=1e-3)


def test_what_is_not_folded():
    for channels, size, attributes in (
        (3, 28, {"strides": [1, 1]}),
        (8, 28, {"strides": [2, 2]}),
        (3, 27, {"strides": [2, 2]}),
    ):
        net = Net(7, 1, channels, size, size)
        net.conv(channels, 16, 3, pads=[1, 1, 1, 1], **attributes)
        narrow = lower_precision(net.graph(), "bf16")
        assert fold_strides(narrow) is narrow
    net = Net(8, 1, 3, 28, 28)
    net.conv(3, 16, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    wide = net.graph()
    assert fold_strides(wide) is wide


# ---------------------------------------------------------------------------------------------------------- bytes


def quantized_chain(kind: str, zero: int, width: int) -> Graph:
    """Three convolutions of 8-bit numbers, each with its zero point outside the image."""
    net = Net(9, 1, 64, 7, width)
    net.input = net.last = Value("x", TensorType(kind, (1, 64, 7, width)))
    scale, point = Value("scale", TensorType("float32", ())), Value("zero", TensorType(kind, ()))
    net.constants[scale], net.constants[point] = np.float32(0.05), np.array(zero, kind)
    small = Value("small", TensorType("float32", ()))
    net.constants[small] = np.float32(0.02)
    for number, (ci, co, k) in enumerate(((64, 128, 3), (128, 48, 1), (48, 64, 3))):
        net.add("DequantizeLinear", scale, point)
        raw = Value(f"raw{number}", TensorType("int8", (co, ci, k, k)))
        net.constants[raw] = net.random.integers(-127, 128, (co, ci, k, k)).astype("int8")
        weight = Value(f"weight{number}")
        net.nodes.append(Node("DequantizeLinear", [raw, small], [weight], {}, name=f"d{number}"))
        net.add("Conv", weight, net.constant(co), kernel_shape=[k, k], pads=[k // 2] * 4)
        net.constants[deep := Value(f"deep{number}", TensorType("float32", ()))] = np.float32(0.5 * ci * k * k / 64)
        net.add("QuantizeLinear", deep, point)
        scale = deep
    return net.graph()


@pytest.mark.parametrize("kind,zero,width", [("uint8", 0, 14), ("uint8", 131, 17), ("int8", -7, 9)])
def test_convolutions_of_bytes(kind, zero, width):
    graph = quantized_chain(kind, zero, width)
    limits = np.iinfo(kind)
    x = np.random.default_rng(10).integers(limits.min, limits.max + 1, (1, 64, 7, width)).astype(kind)
    (want,) = interpret_graph(graph, [x])
    assert len(np.unique(want)) > 20
    with knobs.override(cache=False):
        module = weft.compile(graph, threads=2)
        (made,) = module.run(None, {"x": x})
    # A sum that lies between two steps of the scale may be rounded to either.
    assert np.abs(made.astype(int) - want.astype(int)).max() <= 1
    assert (made != want).mean() < 0.01
    if amx.available(find_target("native")):
        (one,) = module.specializations
        assert sum("amx_dot" in repr(launch.kernel.scheduled) for launch in one.launches) >= 2
