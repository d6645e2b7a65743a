"""The check that a library runs before its first kernel: does this processor have what the code was compiled for?

`startup_ir` gives LLVM IR of `internal i32 @weft.startup()`: 0; 3 where instructions are missing; 4 where the system
refuses the tile registers. On x86-64 it asks the processor (cpuid) and the system (xgetbv, arch_prctl); elsewhere the
loader's own check of the file's architecture has to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from weft.targets.base import Target
from weft.targets.cpu.amx import ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA

_A, _B, _C, _D = range(4)

# Where the processor says that it has a feature: leaf and subleaf of cpuid, the register of the answer, and the bits.
_BITS: dict[tuple[int, int, int], dict[str, int]] = {
    (1, 0, _C): {
        "sse3": 0, "pclmul": 1, "ssse3": 9, "fma": 12, "cx16": 13, "sse4.1": 19, "sse4.2": 20, "movbe": 22,
        "popcnt": 23, "aes": 25, "avx": 28, "f16c": 29,
    },
    (7, 0, _B): {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "adx": 19, "avx512ifma": 21, "avx512cd": 28,
        "sha": 29, "avx512bw": 30, "avx512vl": 31,
    },
    (7, 0, _C): {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512vnni": 11,
        "avx512bitalg": 12, "avx512vpopcntdq": 14,
    },
    (7, 0, _D): {"amx-bf16": 22, "avx512fp16": 23, "amx-tile": 24, "amx-int8": 25},
    (7, 1, _A): {"avxvnni": 4, "avx512bf16": 5, "amx-fp16": 21, "avxifma": 23},
    (0x80000001, 0, _C): {"lzcnt": 5},
}  # fmt: skip
_XSAVE = (1, 0, _C), 1 << 27
"""The system saves the wider registers when it switches threads; only then may xgetbv say which."""
_STATES = {"avx": 0x6, "avx512f": 0xE6}
"""Up to where the system must save registers, as bits of what xgetbv answers. Tiles are asked for by arch_prctl."""


_LOAD_TILE_CONFIGURATION = re.compile(rb"\xc4[\xe2\xc2\xa2\x82]\x78\x49")
"""The instruction that code with tiles begins with (`configure_tiles`); the second byte tells its registers."""


def startup_ir(target: Target, codes: Iterable[bytes]) -> str:
    """The check, for object files that were made for a target."""
    # Data that looks like the instruction costs a permission that is not needed.
    with_tiles = "amx-tile" in target.features and any(_LOAD_TILE_CONFIGURATION.search(code) for code in codes)
    if not target.triple.startswith("x86_64"):
        return "define internal i32 @weft.startup() nounwind {\n  ret i32 0\n}\n"
    masks, states = requirements(target, with_tiles)
    lines = ["define internal i32 @weft.startup() nounwind {", "entry:"]
    for number, ((leaf, subleaf, register), mask) in enumerate(masks.items()):
        if leaf == 7 and subleaf == 1:
            lines += _answer(f"most{number}", 7, 0) + _test(f"top{number}", f"most{number}", _A, 0, "ne")
        lines += _answer(f"cpu{number}", leaf, subleaf)
        lines += _test(f"has{number}", f"cpu{number}", register, mask, "mask")
    if states:
        lines += [
            '  %saved = call i32 asm sideeffect "xgetbv", "={eax},{ecx},~{edx}"(i32 0)',
            f"  %kept = and i32 %saved, {states}",
            f"  %enough = icmp eq i32 %kept, {states}",
            "  br i1 %enough, label %registers, label %lacking",
            "registers:",
        ]
    if with_tiles:
        lines += [
            f"  %code = call i64 (i64, ...) @syscall(i64 {ARCH_PRCTL}, i64 {REQUEST_PERMISSION}, i64 {TILE_DATA})",
            "  %refused = icmp ne i64 %code, 0",
            "  %answer = select i1 %refused, i32 4, i32 0",
            "  ret i32 %answer",
        ]
    else:
        lines.append("  ret i32 0")
    lines += ["lacking:", "  ret i32 3", "}"]
    return ("declare i64 @syscall(i64, ...)\n" if with_tiles else "") + "\n".join(lines) + "\n"


def requirements(target: Target, with_tiles: bool) -> tuple[dict[tuple[int, int, int], int], int]:
    """The bits of cpuid that must be set, by leaf, subleaf and register; and the bits of xgetbv."""
    wanted = {name for name in target.features if with_tiles or not name.startswith("amx")}
    masks = {place: sum(1 << bit for name, bit in bits.items() if name in wanted) for place, bits in _BITS.items()}
    states = max((bits for name, bits in _STATES.items() if name in wanted), default=0)
    if states:
        masks[_XSAVE[0]] |= _XSAVE[1]
    return {place: mask for place, mask in masks.items() if mask}, states


def _answer(name: str, leaf: int, subleaf: int) -> list[str]:
    signed = leaf - (1 << 32) if leaf >= 1 << 31 else leaf
    kind = "{ i32, i32, i32, i32 }"
    return [
        f'  %{name} = call {kind} asm sideeffect "cpuid", "={{eax}},={{ebx}},={{ecx}},={{edx}},{{eax}},{{ecx}}"'
        f"(i32 {signed}, i32 {subleaf})"
    ]


def _test(name: str, answer: str, register: int, mask: int, how: str) -> list[str]:
    """Goes on where all bits of a mask are set (or, for "ne", where the register is not 0)."""
    signed = mask - (1 << 32) if mask >= 1 << 31 else mask
    read = f"  %{name}.word = extractvalue {{ i32, i32, i32, i32 }} %{answer}, {register}"
    if how == "ne":
        test = [f"  %{name}.yes = icmp ne i32 %{name}.word, 0"]
    else:
        test = [
            f"  %{name}.bits = and i32 %{name}.word, {signed}",
            f"  %{name}.yes = icmp eq i32 %{name}.bits, {signed}",
        ]
    return [read, *test, f"  br i1 %{name}.yes, label %{name}.next, label %lacking", f"{name}.next:"]
