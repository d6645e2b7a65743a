"""Kernels in the cache folder: each is kept as it is made, and found by the next compile of whatever has it."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.compiler.kernels import build as kernels
from weft.core import model
from weft.core.knobs import knobs
from weft.core.progress import listening
from weft.graph.ir import Graph, Node, TensorType, Value


def graph(*ops: str) -> Graph:
    x = Value("x", TensorType("float32", (3, 50)))
    values = [x, *(Value(f"v{n}") for n in range(len(ops)))]
    nodes = [Node(op, [values[n]], [values[n + 1]]) for n, op in enumerate(ops)]
    return Graph("g", [x], [values[-1]], nodes)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The kernels that LLVM made, by the number of their text; nothing is remembered from before."""
    texts: list[str] = []
    plain = kernels.llvm_compile.emit_object
    monkeypatch.setattr(model, "KERNEL_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(kernels, "_CACHE", type(kernels._CACHE)())

    def emit(text, target, *more):
        if "stretch" not in text:
            texts.append(text)
        return plain(text, target, *more)

    monkeypatch.setattr(kernels.llvm_compile, "emit_object", emit)
    with knobs.override(cache_dir=tmp_path, cache=True, fuse=False, num_threads=1):
        yield texts


def test_another_model_finds_kernels_that_it_shares(made):
    x = np.linspace(-1, 1, 150, dtype="float32").reshape(3, 50)
    weft.compile(graph("Exp", "Sigmoid"))
    assert len(made) == 2
    kernels._CACHE.clear()
    np.testing.assert_allclose(weft.compile(graph("Sigmoid", "Exp"))(x), np.exp(1 / (1 + np.exp(-x))), rtol=1e-5)
    assert len(made) == 2
    with knobs.override(cache=False):
        kernels._CACHE.clear()
        weft.compile(graph("Exp"))
    assert len(made) == 3


def test_a_compile_that_is_stopped_loses_no_kernel(made, monkeypatch):
    plain, count = kernels.generate, []

    def stop(*given, **more):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return plain(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "generate", stop)
        with pytest.raises(KeyboardInterrupt):
            weft.compile(graph("Exp", "Sigmoid", "Tanh"))
    assert len(made) == 2
    kernels._CACHE.clear()
    weft.compile(graph("Exp", "Sigmoid", "Tanh"))
    assert len(made) == 3


def test_progress_is_told():
    heard: list[tuple[int, int]] = []
    with knobs.override(cache=False, fuse=False), listening(lambda done, total: heard.append((done, total))):
        weft.compile(graph("Exp", "Sigmoid"))
    assert heard == [(0, 2), (1, 2)]
