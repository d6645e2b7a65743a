"""Float answers that users can rely on: what an output does not read does not change it, and `exact`."""

import numpy as np
import pytest
import torch

import weft
from weft.compiler import compile
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.models.builder import Builder
from weft.ops.convolution_winograd import NAME
from weft.targets.registry import find_target

LANES = find_target("native").vector_bytes // 4
CHANNELS = 32
needs_lanes = pytest.mark.skipif(LANES not in (4, 8, 16), reason="channels here are multiples of 16")
rng = np.random.default_rng(3)
WEIGHTS = [rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) for _ in range(2)]
IMAGE = rng.standard_normal((1, CHANNELS, 28, 28)).astype(np.float32)


def convolutions(count=1, size=28):
    b = Builder("convolutions")
    made = b.input("x", (1, CHANNELS, size, size))
    for weight in WEIGHTS[:count]:
        made = b.node("Conv", made, b.constant(weight), pads=[1, 1, 1, 1])
    return b.finish(made)


def wanted(x, count=1):
    made = torch.tensor(x.astype(np.float64))
    for weight in WEIGHTS[:count]:
        made = torch.nn.functional.conv2d(made, torch.tensor(weight.astype(np.float64)), padding=1)
    return made.numpy()


def operators(module):
    return [node.op for node in module.specializations[0].graph.nodes]


@pytest.fixture(scope="module")
def module():
    made = compile(convolutions())
    assert operators(made) == [NAME]
    return made


@pytest.mark.thin(3)
@needs_lanes
@pytest.mark.parametrize("value", [1e5, -1e5, 1e3, 1e37, np.inf, np.nan], ids=str)
@pytest.mark.parametrize("place", [(9, 9), (0, 0), (27, 13)], ids=str)
def test_an_outlier_changes_only_what_reads_it(module, value, place):
    x = IMAGE.copy()
    x[(0, 5, *place)] = value
    want = wanted(x)
    made = np.asarray(module(x), np.float64)
    near = np.zeros(want.shape, bool)
    near[:, :, max(place[0] - 1, 0) : place[0] + 2, max(place[1] - 1, 0) : place[1] + 2] = True
    scale = np.abs(wanted(IMAGE)).max()
    np.testing.assert_allclose(made[~near], want[~near], atol=2.5e-5 * scale)
    assert np.isfinite(made[~near]).all()
    np.testing.assert_array_equal(np.isnan(made[near]), np.isnan(want[near]))
    if np.isfinite(value):
        np.testing.assert_allclose(made[near], want[near], atol=1e-5 * abs(value))


@needs_lanes
def test_two_in_a_row_whose_layout_is_in_blocks():
    module = compile(convolutions(2))
    assert operators(module) == [NAME] * 2
    x = IMAGE.copy()
    x[0, 3, 14, 14] = 1e8
    made, want = np.asarray(module(x), np.float64), wanted(x, 2)
    near = np.zeros(want.shape, bool)
    near[:, :, 12:17, 12:17] = True
    assert np.abs(made - want)[~near].max() < 1e-4 * np.abs(wanted(IMAGE, 2)).max()


@needs_lanes
def test_exact_turns_all_of_it_off():
    graph = convolutions()
    by_argument = compile(graph, exact=True)
    with knobs.override(exact=True):
        by_knob = compile(graph)
    assert operators(by_argument) == operators(by_knob) == ["Conv"]
    np.testing.assert_array_equal(by_argument(IMAGE), by_knob(IMAGE))
    with knobs.override(exact=True):
        assert operators(compile(graph, exact=False)) == [NAME]


@needs_lanes
def test_exact_holds_for_shapes_that_come_later():
    b = Builder("open")
    x = b.input("x", (Var("n"), CHANNELS, 28, 28))
    graph = b.finish(b.node("Conv", x, b.constant(WEIGHTS[0]), pads=[1, 1, 1, 1]))
    module = weft.compile(graph, exact=True)
    module(IMAGE)
    assert operators(module) == ["Conv"]
    with knobs.override(exact=True):
        other = weft.compile(graph, exact=False)
        other(IMAGE)
    assert operators(other) == [NAME]


@needs_lanes
def test_the_cache_tells_exact_from_default(tmp_path):
    graph = convolutions()
    with knobs.override(cache=True, cache_dir=tmp_path):
        first, second = compile(graph), compile(graph, exact=True)
        assert operators(second) == ["Conv"] and operators(first) == [NAME]
        assert operators(compile(graph, exact=True)) == ["Conv"]
