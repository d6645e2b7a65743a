"""ONNX's own backend tests through Weft: which operators are compiled, run on the host, are refused, or are wrong.

    python -m benchmarks.conformance                        everything
    python -m benchmarks.conformance --filter 'softmax'     the cases whose name matches a regular expression
    python -m benchmarks.conformance --limit 100 --json out.json
    python -m benchmarks.conformance --symbolic             with all sizes of the inputs left open

The cases are those of the installed onnx package: the node cases, and simple, pytorch-operator and pytorch-converted
models whose data ships with it. Each runs in a worker process, so that a crash or a hang is a row and not the end.

    compiled   passed, all of it in native code
    host       passed, some nodes or all by their numpy meaning
    refused    an error of Weft's that says why; nothing was computed
    wrong      values, shapes or types that differ from the expected ones
    crashed    any other exception, or the process died
    timeout    no answer in time

`core` are the cases that a compiler for inference is about: dense tensors of ordinary element types, opset 27 at most;
no sequences, strings or image files, nothing of ai.onnx.ml, nothing of training. Where an operator makes random
numbers, only shapes and types are compared, for no standard says which numbers. What a fused kernel does not round
between operators of 16 bits may differ from what ONNX's reference rounds: it has to lie nearer to float32's answer.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pickle
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import harness
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.frontends.onnx.tensors import TensorReader
from weft.onnx_backend import prepare

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
OUTCOMES = ("compiled", "host", "refused", "wrong", "crashed", "timeout")
ORDINARY = frozenset((1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13))
"""The element types of core cases: floats of 16, 32 and 64 bits, integers of 8 to 64, bool."""
RANDOM = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
RECYCLED = 150
"""A worker ends after this many cases, and another takes its place."""


@dataclass(frozen=True)
class Case:
    """One test: a model, and pairs of inputs and expected outputs as arrays (lists for sequences, None for nothing)."""

    name: str
    kind: str
    operator: str
    model: bytes
    data: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float
    core: bool
    random: bool


@dataclass
class Result:
    """What became of a case."""

    name: str
    kind: str
    operator: str
    core: bool
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    host: list[str] = field(default_factory=list)


# The cases.


def find_cases(kinds: Sequence[str] = KINDS, pattern: str = "", limit: int | None = None) -> list[Case]:
    """The cases of these kinds whose name matches."""
    wanted = re.compile(pattern)
    found: list[Case] = []
    for kind in kinds:
        cases = _raw_cases(kind)
        operators = {raw.name: operator_of(raw, kind) for raw in cases}
        for raw in cases:
            if wanted.search(raw.name):
                name = operators.get(raw.name.split("_expanded")[0]) or operators[raw.name]
                found.append(make_case(raw, kind, name))
            if limit is not None and len(found) >= limit:
                return found
    return found


def _raw_cases(kind: str) -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases are made when they are asked for, some by overflowing on purpose
        if kind == "node":
            return list(collect_testcases(None))
        return [case for case in load_model_tests(kind=kind) if (Path(case.model_dir or "") / "model.onnx").is_file()]


def operator_of(raw: Any, kind: str) -> str:
    """The row of the table that a case belongs to: its operator, or the kind of models it is from."""
    if kind != "node":
        return f"({kind})"
    nodes = raw.model.graph.node
    return str(nodes[0].op_type) if len(nodes) == 1 else "(several)"


def make_case(raw: Any, kind: str, operator: str) -> Case:
    """A case of the onnx package in our own form."""
    import onnx

    if raw.model is not None:
        model = raw.model
        data = [([as_value(v) for v in given], [as_value(v) for v in wanted]) for given, wanted in raw.data_sets]
    else:
        model = onnx.load(Path(raw.model_dir) / "model.onnx")
        data = list(_read_data(model, Path(raw.model_dir)))
    random = any(node.op_type in RANDOM or _drops(model, node, data) for node in all_nodes(model.graph))
    return Case(
        raw.name, kind, operator, model.SerializeToString(), data, raw.rtol, raw.atol, is_core(model, random), random
    )


def _drops(model: Any, node: Any, data: Sequence[tuple[list[Any], list[Any]]]) -> bool:
    """Whether a node is a dropout that does drop: in training, at a ratio that is not 0 (0.5 where none is given)."""
    if node.op_type != "Dropout" or len(node.input) < 3:
        return False
    places = {value.name: at for at, value in enumerate(model.graph.input)}
    for given, _ in data:
        ratio, training = (given[places[name]] if name in places else None for name in node.input[1:3])
        if training is None or (bool(training) and (ratio is None or float(ratio) != 0)):
            return True
    return False


def all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of those inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g)


def is_core(model: Any, random: bool) -> bool:
    """Whether a model is one that a compiler for inference is about."""
    if random or any(entry.version > 27 for entry in model.opset_import if entry.domain in ("", "ai.onnx")):
        return False
    for node in all_nodes(model.graph):
        if node.domain not in ("", "ai.onnx") or node.op_type == "ImageDecoder":
            return False
        if node.op_type == "Dropout" and len(node.input) > 2:  # in training
            return False
        if node.op_type != "ReverseSequence" and ("Sequence" in node.op_type or "Optional" in node.op_type):
            return False
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.WhichOneof("value") != "tensor_type" or value.type.tensor_type.elem_type not in ORDINARY:
            return False
    return True


def _read_data(model: Any, folder: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    """The data sets beside a model: input_0.pb, …, output_0.pb, …"""
    given = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in given]
    for one in sorted(folder.glob("test_data_set_*")):
        files = [one / f"input_{i}.pb" for i in range(len(list(one.glob("input_*.pb"))))]
        values = inputs if len(files) <= len(inputs) else list(model.graph.input)
        results = [(one / f"output_{i}.pb", value) for i, value in enumerate(model.graph.output)]
        yield (
            [_read_value(file, value.type) for file, value in zip(files, values)],
            [_read_value(file, value.type) for file, value in results],
        )


def _read_value(path: Path, kind: Any) -> Any:
    import onnx

    which = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    proto = which.get(kind.WhichOneof("value"), onnx.TensorProto)()
    proto.ParseFromString(path.read_bytes())
    return as_value(proto)


def as_value(value: Any) -> Any:
    """Test data as arrays: scalars have no dimensions, sequences are lists, strings are objects."""
    name = type(value).__name__
    if name == "TensorProto":
        return TensorReader(None).dense(value, "test data")
    if name == "SequenceProto":
        return [as_value(v) for v in (value.tensor_values or value.sequence_values or value.optional_values)]
    if name == "OptionalProto":
        which = {1: "tensor_value", 3: "sequence_value", 5: "optional_value"}.get(value.elem_type)
        return None if which is None else as_value(getattr(value, which))
    if value is None or isinstance(value, (list, tuple)):
        return None if value is None else [as_value(v) for v in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


# One case.


def with_open_sizes(model: bytes) -> bytes:
    """The model with a symbol for each size of its inputs, and nothing said of other shapes."""
    import onnx

    made = onnx.load_from_string(model)
    given = {one.name for one in made.graph.initializer}
    for value in (one for one in made.graph.input if one.name not in given):
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape"):
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"{re.sub(r'[^A-Za-z0-9]', '_', value.name)}_{axis}"
    del made.graph.value_info[:]
    for value in made.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return made.SerializeToString()


def run_case(case: Case, target: str = "native", symbolic: bool = False) -> Result:
    """Runs one case in this process; `symbolic` with all sizes of its inputs open, by the form for all sizes."""
    result = Result(case.name, case.kind, case.operator, case.core, "compiled")
    start = time.perf_counter()
    try:
        with knobs.override(sizes="open" if symbolic else knobs.sizes):
            prepared = prepare(with_open_sizes(case.model) if symbolic else case.model, target=target)
        for given, wanted in case.data:
            outputs = prepared.run(given)
            problem = differs(outputs, wanted, case)
            if problem and not is_nearer(outputs, wanted, given, case):
                result.outcome, result.reason = "wrong", problem
                break
        else:
            result.host = list(prepared.host_nodes)
            result.outcome = "host" if result.host else "compiled"
    except WeftError as error:
        result.outcome, result.reason = "refused", str(error)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a row of the table)
        last = traceback.extract_tb(error.__traceback__)[-1]
        result.outcome = "crashed"
        result.reason = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    result.seconds = time.perf_counter() - start
    return result


def differs(outputs: Sequence[Any], wanted: Sequence[Any], case: Case) -> str:
    """What is wrong with outputs, in words; empty where nothing is. Tolerances are those of ONNX's own runner."""
    if len(outputs) != len(wanted):
        return f"{len(outputs)} outputs instead of {len(wanted)}"
    for position, (got, expected) in enumerate(zip(outputs, wanted)):
        problem = _difference(got, expected, case)
        if problem:
            return f"output {position}: {problem}"
    return ""


def is_nearer(outputs: Sequence[Any], wanted: Sequence[Any], given: Sequence[Any], case: Case) -> bool:
    """Whether outputs of 16 bits lie nearer to the model's answer in float32 than those expected, which round a lot.

    At most two units of their last place may lie between the two.
    """
    from onnx.reference import ReferenceEvaluator

    halves = [isinstance(one, np.ndarray) and one.dtype == np.float16 for one in (*outputs, *wanted)]
    if not all(halves) or not all(np.isfinite(one).all() for one in (*outputs, *wanted)):
        return False
    reference = ReferenceEvaluator(in_float32(case.model))
    feeds = (one.astype(np.float32) if getattr(one, "dtype", None) == np.float16 else one for one in given)
    right = reference.run(None, dict(zip(reference.input_names, feeds)))
    return all(
        np.allclose(got, expected, rtol=2**-9, atol=case.atol)
        and np.abs(got - true).max() <= np.abs(expected - true).max()
        for got, expected, true in zip(outputs, wanted, right, strict=True)
    )


def in_float32(model: bytes) -> Any:
    """The model with float32 wherever it says float16."""
    import onnx

    made = onnx.load_from_string(model)
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    for value in (*made.graph.input, *made.graph.output, *made.graph.value_info):
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = single
    constants = list(made.graph.initializer)
    for node in all_nodes(made.graph):
        for attribute in node.attribute:
            constants += [attribute.t] if attribute.HasField("t") else []
            if attribute.name in ("to", "dtype", "softmax_precision") and attribute.i == half:
                attribute.i = single
    for one in constants:
        if one.data_type == half:
            one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one).astype(np.float32), one.name))
    return made


def _difference(got: Any, expected: Any, case: Case) -> str:
    if expected is None or isinstance(expected, list):
        if not isinstance(expected, list) or not isinstance(got, list):
            return "" if got is None and expected is None else f"{type(got).__name__} is not the kind of value expected"
        return differs(got, expected, case)
    if not isinstance(got, np.ndarray):
        return f"{type(got).__name__} instead of an array"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if case.random:
        return ""
    return _values_differ(got, expected, case)


def _values_differ(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], case: Case) -> str:
    if expected.dtype == object:
        return "" if got.tolist() == expected.tolist() else f"{got.tolist()} instead of {expected.tolist()}"[:300]
    rtol = max(case.rtol, 2**-6) if expected.dtype.name == "bfloat16" else case.rtol
    if expected.dtype.kind not in "biufc":  # numpy cannot compare the narrow types of ml_dtypes with a tolerance
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    if np.allclose(got, expected, rtol=rtol, atol=case.atol, equal_nan=True):
        return ""
    with np.errstate(all="ignore"):
        gap = np.abs(got.astype(np.complex128) - expected.astype(np.complex128))
        beyond = np.asarray(gap / (case.atol + rtol * np.abs(expected.astype(np.complex128))))
    where = np.unravel_index(int(np.argmax(np.nan_to_num(beyond, nan=np.inf))), beyond.shape)
    return f"at {[int(i) for i in where]}: {got[where]} instead of {expected[where]}"


# Workers.


def serve(target: str, symbolic: bool = False) -> None:
    """A worker: names of pickled cases come on one pipe, results go back on the other, both a line each."""
    sys.path[:] = [path for path in sys.path if path]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not get among the answers
    for line in sys.stdin:
        case = pickle.loads(Path(line.strip()).read_bytes())
        answers.write(json.dumps(asdict(run_case(case, target, symbolic))) + "\n")
        answers.flush()


class Worker:
    """A process that runs cases, started again when it dies, hangs or has run enough."""

    def __init__(self, target: str, seconds: float, symbolic: bool = False) -> None:
        self.target = target
        self.seconds = seconds
        self.symbolic = symbolic
        self.process: subprocess.Popen[str] | None = None
        self.count = 0

    def run(self, case: Case, file: Path) -> Result:
        """Runs one case."""
        if self.process is None or self.process.poll() is not None or self.count >= RECYCLED:
            self.stop()
            command = [sys.executable, "-m", "benchmarks.conformance", "--worker", "--target", self.target]
            command += ["--symbolic"] * self.symbolic
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self.count = 0
        self.count += 1
        process = self.process
        hung = threading.Event()

        def end() -> None:
            hung.set()
            process.kill()

        timer = threading.Timer(self.seconds, end)
        timer.start()
        try:
            line = self._ask(process, file)
        finally:
            timer.cancel()
        if line:
            return Result(**json.loads(line))
        code = process.wait()
        outcome, reason = ("timeout", f"no answer in {self.seconds:.0f} s") if hung.is_set() else ("crashed", "")
        return Result(
            case.name, case.kind, case.operator, case.core, outcome, reason or f"the process ended with {code}"
        )

    def _ask(self, process: subprocess.Popen[str], file: Path) -> str:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{file}\n")
            process.stdin.flush()
            return process.stdout.readline()
        except (BrokenPipeError, ValueError):
            return ""

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process = None


def run_all(
    cases: Sequence[Case], target: str = "native", jobs: int = 2, seconds: float = 60.0, symbolic: bool = False
) -> list[Result]:
    """Runs cases in worker processes; the results are in the order of the cases."""
    results: list[Result | None] = [None] * len(cases)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for position in range(len(cases)):
        waiting.put(position)
    columns = (TextColumn("conformance"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = harness.wide_console()
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(cases))

        def work() -> None:
            worker = Worker(target, seconds, symbolic)
            while True:
                try:
                    position = waiting.get_nowait()
                except queue.Empty:
                    worker.stop()
                    return
                file = Path(folder) / f"{position}.pickle"
                file.write_bytes(pickle.dumps(cases[position]))
                results[position] = worker.run(cases[position], file)
                file.unlink()
                progress.advance(task)

        threads = [threading.Thread(target=work) for _ in range(max(jobs, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [result for result in results if result is not None]


# The table.


def tally(results: Sequence[Result]) -> dict[str, int]:
    """How many of each outcome."""
    counts = collections.Counter(result.outcome for result in results)
    return {"cases": len(results), **{outcome: counts[outcome] for outcome in OUTCOMES}}


def report(results: Sequence[Result], detail: bool) -> None:
    """Prints the table of operators, the totals, and what did not pass."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.operator, []).append(result)
    columns = ["operator", "cases", *OUTCOMES]
    rows = [[name, *tally(group).values()] for name, group in sorted(groups.items())]
    harness.print_table("Operators", columns, rows)
    if detail:
        for result in results:
            if result.outcome not in ("compiled", "host"):
                first = result.reason.splitlines()
                print(f"{result.outcome:8} {result.name}: {first[0] if first else ''}"[:240])
    harness.print_table(
        "Totals", ["cases", "number", *OUTCOMES], [[k, *v.values()] for k, v in totals(results).items()]
    )
    reasons = collections.Counter(_reason(result.reason) for result in results if result.outcome == "refused")
    if reasons:
        harness.print_table("Why refused", ["reason", "cases"], [list(item) for item in reasons.most_common(25)])


def _reason(text: str) -> str:
    """A reason without the names of nodes and values, so that like ones count together."""
    lines = text.splitlines() or [""]
    line = lines[0] if len(lines) == 1 else lines[1].strip()
    return re.sub(r"'[^']*'", "…", line.split("): ", 1)[-1])[:110]


def totals(results: Sequence[Result]) -> dict[str, dict[str, int]]:
    """The counts of everything, of each kind, and of the core cases among the node cases."""
    found = {kind: tally([r for r in results if r.kind == kind]) for kind in KINDS}
    found["core (of node)"] = tally([r for r in results if r.kind == "node" and r.core])
    found["all"] = tally(results)
    return {name: counts for name, counts in found.items() if counts["cases"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="ONNX's backend tests through Weft.")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name matches")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only cases of this kind (may be repeated)")
    parser.add_argument("--limit", type=int, metavar="N", help="at most this many cases")
    parser.add_argument("--target", default="native", help="what to compile for (default native)")
    parser.add_argument("--symbolic", action="store_true", help="with all sizes of the inputs open")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default 2)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for one case (default 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there ('-' for the screen)")
    parser.add_argument("--brief", action="store_true", help="do not list the cases that did not pass")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        serve(options.target, options.symbolic)
        return 0
    cases = find_cases(options.kind or KINDS, options.filter, options.limit)
    start = time.perf_counter()
    results = run_all(cases, options.target, options.jobs, options.seconds, options.symbolic)
    report(results, not options.brief)
    print(f"{len(results)} cases in {time.perf_counter() - start:.0f} s")
    if options.json:
        rows: Mapping[str, Any] = {"totals": totals(results), "cases": [asdict(result) for result in results]}
        harness.write_json(options.json, rows)
    return 1 if any(result.outcome in ("wrong", "crashed", "timeout") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
