"""Products whose operands the copy engine fetches: their meaning, and what the interpreter says of a missing wait.

On a device: tests/compiler/device/test_device_gpu.py and `python -m benchmarks.gpu`.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.compiler.device.fake_cuda import FakeDriver
from tests.targets.test_cuda_warpgroups import HOPPER, calls, product
from weft import te
from weft.compiler.device.store import programs_of, programs_row
from weft.compiler.saved.check_file import _check_program
from weft.core.array_types import numpy_type
from weft.core.errors import InterpreterError
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate, For
from weft.loop.verifier import verify
from weft.loop.visit import Mutator, walk_stmts
from weft.models.builder import Builder
from weft.plan.planner import contractions_of, unit_of
from weft.targets.cuda import bulk_tiles, driver, nvrtc, tensor_cores, wgmma
from weft.targets.gpu.product import find_product


def lowered(
    sizes,
    turned=True,
    blocks=2,
    dtype="float16",
    groups_y=1,
    groups_x=1,
    tiles_y=1,
    width=64,
    stages=3,
    band=2,
    copies=0,
    parts=1,
    resident=1,
    cluster=0,
):
    """A product by a point of the space on a machine of few multiprocessors; its schedule, and lowered."""
    schedule, kind, reference = product(*sizes, turned, dtype)
    (unit,) = contractions_of(unit_of(schedule, "D", HOPPER))
    found = find_product(unit)
    tiles = bulk_tiles.BulkTiles(found, tensor_cores.kind_of(found, HOPPER))
    tiles.machine = replace(tiles.machine, multiprocessors=blocks)
    tiles.apply({"groups_y": groups_y, "groups_x": groups_x, "tiles_y": tiles_y, "width": width, "stages": stages,
                 "band": band, "parts": parts, "copies": copies, "resident": resident, "cluster": cluster})  # fmt: skip
    verify(schedule.func)
    return schedule.func, HOPPER.lower(schedule.func), kind, reference


def run(func, sizes, turned, kind, reference):
    m, n, k = sizes
    random = np.random.default_rng(m + n + k)
    x = random.standard_normal((m, k)).astype(kind)
    y = random.standard_normal((n, k) if turned else (k, n)).astype(kind)
    made = np.full((m, n), 7, np.float32)
    interpret(func, x, y, made, check=False)
    np.testing.assert_allclose(made, reference(x.astype(np.float32), y.astype(np.float32)), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("sizes", "turned", "point"),
    [
        ((130, 72, 136), True, {"groups_y": 2}),  # edges of rows, columns and k; three tiles for two blocks
        pytest.param(
            (200, 200, 136), False, {"width": 128, "blocks": 3}, marks=pytest.mark.slow
        ),  # columns in two boxes
        pytest.param((70, 200, 136), False, {"groups_x": 2, "dtype": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param((256, 128, 264), True, {"tiles_y": 2, "stages": 4}, marks=pytest.mark.slow),
        pytest.param((190, 72, 72), True, {}, marks=pytest.mark.slow),  # three tiles of rows: the last band has one
        pytest.param((70, 72, 136), True, {"groups_y": 3}, marks=pytest.mark.slow),  # a fill is no work for all groups
        pytest.param((64, 72, 448), False, {"parts": 2}, marks=pytest.mark.slow),  # sums of two halves of k
        ((64, 200, 72), False, {"width": 160}),  # two lines of columns and a half
        ((70, 88, 136), True, {"width": 80}),  # of which threads exchange 64
        pytest.param((128, 232, 136), False, {"width": 224}, marks=pytest.mark.slow),
        pytest.param((70, 104, 136), False, {"width": 96}, marks=pytest.mark.slow),
    ],
)
def test_products(sizes, turned, point):
    schedule, func, *rest = lowered(sizes, turned, **point)
    run(schedule, sizes, turned, *rest)
    run(func, sizes, turned, *rest)
    assert len(calls(func, "bulk_copy")) >= 2 and not calls(func, "copy_async")


def test_parts_of_one_column_of_tiles():
    """Which registers hold the sums is known before it runs, though the last band of tiles has fewer rows."""
    sizes = (190, 64, 288)
    _, func, *rest = lowered(sizes, True, parts=2)
    run(func, sizes, True, *rest)
    program = HOPPER.generate(func)
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, HOPPER.cpu)


def test_what_lies_beyond_a_matrix_is_not_fetched():
    """Of 128 rows that begin at row 128 of 130, the last 64 are none of the matrix; nor is a second line of columns."""
    for sizes, turned, point in ((130, 64, 72), True, {"groups_y": 2}), ((64, 136, 72), False, {"width": 128}):
        _, func, *rest = lowered(sizes, turned, **point)
        assert calls(func, "bulk_skip")
        run(func, sizes, turned, *rest)
    _, func, *_ = lowered((256, 64, 72), groups_y=2)
    assert not calls(func, "bulk_skip") and len(calls(func, "bulk_copy")) == 2


def tile_by_bulk(schedule, target, width=96, constants=()):
    """Schedules the product D by the copy engine, in tiles of so many columns."""
    (unit,) = contractions_of(unit_of(schedule, "D", target, constants))
    found = find_product(unit)
    tiles = bulk_tiles.BulkTiles(found, tensor_cores.kind_of(found, target))
    assert tiles.takes()
    tiles.apply({"groups_y": 1, "groups_x": 1, "tiles_y": 1, "width": width, "stages": 3, "band": 2, "parts": 1,
                 "copies": 0, "resident": 1, "cluster": 0})  # fmt: skip


def held_rows(m, n, k, form="nn", batch=0, blocks=3, **point):
    """A product of tf32 whose rows, or columns in their place, go through registers: lowered, with numbers for it."""
    target, lead, random = HOPPER.with_features("tf32"), (batch,) * bool(batch), np.random.default_rng(k)
    is_turned = [letter == "t" for letter in form]
    a, b = (
        te.placeholder((*lead, *sizes[:: -1 if turned else 1]), name=name)
        for name, sizes, turned in zip("ab", ((m, k), (k, n)), is_turned)
    )
    r = te.reduce_axis(k, "r")

    def body(*at):
        places = [pair[:: -1 if turned else 1] for pair, turned in zip(((at[-2], r), (r, at[-1])), is_turned)]
        return te.sum(a[(*at[:-2], *places[0])] * b[(*at[:-2], *places[1])], axis=r)

    schedule = te.create_schedule(te.compute((*lead, m, n), body, name="D").op)
    (unit,) = contractions_of(unit_of(schedule, "D", target))
    found = bulk_tiles._with_held_rows(unit)
    tiles = bulk_tiles.HeldRows(found, tensor_cores.kind_of(found, target))
    assert tiles.takes() and bulk_tiles.match_held(unit) is not None
    tiles.machine = replace(tiles.machine, multiprocessors=blocks)
    tiles.apply({"groups_y": 1, "groups_x": 1, "tiles_y": 1, "width": 64, "stages": 3, "band": 2, "parts": 1,
                 "copies": 0, "resident": 1, "cluster": 0, **point})  # fmt: skip
    verify(schedule.func)
    x, y = (random.standard_normal([int(size.value) for size in one.shape], np.float32) for one in (a, b))
    left, right = (
        np.swapaxes(cut, -1, -2) if turned else cut for cut, turned in zip(map(wgmma.cut_tf32, (x, y)), is_turned)
    )
    return target.lower(schedule.func), {"a": x, "b": y, "D": np.full((*lead, m, n), 7, np.float32)}, left @ right


@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        ((40, 136, 72), {"groups_y": 2}),  # three steps: the first by itself, then two at a time
        ((72, 68, 136), {"form": "tt", "width": 96}),  # rows as they are: nothing is exchanged
        ((40, 68, 264), {"parts": 2}),  # parts lie as the result does
        pytest.param((72, 132, 72), {"form": "tn"}, marks=pytest.mark.slow),  # neither lies along k: one is copied
        pytest.param((72, 132, 72), {"batch": 2}, marks=pytest.mark.slow),
        pytest.param((100, 136, 72), {"groups_x": 2}, marks=pytest.mark.slow),
        pytest.param((70, 264, 136), {"groups_y": 2, "cluster": 1}, marks=pytest.mark.slow),
        pytest.param((140, 136, 136), {"cluster": 2}, marks=pytest.mark.slow),
        pytest.param((130, 72, 136), {"resident": 2, "width": 128}, marks=pytest.mark.slow),
        pytest.param((100, 136, 72), {"tiles_y": 2, "width": 96}, marks=pytest.mark.slow),  # waits for each product
    ],
)
def test_rows_of_tf32_go_through_registers(sizes, given):
    func, arrays, want = held_rows(*sizes, **given)
    interpret(func, *[arrays[p.name] for p in func.params], check=False)
    np.testing.assert_allclose(arrays["D"], want, rtol=1e-3, atol=1e-3)
    program = HOPPER.generate(func)
    assert len(program.kernels) == 1 + (given.get("form") == "tn") + ("parts" in given)
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, HOPPER.cpu)


def test_registers_that_products_read_are_not_set_before_these_are_through():
    """Steps load into two tiles in turns, and each waits for the products of the other, whose registers it names."""
    func, *_ = held_rows(40, 40, 136)
    tiles = [[a.buffer for a in call.args[3:5]] for call in calls(func, wgmma.LOADED)]
    assert tiles == [[tiles[0][0], tiles[0][1]], [tiles[0][1], tiles[0][0]], [tiles[0][0], tiles[0][1]]]
    waited = [call.args[0].buffer for call in calls(func, wgmma.WAIT_FOR)]
    assert {tile.name for tile in waited} == {tile.name for tile in tiles[0]}


@pytest.mark.parametrize("turned", [True, False])
def test_products_of_tf32(turned):
    """Float32 by the copy engine, too; columns that do not lie along k by way of a turned copy."""
    m, n, k = 70, 72, 68
    a, b = te.placeholder((m, k), name="a"), te.placeholder((n, k) if turned else (k, n), name="b")
    r = te.reduce_axis(k, "r")
    made = te.compute((m, n), lambda i, j: te.sum(a[i, r] * (b[j, r] if turned else b[r, j]), axis=r), name="D")
    schedule, target = te.create_schedule(made.op), HOPPER.with_features("tf32")
    tile_by_bulk(schedule, target)
    func, random = target.lower(schedule.func), np.random.default_rng(0)
    x, y = (random.standard_normal((size, k), np.float32) for size in (m, n))
    given = {"a": x, "b": y if turned else np.ascontiguousarray(y.T), "D": np.full((m, n), 7, np.float32)}
    interpret(func, *[given[p.name] for p in func.params], check=False)
    np.testing.assert_allclose(given["D"], wgmma.cut_tf32(x) @ wgmma.cut_tf32(y).T, rtol=1e-3, atol=1e-4)
    assert len(calls(func, "bulk_copy")) == 2
    program = target.generate(func)
    assert len(program.kernels) == 1 + (not turned) and {m.element_bytes for m in program.kernels[-1].maps} == {4}
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, HOPPER.cpu)


def test_products_of_float8_with_scales():
    """Sums of a few steps by the tensor cores, added up in float32; scales of rows and columns in the epilogue."""
    (m, n, k), kinds = (64, 72, 656), ("float8_e4m3fn", "float8_e5m2")
    a, b = (te.placeholder((rows, k), kind, name=name) for rows, kind, name in zip((m, n), kinds, "ab"))
    rows, columns, r = te.placeholder((m,), name="rows"), te.placeholder((n,), name="columns"), te.reduce_axis(k, "r")
    sums = te.compute((m, n), lambda i, j: te.sum(a[i, r].astype("float32") * b[j, r].astype("float32"), axis=r))
    scaled = te.compute((m, n), lambda i, j: sums[i, j] * (rows[i] * columns[j]), name="D")
    schedule = te.create_schedule(scaled.op)
    tile_by_bulk(schedule, HOPPER)
    func = HOPPER.lower(schedule.func)
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((size, k)).astype(numpy_type(kind)) for size, kind in zip((m, n), kinds))
    by_row, by_column = random.random(m, np.float32), random.random(n, np.float32)
    made = np.zeros((m, n), np.float32)
    named = {"a": x.view(np.uint8), "b": y.view(np.uint8), "rows": by_row, "columns": by_column, "D": made}
    interpret(func, *[named[p.name] for p in func.params], check=False)
    want = x.astype(np.float32) @ y.astype(np.float32).T * (by_row[:, None] * by_column)
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-4)
    assert len(calls(func, "bulk_copy")) == 2 and len(calls(func, "wgmma_add")) == 1
    program = HOPPER.generate(func)
    assert "m64n96k32.f32.e4m3.e5m2" in program.source and [one.element_bytes for one in program.kernels[0].maps] == [
        1,
        1,
    ]
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, HOPPER.cpu)


def test_the_order_of_tiles_needs_no_checks_at_run_time():
    """Tiles of a last band of fewer rows are inside too, as all passes can see."""
    _, func, *_ = lowered((320, 128, 128), blocks=3)
    assert not calls(func, "report_if") and "errors" not in HOPPER.generate(func).source


def test_blocks_stay_and_one_group_fetches():
    _, func, *_ = lowered((256, 512, 256), groups_y=2, blocks=3)
    (block,) = [s for s in walk_stmts(func.body) if isinstance(s, For) and (s.thread or "").startswith("blockIdx")]
    assert int(block.extent.value) == 3
    program = HOPPER.generate(func)
    (kernel,) = program.kernels
    assert kernel.block == (128, 1, 3) and [one.box for one in kernel.maps] == [(128, 64), (64, 64)]
    assert "setmaxnreg.inc.sync.aligned.u32 240" in program.source and "__syncthreads" in program.source
    assert program.source.count("__syncthreads()") == 1  # for the barriers of bytes; then threads wait for tiles alone
    if nvrtc.is_available():
        assert nvrtc.compile_source(program.source, HOPPER.cpu)


def test_the_stage_of_a_step_is_a_known_number():
    """Eight steps with three stages: two turns of three, and two steps. Of tiles that follow one another it is not."""
    sizes = (64, 64, 512)
    _, func, *rest = lowered(sizes, blocks=1)
    run(func, sizes, True, *rest)
    kernel = HOPPER.generate(func).source.partition("__global__")[2]
    turns = re.findall(r"(\w+_turn) < 2; .*\n *#pragma unroll\n *for \(int32_t (\w+_stage) = 0; \2 < 3", kernel)
    assert len(turns) == 2 and len(re.findall(r"_stage\w* < 2;", kernel)) == 2
    assert not re.search(r"_turn\)? [%/]", kernel) and "__shfl_sync(0xffffffffu, threadIdx.y, 0)" in kernel
    _, func, *_ = lowered((256, 64, 512), blocks=1)
    assert "_turn" not in HOPPER.generate(func).source


def test_constants_are_fetched_before_a_kernel_waits():
    """What another kernel may have written is not, nor by the threads that multiply."""
    x, w = te.placeholder((64, 128), "float16", name="a"), te.placeholder((64, 128, 1, 1), "float16", name="b")
    at = [te.reduce_axis(size, name) for size, name in ((128, "r"), (1, "p"), (1, "q"))]
    sums = te.compute(
        (64, 64), lambda i, j: te.sum(x[i, at[0]].astype("float32") * w[(j, *at)].astype("float32"), axis=at)
    )
    schedule = te.create_schedule(te.compute((64, 64), lambda i, j: sums[i, j].astype("float16"), name="D").op)
    tile_by_bulk(schedule, HOPPER, 64, [w])
    source = HOPPER.generate(HOPPER.lower(schedule.func)).source
    multiply, fetch = source.partition("__global__")[2].split("} else {")
    assert multiply.index("griddepcontrol.wait") > multiply.index("__syncthreads")
    before, after = fetch.split("griddepcontrol.wait")
    assert "&b_map" in before and "&a_map" not in before and "&a_map" in after


def test_two_blocks_stay_on_a_multiprocessor():
    _, func, *rest = lowered((190, 136, 136), tiles_y=2, width=64, resident=2)
    run(func, (190, 136, 136), True, *rest)
    program = HOPPER.generate(func)
    assert program.kernels[0].grid == (4, 1, 1) and "setmaxnreg.inc.sync.aligned.u32 232" in program.source


def test_rows_of_several_axes_are_one():
    """Rows of 5 sequences of 37 tokens follow one another: tiles need not end where a sequence does."""
    a, b, r = (
        te.placeholder((5, 37, 72), "float16", name="a"),
        te.placeholder((72, 72), "float16", name="b"),
        te.reduce_axis(72, "r"),
    )
    sums = te.compute(
        (5, 37, 72), lambda n, i, j: te.sum(a[n, i, r].astype("float32") * b[r, j].astype("float32"), axis=r)
    )
    out = te.compute((5, 37, 72), lambda n, i, j: sums[n, i, j].astype("float16"), name="D")
    schedule = te.create_schedule(out.op)
    (unit,) = contractions_of(unit_of(schedule, "D", HOPPER))
    found = find_product(unit)
    tiles = bulk_tiles.BulkTiles(found, tensor_cores.kind_of(found, HOPPER))
    point = {"groups_y": 1, "groups_x": 1, "tiles_y": 1, "width": 64, "stages": 3, "band": 2, "parts": 1, "copies": 0,
             "resident": 1, "cluster": 0}  # fmt: skip
    assert tiles.legal({name: np.asarray(number) for name, number in point.items()})
    tiles.machine = replace(tiles.machine, multiprocessors=2)
    tiles.apply(point)
    func = HOPPER.lower(schedule.func)
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(size).astype(np.float16) for size in ((5, 37, 72), (72, 72)))
    made = np.full((5, 37, 72), 7, np.float16)
    interpret(func, x, y, made, check=False)
    np.testing.assert_allclose(made, x.astype(np.float32) @ y.astype(np.float32), rtol=2e-3, atol=2e-2)
    assert not calls(func, "report_if") and not calls(func, "copy_async")


def test_all_threads_of_a_warp_come_where_they_exchange_what_they_store():
    """Of 70 rows a warp has some that are none of the result: a test around the exchange would let it wait forever."""
    m, n, k = 70, 64, 72
    a, b, r = (
        te.placeholder((m, k), "float16", name="a"),
        te.placeholder((k, n), "float16", name="b"),
        te.reduce_axis(k),
    )
    sums = te.compute((m, n), lambda i, j: te.sum(a[i, r].astype("float32") * b[r, j].astype("float32"), axis=r))
    schedule = te.create_schedule(te.compute((m, n), lambda i, j: sums[i, j].astype("float16"), name="D").op)
    tile_by_bulk(schedule, HOPPER, width=64)
    source = HOPPER.generate(HOPPER.lower(schedule.func)).source
    kernel = source[source.index("__global__") :]
    (stored,) = [line for line in kernel.splitlines() if "weft_store_quad(" in line]
    assert "< 70)" in stored and not re.search(r"if \(.*< 70\)", kernel)


class _Without(Mutator):
    """A program without the calls of a name whose printed form has a word."""

    def __init__(self, name, word):
        self.name, self.word, self.removed = name, word, 0

    def visit_Evaluate(self, s):
        if s.value.name != self.name or self.word not in repr(s.value):
            return s
        self.removed += 1
        return Evaluate(te.const(0))


@pytest.mark.parametrize(
    ("name", "word", "found"),
    [
        ("bulk_wait", "full", "data race"),  # tiles are multiplied before they are there
        ("bulk_wait", "empty", "data race|deadlock"),  # and filled anew before they were
        ("bulk_arrive", "empty", "deadlock"),
        ("bulk_expect", "full", "deadlock"),
        ("bulk_init", "full", "before it was made one"),
    ],
)
def test_a_wait_less_is_found(name, word, found):
    sizes = (64, 64, 384)  # each part twice: a parity would not show it
    _, func, *rest = lowered(sizes, blocks=1)
    without = _Without(name, word)
    broken = without.func(func)
    assert without.removed
    with pytest.raises(InterpreterError, match=found):
        run(broken, sizes, True, *rest)


def test_rows_of_an_odd_length_are_stored_one_by_one_under_one_test():
    _, func, *_ = lowered((48, 199, 64))
    text = HOPPER.generate(func).source
    assert re.search(r"if \(\(\(int32_t\)\w+ < 48\) & \(.*< 199\)\) \{\s+D\[", text)


@pytest.mark.parametrize(("sizes", "turned"), [((64, 67, 128), False), ((64, 64, 131), True)])
def test_rows_that_are_no_whole_chunks_are_fetched_by_threads(sizes, turned):
    _, func, *rest = lowered(sizes, turned)
    assert not calls(func, "bulk_copy")
    run(func, sizes, turned, *rest)


def test_odd_rows_are_copied_first():
    """A row of 131 elements begins where no copy may; copies of its tensor have rows of 192."""
    sizes = (64, 64, 131)
    _, func, *rest = lowered(sizes, copies=3)
    program = HOPPER.generate(func)
    assert len(program.kernels) == 3 and len(program.workspaces) == 2
    assert [one.strides for one in program.kernels[-1].maps] == [(192, 1)] * 2
    run(func, sizes, True, *rest)


def test_maps_are_kept_with_a_program_and_checked():
    _, func, *_ = lowered((128, 64, 128))
    program = HOPPER.generate(func)
    (again,) = programs_of(programs_row({"f": program})).values()
    assert again.kernels[0].maps == program.kernels[0].maps
    _check_program(again)
    far = replace(again.kernels[0], maps=(replace(again.kernels[0].maps[0], shape=(1 << 20, 128)),))
    with pytest.raises(Exception, match="cannot be launched"):
        _check_program(replace(again, kernels=(far,)))


def test_the_driver_is_told_what_lies_where(monkeypatch):
    seen = []

    class Driver(FakeDriver):
        def _call(self, *arguments):
            seen.append(arguments)

    fake = Driver()
    monkeypatch.setattr(driver, "_library", lambda: fake)
    monkeypatch.setattr(FakeDriver, "_cuTensorMapEncodeTiled", Driver._call, raising=False)
    made = driver.tensor_map(4096, 2, (3000, 1112), (1112, 1), (128, 64))
    ((out, kind, rank, address, sizes, strides, box, steps, *rest),) = seen
    assert ctypes.sizeof(made) == 128 and ctypes.addressof(out) % 64 == 0
    assert (kind, rank, address.value, list(sizes), list(strides)) == (1, 2, 4096, [1112, 3000], [2224])
    assert list(box) == [64, 128] and list(steps) == [1, 1] and rest == [0, 3, 2, 0]


def convolution(n, h, w, c, o, r):
    """A convolution of images whose channels lie together, edges filled with zeros."""
    x, f = te.placeholder((n, h, w, c), "float16", name="X"), te.placeholder((o, r, r, c), "float16", name="F")
    p, zero = r // 2, te.const(0.0, "float16")

    def inside(b, y, z, k):
        return te.if_then_else(te.all(y >= p, y < h + p, z >= p, z < w + p), x[b, y - p, z - p, k], zero)

    filled = te.compute((n, h + 2 * p, w + 2 * p, c), inside, name="P") if p else x
    a, b, k = te.reduce_axis((0, r), "a"), te.reduce_axis((0, r), "b"), te.reduce_axis((0, c), "k")

    def body(i, y, z, q):
        product = filled[i, y + a, z + b, k].astype("float32") * f[q, a, b, k].astype("float32")
        return te.sum(product, axis=[a, b, k])

    total = te.compute((n, h, w, o), body, name="C")
    schedule = te.create_schedule(te.compute((n, h, w, o), lambda *at: total[at] * 0.5, name="D").op)
    if p:
        schedule["P"].compute_inline()
    return schedule


@pytest.mark.parametrize(
    ("sizes", "box"),
    [((1, 4, 16, 64, 64, 3), (1, 4, 16, 64)), ((1, 7, 9, 64, 64, 1), (64, 64)),
     pytest.param((2, 8, 8, 128, 64, 3), (1, 8, 8, 64), marks=pytest.mark.slow)],
)  # fmt: skip
def test_windows_of_images_are_boxes(sizes, box):
    """With zeros beyond the image as the copy engine gives them; one place alone is a row of a matrix."""
    n, h, w, c, o, r = sizes
    schedule = convolution(*sizes)
    (unit,) = contractions_of(unit_of(schedule, "D", HOPPER))
    found = find_product(unit)
    point = {
        "groups_y": 1,
        "groups_x": 1,
        "tiles_y": 1,
        "width": 64,
        "stages": 3,
        "band": 2,
        "parts": 1,
        "copies": 0,
        "resident": 1,
        "cluster": 0,
    }
    bulk_tiles.BulkTiles(found, tensor_cores.kind_of(found, HOPPER)).apply(point)
    func = HOPPER.lower(schedule.func)
    assert HOPPER.generate(func).kernels[0].maps[0].box == box
    random, p = np.random.default_rng(0), r // 2
    x, f = (random.standard_normal(shape).astype(np.float16) for shape in ((n, h, w, c), (o, r, r, c)))
    wide = np.pad(x.astype(np.float32), ((0, 0), (p, p), (p, p), (0, 0)))
    want = sum(wide[:, a : a + h, b : b + w] @ f[:, a, b].T.astype(np.float32) for a in range(r) for b in range(r))
    made = np.full((n, h, w, o), 7, np.float32)
    interpret(func, x, f, made, check=False)
    np.testing.assert_allclose(made, want * 0.5, rtol=1e-3, atol=1e-2)


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_sums_of_blocks_that_stay_are_registers_of_known_numbers():
    """A batch of one is batch 0: a number that only the block knows would put sums into memory while products run."""
    build = Builder("product")
    weights = np.random.default_rng(0).standard_normal((1152, 3456)).astype(np.float32)
    made = build.node("MatMul", build.input("x", (1, 2048, 1152)), build.constant(weights))
    module = weft.compile(build.finish(made), target="cuda:sm_90a", precision="fp16")
    sources = [one.kernel.program.source for one in module.specializations[0].launches if "matmul" in one.kernel.label]
    assert sources and all("round" in source for source in sources), "blocks stay"
    for source in sources:
        assert not re.findall(r"_sum\w*\[[^\]]*\b(?:block|round)", source)
