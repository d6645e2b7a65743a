"""Products by wgmma whose operands the copy engine fetches: the sketch of those whose tiles are boxes of tensors.

    for each tile of y and x, one after another               a block that stays, of one to three groups of 128 threads
      for each line of k (128 bytes)                          and one more, which lets the copy engine fetch X and Y
        C tiles += Y tiles * X tiles                          by wgmma, beside the threads and into the next step
      the epilogue, from registers                            while the first lines of the next tile are fetched

The steps are those of `tensor_cores.GroupTiles`; `producer` makes two roles of them, `bulk` finds the boxes. A tile of
a matrix is one; so is a tile of places of an image and a line of its channels, at an offset of the window, where the
tile is whole rows or a part of one: beyond the image the copy engine gives the zeros that are wanted there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.expr.nodes import Expr, Load, Var, int_value
from weft.loop.ir import Axis
from weft.loop.passes.support import linear
from weft.plan.planner import Unit, analytic, choose, unit_of
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import extent
from weft.schedule.schedule import Stage
from weft.targets.cuda import fragments, mma, producer, wgmma
from weft.targets.cuda import model as fit
from weft.targets.cuda.bulk import MOST_DIMENSIONS, MOST_ROWS
from weft.targets.cuda.swizzle import CHUNK, LINE
from weft.targets.cuda.tensor_cores import GROUP_KNOBS, GroupTiles, read_of, sketch_of
from weft.targets.gpu import elementwise, nest
from weft.targets.gpu.model import BLOCK_SHARED
from weft.targets.gpu.product import Product, find_product, plain_load

KNOBS: dict[str, tuple[int, ...]] = {
    **GROUP_KNOBS,
    "width": wgmma.WIDTHS,
    "stages": (3, 4, 5, 6, 7),
    "band": (8,),
    "copies": (0, 1, 2, 3),
    "resident": (1, 2),
    "cluster": (0, 1, 2),
}
"""`band` is how many tiles of rows go together through all columns: what they read stays in the cache. `copies` are
the operands, x (1) and y (2), that are copied first, because their rows begin at odd places. `resident` are the blocks
that stay on a multiprocessor: of two, one multiplies while the other writes out. `cluster` is the operand, x (1) or y
(2), that two blocks below or beside one another fetch together: half of it each, for both. A `width` of 80 is for one
tile of 64 rows on a multiprocessor: where there are two, as 128 rows or as two blocks, 160 columns are better (eight
products that were estimated to take as long took 1.06 to 1.3 times as long)."""


def match(unit: Unit) -> Sketch | None:
    """The sketch of a product by wgmma and the copy engine; None where it is none of its."""
    return sketch_of(unit, BulkTiles) if nest.threads_of(unit.target).has_warpgroups else None


def match_held(unit: Unit) -> Sketch | None:
    """The same with rows that go through registers, or columns in their place."""
    return sketch_of(unit, HeldRows, _with_held_rows) if nest.threads_of(unit.target).has_warpgroups else None


def _with_held_rows(unit: Unit) -> Product | None:
    """The product, its rows an operand that is no constant and does not lie along k; the larger one of two such."""
    found = find_product(unit)
    ways = [] if found is None else [one for one in (found, found.exchanged()) if not one.k_last[1]]
    loads = [(one, plain_load(one.axes.y_operand)) for one in ways]
    fitting = [one for one, load in loads if load is not None and load.buffer not in unit.constants]
    return max(fitting, key=lambda one: one.axes.size("y"), default=None)


class BulkTiles(GroupTiles):
    """Products of floats by wgmma and the copy engine; of float32 as tf32."""

    name, knobs, is_padded = "warpgroups and copy engine", KNOBS, True
    most_accumulators = fit.BULK_ACCUMULATORS

    def __init__(self, product: Product, kind: mma.Kind) -> None:
        super().__init__(product, kind)
        axes, ways = product.axes, []
        lying = (axes.x_operand, axes.x, self.turned), (axes.y_operand, axes.y, product.k_last[1])
        for (operand, own, along), load, copied in zip(lying, self.loads, self.copied):
            # A constant is packed in the order in which it is fetched, what no instruction turns is copied so.
            packed = copied or (load is not None and load.buffer in product.unit.constants)
            ways.append(_Operand(product, operand, own, bool(along or copied), packed))
        self.operands = ways

    def takes(self) -> bool:
        """Whether the product is one for this way."""
        known = self.kind.wide == "float32" and super().takes() and all(one.is_tensor for one in self.operands)
        return known and (self.kind.bytes < 4 or None not in self.loads)

    def apply(self, point: Point) -> None:
        """The whole schedule of the product."""
        for at, one in enumerate(self.operands):
            if point["copies"] >> at & 1:
                copy = self.s.cache_read(one.buffer, "global", [self.given.name])
                copy.storage_align(len(copy.block.writes[0].buffer.shape) - 2, LINE // self.kind.bytes, 0)
                unit = unit_of(self.s, copy.name, self.given.unit.target)
                choose(unit, (elementwise.match_transposition, elementwise.match), analytic)
        super().apply(point)

    def legal(self, c: Columns) -> Any:
        """Points that fit the machine and do not exceed the problem by far."""
        tile_y, tile_x = self._tile(c)
        groups = c["groups_y"] * c["groups_x"]
        x, y = self.operands
        return (
            super().legal(c)
            & ((c["groups_x"] == 1) | (c["groups_y"] == 1))
            & ((c["width"] % 32 == 0) | (groups * c["tiles_y"] * c["resident"] == 1))
            & (self._held(c) // 2 + fit.GROUP_REGISTERS <= fit.BULK_REGISTERS // (groups * c["resident"]))
            & (c["resident"] * (self._shared(c) + BLOCK_SHARED) <= self.machine.multiprocessor_shared_bytes)
            & ((c["resident"] == 1) | ((groups == 1) & (c["cluster"] == 0)))
            & ((c["cluster"] != 1) | (tile_y < self.y))
            & ((c["cluster"] != 2) | (tile_x < self.x))
            & x.has_boxes(tile_x)
            & y.has_boxes(tile_y)
            & self._may_copy(c, 0)
            & self._may_copy(c, 1)
            & ((self.k > wgmma.line_depth(self.kind) * c["parts"]) | (not (x.is_whole or y.is_whole)))
        )

    def _may_copy(self, c: Columns, at: int) -> Any:
        """Whether an operand may be copied first, or else need not be."""
        one = self.operands[at]
        return np.where(c["copies"] >> at & 1, one.is_odd and one.may_copy and not one.is_whole, not one.is_wrong)

    def cost(self, c: Columns) -> Any:
        """Seconds of each point: multiplication or fetching of each step, and what a tile takes beside its steps."""
        machine, (tile_y, tile_x) = self.machine, self._tile(c)
        steps = ceildiv(self.k, wgmma.line_depth(self.kind) * c["parts"])
        shares = [np.where(c["cluster"] == at, 0.5, 1.0) for at in (1, 2)]
        tiles = self._tiles(c) * self.batch * c["parts"]
        products = tile_x * tile_y * LINE / 2 / machine.matrix_products
        copies = [c["copies"] >> at & 1 for at in range(2)]
        x, y = (np.where(copied, 1.0, one.row_cost) for copied, one in zip(copies, self.operands))
        x, y = (self._begun(cost, tile, one) for cost, tile, one in zip((x, y), (tile_x, tile_y), self.operands))
        columns, groups = self._columns(tile_x), c["groups_y"] * c["groups_x"]
        fetched = (columns * x * shares[0] + tile_y * y * shares[1]) * LINE
        reads = (groups * c["tiles_y"] * (wgmma.ROWS + c["width"]) + columns + tile_y) * LINE
        beyond = np.where(c["width"] <= 128, *fit.BULK_FLOAT8) if self.kind.bytes == 1 else fit.BULK_PRODUCTS
        taps = [axis for axis in self.product.axes.k if extent(axis) > 1]
        rate = fit.BULK_BYTES if len(taps) <= 1 else fit.BULK_WINDOW_BYTES
        busy = products * beyond, fetched / rate, reads / fit.BULK_SHARED
        step = sum(cycles**fit.BULK_BOTH for cycles in busy) ** (1 / fit.BULK_BOTH)
        waits = np.maximum(0.0, fit.BULK_LATENCY / (c["stages"] - 2) - step)
        of_tile, written = fit.BULK_TILE
        # Nothing else runs on the multiprocessor while an epilogue does: its arithmetic is that of a block alone.
        alone = fit.GROUP_WORK * self.work
        slow = np.where(groups == 1, fit.BULK_LONE, 1.0)
        tile = of_tile + (written + alone * slow) * tile_x * tile_y
        alone = steps * (step + waits) + tile
        # Of two blocks, one multiplies while the other waits, or writes out; what is left over has the machine alone.
        both = np.maximum(2 * steps * step, alone) + fit.BULK_BESIDE * tile
        rounds, left = np.divmod(tiles, machine.multiprocessors * c["resident"])
        last = np.where(left == 0, 0, np.where(left <= machine.multiprocessors, alone, both))
        cycles = np.where(c["resident"] == 1, ceildiv(tiles, machine.multiprocessors) * alone, rounds * both + last)
        # Of points that cost the same, one of several groups, of the most stages, and of the least beyond the edges.
        beyond = tiles * tile_y * tile_x / (self.x * self.y * self.batch * c["parts"]) - 1
        cycles = cycles * (1 + fit.BULK_BEYOND * beyond) + fit.BULK_START - c["stages"] - fit.BULK_GROUPS * (groups > 1)
        cycles = self.with_memory(cycles + (c["cluster"] > 0) * fit.BULK_CLUSTER)
        start, each = fit.BULK_COPY
        for copied, one in zip(copies, self.operands):
            cycles = cycles + copied * (start + each * one.bytes)
        return self.seconds(cycles, c["parts"])

    def _begun(self, cost: Any, tile: Any, one: _Operand) -> Any:
        """What rows of an operand cost where every other tile begins in the middle of a line."""
        is_half = tile * self.kind.bytes % LINE != 0
        return cost if one.along_k else np.where(is_half, np.maximum(cost, fit.BULK_HALF_LINES), cost)

    def _tiles(self, c: Columns) -> Any:
        """Tiles of the result, those of a cluster that has no more of them counted, too."""
        tile_y, tile_x = self._tile(c)
        down, across = ceildiv(self.y, tile_y), ceildiv(self.x, tile_x)
        return np.where(c["cluster"] == 1, down + down % 2, down) * np.where(
            c["cluster"] == 2, across + across % 2, across
        )

    def multiply(self, final: Stage) -> None:
        """Tiles of the final block, whose elements each thread writes out of its own registers."""
        tile_x, tile_y, _ = self.tile
        batch, y, x = self._loops(final)
        block_y, inner_y = final.split(nest.fuse_all(final, y), factor=tile_y)
        block_x, inner_x = final.split(nest.fuse_all(final, x), factor=tile_x)
        rows = final.split(inner_y, factors=[self.groups[0], self.each[0] // self.rows, self.rows])
        group_x, column = final.split(inner_x, factor=self.each[1])
        final.reorder(block_y, block_x, rows[0], group_x, rows[1], rows[2], column)
        self._blocks(final, batch, block_y, block_x)
        resident, blocks = self.point["resident"], [2 if self.point["cluster"] == at else 1 for at in (1, 2)]
        marks = [self.machine.multiprocessors, self.point["band"], resident, *blocks]
        final.annotate(producer.PERSISTENT, marks, block_x)
        of_groups = {rows[0]: "threadIdx.z", group_x: "threadIdx.y"}
        nest.mark(final, {loop: tag for loop, tag in of_groups.items() if nest.extent_of(final, loop) > 1})
        final.unroll(rows[1])
        final.annotate(fragments.FRAGMENT, "rows", rows[2])
        final.annotate(fragments.FRAGMENT, "columns", column)
        accumulator = self.s[self.accumulator]
        if self.point["parts"] == 1:
            accumulator.set_scope(self.scope)
        self._into_tiles(self.accumulator, len(self._buffer(self.accumulator).shape) - 2, *self.unit)
        accumulator.compute_at(final, group_x, exact=False)
        self._steps(accumulator)

    def _shares_out(self, rows: Any, threads: Any) -> Any:
        return np.ones(np.shape(rows), bool)

    def share(self, stage: Stage, loops: list[Var], lanes: int) -> Var:
        """A fill as the work of one group where it is no whole rounds of all: what matters is that it is a box."""
        many = math.prod(nest.extent_of(stage, loop) for loop in loops)
        if many % (math.prod(self.groups) * self.threads * lanes) == 0:
            return super().share(stage, loops, lanes)
        outer, group, lane, inner = stage.split(nest.fuse_all(stage, loops), factors=[None, 1, self.threads, lanes])
        tag = "threadIdx.z" if self.groups[0] > 1 else "threadIdx.y"
        nest.arrange(stage, {group: tag, lane: "threadIdx.x", outer: "unroll", inner: "vectorize"})
        return outer

    def _fetch_ahead(self, accumulator: Stage, step: Var) -> None:
        super()._fetch_ahead(accumulator, step)
        accumulator.annotate(producer.BULK, True, step)
        stages = zip((self.x_stage, self.y_stage), self.loads)
        known = [self.s[name] for name, load in stages if load is not None and load.buffer in self.given.unit.constants]
        if known:
            accumulator.annotate(producer.CONSTANTS, [one.block.reads[0].buffer.name for one in known], step)

    def _memory(self, c: Columns, row_bytes: Any) -> Any:
        """Shared memory of a block: the operands' tiles."""
        tile_y, tile_x = self._tile(c)
        return c["stages"] * row_bytes * (self._columns(tile_x) + tile_y)

    def _columns(self, tile_x: Any) -> Any:
        """Columns of a tile that are fetched: whole lines of them, where they do not lie along k."""
        return tile_x if self.turned else ceildiv(tile_x, wgmma.LINE) * wgmma.LINE


class HeldRows(BulkTiles):
    """Products of tf32 whose rows do not lie along k: they are fetched as they lie, and go through registers."""

    name, lying = "warpgroups and copy engine, rows in registers", "x"
    knobs = {
        **KNOBS,
        "width": GROUP_KNOBS["width"],
        "tiles_y": (1,),
        "cluster": (0,),
    }  # what two tiles, or two blocks, wait for costs more than it saves

    def takes(self) -> bool:
        """Whether the product is one for this way."""
        return self.kind.name == "tf32" and super().takes()

    def cost(self, c: Columns) -> Any:
        """Seconds of each point."""
        return super().cost(c) * np.where(c["resident"] > 1, fit.HELD_BESIDE, 1.0)

    def _final(self) -> Stage:
        final = super()._final()
        if self.point["parts"] > 1 and self.given.is_exchanged:  # parts lie as the result does
            order = {"inputs": ["p", "b", "y", "x"], "outputs": ["p", "b", "x", "y"]}
            self.s.apply("transform_layout", buffer=self._buffer(self.total).name, **order)
        return final


class _Operand:
    """How an operand lies, as far as the copy engine is concerned."""

    def __init__(self, product: Product, operand: Expr, own: Sequence[Axis], along_k: bool, packed: bool) -> None:
        load, self.sizes, self.along_k = read_of(operand), [extent(axis) for axis in own], along_k
        self.is_apart = self.is_whole = False
        """`is_apart`: tiles of several axes must be whole rows of the last, or parts of one; `is_whole`: need not."""
        k = [product.axes.k[i] for i in product.order if extent(product.axes.k[i]) > 1]
        self.is_tensor, self.is_odd, self.is_wrong, self.may_copy, row = False, False, False, False, 0
        if load is None or (len(k) > 1 and extent(k[-1]) * load.dtype.bytes % LINE):
            return
        if packed:
            row, self.is_tensor = extent(k[-1]) if along_k else product.axes.size("x"), True
        else:
            row = int_value(load.buffer.shape[-1]) or 0
            self.is_tensor = self._lies(load, own, k, along_k)
            many = len([n for n in self.sizes if n > 1]) > 1
            self.is_whole = many and len(product.axes.k) == 1 and _is_whole(load, own)
            self.is_apart = many and not self.is_whole
        self.buffer, self.bytes = (
            load.buffer.name,
            load.dtype.bytes * math.prod(int_value(n) or 0 for n in load.buffer.shape),
        )
        self.is_odd, self.is_wrong = (row * load.dtype.bytes % many != 0 for many in (LINE, CHUNK))
        self.row_cost = fit.BULK_ODD_ROWS[row * load.dtype.bytes % fit.SECTOR != 0] if self.is_odd else 1.0
        self.may_copy = plain_load(operand) is not None and not packed
        self.is_tensor = self.is_tensor and row > 0 and (self.may_copy or not self.is_wrong)

    def _lies(self, load: Load, own: Sequence[Axis], k: Sequence[Axis], along_k: bool) -> bool:
        """Whether each axis of its own has a dimension to itself, in order, and lines lie together."""
        wanted, found = [axis.var for axis in own if extent(axis) > 1], []
        for index in load.indices:
            terms = linear(index).terms
            if not all(isinstance(term, Var) for term in terms):
                return False
            mine = [term for term in terms if term in wanted]
            if len(mine) > 1 or any(terms[term] != 1 for term in mine):
                return False
            found += mine
        last = [term for term, factor in linear(load.indices[-1]).terms.items() if factor == 1]
        return (
            found == wanted
            and 2 <= len(load.indices) <= MOST_DIMENSIONS
            and load.buffer.scope == "global"
            and last == [k[-1].var if along_k else own[-1].var]
        )

    def has_boxes(self, tile: Any) -> Any:
        """Whether tiles of so many of its own axes are boxes."""
        fits = np.asarray(tile) <= (MOST_ROWS if self.along_k else np.inf)
        if not self.is_apart:
            return fits
        left = np.asarray(tile)
        for size in reversed(self.sizes):
            fits &= (left % size == 0) | (size % left == 0)
            left = np.where(left % size == 0, left // size, 1)
        return fits


def _is_whole(load: Load, own: Sequence[Axis]) -> bool:
    """Whether some axes are all dimensions of a tensor but the last, from end to end: one row follows the other."""
    wanted = [(axis.var, extent(axis)) for axis in own if extent(axis) > 1]
    found = [
        [(term, size) for term in linear(index).terms if term in dict(wanted)] if linear(index).constant == 0 else []
        for index, size in zip(load.indices[:-1], map(int_value, load.buffer.shape))
        if size != 1
    ]
    return load.buffer.strides is None and found == [[one] for one in wanted]
