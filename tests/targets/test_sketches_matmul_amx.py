"""Products of bfloat16 and of bytes on AMX tiles: right for every shape, transposition and epilogue."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.schedule.checking import assert_same, run
from tests.schedule.random_programs import arguments_of
from weft import te
from weft.builder import with_arguments
from weft.compiler.kernels.build import lift_packing
from weft.expr.nodes import int_value
from weft.loop.verifier import verify
from weft.targets.cpu import amx
from weft.targets.cpu.families import default_schedule
from weft.targets.registry import find_target

NATIVE = find_target("native")
RANDOM = np.random.default_rng(0)
pytestmark = pytest.mark.skipif(not amx.available(NATIVE), reason="this machine has no AMX tiles")


def random(shape: list[int | None], kind: str) -> Any:
    """Values of a type."""
    if "int" in kind:
        limits = np.iinfo(kind)
        return RANDOM.integers(limits.min, limits.max + 1, shape).astype(kind)
    return RANDOM.standard_normal(shape).astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)


def check(
    m: int,
    n: int,
    k: int,
    kinds: tuple[str, str] = ("bfloat16", "bfloat16"),
    constant: bool = True,
    batch: int = 0,
    transposed: tuple[bool, bool] = (False, False),
    out: str = "",
    on_tiles: bool = True,
) -> None:
    """relu(A B + bias) for integers or floats against numpy, exact for integers; `out` rounds the result."""
    (ta, tb), lead = transposed, (batch,) if batch else ()
    wide = "float32" if kinds[0] == "bfloat16" else "int32"
    a = te.placeholder((*lead, *((k, m) if ta else (m, k))), kinds[0], name="A")
    b = te.placeholder((*(() if constant else lead), *((n, k) if tb else (k, n))), kinds[1], name="B")
    c = te.placeholder((n,), wide, name="bias")
    r = te.reduce_axis(k, "k")

    def element(*at: Any) -> Any:
        *front, i, j = at
        x = a[(*front, *((r.var, i) if ta else (i, r.var)))]
        y = b[(*([] if constant else front), *((j, r.var) if tb else (r.var, j)))]
        return te.sum(x.astype(wide) * y.astype(wide), axis=r)

    p = te.compute((*lead, m, n), lambda *at: element(*at), name="P")
    zero = te.const(0, wide)
    made = te.compute(p.shape, lambda *at: te.maximum(p[at] + c[at[-1]], zero).astype(out or wide), name="C")
    s = te.create_schedule(made.op)
    fixed = [b, c] if constant else []
    default_schedule(s, NATIVE, fixed)
    verify(s.func)
    assert ("amx_dot" in repr(s.func)) == on_tiles
    lifted = lift_packing(with_arguments(s.func, [a, b, c, made]), fixed)
    function = weft.build(lifted.func)
    x, y, z = (random([int_value(size) for size in t.shape], t.dtype.name) for t in (a, b, c))
    if wide == "int32":
        z = z // 1000
    left, right = (np.swapaxes(x, -1, -2) if ta else x), (np.swapaxes(y, -1, -2) if tb else y)
    want = np.maximum(left.astype(wide) @ right.astype(wide) + z, 0).astype(made.dtype.numpy)
    for threads in (1, 2):
        got = np.zeros(want.shape, want.dtype)
        given = [x, y, z, got]
        function(*[given[q] if isinstance(q, int) else q.apply(given[q.source]) for q in lifted.parameters],
                 threads=threads)  # fmt: skip
        if wide == "int32" and not out:
            np.testing.assert_array_equal(got, want)
        else:
            tolerance = 1e-4 if not out else 2e-2
            np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(32, 32, 64), (2, 5, 9), (16, 16, 32), (33, 65, 97), (100, 40, 70), (7, 200, 64)])
@pytest.mark.parametrize("constant", [True, False])
def test_bfloat16(shape: tuple[int, int, int], constant: bool) -> None:
    """Edges in every dimension; constants packed ahead, and operands packed in the kernel."""
    check(*shape, constant=constant)


@pytest.mark.parametrize("shape", [(32, 32, 64), (33, 50, 70), (5, 18, 130)])
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8")])
def test_bytes(shape: tuple[int, int, int], kinds: tuple[str, str]) -> None:
    """Integer sums are exact."""
    check(*shape, kinds=kinds)
    check(*shape, kinds=kinds, constant=False, out="float32")


@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)])
def test_transposed_operands(transposed: tuple[bool, bool]) -> None:
    check(21, 37, 40, transposed=transposed)
    check(21, 37, 40, transposed=transposed, constant=False)


@pytest.mark.parametrize("kinds", [("bfloat16", "bfloat16"), ("uint8", "int8")])
def test_transposed_tiles(kinds: tuple[str, str]) -> None:
    """Columns that lie as rows in memory are woven a tile at a time."""
    check(20, 64, 128, kinds=kinds, transposed=(False, True), constant=False)
    check(20, 32, 64, kinds=kinds, transposed=(False, True), constant=False, batch=4)


def test_interpreted() -> None:
    """The instructions mean the same in the interpreter."""
    a, b = te.placeholder((16, 32), "bfloat16", name="A"), te.placeholder((32, 32), "bfloat16", name="B")
    r = te.reduce_axis(32, "k")
    c = te.compute(
        (16, 32), lambda i, j: te.sum(a[i, r].astype("float32") * b[j, r].astype("float32"), axis=r), name="C"
    )
    s = te.create_schedule(c.op)
    arrays = arguments_of(s.func, 1, 0)
    want = run(s.func, arrays)
    default_schedule(s, NATIVE)
    assert "amx_weave" in repr(s.func)
    assert_same(run(s.func, arrays), want, repr(s.func))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_batches(batch: int, constant: bool) -> None:
    check(34, 33, 64, batch=batch, constant=constant, out="bfloat16")


def test_large_left_operands_are_read_in_blocks_of_columns() -> None:
    check(1100, 100, 1100, out="bfloat16")


def test_what_is_no_product_of_tiles() -> None:
    """One row, or other types, are left to the vector registers."""
    check(1, 64, 64, on_tiles=False)
    check(8, 64, 64, kinds=("uint8", "uint8"), on_tiles=False)
