"""Attention (weft/ops/attention_fused.py) on a CPU: the scores of a block of queries never leave the cache.

    for each batch and head:                                      threads, where there are enough heads
        its keys in panels of columns, its values in rows (in tiles, woven, for AMX)
        for each block of queries:                                threads, where there are few heads
            panels of keys × tiles of queries     products in registers, the steps on them      -> block × keys
            the top of each row, powers, their sum
            tiles of queries × values             products in registers, in blocks of keys where values are many
            divided by the sums                                                                 -> the output

With vectors, a register tile is `rows` queries × `key_vectors` vectors of keys, and × `value_vectors` vectors of a
value in the second product. With AMX (bfloat16), a block is one or two tiles of queries and two columns of tiles are
multiplied at a time, so that four tiles of sums stay in tile registers; powers are rounded to bfloat16 between the
products, and the elements of a key must be whole tiles. Sizes that do not divide are padded by the operator
(`padded`): no tile is ever cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.dtypes import FLOAT32
from weft.core.errors import ScheduleError
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
from weft.plan.contraction import attention_order
from weft.plan.planner import OPEN, Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import block_named, extent, extent_of, facts_of, names_of, sole_reader
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.default_loops import reduce_in_lanes, schedule_reduction
from weft.targets.cpu.microkernels import MicroKernel, fma, tiles
from weft.targets.cpu.sketches import nest

STAGES = frozenset((QUERIES, KEYS, VALUES, SCORES, MASKED, TOP, GROWN, TOTAL, MIXED))
"""The stages that the sketch deals with: none of them is inlined before it is asked."""

NARROW = ("bfloat16", "bfloat16", "float32")
"""What the products in tiles multiply, and add up."""


# -------------------------------------------------------------------------------------------------- the default points


def padded(sizes: Sizes, target: Target, dtype: str) -> Padded | None:
    """The sizes that the stages should have for the default point; None for narrow operands that tiles do not take."""
    kernel = tiles(NARROW, target) if dtype == "bfloat16" else None
    if kernel is None:  # without matrix instructions the products stay float32
        lanes = target.lanes(FLOAT32)
        return _padded_to_vectors(sizes, _point_of_vectors(sizes, target, lanes), lanes)
    if sizes.size % kernel.depth or sizes.queries < kernel.rows:
        return None
    block = _point_of_tiles(sizes, target, kernel)["block"]
    return Padded(_up(sizes.queries, block), _up(sizes.keys, kernel.depth), _up(sizes.value_size, kernel.lanes))


def factors(sizes: Sizes, target: Target, dtype: str) -> Padded | None:
    """For sizes some of which are open (negative): minus the tiles of those, by the point for any length."""
    if dtype == "bfloat16" and tiles(NARROW, target) is not None:
        return None
    lanes = target.lanes(FLOAT32)
    point = _point_of_vectors(sizes, target, lanes, is_open=True)
    made = _padded_to_vectors(sizes, point, lanes)
    return Padded(
        -point["rows"] if sizes.queries < 0 else made.queries,
        -point["key_vectors"] * lanes if sizes.keys < 0 else made.keys,
        made.value_size,
    )


def _padded_to_vectors(sizes: Sizes, point: Point, lanes: int) -> Padded:
    return Padded(
        _up(sizes.queries, point["block"]),
        _up(sizes.keys, lanes * point["key_vectors"]),
        _up(sizes.value_size, lanes * point["value_vectors"]),
    )


def _up(size: int, factor: int) -> int:
    return ceildiv(size, factor) * factor


def _point_of_tiles(sizes: Sizes, target: Target, kernel: MicroKernel) -> dict[str, int]:
    """Two tiles of queries, or one where there are no more; two of a value where they divide it."""
    block = kernel.rows if sizes.queries <= kernel.rows else 2 * kernel.rows
    width = kernel.lanes if _up(sizes.value_size, kernel.lanes) % (2 * kernel.lanes) else 2 * kernel.lanes
    return {"block": block, "width": width, "by_heads": _by_heads(sizes, target)}


def _point_of_vectors(sizes: Sizes, target: Target, lanes: int, is_open: bool = False) -> dict[str, int]:
    """The numbers that the facts about a machine suggest: the fewest cycles by counting.

    Where queries or keys are open, the fewest over some lengths, whatever the sizes are.
    """
    best: tuple[float, dict[str, int]] | None = None
    for rows in range(1, (model.ATTENTION_ROWS if is_open else min(model.ATTENTION_ROWS, sizes.queries)) + 1):
        block = _up(model.ATTENTION_BLOCK[0], rows) if is_open else _block(sizes, rows, target)
        for key_vectors in range(1, 5):
            for value_vectors in range(1, 5):
                if (rows + 1) * max(key_vectors, value_vectors) + 1 > target.vector_registers:
                    continue
                point = {"block": block, "rows": rows, "key_vectors": key_vectors, "value_vectors": value_vectors}
                cycles = (_open_cycles if is_open else _cycles)(sizes, point, target, lanes)
                if best is None or cycles < best[0]:
                    best = (cycles, point)
    assert best is not None
    if is_open:
        return {**best[1], "depth": sizes.keys, "by_heads": 1}
    return {**best[1], "depth": _depth(sizes, target), "by_heads": _by_heads(sizes, target)}


def _depth(sizes: Sizes, target: Target) -> int:
    """Keys of a block of the second product: all, where the values of a head stay in the second-level cache."""
    room = target.cache_bytes[1] // 16
    row, keys = 4 * sizes.value_size, int(sizes.keys)
    if row * keys <= 4 * room:
        return keys
    parts = ceildiv(row * keys, room)
    return next((keys // n for n in range(parts, 2 * parts) if keys % n == 0), keys)


def _block(sizes: Sizes, rows: int, target: Target) -> int:
    """Queries of a block, whole tiles: as many as two rows of scores for each fit the first-level cache, at least 16.

    Keys and values that come from behind the second-level cache are read once for a block: fewer would wait for them.
    """
    least, most = model.ATTENTION_BLOCK
    fit = max(target.cache_bytes[0] // 2 // (8 * sizes.keys), least, rows)
    blocks = ceildiv(sizes.queries, min(fit, most))
    return _up(ceildiv(sizes.queries, blocks), rows)


def _by_heads(sizes: Sizes, target: Target) -> int:
    """Whether threads take whole heads: each packs its keys just before it uses them."""
    count, cores = sizes.batch * sizes.heads, target.cores
    return int(count / (ceildiv(count, cores) * cores) > model.LEAST_HEADS_BUSY)


def _cycles(sizes: Sizes, point: Point, target: Target, lanes: int) -> float:
    """The cycles of one head."""
    queries, keys, value_size = _padded_to_vectors(sizes, point, lanes)
    rows, across, along = point["rows"], point["key_vectors"], point["value_vectors"]
    first = queries // rows * (keys // lanes // across) * sizes.size * _step_cycles(rows, across, 0)
    near = 4 * (sizes.keys + point["block"]) * lanes * along * 2 <= target.cache_bytes[0]
    moved = 0 if near else 4 * lanes * along
    second = queries // rows * (value_size // lanes // along) * int(sizes.keys) * _step_cycles(rows, along, moved)
    return float(first + second + queries * keys / lanes * model.SCORE_CYCLES)


def _open_cycles(sizes: Sizes, point: Point, target: Target, lanes: int) -> float:
    """The cycles for a score over some lengths, which whole tiles exceed by half of a tile on average."""
    rows, across, along = point["rows"], point["key_vectors"], point["value_vectors"]
    whole = point["block"] * across * lanes
    score = _cycles(sizes._replace(queries=whole, keys=whole), point, target, lanes) / whole**2
    loads = sizes.size * (rows + across) / (rows * across) + sizes.value_size * (rows + along) / (rows * along)
    score += (model.SCORE_WAIT / across + model.LOAD_CYCLES * loads) / lanes
    far = 4 * sizes.value_size / rows / model.ATTENTION_BYTES  # where the values of a panel leave the nearest cache
    total = 0.0
    for n in model.OPEN_LENGTHS:
        is_far = 4 * (n + point["block"]) * lanes * along > target.cache_bytes[0]
        total += (score + far * is_far) * (n + rows / 2) * (n + across * lanes / 2) / n**2
    return total


def _step_cycles(rows: int, vectors: int, moved: float) -> float:
    """One step of a register tile: two multiply-adds and two loads a cycle, and at least ten sums under way."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 5, moved / model.ATTENTION_BYTES)


# -------------------------------------------------------------------------------------------------------- the sketches


def match(unit: Unit) -> Sketch | None:
    """The sketch of a fused attention in vectors; None for any other product."""
    found = _attention(unit, STAGES - {QUERIES, KEYS, VALUES})
    kernel = fma(unit.facts.target.dtype, unit.target, unit.target.lanes(unit.facts.target.dtype))
    if found is None or kernel.lanes < 2:
        return None
    s, (final, order, sizes) = unit.schedule, found
    is_open = OPEN in s.func.annotations
    point = _point_of_vectors(sizes, unit.target, kernel.lanes, is_open)
    scores, mixed = (facts_of(block_named(s, name)) for name in (SCORES, MIXED))
    _, _, queries, keys = (extent(axis) for axis in scores.spatial)
    knobs = {  # numbers that fit the padding
        "block": tuple(n for n in range(1, 4 * model.ATTENTION_BLOCK[1]) if queries % n == 0),
        "rows": tuple(n for n in range(1, model.ATTENTION_ROWS + 1) if queries % n == 0),
        "key_vectors": tuple(n for n in (1, 2, 3, 4) if keys % (n * kernel.lanes) == 0),
        "value_vectors": tuple(n for n in (1, 2, 3, 4) if extent(mixed.spatial[-1]) % (n * kernel.lanes) == 0),
        "depth": (point["depth"], mixed.depth),
        "by_heads": (0, 1),
    }
    if is_open:  # other tiles fit the padding of these sizes only
        knobs = {name: (number,) for name, number in point.items()}

    def apply(point: Point) -> None:
        _InVectors(unit, final, sizes, point, kernel).apply(order)

    return model.ruled("attention", unit, knobs, point, apply)


def match_tiles(unit: Unit) -> Sketch | None:
    """The sketch of a fused attention of bfloat16 in AMX tiles; None for any other product, or another machine."""
    found, kernel = _attention(unit, STAGES), tiles(NARROW, unit.target)
    if found is None or kernel is None:
        return None
    if {load.buffer.dtype.name for load in unit.facts.loads} != {"bfloat16"}:
        return None
    final, order, sizes = found
    point = _point_of_tiles(sizes, unit.target, kernel)
    knobs = {"block": (point["block"],), "width": (kernel.lanes, point["width"]), "by_heads": (0, 1)}

    def apply(point: Point) -> None:
        _InTiles(unit, final, sizes, point, kernel).apply(order)

    return model.ruled("attention", unit, knobs, point, apply, kernel)


def _attention(unit: Unit, stages: frozenset[str]) -> tuple[str, list[int], Sizes] | None:
    """The last block of a fused attention, which of its axes are batch, head, query and element, and the sizes."""
    s = unit.schedule
    if unit.facts.block.name != SCORES or not stages <= set(names_of(s)):
        return None
    mixed = facts_of(block_named(s, MIXED))
    final = sole_reader(s.func, mixed.target)
    order = None if final is None else attention_order(facts_of(final), MIXED)
    if final is None or order is None:
        return None
    batch, heads, queries, value_size = (extent(final.axes[at]) for at in order)
    return final.name, order, Sizes(batch, heads, queries, mixed.depth, unit.facts.depth, value_size)


class _InVectors:
    """One point of a space, applied from the output to the inputs."""

    def __init__(self, unit: Unit, final: str, sizes: Sizes, point: Point, kernel: MicroKernel) -> None:
        self.unit, self.s, self.final, self.sizes, self.point = unit, unit.schedule, unit.schedule[final], sizes, point
        self.kernel, self.lanes = kernel, kernel.lanes
        self.others = set(names_of(self.s)) - STAGES - {final}
        self.is_open = OPEN in self.s.func.annotations

    def apply(self, order: list[int]) -> None:
        """All the steps."""
        s = self.s
        self.prepare()
        self.outer_loops(order)
        self.weigh()
        for name in (TOTAL, GROWN, TOP, MASKED):
            s[name].compute_at(self.final, self.block, exact=False)
        self.lanes_of_powers(s[GROWN])
        self.score()
        for name in (TOTAL, TOP):
            if self.is_open:  # whole panels, whatever the length
                reduce_in_lanes(s[name], s[name].reduce_axis[0], self.point["key_vectors"] * self.lanes, self.lanes)
            else:
                schedule_reduction(s[name], self.unit.target)
        self.operands()
        self.threads()
        self.unit.done.update(set(names_of(s)) - self.others, nest.in_tile_registers(s))

    def outer_loops(self, order: list[int]) -> None:
        """The loops of the last block: heads, blocks of queries, panels; inside, a query and lanes of its value."""
        final, panels = self.final, []
        batch, head, query, element = (final.axis[at] for at in order)
        self.block, inside = final.split(query, factor=self.point["block"])
        if self.kernel.tiles is not None:
            panel, element = final.split(element, factor=self.point["width"])
            panels = [panel]
        final.reorder(batch, head, self.block, *panels, inside, element)
        nest.keep_whole(final, [self.block])
        nest.vectorize(final, element, self.lanes, unrolled=False)
        self.head, self.around = final.fuse(batch, head), [self.block, *panels][-1]

    def prepare(self) -> None:
        """Checks the point against the padding, and takes the second product apart into blocks of keys."""
        s, point = self.s, self.point
        queries, keys = (extent(axis) for axis in facts_of(block_named(s, SCORES)).spatial[2:])
        value_size = extent(facts_of(block_named(s, MIXED)).spatial[-1])
        wanted = _up(self.sizes.queries, point["rows" if self.is_open else "block"])
        if wanted > queries or keys % (point["key_vectors"] * self.lanes) or point["block"] % point["rows"]:
            raise ScheduleError("attention", str(dict(point)), f"its tiles do not fill {queries} × {keys} scores")
        if value_size % (point["value_vectors"] * self.lanes):
            raise ScheduleError("attention", str(dict(point)), f"its vectors do not fill values of {value_size}")
        whole = point["depth"] >= self.sizes.keys
        self.sums = s.cache_write(MIXED, "local") if whole else nest.in_blocks(s[MIXED], point["depth"])

    def weigh(self) -> None:
        """Register tiles whose sums are stored once for each block of keys."""
        self.s[MIXED].compute_at(self.final, self.block, exact=False)
        self.multiply(self.sums, self.s[MIXED], self.point["value_vectors"])

    def score(self) -> None:
        """Register tiles, with the steps on each."""
        self.multiply(self.s[SCORES], self.s[MASKED], self.point["key_vectors"])

    def multiply(self, sums: Stage, stage: Stage, vectors: int) -> None:
        """A product by register tiles: all the rows for a panel, then the next panel; its reader takes each tile."""
        blocks, lanes, rows = list(stage.reduce_axis), self.lanes, self.point["rows"]
        query, lane = stage.axis[2:4]
        _, down = nest.cut_tiles(stage, query, lane, rows, vectors * lanes, lanes, blocks, panels_first=True)
        nest.keep_whole(stage, blocks)
        nest.compute_near(sums, stage, down, exact=False)
        row, lane = sums.axis[2:4]
        steps = 1 if self.is_open and sums is self.sums else extent_of(sums, sums.reduce_axis[0])
        written = next(n for n in (model.ATTENTION_UNROLLED, 2, 1) if steps % n == 0)
        _, first = nest.multiply(sums, self.kernel, [], sums.reduce_axis, [row], lane, written)
        nest.by_instruction(sums, self.kernel, first)

    def lanes_of_powers(self, stage: Stage) -> None:
        """Several vectors at a time."""
        last = stage.axis[-1]
        fits = [n for n in (4, 2, 1) if extent_of(stage, last) % (n * self.lanes) == 0]
        wide = self.point["key_vectors"] if self.is_open else fits[0]
        nest.vectorize(stage, stage.split(last, factor=wide * self.lanes)[1], self.lanes)

    def operands(self) -> None:
        """Keys in panels, values and queries as they are."""
        s, names = self.s, names_of(self.s)
        if KEYS in names:
            width = self.point["key_vectors"] * self.lanes
            nest.store_panels(s[KEYS], self.kernel, 2, [3], width)
            self.with_head([s[KEYS]])
            facts = facts_of(s[KEYS].block)
            beside = any(facts.step(load, facts.spatial[3].var) == 1 for load in facts.loads)
            side = nest.side_of_squares(self.sizes.size, self.lanes) if beside else 0
            nest.pack_loops(s[KEYS], self.kernel, 2, 3, width, transposed=side)
        if VALUES in names:
            self.with_head([s[VALUES]])
            nest.vectorize(s[VALUES], s[VALUES].axis[-1], self.lanes)
        if QUERIES in names:
            s[QUERIES].compute_at(self.final, self.block, exact=False)
            nest.vectorize(s[QUERIES], s[QUERIES].axis[-1], self.lanes, unrolled=False)

    def with_head(self, stages: Sequence[Stage]) -> None:
        """Computes copies just before a head is, where threads take whole heads."""
        for stage in stages if self.point["by_heads"] else ():
            stage.compute_at(self.final, self.head)

    def copies(self) -> list[tuple[Stage, int]]:
        """The copies of all heads, and how many of their loops are divided among threads."""
        return [(self.s[name], 2) for name in (KEYS, VALUES) if name in names_of(self.s)]

    def threads(self) -> None:
        """Whole heads for each thread, or blocks of all heads."""
        sizes = self.sizes
        if sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.size < model.LEAST_PARALLEL_WORK:
            return
        if self.point["by_heads"]:
            self.final.parallel(self.head)
            return
        self.final.parallel(self.final.fuse(self.head, self.block))
        for stage, count in self.copies():
            stage.parallel(stage.fuse(*stage.loops[:count]))


class _InTiles(_InVectors):
    """The same with products in tile registers."""

    def prepare(self) -> None:
        """Operands of the products in tiles, in the order in which they are read."""
        s, kernel = self.s, self.kernel
        self.keys = s.cache_read(KEYS, "global", [SCORES])
        for name in (QUERIES, GROWN):
            nest.store_as(s[name], lambda n: [*n[:2], *kernel.rows_of_tiles(n[2], n[3], self.point["block"])])
        nest.store_panels(s[VALUES], kernel, 3, [2], self.point["width"])
        nest.store_panels(self.keys, kernel, 2, [3], 2 * self.lanes)

    def weigh(self) -> None:
        """For the columns of a value that the last block takes at a time."""
        s = self.s
        nest.multiply_in_tiles(s[MIXED], self.final, self.around, self.kernel, [s[GROWN], s[VALUES]], 2, 3)

    def score(self) -> None:
        """Two columns of tiles at a time, the steps on them."""
        s, stage = self.s, self.s[MASKED]
        query, key = stage.axis[2:4]
        panel, inside = stage.split(key, factor=2 * self.lanes)
        stage.reorder(panel, query, inside)
        nest.vectorize(stage, inside, self.lanes, unrolled=False)
        nest.multiply_in_tiles(s[SCORES], stage, panel, self.kernel, [s[QUERIES], self.keys], 2, 3)

    def lanes_of_powers(self, stage: Stage) -> None:
        """A row of a tile at a time."""
        stage.vectorize(stage.split(stage.axis[-1], factor=self.kernel.depth)[1])

    def operands(self) -> None:
        """Keys and values woven; the elements of a key lie side by side, so that a tile is transposed whole."""
        s = self.s
        s[QUERIES].compute_at(self.final, self.block, exact=False)
        self.lanes_of_powers(s[QUERIES])
        self.with_head([self.keys, s[KEYS], s[VALUES]])
        self.lanes_of_powers(s[KEYS])
        nest.pack_loops(self.keys, self.kernel, 2, 3, self.lanes, transposed=self.lanes)
        nest.pack_loops(s[VALUES], self.kernel, 3, 2, self.lanes)

    def copies(self) -> list[tuple[Stage, int]]:
        """Tiles of keys are divided too."""
        return [(stage, 3) for stage in (self.keys, self.s[KEYS], self.s[VALUES])]
