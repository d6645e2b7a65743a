"""Stages that share rows, in one kernel: softmax, layer norm and what looks like them.

In: a block that reads reductions of its own rows. Out: a block of threads (or one thread) for each row computes every
stage of it in turn; the stages' results stay in shared memory (or registers), and what is read more than once is read
from memory once.

    M[i] = max_k x[i, k];  S[i] = sum_k exp(x[i, k] - M[i]);  out[i, j] = exp(x[i, j] - M[i]) / S[i]
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, FloorDiv, Var, floormod, index_expr, int_value
from weft.expr.simplify import simplify
from weft.expr.visit import free_vars, substitute
from weft.loop.tree import writers
from weft.plan.contraction import is_sum_of_products
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding, names_of, work_around
from weft.schedule.schedule import Schedule, Stage
from weft.targets.gpu import model, nest
from weft.targets.gpu.elementwise import by_rule, powers, vector_lanes
from weft.targets.gpu.reduction import is_contiguous, row_parts, row_threads
from weft.targets.gpu.together import cross_threads


class _Rows:
    """A block, the stages of its rows (last first), and the axes that say which row it is."""

    def __init__(self, unit: Unit, stages: dict[str, Facts], row: set[Var]) -> None:
        self.unit, self.stages, self.row = unit, stages, row
        self.s, self.name, self.facts = unit.schedule, unit.facts.block.name, unit.facts
        self.across = [axis for axis in self.facts.block.axes if axis.var in row]
        self.along = [axis for axis in self.facts.block.axes if axis.var not in row]
        self.length, self.count = (math.prod(map(extent, axes)) for axes in (self.along, self.across))

    def sketch(self, name: str, rule: dict[str, int], apply: Callable[[Point], None], each: int, runs: bool) -> Sketch:
        """A sketch around a rule: so many rows `each` block, which `runs` along them or from one to the next."""
        # Blocks count where there are few of them: where reductions would have more on their own.
        parts = [row_parts(stage, self.unit.target) for stage in self.stages.values() if stage.is_reduction]
        blocks = ceildiv(self.count, each) if any(part > 1 for part in parts) else None
        summed = [stage for stage in self.stages.values() if stage.is_reduction]
        is_along = any(self.facts.step(x, a.var) == 1 for x in self.facts.loads for a in self.along if extent(a) > 1)
        is_along = is_along or any(map(is_contiguous, summed))
        length = max(self.length, *(stage.depth for stage in summed))
        is_scattered = is_along != runs and (runs or length >= model.LEAST_ROW)
        lanes, together = powers(rule.get("lanes", 1)), list(self.stages.values())
        return by_rule(name, self.unit, rule, apply, together, is_scattered, blocks, lanes=lanes)

    def outside(self) -> Var:
        """The loops over rows as one, outside those of a row."""
        stage, axes = self.s[self.name], self.facts.block.axes
        loops = nest.free_loops(stage)
        if len(loops) != len(axes):
            raise ScheduleError("rows", stage.name, "its loops were changed already")
        rows = [loop for axis, loop in zip(axes, loops) if axis.var in self.row]
        stage.reorder(*rows, *[loop for loop in loops if loop not in rows])
        return nest.fuse_all(stage, rows)

    def attach(self, loop: Var, scope: str) -> None:
        """Computes every stage inside the loop that is one row, its result in another memory."""
        s = self.s
        for other in self.stages:
            alone = work_around(s, other)
            for region in block_named(s, other).writes:
                s.apply("set_scope", buffer=region.buffer.name, scope=scope)
            s[other].compute_at(s[self.name], loop)
            if _elements(s[other]) * self.count > model.REPEATED * alone:
                raise ScheduleError("rows", other, "it would be computed several times")
        self.unit.done.update(self.stages)


def rows_of(unit: Unit) -> _Rows | None:
    """The rows of a block; None where it has none.

    Stages that are computed inside the rows are no products and no recurrences; one of them is a reduction. The axes
    that say which row it is are those at which the block reads reductions, or what is made of them.
    """
    s, facts = unit.schedule, unit.facts
    near = {name: facts_of(block_named(s, name)) for name in feeding(s, facts.block.name) if name not in unit.done}
    stages = {name: one for name, one in near.items() if not one.is_ordered and not is_sum_of_products(one)}
    if facts.is_ordered or not any(stage.is_reduction for stage in stages.values()):
        return None
    made: set[Buffer] = set()
    for stage in reversed(stages.values()):
        if stage.is_reduction or stage.loads and all(load.buffer in made for load in stage.loads):
            made.update(region.buffer for region in stage.block.writes)
    read = [index for load in facts.loads if load.buffer in made for index in load.indices]
    row, spatial = {index for index in read if isinstance(index, Var)}, {axis.var for axis in facts.spatial}
    if not row or not row <= spatial or not row.issuperset(var for index in read for var in free_vars(index)):
        return None  # groups of channels, say: several values of an axis have one row
    return _Rows(unit, stages, row) if row < spatial or facts.is_reduction else None


def split_groups(s: Schedule) -> None:
    """Where a block reads a statistic of groups of channels, its axis of channels becomes groups, and channels of one.

    rewrite: y[c, h] = x[c, h] - mean[c // 10]   ->   y[g * 10 + k, h] = x[g * 10 + k, h] - mean[g]
    """
    for name in names_of(s):
        facts = facts_of(block_named(s, name))
        sizes = {axis.var: extent(axis) for axis in facts.spatial}
        inner = {load.buffer for load in facts.loads} & set(s.func.allocations)
        for index in [index for load in facts.loads if load.buffer in inner for index in load.indices]:
            if not isinstance(index, FloorDiv) or not isinstance(index.a, Var) or index.a not in sizes:
                continue
            width, size = int_value(index.b) or 1, sizes[index.a]
            if 1 < width < size and size % width == 0:
                with s.attempt(f"groups of {name}"):
                    s.apply("split_axis", block=name, axis=index.a.name, factor=width)
                break


def _elements(stage: Stage) -> int:
    """How often a stage runs inside what it is computed in."""
    return math.prod(nest.extent_of(stage, loop) for loop in nest.free_loops(stage))


# ------------------------------------------------------------------------------------------ a block of threads for each


def match_blocks(unit: Unit) -> Sketch | None:
    """The sketch of rows that the threads of a block share."""
    rows = rows_of(unit)
    if rows is None or rows.length < model.LEAST_ROW:
        return None
    threads, _ = row_threads(rows.length, rows.count, unit.target)
    lanes = 1 if unit.facts.is_reduction else vector_lanes(unit.facts, unit.target)
    while lanes > 1 and rows.length < lanes * threads:
        lanes //= 2
    rule = {"threads": threads, "lanes": lanes}
    return rows.sketch("rows by blocks", rule, lambda point: block_each(rows, point), 1, True)


def match_warps(unit: Unit) -> Sketch | None:
    """The same where the threads run in step: each stage gives a thread the same elements, so that they can stay in its
    registers (`weft/targets/cuda/lanes.py`).
    """
    rows, machine = rows_of(unit), nest.threads_of(unit.target)
    if rows is None or not machine.exchanges_registers or rows.length < model.LEAST_ROW or unit.facts.is_reduction:
        return None
    lanes = vector_lanes(unit.facts, unit.target)
    while lanes > 1 and 2 * rows.length < lanes * machine.warp:
        lanes //= 2
    if rows.length > machine.warp * model.WARP_VALUES or rows.count < machine.multiprocessors:
        return None
    rule = {"threads": machine.warp, "lanes": lanes}
    return rows.sketch("rows by warps", rule, lambda point: block_each(rows, point, True), 1, True)


def block_each(rows: _Rows, point: Point, in_step: bool = False) -> None:
    """A block of threads for each row, every stage shared among them."""
    s, stage, threads, lanes = rows.s, rows.s[rows.name], point["threads"], point["lanes"] if in_step else 1
    place = rows.outside()
    stage.bind(place, "blockIdx.x")
    rows.attach(place, "shared")
    _keep_row(rows, place, threads, point["lanes"] if in_step else None)
    for other, facts in rows.stages.items():
        if not facts.is_reduction:
            share_row(s[other], threads, lanes)
        elif facts.depth >= model.SHARED_DEPTH:
            cross_threads(s[other], threads, lanes=lanes, may_idle=in_step)
    if rows.facts.is_reduction:
        cross_threads(stage, threads)
    else:
        share_row(stage, threads, point["lanes"])


def share_row(stage: Stage, threads: int, lanes: int) -> None:
    """The elements of a row divided among the threads of a block."""
    loops = [loop for loop in nest.spatial_loops(stage) if nest.extent_of(stage, loop) > 1]
    if not loops:
        return
    loops = nest.in_memory_order(stage, loops)
    if lanes > 1:
        loops[-1], vector = stage.split(loops[-1], factor=lanes)
    flat = nest.fuse_all(stage, loops)
    if nest.extent_of(stage, flat) <= threads:
        stage.bind(flat, "threadIdx.x")
    else:
        outer, inner = stage.split(flat, factor=threads)
        is_short = nest.extent_of(stage, outer) <= model.ROW_TURNS  # all loads of a thread are on their way
        nest.arrange(stage, {inner: "threadIdx.x", outer: "unroll" if is_short else ""})
    if lanes > 1:
        stage.vectorize(vector)


def _keep_row(rows: _Rows, place: Var, threads: int, most_lanes: int | None = None) -> None:
    """A parameter that several stages read along the row, for each of its elements, is fetched once."""
    s, machine = rows.s, nest.threads_of(rows.unit.target)
    readers = {name: facts_of(block_named(s, name)) for name in (rows.name, *rows.stages)}
    for buffer in s.func.buffers:
        found = {name: facts for name, facts in readers.items() if any(r.buffer is buffer for r in facts.block.reads)}
        most = model.ROW_BYTES if rows.count > machine.multiprocessors else machine.shared_bytes - model.ROW_PARTIALS
        if len(found) < 2 or rows.length * buffer.dtype.bytes > min(most, machine.shared_bytes):
            continue
        if not all(_reads_row(facts, buffer) for facts in found.values()):
            continue
        with s.attempt("fetch the row"):
            copy = s.cache_read(buffer, "shared", list(found))
            copy.compute_at(s[rows.name], place)
            if _elements(copy) != rows.length:
                raise ScheduleError("rows", buffer.name, "it is not just the row that is fetched")
            facts, last = facts_of(copy.block), copy.block.axes[-1]
            wide = most_lanes or machine.vector_bytes // buffer.dtype.bytes
            stored = _made_inside(rows, buffer, copy)
            lanes = nest.whole_vectors(facts, last, facts.loads, wide)
            if stored is not None:
                lanes = min(lanes, vector_lanes(facts_of(copy.block), rows.unit.target))
                share_row(stored, threads, _from_multiples(copy, lanes))
            share_row(copy, threads, _from_multiples(copy, lanes))


def _made_inside(rows: _Rows, buffer: Buffer, copy: Stage) -> Stage | None:
    """Makes an output that a row is fetched from in its place (a sum with a residual, say): it is stored from there.

    Gives the stage that stores it; None where another kernel makes it, or reads of it would not run along the row.
    """
    s, last = rows.s, copy.block.axes[-1].var
    makers = [block.name for block in writers(s.func.body, buffer)]
    if len(makers) != 1 or makers[0] in rows.unit.done:
        return None
    before = set(names_of(s))
    with s.attempt(f"{makers[0]} in its row", rows.unit.done) as tried:
        s[makers[0]].compute_inline()
        facts = facts_of(copy.block)
        if any(facts.step(load, last) not in (0, 1) for load in facts.loads):
            raise ScheduleError("rows", makers[0], "it is not made of rows")
        rows.unit.done.add(makers[0])
    return s[(set(names_of(s)) - before).pop()] if tried else None


def _from_multiples(copy: Stage, lanes: int) -> int:
    """How many of so many neighbours along the last axis are whole vectors in what is copied, from a multiple on."""
    inner, place = nest.long_loops(copy)[-1], copy.block.bindings[-1]
    if inner not in free_vars(place):
        return 1
    first = substitute(place, {inner: index_expr(0)})
    lanes = math.gcd(lanes, nest.extent_of(copy, inner))
    while lanes > 1 and int_value(simplify(floormod(first, index_expr(lanes)))) != 0:
        lanes //= 2
    return lanes


def _reads_row(facts: Facts, buffer: Buffer) -> bool:
    """Whether a block reads a buffer at least once for each element of a row, along it."""
    loads = [load for load in facts.loads if load.buffer is buffer]
    axes = [axis for axis in facts.block.axes if extent(axis) > 1]
    return bool(loads) and all(any(facts.step(load, axis.var) == 1 for axis in axes) for load in loads)


# ---------------------------------------------------------------------------------------------------- a thread for each


def match_threads(unit: Unit) -> Sketch | None:
    """The sketch of rows that a thread computes, every stage in turn, the results in its registers."""
    rows = rows_of(unit)
    if rows is None:
        return None
    threads = nest.threads_for(rows.across, nest.threads_of(unit.target))

    def apply(point: Point) -> None:
        thread = nest.bind_loop(rows.s[rows.name], rows.outside(), unit.target, point["threads"])
        rows.attach(thread, "local")
        kept = [1 if x.is_reduction else math.prod(map(extent, x.spatial[-1:])) for x in rows.stages.values()]
        if sum(kept) > model.KEPT_VALUES * len(kept):
            raise ScheduleError("rows", rows.name, "the stages of a row do not fit into a thread's registers")

    return rows.sketch("rows by threads", {"threads": threads}, apply, threads, False)
