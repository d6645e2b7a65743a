"""What `weft doctor` tells of a processor: its features, and whether the system lets a process use the tiles of AMX."""

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
