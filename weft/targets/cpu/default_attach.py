"""Stages that feed a block, computed inside its loops."""

from __future__ import annotations

from weft.expr.nodes import Var
from weft.plan.contraction import is_sum_of_products
from weft.schedule.facts import block_named, facts_of, feeding, work_around
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cpu.default_loops import schedule_elementwise, schedule_reduction


def attach_producers(s: Schedule, name: str, loops: list[Var], target: Target, done: set[str]) -> None:
    """Computes the stages that feed a block inside its loops, where that computes nothing twice."""
    for other in feeding(s, name):
        facts = facts_of(block_named(s, other))
        if other in done or is_sum_of_products(facts) or not _attach(s, other, name, loops):
            continue
        done.add(other)
        if facts.is_reduction:
            schedule_reduction(s[other], target)
        else:
            schedule_elementwise(s[other], target, outer=False)


def _attach(s: Schedule, other: str, name: str, loops: list[Var]) -> bool:
    """Computes a stage inside the first of the loops where it does no more work than on its own."""
    alone = work_around(s, other)
    for loop in loops:
        with s.attempt(f"attach {other} at {loop.name}") as tried:
            s[other].compute_at(s[name], loop)
            if work_around(s, other) > 1.3 * alone:
                tried.refuse("it would compute too much twice")
        if tried:
            return True
    return False
