"""Blocks that take reductions at their own elements: depthwise convolutions, pooling, vector products."""

from __future__ import annotations

from weft.expr.nodes import int_value
from weft.loop.tree import blocks_in, readers
from weft.schedule.facts import Facts, block_named, facts_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.gpu.elementwise import bind_loop, free_loops, fuse_all, spatial_loops, threads_of
from weft.targets.gpu.reduction import schedule_reduction_of


def schedule_with_reduction(stage: Stage, target: Target, done: set[str]) -> bool:
    """A block that takes the results of short reductions at its own elements: each thread reduces what it needs."""
    s, name = stage.schedule, stage.name
    facts = facts_of(stage.block)
    loops = spatial_loops(stage)
    if not loops or facts.is_ordered or facts.is_reduction:
        return False
    makers = [maker for maker in _own_reductions(s, facts) if maker not in done]
    if not makers:
        return False
    with s.attempt("with its reductions") as tried:
        if len(makers) == 1 and _is_worth_sharing(facts_of(block_named(s, makers[0])), target):
            if not schedule_reduction_of(stage, makers[0], target):
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


def _own_reductions(s: Schedule, facts: Facts) -> list[str]:
    """The reductions that a block alone takes, each at the block's own element."""
    found = []
    spatial = {axis.var for axis in facts.spatial}
    for buffer in dict.fromkeys(load.buffer for load in facts.loads):
        if buffer in s.func.buffers or len(readers(s.func.body, buffer)) != 1:
            continue
        makers = [b for b in blocks_in(s.func.body) if any(w.buffer is buffer for w in b.writes)]
        indices = [load.indices for load in facts.loads if load.buffer is buffer]
        if len(makers) != 1 or len(makers[0].writes) != 1 or any(set(at) != spatial for at in indices):
            continue
        made = facts_of(makers[0])
        if made.is_reduction and not made.is_ordered:
            found.append(makers[0].name)
    return found
