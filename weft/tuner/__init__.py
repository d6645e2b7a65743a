"""The tuner: faster schedules than the planner's, found by measuring, guided by a learned cost model.

    records      a measurement as a row; what a failure is called
    database     all measurements, and which schedules are in use
    task         a program that can be measured by itself; the tasks of a model
    space        every point of every sketch of a task, as columns
    cost_models  what a point is expected to take: analytic, learned, nothing known
    shipped      what was learnt ahead, on a machine of this kind
    explorers    which points to measure next
    bench        builds, checks and times one point
    runner       does that in children, which may crash or hang
    search       the loop: propose, measure, write down, learn
    algorithms   other forms of a whole model
    model        a whole model: time shared among tasks, a set of schedules accepted when the model is faster
    template     spaces that a user writes
    view         what one sees of it (a report: weft/cli/tune_report.py)

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
    """What is in use on a machine; nothing, with a word in the log, where the file cannot be read."""
    if database_path() is None:
        return Records()
    from weft.tuner.database import Database
    from weft.tuner.records import TuneError

    try:
        with Database() as database:
            return database.accepted(target)
    except TuneError as error:
        logger.warning("no records are used: %s", error)
        return Records()


def tune(what: Any, args: Any, budget: str | float = "30s", **options: Any) -> Any:
    """Finds a faster schedule for one tensor expression, schedule or template (docs/tuning.md)."""
    from weft.tuner.expression import tune_expression

    return tune_expression(what, args, budget, **options)
