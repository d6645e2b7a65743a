"""weft tune and weft db, from the command line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from tests.tuner.small import TARGET, product_task, record
from weft import models
from weft.cli.main import main
from weft.models.builder import Builder
from weft.tuner.database import Database
from weft.tuner.records import Status


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def figures(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_records_are_looked_at_and_moved(cache, capsys):
    trace = product_task().default()
    good = record("abc", at=1.0, seconds=1.0)
    good = good.__class__(
        **{**vars(good), "outcome": good.outcome.__class__(Status.OK, 1.0, 2.0, trace=trace.to_json())}
    )
    with Database() as database:
        database.add([good, record("abc", at=2.0, status=Status.CRASH), record("old", at=3.0, version="before")])
        database.accept("little", TARGET, 2.0, 1.0, {"abc": (trace, 2.0)})
    found = figures(capsys, "db", "stats")
    assert found["measurements"] == 3 and found["status"] == {"ok": 2, "crash": 1} and found["models"][0][0] == "little"
    (best,) = figures(capsys, "db", "best", "abc")["tasks"]
    assert best["gain"] == 2.0 and best["in_use"] and best["trials"] == 2
    lines = str(cache / "records.jsonl")
    for words, said in (
        (["stats"], "3 measurements of 2 tasks"),
        (["best", "abc"], "s.apply("),
        (["export", lines], "wrote 3 measurements"),
        (["import", lines], "0 new measurements"),
        (["import", lines, "--database", str(cache / "other")], "3 new measurements"),
        (["best", "abc", "--database", str(cache / "other")], "in use"),
        (["merge", str(cache / "other")], "0 new measurements"),
        (["prune", "--best", "1", "--failures"], "removed 2 rows"),
        (["best", "--target", "native"], "in use"),
    ):
        assert main(["db", *words]) == 0 and said in capsys.readouterr().out, words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export"], "takes a file"), (["stats", "x"], "takes no file"),
        (["stats", "--best", "3"], "only prune takes it"),
        (["merge", "nowhere"], "there is no file"), (["best", "nothing"], "no task of this machine"),
        (["prune", "--target", "native"], "only best takes it"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(cache, capsys, words, said):
    assert main(["db", *words]) == 1 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no record of a measurement"),
        (replace(record("abc", at=1.0, status=Status.CRASH), used=True).to_json(), "fields of the wrong type"),
    ],
)  # fmt: skip
def test_garbage_is_not_imported(cache, capsys, text, said):
    (cache / "garbage").write_text(f"{text}\n")
    assert main(["db", "import", str(cache / "garbage")]) == 1 and said in capsys.readouterr().err


def little(batch=1, seed=0):
    b = Builder("little", seed)
    return b.finish(b.relu(b.dense(b.input("x", (batch * 16, 32)), 32, 48)), names=["out"])


def test_a_report_that_cannot_be_written_is_said_before_the_search(cache, capsys):
    assert main(["tune", "dqn", "--budget", "1h", "--report", str(cache / "nowhere" / "report.html")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
    assert main(["tune", "dqn", "--budget", "1h", "--report", str(cache)]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_cost_model_that_is_not_installed_is_said_before_the_search(cache, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert main(["tune", "dqn", "--budget", "1h", "--cost-model", "learned"]) == 1
    assert "needs XGBoost: pip install" in capsys.readouterr().err


def test_the_best_alone_is_said_to_be_in_use_only_where_it_is(cache, capsys):
    trace = product_task().default().to_json()
    with Database() as database:
        database.add([record("abc", at=1.0, seconds=1.0), record("abc", at=2.0, seconds=2.0, trace=trace)])
        database.accept("little", TARGET, 2.0, 1.0, {"abc": (product_task().default(), 2.0)})
    (best,) = figures(capsys, "db", "best", "abc")["tasks"]
    assert best["gain"] == 2.0 and not best["in_use"]
    assert main(["db", "best"]) == 0 and "another is" in capsys.readouterr().out


def test_a_database_that_is_not_there_is_not_made_by_looking_at_it(cache, capsys):
    for action in ("stats", "best", "prune"):
        assert main(["db", action, "--database", str(cache / "typo")]) == 1
        assert "there is no such file" in capsys.readouterr().err
    assert not (cache / "typo").exists()


@pytest.mark.slow
def test_a_model_is_tuned_and_the_same_command_goes_on(cache, capsys, monkeypatch):
    monkeypatch.setitem(models.MODELS, "little", little)
    monkeypatch.setattr("weft.tuner.settings.PAIR_SECONDS", 0.05)
    words = ["tune", "little", "--budget", "1h", "--trials", "2", "--threads", "1", "--cost-model", "analytic"]
    first = figures(capsys, *words, "--report", str(cache / "report.html"))
    assert first["trials"] == 2 and first["tasks"][0]["gain"] >= 1.0
    page = (cache / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "<svg" in page and "loops before" in page
    again = figures(capsys, *words)
    assert sum(task["trials"] for task in again["tasks"]) == 4


@pytest.mark.slow
def test_a_space_is_measured_and_regret_is_said(cache, capsys, monkeypatch):
    monkeypatch.setitem(models.MODELS, "little", little)
    found = figures(capsys, "tune", "little", "--exhaustive", "gemm", "--points", "4", "--threads", "1")
    assert found["measured"] == 4 and found["points"] > 4
