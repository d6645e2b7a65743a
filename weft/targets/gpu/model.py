"""How long a machine with threads works on a tile: what sketches estimate with, and the numbers that a fit may replace.

Facts about a machine stand in its `ThreadFacts`. The numbers of a `Model` are for instructions, and for what no vendor
tells. Those below are for a machine that nobody has measured: round numbers, a power of two where that is the nature of
a thing. A target whose machine was measured has a file of its own with the fit (`weft/targets/cuda/model.py`).
Everything is over columns of points (`weft/plan/sketch.py`), in cycles of a multiprocessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.targets.base import ThreadFacts


@dataclass(frozen=True)
class Model:
    """What steps of a schedule cost: of a product in registers, of attention, of any kernel."""

    fetch_vector: float = 1.0
    """What it costs a thread to fetch one element into shared memory with its neighbours, in instructions' time."""
    fetch_plain: float = 1.0
    """The same of an element by itself."""
    fetch_gather: float = 16.0
    fetch_wait: tuple[float, float] = (0.0, 0.0)
    """Cycles that a step waits for elements that nothing copies beside it: anyway, and for each of a thread."""
    """The same of an element whose place has to be worked out."""
    fetch_along: float = 2.0
    """How much longer these take where neighbours lie along k, of which a step has few."""
    load: float = 1.0
    """Cycles of the shared memory in which the threads of a warp get one of their x."""
    broadcast: float = 0.25
    """The same of y, which neighbours have in common."""
    step_instructions: float = 90.0
    """Of a step of k beside the arithmetic: the loop's own."""
    step_cycles: float = 24.0
    """Waiting at the barrier of a step."""
    latency: float = 400.0
    """Cycles until a fetch is there, ahead of its use in a pipeline."""
    latency_alone: float = 500.0
    """What a fetch that is waited for at once adds to a step of all blocks, which wait together."""
    chain: float = 0.5
    """How the chain of a lone block's instructions counts."""
    busy_warps: float = 16.0
    """With fewer warps on a multiprocessor than this, its units are not busy all the time."""
    busy_power: float = 0.45
    written: float = 0.125
    """Cycles for each element that is written in vectors; of others, as much again for each neighbour of a thread."""
    registers: int = 16
    """What a thread needs beside its accumulators and operands."""
    launch: float = 4000.0
    """Cycles of a kernel beside its work: until it begins, and until the next one may."""
    next_launch: float = 4000.0
    """The same of a second kernel of a product, which begins as the first one ends."""
    begin: float = 2.0
    """Cycles from one block of all to the next, beyond `BEGUN` of each multiprocessor."""
    turn: float = 12.0
    """Instructions' time of a turn of a sum that a thread makes by itself, of one element of each operand."""
    memory: float = 32.0
    """Bytes that one multiprocessor gets in one cycle, when all of them ask."""
    attention_product: float = 1.25
    """Instructions' time of a multiplication of attention."""
    query_loads: float = 2.5
    """What loads for it cost, which all the keys of a thread share."""
    key_loads: float = 1.0
    """What loads for it cost, which all the queries of a thread share."""
    attention_busy: tuple[float, float] = (8.0, 0.4)
    """As `busy_warps` and `busy_power`."""
    attention_start: float = 1500.0
    attention_tile: float = 450.0
    """Of each tile of keys that a block waits for: half of that where the next one is fetched ahead."""
    attention_registers: int = 168
    stream_bytes: float = 16.0
    """Attention of few queries: bytes that a multiprocessor gets from memory in a cycle, when all of them ask."""
    stream_vector: float = 40.0
    """Instructions' time of a vector: its load, and making it wide."""
    stream_product: float = 1.5
    """The same of a product with one of its elements."""
    stream_threads: float = 512.0
    """With fewer threads on a multiprocessor its units are not busy all the time."""
    stream_latency: float = 150.0
    """Cycles that a step waits for its vectors."""
    stream_block: float = 4000.0
    """Cycles of a block beside its loads: the launch, the first load, tops and sums."""
    stream_query: float = 1000.0
    """The same for each query."""
    stream_parts: float = 60.0
    """Cycles of the kernel that adds up parts, for each of them."""


NEUTRAL = Model()

# ------------------------------------------------------------------------ loops that are no contraction, on any machine
# Judgements, not measured, but where it says so: round numbers that the rules of version 0.1 had.

BLOCK, LEAST_BLOCK, BEGUN = 256, 32, 2
"""Threads of a block where nothing speaks for another number, and the fewest where there is little to do; blocks of a
multiprocessor that the time of a launch has begun."""
MOST_LANES = 8
"""Elements that one thread loads or stores at a time, at most."""
VECTORS_FOR_EACH, COPIES, COPIED_THREADS, COPIED_LOADS = 2, 4, 2, 3
"""Vectors need work for so many warps of a multiprocessor. A thread takes up to `COPIES` vectors where the threads that
a multiprocessor holds have so many times as much to do, and a block so few operands."""
TILE, LEAST_TURNED = 32, 16
"""Rows and columns of the tile through which a transposition goes, and the shortest side that is worth one."""
NEAR, MOST_GATHERED = 8, 64
"""Vectors made of elements that lie apart: how far apart those of the next vector may be, and the longest last axis."""
SCATTERED = 2.0
"""How much longer memory takes when neighbouring threads do not read neighbours in memory."""

UNEVEN = 2.7
"""How much longer sums take whose loop is not written out, where a test at the end of the threads is around it: loads
wait for one another (sums of 288 products on an H200: by 32 threads each 23 µs, by 64 of them 62)."""

LEAST_ROW = 32
"""From so many values on, a row is worth several threads."""
ROW_VALUES, FEW_ROW_VALUES, FULL_ROUNDS = 8, 2, 2
"""Values of a row for each thread; where there are fewer rows than rounds of the machine, the second number."""
ROW_THREADS, LONG_ROW, LONG_ROW_THREADS, LONE_ROW_THREADS = 256, 4096, 512, 1024
"""Threads of a row, at most: of any, of a long one, and of one that has a multiprocessor for itself."""
ROWS_THREADS = 128
"""Threads of a block of several rows."""
GROUPED_BYTES, GROUPED_THREADS, GROUPED_PLACES = 48 << 10, 512, 8
"""Norms of groups whose channels lie together are made in parts where a block for each group would fetch so many bytes,
or a multiprocessor for its share of them, at least `LEAST_LINE_BYTES` for each place (a block went through 12 KB in a
microsecond). Parts are as long as leave so many threads for a multiprocessor. Places of a thread that normalizes."""
WARP_VALUES = 64
"""Values of a row that each of the threads in step that share it keeps in registers, at most."""
ROW_WARPS = 8
"""Warps of a block, each with a row of its own, at most."""
ROW_VECTORS = 4
"""Vectors that each thread of a row has to load, at least."""
PARTED_ROW, ROW_PART = 16 * 1024, 4096
"""A row so long, of few, is cut into parts of at least so many values, in a kernel of their own."""
ROW_PARTIALS = 16 * 1024
"""Shared memory that sums of a row take beside the row, where a block has all of it."""
ROW_BYTES, KEPT_VALUES, SHARED_DEPTH, REPEATED = 48 * 1024, 64, 4, 1.3
"""The longest row that is kept in shared memory; values of a row for each stage in a thread's registers; how deep a
reduction of a row has to be to be shared; how often a stage may be computed for rows that meet."""

COLUMN_THREADS, COLUMN_DEPTH, MOST_SHARE, WINDOW_SHARE = 1024, 16, 32, 2
"""Threads of a multiprocessor that sums of columns should have, values that each adds up at least, and how many threads
share a column at most; so few do not share a window, whose places they would work out: grouped convolutions of 16
channels took 6.6 and 7.0 µs by a thread for each element, in blocks that end where elements do, 13.4 by two."""
COLUMN_PART, PARTED_THREADS = 64, 128
"""Parts of columns have so many values for each thread, and are made where a multiprocessor has fewer threads."""
MOST_WAITING_ROWS = 8
"""A product of more rows than these does not wait for its weights alone: they are widened when it is compiled."""
SHARED_FROM, SHARED_ELEMENTS = 128, 64
"""A reduction at the elements of its reader is shared by threads where it is deeper than this, and where each thread of
a warp of every multiprocessor has fewer elements than this."""
UNROLLED_ROWS, UNROLLED_TAPS, FINAL, ROW_TURNS = 8, 9, 16, 32
"""The longest loops over a row, and over a window, that are unrolled; how many parts one thread adds up at the end; the
most elements or vectors of a row that a thread asks for at once."""

# Columns in vectors: from a sweep on an H200 over six sizes, N and K from 1024 to 11008, float32 and bfloat16.
LINE_BYTES, LEAST_LINE_BYTES = 128, 64
"""What the threads of a block read of each row: a line of the cache; less than the second is not worth a turn of it."""
SHARE_THREADS, LEAST_SHARE, LOADED_VALUES = 512, 8, 64
"""Threads of a block; how many share a column at least; loaded values of a thread on their way: they take registers."""
FILLED, EVEN = 0.75, 0.9
"""The part of the multiprocessors that should have a block before blocks get narrower; the part of them that is busy
beyond which blocks of constants need not be narrower either."""
FEW_ROWS_THREADS, WRITTEN_PRODUCTS = 128, 1024
"""Threads of a block where each has the sums of several rows, and products that are written out for it at most."""
COMPUTED_ROW = 16 * 1024
"""Elements of a row that every block of a vector product computes for itself, at most."""
RING_BYTES, RING_ACROSS = 128 * 1024, 32
"""Of constants that come through shared memory, what a block has on its way, more than half of an H200's multiprocessor
so that no two blocks of a kernel share one (docs/gpu.md); and the most threads along a row of a block."""
AHEAD = 0.05
"""The part of the cache that constants take which blocks ask for while the kernel before them runs (docs/gpu.md)."""

WINDOW_TAPS, WINDOW_THREADS = 64, 64
"""Windows in vectors of channels: the most taps that are written out, and the threads of a multiprocessor, at least."""
WINDOW_PLACES, WINDOW_BUSY, WINDOW_WRITTEN = (4, 2, 1), 512, 64
"""Neighbouring places of a thread, where so many threads are left for a multiprocessor; products of a channel that are
written out, beyond which rows of a window are a loop. Judgements."""
WINDOW_KEPT, ROW_VECTOR = 128, 16
"""Elements of an image that a thread keeps in registers for the taps of a row; bytes of a vector of them."""
UNIT_DEPTH, UNIT_THREADS = 32, 512
"""Recurrences: a product over fewer values is not worth several threads; more threads of a block wait longer for one
another than they hide."""

INLINED_TWICE, INLINED_READERS, INLINED_IN_CONTRACTIONS = 40, 3, 8
"""Work (`facts.cost`) that beats memory when done twice, by how many readers, and for each use in a product."""

# --------------------------------------------------------------------------------- contractions: where families begin
# Judgements, not measured.

LEAST_SIDE, LEAST_DEPTH = 2, 8
"""A product narrower than this is no matrix product: its operands stream through a reduction."""
LEAST_GROUP = 4
"""Groups of a convolution with fewer channels fill too little of the least tile of a product."""
PRODUCT_THREADS = 256
"""Threads of a block of a product in registers, at most."""
PART_STEPS, PART_BLOCKS, PART_BYTES = 4, 8, 12
"""Steps of k that each part of split-K has at least, blocks of a multiprocessor that it may make, and what adding up a
part takes for each element, in bytes as `memory` counts them."""
LEAST_TILE, FLAT_TILE, LEAST_WARPS = 8, 4, 2
"""Accumulators of a thread, at least; a tile so many times as long as high loads too much; least warps of a block."""
WRITTEN_STEP, WIDE_WARPS = 2048, 4
"""Products of a thread in a step, which are written out. Warps of a block whose threads have twice as many sums as
`LARGE_TILE`, at least: one for each scheduler of a multiprocessor."""
ALONE_STEP = 90
"""Cycles at the barrier of a step where no other block works meanwhile: with 16 × 8 sums of a thread, blocks of 256
threads took 0.3 to 2.5 % longer than two of 128 each for five products, as long or up to 2 % less for two others."""
BEYOND = 2
"""Tiles are at most so many times as long as what they cover."""
FEW_QUERIES = 8
"""So many queries at most are a matter of reading keys and values once; queries of heads that share these count."""
STREAM_PARTS, STREAM_THREADS, STREAM_REGISTERS = (128, 256, 512, 1024), 256, 40
"""Attention of few queries: keys of a part; threads of a block, at most, and more than half of them; registers of a
thread beside vectors and sums."""
CLUSTERS = (2, 4, 8)
"""Blocks that may run together, and reach into one another's shared memory, where there are warp groups."""
QUERY_ROWS, LEAST_PART, LEAST_QUERIES, LEAST_KEYS, UNROLLED_STEPS = 8, 2, 8, 16, 4
"""Attention: queries of a thread at most; keys of a part for each element of a value, at least, so that parts hand on
about half the scores at most; fewer queries or keys are a matter of streaming, which vector products do; steps of a
product that are written out, so that loads are on their way while others are used."""

# -------------------------------------------------------------------------------------------- facts of any such machine

LARGE_TILE = 64
"""Sums of a thread from which on operands that lie along k are turned on their way into shared memory: a load gives
four rows then, not four k, and what a multiply-add takes lies in different banks of registers (`cuda/banks.py`)."""
WARP_SQUARE = (4, 8)
"""Rows and columns of threads that are a warp of such a tile: what 8 read of x is all banks once, what 4 of y half."""
FLOATS = 4
"""Elements of float32 in the widest load from shared memory, which register tiles are made of."""
BANKS, NEAR_READS = 32, 8
"""Words that shared memory gives in a cycle, and threads that ask for them together; so many for four words each."""
MOST_REGISTERS = 255
"""Registers of a thread."""
MOST_BLOCKS = 32
"""Blocks that a multiprocessor holds, at most."""
BLOCK_SHARED = 1024
"""Bytes of shared memory that a block takes besides its own."""
USUAL_REGISTERS = 65536
"""32-bit registers of a multiprocessor, where a machine does not tell."""


def model_of(machine: ThreadFacts) -> Model:
    """The numbers that were fitted to a machine, or the neutral ones."""
    found: Model = machine.model if machine.model is not None else NEUTRAL
    return found


def resident_blocks(machine: ThreadFacts, threads: Any, registers: Any, shared: Any) -> Any:
    """Blocks that a multiprocessor holds at a time, of so many threads, registers of each, and bytes they share."""
    by_threads = machine.multiprocessor_threads // threads
    by_registers = (machine.registers or USUAL_REGISTERS) // (threads * registers)
    by_shared = machine.multiprocessor_shared_bytes // (shared + BLOCK_SHARED)
    return np.clip(np.minimum(np.minimum(by_threads, by_registers), by_shared), 1, MOST_BLOCKS)


def with_parts(machine: ThreadFacts, cycles: Any, parts: Any, moved: Any, launch: float) -> Any:
    """The time of so many cycles, and of the second kernel that adds up parts, if any, and moves so many bytes."""
    moving = moved / machine.multiprocessors / model_of(machine).memory
    return seconds(cycles + (parts > 1) * (launch + moving), machine)


def stream_seconds(machine: ThreadFacts, moved: float, kernels: int, blocks: int | None = None) -> float:
    """The time of kernels that move so many bytes in all and compute little; `blocks` where these may be few."""
    model, busy = model_of(machine), min(machine.multiprocessors, blocks or machine.multiprocessors)
    return float(seconds(kernels * model.launch + moved / (model.memory * busy), machine))


def seconds(cycles: Any, machine: ThreadFacts) -> Any:
    """The time of so many cycles."""
    return cycles / (machine.gigahertz * 1e9)
