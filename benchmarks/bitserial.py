"""Products of two-bit activations and one-bit weights (figure 18 of the TVM paper): the convolutions of ResNet-18.

    python -m benchmarks.bitserial [--layers C2 C6] [--repeats 5] [--threads 1 2]

For each layer: counting bits by the tensor intrinsic and by the plain program (as the planner schedules it), the
graph's operator (BitConv, which also packs its input and scales its result), and our own int8 and float32 convolutions
of the same shape. Candidates take turns, the best of `--repeats` counts (with one thread, of the processor's time); the
result of the intrinsic is compared with NumPy. For the first two the bits are packed already, and windows are part of
the time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from benchmarks.vdla import LAYERS, Layer
from weft import te
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.ops.bits import pack_codes
from weft.targets.cpu import bits
from weft.targets.registry import find_target
from weft.te import bitserial

BITS = 2
Run = Callable[[int], Any]


def counted(layer: Layer, tensorized: bool) -> tuple[Run, Callable[[], bool]]:
    """The layer by counting bits; and whether its answer is NumPy's."""
    rng, target = np.random.default_rng(0), find_target("native")
    size, taps, pad, out = layer.channels // 8, layer.kernel**2, layer.kernel // 2, layer.size // layer.stride
    line = bits.kinds_of(target) and bits.line_of(target) or bitserial.LINE
    x = rng.integers(0, 256, (BITS, 1, layer.size, layer.size, size)).astype(np.uint8)
    row = -(-taps * size // line) * line
    w = np.zeros((1, layer.filters, row), np.uint8)
    w[:, :, : taps * size] = rng.integers(0, 256, (1, layer.filters, taps * size))
    given, right = te.placeholder(x.shape, "uint8", name="x"), te.placeholder(w.shape, "uint8", name="w")
    rows = bitserial.windows(given, (layer.kernel, layer.kernel), layer.stride, pad, line)
    total, counts = bitserial.dense(rows, right)
    s = te.create_schedule(total.op)
    if tensorized:
        bits.schedule(s, total, counts, target)
        first, *_ = s[rows].loops
        s[rows].parallel(s[rows].fuse(first, s[rows].loops[1]))
    else:
        s.plan(target, [right])
    built, made = weft.build(s, [given, right, total]), np.zeros((out * out, layer.filters), np.int32)

    def is_right() -> bool:
        planes = np.unpackbits(x, axis=-1).astype(np.int32)
        image = np.pad(
            (planes * (1 << np.arange(BITS)).reshape(-1, 1, 1, 1, 1)).sum(0), ((0, 0), (pad, pad), (pad, pad), (0, 0))
        )
        weights = np.unpackbits(w[0, :, : taps * size], axis=-1).reshape(layer.filters, layer.kernel, layer.kernel, -1)
        wanted = sum(
            image[0, i : i + layer.size : layer.stride, j : j + layer.size : layer.stride].reshape(out * out, -1)
            @ weights[:, i, j].astype(np.int32).T
            for i in range(layer.kernel)
            for j in range(layer.kernel)
        )
        return bool(np.array_equal(made, wanted))

    def run(threads: int) -> None:
        weft.set_threads(threads)
        built(x, w, made)

    return run, is_right


def compiled(layer: Layer, op: str, dtype: str, weights: str) -> Run:
    """The layer as our own convolution."""
    shape, pad = (1, layer.channels, layer.size, layer.size), layer.kernel // 2
    x = Value("x", TensorType(dtype, shape))
    array = np.ones((layer.filters, layer.channels, layer.kernel, layer.kernel), weights)
    w = Value("w", TensorType(weights, array.shape))
    attributes = {"pads": [pad] * 4, "strides": [layer.stride] * 2, "kernel_shape": [layer.kernel] * 2}
    node = Node(op, [x, w], [Value("y", None)], attributes)
    module = weft.compile(infer(Graph("layer", [x], node.outputs, [node], {w: array})), target="native")
    given = np.ones(shape, dtype)

    def run(threads: int) -> None:
        weft.set_threads(threads)
        module.run(None, {"x": given})

    return run


def operator(layer: Layer) -> Run:
    """The layer as the graph's operator: from bytes, which it packs, to floats."""
    rng, taps = np.random.default_rng(0), (layer.kernel, layer.kernel)
    codes = rng.integers(0, 2, (layer.filters, layer.channels, *taps)).astype(np.uint8)
    target = find_target("native")
    line = bits.line_of(target) if bits.kinds_of(target) else bitserial.LINE
    arrays = {"w": pack_codes(codes, 1, line), "scale": np.ones(layer.filters, np.float32)}
    constants = {Value(name, TensorType(str(a.dtype), a.shape)): a for name, a in arrays.items()}
    x = Value("x", TensorType("uint8", (1, layer.channels, layer.size, layer.size)))
    window = {"pads": [layer.kernel // 2] * 4, "strides": [layer.stride] * 2, "kernel_shape": list(taps)}
    node = Node("BitConv", [x, *constants], [Value("y", None)], {"bits": BITS, **window}, domain="weft")
    module = weft.compile(infer(Graph("layer", [x], node.outputs, [node], constants)), target="native")
    given = rng.integers(0, 1 << BITS, x.tensor.static).astype(np.uint8)

    def run(threads: int) -> None:
        weft.set_threads(threads)
        module.run(None, {"x": given})

    return run


def main() -> None:
    """Prints a line for each layer and number of threads."""
    parser = argparse.ArgumentParser(description="Products of one- and two-bit numbers.")
    parser.add_argument("--layers", nargs="*", default=[layer.name for layer in LAYERS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    words = parser.parse_args()
    print(
        f"{'layer':6}{'threads':>8}{'intrinsic':>11}{'plain':>10}{'operator':>10}{'int8':>10}{'float32':>10}"
        f"{'plain / intrinsic':>20}"
    )
    ratios = []
    for layer in (layer for layer in LAYERS if layer.name in words.layers):
        (quick, is_right), (plain, _) = counted(layer, True), counted(layer, False)
        candidates = [
            quick,
            plain,
            operator(layer),
            compiled(layer, "ConvInteger", "uint8", "int8"),
            compiled(layer, "Conv", "float32", "float32"),
        ]
        for threads in words.threads:
            clock = time.process_time if threads == 1 else time.perf_counter  # others may be at work on the machine
            best = [float("inf")] * len(candidates)
            for _ in range(words.repeats):
                for at, candidate in enumerate(candidates):
                    begin = clock()
                    candidate(threads)
                    best[at] = min(best[at], clock() - begin)
            ratios.append(best[1] / best[0])
            cells = "".join(f"{seconds * 1e3:8.2f}ms" for seconds in best)
            print(f"{layer.name:6}{threads:8} {cells}{ratios[-1]:20.2f}")
        if not is_right():
            raise SystemExit(f"{layer.name} is wrong")
    print(f"geometric mean of plain / intrinsic: {np.exp(np.log(ratios).mean()):.2f}")


if __name__ == "__main__":
    main()
