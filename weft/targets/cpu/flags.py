"""What a processor must list in /proc/cpuinfo to run code that was made for a target: a module file keeps it."""

from __future__ import annotations

from weft.targets.base import Target

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
