"""Contractions by tensor cores: the sketches of those whose operands the matrix instructions take.

    for each tile of y and x                                  a block of warps
      for each step of k                                      X and Y fetched together into shared memory, ahead of use
        for each 16 (or 8, 32) of k                           tiles of X and Y into registers, by ldmatrix
          C tiles += Y tiles * X tiles                        by mma.sync; accumulators stay in a warp's registers
      the accumulators to shared memory, and the epilogue from there

and on Hopper, whose tensor cores read operands from shared memory for four warps together (wgmma):

    for each tile of y and x                                  a block of one to four groups of 128 threads
      for each line of k (128 bytes)                          X and Y fetched into swizzled lines in shared memory
        C tiles += Y tiles * X tiles                          by wgmma, beside the threads and into the next step
      the accumulators to shared memory, and the epilogue from there

The form of the product is that of `weft.targets.gpu.product`; the instructions are declared in `mma` and `wgmma`.

Bytes and tf32, which ldmatrix cannot turn, have to lie along k:

    C[i, j] += A[i, k] * B[k, j]     ->     B_t[j, k] = B[k, j];  C[i, j] += A[i, k] * B_t[j, k]

A constant is turned once, when a model is compiled (of any type: then tiles may have any number of columns that the
instruction has); anything else by a kernel of its own, which moves each byte twice:
little beside a product of many rows. An operand that is computed as it is fetched (a convolution's image) is
fetched in the other order, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from weft.expr.nodes import Buffer, Const, Expr, Load, Select, Var, int_value
from weft.expr.visit import walk
from weft.loop.ir import Store
from weft.plan.planner import Unit, analytic, choose, unit_of
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import block_named, cost, extent, facts_of, names_of
from weft.schedule.primitives.matrix import matrix_axes, stored_operand
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cuda import mma, wgmma
from weft.targets.cuda import model as fit
from weft.targets.cuda.copies import SIZES
from weft.targets.cuda.mma import TILE_BYTES
from weft.targets.cuda.swizzle import LINE, line_elements
from weft.targets.gpu import elementwise, nest
from weft.targets.gpu.model import BEYOND, FLOATS
from weft.targets.gpu.product import Product, Tiles, copy_in_order, find_product, plain_load, runs_along_k

WARP_KNOBS: dict[str, tuple[int, ...]] = {
    "warps_x": (1, 2, 4),
    "warps_y": (1, 2, 4),
    "warp_x": (16, 32, 64),
    "warp_y": (16, 32, 64),
    "step": (1, 2, 4),
    "stages": (2, 3, 4),
    "parts": (1, 2, 4, 8, 16),
    "shares": (1, 2, 4, 8),
}
"""`step` is how many tiles of k are fetched at a time, for each of the `shares` of k that a block's warps have."""
GROUP_KNOBS: dict[str, tuple[int, ...]] = {
    "groups_y": (1, 2, 3),
    "groups_x": (1, 2),
    "tiles_y": (1, 2),
    "width": tuple(width for width in wgmma.WIDTHS if width % 32 == 0),
    "stages": (3, 4, 5, 6),
    "parts": (1, 2, 4, 8),
}
"""`tiles_y` are tiles of 64 rows, one below the other, that a group of threads holds the accumulators of."""
FEATURE = "tf32"
"""The feature of a target whose products of float32 may round their operands to tf32: only where a user asks."""
_NEEDS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "tfloat32", "int8": "int8", "uint8": "int8",
          **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "float8")}  # fmt: skip
"""What tensor cores must have for operands of a type, as `ThreadFacts` names it."""


def kind_of(found: Product, target: Target) -> mma.Kind | None:
    """The sort of matrix instruction for a product; None where there is none."""
    machine = nest.threads_of(target)
    x, y = stored_operand(found.axes.x_operand), stored_operand(found.axes.y_operand)
    if not {_NEEDS.get(x.dtype.name), _NEEDS.get(y.dtype.name)} <= machine.tensor_cores:
        return None
    if "float32" in (x.dtype.name, y.dtype.name) and FEATURE not in target.features:
        return None
    kind = next((one for one in mma.KINDS.values() if one.elements == (y.dtype.name, x.dtype.name)), None)
    return kind if kind is not None and kind.wide == found.axes.x_operand.dtype.name else None


def match_warps(unit: Unit) -> Sketch | None:
    """The sketch of a product by mma.sync; None where it is none of its."""
    return sketch_of(unit, WarpTiles)


def match_groups(unit: Unit) -> Sketch | None:
    """The sketch of a product by wgmma; None where it is none of its."""
    return sketch_of(unit, GroupTiles) if nest.threads_of(unit.target).has_warpgroups else None


def sketch_of(
    unit: Unit, tiles: type[MatrixTiles], find: Callable[[Unit], Product | None] = find_product
) -> Sketch | None:
    """The sketch of a product by a way to multiply tiles; None where it is none for that."""
    found = find(unit)
    kind = None if found is None else kind_of(found, unit.target)
    if found is None or kind is None:
        return None
    made = tiles(found, kind)
    return made.sketch() if made.takes() else None


# ----------------------------------------------------------------------------------------------- any matrix instruction


class MatrixTiles(Tiles):
    """Products by a kind of instruction: a block of groups of threads, each with rows and columns of its own."""

    threads: int
    """Threads that hold a tile together."""
    stores: str
    """The instruction that stores one, for a point and a name of the type of sums."""
    rows: int
    """Rows of that tile; it has as many columns as a group has, or else the most."""
    most_columns: int
    is_padded: bool = False
    """Whether the last line of a tile may be a part of one: whole lines are fetched all the same."""
    lying: str = "xy"
    """The operands that have to lie along k, where loads turn none."""

    def __init__(self, product: Product, kind: mma.Kind) -> None:
        super().__init__(product)
        self.kind, self.given = kind, product
        self.loads = plain_load(product.axes.x_operand), plain_load(product.axes.y_operand)
        is_constant = self.loads[0] is not None and self.loads[0].buffer in product.unit.constants
        self.turned = not kind.transposes or is_constant or product.k_last[0] == 1
        """Whether the columns lie along k when they are multiplied."""
        self.copied = [
            load is not None and side in self.lying and not (kind.transposes or along)
            for side, load, along in zip("xy", self.loads, product.k_last)
        ]
        """Whether x, and y, are copied (constants packed) so that they lie along k."""
        self.across = [
            not (kind.transposes or along or copied or load is not None and load.buffer in product.unit.constants)
            for load, copied, along in zip(self.loads, self.copied, product.k_last)
        ]
        """Whether they are turned as they are fetched, an element at a time."""
        epilogue = product.unit.epilogue
        self.work = cost(epilogue.body.value) if epilogue is not None and isinstance(epilogue.body, Store) else 0
        """Arithmetic of the epilogue on each element."""

    def takes(self) -> bool:
        """Whether the product is one for this way."""
        loads = [e for e in walk(self.given.axes.y_operand) if isinstance(e, Load)]
        few = all(load.buffer in self.given.unit.constants for load in loads)  # channels of a last layer, say
        wide = self.x >= fit.LEAST_X or self.y * self.batch >= fit.MANY_ROWS
        return (self.y >= fit.LEAST_Y or few) and wide and self.k >= self.kind.depth

    def shape(self, c: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Of a point, or of columns: groups along y and x, rows and columns of each, and elements of k of a step."""
        raise NotImplementedError

    def apply(self, point: Point) -> None:
        """The whole schedule of the product."""
        self.product = turn_operands(self.given, self.kind.transposes, self.lying)
        super().apply(point)

    def take(self, point: Point) -> None:
        """What follows from a point alone."""
        groups_y, groups_x, each_y, each_x, deep = self.shape(point)
        self.groups, self.each = (groups_y, groups_x), (each_y, each_x)
        self.unit = self.rows, min(each_x, self.most_columns)
        self.tile = groups_x * each_x, groups_y * each_y, deep
        self.store = self.stores.format(sums=mma.SUMS[self.kind.wide], **point)
        self.shares, self.swizzled = point.get("shares", 1), list[str]()
        self.said = {"in_turn": self.shares > 1, **({"exchanged": True} if self.given.is_exchanged else {})}

    def _tile(self, c: Columns) -> tuple[Any, Any]:
        groups_y, groups_x, each_y, each_x, _ = self.shape(c)
        return groups_y * each_y, groups_x * each_x

    def _memory(self, c: Columns, row_bytes: Any) -> Any:
        """Shared memory of a block: the operands' tiles, then the accumulators."""
        tile_y, tile_x = self._tile(c)
        return np.maximum(c["stages"] * row_bytes * (tile_x + tile_y), 4 * tile_y * (tile_x + 8))

    def multiply(self, final: Stage) -> None:
        """Tiles of the final block, one for each block of warps; from there to the steps of k."""
        tile_x, tile_y, _ = self.tile
        batch, y, x = self._loops(final)
        block_y, inner_y = final.split(nest.fuse_all(final, y), factor=tile_y)
        block_x, inner_x = final.split(nest.fuse_all(final, x), factor=tile_x)
        final.reorder(block_y, block_x, inner_y, inner_x)
        self._blocks(final, batch, block_y, block_x)
        threads = self.shares * math.prod(self.groups) * self.threads
        lanes = 1 if self.x % FLOATS else FLOATS
        while lanes > 1 and tile_y * tile_x % (threads * lanes):
            lanes //= 2
        innermost = self.share(final, [inner_y, inner_x], lanes)
        self.reader = final.name
        if self.shares > 1:
            self._add_shares(final, innermost)
        self._steps(self._store(final, block_x))

    def with_memory(self, cycles: Any) -> Any:
        """With the copies that turn operands of tf32 (of bytes all ways copy alike), and at least as many cycles as
        reading operands takes that are more than the cache holds."""
        sizes = [_bytes_of(load) for load in self.loads]
        start, each = fit.TURNED_COPY
        for load, size, copied in zip(self.loads, sizes, self.copied):
            if copied and self.kind.bytes == 4 and load is not None and load.buffer not in self.given.unit.constants:
                cycles = cycles + start + each * size
        if sum(sizes) <= self.machine.cache_bytes:
            return cycles
        least = sum(sizes) / fit.MEMORY_BYTES / self.machine.multiprocessors
        return np.maximum(cycles, least + cycles * fit.MEMORY_SHARE)

    def fetching(self, tile_y: Any, tile_x: Any, row: Any, threads: Any) -> tuple[Any, Any]:
        """Cycles that fetching so many bytes of each row of a tile takes a multiprocessor, and that its threads wait
        for elements that nothing copies beside them."""
        pieces, whole = [self._piece(at) for at in (0, 1)], fit.FETCHED[self.name]
        each = [whole if piece == SIZES[-1] else fit.FETCHED_PIECES[piece] for piece in pieces]
        rows = [0 if one is None or one.buffer in self.given.unit.constants else _row_bytes(one) for one in self.loads]
        each = [max(one, fit.ODD_FETCH) if bytes_ % fit.SECTOR else one for one, bytes_ in zip(each, rows)]
        window = len([axis for axis in self.given.axes.k if extent(axis) > 1]) > 1
        each = [
            fit.TURNED_FETCH if across else one * (fit.WINDOW_FETCH if window and load is None else 1.0)
            for one, across, load in zip(each, self.across, self.loads)
        ]
        waits = sum(tile * (piece < SIZES[0]) for tile, piece in zip((tile_x, tile_y), pieces))
        cycles = (each[0] * tile_x + each[1] * tile_y) * row / SIZES[-1] / 128
        once, each_wait = fit.FETCH_WAIT
        return cycles, once * (waits > 0) + each_wait * waits * row / 2 / threads

    def shared_out(self, moved: Any, blocks: Any) -> Any:
        """Cycles that so many bytes take from the cache, which serves all multiprocessors that have a block."""
        return moved / fit.CACHE_BYTES * np.minimum(1.0, blocks * self.batch / self.machine.multiprocessors)

    def _piece(self, at: int) -> int:
        """Bytes of an operand that a thread fetches at a time: the widest that rows, windows and ends leave whole."""
        axes, facts, size, load = self.given.axes, self.given.unit.facts, self.kind.bytes, self.loads[at]
        along = self.turned if at == 0 else self.given.k_last[1] or not self.kind.transposes
        own = [axes.k[i] for i in self.given.order] if along else [axes.x, axes.y][at]
        own = [axis for axis in own if extent(axis) > 1]
        if self.copied[at] or load is not None and load.buffer in self.given.unit.constants:
            return math.gcd(SIZES[-1], size * math.prod(map(extent, own)))
        read = read_of([axes.x_operand, axes.y_operand][at])
        if self.across[at] or read is None or not own or facts.step(read, own[-1].var) != 1:
            return size
        apart = [facts.step(read, axis.var) or 0 for axis in (*own[:-1], *axes.k) if axis is not own[-1]]
        return math.gcd(SIZES[-1], size * extent(own[-1]), _row_bytes(read), *[size * step for step in apart])

    def _steps(self, accumulator: Stage) -> None:
        """The steps of k: operands into shared memory, and the products of the tiles."""
        raise NotImplementedError

    def _add_shares(self, final: Stage, place: Var) -> None:
        """What the final block takes is the sum of the shares, in registers."""
        s = self.s
        self.reader = next(name for name in names_of(s) if self._reads(name, self._buffer(self.accumulator)))
        added = s[self.reader]
        if self.product.unit.epilogue is not None:
            added.set_scope("local")
        added.compute_at(final, place)
        *lanes, share = nest.free_loops(added)
        nest.arrange(added, nest.unrolled(share, *lanes))

    def _reads(self, name: str, buffer: Buffer) -> bool:
        block = block_named(self.s, name)
        return any(r.buffer is buffer for r in block.reads) and not any(w.buffer is buffer for w in block.writes)

    def share(self, stage: Stage, loops: list[Var], lanes: int) -> Var:
        """Work on a tile divided among all threads of the block; gives the loop in which a thread goes on."""
        flat = nest.fuse_all(stage, loops)
        sizes = {"threadIdx.z": self.shares * self.groups[0], "threadIdx.y": self.groups[1],
                 "threadIdx.x": self.threads, "vectorize": lanes}  # fmt: skip
        used = {role: size for role, size in sizes.items() if size > 1}
        outer, *inner = stage.split(flat, factors=[None, *used.values()])
        roles = list(zip(inner, used))
        roles.insert(len(roles) - (lanes > 1), (outer, "unroll"))
        nest.arrange(stage, dict(roles))
        return outer

    def _store(self, final: Stage, place: Var) -> Stage:
        """The accumulators in registers of the warps, from there to shared memory; gives their stage."""
        s, (rows, columns) = self.s, self.unit
        if self.point["parts"] == 1:
            s[self.accumulator].set_scope(self.scope)
        copy = s.cache_read(self._buffer(self.accumulator), "shared", [self.reader])
        lead = len(self._buffer(self.accumulator).shape) - 2
        self._into_tiles(self.accumulator, lead, rows, columns)
        copy.compute_at(final, place, exact=False)
        share, *_, y, x = nest.free_loops(copy)
        warp_y, tile_y, inner_y = copy.split(y, factors=[self.groups[0], self.each[0] // rows, rows])
        warp_x, tile_x, inner_x = copy.split(x, factors=[self.groups[1], self.each[1] // columns, columns])
        copy.reorder(warp_y, warp_x, tile_y, tile_x, inner_y, inner_x)
        if self.shares * self.groups[0] > 1:
            copy.bind(share if self.shares > 1 else warp_y, "threadIdx.z")
        nest.mark(copy, {warp_x: "threadIdx.y" if self.groups[1] > 1 else "", **nest.unrolled(tile_y, tile_x)})
        copy.storage_align(lead, 16, 8)
        accumulator = s[self.accumulator]
        accumulator.compute_at(copy, warp_x)
        copy.tensorize(inner_y, self.store)
        return accumulator

    def _into_tiles(self, name: str, lead: int, rows: int, columns: int) -> None:
        """The last two dimensions of a stage's result in tiles, each tile's elements together."""
        letters = [f"d{i}" for i in range(lead + 2)]
        first, second = letters[-2:]
        tiles = [f"{first}//{rows}", f"{second}//{columns}", f"{first}%{rows}", f"{second}%{columns}"]
        outputs = [*letters[:lead], *tiles]
        self.s.apply("transform_layout", buffer=self._buffer(name).name, inputs=letters, outputs=outputs)

    def _fetch_tile(self, accumulator: Stage, name: str, step: Var, k_last: bool) -> int:
        """A tile of an operand into shared memory; gives how many elements lie together."""
        tile_x, tile_y, deep = self.tile
        width = self.shares * deep if k_last else tile_x if name == self.x_stage else tile_y
        self._fetch(accumulator, name, step, width)
        return width

    def fetched(self, stage: Stage, width: int) -> list[Var]:
        """Its loops in the order of the lines in shared memory."""
        *around, inner, last = nest.free_loops(stage)
        line = line_elements(self._buffer(stage.name))
        if width <= line or (width % line and not self.is_padded):
            return [*around, inner, last]
        lines, last = stage.split(last, factor=line)
        stage.reorder(*around, lines, inner, last)
        return [*around, lines, inner, last]

    def _arrange(self, name: str, width: int) -> None:
        """How an operand lies: in lines that `swizzle` reorders, else in padded rows; reads meet each bank once."""
        line = line_elements(self._buffer(name))
        if width % line and not (self.is_padded and width > line):
            elements = 16 // self._buffer(name).dtype.bytes
            self.s[name].storage_align(1, 2 * elements, elements)
            return
        self.swizzled.append(self._buffer(name).name)
        if width > line:
            tiles, inside = (["b", f"q//{width}"], f"q%{width}") if width % line else (["b"], "q")
            outputs = [*tiles, f"{inside}//{line}", "p", f"{inside}%{line}"]
            self.s.apply("transform_layout", buffer=self._buffer(name).name, inputs=["b", "p", "q"], outputs=outputs)


# ----------------------------------------------------------------------------------------------------------- mma.sync


class WarpTiles(MatrixTiles):
    """Products by mma.sync."""

    name, knobs, part_blocks = "tensor cores", WARP_KNOBS, fit.WARP_PART_BLOCKS
    threads, scope, stores, rows, most_columns = 32, "mma.c", "mma_store_{sums}", mma.ROWS, mma.ROWS

    def shape(self, c: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Warps along y and x, rows and columns of each, and tiles of k."""
        return c["warps_y"], c["warps_x"], c["warp_y"], c["warp_x"], c["step"] * self.kind.depth

    def legal(self, c: Columns) -> Any:
        """Points that fit the machine and do not exceed the problem by far."""
        (tile_y, tile_x), parts, shares = self._tile(c), c["parts"], c["shares"]
        steps = ceildiv(self.k, c["step"] * self.kind.depth)
        blocks = self.blocks(tile_y, tile_x)
        even = self._even("x", tile_x) & self._even("y", tile_y)
        few = (blocks <= self.machine.multiprocessors) & (steps >= fit.SHARE_STEPS * shares)
        whole = (c["warps_y"] == 1) & (c["step"] * TILE_BYTES == LINE) & (c["warp_x"] * c["warp_y"] >= 32 * shares)
        return (
            (c["warps_x"] * c["warps_y"] <= fit.MOST_WARPS)
            & (tile_y < BEYOND * max(self.y, 16))
            & (tile_x < BEYOND * max(self.x, 16))
            & (c["step"] * self.kind.depth < BEYOND * self.k)
            & (c["stages"] <= np.maximum(2, steps))
            & (self._shared(c) <= self.machine.shared_bytes)
            & self.may_split(parts, blocks, steps)
            & ((parts == 1) | (shares == 1))
            & ((shares == 1) | (few & whole & even))
        )

    def _even(self, side: str, tile: Any) -> Any:
        """Whether tiles end where rows do: of several axes in one, what one in between takes is not known exactly."""
        axes = [axis for axis in getattr(self.given.axes, side) if extent(axis) > 1]
        return (self.given.axes.size(side) % tile == 0) | (len(axes) <= 1)

    def cost(self, c: Columns) -> Any:
        """Seconds of each point: multiplication, fetching and latency."""
        machine, (tile_y, tile_x), shares = self.machine, self._tile(c), c["shares"]
        warps, bytes_k = c["warps_x"] * c["warps_y"] * shares, c["step"] * shares * TILE_BYTES
        steps = ceildiv(self.k, c["step"] * self.kind.depth * c["parts"] * shares)
        registers = c["warp_x"] * c["warp_y"] // 32 + (c["warp_x"] + c["warp_y"]) // 2 + fit.WARP_REGISTERS
        blocks, shared = self.blocks(tile_y, tile_x), self._shared(c)
        rounds, resident, together = self.rounds(blocks, c["parts"], 32 * warps, registers, shared)
        products = tile_x * tile_y * bytes_k / 2 / min(machine.matrix_products, fit.WARP_PRODUCTS)
        tiles, stages = (c["warp_x"] + c["warp_y"]) / mma.ROWS * c["step"], c["stages"] - 1
        reads = tiles * mma.ROWS * TILE_BYTES * warps / fit.WARP_READ_BYTES[self.kind.bytes == 4]
        fetched, waits = self.fetching(tile_y, tile_x, bytes_k, 32 * warps)
        # The way of one block through a step: that of a warp, which issues its part of the copies.
        chain = fit.WARP_STEP + fit.WARP_TILE * tiles + fit.WARP_FETCH * fetched * 4 / warps + waits
        shared = self.shared_out((tile_x + tile_y) * bytes_k, blocks * c["parts"])
        busy = together_of(products, reads, shared) + fetched
        step = together_of(together * busy, chain, fit.WARP_LATENCY / stages)
        cycles = ceildiv(rounds, resident) * steps * step + fit.WARP_START
        start, written, meeting = fit.WARP_BLOCK
        alone = (steps == 1) * fit.WARP_LONE * (tile_x + tile_y) * bytes_k / LINE + (shares > 1) * meeting
        cycles = cycles + rounds * (start + alone + (written + fit.GROUP_WORK * self.work) * tile_x * tile_y)
        # Of tiles that cost the same, the one of the fewest warps, in a square, with the shortest columns.
        many = c["warps_x"] * c["warps_y"] + np.maximum(c["warps_x"], c["warps_y"]) / 8 + c["warps_y"] / 64
        cycles = self.with_memory(cycles) + (many + c["warp_y"] / 65536) / 1024
        return self.seconds(cycles, c["parts"])

    def _shared(self, c: Columns) -> Any:
        return self._memory(c, TILE_BYTES * c["step"] + 16) * c["shares"] + 1024

    def _steps(self, accumulator: Stage) -> None:
        """The steps of k: operands through shared memory into tiles, and the products of the tiles."""
        point, kind = self.point, self.kind
        *_, y, x, k = nest.free_loops(accumulator)
        tile_y, inner_y = accumulator.split(y, factor=16)
        tile_x, inner_x = accumulator.split(x, factor=16)
        outer, tile_k, inner_k = accumulator.split(k, factors=[None, point["step"], kind.depth])
        tiles = nest.unrolled(tile_y, tile_x)
        nest.arrange(accumulator, {outer: "", tile_k: "", **tiles, inner_y: "", inner_x: "", inner_k: ""})
        if point["step"] > 1:
            accumulator.annotate("pipeline_stages", 2, tile_k)  # the next tiles are loaded while these are multiplied
        x_last, y_last = self.product.k_last
        for name, k_last, scope, form in (
            (self.y_stage, y_last, "mma.a", f"{'a' if y_last else 'at'}_{kind.a}"),
            (self.x_stage, x_last, "mma.b", f"{'bt' if x_last else 'b'}_{kind.b}"),
        ):
            width = self._fetch_tile(accumulator, name, outer, bool(k_last))
            self._load(accumulator, name, tile_k, bool(k_last), scope, form, width)
        accumulator.annotate("swizzled", self.swizzled, outer)
        nest.fetch_ahead(accumulator, outer, point["stages"])
        accumulator.tensorize(inner_y, f"mma_dot_{kind.name}_{mma.form_of(not y_last, bool(x_last))}")

    def _load(self, accumulator: Stage, name: str, place: Var, k_last: bool, scope: str, form: str, width: int) -> None:
        """Tiles of an operand into registers."""
        s, depth = self.s, self.kind.depth
        tiles = s.cache_read(name, scope, [accumulator.name])
        rows, columns = (16, depth) if k_last else (depth, 16)
        self._into_tiles(tiles.name, 1, rows, columns)
        tiles.compute_at(accumulator, place)
        *_, first, second = nest.free_loops(tiles)
        outer_first, inner_first = tiles.split(first, factor=rows)
        outer_second, inner_second = tiles.split(second, factor=columns)
        nest.arrange(tiles, {**nest.unrolled(outer_first, outer_second), inner_first: "", inner_second: ""})
        self._arrange(name, width)
        tiles.tensorize(inner_first, f"mma_load_{form}")


# -------------------------------------------------------------------------------------------------------------- wgmma


class GroupTiles(MatrixTiles):
    """Products by wgmma."""

    name, knobs, part_blocks = "warpgroups", GROUP_KNOBS, fit.GROUP_PART_BLOCKS
    threads, scope, stores = 128, "wgmma.c", "wgmma_store_{width}_{sums}"
    rows, most_columns, most_accumulators = wgmma.ROWS, wgmma.WIDTHS[-1], fit.MOST_ACCUMULATORS

    def shape(self, c: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Groups along y and x, rows and columns of each, and a line of k."""
        return c["groups_y"], c["groups_x"], c["tiles_y"] * wgmma.ROWS, c["width"], wgmma.line_depth(self.kind)

    def legal(self, c: Columns) -> Any:
        """Points that fit the machine and do not exceed the problem by far."""
        (tile_y, tile_x), parts, held = self._tile(c), c["parts"], self._held(c)
        deep, threads = wgmma.line_depth(self.kind), 128 * c["groups_x"] * c["groups_y"]
        registers = (held // 2 + fit.GROUP_REGISTERS) * threads
        return (
            (self.k >= deep)
            & self._shares_out(tile_x, threads)
            & self._shares_out(tile_y, threads)
            & ((c["width"] % wgmma.LINE == 0) | self.turned | (self.is_padded & (c["groups_x"] == 1)))
            & (tile_y < BEYOND * self.y)
            & (tile_x < BEYOND * self.x)
            & ((c["tiles_y"] == 1) | (c["groups_x"] == 1))
            & (c["tiles_y"] * c["width"] // 2 <= self.most_accumulators)
            & (registers <= np.minimum(self.machine.registers, fit.THREAD_REGISTERS * threads))
            & (self._shared(c) <= self.machine.shared_bytes)
            & self.may_split(parts, self.blocks(tile_y, tile_x), ceildiv(self.k, deep))
        )

    def cost(self, c: Columns) -> Any:
        """Seconds of each point: multiplication, shared memory, cache and latency."""
        machine, (tile_y, tile_x) = self.machine, self._tile(c)
        groups, work = c["groups_y"] * c["groups_x"], fit.GROUP_WORK * self.work
        steps = ceildiv(self.k, wgmma.line_depth(self.kind) * c["parts"])
        products = tile_x * tile_y * LINE / 2 / machine.matrix_products
        reads = (groups * c["tiles_y"] * (wgmma.ROWS + c["width"]) + tile_x + tile_y) * LINE
        registers = self._held(c) // 2 + fit.GROUP_REGISTERS
        blocks, shared = self.blocks(tile_y, tile_x), self._shared(c)
        rounds, resident, together = self.rounds(blocks, c["parts"], 128 * groups, registers, shared)
        fetched, waits = self.fetching(tile_y, tile_x, LINE, 128 * groups)
        stages, shared = c["stages"] - 2, self.shared_out((tile_x + tile_y) * LINE, blocks * c["parts"])
        busy = together_of(products * fit.BULK_PRODUCTS, reads / fit.SHARED_BYTES, shared) + fetched
        chain = busy + waits * np.maximum(0, steps - stages) / steps
        step = together_of(together * busy, chain, fit.GROUP_LATENCY / stages)
        start, alone, written = fit.GROUP_BLOCK
        # The way of a block through writing out, or what the multiprocessor writes for all that it holds.
        out = together_of(start + alone * tile_x * tile_y / groups, together * (written + work) * tile_x * tile_y)
        cycles = ceildiv(rounds, resident) * (steps * step + out) + rounds * fit.GROUP_ROUND + fit.GROUP_START
        return self.seconds(self.with_memory(cycles), c["parts"])

    def _shared(self, c: Columns) -> Any:
        return self._memory(c, LINE) + 1024

    def _shares_out(self, rows: Any, threads: Any) -> Any:
        """Whether a tile of so many lines is fetched by whole rounds of all threads."""
        return rows * (LINE // SIZES[-1]) % threads == 0

    def _held(self, c: Columns) -> Any:
        """Columns of sums that a group holds: of float8 twice, once for the tensor cores (`promote_products`)."""
        return c["tiles_y"] * c["width"] * (2 if self.kind.wide == "float32" and self.kind.bytes == 1 else 1)

    def _steps(self, accumulator: Stage) -> None:
        """The steps of k: operands into shared memory, and the products of the tiles there."""
        *_, y, x, k = nest.free_loops(accumulator)
        tile_y, inner_y = accumulator.split(y, factor=wgmma.ROWS)
        outer, inner_k = accumulator.split(k, factor=self.tile[2])
        nest.arrange(accumulator, {outer: "", tile_y: "unroll", inner_y: "", x: "", inner_k: ""})
        x_last, y_last = self.product.k_last
        for name, k_last in ((self.y_stage, y_last), (self.x_stage, x_last)):
            self._arrange(name, self._fetch_tile(accumulator, name, outer, bool(k_last)))
        self._fetch_ahead(accumulator, outer)
        accumulator.tensorize(inner_y, wgmma.dot_name(self.kind, not y_last, bool(x_last), self.point["width"]))

    def _fetch_ahead(self, accumulator: Stage, step: Var) -> None:
        nest.fetch_ahead(accumulator, step, self.point["stages"], lag=1)


def _bytes_of(load: Load | None) -> int:
    """Those of a whole tensor."""
    sizes = [0] if load is None else [load.dtype.bytes, *(int_value(n) or 0 for n in load.buffer.shape)]
    return math.prod(sizes)


def _row_bytes(load: Load) -> int:
    return (int_value(load.buffer.shape[-1]) or 0) * load.dtype.bytes


def together_of(*cycles: Any) -> Any:
    """What several things take that go on beside one another: the longest, and more where others are nearly as long."""
    return sum(one**fit.BESIDE for one in cycles) ** (1 / fit.BESIDE)


def read_of(operand: Expr) -> Load | None:
    """The load that an operand is, perhaps with zeros where a test fails."""
    value = stored_operand(operand)
    while isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == 0:
        value = value.then
    return value if isinstance(value, Load) else None


# ---------------------------------------------------------------------------------------------------------- turning


def turn_operands(found: Product, only_constants: bool, sides: str = "xy") -> Product:
    """The product with operands (x, y or both) that lie along k, copies of them where they do not.

    With `only_constants`, the instruction turns whatever else there is, and a constant of rows is packed by itself.
    """
    s, name, (along_x, along_y) = found.unit.schedule, found.name, found.k_last
    for side in "x" if only_constants else sides:
        axes = matrix_axes(block_named(s, name))
        assert axes is not None
        axes = axes.exchanged() if found.is_exchanged else axes
        operand = axes.x_operand if side == "x" else axes.y_operand
        load, is_along = plain_load(operand), runs_along_k(facts_of(block_named(s, name)), operand, axes, found.order)
        is_constant = load is not None and load.buffer in found.unit.constants
        lies = int(is_along or is_constant or not only_constants)
        along_x, along_y = (lies, along_y) if side == "x" else (along_x, lies)
        if load is None or is_along or (only_constants and not is_constant):
            continue
        wanted = [*axes.batch, *getattr(axes, side), *[axes.k[i] for i in found.order]]
        copy, outputs = copy_in_order(s, load, name, wanted)
        if not is_constant:
            _turn_in_registers(s, copy, outputs, found.unit.target)
    return replace(found, k_last=(along_x, along_y), packed=found.packed if only_constants else None)


def _turn_in_registers(s: Schedule, copy: Stage, outputs: list[str], target: Target) -> None:
    """A turned copy: each thread loads a few neighbours of several rows, and stores them as neighbours of columns.

    No shared memory: what a product beside it may lie over in its own is found for one kernel of a program.
    """
    loops = nest.free_loops(copy)
    last, other = loops[int(outputs[-1][1:])], loops[-1]
    many = nest.threads_of(target).vector_bytes // copy.block.writes[0].buffer.dtype.bytes
    if last is other or nest.extent_of(copy, last) % many or nest.extent_of(copy, other) % fit.TURNED:
        choose(unit_of(s, copy.name, target), (elementwise.match_transposition, elementwise.match), analytic)
        return
    tile = s.cache_read(copy.block.reads[0].buffer.name, "local", [copy.name])
    last_outer, last_in = copy.split(last, factor=many)
    other_outer, other_in = copy.split(other, factor=fit.TURNED)
    around = [loop for loop in loops if loop not in (last, other)]
    # Neighbouring threads read whole lines of rows, and write whole sectors of columns.
    many, several = (
        math.gcd(nest.extent_of(copy, loop), n) for loop, n in zip((last_outer, other_outer), fit.TURNED_BY)
    )
    last_outer, near_last = copy.split(last_outer, factor=many)
    other_outer, near_other = copy.split(other_outer, factor=several)
    blocks = [*around, last_outer, other_outer, near_last, near_other]
    copy.reorder(*blocks, other_in, last_in)
    nest.bind_loop(copy, nest.fuse_all(copy, blocks), target)
    tile.compute_at(copy, copy.loops[1])
    nest.mark(copy, {other_in: "unroll", last_in: "vectorize"})
    nest.load_tile(tile)
