"""Winograd's convolution on the CPU: its sketch at many points and layouts, the rule that chooses it, its exactness."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.ops.nodes import numbers
from weft import te
from weft.compiler import compile
from weft.compiler.kernels.build import lift_packing
from weft.compiler.kernels.layouts import apply_layouts
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Node, TensorType, Value
from weft.graph.opspec import Use
from weft.graph.passes.algorithms import choosing
from weft.graph.passes.layout import Layout
from weft.loop.tree import loops_in
from weft.loop.verifier import verify
from weft.models.builder import Builder
from weft.ops.convolution import convolve_arrays
from weft.ops.convolution_window import Window
from weft.ops.convolution_winograd import NAME, SUMS, direct_weight, sides_of, transform_weight, winograd_tensors
from weft.plan.inline import inline_producers
from weft.plan.planner import Unit
from weft.schedule.facts import block_named, facts_of, names_of
from weft.targets.cpu import model
from weft.targets.cpu.algorithms import Convolution, alternatives, error_of, ranked_tiles, strip_of
from weft.targets.cpu.families import FAMILIES
from weft.targets.cpu.sketches.winograd import BOTH, Sizes, default_point, match, register_tile
from weft.targets.registry import find_target

NATIVE = find_target("native")
LANES = NATIVE.vector_bytes // 4
needs_lanes = pytest.mark.skipif(LANES not in (4, 8, 16), reason="channels here are multiples of 16")
PLAIN = ((0, 0),) * 4
RIM = ((0, 0), (0, 0), (1, 1), (1, 1))
CACHES = (48 << 10, 2 << 20, 300 << 20)


def program(batch, channels, features, height, width, tile, twice=False):
    """relu(conv + bias + skip), or an epilogue that reads the convolution more than once."""
    x = te.placeholder((batch, channels, height, width), name="x")
    u = te.placeholder((tile + 2, tile + 2, channels, features), name="u")
    plain = te.placeholder((3, 3, channels, features), name="w")
    bias = te.placeholder((features,), name="bias")
    skip = te.placeholder((batch, features, height, width), name="skip")
    made = winograd_tensors(x, u, plain, sides_of(tile, (3, 3)), ((1, 1), (1, 1)), (batch, features, height, width))

    def body(n, c, h, w):
        value = made[n, c, h, w] + bias[c]
        value = value * te.sigmoid(value) if twice else value
        return te.maximum(value + skip[n, c, h, w], te.const(0.0, "float32"))

    out = te.compute((batch, features, height, width), body, name="out")
    return te.create_schedule(out.op, name="winograd"), [x, u, plain, bias, skip, out]


def laid_out(array, layout):
    padded = np.pad(array, layout.border)
    n, c, h, w = padded.shape
    return np.ascontiguousarray(padded.reshape(n, c // LANES, LANES, h, w).transpose(0, 1, 3, 4, 2))


def convolved(x, w):
    """The convolution in double precision, with a border of 1."""
    window = Window(Use(Node("Conv", [], [], {"pads": [1] * 4})), (3, 3))
    return convolve_arrays(x.astype(np.float64), w.astype(np.float64), window, 1)


def run_sketch(sizes, tile, layout, point, twice=False, change=lambda x: None):
    """What the sketch's program computes, and what it should."""
    batch, channels, features, height, width = sizes
    s, (x, u, plain, bias, skip, out) = program(*sizes, tile, twice)
    layouts = {}
    if layout is not None:
        layouts = {"x": layout, "skip": Layout(LANES, PLAIN), "out": Layout(LANES, PLAIN)}
        apply_layouts(s, [("x", x), ("skip", skip), ("out", out)], layouts)
    inline_producers(s, FAMILIES.inline)
    unit = Unit(s, facts_of(block_named(s, SUMS)), NATIVE, [u, plain])
    found = match(unit)
    assert found is not None
    best, _ = next(found.ranked())
    found.check(best)
    chosen = {**best, **point}
    assert max(found.knobs["tile_rows"]) == -(-height // tile)
    found.apply(chosen)
    verify(s.func)
    assert unit.done == set(names_of(s))
    lifted = lift_packing(s.func, [u, plain])
    arrays = {
        "x": numbers(batch, channels, height, width),
        "bias": numbers(features, seed=1),
        "skip": numbers(batch, features, height, width, seed=2),
    }
    change(arrays["x"])
    w = numbers(features, channels, 3, 3, seed=3)
    exact = convolve_arrays(
        *(a.astype(np.float64) for a in (arrays["x"], w)),
        Window(Use(Node("Conv", [], [], {"pads": [1] * 4})), (3, 3)),
        1,
    ) + arrays["bias"].reshape(1, -1, 1, 1)
    exact = exact / (1 + np.exp(-exact)) if twice else exact
    want = np.maximum(exact + arrays["skip"], 0)
    given = {name: laid_out(a, layouts[name]) if name in layouts else a for name, a in arrays.items()}
    given["out"] = np.full(laid_out(want, layouts["out"]).shape if layouts else want.shape, 7, np.float32)
    given["u_global"] = lifted.parameters[-1].apply(transform_weight(w, tile))
    given["w"] = direct_weight(w)
    weft.build(lifted.func)(*[given[p.name.removesuffix("_1")] for p in lifted.func.params])
    made = given["out"]
    if layouts:
        n, c, h, w, lanes = made.shape
        made = made.transpose(0, 1, 4, 2, 3).reshape(n, c * lanes, h, w)
    return made, want


SIZES = [(2, 16, 32, 13, 11), (1, 32, 16, 30, 9), (2, 16, 48, 8, 12)]
POINTS = [
    {},
    {"threads_by_channels": 1},
    {"threads_by_channels": 0, "tile_rows": 2},
    {"threads_by_channels": 1, "tile_rows": 1, "rows": 5, "fetch": 4},
]


@pytest.mark.parametrize("channels,side", [(64, 14), (128, 7)])
def test_many_cores_share_channels_and_tiles(channels, side):
    """Blocks of channels are too few for 16 cores (4 and 8 of them); two keep theirs."""
    sizes = Sizes(1, channels, channels, 4, 4, 36, side, side)
    for cores in (2, 16):
        target = find_target(f"x86_64-unknown-linux-gnu,cpu=emeraldrapids,cores={cores}")
        point = default_point(sizes, target, 16)
        assert (point["threads_by_channels"] == BOTH) == (cores == 16)
        parts = -(-side // point["tile_rows"]) * channels // (16 * point["vectors"] * point["panels"])
        assert point["threads_by_channels"] != BOTH or parts >= 14


@pytest.mark.parametrize("channels,side", [(120, 7), (112, 7), (80, 11), (136, 13)])
def test_register_tiles_fit_into_the_last_block(channels, side):
    """Else which of their rows are there is a test in each of them: 120 channels at 28 × 28 took twice as long."""
    target = find_target("aarch64-unknown-linux-gnu,cpu=neoverse-n1,cores=1")
    point = default_point(Sizes(1, channels, channels, 4, 4, 36, side, side), target, 4)
    rows, last = point["tile_rows"], side % point["tile_rows"]
    assert point["threads_by_channels"] or not last or not (rows * side % point["rows"] or last * side % point["rows"])


@pytest.mark.parametrize("cpu,lanes", [("emeraldrapids", 16), ("haswell", 8), ("neoverse-n1", 4)])
@pytest.mark.parametrize("channels,side", [(80, 9), (112, 7), (64, 14), (160, 5), (512, 2), (48, 145)])
def test_blocks_of_tiles_are_of_one_size_and_register_tiles_fit(cpu, lanes, channels, side):
    triple = "aarch64" if cpu.startswith("neoverse") else "x86_64"
    target = find_target(f"{triple}-unknown-linux-gnu,cpu={cpu},cores=1")
    point = default_point(Sizes(1, channels, channels, 4, 4, 36, side, side), target, lanes)
    rows, vectors = point["rows"], point["vectors"]
    assert side % point["tile_rows"] == 0 and rows <= point["tile_rows"] * side
    assert (rows + 1) * vectors < target.vector_registers and channels % (vectors * lanes * point["panels"]) == 0


def test_vectors_that_two_to_four_do_not_divide_are_one_panel():
    """Five of them, one at a time, were a load for each product: 48 to 80 channels at 30 × 30 took 1.14 times as long
    on an Emerald Rapids."""
    target = find_target("x86_64-unknown-linux-gnu,cpu=emeraldrapids,cores=1")
    target = dataclasses.replace(target, cache_bytes=CACHES)
    assert default_point(Sizes(1, 48, 80, 4, 4, 36, 8, 8), target, 16)["vectors"] == 5
    assert default_point(Sizes(1, 64, 112, 4, 4, 36, 6, 6), target, 16)["vectors"] == 7


@needs_lanes
@pytest.mark.parametrize(
    "tile,layout",
    [
        pytest.param(tile, layout, id=f"{tile}-{name}", marks=[pytest.mark.slow] * (tile == 2 and name != "blocks"))
        for tile in (2, 4)
        for name, layout in (("plain", None), ("blocks", Layout(LANES, PLAIN)), ("border", Layout(LANES, RIM)))
    ],
)
@pytest.mark.parametrize("sizes,point", list(zip([*SIZES, SIZES[0]], POINTS)))
def test_every_point_computes_the_convolution(sizes, point, tile, layout):
    made, want = run_sketch(sizes, tile, layout, point)
    np.testing.assert_allclose(made, want, atol=2e-5 * np.abs(want).max())


@pytest.mark.thin(2)
@needs_lanes
@pytest.mark.parametrize("border", [PLAIN, RIM], ids=["blocks", "border"])
@pytest.mark.parametrize("channels,features", [(1, 1), (1, 2), (2, 1)])
def test_channels_that_are_one_block(channels, features, border):
    """They are its last axis, and a block of them stays an axis, too: places of axes mean what they do elsewhere."""
    made, want = run_sketch((2, channels * LANES, features * LANES, 13, 11), 4, Layout(LANES, border), {})
    np.testing.assert_allclose(made, want, atol=2e-5 * np.abs(want).max())


@needs_lanes
@pytest.mark.parametrize("layout", [None, Layout(LANES, RIM)], ids=["plain", "border"])
def test_threads_share_channels_and_tiles(layout):
    made, want = run_sketch(SIZES[2], 4, layout, {"threads_by_channels": BOTH, "tile_rows": 2})
    np.testing.assert_allclose(made, want, atol=2e-5 * np.abs(want).max())


@needs_lanes
@pytest.mark.parametrize("layout", [None, Layout(LANES, RIM)], ids=["plain", "border"])
def test_an_epilogue_that_reads_the_sums_twice(layout):
    made, want = run_sketch(SIZES[0], 4, layout, {}, twice=True)
    np.testing.assert_allclose(made, want, atol=2e-5 * np.abs(want).max())


def spoil(x):
    """What makes tiles uneven: a NaN, an infinity, large numbers, a dark corner."""
    x[0, 1, 3, 3], x[0, 2, 9, 9], x[0, 3, 12, 0] = np.nan, np.inf, 1e5
    x[-1, :, -5:, -5:] = 0
    x[-1, 0, 4, 4] = 1e37


@pytest.mark.thin(2)
@needs_lanes
@pytest.mark.parametrize("layout", [None, Layout(LANES, PLAIN), Layout(LANES, RIM)], ids=["plain", "blocks", "border"])
@pytest.mark.parametrize("tile,point", [(4, {}), (2, POINTS[1])])
def test_uneven_tiles_are_computed_directly(tile, point, layout):
    made, want = run_sketch(SIZES[0], tile, layout, point, change=spoil)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(made), np.isinf(want))
    fine = np.isfinite(want)
    large = np.abs(np.where(fine, want, 0)) > 100
    np.testing.assert_allclose(made[fine & large], want[fine & large], rtol=1e-4)
    np.testing.assert_allclose(made[fine & ~large], want[fine & ~large], atol=1e-3)


@needs_lanes
def test_a_point_that_does_not_divide_is_refused():
    with pytest.raises(WeftError, match="evenly"):
        run_sketch((1, 16, 3 * LANES, 8, 8), 2, None, {"vectors": 2, "panels": 1})


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("rows,vectors", [(1, 1), (4, 4), (7, 8), (14, 4), (49, 8), (196, 32), (5, 3)])
def test_register_tiles_fit_the_registers(registers, rows, vectors):
    down, across = register_tile(rows, vectors, registers)
    assert down <= rows and vectors % across == 0 and down * across + across + 1 <= registers


# ------------------------------------------------------------------------------------------------------------- the rule


@pytest.mark.skipif(LANES != 16, reason="the counts are for 512-bit vectors")
@pytest.mark.parametrize(
    "facts,wanted",
    [
        (Convolution(1, 64, 64, 56, 56), [4]),
        (Convolution(1, 128, 128, 28, 28), [4]),
        (Convolution(1, 512, 512, 224, 224), [4]),
        (Convolution(1, 3, 64, 224, 224), []),
        (Convolution(1, 64, 24, 56, 56), []),
        (Convolution(1, 64, 64, 1, 56), []),
        (Convolution(1, 2048, 2048, 2, 2), []),
    ],
)
def test_what_the_counts_say(facts, wanted):
    assert ranked_tiles(facts, NATIVE)[:1] == wanted


@pytest.mark.skipif(LANES != 16, reason="the counts are for 512-bit vectors")
def test_streamed_weights_speak_for_small_tiles():
    assert ranked_tiles(Convolution(1, 512, 512, 7, 7), NATIVE)[:1] != [4]
    assert ranked_tiles(Convolution(32, 512, 512, 7, 7), NATIVE)[0] == 4


def test_images_from_memory_are_waited_for():
    """Twice, where few channels give little to multiply: an image that stays is worth it, a large one is not."""
    machine = find_target("x86_64-unknown-linux-gnu,cpu=emeraldrapids,cores=1")
    machine = dataclasses.replace(machine, cache_bytes=(48 << 10, 2 << 20, 300 << 20))
    assert ranked_tiles(Convolution(1, 16, 16, 64, 64), machine)
    assert not ranked_tiles(Convolution(1, 16, 16, 512, 512), machine)
    assert ranked_tiles(Convolution(1, 64, 64, 512, 512), machine)


def conv_node(**attributes):
    x = Value("x", TensorType("float32", (1, 64, 28, 28)))
    return Node("Conv", [x, Value("w")], [Value("y")], {"pads": [1, 1, 1, 1], **attributes})


@pytest.mark.skipif(LANES != 16, reason="the counts are for 512-bit vectors")
def test_larger_weights_are_streamed_where_the_model_does_not_stay_in_the_cache():
    """A few tiles of 64 channels: Winograd's weights, four times as large, cost more than its products save."""
    machine = dataclasses.replace(NATIVE, cache_bytes=(48 << 10, 2 << 20, 32 << 20))
    assert ranked_tiles(Convolution(1, 64, 64, 7, 7), machine)[0] == 4
    assert 4 not in ranked_tiles(Convolution(1, 64, 64, 7, 7, model_bytes=7 << 20), machine)


def test_windows_with_gaps_are_offered_phases():
    target = find_target("x86_64-unknown-linux-gnu,cpu=emeraldrapids,cores=2")
    weight = np.random.default_rng(0).standard_normal((128, 128, 3, 3)).astype(np.float32)

    def gaps_of(size, gap, pads=None):
        x = Value("x", TensorType("float32", (1, 128, size, size)))
        node = Node("Conv", [x, Value("w")], [Value("y")], {"dilations": [gap] * 2, "pads": [pads or gap] * 4})
        return {tuple(one.gaps) for one in alternatives(node, weight, target)}

    assert gaps_of(28, 2) == gaps_of(31, 2) == {(2, 2)}
    assert not gaps_of(29, 2), "a row of zeros at the end of a phase would be a block by itself"
    assert not gaps_of(28, 14), "each phase would read the weights for a tile or two"
    assert not gaps_of(28, 2, pads=1)


@needs_lanes
def test_who_measures_is_offered_every_exact_tile():
    """What the counts do not like is taken by nobody unasked, and costs nothing unless somebody measures."""
    x = Value("x", TensorType("float32", (1, 256, 4, 4)))
    node = Node("Conv", [x, Value("w")], [Value("y")], {"pads": [1, 1, 1, 1]})
    weight = np.random.default_rng(0).standard_normal((256, 256, 3, 3)).astype(np.float32)
    likely = {one.label for one in alternatives(node, weight, NATIVE, 1 << 30)}
    with choosing({}, {}):
        offered = alternatives(node, weight, NATIVE, 1 << 30)
    assert {one.label for one in offered} == {"WinogradConv 2", "WinogradConv 4"} and len(likely) < 2
    assert {one.label for one in offered if one.saved > 0} == likely


@needs_lanes
@pytest.mark.parametrize(
    "attributes,weight",
    [
        ({"strides": [3, 3]}, (64, 64, 3, 3)),
        ({"dilations": [2, 2]}, (64, 64, 3, 3)),
        ({"group": 2}, (64, 32, 3, 3)),
        ({}, (64, 64, 7, 7)),
        ({"pads": [0, 0, 0, 0]}, (64, 64, 2, 4)),
        ({"pads": [0, 0, 0, 0]}, (64, 64, 1, 1)),
        ({"pads": [2, 1, 1, 1]}, (64, 64, 3, 3)),
        ({"pads": [-1, 0, 0, 0]}, (64, 64, 3, 3)),
    ],
)
def test_only_small_odd_windows_that_move_by_one_or_two(attributes, weight):
    assert not alternatives(conv_node(**attributes), numbers(*weight), NATIVE)


@needs_lanes
def test_paddings_by_rule_become_numbers():
    found = alternatives(conv_node(pads=None, auto_pad="SAME_UPPER"), numbers(64, 64, 3, 3), NATIVE)
    assert found and all(one.attributes["pads"] == [1, 1, 1, 1] for one in found)


# ------------------------------------------------------------------------------------------------------------ exactness


def test_the_error_grows_with_the_tile():
    weight = numbers(32, 64, 3, 3)
    assert 0 < error_of(weight, 2) < error_of(weight, 4) < 2.5e-5


@pytest.mark.parametrize("weight", [1e37, 1e-40, np.nan, np.inf], ids=str)
def test_weights_that_the_transform_spoils_are_not_offered(weight):
    spoilt = numbers(32, 32, 3, 3)
    spoilt[5] *= np.float32(weight)
    assert error_of(spoilt, 4) > 2.5e-5
    assert all(
        one.attributes["tile"] != 4 for one in alternatives(conv_node(), spoilt.repeat(2, 0).repeat(2, 1), NATIVE)
    )


def nasty(kind: str) -> np.ndarray:
    random = np.random.default_rng(7)
    w = random.standard_normal((32, 32, 3, 3))
    edges = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])
    return {
        "spread out": w * 10.0 ** random.integers(-6, 7, (32, 1, 1, 1)),
        "spread in": w * 10.0 ** random.integers(-6, 7, (1, 32, 1, 1)),
        "heavy tails": random.standard_cauchy((32, 32, 3, 3)),
        "edges": edges * np.ones((32, 32, 1, 1)),
        "near cancellation": 1e3 * edges + w,
        "zeros": w * 0,
        "denormal": w * 1e-40,
        "huge": w * 1e36,
    }[kind].astype(np.float32)


@needs_lanes
@pytest.mark.parametrize(
    "kind",
    ["spread out", "spread in", "heavy tails", "edges", "near cancellation", "zeros", "denormal", "huge"],
)
def test_a_model_stays_exact_whatever_its_weights(kind):
    """Within 1e-4 of the output's scale, by channel, whichever algorithm the rule takes."""
    b = Builder("nasty")
    x = b.input("x", (1, 32, 12, 12))
    graph = b.finish(b.node("Conv", x, b.constant(nasty(kind)), pads=[1, 1, 1, 1]))
    module = compile(graph)
    for mean in (0.0, 5.0):
        data = (numbers(1, 32, 12, 12, seed=4) + mean).astype(np.float32)
        check_exact(module, data, nasty(kind))


def check_exact(module, data, weight):
    made = np.asarray(module(data), np.float64)
    want = convolved(data, weight)
    scale = np.abs(want).max(axis=(0, 2, 3), keepdims=True) + 1e-44
    smallest = 1e-45 * 32 * 9 * 10  # sums of denormals lose bits in any algorithm
    assert (np.abs(made - want) <= 1e-4 * scale + smallest).all()


# --------------------------------------------------------------------------------------------------------- whole models


def residual_net(channels: int = 32) -> tuple:
    b = Builder("residual")
    x = b.input("x", (1, channels, 20, 20))
    first = b.relu(b.batch_norm(b.conv(x, channels, channels, 3, 1, 1), channels))
    second = b.relu(b.add(b.batch_norm(b.conv(first, channels, channels, 3, 1, 1), channels), x))
    third = b.conv(second, channels, channels, 3, 1, 1, bias=True)
    return b.finish(third, b.node("Sigmoid", third))


@needs_lanes
@pytest.mark.parametrize("layout", [True, False])
def test_a_model_with_several_in_a_row(layout):
    graph = residual_net()
    data = numbers(1, 32, 20, 20)
    with knobs.override(layout=layout):
        module = compile(graph)
    (one,) = module.specializations
    assert sum(node.op == NAME for node in one.graph.nodes) == 3 and not one.host_nodes
    for launch in one.launches:
        if any(node.op == NAME for node in launch.nodes):
            kinds = [loop.kind for loop in loops_in(launch.kernel.scheduled.body)]
            assert f"{SUMS}_local" in repr(launch.kernel.scheduled) and "parallel" in kinds
    for made, want in zip(module.run(None, {"x": data}), interpret_graph(graph, [data])):
        np.testing.assert_allclose(made, want, atol=3e-5 * np.abs(want).max())


@pytest.mark.thin(2)
@needs_lanes
@pytest.mark.parametrize(
    "window,size,stride",
    [
        ((5, 5), (13, 14), 1),
        ((1, 3), (9, 30), 1),
        ((3, 1), (30, 9), 1),
        ((5,), (150,), 1),
        ((3,), (90,), 1),
        ((1, 7), (5, 33), 1),
        ((3, 3), (21, 30), 2),
        ((5,), (151,), 2),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_other_windows_in_a_model(window, size, stride, inside, monkeypatch):
    """Of the caller's plain image, and between convolutions, whose values lie in blocks of channels."""
    monkeypatch.setattr(model, "LEAST_SAVED", -1.0)  # whether it pays or not
    b = Builder("windows")
    y = x = b.input("x", (1, 48, *size))
    if inside:
        y = b.node("Relu", b.node("Conv", x, b.constant(numbers(48, 48, *[1] * len(size), seed=1) / 8, "before")))
    pads = [n // 2 for n in window] * 2
    weight = b.constant(numbers(64, 48, *window, seed=2) / 16, "weight")
    strides = [stride] * len(size)
    y = b.node("Relu", b.node("Conv", y, weight, b.constant(numbers(64, seed=3), "bias"), pads=pads, strides=strides))
    if inside:
        y = b.node("Conv", y, b.constant(numbers(16, 64, *[1] * len(size), seed=4) / 8, "behind"))
    graph, data = b.finish(y), numbers(1, 48, *size)
    for target in ("native,cores=1", "native,cores=3"):
        module = compile(graph, target=target)
        (one,) = module.specializations
        (launch,) = (launch for launch in one.launches if any(node.op == NAME for node in launch.nodes))
        assert f"{SUMS}_local" in repr(launch.kernel.scheduled), "its own sketch, not any product's"
        want = interpret_graph(graph, [data])[0]
        np.testing.assert_allclose(module(data), want, atol=3e-5 * np.abs(want).max())
    data[(0, 3, *(n // 2 for n in size))] = np.nan  # errors stay local
    assert np.array_equal(np.isnan(module(data)), np.isnan(interpret_graph(graph, [data])[0]))


@needs_lanes
def test_the_knob_turns_it_off():
    with knobs.override(winograd=False):
        module = compile(residual_net())
    assert all(node.op != NAME for node in module.specializations[0].graph.nodes)


# ---------------------------------------------------------------------------------------------------------- open sizes


def open_model(pads=(1, 1, 1, 1), batch=1, dims=("h", "w")):
    """relu(conv + bias) + a skip, over images of open size."""
    b = Builder("open")
    shape = (te.var("n") if batch == 0 else batch, 16, *(te.var(d) if isinstance(d, str) else d for d in dims))
    x = b.input("x", shape)
    weight = b.constant(numbers(32, 16, 3, 3, seed=1) / 8, "weight")
    y = b.node("Relu", b.node("Conv", x, weight, b.constant(numbers(32, seed=2), "bias"), pads=list(pads)))
    return b.finish(b.node("Mul", y, b.node("Sigmoid", y)))


@needs_lanes
@pytest.mark.slow
@pytest.mark.parametrize(
    "given,shapes",
    [
        ({}, [(1, 40, 40), (1, 1, 1), (1, 2, 3), (1, 3, 4), (1, 4, 5), (1, 15, 16), (1, 17, 33)]),
        ({"batch": 0, "dims": (24, "w")}, [(2, 24, 60), (1, 24, 7), (3, 24, 33)]),
        ({"batch": 2, "pads": (0, 1, 1, 0)}, [(2, 30, 30), (2, 3, 2), (2, 13, 18)]),
    ],
)
def test_open_sizes(given, shapes):
    graph = open_model(**given)
    with knobs.override(sizes="open"):
        module = compile(graph)
    for batch, height, width in shapes:
        x = numbers(batch, 16, height, width, seed=height)
        made, wanted = module(x), interpret_graph(graph, [x])[0]
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4 * max(np.abs(wanted).max(), 1))
    assert "winogradconv" in module.report()
    x[0, 3, 1, 1] = np.nan  # errors stay local, in an image of open size as in any other
    made, wanted = module(x), interpret_graph(graph, [x])[0]
    assert np.array_equal(np.isnan(made), np.isnan(wanted))


@pytest.mark.parametrize("height,width", [(1, 1), (3, 9), (8, 5)])
@pytest.mark.parametrize("strip", [(1, 0), (2, 0), (0, 2), (0, 3)])
def test_strips_of_tiles_mean_the_same(height, width, strip):
    x = te.placeholder((1, 2, height, width), name="x")
    u, w = te.placeholder((4, 4, 2, 3), name="u"), te.placeholder((3, 3, 2, 3), name="w")
    made = winograd_tensors(x, u, w, sides_of(2, (3, 3)), ((1, 1), (1, 1)), (1, 3, height, width), strip=strip)
    func = te.create_schedule(made.op, name="strips").func
    image, weight = numbers(1, 2, height, width), numbers(3, 2, 3, 3, seed=1)
    out = np.zeros((1, 3, height, width), np.float32)
    arrays = {"x": image, "u": transform_weight(weight, 2), "w": direct_weight(weight), made.name: out}
    weft.interpret(func, *(arrays[buffer.name] for buffer in func.buffers))
    window = Window(Use(Node("Conv", [], [], {"pads": [1] * 4})), (3, 3))
    np.testing.assert_allclose(out, convolve_arrays(image, weight, window, 1), rtol=0, atol=1e-4)


@needs_lanes
@pytest.mark.slow
@pytest.mark.parametrize("last", [24, 32])
def test_stretches_of_a_strip_end_with_the_image(last):
    """Tiles of a stretch share a pass over the weights, and the last has as many as there are."""
    b = Builder("groups")
    x = b.input("x", (1, 32, te.var("h"), te.var("w")))
    weights = [
        b.constant(numbers(*shape, seed=1) / 8, "w") for shape in ((64, 32, 3, 3), (32, 64, 3, 3), (last, 32, 1, 1))
    ]
    y = b.node("Relu", b.node("Conv", x, weights[0], pads=[1] * 4))
    y = b.node("Conv", y, weights[1], pads=[1] * 4)
    graph = b.finish(b.node("Conv", b.node("Relu", y), weights[2]) if last == 32 else y)
    with knobs.override(sizes="open"):
        module = compile(graph)
    for height, width in [(56, 44), (1, 1), (1, 67), (67, 1), (13, 29), (31, 7), (97, 5)]:
        x = numbers(1, 32, height, width, seed=height)
        made, wanted = module(x), interpret_graph(graph, [x])[0]
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4 * max(np.abs(wanted).max(), 1))
    names = [str(t) for launch in module.specializations[0].launches for t in launch.kernel.tried]
    assert any("winograd" in name and "stretch=" in name for name in names)


STRIPS = """
import sys
import numpy as np
from tests.fuzz import guard
guard.install()
from tests.ops.nodes import numbers
from tests.targets import test_winograd as own
from weft.compiler import compile
from weft.compiler.kernels import build
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.targets.cpu import model
from weft.targets.cpu.sketches import winograd
dims, points = eval(sys.argv[1]), eval(sys.argv[2])
model.LEAST_SAVED = -1.0  # few channels gain little
for point in points:
    winograd.default_point = lambda *_: {**point, "fetch": 16}
    graph = own.open_model(dims=dims)
    graph = graph.replace(outputs=[graph.nodes[0].outputs[0]], nodes=graph.nodes[:1])
    build._CACHE.clear()
    with knobs.override(sizes="open", cache=False):
        module = compile(graph)
    for size in (21, *range(1, 20, 1 if "h" not in dims else 3), 33, 64, 65):
        shape = [d if isinstance(d, int) else size if d == "w" or "w" not in dims else size % 11 + 10 for d in dims]
        x = guard.place(numbers(1, 16, *shape, seed=size))
        made, wanted = module(x), interpret_graph(graph, [x])[0]
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4 * max(np.abs(wanted).max(), 1))
    guard.check()
    tried = module.specializations[0].launches[0].kernel.tried
    assert any(t.name == "winograd" and t.point["stretch"] == point["stretch"] and not t.refused for t in tried), tried
"""

STRETCHES = [
    {"threads_by_channels": 0, "stretch": 3, "rows": 5, "vectors": 1, "panels": 1},
    {"threads_by_channels": 0, "stretch": 4, "rows": 8, "vectors": 2, "panels": 1},
    {"threads_by_channels": 1, "stretch": 2, "rows": 3, "vectors": 2, "panels": 1},
    {"threads_by_channels": 1, "stretch": 48, "rows": 11, "vectors": 1, "panels": 2},
]
"""Whole register tiles in a stretch or not, more or fewer of them than typical, threads over either."""


@needs_lanes
@pytest.mark.parametrize(
    "dims", [(6, "w"), *(pytest.param(d, marks=pytest.mark.slow) for d in (("h", 12), ("h", "w")))]
)
def test_strips_are_right_for_every_size_and_read_nothing_beside_their_memory(dims):
    command = [sys.executable, "-c", STRIPS, repr(dims), repr(STRETCHES)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])


def test_strips_lie_along_the_open_side():
    """What is known is cut evenly, so that nothing is computed beside it; of two open sides the width is followed."""
    h, w = te.var("h"), te.var("w")
    assert strip_of(Convolution(1, 64, 128, 12, 110), (12, w), 4) == [3, 0]
    assert strip_of(Convolution(1, 64, 128, 110, 12), (h, 12), 4) == [0, 3]
    assert strip_of(Convolution(1, 64, 64, 2, 2), (h, w), 4) == [1, 0]
    down, across = strip_of(Convolution(1, 64, 64, 40, 300), (h, w), 4)
    assert 0 < down <= 10 and not across


@pytest.mark.parametrize(
    "name", ["aarch64-unknown-linux-gnu,cpu=neoverse-n1", "x86_64-unknown-linux-gnu,cpu=sapphirerapids"]
)
def test_threads_share_channels_where_an_image_has_few_blocks(name):
    """Few columns keep two threads busy for a part of the time; many do, and need no V in memory."""
    target = find_target(f"{name},cores=2")
    lanes = target.vector_bytes // 4
    few, many = (Sizes(1, n, 2 * n, 4, 4, 36, 3, wide, 1, True) for n, wide in ((128, 3), (32, 80)))
    assert [default_point(sizes, target, lanes)["threads_by_channels"] for sizes in (few, many)] == [1, 0]


@needs_lanes
def test_plain_rows_of_an_open_width_are_turned_in_registers():
    graph = open_model(dims=(8, "w"))
    graph = graph.replace(outputs=[graph.nodes[0].outputs[0]], nodes=graph.nodes[:1])
    with knobs.override(sizes="open"):
        module = compile(graph)
    for width in (40, 1, 5, 8, 23):
        x = numbers(1, 16, 8, width, seed=width)
        np.testing.assert_allclose(module(x), interpret_graph(graph, [x])[0], rtol=0, atol=1e-4)
    (launch,) = module.specializations[0].launches
    assert "winogradconv" in launch.kernel.label and "store_transposed" in repr(
        weft.builder.lower(launch.kernel.scheduled)
    )


@needs_lanes
@pytest.mark.parametrize("height,tile", [(6, 2), (12, 4)])
def test_strips_of_an_open_image_have_the_tiles_that_they_read(monkeypatch, height, tile):
    """What two neighbouring tiles read in common is no tile more."""
    found = []

    def point(sizes, target, lanes):
        found.append(sizes)
        return default_point(sizes, target, lanes)

    monkeypatch.setattr("weft.targets.cpu.sketches.winograd.default_point", point)
    monkeypatch.setattr("weft.targets.cpu.algorithms.ranked_tiles", lambda *_: [tile])
    graph = open_model(dims=(height, "w"))
    with knobs.override(sizes="open", cache=False):
        module = compile(graph)
        x = numbers(1, 16, height, 40, seed=1)
        np.testing.assert_allclose(module(x), interpret_graph(graph, [x])[0], rtol=0, atol=1e-4)
    (node,) = [n for n in module.specializations[0].graph.nodes if n.op == NAME]
    assert found[-1].strips and found[-1].is_across
    assert [found[-1].tall, 0] == list(node.attributes["strip"])
