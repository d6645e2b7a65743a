"""Kernels of transposed convolutions are filled up to whole steps, and the result stays."""

import numpy as np
import pytest

from weft.graph.interpreter import interpret_graph
from weft.graph.passes.fill_kernels import fill_kernels
from weft.models.builder import Builder


def transposed(image, kernel, **attributes):
    """A transposed convolution of three channels to four, with a bias."""
    b = Builder("transposed")
    x = b.input("x", (2, 3, *image))
    made = b.node("ConvTranspose", x, b.normal(3, 4, *kernel), b.normal(4), kernel_shape=list(kernel), **attributes)
    return b.finish(made)


@pytest.mark.parametrize("image,kernel,attributes,filled", [
    ((5, 6), (3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}, (4, 4)),
    ((5, 6), (3, 3), {"strides": [2, 2]}, (4, 4)),
    ((7,), (5,), {"strides": [4], "pads": [2, 0]}, (8,)),
    ((1, 6), (3, 2), {"strides": [2, 3]}, (3, 3)),
    ((4, 5), (2, 3), {"strides": [3, 1], "pads": [0, 1, 1, 0]}, (3, 3)),
    ((4, 5, 3), (3, 3, 1), {"strides": [2, 1, 1]}, (4, 3, 1)),
])  # fmt: skip
def test_the_result_stays(image, kernel, attributes, filled):
    graph = transposed(image, kernel, **attributes)
    made = fill_kernels(graph)
    assert made.nodes[0].inputs[1].tensor.static[2:] == filled
    x = np.random.default_rng(0).standard_normal((2, 3, *image)).astype(np.float32)
    for one, other in zip(interpret_graph(made, [x]), interpret_graph(graph, [x])):
        np.testing.assert_array_equal(one, other)
    assert fill_kernels(made) is made
    noted = fill_kernels(graph, skipped=True).nodes[0].attributes["filled"]
    assert noted == [wide - taps for wide, taps in zip(filled, kernel)] and "filled" not in made.nodes[0].attributes


@pytest.mark.parametrize("kernel,attributes", [
    ((4, 4), {"strides": [2, 2], "pads": [1] * 4}), ((3, 3), {}), ((3, 3), {"strides": [2, 2], "dilations": [2, 2]}),
    ((3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}), ((3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
])  # fmt: skip
def test_others_are_left_alone(kernel, attributes):
    graph = transposed((5, 6), kernel, **attributes)
    assert fill_kernels(graph) is graph
