"""Attention (weft/ops/attention_fused.py) on a machine with threads: scores never leave the shared memory of a block.

    for each batch, head, part of the keys and tile of queries      a block of 4 or 8 rows of threads
      for each tile of keys                                         fetched together into shared memory
        scores, and the steps on them                               a thread's own register tile of accumulators
      the top of each row, powers, their sum                        a row of threads for each query
      for each tile of keys                                         its values fetched together
        sums of values, weighed                                     in registers
      divided by the sums of powers                                 -> the output

Keys that are too many for a row of scores in shared memory are cut into parts (`padded`'s fourth number), each with a
block of its own; a second kernel weighs and adds what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.loop.ir import Block
from weft.loop.tree import readers
from weft.ops import attention_fused as fused
from weft.plan.contraction import attention_order
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import block_named, extent, facts_of, names_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target, ThreadFacts
from weft.targets.gpu import model, nest
from weft.targets.gpu.together import unroll_some

STAGES = frozenset((
    fused.QUERIES, fused.KEYS, fused.VALUES, fused.SCORES, fused.MASKED, fused.TOP, fused.GROWN, fused.TOTAL,
    fused.MIXED, fused.PART, fused.LIMIT, fused.PEAK, fused.SHARE, fused.WHOLE_TOTAL, fused.WHOLE,
    fused.FRESH, fused.OWN, fused.PARTNER, fused.COSINE, fused.SINE, fused.PAST_KEYS, fused.PAST_VALUES,
))  # fmt: skip
"""The stages that the sketch deals with: none of them is inlined before it is asked."""

KNOBS: dict[str, tuple[int, ...]] = {"rows": (8, 16, 32, 64), "each": (1, 2, 4), "warps": (4, 8)}
"""Queries of a block, keys of a thread at a time, and rows of threads of a block."""


# ------------------------------------------------------------------------------------------------------ what it costs


class Problem:
    """The sizes of an attention and the machine that it runs on; `part` is a column: keys of a part, in whole tiles."""

    def __init__(self, sizes: fused.Sizes, machine: ThreadFacts) -> None:
        self.sizes, self.machine = sizes, machine
        self.across = min(machine.warp, 32)  # threads of a row of a block
        self.stages = 2 if machine.has_async_copy else 1  # tiles of keys (and of values) on their way or in use
        self.width = int(_up(sizes.value_size, self.across))  # elements of a value, in whole rows of threads

    def legal(self, c: Columns) -> Any:
        """Which points fit the machine."""
        each_row = c["rows"] // c["warps"]
        return (
            (c["warps"] * self.across <= self.machine.block_threads)
            & (c["rows"] % c["warps"] == 0)
            & (each_row <= min(model.QUERY_ROWS, self.across))
            & (c["part"] % (c["each"] * self.across) == 0)
            & (self._shared(c) <= self.machine.shared_bytes)
        )

    def cost(self, c: Columns) -> Any:
        """Seconds of each point: products with their loads, waiting for tiles, what parts hand on."""
        sizes, machine, fit = self.sizes, self.machine, model.model_of(self.machine)
        rows, warps, across, width = c["rows"], c["warps"], self.across, self.width
        parts, tiles = ceildiv(sizes.keys, c["part"]), c["part"] // (c["each"] * across)
        queries = _up(sizes.queries, rows)
        loads = 1 + fit.query_loads * warps / rows
        work = sizes.size * (loads + fit.key_loads / c["each"]) + width * (loads + fit.key_loads * across / width)
        busy = rows * c["part"] * fit.attention_product * work / machine.lanes
        resident = model.resident_blocks(machine, across * warps, fit.attention_registers, self._shared(c))
        blocks = sizes.batch * sizes.heads * (queries // rows) * parts
        rounds = ceildiv(blocks, machine.multiprocessors)
        few, power = fit.attention_busy
        busy = busy / np.minimum(1.0, (warps * np.minimum(resident, rounds) / few) ** power)
        waits = fit.attention_start + fit.attention_tile * tiles / np.where(tiles > 1, self.stages, 1)
        moved = 8 * sizes.batch * sizes.heads * queries * width * parts
        return model.with_parts(machine, rounds * busy + ceildiv(rounds, resident) * waits, parts, moved, fit.launch)

    def _shared(self, c: Columns) -> Any:
        """Shared memory of a block: tiles of queries, keys and values, scores and their powers, what is mixed."""
        rows, tile = c["rows"], c["each"] * self.across
        fetched = np.where(c["part"] == tile, 1, self.stages) * tile
        fixed = (rows + fetched) * (self.sizes.size + 4) + (fetched + rows) * self.width
        return 4 * (fixed + 2 * rows * (self.across + 2) + 2 * rows * c["part"])


def proposal(sizes: fused.Sizes, machine: ThreadFacts) -> tuple[int, int, int, int] | None:
    """The sizes that the stages of an attention should have, and the keys of a part; None where nothing fits."""
    if sizes.keys < model.LEAST_KEYS:
        return None
    problem = Problem(sizes, machine)
    least = min(sizes.keys, model.LEAST_PART * sizes.value_size)
    counts = np.arange(1, max(1, sizes.keys // least) + 1)
    grids = np.meshgrid(*KNOBS.values(), counts, indexing="ij")
    c = dict(zip((*KNOBS, "count"), (grid.ravel() for grid in grids)))
    tile = c["each"] * problem.across
    c["part"] = _up(ceildiv(sizes.keys, c["count"]), tile)
    cost = np.where(problem.legal(c) & ((c["each"] == 1) | (tile < 2 * sizes.keys)), problem.cost(c), np.inf)
    if not np.isfinite(cost.min()):
        return None
    best = np.flatnonzero(cost == cost.min())
    queries, keys = _up(sizes.queries, c["rows"][best]), _up(sizes.keys, c["part"][best])
    return min((int(q), int(k), problem.width, int(part)) for q, k, part in zip(queries, keys, c["part"][best]))


def attention_proposer(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    """What `fuse_attention` asks, for one machine: narrow products of tensor cores are kernels of their own."""
    machine = nest.threads_of(target)

    def propose(given: Sequence[int], dtype: str) -> Sequence[int] | None:
        sizes = fused.Sizes(*given)
        if dtype == "float32" or sizes.queries < model.LEAST_QUERIES:
            return proposal(sizes, machine)
        if dtype not in machine.tensor_cores or sizes.keys < model.LEAST_KEYS:
            return None
        row = machine.vector_bytes // 2  # of scores, in whole vectors
        return sizes.queries, int(_up(sizes.keys, row)), sizes.value_size, 0

    return propose


def _up(size: Any, factor: Any) -> Any:
    return ceildiv(size, factor) * factor


# --------------------------------------------------------------------------------------------------------- the sketch


_IN_PARTS = {fused.MASKED, fused.TOP, fused.GROWN, fused.TOTAL, fused.MIXED, fused.WHOLE, fused.WHOLE_TOTAL}


def problem_of(unit: Unit, needed: Collection[str] = _IN_PARTS) -> tuple[fused.Sizes, int] | None:
    """The padded sizes of an attention in parts, by the stage of its scores, and the parts; None for other programs."""
    s, found = unit.schedule, unit.facts
    if found.block.name != fused.SCORES or not set(needed) <= set(names_of(s)):
        return None
    if len(nest.free_loops(s[fused.SCORES])) != len(found.block.axes):
        return None  # it has a schedule
    batch, heads, parts, queries, part = (extent(axis) for axis in found.spatial)
    width = extent(facts_of(block_named(s, fused.MIXED)).spatial[-1])
    return fused.Sizes(batch, heads, queries, parts * part, found.depth, width), parts


def match(unit: Unit) -> Sketch | None:
    """The sketch of an attention in parts; None for any other program."""
    found = problem_of(unit)
    if found is None:
        return None
    sizes, parts = found
    steps, part = _Steps(sizes, unit, parts), sizes.keys // parts
    rows = tuple(rows for rows in KNOBS["rows"] if sizes.queries % rows == 0)
    if sizes.value_size != steps.width or not rows:
        return None

    def at(columns: Columns) -> Columns:
        return {**columns, "part": np.asarray(part)}

    return Sketch(
        "attention", {**KNOBS, "rows": rows}, steps.apply, lambda c: steps.cost(at(c)), lambda c: steps.legal(at(c))
    )


def reader_of(s: Schedule, name: str) -> Block:
    """The one block that takes what a stage gives."""
    found = readers(s.func.body, block_named(s, name).writes[0].buffer)
    if len(found) != 1:
        raise ScheduleError("attention", name, "one block takes it in the form that is known")
    return found[0]


class _Steps(Problem):
    """The schedule, from the output to the inputs."""

    def __init__(self, sizes: fused.Sizes, unit: Unit, parts: int) -> None:
        super().__init__(sizes, nest.threads_of(unit.target))
        self.s, self.target, self.parts = unit.schedule, unit.target, parts

    def apply(self, point: Point) -> None:
        """All the steps."""
        s = self.s
        self.rows, self.each, self.warps = point["rows"], point["each"], point["warps"]
        self.each_row = self.rows // self.warps
        partial = {name: self.in_parts(s[name]) for name in (fused.TOTAL, fused.TOP)}
        if self.parts > 1:
            add_up(s, self.target)
            self.final, written = s[fused.PART], s[fused.MIXED]
            accumulator = s.cache_write(fused.MIXED, "local")
            block = self.blocks(list(range(5)))
            nest.attach(written, self.final, block, "shared", exact=False)
            self.spread(self.final)
            thread = self.threads(written)
        else:
            s[fused.WHOLE].compute_inline()
            s[fused.WHOLE_TOTAL].compute_inline()
            final = reader_of(s, fused.MIXED)
            self.final, accumulator = s[final.name], s[fused.MIXED]
            block = self.blocks(positions(final))
            thread = self.threads(self.final)
        self.weigh(accumulator, s[fused.MIXED] if self.parts > 1 else self.final, thread)
        for name in (fused.TOTAL, partial[fused.TOTAL], fused.GROWN, fused.TOP, partial[fused.TOP], fused.MASKED):
            nest.attach(s[name], self.final, block, "shared", exact=False)
        self.spread(s[fused.GROWN])
        self.products()
        for name in (fused.TOTAL, fused.TOP):
            self.reduce_rows(s[name], s[partial[name]])
        if fused.QUERIES in names_of(s):
            self.fetch(s[fused.QUERIES], self.final, block)

    def blocks(self, order: list[int]) -> Var:
        """A block of threads for each tile of queries of the block that writes the result; gives their loop."""
        final = self.final
        loops = nest.free_loops(final)
        *around, query, element = (loops[at] for at in order)
        tile, row = final.split(query, factor=self.rows)
        final.reorder(*around, tile, row, element)
        final.bind(tile, "blockIdx.x")
        final.bind(nest.fuse_all(final, around), "blockIdx.y")
        return tile

    def threads(self, stage: Stage) -> Var:
        """A tile of queries and elements for threads, a few neighbours each; gives the loop of a thread."""
        *_, row, element = nest.free_loops(stage)
        lanes = self.width // self.across
        is_vector = nest.extent_of(stage, element) == self.width and lanes in (2, 4)
        thread_row, inner_row = self.split_rows(stage, row)
        column, inner = stage.split(element, factors=[self.across, lanes])
        last = "vectorize" if is_vector else "unroll"
        nest.arrange(stage, {thread_row: "threadIdx.y", column: "threadIdx.x", inner_row: "unroll", inner: last})
        return column

    def split_rows(self, stage: Stage, row: Var) -> tuple[Var, ...]:
        """The queries of a block: for rows of threads, and of each row of threads."""
        return stage.split(row, factors=[self.warps, self.each_row])

    def weigh(self, accumulator: Stage, reader: Stage, thread: Var) -> None:
        """The sums of weighed values: registers of a thread; values of a tile of keys in shared memory."""
        s = self.s
        nest.attach(accumulator, reader, thread, "local", exact=False)
        *own, key = nest.free_loops(accumulator)
        keys = self.each * self.across
        tile, group, inner = accumulator.split(key, factors=[None, keys // model.FLOATS, model.FLOATS])
        group, several = accumulator.split(group, factor=model.UNROLLED_STEPS)
        nest.arrange(accumulator, {tile: "", group: "", **nest.unrolled(several, inner, *own)})
        if fused.VALUES in names_of(s):
            self.fetch(s[fused.VALUES], accumulator, tile)
            self.into_registers(fused.VALUES, accumulator, inner)
        self.into_registers(fused.GROWN, accumulator, several)
        nest.fetch_ahead(accumulator, tile, min(self.stages, nest.extent_of(accumulator, tile)))

    def products(self) -> None:
        """The scores, and the steps on them: a tile of keys at a time."""
        s, masked = self.s, self.s[fused.MASKED]
        *_, row, key = nest.free_loops(masked)
        thread_row, inner_row = self.split_rows(masked, row)
        tile, inner_key, thread_key = masked.split(key, factors=[None, self.each, self.across])
        threads = {thread_row: "threadIdx.y", thread_key: "threadIdx.x"}
        # Neighbours in shared memory are those of neighbouring threads.
        nest.arrange(masked, {inner_key: "vthread", **threads, tile: "", inner_row: "unroll"})
        scores = s[fused.SCORES]
        nest.attach(scores, masked, tile, "local", exact=False)
        *own, element = nest.free_loops(scores)
        deep = model.FLOATS if self.sizes.size % model.FLOATS == 0 else 1
        group, inner = scores.split(element, factor=deep)
        steps = model.UNROLLED_STEPS if self.sizes.size % (model.UNROLLED_STEPS * deep) == 0 else 1
        group, several = scores.split(group, factor=steps)
        nest.arrange(scores, {group: "", **nest.unrolled(several, inner, *own)})
        if fused.KEYS in names_of(s):
            self.fetch(s[fused.KEYS], masked, tile)
            self.into_registers(fused.KEYS, scores, several)
        if fused.QUERIES in names_of(s):
            self.into_registers(fused.QUERIES, scores, several)
        nest.fetch_ahead(masked, tile, min(self.stages, nest.extent_of(masked, tile)))

    def into_registers(self, name: str, reader: Stage, place: Var) -> None:
        """What a thread reads of a tile in shared memory, in vectors where neighbours are read."""
        copy = self.s.cache_read(name, "local", [reader.name])
        copy.compute_at(reader, place, exact=False)
        facts, last = facts_of(copy.block), [nest.extent_of(copy, loop) for loop in nest.long_loops(copy)[-1:]]
        nest.load_tile(copy, facts.step(facts.loads[0], facts.spatial[-1].var) == 1 and last in ([2], [4]))

    def fetch(self, stage: Stage, reader: Stage, place: Var) -> None:
        """A tile of an operand into shared memory, by all threads of the block."""
        nest.attach(stage, reader, place, "shared", exact=False)
        *_, row, element = nest.free_loops(stage)
        lanes = nest.fetch_lanes(facts_of(stage.block), nest.extent_of(stage, element), self.target)
        nest.fetch_together(stage, [row, element], self.warps, self.across, lanes)
        if stage.name != fused.VALUES:
            stage.storage_align(2, 8, 4)

    def spread(self, stage: Stage) -> None:
        """Rows for rows of threads, elements of a row for the threads of one."""
        *_, row, key = nest.free_loops(stage)
        outer, thread = stage.split(key, factor=self.across)
        thread_row, inner_row = self.split_rows(stage, row)
        last = "unroll" if nest.extent_of(stage, outer) <= model.UNROLLED_ROWS else ""
        nest.arrange(stage, {thread_row: "threadIdx.y", thread: "threadIdx.x", inner_row: "unroll", outer: last})

    def in_parts(self, stage: Stage) -> str:
        """A reduction of rows of which each thread of a row makes a part; gives the stage of the parts."""
        (key,) = nest.reduce_loops(stage)
        _, thread = stage.split(key, factor=self.across)
        return self.s.rfactor(stage.name, thread, -1).name

    def reduce_rows(self, whole: Stage, parts: Stage) -> None:
        """The top or the sum of each row: its threads have a part each, and one of them puts the parts together."""
        accumulator = self.s.cache_write(parts.block.writes[0].buffer, "local")
        parts.storage_align(3, 2, 1)  # rows begin at different banks
        *_, row, column = nest.spatial_loops(parts)
        thread_row, inner_row = self.split_rows(parts, row)
        nest.arrange(parts, {thread_row: "threadIdx.y", column: "threadIdx.x", inner_row: "unroll"})
        accumulator.compute_at(parts, inner_row)
        unroll_some(accumulator, nest.reduce_loops(accumulator)[-1])
        accumulator = self.s.cache_write(whole.block.writes[0].buffer, "local")
        thread_row, thread = self.split_rows(whole, nest.spatial_loops(whole)[-1])
        nest.mark(whole, {thread_row: "threadIdx.y", thread: "threadIdx.x"})
        accumulator.compute_at(whole, thread)
        accumulator.unroll(nest.reduce_loops(accumulator)[-1])


def add_up(s: Schedule, target: Target, threads: tuple[int, int] | None = None) -> None:
    """The second kernel: a thread for each element of the result weighs the parts and adds them; with `threads`, a
    block of so many for each head."""
    s[fused.SHARE].compute_inline()
    final = s[reader_of(s, fused.WHOLE).name]
    loops = nest.spatial_loops(final)
    if threads is None:
        nest.bind_loop(final, nest.fuse_all(final, loops), target)
    else:
        *around, query, element = (loops[at] for at in positions(final.block, fused.WHOLE))
        final.reorder(*around, query, element)
        final.bind(nest.fuse_all(final, around), "blockIdx.x")
        several, row, column = final.split(nest.fuse_all(final, [query, element]), factors=[None, *threads])
        nest.arrange(final, {row: "threadIdx.y", column: "threadIdx.x", several: "unroll"})
    place = final.loops[-1]
    for name in (fused.WHOLE, fused.WHOLE_TOTAL, fused.PEAK):
        nest.attach(s[name], final, place, "local", exact=False)
        unroll_some(s[name], nest.reduce_loops(s[name])[-1])


def positions(final: Block, sums: str = fused.MIXED) -> list[int]:
    """The positions of batch, head, query and element among the axes of the block that divides by the sums."""
    found = attention_order(facts_of(final), sums)
    if found is None:
        raise ScheduleError("attention", final.name, "it does not take the sums at one place, or along its own axes")
    return found
