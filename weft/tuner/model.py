"""A whole model tuned: its time shared among its tasks, and what was found accepted when the model itself is faster.

Each batch goes to the task from which most is expected: much time in the model, few batches since it last got better.
At the end the best few schedules of each task run inside the model, where caches hold other things than alone, and what
saves most there is taken (`inside.py`); all of these together are put into use if the whole model
measured faster, in turns, in a child. So tuning never makes a model slower.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import pickle
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from weft.compiler.lowering.graph import lower_graph
from weft.compiler.module import bind_shapes, compile_graph
from weft.compiler.passes import for_target, optimize
from weft.compiler.precision import check_precision, machine_of
from weft.compiler.reports.inputs import random_array
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.graph.ir import Graph, TensorType
from weft.graph.passes.algorithms import choosing
from weft.graph.structural import structure_key
from weft.plan.overrides import Records, digest, recording, with_traces
from weft.runtime.threads import get_threads
from weft.schedule.trace import Trace
from weft.targets.base import Target
from weft.targets.registry import find_target
from weft.tuner import settings
from weft.tuner.algorithms import choose_algorithms, with_labels
from weft.tuner.bench import Bench, DeviceKernel, difference
from weft.tuner.cost_models import cost_model
from weft.tuner.database import READ_ONLY, Database
from weft.tuner.inside import Found, State, chosen, descent, sets_of
from weft.tuner.on_device import Run, in_turns, times_of
from weft.tuner.records import Record, TuneError, compiler_version, machine_key
from weft.tuner.runner import ChildError, LocalRunner, Runner, beside_each_other, in_child
from weft.tuner.search import Proposer, Search
from weft.tuner.space import space_of
from weft.tuner.task import Task, tasks_of

logger = logging.getLogger(__name__)

STANDS = -1  # which of the kernels of a task is in use


def seconds_of(budget: str | float) -> float:
    """The seconds that a text such as "30s", "5m" or "1h" stands for."""
    if isinstance(budget, (int, float)) and not isinstance(budget, bool) and 0 < budget < 1e7:
        return float(budget)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(budget))
    if match is None or float(match[1]) <= 0:
        raise TuneError(f"a budget is a time such as 30s, 5m or 1h, not {budget!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


@dataclass
class Verdict:
    """What the whole model took with a set of schedules, beside what it takes without."""

    before: float = math.inf
    after: float = math.inf
    ratio: float = 0.0  # how many times as fast: the median of pairs
    problem: str = ""
    least: float = math.inf  # the least that the ratio may be, by chance one time in forty

    @property
    def is_faster(self) -> bool:
        """Whether the set may be put into use."""
        return not self.problem and self.ratio >= settings.FASTER and self.least >= 1.0


@dataclass
class Tuning:
    """A model being tuned: what `view` shows and `report` writes."""

    name: str
    graph: Graph
    target: Target
    database: Database
    budget: float
    precision: str | None = None
    threads: int = 1
    model: str | None = None  # the cost model, by name; None: the best that is here
    explorer: str | None = None
    seed: int = 0
    most: int | None = None  # trials, at most; None: as many as there is time for
    runner: Runner = field(default_factory=LocalRunner)
    tasks: list[Task] = field(default_factory=list)
    searches: dict[str, Search] = field(default_factory=dict)
    offered: dict[str, list[str]] = field(default_factory=dict)  # what can be chosen in the model (`algorithms.py`)
    algorithms: list[tuple[str, list[str], float]] = field(default_factory=list)
    """What was tried: a label, the parts of the model that had it, how many times as fast the model was."""
    chose_algorithms: bool = False  # whether another form of the model was put into use
    close: list[tuple[float, dict[str, str]]] = field(default_factory=list)
    """Forms that are about as fast as what stands, how fast and their labels: on a device the best of them have their
    schedules searched."""
    form: dict[str, str] | None = None  # the one that is being searched; None for what stands
    made: Graph = field(init=False, repr=False)
    skipped: dict[str, str] = field(default_factory=dict)  # tasks that cannot be measured, with the reason
    trials: int = 0
    started: float = field(default_factory=time.monotonic)
    stage: str = "looking at the model"
    model_seconds: float = 1.0
    """What compiling and measuring the whole model took: at first, or less, with what is in the cache by then."""
    verdict: Verdict | None = None
    kept: dict[str, tuple[Trace, float]] = field(default_factory=dict)
    _benches: dict[str, Bench | WeftError] = field(default_factory=dict, repr=False)
    stopped: bool = False

    @property
    def left(self) -> float:
        """Seconds left."""
        return max(0.0, self.budget - (time.monotonic() - self.started))

    @property
    def failures(self) -> Counter[str]:
        """Trials that failed, by kind."""
        return sum((search.failures for search in self.searches.values()), Counter())

    def expected_gain(self) -> float:
        """What the model gains if its tasks do as well in it as alone."""
        total = sum(task.seconds for task in self.tasks)
        saved = sum(
            task.seconds * (1 - 1 / self.searches[task.key].gain) for task in self.tasks if task.key in self.searches
        )
        return total / (total - saved) if total > saved else 1.0

    # -------------------------------------------------------------------------------------------------- running

    def prepare(self) -> None:
        """Finds the tasks, and what each takes in the model."""
        begin = time.monotonic()
        import weft.ops  # noqa: F401  (fills the table of operators)

        chosen = self._formed(Records(algorithms=self.database.accepted(self.target).algorithms))
        labels = chosen.algorithms.get(structure_key(self.graph), {})
        with recording(chosen), choosing(labels, self.offered):
            self.made = graph = for_target(optimize(self.graph, {}, {}), self.target, self.precision)
            # What compiles for a device may open it: a child does that first, and its code is found in the cache.
            seconds = self.launch_seconds(chosen) if self.target.on_device else []
            lowered = lower_graph(graph, self.target, lambda rest: None)
            seconds = self.launch_seconds(chosen) if lowered.kernels and not seconds else seconds
        taken = time.monotonic() - begin
        self.model_seconds = min(self.model_seconds, taken) if self.tasks else taken
        self.tasks = tasks_of(graph, lowered, self.target, seconds)
        if not self.tasks:
            raise TuneError(f"{self.name} has no kernels of fixed sizes: there is nothing to tune")

    def launch_seconds(self, chosen: Records) -> list[float]:
        """What each launch of the model takes."""
        try:
            return list(self._asked(lambda: self._profile(chosen)))
        except ChildError as error:
            own = "; a device that this process has opened is closed to its children: tune in another process"
            raise TuneError(f"{self.name} cannot be measured: {error}{own if self.target.on_device else ''}") from None

    def try_default(self, bench: Bench) -> None:
        """A WeftError where the default of a task cannot be measured by itself; for a device it is built in a child."""
        if not self.target.on_device:
            bench.default.run()
            return
        try:
            made = in_child(lambda say: pickle.dumps(bench.planned).hex(), settings.BUILD_SECONDS)
        except ChildError as error:
            raise TuneError(str(error)) from None
        vars(bench)["planned"] = pickle.loads(bytes.fromhex(made))

    def choose(self, observe: Callable[[Tuning, Record | None], None]) -> None:
        """Tries the algorithms of the model."""
        choose_algorithms(self, observe)

    def bench_of(self, task: Task) -> Bench:
        """What measures a task, its default tried; a WeftError where it cannot be measured by itself."""
        if task.key not in self._benches:
            made = Bench(task, self.threads)
            try:
                self.try_default(made)
                self._benches[task.key] = made
            except WeftError as error:
                self._benches[task.key] = error
        found = self._benches[task.key]
        if isinstance(found, WeftError):
            raise found
        return found

    def _build_defaults(self) -> None:
        """On a device: the defaults of all tasks, built beside each other."""
        if not isinstance(self.runner, LocalRunner) or not self.target.on_device:
            return
        benches = [Bench(task, self.threads) for task in self.tasks if task.key not in self._benches]
        self.target.machine_codes([])  # what compiles is loaded once for all children
        works = [functools.partial(getattr, bench, "planned") for bench in benches]
        for bench, made in zip(benches, beside_each_other(works, settings.BUILD_SECONDS)):
            if isinstance(made, str):
                vars(bench)["planned"] = pickle.loads(bytes.fromhex(made))
            self._benches[bench.task.key] = bench if isinstance(made, str) else TuneError(made.detail)

    def _beside(self, task: Task) -> tuple[Bench, ...]:
        """On a device: what runs before and after a task, where it is called most; nothing where that is not known."""
        if not isinstance(self.runner, LocalRunner) or not self.target.on_device:
            return ()
        order, known = self._order(), {one.key: one for one in self.tasks}
        around = Counter((order[at - 1], order[(at + 1) % len(order)]) for at in task.places)
        try:
            found = tuple(self.bench_of(known[key]) for key in around.most_common(1)[0][0])
        except WeftError:
            return ()
        size = sum(array.nbytes for bench in found for array in bench.arrays)
        return found if size <= settings.BESIDE_BYTES else ()

    def _order(self) -> list[str]:
        """The keys of the launches of the model."""
        return [key for _, key in sorted((at, task.key) for task in self.tasks for at in task.places)]

    def search_of(self, task: Task) -> Search | None:
        """The search of a task; None where it cannot be measured by itself."""
        if task.key in self.searches or task.key in self.skipped:
            return self.searches.get(task.key)
        try:
            bench = self.bench_of(task)
            space = space_of(bench.task)  # what is built: another form has a program of the same text, and other values
            if space.size < 2:
                raise TuneError("there is only one point")
            bench.beside = self._beside(task)
        except WeftError as error:
            self.skipped[task.key] = str(error).splitlines()[0]
            return None
        model, explorer = cost_model(self.model, self.seed, space), self.explorer or "exhaustive"
        made = Search(bench.task, bench, Proposer(space, model, explorer, self.seed), self.runner, self.database)
        self.searches[task.key] = made
        return made

    def run(self, observe: Callable[[Tuning, Record | None], None] = lambda tuning, record: None) -> None:
        """Prepares, searches and accepts. Ctrl-C ends the search early; a second one ends everything."""
        observe(self, None)
        try:
            self.prepare()
            self.choose(observe)
            if self.chose_algorithms:
                self.prepare()
        except KeyboardInterrupt:
            self.stopped = True
        forms = [form for _, form in sorted(self.close, key=lambda one: -one[0])[: settings.FORMS]]
        self._search_and_accept(observe, len(forms) + 1)
        for at, form in enumerate(forms):
            if not self.stopped and self.left > settings.DEVICE_INSIDE * self.model_seconds:
                self._try_form(form, observe, len(forms) - at)
        self.stage = "done"
        observe(self, None)

    def _search_and_accept(self, observe: Callable[[Tuning, Record | None], None], forms: int) -> None:
        """Searches what stands for the first of some forms that share what is left of the time, and accepts."""
        if not self.stopped:
            try:
                self._search(observe, self.left * (1.0 - 1.0 / forms))
            except KeyboardInterrupt:
                self.stopped = True
        self.stage = "measuring the whole model"
        observe(self, None)
        while self.accept() and self.target.on_device and self.left > self.model_seconds:
            observe(self, None)  # beside what is in use now others may save more, or the planner's choice

    def _try_form(self, form: dict[str, str], observe: Callable[[Tuning, Record | None], None], forms: int) -> None:
        """Searches another form of the model. What is found there is put into use with it, where it is faster then."""
        stands, self.form = (self.tasks, self.made, self.verdict), form
        self.stage = f"looking at {', '.join(sorted({*form.values()})) or 'another form'}"
        observe(self, None)
        try:
            self.prepare()
            self._search_and_accept(observe, forms)
        except TuneError as error:
            logger.warning("%s: another form cannot be searched: %s", self.name, error)
        if self.form is not None:
            (self.tasks, self.made, self.verdict), self.form = stands, None

    def _formed(self, records: Records) -> Records:
        """Records with the form that is being searched."""
        return records if self.form is None else with_labels(records, structure_key(self.graph), self.form)

    def _search(self, observe: Callable[[Tuning, Record | None], None], until: float = 0.0) -> None:
        self.stage = "searching"
        self._build_defaults()
        least, most = settings.LAST_SHARE * self.budget, settings.MOST_LAST * self.budget
        total = sum(task.seconds for task in self.tasks) or 1.0
        inside = (1 + 2 * settings.INSIDE) * settings.INSIDE_TURNS / 3  # times PAIR_SECONDS, as `_inside` measures
        needs = self.model_seconds + (2 + inside) * settings.PAIR_SECONDS + settings.LAST_RUNS * total
        last = min(settings.DEVICE_INSIDE * self.model_seconds if self.target.on_device else max(least, needs), most)
        worth = [task for task in self.tasks if task.seconds >= settings.WORTH * total] or self.tasks

        def ends() -> bool:
            return self.left <= until + last or (self.most is not None and self.trials >= self.most)

        for task in worth:  # what was measured before counts, also where there is no time for more
            if self.database.records(task.key, machine_key(self.target, self.runner.unit), compiler_version()):
                self.search_of(task)
        while not ends():
            done = {*self.skipped, *(key for key, search in self.searches.items() if search.is_done)}
            open_ = [task for task in worth if task.key not in done]
            if not open_:
                return
            chosen = self.search_of(max(open_, key=self._promise))
            if chosen is None:
                continue  # it cannot be measured, and is left out from now on
            others = [search.proposer for search in self.searches.values()]
            for record in chosen.round(chosen.batch, ends, others):
                self.trials += 1
                observe(self, record)

    def _promise(self, task: Task) -> float:
        """What a second of trials of a task is expected to save: first each gets a batch, then those that got better
        more, and those whose trials are quick."""
        search = self.searches.get(task.key)
        if search is None or not search.trials or not search.spent:
            return task.seconds * 1e6
        return task.seconds / search.gain * math.pow(0.5, search.idle) / search.trial_seconds

    # -------------------------------------------------------------------------------------------------- accepting

    def found(self) -> dict[str, tuple[Trace, float]]:
        """The best schedule of each task that has one better than the default, and its gain."""
        return {
            key: (trace, search.gain)
            for key, search in self.searches.items()
            if (trace := search.trace) is not None and search.gain >= settings.LEAST_GAIN
        }

    def accept(self) -> bool:
        """Puts what makes the whole model faster into use, where there is something."""
        for _ in range(settings.ACCEPTED):
            in_use = self.database.accepted(self.target)
            found = self._faster(in_use)
            verdict = self.verdict
            if not found or verdict is None or not verdict.is_faster:
                return False
            if self.database.accept(self.name, self.target, verdict.before, verdict.after, found, in_use):
                self.kept = {**self.kept, **found}
                if self.form is not None:
                    key = structure_key(self.graph)
                    self.database.accept_algorithms(self.name, key, self.target, self.form, verdict.ratio)
                    self.chose_algorithms, self.form = True, None
                return True
        return False

    def _faster(self, in_use: Records) -> Found:
        """Of the best schedules of each task the one that saves most inside the model, where it saves something there;
        with a verdict on all of them."""
        known = {key: trace.to_json() for key, trace in in_use.traces.items()}
        keys = self.searches if self.target.on_device else self.found()
        best = {key: [one for one in self.searches[key].best_traces if one[0].to_json() != known.get(key)]
                for key in keys}  # fmt: skip
        for task in self.tasks if self.kept else ():
            if task.key in known and (trace := task.default()).to_json() != known[task.key]:
                best[task.key] = [(trace, 1.0), *best.get(task.key, [])]
        order = self._order()
        best = {key: best[key] for key in dict.fromkeys(order) if best.get(key)}
        formed = self._formed(in_use)
        mixed = self._mix(formed, best)
        while mixed:  # what saves least of it is left out where the model is not faster once it is compiled so
            self.verdict = self.measure(in_use, _with_traces(formed, mixed))
            if self.verdict.is_faster or self.verdict.problem or self.left < self.model_seconds:
                return mixed
            mixed = dict([*mixed.items()][: len(mixed) // 2])
        if mixed is not None:
            return mixed
        sets = sets_of({key: some[: settings.INSIDE + 1] for key, some in best.items()}, order)
        if not sets:
            return {}
        try:
            now, *others = self._asked(lambda: self._inside([formed, *(_with_traces(formed, one) for one in sets)]))
        except ChildError as error:
            self.verdict = Verdict(problem=str(error))
            return {}
        for least in (1.0, settings.LEAST_GAIN):
            found = chosen(order, now, sets, others, least)
            if found:
                self.verdict = self.measure(in_use, _with_traces(formed, found))
            if not found or self.verdict is None or self.verdict.is_faster:
                break
        return found

    def _mix(self, in_use: Records, best: Mapping[str, list[tuple[Trace, float]]]) -> Found | None:
        """On a device: the schedules with which the whole model is fastest, its kernels being changed for theirs, those
        that save most first; None where that cannot be done."""
        if not isinstance(self.runner, LocalRunner) or not self.target.on_device:
            return None
        made: dict[str, dict[int, str]] = {}
        for task in self.tasks:
            with contextlib.suppress(WeftError):  # what cannot be measured by itself stays as it is
                if traces := [trace for trace, _ in best.get(task.key, ())]:
                    bench, stands = self.bench_of(task), self._standing(task, in_use)
                    known = self.runner.kernels(bench, [*traces, *([] if stands is None else [stands])])
                    made[task.key] = {STANDS: pickle.dumps(bench.planned).hex()}
                    made[task.key] |= {at if at < len(traces) else STANDS: text for at, text in known.items()}
        try:
            found = self._asked(lambda: self._mixed(in_use, made))
        except ChildError as error:
            logger.warning("%s: kernels cannot be changed in the model: %s", self.name, error)
            return None
        if found is None:
            return None
        before, after, numbers = found
        others = sum(map(len, made.values())) - len(made)
        tried = f"{others} other kernels of {len(made)} tasks in the whole model, {len(numbers)} chosen"
        logger.info("%s: %s: %.2f to %.2f µs", self.name, tried, 1e6 * before, 1e6 * after)
        return {key: best[key][at] for key, at in numbers.items()}

    def _standing(self, task: Task, in_use: Records) -> Trace | None:
        """The schedule that is in use for a task; None where that is the planner's."""
        holds = task.key not in in_use.beside or in_use.beside[task.key] == digest(task.default())
        return in_use.traces.get(task.key) if holds else None

    def _mixed(self, in_use: Records, made: Mapping[str, Mapping[int, str]]) -> tuple[float, float, State] | None:
        """Which of some kernels each task has where the model is fastest, and what that took before and with them; in a
        child. What is in use is changed for a kernel with arguments of its own, too: none reads what another wrote."""
        run = Run(self._compiled(in_use), self._feeds())
        if run.calls is None:
            return None
        launches: dict[str, dict[int, dict[int, list[Any]]]] = {}  # by task, kernel and call
        alive = []
        for task in (one for one in self.tasks if made.get(one.key)):
            for at, text in made[task.key].items():
                kernel: DeviceKernel = pickle.loads(bytes.fromhex(text))
                kernel.bind(self.bench_of(task).arrays, task.calls)
                alive.append(kernel)
                own = {place: list(kernel.launches(turn)) for turn, place in enumerate(task.places)}
                launches.setdefault(task.key, {})[at] = own
        numbers = {key: [at for at in some if at != STANDS] for key, some in launches.items()}

        def taken(states: Sequence[State], rounds: int) -> list[float]:
            ats = [{key: numbers[key][at] for key, at in state.items()} for state in states]
            kernels = [[some[at.get(key, STANDS)] for key, some in launches.items()] for at in ats]
            changed = [{place: call for calls in some for place, call in calls.items()} for some in kernels]
            return times_of([run.whole(one) for one in changed], self.target, rounds)

        run.whole()()  # what kernels read that are not changed is there
        found = descent({key: len(some) for key, some in numbers.items()}, taken)
        without = [{name: at for name, at in found.items() if name != key} for key in found]
        before, after, *lost = taken([{}, found, *without], settings.MIX_ROUNDS[1])
        order = [key for _, key in sorted(zip(lost, found), reverse=True)]
        return before, after, {key: numbers[key][found[key]] for key in order}

    def _asked(self, work: Callable[[], Any]) -> Any:
        """What a function gives in a child: plain data."""
        return json.loads(in_child(lambda say: json.dumps(work()), settings.MODEL_SECONDS))

    def measure(self, before: Records, after: Records) -> Verdict:
        """The whole model with two sets of records, in a child."""
        try:
            return Verdict(**self._asked(lambda: self._compare(before, after)))
        except ChildError as error:
            return Verdict(problem=str(error))

    def _compiled(self, records: Records) -> Any:
        with recording(records):
            module = compile_graph(self.graph, self.target, None, self.precision)
        module.threads = self.threads
        return module

    def _feeds(self) -> dict[str, Any]:
        random = np.random.default_rng(self.seed)
        types = [(value.name, value.tensor) for value in self.graph.inputs if isinstance(value.type, TensorType)]
        return {name: random_array(kind.dtype, kind.static, random) for name, kind in types}

    def _profile(self, records: Records, module: Any = None) -> list[float]:
        """What each launch of the model takes, in whole runs; in a child."""
        module = self._compiled(records) if module is None else module
        if self.target.on_device and (run := Run(module, self._feeds())).calls is not None:
            return run.launches()
        found = module.profile(self._feeds(), threads=self.threads, seconds=settings.PAIR_SECONDS / 3)
        return [kernel.minimum for kernel in found.kernels if kernel.kind == "kernel"]

    def _compare(self, before: Records, after: Records) -> dict[str, Any]:
        """The verdict on a set of records, as plain data; in a child."""
        modules = [self._compiled(records) for records in (before, after)]
        feeds = self._feeds()
        want, have = ([np.asarray(one) for one in module.run(None, feeds)] for module in modules)
        problem = difference(want, have, settings.NARROW.get(self.precision or "", 0.0))
        calls = [functools.partial(module.run, None, feeds) for module in modules]
        runs = [Run(module, feeds) for module in modules] if self.target.on_device else []
        if runs and all(run.calls is not None for run in runs):  # copies to it and back are not what was tuned
            times = in_turns(runs, self.target)
        else:
            times = pairs_in_turns(calls, self.threads == 1)
        least, ratio, _ = spread(*times)
        taken = statistics.median(times[0])  # after it by the pairs: a busy machine changes meanwhile
        told = {"ratio": ratio, "least": least, "problem": problem}
        return {"before": taken, "after": taken / (ratio or 1.0), **told}

    def _inside(self, sets: Sequence[Records]) -> list[list[float]]:
        """The seconds of each launch with each set, the best of some turns; in a child."""
        modules = [self._compiled(records) for records in sets]
        runs = [Run(module, self._feeds()) for module in modules] if self.target.on_device else []
        if runs and all(run.calls is not None for run in runs):
            return [run.launches() for run in runs]
        turns = [[self._profile(sets[0], module) for module in modules] for _ in range(settings.INSIDE_TURNS)]
        return [[min(launch) for launch in zip(*of_module)] for of_module in zip(*turns)]


def _with_traces(records: Records, found: Mapping[str, tuple[Trace, float]]) -> Records:
    return with_traces(records, {key: trace for key, (trace, _) in found.items()}, records.algorithms)


def spread(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios of best times in stretches, and between which two of them it lies 19 times in 20.

    Stretches count in which nobody disturbed either, where there are enough: others slow one form more than another.
    """
    size = max(1, len(before) // settings.STRETCHES)
    parts = [slice(at, at + size) for at in range(0, len(before) - size + 1, size)]
    pairs = [(min(before[part]), min(after[part])) for part in parts]
    most = [settings.CALM * min(some) for some in zip(*pairs)]
    calm = [pair for pair in pairs if pair[0] <= most[0] and pair[1] <= most[1]]
    ranked = sorted(one / other for one, other in (calm if len(calm) >= settings.LEAST_CALM else pairs))
    low = max(0, int(len(ranked) / 2 - math.sqrt(len(ranked))))
    return ranked[low], statistics.median(ranked), ranked[-1 - low]


def pairs_in_turns(calls: Sequence[Callable[[], Any]], is_alone: bool) -> list[list[float]]:
    """The times of calls that take turns, in an order that changes; processor time where one thread does all."""
    clock = time.process_time if is_alone else time.perf_counter
    times: list[list[float]] = [[] for _ in calls]
    begun, look = time.perf_counter(), settings.GLANCE
    for turn in range(10_000):
        order = range(len(calls)) if turn % 2 else reversed(range(len(calls)))
        for at in order:
            begin = clock()
            calls[at]()
            times[at].append(clock() - begin)
        passed = (time.perf_counter() - begun) / settings.PAIR_SECONDS
        if turn < 10 or passed < look:
            continue
        least, _, most = spread(*times)
        if passed > settings.LONGEST or most < 1 or (least > 1 and passed >= 1):
            break
        look += settings.GLANCE
    return [one[1:] for one in times]


def _machine(target: str | Target) -> Target:
    """The target of that name, asked for in a child: its children can open no device that this process has opened."""
    if isinstance(target, Target) or target in ("auto", "native"):
        return find_target("native" if target == "auto" else target)
    problem = ""
    for _ in range(settings.ASKED):  # where many ask at once, a driver may refuse some of them at first
        try:
            found = pickle.loads(bytes.fromhex(in_child(lambda say: pickle.dumps(find_target(target)).hex(), 60.0)))
            return cast(Target, found)
        except ChildError as error:
            if error.detail.startswith("TargetError: unknown"):
                return find_target(target)  # which says what there is
            problem = error.detail
            logger.warning("%s: %s", target, problem)
            time.sleep(settings.ASKED_SECONDS)
    raise TuneError(problem)


def make_tuning(
    graph: Graph, budget: str | float, target: str | Target = "auto", precision: str | None = None,
    threads: int | None = None, database: Database | None = None, made: type[Tuning] = Tuning, **options: Any,
) -> Tuning:  # fmt: skip
    """A model to be tuned: its shapes must be fixed."""
    machine = machine_of(_machine(target), precision)
    if not machine.is_host and made is Tuning:
        raise TuneError(f"the target {machine.name} is no machine that is here: nothing can be measured for it")
    bound = bind_shapes(graph, None)
    if open_ := _open_inputs(bound):
        raise TuneError(f"the shapes of {', '.join(open_)} are open: give them (shapes=…, or --size and --shape)")
    wanted = check_precision(precision, machine)
    count, records = threads or get_threads(), database or Database()
    if records.reads_only:
        raise TuneError(f"{records.path}: {READ_ONLY}")
    return made(graph.name, bound, machine, records, seconds_of(budget), wanted, count, **options)


def _open_inputs(graph: Graph) -> list[str]:
    return [v.name for v in graph.inputs if not (isinstance(v.type, TensorType) and v.type.is_static)]


def compile_tuned(
    model: Any, tune: str | float, target: str | Target = "auto", shapes: Mapping[str, Sequence[int]] | None = None,
    precision: str | None = None, threads: int | None = None, exact: bool | None = None,
) -> Any:  # fmt: skip
    """`weft.compile(model, tune=…)`: the model tuned for so long, then compiled with what was found.

    With "background" it is compiled at once, and tuned beside its use (`background.py`).
    """
    from weft.compiler import compile as compile_model

    graph = model
    if not isinstance(model, Graph):
        from weft.frontends.onnx import load

        graph = load(getattr(model, "model_proto", model))
    in_background, settled = tune == "background", {} if exact is None else {"exact": exact}
    budget = settings.BACKGROUND_SECONDS if in_background else tune

    def compiled(given: Mapping[str, Sequence[int]]) -> Any:
        met = given or shapes
        return compile_model(model, target=target, shapes=met, precision=precision, threads=threads, exact=exact)

    def tuning_of(given: Mapping[str, Sequence[int]]) -> Tuning:
        with knobs.override(**settled):
            return make_tuning(bind_shapes(graph, given or shapes), budget, target, precision, threads)

    if not in_background:
        with knobs.override(**settled):
            tuning_of({}).run()
        return compiled({})
    from weft.tuner.background import Background

    bound = bind_shapes(graph, shapes)
    waits = bool(_open_inputs(bound)) and all(isinstance(value.type, TensorType) for value in bound.inputs)
    tuning = tuning_of if waits else tuning_of({})  # before a device is opened by what is compiled
    module = compiled({})
    if waits and module._executor.binds_values:
        raise TuneError("values of inputs decide shapes of this model, and these are open: give them (shapes=…)")
    module.tuning = Background(module, tuning, compiled)
    return module
