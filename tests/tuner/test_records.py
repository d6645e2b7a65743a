"""Records and the database: rows, exports, merging, and what can go wrong with a file."""

from __future__ import annotations

import os
import shutil
import sqlite3
from dataclasses import replace
from types import SimpleNamespace

import pytest

import weft
from tests.tuner.small import TARGET, product_task, record
from weft.plan.overrides import Records
from weft.schedule.trace import Trace
from weft.targets.registry import find_target
from weft.tuner import database_path, records_for
from weft.tuner.database import Database
from weft.tuner.model import make_tuning
from weft.tuner.records import Outcome, Record, Status, TuneError, compiler_version, machine_key


def test_a_record_is_a_line_of_json():
    one = record(status=Status.CRASH)
    assert Record.from_json(one.to_json()) == one and one.outcome.gain == 0.0
    assert Record.from_json(record().to_json()).outcome.gain == 2.0


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"task": 1}', record().to_json().replace('"ok', '"fine')])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(TuneError, match="no record of a measurement"):
        Record.from_json(text)


def test_an_outcome_believes_no_number():
    line = Outcome(Status.OK, 1.0, 1.0).to_json()
    for bad in ('"seconds": -1.0', '"seconds": "1"', '"seconds": null'):
        with pytest.raises((ValueError, TypeError)):
            Outcome.from_json(line.replace('"seconds": 1.0', bad))


def test_a_machine_is_its_facts_not_its_name():
    again = find_target("native")
    assert machine_key(replace(again, name="other")) == machine_key(TARGET)
    assert machine_key(replace(again, cache_bytes=(1, 2, 3))) != machine_key(TARGET)


def test_measurements_are_kept_once(tmp_path):
    with Database(tmp_path / "a") as a, Database(tmp_path / "b") as b:
        assert a.add([record(at=1.0), record(at=2.0), record(at=2.0)]) == 2
        b.add([record(at=2.0), record("other", at=3.0, status=Status.HANG)])
        assert a.merge(tmp_path / "b") == 1 and a.merge(tmp_path / "b") == 0
        assert [one.at for one in a.records()] == [1.0, 2.0, 3.0] and len(a.records("other")) == 1
        assert a.records("other")[0].outcome.status is Status.HANG
    with Database(tmp_path / "a") as again:
        assert len(again.records()) == 3
        with pytest.raises(TuneError, match="no file"):
            again.merge(tmp_path / "nowhere")


def test_pruning(tmp_path):
    with Database(tmp_path / "a") as one:
        one.add([record(at=float(at), seconds=10.0 - at) for at in range(5)])
        one.add([record(at=9.0, status=Status.WRONG), record(at=8.0, version="an older one")])
        assert one.prune(compiler_version()) == 1 and one.prune(failures=True) == 1
        assert one.prune(best=2) == 3 and [r.outcome.seconds for r in one.records()] == [7.0, 6.0]


def test_pruning_keeps_what_is_in_use(tmp_path):
    trace = product_task().default()
    with Database(tmp_path / "a") as one:
        slower = record("t", at=1.0, seconds=3.0, trace=trace.to_json())
        one.add([slower, *(record("t", at=at, seconds=at) for at in (1.5, 2.0))])
        one.accept("model", TARGET, 2.0, 1.0, {"t": (trace, 1.1)})
        assert one.prune(best=1) == 1 and [r.used for r in one.records()] == [True, False]
        assert one.prune(best=1) == 0


def test_schedules_in_use_are_those_of_a_machine(tmp_path):
    trace = product_task().default()
    with Database(tmp_path / "a") as one:
        one.accept("model", TARGET, 2.0, 1.0, {"t": (trace, 1.5)})
        assert one.accepted(TARGET).traces["t"].to_json() == trace.to_json() and one.models()[0][2:5] == (2.0, 1.0, 1)
        assert one.accepted(replace(TARGET, cores=97)) == Records()


def test_a_full_disk_is_said_and_loses_nothing(tmp_path):
    one = Database(tmp_path / "a")
    one.add([record(at=0.5)])
    pages = one._connection.execute("PRAGMA page_count").fetchone()[0]
    one._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(TuneError, match="the disk is full; what was measured before is kept"):
        for at in range(1000):
            one.add([record(f"{at}" * 200, at=float(at))])
    kept = len(one.records())
    one.close()
    with Database(tmp_path / "a") as again:
        assert len(again.records()) == kept >= 1
        again.add([record("new", at=7.0)])


def test_a_disk_that_is_full_before_the_file_is_opened(tmp_path, monkeypatch):
    with Database(tmp_path / "a") as one:
        for free, said in ((0, "the disk is full"), (1 << 30, "disk I/O error")):
            monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
            with pytest.raises(TuneError, match=said), one._explained():
                raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_explained_and_compiling_goes_on(content, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    path = database_path(make=True)
    path.write_bytes(content)
    with pytest.raises(TuneError, match="move it away|disk"):
        Database()
    assert records_for(TARGET) == Records() and "no records are used" in caplog.text


def test_a_file_of_another_weft_is_left_alone(tmp_path):
    connection = sqlite3.connect(tmp_path / "a")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(TuneError, match="another Weft"):
        Database(tmp_path / "a")


def test_a_file_that_can_only_be_read_is_read(tmp_path, monkeypatch):
    """A service in a container has the records that were made elsewhere; nothing is tuned there."""
    trace = Trace()
    with Database(tmp_path / "r.sqlite") as one:
        one.accept("model", TARGET, 2.0, 1.0, {"t": (trace, 1.5)})
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    with Database(tmp_path / "r.sqlite") as one:
        assert set(one.accepted(TARGET).traces) == {"t"} and one.reads_only
        with pytest.raises(TuneError, match="can only be read"):
            one.accept("model", TARGET, 2.0, 1.0, {})
        with pytest.raises(TuneError, match="can only be read"):
            make_tuning(weft.models.dqn(), "1s", TARGET, database=one)


def test_of_two_who_put_schedules_into_use_the_second_measures_again(tmp_path):
    with Database(tmp_path / "r.sqlite") as one, Database(tmp_path / "r.sqlite") as other:
        seen = other.accepted(TARGET)
        assert one.accept("model", TARGET, 2.0, 1.0, {"t": (Trace(), 1.5)}, one.accepted(TARGET))
        assert not other.accept("model", TARGET, 2.0, 1.9, {"t": (Trace(), 1.1)}, seen) and len(one.models()) == 1
        assert other.accept("model", TARGET, 2.0, 0.9, {"t": (Trace(), 1.6)}, other.accepted(TARGET))


def test_a_damaged_schedule_is_said(tmp_path):
    with Database(tmp_path / "a") as one:
        one.accept("model", TARGET, 2.0, 1.0, {"t": (Trace(), 1.5)})
        one._connection.execute("UPDATE accepted SET trace = 'nonsense'")
        with pytest.raises(TuneError, match="in use is damaged"):
            one.accepted(TARGET)
