"""Products by tensor cores: the schedule of a product whose operands the matrix instructions take.

    for each tile of y and x                                  a block of warps
      for each step of k                                      X and Y fetched together into shared memory, ahead of use
        for each 16 (or 8, 32) of k                           tiles of X and Y into registers, by ldmatrix
          C tiles += Y tiles * X tiles                        by mma.sync; a warp's sums stay in its registers
      the sums to shared memory, and the elementwise block from there

The form of the product is that of `weft.targets.gpu.product`; the instructions are declared in `mma`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from weft.core.errors import WeftError
from weft.expr.nodes import Buffer, Var
from weft.schedule.facts import block_named, facts_of, names_of
from weft.schedule.primitives.matrix import stored_operand
from weft.schedule.schedule import Schedule, Stage
from weft.schedule.space import Point, Space
from weft.targets.base import Target, ThreadFacts
from weft.targets.cuda import mma
from weft.targets.gpu.elementwise import free_loops, fuse_all, threads_of
from weft.targets.gpu.product import Product, axis_loops, fetch_lanes, find_product, pack_operand, sum_parts

CHOICES: dict[str, tuple[int, ...]] = {
    "warps_x": (1, 2, 4),
    "warps_y": (1, 2, 4),
    "warp_x": (16, 32, 64),
    "warp_y": (16, 32, 64),
    "step": (1, 2, 4),
    "stages": (2, 3, 4),
    "parts": (1, 2, 4, 8, 16),
}
"""`step` is how many tiles of k are fetched at a time."""
_KIND_OF = {"float16": "f16", "bfloat16": "bf16", "int8": "s8"}


def schedule_tensor_cores(
    s: Schedule, name: str, target: Target, constants: Collection[Buffer], done: set[str]
) -> bool:
    """Schedules a product that the tensor cores can do; False (and nothing changed) for others."""
    space = tensor_core_space(s, name, target, constants)
    if space is None:
        return False
    before, known = s.copy(), set(names_of(s))
    try:
        space.apply(space.default)
    except WeftError:
        s._become(before)
        return False
    done.update(set(names_of(s)) - known)
    return True


def tensor_core_space(s: Schedule, name: str, target: Target, constants: Collection[Buffer]) -> Space | None:
    """The space of tiles for the tensor cores; None where the product is none of theirs."""
    found = find_product(s, name, constants)
    if found is None:
        return None
    kind = kind_of(found, threads_of(target))
    if kind is None:
        return None
    sizes = {part: found.axes.size(part) for part in ("x", "y", "k", "batch")}
    if sizes["y"] < 8 or sizes["x"] < 16 or sizes["k"] < kind.depth:
        return None
    best = min(
        candidates(sizes, kind, threads_of(target)),
        key=lambda p: estimate(sizes, kind, p, threads_of(target)),
        default=None,
    )
    if best is None:
        return None
    return Space("tensor cores", CHOICES, best, lambda point: _Apply(s, found, kind, point, target).run())


def kind_of(found: Product, machine: ThreadFacts) -> mma.Kind | None:
    """The sort of matrix instruction for a product; None where there is none."""
    x, y = stored_operand(found.axes.x_operand), stored_operand(found.axes.y_operand)
    wide = found.axes.x_operand.dtype.name
    if x.dtype is not y.dtype or x.dtype.name not in machine.tensor_cores:
        return None
    kind = mma.KINDS.get(_KIND_OF.get(x.dtype.name, ""))
    if kind is None or kind.wide != wide or (not kind.transposes and found.k_last != (1, 1)):
        return None
    return kind


def candidates(sizes: dict[str, int], kind: mma.Kind, machine: ThreadFacts) -> Iterator[dict[str, int]]:
    """Points that fit the machine and do not exceed the problem by far."""
    for warps_y, warps_x in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2)):
        for warp_y in CHOICES["warp_y"]:
            for warp_x in CHOICES["warp_x"]:
                tile_y, tile_x = warps_y * warp_y, warps_x * warp_x
                if tile_y >= 2 * max(sizes["y"], 16) or tile_x >= 2 * max(sizes["x"], 16):
                    continue
                if warp_x * warp_y > 64 * 64:
                    continue
                for step in CHOICES["step"]:
                    if step * kind.depth >= 2 * sizes["k"] or step * kind.depth < 16:
                        continue
                    yield from _rest(sizes, kind, machine, warps_y, warps_x, warp_y, warp_x, step)


def _rest(
    sizes: dict[str, int], kind: mma.Kind, machine: ThreadFacts, warps_y: int, warps_x: int, warp_y: int, warp_x: int,
    step: int,
) -> Iterator[dict[str, int]]:  # fmt: skip
    steps = math.ceil(sizes["k"] / (step * kind.depth))
    for stages in (2, 3, 4):
        if stages > max(2, steps):
            continue
        point = {
            "warps_x": warps_x, "warps_y": warps_y, "warp_x": warp_x, "warp_y": warp_y, "step": step, "stages": stages,
            "parts": 1,
        }  # fmt: skip
        if shared_bytes(point, kind) > machine.shared_bytes:
            continue
        blocks = math.ceil(sizes["x"] / (warps_x * warp_x)) * math.ceil(sizes["y"] / (warps_y * warp_y))
        for parts in CHOICES["parts"]:
            many = blocks * parts * sizes["batch"]
            if parts == 1 or (steps >= 4 * parts and many <= 4 * machine.multiprocessors):
                yield {**point, "parts": parts}


def shared_bytes(point: Point, kind: mma.Kind) -> int:
    """The shared memory of a block."""
    tile_x, tile_y = point["warps_x"] * point["warp_x"], point["warps_y"] * point["warp_y"]
    row = 32 * point["step"] + 16
    return max(point["stages"] * row * (tile_x + tile_y), 4 * tile_y * (tile_x + 8)) + 256


def estimate(sizes: dict[str, int], kind: mma.Kind, point: Point, machine: ThreadFacts) -> float:
    """Cycles that a product takes with a tile, by a model: multiplication, fetching and latency."""
    tile_x, tile_y = point["warps_x"] * point["warp_x"], point["warps_y"] * point["warp_y"]
    warps = point["warps_x"] * point["warps_y"]
    deep = point["step"] * kind.depth
    blocks = math.ceil(sizes["x"] / tile_x) * math.ceil(sizes["y"] / tile_y) * sizes["batch"] * point["parts"]
    steps = math.ceil(sizes["k"] / (deep * point["parts"]))
    registers = point["warp_x"] * point["warp_y"] // 32 + (point["warp_x"] + point["warp_y"]) // 2 + 48
    resident = max(
        1,
        min(
            machine.multiprocessor_shared_bytes // (shared_bytes(point, kind) + 1024),
            (machine.registers or 65536) // (registers * 32 * warps), 32,
        ),
    )  # fmt: skip
    rounds = math.ceil(blocks / machine.multiprocessors)
    together = min(resident, rounds)
    products = tile_x * tile_y * deep / 1024
    fetched = (tile_x + tile_y) * point["step"] * 32 / 24
    reads = (point["warp_x"] + point["warp_y"]) * 32 * point["step"] * warps / 110
    busy = (max(products, fetched, reads) + 40) * max(1.0, (8 / (warps * together)) ** 0.5)
    waits = 700 / (point["stages"] - 1) + 100 + (0.25 * busy if together == 1 else 0)
    cycles: float = rounds * steps * max(busy, (busy + waits) / together) + math.ceil(rounds / resident) * 3000
    if point["parts"] > 1:
        cycles += 3500 + sizes["x"] * sizes["y"] * sizes["batch"] * 8 * point["parts"] / (machine.multiprocessors * 24)
    return cycles


class _Apply:
    """Applies one point of the space."""

    def __init__(self, s: Schedule, product: Product, kind: mma.Kind, point: Point, target: Target) -> None:
        self.s, self.product, self.kind, self.point, self.target = s, product, kind, point, target
        self.tile_x = point["warps_x"] * point["warp_x"]
        self.tile_y = point["warps_y"] * point["warp_y"]
        self.deep = point["step"] * kind.depth

    def run(self) -> None:
        """The whole schedule of the product."""
        s, found = self.s, self.product
        if found.packed is not None:
            pack_operand(s, found)
        self.x, self.y, self.total = s.apply(
            "matrix_form", block=found.block.name, pads=[self.tile_x, self.tile_y, self.deep],
            order=list(found.order), parts=self.point["parts"], k_last=list(found.k_last),
        )  # fmt: skip
        final, place = self._tiles()
        sums = self._store(final, place)
        self._multiply(sums)
        if self.point["parts"] > 1:
            sum_parts(s, found, self.target)

    def _tiles(self) -> tuple[Stage, Var]:
        """The final block in tiles, one for each block of warps; gives it, and the loop of a tile."""
        s, found = self.s, self.product
        split = self.point["parts"] > 1
        if split:
            self.sums = s.cache_write(block_named(s, self.total).writes[0].buffer, "mma.c").name
            final = s[self.total]
        else:
            self.sums = self.total
            final = s[found.block.name]
            if found.taker is not None:
                final.compute_inline()
                final = s[found.taker.name]
        batch, y, x = axis_loops(s, found, final, split)
        final.reorder(*batch, *y, *x)
        block_y, inner_y = final.split(fuse_all(final, y), factor=self.tile_y)
        block_x, inner_x = final.split(fuse_all(final, x), factor=self.tile_x)
        final.reorder(block_y, block_x, inner_y, inner_x)
        if batch:
            final.bind(fuse_all(final, batch), "blockIdx.z")
        final.bind(block_y, "blockIdx.y")
        final.bind(block_x, "blockIdx.x")
        lanes = 1 if found.axes.size("x") % 4 else 4
        self._share(final, [inner_y, inner_x], lanes)
        return final, block_x

    def _share(self, stage: Stage, loops: list[Var], lanes: int) -> None:
        """Work on a tile divided among all threads of the block."""
        flat = fuse_all(stage, loops)
        point = self.point
        sizes = [None, point["warps_y"], point["warps_x"], 32, lanes]
        outer, warp_y, warp_x, lane, vector = stage.split(flat, factors=sizes)
        stage.reorder(warp_y, warp_x, lane, outer, vector)
        stage.bind(warp_y, "threadIdx.z")
        stage.bind(warp_x, "threadIdx.y")
        stage.bind(lane, "threadIdx.x")
        stage.unroll(outer)
        if lanes > 1:
            stage.vectorize(vector)

    def _store(self, final: Stage, place: Var) -> Stage:
        """The sums in registers of the warps, from there to shared memory; gives the stage of the sums."""
        s, point = self.s, self.point
        if point["parts"] == 1:
            s[self.sums].set_scope("mma.c")
        copy = s.cache_read(self._buffer(self.sums), "shared", [final.name])
        lead = len(self._buffer(self.sums).shape) - 2
        self._into_tiles(self.sums, lead, 16, 16)
        copy.compute_at(final, place)
        *_, y, x = [loop.var for loop in free_loops(copy)]
        warp_y, tile_y, inner_y = copy.split(y, factors=[point["warps_y"], point["warp_y"] // 16, 16])
        warp_x, tile_x, inner_x = copy.split(x, factors=[point["warps_x"], point["warp_x"] // 16, 16])
        copy.reorder(warp_y, warp_x, tile_y, tile_x, inner_y, inner_x)
        copy.bind(warp_y, "threadIdx.z")
        copy.bind(warp_x, "threadIdx.y")
        copy.unroll(tile_y)
        copy.unroll(tile_x)
        copy.storage_align(lead, 16, 8)
        sums = s[self.sums]
        sums.compute_at(copy, warp_x)
        copy.tensorize(inner_y, "mma_store_f32" if self.kind.wide == "float32" else "mma_store_s32")
        return sums

    def _buffer(self, name: str) -> Buffer:
        return block_named(self.s, name).writes[0].buffer

    def _into_tiles(self, name: str, lead: int, rows: int, columns: int) -> None:
        """The last two dimensions of a stage's result in tiles, each tile's elements together."""
        letters = [f"d{i}" for i in range(lead + 2)]
        first, second = letters[-2:]
        tiles = [f"{first}//{rows}", f"{second}//{columns}", f"{first}%{rows}", f"{second}%{columns}"]
        outputs = [*letters[:lead], *tiles]
        self.s.apply("transform_layout", buffer=self._buffer(name).name, inputs=letters, outputs=outputs)

    def _multiply(self, sums: Stage) -> None:
        """The steps of k: operands through shared memory into tiles, and the products of the tiles."""
        point, kind = self.point, self.kind
        *_, y, x, k = [loop.var for loop in free_loops(sums)]
        tile_y, inner_y = sums.split(y, factor=16)
        tile_x, inner_x = sums.split(x, factor=16)
        outer, tile_k, inner_k = sums.split(k, factors=[None, point["step"], kind.depth])
        sums.reorder(outer, tile_k, tile_y, tile_x, inner_y, inner_x, inner_k)
        for loop in (tile_y, tile_x):
            sums.unroll(loop)
        if point["step"] > 1:
            sums.annotate("pipeline_stages", 2, tile_k)  # the next tiles are loaded while these are multiplied
        x_last, y_last = self.product.k_last
        for name, k_last, scope, form in (
            (self.y, y_last, "mma.a", "a" if y_last else "at"),
            (self.x, x_last, "mma.b", "bt" if x_last else "b"),
        ):
            self._fetch(sums, name, outer, bool(k_last))
            self._load(sums, name, tile_k, bool(k_last), scope, form)
        if point["stages"] > 1:
            sums.annotate("pipeline_stages", point["stages"], outer)
            sums.annotate("async_copy", True, outer)
        form = f"{'n' if y_last else 't'}{'t' if x_last else 'n'}"
        sums.tensorize(inner_y, f"mma_dot_{kind.name}_{form}")

    def _fetch(self, sums: Stage, name: str, place: Var, k_last: bool) -> None:
        """A tile of an operand into shared memory; rows are padded so that ldmatrix meets every bank once."""
        s = self.s
        width = self.deep if k_last else self.tile_x if name == self.x else self.tile_y
        lanes = fetch_lanes(facts_of(block_named(s, name)), width)
        s[name].set_scope("shared")
        s[name].compute_at(sums, place)
        self._share(s[name], [loop.var for loop in free_loops(s[name])], lanes)
        elements = 16 // self._buffer(name).dtype.bytes
        s[name].storage_align(1, 2 * elements, elements)

    def _load(self, sums: Stage, name: str, place: Var, k_last: bool, scope: str, form: str) -> None:
        """Tiles of an operand into registers."""
        s, depth = self.s, self.kind.depth
        tiles = s.cache_read(name, scope, [sums.name])
        rows, columns = (16, depth) if k_last else (depth, 16)
        self._into_tiles(tiles.name, 1, rows, columns)
        tiles.compute_at(sums, place)
        *_, first, second = [loop.var for loop in free_loops(tiles)]
        outer_first, inner_first = tiles.split(first, factor=rows)
        outer_second, inner_second = tiles.split(second, factor=columns)
        tiles.reorder(outer_first, outer_second, inner_first, inner_second)
        tiles.unroll(outer_first)
        tiles.unroll(outer_second)
        tiles.tensorize(inner_first, f"mma_load_{form}_{self.kind.name}")
