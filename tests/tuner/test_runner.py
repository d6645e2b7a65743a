"""Children that build, check and time; that crash, hang, compute nonsense or talk it."""

from __future__ import annotations

import copy
import math
import os
import signal
import tempfile
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.tuner.small import elementwise_task, product_task
from weft import te
from weft.core.errors import RuntimeFault, ScheduleError
from weft.targets.registry import find_target
from weft.tuner import bench as bench_module
from weft.tuner import settings
from weft.tuner.bench import Bench, difference, length_of, row_of
from weft.tuner.on_device import turn
from weft.tuner.records import Outcome, Status
from weft.tuner.runner import ChildError, LocalRunner, _fork, _said, in_child
from weft.tuner.space import Region, space_of
from weft.tuner.task import task_of_schedule


@pytest.fixture(scope="module")
def task():
    return product_task()


@pytest.fixture(scope="module")
def ready(task):
    made = Bench(task, 1)
    made.default.run()
    return made


@pytest.fixture
def bench(ready):
    return copy.copy(ready)


@pytest.fixture(scope="module")
def good(task):
    space = space_of(task)
    region, _ = space.region_of(space.default)
    return region, space.point(space.default)[1]


def planted(good, action) -> Region:
    """The region with something that happens when its point is taken."""
    region, _ = good

    def take(program, point):
        region.take(program, point)
        action()

    return Region(region.sketch, take, region.fresh)


def measured(bench, region, point, **limits):
    (outcome,) = LocalRunner(**limits).measure(bench, [(region, point)])
    return outcome


@pytest.mark.parametrize("threads", [1, 2])
def test_a_good_point_is_built_checked_and_timed_beside_the_default(task, good, threads):
    (outcome,) = LocalRunner().measure(Bench(task, threads), [good])
    assert outcome.status is Status.OK and 0 < outcome.seconds < 1 and 0 < outcome.baseline < 1, outcome
    assert outcome.trace == task.default().to_json()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_is_a_row(bench, good, number):
    outcome = measured(bench, planted(good, lambda: os.kill(os.getpid(), number)), good[1])
    assert outcome.status is Status.CRASH and outcome.detail == number.name and outcome.gain == 0.0


def test_an_early_end_is_a_row(bench, good):
    outcome = measured(bench, planted(good, lambda: os._exit(3)), good[1])
    assert outcome.status is Status.CRASH and "code 3" in outcome.detail


def test_a_hang_is_a_row_and_its_child_is_gone(bench, good, monkeypatch):
    forked, fork = [], os.fork

    def noted():
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", noted)
    begin = time.monotonic()
    outcome = measured(bench, planted(good, lambda: time.sleep(60)), good[1], build_seconds=0.3)
    assert outcome.status is Status.HANG and time.monotonic() - begin < 30
    (child,) = forked
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_a_kernel_that_hangs_has_a_limit_of_its_own(bench, good, monkeypatch):
    monkeypatch.setattr(bench_module, "difference", lambda *_: time.sleep(60))
    outcome = measured(bench, *good, run_seconds=0.3)
    assert outcome.status is Status.HANG


def test_a_refusal_and_a_broken_compiler_are_rows(bench, good, monkeypatch):
    def refuse():
        raise ScheduleError("split", "i", "no such loop")

    outcome = measured(bench, planted(good, refuse), good[1])
    assert outcome.status is Status.REFUSED and "no such loop" in outcome.detail

    def broken(*_):
        raise RuntimeError("LLVM ERROR: out of luck")

    monkeypatch.setattr(bench_module, "Built", broken)
    (outcome,) = LocalRunner().measure(bench, [good])
    assert outcome.status is Status.BUILD_ERROR and "out of luck" in outcome.detail and outcome.trace


def test_garbage_on_the_way_is_a_row(bench, good):
    nothing = [Outcome(Status.OK, *times).to_json() for times in ((0.0, 1e-6), (1e-6, 0.0))]  # it took no time at all
    for text in ("nonsense", '{"status": "ok"}', "[1, 2", *nothing):

        def trial(self, kernel, text=text):
            class Line:
                def to_json(self):
                    return text

            return Line()

        bench.trial = trial.__get__(bench)
        (outcome,) = LocalRunner().measure(bench, [good])
        assert outcome.status is Status.GARBAGE, text
    with pytest.raises(ChildError, match="garbage"):
        in_child(lambda say: say("what is this") or "", 5.0)


def test_a_device_s_clock(bench, monkeypatch):
    """What a kernel adds to a row of those beside it: the least of the turns counts; what takes far longer has two; a
    clock that stands still is garbage."""

    def kernel(seconds):
        made = bench_module.DeviceKernel.__new__(bench_module.DeviceKernel)
        made.timer, made._target = lambda: lambda: [seconds], find_target("vdla")
        return made

    rows = {}

    def found(default, other, *taken):
        """With two kernels that have rows of theirs taking so long: of those beside, with the default, with it."""
        bench._rows = None
        monkeypatch.setattr(bench_module, "length_of", lambda *kernels: 1)
        left = iter([iter(one) for one in taken])
        monkeypatch.setattr(
            bench_module,
            "row_of",
            lambda count, *kernels: rows.setdefault(len(kernels), []).append(kernels) or next(left).__next__,
        )
        return bench._by_its_clock(kernel(default), kernel(other))

    def turns(*times):
        return [*times, *[max(times)] * settings.DEVICE_ROUNDS]

    assert found(3.0, 4.0, turns(5.0, 4.0), turns(9.0, 6.0), turns(8.0, 9.0)).gain == 0.5  # it adds 4, the default 2
    assert [len(one) for one in rows.values()] == [1, 2]  # beside nothing that is known: a row of the default
    slow = found(1.0, 50.0, turns(1.0), turns(2.0))  # no row of it was run
    assert slow.gain == 0.02 and len(rows[2]) == 3
    assert found(1.0, 1.0, turns(1.0), turns(2.0), turns(1.0)).gain == pytest.approx(1 / settings.LEAST_PART)
    assert found(0.0, 0.0, turns(0.0), turns(0.0), turns(0.0)).status is Status.GARBAGE


def test_a_wrong_result_is_a_row(bench, good):
    """The default's result is spoilt: every other then differs from it."""
    bench.expected = [array + 1 for array in bench.expected]
    (outcome,) = LocalRunner().measure(bench, [good])
    assert outcome.status is Status.WRONG and "apart" in outcome.detail and outcome.trace


def test_a_fault_is_a_row(bench, good, monkeypatch):

    def failing(self, times=1):
        raise RuntimeFault("out of memory")

    original = bench_module.Kernel.run
    monkeypatch.setattr(
        bench_module.Kernel, "run", lambda self, times=1: (original if self is bench.default else failing)(self, times)
    )
    (outcome,) = LocalRunner().measure(bench, [good])
    assert outcome.status is Status.FAULT and "out of memory" in outcome.detail


def test_points_are_built_beside_each_other_and_run_one_by_one(bench, good, tmp_path, monkeypatch):
    """Each waits, while it is built, for the others to be built too; no run begins before the last is built."""
    monkeypatch.setattr("weft.tuner.runner.get_threads", lambda: 3)
    said, trial = os.open(tmp_path / "said", os.O_RDWR | os.O_CREAT | os.O_APPEND), Bench.trial

    def meet():
        os.write(said, b"b")
        end = time.monotonic() + 60
        while os.fstat(said).st_size < 3:
            assert time.monotonic() < end
            time.sleep(0.01)

    def noted(self, kernel):
        os.write(said, b"(")
        made = trial(self, kernel)
        os.write(said, b")")
        return made

    monkeypatch.setattr(Bench, "trial", noted)
    crash = planted(good, lambda: (meet(), os.kill(os.getpid(), signal.SIGSEGV)))
    points = [(planted(good, meet), good[1]), (crash, good[1]), (planted(good, meet), good[1])]
    found = [one.status for one in LocalRunner().measure(bench, points)]
    assert found == [Status.OK, Status.CRASH, Status.OK] and (tmp_path / "said").read_text() == "bbb()()"


def test_what_counts_as_the_same_result():
    a = np.linspace(-1, 1, 100, dtype=np.float32)
    assert not difference([a], [a * (1 + 1e-5)]) and "apart" in difference([a], [a * 1.01])
    nan = a.copy()
    nan[3] = np.nan
    assert "not finite" in difference([a], [nan]) and not difference([nan], [nan])
    assert "1 of 3" in difference([np.array([1, 2, 3])], [np.array([1, 2, 4])])
    assert not difference([np.zeros(0, np.float32)], [np.zeros(0, np.float32)])


def test_values_of_narrow_types_between_kernels_round():
    want, have = np.ones(4, np.float32), np.full(4, 1.01, np.float32)
    assert difference([want], [have]) and not difference([want], [have], least=2e-2)


def test_a_child_that_raises_says_what():
    def work(say):
        raise LookupError("nothing there")

    with pytest.raises(ChildError, match="build error: LookupError: nothing there"):
        in_child(work, 5.0)
    assert in_child(lambda say: "fine", 5.0) == "fine"


def test_any_program_can_be_measured():
    task = elementwise_task()
    space = space_of(task)
    points = [(space.region_of(int(n))[0], space.point(int(n))[1]) for n in space.legal[:3]]
    assert {outcome.status for outcome in LocalRunner().measure(Bench(task, 1), points)} <= {Status.OK, Status.REFUSED}


@pytest.fixture(scope="module")
def on_device():
    """Points of a product on a device that every machine has: the accelerator's model."""
    target = find_target("vdla")
    x, w = te.placeholder((4, 2, 16), "int8", name="x"), te.placeholder((2, 2, 16, 16), "int8", name="w")
    d, k = te.reduce_axis(2, "d"), te.reduce_axis(16, "k")
    y = te.compute(
        (4, 2, 16),
        lambda i, f, o: te.sum(x[i, d, k].astype("int32") * w[f, d, o, k].astype("int32"), axis=[d, k]),
        name="y",
    )
    task = task_of_schedule(te.create_schedule(y.op), [x, w, y], target)
    space = space_of(task)
    return task, (space.region_of(space.default)[0], space.point(space.default)[1])


def test_a_device_is_opened_by_the_child_alone(on_device):
    task, point = on_device
    bench = Bench(task)
    (outcome,) = LocalRunner().measure(bench, [point])
    assert outcome.status is Status.OK and outcome.trace == task.default().to_json(), outcome
    assert bench._default is None


@pytest.mark.parametrize("fault", [RuntimeFault("illegal access"), signal.SIGSEGV, None])
def test_what_ends_the_child_of_a_device_does_not_end_the_search(on_device, fault, monkeypatch):
    """One child measures many points; the one that faults or dies is a row, and another child takes the rest."""
    task, point = on_device
    run, forked, fork = bench_module.DeviceKernel.run, [], os.fork

    def running(self, times=1):
        if hasattr(self, "bad") and isinstance(fault, Exception):
            raise fault
        if hasattr(self, "bad"):
            os.kill(os.getpid(), fault) if fault else os._exit(0)
        run(self, times)

    build = Bench.build

    def building(self, region, at):
        made = build(self, region, {name: number for name, number in at.items() if name != "bad"})
        vars(made).update({"bad": True} if "bad" in at else {})
        return made

    monkeypatch.setattr(bench_module.DeviceKernel, "run", running)
    monkeypatch.setattr(Bench, "build", building)
    monkeypatch.setattr(os, "fork", lambda: forked.append(fork()) or forked[-1])
    bad = point[0], {**point[1], "bad": 1}
    runner, bench = LocalRunner(), Bench(task)
    found = [one.status for one in runner.measure(bench, [point, bad, point])]
    found += [one.status for one in runner.measure(Bench(task), [point])]  # another task, in the same child
    want = Status.FAULT if isinstance(fault, Exception) else Status.CRASH
    assert found == [Status.OK, want, Status.OK, Status.OK] and len(forked) == 4 + 2


def test_two_that_measure_on_one_device_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target, said = find_target("vdla"), tmp_path / "said"

    def work(say):
        for _ in range(20):
            with turn(target), said.open("a") as file:
                print("in", file=file, flush=True)
                time.sleep(0.001)
                print("out", file=file, flush=True)
        return ""

    both = [_said(*_fork(lambda say: iter([work(say)])), 30.0) for _ in range(2)]
    assert [next(one) for one in both] == ["", ""]
    assert said.read_text().split() == ["in", "out"] * 40


def test_a_child_that_ends_lets_others_have_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def work(say):
        turn(find_target("vdla")).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildError, match="SIGKILL"):
        in_child(work, 30.0)
    assert in_child(lambda say: turn(find_target("vdla")).__enter__() or "free", 30.0) == "free"


def test_constants_that_leave_the_cache_have_copies(on_device, monkeypatch):
    """Where the model's constants do not fit the device's cache: each run reads others."""
    monkeypatch.setattr(settings, "QUICK_SECONDS", math.inf)  # the host may be busy
    task, _ = on_device
    kernel = Bench(task).planned
    kernel._target = replace(task.target, cache_bytes=(0, 4096, 0))
    kernel._constants, kernel._around = frozenset({1}), 1 << 20
    arrays = task.arrays(np.random.default_rng(0))
    kernel.bind(arrays)
    assert len(kernel._runs) == 1 + 2 * 4096 // arrays[1].nbytes
    kernel._around = 4000
    kernel.bind(arrays)
    assert len(kernel._runs) == 1 and row_of(2, kernel, kernel)() == pytest.approx(2 * row_of(1, kernel)())
    assert 1 <= length_of(kernel, kernel) <= length_of(kernel)


def test_a_kernel_is_timed_beside_those_before_and_after_it_in_its_model(on_device, monkeypatch):
    """The child that has the device gets these as well, and binds each once."""
    task, point = on_device
    bench, said = Bench(task), []
    bench.beside = (Bench(task), Bench(task))
    monkeypatch.setattr(
        bench_module, "row_of", lambda count, *kernels: said.append(len(kernels)) or (lambda: len(kernels))
    )
    in_child = Bench.sent(*bench.to_send())
    for _ in range(2):
        outcome = in_child.trial(bench.build(*point))
        assert outcome.status is Status.OK and outcome.gain == 1.0 and outcome.seconds == 1.0
    assert said == [2, 3, 3, 3] and len({id(one.default) for one in (in_child, *in_child.beside)}) == 3


def test_turns_are_taken_again_until_the_default_is_as_fast_as_it_was(bench, monkeypatch):
    """Somebody on the core's other thread slows both, and not by the same factor: the calm answer counts."""
    answers = iter([([1.6, 1.4], 0.0), ([1.7, 1.4], 0.0), ([1.02, 1.1], 0.0), ([9.0, 9.0], 0.0)])
    monkeypatch.setattr(bench_module, "in_turns", lambda calls, threads, rounds: next(answers))
    bench.calm = 1.0
    assert bench.calm_turns([]) == ([1.02, 1.1], 0.0)
    bench.calm = float("inf")  # nothing is known: one answer is enough
    assert bench.calm_turns([]) == ([9.0, 9.0], 0.0)


def test_a_hopeless_point_is_not_measured_until_all_is_calm(bench, monkeypatch):
    answers = iter([([2.0, 4.0], 0.0)])
    monkeypatch.setattr(bench_module, "in_turns", lambda calls, threads, rounds: next(answers))
    bench.calm = 1.0
    assert bench.calm_turns([]) == ([2.0, 4.0], 0.0)


def test_what_the_default_takes_is_remembered_and_slowly_forgotten(bench, good):
    region, point = good
    bench.calm = 1e-12
    (found,) = LocalRunner().measure(bench, [(region, point)])
    assert found.status is Status.OK and bench.calm == pytest.approx(1.01e-12)
    bench.calm = 1e3
    (found,) = LocalRunner().measure(bench, [(region, point)])
    assert bench.calm == found.baseline
