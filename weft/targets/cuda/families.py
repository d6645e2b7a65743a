"""What CUDA offers the planner: what any machine with threads does, and contractions by tensor cores."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.expr.nodes import Buffer
from weft.plan.planner import plan
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cuda.tensor_cores import match_groups, match_warps
from weft.targets.gpu import families

FAMILIES = replace(families.FAMILIES, contractions=(match_groups, match_warps, *families.FAMILIES.contractions))
"""What a program for CUDA is scheduled with."""


def default_schedule(schedule: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Schedules a program in place. `constants` are parameters that never change: copies of them may be made once."""
    plan(schedule, target, FAMILIES, constants)
