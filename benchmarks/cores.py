"""Many cores and noisy neighbours: our modules against ONNX Runtime, in one run and interleaved.

    python -m benchmarks.cores --quick --json cores.json                 under 150 seconds on 16 cores
    python -m benchmarks.cores --only resnet50 --threads 1 8 16 --settings alone busy
    python -m benchmarks.cores --kernels                                 kernels of ResNet-50 that gain least by threads
    python -m benchmarks.cores --variants kept=1 order=300 --quick       the pool with other numbers, beside it as it is

Settings:

    alone      nobody else
    busy       half the cores kept busy by other processes that never pause
    beside     a process whose idle ONNX Runtime session, with a thread for each core, spins: it has a call every 10 ms
    paused     a pause of 20 ms before each call, in which threads fall asleep
    clients    8 client threads, 4 modules (a pair of clients each), all cores: calls a second

Each candidate has a process of its own, stopped while it has no turn, and reads the same ONNX files with random
weights. A time is the median over rounds of a round's median call, a ratio the median of the rounds' ratios (2.0 is
twice as fast as ONNX Runtime). Both candidates meet the same neighbours.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.models import built_in
from benchmarks.workers import _end_with_parent, geometric_mean

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base")
SETTINGS = ("alone", "busy", "beside", "paused", "clients")
PAUSE_SECONDS, CALL_EVERY_SECONDS = 0.02, 0.01
CLIENTS = 8
PEER = "onnxruntime"

Call = Callable[[], Any]


# --------------------------------------------------------------------------------------------------- candidates


class Weft:
    """Our modules; `variant` is numbers of the pool to be changed first, such as "kept=1,spin=20000"."""

    def __init__(self, variant: str = "") -> None:
        from weft.runtime import native_pool

        for part in filter(None, variant.split(",")):
            name, _, number = part.partition("=")
            assert name in native_pool._NUMBERS, f"{name} is none of {', '.join(native_pool._NUMBERS)}"
            native_pool._NUMBERS[name] = int(number)
        self.modules: dict[str, Any] = {}

    def call(self, path: Path, feeds: dict[str, Any], threads: int) -> Call:
        """A call of a model with so many threads."""
        import weft

        if path.stem not in self.modules:
            shapes = {name: array.shape for name, array in feeds.items()}
            self.modules[path.stem] = weft.compile(str(path), shapes=shapes)
        module = self.modules[path.stem]

        def run() -> Any:
            module.threads = threads
            return module.run(None, feeds)

        return run

    def notes(self) -> dict[str, Any]:
        """What the pool says of itself."""
        from weft.runtime.jit import native_runtime

        return {"stalls": native_runtime().pool_stalls()}

    def kernels(self, path: Path, feeds: dict[str, Any], threads: int, seconds: float) -> list[tuple[str, float]]:
        """Its kernels, and the best time of each."""
        self.call(path, feeds, threads)
        profile = self.modules[path.stem].profile(threads=threads, seconds=seconds, **feeds)
        return [(f"{kernel.number} {kernel.label}", kernel.minimum) for kernel in profile.kernels]


class OnnxRuntime:
    """A session for each model and number of threads."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, int], Any] = {}

    def call(self, path: Path, feeds: dict[str, Any], threads: int) -> Call:
        """A call of a model with so many threads."""
        key = (path.stem, threads)
        if key not in self.sessions:
            self.sessions[key] = _session(path, threads)
        session = self.sessions[key]
        return lambda: session.run(None, feeds)

    def notes(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def _session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def serve(name: str, pipe: Any) -> None:
    """A child: makes calls ready and measures them, until the pipe closes."""
    _end_with_parent()
    warnings.simplefilter("ignore")
    candidate: Any = OnnxRuntime() if name == PEER else Weft(name.partition(" ")[2])
    calls: dict[tuple[str, int], Call] = {}
    while True:
        try:
            what, value = pipe.recv()
        except EOFError:
            return
        answer: Any = None
        if what == "prepare":
            path, feeds, threads = value
            start = time.perf_counter()
            calls[path.stem, threads] = candidate.call(path, feeds, threads)
            output = np.array(calls[path.stem, threads]()[0])
            answer = time.perf_counter() - start, output
        elif what == "burst":
            key, seconds, pause = value
            answer = _burst(calls[key], seconds, pause), candidate.notes()
        elif what == "clients":
            keys, seconds = value
            answer = _clients([calls[key] for key in keys], seconds)
        elif what == "kernels":
            answer = candidate.kernels(*value)
        pipe.send(answer)


def _burst(call: Call, seconds: float, pause: float) -> float:
    """The median call of a turn; what is called first wakes threads and fills caches, and is not counted."""
    call()
    call()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _clients(calls: Sequence[Call], seconds: float) -> list[float]:
    """Calls a second of each module, with clients that call without pause."""
    counts = [0] * CLIENTS
    start = threading.Barrier(CLIENTS + 1)
    over = threading.Event()

    def client(number: int) -> None:
        call = calls[number % len(calls)]
        call()
        start.wait()
        while not over.is_set():
            call()
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - begin
    return [sum(counts[at :: len(calls)]) / spent for at in range(len(calls))]


class Child:
    """A candidate's process, stopped while it has no turn."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(name, theirs))
        self.process.start()
        theirs.close()

    def ask(self, what: str, value: Any) -> Any:
        """What it answers."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.pipe.send((what, value))
        answer = self.pipe.recv()
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return answer

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.join()


# --------------------------------------------------------------------------------------------------- neighbours

SPINNING_SESSION = """
import sys, time
from pathlib import Path
import numpy, onnx
from onnx import helper, numpy_helper
from benchmarks.cores import _session
weight = numpy_helper.from_array(numpy.ones((512, 512), numpy.float32), "w")
shape = helper.make_tensor_value_info("x", 1, [256, 512]), helper.make_tensor_value_info("y", 1, [256, 512])
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [shape[0]], [shape[1]], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
path = Path(sys.argv[1]) / "neighbour.onnx"
onnx.save(model, path)
session = _session(path, int(sys.argv[2]))
x = numpy.ones((256, 512), numpy.float32)
while True:
    session.run(None, {"x": x})
    time.sleep(float(sys.argv[3]))
"""


@contextlib.contextmanager
def neighbours(setting: str, cores: int, folder: Path) -> Iterator[None]:
    """The other processes of a setting."""
    commands: list[list[str]] = []
    if setting == "busy":
        commands = [[sys.executable, "-c", "while True: pass"]] * (cores // 2)
    elif setting == "beside":
        commands = [[sys.executable, "-c", SPINNING_SESSION, str(folder), str(cores), str(CALL_EVERY_SECONDS)]]
    started = [subprocess.Popen(command) for command in commands]
    try:
        if started:
            time.sleep(1.5 if setting == "beside" else 0.3)
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


# --------------------------------------------------------------------------------------------------- measuring


def race(children: dict[str, Child], ask: Callable[[Child], Any], rounds: int) -> dict[str, list[Any]]:
    """The answers of every candidate in each round, asked in random order."""
    found: dict[str, list[Any]] = {name: [] for name in children}
    order = list(children)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            found[name].append(ask(children[name]))
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How many times as fast ours is, by seconds of each round."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def measure_calls(
    children: dict[str, Child], setting: str, model: str, threads: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One row: a model with so many threads in one setting."""
    pause = PAUSE_SECONDS if setting == "paused" else 0.0
    answers = race(children, lambda one: one.ask("burst", ((model, threads), options.seconds, pause)), options.rounds)
    seconds = {name: [answer[0] for answer in found] for name, found in answers.items()}
    row: dict[str, Any] = {"setting": setting, "model": model, "threads": threads}
    row["milliseconds"] = {name: 1e3 * statistics.median(found) for name, found in seconds.items()}
    row["rounds"] = {name: [1e3 * one for one in found] for name, found in seconds.items()}
    row["ratio"] = {name: ratio(found, seconds[PEER]) for name, found in seconds.items() if name != PEER}
    row["notes"] = {name: found[-1][1] for name, found in answers.items() if name != PEER}
    return row


def measure_clients(
    children: dict[str, Child], models: Sequence[str], threads: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The row of clients: calls a second of each module; the ratio is the mean of the modules' ratios."""
    modules = list(itertools.islice(itertools.cycle(models), 4))
    keys = [(model, threads) for model in modules]
    answers = race(children, lambda one: one.ask("clients", (keys, max(1.0, 5 * options.seconds))), options.rounds)
    rates = {name: [statistics.median(column) for column in zip(*found)] for name, found in answers.items()}
    row: dict[str, Any] = {"setting": "clients", "model": " ".join(models), "threads": threads, "calls_a_second": rates}
    row["ratio"] = {
        name: geometric_mean([a / b for a, b in zip(found, rates[PEER])])
        for name, found in rates.items()
        if name != PEER
    }
    return row


def prepare(
    children: dict[str, Child], models: Sequence[str], threads: Sequence[int], folder: Path, console: Console
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Gets every candidate ready for every row; answers must agree."""
    made = {}
    for model in models:
        work = built_in(model, folder)
        made[model] = (work.path, work.feeds)
        outputs = {}
        for name, child in children.items():
            for count in threads:
                seconds, outputs[name] = child.ask("prepare", (work.path, work.feeds, count))
                if count == threads[0]:
                    console.print(f"[dim]{model}: {name} ready in {seconds:.1f} s[/]")
        for name, output in outputs.items():
            error = float(np.abs(output - outputs[PEER]).max() / np.abs(outputs[PEER]).max())
            assert error < 1e-3, f"{name} answers otherwise than {PEER} on {model}: {error}"
    return made


def kernels(child: Child, work: tuple[Path, dict[str, Any]], threads: Sequence[int], seconds: float) -> list[Any]:
    """What each kernel takes by threads, those that lose most against an even share first."""
    tables = {count: child.ask("kernels", (*work, count, seconds)) for count in threads}
    first, last = threads[0], threads[-1]
    rows = [(name, *(tables[count][at][1] * 1e6 for count in threads)) for at, (name, _) in enumerate(tables[first])]
    return sorted(rows, key=lambda row: row[1] * first / last - row[-1])


def system(cores: int) -> dict[str, Any]:
    """What it was measured on."""
    from benchmarks.harness import describe_system
    from weft.runtime.threads import available_cores
    from weft.runtime.topology import processors

    listed = [[one.number, one.core, one.cache, one.node] for one in processors()]
    facts = {"kernel": " ".join(os.uname()[2:4]), "load": os.getloadavg(), "used_cores": cores}
    return {**describe_system(), **facts, "default_threads": available_cores(), "number_core_cache_node": listed}


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """The rows as a table."""
    if not rows:
        return
    names = list(rows[0]["ratio"])
    table = Table("setting", "model", "threads", PEER, *itertools.chain(*((name, "ratio") for name in names)))
    for row in rows:
        if "milliseconds" in row:
            cells = {name: f"{value:.2f} ms" for name, value in row["milliseconds"].items()}
        else:
            cells = {
                name: " ".join(f"{one:.0f}" for one in value) + "/s" for name, value in row["calls_a_second"].items()
            }
        ours = itertools.chain(*((cells[name], f"{row['ratio'][name]:.2f}") for name in names))
        table.add_row(row["setting"], row["model"], str(row["threads"]), cells[PEER], *ours)
    console.print(table)


def show_scaling(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """How many times as fast the most threads are as one, alone."""
    alone = [row for row in rows if row["setting"] == "alone"]
    for model in dict.fromkeys(row["model"] for row in alone):
        mine = sorted((row for row in alone if row["model"] == model), key=lambda row: row["threads"])
        if mine[0]["threads"] == 1 and len(mine) > 1:
            gains = {n: mine[0]["milliseconds"][n] / mine[-1]["milliseconds"][n] for n in mine[0]["milliseconds"]}
            text = ", ".join(f"{name} {gain:.1f}" for name, gain in gains.items())
            console.print(f"{model}, 1 to {mine[-1]['threads']} threads: {text} times as fast")


def run(options: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Everything that was asked for."""
    cores = len(os.sched_getaffinity(0))
    threads = sorted({min(count, cores) for count in options.threads})
    names = ["weft", *(f"weft {variant}" for variant in options.variants), PEER]
    children = {name: Child(name) for name in names}
    found: dict[str, Any] = {"system": system(cores), "rows": []}
    try:
        made = prepare(children, options.only, threads, folder, console)
        for setting in options.settings:
            if setting == "clients":
                found["rows"].append(measure_clients(children, options.only, threads[-1], options))
                continue
            counts = (
                threads
                if setting == "alone"
                else threads[-1:]
                if setting == "paused"
                else [t for t in threads if t > 1]
            )
            with neighbours(setting, cores, folder):
                for model in options.only:
                    found["rows"] += [measure_calls(children, setting, model, one, options) for one in counts]
            show([row for row in found["rows"] if row["setting"] == setting], console)
        if options.kernels:
            model = "resnet50" if "resnet50" in made else options.only[0]
            found["kernels"] = kernels(children["weft"], made[model], (threads[0], threads[-1]), 4 * options.seconds)
    finally:
        for child in children.values():
            child.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=MODELS, help="these models")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 4, 8, 16], help="how many threads")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS, help="these settings")
    parser.add_argument("--variants", nargs="*", default=[], help="the pool with other numbers: kept=1,spin=20000")
    parser.add_argument("--kernels", action="store_true", help="kernel by kernel: which gain least by threads")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each candidate in a row")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--quick", action="store_true", help="3 turns of a tenth of a second")
    parser.add_argument("--json", type=Path, help="write everything into this file")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 3, 0.1
    console = Console(width=160)
    with tempfile.TemporaryDirectory(prefix="weft-cores-") as folder:
        found = run(options, Path(folder), console)
    show([row for row in found["rows"] if row["setting"] == "clients"], console)
    show_scaling(found["rows"], console)
    for name, *spent in found.get("kernels", [])[:25]:
        console.print(
            f"{name[:60]:60} {spent[0]:9.0f} us, {spent[-1]:9.0f} us: {spent[0] / spent[-1]:.1f} times as fast"
        )
    console.print(found["system"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
