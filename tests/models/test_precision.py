"""The built-in models in bfloat16: how far they stray from float32, and that classifiers choose the same class."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.models.test_models import sample
from weft.targets.registry import find_target

SLOW = pytest.mark.slow
# The largest error, relative to the output's scale. MobileNet v2's random weights make errors grow from layer to layer.
LARGEST = [
    ("dqn", 0.02),
    pytest.param("lstm_lm", 0.01, marks=SLOW),
    pytest.param("dcgan", 0.06, marks=SLOW),
    pytest.param("resnet18", 0.01, marks=SLOW),
    pytest.param("resnet50", 0.01, marks=SLOW),
    pytest.param("mobilenet_v1", 0.01, marks=SLOW),
    pytest.param("mobilenet_v2", 0.08, marks=SLOW),
    pytest.param("bert_base", 0.03, marks=SLOW),
]
MULTIPLY = {"amx-bf16", "avx512bf16", "bf16"}
CLASSIFIERS = ("dqn", "resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2")


@pytest.mark.parametrize("name,largest", LARGEST)
def test_bfloat16(name, largest):
    graph = weft.models.make(name)
    x = sample(graph)
    exact = weft.compile(graph)(x)
    module = weft.compile(graph, precision="bf16")
    near = module(x)
    assert near.dtype == np.float32
    assert np.abs(near - exact).max() <= largest * np.abs(exact).max()
    if find_target("native").features & MULTIPLY:  # others may find that float32 is as fast
        assert np.abs(near - exact).max() > 0
    assert not module.specializations[0].host_nodes
    if name in CLASSIFIERS:
        assert (near.argmax(-1) == exact.argmax(-1)).all()
