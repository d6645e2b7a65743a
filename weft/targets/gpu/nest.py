"""What schedules for threads are made of: the loops of a stage, dividing them among threads, whole vectors of elements.

Every schedule of this folder is written with these; they choose nothing but how many threads a plain block has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from weft.expr.nodes import Expr, Load, Select, Var, add, floordiv, floormod, index_expr, int_value, mul, sub
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import substitute, uses_any
from weft.loop.ir import Axis, For
from weft.loop.tree import axes_using, block_path
from weft.plan.contraction import load_bytes
from weft.schedule.facts import Facts, extent, facts_of
from weft.schedule.facts import extent_of as extent_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target, ThreadFacts
from weft.targets.gpu.model import BLOCK, LEAST_BLOCK


def threads_of(target: Target) -> ThreadFacts:
    """The facts about the target's threads."""
    assert target.threads is not None
    return target.threads


def power_of_two(number: int) -> int:
    """The greatest power of two that is not above a number."""
    return 1 << max(number, 1).bit_length() - 1


# ----------------------------------------------------------------------------------------------------------- finding


def free_loops(stage: Stage) -> list[Var]:
    """The loops directly around a stage that hold nothing else and are not bound, outermost first."""
    found: list[Var] = []
    path = block_path(stage.schedule.func, stage.name, "schedule")
    for parent, child in zip(reversed(path[:-1]), reversed(path[1:])):
        if not isinstance(parent, For) or parent.body is not child or parent.kind != "serial":
            break
        found.insert(0, parent.var)
    return found


def long_loops(stage: Stage) -> list[Var]:
    """Its free loops that run more than once."""
    return [loop for loop in free_loops(stage) if extent_of(stage, loop) > 1]


def spatial_loops(stage: Stage) -> list[Var]:
    """The free loops of a stage that only its spatial axes use, outermost first; those inside its steps in time."""
    return [loop for loop in loops_of_step(stage) if kinds_of(stage, loop) == {"spatial"}]


def reduce_loops(stage: Stage) -> list[Var]:
    """The free loops of a stage that its reduction axes use, outermost first."""
    return [loop for loop in free_loops(stage) if "reduce" in kinds_of(stage, loop)]


def kinds_of(stage: Stage, loop: Var) -> set[str]:
    """The kinds of the axes that a loop walks over."""
    return {kind for kind, axes in axes_using(stage.block, {loop}).items() if axes}


def loops_of_step(stage: Stage) -> list[Var]:
    """The free loops inside the innermost one that has to keep its order."""
    loops = free_loops(stage)
    ordered = [place for place, loop in enumerate(loops) if "ordered" in kinds_of(stage, loop)]
    return loops[ordered[-1] + 1 :] if ordered else loops


def in_memory_order(stage: Stage, loops: Sequence[Var]) -> list[Var]:
    """Loops reordered so that the innermost goes over neighbours in memory: of what a block writes, or reduces."""
    facts = facts_of(stage.block)
    main = max(reversed(facts.loads), key=load_bytes, default=None) if facts.is_reduction else None

    def step(loop: Var) -> float:
        axes = [axis for axis, binding in zip(stage.block.axes, stage.block.bindings) if uses_any(binding, {loop})]
        if len(axes) != 1:
            return math.inf
        found = facts.store_step(axes[0].var) if main is None else facts.step(main, axes[0].var)
        return math.inf if found is None else abs(found)

    ordered = sorted(loops, key=step, reverse=True)
    if ordered != list(loops):
        stage.reorder(*ordered)
    return ordered


# ---------------------------------------------------------------------------------------------------------- dividing


def fuse_all(stage: Stage, loops: Sequence[Var]) -> Var:
    """Several loops as one (one loop as itself)."""
    return stage.fuse(*loops) if len(loops) > 1 else loops[0]


def mark(stage: Stage, roles: Mapping[Var, str]) -> None:
    """What becomes of loops: a tag of blocks or threads, "unroll", "vectorize", or "" for one that stays a loop."""
    for loop, role in roles.items():
        if role in ("unroll", "vectorize"):
            getattr(stage, role)(loop)
        elif role:
            stage.bind(loop, role)


def arrange(stage: Stage, roles: Mapping[Var, str]) -> None:
    """Loops in an order, outermost first, and what becomes of each: `mark`."""
    stage.reorder(*roles)
    mark(stage, roles)


def unrolled(*loops: Var) -> dict[Var, str]:
    """Loops that are written out, for `arrange`."""
    return dict.fromkeys(loops, "unroll")


def bind_loop(stage: Stage, loop: Var, target: Target, threads: int | None = None) -> Var:
    """A loop as blocks of threads, of a number that fills the machine where none is given; gives that of a thread."""
    threads = threads or block_size(extent_of(stage, loop), threads_of(target))
    block, thread = stage.split(loop, factor=threads)
    mark(stage, {block: "blockIdx.x", thread: "threadIdx.x"})
    return thread


def threads_for(axes: Sequence[Axis], machine: ThreadFacts, lanes: int = 1) -> int:
    """Threads of a block for vectors along axes; one where an extent is known only when it runs: no test at the end."""
    known = all(int_value(axis.extent) is not None for axis in axes)
    return block_size(math.prod(extent(axis) for axis in axes) // lanes if known else 1, machine)


def block_size(count: int, machine: ThreadFacts) -> int:
    """Threads of a block when there is work for so many: fewer where the machine would not be filled otherwise."""
    threads = min(BLOCK, machine.block_threads)
    while threads > min(machine.warp, LEAST_BLOCK) and count < threads * machine.multiprocessors:
        threads //= 2
    return max(1, min(threads, count))


def fetch_together(stage: Stage, loops: Sequence[Var], rows: int, columns: int, lanes: int, warps: int = 1) -> Var:
    """Loops over a tile divided among rows and columns of threads, each of which takes vectors, one after another.

    With `warps`, there are as many of such rows and columns. Gives the loop over the vectors.
    """
    factors = [None, warps, rows, columns, lanes] if warps > 1 else [None, rows, columns, lanes]
    outer, *warp, row, column, vector = stage.split(fuse_all(stage, loops), factors=factors)
    last = "vectorize" if lanes > 1 else ""
    roles = {**dict.fromkeys(warp, "threadIdx.z"), row: "threadIdx.y", column: "threadIdx.x"}
    arrange(stage, {**roles, outer: "unroll", vector: last})
    return outer


def load_tile(stage: Stage, is_vector: bool = True) -> None:
    """A thread's tile of a few loads: written out, the innermost of them as vectors."""
    loops = long_loops(stage)
    mark(stage, unrolled(*loops) | dict.fromkeys(loops[-1:], "vectorize" if is_vector else "unroll"))


def attach(stage: Stage, reader: Stage, loop: Var, scope: str, exact: bool = True) -> None:
    """Computes a stage inside a loop of its reader, its result in another memory."""
    stage.set_scope(scope)
    stage.compute_at(reader, loop, exact=exact)


def fetch_ahead(stage: Stage, step: Var, stages: int, lag: int = 0, before: Sequence[str] = ()) -> None:
    """The next steps are fetched while this one is used; `lag` steps more may still read what they were given.

    `before` are buffers that are filled before the first step, and waited for with it.
    """
    if stages > 1:
        stage.annotate("pipeline_stages", stages, step)
        if lag:
            stage.annotate("pipeline_lag", lag, step)
        stage.annotate("async_copy", list(before) or True, step)


# ----------------------------------------------------------------------------------------------------------- vectors


def whole_vectors(facts: Facts, axis: Axis, loads: Iterable[Load], lanes: int) -> int:
    """How many of `lanes` neighbours along an axis a thread can load at a time: whole vectors, from a multiple on."""
    found = list(loads)
    while lanes > 1 and (extent(axis) % lanes or not all(_is_aligned(facts, load, axis, lanes) for load in found)):
        lanes //= 2
    return max(lanes, 1)


def _is_aligned(facts: Facts, load: Load, axis: Axis, lanes: int) -> bool:
    """Whether a load starts at a multiple of `lanes` elements wherever the axis does."""
    place = floormod(_place(load), index_expr(lanes))
    return int_value(_in_vectors(facts, place, axis, lanes, index_expr(0))) == 0


def _is_together(facts: Facts, load: Load, axis: Axis, lanes: int) -> bool:
    """Whether `lanes` neighbours along an axis, from a multiple on, are neighbours in memory."""
    lane, place = Var("lane"), _place(load)
    first = substitute(place, {axis.var: mul(floordiv(axis.var, index_expr(lanes)), index_expr(lanes))})
    return structural_equal(_in_vectors(facts, sub(place, first), axis, lanes, lane), lane)


def _place(load: Load) -> Expr:
    """Where the element that is loaded stands in its buffer."""
    flat: Expr = index_expr(0)
    stride: Expr = index_expr(1)
    for size, index in zip(reversed(load.buffer.shape), reversed(load.indices)):
        flat = add(flat, mul(index, stride))
        stride = mul(stride, size)
    return flat


def _in_vectors(facts: Facts, e: Expr, axis: Axis, lanes: int, lane: Expr) -> Expr:
    """An expression at one lane of some vector along an axis."""
    group = Var("group")
    ranges = facts.ranges.with_loop(group, index_expr(max(1, extent(axis) // lanes)))
    if isinstance(lane, Var):
        ranges = ranges.with_loop(lane, index_expr(lanes))
    return simplify(substitute(e, {axis.var: add(mul(group, index_expr(lanes)), lane)}), ranges)


def fetch_lanes(facts: Facts, length: int, target: Target) -> int:
    """Elements that a thread copies at a time of rows of a length, where no edge test cuts a vector."""
    store = facts.store
    if store is None or not facts.spatial:
        return 1
    last = facts.spatial[-1]
    value, tests = store.value, []
    while isinstance(value, Select):
        tests += [value.condition] if uses_any(value.condition, {last.var}) else []
        value = value.then
    if not isinstance(value, Load):
        return 1
    lanes = whole_vectors(facts, last, [value], threads_of(target).vector_bytes // value.buffer.dtype.bytes)
    while lanes > 1 and (
        length % lanes
        or not _is_together(facts, value, last, lanes)
        or not all(_is_common(facts, test, last, lanes) for test in tests)
    ):
        lanes //= 2
    return lanes


def _is_common(facts: Facts, test: Expr, axis: Axis, lanes: int) -> bool:
    """Whether a test has the same result for `lanes` neighbours along an axis, from a multiple on."""
    lane = Var("lane")
    return not uses_any(_in_vectors(facts, test, axis, lanes, lane), {lane})
