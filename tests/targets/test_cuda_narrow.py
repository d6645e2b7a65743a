"""Products of bytes and of tf32 by tensor cores: both spaces, any order of operands, rounding where it is asked for.

The interpreter runs the instructions by their meaning: sums of bytes are exact, tf32 has 10 bits of mantissa.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from weft import te
from weft.core.errors import ArgumentError
from weft.loop.interpreter import interpret
from weft.loop.verifier import verify
from weft.plan.planner import avoiding, contractions_of, unit_of
from weft.targets.cuda import mma, nvrtc, tensor_cores, wgmma
from weft.targets.cuda.families import default_schedule
from weft.targets.gpu.families import default_schedule as plain_default
from weft.targets.gpu.product import find_product
from weft.targets.registry import find_target

HOPPER = find_target("cuda:sm_90a")
AMPERE = find_target("cuda:sm_80")
TARGETS = pytest.mark.parametrize("target", [HOPPER, AMPERE], ids=["sm_90a", "sm_80"])


def rounding(target):
    """The target with products in tf32 allowed."""
    return replace(target, features=target.features | {tensor_cores.FEATURE})


def product(m, n, k, turned=(False, False), kinds=("int8", "int8")):
    """A product, A by B (or their transposes), with an elementwise block after it."""
    a = te.placeholder((k, m) if turned[0] else (m, k), kinds[0], name="A")
    b = te.placeholder((n, k) if turned[1] else (k, n), kinds[1], name="B")
    wide = "float32" if kinds[0] == "float32" else "int32"
    r = te.reduce_axis((0, k), "r")

    def body(i, j):
        left, right = (a[r, i] if turned[0] else a[i, r]), (b[j, r] if turned[1] else b[r, j])
        return te.sum(left.astype(wide) * right.astype(wide), axis=r)

    total = te.compute((m, n), body, name="C")
    output = te.compute((m, n), lambda i, j: total[i, j] + te.const(1, wide), name="D")
    return te.create_schedule(output.op)


def arrays_of(schedule, seed=0):
    """Random operands, bytes over their whole range, and the product of them in numpy, in float64."""
    random = np.random.default_rng(seed)
    made = []
    for buffer in schedule.func.params[:2]:
        shape = [int(size.value) for size in buffer.shape]
        if buffer.dtype.is_float:
            made.append(random.standard_normal(shape).astype(np.float32))
        else:
            made.append(random.integers(buffer.dtype.min, buffer.dtype.max, shape, buffer.dtype.numpy, endpoint=True))
    return made


def meaning(a, b, turned):
    left, right = a.astype(np.float64), b.astype(np.float64)
    return (left.T if turned[0] else left) @ (right.T if turned[1] else right) + 1


def outcome(func, a, b, shape, kind, check):
    made = np.full(shape, 7, kind)
    interpret(func, a, b, made, check=check)
    return made


def group(width=64, parts=1):
    return {"groups_y": 1, "groups_x": 1, "tiles_y": 1, "width": width, "stages": 3, "parts": parts}


def warp(warp_x=32, warp_y=16, step=4, parts=1, shares=1):
    return {"warps_x": 1, "warps_y": 1, "warp_x": warp_x, "warp_y": warp_y, "step": step, "stages": 3,
            "parts": parts, "shares": shares}  # fmt: skip


@pytest.mark.parametrize(
    ("turned", "kinds", "point"),
    [
        ((False, False), ("int8", "int8"), group()),
        ((False, True), ("uint8", "int8"), group()),
        ((False, False), ("int8", "uint8"), warp()),
        ((True, False), ("uint8", "int8"), warp()),
        ((False, True), ("uint8", "uint8"), warp(shares=2)),
    ],
)
def test_bytes_are_exact(turned, kinds, point):
    m, n, k = (64, 64, 256) if "width" in point else (17, 40, 150)
    schedule = product(m, n, k, turned, kinds)
    (unit,) = contractions_of(unit_of(schedule, "D", HOPPER))
    found = find_product(unit)
    kind = tensor_cores.kind_of(found, HOPPER)
    assert kind is not None and kind.elements == kinds
    tiles = tensor_cores.GroupTiles if "width" in point else tensor_cores.WarpTiles
    tiles(found, kind).apply(point)
    verify(schedule.func)
    a, b = arrays_of(schedule)
    for func, strict in ((schedule.func, True), (HOPPER.lower(schedule.func), False)):
        np.testing.assert_array_equal(outcome(func, a, b, (m, n), np.int32, strict), meaning(a, b, turned))


@pytest.mark.parametrize(("turned", "point"), [((False, False), group()), ((True, True), warp(step=2))])
def test_tf32_keeps_ten_bits(turned, point):
    target = rounding(HOPPER)
    m, n, k = (64, 64, 96) if "width" in point else (17, 40, 150)
    schedule = product(m, n, k, turned, ("float32", "float32"))
    (unit,) = contractions_of(unit_of(schedule, "D", target))
    found = find_product(unit)
    kind = tensor_cores.kind_of(found, target)
    assert kind is mma.KINDS["tf32"]
    tiles = tensor_cores.GroupTiles if "width" in point else tensor_cores.WarpTiles
    tiles(found, kind).apply(point)
    a, b = arrays_of(schedule)
    made = outcome(target.lower(schedule.func), a, b, (m, n), np.float32, False)
    cut = wgmma.cut_tf32 if "width" in point else mma.round_tf32
    np.testing.assert_allclose(made, meaning(cut(a), cut(b), turned), rtol=1e-4, atol=1e-4)
    error = np.abs(made - meaning(a, b, turned)).max()
    assert 1e-4 < error < (0.2 if "width" in point else 0.02)


def test_tf32_rounds_to_the_nearest():
    values = np.array([1.0, 1 + 2**-11, 1 + 2**-11 - 2**-20, -1 - 2**-11, 3e38, np.inf, np.nan, 0.0], np.float32)
    want = np.array([1.0, 1 + 2**-10, 1.0, -1 - 2**-10, 3e38, np.inf, np.nan, 0.0], np.float32)
    np.testing.assert_allclose(mma.round_tf32(values), want, rtol=1e-3)
    np.testing.assert_array_equal(mma.round_tf32(values)[:4], want[:4])
    assert wgmma.cut_tf32(np.float32([1 + 2**-10 - 2**-20]))[0] == 1.0


@TARGETS
def test_float32_is_not_rounded_unless_it_is_asked_for(target):
    for machine, found in ((target, False), (rounding(target), True)):
        schedule = product(256, 256, 256, kinds=("float32", "float32"))
        default_schedule(schedule, machine)
        scopes = {buffer.scope for buffer in schedule.func.allocations}
        assert bool({"mma.c", "wgmma.c"} & scopes) == found


@TARGETS
@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8"), ("float32", "float32")])
@pytest.mark.parametrize("sizes", [(512, 512, 512), (20, 72, 333)])
def test_default_schedules_compile(target, kinds, sizes):
    if not nvrtc.is_available():
        pytest.skip("NVRTC is not installed")
    machine = rounding(target)
    schedule = product(*sizes, kinds=kinds)
    with avoiding({"product"}):  # by which small ones with odd rows may take less time
        default_schedule(schedule, machine)
    program = machine.generate(machine.lower(schedule.func))
    assert "wgmma.mma_async" in program.source or "mma.sync.aligned.m16n8k" in program.source
    assert nvrtc.compile_source(program.source, machine.cpu)


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8")])
@pytest.mark.parametrize("sizes", [(33, 31, 65), pytest.param((40, 130, 200), marks=pytest.mark.slow)])
def test_default_schedules_of_odd_sizes(sizes, kinds):
    schedule = product(*sizes, kinds=kinds)
    default_schedule(schedule, HOPPER)
    a, b = arrays_of(schedule, 1)
    made = outcome(HOPPER.lower(schedule.func), a, b, sizes[:2], np.int32, False)
    np.testing.assert_array_equal(made, meaning(a, b, (False, False)))


@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 31, 65)])
def test_bytes_without_tensor_cores(sizes):
    """Operands stay bytes in shared memory, fetched 16 at a time where they may be."""
    target = opencl()
    schedule = product(*sizes, kinds=("uint8", "int8"))
    plain_default(schedule, target)
    assert {b.dtype.name for b in schedule.func.allocations if b.scope == "shared"} == {"uint8", "int8"}
    a, b = arrays_of(schedule, 2)
    made = np.full(sizes[:2], 7, np.int32)
    weft.build(schedule.func, target=target)(a, b, made)
    np.testing.assert_array_equal(made, meaning(a, b, (False, False)))


def test_a_model_asks_for_tf32():
    model = weft.models.make("dqn")
    with pytest.raises(ArgumentError, match="has no such instructions"):
        weft.compile(model, precision="tf32")
    sources = {}
    for precision in (None, "tf32"):
        module = weft.compile(model, target="cuda:sm_80", precision=precision)
        sources[precision] = "".join(
            kernel.program.source for one in module.specializations for kernel in one.lowered.kernels
        )
    assert "tf32" in sources["tf32"] and "tf32" not in sources[None]


def test_shares_of_a_product_that_nothing_follows():
    m, n, k = 16, 64, 512
    a, b = te.placeholder((1, m, k), "float16", name="A"), te.placeholder((k, n), "float16", name="B")
    r = te.reduce_axis((0, k), "r")

    def body(batch, row, column):
        return te.sum(a[batch, row, r].astype("float32") * b[r, column].astype("float32"), axis=r)

    schedule = te.create_schedule(te.compute((1, m, n), body, name="C").op)
    sketch = tensor_cores.match_warps(unit_of(schedule, "C", HOPPER))
    point, _ = next(sketch.ranked())
    sketch.apply({**point, "shares": 4, "parts": 1})
    random = np.random.default_rng(3)
    x, y = (random.standard_normal(shape).astype(np.float16) for shape in ((1, m, k), (k, n)))
    made = outcome(HOPPER.lower(schedule.func), x, y, (1, m, n), np.float32, False)
    np.testing.assert_allclose(made[0], x[0].astype(np.float32) @ y.astype(np.float32), rtol=1e-3, atol=1e-3)


def test_what_broadcasts_along_one_element_and_numbers_are_part_of_a_product_s_kernel():
    """As the epilogues of quantized models at batch 1: a dimension of one element read at 0, a number in a block."""
    a, b = te.placeholder((1, 8, 24), name="A"), te.placeholder((24, 16), name="B")
    r, zero = te.reduce_axis(24, "r"), te.const(0)
    number = te.compute((), lambda: te.const(0.5, "float32"), name="number")
    total = te.compute((1, 8, 16), lambda n, i, j: te.sum(a[n, i, r] * b[r, j], axis=r), name="C")
    output = te.compute((1, 8, 16), lambda n, i, j: total[zero, i, j] * number[()], name="D")
    schedule = te.create_schedule(output.op)
    default_schedule(schedule, AMPERE)
    lowered = AMPERE.lower(schedule.func)
    assert len(AMPERE.generate(lowered).kernels) == 1
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(shape).astype(np.float32) for shape in ((1, 8, 24), (24, 16)))
    made = outcome(lowered, x, y, (1, 8, 16), np.float32, False)
    np.testing.assert_allclose(made, x @ y * 0.5, rtol=1e-4, atol=1e-4)
