"""What CUDA offers the planner: what any machine with threads does, and contractions by tensor cores."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.expr.nodes import Buffer
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cuda import attention, bulk_tiles, steps, streamed
from weft.targets.cuda.tensor_cores import match_groups, match_warps
from weft.targets.gpu import families


def _first(schedule: Schedule, target: Target, done: set[str], constants: Collection[Buffer]) -> Collection[Buffer]:
    """Steps of recurrences by tensor cores, before what any machine with threads does first."""
    steps.schedule_steps(schedule, target)
    before = families.FAMILIES.first
    assert before is not None
    return before(schedule, target, done, constants)


FAMILIES = replace(
    families.FAMILIES,
    first=_first,
    whole=(attention.match, *families.FAMILIES.whole),
    loops=(streamed.match, *families.FAMILIES.loops),
    contractions=(bulk_tiles.match, bulk_tiles.match_held, match_groups, match_warps, *families.FAMILIES.contractions),
)
"""What a program for CUDA is scheduled with."""
default_schedule = FAMILIES.schedule
