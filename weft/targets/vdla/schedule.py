"""Which schedule: a packed product in tiles with virtual threads; the model's cycles are the cost.

A *packed* product has vectors of `block` int8 as the last dimension of its input, and matrices of block × block as the
last two of its weights: y[f, …, o] += x[c, …, k] * w[f, c, …, o, k]. What is elementwise after it stays on the chip.

Its sketch has a knob for the tile of each dimension, for the depth of the sum that is loaded at once, for the order of
the loops over tiles (weights, sums or inputs stay longest: an operand in its whole depth stays on the chip for loops
that it does not depend on), for the filters whose weights come at once (fewer than a tile has: its sums and its input
stay meanwhile), and for the virtual threads: how many, and which loop they share. Points are ranked by what DRAM and
the compute unit have to do; the best of them are run on the model, and their cycles decide.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, permutations
from typing import Any

import numpy as np

from weft.core.errors import TargetError, WeftError
from weft.expr.classes import Binary
from weft.expr.nodes import Buffer, Call, Expr, Load, Var, int_value
from weft.expr.visit import walk
from weft.loop.ir import Store
from weft.loop.passes.support import linear
from weft.loop.visit import walk_exprs
from weft.plan.inline import Inlining
from weft.plan.planner import Families, Unit
from weft.plan.sketch import Columns, Point, Sketch
from weft.schedule.facts import block_named, extent, names_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.vdla import config_of, lower
from weft.targets.vdla.intrinsics import gemm
from weft.targets.vdla.isa import CLOCK, Config
from weft.targets.vdla.stream import sides

BUBBLE = 128
"""Cycles that a step loses although threads hide most: fitted to the model's cycles of ResNet-18's C3 (within 3 %, and
as good for C4 and C7, which it was not fitted to)."""
TRIALS = 4
"""Tilings that are run on the model, best estimates first."""


@dataclass(frozen=True)
class Tiling:
    """How much of each dimension of the result is made at once, and of the first sum; the order of loops over tiles."""

    tiles: tuple[int, ...]
    depth: int
    order: tuple[int, ...]
    threads: int = 2
    shared: int = 0
    """The dimension that threads share among them."""
    filters: int = 0
    """Filters of a tile whose weights are loaded at once; 0 is all of them."""


class Product:
    """A packed product of a program: its operands, and what a tiling of it needs."""

    def __init__(self, s: Schedule, name: str, config: Config) -> None:
        block = block_named(s, name)
        self.name, self.config = name, config
        self.result = [axis for axis in block.axes if axis.kind == "spatial"]
        self.sums = [axis for axis in block.axes if axis.kind == "reduce"]
        loads = [e for e in walk_exprs(block.body) if isinstance(e, Load) and e.buffer.dtype.name == "int8"]
        lanes = [extent(axis) for axis in (*self.result[-1:], *self.sums[-1:])]
        if len(loads) != 2 or len(self.sums) < 2 or lanes != [config.block] * 2:
            raise TargetError(f"{name} is no packed product of int8")
        lane = self.result[-1].var
        self.weights, self.input = sorted(loads, key=lambda load: lane not in linear(load.indices[-2]).terms)
        self.sizes = [extent(axis) for axis in self.result[:-1]]
        self.filter = min(self.uses(self.weights) - self.uses(self.input), default=0)
        """The dimension of the result that weights alone depend on."""
        after = [block_named(s, one) for one in names_of(s)[names_of(s).index(name) + 1 :]]
        reads = {e.buffer for one in after for e in walk_exprs(one.body) if isinstance(e, Load)}
        given = [buffer for buffer in reads if buffer in s.func.buffers]
        self.steps_after = _passes([one.body.value for one in after[:-1] if isinstance(one.body, Store)])
        """Operations of the ALU on every vector of the result."""
        self.padded = self.input.buffer not in s.func.buffers
        self.beside = sum(len(buffer.shape) == len(self.result) for buffer in given)
        """Values as large as the result that are read beside the sums."""
        small = [buffer for buffer in given if len(buffer.shape) < len(self.result)]
        self.kept = sum(math.prod(int_value(size) or 0 for size in buffer.shape) // config.block for buffer in small)
        """Entries of acc that hold a number for each channel."""

    def signature(self) -> tuple[Any, ...]:
        """What cycles depend on: two products of one signature have the same best tiling, or nearly so."""
        axes: dict[Any, int] = {axis.var: number for number, axis in enumerate((*self.result, *self.sums))}
        forms = [[sorted((axes.get(v, -1), by) for v, by in linear(i).terms.items()) for i in load.indices]
                 for load in (self.input, self.weights)]  # fmt: skip
        sizes = tuple(extent(axis) for axis in (*self.result, *self.sums))
        return sizes, repr(forms), self.steps_after, self.beside, self.kept, self.config

    def orders(self) -> list[tuple[int, ...]]:
        """Orders of the loops over tiles; images of a batch come one after the other, and a single one is no loop."""
        dims = range(len(self.sizes))
        first, last = (dims[:-3], ()) if math.prod(self.sizes[:-3]) > 1 else ((), dims[:-3])
        return [(*first, *order, *last) for order in permutations(dims[-3:])]

    def entries(self, load: Load, tiles: Mapping[int, Any], depth: Any) -> Any:
        """Entries of an operand that a step touches."""
        return math.prod(part for part, _ in self.operand(load, tiles, depth))

    def uses(self, load: Load) -> set[int]:
        """The dimensions of the result that an operand depends on."""
        found = {v for index in load.indices for v in linear(index).terms if isinstance(v, Var)}
        return {i for i, axis in enumerate(self.result[:-1]) if axis.var in found}

    def level(self, load: Load, tiling: Tiling) -> int:
        """The innermost of a thread's loops over tiles that an operand depends on; -1 where that is none."""
        counts = {i: size // tile for i, (size, tile) in enumerate(zip(self.sizes, tiling.tiles))}
        if counts[tiling.shared] % tiling.threads == 0:
            counts[tiling.shared] //= tiling.threads
        return max((at for at, i in enumerate(tiling.order) if i in self.uses(load) and counts[i] > 1), default=-1)

    # ---------------------------------------------------------------------------------------------------- columns

    def knobs(self, threads: Collection[int]) -> dict[str, tuple[int, ...]]:
        """What there is to choose."""
        tiles = {f"tile{i}": tuple(_divisors(size)) for i, size in enumerate(self.sizes)}
        steps = {"depth": tuple(_divisors(extent(self.sums[0]))), "filters": tiles[f"tile{self.filter}"]}
        several = {"threads": tuple(threads), "shared": tuple(range(len(self.sizes)))}
        return {**tiles, **steps, "order": tuple(range(len(self.orders()))), **several}

    def tiling(self, point: Point) -> Tiling:
        """The tiling of a point."""
        tiles = tuple(point[f"tile{i}"] for i in range(len(self.sizes)))
        order = self.orders()[point["order"]]
        return Tiling(tiles, point["depth"], order, point["threads"], point["shared"], point["filters"])

    def _tiles(self, columns: Columns) -> dict[int, Any]:
        return {i: columns[f"tile{i}"] for i in range(len(self.sizes))}

    def legal(self, columns: Columns) -> Any:
        """What fits into the memories, and divides a loop among the threads; of points that mean the same, one."""
        tiles, threads, config = self._tiles(columns), columns["threads"], self.config
        counts = {i: self.sizes[i] // tile for i, tile in tiles.items()}
        acc = math.prod(tiles.values()) * (1 + self.beside) * threads
        fits = (acc + self.kept * threads <= config.acc) & (tiles[0] > 0)
        for load, most in ((self.input, config.inp), (self.weights, config.wgt)):
            fits = fits & (self.entries(load, self.at_once(load, columns), columns["depth"]) * threads <= most)
        fits = fits & (tiles[self.filter] % columns["filters"] == 0)
        for i, count in counts.items():
            fits = fits & ((columns["shared"] != i) | (count >= threads) & ((threads > 1) | (i == 0)))
        for number, order in enumerate(self.orders()):
            makes_sense = counts[order[0]] > 0
            free = [i for i in order if i >= len(order) - 3]
            for a, b in zip(free, free[1:]):  # loops of one iteration stand last, in their own order
                makes_sense = makes_sense & ((counts[a] > 1) | (counts[b] == 1) & (a < b))
            for i in order[1:]:  # what does not come out even is shared by turns, which is an outermost loop's
                makes_sense = makes_sense & ((columns["shared"] != i) | (counts[i] % threads == 0))
            fits = fits & ((columns["order"] != number) | makes_sense)
        return fits

    def at_once(self, load: Load, columns: Columns) -> dict[int, Any]:
        """What of a tile an operand is loaded for at once."""
        tiles = self._tiles(columns)
        return {**tiles, self.filter: columns["filters"]} if load is self.weights else tiles

    def cost(self, columns: Columns) -> Any:
        """Seconds: what the busiest of compute unit, load unit and DRAM has to do, or one thread after another.

        A thread loads, multiplies and stores in turn; two of them hide what the other does, as far as it goes.
        """
        tiles, depth, config = self._tiles(columns), columns["depth"], self.config
        area, counts = math.prod(tiles.values()), {i: self.sizes[i] // tile for i, tile in tiles.items()}
        total, steps = math.prod(counts.values()), extent(self.sums[0]) // depth
        rest = math.prod(extent(axis) for axis in self.sums[1:-1])
        result = [(tiles[i], size) for i, size in enumerate(self.sizes)]
        store = area * config.word_cycles + _transfers(result) * config.latency
        compute = total * (steps * (area * depth * rest + 4) + area * self.steps_after + self.beside * store)
        loads: Any = 0
        port = total * area * config.word_cycles * (1 + self.beside)
        parts = tiles[self.filter] // columns["filters"]
        for load, beats, pieces in ((self.input, 1, 1), (self.weights, config.block, parts)):
            part = self.at_once(load, columns)
            words = self.entries(load, part, depth) * beats * config.word_cycles
            waits = _transfers(self.operand(load, part, depth)) * config.latency
            for number, order in enumerate(self.orders()):
                once = self.loads(load, order, counts, columns)
                times = np.where((steps == 1) & (pieces == 1), once, total * steps * pieces)
                times = np.where(columns["order"] == number, times, 0)
                loads, port = loads + times * (words + waits), port + times * words
        stores = total * store
        chain = (loads + compute + stores) / columns["threads"]
        busiest = np.maximum(np.maximum(compute, loads), np.maximum(chain, port))
        first = (loads + stores) / (total * steps)
        return (busiest + first + BUBBLE * total * steps * parts) / CLOCK

    def loads(self, load: Load, order: tuple[int, ...], counts: Mapping[int, Any], columns: Columns) -> Any:
        """How often all threads load a whole operand: loops inside of those that it depends on find it there."""
        times, within = columns["threads"], np.ones(len(columns["threads"]), bool)
        for i in reversed(order):
            shared = (columns["shared"] == i) & (counts[i] % columns["threads"] == 0)
            by_turns = (columns["shared"] == i) & np.logical_not(shared)
            count = np.where(shared, counts[i] // columns["threads"], counts[i])
            within = within & np.logical_not((count > 1) & (i in self.uses(load))) & np.logical_not(by_turns)
            times = np.where(by_turns, times // columns["threads"] * count, np.where(within, times, times * count))
        return times

    def operand(self, load: Load, tiles: Mapping[int, Any], depth: Any) -> list[tuple[Any, int]]:
        """How much of each dimension of an operand a step loads, and how much there is; a padded one is never whole."""
        sizes: dict[Any, Any] = {self.result[i].var: tile for i, tile in tiles.items()}
        sizes.update((axis.var, extent(axis)) for axis in self.sums[1:-1])
        sizes[self.sums[0].var] = depth
        found = []
        for index, size in zip(load.indices[: -2 if load is self.weights else -1], load.buffer.shape):
            terms = linear(index).terms
            part = 1 + sum(by * (sizes.get(v, 1) - 1) for v, by in terms.items())
            found.append((part, -1 if self.padded and load is self.input and len(terms) > 1 else int_value(size) or 0))
        return found


def _transfers(dims: list[tuple[Any, int]]) -> Any:
    """Transfers of a part of an array, each a rectangle; dimensions that are whole go together with those before."""
    count: Any = 1
    level, whole = 0, np.array(True)
    for part, size in reversed(dims):
        level = level + (np.logical_not(whole) & (np.asarray(part) > 1))
        count = count * np.where(level > 1, part, 1)
        whole = np.asarray(part) == size
    return count


def _passes(values: Collection[Expr]) -> int:
    """How often the ALU goes over sums for these stages: nearly always once for each operand that is no number.

    A shift and a max with 0 are the second stage of such a pass.
    """
    operations = [e for value in values for e in walk(value) if isinstance(e, (Binary, Call))]
    with_operands = [e for e in operations if isinstance(e, Binary) and isinstance(sides(e)[1], Load)]
    return max(len(with_operands), 1 if operations else 0)


@dataclass(frozen=True)
class Simulated(Sketch):
    """A sketch whose best points are run on the model: `measure` tells the cycles of one, or raises."""

    measure: Any = None
    trials: int = TRIALS
    product: Any = None
    """What products that may share a choice have in common."""
    measured: dict[tuple[int, ...], float] = field(default_factory=dict)

    def seconds(self, point: Point) -> float:
        """What a point takes on the model; infinity where it does not fit."""
        key = tuple(point[knob] for knob in self.knobs)
        if key not in self.measured:
            try:
                self.measured[key] = self.measure(point) / CLOCK
            except WeftError:  # the writer's reason is told again where nothing fits
                self.measured[key] = math.inf
        return self.measured[key]

    def ranked(self, most: int = 8) -> Iterator[tuple[dict[str, int], float]]:
        """The best estimates that fit, in the order of their cycles."""
        known = _KNOWN.get(self.product)
        if known is not None and math.isfinite(seconds := self.seconds(known)):
            yield known, seconds
            return
        found: list[tuple[dict[str, int], float]] = []
        for point in islice(self.distinct(), 8 * self.trials):
            if math.isfinite(seconds := self.seconds(point)):
                found.append((point, seconds))
            if len(found) == self.trials:
                break
        found.sort(key=lambda one: one[1])
        if found:
            _KNOWN[self.product] = found[0][0]
        yield from found

    def distinct(self) -> Iterator[dict[str, int]]:
        """Points by their estimates, one of each: those of the same are most often the same loops, turned around."""
        columns = self.columns()
        cost = np.where(self.legal(columns), self.cost(columns), np.inf)
        for at in np.unique(cost, return_index=True)[1]:
            if np.isfinite(cost[at]):
                yield self.point(columns, int(at))


_KNOWN: dict[Any, dict[str, int]] = {}
"""The choice for a product of a machine: layers that differ in their numbers only share it."""


def sketch_of(
    s: Schedule, name: str, target: Target, threads: Collection[int] = (1, 2), trials: int = TRIALS
) -> Simulated:
    """The sketch of a packed product; a TargetError where a block is none."""
    from weft.targets.vdla.program import cycles, generate

    config = config_of(target.name.partition(":")[2])
    found, before = Product(s, name, config), s.copy()

    def measure(point: Point) -> int:
        made = before.copy()
        accelerate(made, name, found.tiling(point), config)
        return cycles(generate(lower(made.func, target), target), config)

    return Simulated(
        f"vdla {name}", found.knobs(threads), lambda point: accelerate(s, name, found.tiling(point), config),
        found.cost, found.legal, measure, trials, (*found.signature(), tuple(threads), trials),
    )  # fmt: skip


def _match(unit: Unit, threads: Collection[int], trials: int) -> Sketch | None:
    try:
        found = sketch_of(unit.schedule, unit.facts.block.name, unit.target, threads, trials)
    except TargetError:  # no packed product: what it is instead, others say
        return None
    unit.done.update(names_of(unit.schedule))
    return found


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
    place, inside = tiling.order.index(tiling.shared), outers
    if found.sizes[tiling.shared] // tiling.tiles[tiling.shared] % tiling.threads:
        thread, inside = outers[0], outers[1:]  # by turns
        out.annotate("contexts", tiling.threads, thread)
    else:
        thread, outers[place] = out.split(outers[place], nparts=tiling.threads)
    out.reorder(thread, *inside, *(inner for _, inner in halves), lane)
    out.bind(thread, "vthread")
    for stage in reversed(after[:-1]):
        s[stage].compute_at(out, outers[-1])
    total.compute_at(out, outers[-1])
    count = len(found.sums)
    *spatial, row = total.loops[-len(found.result) - count : -count]
    first, *others, column = total.loops[-count:]
    step, within = total.split(first, factor=tiling.depth)
    parts = []
    if 0 < tiling.filters < tiling.tiles[found.filter]:
        at = len(spatial) - len(found.sizes) + found.filter
        part, spatial[at] = total.split(spatial[at], factor=tiling.filters)
        parts = [part]
    total.reorder(step, *parts, *spatial, within, *others, row, column)
    total.decompose_reduction(step)  # where there is one block of channels, `step` sums nothing
    for load, scope in ((found.input, "inp"), (found.weights, "wgt")):
        operand = _bring(s, load.buffer, scope, total.name)
        if parts and load is found.weights:
            operand.compute_at(total, parts[0])
        elif tiling.depth == extent(found.sums[0]):
            level = found.level(load, tiling)
            operand.compute_at(out, thread if level < 0 else outers[level])
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


def schedule(
    s: Schedule, target: Target, constants: Collection[Buffer], trials: int = TRIALS, threads: Collection[int] = (1, 2)
) -> None:
    """The planner's choice of a tiling; a program that has no packed product stays as it is."""
    match = partial(_match, threads=threads, trials=trials)
    keep = Inlining(kept=names_of(s), twice=0, readers=0)
    Families(keep, (match,), (), (), lambda unit: None).schedule(s, target, constants)


def _divisors(number: int) -> Iterator[int]:
    return (one for one in range(1, number + 1) if number % one == 0)
