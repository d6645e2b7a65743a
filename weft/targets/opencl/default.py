"""The schedule of a program without a trial: what any machine with threads gets."""

from __future__ import annotations

from collections.abc import Collection

from weft.expr.nodes import Buffer
from weft.plan.planner import plan
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.gpu.families import FAMILIES


def default_schedule(schedule: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Schedules a program in place. `constants` are parameters that never change: copies of them may be made once."""
    plan(schedule, target, FAMILIES, constants)
