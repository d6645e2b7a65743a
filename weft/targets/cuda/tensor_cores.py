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

from weft.expr.nodes import Buffer
from weft.schedule.facts import names_of
from weft.schedule.primitives.matrix import stored_operand
from weft.schedule.schedule import Schedule
from weft.schedule.space import Point, Space
from weft.targets.base import Target, ThreadFacts
from weft.targets.cuda import mma, warpgroups
from weft.targets.cuda.swizzle import LINE
from weft.targets.cuda.tiles import ProductTiles
from weft.targets.cuda.turning import turn_operands
from weft.targets.gpu.elementwise import threads_of
from weft.targets.gpu.product import Product, find_product

CHOICES: dict[str, tuple[int, ...]] = {
    "warps_x": (1, 2, 4),
    "warps_y": (1, 2, 4),
    "warp_x": (16, 32, 64),
    "warp_y": (16, 32, 64),
    "step": (1, 2, 4),
    "stages": (2, 3, 4, 6),
    "parts": (1, 2, 4, 8, 16),
    "shares": (1, 2, 4, 8),
}
"""`step` is how many tiles of k are fetched at a time, for each of the `shares` of k that a block's warps have."""
FEATURE = "tf32"
"""The feature of a target whose products of float32 may round their operands to tf32: only where a user asks."""
_NEEDS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "tfloat32", "int8": "int8", "uint8": "int8"}
"""What tensor cores must have for operands of a type, as `ThreadFacts` names it."""


def schedule_tensor_cores(
    s: Schedule, name: str, target: Target, constants: Collection[Buffer], done: set[str]
) -> bool:
    """Schedules a product that the tensor cores can do; False (and nothing changed) for others."""
    space = tensor_core_space(s, name, target, constants)
    if space is None:
        return False
    known = set(names_of(s))
    with s.attempt(space.name, point=space.default) as tried:
        space.apply(space.default)
        done.update(set(names_of(s)) - known)
    return bool(tried)


def tensor_core_space(s: Schedule, name: str, target: Target, constants: Collection[Buffer]) -> Space | None:
    """The space of tiles for the tensor cores; None where the product is none of theirs."""
    found = find_product(s, name, constants)
    if found is None:
        return None
    kind = kind_of(found, target)
    if kind is None:
        return None
    sizes = {part: found.axes.size(part) for part in ("x", "y", "k", "batch")}
    if sizes["y"] < 8 or sizes["x"] < 16 or sizes["k"] < kind.depth:
        return None
    machine = threads_of(target)

    def turned() -> Product:
        return found if kind.transposes else turn_operands(s, found, target, constants)

    best = min(candidates(sizes, kind, machine), key=lambda p: estimate(sizes, kind, p, machine), default=None)
    grouped = min(
        warpgroups.candidates(sizes, kind, machine),
        key=lambda p: warpgroups.estimate(sizes, kind, p, machine),
        default=None,
    )
    if grouped is not None and (
        best is None or warpgroups.estimate(sizes, kind, grouped, machine) < estimate(sizes, kind, best, machine)
    ):
        return Space(
            "warpgroups", warpgroups.CHOICES, grouped,
            lambda point: warpgroups.GroupTiles(s, turned(), kind, point, target).run(),
        )  # fmt: skip
    if best is None:
        return None
    return Space("tensor cores", CHOICES, best, lambda point: ProductTiles(s, turned(), kind, point, target).run())


def kind_of(found: Product, target: Target) -> mma.Kind | None:
    """The sort of matrix instruction for a product; None where there is none."""
    machine = threads_of(target)
    x, y = stored_operand(found.axes.x_operand), stored_operand(found.axes.y_operand)
    if not {_NEEDS.get(x.dtype.name), _NEEDS.get(y.dtype.name)} <= machine.tensor_cores:
        return None
    if "float32" in (x.dtype.name, y.dtype.name) and FEATURE not in target.features:
        return None
    kind = next((one for one in mma.KINDS.values() if one.elements == (y.dtype.name, x.dtype.name)), None)
    return kind if kind is not None and kind.wide == found.axes.x_operand.dtype.name else None


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
                    if step * kind.depth >= 2 * sizes["k"]:
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
            "parts": 1, "shares": 1,
        }  # fmt: skip
        if shared_bytes(point, kind) > machine.shared_bytes:
            continue
        blocks = math.ceil(sizes["x"] / (warps_x * warp_x)) * math.ceil(sizes["y"] / (warps_y * warp_y))
        for parts in CHOICES["parts"]:
            many = blocks * parts * sizes["batch"]
            if parts == 1 or (steps >= 4 * parts and many <= 4 * machine.multiprocessors):
                yield {**point, "parts": parts}
        for shares in CHOICES["shares"][1:]:
            shared = {**point, "shares": shares}
            few = blocks <= machine.multiprocessors and steps >= 2 * shares
            whole = warps_y == 1 and step * 32 == LINE and warp_x * warp_y >= 32 * shares
            if few and whole and shared_bytes(shared, kind) <= machine.shared_bytes:
                yield shared


def shared_bytes(point: Point, kind: mma.Kind) -> int:
    """The shared memory of a block."""
    tile_x, tile_y = point["warps_x"] * point["warp_x"], point["warps_y"] * point["warp_y"]
    row = 32 * point["step"] + 16
    operands, sums = point["stages"] * row * (tile_x + tile_y), 4 * tile_y * (tile_x + 8)
    return max(operands, sums) * point["shares"] + 1024


def estimate(sizes: dict[str, int], kind: mma.Kind, point: Point, machine: ThreadFacts) -> float:
    """Cycles that a product takes with a tile, by a model: multiplication, fetching and latency."""
    tile_x, tile_y = point["warps_x"] * point["warp_x"], point["warps_y"] * point["warp_y"]
    shares = point["shares"]
    warps = point["warps_x"] * point["warps_y"] * shares
    deep = point["step"] * kind.depth
    blocks = math.ceil(sizes["x"] / tile_x) * math.ceil(sizes["y"] / tile_y) * sizes["batch"] * point["parts"]
    steps = math.ceil(sizes["k"] / (deep * point["parts"] * shares))
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
    products = tile_x * tile_y * point["step"] * shares / 64  # as many bytes of k a cycle in every kind
    fetched = (tile_x + tile_y) * point["step"] * point["shares"] * 32 / 36
    reads = (point["warp_x"] + point["warp_y"]) * 32 * point["step"] * warps / 110
    busy = (max(products, fetched, reads) + 40) * max(1.0, (8 / (warps * together)) ** 0.5)
    waits = 1500 / (point["stages"] - 1) + 100 + (0.25 * busy if together == 1 else 0)
    cycles: float = rounds * steps * max(busy, (busy + waits) / together) + math.ceil(rounds / resident) * 3000
    if point["parts"] > 1:
        cycles += 3500 + sizes["x"] * sizes["y"] * sizes["batch"] * 8 * point["parts"] / (machine.multiprocessors * 24)
    return cycles
