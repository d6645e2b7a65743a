"""weft quantize MODEL --data FILES -o FILE: a float model to an ONNX model of 8-bit (or fewer) products; its errors."""

from __future__ import annotations

import argparse
import math
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.given import UsageError
from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import add_model, count, input_shapes, open_graph, output_path
from weft.cli.to_onnx import to_onnx
from weft.compiler.module import bind_shapes
from weft.compiler.reports.inputs import random_array
from weft.core.errors import ArgumentError
from weft.graph.ir import Graph, Value
from weft.quantization import quantize
from weft.quantization.data import calls_of
from weft.quantization.observers import LIMITS, METHODS


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        type=Path,
        help="calibration data: an .npz file with an array for each input, an .npy file for a model with one input, "
        "or a folder of such files; an array may hold one call or many, stacked; give it again for more",
    )
    parser.add_argument("--random", type=count, metavar="N", help="calibrate with N random inputs: for a try")
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default: the model's name with .q.onnx)")
    parser.add_argument("--method", choices=METHODS, default="mse", help="how ranges are chosen (default mse)")
    parser.add_argument("--activations", choices=list(LIMITS), default="uint8", help="their type (default uint8)")
    parser.add_argument(
        "--bits", nargs=2, type=int, choices=(1, 2), metavar=("A", "W"), help="activations and weights of 1 or 2 bits"
    )
    parser.add_argument("--keep", action="append", default=[], metavar="NAME", help="a node or operator to keep float")
    parser.add_argument("--target", help='the machine to calibrate on (default "auto": this one)')
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    output = output_path(given, ".q.onnx")
    graph = open_graph(given, screen)
    feeds = _feeds(graph, given, screen)
    target = given.target or "auto"
    start = time.perf_counter()
    with screen.working(f"quantizing {graph.name}"):
        made = quantize(
            graph, feeds, method=given.method, activations=given.activations, keep=given.keep, target=target,
            bits=tuple(given.bits) if given.bits else None,
        )  # fmt: skip
        output.write_bytes(to_onnx(made).SerializeToString())
        errors = made.errors
    taken = time.perf_counter() - start
    if screen.as_json:
        rows = [{"layer": e.name, "operator": e.op, **_figures(e.alone, e.together)} for e in errors]
        screen.figures({"file": str(output), "bytes": output.stat().st_size, "seconds": taken, "layers": rows})
        return 0
    screen.line(made.report())
    width = "{} and {}".format(*given.bits) if given.bits else "8"
    layers = f"{len(made.layers)} layers in {width} bits"
    screen.line(f"{output}: {size(output.stat().st_size)}, {layers}, {seconds(taken)}")
    return 0


def _figures(alone: float, together: float) -> dict[str, float | None]:
    return {key: v if math.isfinite(v) else None for key, v in (("alone_db", alone), ("together_db", together))}


def _feeds(graph: Graph, given: argparse.Namespace, screen: Screen) -> list[dict[str, Any]]:
    """The calls to calibrate with; sizes that are given are those of a call, and stay open in the model."""
    if not given.data and not given.random:
        raise UsageError("quantization needs inputs that are like those in use: give --data (or --random N, for a try)")
    shapes = input_shapes(graph.inputs, given, screen) if given.random or given.size or given.shape else None
    inputs = bind_shapes(graph, shapes).inputs
    feeds = [call for path in _files(given.data) for call in _read(path, inputs)]
    random = np.random.default_rng(0)
    for _ in range(given.random or 0):
        feeds.append({v.name: random_array(v.tensor.dtype, v.tensor.static, random) for v in inputs})
    return feeds


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        inside = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"--data {path}: the folder has no .npz and no .npy file")
        yield from inside


def _read(path: Path, inputs: Sequence[Value]) -> list[dict[str, Any]]:
    """The calls that a file holds."""
    try:
        found = np.load(path, allow_pickle=False)
        arrays = {name: found[name] for name in found.files} if path.suffix == ".npz" else found
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as problem:
        raise UsageError(f"--data {path}: it cannot be read as an .npz or .npy file ({problem})") from None
    try:
        return list(calls_of(inputs, arrays))
    except ArgumentError as problem:
        raise UsageError(f"--data {path}: {problem}") from None
