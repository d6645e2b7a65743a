"""Taps of convolutions that read nothing but padding."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.strategies import same_meaning
from weft.graph.passes.crop_windows import crop_windows
from weft.graph.passes.infer import infer
from weft.graph.text import parse_graph


def cropped(size, kernel, gap, pads, step=1, corner=1.0):
    """The kernel that is left of one of `kernel` taps along both axes."""
    weight = np.random.default_rng(0).uniform(-1, 1, (4, 2, kernel, kernel)).astype(np.float32)
    weight[0, 0, 0, 0] *= corner
    attributes = f"pads={pads}, dilations=[{gap}, {gap}], strides=[{step}, {step}], kernel_shape=[{kernel}, {kernel}]"
    text = f"""graph g(%x: float32[1, 2, {size[0]}, {size[1]}]) -> (%y) {{
    const %w: float32[4, 2, {kernel}, {kernel}] = ...
    %y = Conv(%x, %w, {attributes})
}}"""
    graph = infer(parse_graph(text, {"w": weight}))
    made = crop_windows(graph)
    same_meaning(graph, made)
    return list(made.nodes[-1].attributes["kernel_shape"]), made is graph


@pytest.mark.parametrize(
    "size,kernel,gap,pads,step,left",
    [
        ((9, 11), 3, 12, [12, 12, 12, 12], 1, [1, 1]),
        ((9, 13), 3, 12, [12, 12, 12, 12], 1, [1, 3]),
        ((5, 5), 5, 3, [6, 6, 6, 6], 1, [3, 3]),
        ((4, 4), 3, 5, [5, 5, 5, 5], 2, [1, 1]),
        ((4, 4), 3, 6, [6, 2, 6, 10], 1, [1, 2]),
    ],
)
def test_taps_beside_the_image_go(size, kernel, gap, pads, step, left):
    assert cropped(size, kernel, gap, pads, step)[0] == left


def test_windows_that_meet_the_image_stay():
    assert cropped((9, 11), 3, 4, [4, 4, 4, 4]) == ([3, 3], True)
    assert cropped((7, 7), 3, 1, [1, 1, 1, 1]) == ([3, 3], True)
    assert cropped((2, 2), 3, 1, [0, 0, 3, 3])[0] == [2, 2]


def test_padding_meets_weights_that_are_not_finite():
    assert cropped((9, 11), 3, 12, [12, 12, 12, 12], corner=np.inf) == ([3, 3], True)
