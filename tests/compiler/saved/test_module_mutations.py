"""Module files whose manifest was changed, with a checksum that fits: refused, or run without touching other memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.control.test_bodies import recurrent
from tests.compiler.graphs import random_inputs
from tests.compiler.test_compile import with_host_node
from tests.conftest import FULL
from weft.compiler import compile, load
from weft.core.errors import TargetError
from weft.expr.nodes import Var
from weft.graph.ir import Graph, TensorType, Value
from weft.models.builder import Builder
from weft.targets.base import Target
from weft.targets.registry import find_target


def small_net() -> Graph:
    """A convolution, an activation and a dense layer."""
    b = Builder("net")
    x = b.relu(b.conv(b.input("image", (1, 3, 8, 8)), 3, 8, 3, 2, 1, bias=True))
    return b.finish(b.linear(b.node("Flatten", b.node("GlobalAveragePool", x), axis=1), 8, 5))


def open_net() -> Graph:
    """A dense layer over rows whose number is open."""
    b = Builder("open")
    x = Value("x", TensorType("float32", (Var("rows"), 6)))
    b.inputs.append(x)
    return b.finish(b.node("Tanh", b.dense(b.relu(b.dense(x, 6, 5)), 5, 3)))


def device() -> Target | None:
    """A device that every machine can have; None where it has none."""
    try:
        return find_target("opencl")
    except TargetError:
        return None


def write_models(folder: Path) -> None:
    """Saved modules, and beside each its inputs and what it answers."""
    loop, loop_inputs = recurrent()
    host = with_host_node()
    models = {
        "net": (small_net(), random_inputs(small_net())),
        "host": (host, [np.array([3, 1, 3, 2] * 3, "float32")]),
        "loop": (loop, loop_inputs),
        "open": (open_net(), random_inputs(open_net(), 1, {"rows": 3})),
    }
    if FULL and device() is not None:
        models["device"] = models["net"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (graph, arrays) in models.items():
            module = compile(graph, target=device() if name == "device" else "auto")
            feeds = {value.name: array for value, array in zip(graph.inputs, arrays)}
            module.run(None, feeds)
            module.save(folder / f"{name}.weft")
            made = load(folder / f"{name}.weft").run(None, feeds)
            np.savez(folder / f"{name}.npz", **feeds, **{f"out:{at:02}": one for at, one in enumerate(made)})


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    write_models(folder)
    return folder


def run_child(folder: Path, first: int, stride: int) -> dict[str, int]:
    """Tries a share of the mutations in a process of its own."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "tests.compiler.saved.module_mutations", str(folder), str(first), str(stride)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    now = (folder / "now").read_text() if (folder / "now").exists() else "the first"
    assert done.returncode == 0, f"{now}: ended with {done.returncode}\n{done.stderr[-3000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def test_mutated_manifests_touch_no_other_memory(saved):
    """A share of all mutations; `make test-full` tries every one."""
    counts = run_child(saved, 5, 1 if FULL else 61)
    assert counts["refused"] > 100 and counts["right"] > 5
