"""A worker's journal: what was finished stays, whatever happens to the file."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from weft.pool.device import PoolError
from weft.pool.devices import ProgramDevice
from weft.pool.jobs import Journal
from weft.pool.node import _journal_path
from weft.pool.runner import PoolRunner
from weft.tuner.records import Outcome, Record, Status

RECORD = json.dumps({"task": "t", "machine": "m", "outcome": None})


def written(path, count):
    journal = Journal(path)
    for at in range(count):
        journal.add(f"job-{at}", RECORD)
    return path.read_bytes()


def test_only_the_end_of_a_killed_writer_goes_without_a_word(tmp_path, caplog):
    path = tmp_path / "journal.jsonl"
    whole = written(path, 3)
    path.write_bytes(whole[:-9])
    again = Journal(path)
    assert list(again.lines) == ["job-0", "job-1"] and not caplog.records
    again.add("next", RECORD)
    assert list(Journal(path).lines) == ["job-0", "job-1", "next"] and not (tmp_path / "journal.damaged").exists()


@pytest.mark.parametrize(
    "damage",
    [b"{not json", b'{"id": "x"}', b"\xff\xfe\x00", b"17", b'{"id": 1, "record": "[]"}'],
)
def test_another_damaged_line_is_said_and_kept_aside(tmp_path, caplog, damage):
    path = tmp_path / "a journal.jsonl"
    first, *others = written(path, 3).splitlines(keepends=True)
    path.write_bytes(first + damage + b"\n" + b"".join(others))
    with caplog.at_level(logging.ERROR, "weft.pool"):
        assert list(Journal(path).lines) == ["job-0", "job-1", "job-2"]
    assert "1 lines of" in caplog.text and "a journal.damaged" in caplog.text
    assert (tmp_path / "a journal.damaged").read_bytes() == damage + b"\n"
    caplog.clear()
    assert len(Journal(path).lines) == 3 and not caplog.records  # said once


def test_any_name_of_a_worker_is_a_journal_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "a b"))
    paths = [_journal_path({"name": name}) for name in ("a/b", "a_b", "../../etc/x", "Küche 1")]
    assert len(set(paths)) == 4 and {path.parent for path in paths} == {paths[0].parent}
    Journal(paths[2]).add("job", RECORD)


def test_a_full_disk_loses_no_answer(tmp_path, caplog):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    real = journal._file

    class Full:
        seek, truncate = real.seek, real.truncate

        def write(self, line):
            return real.write(line[:7])

    journal._file = Full()
    journal.add("told", RECORD)
    assert journal.lines["told"] == RECORD and "disk is full" in caplog.text and path.read_bytes() == b""
    journal._file = real
    journal.add("next", RECORD)
    assert list(Journal(path).lines) == ["next"]


class Flaky:
    """A connection whose scheduler dies over the first question; to the second comes what is no record, too."""

    def __init__(self):
        self.asked = 0

    def run(self, function, data, on_error):
        self.asked += 1
        if self.asked == 1:
            raise ConnectionResetError("Stream is closed")
        record = Record("t", "m", "v", "s", {"x": 1}, Outcome(Status.OK, 1.0, 2.0))
        return {"worker": json.dumps({"good": record.to_json(), "bad": "[]"}).encode()}


def test_a_scheduler_that_dies_over_a_question_is_asked_again(monkeypatch, caplog):
    runner = PoolRunner.__new__(PoolRunner)
    runner.url, runner.deadline, runner._client, runner.built = "tls://desk:1", 20.0, None, {}
    flaky = Flaky()
    monkeypatch.setattr(runner, "client", lambda: flaky)
    monkeypatch.setattr("weft.pool.settings.LOOK_SECONDS", 0.0)
    assert list(runner.collect("m", {"t"})) == ["good"]
    assert flaky.asked == 2 and "lost while it was asked" in caplog.text and "no measurement" in caplog.text
    flaky.asked, runner.deadline = 0, -1.0
    with pytest.raises(PoolError, match="tls://desk:1 was lost again and again: Stream is closed"):
        runner.collect("m", {"t"})


def test_a_hang_is_one_by_the_processors_time(monkeypatch):
    """The child of a device's job is ended by the kernel when it has used its seconds, not when others have."""
    spin = [sys.executable, "-c", "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass"]
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: real(spin, **more))
    found = ProgramDevice("vdla").measure({}, ())
    assert found.status is Status.HANG and "of the processor's time" in found.detail
