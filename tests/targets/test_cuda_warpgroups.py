"""Products by tensor cores on CUDA: points of both spaces mean what they should, before and after lowering.

The interpreter runs the instructions by their meaning, on tiles in the order in which they lie on the device.
"""

from __future__ import annotations

import numpy as np
import pytest

from weft import te
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate, For
from weft.loop.verifier import verify
from weft.loop.visit import walk_stmts
from weft.plan.planner import contractions_of, unit_of
from weft.targets.cuda import nvrtc, swizzle, tensor_cores
from weft.targets.cuda.families import default_schedule
from weft.targets.gpu.product import find_product
from weft.targets.registry import find_target

HOPPER = find_target("cuda:sm_90a")
AMPERE = find_target("cuda:sm_80")


def product(m, n, k, turned, dtype):
    """A product with an elementwise block after it, and what it gives."""
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((n, k) if turned else (k, n), dtype, name="B")
    r = te.reduce_axis((0, k), "r")

    def body(i, j):
        right = b[j, r] if turned else b[r, j]
        return te.sum(a[i, r].astype("float32") * right.astype("float32"), axis=r)

    total = te.compute((m, n), body, name="C")
    output = te.compute((m, n), lambda i, j: total[i, j] * 0.5, name="D")
    return te.create_schedule(output.op), a.dtype.numpy, lambda x, y: x @ (y.T if turned else y) * 0.5


def group(groups_y=1, groups_x=1, tiles_y=1, width=64, stages=3, parts=1):
    return {"groups_y": groups_y, "groups_x": groups_x, "tiles_y": tiles_y, "width": width, "stages": stages,
            "parts": parts}  # fmt: skip


def warp(warps_x=1, warps_y=1, warp_x=32, warp_y=16, step=4, stages=3, parts=1, shares=1):
    return {"warps_x": warps_x, "warps_y": warps_y, "warp_x": warp_x, "warp_y": warp_y, "step": step,
            "stages": stages, "parts": parts, "shares": shares}  # fmt: skip


def check(m, n, k, turned, dtype, point):
    """Applies a point, and compares with numpy; gives the lowered program."""
    schedule, kind, reference = product(m, n, k, turned, dtype)
    (unit,) = contractions_of(unit_of(schedule, "D", HOPPER))
    found = find_product(unit)
    tiles = tensor_cores.GroupTiles if "width" in point else tensor_cores.WarpTiles
    tiles(found, tensor_cores.kind_of(found, HOPPER)).apply(point)
    verify(schedule.func)
    random = np.random.default_rng(m + n + k)
    x = random.standard_normal((m, k)).astype(kind)
    y = random.standard_normal((n, k) if turned else (k, n)).astype(kind)
    want = reference(x.astype(np.float32), y.astype(np.float32))
    lowered = HOPPER.lower(schedule.func)
    for func, strict in ((schedule.func, True), (lowered, False)):
        made = np.full((m, n), 7, np.float32)
        interpret(func, x, y, made, check=strict)
        np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-3)
    return lowered


def calls(func, prefix):
    """The calls of a program whose name begins so."""
    statements = [s.value for s in walk_stmts(func.body) if isinstance(s, Evaluate)]
    return [call for call in statements if call.name.startswith(prefix)]


def both_ways(*cases):
    """Each case with its right operand as it is, and turned; the quick suite has one of the two, by turns."""
    return [
        pytest.param(*case, turned, marks=[] if turned == bool(at % 2) else [pytest.mark.slow])
        for at, case in enumerate(cases)
        for turned in (False, True)
    ]


@pytest.mark.parametrize(
    ("sizes", "dtype", "point", "turned"),
    both_ways(
        ((64, 64, 64), "bfloat16", group()),
        ((128, 64, 192), "float16", group(groups_y=2)),
        ((64, 128, 256), "bfloat16", group(groups_x=2, stages=4)),
        ((128, 128, 128), "bfloat16", group(tiles_y=2, width=128)),
        ((70, 80, 200), "float16", group()),
        ((65, 67, 131), "bfloat16", group()),
        ((64, 64, 256), "float16", group(parts=2)),
    ),
)
def test_warpgroups(sizes, dtype, point, turned):
    lowered = check(*sizes, turned, dtype, point)
    products = calls(lowered, "wgmma_dot")
    assert products
    for call in products:
        # sums of a step are on their way while the next begins, as many as the step has tiles
        assert int(call.args[-1].value) == (point["tiles_y"] if sizes[2] > 64 else 0) or sizes[2] == 64


@pytest.mark.parametrize(
    ("sizes", "point", "turned"),
    both_ways(
        ((16, 64, 512), warp(shares=4)),
        ((16, 64, 500), warp(shares=2, warps_x=2)),
        ((32, 128, 128), warp(warps_x=2, warp_x=64, warp_y=32)),
        ((16, 128, 512), warp(warps_x=4, stages=4, parts=2)),
    ),
)
def test_warps(sizes, point, turned):
    lowered = check(*sizes, turned, "bfloat16", point)
    assert calls(lowered, "mma_dot") and calls(lowered, "copy_async")


def test_a_gathered_product_is_published_to_the_tensor_cores():
    lowered = check(65, 67, 131, False, "bfloat16", group())
    assert not calls(lowered, "copy_async") and calls(lowered, "wgmma_publish")


def test_hopper_takes_warpgroups_and_ampere_warps():
    for target, scope in ((HOPPER, "wgmma.c"), (AMPERE, "mma.c")):
        schedule, *_ = product(512, 512, 512, False, "bfloat16")
        default_schedule(schedule, target)
        assert scope in {buffer.scope for buffer in schedule.func.allocations}


@pytest.mark.parametrize("target", [HOPPER, AMPERE], ids=["sm_90a", "sm_80"])
@pytest.mark.parametrize("sizes", [(512, 512, 512), (16, 512, 1024)])
def test_products_compile(target, sizes):
    if not nvrtc.is_available():
        pytest.skip("NVRTC is not installed")
    schedule, *_ = product(*sizes, False, "float16")
    default_schedule(schedule, target)
    program = target.generate(target.lower(schedule.func))
    assert ("wgmma.mma_async" in program.source) == (target is HOPPER and sizes[0] >= 64)
    assert nvrtc.compile_source(program.source, target.cpu)


def test_swizzled_lines_keep_their_chunks_and_part_columns():
    places = np.arange(8 * 64)
    moved = swizzle.swizzled(places, 8)
    assert sorted(moved) == list(places)
    assert (moved // 64 == places // 64).all()  # the same line
    assert (moved % 8 == places % 8).all()  # whole chunks move
    columns = moved.reshape(8, 8, 8)[:, :, 0] % 64 // 8
    assert all(sorted(columns[:, chunk]) == list(range(8)) for chunk in range(8))


def test_a_step_too_few_keeps_products_in_their_step():
    """With two parts there is none to spare: the products of a step are through before the next fetch."""
    lowered = check(64, 64, 256, False, "bfloat16", group(stages=2))
    assert [int(call.args[-1].value) for call in calls(lowered, "wgmma_dot")] == [0]
    assert not any("pipeline_lag_kept" in s.annotations for s in walk_stmts(lowered.body) if isinstance(s, For))


@pytest.mark.parametrize(
    ("sizes", "turned"),
    both_ways(*([sizes] for sizes in [(4, 64, 72), (17, 130, 200), (40, 64, 512), (100, 72, 96), (33, 31, 65)])),
)
def test_default_schedules_of_odd_sizes(sizes, turned):
    """Whatever way is chosen, on the device copies must begin where they may: the interpreter checks that too."""
    schedule, kind, reference = product(*sizes, turned, "float16")
    default_schedule(schedule, HOPPER)
    m, n, k = sizes
    random = np.random.default_rng(k)
    x = random.standard_normal((m, k)).astype(kind)
    y = random.standard_normal((n, k) if turned else (k, n)).astype(kind)
    made = np.full((m, n), 7, np.float32)
    interpret(HOPPER.lower(schedule.func), x, y, made, check=False)
    np.testing.assert_allclose(made, reference(x.astype(np.float32), y.astype(np.float32)), rtol=1e-3, atol=1e-3)


def test_default_schedules_find_the_tensor_cores():
    for sizes in ((256, 64, 512), (100, 72, 512), (16, 512, 512), (170, 130, 333), (777, 255, 96)):
        for target in (HOPPER, AMPERE):
            schedule, *_ = product(*sizes, False, "bfloat16")
            default_schedule(schedule, target)
            assert {"mma.c", "wgmma.c"} & {buffer.scope for buffer in schedule.func.allocations}, (sizes, target.name)
