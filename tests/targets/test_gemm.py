"""Matrix products planned from facts: right for every shape, and planned within what the target has."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.hosts import lesser
from weft.targets.cpu import amx
from weft.targets.cpu.gemm import gemm, plan_gemm
from weft.targets.cpu.gemm_tiles import gemm_tiles, gemm_vnni
from weft.targets.registry import find_target

NATIVE = find_target("native")
RANDOM = np.random.default_rng(0)


def check_float(m: int, n: int, k: int, target: object) -> None:
    """The product against numpy, on one thread and on two."""
    schedule, arguments = gemm(m, n, k, target)  # type: ignore[arg-type]
    function = weft.build(schedule, arguments, target)  # type: ignore[arg-type]
    a, b = (RANDOM.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    for threads in (1, 2):
        c = np.full((m, n), np.nan, np.float32)
        function(a, b, c, threads=threads)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (1, 100, 7), (3, 5, 2), (8, 48, 8), (17, 130, 33), (100, 37, 51), (130, 64, 700),
     (150, 200, 1040), (9, 1, 9)],
)  # fmt: skip
def test_shapes(shape: tuple[int, int, int]) -> None:
    """Tails in every dimension, packed and in place, one block of the reduction and several."""
    check_float(*shape, NATIVE)


@pytest.mark.parametrize("text", lesser(x86=("-avx512f", "-avx2")))
def test_narrower_vectors(text: str) -> None:
    """The plan follows the width and number of the vector registers."""
    target = find_target(text)
    check_float(50, 60, 70, target)
    plan = plan_gemm(1024, 1024, 1024, target)
    assert plan.rows * plan.vectors <= target.vector_registers


@pytest.mark.parametrize("shape", [(1, 1, 1), (256, 256, 256), (2048, 2048, 2048), (1000, 37, 513), (17, 4096, 256)])
def test_plans_fit_the_machine(shape: tuple[int, int, int]) -> None:
    """Accumulators and one row of B fit the registers; the packed panel fits the second-level cache."""
    plan = plan_gemm(*shape, NATIVE)
    assert plan.rows * plan.vectors + plan.vectors < NATIVE.vector_registers
    if plan.pack:
        assert 4 * plan.depth * plan.columns <= NATIVE.cache_bytes[1]


@pytest.mark.skipif(not amx.available(NATIVE), reason="this machine has no AMX tiles")
@pytest.mark.parametrize("shape", [(32, 32, 64), (64, 96, 128), (33, 50, 70), (1, 1, 1)])
@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("int8", "int8")])
def test_bytes_on_tiles(shape: tuple[int, int, int], left: str, right: str) -> None:
    """Exact sums, whole tiles and padded ones."""
    m, n, k = shape
    schedule, arguments = gemm_tiles(m, n, k, left, right, NATIVE)
    a, b = RANDOM.integers(0, 127, (m, k)).astype(left), RANDOM.integers(-128, 128, (k, n)).astype(right)
    c = np.zeros((m, n), np.int32)
    weft.build(schedule, arguments)(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.skipif("avx512vnni" not in NATIVE.features, reason="this machine has no AVX-512 VNNI")
@pytest.mark.parametrize("shape", [(1, 1, 1), (13, 40, 9), (64, 64, 64), (25, 70, 130)])
def test_bytes_by_vnni(shape: tuple[int, int, int]) -> None:
    """Exact sums, tails in every dimension."""
    m, n, k = shape
    schedule, arguments = gemm_vnni(m, n, k, NATIVE)
    a, b = RANDOM.integers(0, 256, (m, k)).astype(np.uint8), RANDOM.integers(-128, 128, (k, n)).astype(np.int8)
    c = np.zeros((m, n), np.int32)
    weft.build(schedule, arguments)(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


def test_a_machine_without_tiles_says_so() -> None:
    """The message names the target and what it lacks."""
    with pytest.raises(weft.WeftError, match="has no AMX tiles"):
        gemm_tiles(32, 32, 32, "int8", "int8", find_target("x86_64-unknown-linux-gnu"))
    with pytest.raises(weft.WeftError, match="AMX multiplies"):
        gemm_tiles(32, 32, 32, "float32", "float32", NATIVE)
