"""Matrix products by their sketch: right for every shape, transposition and epilogue, and with the loops promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.hosts import lesser
from weft import te
from weft.builder import with_arguments
from weft.compiler.kernels.build import lift_packing
from weft.expr.nodes import int_value
from weft.loop.ir import For
from weft.loop.verifier import verify
from weft.loop.visit import walk_stmts
from weft.plan.planner import Choice, Unit, picking
from weft.plan.sketch import Sketch
from weft.schedule.facts import block_named, facts_of
from weft.targets.base import Target
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.families import default_schedule
from weft.targets.cpu.machine import Core
from weft.targets.cpu.model import LEAST_PACKED_ROWS, Tiles, open_tiles
from weft.targets.cpu.sketches import matmul
from weft.targets.registry import find_target

NATIVE = find_target("native")
RANDOM = np.random.default_rng(0)
LINUX = "unknown-linux-gnu"
MACHINES = [f"x86_64-{LINUX},cpu=sapphirerapids", f"x86_64-{LINUX},cpu=haswell", f"aarch64-{LINUX},cpu=neoverse-n1"]


def program(
    m: int,
    n: int,
    k: int,
    batch: tuple[int, ...] = (),
    shared: bool = True,
    transposed: tuple[bool, bool] = (False, False),
    epilogue: str = "bias",
    dtype: str = "float32",
) -> tuple[Any, list[Any], Any, Any]:
    """A batched product with an epilogue: schedule, inputs, output, and numpy's meaning of it."""
    ta, tb = transposed
    a = te.placeholder((*batch, *((k, m) if ta else (m, k))), dtype, name="A")
    b = te.placeholder((*(() if shared else batch), *((n, k) if tb else (k, n))), dtype, name="B")
    c = te.placeholder((n,), dtype, name="bias")
    r = te.reduce_axis(k, "k")
    wide = "float64" if dtype == "float64" else "float32"

    def element(*at: Any) -> Any:
        *lead, i, j = at
        x = a[(*lead, *((r.var, i) if ta else (i, r.var)))]
        y = b[(*([] if shared else lead), *((j, r.var) if tb else (r.var, j)))]
        return te.sum(x.astype(wide) * y.astype(wide), axis=r)

    out = te.compute((*batch, m, n), lambda *at: element(*at), name="P")
    inputs = [a, b]
    if epilogue == "bias":
        product = out
        out = te.compute(
            product.shape, lambda *at: te.maximum(product[at] + c[at[-1]].astype(wide), te.const(0.0, wide)), name="C"
        )
        inputs.append(c)
    elif epilogue == "transpose":
        flat = out
        out = te.compute((m, *batch, n), lambda i, *at: flat[(*at[:-1], i, at[-1])] * 2.0, name="C")
    schedule = te.create_schedule(out.op)

    def meaning(x: Any, y: Any, z: Any = None) -> Any:
        left = np.swapaxes(x, -1, -2) if ta else x
        right = np.swapaxes(y, -1, -2) if tb else y
        made = left.astype(wide) @ right.astype(wide)
        if epilogue == "bias":
            return np.maximum(made + z.astype(wide), 0)
        return np.moveaxis(made, -2, 0) * 2 if epilogue == "transpose" else made

    return schedule, inputs, out, meaning


def check(constant: bool, point: dict[str, int] | None = None, target: str | Target = "native", **what: Any) -> Any:
    """Schedules, compiles and compares with numpy; gives the scheduled program with its packed constants lifted out."""
    schedule, inputs, out, meaning = program(**what)
    fixed = inputs[1:] if constant else []
    machine = find_target(target)
    with_point(schedule, machine, fixed, point, is_known(machine, constant, out))
    verify(schedule.func)
    lifted = lift_packing(with_arguments(schedule.func, [*inputs, out]), fixed)
    function = weft.build(lifted.func, target=machine)
    shape = [[int_value(size) for size in t.shape] for t in (*inputs, out)]
    arrays = [RANDOM.standard_normal(s).astype(t.dtype.numpy) for s, t in zip(shape, inputs)]
    want = meaning(*arrays)
    for threads in (1, 2):
        made = np.full(shape[-1], np.nan, out.dtype.numpy)
        given = [*arrays, made]
        function(*[given[p] if isinstance(p, int) else p.apply(given[p.source]) for p in lifted.parameters],
                 threads=threads)  # fmt: skip
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(made, want, rtol=2e-5, atol=2e-5 * scale)
    return lifted


def is_known(machine: Any, constant: bool, out: Any) -> bool:
    """Whether the sketch is for this product. Machines without vectors have none; those without masks leave columns
    that do not fill vectors to the general tile, unless the right operand is packed (a constant, or for many rows)."""
    m, n = (int_value(size) for size in out.shape[-2:])
    lanes = machine.lanes(out.dtype)
    packed = constant or m >= 4 * LEAST_PACKED_ROWS
    return lanes > 1 and (packed or has_masks(machine.features) or n % lanes == 0)


def with_point(
    schedule: Any, machine: Any, fixed: list[Any], point: dict[str, int] | None, is_known: bool = True
) -> None:
    """The sketch's best point, or one with some other numbers."""

    def pick(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        for sketch in sketches:
            if sketch.name == "matmul":
                best, cost = next(sketch.ranked())
                sketch.check(best)
                yield sketch, {**best, **(point or {})}, cost

    with picking(pick):
        default_schedule(schedule, machine, fixed)
    stands = [tried for tried in schedule.tried if tried.name == "matmul" and (tried or point)]
    assert stands or not is_known, "the sketch does not know this product"  # another point may be refused


SHAPES = [(1, 18, 33), (1, 1000, 40), (2, 5, 7), (7, 100, 31), (9, 47, 64), (35, 130, 65), (64, 16, 9), (13, 2, 16),
          (48, 49, 5)]  # fmt: skip


@pytest.mark.thin(2)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("constant", [True, False])
def test_shapes(shape: tuple[int, int, int], constant: bool) -> None:
    """Tails in every dimension, packed when the model is compiled, in the kernel, or not at all."""
    m, n, k = shape
    check(constant, m=m, n=n, k=k)


@pytest.mark.thin(2)
@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("constant", [True, False])
def test_transposed_operands(transposed: tuple[bool, bool], constant: bool) -> None:
    check(constant, m=21, n=37, k=19, transposed=transposed)


@pytest.mark.thin(2)
@pytest.mark.parametrize("epilogue", ["none", "bias", "transpose"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("batch", [(3,), (2, 1, 3)])
def test_batches(batch: tuple[int, ...], shared: bool, epilogue: str) -> None:
    check(shared, m=9, n=50, k=24, batch=batch, shared=shared, epilogue=epilogue, transposed=(False, True))


@pytest.mark.parametrize("epilogue", ["none", "bias", "transpose"])
def test_several_blocks_of_the_reduction(epilogue: str) -> None:
    """The epilogue runs once, after the last block."""
    batch = (2,) if epilogue == "transpose" else ()
    check(True, {"depth": 20}, m=16, n=48, k=60, epilogue=epilogue, batch=batch)
    check(False, {"depth": 20, "panels": 2, "tiles": 2, "unroll": 2}, m=33, n=70, k=60, batch=batch)


def test_uneven_blocks_of_the_reduction() -> None:
    check(True, {"depth": 24, "unroll": 1}, m=6, n=20, k=60)


def test_a_deep_product_has_blocks_by_itself() -> None:
    small = replace(NATIVE, cache_bytes=(32 << 10, 256 << 10, 0))
    lifted = check(True, target=small, m=40, n=64, k=4000)
    assert "reduce" in repr(lifted.func) and any("_rf" in b.name for b in lifted.func.allocations)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats(dtype: str) -> None:
    check(True, m=20, n=37, k=18, dtype=dtype, epilogue="none")
    check(False, m=40, n=37, k=18, dtype=dtype, epilogue="none")


@pytest.mark.parametrize("target", lesser(x86=("-avx512f", "-avx2")))
def test_narrower_vectors(target: str) -> None:
    for constant in (True, False):
        check(constant, target=target, m=33, n=52, k=20)


def test_constants_are_packed_ahead() -> None:
    """No copy of a constant is left in the kernel, also where one tile is wider than the whole matrix."""
    for n in (18, 48, 650):
        lifted = check(True, m=1, n=n, k=64, transposed=(False, True))
        assert not [b for b in lifted.func.allocations if b.name.startswith("B_")]


def test_points_are_checked() -> None:
    """Every choice of a knob gives the same result."""
    found = sketch_of(NATIVE, True, m=24, n=100, k=64)
    assert found is not None
    for knob in ("rows", "vectors", "unroll", "parts", "ahead"):
        for number in (found.knobs[knob][0], found.knobs[knob][-1]):
            check(True, {knob: number}, m=24, n=100, k=64)


def sketch_of(target: str | Target, constant: bool, **what: Any) -> Sketch | None:
    """The sketch of a product on a machine."""
    schedule, inputs, *_ = program(epilogue="none", **what)
    unit = Unit(schedule, facts_of(block_named(schedule, "P")), find_target(target), inputs[1:] if constant else [])
    return matmul.match(unit)


def test_a_panel_that_leaves_no_room_for_the_rows_that_meet_it_is_fetched_ahead() -> None:
    target = replace(find_target(MACHINES[0]), cache_bytes=(48 << 10, 2 << 20, 64 << 20), cores=1)
    defaults = []
    for k in (192, 256, 320):
        found = sketch_of(target, True, m=128, n=192, k=k)
        assert found is not None
        columns = found.columns()
        best = int(np.argmin(np.where(found.legal(columns), found.cost(columns), np.inf)))
        defaults.append(found.point(columns, best))
    assert [point["vectors"] * point["depth"] * 64 for point in defaults] == [36 << 10, 48 << 10, 60 << 10]
    assert [point["ahead"] for point in defaults] == [0, 16, 16]


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("shape", [(2, 5, 7), (24, 100, 64), (197, 768, 64), (64, 4096, 256), (1000, 37, 513)])
def test_register_tiles_fit_the_registers(target: str, shape: tuple[int, int, int]) -> None:
    """The sums of a tile, a step's vectors and a number that is broadcast: of every point that is offered."""
    m, n, k = shape
    machine = find_target(target)
    found = sketch_of(machine, True, m=m, n=n, k=k)
    assert found is not None
    offered = list(found.ranked(64))
    assert offered and offered == sorted(offered, key=lambda one: one[1])
    for point, cost in offered:
        found.check(point)
        assert point["rows"] * point["vectors"] + point["vectors"] < machine.vector_registers and cost > 0
        assert point["rows"] <= m


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("shape", [(256, 256, 256), (2048, 2048, 2048), (1000, 37, 513), (17, 4096, 256)])
def test_packed_panels_stay_in_the_second_level_cache(target: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    found = sketch_of(target, False, m=m, n=n, k=k)
    assert found is not None
    point, _ = next(found.ranked())
    machine = find_target(target)
    columns = point["panels"] * point["vectors"] * machine.vector_bytes // 4
    assert 4 * point["depth"] * columns <= machine.cache_bytes[1]


def test_blocks_are_of_whole_register_tiles_whichever_tile_is_taken() -> None:
    """A tile that the rule does not have gets blocks of its own size: none is cut, and sums in parts have registers."""
    found = sketch_of("aarch64-unknown-linux-gnu,cpu=neoverse-n1,cores=2", True, m=64, n=1000, k=512)
    assert found is not None and not {"columns", "height"} & found.knobs.keys()
    columns = found.columns()
    held = columns["rows"] * columns["vectors"] * columns["parts"]
    assert held[found.legal(columns)].max() <= 32 and set(columns["depth"]) == {128, 256, 512}


def test_the_best_tile_is_one_of_the_legal_ones_and_costs_least() -> None:
    tiles = Tiles(Core(), 100, 13, 64, 32)
    tile, least = tiles.best
    assert tiles.fits(**tile) and tiles.cycles(**tile) == least
    fitting = [(r, v) for r in range(1, 15) for v in range(1, 9) if tiles.fits(r, v)]
    assert min(tiles.cycles(r, v) for r, v in fitting) == least
    assert not tiles.fits(8, 4) and tiles.cycles(1, 1) > 2 * least


def test_tiles_of_open_rows_are_chosen_for_those_around_the_typical_number() -> None:
    """76 rows are best cut by 11, what may be 19 to 114 is not; panels are as wide, so that both forms share them."""
    known = Tiles(Core(), 76, 16, 256, 32)
    open_rows = replace(known, is_open=True)
    assert known.best[0] == {"rows": 11, "vectors": 2} and open_rows.best[0] == {"rows": 12, "vectors": 2}
    assert not open_rows.fits(8, 3) and known.fits(8, 3)
    counts = dict(open_tiles(76, 12))
    assert list(counts) == [12, 6, 3] and 76 <= sum(size * count for size, count in counts.items()) < 80


@pytest.mark.parametrize(
    "constant, what",
    [(True, {"m": 4, "n": 1, "k": 64}), (False, {"m": 2, "n": 37, "k": 64, "transposed": (False, True)})],
)
def test_what_is_no_product_for_vectors_is_left(constant: bool, what: Any) -> None:
    """One column has no lanes; too few rows do not pay for a copy of a right operand that lies the other way."""
    for target in MACHINES:
        assert sketch_of(target, constant, **what) is None


@pytest.mark.parametrize("m, n, k", [(1, 512, 3136), (1, 500, 3136), (3, 700, 1000), (1, 1000, 1023)])
def test_far_weights_are_walked_back_and_forth(m, n, k):
    """Columns of few rows: a share of narrow panels for each core, turned from call to call; the answer stays."""
    found = check(True, m=m, n=n, k=k)
    loops = [s for s in walk_stmts(found.func.body) if isinstance(s, For) and "zigzag" in s.annotations]
    assert len(loops) == 2 and all(s.annotations["zigzag"] is None for s in loops)
    assert int_value(loops[0].extent) <= NATIVE.cores


def test_what_is_near_or_met_often_does_not_turn():
    for what in ({"m": 1, "n": 64, "k": 512}, {"m": 128, "n": 1024, "k": 768}):
        assert "zigzag" not in repr(check(True, **what).func)
    assert "zigzag" not in repr(check(False, m=1, n=512, k=3136).func)
