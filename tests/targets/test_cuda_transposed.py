"""Transposed convolutions of narrow images on CUDA: phases are stored where they belong, weights lie phase by phase."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.test_cuda_channels_last import HOPPER, normal, one_node, run, value
from weft.graph.interpreter import interpret_graph
from weft.graph.passes.infer import infer


def transposed(batch, size, inputs, outputs, kernel, stride, pads=0, more=0, group=1):
    """A transposed convolution, and the length of a side of its result."""
    side = (size - 1) * stride + kernel - 2 * pads + more
    x, w = value("x", batch, inputs, size, size), value("w", inputs, outputs // group, kernel, kernel)
    weight = normal(inputs, outputs // group, kernel, kernel)
    return one_node("ConvTranspose", [x, w], (batch, outputs, side, side), {w: weight}, group=group,
                    strides=[stride] * 2, pads=[pads] * 4, output_padding=[more] * 2)  # fmt: skip


def check(graph, plain=()):
    image = normal(*graph.inputs[0].tensor.static)
    made, program = run(graph, [image], plain=plain)
    (want,) = interpret_graph(infer(graph), [image])
    scale = np.abs(want.astype(np.float32)).max()
    assert np.abs(made.astype(np.float32) - want.astype(np.float32)).max() < 2e-3 * scale
    return program


@pytest.mark.parametrize(
    "sizes",
    [
        (2, 4, 32, 16, 4, 2, 1),
        (1, 5, 16, 32, 3, 2, 1, 1),
        (2, 3, 16, 16, 2, 2),
        pytest.param((1, 4, 16, 24, 5, 3, 1), marks=pytest.mark.slow),
        (1, 4, 32, 16, 4, 2, 1, 0, 2),
        (1, 4, 16, 16, 3, 1, 1),
        (2, 1, 32, 16, 4, 4),
    ],
)
def test_it_computes_what_it_says(sizes):
    check(transposed(*sizes))


def test_phases_are_an_epilogue_and_weights_are_packed():
    program = check(transposed(2, 4, 32, 16, 4, 2, 1))
    tried = {one.name for one in program.schedule.tried if not one.refused}
    assert "weights of phases by phases" in tried and any(name.startswith("phases of") for name in tried)
    made = HOPPER.generate(HOPPER.lower(program.schedule.func))
    assert len(made.kernels) == 2, "weights are packed once; the other kernel multiplies and stores"
    assert "weft_copy_async_16" in made.source and "mma" in made.source


def test_few_channels_of_a_last_layer_take_tensor_cores():
    graph = transposed(2, 6, 32, 3, 4, 2, 1)
    program = check(graph, plain=graph.outputs)
    made = HOPPER.generate(HOPPER.lower(program.schedule.func))
    assert len(made.kernels) == 2 and "weft_mma_dot_f16" in made.source
