"""The schedule that any tensor program gets on a machine with threads, without a trial, from the machine's facts.

In: the schedule of a fused group as `te.create_schedule` gives it. Out: the same schedule, every part of it bound to
threads.

    producers that cost little        dissolved into their readers
    matrix products, convolutions     one form, C[x, y] += X[k, x] * Y[k, y], tiled for shared memory and registers
    rows (softmax, layer norm)        a block of threads, or a thread, computes every stage of a row
    reductions                        shared by threads, in two kernels where there are few elements
    the rest                          a thread for each element, or vector of elements
    attention                         scores stay in the shared memory of a block
    recurrences                       the steps in order; sums of a unit and its new values in one kernel

Nothing here fails: a step that is not legal for a program is left out, and what has no other schedule is divided among
threads element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from weft.expr.nodes import Buffer
from weft.loop.tree import block_path, loops_on
from weft.schedule.facts import block_named, facts_of, names_of
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.gpu.attention import STAGES as ATTENTION
from weft.targets.gpu.attention import schedule_attention
from weft.targets.gpu.elementwise import bind_flat, schedule_elementwise
from weft.targets.gpu.inline import inline_producers
from weft.targets.gpu.product import schedule_product
from weft.targets.gpu.recurrent import schedule_steps
from weft.targets.gpu.reduction import schedule_reduction
from weft.targets.gpu.rows import schedule_rows
from weft.targets.gpu.taking import schedule_with_reduction

Attempt = Callable[[Schedule, str, Target, Collection[Buffer], set[str]], bool]
"""Schedules a unit that ends in a block, adds the blocks it took to the set; False (nothing changed) for others."""


def default_schedule(
    schedule: Schedule, target: Target, constants: Collection[Buffer] = (), first: Sequence[Attempt] = ()
) -> None:
    """Schedules a program in place. `constants` are parameters that never change: copies of them may be made once.

    `first` are a target's own ways, tried before those that every target has.
    """
    inline_producers(schedule, ATTENTION)
    schedule_attention(schedule, target)
    schedule_steps(schedule, target)
    done: set[str] = set()
    for name in reversed(names_of(schedule)):
        if name in done or name not in names_of(schedule) or is_bound(schedule, name):
            continue
        known = set(names_of(schedule))
        with schedule.attempt(f"unit {name}", done) as tried:
            _schedule_unit(schedule, name, target, constants, done, first)
        if not tried:
            _plain(schedule, name, target)
        done.add(name)
        done.update(set(names_of(schedule)) - known)
    for name in names_of(schedule):
        if not is_bound(schedule, name):
            _plain(schedule, name, target)


def is_bound(s: Schedule, name: str) -> bool:
    """Whether a block runs inside a thread loop."""
    return any(loop.kind == "thread" for loop in loops_on(block_path(s.func, name, "schedule")))


def _schedule_unit(
    s: Schedule,
    name: str,
    target: Target,
    constants: Collection[Buffer],
    done: set[str],
    first: Sequence[Attempt],
) -> None:
    """Schedules a block with the earlier stages that belong to its loops."""
    facts = facts_of(block_named(s, name))
    if facts.is_ordered:
        bind_flat(s[name], target)
    elif any(attempt(s, name, target, constants, done) for attempt in (*first, schedule_product)):
        return
    elif schedule_rows(s[name], target, done):
        return
    elif facts.is_reduction:
        schedule_reduction(s[name], target)
    elif not schedule_with_reduction(s[name], target, done):
        schedule_elementwise(s[name], target)


def _plain(s: Schedule, name: str, target: Target) -> None:
    """The least that always works for a block on its own."""
    with s.attempt(f"flat {name}"):
        bind_flat(s[name], target)
