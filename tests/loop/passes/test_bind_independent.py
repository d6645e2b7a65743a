"""Loops that no schedule reaches become threads: updates named by data, in order where they may meet."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from weft.core.dtypes import FLOAT32, INT64
from weft.expr.nodes import Buffer, Load, Var
from weft.loop.interpreter import interpret
from weft.loop.ir import For, Func, Let, Store
from weft.loop.passes.bind_independent import NAME, bind_independent
from weft.loop.visit import walk_stmts
from weft.models.builder import Builder


def ordered(places, rows=5, columns=6):
    """Updates of rows that data names, one after the other; columns do not meet."""
    at, given, out = (
        Buffer("at", INT64, [rows]),
        Buffer("x", FLOAT32, [rows, columns]),
        Buffer("y", FLOAT32, [places, columns]),
    )
    u, row, j = Var("u"), Var("row"), Var("j")
    inner = For(
        j, columns, Store(out, [row, j], Load(out, [row, j]) + Load(given, [u, j]) * 2.0), annotations={NAME: True}
    )
    return Func("f", [at, given, out], For(u, rows, Let(row, Load(at, [u]), inner)))


def test_loops_around_run_inside_each_thread():
    func = ordered(4)
    made = bind_independent(func)
    threads = [s.thread for s in walk_stmts(made.body) if isinstance(s, For) and s.kind == "thread"]
    assert threads == ["blockIdx.x", "threadIdx.x"]
    at, x = np.array([1, 3, 1, 0, 1]), np.arange(30, dtype=np.float32).reshape(5, 6)
    wanted, got = np.ones((4, 6), np.float32), np.ones((4, 6), np.float32)
    for place, row in zip(at, x):
        wanted[place] += row * 2
    interpret(made, at, x, got)
    np.testing.assert_array_equal(got, wanted)


def scatter(op, shape, places, axis=0, reduction="none"):
    b = Builder("scatter")
    data, at = b.input("data", shape), b.input("at", places, "int64")
    rest = places if op == "ScatterElements" else (*places[:-1], *shape[places[-1] :])
    more = {"axis": axis} if op == "ScatterElements" else {}
    return b.finish(b.node(op, data, at, b.input("updates", rest), reduction=reduction, **more)), rest


CASES = [
    (("ScatterElements", (40, 48), (20, 48), 0), 48), (("ScatterElements", (8, 30, 16), (7, 5, 16), 1, "add"), 112),
    (("ScatterND", (50, 64), (20, 1)), 64), (("ScatterND", (9, 5, 4, 3), (6, 2, 2), 0, "add"), 12),
    (("ScatterND", (50, 3), (20, 2), 0, "add"), 1),
]  # fmt: skip


@pytest.mark.parametrize("given,threads", CASES)
def test_updates_that_do_not_meet_have_threads(given, threads):
    (one,) = weft.compile(scatter(*given)[0], target="cuda:sm_90a").specializations
    copy, write = [k for launch in one.launches for k in launch.kernel.program.kernels]
    assert copy.grid[0] * copy.block[0] >= np.prod(given[1]) and write.grid[0] * write.block[0] == threads


@pytest.mark.parametrize("given,threads", CASES)
def test_values_on_opencl(given, threads):
    graph, rest = scatter(*given)
    random = np.random.default_rng(0)
    low = min(given[1]) if given[0] == "ScatterND" else given[1][given[3]]
    arrays = random.standard_normal(given[1]), random.integers(0, low, given[2]), random.standard_normal(rest)
    x, at, updates = (a.astype(np.float32) if a.dtype == float else a for a in arrays)
    wanted = weft.compile(graph)(x, at, updates)
    np.testing.assert_allclose(weft.compile(graph, target=opencl())(x, at, updates)[0], wanted[0], rtol=1e-5)
