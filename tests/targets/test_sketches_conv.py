"""The register tile of a convolution in blocks, its reduction, which LLVM leaves as it is, and its points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.goldens.choices import TARGETS, Chosen, kernels_in
from tests.hosts import lesser
from weft import te
from weft.builder import lower
from weft.codegen.llvm.generate import generate
from weft.core.errors import ScheduleError
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.plan.planner import Choice, Unit, analytic, picking
from weft.plan.sketch import Point, Sketch
from weft.targets.cpu import model
from weft.targets.cpu.machine import CORES
from weft.targets.cpu.sketches.conv import Size, Walk, _by_rows, pixels_read
from weft.targets.registry import find_target

CORE = CORES["sapphirerapids"]
NEAR = Walk(CORE, 576, 2.0, 8)


def tile(rows: int, pixels: int, blocks: int, walked: Walk, registers: int = 32) -> tuple[int, int, int]:
    """The cheapest legal tile: vectors of channels, rows, and pixels of a row."""
    size = Size(blocks, rows, pixels, registers)
    choices = {
        "vectors": tuple(range(1, min(blocks, 6) + 1)),
        "rows": tuple(range(1, min(rows, 4) + 1)),
        "places": tuple(range(1, min(pixels, registers) + 1)),
    }
    sketch = Sketch("tile", choices, lambda point: None, lambda columns: size.cycles(walked, columns), size.legal)
    point, _ = next(sketch.ranked())
    return point["vectors"], point["rows"], point["places"]


@pytest.mark.parametrize("blocks", [1, 2, 5, 9, 16])
@pytest.mark.parametrize("rows,pixels", [(1, 1), (1, 3000), (7, 7), (14, 14), (17, 17), (56, 56), (2, 2)])
def test_the_tile_fits_the_registers(rows, pixels, blocks):
    for walked in (NEAR, Walk(CORE, 12, 2.0, 8), Walk(CORE, 6912, 4.0, 1)):
        for registers in (16, 32):
            vectors, high, wide = tile(rows, pixels, blocks, walked, registers)
            assert vectors * high * wide + vectors < registers
            assert vectors <= blocks and high <= rows and wide <= pixels and (high == 1 or wide == pixels)


def test_the_least_cycles_are_those_of_the_tile_that_is_chosen():
    for rows, pixels, blocks in ((7, 7, 3), (35, 35, 5), (14, 14, 16)):
        size = Size(blocks, rows, pixels, 32)
        vectors, high, wide = (np.asarray([n]) for n in tile(rows, pixels, blocks, NEAR))
        assert size.cycles(NEAR, {"vectors": vectors, "rows": high, "places": wide})[0] == size.least(NEAR)


def test_what_tiles_are_chosen():
    assert tile(56, 56, 4, NEAR) == (2, 1, 14)
    # Weights that do not stay in the cache: fewer vectors of them for more pixels.
    assert tile(14, 14, 16, Walk(CORE, 6912, 4.0, 1)) == (1, 2, 14)
    assert tile(7, 7, 32, Walk(CORE, 4608, 4.0, 1)) == (1, 4, 7)
    # Blocks that do not divide by two: three at a time.
    assert tile(17, 17, 12, Walk(CORE, 1344, 2.0, 4))[0] == 3


def test_an_image_of_open_size_whose_tiles_have_a_mean_width():
    weights = np.random.default_rng(0).standard_normal((32, 24, 3, 3)).astype(np.float32)
    build = Builder("open")
    image = build.input("x", (1, 24, Var("h"), Var("w")))
    made = build.node("Conv", image, build.constant(weights), strides=[2, 2], dilations=[2, 2])
    graph = build.finish(made)
    x = np.random.default_rng(1).standard_normal((1, 24, 37, 45)).astype(np.float32)
    np.testing.assert_allclose(weft.compile(graph)(x), interpret_graph(graph, [x])[0], rtol=1e-3, atol=1e-3)


def test_rows_stored_plainly_cost_the_lines_that_they_meet():
    wide = np.asarray([8, 14, 16, 28])
    met = model.lines_met(wide, 112)
    assert np.allclose(met, [1, 1 + 48 / 64, 1, 1 + 96 / 64])  # whole halves and lines; the others begin anywhere
    assert model.lines_met(wide, 0) == 0
    assert np.allclose(model.lines_met(np.asarray([8.0, 14.5]), 112), [1, 1 + 50 / 64])
    # Halves of lines are stored as often as whole ones would be, twice: a tile of fewer channels and more pixels.
    assert tile(112, 112, 3, Walk(CORE, 32, 2.0, 8)) == (3, 1, 8)
    assert tile(112, 112, 3, Walk(CORE, 32, 2.0, 8, row=112, lanes=16, line=10.0)) == (1, 1, 16)


# ------------------------------------------------------------------------------------------------------ every point


def convolution(inputs: int, outputs: int, size: tuple[int, int], kernel: int, **more: Any) -> Graph:
    """A convolution in blocks of channels, with a bias and a Relu."""
    b = Builder("convolution")
    x = b.input("x", (1, inputs, *size))
    weight = b.normal(outputs, inputs // more.get("group", 1), kernel, kernel)
    more = {"pads": [kernel // 2] * 4, **more}
    return b.finish(b.relu(b.node("Conv", x, weight, b.normal(outputs), **more)))


def between(channels: int, size: tuple[int, int]) -> Graph:
    """A depthwise convolution between two that exchange blocks of channels with it."""
    b = Builder("depthwise")
    x = b.relu(b.conv(b.input("x", (1, 16, *size)), 16, channels, 1))
    x = b.relu(b.conv(x, channels, channels, 3, 1, 1, groups=channels, bias=True))
    return b.finish(b.relu(b.conv(x, channels, 16, 1)))


def picked(graph: Graph, target: str, change: Point) -> tuple[np.ndarray[Any, Any], list[Sketch]]:
    """What a graph gives with the convolution's best point changed; and the sketches that stand."""
    found: list[Sketch] = []

    def pick(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        for sketch in sketches:
            if sketch.name == "convolution":
                found.append(sketch)
                best, cost = next(sketch.ranked())
                yield sketch, {**best, **{k: v for k, v in change.items() if v in sketch.knobs[k]}}, cost
                found.pop()  # asked for another: this one was refused

    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype(np.float32)
    with picking(pick), knobs.override(cache=False, winograd=False):
        return weft.compile(graph, target=target, threads=2).run(None, {"x": x})[0], found


KINDS = {
    "dense": convolution(16, 32, (9, 11), 3),
    "strided": convolution(16, 48, (10, 13), 3, strides=[2, 2]),
    "pointwise": convolution(32, 32, (6, 7), 1),
    "groups": convolution(64, 64, (8, 7), 3, group=2),
    "depthwise": between(32, (9, 12)),
    "gaps": convolution(16, 32, (9, 11), 3, dilations=[4, 5], pads=[4, 5, 4, 5]),
}
CHANGES: list[Point] = [
    {},
    {"vectors": 1, "places": 1, "unroll": 1, "by_rows": 0},
    {"vectors": 2, "rows": 2, "places": 3, "unroll": 16, "by_rows": 1, "fetch": 0},
    {"vectors": 3, "places": 5, "by_rows": 0, "fetch": 1},
    {"rows": 3, "by_rows": 0, "fetch": 1},
]


@pytest.mark.thin(2)
@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
@pytest.mark.parametrize("kind", KINDS)
def test_every_point_computes_the_convolution(kind, change):
    graph = KINDS[kind]
    made, found = picked(graph, "native", change)
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype(np.float32)
    (want,) = interpret_graph(graph, [x])
    np.testing.assert_allclose(made, want, atol=2e-5 * float(np.abs(want).max()))
    assert found, "the sketch does not know this convolution"


@pytest.mark.parametrize("target", lesser(x86=("-avx512f", "-avx2"), aarch64=()))
def test_narrower_vectors(target):
    made, _ = picked(KINDS["dense"], target, {})
    np.testing.assert_allclose(made, picked(KINDS["dense"], "native", {})[0], atol=1e-4)


@pytest.mark.parametrize("target", ["avx512_amx", "avx2", "neoverse"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_convolution_stands_by_its_sketch_on_every_machine(kind, target):
    with knobs.override(winograd=False):
        chosen = [one for one in kernels_in(KINDS[kind], find_target(TARGETS[target])) if isinstance(one, Chosen)]
    tried = [tried for one in chosen for tried in one.schedule.tried]
    assert {one.name for one in tried if one and one.cost} == {"convolution"}


@pytest.mark.parametrize("target", ["avx512_amx", "avx2", "neoverse"])
def test_taps_beside_the_image_are_passed_over(target):
    """Where they are many, and the weight is known to be finite; in blocks of channels and in rows."""
    cases = [(convolution(64, 64, (12, 12), 3, dilations=[4, 4], pads=[4] * 4), True)]
    cases += [(convolution(6, 5, (12, 12), 3, dilations=[4, 4], pads=[4] * 4), True)]
    cases += [(convolution(64, 64, (28, 28), 3), False)]
    infinite = convolution(64, 64, (12, 12), 3, dilations=[4, 4], pads=[4] * 4)
    next(array for array in infinite.constants.values() if array.ndim == 4)[0, 0, 0, 0] = np.inf
    for graph, passed in [*cases, (infinite, False)]:
        with knobs.override(winograd=False):
            chosen = [one for one in kernels_in(graph, find_target(TARGETS[target])) if isinstance(one, Chosen)]
        steps = [step.arguments for one in chosen for step in one.schedule.trace.steps]
        assert any(step.get("key") == "skip_padding" for step in steps) == passed


@pytest.mark.parametrize("target", ["avx512_amx", "avx2", "neoverse"])
def test_frames_beside_a_volume_are_passed_over_where_they_are_few(target):
    """A frame is passed over for all of its tiles at once: 2 of 30 pay, where 2 of 30 rows do not."""
    passed = {}
    for kind, size in {"frames": (10, 6, 6), "rows": (1, 10, 36)}.items():
        b = Builder(kind)
        window = (3, 1, 1) if kind == "frames" else (1, 3, 1)
        pads = [n // 2 for n in window] * 2
        made = b.node("Conv", b.input("x", (1, 32, *size)), b.normal(64, 32, *window), pads=pads)
        with knobs.override(winograd=False):
            chosen = [
                one for one in kernels_in(b.finish(made), find_target(TARGETS[target])) if isinstance(one, Chosen)
            ]
        steps = [step.arguments for one in chosen for step in one.schedule.trace.steps]
        passed[kind] = any(step.get("key") == "skip_padding" for step in steps)
    assert passed == {"frames": True, "rows": False}


def test_the_same_row_of_all_channels_of_a_copy_lies_together():
    """Zeros around an image need a copy of it; an image without them is read where it lies."""
    for pads, orders in {1: [["d0", "d2", "d1", "d3"]], 0: []}.items():
        graph = convolution(16, 48, (10, 13), 3, pads=[pads] * 4)
        with knobs.override(winograd=False):
            chosen = [one for one in kernels_in(graph, find_target(TARGETS["avx512_amx"])) if isinstance(one, Chosen)]
        steps = [step.arguments for one in chosen for step in one.schedule.trace.steps if "outputs" in step.arguments]
        assert [step["outputs"] for step in steps if step["buffer"] == "padded"] == orders


def test_no_two_points_take_the_same_steps() -> None:
    """A number that changes nothing is no choice: a search would measure one program several times."""
    b = Builder("small")
    seen: list[str] = []

    def pick(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        for sketch in (one for one in sketches if one.name == "convolution"):
            columns = sketch.columns()
            for at in np.flatnonzero(sketch.legal(columns)):
                with unit.schedule.attempt("next", unit.done):
                    sketch.apply(sketch.point(columns, int(at)))
                    seen.append(repr([step.as_python() for step in unit.schedule.trace.steps]))
                    raise ScheduleError("next", "", "it was only looked at")
        yield from analytic(unit, sketches)

    graph = b.finish(b.conv(b.relu(b.input("x", (1, 8, 2, 2))), 8, 8, 3, 1, 1), names=["out"])
    with picking(pick), knobs.override(cache=False, winograd=False):
        list(kernels_in(graph, find_target(TARGETS["neoverse"])))
    assert len(seen) > 20 and len(set(seen)) == len(seen)


# ------------------------------------------------------------------------------------------------------ its reduction


def test_a_loop_can_be_kept_from_llvm():
    a, b = te.placeholder((4, 16), name="a"), te.placeholder((16,), name="b")
    k = te.reduce_axis(4, "k")
    c = te.compute((16,), lambda i: te.sum(a[k.var, i] * b[i], axis=k), name="c")
    texts = []
    for rolled in (False, True):
        s = te.create_schedule(c)
        sums = s.cache_write(c, "local")  # a loop over what could be registers is LLVM's to unroll
        sums.reorder(sums.reduce_axis[0], sums.axis[0])
        sums.vectorize(sums.axis[0])
        if rolled:
            sums.pragma(sums.reduce_axis[0], "rolled")
        texts.append(generate(lower(s, [a, b, c]), find_target("native")))
    assert ["llvm.loop.unroll.disable" in text for text in texts] == [False, True]


@pytest.mark.parametrize("target,rolled", [("neoverse", False), ("avx512_amx", True)])
def test_few_channels_of_a_block_are_written_out(target, rolled):
    """Channels of a place that no other place reads; more of them are a loop that LLVM leaves as it is."""
    b = Builder("blocks")
    y = b.input("x", (1, 48, 20, 20))
    for window in (1, 5, 1):
        y = b.relu(b.conv(y, 48, 48, window, 1, window // 2, bias=True))
    with knobs.override(winograd=False):
        _, middle, _ = kernels_in(b.finish(y, names=["out"]), find_target(TARGETS[target]))
    assert ("pragma_rolled" in repr(middle.schedule.func)) == rolled


def test_what_stays_in_the_cache():
    cache = 2 << 20
    assert _by_rows(100, 100, cache) and not _by_rows(99, 100, cache)
    assert _by_rows(3 << 19, 2 << 20, cache) and not _by_rows(3 << 19, 4 << 20, cache)


@pytest.mark.parametrize(("cpu", "window", "cores", "wanted"), [
    ("cascadelake", 3, 1, True), ("cascadelake", 1, 1, False), ("cascadelake", 3, 2, False),
    ("skylake-avx512", 3, 1, False),
])  # fmt: skip
def test_windows_that_overlap_go_by_rows_where_weights_are_fetched_ahead(cpu, window, cores, wanted):
    """The image is small: cores that share it would each pass over all weights."""
    b = Builder("dilated")
    weight = b.normal(320, 96, window, window)
    pads, dilations = [window // 2 * 2] * 4, [2, 2]
    x = b.input("x", (1, 96, 15, 15))
    y = b.node("Conv", x, weight, kernel_shape=[window] * 2, pads=pads, dilations=dilations)
    target = find_target(f"x86_64-unknown-linux-gnu,cpu={cpu},cores={cores}")
    chosen = [kernel for kernel in kernels_in(b.finish(y), target) if isinstance(kernel, Chosen)]
    tried = [str(one) for kernel in chosen for one in kernel.schedule.tried if "convolution" in str(one)]
    assert tried and ("by_rows=1" in tried[0]) == wanted


def test_loads_of_other_lines_in_the_same_bank_wait():
    arm, intel = CORES["neoverse-n1"], CORES["sapphirerapids"]
    assert arm.clashes(2048) and arm.clashes(-64) and not arm.clashes(2064) and not arm.clashes(16)
    assert not arm.clashes(0) and not arm.clashes(None) and not intel.clashes(2048)
    assert model.step_cycles(arm, 12, 1, clash=True) > model.step_cycles(arm, 12, 1)


@pytest.mark.parametrize(("taps", "step", "read"), [(3, 1, (0, 3, 4, 5)), (3, 2, (0, 3, 5, 7)), (2, 3, (0, 2, 4, 6))])
def test_neighbouring_windows_share_what_they_read(taps, step, read):
    assert pixels_read(range(taps), step, 3) == read


def test_what_windows_over_single_channels_read_has_registers_too():
    size = Size(1, 14, 14, 32, read=pixels_read(range(3), 1, 14))
    points = {"vectors": np.array([1, 1, 1]), "rows": np.array([1, 2, 2]), "places": np.array([14, 14, 5])}
    assert size.legal(points).tolist() == [True, False, False]  # several rows only of whole rows
    assert Size(1, 14, 14, 32).legal(points).tolist() == [True, True, False]


def test_a_depthwise_convolution_keeps_nothing_on_the_stack():
    b = Builder("depthwise")
    x = b.relu(b.conv(b.input("x", (1, 32, 14, 14)), 32, 32, 1, 1, 0))
    x = b.relu(b.conv(b.relu(b.conv(x, 32, 32, 3, 1, 1, groups=32)), 32, 32, 1, 1, 0))
    target = find_target(TARGETS["avx512_amx"])
    chosen = [kernel for kernel in kernels_in(b.finish(x), target) if isinstance(kernel, Chosen)]
    tried = [str(one) for one in chosen[1].schedule.tried if "convolution" in str(one)]
    assert len(tried) == 1 and "rows=1 places=14" in tried[0]


@pytest.mark.parametrize(("length", "is_cut"), [(3000, True), (300, False)])
def test_a_long_line_is_cut_into_pieces_that_stay_in_a_cache(length, is_cut):
    b = Builder("line")
    x = b.input("x", (1, 384, length))
    weight = b.normal(384, 384, 3, scale=0.03)
    graph = b.finish(b.node("Conv", x, weight, strides=[2], pads=[1, 1], kernel_shape=[3]))
    with knobs.override(winograd=False):
        (chosen,) = kernels_in(graph, find_target(TARGETS["neoverse"]))
    assert isinstance(chosen, Chosen)
    cut = [step.arguments["loop"] for step in chosen.schedule.trace.steps if step.primitive == "split"]
    assert any(loop.endswith("o") for loop in cut) == is_cut, cut  # the tiles of a row are divided again
