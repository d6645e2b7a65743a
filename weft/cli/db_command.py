"""weft db stats | best | export | import | merge | prune: the records of weft tune.

stats              how many there are, for which machines and compilers; failures by kind; models
best [TASK]        the best of each task of this machine, and the steps of one
export FILE        all measurements as lines of JSON, and the forms that were chosen for models
import FILE        those of an export; schedules in use there are put into use for programs that have none
merge FILE         those of another database
prune              removes what other compilers measured; --failures, --best N
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen, seconds
from weft.cli.sources import count
from weft.schedule.trace import Trace
from weft.targets.registry import find_target
from weft.tuner.database import Database
from weft.tuner.records import Record, Status, TuneError, compiler_version, machine_key

ACTIONS = ("stats", "best", "export", "import", "merge", "prune")


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("file", nargs="?", help="the file to write or to read; for best, a task")
    parser.add_argument("--database", metavar="FILE", help="another file than the one in the cache folder")
    parser.add_argument("--target", help='for best: the machine (default "auto": this one)')
    parser.add_argument("--best", type=count, metavar="N", help="for prune: keep the best N of each task")
    parser.add_argument("--failures", action="store_true", help="for prune: remove trials that failed")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.action not in ("prune",):
        refuse(given, "best failures", "only prune takes it")
    if given.action != "best":
        refuse(given, "target", "only best takes it")
    needs = given.action in ("export", "import", "merge")
    if needs != bool(given.file) and given.action != "best":
        raise UsageError(f"weft db {given.action} takes {'a file' if needs else 'no file'}")
    if given.database and given.action not in ("import", "merge") and not Path(given.database).is_file():
        raise UsageError(f"--database {given.database}: there is no such file")
    with Database(given.database) as database:
        if given.action == "stats":
            _stats(database, screen)
        elif given.action == "best":
            _best(database, given, screen)
        else:
            _change(database, given, screen)
    return 0


def _stats(database: Database, screen: Screen) -> None:
    records = database.records()
    status = Counter(record.outcome.status.value for record in records)
    places = Counter((record.machine, record.version) for record in records)
    models = database.models()
    if screen.as_json:
        screen.figures(
            {"file": database.path, "measurements": len(records), "tasks": len({r.task for r in records}),
             "status": dict(status), "models": [list(row) for row in models]}
        )  # fmt: skip
        return
    screen.line(f"{database.path}: {len(records)} measurements of {len({r.task for r in records})} tasks")
    screen.table(["status", "trials>"], [[name, str(number)] for name, number in status.most_common()])
    screen.table(
        ["machine", "compiler", "trials>"],
        [[machine + (" (this one)" if machine == machine_key(find_target("native")) else ""), version, str(number)]
         for (machine, version), number in places.most_common()],
    )  # fmt: skip
    rows = [
        [name, machine, seconds(before), seconds(after), f"{before / after:.3f}", str(kept),
         time.strftime("%Y-%m-%d %H:%M", time.localtime(at))]
        for name, machine, before, after, kept, at in models
    ]  # fmt: skip
    screen.table(["model", "machine", "before>", "after>", "gain>", "schedules>", "when"], rows)


def _best(database: Database, given: argparse.Namespace, screen: Screen) -> None:
    machine = find_target("native" if given.target in (None, "auto") else given.target)
    best: dict[tuple[str, str], Record] = {}
    trials: Counter[tuple[str, str]] = Counter()
    for record in database.records(version=compiler_version()):
        if record.machine.split(" ")[0] != machine_key(machine):
            continue
        place = record.task, record.unit
        trials[place] += 1
        old = best.get(place)
        if record.outcome.status is Status.OK and (old is None or record.outcome.gain > old.outcome.gain):
            best[place] = record
    in_use = {task: trace.to_json() for task, trace in database.accepted(machine).traces.items()}
    if given.file:
        best = {at: r for at, r in best.items() if r.task.startswith(given.file) or given.file in r.label}
        if not best:
            raise UsageError(f"no task of this machine is called {given.file!r}")
    if screen.as_json:
        screen.figures(
            {"tasks": [{"task": r.task, "label": r.label, "sketch": r.sketch, "point": dict(r.point),
                        r.unit: r.outcome.seconds, "gain": r.outcome.gain, "trials": trials[at],
                        "in_use": in_use.get(r.task) == r.outcome.trace, "trace": r.outcome.trace}
                       for at, r in best.items()]}
        )  # fmt: skip
        return
    rows = [
        [r.task[:6], r.label, str(trials[at]), _figure(r), f"{r.outcome.gain:.3f}",
         _use(r, in_use), f"{r.sketch} " + " ".join(f"{k}={v}" for k, v in r.point.items())]
        for at, r in sorted(best.items(), key=lambda pair: -pair[1].outcome.gain)
    ]  # fmt: skip
    screen.table(["task", "kernel", "trials>", "best>", "gain>", "", "point"], rows)
    if given.file:
        for record in best.values():
            screen.code(
                f"# {record.task[:6]} {record.label}\n{Trace.from_json(record.outcome.trace).as_python()}", "python"
            )


def _use(record: Record, in_use: Mapping[str, str]) -> str:
    """Whether a schedule is what models get; what is fastest alone need not be fastest in them."""
    return (
        "" if record.task not in in_use else "in use" if in_use[record.task] == record.outcome.trace else "another is"
    )


def _figure(record: Record) -> str:
    """What it took, or what was counted."""
    value = record.outcome.seconds
    return seconds(value) if record.unit == "seconds" else f"{value:,.0f} {record.unit}"


def _form(line: str) -> list[Any]:
    """A form of a model, of a line of an export."""
    try:
        graph, machine, version, labels, gain, model, at = json.loads(line)["form"]
        known = {str(key): str(label) for key, label in json.loads(labels).items()}
        return [str(graph), str(machine), str(version), json.dumps(known), float(gain), str(model), float(at)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TuneError(f"this is no form of a model ({error}): {line[:120]!r}") from None


def _change(database: Database, given: argparse.Namespace, screen: Screen) -> None:
    if given.action == "export":
        records = database.records()
        lines = [*(record.to_json() for record in records), *(json.dumps({"form": row}) for row in database.forms())]
        Path(given.file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        screen.line(f"wrote {len(records)} measurements to {given.file}, {sum(r.used for r in records)} of them in use")
    elif given.action == "import":
        text = Path(given.file).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        records = [Record.from_json(line) for line in lines if not line.startswith('{"form"')]
        database.forms([_form(line) for line in lines if line.startswith('{"form"')])
        new = database.add(records)
        screen.line(f"{new} new measurements from {given.file}")
    elif given.action == "merge":
        screen.line(f"{database.merge(Path(given.file))} new measurements from {given.file}")
    else:
        gone = database.prune(compiler_version(), given.best, given.failures)
        screen.line(f"removed {gone} rows")
