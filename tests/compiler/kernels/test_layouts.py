"""Layouts: random convolutional graphs give the same with values in blocks and borders as by the interpreter."""

import math

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401  (the table of operators)
from tests.conftest import FULL
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.fuse import fuse
from weft.graph.passes.infer import infer
from weft.graph.passes.layout import Layout, choose_layouts


class Net:
    """A graph that grows node by node; every value is (1, channels, height, width)."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.constants: dict[Value, np.ndarray] = {}
        self.shapes: dict[Value, tuple[int, ...]] = {}

    def constant(self, *shape: int) -> Value:
        value = Value(f"w{len(self.constants)}", TensorType("float32", shape))
        self.constants[value] = (self.rng.standard_normal(shape) / math.sqrt(max(1, np.prod(shape[1:])))).astype("f4")
        return value

    def add(self, op: str, inputs: list[Value], shape: tuple[int, ...], **attributes) -> Value:
        made = Value(f"{op.lower()}{len(self.nodes)}")
        self.nodes.append(Node(op, inputs, [made], attributes, name=f"n{len(self.nodes)}"))
        self.shapes[made] = shape
        return made

    def conv(self, x: Value, channels: int, kernel: int, stride: int = 1, pad: int = 0, group: int = 1) -> Value:
        n, c, h, w = self.shapes[x]
        out = (n, channels, (h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1)
        bias = [self.constant(channels)] if self.rng.random() < 0.6 else []
        return self.add(
            "Conv", [x, self.constant(channels, c // group, kernel, kernel), *bias], out,
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=group,
        )  # fmt: skip

    def transposed(self, x: Value, channels: int, kernel: int, stride: int, pad: int) -> Value:
        n, c, h, w = self.shapes[x]
        out = (n, channels, (h - 1) * stride + kernel - 2 * pad, (w - 1) * stride + kernel - 2 * pad)
        return self.add(
            "ConvTranspose", [x, self.constant(c, channels, kernel, kernel)], out,
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
        )  # fmt: skip


def random_net(seed: int) -> Graph:
    net = Net(seed)
    rng = net.rng
    height, width = int(rng.integers(4, 19)), int(rng.integers(4, 19))
    x = Value("x", TensorType("float32", (1, int(rng.choice([3, 8, 16, 32])), height, width)))
    net.shapes[x] = x.tensor.static
    values = [x]
    for _ in range(int(rng.integers(2, 7))):
        source = values[-1] if rng.random() < 0.8 else values[int(rng.integers(len(values)))]
        values.append(grow(net, source, values))
    used = {v for node in net.nodes for v in node.inputs}
    outputs = [v for v in values[1:] if v not in used or rng.random() < 0.15]
    return infer(Graph("net", [x], outputs, net.nodes, net.constants))


def grow(net: Net, x: Value, values: list[Value]) -> Value:
    """One more value made from x."""
    rng, (n, c, h, w) = net.rng, net.shapes[x]
    same = [v for v in values if net.shapes[v] == net.shapes[x]]
    kind = rng.choice(
        ["conv", "conv", "conv", "depthwise", "groups", "transposed", "relu", "add", "pool", "concat", "mean", "flip"]
    )
    if kind == "conv" and min(h, w) >= 3:
        kernel = int(rng.choice([1, 3, 3, 5])) if min(h, w) >= 5 else 1
        return net.conv(x, int(rng.choice([4, 16, 24, 32, 48, 64, 5])), kernel, int(rng.choice([1, 1, 2])), kernel // 2)
    if kind == "depthwise" and min(h, w) >= 3:
        return net.conv(x, c, 3, int(rng.choice([1, 2])), 1, group=c)
    if kind == "groups" and min(h, w) >= 3 and c % 2 == 0:
        group = int(rng.choice([n for n in (2, 4, 8) if c % n == 0]))
        return net.conv(x, group * int(rng.choice([8, 16, 24])), 3, int(rng.choice([1, 2])), 1, group=group)
    if kind == "transposed" and max(h, w) <= 16:
        return net.transposed(x, int(rng.choice([3, 16, 32])), int(rng.choice([2, 3, 4])), int(rng.choice([1, 2])), 0)
    if kind == "add":
        return net.add("Add", [x, same[int(rng.integers(len(same)))]], (n, c, h, w))
    if kind == "pool" and min(h, w) >= 3:
        out = (n, c, (h + 2 - 3) // 2 + 1, (w + 2 - 3) // 2 + 1)
        op = str(rng.choice(["MaxPool", "AveragePool"]))
        return net.add(op, [x], out, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    if kind == "concat":
        other = same[int(rng.integers(len(same)))]
        return net.add("Concat", [x, other], (n, 2 * c, h, w), axis=1)
    if kind == "mean":
        return net.add("Mul", [x, net.add("GlobalAveragePool", [x], (n, c, 1, 1))], (n, c, h, w))
    if kind == "flip":
        return net.add("Transpose", [x], (n, c, w, h), perm=[0, 1, 3, 2])
    return net.add("Relu", [x], (n, c, h, w))


@pytest.mark.parametrize("seed", range(200 if FULL else 14))
def test_random_nets_in_blocks(seed):
    graph = random_net(seed)
    x = np.random.default_rng(seed).standard_normal(graph.inputs[0].tensor.static).astype("f4")
    expected = interpret_graph(graph, [x])
    with knobs.override(cache=False):
        made = weft.compile(graph, threads=1 + seed % 2).run(None, {"x": x})
    for one, other in zip(made, expected):
        scale = max(float(np.abs(other).max(initial=0)), 1e-3)
        np.testing.assert_allclose(one, other, atol=3e-5 * scale, rtol=0)


def simple_net() -> Graph:
    net = Net(0)
    x = Value("x", TensorType("float32", (1, 3, 12, 12)))
    net.shapes[x] = (1, 3, 12, 12)
    a = net.conv(x, 32, 3, pad=1)
    b = net.conv(a, 32, 3, pad=1)
    c = net.add("Add", [b, a], (1, 32, 12, 12))
    flat = net.add("Transpose", [c], (1, 12, 12, 32), perm=[0, 2, 3, 1])
    last = net.conv(c, 16, 1)
    return infer(Graph("simple", [x], [flat, last], net.nodes, net.constants))


def test_values_between_convolutions_lie_in_blocks_with_the_border_that_is_read():
    graph = simple_net()
    laid = choose_layouts(graph, fuse(graph), 16)
    found = {value.name: layout for value, layout in laid.layouts.items()}
    assert found["conv0"] == Layout(16, ((0, 0), (0, 0), (1, 1), (1, 1)))
    assert found["conv0"].shape((1, 32, 12, 12)) == (1, 2, 14, 14, 16)
    # Read in blocks by the last convolution, plainly by the transposition: a conversion stands between.
    assert [value.name for value in laid.plain] == ["add2_blocks"]
    assert sum(node.op == "Identity" for group in laid.groups for node in group.nodes) == 1
    assert not {"x", "conv4", "transpose3"} & found.keys()


@pytest.mark.parametrize("group,blocks", [(1, True), (2, True), (4, False), (64, True)])
def test_groups_that_share_a_block_are_read_and_written_plainly(group, blocks):
    net = Net(1)
    x = Value("x", TensorType("float32", (1, 64, 12, 12)))
    net.shapes[x] = x.tensor.static
    a = net.conv(x, 64, 1)
    b = net.conv(a, 96 if group == 4 else 64, 3, pad=1, group=group)
    graph = infer(Graph("groups", [x], [net.conv(b, 32, 1)], net.nodes, net.constants))
    found = choose_layouts(graph, fuse(graph), 16)
    assert ({value.name for value in found.layouts} == {a.name, b.name}) is blocks and not found.plain
    assert blocks or not found.layouts


def test_no_layouts_without_vectors_or_when_turned_off():
    graph = simple_net()
    assert choose_layouts(graph, fuse(graph), 2).layouts == {}
    with knobs.override(layout=False, cache=False):
        (one,) = weft.compile(graph).specializations
        assert all(len(p.shape) <= 4 for launch in one.launches for p in launch.kernel.scheduled.buffers[:1])
