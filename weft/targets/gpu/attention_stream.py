"""Attention of few queries (decoding): keys and values are read once, in the widest loads, and stay in registers.

    for each batch, head and part of the keys                        a block of `rows` × size / lanes threads
      queries, and keys and values that are in no cache yet          turned, in shared memory, where they are not given
      for each key of a row of threads                               several vectors of each thread on their way
        products with its elements of the queries, in registers      -> a sum of each thread, in shared memory
      a thread for each key: the score, and the steps on it
      the top, powers, their sum
      for each key of a row of threads                               the same of values
        values, weighed, in registers                                -> sums of each row of threads, in shared memory
      added up                                                       -> the output, or what a part hands on

What it costs is its bytes. Narrow elements (bfloat16) become float32 in registers. Queries that share keys, the heads
of a group, are rows of one problem: they share each load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import dtype as dtype_named
from weft.expr.nodes import Var
from weft.ops import attention_fused as fused
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import block_named, extent, facts_of, names_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target, ThreadFacts
from weft.targets.gpu import attention as general
from weft.targets.gpu import model, nest
from weft.targets.gpu.together import unroll_some

KNOBS: dict[str, tuple[int, ...]] = {"rows": (8, 16, 32), "loads": (4, 8, 16)}
"""Rows of threads, a key each; vectors of a thread on their way."""


class Problem:
    """The sizes of an attention of few queries, bytes of an element, and the machine; rows that a block makes."""

    def __init__(self, sizes: fused.Sizes, item: int, machine: ThreadFacts, fresh: int = 0) -> None:
        self.sizes, self.item, self.machine, self.fresh = sizes, item, machine, fresh
        self.lanes = machine.vector_bytes // item
        self.across = sizes.size // self.lanes

    @property
    def fits(self) -> bool:
        """Whether keys and values are rows of whole vectors, for threads of a block."""
        sizes = self.sizes
        return sizes.size == sizes.value_size and sizes.size % self.lanes == 0 and self.across >= 4

    def legal(self, c: Columns) -> Any:
        """Which points fit the machine."""
        threads = c["rows"] * self.across
        return (
            (threads <= min(model.STREAM_THREADS, self.machine.block_threads))
            & ((2 * threads > model.STREAM_THREADS) | (2 * threads > self.machine.block_threads))
            & (threads % self.machine.warp == 0)
            & (c["part"] % self._chunk(c) == 0)
            & (self._chunk(c) % (c["rows"] * c["loads"]) == 0)
            & (self.sizes.queries <= c["rows"])
            & (self.registers(c) <= model.MOST_REGISTERS)
            & (self.shared(c) <= self.machine.shared_bytes)
        )

    def registers(self, c: Columns) -> Any:
        """Of a thread: elements of the queries or sums, and vectors on their way."""
        return model.STREAM_REGISTERS + self.sizes.queries * self.lanes + c["loads"] * self.machine.vector_bytes // 4

    def shared(self, c: Columns) -> Any:
        """Bytes of a block: sums of the threads of a key, scores and powers, sums of the rows of threads."""
        sums = np.maximum(self._chunk(c) * (self.across + 1), c["rows"] * self.sizes.size)  # one after the other
        parts = ceildiv(self.sizes.keys, c["part"])
        handed = np.where(self.is_together(parts), parts * (self.sizes.size + 2), 0)
        return 4 * (self.sizes.queries * (sums + 2 * c["part"] + handed) + self.fresh * self.sizes.size)

    def is_together(self, parts: Any) -> Any:
        """Whether parts of a head run together, as a cluster that adds them up: each has a multiprocessor."""
        return np.isin(parts, model.CLUSTERS) & self.is_one_wave(parts) & self.machine.has_warpgroups

    def is_one_wave(self, parts: Any) -> Any:
        """Whether each part of each head has a multiprocessor for itself."""
        return self.sizes.batch * self.sizes.heads * parts <= self.machine.multiprocessors

    def _chunk(self, c: Columns) -> Any:
        """Keys whose scores are added up at a time: one of each thread."""
        return np.minimum(c["part"], c["rows"] * self.across)

    def resident(self, c: Columns) -> Any:
        """Blocks that a multiprocessor holds."""
        return model.resident_blocks(self.machine, c["rows"] * self.across, self.registers(c), self.shared(c))

    def cost(self, c: Columns) -> Any:
        """Seconds: bytes at the machine's rate, or instructions, or the way of one block; then what parts hand on."""
        sizes, machine, fit = self.sizes, self.machine, model.model_of(self.machine)
        threads, parts, resident = c["rows"] * self.across, ceildiv(sizes.keys, c["part"]), self.resident(c)
        blocks = sizes.batch * sizes.heads * parts / machine.multiprocessors
        moved = 2 * sizes.batch * sizes.heads * sizes.keys * sizes.size * self.item / machine.multiprocessors
        together = threads * np.minimum(resident, np.maximum(blocks, 1.0))
        # Of a vector: it is made wide, and multiplied for each query; few threads do not keep the units busy.
        work = (fit.stream_vector + fit.stream_product * sizes.queries * self.lanes) / machine.lanes
        work = work * np.maximum(1.0, fit.stream_threads / together) ** 0.5
        steps = 2 * ceildiv(c["part"], c["rows"] * c["loads"])
        alone = (
            fit.stream_block
            + fit.stream_query * sizes.queries
            + steps * (fit.stream_latency + c["loads"] * work * together)
        )
        ways = moved / fit.stream_bytes, moved / machine.vector_bytes * work, np.maximum(blocks / resident, 1.0) * alone
        cycles = sum(way**4 for way in ways) ** 0.25  # the longest, and a little of those that are nearly as long
        handed = 8 * sizes.batch * sizes.heads * sizes.queries * sizes.size * parts
        ends = (parts > 1) * (fit.stream_parts * parts + handed / machine.multiprocessors / fit.memory)
        return model.seconds(cycles + ends, machine)


def proposal(sizes: fused.Sizes, item: int, machine: ThreadFacts, fresh: int = 0) -> tuple[int, int, int, int] | None:
    """The padded sizes and keys of a part of the least estimate; None where nothing fits."""
    problem = Problem(sizes, item, machine, fresh)
    if not problem.fits:
        return None
    whole = 1 << max(sizes.keys - 1, 1).bit_length()
    parts = np.asarray([part for part in model.STREAM_PARTS if part <= max(whole, model.STREAM_PARTS[0])])
    grids = np.meshgrid(*KNOBS.values(), parts, indexing="ij")
    c = dict(zip((*KNOBS, "part"), (grid.ravel() for grid in grids)))
    cost = np.where(problem.legal(c), problem.cost(c), np.inf)
    best = int(np.argmin(cost))
    if not np.isfinite(cost[best]):
        return None
    part = int(c["part"][best])
    return sizes.queries, int(ceildiv(sizes.keys, part)) * part, sizes.value_size, part


def attention_proposer(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    """What `fuse_attention` asks, for one machine: few queries are a matter of reading keys and values once."""
    machine, plain = nest.threads_of(target), general.attention_proposer(target)

    def propose(given: Sequence[int], dtype: str) -> Sequence[int] | None:
        sizes = fused.Sizes(*given)
        is_few = sizes.queries <= model.FEW_QUERIES and sizes.keys >= model.LEAST_KEYS
        return (proposal(sizes, dtype_named(dtype).bytes, machine) if is_few else None) or plain(given, dtype)

    return propose


def joined(target: Target) -> Callable[[Sequence[int], str], bool]:
    """What `join_heads` asks: where all blocks run at once, launches and loads one after another are what it takes."""
    machine = nest.threads_of(target)

    def joins(given: Sequence[int], dtype: str) -> bool:
        sizes, item = fused.Sizes(*given), dtype_named(dtype).bytes
        found = proposal(sizes, item, machine, sizes.queries + 2) if sizes.queries <= model.FEW_QUERIES else None
        if found is None or found != proposal(sizes, item, machine):
            return False
        return bool(Problem(sizes, item, machine).is_one_wave(found[1] // found[3]))

    return joins


def match(unit: Unit) -> Sketch | None:
    """The sketch of an attention of few queries, by the stage of its scores; None for any other program."""
    found, s = general.problem_of(unit), unit.schedule
    if found is None or found[0].queries > model.FEW_QUERIES or not {fused.KEYS, fused.VALUES} <= set(names_of(s)):
        return None
    sizes, parts = found
    is_fresh = fused.FRESH in names_of(s)
    loads = facts_of(block_named(s, fused.PAST_KEYS if is_fresh else fused.KEYS)).loads
    steps = _Steps(unit, sizes, min(load.buffer.dtype.bytes for load in loads if load.buffer.dtype.is_float), parts)
    part = np.asarray(sizes.keys // parts)
    if not steps.problem.fits:
        return None
    cost, legal = steps.problem.cost, steps.problem.legal
    return Sketch(
        "attention of few queries", KNOBS, steps.apply, lambda c: cost({**c, "part": part}),
        lambda c: legal({**c, "part": part}),
    )  # fmt: skip


class _Steps:
    """The schedule, from the output to the inputs."""

    def __init__(self, unit: Unit, sizes: fused.Sizes, item: int, parts: int) -> None:
        self.s, self.target, self.parts = unit.schedule, unit.target, parts
        rows = [axis for name in names_of(self.s) if name == fused.FRESH for axis in self.s[name].block.axes]
        self.problem = Problem(sizes, item, nest.threads_of(unit.target), extent(rows[2]) if rows else 0)

    def apply(self, point: Point) -> None:
        """All the steps."""
        s, self.rows, self.loads = self.s, point["rows"], point["loads"]
        self.across, self.lanes = self.problem.across, self.problem.lanes
        c = {name: np.asarray(n) for name, n in [*point.items(), ("part", self.problem.sizes.keys // self.parts)]}
        self.resident = int(self.problem.resident(c))
        sums = self.in_parts(fused.MIXED, [self.rows, self.loads], 0)
        products = self.in_parts(fused.SCORES, [self.across, self.lanes])
        tops = {name: self.in_parts(name, [self.across]) for name in (fused.TOTAL, fused.TOP)}
        if self.parts > 1:
            together = bool(self.problem.is_together(self.parts))
            general.add_up(s, self.target, (self.rows, self.across) if together else None)
            self.final, order = s[fused.PART], list(range(5))
        else:
            s[fused.WHOLE].compute_inline()
            s[fused.WHOLE_TOTAL].compute_inline()
            final = general.reader_of(s, fused.MIXED)
            self.final, order = s[final.name], general.positions(final)
        block = self.blocks(order)
        if self.parts > 1 and together:
            self.final.annotate("together", self.parts, block)
        self.at_each(fused.MIXED, self.final, self.spread(self.final))
        for name in (sums, fused.TOTAL, tops[fused.TOTAL], fused.GROWN, fused.TOP, tops[fused.TOP], fused.MASKED):
            nest.attach(s[name], self.final, block, "shared", exact=False)
        self.spread(s[fused.GROWN])
        row = self.spread(s[fused.MASKED], together=False)
        self.at_each(fused.SCORES, s[fused.MASKED], row)
        nest.attach(s[products], s[fused.MASKED], self.chunk, "shared", exact=False)
        s[products].storage_align(4, 2, 1)  # threads that add up neighbours begin at different banks
        self.weigh(s[sums])
        self.multiply(s[products])
        for name in (fused.TOTAL, fused.TOP):
            self.reduce_row(s[name], s[tops[name]])
        if fused.FRESH in names_of(s):
            self.turn(s[fused.FRESH], block)

    def turn(self, fresh: Stage, block: Var) -> None:
        """Rows that are in no cache yet, in shared memory; caches and what turns the rows are inputs of the model or
        constants: they are there before the kernel that makes the rows has ended."""
        nest.attach(fresh, self.final, block, "shared", exact=False)
        vector = nest.fetch_together(fresh, nest.free_loops(fresh)[-2:], self.rows, self.across, 1)
        names = [loop.name for loop in fresh.loops]
        thread = fresh.loops[names.index(vector.name) - 1]
        for name in (fused.COSINE, fused.SINE, fused.OWN, fused.PARTNER):
            nest.attach(self.s[name], fresh, thread, "local", exact=False)
            nest.mark(self.s[name], nest.unrolled(*nest.long_loops(self.s[name])))
        self.final.annotate("loaded_early", [fused.PAST_KEYS, fused.PAST_VALUES, fused.COSINE, fused.SINE], block)

    def in_parts(self, name: str, factors: Sequence[int], axis: int = -1) -> str:
        """A reduction of which each of some threads (the first factor) makes a part; gives the stage of the parts."""
        stage = self.s[name]
        (loop,) = nest.reduce_loops(stage)
        _, thread, *_ = stage.split(loop, factors=[None, *factors])
        return self.s.rfactor(name, thread, axis).name

    def blocks(self, order: list[int]) -> Var:
        """A block of threads for each part of each head; gives the loop over them."""
        loops = nest.free_loops(self.final)
        *around, query, element = (loops[at] for at in order)
        self.final.reorder(*around, query, element)
        block = nest.fuse_all(self.final, around)
        self.final.bind(block, "blockIdx.x")
        self.final.annotate("resident", self.resident, block)
        return block

    def spread(self, stage: Stage, together: bool = True) -> Var:
        """Rows one after another, elements of a row for all threads of the block; gives the innermost loop.

        Unless all are `together`, there is a loop around over as many elements as there are threads (`chunk`).
        """
        *_, row, element = nest.free_loops(stage)
        factors = [None, self.rows, self.across]
        if together and nest.extent_of(stage, element) < self.rows * self.across:  # several rows at a time
            self.chunk, thread_row, column = stage.split(stage.fuse(row, element), factors=factors)
            nest.arrange(stage, {thread_row: "threadIdx.y", column: "threadIdx.x", self.chunk: "unroll"})
            return self.chunk
        self.chunk, thread_row, column = stage.split(element, factors=factors)
        threads = {thread_row: "threadIdx.y", column: "threadIdx.x", row: "unroll"}
        nest.arrange(stage, {**threads, self.chunk: "unroll"} if together else {self.chunk: "", **threads})
        return self.chunk if together else row

    def at_each(self, name: str, reader: Stage, place: Var) -> None:
        """A short reduction in a register of the thread that takes it."""
        stage = self.s[name]
        nest.attach(stage, reader, place, "local", exact=False)
        stage.unroll(nest.reduce_loops(stage)[-1])

    def multiply(self, products: Stage) -> None:
        """The sum of each thread for each key: its elements of the queries stay in registers."""
        s, made = self.s, self.s.cache_write(products.block.writes[0].buffer, "local")
        *_, row, key, column = nest.free_loops(products)
        outer, thread_row, several = products.split(key, factors=[None, self.rows, self.loads])
        threads = {thread_row: "threadIdx.y", column: "threadIdx.x"}
        nest.arrange(products, {**threads, outer: "", several: "unroll", row: "unroll"})
        made.compute_at(products, row)
        nest.mark(made, nest.unrolled(*nest.long_loops(made)))
        self.load(s[fused.KEYS], products, outer)
        self.load(s[fused.QUERIES], products, column)

    def weigh(self, sums: Stage) -> None:
        """Values weighed by powers: in registers of a thread, for its keys."""
        s, made = self.s, self.s.cache_write(sums.block.writes[0].buffer, "local")
        thread_row, *_, row, element = nest.free_loops(sums)
        column, vector = sums.split(element, factor=self.lanes)
        nest.arrange(sums, {thread_row: "threadIdx.y", column: "threadIdx.x", row: "unroll", vector: "vectorize"})
        made.compute_at(sums, column)
        outer, several = nest.reduce_loops(made)
        own = [loop for loop in nest.free_loops(made) if loop not in (outer, several)]
        nest.arrange(made, {outer: "", **nest.unrolled(several, *own)})
        self.load(s[fused.VALUES], made, outer)

    def load(self, stage: Stage, reader: Stage, place: Var) -> None:
        """What a thread needs of an operand, in registers, by vectors; what is in a cache by itself."""
        past = {fused.KEYS: fused.PAST_KEYS, fused.VALUES: fused.PAST_VALUES}.get(stage.name)
        for one in [stage, *([self.s[past]] if past in names_of(self.s) else [])]:
            nest.attach(one, reader, place, "local", exact=False)
            nest.load_tile(one)

    def reduce_row(self, whole: Stage, parts: Stage) -> None:
        """The top or the sum of each row: a row of threads has parts, and one thread puts these together."""
        made = self.s.cache_write(parts.block.writes[0].buffer, "local")
        *_, row, column = nest.free_loops(parts)
        made.compute_at(parts, column)
        nest.mark(parts, {row: "threadIdx.y", column: "threadIdx.x"})
        unroll_some(made, nest.reduce_loops(made)[-1])
        made = self.s.cache_write(whole.block.writes[0].buffer, "local")
        row = nest.free_loops(whole)[-1]
        made.compute_at(whole, row)
        whole.bind(row, "threadIdx.y")
        made.unroll(nest.reduce_loops(made)[-1])
