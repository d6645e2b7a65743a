"""Latency hiding on the accelerator (figure 10 of the TVM paper): every convolution of ResNet-18, with one virtual
thread and with two, in cycles of the fast model; each result is compared with NumPy.

    python -m benchmarks.vdla [--layers C2 C6] [--latency 32 64 128 256] [--block 16] [--trials 8]

Streams are written by hand here: tiles of the output in packed layout, int8 in, int32 sums, bias, shift, ReLU, int8
out. Tokens are placed by `hardware.vdla.tokens`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from hardware.vdla.isa import Config, Instruction, encode_uop
from hardware.vdla.model import Model, Result
from hardware.vdla.tokens import interleave, place_tokens

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

    @property
    def out(self) -> int:
        """The side of the result."""
        return self.size // self.stride

    @property
    def pad(self) -> int:
        """Zeros around the image."""
        return self.kernel // 2


LAYERS = [
    Layer("C2", 56, 64, 64, 3, 1), Layer("C3", 56, 64, 64, 1, 1), Layer("C4", 56, 64, 128, 3, 2),
    Layer("C5", 56, 64, 128, 1, 2), Layer("C6", 28, 128, 128, 3, 1), Layer("C7", 28, 128, 256, 3, 2),
    Layer("C8", 28, 128, 256, 1, 2), Layer("C9", 14, 256, 256, 3, 1), Layer("C10", 14, 256, 512, 3, 2),
    Layer("C11", 14, 256, 512, 1, 2), Layer("C12", 7, 512, 512, 3, 1),
]  # fmt: skip
"""All of ResNet-18 but the first, which has three channels and stays on the host, as in the paper."""


@dataclass(frozen=True)
class Tiling:
    """How much of the result is made at once: blocks of filters, rows and columns; and blocks of channels of a step."""

    filters: int
    rows: int
    columns: int
    channels: int
    filters_inside: bool
    """Whether the next tile has the same place of the image and other filters, or the other way round."""


class Convolution:
    """The stream of one layer."""

    def __init__(self, layer: Layer, config: Config, threads: int) -> None:
        self.layer, self.config, self.threads = layer, config, threads
        self.blocks_in, self.blocks_out = layer.channels // config.block, layer.filters // config.block
        self.bias_at = config.acc - self.blocks_out
        self.tilings = sorted(self._tilings(), key=self._estimate)
        self.tiling = self.tilings[0]

    def _window(self, tiling: Tiling) -> tuple[int, int]:
        """Rows and columns of the image that a tile needs, with padding."""
        layer = self.layer
        return tuple((count - 1) * layer.stride + layer.kernel for count in (tiling.rows, tiling.columns))

    def _tilings(self) -> Iterator[Tiling]:
        config, layer = self.config, self.layer
        sides = _divisors(layer.out)
        for choice in product(_divisors(self.blocks_out), sides, sides, _divisors(self.blocks_in), (False, True)):
            tiling = Tiling(*choice)
            entries = {
                "inp": math.prod(self._window(tiling)) * tiling.channels,
                "wgt": tiling.filters * tiling.channels * layer.kernel**2,
                "acc": tiling.filters * tiling.rows * tiling.columns,
                "uop": tiling.filters * tiling.channels * layer.kernel**2 + self.blocks_out // tiling.filters,
            }
            room = {"inp": config.inp, "wgt": config.wgt, "acc": self.bias_at, "uop": config.uop}
            if all(entries[name] * self.threads <= room[name] for name in entries):
                yield tiling

    def _estimate(self, tiling: Tiling) -> float:
        """Words that are moved and instructions that wait for DRAM; the rest is the same for all tilings."""
        config, layer = self.config, self.layer
        places = layer.out**2 // (tiling.rows * tiling.columns)
        tiles, steps = places * (self.blocks_out // tiling.filters), self.blocks_in // tiling.channels
        inputs = math.prod(self._window(tiling)) * tiling.channels
        weights = tiling.filters * tiling.channels * layer.kernel**2 * config.block
        loads_inputs = loads_weights = tiles * steps
        if steps == 1 and tiling.filters_inside:
            loads_inputs = places
        elif steps == 1:
            loads_weights = self.blocks_out // tiling.filters
        words = loads_inputs * inputs + loads_weights * weights
        return words * config.word_cycles + (loads_inputs * tiling.channels + loads_weights + tiles) * config.latency

    def lay_out(self, rng: np.random.Generator, model: Model) -> None:
        """Random data, packed into DRAM: blocks of channels are the slowest dimension."""
        layer, block = self.layer, self.config.block
        self.x = rng.integers(-128, 128, (layer.channels, layer.size, layer.size)).astype(np.int8)
        self.w = rng.integers(-128, 128, (layer.filters, layer.channels, layer.kernel, layer.kernel)).astype(np.int8)
        self.bias = rng.integers(-(1 << 12), 1 << 12, layer.filters).astype(np.int32)
        packed_x = self.x.reshape(self.blocks_in, block, layer.size, layer.size).transpose(0, 2, 3, 1)
        packed_w = self.w.reshape(self.blocks_out, block, self.blocks_in, block, -1).transpose(0, 2, 4, 1, 3)
        self.at, free = {}, 0
        uops = np.array(self._uops(), np.uint32)
        uops = np.pad(uops, (0, -len(uops) % (block // 4)))
        for name, data in (("x", packed_x), ("w", packed_w), ("bias", self.bias), ("uop", uops)):
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).reshape(-1, block)
            model.dram[free : free + len(raw)], self.at[name], free = raw, free, free + len(raw)
        self.uop_words = len(uops) * 4 // block
        self.at["y"] = free
        self.at["program"] = free + self.blocks_out * layer.out**2

    def _base(self, thread: int) -> dict[str, int]:
        room = {"inp": self.config.inp, "wgt": self.config.wgt, "acc": self.bias_at}
        return {name: thread * size // self.threads for name, size in room.items()}

    def _uops(self) -> list[int]:
        """For each thread: products of the first channel and place of the kernel, all others, and one for each bias."""
        layer, tiling = self.layer, self.tiling
        rows, columns = self._window(tiling)
        steps = list(product(range(tiling.channels), range(layer.kernel), range(layer.kernel)))
        self.uop_count = tiling.filters * len(steps) + self.blocks_out // tiling.filters
        made = []
        for thread in range(self.threads):
            base = self._base(thread)
            for number, (channel, y, x) in enumerate(steps):
                for f in range(tiling.filters):
                    dst, wgt = f * tiling.rows * tiling.columns, f * len(steps) + number
                    src = (channel * rows + y) * columns + x
                    made.append(encode_uop(base["acc"] + dst, base["inp"] + src, base["wgt"] + wgt))
            for f in range(0, self.blocks_out, tiling.filters):
                made.append(encode_uop(base["acc"], self.bias_at + f))
        return made

    def stream(self, model: Model) -> list[Instruction]:
        """The whole layer, with tokens."""
        layer, tiling = self.layer, self.tiling
        filters = range(0, self.blocks_out, tiling.filters)
        places = list(product(range(0, layer.out, tiling.rows), range(0, layer.out, tiling.columns)))
        tiles = [(f, *place) for place in places for f in filters]
        if not tiling.filters_inside:
            tiles = [(f, *place) for f in filters for place in places]
        share = -(-len(tiles) // self.threads)
        threads = [list(self._thread(i, tiles[i * share : (i + 1) * share])) for i in range(self.threads)]
        begin = [
            Instruction("load", memory="uop", dram=self.at["uop"], rows=1, columns=self.uop_words),
            Instruction("load", memory="acc", sram=self.bias_at, dram=self.at["bias"], rows=1, columns=self.blocks_out),
        ]
        return place_tokens(model, [*begin, *interleave(threads)])

    def _thread(self, thread: int, tiles: list[tuple[int, int, int]]) -> Iterator[list[Instruction]]:
        """Groups of one virtual thread: loads, products, loads, products, …, the ALU and the stores."""
        tiling, base = self.tiling, self._base(thread)
        held: dict[str, Any] = {}
        for f, y, x in tiles:
            for channel in range(0, self.blocks_in, tiling.channels):
                loads = []
                if held.get("inp") != (y, x, channel):
                    loads += self._load_inputs(base["inp"], y, x, channel)
                if held.get("wgt") != (f, channel):
                    loads.append(self._load_weights(base["wgt"], f, channel))
                held = {"inp": (y, x, channel), "wgt": (f, channel)}
                yield loads
                yield self._products(thread, first=channel == 0)
            yield [*self._epilogue(thread, f), *self._stores(base["acc"], f, y, x)]

    def _load_inputs(self, sram: int, y: int, x: int, channel: int) -> Iterator[Instruction]:
        layer, (rows, columns) = self.layer, self._window(self.tiling)
        top, left = y * layer.stride - layer.pad, x * layer.stride - layer.pad
        above, before = max(0, -top), max(0, -left)
        below, after = max(0, top + rows - layer.size), max(0, left + columns - layer.size)
        for number in range(self.tiling.channels):
            image = self.at["x"] + (channel + number) * layer.size**2
            yield Instruction(
                "load", memory="inp", sram=sram + number * rows * columns, stride=layer.size,
                dram=image + (top + above) * layer.size + left + before,
                rows=rows - above - below, columns=columns - before - after,
                pad_top=above, pad_bottom=below, pad_left=before, pad_right=after,
            )  # fmt: skip

    def _load_weights(self, sram: int, f: int, channel: int) -> Instruction:
        taps, block = self.layer.kernel**2, self.config.block
        first = (f * self.blocks_in + channel) * taps * block
        return Instruction(
            "load", memory="wgt", sram=sram, dram=self.at["w"] + first, rows=self.tiling.filters,
            columns=self.tiling.channels * taps, stride=self.blocks_in * taps * block,
        )  # fmt: skip

    def _products(self, thread: int, first: bool) -> list[Instruction]:
        tiling, stride = self.tiling, self.layer.stride
        begin = thread * self.uop_count
        end = begin + tiling.filters * tiling.channels * self.layer.kernel**2
        loops = Instruction(
            "gemm", uop_begin=begin, uop_end=end, outer=tiling.rows, dst_outer=tiling.columns,
            src_outer=stride * self._window(tiling)[1], inner=tiling.columns, dst_inner=1, src_inner=stride,
        )  # fmt: skip
        if not first:
            return [loops]
        new = begin + tiling.filters
        made = [loops.replace(uop_end=new, overwrite=1)]
        return made if new == end else [*made, loops.replace(uop_begin=new)]

    def _epilogue(self, thread: int, f: int) -> Iterator[Instruction]:
        tiling, place = self.tiling, (thread + 1) * self.uop_count - (self.blocks_out - f) // self.tiling.filters
        size = tiling.rows * tiling.columns
        loops = Instruction(
            "alu", uop_begin=place, uop_end=place + 1, outer=tiling.filters, dst_outer=size, inner=size, dst_inner=1
        )
        yield loops.replace(operation="add", src_outer=1)
        yield loops.replace(operation="shr", immediate=1, value=SHIFT)
        yield loops.replace(operation="max", immediate=1, value=0)

    def _stores(self, sram: int, f: int, y: int, x: int) -> Iterator[Instruction]:
        tiling, out = self.tiling, self.layer.out
        for number in range(tiling.filters):
            yield Instruction(
                "store", memory="acc8", sram=sram + number * tiling.rows * tiling.columns, rows=tiling.rows,
                columns=tiling.columns, stride=out, dram=self.at["y"] + (f + number) * out**2 + y * out + x,
            )  # fmt: skip

    def expected(self) -> np.ndarray:
        """The layer in NumPy, packed."""
        layer, block = self.layer, self.config.block
        x = np.pad(self.x.astype(np.float64), ((0, 0), (layer.pad,) * 2, (layer.pad,) * 2))
        total = np.zeros((layer.filters, layer.out, layer.out))
        for i, j in product(range(layer.kernel), repeat=2):
            part = x[:, i : i + layer.size : layer.stride, j : j + layer.size : layer.stride]
            total += np.tensordot(self.w[:, :, i, j].astype(np.float64), part, 1)
        made = np.clip(np.maximum(total.astype(np.int64) + self.bias[:, None, None] >> SHIFT, 0), -128, 127)
        packed = made.astype(np.int8).reshape(self.blocks_out, block, layer.out, layer.out).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(packed).view(np.uint8).reshape(-1, block)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def prepare(convolution: Convolution) -> tuple[Model, list[Instruction]]:
    """A model with a layer's data and program in DRAM."""
    model = Model(convolution.config)
    convolution.lay_out(np.random.default_rng(0), model)
    stream = convolution.stream(model)
    model.write_program(stream, convolution.at["program"])
    return model, stream


def tune(convolution: Convolution, trials: int) -> None:
    """Takes the best of the tilings with the lowest estimates, by the model's cycles."""
    cycles = {}
    for tiling in convolution.tilings[:trials]:
        convolution.tiling = tiling
        model, stream = prepare(convolution)
        cycles[tiling] = model.run(convolution.at["program"], len(stream), effects=False).cycles
    convolution.tiling = min(cycles, key=lambda tiling: cycles[tiling])


def run(layer: Layer, config: Config, threads: int, trials: int = 1) -> Result:
    """One layer, compared with NumPy."""
    convolution = Convolution(layer, config, threads)
    tune(convolution, trials)
    model, stream = prepare(convolution)
    result = model.run(convolution.at["program"], len(stream))
    expected, at = convolution.expected(), convolution.at["y"]
    if result.errors or not np.array_equal(model.dram[at : at + len(expected)], expected):
        raise SystemExit(f"{layer.name} is wrong: error bits {result.errors}")
    return result


def main() -> None:
    """Prints a line for each layer and latency."""
    parser = argparse.ArgumentParser(description="Latency hiding on the accelerator.")
    parser.add_argument("--layers", nargs="*", default=[layer.name for layer in LAYERS])
    parser.add_argument("--latency", nargs="*", type=int, default=[64])
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--word-cycles", type=int, default=2, help="cycles for each word of DRAM (block bytes)")
    parser.add_argument("--trials", type=int, default=8, help="tilings that are tried for each layer")
    words = parser.parse_args()
    print(f"{'layer':6}{'latency':>8}{'cycles, 1 thread':>18}{'used':>7}{'2 threads':>12}{'used':>7}")
    for latency in words.latency:
        config = replace(Config(), latency=latency, block=words.block, word_cycles=words.word_cycles)
        shares = []
        for layer in (layer for layer in LAYERS if layer.name in words.layers):
            one, two = (run(layer, config, threads, words.trials) for threads in (1, 2))
            shares.append((one.gemm / one.cycles, two.gemm / two.cycles))
            print(f"{layer.name:6}{latency:8}{one.cycles:18,}{shares[-1][0]:7.1%}{two.cycles:12,}{shares[-1][1]:7.1%}")
        peak, mean = np.max(shares, 0), np.mean(shares, 0)
        print(f"peak {peak[0]:.1%} -> {peak[1]:.1%}, mean {mean[0]:.1%} -> {mean[1]:.1%}")


if __name__ == "__main__":
    main()
