"""Loops of plain reductions, and of stages that share rows (softmax, layer norm).

sum over what lies together     threads of a block share a row: each adds up a part, the parts meet in shared memory
sum over what lies far apart    a thread for each element; where there are few of them, rows of threads share it
few elements, much to add       parts in blocks of their own first, then the sum of the parts: two kernels
softmax, layer norm, …          a block (or a thread) for each row computes every stage of it; the row is read once
"""

from __future__ import annotations

from weft.expr.nodes import Buffer, Var, int_value
from weft.plan.contraction import producers_of_epilogue
from weft.schedule.facts import Facts, block_named, extent, facts_of, names_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.gpu.columns import choose_columns, main_load, share_columns
from weft.targets.gpu.elementwise import bind_flat, bind_loop, free_loops, fuse_all, spatial_loops, threads_of
from weft.targets.gpu.sharing import cross_threads, power_of_two, reduce_loops

LEAST_SHARED_ROW = 32
"""From so many values on, a row is worth several threads."""


def is_contiguous(facts: Facts) -> bool:
    """Whether neighbours in memory are reduced into one element, in the largest of what is read."""
    main = main_load(facts)
    if main is None or any(facts.step(main, axis.var) == 1 for axis in facts.spatial if extent(axis) > 1):
        return False
    return any(facts.step(main, axis.var) == 1 for axis in facts.reduce if extent(axis) > 1)


def schedule_reduction(stage: Stage, target: Target) -> bool:
    """A reduction that stands alone."""
    s, name = stage.schedule, stage.name
    facts = facts_of(stage.block)
    if facts.is_ordered or not reduce_loops(stage):
        return bind_flat(stage, target)
    attempts = [_rows, _columns] if is_contiguous(facts) else [_columns]
    for attempt in attempts:
        with s.attempt(f"reduction {attempt.__name__.strip('_')}") as tried:
            if not attempt(s[name], facts, target):
                tried.refuse("it does not have the form")
        if tried:
            return True
    return bind_flat(s[name], target)


def row_threads(length: int, rows: int, target: Target) -> tuple[int, int]:
    """Threads for each row, and rows for each block."""
    facts = threads_of(target)
    threads = max(min(facts.warp, 32), power_of_two(length // 8))
    if rows < 2 * facts.multiprocessors:
        threads = max(min(facts.warp, 32), power_of_two(length // 2))
    most = 1024 if rows < facts.multiprocessors else 512 if length >= 4096 else 256
    threads = min(threads, most, facts.block_threads)
    together = max(1, min(128 // threads, rows // (2 * facts.multiprocessors)))
    return threads, power_of_two(together)


def _rows(stage: Stage, facts: Facts, target: Target) -> bool:
    """A row of threads for each element."""
    if facts.depth < LEAST_SHARED_ROW:
        return False
    s, name = stage.schedule, stage.name
    parts = _parts(facts, target)
    if parts > 1:
        partial = split_reduction(stage, parts)
        schedule_reduction(s[partial.name], target)
        schedule_reduction(s[name], target)
        return True
    spatial = spatial_loops(stage)
    threads, together = row_threads(facts.depth, facts.points, target)
    if spatial:
        stage.reorder(*spatial, *reduce_loops(stage))
        bind_rows(stage, fuse_all(stage, spatial), together)
    lanes = row_lanes(facts, target) if facts.depth >= 4 * threads else 1
    cross_threads(stage, _threads_with(lanes, threads, facts), lanes=lanes)
    return True


def bind_rows(stage: Stage, row: Var, together: int) -> Var:
    """A block for each row, or for several of them; gives the innermost loop that is one row."""
    if together == 1:
        stage.bind(row, "blockIdx.x")
        return row
    block, inner = stage.split(row, factor=together)
    stage.bind(block, "blockIdx.x")
    stage.bind(inner, "threadIdx.y")
    return inner


def _parts(facts: Facts, target: Target) -> int:
    """Into how many parts a long reduction of few elements is cut, so that there are enough blocks."""
    machine = threads_of(target)
    enough = 2 * machine.multiprocessors
    if facts.points * 2 > machine.multiprocessors or facts.depth < 16 * 1024:
        return 1
    wanted = power_of_two(max(1, min(enough // facts.points, facts.depth // 4096)))
    return wanted if facts.store is not None else 1


def split_reduction(stage: Stage, parts: int) -> Stage:
    """A reduction as parts in global memory, each computed on its own, and the reduction of the parts."""
    loops = reduce_loops(stage)
    flat = fuse_all(stage, loops)
    outer, _ = stage.split(flat, nparts=parts)
    return stage.schedule.rfactor(stage.name, outer)


def row_lanes(facts: Facts, target: Target) -> int:
    """Neighbours that a thread loads at a time along a reduction: whole vectors, each row from a multiple on."""
    if not facts.reduce:
        return 1
    last = facts.reduce[-1]
    steps = {load.buffer: facts.step(load, last.var) for load in facts.loads}
    wide = [buffer for buffer, step in steps.items() if step == 1]
    if not wide or any(len([i for i in load.indices if not isinstance(i, Var)]) for load in facts.loads):
        return 1
    lanes = threads_of(target).vector_bytes // max(buffer.dtype.bytes for buffer in wide)
    while lanes > 1 and (extent(last) % lanes or any(_last_size(buffer) % lanes for buffer in wide)):
        lanes //= 2
    return max(1, lanes)


def _last_size(buffer: Buffer) -> int:
    return int_value(buffer.shape[-1]) or 1


def _threads_with(lanes: int, threads: int, facts: Facts) -> int:
    """Threads of a row when each loads vectors: every one has at least four to load."""
    return max(min(32, threads), min(threads, power_of_two(facts.depth // (4 * lanes)))) if lanes > 1 else threads


def _schedule_reduction_of(epilogue: Stage, maker: str, target: Target) -> bool:
    """A block that takes a long reduction at its own elements: both in one kernel."""
    s, name = epilogue.schedule, epilogue.name
    facts = facts_of(s[maker].block)
    if facts.store is None or _parts(facts, target) > 1:
        return False
    machine = threads_of(target)
    columns = None if is_contiguous(facts) else choose_columns(facts, target)
    flat = fuse_all(epilogue, spatial_loops(epilogue))
    if columns is not None:
        place = _bind_columns(epilogue, flat, [None, columns.across, columns.lanes])
        epilogue.vectorize(epilogue.loops[-1])
        s[maker].set_scope("local")
        s[maker].compute_at(s[name], place)
        share_columns(s[maker], columns)
        return True
    if is_contiguous(facts):
        threads, together = row_threads(facts.depth, facts.points, target)
        place = bind_rows(epilogue, flat, together)
        tag, lanes = "threadIdx.x", row_lanes(facts, target) if facts.depth >= 4 * threads else 1
        threads = _threads_with(lanes, threads, facts)
    else:
        threads, lanes, tag = _column_share(facts, target), 1, "threadIdx.y"
        place = _bind_columns(epilogue, flat, [None, min(machine.warp, 32)])
    s[maker].set_scope("shared" if tag == "threadIdx.x" else "local")
    s[maker].compute_at(s[name], place)
    cross_threads(s[maker], threads, tag, lanes)
    return True


def _column_share(facts: Facts, target: Target) -> int:
    """How many threads share the reduction of one element, where neighbours in memory are elements of the result."""
    wanted = threads_of(target).multiprocessors * 1024
    return power_of_two(min(max(1, wanted // max(1, facts.points)), facts.depth // 16, 32))


def _columns(stage: Stage, facts: Facts, target: Target) -> bool:
    """A thread for each element; where these are too few, several rows of threads share each reduction."""
    s, name = stage.schedule, stage.name
    machine = threads_of(target)
    spatial, reduction = spatial_loops(stage), reduce_loops(stage)
    if not spatial:
        return False
    wanted = machine.multiprocessors * 1024
    share = _column_share(facts, target)
    stage.reorder(*spatial, *reduction)
    flat = fuse_all(stage, spatial)
    if share < 2 or facts.store is None:
        return bind_loop(stage, flat, target)
    parts = power_of_two(max(1, min(wanted // (facts.points * share), facts.depth // (share * 64))))
    if parts > 1 and facts.points * share < machine.multiprocessors * 128:
        partial = split_reduction(stage, parts)
        schedule_reduction(s[partial.name], target)
        schedule_reduction(s[name], target)
        return True
    columns = choose_columns(facts, target)
    if columns is None:
        _bind_columns(stage, flat, [None, min(machine.warp, 32)])
        cross_threads(stage, share, "threadIdx.y")
        return True
    _bind_columns(stage, flat, [None, columns.across, columns.lanes])
    share_columns(stage, columns)
    return True


def _bind_columns(stage: Stage, flat: Var, factors: list[int | None]) -> Var:
    """Neighbours are neighbouring threads of a block, or vectors of these; gives the loop that is one thread."""
    block, thread, *_ = stage.split(flat, factors=factors)
    stage.bind(block, "blockIdx.x")
    stage.bind(thread, "threadIdx.x")
    return thread


def schedule_with_reduction(stage: Stage, target: Target, done: set[str]) -> bool:
    """A block that takes the results of short reductions at its own elements: each thread reduces what it needs."""
    s, name = stage.schedule, stage.name
    facts = facts_of(stage.block)
    loops = spatial_loops(stage)
    if not loops or facts.is_ordered or facts.is_reduction:
        return False
    found = [maker for maker, _ in producers_of_epilogue(s, facts) if maker.store is not None and not maker.is_ordered]
    taken = {maker.block.name for maker in found}
    makers = [maker for maker in names_of(s) if maker in taken and maker not in done]
    if not makers:
        return False
    with s.attempt("with its reductions") as tried:
        if len(makers) == 1 and _is_worth_sharing(facts_of(block_named(s, makers[0])), target):
            if not _schedule_reduction_of(stage, makers[0], target):
                tried.refuse("its reduction has no row to share")
            done.update(makers)
            return True
        bind_loop(stage, fuse_all(stage, loops), target)
        thread = s[name].loops[-1]
        for maker in makers:
            s[maker].set_scope("local")
            s[maker].compute_at(s[name], thread)
            for loop in reversed(free_loops(s[maker])):
                if (int_value(loop.extent) or 99) <= 9:
                    s[maker].unroll(loop.var)
        done.update(makers)
    return bool(tried)


def _is_worth_sharing(facts: Facts, target: Target) -> bool:
    """Whether several threads should share the reduction of one element."""
    return facts.depth > 128 and facts.points < 64 * threads_of(target).multiprocessors * threads_of(target).warp
