"""Products with weights of few bits (weft/ops/few_bits.py) by dot products of bytes; the nest, outermost first:

    no         panels of columns                                                                          parallel
    rows       tiles of rows, while a panel stays in the first-level cache
    b          blocks of the reduction: their sums become floats, are scaled and added up in registers
    g          four bytes of a block for each column: codes taken apart in registers
    p, digits  dot products with each digit of each row                                                  written out

Weights are read once, along memory, and nothing is stored for them on the way.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.expr.nodes import Buffer, Var
from weft.ops.few_bits import CODES, DIGITS, FIXED, PARTS, SUM, TOP, TOTAL
from weft.plan.contraction import producers_of_epilogue
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import block_named, extent, extent_of, facts_of, names_of, sole_reader
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.machine import LANE_BYTES
from weft.targets.cpu.microkernels import MicroKernel, digit_dots
from weft.targets.cpu.sketches import nest

STAGES = frozenset((TOP, SUM, FIXED, DIGITS, CODES, PARTS, TOTAL))


def panel(target: Target, columns: int) -> tuple[str, int] | None:
    """The type of bytes that codes become, and the columns of a panel; None where the machine has no such product.

    The widest that leaves little of its last panel empty: a vector alone waits for the digits that several would share.
    """
    found = digit_dots(target)
    if found is None:
        return None
    kind, kernel = found
    widths = [n * kernel.lanes for n in range(model.DIGIT_VECTORS, 0, -1)]
    filled = (width for width in widths if -columns % width <= columns * model.MOST_EMPTY_COLUMNS)
    return kind, next(filled, widths[-1])


def match(unit: Unit) -> Sketch | None:
    """The sketch of such a product; None for any other."""
    found = digit_dots(unit.target)
    if unit.facts.block.name != PARTS or found is None:
        return None
    _, kernel = found
    codes = next(load.buffer for load in unit.facts.loads if load.buffer.name not in (DIGITS, PARTS))
    if codes.name == CODES:
        codes = next(load.buffer for load in facts_of(block_named(unit.schedule, CODES)).loads)
    width = int(str(codes.shape[3]))
    rows = max((extent(axis) for axis in unit.facts.spatial[:-3]), default=1)
    digits = extent(unit.facts.spatial[-2])
    most = max(1, unit.target.vector_registers * 3 // 4 // (digits * width // kernel.lanes))
    best = -(-rows // -(-rows // most))
    knobs = {"rows": tuple(range(1, most + 1)), "width": (width,)}
    apply = _Nest(unit, kernel, codes).apply
    return model.ruled("matmul", unit, knobs, {"rows": best, "width": width}, apply, kernel)


class _Nest:
    """One point, applied from the result to the digits."""

    def __init__(self, unit: Unit, kernel: MicroKernel, codes: Buffer) -> None:
        self.unit, self.s, self.kernel, self.codes = unit, unit.schedule, kernel, codes

    def apply(self, point: Point) -> None:
        """All the steps."""
        s, width, known = self.s, point["width"], set(names_of(self.s)) - STAGES
        sums, final = self.sums_and_final()
        *leading, lane = (nest.loops_of(final)[axis] for axis in self.order)
        columns, inside = final.split(lane, factor=width)
        lengths = [extent_of(final, loop) for loop in leading]
        row = lengths.index(max(lengths)) if leading and max(lengths) > 1 else None
        around, tile = [columns, *leading], [inside]
        if row is not None:
            down, rows = final.split(leading[row], factor=point["rows"])
            around, tile = [columns, *nest.without(leading, row), down], [rows, inside]
            final.unroll(rows)
        final.reorder(*around, *tile)
        nest.vectorize(final, inside, self.kernel.lanes)
        sums.compute_at(final, around[-1])
        block = self.add_up(sums, row)
        self.multiply(s[PARTS], sums, block, row)
        step = math.prod(int(str(size)) for size in self.codes.shape[2:])
        sums.prefetch(self.codes.name, block, max(1, model.STREAM_AHEAD // step))
        self.digits(s[DIGITS])
        self.unit.done.update({sums.name, final.name, PARTS, CODES, DIGITS}, set(names_of(s)) - known - STAGES)
        facts = self.unit.facts
        if facts.points * facts.depth >= model.LEAST_PARALLEL_WORK:
            final.parallel(columns)

    def sums_and_final(self) -> tuple[Stage, Stage]:
        """The stage that adds up blocks, and its epilogue, or a copy of it."""
        total = facts_of(block_named(self.s, TOTAL))
        reader = sole_reader(self.s.func, total.target)
        makers = [] if reader is None else producers_of_epilogue(self.s, facts_of(reader))
        mapping = next((mapping for maker, mapping in makers if maker.block.name == TOTAL), {})
        unit = replace(self.unit, facts=total, epilogue=reader if mapping else None, to_epilogue=mapping)
        sums, final, at = nest.sums_and_final(unit, "local")
        self.order = [at[axis.var] for axis in total.spatial]
        return sums, final

    def add_up(self, sums: Stage, row: int | None) -> Var:
        """Blocks, outside of a tile of rows and vectors in registers; gives their loop."""
        sums.set_scope("local")
        *leading, lane = sums.axis
        (block,) = sums.reduce_axis
        rows = [] if row is None else [leading[row]]
        sums.reorder(*nest.without(leading, row), block, *rows, lane)
        nest.unroll(sums, rows)
        nest.vectorize(sums, lane, self.kernel.lanes)
        return block

    def multiply(self, parts: Stage, sums: Stage, block: Var, row: int | None) -> None:
        """The dot products of a block, and its codes taken apart just before them."""
        nest.compute_near(parts, sums, block)
        *leading, b, digit, lane = parts.axis
        group, part, place = parts.reduce_axis
        vectors, inside = parts.split(lane, factor=self.kernel.lanes)
        rows = [] if row is None else [leading[row]]
        parts.reorder(*nest.without(leading, row), b, group, part, *rows, digit, vectors, inside, place)
        nest.unroll(parts, [part, *rows, digit, vectors])
        if 1 < extent_of(parts, group) <= model.DIGIT_GROUPS:
            parts.unroll(group)
        if CODES in names_of(self.s):
            self.take_apart(self.s[CODES], parts, group)
        if self.kernel.takes_lane and extent_of(parts, group) <= model.DIGIT_GROUPS:
            self.keep(self.s.cache_read(DIGITS, "local", [parts.name]), sums, block)
        parts.tensorize(inside, self.kernel.dot)

    def keep(self, near: Stage, sums: Stage, block: Var) -> None:
        """The digits of a block in registers, of which an instruction takes a lane: no vector is filled with them."""
        near.compute_at(sums, block)
        *around, group, place = near.axis
        nest.unroll(near, around)
        nest.vectorize(near, near.fuse(group, place), LANE_BYTES)
        self.unit.done.add(near.name)

    def take_apart(self, codes: Stage, parts: Stage, group: Var) -> None:
        """The numbers in the bytes of a group, a vector of bytes at a time."""
        nest.compute_near(codes, parts, group)
        b, part, g, lane, place = codes.axis
        vectors, inside = codes.split(lane, factor=self.kernel.lanes)
        codes.reorder(b, g, part, vectors, inside, place)
        bytes_ = codes.fuse(inside, place)
        nest.unroll(codes, [part, vectors])
        codes.vectorize(bytes_)

    def digits(self, digits: Stage) -> None:
        """A digit of several numbers at a time: which one it is is then known."""
        *rows, b, digit, part, group, place = digits.axis
        digits.reorder(*rows, b, digit, part, group, place)
        fused = digits.fuse(group, place)
        nest.unroll(digits, [digit, part])
        nest.vectorize(digits, fused, 16, unrolled=False)
