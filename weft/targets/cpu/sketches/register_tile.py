"""Register tiles for products: which axis lies along vector lanes, which is unrolled, which operand is packed.

    E[.., v, .., u]  =  f(H[..])                       E: the elementwise block that takes the sums (or a copy)
    H[.., v, .., u] +=  W[v, k..] * X[u, k..]

A tile of `vectors` × `rows` accumulators stays in registers while the reduction runs. W is the operand that the lanes
read: either it lies along them already, or it is packed so that it does; a packed weight is packed once, when the
model is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.expr.nodes import Buffer, Load, Var, int_value
from weft.expr.simplify import simplify
from weft.loop.ir import Axis
from weft.loop.passes.shift_tiles import NOTE as TILES
from weft.plan.contraction import counted, dimensions, group_of, load_bytes, start_along, taps_along, uses
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import Facts, block_named, extent, extent_of, facts_of, names_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.default_loops import attach_producers, parallelize
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.machine import core_of, seconds
from weft.targets.cpu.microkernels import VECTOR, MicroKernel
from weft.targets.cpu.sketches import nest


@dataclass(frozen=True)
class TilePlan:
    """A register tile: `vectors` of `lanes` along the axis `lane`, `rows` along the axis `row` (None: no such axis)."""

    lane: Axis
    row: Axis | None
    lanes: int = 1
    vectors: int = 1
    rows: int = 1
    packed: Load | None = None
    packed_dim: int = 0

    @property
    def width(self) -> int:
        """Elements of the tile along the lanes."""
        return self.lanes * self.vectors

    @property
    def padded(self) -> bool:
        """Whether tiles at the end are whole: the packed operand has zeros behind its last lanes."""
        return self.packed is not None and self.packed.indices[self.packed_dim] is self.lane.var

    @property
    def is_cut(self) -> bool:
        """Whether the last tile along the lanes has fewer of them."""
        return not self.padded and extent(self.lane) % self.width != 0

    @property
    def kernel(self) -> MicroKernel:
        """A vector of multiply-adds."""
        return replace(VECTOR, lanes=self.lanes)


def match(unit: Unit) -> Sketch | None:
    """The sketch of any sum of products with an axis that can lie along lanes; None where there is none."""
    plan = plan_tile(unit.facts, unit.target, unit.constants)
    if plan is None:
        return None
    tests, packing = 1.0, 0.0
    if plan.packed is None:
        slow = model.MASKED_WINDOW if _masks(unit.facts, unit.target) else model.OPEN_WINDOW
        # Whether steps of the reduction move through what lies along the lanes.
        tests = slow if any(taps_along(unit.facts, load, plan.lane) for load in unit.facts.loads) else 1.0
    elif plan.packed.buffer not in unit.constants:
        packing = model.PACKING_CYCLES * load_bytes(plan.packed) / plan.packed.buffer.dtype.bytes

    def cost(columns: Columns) -> Any:
        lines = model.lines_of(unit.target) * columns["lanes"] / unit.target.lanes(unit.facts.target.dtype)
        slower = model.UNBLOCKED if plan.packed is not None else tests * (1 + model.UNPACKED * lines)
        computing = _cycles(unit, plan, columns) + _turned(unit, plan, columns["rows"])
        again = _streamed_again(unit, plan, columns["vectors"] * columns["lanes"])
        return seconds(slower * model.overlapped(computing, model.stream_cycles(unit)) + again + packing, unit.target)

    knobs, legal = _choices(unit.facts, unit.target, plan)
    return Sketch("register tile", knobs, lambda point: _apply(unit, plan, point), cost, legal)


def _masks(facts: Facts, target: Target) -> bool:
    return has_masks(target.features, facts.target.dtype.bits)


def match_grouped(unit: Unit) -> Sketch | None:
    """The same for products in groups, as those of a grouped convolution: a group's channels are an axis of their own,
    which can lie along the lanes; None where there are no groups, weights are not known, or a group's channels fill no
    vectors that can be turned to be stored."""
    groups = {axis: [group_of(load, axis) or 0 for load in unit.facts.loads] for axis in unit.facts.spatial}
    found = [axis for axis, sizes in groups.items() if min(sizes) == 1 < max(sizes) < extent(axis)]
    if len(found) != 1:
        return None
    weight, size = unit.facts.loads[groups[found[0]].index(1)], max(groups[found[0]])
    lanes = unit.target.lanes(unit.facts.target.dtype)
    whole = math.gcd(size, lanes) >= model.LEAST_SIDE and (size > lanes or lanes % size == 0)
    if weight.buffer not in unit.constants or not whole:
        return None

    def apply(point: Point) -> None:
        sketch = match(_in_groups(unit, found[0], size, weight))
        assert sketch is not None
        sketch.apply(point)

    trial = replace(unit, schedule=unit.schedule.copy(), done=set(unit.done))
    sketch = match(_in_groups(trial, found[0], size, weight))
    return None if sketch is None else Sketch("grouped tile", sketch.knobs, apply, sketch.cost, sketch.legal)


def _in_groups(unit: Unit, axis: Axis, size: int, weight: Load) -> Unit:
    """A product, its weight and its epilogue with an axis divided into groups of that size."""
    s, place = unit.schedule, [one is axis for one in unit.facts.spatial].index(True)
    sums, final, at = nest.sums_and_final(unit)
    copy = s.cache_read(weight.buffer.name, "global", [sums.name])
    order = [at[one.var] for one in unit.facts.spatial]
    for name, var in ((sums.name, sums.block.axes[place].var), (final.name, order[place])):
        s.apply("split_axis", block=name, axis=var.name, factor=size)

    def store(stage: Stage, at: int) -> None:
        nest.store_as(stage, lambda n: [*n[:at], f"{n[at]} // {size}", *n[at + 1 :], f"{n[at]} % {size}"])

    store(sums, place)
    store(copy, [index is axis.var for index in weight.indices].index(True))
    unit.done.add(copy.name)
    constants = [*unit.constants, copy.block.writes[0].buffer]
    block, facts = block_named(s, final.name), facts_of(block_named(s, sums.name))
    new = [one.var for one in block.axes if one.kind == "spatial"]
    order[place] = next(var for var in new if var.name == order[place].name)
    pairs = zip([one.var for one in facts.spatial], [*order, new[-1]])
    return Unit(s, facts, unit.target, constants, unit.done, block, dict(pairs))


def _choices(
    facts: Facts, target: Target, plan: TilePlan
) -> tuple[dict[str, tuple[int, ...]], Callable[[Columns], Any]]:
    """The tiles to choose from, and which of them fit the registers.

    The width of an operand that is packed as it lies must divide its axis. A product of one row waits for memory:
    several streams at once.
    """
    across, down, registers = extent(plan.lane), nest.length(plan.row), max(target.vector_registers, 8)
    whole, cut = plan.packed is not None and not plan.padded, plan.packed is not None or not _masks(facts, target)
    lanes = _lane_counts(target.lanes(facts.target.dtype), across, whole)
    share = ceildiv(ceildiv(across, lanes[0]), target.cores)
    most = min(6, ceildiv(across, lanes[-1])) if down > 1 else min(registers * 3 // 8, share)
    knobs = {
        "lanes": tuple(lanes), "vectors": tuple(range(1, most + 1)), "rows": tuple(range(1, min(down, registers) + 1)),
        "packed": (int(plan.packed is not None),),
    }  # fmt: skip

    def legal(columns: Columns) -> Any:
        rows, vectors, width = columns["rows"], columns["vectors"], columns["vectors"] * columns["lanes"]
        fits = ((rows + 1) * vectors + 1 < registers) & ((across % width == 0) | (not whole))
        fits = fits & ((width <= across) | cut)  # else each lane has its test
        return fits & ((vectors == 1) | (width < across + columns["lanes"]))

    return knobs, legal


def _cycles(unit: Unit, plan: TilePlan, columns: Columns) -> Any:
    """Cycles of all tiles: what a step multiplies, and what it loads for that. Those of the last rows are smaller."""
    facts, target, down, rows = unit.facts, unit.target, nest.length(plan.row), columns["rows"]
    across = ceildiv(extent(plan.lane), columns["vectors"] * columns["lanes"])
    each = down // rows * _tile_cycles(facts, target, plan, columns["vectors"], rows)
    each = each + (down % rows > 0) * _tile_cycles(facts, target, plan, columns["vectors"], down % rows)
    shared = [load for load in facts.loads if plan.packed is not None and load is not plan.packed]
    pixel = sum(model.image_cycles(unit, load, plan.row) for load in shared)
    each = each + counted(facts) * facts.depth * pixel * down
    return facts.points // (extent(plan.lane) * down) * across * each


def _tile_cycles(facts: Facts, target: Target, plan: TilePlan, vectors: Any, rows: Any) -> Any:
    core, loads, waits = core_of(target), np.zeros(1), np.zeros(1)
    for load in facts.loads:
        along = vectors if facts.step(load, plan.lane.var) != 0 else 1
        apart = 0 if plan.row is None else facts.step(load, plan.row.var)
        pitch = None if apart is None else apart * int(load.buffer.dtype.bytes)
        clash, together = core.clashes(pitch), model.rows_together(target, pitch)
        waits = waits + model.SAME_PLACE * rows * (rows > together)
        loads = loads + along * (rows if apart != 0 else 1) / (1.0 if clash else core.loads)
    issued = np.maximum(rows * vectors / core.multiply_adds, loads * model.LOAD_SHARE)
    step = np.maximum(issued + model.STEP_CYCLES, core.latency) + waits
    return counted(facts) * facts.depth * step + model.TILE_CYCLES + 2 * rows * vectors


def _turned(unit: Unit, plan: TilePlan, rows: Any) -> Any:
    """Cycles in which results are stored that do not lie along the lanes."""
    facts, row = unit.facts, plan.row
    if nest.phase_between(unit, row, [axis for axis in facts.spatial if axis not in (row, plan.lane)]):
        return model.SCATTERED_CYCLES * facts.points
    if nest.result_step(unit, plan.lane.var) == 1:
        return 0.0
    if row is None or nest.result_step(unit, row.var) != 1:
        return model.TURNED_CYCLES * facts.points
    lines = model.lines_met(rows, extent(row), facts.target.dtype.bytes)
    return facts.points / rows * lines * model.line_cycles(unit)


def _streamed_again(unit: Unit, plan: TilePlan, width: Any) -> Any:
    """Cycles in which the operands that the lanes share come again, once for each tile along the lanes, and each block
    of them, but the first.

    Nothing is in blocks for the caches: what the first one does not hold comes from behind it each time, and is waited
    for, since it is not fetched ahead.
    """
    total: Any = 0.0
    for load in unit.facts.loads:
        size, same = load_bytes(load), [axis for axis in unit.facts.spatial if not uses(load, axis)]
        if size > unit.target.cache_bytes[0] and plan.lane in same:
            passes = math.prod(extent(axis) for axis in same if axis not in (plan.lane, plan.row))
            passes = passes * ceildiv(extent(plan.lane), width)
            total = total + (passes - 1) * size / model.bytes_a_cycle(size, unit.target)
    return total


def _apply(unit: Unit, plan: TilePlan, point: Point) -> None:
    s, facts = unit.schedule, unit.facts
    plan = replace(plan, lanes=point["lanes"], vectors=point["vectors"], rows=point["rows"])
    known = set(names_of(s))
    packed = _pack(s, facts, plan)
    outer = _tile(unit, plan)
    unit.done.update({facts.block.name, unit.name}, set(names_of(s)) - known)
    parallel = parallelize(s[unit.name], _shared(unit, plan, outer), facts.points * facts.depth, unit.target)
    attach = [parallel] if parallel is not None else list(outer[:1])
    attach_producers(s, unit.name, attach, unit.target, unit.done)
    if packed is not None and plan.packed is not None and plan.packed.buffer not in unit.constants:
        parallelize(packed, packed.loops[:-1], facts_of(packed.block).points, unit.target)


def _shared(unit: Unit, plan: TilePlan, outer: list[Var]) -> list[Var]:
    """The loops that threads may share: those over tiles of which the last is cut stay apart where others are enough.
    Fused with them, which rows and lanes there are would be a test in each step."""
    stage, last, rows = unit.schedule[unit.name], len(outer) - 1, nest.length(plan.row)
    cut = [last - (plan.row is not None)] * plan.is_cut + [last] * (rows % plan.rows > 0)
    counts = {at: math.prod(extent_of(stage, loop) for loop in outer[:at]) for at in cut}
    return outer[: next((at for at in cut if counts[at] >= max(unit.target.cores, 2)), len(outer))]


def plan_tile(facts: Facts, target: Target, constants: Collection[Buffer]) -> TilePlan | None:
    """The tile for a product; None where no axis can lie along lanes."""
    choices = []
    for position, axis in enumerate(facts.spatial):
        found = _operand(facts, axis, constants) if extent(axis) > 1 and axis.kind == "spatial" else None
        if found is None:
            continue
        packed, dim, rank = found
        lanes = target.lanes(facts.target.dtype)
        padded = packed is not None and packed.indices[dim] is axis.var
        even = extent(axis) % lanes == 0 or (
            packed is not None and _filled(extent(axis), lanes, padded) >= model.MOSTLY_FILLED
        )
        choices.append((extent(axis) >= lanes // 2, even, rank, min(extent(axis), 64), position, packed, dim))
    if not choices:
        return None
    *_, position, packed, dim = max(choices, key=lambda c: c[:5])
    lane = facts.spatial[position]
    row = _row_axis(facts, lane, packed)
    return TilePlan(lane, row, packed=packed, packed_dim=dim)


def _operand(facts: Facts, axis: Axis, constants: Collection[Buffer]) -> tuple[Load | None, int, int] | None:
    """How the lanes along an axis would read their operand: packed or as it lies, and how good that is."""
    steps = [facts.step(load, axis.var) for load in facts.loads]
    users = [load for load, step in zip(facts.loads, steps) if step != 0]
    reuse = facts.points // max(extent(axis), 1)
    if len(users) == 1:
        dim = _packable_dimension(facts, users[0], axis)
        if dim is not None and users[0].buffer in constants:
            return users[0], dim, 3
        if dim is not None and steps.count(1) != 1 and reuse >= 16:
            return users[0], dim, 1
    if all(step in (0, 1) for step in steps) and users:
        return None, 0, 2
    return None


def _packable_dimension(facts: Facts, load: Load, axis: Axis) -> int | None:
    """The one dimension of a load that an axis indexes: by itself, or as the place in a row of its own length."""
    found = start_along(facts, load, axis)
    if found is None or int_value(simplify(found[1] % extent(axis), facts.ranges)) != 0:
        return None
    return found[0]


def _row_axis(facts: Facts, lane: Axis, packed: Load | None) -> Axis | None:
    """The axis to unroll: one along which the lanes' operand stays the same; the innermost that is long enough."""
    read = (load for load in facts.loads if facts.step(load, lane.var) != 0)
    same = packed if packed is not None else next(read, None)
    best: tuple[int, Axis | None] = (0, None)
    for axis in facts.spatial:
        if axis is lane or extent(axis) < 2 or axis.kind != "spatial":
            continue
        reuse = same is not None and facts.step(same, axis.var) == 0
        score = (2 if reuse else 1) * min(extent(axis), 8)
        if (reuse or packed is None) and score >= best[0]:
            best = (score, axis)
    return best[1]


def _lane_counts(full: int, across: int, whole: bool) -> list[int]:
    """The lanes to try: whole registers, parts of them where the axis is short or uneven."""
    if whole:
        return [max(n for n in range(1, min(full, across) + 1) if across % n == 0)]
    if across <= full:
        return [across]
    return [full, *(n for n in (full // 2, full // 4) if n >= 2)]


def _filled(across: int, width: int, padded: bool) -> float:
    """The share of the time that goes into useful lanes."""
    tiles, rest = divmod(across, width)
    edge = 1 if padded else model.EDGE_COST
    return across / width / (tiles + (edge if rest else 0))


def _tile(unit: Unit, plan: TilePlan) -> list[Var]:
    """Tiles a product and its epilogue; gives the loops around the tile, outermost first."""
    facts = unit.facts
    sums, final, at = nest.sums_and_final(unit)
    lane, row = facts.spatial.index(plan.lane), None if plan.row is None else facts.spatial.index(plan.row)
    if plan.padded:
        sums.pad(sums.axis[lane], plan.width)
    outer = _tile_final(unit, final, plan, at)
    nest.compute_near(sums, final, outer[-1], exact=not plan.padded)
    nest.store_last(sums, lane)
    axes, last = list(sums.axis), sums.reduce_axis[-1]
    loops = dict(zip([axis.var for axis in facts.block.axes if axis.kind == "reduce"], sums.reduce_axis))
    rows = [] if row is None else [axes[row]]
    _, vector = nest.multiply(sums, plan.kernel, nest.without(axes, row, lane), sums.reduce_axis, rows, axes[lane])
    size = plan.vectors * plan.rows
    deepest = 1 if _overlaps(facts, plan) else extent(facts.reduce[-1])
    if 1 < deepest <= 8 and size * deepest <= model.MOST_UNROLLED:
        sums.unroll(loops.pop(facts.reduce[-1].var))
    elif deepest > 8 and size * 4 <= model.MOST_UNROLLED and deepest % 4 == 0:
        loops[facts.reduce[-1].var], written = sums.split(last, factor=4)
        sums.unroll(written)
    for load in facts.loads:
        if plan.packed is not None and load is not plan.packed:
            nest.fetch_channels(unit, sums, load, plan.row, size, loops)
    sums.vectorize(vector)
    return outer


def _tile_final(unit: Unit, final: Stage, plan: TilePlan, at: dict[Var, Var]) -> list[Var]:
    """The epilogue on the tile, blocks of lanes outside those of rows so that the packed operand stays close."""
    loop_of, lane, row = nest.loops_of(final), at[plan.lane.var], None if plan.row is None else at[plan.row.var]
    rest = [loop for axis, loop in loop_of.items() if axis is not lane and axis is not row]
    block, lanes = final.split(loop_of[lane], factor=plan.width)
    first = len(rest) if plan.is_cut else 1
    outer, tile = [*rest[:first], block, *rest[first:]], [lanes]
    if row is not None:
        down, rows = final.split(loop_of[row], factor=plan.rows)
        outer.append(down)
        tile = [rows, lanes] if facts_of(final.block).store_step(lane) == 1 else [lanes, rows]
    final.reorder(*outer, *tile)
    if plan.is_cut and nest.starts_early(unit, 1, plan.width):
        final.annotate(TILES, plan.width, block)
    side = math.gcd(plan.lanes, extent(plan.lane))  # lanes that are stored at once, row by row
    if tile[-1] is lanes:
        nest.vectorize(final, lanes, plan.lanes)
        for loop in tile[:-1]:
            final.unroll(loop)
    else:  # squares, turned in registers
        vectors, lanes = final.split(lanes, factor=side)
        final.reorder(*outer, vectors, tile[-1], lanes)
        nest.write_out(final, vectors, tile[-1], lanes)
    return outer


def _overlaps(facts: Facts, plan: TilePlan) -> bool:
    """Whether rows read again what other steps of the reduction read: LLVM would keep it all in registers."""
    last, row = facts.reduce[-1].var, plan.row
    if row is None:
        return False
    steps = ((facts.step(load, last), facts.step(load, row.var)) for load in facts.loads)
    return any(along and across and abs(along) < plan.rows * abs(across) for along, across in steps)


def _pack(s: Schedule, facts: Facts, plan: TilePlan) -> Stage | None:
    """A copy of the lanes' operand in which a tile's lanes lie side by side for each step of the reduction."""
    load, across, name = plan.packed, plan.packed_dim, facts.block.name
    if load is None:
        return None
    down = [d for d in dimensions(load, *facts.reduce) if d != across]
    # Whole tiles: a copy without a test is made when the model is compiled.
    copy = nest.padded_copy(s, load, name, {across: plan.width})
    nest.store_panels(copy, plan.kernel, across, down, plan.width)
    axes = list(copy.axis)
    with s.attempt("lanes of the packed operand"):
        block, inner = copy.split(axes[across], factor=plan.width)
        copy.reorder(*nest.without(axes, across, *down), block, *(axes[d] for d in down), inner)
        copy.vectorize(inner)
    return copy
