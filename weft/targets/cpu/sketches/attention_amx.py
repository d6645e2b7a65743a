"""Attention of bfloat16 (weft/ops/attention_fused.py) on AMX tiles: scores of a block of queries never leave the cache.

    for each batch and head:                                      threads, where there are enough heads
        its keys and values in tiles, woven
        for each block of queries:                                threads, where there are few heads
            tiles of queries × tiles of keys      two columns of tiles at a time, the steps on them   -> block × keys
            the top of each row, powers rounded to bfloat16, their sum
            tiles of powers × tiles of values     two columns of tiles at a time, divided by the sums -> the output

A block is one or two tiles of queries, so that four tiles of sums stay in tile registers. Sizes that do not divide are
padded by the operator (`padded`); an element of a key must be whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.expr.nodes import Var
from weft.loop.tree import blocks_in
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
from weft.schedule.facts import block_named, facts_of, names_of, sole_reader
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import amx
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK, schedule_reduction
from weft.targets.cpu.model import ruled
from weft.targets.cpu.sketches.attention import STAGES, by_heads, final_loops, sizes_of
from weft.targets.cpu.sketches.matmul_amx import KINDS, TILE, multiply_tiles, split_tiles, tile_layout

KIND = KINDS["bfloat16", "bfloat16", "float32"]
DEPTH = KIND.depth
"""Steps of a product in one tile."""


def padded(sizes: Sizes, target: Target) -> Padded | None:
    """The sizes that the stages should have; None where tiles do not take this attention."""
    if not amx.available(target) or sizes.size % DEPTH or sizes.queries < TILE:
        return None
    return Padded(_up(sizes.queries, _block(sizes)), _up(sizes.keys, DEPTH), _up(sizes.value_size, TILE))


def _up(size: int, factor: int) -> int:
    return ceildiv(size, factor) * factor


def _block(sizes: Sizes) -> int:
    """Queries of a block: two tiles, or one where there are no more."""
    return TILE if sizes.queries <= TILE else 2 * TILE


def match(unit: Unit) -> Sketch | None:
    """The sketch of a fused attention of bfloat16; None for any other product, or another machine."""
    s = unit.schedule
    if unit.facts.block.name != SCORES or not STAGES <= set(names_of(s)) or not amx.available(unit.target):
        return None
    if {load.buffer.dtype.name for load in unit.facts.loads if load.buffer is not unit.facts.target} != {"bfloat16"}:
        return None
    final = sole_reader(s.func, facts_of(block_named(s, MIXED)).target)
    order = None if final is None else final_loops(final)
    if final is None or order is None:
        return None
    sizes = sizes_of(s, final, order)
    width = TILE if _up(sizes.value_size, TILE) % (2 * TILE) else 2 * TILE
    point = {"block": _block(sizes), "width": width, "by_heads": by_heads(sizes, unit.target)}

    def apply(point: Point) -> None:
        others = set(names_of(s)) - STAGES - {final.name}
        _Sketch(s, final.name, sizes, point, unit.target).apply(order)
        unit.done.update(set(names_of(s)) - others)
        unit.done.update(block.name for block in blocks_in(s.func.body) if block.writes[0].buffer.scope == "amx.tile")

    knobs = {"block": (point["block"],), "width": tuple(sorted({TILE, width})), "by_heads": (0, 1)}
    return ruled("attention_amx", unit, knobs, point, apply)


@dataclass
class _Around:
    """The loops of the last block: around a head, around a block of queries, around two columns of tiles."""

    head: Var
    block: Var
    panel: Var


class _Sketch:
    """One point of the space, applied from the output to the inputs."""

    def __init__(self, s: Schedule, final: str, sizes: Sizes, point: Point, target: Target) -> None:
        self.s, self.final, self.sizes, self.point, self.target = s, s[final], sizes, point, target

    def apply(self, order: list[int]) -> None:
        """All the steps."""
        s = self.s
        self.lay_out()
        packed = self.weave_keys()
        around = self.outer_loops(order)
        self.product(MIXED, self.final, around.panel, s[GROWN], s[VALUES])
        for name in (TOTAL, GROWN, TOP, MASKED):
            s[name].compute_at(self.final, around.block, exact=False)
        self.lanes(s[GROWN], DEPTH)
        self.product(SCORES, s[MASKED], self.panels(s[MASKED]), s[QUERIES], packed)
        for name in (TOTAL, TOP):
            schedule_reduction(s[name], self.target)
        self.operands(around, packed)
        self.threads(around, packed)

    def lay_out(self) -> None:
        """Operands of products in tiles, in the order in which they are read."""
        block, width, group = self.point["block"], self.point["width"], KIND.group
        for name in (QUERIES, GROWN):
            tiles = [
                "b",
                "h",
                f"i // {block}",
                f"k // {DEPTH}",
                f"i % {block} // {TILE}",
                f"i % {TILE}",
                f"k % {DEPTH}",
            ]
            self.s.apply("transform_layout", buffer=name, inputs=["b", "h", "i", "k"], outputs=tiles)
        woven = [f"e // {width}", f"k // {DEPTH}", f"e % {width} // {TILE}"]
        inside = [f"k % {DEPTH} // {group}", f"e % {TILE}", f"k % {group}"]
        outputs = ["b", "h", *woven, *inside]
        self.s.apply("transform_layout", buffer=VALUES, inputs=["b", "h", "k", "e"], outputs=outputs)

    def weave_keys(self) -> Stage:
        """The keys in tiles: the elements of a key lie side by side, so that a tile is transposed whole."""
        packed = self.s.cache_read(KEYS, "global", [SCORES])
        width, group = 2 * TILE, KIND.group
        woven = [f"j // {width}", f"k // {DEPTH}", f"j % {width} // {TILE}"]
        inside = [f"k % {DEPTH} // {group}", f"j % {TILE}", f"k % {group}"]
        buffer = packed.block.writes[0].buffer.name
        outputs = ["b", "h", *woven, *inside]
        self.s.apply("transform_layout", buffer=buffer, inputs=["b", "h", "j", "k"], outputs=outputs)
        return packed

    def outer_loops(self, order: list[int]) -> _Around:
        """The loops of the last block: heads, blocks of queries, columns; inside, a query and lanes of its value."""
        batch, head, place, element = (self.final.axis[at] for at in order)
        block, inside = self.final.split(place, factor=self.point["block"])
        panel, within = self.final.split(element, factor=self.point["width"])
        self.final.reorder(batch, head, block, panel, inside, within)
        self.final.annotate("partition", False, block)
        if self.point["width"] > TILE:
            within = self.final.split(within, factor=TILE)[1]
        self.final.vectorize(within)
        return _Around(self.final.fuse(batch, head), block, panel)

    def panels(self, stage: Stage) -> Var:
        """The loops of the steps on the scores: two columns of tiles at a time; gives the loop around those."""
        place, key = stage.axis[2:4]
        panel, inside = stage.split(key, factor=2 * TILE)
        stage.reorder(panel, place, inside)
        stage.vectorize(stage.split(inside, factor=TILE)[1])
        return panel

    def product(self, name: str, reader: Stage, at: Var, left: Stage, right: Stage) -> None:
        """A product on tiles for the block of its reader inside a loop."""
        s, stored = self.s, self.s[name]
        tile = s.cache_write(name, "amx.tile")
        stored.compute_at(reader, at, exact=False)
        emptied = split_tiles(s, stored, 2, 3)
        tile.compute_at(reader, at, exact=False)
        tile_layout(s, tile, 2, 3)
        multiply_tiles(s, tile, left, right, KIND, 2, 3)
        stored.tensorize(emptied, KIND.store)

    def lanes(self, stage: Stage, count: int) -> None:
        """Lanes along the last axis."""
        stage.vectorize(stage.split(stage.axis[-1], factor=count)[1])

    def operands(self, around: _Around, packed: Stage) -> None:
        """The copies: keys and values of a head, queries of a block."""
        s = self.s
        s[QUERIES].compute_at(self.final, around.block, exact=False)
        self.lanes(s[QUERIES], DEPTH)
        if self.point["by_heads"]:
            for stage in (packed, s[KEYS], s[VALUES]):
                stage.compute_at(self.final, around.head)
        self.lanes(s[KEYS], DEPTH)
        key, element = packed.axis[2:4]
        jo, ji = packed.split(key, factor=TILE)
        ko, ki = packed.split(element, factor=DEPTH)
        packed.reorder(jo, ko, ji, ki)
        packed.tensorize(ji, KIND.weave)
        place, element = s[VALUES].axis[2:4]
        pair, part = s[VALUES].split(place, factor=KIND.group)
        column, lane = s[VALUES].split(element, factor=TILE)
        s[VALUES].reorder(column, pair, part, lane)
        s[VALUES].unroll(part)
        s[VALUES].vectorize(lane)

    def threads(self, around: _Around, packed: Stage) -> None:
        """Whole heads for each thread, or blocks of all heads."""
        sizes = self.sizes
        if sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.size < LEAST_PARALLEL_WORK:
            return
        if self.point["by_heads"]:
            self.final.parallel(around.head)
            return
        self.final.parallel(self.final.fuse(around.head, around.block))
        for stage in (packed, self.s[KEYS], self.s[VALUES]):
            stage.parallel(stage.fuse(*stage.loops[:3]))


__all__ = ["padded", "match"]
