"""Which schedule: a packed product in tiles with virtual threads; the model's cycles are the cost.

A *packed* product has vectors of `block` int8 as the last dimension of its input, and matrices of block × block as the
last two of its weights: y[f, …, o] += x[c, …, k] * w[f, c, …, o, k]. What is elementwise after it stays on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

from weft.core.errors import TargetError
from weft.expr.nodes import Buffer, Expr, Load, Var
from weft.loop.passes.support import linear
from weft.loop.visit import walk_exprs
from weft.schedule.facts import block_named, extent, names_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.vdla import config_of, lower
from weft.targets.vdla.intrinsics import gemm
from weft.targets.vdla.isa import Config

TRIALS = 8
"""Tilings whose cycles are asked of the model, best estimates first."""


@dataclass(frozen=True)
class Tiling:
    """How much of each dimension of the result is made at once, and of the first sum; the order of loops over tiles."""

    tiles: tuple[int, ...]
    depth: int
    order: tuple[int, ...]
    threads: int = 2


class Product:
    """A packed product of a program: its operands, and what a tiling of it needs."""

    def __init__(self, s: Schedule, name: str, config: Config) -> None:
        block = block_named(s, name)
        self.name, self.config = name, config
        self.result = [axis for axis in block.axes if axis.kind == "spatial"]
        self.sums = [axis for axis in block.axes if axis.kind == "reduce"]
        loads = [e for e in walk_exprs(block.body) if isinstance(e, Load) and e.buffer.dtype.name == "int8"]
        sides = [extent(axis) for axis in (*self.result[-1:], *self.sums[-1:])]
        if len(loads) != 2 or len(self.sums) < 2 or sides != [config.block] * 2:
            raise TargetError(f"{name} is no packed product of int8")
        lane = self.result[-1].var
        self.weights, self.input = sorted(loads, key=lambda load: lane not in linear(load.indices[-2]).terms)

    def entries(self, load: Load, tiling: Tiling) -> int:
        """Entries of an operand that a step touches."""
        sizes: dict[Expr, int] = dict(zip([axis.var for axis in self.result], (*tiling.tiles, 1)))
        sizes.update((axis.var, extent(axis)) for axis in self.sums[1:-1])
        sizes[self.sums[0].var] = tiling.depth
        dims = [linear(index).terms for index in load.indices[: -2 if load is self.weights else -1]]
        return math.prod(1 + sum(by * (sizes.get(v, 1) - 1) for v, by in terms.items()) for terms in dims)

    def uses(self, load: Load) -> set[int]:
        """The dimensions of the result that an operand depends on."""
        found = {v for index in load.indices for v in linear(index).terms if isinstance(v, Var)}
        return {i for i, axis in enumerate(self.result[:-1]) if axis.var in found}

    def tilings(self, threads: int) -> list[Tiling]:
        """All that fit into the memories, best estimate first."""
        sizes, depth = [extent(axis) for axis in self.result[:-1]], extent(self.sums[0])
        order = tuple(range(len(sizes)))
        weights_first = sorted(order, key=lambda i: i not in self.uses(self.weights))
        found = []
        for *tiles, deep in product(*(_divisors(size) for size in sizes), _divisors(depth)):
            for turn in dict.fromkeys((tuple(weights_first), tuple(reversed(weights_first)))):
                tiling = Tiling(tuple(tiles), deep, turn, threads)
                if (sizes[turn[0]] // tiles[turn[0]]) % threads == 0 and self._fits(tiling):
                    found.append(tiling)
        return sorted(found, key=self._estimate)

    def _fits(self, tiling: Tiling) -> bool:
        config, threads = self.config, tiling.threads
        return (
            self.entries(self.input, tiling) * threads <= config.inp
            and self.entries(self.weights, tiling) * threads <= config.wgt
            and math.prod(tiling.tiles) * threads <= config.acc - 64  # a few for what comes after the product
        )

    def _estimate(self, tiling: Tiling) -> float:
        """Cycles of DRAM: words, and a latency for each step's transfers."""
        counts = [extent(axis) // tile for axis, tile in zip(self.result, tiling.tiles)]
        steps, cycles = extent(self.sums[0]) // tiling.depth, 0.0
        for load, beats in ((self.input, 1), (self.weights, self.config.block)):
            inner = [counts[i] for i in tiling.order[self.level(load, tiling) + 1 :]]
            times = math.prod(counts) * steps / (math.prod(inner) if steps == 1 else 1)
            cycles += times * (self.entries(load, tiling) * beats * self.config.word_cycles + self.config.latency)
        return cycles + math.prod(counts) * self.config.latency

    def level(self, load: Load, tiling: Tiling) -> int:
        """The innermost of the loops over tiles that an operand depends on."""
        return max((place for place, i in enumerate(tiling.order) if i in self.uses(load)), default=0)


def accelerate(s: Schedule, name: str, tiling: Tiling, config: Config) -> None:
    """The schedule of a packed product and of what is elementwise after it."""
    found, after = Product(s, name, config), names_of(s)[names_of(s).index(name) + 1 :]
    if after:
        total, out = s[name], s[after[-1]]
        for stage in (name, *after[:-1]):
            s[stage].set_scope("acc")
    else:
        total, out = s.cache_write(s[name], "acc"), s[name]
    *dims, lane = out.loops
    halves = [out.split(loop, factor=tile) for loop, tile in zip(dims, tiling.tiles)]
    outers = [halves[i][0] for i in tiling.order]
    thread, outers[0] = out.split(outers[0], nparts=tiling.threads)
    out.reorder(thread, *outers, *(inner for _, inner in halves), lane)
    out.bind(thread, "vthread")
    for stage in reversed(after[:-1]):
        s[stage].compute_at(out, outers[-1])
    total.compute_at(out, outers[-1])
    count = len(found.sums)
    *spatial, row = total.loops[-len(found.result) - count : -count]
    first, *others, column = total.loops[-count:]
    step, within = total.split(first, factor=tiling.depth)
    total.reorder(step, *spatial, within, *others, row, column)
    for load, scope in ((found.input, "inp"), (found.weights, "wgt")):
        operand = _bring(s, load.buffer, scope, total.name)
        if tiling.depth == extent(found.sums[0]):
            operand.compute_at(out, outers[found.level(load, tiling)])
        else:
            operand.compute_at(total, step)
    made = {s.block_name(one) for one in (name, *after)}
    for stage in after:
        read = {e.buffer for e in walk_exprs(block_named(s, stage).body) if isinstance(e, Load)}
        for buffer in sorted(read, key=lambda buffer: buffer.name):
            is_input = buffer.scope == "global" and buffer.name not in made
            if is_input and len(buffer.shape) < len(found.result):
                s.cache_read(buffer, "acc", [stage])  # small, and loaded once
    total.tensorize(row, gemm(config.block).name)


def _bring(s: Schedule, buffer: Buffer, scope: str, reader: str) -> Stage:
    """An operand on the chip: the stage that pads it, or a copy."""
    maker = next((name for name in names_of(s) if block_named(s, name).writes[0].buffer is buffer), None)
    if maker is None:
        return s.cache_read(buffer, scope, [reader])
    s[maker].set_scope(scope)
    return s[maker]


def schedule(s: Schedule, target: Target, constants: object, trials: int = TRIALS, threads: int = 2) -> None:
    """The best of some tilings by the model's cycles; a program that has no packed product stays as it is."""
    from weft.targets.vdla.program import cycles, generate

    config = config_of(target.name.partition(":")[2])
    for name in names_of(s):
        with s.attempt("packed product"):
            best = None
            found = Product(s, name, config)
            for tiling in islice(found.tilings(threads) or found.tilings(1), trials):
                made = s.copy()
                with made.attempt("tiling") as tried:
                    accelerate(made, name, tiling, config)
                    cost = cycles(generate(lower(made.func, target), target), config)
                if tried and (best is None or cost < best[0]):
                    best = cost, tiling
            if best is None:
                raise TargetError(f"no tiling of {name} fits into the accelerator")
            accelerate(s, name, best[1], config)
            return


def _divisors(number: int) -> Iterator[int]:
    return (one for one in range(1, number + 1) if number % one == 0)
