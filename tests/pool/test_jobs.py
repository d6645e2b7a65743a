"""A worker's journal: what was finished stays, whatever happens to the file."""

from __future__ import annotations

import json
import logging

import pytest

from weft.pool.jobs import Journal

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
