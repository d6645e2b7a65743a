"""Schedules that tuning put into use become those that ship."""

from __future__ import annotations

import json

from benchmarks import corpus
from benchmarks.corpus import ship
from benchmarks.tuning import row_of
from tests.tuner.small import product_task
from weft.plan.overrides import digest, with_traces
from weft.tuner import shipped


def test_of_two_models_the_schedule_that_gained_more_ships(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "FILE", tmp_path / "shipped.json")
    monkeypatch.setattr(shipped, "FILE", tmp_path / "shipped.json")
    task = product_task()
    row, files = row_of(task, task.default()), []
    for model, gain in (("a", 1.1), ("b", 1.3), ("c", 1.2)):
        files.append(tmp_path / f"{model}.json")
        forms = [{"graph": "g", "model": model, "labels": {"* layouts": "plain"}}] if model == "c" else []
        files[-1].write_text(json.dumps({"schedules": [{**row, "model": model, "gain": gain}], "forms": forms}))
    written, count = ship(files, "native", task.target)
    assert count == 1 and json.loads(written.read_text())["schedules"][0]["model"] == "b"
    found = shipped.schedules(task.target)
    assert found.beside == {task.key: digest(task.default())} and list(found.traces) == [task.key]
    assert found.algorithms == {"g": {"* layouts": "plain"}}
    assert with_traces(found, {}, {"h": {}}).algorithms.keys() == {"g", "h"}
    files[1].write_text(json.dumps({"schedules": [{**row, "task": "new", "model": "b", "gain": 1.01}], "forms": []}))
    _, count = ship([files[1]], "native", task.target)  # b was tuned again: what it had before ships no more
    left = json.loads(written.read_text())
    assert count == 1 and [row["task"] for row in left["schedules"]] == ["new"] and left["forms"]
