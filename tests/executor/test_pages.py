"""Weights in large pages: the same values, aligned, nothing moved that others hold, and files that are mapped."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from tests.executor.graphs import check, random_inputs
from weft.executor import compile, load
from weft.executor.pages import ALIGNMENT, LARGE_PAGE, move_to_large_pages, prefer_large_pages
from weft.graph.ir import Graph
from weft.models.builder import Builder


def dense() -> Graph:
    """Two products whose weights together fill more than a large page."""
    b = Builder("dense")
    x = b.input("x", (3, 700))
    return b.finish(b.dense(b.node("Relu", b.dense(x, 700, 900)), 900, 300))


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")
def test_moves_what_nobody_else_holds():
    random = np.random.default_rng(0)
    kinds = ("float32", "int8", "float64")
    arrays = [random.integers(-9, 9, (n, 7)).astype(kinds[n % 3]) for n in (70001, 3, 0, 50000, 80002)]
    before, kept = [a.copy() for a in arrays], arrays[3]
    move_to_large_pages(arrays, {id(kept)})
    assert arrays[3] is kept
    for have, want in zip(arrays, before, strict=True):
        assert have.dtype == want.dtype and have.flags.c_contiguous
        np.testing.assert_array_equal(have, want)
    starts = [arrays[at].ctypes.data for at in (0, 1, 4)]
    assert starts[0] % LARGE_PAGE == 0 and all(start % ALIGNMENT == 0 for start in starts)
    assert starts[0] + before[0].nbytes <= starts[1] and starts[1] + before[1].nbytes <= starts[2]


def test_little_stays_where_it_is():
    arrays = [np.ones(100), np.ones(1000, np.float32)]
    same = list(arrays)
    move_to_large_pages(arrays, set())
    assert all(a is b for a, b in zip(arrays, same, strict=True))


def test_a_mapped_file_is_readable_whatever_the_system_gives(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"weights" * 1000)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    prefer_large_pages(mapped)
    assert mapped[-7:] == b"weights"


def test_models_compiled_and_loaded(tmp_path: Path):
    graph = dense()
    inputs = random_inputs(graph)
    module = check(graph, inputs)
    program = module.specializations[0].lowered.program
    assert sum(w.nbytes for w in program.weights) > LARGE_PAGE
    shared = {id(a) for a in graph.constants.values()}
    moved = [w for w in program.weights if id(w) not in shared]
    if hasattr(mmap, "MADV_HUGEPAGE"):
        assert moved and moved[0].ctypes.data % LARGE_PAGE == 0
    module.save(tmp_path / "dense.weft")
    np.testing.assert_array_equal(load(tmp_path / "dense.weft")(*inputs), compile(graph)(*inputs))
