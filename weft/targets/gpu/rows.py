"""Stages that share rows, in one kernel: softmax, layer norm and what looks like them.

In: a block that reads reductions of its own rows. Out: a block of threads (or one thread) for each row computes every
stage of it in turn; the stages' results stay in shared memory (or registers), and what is read more than once is read
from memory once.

    M[i] = max_k x[i, k];  S[i] = sum_k exp(x[i, k] - M[i]);  out[i, j] = exp(x[i, j] - M[i]) / S[i]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Var
from weft.expr.visit import free_vars
from weft.plan.contraction import is_sum_of_products
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding, work_around
from weft.schedule.schedule import Schedule, Stage
from weft.targets.gpu import model, nest
from weft.targets.gpu.elementwise import by_rule, powers, vector_lanes
from weft.targets.gpu.reduction import cross_threads, row_parts, row_threads


@dataclass(frozen=True)
class _Rows:
    """A block, the stages of its rows (last first), and the axes that say which row it is."""

    unit: Unit
    stages: list[str]
    row: set[Var]

    @property
    def length(self) -> int:
        """Elements of a row."""
        return math.prod(extent(axis) for axis in self.unit.facts.block.axes if axis.var not in self.row)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return math.prod(extent(axis) for axis in self.unit.facts.block.axes if axis.var in self.row)

    def runs_along(self) -> bool:
        """Whether neighbours in memory belong to one row."""
        facts = self.unit.facts
        inside = [axis for axis in facts.block.axes if axis.var not in self.row and extent(axis) > 1]
        return any(facts.step(load, axis.var) == 1 for load in facts.loads for axis in inside)

    def blocks(self, each: int) -> int | None:
        """How many blocks of so many rows there are, where reductions would have more on their own; else None."""
        stages = [facts_of(block_named(self.unit.schedule, name)) for name in self.stages]
        are_few = any(stage.is_reduction and row_parts(stage, self.unit.target) > 1 for stage in stages)
        return ceildiv(self.count, each) if are_few else None

    def outside(self) -> Var:
        """The loops over rows as one, outside those of a row."""
        facts, stage = self.unit.facts, self.unit.schedule[self.unit.facts.block.name]
        loops = nest.free_loops(stage)
        if len(loops) != len(facts.block.axes):
            raise ScheduleError("rows", stage.name, "its loops were changed already")
        rows = [loop for axis, loop in zip(facts.block.axes, loops) if axis.var in self.row]
        stage.reorder(*rows, *[loop for loop in loops if loop not in rows])
        return nest.fuse_all(stage, rows)


def _rows(unit: Unit) -> _Rows | None:
    """The rows of a block; None where it has none."""
    facts = unit.facts
    stages = _stages(unit.schedule, facts.block.name, unit.done)
    row = _row_axes(unit.schedule, facts, stages)
    return None if row is None or facts.is_ordered else _Rows(unit, stages, row)


def _stages(s: Schedule, name: str, done: set[str]) -> list[str]:
    """The stages to compute inside the rows, last first: no products, no recurrences, at least one reduction."""
    found = []
    for other in feeding(s, name):
        kind = facts_of(block_named(s, other))
        if other in done or kind.is_ordered or is_sum_of_products(kind):
            continue
        found.append(other)
    reduces = any(facts_of(block_named(s, other)).is_reduction for other in found)
    return found if reduces else []


def _row_axes(s: Schedule, facts: Facts, stages: list[str]) -> set[Var] | None:
    """The axes of a block that say which row it is: those at which it reads reductions, or what is made of them."""
    made: set[Buffer] = set()
    for stage in (facts_of(block_named(s, name)) for name in reversed(stages)):
        if stage.is_reduction or stage.loads and all(load.buffer in made for load in stage.loads):
            made.update(region.buffer for region in stage.block.writes)
    read = [index for load in facts.loads if load.buffer in made for index in load.indices]
    row, spatial = {index for index in read if isinstance(index, Var)}, {axis.var for axis in facts.spatial}
    if not row or not row <= spatial or not row.issuperset(var for index in read for var in free_vars(index)):
        return None  # groups of channels, say: several values of an axis have one row
    return row if row < spatial or facts.is_reduction else None


def _attach(rows: _Rows, loop: Var, scope: str) -> None:
    """Computes every stage inside the loop that is one row, its result in another memory."""
    s = rows.unit.schedule
    for other in rows.stages:
        alone = work_around(s, other)
        for region in block_named(s, other).writes:
            s.apply("set_scope", buffer=region.buffer.name, scope=scope)
        s[other].compute_at(s[rows.unit.facts.block.name], loop)
        if _elements(s[other]) * rows.count > model.REPEATED * alone:
            raise ScheduleError("rows", other, "it would be computed several times")
    rows.unit.done.update(rows.stages)


def _elements(stage: Stage) -> int:
    """How often a stage runs inside what it is computed in."""
    return math.prod(nest.extent_of(stage, loop) for loop in nest.free_loops(stage))


# ------------------------------------------------------------------------------------------ a block of threads for each


def match_blocks(unit: Unit) -> Sketch | None:
    """The sketch of rows that the threads of a block share."""
    rows = _rows(unit)
    if rows is None or rows.length < model.LEAST_ROW:
        return None
    threads, _ = row_threads(rows.length, rows.count, unit.target)
    lanes = 1 if unit.facts.is_reduction else vector_lanes(unit.facts, unit.target)
    while lanes > 1 and rows.length < lanes * threads:
        lanes //= 2
    return by_rule(
        "rows by blocks", unit, {"threads": threads, "lanes": lanes}, lambda point: _block_each(rows, point),
        len(rows.stages), not rows.runs_along(), rows.blocks(1), lanes=powers(lanes),
    )  # fmt: skip


def _block_each(rows: _Rows, point: Point) -> None:
    s, threads = rows.unit.schedule, point["threads"]
    stage = s[rows.unit.facts.block.name]
    place = rows.outside()
    stage.bind(place, "blockIdx.x")
    _attach(rows, place, "shared")
    _keep_row(rows, place, point)
    for other in rows.stages:
        facts = facts_of(block_named(s, other))
        if not facts.is_reduction:
            share_row(s[other], threads, 1)
        elif facts.depth >= model.SHARED_DEPTH:
            cross_threads(s[other], threads)
    if rows.unit.facts.is_reduction:
        cross_threads(stage, threads)
    else:
        share_row(stage, threads, point["lanes"])


def share_row(stage: Stage, threads: int, lanes: int) -> None:
    """The elements of a row divided among the threads of a block."""
    loops = [loop for loop in nest.spatial_loops(stage) if nest.extent_of(stage, loop) > 1]
    if not loops:
        return
    if lanes > 1:
        loops[-1], vector = stage.split(loops[-1], factor=lanes)
    flat = nest.fuse_all(stage, loops)
    if nest.extent_of(stage, flat) <= threads:
        stage.bind(flat, "threadIdx.x")
    else:
        outer, inner = stage.split(flat, factor=threads)
        is_short = nest.extent_of(stage, outer) <= model.UNROLLED_ROWS
        nest.arrange(stage, {inner: "threadIdx.x", outer: "unroll" if is_short else ""})
    if lanes > 1:
        stage.vectorize(vector)


def _keep_row(rows: _Rows, place: Var, point: Point) -> None:
    """A parameter that several stages read along the row is fetched once, into shared memory."""
    s, name, machine = rows.unit.schedule, rows.unit.facts.block.name, nest.threads_of(rows.unit.target)
    blocks = [block_named(s, other) for other in (name, *rows.stages)]
    for buffer in s.func.buffers:
        found = [b for b in blocks if any(r.buffer is buffer for r in b.reads)]
        if len(found) < 2 or rows.length * buffer.dtype.bytes > min(model.ROW_BYTES, machine.shared_bytes):
            continue
        if not all(_reads_row(facts_of(b), buffer) for b in found):
            continue
        with s.attempt("fetch the row"):
            copy = s.cache_read(buffer, "shared", [b.name for b in found])
            copy.compute_at(s[name], place)
            if _elements(copy) != rows.length:
                raise ScheduleError("rows", buffer.name, "it is not just the row that is fetched")
            facts, last = facts_of(copy.block), copy.block.axes[-1]
            lanes = nest.whole_vectors(facts, last, facts.loads, machine.vector_bytes // buffer.dtype.bytes)
            is_whole = [nest.extent_of(copy, loop) for loop in nest.long_loops(copy)][-1:] == [extent(last)]
            share_row(copy, point["threads"], lanes if is_whole else 1)


def _reads_row(facts: Facts, buffer: Buffer) -> bool:
    """Whether a block reads a buffer at least once for each element of a row, along it."""
    loads = [load for load in facts.loads if load.buffer is buffer]
    axes = [axis for axis in facts.block.axes if extent(axis) > 1]
    return bool(loads) and bool(axes) and all(facts.step(load, axes[-1].var) == 1 for load in loads)


# ---------------------------------------------------------------------------------------------------- a thread for each


def match_threads(unit: Unit) -> Sketch | None:
    """The sketch of rows that a thread computes, every stage in turn, the results in its registers."""
    rows = _rows(unit)
    if rows is None:
        return None
    across = [axis for axis in unit.facts.block.axes if axis.var in rows.row]
    rule = {"threads": nest.threads_for(across, nest.threads_of(unit.target))}
    is_scattered = rows.length >= model.LEAST_ROW and rows.runs_along()
    return by_rule(
        "rows by threads", unit, rule, lambda point: _thread_each(rows, point), len(rows.stages), is_scattered,
        rows.blocks(rule["threads"]),
    )  # fmt: skip


def _thread_each(rows: _Rows, point: Point) -> None:
    s, name = rows.unit.schedule, rows.unit.facts.block.name
    thread = nest.bind_loop(s[name], rows.outside(), rows.unit.target, point["threads"])
    _attach(rows, thread, "local")
    if sum(_kept(facts_of(block_named(s, other))) for other in rows.stages) > model.KEPT_VALUES * len(rows.stages):
        raise ScheduleError("rows", name, "the stages of a row do not fit into a thread's registers")


def _kept(facts: Facts) -> int:
    """Values of a stage that a thread holds."""
    return 1 if facts.is_reduction else math.prod(extent(axis) for axis in facts.spatial[-1:])
