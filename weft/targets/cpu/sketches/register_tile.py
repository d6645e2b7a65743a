"""Register tiles for products: which axis lies along vector lanes, which is unrolled, which operand is packed.

    E[.., v, .., u]  =  f(H[..])                       E: the elementwise block that takes the sums (or a copy)
    H[.., v, .., u] +=  W[v, k..] * X[u, k..]

A tile of `vectors` × `rows` accumulators stays in registers while the reduction runs. W is the operand that the lanes
read: either it lies along them already, or it is packed so that it does; a packed weight is packed once, when the
model is compiled.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Load, Var, int_value, sub
from weft.expr.simplify import simplify
from weft.expr.visit import uses_any
from weft.loop.ir import Axis, Block
from weft.plan.contraction import load_bytes
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, around_rule, ceildiv
from weft.schedule.facts import Facts, block_named, extent, facts_of, names_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu.default_attach import attach_producers
from weft.targets.cpu.default_loops import parallelize
from weft.targets.cpu.machine import core_of, seconds
from weft.targets.cpu.model import (
    LOAD_SHARE,
    STEP_CYCLES,
    TILE_CYCLES,
    TURNED_CYCLES,
    UNBLOCKED,
    UNPACKED,
    bytes_a_cycle,
    overlapped,
    stream_cycles,
)

MOST_UNROLLED = 128
"""Multiply-adds of one straight piece of code, at most."""


@dataclass(frozen=True)
class TilePlan:
    """A register tile: `vectors` of `lanes` along the axis `lane`, `rows` along the axis `row` (None: no such axis)."""

    lane: Var
    row: Var | None
    lanes: int
    vectors: int
    rows: int
    packed: Load | None = None
    packed_dim: int = 0

    @property
    def width(self) -> int:
        """Elements of the tile along the lanes."""
        return self.lanes * self.vectors

    @property
    def padded(self) -> bool:
        """Whether tiles at the end are whole: the packed operand has zeros behind its last lanes."""
        return self.packed is not None and self.packed.indices[self.packed_dim] is self.lane

    @property
    def point(self) -> dict[str, int]:
        """Its numbers."""
        return {"lanes": self.lanes, "vectors": self.vectors, "rows": self.rows, "packed": int(self.packed is not None)}


def match(unit: Unit) -> Sketch | None:
    """The sketch of any sum of products with an axis that can lie along lanes; None where there is none."""
    plan = plan_tile(unit.facts, unit.target, unit.constants)
    if plan is None:
        return None
    knobs: dict[str, tuple[int, ...]] = {knob: (number,) for knob, number in plan.point.items()}
    whole = plan.packed is not None and plan.packed.indices[plan.packed_dim] is not plan.lane
    if not whole:  # a tile that need not divide its axis may have another size
        knobs["vectors"] = (1, 2, 3, 4, 6)
        knobs["rows"] = (1,) if plan.row is None else (1, 2, 3, 4, 6, 8, 12)
    time = around_rule(plan.point, float(seconds(1.0, unit.target)))
    slower = UNBLOCKED if plan.packed is not None else UNPACKED

    def cost(columns: Columns) -> Any:
        computing = _cycles(unit, plan, columns["vectors"], columns["rows"])
        streaming = stream_cycles(unit) + _streamed_again(unit, plan, columns["vectors"])
        return time(columns) * slower * overlapped(computing, streaming)

    choices = {knob: tuple(sorted({*numbers, plan.point[knob]})) for knob, numbers in knobs.items()}
    most = max(unit.target.vector_registers, 8)

    def legal(columns: Columns) -> Any:
        rows, vectors = columns["rows"], columns["vectors"]
        return (rows * vectors + vectors + 1 <= most) | ((rows == plan.rows) & (vectors == plan.vectors))

    return Sketch("register tile", choices, lambda point: _apply(unit, plan, point), cost, legal)


def _cycles(unit: Unit, plan: TilePlan, vectors: Any, rows: Any) -> Any:
    """Cycles of all tiles: what a step multiplies, and what it loads for that."""
    facts, core = unit.facts, core_of(unit.target)
    loads: Any = 0.0
    for load in facts.loads:
        along = vectors if facts.step(load, plan.lane) != 0 else 1
        loads = loads + along * (rows if plan.row is not None and facts.step(load, plan.row) != 0 else 1)
    issued = np.maximum(rows * vectors / core.multiply_adds, loads / core.loads * LOAD_SHARE)
    step = np.maximum(issued, core.latency) + STEP_CYCLES
    sizes = {axis.var: extent(axis) for axis in facts.spatial}
    down = 1 if plan.row is None else sizes[plan.row]
    tiles = (
        facts.points // (sizes[plan.lane] * down) * -(-sizes[plan.lane] // (vectors * plan.lanes)) * -(-down // rows)
    )
    turned = 0.0 if facts.store_step(plan.lane) == 1 else TURNED_CYCLES * plan.lanes
    return tiles * (facts.depth * step + TILE_CYCLES + (2 + turned) * rows * vectors)


def _streamed_again(unit: Unit, plan: TilePlan, vectors: Any) -> Any:
    """Cycles in which the operands that the lanes share come again, once for each tile along the lanes but the first.

    Nothing is in blocks for the caches: what one of them does not hold comes from behind it each time.
    """
    lane = next(extent(axis) for axis in unit.facts.spatial if axis.var is plan.lane)
    shared = sum(load_bytes(load) for load in unit.facts.loads if unit.facts.step(load, plan.lane) == 0)
    return (-(-lane // (vectors * plan.lanes)) - 1) * shared / bytes_a_cycle(shared, unit.target)


def _apply(unit: Unit, plan: TilePlan, point: Point) -> None:
    s, facts = unit.schedule, unit.facts
    plan = replace(plan, vectors=point["vectors"], rows=point["rows"])
    known = set(names_of(s))
    outer = apply_tile(s, facts, plan, unit.epilogue, unit.to_epilogue)
    made = [name for name in names_of(s) if name not in known]
    packed = [name for name in made if plan.packed is not None and name.startswith(f"{plan.packed.buffer.name}_global")]
    unit.done.update([facts.block.name, unit.name, *(name for name in made if name not in packed)])
    parallel = parallelize(s[unit.name], outer, facts.points * facts.depth, unit.target)
    attach = [parallel] if parallel is not None else list(outer[:1])
    attach_producers(s, unit.name, attach, unit.target, unit.done, skip=set(packed))
    for name in packed:
        if plan.packed is not None and plan.packed.buffer not in unit.constants:
            points = facts_of(block_named(s, name)).points
            parallelize(s[name], list(s[name].loops[:-1]), points, unit.target)
        unit.done.add(name)


def plan_tile(facts: Facts, target: Target, constants: Collection[Buffer]) -> TilePlan | None:
    """The tile for a product; None where no axis can lie along lanes."""
    choices = []
    for position, axis in enumerate(facts.spatial):
        if extent(axis) < 2 or axis.kind != "spatial":
            continue
        found = _operand(facts, axis, constants)
        if found is None:
            continue
        packed, dim, rank = found
        lanes = _lanes(facts, target)
        padded = packed is not None and packed.indices[dim] is axis.var
        even = extent(axis) % lanes == 0 or (packed is not None and _filled(extent(axis), lanes, padded) >= MOSTLY)
        choices.append((extent(axis) >= lanes // 2, even, rank, min(extent(axis), 64), position, packed, dim))
    if not choices:
        return None
    *_, position, packed, dim = max(choices, key=lambda c: c[:5])
    lane = facts.spatial[position]
    row = _row_axis(facts, lane, packed)
    whole = packed is not None and packed.indices[dim] is not lane.var
    padded = packed is not None and not whole
    lanes, vectors, rows = _sizes(facts, target, extent(lane), 1 if row is None else extent(row), whole, padded)
    return TilePlan(lane.var, None if row is None else row.var, lanes, vectors, rows, packed, dim)


def _lanes(facts: Facts, target: Target) -> int:
    return max(target.lanes(facts.target.dtype), 1)


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
    using = [d for d, index in enumerate(load.indices) if uses_any(index, {axis.var})]
    if len(using) != 1:
        return None
    index = load.indices[using[0]]
    if index is axis.var:
        return using[0]
    start = simplify(sub(index, axis.var), facts.ranges)
    if uses_any(start, {axis.var}) or int_value(simplify(start % extent(axis), facts.ranges)) != 0:
        return None
    return using[0]


def _row_axis(facts: Facts, lane: Axis, packed: Load | None) -> Axis | None:
    """The axis to unroll: one along which the lanes' operand stays the same; the innermost that is long enough."""
    best: tuple[int, int] | None = None
    for position, axis in enumerate(facts.spatial):
        if axis is lane or extent(axis) < 2 or axis.kind != "spatial":
            continue
        steps = [(load, facts.step(load, axis.var)) for load in facts.loads]
        lane_loads = [load for load in facts.loads if facts.step(load, lane.var) != 0]
        same = packed if packed is not None else next((x for x in lane_loads), None)
        reuse = same is not None and any(load is same and step == 0 for load, step in steps)
        if packed is not None and not reuse:
            continue
        score = (2 if reuse else 1) * min(extent(axis), 8)
        if best is None or score >= best[0]:
            best = (score, position)
    return None if best is None else facts.spatial[best[1]]


def _sizes(facts: Facts, target: Target, across: int, down: int, whole: bool, padded: bool) -> tuple[int, int, int]:
    """Lanes, vectors and rows of the tile: most arithmetic for each load, least waste at the edges.

    With `whole` the tile's width must divide the axis; with `padded` the last tile is as whole as any.
    """
    full = _lanes(facts, target)
    registers = max(target.vector_registers, 8)
    best = (-1.0, 1, 1, 1)
    for lanes in _lane_counts(full, across, whole):
        for vectors in range(1, 1 + min(6, ceildiv(across, lanes))):
            if whole and across % (lanes * vectors):
                continue
            for rows in range(1, 1 + max(1, min(down, (registers - 2 - vectors) // vectors))):
                even = 1.0 if down % rows == 0 else 0.85 * down / (ceildiv(down, rows) * rows)
                latency = min(1.0, vectors * rows / 10)
                balance = min(1.0, vectors * rows / (vectors + rows))
                speed = lanes / full * _filled(across, lanes * vectors, padded) * even * latency * balance
                score = speed + 0.002 * min(vectors, 4) * rows
                if score > best[0]:
                    best = (score, lanes, vectors, rows)
    _, lanes, vectors, rows = best
    if down == 1:  # a matrix-vector product waits for memory: several streams at once
        most = max(1, registers * 3 // 8)
        lanes = _lane_counts(full, across, whole)[0]
        each = ceildiv(ceildiv(across, lanes), max(1, target.cores))
        fits = [n for n in range(1, 1 + min(most, each)) if not whole or across % (n * lanes) == 0]
        vectors = max(fits, key=lambda n: (-ceildiv(across, n * lanes) * n, n))
    return lanes, vectors, rows


def _lane_counts(full: int, across: int, whole: bool) -> list[int]:
    """The lanes to try: whole registers, parts of them where the axis is short or uneven."""
    if whole:
        return [max(n for n in range(1, min(full, across) + 1) if across % n == 0)]
    if across <= full:
        return [across]
    return [full, *(n for n in (full // 2, full // 4) if n >= 2)]


MOSTLY = 0.5
"""The share of useful lanes from which on an operand is packed although the last vector is not full."""

EDGE_COST = 4
"""How much longer a tile takes whose lanes reach past the end and are masked."""


def _filled(across: int, width: int, padded: bool) -> float:
    """The share of the time that goes into useful lanes."""
    tiles, rest = divmod(across, width)
    edge = 1 if padded else EDGE_COST
    return across / width / (tiles + (edge if rest else 0))


def apply_tile(s: Schedule, facts: Facts, plan: TilePlan, taker: Block | None, to_taker: dict[Var, Var]) -> list[Var]:
    """Tiles a product (and the block that takes its sums); gives the loops around the tile, outermost first."""
    name = facts.block.name
    if plan.packed is not None:
        _pack(s, name, plan, facts)
    if taker is None:
        sums = s.cache_write(facts.target.name, "local")
        final = s[name]
        to_taker = {axis.var: new.var for axis, new in zip(facts.spatial, final.block.axes)}
        order = [to_taker[axis.var] for axis in facts.spatial]
    else:
        sums, final = s[name], s[taker.name]
        order = [axis.var for axis in taker.axes]
    if plan.padded:
        sums.pad(sums.axis[[axis.var for axis in facts.spatial].index(plan.lane)], plan.width)
    loop_of = dict(zip([axis.var for axis in final.block.axes], final.axis))
    outer, inner = _split_final(final, plan, to_taker, order, loop_of)
    sums.compute_at(final, outer[-1], exact=not plan.padded)
    if taker is not None:
        sums.set_scope("local")
    _lanes_last(s, sums, facts, plan)
    _schedule_sums(sums, facts, plan)
    _schedule_final(final, plan, inner)
    return outer


def tile_in_place(s: Schedule, facts: Facts, plan: TilePlan) -> list[Var]:
    """The tile of a product that must stay where it is, a step of a recurrence; gives the loops around the tile."""
    name = facts.block.name
    if plan.packed is not None:
        _pack(s, name, plan, facts)
    stage = s[name]
    loops = axis_loops(stage)
    lane, row = loops[plan.lane], None if plan.row is None else loops[plan.row]
    reduce = [loop for axis in facts.reduce if (loop := loops[axis.var]) is not None]
    rest = [x for axis in facts.spatial if (x := loops[axis.var]) is not None and x is not lane and x is not row]
    if lane is None or len(reduce) != len(facts.reduce) or (plan.row is not None and row is None):
        raise ScheduleError("tile", name, "an axis has no loop of its own")
    block, inner = stage.split(lane, factor=plan.width)
    vectors, lanes = stage.split(inner, factor=plan.lanes)
    outer = [*rest, block]
    tile = [vectors, lanes]
    if row is not None:
        rows, row_inner = stage.split(row, factor=plan.rows)
        outer.append(rows)
        tile = [row_inner, *tile]
    stage.reorder(*outer, *reduce, *tile)
    for loop in tile[:-1]:
        stage.unroll(loop)
    stage.vectorize(lanes)
    return outer


def axis_loops(stage: Stage) -> dict[Var, Var | None]:
    """The loop of each axis of a block; None for one that has none of its own."""
    block = stage.block
    around = {loop.name: loop for loop in stage.loops}
    found: dict[Var, Var | None] = {}
    for axis, binding in zip(block.axes, block.bindings):
        found[axis.var] = around.get(binding.name) if isinstance(binding, Var) else None
    return found


def _split_final(
    final: Stage, plan: TilePlan, to_taker: dict[Var, Var], order: list[Var], loop_of: dict[Var, Var]
) -> tuple[list[Var], dict[str, Var]]:
    """Splits the taker's loops: the tile inside, lanes' blocks outside rows' so that the packed operand stays close."""
    lane_axis = to_taker[plan.lane]
    row_axis = None if plan.row is None else to_taker[plan.row]
    lane_outer, lane_inner = final.split(loop_of[lane_axis], factor=plan.width)
    inner = {"lane": lane_inner}
    rest = [loop_of[v] for v in order if v is not lane_axis and v is not row_axis]
    outer = [*rest[:1], lane_outer, *rest[1:]] if len(rest) > 1 else [*rest, lane_outer]
    if row_axis is not None:
        row_outer, row_inner = final.split(loop_of[row_axis], factor=plan.rows)
        outer.append(row_outer)
        inner["row"] = row_inner
    last_is_lane = order[-1] is lane_axis or row_axis is None
    tail = [inner[key] for key in (("row", "lane") if last_is_lane else ("lane", "row")) if key in inner]
    inner["last"] = tail[-1]
    final.reorder(*outer, *tail)
    return outer, inner


def _schedule_final(final: Stage, plan: TilePlan, inner: dict[str, Var]) -> None:
    last = inner["last"]
    if last is inner["lane"] and plan.vectors > 1:
        vectors, lanes = final.split(last, factor=plan.lanes)
        final.unroll(vectors)
        final.vectorize(lanes)
    else:
        final.vectorize(last)
    if "row" in inner and last is inner["lane"]:
        final.unroll(inner["row"])


def _lanes_last(s: Schedule, sums: Stage, facts: Facts, plan: TilePlan) -> None:
    """Stores the accumulators with the lanes' axis innermost."""
    buffer = sums.block.writes[0].buffer
    at = [i for i, axis in enumerate(facts.spatial) if axis.var is plan.lane][0]
    if at == len(buffer.shape) - 1:
        return
    names = [f"d{i}" for i in range(len(buffer.shape))]
    s.apply(
        "transform_layout",
        buffer=buffer.name,
        inputs=names,
        outputs=[n for i, n in enumerate(names) if i != at] + [names[at]],
    )


def _schedule_sums(sums: Stage, facts: Facts, plan: TilePlan) -> None:
    position = {axis.var: i for i, axis in enumerate(facts.spatial)}
    axes = list(sums.axis)
    lane = axes[position[plan.lane]]
    row = None if plan.row is None else axes[position[plan.row]]
    others = [loop for loop in axes if loop is not lane and loop is not row]
    tile = [] if row is None else [row]
    if plan.vectors > 1:
        vectors, lanes = sums.split(lane, factor=plan.lanes)
        tile += [vectors, lanes]
    else:
        vectors, lanes = None, lane
        tile.append(lane)
    reduce = list(sums.reduce_axis)
    sums.reorder(*others, *reduce, *tile)
    size = plan.vectors * plan.rows
    deepest = 1 if _overlaps(facts, plan) else extent(facts.reduce[-1])
    if 1 < deepest <= 8 and size * deepest <= MOST_UNROLLED:
        sums.unroll(reduce[-1])
    elif deepest > 8 and size * 4 <= MOST_UNROLLED and deepest % 4 == 0:
        _, four = sums.split(reduce[-1], factor=4)
        sums.unroll(four)
    if row is not None:
        sums.unroll(row)
    if vectors is not None:
        sums.unroll(vectors)
    sums.vectorize(lanes)


def _overlaps(facts: Facts, plan: TilePlan) -> bool:
    """Whether rows read again what other steps of the reduction read: LLVM would keep it all in registers."""
    last = facts.reduce[-1].var
    if plan.row is None:
        return False
    for load in facts.loads:
        along, across = facts.step(load, last), facts.step(load, plan.row)
        if along and across and abs(along) < plan.rows * abs(across):
            return True
    return False


def _pack(s: Schedule, name: str, plan: TilePlan, facts: Facts) -> None:
    """A copy of the lanes' operand in which a tile's lanes lie side by side for each step of the reduction."""
    load = plan.packed
    assert load is not None
    copy = s.cache_read(load.buffer.name, "global", [name])
    copy.pad(copy.axis[plan.packed_dim], plan.width)  # whole tiles: a copy without a test is made at compile time
    names = [f"d{i}" for i in range(len(load.indices))]
    reducing = {axis.var for axis in facts.reduce}
    lane = names[plan.packed_dim]
    others = [(n, i) for d, (n, i) in enumerate(zip(names, load.indices)) if d != plan.packed_dim]
    front = [n for n, i in others if not uses_any(i, reducing)]
    back = [n for n, i in others if uses_any(i, reducing)]
    outputs = [*front, f"{lane} // {plan.width}", *back, f"{lane} % {plan.width}"]
    buffer = copy.block.writes[0].buffer.name
    s.apply("transform_layout", buffer=buffer, inputs=names, outputs=outputs)
    if len(copy.axis) != len(names):
        raise ScheduleError("pack", name, "a dimension of the operand has no loop of its own")
    loops = dict(zip(names, copy.axis))
    with s.attempt("lanes of the packed operand"):
        block, inner = copy.split(loops[lane], factor=plan.width)
        copy.reorder(*[loops[n] for n in front], block, *[loops[n] for n in back], inner)
        copy.vectorize(inner)
