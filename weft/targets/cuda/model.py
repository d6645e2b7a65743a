"""The numbers of the cost model that were fitted to measurements, all of them on an H200; little was held out.

Other architectures are estimated with the same numbers and with facts of their own (`machine.py`).
"""

from __future__ import annotations

from weft.targets.gpu.model import Model

H200 = Model(
    # Products in registers: 2,784 points of 52 products and convolutions in float32 and tf32 (`benchmarks.cost_model`,
    # `DEVICE_FITTED`): 10 % off, as in a fit that had not seen the product; 11 % of 1,359 points of 18 others, of which
    # the point with the least estimate takes 1.02 times as long as the best measured. `launch` was not fitted.
    fetch_vector=3.4, fetch_plain=8.1, fetch_gather=16.5, fetch_along=2.45, load=0.81, broadcast=0.385,
    step_instructions=62.5, step_cycles=94.0, latency=660.0, latency_alone=345.0, chain=1.19, busy_warps=15.2,
    busy_power=0.247, written=0.076, registers=17, launch=4170.0, next_launch=1600.0, memory=29.7,
    # To 74 points of seven products of 16-bit elements that lie apart: 16 % off, 25 % without it.
    fetch_wait=(200.0, 20.0),
    # Blocks and sums of threads of their own: 180 points of 14 depthwise and grouped convolutions.
    begin=2.33, turn=12.0,
    # Attention: 130 points of five sizes.
    attention_product=1.32, query_loads=2.5, key_loads=0.92, attention_busy=(8.5, 0.38), attention_start=1550.0,
    attention_tile=440.0,
    # Attention of few queries: 75 points of eight sizes, 4 % on average; of three other sizes 7, 23 and 23 %.
    stream_bytes=16.2, stream_vector=49.1, stream_product=1.69, stream_threads=271.0, stream_latency=264.0,
    stream_block=4920.0, stream_query=357.0, stream_parts=40.0,
)  # fmt: skip

# Products by tensor cores, the three ways together: fitted to 2,786 points of 52 products and convolutions in float16
# and tf32, of 2 to 700 µs (`benchmarks.cost_model`, `DEVICE_FITTED`), and 180 of twelve larger ones; starts of blocks
# then moved by up to 0.2 µs, and what shares and single elements cost raised, so that three products are multiplied in
# the way that won side by side. 20 % off, 14 % of points that take less than 1.5 times as long as the best, as of 18
# shapes that were held out.
WARP_REGISTERS, GROUP_REGISTERS, THREAD_REGISTERS = 48, 56, 240
"""Of a thread, beside accumulators and, for mma.sync, operands; and all that a thread may have."""
BESIDE = 4
"""Things that go on beside one another take longer than the longest: they are added up as powers of this degree."""
WARP_PRODUCTS = 780
"""Products of 16-bit floats in a cycle that mma.sync gets to, however many the tensor cores can do by other means."""
SHARED_BYTES, WARP_READ_BYTES = 128, (118, 72)
"""Bytes a cycle from shared memory: by wgmma, a fact, and by ldmatrix, of tf32, which is rounded there, fewer."""
FETCHED = {"tensor cores": 23.3, "warpgroups": 1.5}
"""Cycles of a multiprocessor for 128 fetches of 16 bytes: beside those of the bytes that wgmma reads anyway."""
FETCHED_PIECES = {8: 21.0, 4: 62.0, 2: 45.0, 1: 45.0}
"""The same where fewer bytes lie together: of 16 bytes in such pieces. Bytes were not measured."""
TURNED_FETCH, WINDOW_FETCH = 262.0, 2.2
"""The same of elements that are turned as they are fetched, one at a time; and how much longer it takes where places
are those of a window."""
FETCH_WAIT = (400, 38)
"""Cycles that a step waits for elements of less than 4 bytes, which nothing copies beside it: anyway, and for two bytes
of each thread; of wgmma's, in steps that are not fetched before the first."""
WARP_STEP, WARP_TILE, WARP_FETCH, WARP_LONE = 150, 25.3, 0.62, 11.9
"""Cycles of a warp's way through a step: anyway, for each tile that it loads, and of its scheduler's fetches; and of a
block's only step, for 128 bytes that are fetched: nothing is multiplied beside. Why it is so much is not known."""
CACHE_BYTES = 60
"""Bytes a cycle that the cache gives a multiprocessor, when all of them ask."""
WARP_LATENCY, GROUP_LATENCY, BULK_LATENCY = 555, 690, 1750
"""Cycles of a fetch ahead of its use, to be shared by the stages that are on their way."""
WARP_START, GROUP_START, GROUP_ROUND = 3650, 2200, 140
"""Cycles of the launch, and before the first step; and of each block of groups that a multiprocessor has."""
WARP_BLOCK, GROUP_BLOCK = (138, 0.213, 740), (1500, 0.16, 0.25)
"""Cycles of a block beside its steps: of mma.sync anyway, for each element that a multiprocessor writes out, and where
shares meet; of wgmma on its own way, and there for each element of a group, and for each that is written out."""
GROUP_WORK = 0.014
"""Cycles of an element for each unit of an epilogue's arithmetic (`facts.cost`): two GELUs, of 20 units."""
FETCHED_BYTES = 36
"""Bytes a cycle that a multiprocessor fetches into shared memory, where attention does."""
SECTOR, ODD_FETCH = 32, 44.0
"""Bytes at whose multiples rows should begin; what fetching others takes at least: by three products of 10 to 26 µs, of
which small ones say nothing."""
MEMORY_BYTES, MEMORY_SHARE = 16, 0.1
"""Bytes a cycle of each multiprocessor from memory, for operands that the cache does not hold, and how much of the rest
that does not hide."""

# Products by wgmma and the copy engine: fitted to 351 points of 33 products in float16, larger ones for the most part:
# off by 4.5 % on average; by 5.6 % where the fit had not seen the product (four fits, each without a quarter of them).
PROMOTED = 4
"""Steps of a line whose products of float8 are summed by the tensor cores alone: these keep about 14 bits of a sum."""
BULK_REGISTERS = 480
"""Of a thread of each group together, where one more group of threads fetches: those of a multiprocessor."""
BULK_PRODUCTS, BULK_BYTES, BULK_SHARED = 1.284, 48.0, 118.0
"""What wgmma takes beyond the rate of the tensor cores; bytes that are fetched in a cycle; bytes of shared memory that
are written and read in one."""
BULK_WINDOW_BYTES = 64.0
"""The same where a tile is that of a window, whose taps read the same lines again, by three convolutions of 320 to
1,280 channels: of one left out (640, 3 × 3) the estimate is 2 % off and not 19."""
BULK_BOTH = 8
"""Where several of these take about as long, a step takes longer: they are added up as powers of this degree."""
BULK_FLOAT8 = (1.54, 1.7)
"""The first of these for float8, whose sums threads add up: of tiles of 128 columns at most, and of wider ones. Set by
hand to 9 points of three products; nothing was held out."""
BULK_ODD_ROWS = (1.19, 1.77)
"""How much longer rows take that do not begin at whole lines, and such as do not begin at whole sectors either."""
BULK_HALF_LINES = 1.3
"""How much longer they take where they do not lie along k, and every other tile begins in the middle of a line: three
pairs of points give 1.25 to 1.57."""
BULK_COPY = (2600, 0.0006)
"""Cycles of a kernel that copies such an operand into other rows (1,850 by the fit), and for each byte."""
BULK_CLUSTER = 2340
"""Cycles that two blocks take to begin together, and to end."""
BULK_BEYOND = 0.01
"""How much longer it takes for each share of the tiles beyond the edges: of equals, the one of the least."""
BULK_GROUPS = 100
"""Cycles that two groups save, of tiles that are equal otherwise: a judgement, of four pairs of points."""
BULK_LONE = 1.4
"""How much longer one group takes for the arithmetic of an epilogue than two: 3152 × 3072 × 768 with a GELU."""
BULK_BESIDE = 0.2
"""How much of what a tile takes beside its steps is not hidden by another block's."""
BULK_TILE, BULK_START = (1580, 0.07), 3400
"""Cycles of a tile beside its steps, and for each element; and before the first tile, with the launch: this by the 52
above, which alone would have 0.2 for each element, and no cluster: models in batches of 16 took up to 1.17 times."""

# Attention of narrow numbers, results of 16 bits: fitted to 92 points of eight sizes, 4.9 % off on average; 6.2 % where
# the fit had not seen the size, of which the point that it picks then takes 1.01 times as long as the best (most 1.08).
ATTENTION_REGISTERS = (20, 0.75, 0.47, 10)
"""Of a thread: beside keys of a part and elements of a value, for each of these, and where the copy engine fetches: as
the compiler has them, within 4 for 15 points."""
MOST_REGISTERS = 240
"""Those that a thread of two groups has."""
ATTENTION_BESIDE = (0.75, 0.743, 3540)
"""How much less time a group takes where the copy engine fetches, and where the second product is a step late as well
(0.89 to 1.04 of the first, as there are registers for it); cycles of a block until the first part is there."""
ATTENTION_PARTS = (64, 128)
"""Keys of a part."""
ATTENTION_GROUP = (196, 0.61, 0.51)
"""Cycles of a group for 64 keys, in company of others: beside products, for a cycle of these, and of fetching."""
ATTENTION_ALONE = (431, 444, 1.82, 0.44)
"""Cycles of a lone group: for a part, 64 keys of it, a cycle of products; and how much longer each other makes it."""
ATTENTION_BLOCK = (705, 286, 3.5)
"""Cycles before the first part and after the last that nothing hides: of a block, for 64 keys of a part; and how many
times longer another group makes it."""
ATTENTION_START = 1530
"""Cycles of the launch, and of the first block."""

# Products of few rows with constants of bfloat16 or words of few bits (`streamed.py`), 8 rows on an H200. Fitted to 270
# points of five products of words of a decoder of a billion weights: off by 17 %, and the point that it picks takes
# 1.06 times as long as the best measured; of seven other products (378 points) off by 20 %, 1.09 times, at most 1.32.
STREAM_WIDTHS, STREAM_PARTS, STREAM_WARPS = (16, 32, 48, 64, 128), (1, 2, 4), (4, 8, 16)
"""Columns of a block, among how many blocks of a cluster k is divided, and warps of a block."""
STREAM_COST, STREAM_REGISTERS = (0.33, 2.6e-5, 7.3e-4, 2.75e-4), (56, 0.58)
"""Microseconds that a cluster takes; of a number of k, what a multiprocessor issues for a column, and anyway, and what
a warp waits for a column. Registers of a thread, and for each column: these say how many blocks run together."""
CLUSTERS_OF_FOUR = 10 / 11
"""The share of the multiprocessors that clusters of four fill: 30 of them are there at a time, not 33."""
STREAM_BYTES, LEAST_STREAM_WARPS, STREAM_TURNS = 4096, 4, 32
"""Bytes that a warp loads at a time; warps of a block, at least; and how often a warp does so, which is written out."""
STREAM_ROW, LEAST_STREAM_ROWS = 32, 2
"""Elements of a row that a thread loads at a time, at most; and rows at least."""
RING_TURNS = 4
"""Steps of a ring that are written out, of a product of one row (docs/gpu.md)."""
STEP_COLUMNS, STEP_WARPS, STEP_TILES, STEP_REGISTERS = 32, 8, 16, 56
"""Steps of recurrences: columns of a block at most, warps, tiles of 16 columns by 8 rows that a warp holds the sums of,
and registers beside sums and weights that are held."""
STAY_GAIN = (0.38, 0.02, 0.065)
"""µs that a step takes less where one kernel stays for all of them: anyway, for each KB of a block's weights, and not
for 1,024 loads of the state. Fitted to 9 LSTMs (200, 650 and 1,024 units; 16, 32 and 64 sequences): off by 0.12 µs
on average (gains of -0.5 to 1.6), by 0.13 for 9 others (384, 512, 800 units); all signs are right."""
STEP_LINES = (32, 12)
"""Sums of a sequence lie so many words apart, modulo the banks: counted for ten shapes, a third to a half of the turns
that sums without a gap take, in all but one (20 columns, 5 warps: 180 instead of 160)."""

# Where families begin and end: judgements, not measured.
LEAST_Y, LEAST_X, MANY_ROWS = 8, 16, 1024
"""Tiles of tensor cores are wasted on products that are narrower; not on those of so many rows: where threads share the
sum of each element, 320 channels of 32 × 64² became 4 (3 × 3) in 2,800 µs, 98 by the estimate of a tile."""
MOST_ACCUMULATORS, BULK_ACCUMULATORS, MOST_WARPS = 128, 160, 8
"""Registers of a thread for accumulators, and where one more group of threads fetches; warps of a block of mma.sync."""
WARP_PART_BLOCKS, GROUP_PART_BLOCKS, SHARE_STEPS = 4, 2, 2
"""Blocks of a multiprocessor that split-K may make; steps of k that each share of a block's warps has at least."""
HELD_BESIDE = 0.91
"""How much less time products of tf32 take whose rows go through registers where blocks may be two: by ten pairs."""
TURNED_COPY = (1250, 0.0019)
"""Cycles of the kernel that turns an operand of tf32, and for each byte."""
TURNED = 4
"""Elements that a thread loads at a time to turn an operand."""
TURNED_BY = (8, 4)
"""Threads of a warp along the rows that are written, and along those that are read: the best of four for six sizes."""
