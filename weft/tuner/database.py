"""What was measured, in one SQLite file that several processes may use at once, and that no crash damages.

    measurements    every trial, written when it ended; failures too
    algorithms      for a model, which of its nodes get which algorithm
    accepted        for a program, machine and compiler the schedule in use: a set of them is put here, as a whole, when
                    a model that uses them was measured to be faster
    models          what whole models took before and after

The file (`tuning/records.sqlite` in the cache folder) is in WAL mode: a process that is killed loses nothing written.
One that can only be read (in a container, say) is read.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.core.errors import WeftError
from weft.plan.overrides import Records, with_traces
from weft.schedule.trace import Trace
from weft.targets.base import Target
from weft.tuner import database_path
from weft.tuner.records import Outcome, Record, Status, TuneError, compiler_version, machine_key
from weft.tuner.settings import WRITE_SECONDS
from weft.tuner.shipped import schedules

FORMAT = 1  # of the tables
READ_ONLY = "it can only be read, so nothing can be measured: name another folder with WEFT_CACHE_DIR"

_TABLES = """
CREATE TABLE IF NOT EXISTS measurements (
    id INTEGER PRIMARY KEY, task TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, sketch TEXT NOT NULL,
    point TEXT NOT NULL, status TEXT NOT NULL, seconds REAL, baseline REAL, busy REAL NOT NULL, detail TEXT NOT NULL,
    trace TEXT NOT NULL, threads INTEGER NOT NULL, estimate REAL, at REAL NOT NULL, label TEXT NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS once ON measurements (task, machine, version, sketch, point, at);
CREATE TABLE IF NOT EXISTS accepted (
    task TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, trace TEXT NOT NULL, gain REAL NOT NULL,
    model TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (task, machine, version));
CREATE TABLE IF NOT EXISTS algorithms (
    graph TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, labels TEXT NOT NULL, gain REAL NOT NULL,
    model TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (graph, machine, version));
CREATE TABLE IF NOT EXISTS models (
    model TEXT NOT NULL, machine TEXT NOT NULL, version TEXT NOT NULL, before REAL NOT NULL, after REAL NOT NULL,
    kept INTEGER NOT NULL, at REAL NOT NULL);
"""

_COLUMNS = """task, machine, version, sketch, point, status, seconds, baseline, busy, detail, trace, threads, estimate,
at, label"""
_USED = """EXISTS (SELECT 1 FROM accepted AS a WHERE (a.task, a.machine, a.version, a.trace) =
(m.task, m.machine, m.version, m.trace) AND m.status = 'ok')"""


class Database:
    """The records in one file; `path` None is the file in the cache folder."""

    reads_only = False

    def __init__(self, path: Path | str | None = None) -> None:
        found = database_path(make=True) if path is None else Path(path)
        if found is None:
            raise TuneError("the cache folder cannot be used for records: name one of your own with WEFT_CACHE_DIR")
        self.path = found
        with self._explained():
            if found.exists() and not (os.access(found, os.W_OK) and os.access(found.parent, os.W_OK)):
                self.reads_only, self._connection = True, _read_only(found)
                return
            self._connection = sqlite3.connect(found, timeout=WRITE_SECONDS, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            _check(found, self._connection, (0, FORMAT))
            self._connection.executescript(f"{_TABLES} PRAGMA user_version={FORMAT};")

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of SQLite as a person should read them."""
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "full" in text or ("disk I/O" in text and shutil.disk_usage(self.path.parent).free < 1 << 16):
                text = "the disk is full; what was measured before is kept"
            elif "not a database" in text or "malformed" in text:
                text = "this is no database of records, or it is damaged: move it away"
            elif "readonly" in text:
                text = READ_ONLY
            raise TuneError(f"{self.path}: {text}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of what is written inside, or nothing."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.rollback()
                raise
            self._connection.commit()

    # ------------------------------------------------------------------------------------------------- measurements

    def add(self, records: Iterable[Record]) -> int:
        """Writes measurements, those that are there already left out; how many are new.

        Schedules that were in use elsewhere are put into use for programs that have none.
        """
        given = list(records)
        used = [(r.task, r.machine, r.version, r.outcome.trace, r.outcome.gain, r.label, r.at) for r in given if r.used]
        with self._transaction() as connection:
            before = connection.total_changes
            into = f"measurements ({_COLUMNS}) VALUES ({', '.join('?' * len(_COLUMNS.split(',')))})"
            connection.executemany(f"INSERT OR IGNORE INTO {into}", map(_row, given))
            new = connection.total_changes - before
            connection.executemany("INSERT OR IGNORE INTO accepted VALUES (?, ?, ?, ?, ?, ?, ?)", used)
            return new

    def records(self, task: str | None = None, machine: str | None = None, version: str | None = None) -> list[Record]:
        """The measurements, in the order in which they ended: of one task, machine and compiler, or all."""
        given = {"task": task, "machine": machine, "version": version}
        wanted = {key: value for key, value in given.items() if value is not None}
        where = " AND ".join(f"{key} = ?" for key in wanted) or "1"
        with self._explained():
            rows = self._connection.execute(
                f"SELECT {_COLUMNS}, {_USED} FROM measurements AS m WHERE {where} ORDER BY at, id", [*wanted.values()]
            ).fetchall()
        return [_record(row) for row in rows]

    def prune(self, version: str | None = None, best: int | None = None, failures: bool = False) -> int:
        """Removes measurements of other compilers, failures, or all but the best of each task and what is in use there;
        how many went."""
        with self._transaction() as connection:
            before = connection.total_changes
            if version is not None:
                for table in ("measurements", "accepted", "algorithms", "models"):
                    connection.execute(f"DELETE FROM {table} WHERE version != ?", (version,))
            if failures:
                connection.execute("DELETE FROM measurements WHERE status != 'ok'")
            if best is not None:
                ranked = (
                    "SELECT id, ROW_NUMBER() OVER (PARTITION BY task, machine, version ORDER BY status != 'ok', "
                    "seconds / baseline) AS place FROM measurements"
                )
                worse = f"SELECT id FROM ({ranked}) WHERE place > ?"
                connection.execute(f"DELETE FROM measurements AS m WHERE id IN ({worse}) AND NOT {_USED}", (best,))
            return connection.total_changes - before

    def merge(self, other: Path) -> int:
        """Takes over the measurements of another database; how many are new."""
        if not other.is_file():
            raise TuneError(f"there is no file {other}")
        with Database(other) as source:
            self.forms(source.forms())
            return self.add(source.records())

    # --------------------------------------------------------------------------------------------------- in use

    def accept(
        self, model: str, target: Target, before: float, after: float, chosen: Mapping[str, tuple[Trace, float]],
        beside: Records | None = None,
    ) -> bool:  # fmt: skip
        """Puts schedules into use, by programs, each with its gain; not where others than `beside` are by now."""
        machine, version, now = machine_key(target), compiler_version(), time.time()
        rows = [(task, machine, version, trace.to_json(), gain, model, now) for task, (trace, gain) in chosen.items()]
        with self._transaction() as connection:
            if beside is not None and _texts(self.accepted(target)) != _texts(beside):
                return False
            connection.executemany("INSERT OR REPLACE INTO accepted VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            row = (model, machine, version, before, after, len(rows), now)
            connection.execute("INSERT INTO models VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return True

    def accept_algorithms(self, model: str, graph: str, target: Target, labels: Mapping[str, str], gain: float) -> None:
        """Puts algorithms for nodes of a model into use, by the structure of the model; all that it has."""
        row = (graph, machine_key(target), compiler_version(), json.dumps(dict(labels)), gain, model, time.time())
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO algorithms VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def forms(self, rows: Sequence[Sequence[Any]] = ()) -> list[list[Any]]:
        """What is chosen for models, as rows; those given are put into use for models that have none."""
        with self._transaction() if rows else self._explained():
            self._connection.executemany("INSERT OR IGNORE INTO algorithms VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            return [list(row) for row in self._connection.execute("SELECT * FROM algorithms ORDER BY at")]

    def accepted(self, target: Target) -> Records:
        """What is in use on a machine: what was found here, before what ships."""
        where = "WHERE machine = ? AND version = ?", (machine_key(target), compiler_version())
        with self._explained():
            rows = self._connection.execute(f"SELECT task, trace FROM accepted {where[0]}", where[1]).fetchall()
            graphs = self._connection.execute(f"SELECT graph, labels FROM algorithms {where[0]}", where[1]).fetchall()
        try:
            traces = {task: Trace.from_json(text) for task, text in rows}
            return with_traces(schedules(target), traces, {graph: json.loads(labels) for graph, labels in graphs})
        except (WeftError, ValueError) as error:
            raise TuneError(f"{self.path}: a schedule that is in use is damaged: {error}") from error

    def models(self) -> list[tuple[str, str, float, float, int, float]]:
        """What models took: name, machine, seconds before and after, schedules put into use, when."""
        with self._explained():
            rows = self._connection.execute("SELECT model, machine, before, after, kept, at FROM models ORDER BY at")
            return list(rows)


def _texts(records: Records) -> tuple[dict[str, str], Any]:
    return {task: trace.to_json() for task, trace in records.traces.items()}, records.algorithms


def _check(path: Path, connection: sqlite3.Connection, known: tuple[int, ...]) -> sqlite3.Connection:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version not in known:
        raise TuneError(f"{path} was written by another Weft (format {version}): move it away")
    return connection


def _read_only(path: Path) -> sqlite3.Connection:
    """A file that nobody here may write; beside one that others write lies what they share, else it does not change."""
    how = "mode=ro" if path.with_name(path.name + "-shm").exists() else "immutable=1"
    return _check(path, sqlite3.connect(f"{path.absolute().as_uri()}?{how}", isolation_level=None, uri=True), (FORMAT,))


def _number(value: float) -> float | None:
    return value if value < float("inf") else None


def _row(record: Record) -> tuple[Any, ...]:
    out = record.outcome
    return (
        record.task, record.machine, record.version, record.sketch, json.dumps(dict(record.point), sort_keys=True),
        out.status.value, _number(out.seconds), _number(out.baseline), out.busy, out.detail, out.trace, record.threads,
        record.estimate, record.at, record.label,
    )  # fmt: skip


def _record(row: tuple[Any, ...]) -> Record:
    task, machine, version, sketch, point, status, seconds, baseline, busy, detail, trace, *rest = row
    threads, estimate, at, label, used = rest
    taken, base = (float("inf") if one is None else one for one in (seconds, baseline))
    outcome = Outcome(Status(status), taken, base, busy, detail, trace)
    place = (task, machine, version, sketch, json.loads(point), outcome)
    return Record(*place, threads, estimate or 0.0, at, label, bool(used))
