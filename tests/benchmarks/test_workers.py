"""Candidates in processes of their own: they compute the same, take turns, and fail without taking others along."""

import os
import signal
import time

import numpy as np
import pytest

from benchmarks import workers
from benchmarks.conv import CONVOLUTIONS, Convolution
from benchmarks.workers import (
    CLOCKS,
    Race,
    Task,
    Timing,
    WorkerProblem,
    best_ratio,
    burst,
    geometric_mean,
    speed_ratio,
)
from weft.cli.facts import relative_error

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
SMALL = Convolution("small", 8, 4, 6, 3, 1)


def test_a_burst_leaves_out_the_first_calls():
    calls = []
    taken = burst(lambda: (calls.append(1), time.sleep(0.002)), seconds=0.02)
    assert 2 <= len(taken) < len(calls) and all(0.002 <= one < 1 for one in taken)
    assert len(burst(lambda: time.sleep(0.01), seconds=0.0)) == 2


def test_processor_time_leaves_out_waiting():
    def work():
        time.sleep(0.005)
        return sum(range(20_000))

    assert min(burst(work, 0.002, CLOCKS["cpu"])) < 0.005 <= min(burst(work, 0.0, CLOCKS["wall"]))


def test_ratios_are_by_rounds():
    ours, theirs = Timing((1.0, 2.0, 4.0), 0.5, 9), Timing((2.0, 4.0, 9.0), 2.0, 9)
    assert speed_ratio(ours, theirs) == 2.0 and best_ratio(ours, theirs) == 4.0
    assert ours.median == 2.0 and ours.as_json()["rounds"] == 3
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0) and np.isnan(geometric_mean([]))


def test_candidates_are_told_their_threads_before_they_begin(tmp_path):
    """Libraries do not all keep to the number of threads that they are told later."""
    path, feeds = SMALL.write(tmp_path)
    before = os.environ.get("OMP_NUM_THREADS")
    with Race(["weft"]) as race:
        processes = []
        for threads in (1, 2, 2):
            race.prepare(Task(path, feeds, threads=threads))
            processes.append(race.workers["weft"]._process.pid)
            if os.path.exists("/proc/self/environ"):
                with open(f"/proc/{processes[-1]}/environ", "rb") as file:
                    assert f"OMP_NUM_THREADS={threads}".encode() in file.read().split(b"\0")
        assert processes[0] != processes[1] == processes[2]
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_candidates_compute_the_same_and_are_stopped_outside_their_turns(tmp_path):
    path, feeds = SMALL.write(tmp_path)
    names = ["weft", "convolution alone", "onnxruntime"]
    with Race(names) as race:
        ready = race.prepare(Task(path, feeds, threads=1))
        assert [one.problem for one in ready.values()] == ["", "", ""]
        for one in ready.values():
            assert relative_error(one.outputs, ready["onnxruntime"].outputs) < 1e-5
        processes = [worker._process.pid for worker in race.workers.values()]
        if workers.CAN_STOP and os.path.exists("/proc/self/stat"):
            states = [open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] for pid in processes]
            assert states == ["T", "T", "T"]
        timings = race.run(seconds=0.0)
        assert list(timings) == names
        assert all(
            len(one.rounds) == workers.LEAST_ROUNDS and 0 < one.minimum <= one.median for one in timings.values()
        )
        # The kernel alone is a part of the whole call.
        assert timings["convolution alone"].minimum < timings["weft"].minimum
    for pid in processes:
        with pytest.raises(OSError):
            os.kill(pid, 0)


def test_a_problem_is_a_cell_and_a_death_is_too(tmp_path):
    path, feeds = SMALL.write(tmp_path)
    with Race(["onnxruntime"]) as race:
        found = race.prepare(Task(path, feeds, precision="bf16"))
        assert found["onnxruntime"].problem == "ONNX Runtime is measured in fp32 only"
        assert race.run(seconds=0.0) == {}
        found = race.prepare(Task(tmp_path / "missing.onnx", feeds))
        assert "missing.onnx" in found["onnxruntime"].problem
        worker = race.workers["onnxruntime"]
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(WorkerProblem, match="its process ended with"):
            worker.ask("burst", 0.0)
        found = race.prepare(Task(path, feeds))  # another takes its place
        assert found["onnxruntime"].problem == ""
        os.kill(worker._process.pid, signal.SIGKILL)
        assert race.run(seconds=0.0) == {} and "its process ended with" in found["onnxruntime"].problem


def test_the_convolutions_are_the_papers(tmp_path):
    assert [one.name for one in CONVOLUTIONS] == [f"C{n}" for n in range(1, 13)] + [f"D{n}" for n in range(1, 10)]
    assert CONVOLUTIONS[1].operations == 2 * 56 * 56 * 64 * 64 * 9
    assert CONVOLUTIONS[-1].operations == 2 * 7 * 7 * 1024 * 9
    import onnxruntime

    for one in (Convolution("odd", 9, 4, 8, 3, 2), Convolution("wide", 16, 8, 8, 7, 2, depthwise=True)):
        path, feeds = one.write(tmp_path)
        made = onnxruntime.InferenceSession(str(path)).run(None, feeds)[0]
        out = -(-one.size // one.stride)
        assert made.shape == (1, one.outputs, out, out)
