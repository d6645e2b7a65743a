"""Latency hiding on the accelerator (figure 10 of the TVM paper): every convolution of ResNet-18, with one virtual
thread and with two, in cycles of the fast model; each result is compared with NumPy.

    python -m benchmarks.vdla [--layers C2 C6] [--latency 32 64 128 256] [--word-cycles 2] [--trials 8]

A layer is a tensor expression in packed layout (int8 in, int32 sums, bias, shift, ReLU, int8 out); its schedule is the
target's own choice: tiles by the model's cycles.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.program import DeviceProgram
from weft.schedule.schedule import Schedule
from weft.targets.registry import find_target
from weft.targets.vdla import config_of, lower
from weft.targets.vdla.model import Result
from weft.targets.vdla.program import Image, generate
from weft.targets.vdla.schedule import schedule

SHIFT = 8


@dataclass(frozen=True)
class Layer:
    """A convolution: a square image, channels in and out, kernel and stride; "same" padding."""

    name: str
    size: int
    channels: int
    filters: int
    kernel: int
    stride: int


LAYERS = [
    Layer("C2", 56, 64, 64, 3, 1), Layer("C3", 56, 64, 64, 1, 1), Layer("C4", 56, 64, 128, 3, 2),
    Layer("C5", 56, 64, 128, 1, 2), Layer("C6", 28, 128, 128, 3, 1), Layer("C7", 28, 128, 256, 3, 2),
    Layer("C8", 28, 128, 256, 1, 2), Layer("C9", 14, 256, 256, 3, 1), Layer("C10", 14, 256, 512, 3, 2),
    Layer("C11", 14, 256, 512, 1, 2), Layer("C12", 7, 512, 512, 3, 1),
]  # fmt: skip
"""All of ResNet-18 but the first, which has three channels and stays on the host, as in the paper."""


def convolution(layer: Layer, block: int = 16) -> tuple[Schedule, list[Any]]:
    """The layer as a tensor expression, and its arguments: image, weights, bias, result."""
    blocks_in, blocks_out = layer.channels // block, layer.filters // block
    size, out, pad = layer.size, layer.size // layer.stride, layer.kernel // 2
    x = te.placeholder((blocks_in, size, size, block), dtype="int8", name="x")
    w = te.placeholder((blocks_out, blocks_in, layer.kernel, layer.kernel, block, block), dtype="int8", name="w")
    bias = te.placeholder((blocks_out, block), dtype="int32", name="bias")
    image = x
    if pad:
        image = te.compute(
            (blocks_in, size + 2 * pad, size + 2 * pad, block),
            lambda c, i, j, k: te.if_then_else(
                te.all(i >= pad, i < size + pad, j >= pad, j < size + pad),
                x[c, i - pad, j - pad, k],
                te.const(0, "int8"),
            ),
            name="padded",
        )
    c, k = te.reduce_axis(blocks_in, name="c"), te.reduce_axis(block, name="k")
    ky, kx = te.reduce_axis(layer.kernel, name="ky"), te.reduce_axis(layer.kernel, name="kx")
    at = layer.stride
    sums = te.compute(
        (blocks_out, out, out, block),
        lambda f, i, j, o: te.sum(
            image[c, i * at + ky, j * at + kx, k].astype("int32") * w[f, c, ky, kx, o, k].astype("int32"),
            axis=[c, ky, kx, k],
        ),
        name="sums",
    )
    shape = sums.shape
    scaled = te.compute(
        shape, lambda f, i, j, o: te.maximum((sums[f, i, j, o] + bias[f, o]) >> SHIFT, 0), name="scaled"
    )
    narrow = te.compute(shape, lambda *at: te.minimum(te.maximum(scaled[at], -128), 127).astype("int8"), name="narrow")
    return te.create_schedule(narrow.op), [x, w, bias, narrow]


def arguments(layer: Layer, block: int = 16) -> tuple[list[Any], Any]:
    """Random data for a layer, and what NumPy makes of it."""
    rng, pad, at = np.random.default_rng(0), layer.kernel // 2, layer.stride
    blocks_in, blocks_out = layer.channels // block, layer.filters // block
    x = rng.integers(-128, 128, (blocks_in, layer.size, layer.size, block)).astype(np.int8)
    w = rng.integers(-128, 128, (blocks_out, blocks_in, layer.kernel, layer.kernel, block, block)).astype(np.int8)
    bias = rng.integers(-(1 << 12), 1 << 12, (blocks_out, block)).astype(np.int32)
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    total: Any = 0
    for i, j in product(range(layer.kernel), repeat=2):
        part = padded[:, i : i + layer.size : at, j : j + layer.size : at]
        total = total + np.tensordot(part, w[:, :, i, j].astype(np.float64), ((0, 3), (1, 3)))
    sums = total.transpose(2, 0, 1, 3).astype(np.int64) + bias[:, None, None]
    return [x, w, bias], np.ascontiguousarray(np.clip(np.maximum(sums >> SHIFT, 0), -128, 127).astype(np.int8))


def compiled(layer: Layer, target: str = "vdla", threads: int = 2, trials: int = 8) -> DeviceProgram:
    """The stream of a layer."""
    machine = find_target(target)
    s, args = convolution(layer, config_of(machine.name.partition(":")[2]).block)
    schedule(s, machine, [], trials, (threads,))
    return generate(lower(s.func, machine), machine)


def image_of(layer: Layer, program: DeviceProgram, target: str = "vdla") -> tuple[Image, Any]:
    """The program and its data in DRAM, and what NumPy expects in the memory of `narrow`."""
    config = config_of(target.partition(":")[2])
    image = Image(program.source, {one.name: one.bytes for one in program.parameters}, config)
    given, expected = arguments(layer, config.block)
    for name, data in zip(("x", "w", "bias"), given):
        image.memory(name, data.nbytes)[...] = data.reshape(-1).view(np.uint8)
    return image, expected


def run(layer: Layer, target: str, threads: int, trials: int = 8) -> Result:
    """One layer, compared with NumPy."""
    image, expected = image_of(layer, compiled(layer, target, threads, trials), target)
    result = image.run()
    made = image.memory("narrow", expected.nbytes).view(np.int8).reshape(expected.shape)
    if result.errors or not np.array_equal(made, expected):
        raise SystemExit(f"{layer.name} is wrong: error bits {result.errors}")
    return result


def main() -> None:
    """Prints a line for each layer and latency."""
    parser = argparse.ArgumentParser(description="Latency hiding on the accelerator.")
    parser.add_argument("--layers", nargs="*", default=[layer.name for layer in LAYERS])
    parser.add_argument("--latency", nargs="*", type=int, default=[64])
    parser.add_argument("--word-cycles", type=int, default=2, help="cycles for each word of DRAM (16 bytes)")
    parser.add_argument("--trials", type=int, default=8, help="tilings that are tried for each layer")
    words = parser.parse_args()
    print(f"{'layer':6}{'latency':>8}{'cycles, 1 thread':>18}{'used':>7}{'2 threads':>12}{'used':>7}")
    for latency in words.latency:
        target, shares = f"vdla:latency={latency},word_cycles={words.word_cycles}", []
        for layer in (layer for layer in LAYERS if layer.name in words.layers):
            one, two = (run(layer, target, threads, words.trials) for threads in (1, 2))
            shares.append((one.gemm / one.cycles, two.gemm / two.cycles))
            print(f"{layer.name:6}{latency:8}{one.cycles:18,}{shares[-1][0]:7.1%}{two.cycles:12,}{shares[-1][1]:7.1%}")
        peak, mean = np.max(shares, 0), np.mean(shares, 0)
        print(f"peak {peak[0]:.1%} -> {peak[1]:.1%}, mean {mean[0]:.1%} -> {mean[1]:.1%}")


if __name__ == "__main__":
    main()
