"""weft quantize MODEL --data FILES -o FILE: a float model to an ONNX model of 8-bit products, with its errors."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import UsageError, add_model, input_shapes, open_graph
from weft.cli.to_onnx import to_onnx
from weft.executor.inputs import random_array
from weft.graph.ir import Graph
from weft.quantization import quantize
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
        "or a folder of such files; give it again for more",
    )
    parser.add_argument("--random", type=int, default=0, metavar="N", help="calibrate with N random inputs: for a try")
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default: the model's name with .q.onnx)")
    parser.add_argument("--method", choices=METHODS, default="mse", help="how ranges are chosen (default mse)")
    parser.add_argument("--activations", choices=list(LIMITS), default="uint8", help="their type (default uint8)")
    parser.add_argument("--keep", action="append", default=[], metavar="NAME", help="a node or operator to keep float")
    parser.add_argument("--target", default="auto", help='the machine to calibrate on (default "auto": this one)')
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    graph = open_graph(given, screen)
    feeds = list(_feeds(graph, given, screen))
    output: Path = given.output or Path(Path(given.model).stem + ".q.onnx")
    start = time.perf_counter()
    with screen.working(f"quantizing {graph.name}"):
        made = quantize(
            graph, feeds, method=given.method, activations=given.activations, keep=given.keep, target=given.target
        )
        output.write_bytes(to_onnx(made).SerializeToString())
        errors = made.errors
    taken = time.perf_counter() - start
    if screen.as_json:
        rows = [{"layer": e.name, "operator": e.op, **_figures(e.alone, e.together)} for e in errors]
        screen.figures({"file": str(output), "bytes": output.stat().st_size, "seconds": taken, "layers": rows})
        return 0
    screen.line(made.report())
    screen.line(f"{output}: {size(output.stat().st_size)}, {len(made.layers)} layers in 8 bits, {seconds(taken)}")
    return 0


def _figures(alone: float, together: float) -> dict[str, float | None]:
    return {key: v if math.isfinite(v) else None for key, v in (("alone_db", alone), ("together_db", together))}


def _feeds(graph: Graph, given: argparse.Namespace, screen: Screen) -> Iterator[Mapping[str, Any]]:
    if not given.data and given.random < 1:
        raise UsageError("quantization needs inputs that are like those in use: give --data (or --random N, for a try)")
    names = [value.name for value in graph.inputs]
    for path in _files(given.data):
        yield _read(path, names)
    if given.random > 0:
        shapes = input_shapes(graph.inputs, given, screen)
        random = np.random.default_rng(0)
        for _ in range(given.random):
            yield {v.name: random_array(v.tensor.dtype, shapes[v.name], random) for v in graph.inputs}


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        inside = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy")) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"--data {path}: the folder has no .npz and no .npy file")
        yield from inside


def _read(path: Path, names: Sequence[str]) -> Mapping[str, Any]:
    try:
        found = np.load(path, allow_pickle=False)
        arrays = {name: found[name] for name in found.files} if path.suffix == ".npz" else {names[0]: found}
    except (OSError, ValueError) as problem:
        raise UsageError(f"--data {path}: it cannot be read as an .npz or .npy file ({problem})") from None
    if set(arrays) != set(names):
        raise UsageError(f"--data {path}: it has the arrays {sorted(arrays)}; the model takes {', '.join(names)}")
    return arrays
