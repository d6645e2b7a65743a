"""Loops of blocks that compute each element by itself: vectors of neighbours, a thread for each, enough blocks.

out[i, j] = f(in[i, j])         all axes fused; a thread takes a vector, several where there are very many
out[i, j] = in[j, i]            a tile goes through shared memory, so that reads and writes both run along rows
anything else                   axes fused and divided among threads: `bind_flat` is legal for every block
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.expr.nodes import Expr, Load, Var, add, index_expr, int_value, mul
from weft.expr.simplify import simplify
from weft.expr.visit import substitute
from weft.loop.ir import For
from weft.loop.tree import axes_using, block_path, loops_on
from weft.schedule.facts import Facts, extent, facts_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target, ThreadFacts

BLOCK = 256
"""Threads of a block where nothing speaks for another number."""
LEAST_BLOCK = 32
TILE = 32
"""Rows and columns of the tile through which a transposition goes."""


def threads_of(target: Target) -> ThreadFacts:
    """The facts about the target's threads."""
    assert target.threads is not None
    return target.threads


def loop_extents(stage: Stage) -> dict[str, int]:
    """The constant extents of the loops around a stage, outermost first."""
    loops = loops_on(block_path(stage.schedule.func, stage.name, "schedule"))
    return {loop.var.name: int_value(loop.extent) or 1 for loop in loops}


def free_loops(stage: Stage) -> list[For]:
    """The loops directly around a stage that hold nothing else and are not bound, outermost first."""
    found: list[For] = []
    path = block_path(stage.schedule.func, stage.name, "schedule")
    for parent, child in zip(reversed(path[:-1]), reversed(path[1:])):
        if not isinstance(parent, For) or parent.body is not child or parent.kind != "serial":
            break
        found.insert(0, parent)
    return found


def spatial_loops(stage: Stage) -> list[Var]:
    """The free loops of a stage that only its spatial axes use, outermost first; those inside its steps in time."""
    return [loop.var for loop in _loops_of_step(stage) if _kinds(stage, loop) == {"spatial"}]


def _kinds(stage: Stage, loop: For) -> set[str]:
    """The kinds of the axes that a loop walks over."""
    return {kind for kind, axes in axes_using(stage.block, {loop.var}).items() if axes}


def _loops_of_step(stage: Stage) -> list[For]:
    """The free loops inside the innermost one that has to keep its order."""
    loops = free_loops(stage)
    ordered = [place for place, loop in enumerate(loops) if "ordered" in _kinds(stage, loop)]
    return loops[ordered[-1] + 1 :] if ordered else loops


def fuse_all(stage: Stage, loops: Sequence[Var]) -> Var:
    """Several loops as one (one loop as itself)."""
    return stage.fuse(*loops) if len(loops) > 1 else loops[0]


def fetch_together(stage: Stage, loops: Sequence[Var], rows: int, columns: int, lanes: int) -> None:
    """Loops over a tile divided among rows and columns of threads, each of which takes vectors, one after another."""
    flat = fuse_all(stage, loops)
    outer, thread_y, thread_x, vector = stage.split(flat, factors=[None, rows, columns, lanes])
    stage.reorder(thread_y, thread_x, outer, vector)
    stage.bind(thread_y, "threadIdx.y")
    stage.bind(thread_x, "threadIdx.x")
    stage.unroll(outer)
    if lanes > 1:
        stage.vectorize(vector)


def bind_flat(stage: Stage, target: Target) -> bool:
    """Divides all that may run at once among blocks and threads; False where nothing may. Legal for every block."""
    outside = _steps_inside(stage)
    if outside:
        return bind_loop(stage, fuse_all(stage, outside), target)
    loops = spatial_loops(stage)
    if not loops:
        return False
    inside = [loop.var for loop in _loops_of_step(stage) if loop.var not in loops]
    if inside:
        stage.reorder(*loops, *inside)
    return bind_loop(stage, fuse_all(stage, loops), target)


def _steps_inside(stage: Stage) -> list[Var]:
    """Puts the steps of a recurrence whose elements do not meet (a running sum) inside the loops over the elements.

    Each thread then runs all steps of its element, in one kernel. Gives the loops over the elements, if that was done.
    """
    loops = free_loops(stage)
    steps = [loop.var for loop in loops if "ordered" in _kinds(stage, loop)]
    others = [loop.var for loop in loops if _kinds(stage, loop) == {"spatial"}]
    if not steps or not others or len(steps) + len(others) != len(loops):
        return []
    with stage.schedule.attempt("steps inside") as tried:  # refused where a step needs other elements of the one before
        stage.reorder(*others, *steps)
    return others if tried else []


def bind_loop(stage: Stage, loop: Var, target: Target) -> bool:
    """A loop as blocks of threads."""
    facts = threads_of(target)
    length = loop_extents(stage)[loop.name]
    threads = block_size(length, facts)
    outer, inner = stage.split(loop, factor=threads)
    stage.bind(outer, "blockIdx.x")
    stage.bind(inner, "threadIdx.x")
    return True


def block_size(count: int, facts: ThreadFacts) -> int:
    """Threads of a block when there is work for so many: fewer where the machine would not be filled otherwise."""
    threads = min(BLOCK, facts.block_threads)
    while threads > min(facts.warp, LEAST_BLOCK) and count < threads * facts.multiprocessors:
        threads //= 2
    return max(1, min(threads, count))


def schedule_elementwise(stage: Stage, target: Target) -> bool:
    """A block without reductions, standing alone."""
    facts = facts_of(stage.block)
    loops = spatial_loops(stage)
    if not loops or facts.is_ordered or facts.is_reduction or len(loops) != len(facts.spatial):
        return bind_flat(stage, target)
    turned = _turned_load(facts)
    if turned is not None and _through_shared(stage, facts, *turned, target):
        return True
    lanes = vector_lanes(facts, target)
    total = facts.points
    machine = threads_of(target)
    while lanes > 1 and total // lanes < 2 * machine.warp * machine.multiprocessors:
        lanes //= 2
    if lanes == 1:
        return bind_flat(stage, target)
    rest, vector = stage.split(loops[-1], factor=lanes)
    flat = fuse_all(stage, [*loops[:-1], rest])
    _bind_with_copies(stage, flat, total // lanes, facts, target)
    stage.vectorize(vector)
    return True


def _bind_with_copies(stage: Stage, flat: Var, count: int, facts: Facts, target: Target) -> None:
    """Blocks, several vectors a thread where there are very many of them, threads."""
    machine = threads_of(target)
    copies = 4
    while copies > 1 and (
        count % (BLOCK * copies)
        or count < 8 * copies * machine.multiprocessor_threads * machine.multiprocessors // 4
        or len(facts.loads) > 3
    ):
        copies //= 2
    if copies == 1:
        bind_loop(stage, flat, target)
        return
    block, copy, thread = stage.split(flat, factors=[None, copies, min(BLOCK, machine.block_threads)])
    stage.reorder(block, thread, copy)
    stage.bind(block, "blockIdx.x")
    stage.bind(thread, "threadIdx.x")
    stage.unroll(copy)


def vector_lanes(facts: Facts, target: Target) -> int:
    """Elements that one thread loads or stores at a time along the last axis: no edge test may cut a vector."""
    if not facts.spatial or facts.store is None:
        return 1
    last = facts.spatial[-1]
    if facts.store_step(last.var) != 1:
        return 1
    kinds = [facts.target.dtype]
    for load in facts.loads:
        step = facts.step(load, last.var)
        if step == 1:
            kinds.append(load.buffer.dtype)
        elif step != 0:
            return 1
    lanes = min(threads_of(target).vector_bytes // max(kind.bytes for kind in kinds), 8)
    wide = [load for load in facts.loads if facts.step(load, last.var) == 1]
    while lanes > 1 and (extent(last) % lanes or any(_crosses(facts, load, lanes) for load in wide)):
        lanes //= 2
    return max(lanes, 1)


def _crosses(facts: Facts, load: Load, lanes: int) -> bool:
    """Whether a vector of a load may start where it is not aligned: some other axis moves it by less than a vector."""
    for axis in facts.spatial[:-1]:
        step = facts.step(load, axis.var)
        if step is None or step % lanes:
            return True
    return not _starts_aligned(facts, load, lanes)


def _starts_aligned(facts: Facts, load: Load, lanes: int) -> bool:
    zero: dict[Var, Expr] = {axis.var: index_expr(0) for axis in facts.block.axes}
    start = int_value(simplify(flat_index(load, zero)))
    return start is not None and start % lanes == 0


def flat_index(load: Load, at: Mapping[Var, Expr]) -> Expr:
    """The element of a buffer's memory that a load reads where variables have other values."""
    flat: Expr = index_expr(0)
    stride: Expr = index_expr(1)
    for size, index in zip(reversed(load.buffer.shape), reversed(load.indices)):
        flat = add(flat, mul(substitute(index, at), stride))
        stride = mul(stride, size)
    return flat


# ------------------------------------------------------------------------------------------------------ transposition


def _turned_load(facts: Facts) -> tuple[Load, int] | None:
    """A load of a whole tensor whose neighbours lie along another axis than the last, and the number of that axis."""
    if facts.store is None or len(facts.spatial) < 2:
        return None
    last = facts.spatial[-1]
    for load in facts.loads:
        if facts.step(load, last.var) in (0, 1) or not all(isinstance(i, Var) for i in load.indices):
            continue
        if len(set(load.indices)) != len(load.indices) or not load.indices:
            continue
        for position, axis in enumerate(facts.spatial[:-1]):
            if load.indices[-1] is axis.var and extent(axis) >= TILE // 2 and extent(last) >= TILE // 2:
                return load, position
    return None


def _through_shared(stage: Stage, facts: Facts, load: Load, position: int, target: Target) -> bool:
    """A tile is read along the input's rows into padded shared memory, and written along the output's."""
    s, name = stage.schedule, stage.name
    machine = threads_of(target)
    rows = max(1, min(BLOCK, machine.block_threads) // TILE)
    with s.attempt("squares") as tried:
        loops = spatial_loops(stage)
        other, last = loops[position], loops[-1]
        tile = s.cache_read(load.buffer, "shared", [name])
        other_block, other_in = s[name].split(other, factor=TILE)
        last_block, last_in = s[name].split(last, factor=TILE)
        outer = [loop for loop in loops[:-1] if loop is not other]
        s[name].reorder(*outer, other_block, last_block, other_in, last_in)
        grid = fuse_all(s[name], [*outer, other_block, last_block])
        s[name].bind(grid, "blockIdx.x")
        s[tile].compute_at(s[name], grid)
        step, thread_row = s[name].split(other_in, factor=rows)
        s[name].reorder(thread_row, last_in, step)
        s[name].bind(thread_row, "threadIdx.y")
        s[name].bind(last_in, "threadIdx.x")
        s[name].unroll(step)
        _fetch_tile(s[tile], rows)
        s[tile].storage_align(_row_dimension(load, facts), 32, 1)
    return bool(tried)


def _row_dimension(load: Load, facts: Facts) -> int:
    """The dimension of the tile whose stride is padded: that of the output's last axis."""
    return [i for i, index in enumerate(load.indices) if index is facts.spatial[-1].var][0]


def _fetch_tile(tile: Stage, rows: int) -> None:
    long = [loop.var for loop in free_loops(tile) if (int_value(loop.extent) or 1) > 1]
    *others, column = long
    row = fuse_all(tile, others)
    step, thread = tile.split(row, factor=rows)
    tile.reorder(thread, column, step)
    tile.bind(thread, "threadIdx.y")
    tile.bind(column, "threadIdx.x")
    tile.unroll(step)
