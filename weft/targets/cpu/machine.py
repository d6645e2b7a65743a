"""What one core of a processor does in a cycle.

What `weft doctor --calibrate` measured on this machine comes first. Of the table, ports and latencies of Neoverse N1,
V1 and Cortex-A53 were compared with Arm's optimization guides as LLVM's scheduling models cite them, those of Apple M1
with Dougall Johnson's measurements, those of the X60 with LLVM's on a Banana Pi F3; the others are general knowledge of
these processors. Bytes a cycle and clocks are rough. A processor neither measured nor listed gets what most have.
Neoverse N1 was measured: sums wait 2 cycles for each other; of loads of two lines, at the same 16 of 64 bytes, one
starts at a time. So was how far ahead a Cascade Lake wants to be told of an image's channels (a 1 × 1 convolution of
160 to 112 channels at 28 × 28, none of `benchmarks.odd`: 358 µs as it was, 331, 313, 315 and 322 when told 28, 56, 112
and 224 cycles ahead, 276 with the second line that a row lies in), and a Neoverse N1: the same one 995, 895, 893, 895
and 908 µs; on nine other shapes (1 × 1, 3 × 3 with steps of 2, 5 × 5, 1 × 7, lines; none of `benchmarks.odd`) told 56
cycles ahead 1.003 to 1.27 times as fast, 1.07 in the mean. An Emerald Rapids: ten shapes (1 × 1, 3 × 3 with steps of
2, 5 × 5; none of `benchmarks.odd`) told 56 cycles ahead 1.00 to 1.14 times as fast, 1.03 in the mean. A Cascade Lake
that fetches weights 8 steps ahead while they pass by parts of an image, and all rows of a window instead of the first:
twelve shapes (none of `benchmarks.odd`; medians of turns) 0.998 to 1.14 times as fast, 1.03 in the mean (best calls
1.015); but the 8 was chosen on one of its rows (3 × 3, 72 to 112 channels), and other distances were not tried. An
Emerald Rapids takes that 8: twelve shapes (1 × 1, 3 × 3 with steps of 2, gaps, groups, volumes, transposed; none of a
benchmark; medians of turns) 0.99 to 1.15 times as fast, 1.03 in the mean; with 4 and 16 steps the same within noise.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any

from weft.core.knobs import knobs
from weft.runtime.cache_folder import cache_problem, read_facts
from weft.targets.base import Target

CACHE_FILE = "core.json"
"""Where in the cache folder `calibrate` keeps what it measured."""

SET_SPAN, LINE_BYTES = 4096, 64
"""Bytes after which lines of a first-level cache share their place with others: a page, on most machines."""

LANE_BYTES = 16
"""Bytes of a register from which instructions take a lane by its number."""


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
    bank_span: int = 0
    """Bytes apart, or a multiple of them, at which loads of two lines are in each other's way; 0 where none are."""
    tile_cycles: float = 16.0
    """Cycles between two products of AMX tiles. An Emerald Rapids makes 16.4 (bfloat16) and 32.9 times (bytes) as many
    products as with vectors of float32."""
    ahead: int = 0
    """Cycles by which the next channels of an image are fetched, where these lie apart; 0: nobody has measured it."""
    weights_ahead: int = 0
    """Steps by which weights that pass by the parts of an image are fetched; 0: not, or nobody has measured it."""
    far_line: float = 1.0
    """How many times as long a line takes that is stored and does not stay in the second-level cache; 1: nobody has
    measured it. An Emerald Rapids, what then gets longer rows: 1.03 to 1.06 times as fast (three volumes of 3 to 112
    channels), results that stay 0.96; two of `benchmarks.conv_kinds`, one of which led here, 1.02 and 1.09. Nothing was
    held out."""

    def clashes(self, pitch: int | None) -> bool:
        """Whether loads that lie so many bytes apart start one after the other."""
        return self.bank_span > 0 and pitch is not None and abs(pitch) >= self.bank_span and pitch % self.bank_span == 0


_ZEN = Core(latency=4.0, second_level=32.0, third_level=16.0, memory=8.0, gigahertz=3.5)
CORES = {
    "haswell": Core(latency=5.0, second_level=25.0, gigahertz=3.0, ahead=56),  # ahead: its code on a Cascade Lake
    "broadwell": Core(latency=5.0, second_level=25.0, gigahertz=3.0),
    "skylake": Core(gigahertz=3.5),
    "skylake-avx512": Core(second_level=48.0, ahead=56),
    "cascadelake": Core(second_level=48.0, ahead=56, weights_ahead=8),
    "icelake-server": Core(second_level=48.0),
    "sapphirerapids": Core(second_level=48.0),
    "emeraldrapids": Core(second_level=48.0, ahead=56, weights_ahead=8, far_line=2.0),
    "graniterapids": Core(second_level=48.0),
    "znver2": _ZEN,
    "znver3": _ZEN,
    "znver4": Core(multiply_adds=1.0, third_level=16.0, memory=8.0, gigahertz=3.7),
    "znver5": Core(second_level=64.0, third_level=16.0, memory=8.0, gigahertz=4.0),
    "cortex-a53": Core(multiply_adds=0.5, loads=0.5, second_level=8.0, third_level=4.0, memory=2.0, gigahertz=1.4),
    "cortex-a55": Core(multiply_adds=1.0, loads=1.0, second_level=8.0, third_level=4.0, memory=2.0, gigahertz=1.8),
    "cortex-a72": Core(multiply_adds=1.0, latency=7.0, loads=1.0, second_level=16.0, gigahertz=1.8),
    "cortex-a76": Core(second_level=32.0, gigahertz=2.4),
    "neoverse-n1": Core(latency=2.0, second_level=18.0, gigahertz=2.5, bank_span=64, ahead=56),
    "neoverse-v1": Core(multiply_adds=4.0, loads=3.0, second_level=32.0, gigahertz=2.6),
    "neoverse-n2": Core(second_level=32.0, gigahertz=2.8),
    "neoverse-v2": Core(multiply_adds=4.0, loads=3.0, second_level=64.0, gigahertz=2.8),
    "apple-m1": Core(multiply_adds=4.0, loads=3.0, second_level=64.0, third_level=32.0, memory=16.0, gigahertz=3.2),
    "spacemit-x60": Core(
        latency=5.0, multiply_adds=1.0, loads=0.5, second_level=8.0, memory=4.0, gigahertz=1.6, in_flight=8
    ),
    "apple-m2": Core(multiply_adds=4.0, loads=3.0, second_level=64.0, third_level=32.0, memory=16.0, gigahertz=3.4),
}
"""Cores by the name that LLVM has for them."""


@functools.lru_cache(maxsize=64)
def core_of(target: Target) -> Core:
    """The facts about one core of a target."""
    return replace(CORES.get(target.cpu, Core()), **dict(target.measured))  # type: ignore[arg-type]


def kept(cpu: str) -> tuple[tuple[str, float], ...]:
    """What `calibrate` measured on this machine, by name; nothing where nobody did, or for another processor."""
    try:
        found = {} if cache_problem() is not None else read_facts(knobs.cache_dir / CACHE_FILE)
        known = {one.name for one in fields(Core)}
        same = found["cpu"] == cpu and found["core"].keys() <= known
        facts = tuple((str(name), float(number)) for name, number in found["core"].items()) if same else ()
        return facts if all(number > 0 for _, number in facts) else ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ()


def seconds(cycles: Any, target: Target) -> Any:
    """The time of so many cycles of one core, shared by all cores."""
    return cycles / (core_of(target).gigahertz * 1e9 * target.cores)
