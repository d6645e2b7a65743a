"""What is known about processors: for each architecture its defaults, and what its features add."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from weft.runtime.topology import text_of
from weft.targets.base import Target

_KB, _MB = 1024, 1024 * 1024


_X86_64 = Target(
    kind="cpu", name="", triple="", cpu="x86-64", features=frozenset({"sse2"}), vector_bytes=16, vector_registers=16,
    cache_bytes=(32 * _KB, 512 * _KB, 8 * _MB), cores=8, has_fma=False, blocks_channels=True,
)  # fmt: skip
_AARCH64 = replace(
    _X86_64, cpu="generic", features=frozenset({"neon"}), vector_registers=32, has_fma=True, cores=4,
    cache_bytes=(64 * _KB, 512 * _KB, 4 * _MB),
)  # fmt: skip
ARCHITECTURES = {
    "x86_64": _X86_64,
    "aarch64": _AARCH64,
    "riscv64": replace(
        _AARCH64, cpu="generic-rv64", features=frozenset("mafdc"), vector_bytes=0,
        cache_bytes=(32 * _KB, 256 * _KB, 2 * _MB),
    ),
    "armv7": replace(
        _X86_64, cpu="cortex-a9", features=frozenset({"neon"}), pointer_bytes=4, cores=4,
        cache_bytes=(32 * _KB, 512 * _KB, 0),
    ),
    "wasm32": replace(
        _X86_64, cpu="generic", features=frozenset({"simd128", "bulk-memory"}), pointer_bytes=4, cores=1,
        cache_bytes=(32 * _KB, 256 * _KB, 4 * _MB),
    ),
}  # fmt: skip
"""The least machine of each architecture."""
_SAME = {"amd64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64", "armv7a": "armv7", "armv7l": "armv7"}


def architecture(triple: str) -> str | None:
    """The key of ARCHITECTURES that a triple's first part stands for."""
    first = triple.split("-")[0]
    name = _SAME.get(first, first)
    return name if name in ARCHITECTURES else None


def vectors(name: str, features: frozenset[str]) -> tuple[int, int]:
    """Bytes and number of the vector registers that a set of features gives."""
    base = ARCHITECTURES[name]
    if name == "x86_64":
        if "avx512f" in features:
            return 64, 32
        return (32, 16) if "avx" in features or "avx2" in features else (16, 16)
    if name == "riscv64" and "v" in features:
        return 32 if "zvl256b" in features else 16, 32
    if name == "wasm32" and "simd128" not in features:
        return 0, 0
    if name in ("armv7", "aarch64") and "neon" not in features:
        return 0, base.vector_registers
    return base.vector_bytes, base.vector_registers


def fused(name: str, features: frozenset[str]) -> bool:
    """Whether a set of features gives a fused multiply-add."""
    if name == "x86_64":
        return "fma" in features or "avx512f" in features
    if name == "armv7":
        return "vfp4" in features
    if name == "riscv64":
        return "f" in features
    return ARCHITECTURES[name].has_fma


_HALF = frozenset(("f16c", "avx512fp16", "fullfp16", "fp16", "zfh", "zvfh"))


def halves(name: str, features: frozenset[str]) -> bool:
    """Whether float16 is converted (or computed) in hardware."""
    return name == "aarch64" or bool(_HALF & features)


_KERNEL_NAMES = {"asimddp": "dotprod", "asimdhp": "fullfp16", "bf16": "bf16", "i8mm": "i8mm", "sve2": "sve2"}
"""Features of AArch64 that LLVM's list for the host leaves out, by the names that Linux has for them."""


def host_features(listed: dict[str, bool]) -> frozenset[str]:
    """LLVM's list for this machine ("-name" for what it lacks), with what only the system tells."""
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    told = next((line.partition(":")[2].split() for line in lines if line.startswith("Features")), None)
    if "neon" in listed and told is not None:
        listed = {**listed, **{name: kernel in told for kernel, name in _KERNEL_NAMES.items()}}
    return frozenset(name if on else f"-{name}" for name, on in listed.items())


def has_masks(features: frozenset[str], bits: int = 32) -> bool:
    """Whether some lanes of a vector (of so many bits each) can be loaded without touching what lies behind others."""
    wanted = {"avx2", "avx512f", "sve"} if bits >= 32 else {"avx512bw", "sve"}
    return bool(wanted & features)


def host_caches(default: tuple[int, int, int]) -> tuple[int, int, int]:
    """Sizes of this machine's data caches; what cannot be found out is as in `default`."""
    found: dict[int, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = (text_of(folder / name).strip() for name in ("type", "level", "size"))
        parts = re.fullmatch(r"([1-9]\d*)([KMG]?)", size)
        if parts is not None and level.isdigit() and kind != "Instruction":
            found[int(level)] = int(parts[1]) * {"": 1, "K": _KB, "M": _MB, "G": 1024 * _MB}[parts[2]]
    first, second, third = (found.get(level, size if not found else 0) for level, size in zip((1, 2, 3), default))
    return first or default[0], second or default[1], third
