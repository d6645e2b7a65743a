"""Tile sizes of a product, by a model of the machine: how long a multiprocessor works, and how long one block takes.

A tile is good when its sums fill registers (few loads for each multiplication), when its blocks fill the machine, and
when no block is a long chain on its own; k cut into parts makes more and shorter blocks, and costs a second kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from weft.schedule.space import Point
from weft.targets.base import ThreadFacts

CHOICES: dict[str, tuple[int, ...]] = {
    "tile_x": (16, 32, 64, 128),
    "tile_y": (8, 16, 32, 64, 128),
    "tile_k": (8, 16, 32),
    "each_x": (2, 4, 8),
    "each_y": (2, 4, 8),
    "parts": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "stages": (1, 2, 3, 4),
}
LANES = 128
"""Multiplications and additions that a multiprocessor does in one cycle."""
STEP_CYCLES = 120.0
"""What a step of k costs a block beside the arithmetic: a barrier, the first loads of the tile."""
START_CYCLES = 2500.0
"""Before the first step and after the last: the launch, the first fetch, writing out."""
SECOND_KERNEL_CYCLES = 3500.0
BYTES_PER_CYCLE = 24.0
"""What one multiprocessor gets from memory in one cycle, when all of them ask."""


@dataclass(frozen=True)
class Problem:
    """The sizes of a product, and how its operands lie."""

    x: int
    y: int
    k: int
    batch: int
    bytes: int
    k_last: tuple[int, int]


def best_tile(problem: Problem, machine: ThreadFacts) -> Point | None:
    """The point of CHOICES that the model finds fastest."""
    best: tuple[float, Point] | None = None
    for point in candidates(problem, machine):
        cycles = estimate(problem, point, machine)
        if best is None or cycles < best[0]:
            best = (cycles, point)
    return None if best is None else best[1]


def candidates(problem: Problem, machine: ThreadFacts) -> Iterator[dict[str, int]]:
    """The points that make sense for a problem on a machine."""
    for tile_x in CHOICES["tile_x"]:
        for tile_y in CHOICES["tile_y"]:
            if tile_x > 2 * problem.x or tile_y > 2 * problem.y:
                continue
            for each_x, each_y in ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4)):
                if tile_x % each_x or tile_y % each_y:
                    continue
                threads = tile_x // each_x * (tile_y // each_y)
                if not 2 * machine.warp <= threads <= min(256, machine.block_threads):
                    continue
                for tile_k in CHOICES["tile_k"]:
                    yield from _with_parts(problem, machine, tile_x, tile_y, tile_k, each_x, each_y)


def _with_parts(
    problem: Problem, machine: ThreadFacts, tile_x: int, tile_y: int, tile_k: int, each_x: int, each_y: int
) -> Iterator[dict[str, int]]:
    steps = math.ceil(problem.k / tile_k)
    stages = 3 if machine.has_async_copy and steps >= 3 else 1
    if stages * tile_k * (tile_x + tile_y + 16) * problem.bytes > machine.shared_bytes:
        return
    if tile_k > problem.k:
        if tile_k > CHOICES["tile_k"][0]:
            return
    blocks = math.ceil(problem.x / tile_x) * math.ceil(problem.y / tile_y) * problem.batch
    for parts in CHOICES["parts"]:
        if parts > 1 and (steps < 4 * parts or blocks * parts > 8 * machine.multiprocessors):
            continue
        yield {
            "tile_x": tile_x, "tile_y": tile_y, "tile_k": tile_k, "each_x": each_x, "each_y": each_y, "parts": parts,
            "stages": stages,
        }  # fmt: skip


def estimate(problem: Problem, point: Point, machine: ThreadFacts) -> float:
    """Cycles that a product takes with a tile, by the model."""
    tile_x, tile_y, tile_k = point["tile_x"], point["tile_y"], point["tile_k"]
    each_x, each_y, parts = point["each_x"], point["each_y"], point["parts"]
    threads = tile_x // each_x * (tile_y // each_y)
    blocks = math.ceil(problem.x / tile_x) * math.ceil(problem.y / tile_y) * problem.batch * parts
    steps = math.ceil(problem.k / (tile_k * parts))
    registers = each_x * each_y + 4 * (each_x + each_y) + 40
    resident = min(
        machine.multiprocessor_threads // threads,
        max(1, (machine.registers or 65536) // (threads * registers)),
        max(1, machine.multiprocessor_shared_bytes // (point["stages"] * tile_k * (tile_x + tile_y) * problem.bytes)),
    )
    rounds = math.ceil(blocks / machine.multiprocessors)
    loads = (each_x + each_y) / 4 + 0.5
    fetch = tile_k * (tile_x + tile_y) / threads * _fetch_cost(problem)
    for_each = tile_k * (each_x * each_y + loads) + fetch
    issue = for_each * threads / LANES
    shared = tile_k * threads * (each_x + each_y) * 4 / 128 * 0.5
    work = max(issue, shared)
    together = min(resident, rounds)
    hidden = max(work, (work + STEP_CYCLES + 60 * tile_k / 8) / together)
    alone = steps * (for_each * 1.2 + STEP_CYCLES + 8 * tile_k) + START_CYCLES
    cycles = max(rounds * steps * hidden + START_CYCLES, math.ceil(rounds / resident) * alone)
    if parts > 1:
        moved = problem.x * problem.y * problem.batch * 4 * (parts * 2 + 1) / machine.multiprocessors
        cycles += SECOND_KERNEL_CYCLES + moved / BYTES_PER_CYCLE
    return cycles


def _fetch_cost(problem: Problem) -> float:
    """Instructions to fetch one element into shared memory: vectors cost a quarter."""
    return 5.0 if problem.k_last == (0, 0) else 2.5
