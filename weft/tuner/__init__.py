"""The tuner: faster schedules than the planner's, found by measuring, guided by a learned cost model.

    records, database           measurements as rows, which schedules are in use
    task, space, template       programs that can be measured by themselves, their points, spaces that a user writes
    cost_models, shipped        what a point is expected to take; what was learnt ahead, on a machine of this kind
    explorers, search           which points are next; the loop: propose, measure, write down, learn
    bench, runner               builds, checks and times one point, in children that may crash or hang
    algorithms, model, view     a whole model: its forms, its time shared among tasks, what is seen of it
    settings                    the numbers that steer all this

Nothing imports this package but the command line, and `weft.compile` and `weft.tune` when they are asked to tune.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from weft.core.knobs import knobs
from weft.plan.overrides import Records
from weft.runtime.cache_folder import cache_folder
from weft.targets.base import Target

logger = logging.getLogger("weft.tuner")

NAME = "records.sqlite"


def database_path(make: bool = False) -> Path | None:
    """The file of records; None where there is none, or, when it is to be made, where the cache folder is no good."""
    if not make and not (knobs.cache_dir / "tuning" / NAME).exists():
        return None
    folder = cache_folder("tuning")
    return None if folder is None else folder / NAME


def records_for(target: Target) -> Records:
    """What is in use on a machine; what ships alone, with a word in the log, where the file cannot be read."""
    from weft.tuner.shipped import schedules

    if database_path() is None:
        return schedules(target)
    from weft.tuner.database import Database
    from weft.tuner.records import TuneError

    try:
        with Database() as database:
            return database.accepted(target)
    except TuneError as error:
        logger.warning("no records are used: %s", error)
        return schedules(target)


def tune(what: Any, args: Any, budget: str | float = "30s", **options: Any) -> Any:
    """Finds a faster schedule for one tensor expression, schedule or template (docs/tuning.md)."""
    from weft.tuner.expression import tune_expression

    return tune_expression(what, args, budget, **options)
