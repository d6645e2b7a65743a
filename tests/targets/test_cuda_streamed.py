"""Products of few rows with constants of bfloat16 by tensor cores: by the interpreter with races, by NVRTC."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.test_gpu_schedules import CUDA, check, shape_of
from weft import te
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate
from weft.loop.passes.support import is_barrier
from weft.loop.visit import Mutator, walk_stmts
from weft.targets.cuda import nvrtc


def product(rows, n, k, adds=False):
    """Rows of some axes times a matrix, and a skip connection."""
    x, w = te.placeholder((*rows, k), name="X"), te.placeholder((k, n), "bfloat16", name="W")
    skip, r = te.placeholder((*rows, n), name="S"), te.reduce_axis(k, "r")
    c = te.compute((*rows, n), lambda *at: te.sum(x[(*at[:-1], r)] * w[r, at[-1]].astype("float32"), axis=r), name="C")
    if not adds:
        return [x, w], c, lambda x, w: x @ w
    out = te.compute((*rows, n), lambda *at: te.tanh(c[at]) + skip[at], name="out")
    return [x, w, skip], out, lambda x, w, skip: np.tanh(x @ w) + skip


def scheduled(rows, n, k, adds=False):
    inputs, output, reference = product(rows, n, k, adds)
    return check(inputs, output, reference, constants=[inputs[1]], tolerance=1e-3, races=False)


@pytest.mark.thin(2)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(
    "rows, n, k",
    [((8,), 32, 256), ((8, 1), 48, 128), ((1, 5), 16, 256), ((2, 1), 64, 512), ((3,), 32, 160)],
)
def test_meaning_without_races(rows, n, k, adds):
    schedule = scheduled(rows, n, k, adds)
    assert any(step.name == "streamed tiles" and step for step in schedule.tried), schedule.tried
    program = CUDA.generate(CUDA.lower(schedule.func))
    assert len(program.kernels) == 2, "the copy that packs the weights, which is made once, and the product"
    assert "weft_mma_stream" in program.source
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, "sm_90a")[1:4] == b"ELF"


def test_a_missing_barrier_is_found():
    inputs, output, reference = product((8,), 32, 256)
    lowered = CUDA.lower(scheduled((8,), 32, 256).func)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape_of(t)).astype(t.dtype.numpy) for t in inputs)
    assert sum(map(is_barrier, walk_stmts(lowered.body))) >= 1

    class Drop(Mutator):
        def visit_Evaluate(self, s):
            return Evaluate(te.const(0)) if is_barrier(s) else s

    made = np.full(shape_of(output), 7, np.float32)
    interpret(Drop().func(lowered), x, w, made, check=False)
    assert not np.allclose(made, reference(x, w.astype(np.float32)), rtol=1e-2, atol=1e-2)
