"""Products of two-bit activations and one-bit weights (figure 18 of the TVM paper): the convolutions of ResNet-18.

    python -m benchmarks.bitserial [--layers C2 C6] [--repeats 5] [--threads 1 2]
    python -m benchmarks.bitserial --count [--target aarch64-unknown-linux-gnu,cpu=cortex-a53]

For each layer: counting bits by the tensor intrinsic and by the plain program (as the planner schedules it), the
graph's operator (BitConv, which also packs its input and scales its result), and our own int8 and float32 convolutions
of the same shape. Candidates take turns, the best of `--repeats` counts (with one thread, of the processor's time); the
result of the intrinsic is compared with NumPy. For the first two the bits are packed already, and windows are part of
the time.

With --count nothing is timed: QEMU counts the instructions of a machine that need not be here, the same number in every
run (`weft/pool/count.c`). For two threads it is what the busier of them does: loops whose iterations are shared run the
first half of them.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks.vdla import LAYERS, Layer
from weft import te
from weft.builder import Built, with_arguments
from weft.codegen.llvm.compile import emit_object, link_shared
from weft.codegen.llvm.generate import entry_symbol
from weft.compiler.kernels.build import Packing
from weft.compiler.module import Module
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.ops.bits import pack_codes
from weft.pool.device import Call
from weft.pool.server import LocalServer, architecture_of, start_server
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cpu import bits
from weft.targets.registry import find_target
from weft.te import bitserial

BITS = 2
Run = Callable[[int], Any]


def product(layer: Layer, tensorized: bool, target: Target) -> tuple[Schedule, list[Any]]:
    """The layer by counting bits that are packed already, scheduled; and its arguments: image, weights, result."""
    size, taps, pad = layer.channels // 8, layer.kernel**2, layer.kernel // 2
    line = bits.line_of(target) if bits.kinds_of(target) else bitserial.LINE
    given = te.placeholder((BITS, 1, layer.size, layer.size, size), "uint8", name="x")
    right = te.placeholder((1, layer.filters, -(-taps * size // line) * line), "uint8", name="w")
    rows = bitserial.windows(given, (layer.kernel, layer.kernel), layer.stride, pad, line)
    total, counts = bitserial.dense(rows, right)
    s = te.create_schedule(total.op)
    if tensorized:
        bits.schedule(s, total, counts, target)
        first, *_ = s[rows].loops
        s[rows].parallel(s[rows].fuse(first, s[rows].loops[1]))
    else:
        s.plan(target, [right])
    return s, [given, right, total]


def counted(layer: Layer, tensorized: bool) -> tuple[Run, Callable[[], bool]]:
    """The layer by counting bits; and whether its answer is NumPy's."""
    rng, target = np.random.default_rng(0), find_target("native")
    taps, pad, out = layer.kernel**2, layer.kernel // 2, layer.size // layer.stride
    s, (given, right, total) = product(layer, tensorized, target)
    shape, wide = ([int(one.value) for one in tensor.shape] for tensor in (given, right))
    x, w, size = rng.integers(0, 256, shape).astype(np.uint8), np.zeros(wide, np.uint8), taps * shape[-1]
    w[:, :, :size] = rng.integers(0, 256, (1, layer.filters, size))
    built, made = weft.build(s, [given, right, total]), np.zeros((out * out, layer.filters), np.int32)

    def is_right() -> bool:
        planes = np.unpackbits(x, axis=-1).astype(np.int32)
        image = np.pad(
            (planes * (1 << np.arange(BITS)).reshape(-1, 1, 1, 1, 1)).sum(0), ((0, 0), (pad, pad), (pad, pad), (0, 0))
        )
        weights = np.unpackbits(w[0, :, :size], axis=-1).reshape(layer.filters, layer.kernel, layer.kernel, -1)
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


def convolution(layer: Layer, op: str, dtype: str, weights: str, target: str = "native") -> Module:
    """The layer as our own convolution."""
    shape, pad = (1, layer.channels, layer.size, layer.size), layer.kernel // 2
    x = Value("x", TensorType(dtype, shape))
    array = np.ones((layer.filters, layer.channels, layer.kernel, layer.kernel), weights)
    w = Value("w", TensorType(weights, array.shape))
    attributes = {"pads": [pad] * 4, "strides": [layer.stride] * 2, "kernel_shape": [layer.kernel] * 2}
    node = Node(op, [x, w], [Value("y", None)], attributes)
    return weft.compile(infer(Graph("layer", [x], node.outputs, [node], {w: array})), target=target)


def operator(layer: Layer, target: str = "native") -> Module:
    """The layer as the graph's operator: from bytes, which it packs, to floats."""
    rng, taps, machine = np.random.default_rng(0), (layer.kernel, layer.kernel), find_target(target)
    codes = rng.integers(0, 2, (layer.filters, layer.channels, *taps)).astype(np.uint8)
    line = bits.line_of(machine) if bits.kinds_of(machine) else bitserial.LINE
    arrays = {"w": pack_codes(codes, 1, line), "scale": np.ones(layer.filters, np.float32)}
    constants = {Value(name, TensorType(str(a.dtype), a.shape)): a for name, a in arrays.items()}
    x = Value("x", TensorType("uint8", (1, layer.channels, layer.size, layer.size)))
    window = {"pads": [layer.kernel // 2] * 4, "strides": [layer.stride] * 2, "kernel_shape": list(taps)}
    node = Node("BitConv", [x, *constants], [Value("y", None)], {"bits": BITS, **window}, domain="weft")
    return weft.compile(infer(Graph("layer", [x], node.outputs, [node], constants)), target=target)


def called(module: Module) -> Run:
    """A module on numbers of its own."""
    kind = module.graph.inputs[0].tensor
    given = np.random.default_rng(0).integers(0, 1 << BITS, kind.static).astype(kind.dtype)

    def run(threads: int) -> None:
        weft.set_threads(threads)
        module.run(None, {"x": given})

    return run


# ------------------------------------------------------------------------------------------------ instructions

SHARE = """
define void @weft_parallel_for(ptr %body, ptr %environment, i64 %count, i64 %threads) {
  %more = add i64 %count, 1
  %half = sdiv i64 %more, 2
  call void %body(i64 0, i64 %half, ptr %environment)
  ret void
}
"""
"""In place of the runtime's: the first of two threads' iterations, and nothing else."""


@dataclass(frozen=True)
class Piece:
    """A kernel: its code, its name, and the bytes of each argument; instructions do not depend on what these hold."""

    code: bytes
    symbol: str
    sizes: Sequence[int]


def pieces(what: Built | Module) -> list[Piece]:
    """The kernels of a program, or of a module."""
    if isinstance(what, Built):
        sizes = [
            math.prod(map(int, one.shape)) * one.dtype.bytes
            for one in what.signature.parameters
            if one.shape is not None
        ]
        return [Piece(what.object_code(), entry_symbol(what.lowered.name), sizes)]
    (form,) = what.specializations
    return [
        Piece(launch.kernel.object_code, launch.kernel.symbol, [_bytes(one, form.graph) for one in launch.arguments])
        for launch in form.launches
    ]


def _bytes(argument: Value | tuple[Value, Packing], graph: Graph) -> int:
    if isinstance(argument, Value):
        return math.prod(argument.tensor.static) * np.dtype(argument.tensor.dtype).itemsize
    value, packing = argument
    return int(packing.apply(graph.constants[value]).nbytes)


def instructions(what: Built | Module, target: Target, server: LocalServer, threads: int) -> int:
    """What one call takes, by QEMU's count."""
    total = 0
    with tempfile.TemporaryDirectory(prefix="weft-count-") as folder, server.connect() as device:
        for piece in pieces(what):
            path = Path(folder) / "kernel.so"
            share = [emit_object(SHARE, target)] if threads == 2 else []
            link_shared([piece.code, *share], path, target)
            arguments = [bytes(size) for size in piece.sizes]
            ran = device.run([Call(path.read_bytes(), piece.symbol, arguments)], seconds=60, counts=True)
            if not ran.samples:
                raise SystemExit(f"{piece.symbol} did not run: {ran.status.name}: {ran.detail}")
            total += ran.samples[0].rounds[0][0]
    return total


def count(layers: Sequence[Layer], threads: Sequence[int], name: str) -> None:
    """A line for each layer and number of threads: millions of instructions."""
    target = find_target(name)
    server = start_server(architecture_of(target.triple), counts=True)
    print(f"millions of instructions, {target.triple}, {target.cpu}")
    print(
        f"{'layer':6}{'threads':>8}{'intrinsic':>11}{'plain':>10}{'operator':>10}{'int8':>10}{'float32':>10}"
        f"{'plain / intrinsic':>20}"
    )
    ratios = []
    try:
        for layer in layers:
            built = [Built(with_arguments(s.func, given), target, "layer")
                     for s, given in (product(layer, tensorized, target) for tensorized in (True, False))]  # fmt: skip
            modules = [operator(layer, name), convolution(layer, "ConvInteger", "uint8", "int8", name),
                       convolution(layer, "Conv", "float32", "float32", name)]  # fmt: skip
            for number in threads:
                found = [instructions(one, target, server, number) for one in (*built, *modules)]
                ratios.append(found[1] / found[0])
                cells = "".join(f"{one / 1e6:10.2f}" for one in found)
                print(f"{layer.name:6}{number:8} {cells}{ratios[-1]:20.2f}", flush=True)
    finally:
        server.stop()
    print(f"geometric mean of plain / intrinsic: {np.exp(np.log(ratios).mean()):.2f}")


def main() -> None:
    """Prints a line for each layer and number of threads."""
    parser = argparse.ArgumentParser(description="Products of one- and two-bit numbers.")
    parser.add_argument("--layers", nargs="*", default=[layer.name for layer in LAYERS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--count", action="store_true", help="instructions under QEMU, not time")
    parser.add_argument("--target", default="aarch64-unknown-linux-gnu,cpu=cortex-a53", help="whose instructions")
    words = parser.parse_args()
    if words.count:
        chosen = [layer for layer in LAYERS if layer.name in words.layers]
        return count(chosen, words.threads, words.target)
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
            called(operator(layer)),
            called(convolution(layer, "ConvInteger", "uint8", "int8")),
            called(convolution(layer, "Conv", "float32", "float32")),
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
