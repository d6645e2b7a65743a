"""Products of few rows with constants of bfloat16 by tensor cores: by the interpreter with races, by NVRTC."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from tests.targets.test_gpu_schedules import CUDA, check, default_schedule, shape_of
from weft import te
from weft.core.dtypes import dtype
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate
from weft.loop.passes.support import is_barrier
from weft.loop.visit import Mutator, walk_stmts
from weft.models.builder import Builder
from weft.ops.few_bits_words import weighted
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


def product_of_words(rows, n, k, bits, block, has_zeros=False):
    """Rows of some axes times words of few bits with scales of blocks, which have so many words."""
    each, words = 32 // bits, k * bits // 32
    x, w = te.placeholder((*rows, k), name="X"), te.placeholder((words, n), "uint32", name="W")
    scales, zeros = (te.placeholder((words // block, n), kind, name=f"{kind}_s") for kind in ("float32", "uint8"))
    axis, inputs = te.reduce_axis(words, "w"), [x, w, scales, *[zeros] * has_zeros]

    def element(*at):
        place = axis.var // block, at[-1]
        zero = zeros[place].astype("float32") if has_zeros else float(1 << (bits - 1))
        elements = [x[(*at[:-1], axis.var * each + part)] for part in range(each)]
        return te.sum(weighted(scales[place], elements, w[axis.var, at[-1]], bits, zero), axis=axis)

    return inputs, te.compute((*rows, n), element, name="C")


WORD_PRODUCTS = [
    ((8,), 160, 512, 4, 4, False), ((8, 1), 80, 256, 4, 4, True), ((1, 5), 128, 512, 4, 16, False),
    ((2, 1), 64, 256, 8, 8, False), ((3,), 48, 256, 8, 4, True), ((8,), 144, 1024, 2, 8, False),
    ((4,), 256, 1024, 4, 32, True),
]  # fmt: skip


@pytest.mark.thin(2)
@pytest.mark.parametrize("rows, n, k, bits, block, has_zeros", WORD_PRODUCTS)
def test_words_of_few_bits(rows, n, k, bits, block, has_zeros):
    inputs, made = product_of_words(rows, n, k, bits, block, has_zeros)
    random = np.random.default_rng(0)
    arrays = {
        t.name: random.standard_normal(shape_of(t)).astype(np.float32)
        if t.dtype.is_float else random.integers(0, 1 << (32 if t.dtype.bytes == 4 else bits), shape_of(t))
        .astype(t.dtype.numpy) for t in inputs
    }  # fmt: skip
    schedule = te.create_schedule(made.op)
    default_schedule(schedule, CUDA, inputs[1:])
    assert any(step.name == "streamed tiles" and step for step in schedule.tried), schedule.tried
    assert "weft_mma_words" in CUDA.generate(CUDA.lower(schedule.func)).source
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    numbers = (arrays["W"][:, None] >> shifts[:, None] & np.uint32((1 << bits) - 1)).reshape(k, n).astype(float)
    zero = np.repeat(arrays["uint8_s"], k // len(arrays["uint8_s"]), 0) if has_zeros else float(1 << (bits - 1))
    scales = np.repeat(arrays["float32_s"], k // len(arrays["float32_s"]), 0)
    want = arrays["X"].astype(float) @ ((numbers - zero) * scales)
    lowered = CUDA.lower(schedule.func)
    for func, strict in ((schedule.func, True), (lowered, False)):
        out = np.full(shape_of(made), 7, np.float32)
        interpret(func, *[arrays.get(p.name, out) for p in func.params], check=strict)
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    program = CUDA.generate(lowered)
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, "sm_90a")[1:4] == b"ELF"


@pytest.mark.parametrize("rows, n, k, bits", [((2, 1), 4096, 1024, 8), ((3,), 16384, 2048, 4)])
def test_threads_have_registers_for_all_sums(rows, n, k, bits):
    """Four for 16 columns, however few rows there are: once half of them were not there, and two rows were wrong."""
    inputs, made = product_of_words(rows, n, k, bits, 4)
    schedule = te.create_schedule(made.op)
    default_schedule(schedule, CUDA, inputs[1:])
    source = CUDA.generate(CUDA.lower(schedule.func)).source
    ((width, sums),) = re.findall(r"weft_mma_words<(\d+),[^>]*>\(\((\w+) \+ 0\)", source)
    (held,) = re.findall(rf"float {sums}\[(\d+)\]", source)
    assert int(width) >= 64 and int(held) >= int(width) // 4


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_what_stores_two_results_is_none_of_these():
    """An ArgMax of few rows keeps a value and a place: the sketch asked for its one store, and stopped."""
    b = Builder("argmax")
    graph = b.finish(b.node("ArgMax", b.input("x", (2, 64)), axis=1))
    module = weft.compile(graph, target="cuda:sm_90a")
    assert module.specializations[0].launches


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("rows, kind", [(1, "float8"), (4, "bfloat16")])
def test_float8_of_several_rows_is_bfloat16(rows, kind):
    """Tensor cores take bfloat16 beside float32, and no float8: which holds each of its numbers."""
    b = Builder("narrow")
    codes = b.constant(b.random.standard_normal((256, 512)).astype(dtype("float8_e4m3fn").numpy))
    weights = b.node("DequantizeLinear", codes, b.constant(np.linspace(0.5, 1, 512, dtype=np.float32)), axis=1)
    module = weft.compile(b.finish(b.node("MatMul", b.input("x", (rows, 256)), weights)), target="cuda:sm_90a")
    (launch,) = module.specializations[0].launches
    assert any(p.dtype.name.startswith(kind) for p in launch.kernel.scheduled.params)
    assert ("weft_mma_stream" in launch.kernel.program.source) == (rows > 1)
