"""The numbers of the cost model that are no facts about a processor, each with where it comes from.

Estimates are seconds: cycles of one core (`machine.py`), shared by the cores. LOAD_SHARE, STEP_CYCLES, VECTOR_CYCLES,
FAR_CYCLES, TILE_CYCLES, UNEVEN and IMAGE_LOADS are those that the rules of version 0.1 had, fitted by hand to
convolutions on a Sapphire Rapids; OVERLAP was Winograd's. SHARES are judgements that put families in order: nobody has
fitted them. What stands from UNBLOCKED to TRANSFORM_CYCLES was fitted by hand to 42 shapes on an Emerald Rapids
(AVX-512, seven shapes at a time: noisy; convolutions of 24 to 136 channels, windows over single channels, transposed
ones), OPEN_WINDOW and PACKING_CYCLES to a depthwise convolution and a product of `FITTED` on a Neoverse N1. None of
`benchmarks.odd`, or of the shapes that `benchmarks.cost_model` holds out, is among them; errors there:
docs/schedules.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.expr.nodes import Load
from weft.loop.ir import Axis
from weft.loop.passes.shift_tiles import tile_counts, tile_sizes
from weft.plan.contraction import load_bytes, taps_along
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, around_rule, cheapest
from weft.schedule.facts import Facts, extent, facts_of
from weft.targets.base import Target
from weft.targets.cpu.machine import LINE_BYTES, SET_SPAN, Core, core_of, seconds
from weft.targets.cpu.microkernels import VECTOR, MicroKernel

SHARES = {
    "matmul": 0.9, "matmul_dot": 0.7, "matmul_square": 0.6, "matmul_amx": 0.5, "convolution": 0.93, "conv_dot": 0.6,
    "conv_square": 0.5, "conv_amx": 0.4, "rows": 0.6, "window": 0.6, "winograd": 0.8, "attention": 0.7,
    "attention_amx": 0.3, "register tile": 0.4,
}  # fmt: skip
"""The part of the peak that a family's best point is taken to reach: judgements, not fits."""

LOAD_SHARE, STEP_CYCLES, VECTOR_CYCLES, FAR_CYCLES = 1.13, 1.0, 0.25, 2.5
"""What loads take beyond what a core can start; cycles of a step beyond what it issues; cycles that a vector of weights
waits for, from the second-level cache, and, as long as a line of one, from behind it."""

MOST_DIGIT_ROWS = 16
"""Rows whose digits are multiplied with weights of few bits. Measured on a Neoverse N1: a row of digits takes 1 cycle
for 4 products, one of floats half of that, after unpacking, which takes as long as 13 rows."""

TILE_CYCLES, UNEVEN, UNEVEN_BLOCK, CUT_BLOCK = 30, 0.04, 0.3, 8
"""Cycles of a register tile beyond its steps; what tiles of another size at the ends cost, as a share; what blocks of
fewer tiles do: three products on a Neoverse N1, none of `benchmarks.cost_model`, took 1.31 to 1.56 as long; and for how
many tiles a last one of fewer rows counts that is a block of its own: four points of `FITTED` on a Cascade Lake."""

SAME_PLACE = 0.3
"""Cycles of a step for each row of a tile, where more rows lie in the same place of the first-level cache than it has
room for there. Cascade Lake, 40 and 48 rows of 1,024 and of 1,000 numbers, tiles of 10 and 12 rows: 1.15 to 1.33 times
as long for the former; tiles of 8, 6 and 5 rows as long. Where twice the rows have no room nothing is fetched ahead: of
six products 1.02 to 1.24 times as long with it; chains of products, whose weights come from memory, the same."""

CUT_TILE = 3.5
"""Tiles of rows that the tests in a last, smaller one cost where lanes cannot be off. On a Neoverse N1, a transposed
convolution of 128 to 3 channels at 28 × 28 took 589 µs without it, 429 with 3 or more (2: 589); one of 16 to 5 channels
at 50 × 50 164 and 141; six others, of 24 to 96 channels, the same. DCGAN's last layer needs more than 3, too."""

IMAGE_LOADS = 3
"""How many loads a vector of an image counts for that is rarely aligned, and comes from the second-level cache."""

UNBLOCKED, UNPACKED, OPEN_WINDOW, MASKED_WINDOW, TURNED_CYCLES, PACKING_CYCLES = 1.08, 0.5, 2.0, 1.6, 0.5, 8.0
"""How much longer than counted a register tile takes that is in no blocks for the caches; by what share one does whose
lanes, as long as a line of a cache, read memory as it lies, shorter ones by less; how much longer, where they read the
edges of an image by tests, and where by masks (to two lines over single channels, of `benchmarks.odd` and `conv_kinds`,
on an Emerald Rapids: 1.3 and 1.1, and rows, which are faster, are thought 1.3 to 1.6 times as slow as they are); cycles
for each element of a tile that is turned to be stored, and of an operand that is packed in each call."""

SCATTERED_CYCLES = 0.1
"""For each element of a tile whose neighbours along no axis are neighbours in the result. To ten transposed
convolutions on an Emerald Rapids (2 × 2, 3 × 3 and 4 × 4 with steps of 2, 16 to 96 channels in, 16 to 64 out, images of
15 to 50; none of `benchmarks.odd`): the points that it makes the best take 1.08 times as long as the best that was
measured, in the mean (1.20 with the 1.5 that stood here). Held out, four of `benchmarks.odd`: 1.01 (1.13)."""

COUNTS_AS_LINE = 32
"""Vectors of so many bytes take what those of a whole line take: those of AVX2, until somebody measures them."""

CROSSING = 0.15
"""How much longer convolutions in rows take, as a share, where each vector crosses a line of the cache."""

WINDOW_SHARE, WINDOW_LOADS, STEPPED_LOADS, SPILLED = 0.72, 1.0, 4.0, 1.2
"""Windows over rows: the part of the peak that their multiply-adds reach; how many loads a vector of the image counts
for that is read as it lies, and one of every second place (two loads, a permutation and a mask); and how much longer
tiles take whose rows do not stay in registers (for each set of rows that taps share: of AVX2, 5 × 5 with a step of 2 of
120 and of 240 channels took 1.5 times as long as the best; 1.18 and 1.04 since)."""

UNEVEN_WINDOW, CUT_WINDOW = 0.12, 0.04
"""What rows left over cost, as a share: they are straight code of their own, with tests; and, for each tap, where so
few tiles are whole that none of them is without tests. To the four windows of `FITTED` on an Emerald Rapids: 1.03 to
1.13 times as long with 4 or more whole tiles, 1.3 (9 taps) to 2.1 (25) with fewer than 3."""

SHORT_ROW = 4
"""Vectors of a row that is short: they are straight code, so that it is known which lanes are off."""

FEW_TILES = 3
"""Tiles of rows that are written out where the last is cut: partitioning a loop leaves one whole of which the first and
the last round are others. Neoverse N1, two windows over single channels, stride 2: 250 to 127 µs, 297 to 203."""

UNALIGNED = 2.0
"""How much longer products of one row take that read an operand where it lies: a vector is in two lines of a cache."""

TRANSFORM_CYCLES, TERM_CYCLES = 1.0, 0.75
"""For each vector of a tile that Winograd's method transforms, before and after the products, and for each term of its
sums. With DIRECT_SHARE, to 10 convolutions on a Neoverse N1 and 18 on an Emerald Rapids (3 × 3 and 5 × 5, strides 1 and
2, tiles of 2 and 4, 16 to 384 channels; none of `benchmarks.odd`): beside a direct convolution's, an estimate is off by
12 % and 19 % (root of the mean square; two whose weights stream left out). Held out: `benchmarks.cost_model`."""

OVERLAP = 0.4
"""The part of the shorter of computing and streaming that does not hide behind the longer."""

# Limits of spaces and thresholds of version 0.1: judgements, kept until somebody measures them.

LEAST_LANES = 4
"""Channels of a block, or pixels of a row, from which on lanes along them pay."""

LEAST_SHARED_WORK = 64 * 1024
"""Multiply-adds of a convolution from which on cores share it."""

STREAM_AHEAD = 12 * 1024
"""Bytes by which weights that are read once are fetched ahead."""

PANEL_AHEAD = 16
"""Steps by which a panel of weights that the first-level cache does not hold is fetched ahead. Cascade Lake, a thread,
0 and 16 in turns (the tuner's trials, medians of five): of eight products that were not looked at before, 3 % faster in
the mean (0.99 to 1.054); of panels that fit, 0.98 to 1.0; of panels that a call packs itself, 0.94 to 0.97. Rows that
meet a panel need room too (found by a table of 128 × 256 × 192 on Emerald Rapids, 1.04 to 1.06): of four products that
were not looked at, whose panel fits without its rows, 1.145, 1.136, 1.087, 0.975 (three processes each; busy)."""

LEAST_FETCHED = 8
"""Channels of an image for each that one asks ahead for: of fewer, too many are asked for in vain. Cascade Lake, four
1 × 1 convolutions of 8 to 16 channels: 0.95 to 0.99 times as fast when they were."""

WRITTEN_STEPS = 4
"""Steps of a convolution's reduction that are written out, and channels of a block that are, all of them. On a Neoverse
N1, whose blocks are of 4: ten networks of three layers, none of a benchmark, 0.976 to 1.095 times as fast as with
a loop over the 4, 1.03 in the mean. On an Emerald Rapids, with loops of 4 for blocks of 16 and 8, 1.01 and 1.00."""

LEAST_PASSES, LEAST_OWN = 4, 4
"""A copy pays where it is read so often; and how many times as many rows a part reads alone as it shares."""

LANES_STORED, LINE_STORED = 16, (6.5, 0.2)
"""Pixels that are stored at once, and channels of a block that are stored apart where the result is plain; cycles for
each line of a cache that a stored row of a tile meets, where a vector is a line, and where it is shorter and so stores
fewer rows at once. Cascade Lake, 1 × 1 convolutions before one in groups (32 → 48 at 112², 48 → 112 at 56², 112 → 112
at 28²; none of a benchmark), 22 tiles: 7 to 11 ns beyond the products for each; fitted since, with IMAGE_LINE, to 213
points of ten convolutions (1 × 1 to 5 × 5, most of `FITTED`) with AVX-512, and to 330 of 15 with AVX2."""

IMAGE_LINE = 2.6
"""Cycles for each line of an image whose channels lie lines apart, when the first tap meets it: it comes from the
second-level cache. Of the points above those with AVX2; for the others it would be 1.9."""

MOST_ROWS_OF_TILE, MOST_UNROLLED_ROWS, LARGEST_STEP_OF_ROWS = 14, 256, 8
"""Convolutions in rows: rows of a tile, multiply-adds of one straight piece of code, and by how many pixels a window
may move."""

MOST_TAPS_OF_WINDOW, MOST_ROWS_OF_WINDOW, MOST_UNROLLED_WINDOW, LARGEST_STEP_OF_WINDOW = 49, 16, 400, 4
"""The same for windows over single channels, and their taps."""

WINOGRAD_UNROLL, WINOGRAD_FETCH, MOST_PANEL, MOST_FETCHED = 4, 16, 8, 4
"""Winograd's products: steps of the reduction that are written out; steps ahead that far weights are fetched; vectors
of a panel of weights, and those of one that is fetched ahead, at most: on an Emerald Rapids panels of 6 and 7 vectors
took 1.2 to 1.45 times as long when they were."""

WINOGRAD_SHARES = 8
"""In how many shares the next panel of Winograd's weights is fetched while the tiles of a block read one, at most. On a
Cascade Lake, 64 to 128 and 128 to 256 channels over images of open size, seven widths, in turns: 0.88 to 0.98 times as
long as with fetches 16 steps ahead in each tile; with 4 shares 0.89 to 1.04."""

PANEL_SHARE, BLOCK_SHARE, WEIGHT_SHARE, FAR_SHARE = 0.6, 0.15, 0.5, 0.05
"""The part of the first-level cache that a panel of Winograd's weights may take, and of the second-level cache that
V and M of a block of tiles may, and all weights: more comes from behind it. To 11 convolutions on an Emerald Rapids, 41
points each (3 × 3 and 5 × 5, 32 to 192 channels in, 48 to 160 out, images of 14 to 56; none of `benchmarks.odd`). The
last: the part of the third-level cache, which others use too, beyond which V and M come from memory. On a Cascade Lake
with 36 MB, 16 to 128 channels on images of 64 to 512 (eight shapes) took 1.3 to 2 times as long in blocks of 4 to 9 MB
as in their best ones of 0.5 to 2 MB, and 2.5 to 4 times with the whole image as one."""

OPEN_TILES, OPEN_QUARTERS, OPEN_SAMPLES = 24, (1, 6), 31
"""Tiles of a block of an image of open size, at most; between how many quarters of the typical size an open one is,
each as often as the others, and how many of them are looked at. A judgement."""

WINOGRAD_STRETCHES, IN_STRIPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48), 1.2
"""How many rows or columns of tiles of an image of open size may share a pass over the weights; and how many times as
long as whole images they take: 0.9 to 1.55, on average 1.15, for 20 images in blocks, which stood here before, on an
N1; 1.3 for six of stride 2 on both."""

PHASE_BYTES, AGAIN_BYTES = 2.5, 7.0
"""Bytes a cycle that are read or written where an image is taken apart into phases, or they are put together; and those
of Winograd's weights that come again for each phase. Cascade Lake, a thread: copies of 0.8 to 1.3 MB took 0.1 to 0.25
ms; with 4, 16 and 144 phases of 256, 128 and 96 channels products wait for 6 to 8 bytes a cycle."""

DIRECT_SHARE, PRODUCT_SHARE, STREAM_BYTES = 0.8, 0.8, 5.0
"""How much of the peak a direct convolution reaches, and the products between Winograd's transforms; and bytes a cycle
that a core gets from behind its second-level cache, with a whole model between two uses."""

IMAGE_SHARE, MOST_IMAGE = 0.25, 8 << 20
"""The part of the third-level cache, and the bytes at most, beyond which Winograd's images come from memory and are
waited for. A layer of six alike in a row, 3 × 3, a thread of an Emerald Rapids, tiles of 2 and 4: its time beside a
direct convolution's is off by 26 % (root of the mean square; 35 % before) for 23 shapes of 16 to 128 channels on images
of 14 to 512; held out by 31 % (41 %) for 11 shapes, and with AVX2 by 20 % (21 %) for 8. What it still is off by is one
way: products of few channels take longer than counted. Counted as well (4 channels more) errors were 20, 29 and 16 %,
but a line of 40 to 72 channels, 5 taps, lost Winograd's method by which it takes 0.8 of the time."""

WINOGRAD_TILES = ((2, 4, 6), 8), ((2, 4), 6)
"""The tiles that are considered where one side or two of a window have several taps, and how many inputs one may have
along a side. With 8 inputs along two sides it is an order of magnitude less exact, along one as exact as with 6 along
two: errors of 1 to 8e-6 with 32 to 512 channels of 3, 5 and 7 taps, 6e-6 to 1.2e-5 for 3 × 3."""

MOST_MODEL_ERROR = 1e-4
"""The error, relative to the output's scale, that a model may have by Winograd's method."""

MOST_ERROR, SAMPLE_OUTPUTS = MOST_MODEL_ERROR / 4, 16
"""The error that one convolution may have on data whose elements are of a size; output channels on which it is
measured."""

LEAST_SAVED, AS_GOOD = 0.1, 1.1
"""The share of the time that an algorithm must save to be worth its larger weight; a smaller tile is preferred to a
larger one that is not faster by more than this."""

LEAST_QUERIES, LONG_VECTOR, MOST_WAITING_ROWS = 16, 64, 4
"""Attention of fewer queries does not pay for the copies that one kernel makes; bytes of vectors that put 24-bit
numbers together as fast as their bytes come; with more rows a product of far weights no longer waits for them."""

PADDING_SAVES = 0.2
"""The share of the time that padded channels must save, by estimate. One measurement stands behind it: 24 channels at
80 × 80 were to save 19 %, and took 20 % longer on an Emerald Rapids."""

TURNS_SAVE = 0.1
"""The same where groups of a part of a vector take turns in it; none where no channels are added for that. Emerald
Rapids, a thread, convolutions in groups of 2 to 8 between two 1 × 1 ones, in turns with the compiler before: where none
were added, eight were to save 5 to 27 % and took 2 to 14 % less; where some were, four that were to save up to 5 % took
up to 27 % longer, two that were to save 12 and 17 % took 4 and 9 % less."""


# ---------------------------------------------------------------------- judgements of single families, fitted by nobody

LEAST_PARALLEL_WORK = 32 * 1024
"""Elements (or operations) from which on a loop is worth dividing among threads."""

PARTS_OF_ROWS, PART_SHARE = 8, 0.25
"""Into how many parts a thread's share of the rows of an image is divided, so that threads finish together; and the
part of the second-level cache that one thread's may take, where weights that are fetched ahead pass by. To eight 3 × 3
convolutions on a Cascade Lake (steps of 2, gaps, groups, volumes; 48 to 304 channels, none of a benchmark): 1.11 times
as fast in the mean (1.02 to 1.25) as where only images larger than their weights were done by rows, in 8 parts."""

EVEN = 0.9
"""The part of the cores that must be busy, on average, for a loop to be divided as it is; else its parts are cut on."""

LEAST_SKIPPED, LEAST_SKIPPED_IN_ROWS, LEAST_SKIPPED_FRAMES = 0.1, 0.2, 0.04
"""The share of the products along a side of a window that meet nothing but zeros around the image, from which on they
are passed over. Cascade Lake, a thread, in turns with all of them, kernels alone: 3 × 3 with gaps of 12 at 33² (40 % of
all) 0.56 and 0.60 of the time, of 4 at 16² (29 %) 0.79 and 0.83; where they are 2 to 5 % 0.95 to 1.04, and at 7² 1.05:
a test for each tile, and taps that are not beside one another, cost as much. In rows, where taps below one another
share what they read, 1.15 at 24² with gaps of 4 (11 %), 0.8 at 20² with 6 (20 %). Frames are passed over for all their
tiles at once; Emerald Rapids, chosen on two volumes of `benchmarks.conv_kinds` (4 and 8 %: 0.97 and 0.93 of the time);
three volumes that were not looked at before (6 to 8 %, 24 to 128 channels): 1.0, 0.95, 0.91."""

MOST_UNROLLED = 128
"""Multiply-adds of one straight piece of code, at most."""

LEAST_PACKED_ROWS = 8
"""So many rows of the left operand of a product pay for a copy of the right one."""

LEAST_PAIRED_COLUMNS = 128
"""So many columns pay for a copy of the left operand whose rows lie in pairs: two loads and an insertion become one
load in each panel of columns."""

SHORT_STEP = 12
"""Vectors of multiply-adds of a step, at most, that is written out several times although steps are left over. Cascade
Lake, six products of 77 to 1,001 steps: 1.01 to 1.08 times as fast with AVX2; larger tiles, with AVX-512, as fast."""

LEAST_CHAINS, CHAIN_PARTS = 6, 4
"""So many sums at a time hide the latency of a multiply-add; with fewer, each is made of so many parts."""

MOST_PADDED = 1.04
"""The columns with what they are padded to whole register tiles, as a multiple of those that there are."""

MOSTLY_FILLED, EDGE_COST = 0.5, 4
"""The share of useful lanes from which on an operand is packed although the last vector is not full; how much longer a
tile takes whose lanes reach past the end and are masked."""

MOST_TAPS, ROWS_AT_ONCE, VECTORS_AT_ONCE, LEAST_STRETCH = 9, 4, 2, 16
"""Reductions: a window of so many elements is one straight piece of code, which keeps its result in registers; rows
that are added up before the sums go back to the first-level cache, and vectors of each in one piece of code (on a
Neoverse N1, five sizes: 1.02 to 1.12 times as fast as one); vectors of a row that are read at once, at least."""

MOST_LOADS, LEAST_STEP, LEAST_SIDE = 4, 4, 4
"""Transpositions: loads of a block, at most; neighbours that are read so many elements apart, or fewer, come with the
same few vectors; the shortest side of a square that is worth turning."""

LEAST_NARROW_COLUMNS = 8
"""Output channels of a tile of narrow sums that are worth it."""

DIGIT_VECTORS, DIGIT_GROUPS = 4, 8
"""Products with weights of few bits: vectors of columns in a panel (with three digits for each and the sums of floats
they fill half of the registers); groups of four bytes that are written out, more are a loop."""

MOST_EMPTY_COLUMNS = 1 / 16
"""The share of columns that may be added to fill the last panel, so that panels are wider: they are read in vain."""

BIT_COLUMNS, BIT_VECTORS, BIT_ROWS = 4, 9, 8
"""Products of bits: columns of an intrinsic; vectors of a row in it, which are loaded once for all of them; rows that
meet a few columns of the weights while these are in the first-level cache."""

DOT_LATENCY, DOT_STEP_CYCLES = 5.0, 0.25
"""Cycles until the sum of a dot product can be added to again; cycles of a step for itself, and for each vector."""

DOT_VECTORS, DOT_ROWS = 6, 4
"""Convolutions by dot products: vectors and rows of a register tile, at most."""

ATTENTION_UNROLLED, ATTENTION_ROWS, ATTENTION_BLOCK = 4, 12, (16, 48)
"""Attention in vectors: steps of a product that are written out and queries of a register tile, at most; the least and
the most queries of a block."""

OPEN_LENGTHS, SCORE_WAIT, LOAD_CYCLES = (100, 300), 8.0, 0.15
"""Tiles of attention over open lengths: those for which they are chosen; the cycles for which a vector of scores waits
where they come one at a time; those of a load beside multiply-adds that it does not wait for."""

ATTENTION_BYTES, SCORE_CYCLES, LEAST_HEADS_BUSY = 24.0, 14.0, 0.85
"""Bytes a cycle that come from the second-level cache; cycles for a vector of scores between the products: the steps,
the top, the power, the sum; the share of the threads that must have a head each for threads to take whole heads."""


def crossed(target: Target) -> float:
    """How much longer vectors take that are rarely aligned: the wider they are, the more of them cross a line."""
    return 1 + CROSSING * min(1.0, target.vector_bytes / LINE_BYTES)


def lines_of(target: Target) -> float:
    """Lines of a cache that a vector of a target counts for."""
    return 1.0 if target.vector_bytes >= COUNTS_AS_LINE else target.vector_bytes / LINE_BYTES


def chain_cycles(core: Core, depth: Any, instructions: Any) -> Any:
    """Cycles that a sum of `depth` products waits for itself, of so many instructions in all, before the next begins.

    While few instructions make up a tile, those of the tiles behind it run meanwhile.
    """
    return core.latency * depth * np.minimum(1.0, instructions / core.in_flight)


def lines_met(wide: Any, row: int, size: int = 4) -> Any:
    """Lines of a cache that so many neighbours of a row meet, a row of a tile that was turned; 0 for a row of none.

    Tiles of other channels are other lines: each line of a cache that a store meets is fetched and waited for again.
    """
    apart = np.gcd(np.asarray(wide).astype(int) * size, math.gcd(row * size, LINE_BYTES))  # where stores begin
    return 1 + (wide * size - apart) / LINE_BYTES if row else 0.0


def line_cycles(unit: Unit) -> float:
    """Cycles for each line that a stored row meets: more where the second-level cache does not hold the result, beside
    as much of what it is made of."""
    made = unit.facts.target if unit.epilogue is None else facts_of(unit.epilogue).target
    is_far = 2 * unit.facts.points * made.dtype.bytes > unit.target.cache_bytes[1]
    near = LINE_STORED[unit.target.vector_bytes < LINE_BYTES]
    return near * (core_of(unit.target).far_line if is_far else 1.0)


def image_cycles(unit: Unit, image: Load, place: Axis | None) -> float:
    """Cycles of a step for each pixel that it reads, where channels lie lines apart and not in the nearest cache.

    Pixels that are lines apart share these with those of the next tiles.
    """
    facts, size, line = unit.facts, image.buffer.dtype.bytes, LINE_BYTES
    apart = 0 if place is None else size * abs(facts.step(image, place.var) or 0)
    if not apart or not is_plain(facts, image) or load_bytes(image) <= unit.target.cache_bytes[0]:
        return 0.0
    assert place is not None
    taps = math.prod(extent(axis) for axis in taps_along(facts, image, place))
    return IMAGE_LINE * (apart / taps if apart < line else size) / line


def is_plain(facts: Facts, image: Load) -> bool:
    """Whether the channels of an image lie lines apart."""
    return LINE_BYTES <= max(abs(facts.step(image, axis.var) or 0) for axis in facts.reduce) * image.buffer.dtype.bytes


def step_cycles(
    core: Core, rows: Any, vectors: Any, clash: bool = False, read: Any = None, written: int = 1, chain: Any = None
) -> Any:
    """Cycles of a step of the reduction for a register tile of `rows` × `vectors` accumulators.

    A step multiplies each of `vectors` vectors with each of `rows` numbers that are broadcast, with `clash` loaded one
    after the other; a sum waits for itself, for `chain` cycles. Where so many steps are `written` out they share what
    they `read`.
    """
    loads = vectors / core.loads + (rows if read is None else read) / (1.0 if clash else core.loads)
    issued = np.maximum(rows * vectors / core.multiply_adds, loads * LOAD_SHARE)
    return np.maximum(
        issued + STEP_CYCLES / written + VECTOR_CYCLES * vectors, core.latency if chain is None else chain
    )


def square_cycles(core: Core, rows: Any, vectors: Any) -> Any:
    """The same for products of squares, two rows in each. A vector has a quarter of the bytes of AVX-512's."""
    pairs = rows / 2
    issued = np.maximum(pairs * vectors / core.multiply_adds, (pairs + vectors) / core.loads * LOAD_SHARE)
    return np.maximum(issued, core.latency) + STEP_CYCLES + VECTOR_CYCLES / 4 * vectors


@dataclass(frozen=True)
class Tiles:
    """Register tiles for `m` rows of `across` vectors and a reduction of `k` steps: what each size costs."""

    core: Core
    m: int
    across: int
    k: int
    registers: int
    clash: bool = False
    """Whether the rows' numbers are loaded one after the other."""
    is_open: bool = False
    """Whether there may be more or fewer rows: as many tiles as there are on average."""
    together: float = math.inf
    """Rows that have room in the first-level cache: as many as lie in the same place there."""

    def fits(self, rows: Any, vectors: Any) -> Any:
        """Whether accumulators, a step's vectors and a broadcast have registers of their own, with some left."""
        held = (rows * vectors + vectors + 1 <= self.registers) & (rows * vectors <= self.registers * 3 // 4)
        return held & (vectors == self.width) if self.is_open else held

    @functools.cached_property
    def width(self) -> int:
        """Vectors of the tile for just `m` rows: a form for all sizes packs weights as one for these does."""
        return replace(self, is_open=False).best[0]["vectors"]

    def cycles(self, rows: Any, vectors: Any, parts: Any = 1) -> Any:
        """Cycles of all tiles; those at the ends are as large as what is left, and are more code. Sums that are made in
        parts wait for themselves as much less."""
        total: Any = 0.0
        known: Any = ((rows, self.m // rows), (self.m % rows, self.m % rows > 0))
        for r, down in open_tiles(self.m, rows) if self.is_open else known:
            for v, along in ((vectors, self.across // vectors), (self.across % vectors, self.across % vectors > 0)):
                # A panel of weights passes by: what a step begins with is not done while sums wait for themselves.
                chain = self.core.latency / parts
                step = np.maximum(
                    step_cycles(self.core, r, v, self.clash, chain=chain), chain + STEP_CYCLES + VECTOR_CYCLES * v
                )
                step = step + SAME_PLACE * r * (r > self.together)
                total = total + down * along * (self.k * step + TILE_CYCLES + 2 * r * v)
        ends = (self.m % rows > 0) & (not self.is_open)
        return total * (1 + UNEVEN * (ends * 1.0 + (self.across % vectors > 0)))

    @functools.cached_property
    def best(self) -> tuple[dict[str, int], float]:
        """The tile that costs least, and its cycles."""
        knobs = {"rows": range(1, 17), "vectors": range(1, 9)}
        return cheapest(knobs, lambda columns: self.cycles(**columns), lambda columns: self.fits(**columns))


def rows_together(target: Target, pitch: int | None) -> float:
    """Rows, so many bytes apart, that the first-level cache has room for: those a multiple of `SET_SPAN` apart share
    a few places."""
    return target.cache_bytes[0] / math.gcd(pitch, SET_SPAN) if pitch and pitch % LINE_BYTES == 0 else math.inf


def product_seconds(name: str, unit: Unit, kernel: MicroKernel = VECTOR) -> float:
    """What a contraction takes at the family's share of the peak, or while its operands come from behind the caches."""
    facts, lanes = unit.facts, int(unit.target.lanes(unit.facts.target.dtype))
    products = kernel.products_a_cycle(core_of(unit.target).multiply_adds, lanes)
    cycles = facts.points * facts.depth / products / SHARES[kernel.family(name)]
    read = sum(load_bytes(load) for load in facts.loads)
    return float(seconds(max(cycles, read / bytes_a_cycle(read, unit.target)), unit.target))


def overlapped(computing: Any, streaming: Any) -> Any:
    """Cycles of computing and streaming together."""
    return np.maximum(computing, streaming) + OVERLAP * np.minimum(computing, streaming)


def stream_cycles(unit: Unit) -> float:
    """Cycles in which what a block reads and writes comes and goes, each element once."""
    facts = unit.facts
    moved = sum(load_bytes(load) for load in facts.loads) + facts.points * facts.target.dtype.bytes
    return float(moved / bytes_a_cycle(moved, unit.target))


def bytes_a_cycle(size: int, target: Target) -> float:
    """What a core gets from where so many bytes lie."""
    core = core_of(target)
    _, second, third = target.cache_bytes
    return core.second_level if size <= second else core.third_level if size <= third else core.memory


def ruled(
    name: str,
    unit: Unit,
    knobs: Mapping[str, tuple[int, ...]],
    rule: Point,
    apply: Callable[[Point], None],
    kernel: MicroKernel = VECTOR,
) -> Sketch:
    """A sketch whose best point is told by a rule; the others are estimated by how far away they are."""
    choices = {knob: tuple(sorted({*numbers, rule[knob]})) for knob, numbers in knobs.items()}
    return Sketch(kernel.family(name), choices, apply, around_rule(rule, product_seconds(name, unit, kernel)))


def open_sizes(typical: int) -> tuple[int, ...]:
    """What a size that is open may be, each as often as the others: so many that a divisor is not theirs by chance."""
    first, last = (max(1, typical * n // 4) for n in OPEN_QUARTERS)
    count = min(last - first, OPEN_SAMPLES - 1)
    return tuple(first + (last - first) * at // max(count, 1) for at in range(count + 1))


def open_tiles(typical: int, tile: Any) -> list[tuple[Any, Any]]:
    """The sizes that `shift_tiles` gives tiles of an open size, and how many of each its typical number makes, on
    average of those around it."""
    sizes, counts = _open_tiles(typical, int(np.max(tile)) + 1)
    return [(sizes[tile, at], counts[tile, at]) for at in range(sizes.shape[1])]


@functools.lru_cache(maxsize=64)
def _open_tiles(typical: int, end: int) -> tuple[Any, Any]:
    """The same for tiles of 0, 1, 2, … elements."""
    found, several = [tile_sizes(max(tile, 1)) for tile in range(end)], open_sizes(typical)
    sizes, counts = np.ones((end, len(found[-1]))), np.zeros((end, len(found[-1])))
    for tile, of_tile in enumerate(found):
        sizes[tile, : len(of_tile)] = of_tile
        total = np.sum([tile_counts(of_tile[0], n) for n in several], axis=0)
        counts[tile, : len(of_tile)] = total * typical / sum(several)
    return sizes, counts


def even_share(parts: int, cores: int) -> float:
    """The part of the cores that is busy while so many equal parts are done."""
    return parts / (-(-parts // max(cores, 1)) * max(cores, 1))
