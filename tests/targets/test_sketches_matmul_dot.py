"""Products of bytes by dot products of vector registers, for machines without AMX: right for every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import te
from weft.builder import with_arguments
from weft.compiler.kernels.build import lift_packing
from weft.expr.nodes import int_value
from weft.loop.verifier import verify
from weft.targets.cpu.families import default_schedule
from weft.targets.registry import find_target

NATIVE = find_target("native")
RANDOM = np.random.default_rng(0)
X86, ARM = "avx512vnni" in NATIVE.features, "dotprod" in NATIVE.features
pytestmark = pytest.mark.skipif(not (X86 or ARM), reason="this machine has no dot products in vector registers")

WITHOUT_TILES = "native,features=-amx-tile,-amx-int8,-amx-bf16" if X86 else "native"
LEFT, OTHER = ("uint8", "int8") if X86 else ("int8", "uint8")
"""What the instruction multiplies with signed bytes, and what it does not."""


def check(
    m: int,
    n: int,
    k: int,
    constant: bool = True,
    batch: int = 0,
    transposed: tuple[bool, bool] = (False, False),
    out: str = "int32",
    left: str = LEFT,
    by_dots: bool = True,
) -> None:
    """relu(A B + bias) against numpy, exactly; `out` converts the result."""
    (ta, tb), lead = transposed, (batch,) if batch else ()
    a = te.placeholder((*lead, *((k, m) if ta else (m, k))), left, name="A")
    b = te.placeholder((*(() if constant else lead), *((n, k) if tb else (k, n))), "int8", name="B")
    c = te.placeholder((n,), "int32", name="bias")
    r = te.reduce_axis(k, "k")

    def element(*at: Any) -> Any:
        *front, i, j = at
        x = a[(*front, *((r.var, i) if ta else (i, r.var)))]
        y = b[(*([] if constant else front), *((j, r.var) if tb else (r.var, j)))]
        return te.sum(x.astype("int32") * y.astype("int32"), axis=r)

    p = te.compute((*lead, m, n), lambda *at: element(*at), name="P")
    made = te.compute(p.shape, lambda *at: te.maximum(p[at] + c[at[-1]], te.const(0, "int32")).astype(out), name="C")
    s = te.create_schedule(made.op)
    fixed = [b, c] if constant else []
    default_schedule(s, find_target(WITHOUT_TILES), fixed)
    verify(s.func)
    assert (("vnni_dot" if X86 else "neon_dot") in repr(s.func)) == by_dots
    lifted = lift_packing(with_arguments(s.func, [a, b, c, made]), fixed)
    function = weft.build(lifted.func)
    x, y, z = (random([int_value(size) for size in t.shape], t.dtype.name) for t in (a, b, c))
    z = z // 1000
    one, other = (np.swapaxes(x, -1, -2) if ta else x), (np.swapaxes(y, -1, -2) if tb else y)
    want = np.maximum(one.astype("int32") @ other.astype("int32") + z, 0).astype(out)
    for threads in (1, 2):
        got = np.zeros(want.shape, want.dtype)
        given = [x, y, z, got]
        function(*[given[q] if isinstance(q, int) else q.apply(given[q.source]) for q in lifted.parameters],
                 threads=threads)  # fmt: skip
        np.testing.assert_array_equal(got, want)


def random(shape: list[int | None], kind: str) -> Any:
    limits = np.iinfo(kind)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(kind)


SHAPES = [(5, 18, 131), (12, 7, 36), (32, 32, 64), (33, 50, 70), (1, 200, 64), (2, 5, 9), (64, 100, 40)]


@pytest.mark.thin(2)
@pytest.mark.parametrize("shape", SHAPES if X86 else SHAPES[:2])
@pytest.mark.parametrize("constant", [True, False])
def test_edges_in_every_dimension(shape: tuple[int, int, int], constant: bool) -> None:
    check(*shape, constant=constant)
    check(*shape, constant=constant, out="float32")


@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("constant", [True, False])
def test_transposed_operands(transposed: tuple[bool, bool], constant: bool) -> None:
    check(21, 37, 42, transposed=transposed, constant=constant)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_batches(batch: int, constant: bool) -> None:
    check(34, 33, 62, batch=batch, constant=constant)


def test_blocks_of_columns() -> None:
    check(30, 1100, 1200)


def test_other_signs_are_left_to_the_general_tile() -> None:
    check(8, 64, 64, left=OTHER, by_dots=False)
