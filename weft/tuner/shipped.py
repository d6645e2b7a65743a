"""The cost model that ships with the package: what points of tasks measured ahead teach about tasks never seen.

`shipped.json` holds a correction of the prior for each signature of a space (its sketches and knobs), for machines of
one kind: the processor that its corpus was measured on. `python -m benchmarks.corpus` measures, trains, and reports on
held-out tasks. On a machine of another kind it is not used, and `said_of` says so.
"""

from __future__ import annotations

import base64
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.plan.overrides import Records
from weft.schedule.trace import Trace
from weft.targets.base import Target
from weft.tuner.records import machine_key

FILE = Path(__file__).with_name("shipped.json")


def kind_of(target: Target) -> str:
    """What machines have in common that like the same schedules."""
    return f"{target.cpu}, vectors of {target.vector_bytes} bytes"


@functools.lru_cache(maxsize=1)
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"kind": "", "models": {}}
    return found


def trained_ahead(target: Target, signature: Any) -> Any:
    """The trees for a space on a machine; None where there are none."""
    found = _read()["models"].get(repr(signature)) if _read()["kind"] == kind_of(target) else None
    if found is None:
        return None
    import xgboost

    return xgboost.Booster({"nthread": 1}, model_file=bytearray(base64.b64decode(found["trees"])))


def file_of(target: Target) -> Path:
    """Where what ships for a machine is written: known by what it has, not by numbers that were fitted to it."""
    threads = None if target.threads is None else replace(target.threads, model=None)
    return FILE.with_name(f"schedules_{machine_key(replace(target, threads=threads))}.json")


def schedules(target: Target) -> Records:
    """Schedules and forms that ship for a machine: a schedule holds while the planner chooses what it was measured
    beside."""
    return _schedules(file_of(target))


@functools.lru_cache(maxsize=4)
def _schedules(path: Path) -> Records:
    found = json.loads(path.read_text()) if path.exists() else {"schedules": []}
    rows, forms = found["schedules"], found.get("forms", [])
    traces = {row["task"]: Trace.from_json(json.dumps(row["trace"])) for row in rows}
    labels = {row["graph"]: row["labels"] for row in forms}
    return Records(traces, labels, {row["task"]: row["beside"] for row in rows})


def said_of(target: Target) -> str:
    """Whether the model that ships serves a machine, in a sentence."""
    own, known = kind_of(target), _read()["kind"]
    if own == known:
        return f"searches begin with what was measured ahead on a machine of this kind ({own})"
    return f"the cost model that ships was trained on another kind of machine ({known}, not {own}): it is not used"
