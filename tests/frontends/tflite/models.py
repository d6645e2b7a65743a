"""Every .tflite file of a folder through Weft and LiteRT: right, refused by name, or wrong.

    python -m tests.frontends.tflite.models [--compile] [--shape NAME=1,1280] FOLDER …

prints a line for each file: the largest difference, in steps for whole numbers, relative to the largest for floats.
Models that keep variables are called three times.
"""

import argparse
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from weft.core.errors import WeftError
from weft.executor import compile
from weft.frontends.tflite import load
from weft.graph.interpreter import interpret_graph


def inputs(values, random):
    for value in values:
        kind, shape = value.tensor.numpy, value.tensor.static
        whole = kind.kind in "iu"
        yield (random.integers(-100, 100, shape) if whole else random.random(shape)).astype(kind)


def distance(found, wanted):
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    apart = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0)
    return apart if wanted.dtype.kind in "iub" else apart / max(np.abs(wanted).max(initial=0), 1e-9)


def examine(path, shapes, compiled):
    """The largest difference of a model's results."""
    made = load(path, shapes)
    runner = Interpreter(model_content=path.read_bytes())
    for detail, value in zip(runner.get_input_details(), made.graph.inputs):
        runner.resize_tensor_input(detail["index"], value.tensor.static)
    runner.allocate_tensors()
    module = compile(path, shapes=shapes) if compiled else None
    states, worst, random = list(made.calls.states.values()), 0.0, np.random.default_rng(0)
    count, results = len(made.calls.names), made.calls.results
    for _ in range(3 if states else 1):
        given = list(inputs(made.graph.inputs[:count], random))
        if module is None:
            found = interpret_graph(made.graph, [*given, *states])
            states, found = found[results:], found[:results]
        else:
            found = module(*given)
            found = found if isinstance(found, tuple) else (found,)
        for detail, array in zip(runner.get_input_details(), given):
            runner.set_tensor(detail["index"], array)
        runner.invoke()
        wanted = [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]
        worst = max(worst, *(distance(np.asarray(a), b) for a, b in zip(found, wanted, strict=True)))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--shape", action="append", default=[])
    given = parser.parse_args()
    pairs = (one.split("=") for one in given.shape)
    shapes = {name: tuple(map(int, sizes.split(","))) for name, sizes in pairs}
    for folder in given.folders:
        for path in sorted(folder.rglob("*.tflite")) if folder.is_dir() else [folder]:
            try:
                print(f"{path.name:45} {examine(path, shapes, given.compile):.2g}", flush=True)
            except WeftError as error:
                print(f"{path.name:45} refused: {str(error)[:300]}", flush=True)


if __name__ == "__main__":
    main()
