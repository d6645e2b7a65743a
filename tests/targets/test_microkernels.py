"""The records of micro-kernels: what they say about packing, and that every nest is right with each. No hardware."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import te
from weft.core.dtypes import FLOAT32, dtype
from weft.loop.interpreter import interpret
from weft.loop.verifier import verify
from weft.plan.planner import unit_of
from weft.schedule.intrinsic import INTRINSICS
from weft.targets.cpu.families import CONTRACTIONS, default_schedule
from weft.targets.cpu.microkernels import MicroKernel, dots, fma, squares, tiles
from weft.targets.registry import find_target

SAPPHIRE_RAPIDS = find_target("x86_64-unknown-linux-gnu,cpu=sapphirerapids,cores=2")
HASWELL = find_target("x86_64-unknown-linux-gnu,cpu=haswell,cores=2")
NEOVERSE_N1, NEOVERSE_V1 = (
    find_target(f"aarch64-unknown-linux-gnu,cpu=neoverse-{name},cores=2") for name in ("n1", "v1")
)
BYTES, NARROW = ("uint8", "int8", "int32"), ("bfloat16", "bfloat16", "float32")
SIGNED, UNSIGNED = ("int8", "int8", "int32"), ("uint8", "uint8", "int32")


def record(name: str) -> MicroKernel:
    """The record of each kind for a machine that has them all."""
    made = {"dot": dots(BYTES, SAPPHIRE_RAPIDS), "amx": tiles(NARROW, SAPPHIRE_RAPIDS)}
    made["square"] = squares(BYTES, NEOVERSE_V1)
    found = made.get(name) or fma(FLOAT32, SAPPHIRE_RAPIDS, 64)
    assert found.name == name
    return found


@pytest.mark.parametrize(
    "name, sums, steps, panel",
    [
        ("fma", (1, 16), 1, (["j // 32", "k"], ["j % 32"])),
        ("dot", (1, 16), 4, (["j // 32", "k // 4"], ["j % 32", "k % 4"])),
        ("square", (2, 2), 8, (["j // 32", "k // 8"], ["j % 32", "k % 8"])),
        ("amx", (16, 16), 32, (["j // 32", "k // 32"], ["j % 32 // 16", "k % 32 // 2", "j % 16", "k % 2"])),
    ],
)
def test_a_record_tells_its_sums_its_steps_and_how_a_panel_is_packed(
    name: str, sums: tuple[int, int], steps: int, panel: Any
) -> None:
    kernel = record(name)
    assert (kernel.rows, kernel.lanes) == sums and kernel.depth == steps
    assert kernel.panel("j", ["k"], 32) == panel
    assert not kernel.dot or kernel.dot in INTRINSICS
    assert kernel.family("matmul") == ("matmul" if name == "fma" else f"matmul_{name}")


def test_machines_without_an_instruction_have_no_record_of_it() -> None:
    assert dots(BYTES, HASWELL) is None and tiles(BYTES, HASWELL) is None
    assert squares(SIGNED, NEOVERSE_N1) is None and squares(BYTES, SAPPHIRE_RAPIDS) is None
    assert dots(BYTES, NEOVERSE_N1) is None and squares(("int8", "uint8", "int32"), NEOVERSE_V1) is None
    assert dots(NARROW, SAPPHIRE_RAPIDS) is None and tiles(("int8", "uint8", "int32"), SAPPHIRE_RAPIDS) is None


def product(kinds: tuple[str, str, str], m: int, n: int, k: int) -> tuple[Any, Any]:
    """The schedule of A B, and B."""
    left, right, wide = kinds
    a, b = te.placeholder((m, k), left, name="A"), te.placeholder((k, n), right, name="B")
    r = te.reduce_axis(k, "k")
    made = te.compute((m, n), lambda i, j: te.sum(a[i, r].astype(wide) * b[r, j].astype(wide), axis=r), name="C")
    return te.create_schedule(made.op), b


@pytest.mark.parametrize("size", [(16, 16, 64), (17, 20, 38), (1, 24, 64)])
@pytest.mark.parametrize("kinds", [BYTES, NARROW])
def test_every_nest_on_every_record_computes_the_product(
    kinds: tuple[str, str, str], size: tuple[int, int, int]
) -> None:
    """By the interpreter, without the instructions; also as a convolution, which is what a short product looks like."""
    (m, n, k), random, applied = size, np.random.default_rng(0), []
    low = 0 if kinds[0] == "uint8" else -9
    left, right = random.integers(low, 9, (m, k)), random.integers(-9, 9, (k, n))
    for match in CONTRACTIONS:
        s, b = product(kinds, *size)
        sketch = match(unit_of(s, "C", SAPPHIRE_RAPIDS, [b]))
        if sketch is None:
            continue
        sketch.apply(next(sketch.ranked(1))[0])
        verify(s.func)
        applied.append(sketch.name)
        made = np.full((m, n), 77, kinds[2])
        interpret(s.func, left.astype(dtype(kinds[0]).numpy), right.astype(dtype(kinds[1]).numpy), made)
        np.testing.assert_array_equal(made, left @ right, err_msg=sketch.name)
    assert {"register tile", "matmul_dot" if kinds == BYTES else "matmul"} <= set(applied)
    assert (m == 1) == ("matmul_amx" not in applied)
    assert ("conv_amx" in applied) == (kinds == BYTES and size == (16, 16, 64))


@pytest.mark.parametrize("size", [(16, 16, 64), (5, 10, 19), (2, 140, 8)])
@pytest.mark.parametrize("kinds", [BYTES, SIGNED, UNSIGNED])
def test_products_of_squares(kinds: tuple[str, str, str], size: tuple[int, int, int]) -> None:
    """Rows in pairs, where they lie or copied; odd numbers of rows, columns and steps."""
    (m, n, k), random = size, np.random.default_rng(0)
    left, right = (
        random.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
        for kind, shape in zip(kinds, ((m, k), (k, n)))
    )
    applied = []
    for match in CONTRACTIONS:
        s, b = product(kinds, *size)
        sketch = match(unit_of(s, "C", NEOVERSE_V1, [b]))
        if sketch is None or not sketch.name.endswith("square"):
            continue
        sketch.apply(next(sketch.ranked(1))[0])
        verify(s.func)
        applied.append(sketch.name)
        made = np.full((m, n), 77, "int32")
        interpret(s.func, left, right, made)
        np.testing.assert_array_equal(made, left.astype(int) @ right.astype(int), err_msg=sketch.name)
    assert "matmul_square" in applied and ("conv_square" in applied) == (k % 8 == 0)


@pytest.mark.parametrize(
    "machine, kinds, instruction",
    [
        ("aarch64-unknown-linux-gnu,cpu=neoverse-v1", BYTES, "usmmla"),
        ("aarch64-unknown-linux-gnu,cpu=neoverse-n2", SIGNED, "\tsmmla"),
        ("aarch64-unknown-linux-gnu,cpu=apple-m2", UNSIGNED, "ummla"),
        ("aarch64-unknown-linux-gnu,cpu=neoverse-n1", SIGNED, "sdot"),
        ("riscv64-unknown-linux-gnu,cpu=spacemit-x60", BYTES, "vwmacc.vx"),
    ],
)
def test_a_processor_gets_its_instruction(machine: str, kinds: tuple[str, str, str], instruction: str) -> None:
    target = find_target(machine)
    s, b = product(kinds, 8, 24, 256)
    default_schedule(s, target, [b])
    made = weft.build(s.func, target=target)
    code = getattr(made, "built", made).assembly()
    assert instruction in code and ("mmla" in code) == ("mmla" in instruction)
    inner = code[code.index(instruction) : code.rindex(instruction)]
    assert "zip" not in inner and "uzp" not in inner  # squares are taken apart after the last of them
