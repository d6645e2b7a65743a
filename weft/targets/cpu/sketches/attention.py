"""Attention (weft/ops/attention_fused.py) on a CPU: the scores of a block of queries never leave the cache.

    for each batch and head:                                      threads, where there are enough heads
        its keys in panels of lanes, its values in rows
        for each block of queries:                                threads, where there are few heads
            panels of keys × tiles of queries     products in registers, the steps on them      -> block × keys
            the top of each row, powers, their sum
            tiles of queries × values             products in registers, in blocks of keys where values are many
            divided by the sums                                                                 -> the output

A tile is `rows` queries × `key_vectors` vectors of keys, and × `value_vectors` vectors of a value in the second
product. Sizes that do not divide are padded by the operator (`padded`): no tile is ever cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.loop.ir import Block
from weft.ops.attention_fused import (
    GROWN,
    KEYS,
    MASKED,
    MIXED,
    QUERIES,
    SCORES,
    TOP,
    TOTAL,
    VALUES,
    Padded,
    Sizes,
)
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import block_named, extent, facts_of, names_of, sole_reader
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK, extent_of, schedule_reduction
from weft.targets.cpu.model import ruled

DEPTH = 4
"""Steps of a product that are written out, at most."""

MOST_ROWS = 12
"""Queries of a register tile, at most."""

LEAST_BLOCK, MOST_BLOCK = 16, 48
"""Queries of a block."""

SECOND_LEVEL_BYTES = 24.0
"""Bytes a cycle that come from the second-level cache."""

STAGES = frozenset((QUERIES, KEYS, VALUES, SCORES, MASKED, TOP, GROWN, TOTAL, MIXED))
"""The stages that the sketch deals with: none of them is dissolved before it is asked."""

ROW_CYCLES = 14.0
"""Cycles for a vector of scores between the products: the steps, the top, the power, the sum."""


# ------------------------------------------------------------------------------------------------- the default point


def padded(sizes: Sizes, target: Target, lanes: int) -> Padded:
    """The sizes that the stages should have for the default point."""
    return _padded(sizes, default_point(sizes, target, lanes), lanes)


def _padded(sizes: Sizes, point: Point, lanes: int) -> Padded:
    return Padded(
        _up(sizes.queries, point["block"]),
        _up(sizes.keys, lanes * point["key_vectors"]),
        _up(sizes.value_size, lanes * point["value_vectors"]),
    )


def _up(size: int, factor: int) -> int:
    return ceildiv(size, factor) * factor


def default_point(sizes: Sizes, target: Target, lanes: int) -> dict[str, int]:
    """The numbers that the facts about a machine suggest: the fewest cycles by counting."""
    best: tuple[float, dict[str, int]] | None = None
    for rows in range(1, min(MOST_ROWS, sizes.queries) + 1):
        block = _block(sizes, rows, target)
        for key_vectors in range(1, 5):
            for value_vectors in range(1, 5):
                if (rows + 1) * max(key_vectors, value_vectors) + 1 > target.vector_registers:
                    continue
                point = {"block": block, "rows": rows, "key_vectors": key_vectors, "value_vectors": value_vectors}
                cycles = _cycles(sizes, point, target, lanes)
                if best is None or cycles < best[0]:
                    best = (cycles, point)
    assert best is not None
    return {**best[1], "depth": _depth(sizes, target), "by_heads": by_heads(sizes, target)}


def _depth(sizes: Sizes, target: Target) -> int:
    """Keys of a block of the second product: all, where the values of a head stay in the second-level cache."""
    room = (target.cache_bytes[1] or 256 << 10) // 16
    row = 4 * sizes.value_size
    if row * sizes.keys <= 4 * room:
        return sizes.keys
    parts = ceildiv(row * sizes.keys, room)
    return next((sizes.keys // n for n in range(parts, 2 * parts) if sizes.keys % n == 0), sizes.keys)


def _block(sizes: Sizes, rows: int, target: Target) -> int:
    """Queries of a block, whole tiles: as many as two rows of scores for each fit the first-level cache, at least 16.

    Keys and values that come from behind the second-level cache are read once for a block: fewer would wait for them.
    """
    most = max((target.cache_bytes[0] or 32 << 10) // 2 // (8 * sizes.keys), LEAST_BLOCK, rows)
    blocks = ceildiv(sizes.queries, min(most, MOST_BLOCK))
    return _up(ceildiv(sizes.queries, blocks), rows)


def by_heads(sizes: Sizes, target: Target) -> int:
    """Whether threads take whole heads: each packs its keys just before it uses them."""
    count, cores = sizes.batch * sizes.heads, max(target.cores, 1)
    return int(count / (ceildiv(count, cores) * cores) > 0.85)


def _cycles(sizes: Sizes, point: Point, target: Target, lanes: int) -> float:
    """The cycles of one head."""
    queries, keys, value_size = _padded(sizes, point, lanes)
    rows, across, along = point["rows"], point["key_vectors"], point["value_vectors"]
    first = queries // rows * (keys // lanes // across) * sizes.size * _step_cycles(rows, across, 0)
    near = 4 * (sizes.keys + point["block"]) * lanes * along * 2 <= (target.cache_bytes[0] or 32 << 10)
    moved = 0 if near else 4 * lanes * along
    second = queries // rows * (value_size // lanes // along) * sizes.keys * _step_cycles(rows, along, moved)
    return first + second + queries * keys / lanes * ROW_CYCLES


def _step_cycles(rows: int, vectors: int, moved: float) -> float:
    """One step of a register tile: two multiply-adds and two loads a cycle, and at least ten sums under way."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 5, moved / SECOND_LEVEL_BYTES)


# --------------------------------------------------------------------------------------------------------- the sketch


def match(unit: Unit) -> Sketch | None:
    """The sketch of a fused attention; None for any other product."""
    s = unit.schedule
    if unit.facts.block.name != SCORES or not {MASKED, TOP, GROWN, TOTAL, MIXED} <= set(names_of(s)):
        return None
    target, lanes = unit.target, unit.target.lanes(unit.facts.target.dtype)
    final = sole_reader(s.func, facts_of(block_named(s, MIXED)).target)
    found = None if final is None else final_loops(final)
    if final is None or found is None or lanes < 2:
        return None
    sizes = sizes_of(s, final, found)
    point = default_point(sizes, target, lanes)

    def apply(point: Point) -> None:
        own = STAGES | {final.name}
        others = set(names_of(s)) - own
        _Sketch(s, final.name, sizes, point, target).apply(found)
        unit.done.update(set(names_of(s)) - others)

    return ruled("attention", unit, _knobs(s, point, lanes), point, apply)


def _knobs(s: Schedule, point: Point, lanes: int) -> dict[str, tuple[int, ...]]:
    """Numbers that fit the padding."""
    _, _, queries, keys = (extent(axis) for axis in facts_of(block_named(s, SCORES)).spatial)
    value_size = extent(facts_of(block_named(s, MIXED)).spatial[-1])
    choices = {
        "block": tuple(n for n in range(1, 4 * MOST_BLOCK) if queries % n == 0),
        "rows": tuple(n for n in range(1, MOST_ROWS + 1) if queries % n == 0),
        "key_vectors": tuple(n for n in (1, 2, 3, 4) if keys % (n * lanes) == 0),
        "value_vectors": tuple(n for n in (1, 2, 3, 4) if value_size % (n * lanes) == 0),
        "depth": tuple(sorted({point["depth"], facts_of(block_named(s, MIXED)).depth})),
        "by_heads": (0, 1),
    }
    return {knob: tuple(sorted({*values, point[knob]})) for knob, values in choices.items()}


def final_loops(final: Block) -> list[int] | None:
    """The positions of batch, head, place and element among the axes of the block that divides by the sums."""
    facts = facts_of(final)
    variables = [axis.var for axis in final.axes]
    loads = [load for load in facts.loads if load.buffer.name == MIXED]
    if facts.is_reduction or not loads or any(list(load.indices) != list(loads[0].indices) for load in loads):
        return None
    found = [variables.index(i) for i in loads[0].indices if isinstance(i, Var) and i in variables]
    return found if len(found) == 4 and sorted(found) == list(range(len(variables))) else None


def sizes_of(s: Schedule, final: Block, order: list[int]) -> Sizes:
    """The sizes of the attention whose last block this is."""
    batch, heads, queries, value_size = (extent(final.axes[at]) for at in order)
    depth, keys = facts_of(block_named(s, SCORES)).depth, facts_of(block_named(s, MIXED)).depth
    return Sizes(batch, heads, queries, keys, depth, value_size)


@dataclass
class _Around:
    """The loops of the last block: around a head, and around a block of queries."""

    head: Var
    block: Var


class _Sketch:
    """One point of the space, applied from the output to the inputs."""

    def __init__(self, s: Schedule, final: str, sizes: Sizes, point: Point, target: Target) -> None:
        self.s, self.final, self.sizes, self.point, self.target = s, s[final], sizes, point, target
        self.lanes = target.lanes(facts_of(block_named(s, SCORES)).target.dtype)
        queries, keys = (extent(axis) for axis in facts_of(block_named(s, SCORES)).spatial[2:])
        value_size = extent(facts_of(block_named(s, MIXED)).spatial[-1])
        wanted = _padded(sizes, point, self.lanes)
        if wanted.queries > queries or keys % (point["key_vectors"] * self.lanes) or point["block"] % point["rows"]:
            raise ScheduleError("attention", str(dict(point)), f"its tiles do not fill {queries} × {keys} scores")
        if value_size % (point["value_vectors"] * self.lanes):
            raise ScheduleError("attention", str(dict(point)), f"its vectors do not fill values of {value_size}")

    def apply(self, order: list[int]) -> None:
        """All the steps."""
        s = self.s
        blocked = self.point["depth"] < self.sizes.keys
        accumulate = self.blocks_of_keys() if blocked else s.cache_write(MIXED, "local")
        around = self.outer_loops(order)
        self.weigh(around, accumulate)
        for name in (TOTAL, GROWN, TOP):
            s[name].compute_at(self.final, around.block, exact=False)
        self.lanes_inside(s[GROWN])
        self.products(around)
        for name in (TOTAL, TOP):
            schedule_reduction(s[name], self.target)
        self.operands(around)
        self.threads(around)

    def outer_loops(self, order: list[int]) -> _Around:
        """The loops of the last block: batch, head, blocks of queries; inside, a query and lanes of its value."""
        loops = self.final.axis
        batch, head, place, element = (loops[at] for at in order)
        block, inside = self.final.split(place, factor=self.point["block"])
        self.final.reorder(batch, head, block, inside, element)
        self.final.annotate("partition", False, block)
        if self.sizes.value_size > self.lanes:
            element = self.final.split(element, factor=self.lanes)[1]
        self.final.vectorize(element)
        return _Around(self.final.fuse(batch, head), block)

    def blocks_of_keys(self) -> Stage:
        """The products with the values in blocks of keys, which are added up; gives the stage that makes one block."""
        stage = self.s[MIXED]
        outer, _ = stage.split(stage.reduce_axis[0], factor=self.point["depth"])
        stage.reorder(outer, *stage.axis)
        made = self.s.rfactor(MIXED, outer)
        stage.annotate("inline_init", True)
        return made

    def weigh(self, around: _Around, accumulate: Stage) -> None:
        """The products with the values: register tiles whose sums are stored once for each block of keys."""
        stage, rows, width = self.s[MIXED], self.point["rows"], self.point["value_vectors"] * self.lanes
        stage.compute_at(self.final, around.block, exact=False)
        at = self.tile(stage, rows, width)
        self.register_tile(accumulate, stage, at)

    def products(self, around: _Around) -> None:
        """The scores: register tiles, with the steps on each."""
        stage, rows, width = self.s[MASKED], self.point["rows"], self.point["key_vectors"] * self.lanes
        stage.compute_at(self.final, around.block, exact=False)
        at = self.tile(stage, rows, width)
        self.register_tile(self.s[SCORES], stage, at)

    def tile(self, stage: Stage, rows: int, width: int) -> Var:
        """Loops over tiles: all the rows for a panel, then the next panel; gives the loop around a tile."""
        place, lane = stage.axis[2:4]
        down, row = stage.split(place, factor=rows)
        panel, inside = stage.split(lane, factor=width)
        blocks = list(stage.reduce_axis)
        stage.reorder(*blocks, panel, down, row, inside)
        for loop in blocks:
            stage.annotate("partition", False, loop)
        stage.unroll(row)
        self.vectors(stage, inside)
        return down

    def vectors(self, stage: Stage, loop: Var) -> None:
        """A stretch as vectors side by side."""
        if extent_of(stage, loop) > self.lanes:
            unrolled, loop = stage.split(loop, factor=self.lanes)
            stage.unroll(unrolled)
        stage.vectorize(loop)

    def register_tile(self, sums: Stage, stage: Stage, at: Var) -> None:
        """The sums of one tile, in registers."""
        sums.compute_at(stage, at, exact=False)
        sums.set_scope("local")
        row, lane = sums.axis[2:4]
        (step,) = sums.reduce_axis
        written = next(n for n in (DEPTH, 2, 1) if extent_of(sums, step) % n == 0)
        deep = [step] if written == 1 else list(sums.split(step, factor=written))
        tile = [row, lane]
        if extent_of(sums, lane) > self.lanes:
            tile = [row, *sums.split(lane, factor=self.lanes)]
        sums.reorder(*deep, *tile)
        for loop in [*deep[1:], *tile[:-1]]:
            sums.unroll(loop)
        sums.vectorize(tile[-1])

    def lanes_inside(self, stage: Stage) -> None:
        """Lanes along the keys."""
        last = stage.axis[-1]
        wide = next(n for n in (4, 2, 1) if extent_of(stage, last) % (n * self.lanes) == 0)
        self.vectors(stage, stage.split(last, factor=wide * self.lanes)[1])

    def operands(self, around: _Around) -> None:
        """The copies: keys and values of a head, queries of a block."""
        s, by_heads = self.s, bool(self.point["by_heads"])
        width = self.point["key_vectors"] * self.lanes
        names = names_of(s)
        if KEYS in names:
            outputs = ["b", "h", f"j // {width}", "d", f"j % {width}"]
            s.apply("transform_layout", buffer=KEYS, inputs=["b", "h", "j", "d"], outputs=outputs)
            if by_heads:
                s[KEYS].compute_at(self.final, around.head)
            self.pack_keys(s[KEYS], width)
        if VALUES in names:
            if by_heads:
                s[VALUES].compute_at(self.final, around.head)
            self.vectors(s[VALUES], s[VALUES].axis[-1])
        if QUERIES in names:
            s[QUERIES].compute_at(self.final, around.block, exact=False)
            self.copy_rows(s[QUERIES])

    def pack_keys(self, stage: Stage, width: int) -> None:
        """Panels of keys: a square at a time, transposed in registers, where an element of a key lies by the next."""
        facts = facts_of(stage.block)
        place, element = stage.axis[2:4]
        panel, inside = stage.split(place, factor=width)
        lanes = self.lanes
        beside = any(facts.step(load, facts.spatial[3].var) == 1 for load in facts.loads)
        if beside and self.sizes.size % lanes == 0 and lanes in (4, 8, 16):
            step, lane = stage.split(element, factor=lanes)
            vector, column = stage.split(inside, factor=lanes)
            stage.reorder(panel, step, vector, column, lane)
            stage.unroll(column)
            stage.vectorize(lane)
            return
        stage.reorder(panel, element, inside)
        self.vectors(stage, inside)

    def copy_rows(self, stage: Stage) -> None:
        """A plain copy, lanes along its last axis."""
        last = stage.axis[-1]
        if extent_of(stage, last) > self.lanes:
            last = stage.split(last, factor=self.lanes)[1]
        stage.vectorize(last)

    def threads(self, around: _Around) -> None:
        """Whole heads for each thread, or blocks of all heads."""
        s, sizes = self.s, self.sizes
        work = sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.size
        if work < LEAST_PARALLEL_WORK:
            return
        if self.point["by_heads"]:
            self.final.parallel(around.head)
            return
        self.final.parallel(self.final.fuse(around.head, around.block))
        for name in (KEYS, VALUES):
            if name in names_of(s):
                s[name].parallel(s[name].fuse(*s[name].axis[:2]))


__all__ = ["default_point", "padded", "match"]
