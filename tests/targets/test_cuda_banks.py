"""Products of large register tiles: operands along k turned on their way, products back and forth, sums moved."""

from __future__ import annotations

import re

import numpy as np
import pytest

from weft import te
from weft.expr.nodes import Call, int_value
from weft.expr.visit import walk
from weft.loop.interpreter import interpret
from weft.loop.ir import For
from weft.loop.passes.double_buffer import CARRIED
from weft.loop.visit import walk_exprs, walk_stmts
from weft.plan.planner import analytic, picking
from weft.targets.cuda.copies import COPY
from weft.targets.cuda.families import default_schedule
from weft.targets.registry import find_target

HOPPER = find_target("cuda:sm_90a")


def scheduled(m, n, k, turned, point, bias=False):
    """A product by one point: A by B, or by B's transpose."""
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((n, k) if turned else (k, n), name="B")
    r = te.reduce_axis((0, k), "r")
    output = te.compute((m, n), lambda i, j: te.sum(a[i, r] * (b[j, r] if turned else b[r, j]), axis=r), name="C")
    if bias:
        total = output
        output = te.compute((m, n), lambda i, j: total[i, j] + 1.0, name="D")

    def pick(unit, sketches):
        chosen = [(sketch, point, 0.0) for sketch in sketches if sketch.name == "product"]
        return chosen or analytic(unit, sketches)

    s = te.create_schedule(output.op)
    with picking(pick):
        default_schedule(s, HOPPER, ())
    return s


def tile(x, y, each_x, each_y=8, k=8, parts=1, stages=3):
    return {"tile_x": x, "tile_y": y, "tile_k": k, "each_x": each_x, "each_y": each_y, "parts": parts, "stages": stages}


@pytest.mark.parametrize(
    ("point", "turned"),
    [
        (tile(32, 16, 8, k=16), False),
        (tile(16, 16, 8, k=4), True),
        (tile(16, 16, 8, k=4, parts=2), False),
        (tile(64, 32, 8), True),  # a warp of 4 rows of 8 threads
        (tile(32, 16, 16, k=4), False),
        (tile(32, 32, 16, k=4, parts=2), True),
        pytest.param(tile(128, 64, 8, k=4, parts=2), False, marks=pytest.mark.slow),  # two by two of them
    ],
)
def test_any_tile_means_the_same(point, turned):
    m, n, k = 20, 36, 18
    s = scheduled(m, n, k, turned, point)
    random = np.random.default_rng(1)
    a = random.standard_normal((m, k)).astype(np.float32)
    b = random.standard_normal((n, k) if turned else (k, n)).astype(np.float32)
    wanted = a.astype(np.float64) @ (b.T if turned else b)
    made = np.full((m, n), 7, np.float32)
    interpret(HOPPER.lower(s.func), a, b, made, check=True)
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)


def copies_of(func):
    calls = [e for root in walk_exprs(func.body) for e in walk(root) if isinstance(e, Call) and e.name == COPY]
    return {int_value(call.args[2]) for call in calls}


def test_operands_along_k_are_turned_for_large_tiles_only():
    assert copies_of(HOPPER.lower(scheduled(128, 128, 64, False, tile(32, 32, 8)).func)) == {4, 16}
    assert copies_of(HOPPER.lower(scheduled(128, 128, 64, False, tile(32, 32, 8, 4)).func)) == {16}
    assert copies_of(HOPPER.lower(scheduled(128, 128, 64, True, tile(32, 32, 8)).func)) == {4}


def test_products_of_large_tiles_go_back_and_forth():
    def text(*each):
        return str(HOPPER.lower(scheduled(64, 64, 32, False, tile(32, 32, *each)).func))

    turns = re.compile(r"C_sum\[.*int32\(([xy])_1\)%2i32")
    assert turns.search(text(8))[1] == "y" and turns.search(text(16))[1] == "x" and not turns.search(text(8, 4))


def test_what_the_next_k_takes_is_loaded_ahead():
    """Across steps: behind the one barrier of a step, before its last products; large tiles only."""
    program = HOPPER.lower(scheduled(64, 64, 32, False, tile(32, 32, 8)).func)
    (loop,) = [s for s in walk_stmts(program.body) if isinstance(s, For) and s.annotations.get(CARRIED)]
    assert int_value(loop.extent) == 7 and "C_x_local: float32[2, 2, 1, 1, 4]" in str(program)
    assert "pipeline_carried" not in str(HOPPER.lower(scheduled(64, 64, 32, False, tile(32, 32, 8, 4)).func))


@pytest.mark.parametrize(("given", "held"), [(tile(64, 64, 8), 8), (tile(128, 128, 8), 2), (tile(256, 64, 16), 2)])
def test_registers_leave_room_for_the_blocks_that_are_reckoned_with(given, held):
    source = HOPPER.generate(HOPPER.lower(scheduled(2048, 2048, 64, False, given).func)).source
    assert re.search(rf"__launch_bounds__\(\d+, {held}\)", source)


@pytest.mark.parametrize(("each", "block"), [((8, 8), (8, 4, 8)), ((8, 4), (16, 32, 1))])
def test_warps_of_large_tiles_are_rows_and_columns(each, block):
    s = scheduled(256, 256, 64, False, tile(128, 128, *each))
    assert HOPPER.generate(HOPPER.lower(s.func)).kernels[0].block == block


def test_sums_that_are_stored_as_they_are_are_moved():
    def text(*given, **more):
        s = scheduled(64, 64, 32, False, *given, **more)
        return HOPPER.generate(HOPPER.lower(s.func)).source

    plain = text(tile(32, 32, 8))
    assert len(re.findall(r"= weft_moved\(C_sum\[", plain)) == 16
    assert "weft_moved" not in text(tile(32, 32, 8), bias=True)
    assert "weft_moved" not in text(tile(32, 32, 8, 4))
