"""Transposed convolutions: phases are stored where they belong, and taps that are not there are passed over."""

import numpy as np
import pytest

import weft
from tests.goldens.choices import TARGETS, kernels_in
from tests.targets.test_sketches_windows import NARROWER, check, single
from weft.core.knobs import knobs
from weft.expr.nodes import int_value
from weft.loop.tree import loops_in
from weft.plan.contraction import counted
from weft.schedule.facts import block_named, facts_of
from weft.targets.cpu.model import STREAM_AHEAD
from weft.targets.registry import find_target


def transposed(image, inputs, outputs, window, **more):
    """A transposed convolution with a bias and a Relu."""
    return single(image, inputs, outputs, window, "ConvTranspose", **more)


SHAPES = [
    transposed((9, 11), 5, 24, (3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    transposed((9, 20), 16, 32, (3, 3), strides=[2, 2]),
    transposed((7, 19), 12, 16, (2, 2), strides=[2, 2], after=""),
    transposed((6, 18), 8, 40, (4, 4), strides=[2, 2], pads=[1] * 4, batch=2),
    transposed((5, 17), 6, 7, (5, 2), strides=[3, 4], pads=[1, 0, 2, 1]),
    transposed((33,), 10, 24, (7,), strides=[4], pads=[2, 1]),
    transposed((4, 5, 9), 4, 16, (3, 2, 3), strides=[2, 1, 2]),
    transposed((12, 9), 16, 16, (3, 3), strides=[2, 2], group=16, pads=[1] * 4),
    transposed((12, 9), 16, 24, (3, 5), strides=[2, 1], group=4, pads=[1] * 4, after="Sigmoid"),
    transposed((6, 7), 16, 16, (1, 1), strides=[2, 2]),
    transposed((7, 19), 4, 12, (5, 5), strides=[2, 2], group=4, pads=[2, 4, 2, 4], output_padding=[1, 1], batch=3),
    *(transposed((18, 20), 32, outputs, (3, 3), strides=[2, 2], pads=[1] * 4) for outputs in (4, 8, 16)),
]


@pytest.mark.parametrize("graph", SHAPES)
def test_it_computes_what_it_says(graph):
    check(graph, threads=2)


@pytest.mark.parametrize("target", NARROWER)
@pytest.mark.parametrize("graph", SHAPES[:5])
def test_on_machines_with_narrower_vectors(graph, target):
    check(graph, target)


@pytest.mark.parametrize("graph,share", [*zip(SHAPES[:3], (9 / 16, 9 / 16, 1.0))])
def test_the_block_that_interleaves_is_an_epilogue(graph, share):
    """There is no copy, and what is counted are the products that the kernel has."""
    (made,) = kernels_in(graph, find_target(TARGETS["avx512_amx"]))
    assert counted(facts_of(block_named(made.start, "phases"))) == share
    names = {one.name for one in made.schedule.tried}
    assert any(name.startswith("phases of") for name in names) and "unit phases" not in names


@pytest.mark.parametrize("target,lanes", [("avx512_amx", 16), ("avx2", 8), ("neoverse", 4)])
def test_a_single_block_of_channels_has_its_epilogue_too(target, lanes):
    """Where the channels are as many as a vector has lanes, the sums are not stored apart and copied."""
    graph = transposed((64, 64), 32, lanes, (3, 3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    (made,) = kernels_in(graph, find_target(TARGETS[target]))
    names = {one.name for one in made.schedule.tried}
    assert "unit phases" not in names and any(name.startswith("convolution") for name in names)


def test_rows_that_are_cut_are_not_fused_with_phases():
    """Else which rows there are would be a test in each step: of 200 places 12 at a time are 8 in the last tile."""
    graph = transposed((200,), 64, 8, (8,), strides=[4], pads=[2, 2], after="")
    (made,) = kernels_in(graph, find_target("x86_64-unknown-linux-gnu,cpu=haswell,cores=1"))
    (fused,) = (loop for loop in loops_in(made.schedule.func.body) if loop.kind == "parallel")
    assert int_value(fused.extent) == 4


def test_weights_of_all_phases_count_for_how_far_ahead_they_are_fetched():
    graph = transposed((190,), 120, 40, (8,), strides=[4], pads=[2, 2])
    (made,) = kernels_in(graph, find_target(TARGETS["neoverse"]))
    weight = next(buffer for buffer in made.schedule.func.allocations if buffer.name.startswith("in1_global"))
    fetches = [step.arguments for step in made.schedule.trace.steps if step.primitive == "prefetch"]
    distance = next(one["distance"] for one in fetches if one["buffer"] == weight.name)
    bytes_of_step = 4 * int_value(weight.shape[-1]) * int_value(weight.shape[-2])
    assert distance * bytes_of_step == STREAM_AHEAD


def test_a_tap_that_is_not_there_meets_nothing():
    """An infinity beside which there is no tap stays where it is."""
    graph = transposed((5, 6), 3, 4, (3, 3), strides=[2, 2], after="")
    x = np.ones((1, 3, 5, 6), np.float32)
    x[0, 0, 2, 3] = np.inf
    with knobs.override(cache=False):
        (made,) = weft.compile(graph).run(None, {"x": x})
    hit = ~np.isfinite(made[0, 0])
    assert {(int(y), int(x)) for y, x in np.argwhere(hit)} <= {(y, x) for y in (4, 5, 6) for x in (6, 7, 8)}
    assert hit.sum() == 9
