"""A whole model tuned on a GPU that keeps the books: what takes how long is made up, of the sizes of launches."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from tests.compiler.device.fake_cuda import FakeDriver
from tests.compiler.graphs import mlp
from weft.core.knobs import knobs
from weft.plan.overrides import Records
from weft.schedule.trace import Trace
from weft.targets.cuda import device as cuda_device
from weft.targets.cuda import driver, nvrtc
from weft.targets.cuda.parse import of_architecture
from weft.tuner import settings
from weft.tuner.database import Database
from weft.tuner.model import Verdict, make_tuning

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")


class Clock(FakeDriver):
    """A driver with a clock, that only kernels move: by so many seconds for their blocks and threads."""

    now = 0.0

    def __init__(self):
        super().__init__()
        self.stamps = {}

    def __getattr__(self, name):
        own = getattr(Clock, f"_{name}", None) if name.startswith("cu") else None
        return super().__getattr__(name) if own is None else lambda *given: own(self, *given) or 0

    def _cuEventCreate(self, handle, flags):
        handle._obj.value = self._next()

    def _cuEventRecordWithFlags(self, event, stream, flags):
        self._put(stream, ("event", event.value))

    def _cuGraphLaunch(self, run, stream):
        for kind, what in self.graphs[run.value]:
            if kind == "kernel":
                x, y, z, *threads = what[1]
                self.now += 1e-3 * (1.0 + (7 * x * y * z + sum(threads)) % 16 / 16)
            elif kind == "event":
                self.stamps[what] = self.now

    def _cuEventElapsedTime(self, passed, before, after):
        passed._obj.value = self.stamps[after.value] - self.stamps[before.value]


@pytest.fixture
def target(monkeypatch, tmp_path):
    clock = Clock()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    with monkeypatch.context() as patch, knobs.override(cache=True):
        patch.setattr(driver, "_library", lambda: clock)
        driver.context.cache_clear()
        cuda_device._open.cache_clear()
        yield replace(of_architecture("sm_90a", "cuda:0"), is_host=True)
        driver.context.cache_clear()
        cuda_device._open.cache_clear()
        gc.collect()


@pytest.mark.slow
@needs_nvrtc
def test_what_is_fastest_in_the_whole_model_is_used(target, tmp_path, monkeypatch, caplog):
    """Kernels are changed in the model without compiling it again; another form is searched, and left again."""
    caplog.set_level("INFO")
    monkeypatch.setattr(settings, "RUN_TURNS", 8)
    with Database(tmp_path / "records.sqlite") as database:
        made = make_tuning(mlp(), "10m", target, None, None, database, model="analytic", most=8)
        stages = []

        def choose(observe):
            made.close.append((0.9, {}))

        made.choose = choose
        made.run(lambda tuning, record: stages.append(tuning.stage) if record is None else None)
        assert not made.skipped and made.trials == 8 and not made.failures
        assert made.kept and made.form is None and "looking at another form" in stages
        in_use = database.accepted(target)
        assert set(made.kept) <= set(in_use.traces)  # beside what ships
        found = made.measure(type(in_use)(), in_use)
        assert found.is_faster and not found.problem and found.before / found.after == pytest.approx(found.ratio)
    said = [one.getMessage() for one in caplog.records if "in the whole model" in one.getMessage()]
    assert len(said) >= 2 and f"{len(made.kept)} chosen" in said[0]


@needs_nvrtc
def test_points_are_taken_of_the_program_that_is_built(target, tmp_path):
    """Another form has tasks of the same text, whose constants are other values: points planned for these would take
    weights for inputs, and were six times as slow (H200)."""
    with Database(tmp_path / "records.sqlite") as database:
        made = make_tuning(mlp(), "10m", target, None, None, database, model="analytic")
        made.prepare()
        first = made.tasks[0]
        made._build_defaults()
        made.prepare()
        search = made.search_of(made.tasks[0])
        assert made.tasks[0] is not first and made.tasks[0].key == first.key
        assert search.task is search.bench.task is first
        region, _ = search.space.region_of(search.space.default)
        again = search.bench.build(region, search.space.point(search.space.default)[1])
        assert again.program.source == search.bench.planned.program.source


@needs_nvrtc
def test_what_saves_least_is_left_out_where_the_model_is_not_faster(target, tmp_path):
    with Database(tmp_path / "records.sqlite") as database:
        made = make_tuning(mlp(), "10m", target, None, None, database, model="analytic")
        sizes = []

        def measure(before, after):
            sizes.append(len(after.traces) - len(before.traces))
            return Verdict(2.0, 1.0, 2.0) if sizes[-1] < 2 else Verdict(1.0, 1.1, 0.9)

        made.measure, made.searches = measure, {}
        for count, kept, asked in ((5, 1, [5, 2, 1]), (1, 1, [1]), (0, 0, [])):
            made._mix = lambda in_use, best, count=count: {str(at): (Trace([]), 1.1) for at in range(count)}
            sizes.clear()
            assert [*made._faster(Records())] == [str(at) for at in range(kept)] and sizes == asked
