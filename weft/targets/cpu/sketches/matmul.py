"""Matrix products, from the target's facts and the record of a micro-kernel; the nest, outermost first:

    batch, jc      products, and columns in blocks whose packed panel fills part of the second-level cache   parallel
    ic             rows in blocks, so that the sums of a block stay in the second-level cache
    kc             the reduction in blocks, so that a row tile of the left operand stays in the first-level cache
    io, jr         rows and columns by the size of the register tile
    k              the micro-kernel: rows × vectors accumulators stay in registers

The right operand is packed into panels of the tile's width: a constant when the model is compiled, another in the
kernel where enough rows use it. The epilogue runs on the tile, or, where the reduction has several blocks, on the block
of sums after the last of them. Dot products (bytes, in groups of four) and AMX (bfloat16 and bytes, in tiles of one
kilobyte) have neither `ic` nor `kc`; their operands are padded with zeros to whole groups and tiles. A left operand of
dot products is read where it lies if its rows are whole groups; tiles are packed, and their sums go through a small
array to the epilogue.

A product of few rows waits for its weights. Each core gets one share of their panels, and walks over it forwards in
even calls of the model and backwards in odd ones: what it read last is still in its second-level cache. A row that is
known to be often 0 (the result of a Relu) passes over the weights that its zeros would meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.errors import ScheduleError
from weft.expr.nodes import Load, Var
from weft.plan.contraction import uses
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, around_rule, ceildiv, cheapest
from weft.schedule.facts import OFTEN_ZERO, facts_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.default_loops import parallelize, schedule_elementwise
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.machine import core_of, seconds
from weft.targets.cpu.microkernels import MicroKernel, dots, fma, squares, tiles
from weft.targets.cpu.sketches import nest
from weft.targets.cpu.sketches.product import Product, product_of


@dataclass(frozen=True)
class Plan:
    """The knobs, and what is not to be chosen: the micro-kernel, and whether the right operand is packed."""

    kernel: MicroKernel
    rows: int
    vectors: int
    panels: int
    """Register tiles side by side in a block of columns."""
    tiles: int = 0
    """Register tiles below one another in a block of rows; 0 for all."""
    depth: int = 0
    """Steps of a block of the reduction; 0 for all."""
    unroll: int = 1
    parts: int = 1
    ahead: int = 0
    packed: bool = True
    skips: bool = False
    """Whether zeros of the left operand are passed over."""

    @property
    def width(self) -> int:
        """Columns of the register tile."""
        return self.vectors * self.kernel.lanes

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.panels * self.width

    @property
    def height(self) -> int:
        """Rows of a block; 0 for all."""
        return self.tiles * self.rows


# ---------------------------------------------------------------------------------------------------- AMX, dot products


def match_tiles(unit: Unit) -> Sketch | None:
    """The sketch of a product that AMX tiles can take; None for other programs, or other machines."""
    product = product_of(unit)
    kernel = None if product is None else tiles(product.kinds, unit.target)
    if product is None or kernel is None or product.row is None or product.left.buffer is product.right.buffer:
        return None
    cut = ((product.left, product.row, kernel.rows), (product.right, product.lane, kernel.lanes))
    depths = [(load, product.depth, kernel.depth) for load in (product.left, product.right)]
    if not all(product.can_cut(load, axis, size) for load, axis, size in (*depths, *cut)):
        return None
    height = kernel.rows if product.m <= kernel.rows else 2 * kernel.rows
    width = kernel.lanes if product.n <= kernel.lanes else 2 * kernel.lanes
    panels = _columns_of_tiles(product, unit.target, width) // width
    point = {"rows": height, "vectors": width // kernel.lanes, "panels": panels}
    knobs = {"rows": (kernel.rows, 2 * kernel.rows), "vectors": (1, 2), "panels": (1, 4, 16)}
    return model.ruled("matmul", unit, knobs, point, _applied(unit, product, kernel), kernel)


def _applied(
    unit: Unit, product: Product, kernel: MicroKernel, packed: bool = True, skips: bool = False
) -> Callable[[Point], None]:
    """What applies a point."""
    return lambda point: _Nest(unit, product, Plan(kernel, **point, packed=packed, skips=skips)).apply()


def _columns_of_tiles(product: Product, target: Target, width: int) -> int:
    """Columns of a block: more than the tiles of one step where the left operand does not stay in the cache."""
    l2 = target.cache_bytes[1]
    bytes_left, bytes_right = (product.k * load.buffer.dtype.bytes for load in (product.left, product.right))
    if product.m * bytes_left <= l2 // 2:
        return width
    return _columns_in_cache(product, width, l2 * 3 // 8 // (bytes_right * width), target.cores)


def _columns_in_cache(product: Product, width: int, panels: int, cores: int) -> int:
    """Columns of a block of at most so many panels, the same for each core."""
    blocks = ceildiv(ceildiv(product.n, max(1, panels) * width), cores) * cores
    return ceildiv(ceildiv(product.n, blocks), width) * width


def match_dots(unit: Unit) -> Sketch | None:
    """The sketch of a product of bytes by dot products of vectors; None for other programs, or other machines."""
    product = product_of(unit)
    kernel = None if product is None else dots(product.kinds, unit.target)
    return None if product is None or kernel is None else _in_vectors(unit, product, kernel)


def match_squares(unit: Unit) -> Sketch | None:
    """The sketch of one by products of squares, two rows in each."""
    product = product_of(unit)
    kernel = None if product is None else squares(product.kinds, unit.target)
    if product is None or kernel is None or product.row is None or not product.has_whole(product.left, product.row):
        return None
    return _in_vectors(unit, product, kernel)


def _in_vectors(unit: Unit, product: Product, kernel: MicroKernel) -> Sketch | None:
    if product.left.buffer is product.right.buffer or not product.has_all_columns:
        return None
    if not all(product.has_whole(load, product.depth) for load in (product.left, product.right)):
        return None
    cores, l2 = unit.target.cores, unit.target.cache_bytes[1]
    if kernel.rows > 1:
        rows, vectors = _tile_of_squares(product, unit.target, kernel)
    else:
        rows, vectors = register_tile(product, unit.target, kernel.lanes, ceildiv(cores, product.count))
        vectors = min(vectors, 4)
    width = vectors * kernel.lanes
    panels = l2 * 3 // 8 // (product.k * width)
    columns = _columns_in_cache(product, width, panels, cores if product.count < cores else 1)
    each = kernel.rows
    knobs = {
        "rows": tuple(range(each, max(each, min(product.m, 12)) + 1, each)),
        "vectors": tuple(n * each for n in (1, 2, 3, 4)),
        "panels": (1, 4, 16),
    }
    point = {"rows": rows, "vectors": vectors, "panels": columns // width}
    return model.ruled("matmul", unit, knobs, point, _applied(unit, product, kernel), kernel)


def _tile_of_squares(product: Product, target: Target, kernel: MicroKernel) -> tuple[int, int]:
    """Rows and vectors of the register tile of squares; tiles at the ends are whole."""
    core, steps = core_of(target), ceildiv(product.k, kernel.depth)
    held = model.Tiles(core, product.m, product.n, steps, target.vector_registers).fits

    def cycles(columns: Columns) -> Any:
        rows, vectors = columns["rows"], columns["vectors"]
        high = rows // kernel.rows
        count = ceildiv(product.m, rows) * ceildiv(product.n, vectors * kernel.lanes)
        return count * (steps * model.square_cycles(core, rows, vectors) + model.TILE_CYCLES + 4 * high * vectors)

    choices = {"rows": range(2, 17, 2), "vectors": range(2, 9, 2)}
    tile, _ = cheapest(choices, cycles, lambda columns: held(columns["rows"] // kernel.rows, columns["vectors"]))
    return tile["rows"], tile["vectors"]


# ---------------------------------------------------------------------------------------------------- vectors of floats


def match(unit: Unit) -> Sketch | None:
    """The sketch of a float product; None for other programs."""
    product = product_of(unit)
    if product is None or not product.facts.target.dtype.is_float:
        return None
    kernel = fma(product.facts.target.dtype, unit.target, product.n)
    constant = product.right.buffer in unit.constants
    packed = _packs(product, constant, kernel.lanes)
    masked = product.n % kernel.lanes and not has_masks(unit.target.features)
    if kernel.lanes < 2 or packed is None or (not packed and masked):
        return None
    if product.low is not None and not (packed and product.low.buffer in unit.constants):
        return None
    skips = packed and _skips_zeros(product, unit)
    if skips:
        plan = plan_skipping(product, unit.target, kernel)
    else:
        plan = plan_matmul(product, unit.target, kernel, packed, constant)
    knobs = {
        "rows": (plan.rows, *range(1, min(product.m, 14) + 1)),
        "vectors": (plan.vectors, 1, 2, 3, 4, 6, 8, 12),
        "panels": (plan.panels, 1, 2, 4, 8, 16),
        "tiles": (plan.tiles, 1, 4, 16, 64),
        "depth": (plan.depth, *(n for n in (128, 256, 512, 1024) if n < product.k), product.k),
        "unroll": (1, 2, 4, 8),
        "parts": (plan.parts, 1, model.CHAIN_PARTS),
        "ahead": (plan.ahead, 0, 16, 64, 256),
    }
    default = {knob: int(getattr(plan, knob)) for knob in knobs}
    apply = _applied(unit, product, kernel, packed=packed, skips=skips)
    if skips or (product.m == 1 and packed):  # waits for its weights, whatever the tile
        return model.ruled("matmul", unit, knobs, default, apply)
    across = ceildiv(product.n, kernel.lanes)
    size = tiles_of(product, unit.target, across)
    whole = model.product_seconds("matmul", unit)
    if product.m == 1:  # a load for each multiply-add
        whole = max(whole, float(seconds(model.UNALIGNED * product.count * size.best[1], unit.target)))
    rest = {knob: number for knob, number in default.items() if knob not in ("rows", "vectors")}
    point = {knob: np.asarray([number]) for knob, number in default.items()}

    least = _slowed(product, unit.target, kernel, point, size.cycles(point["rows"], point["vectors"]))

    def cost(columns: Columns) -> Any:
        computing = size.cycles(columns["rows"], columns["vectors"], columns["parts"])
        slower = computing / size.best[1]
        down, tiles = ceildiv(product.m, columns["rows"]), columns["tiles"]
        by_rule = (tiles == plan.tiles) & (columns["rows"] == plan.rows)  # a block for each core
        slower = slower * (1 + model.UNEVEN_BLOCK * ((tiles < down) & (down % tiles != 0) & ~by_rule))
        lone = (tiles == 1) & (down > 1) & (product.m % columns["rows"] > 0)  # the last tile is a block that is cut
        slower = slower * (1 + model.CUT_BLOCK * lone / down)
        slowed = _slowed(product, unit.target, kernel, columns, computing)
        return around_rule(rest, whole)(columns) * slower * np.maximum(slowed / least, 1.0)

    def legal(columns: Columns) -> Any:
        rows, vectors, parts = columns["rows"], columns["vectors"], columns["parts"]
        held = size.fits(rows, vectors) & ((parts == plan.parts) | size.fits(rows * parts, vectors))
        high, wide = _enough(choices["tiles"], product.m, rows), _enough(choices["panels"], across, vectors)
        return held & (columns["tiles"] <= high) & (columns["panels"] <= wide)

    choices = {knob: tuple(sorted({*numbers, default[knob]})) for knob, numbers in knobs.items()}
    return Sketch("matmul", choices, apply, cost, legal)


def _slowed(product: Product, target: Target, kernel: MicroKernel, columns: Columns, computing: Any) -> Any:
    """How many times as long tiles take that wait for weights, which come again for each tile below another one from
    where the block of columns is found that they belong to, and whose sums go through memory, block by block."""
    rows, depth = columns["rows"], np.minimum(columns["depth"], product.k)
    size, first, second = product.facts.target.dtype.bytes, *target.cache_bytes[:2]
    wide = np.minimum(columns["panels"] * columns["vectors"] * kernel.lanes, product.n) * size
    down, parts = ceildiv(product.m, rows), ceildiv(product.k, depth)
    high = ceildiv(down, np.maximum(columns["tiles"], 1))
    core, weights = core_of(target), product.n * product.k * size
    far = float(weights / model.bytes_a_cycle(weights, target))
    near = weights / core.second_level
    within = np.where((wide + rows * size) * depth <= first, 0.0, np.where(wide * depth <= second, near, far))
    between = np.where(wide * product.k <= second, near, far)
    sums = down * ceildiv(product.n, columns["vectors"] * kernel.lanes) * rows * columns["vectors"]
    through = np.where(parts > 1, (parts + 1) * (4 * sums), 0)
    return model.overlapped(computing, (down - high) * within + (high - 1) * between + through) / computing


def _enough(blocks: tuple[int, ...], size: int, tile: Any) -> Any:
    """The least block, of sizes in tiles, that holds everything, or the greatest: larger ones would be the same."""
    return np.asarray(blocks)[np.minimum(np.searchsorted(blocks, ceildiv(size, tile)), len(blocks) - 1)]


def _packs(product: Product, constant: bool, lanes: int) -> bool | None:
    """Whether the right operand is packed; None where neither way serves."""
    if constant and product.has_all_columns:
        return True
    few = product.m < 4 * model.LEAST_PACKED_ROWS or product.n <= 3 * lanes
    if product.right_steps[0] == 1 and (few or not product.has_all_columns):
        return False
    return True if product.has_all_columns and product.m * product.count >= model.LEAST_PACKED_ROWS else None


def plan_matmul(product: Product, target: Target, kernel: MicroKernel, packed: bool, constant: bool) -> Plan:
    """The analytic choice of the knobs."""
    m, n, k, lanes = product.m, product.n, product.k, kernel.lanes
    cores = target.cores if m * n * k * product.count >= model.LEAST_PARALLEL_WORK else 1
    l1, l2 = target.cache_bytes[0], target.cache_bytes[1]
    size = product.facts.target.dtype.bytes
    far = packed and _is_far(product, target)
    most = turned_vectors(target, size * lanes * k, k % model.CHAIN_PARTS == 0) if far else None
    rows, vectors = register_tile(product, target, lanes, ceildiv(cores, product.count), most)
    width = vectors * lanes
    streams = far and m % rows == 0 and m > rows and size * width * k * 2 <= l2 * 3 // 4
    limit = max(l1 // 2 // (size * max(rows, 8)), 64)
    depth = k if k <= 2 * limit or m <= rows or streams else _block(k, limit)
    columns = width
    if packed and size * m * k > l2 // 2 and not streams:  # the left operand is far too: it is read less often
        columns = max(1, l2 * 3 // 8 // (size * depth) // width) * width
        blocks = ceildiv(n, columns)
        if product.count < cores and n >= 2 * cores * width:
            blocks = ceildiv(blocks, cores) * cores
        columns = min(columns, ceildiv(ceildiv(n, blocks), width) * width)
    elif far and product.count == 1 and m <= rows:  # each core meets its own share in every call
        columns = ceildiv(ceildiv(n, width), cores) * width
    height = ceildiv(m, rows) * rows
    if depth < k:
        height = min(height, max(1, l2 // 4 // (size * columns) // rows) * rows)
    while product.count * ceildiv(n, columns) * ceildiv(m, height) < cores and height > rows:
        height = ceildiv(ceildiv(height, 2), rows) * rows
    divides = k % model.CHAIN_PARTS == 0 and depth == k and k >= 8 * model.CHAIN_PARTS
    parts = model.CHAIN_PARTS if rows * vectors < model.LEAST_CHAINS and divides else 1
    most = min(4, model.MOST_UNROLLED // (rows * vectors * parts))
    unroll = next(u for u in (4, 2, 1) if u <= most and depth // parts % u == 0)
    if unroll == parts == 1 and rows * vectors <= model.SHORT_STEP < depth:
        unroll = most  # and code for the steps that are left over
    # Weights that a call meets once are found in the cache again only if the whole model fits into it. A panel of
    # weights that rows share comes from the second-level cache for each tile of them, unless the first holds it and
    # the rows that meet it.
    spills = constant and size * (width + rows) * depth > l1
    near = (model.PANEL_AHEAD if spills else 0) if packed else 8
    ahead = max(l1 // 4 // (size * width), 8) if far or (packed and m <= rows) else near
    if 2 * rows > model.rows_together(target, _pitch(product)):  # what is fetched ahead would push the rows out
        ahead = 0
    return Plan(kernel, rows, vectors, columns // width, height // rows, depth, unroll, parts, ahead, packed)


def _skips_zeros(product: Product, unit: Unit) -> bool:
    """Whether one row that is often 0 meets far weights: rows of weights that a zero would meet are then not read."""
    zeros = unit.schedule.func.annotations.get(OFTEN_ZERO, ())
    one_row = product.m == 1 and product.count == 1 and product.left.buffer.name in zeros
    return one_row and product.right.buffer in unit.constants and _is_far(product, unit.target)


def plan_skipping(product: Product, target: Target, kernel: MicroKernel) -> Plan:
    """For a row that is often 0: wide panels, so that what is not read is more than the neighbour of what is."""
    cores = target.cores if product.n * product.k >= model.LEAST_PARALLEL_WORK else 1
    across = ceildiv(product.n, kernel.lanes)
    most = min(target.vector_registers // 2, ceildiv(across, cores))
    vectors = ceildiv(across, ceildiv(across, most))
    width = vectors * kernel.lanes
    return Plan(kernel, 1, vectors, ceildiv(ceildiv(product.n, width), cores), tiles=1, depth=product.k, skips=True)


def _is_far(product: Product, target: Target) -> bool:
    """Whether the right operand comes from the third-level cache, or from memory, as it is used."""
    bytes_of_all = product.facts.target.dtype.bytes * product.n * product.k
    return bytes_of_all > target.cache_bytes[1] // 2


def turned_vectors(target: Target, column_bytes: int, in_parts: bool) -> int:
    """How many vectors wide a panel of weights may be that one row walks back and forth over, from call to call or step
    to step: a core finds again in its cache all that it read last but for a panel, so a panel is a small part of it.
    Sums that are not made in parts need some vectors to hide the latency of a multiply-add.
    """
    return max(target.cache_bytes[1] // 8 // column_bytes, 1 if in_parts else model.CHAIN_PARTS)


def register_tile(
    product: Product, target: Target, lanes: int, cores: int, most_vectors: int | None = None
) -> tuple[int, int]:
    """Rows and vectors: enough accumulators to hide latencies, few loads for each, little left over at the edges.

    `most_vectors` limits the width of a tile of one row.
    """
    m, across = product.m, ceildiv(product.n, lanes)
    if m == 1:  # waits for memory: long stretches of the panel, as many for each core
        most = min(max(1, target.vector_registers * 3 // 8), most_vectors or across)
        share = max(1, ceildiv(across, cores))
        counts = range(max(1, min(most, share) // 2), min(most, share) + 1)
        return 1, min(counts, key=lambda v: (ceildiv(ceildiv(across, v), cores) * v, -v))
    tile, _ = tiles_of(product, target, across).best
    return tile["rows"], tile["vectors"]


def tiles_of(product: Product, target: Target, across: int) -> model.Tiles:
    """What register tiles of so many vectors in a row cost."""
    core, pitch = core_of(target), _pitch(product)
    clash, together = core.clashes(pitch), model.rows_together(target, pitch)
    return model.Tiles(core, product.m, across, product.k, target.vector_registers, clash, product.is_open, together)


def _pitch(product: Product) -> int:
    """Bytes between rows of the left operand."""
    apart = 0 if product.row is None else product.facts.step(product.left, product.row.var)
    return (apart or 0) * int(product.left.buffer.dtype.bytes)


def _block(extent: int, limit: int) -> int:
    """A block of at most `limit` that divides the extent, if one is near; else all of it: uneven blocks cost code."""
    least = ceildiv(extent, limit)
    return next((extent // parts for parts in range(least, 4 * least) if extent % parts == 0), extent)


# ------------------------------------------------------------------------------------------------------------ the nest


class _Nest:
    """One point of a space: the stages of a product, and the loops of its epilogue as they are cut."""

    def __init__(self, unit: Unit, product: Product, plan: Plan) -> None:
        self.unit, self.s, self.product, self.plan, self.kernel = unit, unit.schedule, product, plan, plan.kernel
        self.sums, self.final, self.at = nest.sums_and_final(unit)
        place = {axis.var: i for i, axis in enumerate(product.facts.spatial)}
        self.lane, self.row = place[product.lane.var], None if product.row is None else place[product.row.var]
        self.left: Stage | None = None
        """The packed left operand, where it is packed."""
        self.right: list[Stage] = []
        """The packed right operand; of whole numbers in two parts both."""

    def apply(self) -> None:
        """All the steps."""
        self.pack()
        self.outer_loops()
        step, micro = None, self.sums
        if self.kernel.store:
            self.tile_final()
            assert self.row is not None
            packed = [] if self.left is None else [self.left, self.right[0]]
            nest.multiply_in_tiles(self.sums, self.final, self.around[-1], self.kernel, packed, self.row, self.lane)
        else:
            micro = self.blocked() if 0 < self.plan.depth < self.product.k else self.straight()
            micro.set_scope("local")
            step = self.multiply(micro)
        left = [] if self.left is None else [self.left]
        self.unit.done.update(stage.name for stage in (self.sums, micro, self.final, *left, *self.right))
        self.unit.done.update(nest.in_tile_registers(self.s))
        outer = self.divide()
        if self.plan.ahead and step is not None:
            self.fetch_ahead(micro, step, outer)

    # -------------------------------------------------------------------------------------------------------- operands

    def pack(self) -> None:
        """Copies of the operands as the micro-kernel wants them; the sums are padded as they are."""
        s, product, kernel, plan, reader = self.s, self.product, self.kernel, self.plan, self.sums.name
        if kernel.tiles is not None or not self.reads_left:
            down, across = product.left_dims
            rows = {across: plan.rows} if kernel.store else {}
            self.left = nest.padded_copy(s, product.left, reader, {**rows, down: kernel.depth})
        loads = (product.right, product.low) if plan.packed else ()
        steps = dict.fromkeys(product.right_depth, kernel.depth) if kernel.depth > 1 else {}
        sizes = {product.lane_dim: self.whole, **steps}
        self.right = [nest.padded_copy(s, load, reader, sizes) for load in loads if load is not None]
        # The sums, while the zeros of the copies are plain to see.
        self.sums.pad(self.sums.axis[self.lane], self.whole)
        if self.row is not None and kernel.store:
            self.sums.pad(self.sums.axis[self.row], plan.rows)
        if kernel.depth > 1:
            self.sums.pad(self.sums.reduce_axis[0], kernel.depth)
        if self.left is not None:
            self.store_left(self.left)
        for copy in self.right:
            nest.store_panels(copy, kernel, product.lane_dim, product.right_depth, plan.width)
        if not kernel.store:
            nest.store_last(self.sums, self.lane)

    @property
    def reads_left(self) -> bool:
        """Whether the left operand is read where it lies: whole groups of its rows, in pairs for few columns."""
        product, kernel = self.product, self.kernel
        if kernel.rows > 1:
            apart = product.left_dims[1] != len(product.left.indices) - 2
            if apart or product.m % self.plan.rows or product.n >= model.LEAST_PAIRED_COLUMNS:
                return False
        return product.has_rows_of_groups(kernel.depth)

    def store_left(self, copy: Stage) -> None:
        """The left operand with the reduction innermost, or in tiles."""
        down, across = self.product.left_dims
        if not self.kernel.store:
            nest.store_last(copy, down)
            return
        rows = self.kernel.rows_of_tiles(f"d{across}", f"d{down}", self.plan.rows)
        nest.store_as(copy, lambda names: [*nest.without(names, across, down), *rows])

    @property
    def whole(self) -> int:
        """What the columns are padded to: blocks of tiles, register tiles, or vectors."""
        if self.kernel.tiles is not None:
            return self.plan.columns
        return self.plan.width if self.kernel.dot or self.fills else self.kernel.lanes

    @property
    def fills(self) -> bool:
        """Whether whole tiles waste little at the last columns: a narrower tile is more code, and tests."""
        n, width = self.product.n, self.plan.width
        return self.plan.packed and ceildiv(n, width) * width <= model.MOST_PADDED * n

    # ------------------------------------------------------------------------------------------------ epilogue and sums

    def outer_loops(self) -> None:
        """Cuts the loops of the epilogue into blocks of columns and rows."""
        loop_of, product, final = nest.loops_of(self.final), self.product, self.final
        jc, lane = final.split(loop_of[self.at[product.lane.var]], factor=self.plan.columns)
        self.outer = [*(loop_of[self.at[axis.var]] for axis in product.outer), jc]
        self.inside = [lane]
        if product.row is not None:
            row = loop_of[self.at[product.row.var]]
            if self.plan.height:
                ic, row = final.split(row, factor=self.plan.height)
                self.outer.append(ic)
            self.inside = [row, lane]
        final.reorder(*self.outer, *self.inside)

    def tile_final(self) -> None:
        """The epilogue on the register tile."""
        row, lane = [None, *self.inside][-2:]
        width, written = min(self.plan.width, self.plan.columns), self.kernel.tiles is None
        assert lane is not None
        self.around = nest.cut_tiles(self.final, row, lane, self.plan.rows, width, self.kernel.vector, written=written)

    def blocked(self) -> Stage:
        """Several blocks of the reduction: their tiles are added up in a block of sums, which the epilogue reads."""
        sums, plan = self.sums, self.plan
        micro = nest.in_blocks(sums, plan.depth)
        nest.vectorize(self.final, self.inside[-1], self.kernel.lanes, unrolled=False)
        sums.compute_at(self.final, self.outer[-1], exact=False)
        axes, (kc,) = list(sums.axis), sums.reduce_axis
        row = None if self.row is None else axes[self.row]
        around = [*nest.without(axes, self.row, self.lane), kc]
        tiles = nest.cut_tiles(sums, row, axes[self.lane], plan.rows, plan.width, self.kernel.lanes, around)
        nest.keep_whole(sums, [kc])
        micro.compute_at(sums, tiles[-1], exact=False)
        return micro

    def straight(self) -> Stage:
        """The whole reduction in registers, in one part or in several that are added up; the epilogue on the tile."""
        sums = micro = self.sums
        if self.plan.parts > 1:
            _, inner = sums.split(sums.reduce_axis[0], factor=self.plan.parts)
            micro = self.s.rfactor(sums.name, inner)
        self.tile_final()
        sums.compute_at(self.final, self.around[-1], exact=False)
        if micro is not sums:
            micro.compute_at(self.final, self.around[-1], exact=False)
            sums.set_scope("local")
            axes = list(sums.axis)
            lane = axes[self.lane]
            sums.reorder(*nest.without(axes, self.lane), *sums.reduce_axis, lane)
            sums.unroll(sums.reduce_axis[0])
            if self.row is not None:
                sums.unroll(axes[self.row])
            nest.vectorize(sums, lane, self.kernel.lanes)
        return micro

    def multiply(self, micro: Stage) -> Var:
        """The register tile; gives the loop of the reduction around it."""
        axes = list(micro.axis)
        rest = nest.without(axes, self.row, self.lane)
        parts = [rest.pop()] if self.plan.parts > 1 else []
        rows = parts if self.row is None else [*parts, axes[self.row]]
        steps, lane = micro.reduce_axis, axes[self.lane]
        step, product = nest.multiply(micro, self.kernel, rest, steps, rows, lane, self.plan.unroll)
        nest.by_instruction(micro, self.kernel, product)
        if self.plan.skips and self.plan.unroll == self.plan.parts == 1:
            micro.annotate("skip_zeros", self.product.left.buffer.name, step)
        return step

    # ------------------------------------------------------------------------------------------------ threads, fetching

    def divide(self) -> Var | None:
        """Threads, and the loops that pack what is no constant; gives the outermost loop, where it is one of all."""
        product, final, target, constants = self.product, self.final, self.unit.target, self.unit.constants
        each, batch = self.packs_each(), len(product.outer)
        packed = [(self.left, product.left), *((copy, product.right) for copy in self.right[:1])]
        for copy, load in packed:
            if copy is None or load.buffer in constants:
                continue
            if each:
                copy.compute_at(final, self.outer[batch - 1], exact=self.kernel.tiles is None)
            around = self.pack_operand(copy, load)
            if not each:
                parallelize(copy, around, facts_of(copy.block).points, target)
        if product.m * product.n * product.k * product.count < model.LEAST_PARALLEL_WORK:
            return None
        chosen = self.outer[:batch] if each else list(self.outer)
        if not each and self.walks_rows:
            chosen.append(self.around[0])
        fused = nest.run_parallel(final, chosen)
        if self.right and product.right.buffer in constants and self.meets_once():
            for loop in (fused, self.around[-1]):
                final.zigzag(loop)
        return None if each else fused

    def packs_each(self) -> bool:
        """Whether operands are packed with each product of a batch, by the thread that uses them; or all before."""
        product, cores = self.product, self.unit.target.cores
        if self.kernel.tiles is not None:
            return product.count >= 4 * cores or (product.count > 1 and product.count % cores == 0)
        changes = bool(self.right) and product.right.buffer not in self.unit.constants
        batch = any(uses(product.right, axis) for axis in product.outer)
        return changes and not self.kernel.dot and batch and product.count >= cores

    def pack_operand(self, copy: Stage, load: Load) -> list[Var]:
        """The loops that pack an operand; gives those around a vector, a square or a tile."""
        product, kernel = self.product, self.kernel
        if load is product.left:
            if not kernel.store:
                schedule_elementwise(copy, self.unit.target)
                return []
            deep, _ = product.left_dims
            step, lanes = copy.split(copy.axis[deep], factor=kernel.depth)
            around = [*nest.without(copy.axis, deep), step]
            copy.reorder(*around, lanes)
            copy.vectorize(lanes)
            return around
        down = product.right_depth
        if len(down) != 1:
            raise ScheduleError("matmul", copy.name, "the reduction indexes several dimensions")
        return nest.pack_loops(copy, kernel, product.lane_dim, down[0], self.plan.width, product.transposed(kernel))

    def fetch_ahead(self, micro: Stage, step: Var, outer: Var | None) -> None:
        """Fetches of the right operand: the next steps of the reduction, and, while rows run, the next panel."""
        plan = self.plan
        for buffer in [nest.result_of(copy) for copy in self.right] or [self.product.right.buffer.name]:
            micro.prefetch(buffer, step, ceildiv(plan.ahead, plan.unroll * plan.parts))
            if outer is not None and self.walks_rows:
                micro.prefetch(buffer, step, self.product.m // plan.rows, outer=outer)

    @property
    def walks_rows(self) -> bool:
        """Whether one loop goes through all rows, then to the next panel, which it can fetch meanwhile."""
        product, plan = self.product, self.plan
        whole = product.m % plan.rows == 0 and plan.height >= product.m and plan.columns == plan.width
        tiles = product.m // plan.rows
        return self.fills and bool(plan.ahead) and whole and tiles > 1 and plan.depth == product.k

    def meets_once(self) -> bool:
        """Whether a call goes through far weights once: the next call begins with what it read last, still near."""
        product, plan = self.product, self.plan
        once = product.count == 1 and product.m <= plan.rows and plan.depth == product.k
        return once and _is_far(product, self.unit.target)
