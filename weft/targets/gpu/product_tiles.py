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
_EACH = ((8, 8), (8, 4), (4, 8), (4, 4), (2, 8), (4, 2), (2, 4))
"""What one thread computes: x and y of its own."""

# The numbers below are fitted to 1,300 measured points of convolutions and matrix products on an H200.
LANES = 128
"""Multiplications and additions that a multiprocessor does in one cycle."""
FETCH = {"vector": 0.9, "plain": 0.74, "gather": 15.8}
"""What it costs a thread to fetch one element into shared memory, in instructions' time, by how an operand lies."""
LOAD, BROADCAST = 14.2, 2.5
"""What a load of four of a thread's x, and of its y, which neighbours have in common, from shared memory costs."""
STEP_INSTRUCTIONS, STEP_CYCLES = 91.0, 23.0
"""What a step of k costs beside the arithmetic: the loop's own instructions, and waiting at its barrier."""
LATENCY, LATENCY_ALONE = 380.0, 810.0
"""Cycles until a fetch is there; ahead of its use in a pipeline, or waited for at once."""
CHAIN, FETCH_CHAIN = 0.45, 0.3
"""How the chain of a lone block's instructions, and of its fetches besides, counts."""
BUSY_WARPS, BUSY_POWER = 16.2, 0.44
"""With fewer warps on a multiprocessor than this, its units are not busy all the time."""
START_CYCLES = 290.0
"""Before the first step and after the last: the launch, the first fetch, writing out."""
SECOND_KERNEL_CYCLES = 4170.0
BYTES_PER_CYCLE = 29.7
"""What one multiprocessor gets from memory in one cycle, when all of them ask."""
WAVE = 0.71
"""Cycles of the shared memory for 128 bytes."""
OTHER_REGISTERS = 17
"""What a thread needs beside its sums and operands."""


@dataclass(frozen=True)
class Problem:
    """The sizes of a product, and how its operands lie."""

    x: int
    y: int
    k: int
    batch: int
    bytes: int
    k_last: tuple[int, int]
    fetch: tuple[str, str] = ("vector", "vector")
    """How the elements of X and Y are fetched: a key of FETCH."""


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
            for each_x, each_y in _EACH:
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
    columns = tile_x // each_x
    threads = columns * (tile_y // each_y)
    blocks = math.ceil(problem.x / tile_x) * math.ceil(problem.y / tile_y) * problem.batch * parts
    steps = math.ceil(problem.k / (tile_k * parts))
    resident = _resident(problem, point, threads, machine)
    rounds = math.ceil(blocks / machine.multiprocessors)
    together = min(resident, rounds)
    fetch = tile_k * (tile_x * FETCH[problem.fetch[0]] + tile_y * FETCH[problem.fetch[1]]) / threads
    instructions = tile_k * (each_x * each_y + _loads(problem, each_x, each_y)) + fetch + STEP_INSTRUCTIONS
    waves = max(1.0, min(32, columns) * each_x / 32) + max(1.0, max(1.0, 32 / columns) * each_y / 32)
    busy = math.hypot(instructions * threads / LANES, tile_k * threads / 32 * waves * WAVE)
    busy /= min(1.0, (threads / 32 * together / BUSY_WARPS) ** BUSY_POWER)
    waits = LATENCY / (point["stages"] - 1) if point["stages"] > 1 else LATENCY_ALONE
    alone = steps * max(STEP_CYCLES + CHAIN * instructions + FETCH_CHAIN * fetch, waits) + START_CYCLES
    cycles: float = max(rounds * steps * busy + START_CYCLES / 2, math.ceil(rounds / resident) * alone)
    if parts > 1:
        moved = problem.x * problem.y * problem.batch * 4 * (parts * 2 + 1) / machine.multiprocessors
        cycles += SECOND_KERNEL_CYCLES + moved / BYTES_PER_CYCLE
    return cycles


def _resident(problem: Problem, point: Point, threads: int, machine: ThreadFacts) -> int:
    """Blocks that a multiprocessor holds at a time."""
    registers = min(255, point["each_x"] * point["each_y"] + 2 * (point["each_x"] + point["each_y"]) + OTHER_REGISTERS)
    shared = point["stages"] * point["tile_k"] * (point["tile_x"] + point["tile_y"]) * problem.bytes + 1024
    return max(
        1,
        min(
            machine.multiprocessor_threads // threads,
            (machine.registers or 65536) // (threads * registers),
            machine.multiprocessor_shared_bytes // shared,
        ),
    )


def _loads(problem: Problem, each_x: int, each_y: int) -> float:
    """The cost of a thread's loads from shared memory for each k: vectors along x and y, or along k."""
    x_loads = each_x / 4 if problem.k_last[0] else max(0.5, each_x / 4)
    y_loads = each_y / 4 if problem.k_last[1] else max(1.0, each_y / 4)
    return LOAD * x_loads + BROADCAST * y_loads
