"""What one core of a processor does in a cycle.

The table was written from general knowledge of these processors, not looked up entry by entry, and not measured here:
ports and latencies are well known, bytes a cycle and clocks are rough. A processor that is not listed gets what most
have.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from weft.targets.base import Target


@dataclass(frozen=True)
class Core:
    """Vector instructions that a core starts in a cycle, what they wait for, and bytes that its caches give."""

    multiply_adds: float = 2.0
    latency: float = 4.0
    """Cycles until the sum of a multiply-add can be added to again."""
    loads: float = 2.0
    second_level: float = 32.0
    """Bytes a cycle from the second-level cache."""
    third_level: float = 10.0
    memory: float = 5.0
    """Bytes a cycle that one core gets from memory."""
    gigahertz: float = 2.5
    in_flight: int = 100
    """Instructions that wait for their operands while later ones run."""


_ZEN = Core(latency=4.0, second_level=32.0, third_level=16.0, memory=8.0, gigahertz=3.5)
CORES = {
    "haswell": Core(latency=5.0, second_level=25.0, gigahertz=3.0),
    "broadwell": Core(latency=5.0, second_level=25.0, gigahertz=3.0),
    "skylake": Core(gigahertz=3.5),
    "skylake-avx512": Core(second_level=48.0),
    "cascadelake": Core(second_level=48.0),
    "icelake-server": Core(second_level=48.0),
    "sapphirerapids": Core(second_level=48.0),
    "emeraldrapids": Core(second_level=48.0),
    "graniterapids": Core(second_level=48.0),
    "znver2": _ZEN,
    "znver3": _ZEN,
    "znver4": Core(multiply_adds=1.0, third_level=16.0, memory=8.0, gigahertz=3.7),
    "znver5": Core(second_level=64.0, third_level=16.0, memory=8.0, gigahertz=4.0),
    "cortex-a53": Core(multiply_adds=0.5, loads=0.5, second_level=8.0, third_level=4.0, memory=2.0, gigahertz=1.4),
    "cortex-a55": Core(multiply_adds=1.0, loads=1.0, second_level=8.0, third_level=4.0, memory=2.0, gigahertz=1.8),
    "cortex-a72": Core(multiply_adds=1.0, latency=7.0, loads=1.0, second_level=16.0, gigahertz=1.8),
    "cortex-a76": Core(second_level=32.0, gigahertz=2.4),
    "neoverse-n1": Core(second_level=32.0, gigahertz=2.6),
    "neoverse-v1": Core(multiply_adds=2.0, loads=3.0, second_level=32.0, gigahertz=2.6),
    "neoverse-n2": Core(second_level=32.0, gigahertz=2.8),
    "neoverse-v2": Core(multiply_adds=4.0, loads=3.0, second_level=64.0, gigahertz=2.8),
    "apple-m1": Core(multiply_adds=4.0, loads=3.0, second_level=64.0, third_level=32.0, memory=16.0, gigahertz=3.2),
    "apple-m2": Core(multiply_adds=4.0, loads=3.0, second_level=64.0, third_level=32.0, memory=16.0, gigahertz=3.4),
}
"""Cores by the name that LLVM has for them."""


@functools.lru_cache(maxsize=64)
def _core(cpu: str) -> Core:
    return CORES.get(cpu, Core())


def core_of(target: Target) -> Core:
    """The facts about one core of a target."""
    return _core(target.cpu)


def seconds(cycles: Any, target: Target, parallel: bool = True) -> Any:
    """The time of so many cycles of one core, shared by all cores where they can."""
    return cycles / (core_of(target).gigahertz * 1e9 * (max(target.cores, 1) if parallel else 1))
