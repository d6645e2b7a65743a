"""Memory of a compiled model: weights are held once, and come back from the model's file when somebody asks."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.graphs import check, convnet, random_inputs
from weft.cli.to_onnx import to_onnx
from weft.compiler import compile, load
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.models.builder import Builder


def wide(size: int = 512) -> Graph:
    """Two products with 2 MB of weights, or more."""
    b = Builder("wide")
    x = b.input("x", (4, size))
    for _ in range(2):
        x = b.relu(b.dense(x, size, size))
    return b.finish(x)


def resident() -> int:
    """The bytes of this process that are in memory: blocks that were asked for and never written are not.

    What the C library keeps of blocks that were freed is nobody's: it goes back first, where it can.
    """
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.fixture(autouse=True)
def _no_cache():
    """What was compiled before must not be found again here."""
    with knobs.override(cache=False):
        yield


@pytest.fixture
def path(tmp_path):
    """The model as a file."""
    onnx = pytest.importorskip("onnx")
    onnx.save(to_onnx(wide()), tmp_path / "wide.onnx")
    return tmp_path / "wide.onnx"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what is in memory")
def test_a_model_from_a_file_holds_its_weights_once(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "wide.onnx"
    onnx.save(to_onnx(wide(2048)), path)
    compile(path)(np.zeros((4, 2048), "float32"))
    before = resident()
    module = compile(path)
    module(np.zeros((4, 2048), "float32"))
    held = resident() - before
    weights = sum(array.nbytes for array in module.specializations[0].runner.program.weights)
    assert weights > 24_000_000  # 33.6 million as float32; three bytes each where the processor has long vectors
    assert 0.5 * weights < held < 1.4 * weights


def test_nothing_is_made_again_before_somebody_asks(path, monkeypatch):
    from weft.frontends import onnx as frontend

    read = []
    plain = frontend.load
    monkeypatch.setattr(frontend, "load", lambda *given: read.append(1) or plain(*given))
    module = compile(path)
    module(np.zeros((4, 512), "float32"))
    kept = module.graph.constants
    assert len(kept) == len(wide().constants) and all(value in kept for value in kept)
    assert len(read) == 1
    assert len(dict(kept)) == len(dict(kept)) == len(kept)
    assert len(read) == 2


def test_what_was_let_go_of_comes_back(path, tmp_path):
    module = compile(path)
    graph = wide()
    check(graph, random_inputs(graph), module)
    again = {value.name: array for value, array in module.graph.constants.items()}
    for value, array in graph.constants.items():
        np.testing.assert_array_equal(again[value.name], array)
    (one,) = module.specializations
    assert all(array.size for array in one.graph.constants.values())
    assert len(module.graph.constants) == len(again) and "kernel calls" in module.report()
    module.save(tmp_path / "wide.weft")
    check(graph, random_inputs(graph), load(tmp_path / "wide.weft"))


def test_saving_needs_no_file(path, tmp_path):
    module = compile(path)
    path.unlink()
    module.save(tmp_path / "wide.weft")
    check(wide(), random_inputs(wide()), load(tmp_path / "wide.weft"))
    with pytest.raises(WeftError, match="wide.onnx"):
        dict(module.graph.constants)


def test_another_file_in_its_place_is_noticed(path):
    onnx = pytest.importorskip("onnx")
    module = compile(path)
    graph = wide()
    changed = {value: array + 1 for value, array in graph.constants.items()}
    onnx.save(to_onnx(graph.replace(constants=changed)), path)
    with pytest.raises(WeftError, match="changed or replaced"):
        dict(module.graph.constants)
    check(graph, random_inputs(graph), module)


def test_a_graph_of_the_callers_stays_as_it_is():
    graph = convnet()
    before = dict(graph.constants)
    module = compile(graph)
    assert type(graph.constants) is dict and graph.constants == before
    assert all(module.graph.constants[v] is a for v, a in before.items() if v in module.graph.constants)
    made = dict(module.specializations[0].graph.constants)
    assert made and all(isinstance(array, np.ndarray) for array in made.values())
