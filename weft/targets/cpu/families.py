"""What the CPU offers the planner: sketches of contractions, and ways for everything else.

producers that cost little        inlined into their readers
matrix products, convolutions     a register tile, its operand packed, the epilogue on the tile (`sketches/`)
rows (softmax, layer norm)        every stage computed inside the loop over rows of the last one
reductions                        partial results in lanes, or lanes along the elements
recurrences                       the steps in order, lanes and threads inside each
the rest                          lanes along the innermost axis, threads along the outer ones
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from itertools import accumulate, takewhile

from weft.expr.nodes import Buffer, Var, int_value
from weft.expr.visit import uses_any
from weft.loop.ir import For
from weft.loop.tree import block_path, blocks_in, loops_on
from weft.plan.inline import Inlining
from weft.plan.phases import split_phases
from weft.plan.planner import Families, Unit, plan
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding, names_of, work_around
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import bits
from weft.targets.cpu.default_attach import attach_producers
from weft.targets.cpu.default_loops import extent_of, parallelize, schedule_elementwise, schedule_reduction
from weft.targets.cpu.default_recurrence import run_along_memory
from weft.targets.cpu.model import LEAST_PARALLEL_WORK
from weft.targets.cpu.sketches import CONTRACTIONS, KEPT, WHOLE, nest
from weft.targets.cpu.sketches.product import step_product
from weft.targets.cpu.sketches.recurrent import schedule_step, step_loop


def default_schedule(schedule: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Schedules a program in place. `constants` are parameters that never change: copies of them may be made once."""
    plan(schedule, target, FAMILIES, constants)


def _first(schedule: Schedule, target: Target, done: set[str], constants: Collection[Buffer]) -> Collection[Buffer]:
    """Products of bits are counted; recurrences whose steps are neighbours in memory run along it; phases are split."""
    split_phases(schedule)
    done |= bits.schedule_operator(schedule, target)
    for name in names_of(schedule):
        if run_along_memory(schedule, name, target):
            done.add(name)
    return ()


# ---------------------------------------------------------------------------------------- rows, reductions, the rest


def _reads_rows_once(facts: Facts, constants: Collection[Buffer]) -> bool:
    """Whether a product meets each element of an operand once, along its rows: packing would be all of the work."""
    axes = [axis for axis in facts.block.axes if extent(axis) > 1]
    for load in facts.loads:
        elements = math.prod(int_value(size) or 1 for size in load.buffer.shape)  # windows overlap: those read it again
        once = all(facts.step(load, axis.var) != 0 for axis in axes) and facts.points * facts.depth <= elements
        if once and load.buffer not in constants and facts.step(load, facts.reduce[-1].var) == 1:
            return extent(facts.reduce[-1]) >= 16
    return False


def _rows(unit: Unit) -> bool:
    """A block with the stages before it, as far as they fit into its outer loops."""
    s, facts, target, done = unit.schedule, unit.facts, unit.target, unit.done
    name = facts.block.name
    stage = s[name]
    spatial = list(stage.axis)
    earlier = [n for n in feeding(s, name) if n not in done]
    if facts.is_reduction:
        total = facts.points * facts.depth
        outer = spatial
    else:
        total = facts.points * max(1, len(facts.loads))
        outer = spatial[:-1] if not _needs_all_rows(s, name, earlier) else spatial
    if not earlier and not facts.is_reduction:
        schedule_elementwise(stage, target)
        return True
    alone = {n: work_around(s, n) for n in earlier}
    # A loop that runs once would keep its stages, and the threads, together for nothing.
    counts = accumulate((extent_of(stage, loop) for loop in outer), operator.mul)
    candidates = [loop for loop, count in reversed(list(zip(outer, counts))) if count > 1]
    attach_producers(s, name, candidates, target, done)
    if facts.is_reduction and not any(n in done for n in earlier) and _reduce_in_parts(s, name, target):
        return True
    if facts.is_reduction:
        schedule_reduction(s[name], target)
        parallelize(s[name], _leading_elements(s[name]), total, target)
        return True
    attached = any(len(loops_on(block_path(s.func, n, "schedule"))) > 0 and n in done for n in earlier)
    if not attached:
        schedule_elementwise(s[name], target)
        return True
    schedule_elementwise(s[name], target, outer=False)
    inside = _outermost_with(s, name, earlier)
    parallelize(s[name], inside, max([total, *(work for n, work in alone.items() if n in done)]), target)
    return True


def _leading_elements(stage: Stage) -> list[Var]:
    """The loops around a stage before the first that reduces, or that became lanes."""
    block = stage.block
    reduced = [binding for axis, binding in zip(block.axes, block.bindings) if axis.kind == "reduce"]

    def is_free(loop: For) -> bool:
        return loop.kind == "serial" and not any(uses_any(binding, {loop.var}) for binding in reduced)

    path = loops_on(block_path(stage.schedule.func, stage.name, "schedule"))
    return [loop.var for loop in takewhile(is_free, path)]


def _reduce_in_parts(s: Schedule, name: str, target: Target) -> bool:
    """A long reduction into few elements: each thread reduces parts of it, and the parts' results come last."""
    facts = facts_of(block_named(s, name))
    fewest = 2 * target.cores
    if facts.points >= fewest or facts.depth * facts.points < 2 * LEAST_PARALLEL_WORK or target.cores < 2:
        return False
    counts = {axis.var: _parts(extent(axis), fewest) for axis in facts.reduce}
    axis = next((axis for axis in facts.reduce if counts[axis.var]), None)
    loops = dict(zip([axis.var for axis in facts.reduce], s[name].reduce_axis))
    if axis is None or len(loops) != len(facts.reduce):
        return False
    with s.attempt("reduction in parts") as tried:
        part, inside = s[name].split(loops[axis.var], factor=extent(axis) // counts[axis.var])
        s[name].reorder(part, *(inside if loop is loops[axis.var] else loop for loop in loops.values()))
        partial = s.rfactor(name, part)
        schedule_reduction(s[partial.name], target)
        across = [loop for loop in s[partial.name].loops if loop.name == part.name]
        parallelize(s[partial.name], across, facts.depth, target)
        schedule_reduction(s[name], target)
    return bool(tried)


def _parts(length: int, fewest: int) -> int:
    """Into how many equal parts an axis is cut, at least so many; 0 where it cannot be."""
    return next((count for count in range(fewest, 8 * fewest) if length % count == 0), 0)


def _outermost_with(s: Schedule, name: str, earlier: list[str]) -> list[Var]:
    """The leading loops of a block down to the innermost in which another stage is computed."""
    path = loops_on(block_path(s.func, name, "schedule"))
    deepest = 0
    for position, loop in enumerate(path):
        if len(blocks_in(loop.body)) > 1:
            deepest = position + 1
    return [loop.var for loop in takewhile(lambda loop: loop.kind == "serial", path[:deepest])]


def _needs_all_rows(s: Schedule, name: str, earlier: list[str]) -> bool:
    """Whether the stages before an elementwise block reduce, for each of its elements, everything it needs."""
    facts = facts_of(block_named(s, name))
    if not facts.spatial:
        return False
    last = facts.spatial[-1].var
    for other in earlier:
        maker = facts_of(block_named(s, other))
        if not maker.is_reduction:
            continue
        loads = [load for load in facts.loads if load.buffer is maker.target]
        if any(load.indices and load.indices[-1] is last for load in loads) and maker.depth >= 16:
            # Where neighbours of the result stand side by side in what is reduced, lanes run along them instead.
            inner = maker.spatial[-1].var if maker.spatial else None
            if inner is None or not any(maker.step(load, inner) == 1 for load in maker.loads):
                return True
    return False


def _plain(unit: Unit) -> None:
    """The least that always works for a block on its own."""
    stage = unit.schedule[unit.facts.block.name]
    with unit.schedule.attempt(f"plain {stage.name}"):
        if unit.facts.is_reduction:
            schedule_reduction(stage, unit.target)
        else:
            schedule_elementwise(stage, unit.target)


def _step_of_recurrence(unit: Unit) -> bool:
    """A block in a time loop: the steps stay in order, lanes (and threads, where it is worth it) run inside each."""
    s, facts, target, constants, done = unit.schedule, unit.facts, unit.target, unit.constants, unit.done
    if not facts.is_ordered:
        return False
    name = facts.block.name
    product = step_product(facts, constants)
    if product is not None:
        with s.attempt("recurrent product", done) as tried:
            done.update(schedule_step(s, product, target, constants))
        if tried:
            return True
    if facts.is_reduction:
        schedule_reduction(s[name], target)
    else:
        _lanes_inside(s, facts, target)
    return True


def _lanes_inside(s: Schedule, facts: Facts, target: Target) -> None:
    stage = s[facts.block.name]
    if not facts.spatial or facts.spatial[-1].kind != "spatial":
        return
    if extent(facts.spatial[-1]) > 1:
        with s.attempt("lanes of a step"):
            last = step_loop(stage, facts.spatial[-1].var)
            nest.vectorize(stage, last, target.lanes(facts.target.dtype), unrolled=False)


FAMILIES = Families(
    inline=Inlining(KEPT, twice=6, readers=2),
    whole=WHOLE,
    contractions=CONTRACTIONS,
    rest=(_step_of_recurrence, _rows),
    plain=_plain,
    first=_first,
    reads_once=_reads_rows_once,
)
"""What a program for the CPU is scheduled with."""
