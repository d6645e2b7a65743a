"""A convolution that is the whole model, image and result in the caller's layout: every kind of it against numpy."""

import math

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401  (the table of operators)
from tests.codegen.test_memory import Page
from tests.hosts import lesser
from weft.compiler.lowering.graph import lower_graph
from weft.compiler.passes import for_target, optimize
from weft.core.knobs import knobs
from weft.expr.nodes import int_value
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.targets.registry import find_target


def convolution(image, filters, kernel, group=1, bias=False, relu=False, op="Conv", seed=0, **attributes) -> Graph:
    """A graph of one convolution; `image` is the shape of its input."""
    rng = np.random.default_rng(seed)
    x = Value("x", TensorType("float32", tuple(image)))
    channels = image[1]
    shape = (channels, filters // group, *kernel) if op == "ConvTranspose" else (filters, channels // group, *kernel)
    weight = Value("w", TensorType("float32", shape))
    scale = math.sqrt(math.prod(kernel) * channels // group)
    constants = {weight: (rng.standard_normal(shape) / scale).astype("f4")}
    inputs = [x, weight]
    if bias:
        inputs.append(Value("b", TensorType("float32", (filters,))))
        constants[inputs[2]] = rng.standard_normal(filters).astype("f4")
    y = Value("y")
    nodes = [Node(op, inputs, [y], {"kernel_shape": list(kernel), "group": group, **attributes}, name="it")]
    if relu:
        nodes.append(Node("Relu", [y], [Value("z")], name="after"))
    return infer(Graph("one", [x], list(nodes[-1].outputs), nodes, constants))


def check(graph: Graph, threads: int = 1, target: str = "native"):
    """Compiles and compares; gives the module."""
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype("f4")
    (expected,) = interpret_graph(graph, [x])
    with knobs.override(cache=False):
        module = weft.compile(graph, target=target, threads=threads)
        (made,) = module.run(None, {"x": x})
    scale = max(float(np.abs(expected).max(initial=0)), 1e-3)
    np.testing.assert_allclose(made, expected, atol=3e-5 * scale, rtol=0)
    return module


CASES = {
    "pointwise": ((1, 64, 14, 14), 64, (1, 1), {}),
    "pointwise, many blocks, odd places": ((1, 24, 9, 11), 80, (1, 1), {}),
    "pointwise, stride": ((1, 32, 15, 15), 48, (1, 1), {"strides": [2, 2]}),
    "three by three, stride": ((1, 20, 17, 13), 32, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "uneven padding": ((1, 8, 12, 10), 16, (3, 5), {"strides": [2, 1], "pads": [0, 3, 2, 1]}),
    "dilated": ((1, 8, 20, 19), 32, (3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "first layer": ((1, 3, 37, 41), 64, (7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "channels that do not divide": ((1, 7, 13, 13), 21, (3, 3), {"pads": [1, 1, 1, 1]}),
    "channels of half a block": ((1, 16, 9, 9), 24, (3, 3), {"strides": [2, 2]}),
    "several images": ((3, 16, 10, 10), 32, (1, 1), {}),
    "one place": ((1, 48, 3, 3), 32, (3, 3), {}),
    "groups": ((1, 32, 9, 9), 64, (3, 3), {"group": 2, "strides": [2, 2]}),
    "groups of many blocks": ((1, 20, 13, 13), 192, (3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "groups of three blocks": ((1, 18, 9, 10), 96, (1, 1), {"group": 2}),
    "groups of one block": ((1, 24, 9, 11), 48, (3, 3), {"group": 3}),
    "groups of a part of a block": ((1, 32, 9, 11), 64, (3, 3), {"group": 8}),
    "dilated, as far apart as a row is long": (
        (2, 12, 5, 3),
        96,
        (2, 3),
        {"group": 2, "strides": [2, 1], "dilations": [1, 2], "pads": [0, 2, 3, 1], "relu": True},
    ),
    "groups of a block and a half": ((1, 16, 9, 11), 48, (3, 3), {"group": 2}),
    "one dimension": ((1, 16, 50), 32, (5,), {"strides": [2], "pads": [2, 2]}),
    "three dimensions": ((1, 8, 6, 7, 8), 16, (3, 3, 3), {"pads": [1] * 6, "strides": [2, 1, 2]}),
    "transposed": ((1, 16, 7, 9), 32, (4, 4), {"op": "ConvTranspose", "strides": [2, 2], "pads": [1] * 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_convolution_alone(case):
    image, filters, kernel, attributes = CASES[case]
    check(convolution(image, filters, kernel, **attributes), threads=1 + len(case) % 2)


def test_sums_of_a_result_without_bias_lie_in_blocks_of_channels():
    lanes = find_target("native").vector_bytes // 4
    (form,) = check(convolution((1, 64, 14, 14), 64, (1, 1))).specializations
    (launch,) = form.launches
    sums = [b for b in launch.kernel.scheduled.allocations if b.scope == "local"]
    assert [int_value(b.shape[-1]) for b in sums] == [lanes]


@pytest.mark.parametrize("channels,group,stride", [(64, 2, 2), (96, 3, 1), (64, 4, 1), (32, 8, 2), (48, 2, 1)])
def test_groups_between_convolutions_in_blocks(channels, group, stride):
    rng = np.random.default_rng(channels)
    x = Value("x", TensorType("float32", (1, channels, 10, 13)))
    nodes, constants, last = [], {}, x
    for at, (kernel, groups, step) in enumerate([(1, 1, 1), (3, group, stride), (1, 1, 1)]):
        weight = Value(f"w{at}", TensorType("float32", (channels, channels // groups, kernel, kernel)))
        constants[weight] = (rng.standard_normal(weight.tensor.static) / math.sqrt(channels * kernel)).astype("f4")
        made = Value(f"y{at}")
        attributes = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": groups, "strides": [step] * 2}
        nodes.append(Node("Conv", [last, weight], [made], attributes, name=f"n{at}"))
        last = made
    check(infer(Graph("three", [x], [last], nodes, constants)), threads=2)


def merged_shapes(module) -> list[list[int]]:
    """The shapes of the parameters of a module's only kernel."""
    (form,) = module.specializations
    (launch,) = form.launches
    return [[int_value(size) for size in buffer.shape] for buffer in launch.kernel.scheduled.buffers]


@pytest.mark.thin(2)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "image,group",
    [
        ((1, 24, 12, 20), 1),
        ((2, 5, 4, 4), 1),
        ((1, 7, 28, 28), 7),
        ((2, 9, 4, 8), 3),
        ((1, 24, 7, 7), 1),
        ((1, 9, 7, 5), 3),
    ],
)
def test_places_of_a_pointwise_convolution_are_one_row(image, group, bias):
    module = check(convolution(image, 21, (1, 1), bias=bias, relu=bias, group=group), threads=1 + bias)
    if find_target("native").vector_bytes == 64:
        assert [image[0], 21, 1, image[2] * image[3]] in merged_shapes(module)


@pytest.mark.parametrize("image,filters,attributes", [
    ((1, 24, 12, 20), 21, {"strides": [2, 2]}), ((1, 24, 12, 20), 21, {"pads": [0, 1, 0, 1]}),
    ((1, 24, 7, 16), 21, {}), ((1, 24, 7, 7), 32, {"group": 2}),
])  # fmt: skip
def test_places_of_other_convolutions_are_not(image, filters, attributes):
    with knobs.override(pad_channels=False):
        module = check(convolution(image, filters, (1, 1), **attributes))
    assert not any(shape[2:3] == [1] and len(shape) == 4 and shape[3] > 20 for shape in merged_shapes(module))


@pytest.mark.thin(2)
@pytest.mark.parametrize("other", [(1, 21, 12, 20), (1, 21, 1, 1), (1,), (12, 20), (20,), (1, 21, 12, 1)])
@pytest.mark.parametrize("constant", [False, True])
def test_what_is_added_to_a_pointwise_convolution(other, constant):
    """Operands of the same places are merged with them; what has other places keeps all of them apart."""
    graph = convolution((1, 24, 12, 20), 21, (1, 1), bias=True)
    rng = np.random.default_rng(5)
    operand, total = Value("z", TensorType("float32", other)), Value("total")
    nodes = [*graph.nodes, Node("Add", [graph.outputs[0], operand], [total], name="add")]
    values = rng.standard_normal(other).astype("f4")
    constants = {**graph.constants, **({operand: values} if constant else {})}
    inputs = graph.inputs if constant else [*graph.inputs, operand]
    whole = infer(Graph("sum", inputs, [total], nodes, constants))
    x = rng.standard_normal((1, 24, 12, 20)).astype("f4")
    feeds = [x] if constant else [x, values]
    with knobs.override(cache=False):
        (made,) = weft.compile(whole).run(None, dict(zip([v.name for v in inputs], feeds)))
    np.testing.assert_allclose(made, interpret_graph(whole, feeds)[0], atol=1e-4, rtol=0)


DEPTHWISE = {
    "plain": ((1, 12, 28, 28), (3, 3), {"pads": [1, 1, 1, 1]}),
    "stride 2": ((1, 8, 28, 28), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "stride 2, odd": ((1, 5, 15, 17), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "stride 2, narrow": ((1, 16, 14, 14), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "stride 2 along rows only": ((1, 6, 9, 40), (5, 3), {"pads": [2, 0, 2, 2], "strides": [1, 2]}),
    "stride 3": ((1, 4, 20, 50), (3, 3), {"pads": [1, 1, 1, 1], "strides": [3, 3]}),
    "stride 5": ((1, 4, 21, 52), (3, 3), {"strides": [5, 5]}),
    "no padding": ((1, 9, 13, 35), (3, 3), {}),
    "much uneven padding": ((1, 3, 11, 18), (3, 3), {"pads": [4, 0, 1, 7]}),
    "rows of padding alone": ((1, 3, 4, 6), (3, 3), {"pads": [5, 5, 5, 5], "strides": [2, 2]}),
    "dilated": ((1, 7, 23, 21), (3, 3), {"pads": [2, 4, 2, 4], "dilations": [2, 4]}),
    "large window": ((1, 4, 19, 37), (7, 7), {"pads": [3, 3, 3, 3]}),
    "window as large as the image": ((1, 6, 5, 9), (5, 5), {}),
    "one row": ((1, 10, 1, 30), (1, 3), {"pads": [0, 1, 0, 1]}),
    "several images": ((3, 4, 10, 18), (3, 3), {"pads": [1, 1, 1, 1]}),
    "two filters a channel": ((1, 5, 12, 20), (3, 3), {"pads": [1, 1, 1, 1], "filters": 10}),
    "one dimension": ((1, 9, 50), (5,), {"pads": [2, 2], "strides": [2]}),
    "three dimensions": ((1, 4, 5, 6, 19), (3, 3, 3), {"pads": [1] * 6, "strides": [1, 2, 2]}),
}


@pytest.mark.parametrize("case", DEPTHWISE)
def test_a_depthwise_convolution_alone(case):
    image, kernel, attributes = DEPTHWISE[case]
    after = len(case) % 2 == 0
    given = {"filters": image[1], **attributes}
    check(convolution(image, kernel=kernel, group=image[1], bias=after, relu=after, **given), threads=1 + after)


@pytest.mark.thin(2)
@pytest.mark.parametrize("target", lesser(x86=("-avx512f", "-avx", "-avx512bw")))
@pytest.mark.parametrize("case", ["plain", "stride 2", "stride 2, odd", "dilated", "much uneven padding"])
def test_a_depthwise_convolution_on_lesser_machines(case, target):
    image, kernel, attributes = DEPTHWISE[case]
    check(convolution(image, image[1], kernel, group=image[1], **attributes), target=target)


@pytest.mark.parametrize("case", ["plain", "stride 2, narrow", "stride 3", "no padding", "dilated"])
def test_a_depthwise_convolution_reads_nothing_outside_its_image(case):
    """The image ends, and then begins, where no memory is."""
    image, kernel, attributes = DEPTHWISE[case]
    graph = convolution(image, image[1], kernel, group=image[1], **attributes)
    with knobs.override(cache=False):
        module = weft.compile(graph)
    for at_end in (True, False):
        page = Page(np.float32, math.prod(image), at_end)
        page.array[:] = np.random.default_rng(3).standard_normal(math.prod(image))
        x = page.array.reshape(image)
        (made,) = module.run(None, {"x": x})
        (expected,) = interpret_graph(graph, [x])
        np.testing.assert_allclose(made, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("processor", ["skylake-avx512", "haswell"])
def test_windows_are_read_where_the_image_lies(processor):
    """Where vectors have masks: no copy with zeros around it, and no piece of a vector at the end of a row."""
    image, kernel, attributes = DEPTHWISE["plain"]
    graph = convolution(image, image[1], kernel, group=image[1], **attributes)
    target = find_target(f"x86_64-unknown-linux-gnu,cpu={processor}")
    (made,) = lower_graph(for_target(optimize(graph, {}, {}), target, None), target, None).kernels
    (sums,) = made.scheduled.allocations
    lanes = target.vector_bytes // 4
    assert sums.scope == "local" and int_value(sums.shape[-1]) == -(-28 // lanes) * lanes


@pytest.mark.parametrize("filters", [120, 37, 5])
def test_weights_that_do_not_fill_tiles_are_packed_when_the_model_is_compiled(filters):
    module = check(convolution((1, 48, 1, 1), filters, (1, 1), bias=True), threads=2)
    (launch,) = module.specializations[0].launches
    assert all("in1" not in buffer.name for buffer in launch.kernel.scheduled.allocations)


@pytest.mark.parametrize("image,window", [((1, 3, 9, 20), (3, 3)), ((1, 40, 9, 20), (3, 3)), ((2, 24, 7, 7), (1, 1))])
def test_a_single_block_of_channels(image, window):
    check(convolution(image, 16, window, bias=True, relu=True), threads=2)


@pytest.mark.parametrize("image,filters,window,more", [
    ((1, 1, 9, 33), 32, (3, 3), {}), ((2, 8, 5, 40), 48, (1, 1), {}), ((1, 24, 6, 20), 96, (1, 1), {"group": 2}),
    ((1, 1, 9, 33), 32, (3, 3), {"strides": [2, 2]}),
])  # fmt: skip
def test_short_sums_for_several_blocks_of_channels(image, filters, window, more):
    check(convolution(image, filters, window, bias=True, relu=True, **more), threads=2)


@pytest.mark.parametrize("size,copied", [(64, True), (60, False)])
def test_channels_that_collide_in_the_cache_are_copied_by_parts(size, copied):
    module = check(convolution((1, 32, size, size), 128, (1, 1)), threads=2)
    (launch,) = module.specializations[0].launches
    names = [buffer.name for buffer in launch.kernel.scheduled.allocations]
    assert any(name.startswith("in0") for name in names) is copied or find_target("native").vector_bytes != 64
