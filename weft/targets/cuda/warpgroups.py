"""Products by Hopper's tensor cores, which read operands from shared memory for four warps together (wgmma).

    for each tile of y and x                                  a block of one to four groups of 128 threads
      for each line of k (128 bytes)                          X and Y fetched into swizzled lines in shared memory
        C tiles += Y tiles * X tiles                          by wgmma, beside the threads and into the next step
      the sums to shared memory, and the elementwise block from there

The form of the product and what comes after it are those of `tensor_cores`; the instructions are declared in `wgmma`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.schedule.schedule import Schedule, Stage
from weft.schedule.space import Point
from weft.targets.base import Target, ThreadFacts
from weft.targets.cuda import mma, wgmma
from weft.targets.cuda.swizzle import LINE
from weft.targets.cuda.tiles import ProductTiles
from weft.targets.gpu.elementwise import free_loops
from weft.targets.gpu.product import Product

CHOICES: dict[str, tuple[int, ...]] = {
    "groups_y": (1, 2),
    "groups_x": (1, 2),
    "tiles_y": (1, 2),
    "width": wgmma.WIDTHS,
    "stages": (3, 4, 5, 6),
    "parts": (1, 2, 4, 8),
}
"""`tiles_y` are tiles of 64 rows, one below the other, that a group of threads holds the sums of."""
_MOST_SUMS = 128
"""Registers of a thread for sums."""


def candidates(sizes: dict[str, int], kind: mma.Kind, machine: ThreadFacts) -> Iterator[dict[str, int]]:
    """Points that fit the machine and do not exceed the problem by far."""
    if not machine.has_warpgroups or sizes["k"] < wgmma.line_depth(kind):
        return
    for groups_y, groups_x, tiles_y in ((1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 1)):
        for width in wgmma.WIDTHS:
            tile_y, tile_x = groups_y * tiles_y * wgmma.ROWS, groups_x * width
            if tile_y >= 2 * sizes["y"] or tile_x >= 2 * sizes["x"] or tiles_y * width // 2 > _MOST_SUMS:
                continue
            if groups_x * groups_y > 2 and tiles_y * width > 128:
                continue  # 512 threads have 128 registers each
            for stages in CHOICES["stages"]:
                point = {"groups_y": groups_y, "groups_x": groups_x, "tiles_y": tiles_y, "width": width}
                yield from _in_parts(sizes, kind, machine, {**point, "stages": stages, "parts": 1})


def _in_parts(
    sizes: dict[str, int], kind: mma.Kind, machine: ThreadFacts, point: dict[str, int]
) -> Iterator[dict[str, int]]:
    if shared_bytes(point) > machine.shared_bytes:
        return
    tile_y, tile_x = tile_of(point)
    blocks = math.ceil(sizes["x"] / tile_x) * math.ceil(sizes["y"] / tile_y) * sizes["batch"]
    steps = math.ceil(sizes["k"] / wgmma.line_depth(kind))
    for parts in CHOICES["parts"]:
        if parts == 1 or (steps >= 4 * parts and blocks * parts <= 2 * machine.multiprocessors):
            yield {**point, "parts": parts}


def tile_of(point: Point) -> tuple[int, int]:
    """Rows and columns of a block's tile."""
    return point["groups_y"] * point["tiles_y"] * wgmma.ROWS, point["groups_x"] * point["width"]


def shared_bytes(point: Point) -> int:
    """The shared memory of a block."""
    tile_y, tile_x = tile_of(point)
    operands, sums = point["stages"] * (tile_x + tile_y) * LINE, 4 * tile_y * (tile_x + 8)
    return max(operands, sums) + 1024


def estimate(sizes: dict[str, int], kind: mma.Kind, point: Point, machine: ThreadFacts) -> float:
    """Cycles that a product takes with a tile, by a model: multiplication, shared memory, cache and latency."""
    tile_y, tile_x = tile_of(point)
    groups = point["groups_y"] * point["groups_x"]
    blocks = math.ceil(sizes["x"] / tile_x) * math.ceil(sizes["y"] / tile_y) * sizes["batch"] * point["parts"]
    steps = math.ceil(sizes["k"] / (wgmma.line_depth(kind) * point["parts"]))
    row = LINE
    products = tile_x * tile_y / 32  # as many bytes of k a cycle in every kind
    reads = groups * point["tiles_y"] * (wgmma.ROWS + point["width"]) * row
    fetched = (tile_x + tile_y) * row
    registers = point["tiles_y"] * point["width"] // 2 + 56
    resident = min(
        machine.multiprocessor_shared_bytes // (shared_bytes(point) + 1024),
        machine.registers // (registers * 128 * groups) or 1,
    )
    rounds = math.ceil(blocks / machine.multiprocessors)
    together = max(1, min(resident, rounds))
    busy = max(products * 1.1, (reads + fetched) / 128, fetched / 36) + 30
    waits = 1750 / (point["stages"] - 2) + 60 - busy
    cycles = rounds * steps * max(busy, (busy + max(0.0, waits)) / together)
    cycles += math.ceil(rounds / together) * (1500 + tile_x * tile_y * (0.14 if together == 1 else 0.07))
    if point["parts"] > 1:
        cycles += 3500 + sizes["x"] * sizes["y"] * sizes["batch"] * 8 * point["parts"] / (machine.multiprocessors * 24)
    return cycles


class GroupTiles(ProductTiles):
    """Applies one point of the space."""

    threads = 128
    scope = "wgmma.c"

    def __init__(self, s: Schedule, product: Product, kind: mma.Kind, point: Point, target: Target) -> None:
        self.s, self.product, self.kind, self.point, self.target = s, product, kind, point, target
        self.groups = (point["groups_y"], point["groups_x"])
        self.each = (point["tiles_y"] * wgmma.ROWS, point["width"])
        self.unit = (wgmma.ROWS, point["width"])
        self.deep = wgmma.line_depth(kind)
        self.swizzled = []
        self.store = f"wgmma_store_{point['width']}_{'f32' if kind.wide == 'float32' else 's32'}"

    def _multiply(self, sums: Stage) -> None:
        """The steps of k: operands into shared memory, and the products of the tiles there."""
        *_, y, x, k = [loop.var for loop in free_loops(sums)]
        tile_y, inner_y = sums.split(y, factor=wgmma.ROWS)
        outer, inner_k = sums.split(k, factor=self.deep)
        sums.reorder(outer, tile_y, inner_y, x, inner_k)
        sums.unroll(tile_y)
        x_last, y_last = self.product.k_last
        for name, k_last in ((self.y, y_last), (self.x, x_last)):
            self._arrange(name, self._fetch(sums, name, outer, bool(k_last)))
        sums.annotate("pipeline_stages", self.point["stages"], outer)
        sums.annotate("pipeline_lag", 1, outer)
        sums.annotate("async_copy", True, outer)
        sums.tensorize(inner_y, wgmma.dot_name(self.kind, not y_last, bool(x_last), self.point["width"]))
