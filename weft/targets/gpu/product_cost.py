"""What a product in registers costs, for columns of tiles: how long a multiprocessor works, and how long one block.

A tile is good when its accumulators fill registers (few loads for each multiplication), when its blocks fill the
machine, and when no block is a long chain on its own; split-K makes more and shorter blocks, and costs a second kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.plan.sketch import Columns
from weft.targets.base import ThreadFacts
from weft.targets.gpu import model

KNOBS: dict[str, tuple[int, ...]] = {
    "tile_x": (16, 32, 64, 128),
    "tile_y": (8, 16, 32, 64, 128),
    "tile_k": (8, 16, 32),
    "each_x": (8, 4, 2),
    "each_y": (8, 4, 2),
    "parts": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "stages": (1, 3),
}
"""`each` is what one thread computes: x and y of its own. `parts` are the sums of split-K."""


@dataclass(frozen=True)
class Problem:
    """The sizes of a product, how its operands lie, and the machine that it runs on."""

    x: int
    y: int
    k: int
    batch: int
    bytes: int
    k_last: tuple[int, int]
    machine: ThreadFacts
    fetch: tuple[str, str] = ("vector", "vector")
    """How the elements of X and Y are fetched: as vectors, plainly, or gathered."""

    def legal(self, c: Columns) -> Any:
        """The points that make sense."""
        machine, each_x, each_y = self.machine, c["each_x"], c["each_y"]
        threads, steps = _threads(c), model.ceildiv(self.k, c["tile_k"])
        alone, staged = KNOBS["stages"]
        stages = np.where(machine.has_async_copy & (steps >= staged), staged, alone)
        shared = c["stages"] * c["tile_k"] * (c["tile_x"] + c["tile_y"] + 16) * self.bytes
        few = self._blocks(c) * c["parts"] <= model.PART_BLOCKS * machine.multiprocessors
        return (
            (c["tile_x"] <= model.BEYOND * self.x)
            & (c["tile_y"] <= model.BEYOND * self.y)
            & ((c["tile_k"] <= self.k) | (c["tile_k"] == KNOBS["tile_k"][0]))
            & (each_x * each_y >= model.LEAST_TILE)
            & ((each_x < model.FLAT_TILE[0]) | (each_y > model.FLAT_TILE[1]))
            & (threads >= model.LEAST_WARPS * machine.warp)
            & (threads <= min(model.PRODUCT_THREADS, machine.block_threads))
            & (c["stages"] == stages)
            & (shared <= machine.shared_bytes)
            & ((c["parts"] == 1) | (few & (steps >= model.PART_STEPS * c["parts"])))
        )

    def cost(self, c: Columns) -> Any:
        """Seconds of each point."""
        machine, fit = self.machine, model.model_of(self.machine)
        tile_k, each_x, each_y, parts = c["tile_k"], c["each_x"], c["each_y"], c["parts"]
        threads, columns = _threads(c), c["tile_x"] // each_x
        steps = model.ceildiv(self.k, tile_k * parts)
        registers = np.minimum(model.MOST_REGISTERS, each_x * each_y + 2 * (each_x + each_y) + fit.registers)
        shared = c["stages"] * tile_k * (c["tile_x"] + c["tile_y"]) * self.bytes
        resident = model.resident_blocks(machine, threads, registers, shared)
        rounds = model.ceildiv(self._blocks(c) * parts, machine.multiprocessors)
        fetches = [getattr(fit, f"fetch_{kind}") for kind in self.fetch]
        fetch = tile_k * (c["tile_x"] * fetches[0] + c["tile_y"] * fetches[1]) / threads
        loads = fit.load * np.maximum(0 if self.k_last[0] else 0.5, each_x / model.FLOATS)
        loads = loads + fit.broadcast * np.maximum(0 if self.k_last[1] else 1.0, each_y / model.FLOATS)
        instructions = tile_k * (each_x * each_y + loads) + fetch + fit.step_instructions
        waves = np.maximum(1.0, np.minimum(model.BANKS, columns) * each_x / model.BANKS)
        waves = waves + np.maximum(1.0, np.maximum(1.0, model.BANKS / columns) * each_y / model.BANKS)
        busy = np.hypot(instructions * threads / machine.lanes, tile_k * threads / model.BANKS * waves * fit.wave)
        warps = threads / model.BANKS * np.minimum(resident, rounds)
        busy = busy / np.minimum(1.0, (warps / fit.busy_warps) ** fit.busy_power)
        waits = np.where(c["stages"] > 1, fit.latency / np.maximum(c["stages"] - 1, 1), fit.latency_alone)
        chain = fit.step_cycles + fit.chain * instructions + fit.fetch_chain * fetch
        alone = steps * np.maximum(chain, waits) + fit.start
        cycles = np.maximum(rounds * steps * busy + fit.start / 2, model.ceildiv(rounds, resident) * alone)
        moved = self.x * self.y * self.batch * 4 * (parts * 2 + 1) / machine.multiprocessors
        return model.seconds(fit.launch + cycles + (parts > 1) * (fit.launch + moved / fit.memory), machine)

    def _blocks(self, c: Columns) -> Any:
        return model.ceildiv(self.x, c["tile_x"]) * model.ceildiv(self.y, c["tile_y"]) * self.batch


def _threads(c: Columns) -> Any:
    return c["tile_x"] // c["each_x"] * (c["tile_y"] // c["each_y"])
