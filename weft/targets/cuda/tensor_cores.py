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

The form of the product is that of `weft.targets.gpu.product`; the instructions are declared in `mma` and `wgmma`, the
steps are those of `tiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.primitives.matrix import stored_operand
from weft.targets.base import Target
from weft.targets.cuda import mma, wgmma
from weft.targets.cuda import model as fit
from weft.targets.cuda.swizzle import LINE
from weft.targets.cuda.tiles import GroupTiles, MatrixTiles, WarpTiles
from weft.targets.cuda.turning import turn_operands
from weft.targets.gpu import nest
from weft.targets.gpu.model import BEYOND, PART_STEPS, resident_blocks
from weft.targets.gpu.product import Problem, Product, find_product

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
    "groups_y": (1, 2),
    "groups_x": (1, 2),
    "tiles_y": (1, 2),
    "width": wgmma.WIDTHS,
    "stages": (3, 4, 5, 6),
    "parts": (1, 2, 4, 8),
}
"""`tiles_y` are tiles of 64 rows, one below the other, that a group of threads holds the accumulators of."""
TILE_BYTES = 32
"""Bytes of k of a tile of mma.sync, in every kind."""
FEATURE = "tf32"
"""The feature of a target whose products of float32 may round their operands to tf32: only where a user asks."""
_NEEDS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "tfloat32", "int8": "int8", "uint8": "int8"}
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
    return _sketch("tensor cores", unit, WARP_KNOBS, Warps, WarpTiles)


def match_groups(unit: Unit) -> Sketch | None:
    """The sketch of a product by wgmma; None where it is none of its."""
    if not nest.threads_of(unit.target).has_warpgroups:
        return None
    return _sketch("warpgroups", unit, GROUP_KNOBS, Groups, GroupTiles)


def _sketch(
    name: str,
    unit: Unit,
    knobs: dict[str, tuple[int, ...]],
    problem: type[Warps] | type[Groups],
    tiles: Callable[[Product, mma.Kind, Point], MatrixTiles],
) -> Sketch | None:
    found = find_product(unit)
    kind = None if found is None else kind_of(found, unit.target)
    if found is None or kind is None:
        return None
    made = problem(*found.sizes, kind)
    if made.y < fit.LEAST_Y or made.x < fit.LEAST_X or made.k < kind.depth:
        return None

    def apply(point: Point) -> None:
        tiles(found if kind.transposes else turn_operands(found), kind, point).run()

    return Sketch(name, knobs, apply, made.cost, made.legal)


# -------------------------------------------------------------------------------------------------------- what it costs


@dataclass(frozen=True)
class Warps(Problem):
    """Products by mma.sync."""

    kind: mma.Kind

    def legal(self, c: Columns) -> Any:
        """Points that fit the machine and do not exceed the problem by far."""
        (tile_y, tile_x), parts, shares = self._tile(c), c["parts"], c["shares"]
        steps = ceildiv(self.k, c["step"] * self.kind.depth)
        blocks = self.blocks(tile_y, tile_x)
        most = fit.WARP_PART_BLOCKS * self.machine.multiprocessors
        split = (steps >= PART_STEPS * parts) & (blocks * parts * self.batch <= most)
        few = (blocks <= self.machine.multiprocessors) & (steps >= fit.SHARE_STEPS * shares)
        whole = (c["warps_y"] == 1) & (c["step"] * TILE_BYTES == LINE) & (c["warp_x"] * c["warp_y"] >= 32 * shares)
        return (
            (c["warps_x"] * c["warps_y"] <= fit.MOST_WARPS)
            & (tile_y < BEYOND * max(self.y, 16))
            & (tile_x < BEYOND * max(self.x, 16))
            & (c["step"] * self.kind.depth < BEYOND * self.k)
            & (c["stages"] <= np.maximum(2, steps))
            & (self._shared(c) <= self.machine.shared_bytes)
            & ((parts == 1) | (split & (shares == 1)))
            & ((shares == 1) | (few & whole))
        )

    def cost(self, c: Columns) -> Any:
        """Seconds of each point: multiplication, fetching and latency."""
        machine, (tile_y, tile_x), shares = self.machine, self._tile(c), c["shares"]
        warps, bytes_k = c["warps_x"] * c["warps_y"] * shares, c["step"] * shares * TILE_BYTES
        steps = ceildiv(self.k, c["step"] * self.kind.depth * c["parts"] * shares)
        registers = c["warp_x"] * c["warp_y"] // 32 + (c["warp_x"] + c["warp_y"]) // 2 + fit.WARP_REGISTERS
        resident = resident_blocks(machine, 32 * warps, registers, self._shared(c))
        rounds = ceildiv(self.blocks(tile_y, tile_x) * self.batch * c["parts"], machine.multiprocessors)
        together = np.minimum(resident, rounds)
        products = tile_x * tile_y * bytes_k / 2 / min(machine.matrix_products, fit.WARP_PRODUCTS)
        fetched = (tile_x + tile_y) * bytes_k / fit.FETCHED_BYTES
        reads = (c["warp_x"] + c["warp_y"]) * TILE_BYTES * c["step"] * warps / fit.WARP_READ_BYTES
        busy = np.maximum(np.maximum(products, fetched), reads) + fit.WARP_STEP
        busy = busy * np.maximum(1.0, (fit.WARP_BUSY / (warps * together)) ** fit.WARP_BUSY_POWER)
        waits = fit.WARP_LATENCY / (c["stages"] - 1) + fit.WARP_WAIT + np.where(together == 1, fit.WARP_ALONE * busy, 0)
        cycles = rounds * steps * np.maximum(busy, (busy + waits) / together)
        cycles = cycles + ceildiv(rounds, resident) * fit.WARP_START
        # Of tiles that cost the same, the one of the fewest warps, in a square, with the shortest columns.
        many = c["warps_x"] * c["warps_y"] + np.maximum(c["warps_x"], c["warps_y"]) / 8 + c["warps_y"] / 64
        return self.seconds(cycles + (many + c["warp_y"] / 65536) / 1024, c["parts"], 8 * c["parts"])

    def _tile(self, c: Columns) -> tuple[Any, Any]:
        return c["warps_y"] * c["warp_y"], c["warps_x"] * c["warp_x"]

    def _shared(self, c: Columns) -> Any:
        """The shared memory of a block."""
        tile_y, tile_x = self._tile(c)
        operands = c["stages"] * (TILE_BYTES * c["step"] + 16) * (tile_x + tile_y)
        return np.maximum(operands, 4 * tile_y * (tile_x + 8)) * c["shares"] + 1024


@dataclass(frozen=True)
class Groups(Problem):
    """Products by wgmma."""

    kind: mma.Kind

    def legal(self, c: Columns) -> Any:
        """Points that fit the machine and do not exceed the problem by far."""
        (tile_y, tile_x), parts, held = self._tile(c), c["parts"], c["tiles_y"] * c["width"]
        deep = wgmma.line_depth(self.kind)
        split = self.blocks(tile_y, tile_x) * self.batch * parts <= fit.GROUP_PART_BLOCKS * self.machine.multiprocessors
        return (
            (self.k >= deep)
            & (tile_y < BEYOND * self.y)
            & (tile_x < BEYOND * self.x)
            & ((c["tiles_y"] == 1) | (c["groups_x"] == 1))
            & (held // 2 <= fit.MOST_ACCUMULATORS)
            & ((c["groups_x"] * c["groups_y"] <= 2) | (held <= 128))  # 512 threads have 128 registers each
            & (self._shared(c) <= self.machine.shared_bytes)
            & ((parts == 1) | ((ceildiv(self.k, deep) >= PART_STEPS * parts) & split))
        )

    def cost(self, c: Columns) -> Any:
        """Seconds of each point: multiplication, shared memory, cache and latency."""
        machine, (tile_y, tile_x) = self.machine, self._tile(c)
        groups = c["groups_y"] * c["groups_x"]
        steps = ceildiv(self.k, wgmma.line_depth(self.kind) * c["parts"])
        products = tile_x * tile_y * LINE / 2 / machine.matrix_products
        fetched = (tile_x + tile_y) * LINE
        reads = groups * c["tiles_y"] * (wgmma.ROWS + c["width"]) * LINE
        registers = c["tiles_y"] * c["width"] // 2 + fit.GROUP_REGISTERS
        resident = resident_blocks(machine, 128 * groups, registers, self._shared(c))
        rounds = ceildiv(self.blocks(tile_y, tile_x) * self.batch * c["parts"], machine.multiprocessors)
        together = np.minimum(resident, rounds)
        busy = np.maximum(products * fit.GROUP_PRODUCTS, (reads + fetched) / fit.SHARED_BYTES)
        busy = np.maximum(busy, fetched / fit.FETCHED_BYTES) + fit.GROUP_STEP
        waits = np.maximum(0.0, fit.GROUP_LATENCY / (c["stages"] - 2) + fit.GROUP_WAIT - busy)
        written = tile_x * tile_y * np.where(together == 1, *fit.GROUP_WRITTEN)
        cycles = rounds * steps * np.maximum(busy, (busy + waits) / together)
        cycles = cycles + ceildiv(rounds, together) * (fit.GROUP_START + written)
        return self.seconds(cycles, c["parts"], 8 * c["parts"])

    def _tile(self, c: Columns) -> tuple[Any, Any]:
        return c["groups_y"] * c["tiles_y"] * wgmma.ROWS, c["groups_x"] * c["width"]

    def _shared(self, c: Columns) -> Any:
        """The shared memory of a block."""
        tile_y, tile_x = self._tile(c)
        return np.maximum(c["stages"] * (tile_x + tile_y) * LINE, 4 * tile_y * (tile_x + 8)) + 1024
