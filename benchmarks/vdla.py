"""The accelerator in cycles of its fast model: figures 10 and 21 of the TVM paper, and what tuning gains.

    python -m benchmarks.vdla [--layers C2 C6] [--latency 32 64 128 256] [--word-cycles 3] [--trials 4] [--plot out.svg]
    python -m benchmarks.vdla --offload [--model resnet18]
    python -m benchmarks.vdla --tune 30
    python -m benchmarks.vdla --sweep [16x16 narrow …] [--tune 30]

Latency hiding (figure 10): every convolution of ResNet-18 with two virtual threads; the same tiles without them; and
with one thread whose tiles are chosen for it, in all of the memories. Each result is compared with NumPy. A layer is a
tensor expression in packed layout (int8 in, int32 sums, bias, shift, ReLU, int8 out); its schedule is the target's own
choice: tiles by the model's cycles.

Offloading (figure 21): a whole quantized model, layer by layer, against a *model* of a scalar processor: SCALAR_CLOCK
cycles a second, one for each operation (a multiply-add is two), memory for nothing.

Tuning: as many points of the sketches of ten layers as are asked for, measured in the simulator, against the default
choice and against what no schedule goes below. The sweep does the same for ten other layers, which nothing was fitted
to, on machines of other sizes.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import te
from weft.codegen.c.program import DeviceProgram
from weft.compiler.reports.cost import kernel_cost
from weft.core.errors import TargetError
from weft.models import vision
from weft.quantization import quantize
from weft.schedule.schedule import Schedule
from weft.targets.registry import find_target
from weft.targets.vdla import config_of, lower
from weft.targets.vdla.isa import CLOCK, Config
from weft.targets.vdla.model import Result
from weft.targets.vdla.program import Image, cycles, generate
from weft.targets.vdla.schedule import TRIALS, Product, Simulated, accelerate, sketch_of

SHIFT = 8
SCALAR_CLOCK = 667e6
"""Of the scalar processor that offloading is compared with: an in-order core beside an FPGA."""


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
"""All of ResNet-18 but the first, which the paper leaves to the host."""

TUNED = [
    Layer("C1", 224, 16, 64, 7, 2), *(layer for layer in LAYERS if layer.name in ("C2", "C5", "C11", "C12")),
    Layer("P1", 112, 32, 64, 1, 1), Layer("P7", 14, 512, 512, 1, 1), Layer("P9", 7, 1024, 1024, 1, 1),
    Layer("O1", 28, 112, 208, 3, 1), Layer("D1", 4, 1024, 1008, 1, 1),
]  # fmt: skip
"""Ten layers to tune, as different as they come: ResNet-18's first (with its three channels in a block of 16) and four
more, three of MobileNet's 1 × 1, a 3 × 3 of 100 → 200 channels (in whole blocks), and a dense layer on 16 rows."""

UNSEEN = [
    Layer("M1", 28, 128, 256, 1, 1), Layer("M2", 14, 384, 64, 1, 1), Layer("V1", 16, 64, 128, 3, 1),
    Layer("U1", 32, 48, 48, 3, 1), Layer("F1", 13, 48, 192, 3, 1), Layer("S1", 32, 72, 144, 3, 2),
    Layer("I1", 28, 32, 96, 5, 1), Layer("S2", 64, 3, 32, 7, 2), Layer("D2", 1, 576, 1000, 1, 1),
    Layer("D3", 8, 192, 768, 1, 1),
]  # fmt: skip
"""Ten layers that nothing was fitted to, in channels as models have them: a 1 × 1 of MobileNet v1 and one of v2, 3 × 3
of VGG, U-Net and SqueezeNet (whose 13 is a prime), one with stride 2, GoogLeNet's 5 × 5, a 7 × 7 / 2 on three channels,
and dense layers on one row and on 64."""

MACHINES = {
    "16x16": "", "8x8": "block=8", "32x32": "block=32", "small": "inp=512,wgt=32,acc=512", "large": "wgt=1024",
    "quick": "latency=32", "slow": "latency=400", "wide": "word_cycles=1", "narrow": "word_cycles=8",
    "poor": "inp=256,wgt=16,acc=256,latency=200,word_cycles=8",
}  # fmt: skip
"""Machines to sweep over: products a cycle, memories, latency and bandwidth of DRAM, and all of them poor."""


def convolution(layer: Layer, block: int = 16) -> tuple[Schedule, list[Any]]:
    """The layer as a tensor expression, and its arguments: image, weights, bias, result."""
    blocks_in, blocks_out = layer.channels // block, layer.filters // block
    size, out, pad = layer.size, layer.size // layer.stride, layer.kernel // 2
    x = te.placeholder((blocks_in, size, size, block), dtype="int8", name="x")
    w = te.placeholder((blocks_out, blocks_in, layer.kernel, layer.kernel, block, block), dtype="int8", name="w")
    bias = te.placeholder((blocks_out, block), dtype="int32", name="bias")
    image, at = x, layer.stride
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
    elif at > 1:  # rows that no window touches stay in DRAM
        image = te.compute((blocks_in, out, size, block), lambda c, i, j, k: x[c, i * at, j, k], name="rows")
    step = at if pad else 1
    c, k = te.reduce_axis(blocks_in, name="c"), te.reduce_axis(block, name="k")
    ky, kx = te.reduce_axis(layer.kernel, name="ky"), te.reduce_axis(layer.kernel, name="kx")
    sums = te.compute(
        (blocks_out, out, out, block),
        lambda f, i, j, o: te.sum(
            image[c, i * step + ky, j * at + kx, k].astype("int32") * w[f, c, ky, kx, o, k].astype("int32"),
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


def compiled(
    layer: Layer, target: str = "vdla", threads: int = 2, trials: int = TRIALS, serial: bool = False
) -> DeviceProgram:
    """The stream of a layer; where it is to be `serial`, the same tiles without virtual threads."""
    machine = find_target(target)
    config = config_of(machine.name.partition(":")[2])
    s, _ = convolution(layer, config.block)
    sketch = sketch_of(s, "sums", machine, (threads,), trials)
    found = next(iter(sketch.ranked()), None)
    if found is None:
        raise TargetError(f"no tiling of {layer.name} fits into the memories of {target}")
    tiling = Product(s, "sums", config).tiling(found[0])
    accelerate(s, "sums", replace(tiling, threads=1) if serial else tiling, config)
    return generate(lower(s.func, machine), machine)


def image_of(layer: Layer, program: DeviceProgram, target: str = "vdla") -> tuple[Image, Any]:
    """The program and its data in DRAM, and what NumPy expects in the memory of `narrow`."""
    config = config_of(target.partition(":")[2])
    image = Image(program.source, {one.name: one.bytes for one in program.parameters}, config)
    given, expected = arguments(layer, config.block)
    for name, data in zip(("x", "w", "bias"), given):
        image.memory(name, data.nbytes)[...] = data.reshape(-1).view(np.uint8)
    return image, expected


def run(layer: Layer, target: str, threads: int, trials: int = TRIALS, serial: bool = False) -> Result:
    """One layer, compared with NumPy."""
    image, expected = image_of(layer, compiled(layer, target, threads, trials, serial), target)
    result = image.run()
    made = image.memory("narrow", expected.nbytes).view(np.int8).reshape(expected.shape)
    if result.errors or not np.array_equal(made, expected):
        raise SystemExit(f"{layer.name} is wrong: error bits {result.errors}")
    return result


def intensity(layer: Layer) -> float:
    """Operations for each byte that must come from or go to DRAM."""
    area, out = layer.size**2, (layer.size // layer.stride) ** 2
    weights = layer.channels * layer.filters * layer.kernel**2
    moved = area * layer.channels + weights + out * layer.filters
    return 2 * out * weights / moved


def plot(path: Path, layers: list[Layer], shares: list[tuple[float, float]], latency: int, word_cycles: int) -> None:
    """The roofline: operations a cycle against operations for each byte, with one thread and with two."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    peak, bandwidth = 2 * 16 * 16, 16 / word_cycles
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    at = np.geomspace(8, 4096, 200)
    axes.loglog(at, np.minimum(peak, at * bandwidth), color="black", label="peak and bandwidth")
    for which, (name, marker) in enumerate((("one thread", "o"), ("two virtual threads", "^"))):
        axes.scatter(
            [intensity(one) for one in layers], [peak * share[which] for share in shares], marker=marker, label=name
        )
    for one, share in zip(layers, shares):
        axes.annotate(
            one.name, (intensity(one), peak * share[1]), textcoords="offset points", xytext=(4, 4), fontsize=7
        )
    axes.set(
        xlabel="operations for each byte of DRAM", ylabel="operations a cycle", title=f"latency of {latency} cycles"
    )
    axes.legend()
    figure.savefig(path)


def offload(name: str) -> None:
    """A line for each product on the accelerator, and what is left to the processor."""
    graph = getattr(vision, name)()
    (given,) = graph.inputs
    feeds = [{given.name: np.random.default_rng(0).standard_normal(given.tensor.static).astype("float32")}]
    small = quantize(graph, feeds, activations="int8", scales="powers_of_two", method="minmax")
    module = weft.compile(small, target="vdla")
    made, expected = (one.run(None, feeds[0])[0] for one in (module, weft.compile(small, target="native")))
    if not np.array_equal(made, expected):
        raise SystemExit(f"{name} is wrong on the accelerator")
    (form,) = module.specializations
    print(f"{name}: equal to the int8 reference; {CLOCK / 1e6:.0f} MHz against a scalar {SCALAR_CLOCK / 1e6:.0f} MHz")
    print(f"{'layer':16}{'Mop':>8}{'cycles':>11}{'ms':>9}{'scalar ms':>11}{'times':>8}")
    there, scalar = 0.0, 0.0
    for launch in form.launches:
        count, weight = cycles(launch.kernel.program, config_of("")), form.graph.constants[launch.nodes[0].inputs[1]]
        lanes = weight.any(axis=(0, 2, 3, 4))  # a scalar processor multiplies no channels that only fill up a block
        operations = kernel_cost(launch, form.graph.constants).operations * lanes.mean()
        spent, otherwise = count / CLOCK, operations / SCALAR_CLOCK
        there, scalar = there + spent, scalar + otherwise
        label = launch.nodes[0].name
        times = f"{spent * 1e3:9.2f}{otherwise * 1e3:11.1f}{otherwise / spent:8.1f}"
        print(f"{label:16}{operations / 1e6:8.1f}{count:11,}{times}")
    rest: dict[str, float] = {}
    for step in form.runner.program.steps:
        for one in getattr(getattr(step, "executor", None), "specializations", ()):
            for launch in one.launches:
                spent = kernel_cost(launch, one.graph.constants).operations / SCALAR_CLOCK
                rest[launch.kernel.label] = rest.get(launch.kernel.label, 0.0) + spent
    left = sum(rest.values())
    print(f"offloaded products: {scalar * 1e3:.1f} ms -> {there * 1e3:.1f} ms, {scalar / there:.1f} times")
    before, after = scalar + left, there + left
    print(f"whole model: {before * 1e3:.1f} ms -> {after * 1e3:.1f} ms, {before / after:.1f} times")
    print("left to the processor:")
    for label, spent in sorted(rest.items(), key=lambda one: -one[1])[:6]:
        print(f"  {label:40}{spent * 1e3:9.2f} ms{spent / after:8.1%}")


def searched(sketch: Simulated, trials: int, seed: int = 0) -> float:
    """The best seconds of so many points: a third by the estimate, the others near the best ones found so far.

    A point near another differs in one to three knobs; of a few of them, the one with the best estimate is measured.
    """
    rng, columns = np.random.default_rng(seed), sketch.columns()
    legal = sketch.legal(columns)
    cost = np.where(legal, sketch.cost(columns), np.inf)
    points = np.stack(list(columns.values()), 1)
    tried: dict[int, float] = {}

    def measure(at: int) -> None:
        tried[at] = sketch.seconds(sketch.point(columns, at))

    if legal.sum() <= trials:
        return min(sketch.seconds(sketch.point(columns, int(at))) for at in np.flatnonzero(legal))
    for at in np.unique(cost, return_index=True)[1][: max(1, trials // 3)]:
        measure(int(at))
    while len(tried) < trials:
        best = sorted(tried, key=lambda at: tried[at])[:4]
        parent = points[best[int(rng.integers(len(best)))]]
        apart = (points != parent).sum(1)
        near = np.array([at for at in np.flatnonzero(legal & (apart <= rng.integers(1, 4))) if at not in tried])
        if not len(near):
            break
        near = near[cost[near] < 2 * cost[best[0]]] if (cost[near] < 2 * cost[best[0]]).any() else near
        few = rng.permutation(near)[:8]
        measure(int(few[np.argmin(cost[few])]))
    return min(tried.values())


def floor(layer: Layer, config: Config) -> int:
    """Cycles that no schedule of a layer goes below: of the compute unit, with a pass of the ALU, or of the port."""
    block, out = config.block, (layer.size // layer.stride) ** 2
    blocks_in, blocks_out = layer.channels // block, layer.filters // block
    compute = out * blocks_out * (blocks_in * layer.kernel**2 + 1)
    words = (
        (layer.size**2 if layer.kernel > 1 else out) * blocks_in
        + blocks_in * blocks_out * layer.kernel**2 * block
        + out * blocks_out
    )
    return max(compute, words * config.word_cycles)


def tuned(layer: Layer, target: str, trials: int) -> tuple[float, float, float, float] | None:
    """Cycles of the best estimate, of the default (the best of a few), of the best of a search; and its seconds.

    None where no tiling fits into the memories, and the layer is the processor's.
    """
    begin = time.process_time()
    s, _ = convolution(layer, config_of(target.partition(":")[2]).block)
    sketch = sketch_of(s, "sums", find_target(target), (1, 2, 3, 4))
    default = next((seconds for _, seconds in sketch_of(s, "sums", find_target(target)).ranked()), None)
    if default is None:
        return None
    first = next(seconds for seconds in map(sketch.seconds, sketch.distinct()) if np.isfinite(seconds))
    best = min(searched(sketch, trials), default)
    return first * CLOCK, default * CLOCK, best * CLOCK, time.process_time() - begin


def tune(layers: list[Layer], target: str, trials: int) -> Any:
    """A line for each layer: estimate, default, the best of a search, and what no schedule goes below; and means."""
    begin, config = time.perf_counter(), config_of(target.partition(":")[2])
    heads = "".join(f"{name:>12}" for name in ("floor", "estimate", "default", "tuned"))
    print(f"{'layer':6}{heads}{'over estimate':>15}{'over default':>14}{'default/floor':>15}")
    gains, spent = [], 0.0  # gains: over the estimate, over the default; and how far from the floor both are
    layers = [replace(one, channels=whole(one.channels, config), filters=whole(one.filters, config)) for one in layers]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for layer, found in zip(layers, pool.map(partial(tuned, target=target, trials=trials), layers)):
            if found is None:
                print(f"{layer.name:6}{floor(layer, config):12,}  does not fit into the memories")
                continue
            first, default, best, seconds = found
            spent += seconds
            gains.append((first / best, default / best, default / floor(layer, config), best / floor(layer, config)))
            cells = "".join(f"{cycles:12,.0f}" for cycles in (floor(layer, config), first, default, best))
            print(f"{layer.name:6}{cells}{gains[-1][0]:15.3f}{gains[-1][1]:14.3f}{gains[-1][2]:15.3f}", flush=True)
    means = np.exp(np.log(gains).mean(0))
    print("tuned is {:.3f} over the estimate, {:.3f} over the default (geometric means)".format(*means))
    print("default / floor {2:.3f}, which no tuner can gain more than; tuned / floor {3:.3f}".format(*means))
    taken = time.perf_counter() - begin
    print(f"{trials * len(layers)} trials, {taken:.0f} s by two processes, {spent:.0f} s of the processor's time")
    return means


def whole(channels: int, config: Config) -> int:
    """Channels filled up to whole blocks, as offloading fills them."""
    return -(-channels // config.block) * config.block


def sweep(names: list[str], layers: list[Layer], trials: int) -> None:
    """`tune` on one machine after the other, and all means at the end."""
    means = {}
    for name in names or MACHINES:
        target = f"vdla:{MACHINES[name]}".rstrip(":")
        print(f"\n{name}: {target}")
        means[name] = tune(layers, target, trials)
    print(f"\n{'machine':10}{'over estimate':>15}{'over default':>15}{'default/floor':>15}{'tuned/floor':>15}")
    for name, found in (*means.items(), ("all", np.exp(np.mean(np.log(list(means.values())), 0)))):
        print(f"{name:10}" + "".join(f"{one:15.3f}" for one in found))


def main() -> None:
    """Prints a line for each layer and latency."""
    parser = argparse.ArgumentParser(description="The accelerator in cycles.")
    parser.add_argument("--layers", nargs="*", default=[], help="some of them; all where none is named")
    parser.add_argument("--latency", nargs="*", type=int, default=[64])
    parser.add_argument(
        "--word-cycles", type=int, default=Config.word_cycles, help="cycles for each word of DRAM (16 bytes)"
    )
    parser.add_argument("--trials", type=int, default=TRIALS, help="tilings that are tried for each layer")
    parser.add_argument("--plot", type=Path, help="draw the roofline of the first latency there")
    parser.add_argument("--offload", action="store_true", help="a whole model with and without the accelerator")
    parser.add_argument("--model", default="resnet18", choices=["resnet18", "resnet50", "mobilenet_v1", "mobilenet_v2"])
    parser.add_argument("--tune", type=int, default=0, help="search so many points of each layer's sketch")
    parser.add_argument(
        "--sweep", nargs="*", choices=list(MACHINES), help="tune other layers on these machines, or all"
    )
    words = parser.parse_args()
    of = LAYERS if not words.tune and words.sweep is None else TUNED if words.sweep is None else UNSEEN
    layers = [layer for layer in of if not words.layers or layer.name in words.layers]
    if words.offload:
        return offload(words.model)
    if words.sweep is not None:
        return sweep(words.sweep, layers, words.tune or 30)
    if words.tune:
        tune(layers, f"vdla:latency={words.latency[0]},word_cycles={words.word_cycles}", words.tune)
        return
    print(
        f"{'layer':6}{'latency':>8}{'same tiles':>14}{'used':>7}{'1 thread':>12}{'used':>7}{'2 threads':>12}{'used':>7}"
    )
    for latency in words.latency:
        target, shares = f"vdla:latency={latency},word_cycles={words.word_cycles}", []
        for layer in layers:
            forms = [(2, True), (1, False), (2, False)]
            results = [run(layer, target, threads, words.trials, serial) for threads, serial in forms]
            shares.append([one.gemm / one.cycles for one in results])
            cells = "".join(f"{one.cycles:12,}{share:7.1%}" for one, share in zip(results, shares[-1]))
            print(f"{layer.name:6}{latency:8}  {cells}", flush=True)
        peak, mean = np.max(shares, 0), np.mean(shares, 0)
        print(
            f"peak {peak[0]:.1%} ({peak[1]:.1%}) -> {peak[2]:.1%}, mean {mean[0]:.1%} ({mean[1]:.1%}) -> {mean[2]:.1%}"
        )
        if words.plot and latency == words.latency[0]:
            plot(words.plot, layers, [(one[0], one[2]) for one in shares], latency, words.word_cycles)


if __name__ == "__main__":
    main()
