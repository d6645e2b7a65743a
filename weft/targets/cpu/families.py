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
from weft.loop.tree import block_path, blocks_in, loops_on, reduction_loops
from weft.ops.bits import STAGES as BITS
from weft.plan.inline import Inlining
from weft.plan.phases import split_phases
from weft.plan.planner import Families, Match, Unit
from weft.schedule.facts import Facts, block_named, extent, extent_of, facts_of, feeding, names_of, work_around
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import bits
from weft.targets.cpu.default_loops import attach_producers, parallelize, schedule_elementwise, schedule_reduction
from weft.targets.cpu.model import LEAST_PARALLEL_WORK
from weft.targets.cpu.sketches import (
    attention,
    conv,
    conv_narrow,
    conv_rows,
    few_bits,
    matmul,
    nest,
    register_tile,
    winograd,
)
from weft.targets.cpu.sketches.product import step_product
from weft.targets.cpu.sketches.recurrent import schedule_step, step_loop


def _first(schedule: Schedule, target: Target, done: set[str], constants: Collection[Buffer]) -> Collection[Buffer]:
    """Products of bits are counted; recurrences whose steps are neighbours in memory run along it; phases are split."""
    split_phases(schedule)
    done |= bits.schedule_operator(schedule, target)
    for name in names_of(schedule):
        if _run_along_memory(schedule, name, target):
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
    alone = {n: work_around(s, n) for n in feeding(s, name) if n not in done}
    outer, total = list(stage.axis), facts.points * (facts.depth if facts.is_reduction else max(1, len(facts.loads)))
    if not facts.is_reduction and not _needs_all_rows(facts, [facts_of(block_named(s, n)) for n in alone]):
        outer = outer[:-1]
    # A loop that runs once would keep its stages, and the threads, together for nothing.
    counts = accumulate((extent_of(stage, loop) for loop in outer), operator.mul)
    candidates = [loop for loop, count in reversed(list(zip(outer, counts))) if count > 1]
    attach_producers(s, name, candidates, target, done)
    attached = [work for n, work in alone.items() if n in done]
    if not facts.is_reduction:
        schedule_elementwise(stage, target, outer=not attached)
        if attached:
            parallelize(stage, _loops_with_others(stage), max(total, *attached), target)
    elif attached or not _reduce_in_parts(s, name, target):
        schedule_reduction(stage, target)
        parallelize(stage, _leading_elements(stage), total, target)
    return True


def _leading_elements(stage: Stage) -> list[Var]:
    """The loops around a stage before the first that reduces, or that became lanes."""
    path = loops_on(block_path(stage.schedule.func, stage.name, "schedule"))
    reduced = reduction_loops(stage.block, path)
    return [loop.var for loop in takewhile(lambda loop: loop.kind == "serial" and loop.var not in reduced, path)]


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


def _loops_with_others(stage: Stage) -> list[Var]:
    """The leading loops of a block in which another stage is computed too."""
    path = loops_on(block_path(stage.schedule.func, stage.name, "schedule"))
    return [s.var for s in takewhile(lambda loop: loop.kind == "serial" and len(blocks_in(loop.body)) > 1, path)]


def _needs_all_rows(facts: Facts, earlier: list[Facts]) -> bool:
    """Whether the stages before an elementwise block reduce, for each of its elements, everything it needs."""
    for maker in earlier:
        loads = [load for load in facts.loads if load.buffer is maker.target]
        along = facts.spatial and any(load.indices and load.indices[-1] is facts.spatial[-1].var for load in loads)
        # Where neighbours of the result stand side by side in what is reduced, lanes run along them instead.
        beside = maker.spatial and any(maker.step(load, maker.spatial[-1].var) == 1 for load in maker.loads)
        if maker.is_reduction and maker.depth >= 16 and along and not beside:
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
    elif facts.spatial[-1].kind == "spatial" and extent(facts.spatial[-1]) > 1:
        with s.attempt("lanes of a step"):
            last = step_loop(s[name], facts.spatial[-1].var)
            nest.vectorize(s[name], last, target.lanes(facts.target.dtype), unrolled=False)
    return True


def _run_along_memory(s: Schedule, name: str, target: Target) -> bool:
    """Turns a recurrence whose steps stand side by side in memory, such as the running sums of rows, and the layout of
    its states; False (nothing changed) for any other block.

        for t: for i: total[t, i] = total[t - 1, i] + in[i, t]    ->    for i: for t: total[i, t] = total[i, t - 1] + …

    Lanes along i would gather from as many rows; each row alone is one walk through memory, and what a step takes from
    the one before it stays in a register. Threads divide the rows.
    """
    facts = facts_of(block_named(s, name))
    found = _steps_axis(s, facts)
    if found is None:
        return False
    with s.attempt("along memory") as tried:
        nest.store_last(s[name], found)
        steps, *rows = s[name].loops
        s[name].reorder(*rows, steps)
        parallelize(s[name], rows, facts.points, target)
    return bool(tried)


def _steps_axis(s: Schedule, facts: Facts) -> int | None:
    """The dimension of the states that counts the steps, if the block is a recurrence that reads along them."""
    ordered = [axis for axis in facts.block.axes if axis.kind == "ordered"]
    if len(ordered) != 1 or facts.store is None or facts.reduce or facts.target in s.func.buffers:
        return None
    if len(facts.spatial) < 2 or len(facts.spatial) != len(s[facts.block.name].loops):
        return None
    step, last = ordered[0].var, facts.spatial[-1]
    along = [facts.step(load, step) for load in facts.loads]
    across = [facts.step(load, last.var) for load in facts.loads]
    walks = any(one in (-1, 1) for one in along) and all(one in (-1, 0, 1) for one in along)
    if not walks or all(one in (0, 1) for one in across) or extent(last) < 2 or facts.spatial[0].var is not step:
        return None
    found = [at for at, low in enumerate(facts.block.writes[0].mins) if low is step]
    return found[0] if len(found) == 1 else None


CONTRACTIONS: tuple[Match, ...] = (
    matmul.match_tiles, matmul.match_squares, matmul.match_dots, matmul.match, conv_narrow.match_tiles,
    conv_narrow.match_squares, conv_narrow.match_dots, conv.match, conv_rows.match_window, conv_rows.match,
    register_tile.match, register_tile.match_grouped,
)  # fmt: skip
FAMILIES = Families(
    # Stages of programs that a sketch takes as a whole are not inlined into their readers before it is asked.
    inline=Inlining(attention.STAGES | few_bits.STAGES | BITS | winograd.STAGES, twice=6, readers=2),
    whole=(winograd.match, attention.match_tiles, attention.match, few_bits.match),
    contractions=CONTRACTIONS,
    rest=(_step_of_recurrence, _rows),
    plain=_plain,
    first=_first,
    reads_once=_reads_rows_once,
)
"""What a program for the CPU is scheduled with."""
default_schedule = FAMILIES.schedule
