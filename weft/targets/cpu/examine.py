"""What is told of a processor: its features, and whether tiles are allowed, to `weft doctor`; its flags to modules."""

from __future__ import annotations

from collections.abc import Iterator

from weft.targets.base import Check, Target
from weft.targets.cpu import amx
from weft.targets.cpu.machine import CORES

FEATURES = (
    "avx2 fma avx512f avx512vnni avx512bf16 avx512fp16 amx-tile amx-bf16 amx-int8 neon sve dotprod i8mm bf16 v".split()
)


def examine(target: Target) -> Iterator[Check]:
    """The checks, in the order in which they are shown."""
    have = [name for name in FEATURES if name in target.features]
    yield Check("its features", True, " ".join(have) or "none that Weft knows by name")
    how = "measured here" if target.measured else "listed" if target.cpu in CORES else "as most have them"
    yield Check("its costs", True, f"{how} (weft doctor --calibrate measures them)")
    if "amx-tile" in target.features:
        allowed = amx.permitted()
        detail = "the system lets this process use the tile registers" if allowed else "the system refuses the tiles"
        mend = "" if allowed else "Linux 5.16 or newer, and a container that allows arch_prctl"
        yield Check("AMX", allowed, detail, mend)


_X86 = (
    "sse3=pni ssse3 sse4.1=sse4_1 sse4.2=sse4_2 popcnt movbe aes pclmul=pclmulqdq avx f16c fma avx2 bmi=bmi1 bmi2 "
    "lzcnt=abm adx sha=sha_ni gfni vaes vpclmulqdq avx512f avx512dq avx512cd avx512bw avx512vl avx512ifma avx512vbmi "
    "avx512vbmi2=avx512_vbmi2 avx512vnni=avx512_vnni avx512bitalg=avx512_bitalg avx512bf16=avx512_bf16 "
    "avx512vpopcntdq=avx512_vpopcntdq avx512fp16=avx512_fp16 avxvnni=avx_vnni avxifma=avx_ifma"
)
_ARM = (
    "neon=asimd aes sha2 sha3 sm4 crc=crc32 lse=atomics rdm=asimdrdm dotprod=asimddp fullfp16=asimdhp "
    "fp16fml=asimdfhm complxnum=fcma rcpc=lrcpc i8mm bf16 sve sve2"
)
_LINUX = {
    architecture: {one.partition("=")[0]: one.rpartition("=")[2] for one in names.split()}
    for architecture, names in (("x86_64", _X86), ("aarch64", _ARM))
}
"""What code may need of a processor: LLVM's names, and those by which Linux lists them. Tiles are asked for when the
code starts, since most code for a machine that has them does not use them."""


def flags_of(target: Target) -> list[str]:
    """What a processor must list in /proc/cpuinfo to run code that was made for a target."""
    known = _LINUX.get(target.triple.partition("-")[0], {})
    return sorted(known[name] for name in target.features if name in known)
