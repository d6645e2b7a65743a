"""What a processor named by the user can do.

LLVM knows this by name but does not tell, so it is asked to compile a few lines, in a child process, and the
instructions that it chooses are the answer. A few features that no plain code shows are listed by processor.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from weft.codegen.llvm.compile import run_child

_PROBE = """
define <16 x float> @fused(<16 x float> %a, <16 x float> %b, <16 x float> %c) {
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)
  ret <16 x float> %r
}
define <16 x float> @widen(<16 x half> %a) {
  %r = fpext <16 x half> %a to <16 x float>
  ret <16 x float> %r
}
define <16 x bfloat> @narrow(<16 x float> %a) {
  %r = fptrunc <16 x float> %a to <16 x bfloat>
  ret <16 x bfloat> %r
}
define <16 x half> @halves(<16 x half> %a, <16 x half> %b) {
  %r = fadd <16 x half> %a, %b
  ret <16 x half> %r
}
define <16 x i32> @integers(<16 x i32> %a, <16 x i32> %b) {
  %r = add <16 x i32> %a, %b
  ret <16 x i32> %r
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""
_ARM_PROBE = "declare <4 x i32> @llvm.vector.partial.reduce.add.v4i32.v16i32(<4 x i32>, <16 x i32>)" + "".join(
    f"""
define <4 x i32> @{name}(<4 x i32> %s, <16 x i8> %a, <16 x i8> %b) {{
  %x = {widened} <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %p = mul <16 x i32> %x, %y
  %r = call <4 x i32> @llvm.vector.partial.reduce.add.v4i32.v16i32(<4 x i32> %s, <16 x i32> %p)
  ret <4 x i32> %r
}}
"""
    for name, widened in (("mixed", "zext"), ("signed", "sext"))
)
_SIGNS = {
    "x86_64": {
        "zmm": "avx512f", "vfmadd": "fma", "vpaddd\t%ymm": "avx2", "ymm": "avx", "vcvtph2ps": "f16c",
        "vcvtneps2bf16": "avx512bf16", "vaddph": "avx512fp16",
    },
    "aarch64": {"fadd\tv0.8h": "fullfp16", "bfcvtn": "bf16", "\tsdot": "dotprod", "\tusdot": "i8mm"},
    "armv7": {"vfma.f32": "vfp4", "vadd.i32": "neon"},
    "riscv64": {"vsetivli": "v", "fmadd.s": "f"},
    "wasm32": {"i32x4.add": "simd128"},
}  # fmt: skip
_AVX512 = frozenset({"avx512bw", "avx512dq", "avx512vl", "avx512cd"})
_VNNI, _AMX = _AVX512 | {"avx512vnni"}, frozenset({"amx-tile", "amx-int8", "amx-bf16"})
_LISTED = {
    "skylake-avx512": _AVX512, "cascadelake": _VNNI, "cooperlake": _VNNI, "icelake-client": _VNNI,
    "icelake-server": _VNNI, "tigerlake": _VNNI, "sapphirerapids": _VNNI | _AMX, "emeraldrapids": _VNNI | _AMX,
    "graniterapids": _VNNI | _AMX | {"amx-fp16"}, "znver4": _VNNI, "znver5": _VNNI,
    "neoverse-v1": frozenset({"sve"}), "neoverse-n2": frozenset({"sve", "sve2"}),
    "neoverse-v2": frozenset({"sve", "sve2"}), "spacemit-x60": frozenset({"zvl256b", "zfh", "zvfh"}),
}  # fmt: skip

_KB, _MB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Processor:
    """What a name stands for beside its instructions: data caches (what cores share is given whole), cores that share
    the last of them, and where that is written. Where a design leaves a size open, it is that of the chip in brackets.
    """

    caches: tuple[int, int, int]
    cores: int
    source: str


PROCESSORS = {
    "cortex-a53": Processor((32 * _KB, 512 * _KB, 0), 4, "Linux, bcm2837.dtsi, which names Arm DDI 0500 (BCM2837)"),
    "cortex-a72": Processor((32 * _KB, 1 * _MB, 0), 4, "L2 of BCM2711, Raspberry Pi 4; Arm 100095 *"),
    "cortex-a76": Processor((64 * _KB, 512 * _KB, 2 * _MB), 4, "Linux, bcm2712.dtsi (L1 and L2); BCM2712 * (L3)"),
    "neoverse-n1": Processor((64 * _KB, 1 * _MB, 32 * _MB), 64, "measured; AnandTech, A Peek Into Graviton2 (L3)"),
    "neoverse-v1": Processor((64 * _KB, 1 * _MB, 32 * _MB), 64, "en.wikichip.org/wiki/AWS_Graviton3 (Graviton3)"),
    "apple-m1": Processor((128 * _KB, 12 * _MB, 8 * _MB), 4, "en.wikipedia.org/wiki/Apple_M1, performance cores"),
    "haswell": Processor((32 * _KB, 256 * _KB, 8 * _MB), 4, "Intel 248966 *; L3 of a Core i7-4770 *"),
    "znver3": Processor((32 * _KB, 512 * _KB, 32 * _MB), 8, "AMD 56665, Optimization Guide for Family 19h *"),
    "znver4": Processor((32 * _KB, 1 * _MB, 32 * _MB), 8, "AMD 57647, Optimization Guide for Zen 4 *"),
    "spacemit-x60": Processor((32 * _KB, 512 * _KB, 0), 4, "docs.banana-pi.org, SpacemiT K1 datasheet: VLEN 256"),
}
"""Processors by LLVM's names for them; one that is not listed has the caches of its architecture's default. What stands
before a star was known and not looked up again."""


@functools.lru_cache(maxsize=64)
def unknown_features(triple: str, names: tuple[str, ...]) -> list[str]:
    """Those of the names that LLVM knows no feature by."""
    if not names:
        return []
    features = ",".join(f"+{name}" for name in names)
    request = {"triple": triple, "cpu": "", "features": features, "form": "assembly", "tuning": "shaped"}
    complaints = run_child(f'target triple = "{triple}"\n', request)[2]
    return [name for name in names if f"'+{name}' is not a recognized feature" in complaints]


@functools.lru_cache(maxsize=64)
def features_of(triple: str, cpu: str, architecture: str, least: frozenset[str]) -> frozenset[str] | None:
    """The features of a processor by its name, or None if LLVM does not know it."""
    request = {"triple": triple, "cpu": cpu, "features": "", "form": "assembly", "tuning": "shaped"}
    probe = _PROBE + _ARM_PROBE if architecture == "aarch64" else _PROBE
    code, output, complaints = run_child(f'target triple = "{triple}"\n{probe}', request)
    if code != 0 or "not a recognized processor" in complaints:
        return None
    text = output.decode()
    shown = {feature for sign, feature in _SIGNS[architecture].items() if sign in text}
    if architecture == "armv7":
        least = least - {"neon"}
    return least | shown | _LISTED.get(cpu, frozenset())
