"""Narrow images with all channels of a place together: what convolutions, windows and norms of groups become on CUDA.

The interpreter runs each lowered kernel by the meaning of its instructions; nothing here needs a device.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft.ops  # noqa: F401  (the operators)
from weft.compiler import compile
from weft.compiler.kernels.program import build_program
from weft.explore.stages import kernels
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.fill_rows import fill_rows
from weft.graph.passes.fuse import fuse
from weft.graph.passes.infer import infer
from weft.graph.passes.layout import Layout, choose_layouts
from weft.loop.interpreter import interpret
from weft.loop.verifier import verify
from weft.models.builder import Builder
from weft.plan.planner import analytic, picking
from weft.targets.gpu.groups import group_rows
from weft.targets.registry import find_target

HOPPER = find_target("cuda:sm_90a")
RANDOM = np.random.default_rng(3)


def value(name, *shape, dtype="float16"):
    return Value(name, TensorType(dtype, shape))


def one_node(op, inputs, shape, constants=(), dtype="float16", **attributes):
    """A graph of one node; inputs that are constants have arrays."""
    out = value("y", *shape, dtype=dtype)
    given = [v for v in inputs if v not in dict(constants)]
    return Graph("one", given, [out], [Node(op, inputs, [out], attributes)], dict(constants))


def layout_of(v):
    return Layout(v.tensor.static[1], ((0, 0),) * len(v.tensor.static))


def run(graph, arrays, plain=()):
    """Schedules a one-node graph with images that have their channels last, and interprets what it is lowered to."""
    images = [v for v in (*graph.inputs, *graph.outputs) if len(v.tensor.static) == 4 and v not in plain]
    layouts = {v: layout_of(v) for v in images}
    made = build_program(graph.nodes, graph.outputs, graph.constants, "kernel", layouts, 1)
    constants = [buffer for v, buffer in made.inputs if v in graph.constants]
    HOPPER.spec.schedule(made.schedule, HOPPER, constants)
    verify(made.schedule.func)
    known = {**{v: graph.constants[v] for v in graph.constants}, **dict(zip(graph.inputs, arrays))}
    out = graph.outputs[0]
    result = np.full(out.tensor.static, 7, out.tensor.core.numpy)

    def stored(v, array):
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)[:, None]) if v in layouts else array

    results = []
    for func, strict in ((made.schedule.func, True), (HOPPER.lower(made.schedule.func), False)):
        laid = stored(out, result).copy()
        interpret(func, *[stored(v, known[v]) for v, _ in made.inputs], laid, check=strict)
        results.append(np.moveaxis(laid[:, 0], -1, 1) if out in layouts else laid)
    np.testing.assert_array_equal(*results)
    return results[0], made


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float16)


def convolved(x, w, stride=1, pad=1):
    """The convolution in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", seen, w.astype(np.float64), optimize=True)


@pytest.mark.parametrize(("channels", "size", "stride"), [(16, 6, 1), (24, 7, 2)])
def test_a_convolution_fetches_whole_vectors(channels, size, stride):
    x, w = value("x", 1, channels, size, size), value("w", 64, channels, 3, 3)
    out = (size - 1) // stride + 1
    weight, image = normal(64, channels, 3, 3), normal(1, channels, size, size)
    graph = one_node("Conv", [x, w], (1, 64, out, out), {w: weight}, pads=[1, 1, 1, 1], strides=[stride, stride])
    made, program = run(graph, [image])
    np.testing.assert_allclose(made, convolved(image, weight, stride), rtol=2e-3, atol=2e-2)
    source = HOPPER.generate(HOPPER.lower(program.schedule.func)).source
    assert "weft_copy_async_16" in source
    assert "weft_copy_async_4(" not in source


def test_few_channels_of_many_places_are_a_tile():
    x, w = value("x", 1, 16, 32, 32), value("w", 4, 16, 3, 3)
    weight, image = normal(4, 16, 3, 3), normal(1, 16, 32, 32)
    made, program = run(one_node("Conv", [x, w], (1, 4, 32, 32), {w: weight}, pads=[1, 1, 1, 1]), [image])
    np.testing.assert_allclose(made, convolved(image, weight), rtol=2e-3, atol=2e-2)
    assert "mma" in HOPPER.generate(HOPPER.lower(program.schedule.func)).source


def test_a_result_for_others_is_plain():
    x, w = value("x", 1, 16, 6, 6), value("w", 64, 16, 1, 1)
    weight, image = normal(64, 16, 1, 1), normal(1, 16, 6, 6)
    graph = one_node("Conv", [x, w], (1, 64, 6, 6), {w: weight})
    made, _ = run(graph, [image], plain=graph.outputs)
    np.testing.assert_allclose(made, convolved(image, weight, pad=0), rtol=2e-3, atol=2e-2)


def test_a_norm_of_groups_is_one_kernel():
    x, scale, bias = value("x", 2, 32, 6, 6), value("s", 32), value("b", 32)
    image, s, b = normal(2, 32, 6, 6), normal(32), normal(32)
    graph = one_node("GroupNormalization", [x, scale, bias], (2, 32, 6, 6), {scale: s, bias: b}, num_groups=4)
    made, program = run(graph, [image])
    grouped = image.astype(np.float64).reshape(2, 4, -1)
    want = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    want = want.reshape(image.shape) * s[:, None, None] + b[:, None, None]
    np.testing.assert_allclose(made, want, rtol=5e-3, atol=5e-3)
    assert len(HOPPER.generate(HOPPER.lower(program.schedule.func)).kernels) == 1


NORMS_IN_PARTS = {
    "groups of 10": ((2, 40, 6, 8), 4, 2),
    "groups of 3, a row each": ((1, 24, 4, 5), 8, 1),
    "one group": ((3, 16, 4, 4), 1, 4),
    "groups of 1": ((2, 16, 4, 4), 16, 2),
    "a part, places that divide nothing": ((1, 32, 7, 11), 4, 7),
    "far from zero": ((1, 16, 8, 8), 2, 4),
    "the first is far from the others": ((2, 16, 8, 8), 2, 2),
}


@pytest.mark.parametrize("name", NORMS_IN_PARTS)
def test_a_norm_of_groups_in_parts_runs_along_channels(name):
    shape, groups, rows = NORMS_IN_PARTS[name]
    x, scale, bias = value("x", *shape), value("s", shape[1]), value("b", shape[1])
    image, s, b = normal(*shape), normal(shape[1]), normal(shape[1])
    if "far from zero" in name:
        image += np.float16(400)
    if "first" in name:
        image[:, :, ::rows, 0] *= 300
    constants = {scale: s, bias: b}
    graph = one_node("GroupNormalization", [x, scale, bias], shape, constants, num_groups=groups, rows=rows)
    made, program = run(graph, [image])
    grouped = image.astype(np.float64).reshape(shape[0], groups, -1)
    want = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    want = want.reshape(image.shape) * s[:, None, None] + b[:, None, None]
    np.testing.assert_allclose(made, want, rtol=3e-3, atol=3e-3)
    source = HOPPER.generate(HOPPER.lower(program.schedule.func))
    assert len(source.kernels) == 3  # moments of parts, gains of groups, elements
    assert source.source.count("*(const uint16_x8 *)(in0") == 3


def test_norms_of_groups_are_cut_where_channels_lie_together():
    b = Builder("net")
    image = b.node("Conv", b.input("x", (2, 64, 64, 64), "float16"), b.constant(normal(64, 64, 1, 1)))
    image = b.node("GroupNormalization", image, b.constant(normal(64)), b.constant(normal(64)), num_groups=16)
    graph = b.finish(b.node("Conv", image, b.constant(normal(64, 64, 1, 1))))
    module = compile(graph, target="cuda:sm_90a")
    norms = [launch for launch in module.specializations[0].launches if "norm" in launch.kernel.label]
    assert [len(one.kernel.program.kernels) for one in norms] == [3]
    assert group_rows(HOPPER)(2, 64, 16, (8, 8), 2) == 0  # so little that one kernel is less than three
    assert group_rows(HOPPER)(2, 60, 20, (512, 512), 2) == 0  # no whole vectors
    assert group_rows(HOPPER)(32, 320, 32, (64, 64), 2) == 1
    assert 64 % group_rows(HOPPER)(256, 320, 32, (64, 64), 2) == 0


def test_a_window_works_on_vectors_of_channels():
    x, w = value("x", 16, 64, 28, 28), value("w", 64, 1, 3, 3, dtype="float32")
    graph = one_node("Conv", [x, w], (16, 64, 28, 28), {w: RANDOM.standard_normal((64, 1, 3, 3)).astype(np.float32)},
                     group=64, pads=[1, 1, 1, 1])  # fmt: skip
    layouts = {v: layout_of(v) for v in (*graph.inputs, *graph.outputs)}
    made = build_program(graph.nodes, graph.outputs, graph.constants, "kernel", layouts, 1)
    HOPPER.spec.schedule(made.schedule, HOPPER, [b for v, b in made.inputs if v in graph.constants])
    program = HOPPER.generate(HOPPER.lower(made.schedule.func))
    assert "uint16_x8" in program.source
    assert len(program.kernels) == 2  # the first packs the weight, once


def test_a_row_of_a_window_is_fetched_once():
    x, w = value("x", 2, 16, 12, 12), value("w", 16, 1, 5, 5)
    weight, image = normal(16, 1, 5, 5), normal(2, 16, 12, 12)
    graph = one_node("Conv", [x, w], (2, 16, 12, 12), {w: weight}, group=16, pads=[2, 2, 2, 2])
    with picking(lambda unit, sketches: analytic(unit, [s for s in sketches if s.name == "window"] or sketches)):
        made, program = run(graph, [image])
    assert "allocate padded" in repr(program.schedule.func) and "] local" in repr(program.schedule.func)
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (2, 3))
    np.testing.assert_allclose(made, np.einsum("nchwij,cij->nchw", seen, weight[:, 0]), rtol=2e-3, atol=2e-2)


def test_channels_are_joined_in_vectors():
    a, b = value("a", 2, 16, 5, 6), value("b", 2, 8, 5, 6)
    graph = one_node("Concat", [a, b], (2, 24, 5, 6), axis=1)
    first, second = normal(2, 16, 5, 6), normal(2, 8, 5, 6)
    made, _ = run(graph, [first, second])
    np.testing.assert_array_equal(made, np.concatenate([first, second], 1))
    large = one_node("Concat", [value("a", 16, 64, 28, 28), value("b", 16, 32, 28, 28)], (16, 96, 28, 28), axis=1)
    layouts = {v: layout_of(v) for v in (*large.inputs, *large.outputs)}
    program = build_program(large.nodes, large.outputs, {}, "kernel", layouts, 1)
    HOPPER.spec.schedule(program.schedule, HOPPER, [])
    source = HOPPER.generate(HOPPER.lower(program.schedule.func)).source
    assert "*(uint16_x8 *)" in source and "weft_from_half" not in source[source.index("__global__") :]
    assert " ? in0 + " in source  # one load, of a place that is chosen


def test_planes_become_vectors_of_channels():
    x = value("x", 1, 4, 8, 64)
    image = normal(1, 4, 8, 64)
    graph = one_node("SpaceToDepth", [x], (1, 16, 4, 32), blocksize=2)
    made, program = run(graph, [image], plain=[x])
    want = image.reshape(1, 4, 4, 2, 32, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 16, 4, 32)
    np.testing.assert_array_equal(made, want)


def test_a_window_means_what_it_did():
    x = value("x", 1, 16, 66, 64)
    image = normal(1, 16, 66, 64)
    graph = one_node("MaxPool", [x], (1, 16, 33, 32), kernel_shape=[2, 2], strides=[2, 2])
    made, _ = run(graph, [image])
    np.testing.assert_array_equal(made, image.reshape(1, 16, 33, 2, 32, 2).max((3, 5)))


# ----------------------------------------------------------------------------------------------------------- the graph


def network():
    """A convolution of 3 channels, one of 16, and a norm of groups, with what stands between in float32."""
    x = value("x", 1, 3, 9, 9, dtype="float32")
    w, v = value("w", 16, 3, 3, 3, dtype="float32"), value("v", 8, 16, 3, 3, dtype="float32")
    s, b = value("s", 16, dtype="float32"), value("b", 16, dtype="float32")
    a, n = value("a", 1, 16, 9, 9, dtype="float32"), value("n", 1, 16, 9, 9, dtype="float32")
    y = value("y", 1, 8, 9, 9, dtype="float32")
    constants = {one: RANDOM.standard_normal(one.tensor.static).astype(np.float32) for one in (w, v, s, b)}
    nodes = [
        Node("Conv", [x, w], [a], {"pads": [1, 1, 1, 1]}),
        Node("GroupNormalization", [a, s, b], [n], {"num_groups": 4}),
        Node("Conv", [n, v], [y], {"pads": [1, 1, 1, 1]}),
    ]
    return Graph("network", [x], [y], nodes, constants)


def test_a_whole_network_converts_once():
    module = compile(network(), target="cuda:sm_90a", precision="fp16")
    (one,) = module.specializations
    laid = {v.name: layout for v, layout in one.lowered.layouts.items()}
    assert len(laid) == 3  # the image as it is converted, and what stands between the kernels
    assert all(layout.factor in (4, 16) for layout in laid.values())
    assert one.lowered.conversions == 0
    sources = [launch.launch.kernel.program.source for launch in kernels(module)]
    assert not any(re.search(r"for \(int32_t i0_\d+ = 0; i0", text) for text in sources)


def test_turning_channels_that_lie_together_moves_nothing():
    """A block of a ConvNeXt: convolution, norm and products over channels, a scale, and the sum with what came in."""
    b = Builder("block")
    x = b.input("x", (1, 16, 8, 8), "float16")
    half = {name: b.constant(normal(*shape)) for name, shape in {
        "first": (32, 16, 1, 1), "deep": (32, 1, 3, 3), "gain": (32,), "shift": (32,), "up": (32, 64), "down": (64, 32),
        "scale": (32, 1, 1), "last": (16, 32, 1, 1),
    }.items()}  # fmt: skip
    image = b.node("Conv", x, half["first"])
    y = b.node("Conv", image, half["deep"], group=32, pads=[1, 1, 1, 1])
    y = b.node("LayerNormalization", b.node("Transpose", y, perm=[0, 2, 3, 1]), half["gain"], half["shift"], axis=-1)
    y = b.node("MatMul", b.node("Relu", b.node("MatMul", y, half["up"])), half["down"])
    y = b.node("Mul", b.node("Transpose", y, perm=[0, 3, 1, 2]), half["scale"])
    graph = b.finish(b.node("Conv", b.node("Add", image, y), half["last"]))
    module = compile(graph, target="cuda:sm_90a")
    labels = [launch.kernel.label for launch in module.specializations[0].launches]
    assert labels == ["conv", "conv", "layernormalization", "matmul_relu", "matmul_mul_add", "conv", "identity"]


def test_weights_of_a_window_are_packed_when_it_is_compiled():
    b = Builder("deep")
    image = b.node("Conv", b.input("x", (4, 16, 12, 12), "float16"), b.constant(normal(24, 16, 1, 1)))
    image = b.node("Conv", image, b.constant(normal(24, 1, 3, 3)), group=24, pads=[1, 1, 1, 1])
    module = compile(b.finish(b.node("Conv", image, b.constant(normal(16, 24, 1, 1)))), target="cuda:sm_90a")
    deep = module.specializations[0].launches[1].kernel.program  # 216 weights are no whole number of blocks of threads
    assert len(deep.kernels) == 1 and "uint32_t chosen = 0" in deep.source


def test_few_channels_are_filled():
    x, w = value("x", 1, 3, 9, 9), value("w", 8, 3, 3, 3)
    graph = infer(one_node("Conv", [x, w], (1, 8, 7, 7), {w: normal(8, 3, 3, 3)}))
    made = fill_rows(graph, {("Conv", "float16"): 4})
    assert [node.op for node in made.nodes] == ["Pad", "Conv"]
    assert made.nodes[1].inputs[0].tensor.static == (1, 4, 9, 9)
    assert fill_rows(graph, {("Conv", "bfloat16"): 4}) is graph


def test_float32_stays_as_it_was():
    graph = infer(network())
    assert choose_layouts(graph, fuse(graph), 0, together={"float16"}).layouts == {}
