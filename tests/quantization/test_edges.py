"""Codes of 8 bits, against exact arithmetic: where they differ, the exact value lies at the edge between two codes."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler import compile
from weft.models.builder import Builder


@pytest.mark.parametrize("target", ["native", "c"])
def test_codes_differ_at_edges_alone(target):
    random = np.random.default_rng(5)
    weight = random.integers(-127, 128, (24, 16, 3, 3)).astype("int8")
    scales = random.uniform(0.001, 0.003, 24).astype("float32")
    given, made = np.float32(0.0187), np.float32(0.0519)
    b = Builder("edges")
    codes = b.input("codes", (1, 16, 30, 30), "uint8")
    real = b.node("DequantizeLinear", codes, b.constant(given), b.constant(np.uint8(117)))
    kernel = b.node(
        "DequantizeLinear", b.constant(weight), b.constant(scales), b.constant(np.zeros(24, "int8")), axis=0
    )
    conv = b.node("Conv", real, kernel, pads=[0, 0, 0, 0], kernel_shape=[3, 3])
    result = b.node("QuantizeLinear", b.relu(conv), b.constant(made), b.constant(np.uint8(3)))
    graph = b.finish(result, names=["result"])
    image = random.integers(0, 256, (1, 16, 30, 30)).astype("uint8")
    found = np.asarray(compile(graph, target=target)(image))
    windows = np.lib.stride_tricks.sliding_window_view(image[0].astype(float) - 117, (3, 3), axis=(1, 2))
    sums = np.einsum("iyxkl,oikl->oyx", windows, weight.astype(float), optimize=True)
    exact = np.maximum(sums * float(given) * scales.astype(float)[:, None, None], 0) / float(made)
    wanted = np.clip(np.rint(exact) + 3, 0, 255)
    assert 0.05 < np.mean((wanted > 3) & (wanted < 255))
    apart = np.argwhere(found[0] != wanted)
    assert len(apart) < 1e-3 * wanted.size
    for at in map(tuple, apart):
        assert abs(exact[at] % 1 - 0.5) < 1e-4 and abs(int(found[0][at]) - wanted[at]) == 1, (at, exact[at])
