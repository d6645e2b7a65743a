"""Convolutions whose lanes lie along the places of a row: groups of a few channels, windows over single ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft
from tests.goldens.choices import TARGETS, kernels_in
from tests.hosts import lesser
from weft.builder import lower
from weft.compiler.kernels import build
from weft.compiler.kernels.build import lift_packing
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.plan.planner import Choice, Unit, analytic, picking
from weft.plan.sketch import Point, Sketch
from weft.targets.cpu.machine import CORES
from weft.targets.cpu.sketches.conv_rows import Size, Taps
from weft.targets.registry import find_target

NARROWER = lesser(x86=("-avx512f,-avx512bw,-avx512vl", "-avx,-avx2,-avx512f,-avx512bw"))


def single(
    image: tuple[int, ...], inputs: int, outputs: int, window: tuple[int, ...], op: str = "Conv", **more: Any
) -> Graph:
    """A convolution with a bias, and something that takes its sums."""
    b = Builder("single")
    x = b.input("x", (more.pop("batch", 1), inputs, *image))
    groups = more.get("group", 1)
    channels = (outputs, inputs // groups) if op == "Conv" else (inputs, outputs // groups)
    after = more.pop("after", "Relu")
    made = b.node(op, x, b.normal(*channels, *window), b.normal(outputs), kernel_shape=list(window), **more)
    return b.finish(b.node(after, made) if after else made)


def check(graph: Graph, target: str = "native", threads: int = 1) -> None:
    """The graph against numpy."""
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype(np.float32)
    (want,) = interpret_graph(graph, [x])
    with knobs.override(cache=False):
        (made,) = weft.compile(graph, target=target, threads=threads).run(None, {"x": x})
    assert made.shape == want.shape and np.abs(made - want).max() <= 2e-5 * np.abs(want).max()


@contextmanager
def by_rows(change: Point | None = None, only: Sequence[str] = ("rows", "window")) -> Iterator[list[str]]:
    """Only sketches with lanes along a row are offered, both or one; gives the names of those that stand."""
    stand: list[str] = []

    def pick(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        for sketch, point, cost in analytic(unit, [s for s in sketches if s.name in only]):
            sketch.check(point)
            other = {knob: number for knob, number in (change or {}).items() if number in sketch.knobs.get(knob, ())}
            stand.append(sketch.name)
            yield sketch, {**point, **other}, cost
            stand.pop()  # asked for another point: this one was refused

    with picking(pick):
        yield stand


def planned(graph: Graph, *only: str) -> list[str]:
    """Those of some sketches that stand on a machine whose vectors have masks."""
    with by_rows(only=only) as stand, knobs.override(pad_channels=False):
        list(kernels_in(graph, find_target(TARGETS["avx512_amx"])))
    return stand


GROUPED = [
    single((28, 28), 32, 32, (3, 3), group=4, pads=[1] * 4),
    single((17, 30), 12, 20, (3, 3), group=4, pads=[1, 0, 2, 3], strides=[2, 2]),
    single((9, 33), 6, 9, (2, 5), group=3, strides=[1, 3], dilations=[2, 1]),
    single((14, 14), 48, 24, (1, 1), group=3, after="Sigmoid"),
    single((70,), 12, 6, (7,), group=3, pads=[3, 3], after=""),
    single((5, 6, 7), 8, 24, (2, 3, 3), group=4, pads=[1] * 6, batch=2),
    single((8, 7), 8, 12, (3, 3), group=4, batch=3, strides=[1, 2], pads=[1] * 4, after=""),
]


@pytest.mark.parametrize("graph", GROUPED)
def test_groups_of_a_few_channels(graph):
    with by_rows():
        check(graph, threads=2)
    assert planned(graph, "rows", "window") == ["rows"], "a window over single channels is another thing"


CHANGES: list[Point] = [
    {"channels": 1, "rows": 1, "vectors": 1, "down": 0},
    {"channels": 2, "rows": 3, "vectors": 2, "down": 1},
    {"channels": 4, "rows": 2, "vectors": 1, "down": 0},
    {"rows": 5, "vectors": 1, "down": 1},
]


@pytest.mark.thin(2)
@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
@pytest.mark.parametrize("at", [0, 2, 4])
def test_every_point_computes_the_convolution(at, change):
    with by_rows(change):
        check(GROUPED[at])


@pytest.mark.thin(2)
@pytest.mark.parametrize("target", NARROWER)
@pytest.mark.parametrize("graph", GROUPED[:3])
def test_groups_on_machines_with_narrower_vectors(graph, target):
    check(graph, target)


def test_groups_between_convolutions():
    b = Builder("bottleneck")
    x = b.conv(b.input("x", (1, 16, 12, 12)), 16, 32, 1)
    x = b.relu(b.conv(b.relu(x), 32, 32, 3, 1, 1, groups=8, bias=True))
    check(b.finish(b.relu(b.conv(x, 32, 16, 1))))


ROWS = [
    single((20, 33), 10, 17, (3, 3), pads=[1] * 4),
    single((12, 45), 7, 6, (5, 3), pads=[2, 1, 2, 1], strides=[1, 2], after=""),
    single((11, 19), 5, 3, (4, 4), "ConvTranspose", strides=[2, 2], pads=[1] * 4),
    single((9, 8), 4, 21, (6, 6), "ConvTranspose", strides=[3, 3], pads=[0, 1, 2, 0], batch=2, after="Sigmoid"),
]


@pytest.mark.parametrize("graph", ROWS)
def test_channels_that_do_not_fill_blocks(graph):
    with by_rows():
        check(graph, threads=2)
    assert "rows" in planned(graph, "rows")


WINDOWS = {
    "rows": [
        single((20, 33), 9, 9, (7, 7), group=9, pads=[3] * 4),
        single((14, 14), 20, 20, (5, 5), group=20, pads=[2] * 4, after=""),
        single((30, 29), 3, 3, (15, 11), group=3, pads=[7, 5, 7, 5], batch=2),
        single((16, 40), 6, 6, (7, 9), group=6, strides=[2, 3], pads=[3, 4, 3, 4], after="Sigmoid"),
        single((6, 9, 18), 4, 4, (3, 3, 5), group=4, pads=[1, 1, 2] * 2, dilations=[1, 2, 1]),
    ],
    "window": [
        single((20, 33), 9, 9, (3, 3), group=9, pads=[1] * 4),
        single((7, 7), 20, 20, (7, 7), group=20, pads=[3] * 4, after=""),
        single((9, 8), 6, 12, (5, 5), group=6, pads=[2] * 4, batch=2),
        single((30, 29), 3, 3, (5, 5), group=3, strides=[2, 2], pads=[2, 1, 2, 1]),
    ],
}


@pytest.mark.parametrize("name,graph", [(name, graph) for name, graphs in WINDOWS.items() for graph in graphs])
def test_windows_over_single_channels(name, graph):
    """What reads the image where it lies may also copy it; which of them is cheaper, the costs say."""
    with by_rows():
        check(graph, threads=2)
    assert planned(graph, name) == [name] and planned(graph, "rows") == ["rows"]
    assert len(planned(graph, "rows", "window")) == 1


@pytest.mark.thin(2)
@pytest.mark.parametrize("target", NARROWER)
@pytest.mark.parametrize("graph", [*WINDOWS["rows"][:2], WINDOWS["window"][0]])
def test_windows_on_machines_with_narrower_vectors(graph, target):
    check(graph, target)


CUT = [
    single((33, 33), 6, 6, (3, 3), group=6, pads=[12] * 4, dilations=[12, 12], after=""),
    single((7, 7), 10, 10, (3, 3), group=10, pads=[1] * 4),
    single((14, 14), 9, 9, (3, 3), group=9, strides=[2, 2], pads=[1] * 4),
    single((28, 30), 5, 5, (5, 5), group=5, strides=[2, 2], pads=[2] * 4, batch=2),
    single((9, 30), 18, 33, (3, 3), group=3, pads=[1] * 4),
    single((18, 21), 8, 12, (3, 3), group=2, strides=[2, 2], pads=[1] * 4),
    single((10, 35), 12, 30, (1, 1), group=3, after="Sigmoid"),
]
"""Rows that vectors of four lanes do not fill."""


@pytest.mark.parametrize("graph", CUT)
def test_where_lanes_cannot_be_off_the_last_tile_starts_early(graph):
    """Sums and results of a row are whole vectors; the values are the same."""
    target = find_target(TARGETS["neoverse"])
    for made in kernels_in(graph, target):
        for line in repr(lower(made.schedule, target=target)).splitlines():
            assert "where" not in line or "conv" not in line.split("=")[0], line
    for machine in ("native", *NARROWER):
        check(graph, machine, threads=2)


@pytest.mark.thin(2)
@pytest.mark.parametrize("graph", CUT[:5])
@pytest.mark.parametrize("only", ["rows", "register tile"])
def test_each_sketch_of_rows_that_are_cut(graph, only):
    with by_rows(only=(only,)):
        for machine in ("native", *NARROWER):
            check(graph, machine)


def tile(group: int, high: int, wide: int, taps: Taps, registers: int = 32) -> tuple[int, ...]:
    """The cheapest legal tile: channels, rows, vectors of a row, and whether taps below one another are unrolled."""
    size = Size(CORES["sapphirerapids"], group, high, wide, registers, taps, 9)
    choices = {
        "channels": tuple(n for n in range(min(group, registers), 0, -1) if group % n == 0),
        "rows": tuple(range(1, min(high, 14) + 1)),
        "vectors": tuple(range(1, min(wide, registers) + 1)),
        "down": (0, 1) if taps.count > 1 else (0,),
    }
    point, _ = next(Sketch("tile", choices, lambda point: None, size.cycles, size.legal).ranked())
    return tuple(point.values())


def test_the_tile_of_rows_fits_the_registers():
    for group in range(1, 40):
        for high, wide, taps in ((1, 1, Taps()), (7, 1, Taps(7)), (56, 4, Taps(3)), (9, 12, Taps(5, 2, 1))):
            channels, rows, vectors, down = tile(group, high, wide, taps)
            assert group % channels == 0 and vectors <= wide and rows <= high and down in (0, 1)
            assert channels * rows * vectors + min(channels, rows * vectors) < 32
    assert tile(3, 32, 2, Taps()) == (3, 4, 2, 0) and tile(1, 14, 1, Taps(7)) == (1, 14, 1, 1)


def test_rows_of_a_window_that_moves_by_two_stay_until_their_next_tap():
    """Taps two apart share rows, neighbouring ones do not: both sets are in registers beside the sums."""
    _, rows, vectors, down = tile(1, 28, 1, Taps(5, step=2))
    assert down == 1 and rows * vectors * (1 + 2) + 2 <= 32


def test_rows_share_what_the_taps_read():
    assert [Taps(3).read(rows) for rows in (1, 2, 8)] == [3, 4, 10]
    assert Taps(3, gap=2).read(2) == 6 and Taps(3, step=2).read(2) == 5


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "inputs,outputs,groups,window,more",
    [
        (36, 72, 3, (3, 3), {"strides": [2, 2], "pads": [1] * 4}),
        (20, 80, 4, (3, 3), {"pads": [1] * 4, "after": None}),
        (24, 72, 3, (1, 1), {}),
        (14, 140, 7, (5,), {"pads": [2, 2]}),
    ],
)
@pytest.mark.parametrize("target", [one for one in ("native", *NARROWER) if find_target(one).vector_bytes >= 16])
def test_channels_of_a_group_along_the_lanes(inputs, outputs, groups, window, more, target, monkeypatch):
    """Groups are an axis of their own; the weight's two copies, by groups and in panels, are made ahead."""
    graph = single((11, 13)[: len(window)], inputs, outputs, window, group=groups, **more)
    made = []
    monkeypatch.setattr(build, "lift_packing", lambda *given: made.append(lift_packing(*given)) or made[-1])
    with knobs.override(layout=False), by_rows(only=("grouped tile",)) as stand:
        check(graph, target)
    packed = [one for lifted in made for one in lifted.parameters if isinstance(one, build.Packing)]
    assert stand and any(one.first is not None for one in packed)
    assert not any(buffer.name.startswith("in1") for lifted in made for buffer in lifted.func.allocations)


def test_a_last_tile_that_is_cut_costs_its_tests_where_lanes_cannot_be_off():
    sizes = [Size(CORES["neoverse-n1"], 3, 32, 8, 32, Taps(2), 512, masks=masks) for masks in (True, False)]
    columns = {knob: np.asarray([number]) for knob, number in {"channels": 3, "vectors": 1, "down": 1}.items()}
    with_masks, without = (
        size.cycles({**columns, "rows": np.asarray([3])}) / size.cycles({**columns, "rows": np.asarray([2])})
        for size in sizes
    )
    assert without > 1.2 * with_masks
