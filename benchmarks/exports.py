"""Whole models on other machines: what `weft export` writes, run there, against ONNX Runtime here; and how large it is.

    python -m benchmarks.exports                                  four models on every machine of `benchmarks.machines`
    python -m benchmarks.exports --only dqn wasm                  models and machines whose names hold one of the words
    python -m benchmarks.exports --page [--ort FOLDER]            MobileNet v2 in Chromium against ONNX Runtime Web

The error is the greatest difference from ONNX Runtime's output relative to its greatest element. The size of the code
is that of the machine code (or C) alone; weights are the same numbers everywhere, packed for each machine. Emulation
says whether the answer is right, not how fast it is: no time is given. `--page` measures, in one page, interleaved;
FOLDER is where npm installed onnxruntime-web.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft
from benchmarks.machines import MACHINES, READ_INPUTS, Machine, open_page
from weft.cli.to_onnx import to_onnx
from weft.compiler.export import export_library
from weft.compiler.reports.inputs import random_array
from weft.graph.ir import Graph
from weft.graph.passes.infer import infer
from weft.models import make
from weft.quantization import quantize

LARGE = 32 << 20
"""Weights of so many bytes are no C source: they are a file beside it."""
BAR = 1e-4


def _quantized() -> Graph:
    """ResNet-18 in 8 bits, calibrated on random images.

    Its scales are powers of two, so that whoever computes it gets the same numbers. With others a float32 sum that lies
    at the edge between two codes makes a whole step: ours is then 5.7e-3 from ONNX Runtime's, on every machine.
    """
    graph = make("resnet18")
    images = np.random.default_rng(1).normal(size=(2, *graph.inputs[0].tensor.static)).astype("float32")
    return quantize(graph, list(images), scales="powers_of_two")


MODELS: dict[str, Callable[[], Graph]] = {
    "dqn": lambda: make("dqn"),
    "mobilenet_v2": lambda: make("mobilenet_v2"),
    "lstm_lm": lambda: make("lstm_lm"),
    "resnet18_int8": _quantized,
}


@dataclass(frozen=True)
class Row:
    """One model on one machine."""

    model: str
    machine: str
    error: float
    code_bytes: int
    weights_bytes: int
    arena_bytes: int


def reference(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    """What ONNX Runtime gives."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(to_onnx(infer(graph)).SerializeToString(), options)
    names = [value.name for value in graph.inputs]
    return list(session.run(None, dict(zip(names, arrays))))


def inputs_of(graph: Graph) -> list[Any]:
    """Random inputs."""
    random = np.random.default_rng(0)
    return [random_array(value.tensor.dtype, value.tensor.static, random) for value in graph.inputs]


def error_of(made: Sequence[bytes], wanted: Sequence[Any]) -> float:
    """The greatest difference of outputs relative to the greatest element."""
    errors = []
    for raw, want in zip(made, wanted, strict=True):
        got = np.frombuffer(raw, want.dtype).reshape(want.shape)
        errors.append(float(np.max(np.abs(got.astype(float) - want.astype(float))) / max(np.max(np.abs(want)), 1e-30)))
    return max(errors)


def measure(graph: Graph, machine: Machine, folder: Path, arrays: Sequence[Any], wanted: Sequence[Any]) -> Row:
    """Exports, builds and runs one model for one machine."""
    module = weft.compile(graph, target=machine.target)
    program = module.specializations[0].runner.program
    weights = sum(array.nbytes for array in program.weights)
    beside = machine.form == "c" and weights > LARGE
    files = export_library(module, folder, "model", machine.form, beside)
    code = next(path for path in files if path.suffix in (".so", ".a", ".wasm", ".c")).stat().st_size
    held = 0 if machine.form == "c" else weights
    made = machine.run(folder, "model", arrays)
    return Row(graph.name, machine.name, error_of(made, wanted), code - held, weights, program.arena_bytes)


def run(words: Sequence[str], console: Console) -> list[Row]:
    """The matrix, or those parts of it whose names hold one of the words."""

    def chosen(names: Sequence[str]) -> list[str]:
        return [name for name in names if any(word in name for word in words)] or list(names)

    rows = []
    for name in chosen(list(MODELS)):
        graph = MODELS[name]()
        arrays = inputs_of(graph)
        wanted = reference(graph, arrays)
        for one in chosen(list(MACHINES)):
            machine = MACHINES[one]
            if missing := machine.missing():
                console.print(f"{name} on {one}: left out, {missing}")
                continue
            with tempfile.TemporaryDirectory(prefix="weft-exports-") as folder:
                row = measure(graph, machine, Path(folder), arrays, wanted)
            rows.append(row)
            console.print(f"{name} on {one}: error {row.error:.1e}, code {row.code_bytes:,} bytes")
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    """The table."""
    table = Table("model", "machine", "error", "code", "weights", "arena")
    for row in rows:
        sizes = [f"{size / 1024:,.0f} KB" for size in (row.code_bytes, row.weights_bytes, row.arena_bytes)]
        table.add_row(row.model, row.machine, f"{row.error:.1e}" + ("" if row.error <= BAR else " !"), *sizes)
    console.print(table)


# ------------------------------------------------------------------------------------------------------------- page

_RACE = """
const FILES = ["input_0.bin"];
const model = await (await import("/model.js")).load();
READ_INPUTS
const ort = await import("/ort/ort.wasm.min.mjs");
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = "/ort/";
const session = await ort.InferenceSession.create("/model.onnx", { executionProviders: ["wasm"] });
const one = model.inputs[0];
const feeds = { [one.name]: new ort.Tensor("float32", inputs[one.name], one.shape) };
const times = { weft: [], ort: [] };
let ours, theirs;
for (let round = 0; round < ROUNDS; round++) {
  let start = performance.now();
  ours = model.run(inputs);
  times.weft.push(performance.now() - start);
  start = performance.now();
  theirs = await session.run(feeds);
  times.ort.push(performance.now() - start);
}
const [a, b] = [Object.values(ours)[0], Object.values(theirs)[0].data];
let difference = 0, largest = 0;
b.forEach((value, at) => {
  difference = Math.max(difference, Math.abs(value - a[at]));
  largest = Math.max(largest, Math.abs(value));
});
await post("times", JSON.stringify({ ...times, error: difference / largest }));
"""


def race(ort: Path, name: str = "mobilenet_v2", rounds: int = 30) -> dict[str, Any]:
    """Milliseconds of calls in one page, ours and ONNX Runtime Web's, one thread each, in turn."""
    graph = make(name)
    (array,) = inputs_of(graph)
    with tempfile.TemporaryDirectory(prefix="weft-page-") as scratch:
        folder = Path(scratch)
        export_library(weft.compile(graph, target="wasm32-unknown-unknown"), folder, "model", "wasm")
        (folder / "model.onnx").write_bytes(to_onnx(infer(graph)).SerializeToString())
        (folder / "input_0.bin").write_bytes(array.tobytes())
        shutil.copytree(ort / "node_modules" / "onnxruntime-web" / "dist", folder / "ort")
        script = _RACE.replace("READ_INPUTS", READ_INPUTS).replace("ROUNDS", str(rounds))
        found: dict[str, Any] = json.loads(open_page(folder, script)["times"])
    found["ratio"] = statistics.median(b / a for a, b in zip(found["weft"][3:], found["ort"][3:]))
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words of models and machines")
    parser.add_argument("--page", action="store_true", help="MobileNet v2 in Chromium against ONNX Runtime Web")
    parser.add_argument("--ort", type=Path, default=Path(), help="the folder of npm install onnxruntime-web")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="where the rows are written, too")
    given = parser.parse_args()
    console = Console()
    if given.page:
        found = race(given.ort, rounds=given.rounds)
        for name in ("weft", "ort"):
            console.print(f"{name}: median {statistics.median(found[name]):.1f} ms, best {min(found[name]):.1f} ms")
        best = min(found["ort"]) / min(found["weft"])
        console.print(f"ratio {found['ratio']:.2f} (best calls {best:.2f}); error {found['error']:.1e}")
        return
    rows = run(given.only, console)
    show(rows, console)
    if given.json:
        given.json.write_text(json.dumps([vars(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
