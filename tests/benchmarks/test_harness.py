"""The measuring itself: what is counted, in what order, and that the peaks are peaks."""

import json
import time

import llvmlite.binding as llvm
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_peak_loop_holds_nothing_but_multiply_adds_on_registers(dtype):
    machine = harness._host_machine()
    module = llvm.parse_assembly(harness.fma_assembly_source(dtype))
    lines = [line.split("#")[0].strip() for line in machine.emit_assembly(module).splitlines()]
    loops = [i for i, line in enumerate(lines) if line.startswith((".LBB0_", "LBB0_")) and line.endswith(":")]
    loop = lines[loops[0] + 1 : loops[1] if len(loops) > 1 else None]
    body = loop[: next(i for i, line in enumerate(loop) if line.startswith(("j", "b.", "cbn")))]
    multiply_adds = [line for line in body if line.startswith(("vfmadd", "fmla"))]
    assert len(multiply_adds) == harness._accumulators() * harness._UNROLL
    assert not any("(" in line or "[" in line for line in multiply_adds)
    assert len(body) <= len(multiply_adds) + 6


@pytest.mark.parametrize("threads", [1, 2])
def test_the_peak_is_measured(threads):
    assert harness.fma_peak(threads, seconds=0.05) > 1


def test_junk_is_refused():
    with pytest.raises(ValueError, match="no multiply-add peak for 'int8'; choose from float16, float32"):
        harness.fma_peak(dtype="int8")
    with pytest.raises(ValueError, match="threads is 0"):
        harness.fma_peak(threads=0)


def test_copy_bandwidth():
    assert harness.copy_bandwidth(threads=2, megabytes=8) > 0.1


def test_vector_width():
    assert harness.vector_bytes({"avx512f": True, "avx": True}) == 64
    assert harness.vector_bytes({"avx": True}) == 32
    assert harness.vector_bytes({}) == 16


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
