"""A step of a recurrence as one kernel: sums of some units of the state and their new values together.

    for t                                the steps, in order: each starts kernels of its own
        for unit             blockIdx.x  a block of threads for each unit of the state (few units: and each sequence)
            for row          threadIdx.y its gates, of every sequence of the batch
                for k        threadIdx.x the product with the state of the step before, shared by the threads of a row
            new values                   what takes the sums at its own unit

Blocks that follow one another are put together as long as each reads what the others make at its own unit alone: a step
of an LSTM is one kernel, a step of a GRU whose reset comes before the product two. Rows of the weights are read as they
lie, neighbours by neighbouring threads.
"""

from __future__ import annotations

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.expr.visit import free_vars
from weft.loop.ir import Axis, Block, Seq
from weft.loop.tree import axes_using, blocks_in, loop_of, loop_path, loops_in, readers
from weft.schedule.facts import block_named, extent, facts_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.gpu import nest
from weft.targets.gpu.model import FULL_ROUNDS, LEAST_BLOCK, UNIT_DEPTH, UNIT_THREADS
from weft.targets.gpu.reduction import is_contiguous
from weft.targets.gpu.together import cross_threads


def schedule_steps(s: Schedule, target: Target) -> None:
    """Schedules the steps of every recurrence of a program; one that does not have the form is left as it is."""
    for steps in loops_of_steps(s):
        with s.attempt("steps of a recurrence"):
            _Step(s, steps, target).run()


def loops_of_steps(s: Schedule) -> list[str]:
    """The loops over steps of several blocks, by name."""
    several = [loop for loop in loops_in(s.func.body) if isinstance(loop.body, Seq)]
    ordered = [loop for loop in several if any(axes_using(b, {loop.var})["ordered"] for b in blocks_in(loop))]
    return [loop.var.name for loop in ordered]


class _Step:
    """A step: its blocks, and those of them that are sums."""

    def __init__(self, s: Schedule, steps: str, target: Target) -> None:
        self.s, self.machine = s, nest.threads_of(target)
        blocks = blocks_in(loop_of(loop_path(s.func, steps, "schedule")))
        self.names = [block.name for block in blocks]
        self.sums = {block.name for block in blocks if _is_sum(block)}
        self.threads = min(self.machine.warp, LEAST_BLOCK)

    def run(self) -> None:
        """Sums of some units and their new values, group by group."""
        for name in self.names:
            if name in self.sums:
                part_units(self.s, name)
        for group in self._groups():
            if group[0] in self.sums:
                self._bind_group(group)

    def _groups(self) -> list[list[str]]:
        """Puts neighbours into one loop over the units where that is legal; a group begins with its sums."""
        s, groups = self.s, list[list[str]]()
        for name in self.names:
            begun = bool(groups) and any(one in self.sums for one in groups[-1])
            with s.attempt("one loop over the units") as tried:
                if name in self.sums or begun:
                    units_outside(s[name])
                if begun:
                    s.apply("merge_loops", first=around(s, groups[-1][0]), second=around(s, name))
            if tried and begun:
                groups[-1].append(name)
                continue
            if not tried and name in self.sums:
                units_outside(s[name])
            groups.append([name])
        return groups

    def _bind_group(self, group: list[str]) -> None:
        """A block of threads for each unit; where there are few of them, also for each sequence of the batch."""
        s, first = self.s, self.s[group[0]]
        sums = [name for name in group if name in self.sums]
        for name in sums:
            if {reader.name for reader in readers(s.func.body, block_named(s, name).writes[0].buffer)} <= set(group):
                s[name].set_scope("shared")
        units = s.handle(around(s, group[0]))
        if nest.extent_of(first, units) < FULL_ROUNDS * self.machine.multiprocessors:
            with s.attempt("blocks for the batch"):
                batch = inside(first, units)
                for name in group[1:]:
                    s.apply("merge_loops", first=batch.name, second=inside(s[name], units).name)
                first.bind(batch, "blockIdx.y")
        first.bind(units, "blockIdx.x")
        for name in sums:
            self._share_rows(s[name])
        rows: list[tuple[str, Var]] = []
        for name in group:
            if name not in self.sums:
                _add_row(s, name, rows)
        for name, row in rows:  # new values of a unit: a thread for each sequence of the batch
            _bind_at_most(s[name], row, self.threads, "threadIdx.x")

    def _share_rows(self, stage: Stage) -> None:
        """A row of threads for each sum."""
        k = _loop_of(stage, facts_of(stage.block).reduce[0])
        rows = [loop for loop in nest.free_loops(stage) if loop is not k]
        if rows:
            most = min(UNIT_THREADS, self.machine.block_threads) // self.threads
            _bind_at_most(stage, nest.fuse_all(stage, rows), most, "threadIdx.y")
        cross_threads(stage, self.threads)


def _is_sum(block: Block) -> bool:
    """Whether a block reduces what lies together in memory, enough of it for several threads."""
    facts = facts_of(block)
    return len(facts.reduce) == 1 and facts.depth >= UNIT_DEPTH and facts.store is not None and is_contiguous(facts)


def part_units(s: Schedule, name: str, always: bool = False) -> None:
    """Sums whose last axis has several parts (gates) of as many units as their readers have get an axis for the parts.

    With `always` also those of one part.

    The steps are no longer ordered for the sums themselves: the states that they read are.
    """
    facts = facts_of(block_named(s, name))
    for axis in facts.spatial:
        if axis.kind == "ordered":
            s.apply("release_axis", block=name, axis=axis.var.name)
    buffer, last = facts.target, facts.spatial[-1]
    units = {extent(facts_of(reader).spatial[-1]) for reader in readers(s.func.body, buffer)}
    count = units.pop() if len(units) == 1 else 0
    if count < 1 or extent(last) % count:
        raise ScheduleError("recurrent", name, "its readers do not take it in whole parts")
    if extent(last) == count and not always:
        return
    s.apply("split_axis", block=name, axis=last.var.name, factor=count)
    inputs = [f"i{d}" for d in range(len(buffer.shape))]
    cut = inputs[-1]
    s.apply(
        "transform_layout",
        buffer=buffer.name,
        inputs=inputs,
        outputs=[*inputs[:-1], f"{cut} // {count}", f"{cut} % {count}"],
    )


def _loops_over(stage: Stage, axis: Axis) -> list[Var]:
    """The loops around a stage that an axis uses, outermost first."""
    used = next(free_vars(value) for one, value in zip(stage.block.axes, stage.block.bindings) if one.var is axis.var)
    return [loop for loop in stage.loops if loop in used]


def _loop_of(stage: Stage, axis: Axis) -> Var:
    found = [loop for loop in _loops_over(stage, axis) if loop in nest.free_loops(stage)]
    if len(found) != 1:
        raise ScheduleError("recurrent", stage.name, f"the axis {axis.var.name} has no loop of its own")
    return found[0]


def around(s: Schedule, name: str) -> str:
    """The loop over the units around a block: that of the last axis which is not reduced."""
    return _loops_over(s[name], facts_of(s[name].block).spatial[-1])[0].name


def units_outside(stage: Stage) -> None:
    """The loop over the units outside the other loops of a block."""
    unit = _loop_of(stage, facts_of(stage.block).spatial[-1])
    others = [loop for loop in nest.free_loops(stage) if loop is not unit]
    if others:
        stage.reorder(unit, *others)


def inside(stage: Stage, loop: Var) -> Var:
    """The loop right inside another around a stage."""
    inner = stage.loops[[one.name for one in stage.loops].index(loop.name) + 1 :]
    if not inner:
        raise ScheduleError("recurrent", stage.name, f"there is no loop inside {loop.name}")
    return inner[0]


def _add_row(s: Schedule, name: str, rows: list[tuple[str, Var]]) -> None:
    """The loop over the batch around new values: that of the block before, so that one thread computes both, or new."""
    loops = nest.free_loops(s[name])
    if not loops:  # a block of threads has one sequence: its first thread computes this
        return
    row = nest.fuse_all(s[name], loops)
    if rows:
        with s.attempt("one loop over the batch") as tried:
            s.apply("merge_loops", first=rows[-1][1].name, second=row.name)
        if tried:
            return
    rows.append((name, row))


def _bind_at_most(stage: Stage, row: Var, most: int, tag: str) -> None:
    """A loop as threads, of a long one a part."""
    if nest.extent_of(stage, row) > most:
        _, row = stage.split(row, factor=most)
    stage.bind(row, tag)
