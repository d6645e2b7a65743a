"""The schedule of a program without a trial: what any machine with threads gets, products by tensor cores first."""

from __future__ import annotations

from collections.abc import Collection

from weft.expr.nodes import Buffer
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cuda.tensor_cores import schedule_tensor_cores
from weft.targets.gpu import default


def default_schedule(schedule: Schedule, target: Target, constants: Collection[Buffer] = ()) -> None:
    """Schedules a program in place. `constants` are parameters that never change: copies of them may be made once."""
    default.default_schedule(schedule, target, constants, first=[schedule_tensor_cores])
