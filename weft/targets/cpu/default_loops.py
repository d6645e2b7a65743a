"""Loops of everything that is no product: elementwise blocks, data movement, plain reductions, what feeds a block."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate

from weft.expr.nodes import Const, Expr, Load, Select, Var
from weft.expr.structural import structural_key
from weft.expr.visit import children
from weft.loop.ir import Axis
from weft.loop.tree import block_path, blocks_in, loops_on
from weft.plan.contraction import is_sum_of_products
from weft.plan.planner import OPEN
from weft.plan.sketch import ceildiv
from weft.schedule.facts import Facts, block_named, cost, extent, extent_of, facts_of, feeding, work_around
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import model
from weft.targets.cpu.facts import has_masks


def write_out(stage: Stage, *loops: Var) -> None:
    """Loops written out, the last one as lanes."""
    for loop in loops[:-1]:
        stage.unroll(loop)
    stage.vectorize(loops[-1])


def parallelize(stage: Stage, loops: Sequence[Var], work: int, target: Target) -> Var | None:
    """Fuses the leading loops that are worth it and divides them among threads; gives the loop."""
    if work < model.LEAST_PARALLEL_WORK or not loops:
        return None
    counts = list(accumulate((extent_of(stage, loop) for loop in loops), operator.mul))
    enough = next((at for at, count in enumerate(counts) if count >= 8 * target.cores), len(loops) - 1)
    if counts[enough] < 2:
        return None
    with stage.schedule.attempt("threads") as tried:
        outer = stage.fuse(*loops[: enough + 1]) if enough else loops[0]
        stage.parallel(outer)
    return outer if tried else None


def schedule_elementwise(stage: Stage, target: Target, outer: bool = True) -> list[Var]:
    """Vectorizes the innermost axis, divides the outer ones among threads; gives the loops around the vector."""
    facts = facts_of(stage.block)
    loops = list(stage.axis)
    if not loops or len(loops) != len(facts.spatial):
        return []
    heavy = 0 if facts.store is None else cost(facts.store.value) // 3
    work = facts.points * max(1, len(facts.loads), heavy)
    if outer and (tiled := tile_transposed(stage, facts, loops, target)) is not None:
        parallelize(stage, tiled, work, target)
        return tiled
    tail = _flat_tail(facts) if outer else 0
    if tail > 1:
        loops = [*loops[:-tail], stage.fuse(*loops[-tail:])]
    lanes = _lanes(facts, target)
    last = loops[-1]
    length = extent_of(stage, last)
    around = loops[:-1]
    with stage.schedule.attempt("lanes") as tried:
        if length > lanes:
            few = len({structural_key(load) for load in facts.loads}) <= 4
            wide = lanes * 4 if length >= lanes * 4 and few else lanes
            block, inner = stage.split(last, factor=wide)
            if wide > lanes:
                unrolled, inner = stage.split(inner, factor=lanes)
                stage.unroll(unrolled)
            if extent_of(stage, block) <= model.SHORT_ROW and _has_edges(stage, facts, target):
                stage.unroll(block)
            else:
                around.append(block)
            last = inner
        if length > 1:
            stage.vectorize(last)
    if not tried:
        around = loops[:-1]
    if outer:
        parallelize(stage, around, work, target)
    return around


def _has_edges(stage: Stage, facts: Facts, target: Target) -> bool:
    """Whether the ends of a row read elements that others read, too, or are padded with a number where lanes cannot be
    off: it should be known then which lanes do."""
    value = None if facts.store is None else facts.store.value
    if any(load.indices and isinstance(load.indices[-1], Select) for load in facts.loads):
        return OPEN not in stage.schedule.func.annotations
    padded = isinstance(value, Select) and isinstance(value.otherwise, Const)
    return padded and OPEN not in stage.schedule.func.annotations and not has_masks(target.features)


def _lanes(facts: Facts, target: Target) -> int:
    """Lanes of the widest type that the block handles, so that every value fills at most a register or two."""
    kinds = [facts.target.dtype, *(load.buffer.dtype for load in facts.loads)]
    return min(target.lanes(kind) for kind in kinds)


def _flat_tail(facts: Facts) -> int:
    """How many of the last axes are one stretch of memory for the store and for every load (or the same to it)."""
    store = facts.store
    if store is None or len(facts.block.writes) != 1:
        return 0
    names = _variables_outside_loads(store.value)
    count, wanted = 0, 1
    kinds: list[bool | None] = [None] * len(facts.loads)  # whether a load moves along the stretch
    for axis in reversed(facts.spatial):
        if axis.kind != "spatial" or axis.var in names:
            break
        if extent(axis) > 1:
            steps = [facts.step(load, axis.var) for load in facts.loads]
            moves = [None if step not in (0, wanted) else step != 0 for step in steps]
            differ = any(old is not None and old != new for old, new in zip(kinds, moves))
            if facts.store_step(axis.var) != wanted or None in moves or differ:
                break
            kinds = [*moves]
            wanted *= extent(axis)
        count += 1
    return count


def _variables_outside_loads(e: Expr) -> set[Var]:
    """The variables that a value depends on otherwise than by what it loads."""
    if isinstance(e, Load):
        return set()
    if isinstance(e, Var):
        return {e}
    return {variable for child in children(e) for variable in _variables_outside_loads(child)}


def schedule_reduction(stage: Stage, target: Target) -> None:
    """The loops of a plain reduction that stands where it is: partial results in lanes, or lanes along its elements."""
    facts = facts_of(stage.block)
    if not facts.reduce or len(stage.reduce_axis) != len(facts.reduce):
        return
    lanes, ways = _lanes(facts, target), [_lanes_in_reduction, _lanes_in_elements]
    beside = any(facts.step(load, axis.var) == 1 for load in facts.loads for axis in facts.reduce if extent(axis) > 4)
    if facts.depth < 16 or not beside:  # else neighbours in memory are reduced into one element, and enough of them
        ways = [_row_after_row, _lanes_in_elements, _lanes_in_reduction]
    for way in ways:
        with stage.schedule.attempt(f"reduction {way.__name__.strip('_')}") as tried:
            if not way(stage, facts, lanes, target):
                tried.refuse("it does not have the form")
        if tried:
            return


def _lanes_in_reduction(stage: Stage, facts: Facts, lanes: int, target: Target) -> bool:
    """Partial results, one for each lane: the innermost reduction loop (several fused where they are one stretch)."""
    loops = list(stage.reduce_axis)
    order = sorted(range(len(loops)), key=lambda i: -_reach(facts, facts.reduce[i]))
    stage.reorder(*[loops[i] for i in order])
    last = loops[order[-1]]
    length = extent_of(stage, last)
    if len(loops) > 1 and length < 4 * lanes and _one_stretch(facts, [facts.reduce[i] for i in order]):
        last = stage.fuse(*[loops[i] for i in order])
        length = extent_of(stage, last)
    if length < lanes // 2 or length < 4:
        return False
    wide = min(lanes * 4, ceildiv(length, lanes) * lanes) if length >= 2 * lanes else min(lanes, length)
    reduce_in_lanes(stage, last, wide, lanes)
    return True


def reduce_in_lanes(stage: Stage, loop: Var, wide: int, lanes: int) -> None:
    """Partial results of a reduction, `wide` of them in vectors side by side, which are combined last."""
    _, inner = stage.split(loop, factor=wide)
    partial = stage.schedule.rfactor(stage.name, inner)
    partial.set_scope("local")
    vector = partial.loops[-1]
    if wide > lanes:
        unrolled, vector = partial.split(vector, factor=lanes)
        partial.unroll(unrolled)
    partial.vectorize(vector)
    _combine_lanes(stage, wide, lanes)


def _combine_lanes(stage: Stage, wide: int, lanes: int) -> None:
    """The last reduction, of the partial results: vectors to one, its halves and quarters, then the few that are left.

    One after the other, each addition would wait for the one before it.
    """
    for width in (lanes, 4):
        if wide % width or wide <= width or width < 2:
            continue
        _, inner = stage.split(stage.reduce_axis[-1], factor=width)
        fewer = stage.schedule.rfactor(stage.name, inner)
        fewer.set_scope("local")
        write_out(fewer, fewer.reduce_axis[-1], fewer.axis[-1])
        wide = width
    if wide <= 64:
        stage.unroll(stage.reduce_axis[-1])


def _reach(facts: Facts, axis: Axis) -> int:
    steps = [facts.step(load, axis.var) for load in facts.loads]
    return max((abs(step) if step is not None else 1 << 40 for step in steps), default=0)


def _one_stretch(facts: Facts, axes: Sequence[Axis]) -> bool:
    """Whether the axes, outermost first, walk through memory without a gap."""
    wanted = 1
    for axis in reversed(axes):
        if any(facts.step(load, axis.var) != wanted for load in facts.loads):
            return False
        wanted *= extent(axis)
    return True


def _lanes_in_elements(stage: Stage, facts: Facts, lanes: int, target: Target) -> bool:
    """Lanes along the element axis whose neighbours lie together; the reduction runs outside the lanes."""
    found = _lane_loop(stage, facts)
    if found is None or found[1] < 2:
        return False
    inner, length, others = found
    if length > lanes:
        if OPEN in stage.schedule.func.annotations:  # lanes that are off would wait for what others have stored
            with stage.schedule.attempt("whole vectors of an intermediate"):
                stage.pad(inner, lanes)
        block, inner = stage.split(inner, factor=lanes)
        others.append(block)
    stage.reorder(*others, *stage.reduce_axis, inner)
    window = list(stage.reduce_axis)
    if facts.depth > model.MOST_TAPS:
        window = window[-1:] if 1 < extent(facts.reduce[-1]) <= 4 else []
    write_out(stage, *window, inner)
    return True


def _row_after_row(stage: Stage, facts: Facts, lanes: int, target: Target) -> bool:
    """Rows reduced into one row: a stretch of the sums stays in the first-level cache while rows stream past it."""
    lane, found, rows = best_lane_axis(facts), _lane_loop(stage, facts), facts.reduce[-1]
    if lane is None or found is None or facts.store is None or extent(rows) < 2 * model.ROWS_AT_ONCE:
        return False
    loop, length, others = found
    steps = [facts.step(load, lane.var) for load in facts.loads]
    far = [facts.step(load, rows.var) or 0 for load, step in zip(facts.loads, steps) if step == 1]
    if any(step not in (0, 1) for step in steps) or not far or min(far) < length or length < 2 * lanes:
        return False
    block, part = stage.split(loop, factor=_stretch(length, lanes, facts, target))
    stretch, vector, inner = stage.split(part, factors=[None, model.VECTORS_AT_ONCE, lanes])
    *outside, last = stage.reduce_axis
    row, few = stage.split(last, factor=model.ROWS_AT_ONCE)
    stage.reorder(*others, block, *outside, row, stretch, vector, few, inner)
    write_out(stage, vector, few, inner)
    return True


def _stretch(length: int, lanes: int, facts: Facts, target: Target) -> int:
    """How many of a row's elements are reduced together: a third of the cache, less where threads would wait."""
    most = max(target.cache_bytes[0] // 3 // facts.target.dtype.bytes, model.LEAST_STRETCH * lanes)
    rows = facts.points // length
    parts = max(ceildiv(length, most), min(ceildiv(2 * target.cores, rows), length // (model.LEAST_STRETCH * lanes)), 1)
    return ceildiv(ceildiv(length, parts), lanes) * lanes


def _lane_loop(stage: Stage, facts: Facts) -> tuple[Var, int, list[Var]] | None:
    """The loop for lanes, its length, and others in which nothing else is computed; None where lanes have none such."""
    lane, loops = best_lane_axis(facts), list(stage.axis)
    path = loops_on(block_path(stage.schedule.func, stage.name, "schedule"))
    alone = {loop.var.name for loop in path if len(blocks_in(loop.body)) == 1}
    if lane is None or len(loops) != len(facts.spatial):
        return None
    own = loops[[axis is lane for axis in facts.spatial].index(True)]
    others = [loop for loop in loops if loop is not own and loop.name in alone]
    return (own, extent_of(stage, own), others) if own.name in alone else None


def best_lane_axis(facts: Facts) -> Axis | None:
    """The axis along which loads lie closest together, if any lies close enough."""
    apart: dict[Axis, int] = {}
    for axis in reversed(facts.spatial):  # of equals the innermost
        steps = [facts.step(load, axis.var) for load in facts.loads]
        if axis.kind == "spatial" and extent(axis) > 1 and all(step is not None and abs(step) <= 4 for step in steps):
            apart[axis] = max((abs(step or 0) for step in steps), default=0) or 3
    return min(apart, key=apart.__getitem__, default=None)


def tile_transposed(stage: Stage, facts: Facts, loops: list[Var], target: Target) -> list[Var] | None:
    """Tiles a block whose result lies along another axis than what it reads, a square of elements at a time; gives the
    loops around the squares, None (nothing changed) for any other block.

        out[.., l, p] = f(in[.., p, l])        lanes along l, where neighbours are read together; a row for each p

    The rows are unrolled, so that their stores, each strided, stand side by side: `transpose_stores` turns the square
    in registers and stores whole rows. Every cache line is then read once and written once.
    """
    found = _axes_of_squares(facts, target)
    if found is None or len(facts.loads) > model.MOST_LOADS:
        return None
    lane, place = found
    lanes = _side(extent(lane), target.lanes(facts.target.dtype))
    rows = min(lanes, extent(place))
    at = {axis.var: loop for axis, loop in zip(facts.spatial, loops)}
    lane_outer, lane_inner = stage.split(at[lane.var], factor=lanes)
    place_outer, place_inner = stage.split(at[place.var], factor=rows)
    others = [loop for axis, loop in zip(facts.spatial, loops) if axis is not lane and axis is not place]
    around = [*others, lane_outer, place_outer]
    stage.reorder(*around, place_inner, lane_inner)
    write_out(stage, place_inner, lane_inner)
    return around


def _axes_of_squares(facts: Facts, target: Target) -> tuple[Axis, Axis] | None:
    """The axis of the lanes, along which everything is read side by side, and the one along which it is stored so."""
    store = facts.store
    kind = facts.target.dtype
    if store is None or kind.is_bool or kind.bits not in (32, 64) or target.lanes(kind) < model.LEAST_SIDE:
        return None
    places = [axis for axis in facts.spatial if facts.store_step(axis.var) == 1 and extent(axis) >= model.LEAST_SIDE]
    if len(places) != 1 or all(abs(facts.step(load, places[0].var) or 0) <= model.LEAST_STEP for load in facts.loads):
        return None
    lanes = [
        axis
        for axis in facts.spatial
        if axis is not places[0]
        and extent(axis) >= model.LEAST_SIDE
        and {1} <= {facts.step(load, axis.var) for load in facts.loads} <= {0, 1}
        and (facts.store_step(axis.var) or 0) >= extent(places[0])
    ]
    return (max(lanes, key=extent), places[0]) if lanes else None


def _side(length: int, lanes: int) -> int:
    """The lanes of a square: all, or fewer where the axis is shorter or fewer divide it without much loss."""
    while lanes > model.LEAST_SIDE and (
        lanes > length or (length % lanes and length < 4 * lanes and length % (lanes // 2) == 0)
    ):
        lanes //= 2
    return lanes


def attach_producers(s: Schedule, name: str, loops: list[Var], target: Target, done: set[str]) -> None:
    """Computes the stages that feed a block inside its loops, where that computes nothing twice."""
    for other in feeding(s, name):
        facts = facts_of(block_named(s, other))
        if other in done or is_sum_of_products(facts) or not _attach(s, other, name, loops):
            continue
        done.add(other)
        if facts.is_reduction:
            schedule_reduction(s[other], target)
        else:
            schedule_elementwise(s[other], target, outer=False)


def _attach(s: Schedule, other: str, name: str, loops: list[Var]) -> bool:
    """Computes a stage inside the first of the loops where it does no more work than on its own."""
    alone = work_around(s, other)
    for loop in loops:
        with s.attempt(f"attach {other} at {loop.name}") as tried:
            s[other].compute_at(s[name], loop)
            if work_around(s, other) > 1.3 * alone:
                tried.refuse("it would compute too much twice")
        if tried:
            return True
    return False
