"""The steps of a contraction in tiles for the tensor cores: blocks, fetches, accumulators in registers, how they leave.

`WarpTiles` are those of mma.sync, `GroupTiles` those of wgmma; what each does is told in `tensor_cores`.
"""

from __future__ import annotations

import math

from weft.expr.nodes import Buffer, Var
from weft.plan.sketch import Point
from weft.schedule.facts import block_named, facts_of, names_of
from weft.schedule.schedule import Stage
from weft.targets.cuda import mma, wgmma
from weft.targets.cuda.swizzle import line_elements
from weft.targets.gpu import nest
from weft.targets.gpu.model import FLOATS
from weft.targets.gpu.product import Product, Tiles, in_matrix_form


class MatrixTiles(Tiles):
    """Applies one point of a sketch: a block of `groups` of threads, each with `each` rows and columns of its own."""

    threads: int
    """Threads that hold a tile together."""
    groups: tuple[int, int]
    each: tuple[int, int]
    unit: tuple[int, int]
    """Rows and columns of the tile that one instruction stores."""
    store: str
    """That instruction."""

    def __init__(self, product: Product, kind: mma.Kind, point: Point, deep: int) -> None:
        super().__init__(product, point)
        self.kind = kind
        self.swizzled: list[str] = []
        self.tile = self.groups[1] * self.each[1], self.groups[0] * self.each[0], deep

    def _form(self) -> list[str]:
        parts = self.point["parts"] * self.shares
        return in_matrix_form(self.product, self.tile, parts, in_turn=self.shares > 1)

    def multiply(self, final: Stage) -> None:
        """Tiles of the final block, one for each block of warps; from there to the steps of k."""
        found, (tile_x, tile_y, _) = self.product, self.tile
        batch, y, x = self._loops(final)
        block_y, inner_y = final.split(nest.fuse_all(final, y), factor=tile_y)
        block_x, inner_x = final.split(nest.fuse_all(final, x), factor=tile_x)
        final.reorder(block_y, block_x, inner_y, inner_x)
        self._blocks(final, batch, block_y, block_x)
        threads = self.shares * math.prod(self.groups) * self.threads
        lanes = 1 if found.axes.size("x") % FLOATS else FLOATS
        while lanes > 1 and tile_y * tile_x % (threads * lanes):
            lanes //= 2
        innermost = self._share(final, [inner_y, inner_x], lanes)
        self.reader = final.name
        if self.shares > 1:
            self._add_shares(final, innermost)
        self._steps(self._store(final, block_x))

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

    def _share(self, stage: Stage, loops: list[Var], lanes: int) -> Var:
        """Work on a tile divided among all threads of the block; gives the loop in which a thread goes on."""
        flat = nest.fuse_all(stage, loops)
        sizes = {"threadIdx.z": self.shares * self.groups[0], "threadIdx.y": self.groups[1],
                 "threadIdx.x": self.threads, "vectorize": lanes}  # fmt: skip
        used = {role: size for role, size in sizes.items() if size > 1}
        outer, *inner = stage.split(flat, factors=[None, *used.values()])
        *threads, vector = [*zip(inner, used), *([] if lanes > 1 else [None])]
        nest.arrange(stage, dict([*threads, (outer, "unroll"), *([vector] if lanes > 1 else [])]))
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

    def _fetch(self, accumulator: Stage, name: str, place: Var, k_last: bool) -> int:
        """A tile of an operand into shared memory, by all threads; gives how many elements lie together."""
        s = self.s
        tile_x, tile_y, deep = self.tile
        width = self.shares * deep if k_last else tile_x if name == self.x else tile_y
        lanes = nest.fetch_lanes(facts_of(block_named(s, name)), width, self.product.unit.target)
        s[name].set_scope("shared")
        s[name].compute_at(accumulator, place)
        self._share(s[name], nest.free_loops(s[name]), lanes)
        return width

    def _arrange(self, name: str, width: int) -> None:
        """How an operand lies: in lines that `swizzle` reorders, else in padded rows; reads meet each bank once."""
        line = line_elements(self._buffer(name))
        if width % line:
            elements = 16 // self._buffer(name).dtype.bytes
            self.s[name].storage_align(1, 2 * elements, elements)
            return
        self.swizzled.append(self._buffer(name).name)
        if width > line:
            outputs = ["b", f"q//{line}", "p", f"q%{line}"]
            self.s.apply("transform_layout", buffer=self._buffer(name).name, inputs=["b", "p", "q"], outputs=outputs)


class WarpTiles(MatrixTiles):
    """Products by mma.sync."""

    threads, scope, unit = 32, "mma.c", (16, 16)

    def __init__(self, product: Product, kind: mma.Kind, point: Point) -> None:
        self.groups, self.each = (point["warps_y"], point["warps_x"]), (point["warp_y"], point["warp_x"])
        self.shares = point["shares"]
        super().__init__(product, kind, point, point["step"] * kind.depth)
        self.store = f"mma_store_{mma.SUMS[kind.wide]}"

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
            (self.y, y_last, "mma.a", f"{'a' if y_last else 'at'}_{kind.a}"),
            (self.x, x_last, "mma.b", f"{'bt' if x_last else 'b'}_{kind.b}"),
        ):
            width = self._fetch(accumulator, name, outer, bool(k_last))
            self._load(accumulator, name, tile_k, bool(k_last), scope, form, width)
        accumulator.annotate("swizzled", self.swizzled, outer)
        self._ahead(accumulator, outer)
        form = f"{'n' if y_last else 't'}{'t' if x_last else 'n'}"
        accumulator.tensorize(inner_y, f"mma_dot_{kind.name}_{form}")

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


class GroupTiles(MatrixTiles):
    """Products by wgmma."""

    threads, scope = 128, "wgmma.c"

    def __init__(self, product: Product, kind: mma.Kind, point: Point) -> None:
        self.groups, self.unit = (point["groups_y"], point["groups_x"]), (wgmma.ROWS, point["width"])
        self.each = point["tiles_y"] * wgmma.ROWS, point["width"]
        super().__init__(product, kind, point, wgmma.line_depth(kind))
        self.store = f"wgmma_store_{point['width']}_{mma.SUMS[kind.wide]}"

    def _steps(self, accumulator: Stage) -> None:
        """The steps of k: operands into shared memory, and the products of the tiles there."""
        *_, y, x, k = nest.free_loops(accumulator)
        tile_y, inner_y = accumulator.split(y, factor=wgmma.ROWS)
        outer, inner_k = accumulator.split(k, factor=self.tile[2])
        nest.arrange(accumulator, {outer: "", tile_y: "unroll", inner_y: "", x: "", inner_k: ""})
        x_last, y_last = self.product.k_last
        for name, k_last in ((self.y, y_last), (self.x, x_last)):
            self._arrange(name, self._fetch(accumulator, name, outer, bool(k_last)))
        self._ahead(accumulator, outer, lag=1)
        accumulator.tensorize(inner_y, wgmma.dot_name(self.kind, not y_last, bool(x_last), self.point["width"]))
