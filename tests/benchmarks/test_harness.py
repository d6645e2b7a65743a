"""The measuring itself: what is counted, in what order, and that the peaks are peaks."""

import json
import time

import numpy as np
import pytest
from rich.console import Console

from benchmarks import harness


def test_every_round_measures_every_candidate_in_changing_order():
    calls = []
    candidates = {name: lambda name=name: (calls.append(name), time.sleep(0.0003)) for name in "abc"}
    stats = harness.interleave(candidates, rounds=12, settle=0)
    assert list(stats) == ["a", "b", "c"]
    assert all(len(one.samples) == 12 and one.repeats == 1 for one in stats.values())
    orders = {tuple(calls[-72:][i : i + 6 : 2]) for i in range(0, 72, 6)}
    assert len(orders) > 1 and all(sorted(order) == ["a", "b", "c"] for order in orders)


def test_short_calls_are_repeated_until_a_sample_is_long_enough():
    one = harness.interleave({"nothing": lambda: None}, rounds=5, settle=0)["nothing"]
    assert one.repeats > 100
    assert one.median * one.repeats > harness.SAMPLE_SECONDS / 4


def test_seconds_bound_the_time_but_not_below_five_rounds():
    start = time.perf_counter()
    stats = harness.interleave({"slow": lambda: time.sleep(0.01)}, seconds=0.0)
    assert len(stats["slow"].samples) == harness.LEAST_ROUNDS
    assert time.perf_counter() - start < 5
    assert len(harness.interleave({"x": lambda: time.sleep(0.001)}, seconds=0.2)["x"].samples) > 5


def test_figures_of_known_samples():
    stats = harness.Stats((4.0, 1.0, 3.0, 2.0, 5.0), 1)
    assert (stats.minimum, stats.median, stats.quartiles) == (1.0, 3.0, (2.0, 4.0))
    assert harness.speed_ratio(stats, harness.Stats((8.0, 2.0, 6.0, 4.0, 10.0), 3)) == 2.0
    assert json.loads(json.dumps(stats.as_json()))["minimum_s"] == 1.0


def test_an_error_of_a_candidate_comes_through():
    with pytest.raises(ZeroDivisionError):
        harness.interleave({"broken": lambda: 1 / 0})


def test_table_and_json(tmp_path):
    console = Console(width=100, record=True, file=open(tmp_path / "out", "w"))
    harness.print_system(console)
    harness.print_table("Title", ["size", "ratio", "gflops"], [["1024", 0.98765, 12345.6], ["17", None, 3]], console)
    text = console.export_text()
    assert "Title" in text and "0.988" in text and "12346" in text and "–" in text
    harness.write_json(tmp_path / "results.json", [{"x": 1}])
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["results"] == [{"x": 1}]
    assert written["system"]["cores"] >= 1 and written["system"]["packages"]["numpy"] == np.__version__


class _Row:
    def __init__(self, name):
        self.name = name

    def line(self):
        return f"{self.name}: measured"


def test_rows_are_told_as_they_come_and_an_interrupted_run_keeps_them(tmp_path):
    console = Console(width=40, record=True, file=open(tmp_path / "out", "w"))

    def rows():
        yield _Row("first [1]")
        assert "first [1]: measured" in console.export_text(clear=False)
        yield _Row("second")
        raise KeyboardInterrupt

    assert [row.name for row in harness.collect(rows(), console)] == ["first [1]", "second"]
    assert "stopped" in console.export_text()
