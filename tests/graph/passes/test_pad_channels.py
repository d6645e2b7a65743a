"""Channels padded to whole vectors: the same results, whatever the data, and where it pays by a target's prices."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.conftest import FULL
from weft.compiler.passes import for_target, optimize
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Array, Graph, Node, Value
from weft.graph.passes.pad_channels import Prices, Sides, pad_channels, padded, parts, sources
from weft.models.builder import Builder
from weft.ops.convolution_winograd import NAME as WINOGRAD
from weft.targets.registry import find_target

AVX512 = find_target("x86_64-unknown-linux-gnu,cpu=sapphirerapids,cores=2")
AVX2 = find_target("x86_64-unknown-linux-gnu,cpu=haswell,cores=2")


def forced(lanes: int) -> Prices:
    """Prices by which anything is padded that can be."""

    def seconds(node: Node, sides: Sides) -> float:
        return float(bool(sides.inputs % lanes) + bool(sides.outputs % lanes))

    return Prices(lanes, seconds, lambda elements: 0.0, 0.0)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def channels(graph: Graph) -> list[int]:
    """Those of what convolutions make."""
    return [node.outputs[0].tensor.static[1] for node in graph.nodes if "Conv" in node.op]


def image(graph: Graph, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(v.tensor.static).astype(np.float32) for v in graph.inputs]


def same(graph: Graph, other: Graph, feeds: list[Array], tolerance: float = 2e-5) -> None:
    """Both give the same, NaN for NaN and infinity for infinity."""
    for wanted, found in zip(interpret_graph(graph, feeds), interpret_graph(other, feeds)):
        alike(found, wanted, tolerance)


def alike(found: Array, wanted: Array, tolerance: float = 2e-5) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


# --------------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("count, lanes", list(itertools.product((2, 3, 5, 6, 17, 33, 120), (4, 8, 16))))
def test_the_parts_of_a_channel_make_one(count: int, lanes: int):
    whole = padded(count, lanes)
    assert whole % lanes == 0 and whole - count < lanes
    index = sources(count, whole)
    shares = parts(index)
    assert list(index[:count]) == list(range(count))
    assert np.array_equal(np.bincount(index, shares), np.ones(count)), "exactly: they are powers of two"
    assert (shares > 0).all()


# ----------------------------------------------------------------------------------------------------------- operators


def squeeze(b: Builder, x: Value, count: int) -> Value:
    """A gate for each channel, from its mean."""
    y = b.relu(b.conv(b.node("GlobalAveragePool", x), count, 5, 1, bias=True))
    return b.node("Mul", x, b.node("HardSigmoid", b.conv(y, 5, count, 1, bias=True)))


def concatenated(b: Builder, x: Value, count: int, sizes: tuple[int, ...], after: int = 0) -> Value:
    """Some convolutions side by side, a number for each channel, and a convolution over all; `after` > 0: without."""
    made = b.node("Concat", *(b.relu(b.conv(x, count, size, 1, bias=True)) for size in sizes), axis=1)
    made = b.node("Mul", made, b.normal(sum(sizes), 1, 1))
    return made if after else b.conv(made, sum(sizes), count, 3, 1, 1)


KEEPERS: dict[str, Callable[[Builder, Value, int], Value]] = {
    "relu": lambda b, x, c: b.relu(x),
    "sigmoid": lambda b, x, c: b.node("Sigmoid", x),
    "log": lambda b, x, c: b.node("Log", x),
    "reciprocal": lambda b, x, c: b.node("Reciprocal", b.relu(x)),
    "clip": lambda b, x, c: b.relu6(x),
    "hard swish": lambda b, x, c: b.node("HardSwish", x),
    "square": lambda b, x, c: b.node("Mul", x, x),
    "scalar": lambda b, x, c: b.node("Add", x, b.constant(np.float32(3))),
    "per channel": lambda b, x, c: b.node("Mul", x, b.normal(c, 1, 1)),
    "per element": lambda b, x, c: b.node("Sub", x, b.normal(1, c, 8, 8)),
    "per place": lambda b, x, c: b.node("Mul", x, b.normal(8, 1)),
    "prelu": lambda b, x, c: b.node("PRelu", x, b.normal(c, 1, 1)),
    "batch norm": lambda b, x, c: b.batch_norm(b.relu(x), c),
    "instance norm": lambda b, x, c: b.node("InstanceNormalization", x, b.normal(c), b.normal(c)),
    "depthwise": lambda b, x, c: b.conv(x, c, c, 3, 1, 1, groups=c, bias=True),
    "pairs": lambda b, x, c: b.conv(x, c, c, 3, 1, 1, groups=c // (2 - c % 2), bias=True),
    "max pool": lambda b, x, c: b.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
    "average pool": lambda b, x, c: b.node("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
    "squeeze and excite": squeeze,
    "mean of places": lambda b, x, c: b.node("Mul", x, b.node("ReduceMean", x, b.ints(2, 3), keepdims=1)),
    "residual": lambda b, x, c: b.add(b.conv(x, c, c, 3, 1, 1), x),
    "comparison": lambda b, x, c: b.node("Where", b.node("Greater", x, b.constant(np.float32(0))), x, b.relu(x)),
    "resize": lambda b, x, c: b.node("Resize", x, None, b.constant(np.ones(4, np.float32)), mode="nearest"),
    "concatenated": lambda b, x, c: concatenated(b, x, c, (c, 10, 5)),
    "concatenated to whole vectors": lambda b, x, c: concatenated(b, x, c, (c, 32 - c)),
    "concatenated twice": lambda b, x, c: b.conv(
        b.node("Concat", concatenated(b, x, c, (c, 5), c + 5), x, axis=1), 2 * c + 5, c, 1
    ),
    "sum of two": lambda b, x, c: b.conv(
        b.add(concatenated(b, x, c, (c, 5), c + 5), concatenated(b, x, c, (c, 5), c + 5)), c + 5, c, 1
    ),
}
"""What is padded with what stands around it."""

MIXERS: dict[str, Callable[[Builder, Value, int], Value]] = {
    "softmax of channels": lambda b, x, c: b.node("Softmax", x, axis=1),
    "sum of channels": lambda b, x, c: b.node("Mul", x, b.node("ReduceSum", x, b.ints(1), keepdims=1)),
    "layer norm": lambda b, x, c: b.node("LayerNormalization", x, b.normal(c, 8, 8), b.normal(c, 8, 8), axis=1),
    "transposed": lambda b, x, c: b.node("Transpose", x, perm=[0, 1, 3, 2]),
    "concatenated with one": lambda b, x, c: b.conv(
        b.node("Concat", x, b.node("ReduceMax", x, b.ints(1), keepdims=1), axis=1), c + 1, c, 1
    ),
    "sizes": lambda b, x, c: b.node("Resize", x, None, None, b.ints(1, c, 8, 8), mode="nearest"),
    "groups": lambda b, x, c: b.conv(x, c, c, 3, 1, 1, groups=2 - c % 2),
    "along rows": lambda b, x, c: b.node("Mul", x, b.node("ReduceMean", x, b.ints(0, 1), keepdims=0)),
    "quantized": lambda b, x, c: b.node(
        "DequantizeLinear",
        b.node("QuantizeLinear", x, b.constant(np.linspace(0.1, 1, c, dtype=np.float32)), axis=3 if c == 8 else 1),
        b.constant(np.linspace(0.1, 1, c, dtype=np.float32)),
        axis=3 if c == 8 else 1,
    ),
    "computed weight": lambda b, x, c: b.node("Conv", x, b.input("w", (c, c, 1, 1))),
}
"""What reads channels as they were."""


def chain(middle: Callable[[Builder, Value, int], Value], count: int = 6, outputs: int = 9) -> Graph:
    """Two convolutions with something between."""
    b = Builder("chain")
    x = b.conv(b.input("x", (1, 3, 8, 8)), 3, count, 3, 1, 1, bias=True)
    x = b.conv(middle(b, x, count), count, outputs, 3, 1, 1, bias=True)
    return b.finish(x, names=["out"])


@pytest.mark.thin(2)
@pytest.mark.parametrize("lanes", (4, 8, 16))
@pytest.mark.parametrize("name", KEEPERS)
def test_operators_that_keep_channels_are_padded(name: str, lanes: int):
    graph = chain(KEEPERS[name], 18 if lanes == 4 else 6)
    made = pad_channels(graph, forced(lanes))
    between = [n for n in made.nodes if n.op not in ("Gather", "Slice") and n.outputs[0] not in made.outputs]
    shapes = [v.tensor.static for n in between for v in n.outputs if len(v.tensor.static) == 4]
    assert all(shape[1] % lanes == 0 for shape in shapes), "only the caller's are not whole vectors"
    assert ops(made) == ["Gather", *ops(graph), "Slice"]
    same(graph, made, image(graph))


@pytest.mark.parametrize("name", MIXERS)
def test_others_read_channels_as_they_were(name: str):
    graph = chain(MIXERS[name])
    made = pad_channels(graph, forced(4))
    kept = [node for node in made.nodes if node.op not in ("Conv", "Slice", "Gather", "Mul")]
    assert "Slice" in ops(made)
    assert all(v.tensor.static[1] in (1, 3, 6, 7) for n in kept for v in n.outputs if len(v.tensor.static) == 4)
    same(graph, made, image(graph))


@pytest.mark.parametrize("lanes", (4, 16))
@pytest.mark.parametrize("name", [*KEEPERS, *MIXERS])
def test_numbers_that_are_none_go_where_they_went(name: str, lanes: int):
    """An infinity meets no zero, and a NaN no channel, that it did not meet before."""
    graph = chain({**KEEPERS, **MIXERS}[name])
    made = pad_channels(graph, forced(lanes))
    for place, number in itertools.product(((0, 0, 0, 0), (0, 2, 4, 5)), (np.inf, -np.inf, np.nan, 3e38)):
        feeds = image(graph)
        feeds[0][place] = number
        with np.errstate(all="ignore"):
            wanted, found = interpret_graph(graph, feeds)[0], interpret_graph(made, feeds)[0]
        if number == 3e38:  # what overflows on the way may differ in what overflows
            found, wanted = (np.where(np.abs(x) < 1e30, x, np.nan) for x in (found, wanted))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_an_infinity_that_an_activation_hides():
    """All channels of the first convolution become -inf, which Relu takes away: padding by zeros would leave NaN."""
    b = Builder("hidden")
    weight = b.constant(-np.ones((6, 3, 1, 1), np.float32))
    x = b.relu(b.node("Conv", b.input("x", (1, 3, 4, 4)), weight))
    graph = b.finish(b.conv(x, 6, 5, 1))
    made = pad_channels(graph, forced(4))
    feeds = [np.full((1, 3, 4, 4), np.inf, np.float32)]
    assert channels(made) == [8, 8] and (interpret_graph(made, feeds)[0] == 0).all()


def test_scales_along_rows_are_not_of_channels():
    """Eight of both: which of them a vector of scales is for is told by an attribute."""
    graph = chain(MIXERS["quantized"], 8)
    same(graph, pad_channels(graph, forced(16)), image(graph))


def test_a_convolution_to_one_channel_reads_the_copies():
    b = Builder("head")
    x = b.relu(b.conv(b.input("x", (1, 8, 8, 8)), 8, 6, 3, 1, 1))
    graph = b.finish(b.conv(x, 6, 1, 1, bias=True))
    made = pad_channels(graph, forced(8))
    assert ops(made) == ["Conv", "Relu", "Conv"] and channels(made) == [8, 1]
    same(graph, made, image(graph))


# --------------------------------------------------------------------------------------------------------------- random


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, int]:
    """A chain with branches of such operators, some of them the caller's too."""
    lanes = draw(st.sampled_from((4, 8, 16)))
    b = Builder("random", draw(st.integers(0, 99)))
    count = draw(st.sampled_from((3, 6, 12, 16, 17, 33)))
    x, wanted = b.input("x", (1, count, 8, 8)), []
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(("conv", "keeper", "keeper", "mixer", "output", "joint")))
        if kind == "conv":
            more = draw(st.sampled_from((6, 8, 17, 33)))
            x, count = b.conv(x, count, more, draw(st.sampled_from((1, 3))), 1, 0, bias=draw(st.booleans())), more
            x = b.node("Pad", x, b.ints(0, 0, 0, 0, 0, 0, 2, 2)) if draw(st.booleans()) else x
            x = b.node("Resize", x, None, None, b.ints(1, count, 8, 8), mode="nearest")
        elif kind == "keeper":
            name = draw(st.sampled_from(sorted({*KEEPERS} - {"log", "reciprocal", "concatenated to whole vectors"})))
            x = KEEPERS[name](b, x, count)
        elif kind == "joint":
            sides = [(x, count), (b.relu(x), count), (b.conv(x, count, 9, 1), 9), (b.normal(1, 3, 8, 8), 3)]
            values, sizes = zip(*draw(st.permutations(sides))[:3])
            x, count = b.node("Concat", *values, axis=1), sum(sizes)
        elif kind == "mixer":
            name = draw(st.sampled_from(("softmax of channels", "transposed", "layer norm")))
            x = MIXERS[name](b, x, count)
        else:
            wanted.append(b.node("Tanh", x) if draw(st.booleans()) else x)
    names = [v for v in dict.fromkeys([*wanted, x]) if v not in b.inputs]
    return b.finish(*(names or [b.relu(x)])), lanes


@settings(max_examples=200 if FULL else 20, deadline=None)
@given(graphs())
def test_random_graphs(drawn: tuple[Graph, int]):
    graph, lanes = drawn
    made = pad_channels(graph, forced(lanes))
    assert [v.name for v in made.outputs] == [v.name for v in graph.outputs]
    same(graph, made, image(graph), 1e-4)


@pytest.mark.parametrize("count, lanes, names", ((17, 4, "residual,prelu"), (6, 16, "depthwise"), (33, 8, "max pool")))
def test_compiled(count: int, lanes: int, names: str):
    """On this machine, whatever its own vectors are."""

    def middle(b: Builder, x: Value, c: int) -> Value:
        for name in names.split(","):
            x = KEEPERS[name](b, x, c)
        return x

    graph = chain(middle, count, count)
    feeds = image(graph)
    with knobs.override(pad_channels=False, num_threads=1):
        found = weft.compile(pad_channels(graph, forced(lanes)))(*feeds)
    alike(found, interpret_graph(graph, feeds)[0], 1e-4)


# --------------------------------------------------------------------------------------------------------------- prices


def convolution(inputs: int, outputs: int, size: int, kernel: int = 3) -> Graph:
    b = Builder("single")
    return b.finish(b.conv(b.input("x", (1, inputs, size, size)), inputs, outputs, kernel, 1, kernel // 2), names=["y"])


def for_avx512(graph: Graph) -> Graph:
    return for_target(optimize(graph, {}, {}), AVX512)


@pytest.mark.parametrize("inputs, outputs, size", ((120, 120, 28), (40, 72, 35)))
def test_a_convolution_of_the_caller_becomes_winograds(inputs: int, outputs: int, size: int):
    graph = convolution(inputs, outputs, size)
    made = for_avx512(graph)
    assert ops(made) == ["Gather", WINOGRAD, "Slice"] and channels(made) == [padded(outputs, 16)]
    same(graph, made, image(graph), 1e-4)
    assert ops(for_target(optimize(graph, {}, {}), AVX2)) == [WINOGRAD], "whole vectors of eight as they are"


def test_what_does_not_pay_stays():
    """Three channels of an image would be sixteen; a few of a head would, too."""
    for graph in (convolution(3, 32, 112, 7), convolution(64, 3, 56), convolution(64, 64, 28)):
        with knobs.override(winograd=False):
            assert ops(for_avx512(graph)) == ["Conv"]


def test_a_block_with_odd_channels_exchanges_whole_vectors():
    b = Builder("inverted")
    x = b.relu(b.conv(b.input("x", (1, 64, 28, 28)), 64, 40, 1, bias=True))
    y = b.relu(b.conv(x, 40, 120, 1, bias=True))
    y = squeeze(b, b.relu(b.conv(y, 120, 120, 5, 1, 2, groups=120, bias=True)), 120)
    y = b.add(b.conv(y, 120, 40, 1, bias=True), x)
    graph = b.finish(b.relu(b.conv(y, 40, 128, 1)))
    made = for_avx512(graph)
    assert channels(made) == [48, 128, 128, 5, 128, 48, 128] and not {"Gather", "Slice"} & set(ops(made))
    same(graph, made, image(graph), 1e-4)


@pytest.mark.parametrize("size, count, step", ((8, 208, 1), (4, 128, 2), (2, 64, 1), (8, 104, 1)))
def test_small_groups_take_turns(size: int, count: int, step: int):
    b = Builder("grouped")
    x = b.relu(b.conv(b.input("x", (1, 64, 15, 15)), 64, count, 1, bias=True))
    x = b.relu(b.conv(x, count, count, 3, step, 1, groups=count // size, bias=True))
    graph = b.finish(b.conv(squeeze(b, x, count), count, 64, 1, bias=True))
    made = for_avx512(graph)
    (grouped,) = [node for node in made.nodes if node.attributes.get("group", 1) > 1]
    if count == 104:
        assert "turns" not in grouped.attributes, "13 groups: another one costs more than turns save"
        return
    assert grouped.attributes["turns"] == 16 // size and not {"Gather", "Slice"} & set(ops(made))
    same(graph, made, image(graph), 1e-4)
    with knobs.override(num_threads=1):
        alike(weft.compile(made)(*image(graph)), interpret_graph(graph, image(graph))[0], 1e-4)


def test_groups_of_two_sizes_do_not_share_turns():
    b = Builder("two")
    x = b.conv(b.input("x", (1, 3, 8, 8)), 3, 32, 1)
    for size in (4, 8, 4):
        x = b.relu(b.conv(x, 32, 32, 3, 1, 1, groups=32 // size, bias=size == 4))
    graph = b.finish(b.conv(x, 32, 5, 1), x)

    def seconds(node: Node, sides: Sides) -> float:
        return float(sides.turns == 1)

    made = pad_channels(graph, Prices(16, seconds, lambda elements: 0.0, 0.0))
    assert [node.attributes.get("turns", 1) for node in made.nodes if node.attributes.get("group", 1) > 1] == [4, 1, 4]
    same(graph, made, image(graph))


def test_settings():
    graph = optimize(convolution(120, 120, 28), {}, {})
    for setting in ("pad_channels", "exact"):
        with knobs.override(**{setting: setting == "exact"}):
            assert ops(for_target(graph, AVX512)) == ["Conv"]
    assert ops(for_target(graph, find_target("cuda:sm_90"))) == ["Conv"]


def test_nothing_to_pad_is_the_same_graph():
    graph = convolution(8, 16, 9)
    assert pad_channels(graph, forced(8)) is graph
    b = Builder("empty")
    graph = b.finish(b.conv(b.input("x", (0, 120, 28, 28)), 120, 120, 3))
    assert ops(for_avx512(graph)) == ["Conv"]
    graph = convolution(6, 6, 9)
    assert pad_channels(graph, Prices(4, lambda node, sides: 1.0, lambda elements: 0.0, 0.1)) is graph


def test_weights_that_cannot_be_divided():
    """What is read stays; rows of any weight are copied."""
    for number in (2.0**-140, np.inf, np.nan):
        graph = convolution(6, 6, 5)
        (weight,) = graph.constants.values()
        weight[0, 0, 0, 0] = number
        made = pad_channels(graph, forced(4))
        assert ops(made) == ["Conv", "Slice"] and [w.shape for w in made.constants.values() if w.ndim == 4][0][:2] == (
            8,
            6,
        )


def test_two_that_are_padded_apart_are_not_added():
    """6 + 5 and 5 + 6 channels are as many, padded each in its own way: one of them is read as it was."""
    graph = chain(
        lambda b, x, c: b.conv(
            b.add(concatenated(b, x, c, (6, 5), 11), concatenated(b, x, c, (5, 6), 11)), 11, c, 1
        )
    )  # fmt: skip
    made = pad_channels(graph, forced(4))
    sizes = {n.outputs[0].tensor.static[1] for n in made.nodes if n.op == "Concat"}
    assert sizes == {16, 11}
    same(graph, made, image(graph))
