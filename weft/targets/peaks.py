"""What a machine can do at most: measured once, then read from the cache folder.

    peaks = machine_peaks(target, threads=1)
    peaks.of("float32")                 GFLOP/s
    peaks.gigabytes                     GB/s of a large copy

How it is measured is the business of the target: `peaks` of its manifest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weft.core.errors import TargetError
from weft.runtime.cache_folder import cache_folder, read_facts, write_whole
from weft.targets.base import Target

logger = logging.getLogger("weft.targets")

CACHE_FILE = "peaks.json"


@dataclass(frozen=True)
class Peaks:
    """The measured peaks of a machine for so many threads: GFLOP/s by element type, and GB/s."""

    threads: int
    gflops: Mapping[str, float]
    gigabytes: float

    def of(self, dtype: str) -> float:
        """GFLOP/s of products of this element type; of float32 where the type has no peak of its own."""
        return self.gflops.get({"uint8": "int8"}.get(dtype, dtype), self.gflops["float32"])


def has_peaks(target: Target) -> bool:
    """Whether the peaks of a target can be measured from here."""
    return target.is_host and target.spec.peaks is not None


def machine_peaks(target: Target, threads: int = 1, again: bool = False) -> Peaks:
    """The peaks of the machine this runs on: from the cache folder, or measured now (about two seconds).

    A neighbour on the machine makes a measurement too low, nothing makes it too high: `again` measures once more and
    keeps the better of both.
    """
    folder = cache_folder()
    key = f"{target.triple} {target.cpu} {target.cores} cores, {threads} threads"
    kept = {} if folder is None else read_facts(folder / CACHE_FILE)
    known = _peaks(kept.get(key))
    if known is not None and not again:
        return known
    if target.spec.peaks is None:
        raise TargetError(f"the peaks of the target {target.name} cannot be measured")
    peaks = target.spec.peaks(target, threads)
    if known is not None:
        gflops = {name: max(rate, known.gflops.get(name, 0.0)) for name, rate in peaks.gflops.items()}
        peaks = Peaks(threads, gflops, max(peaks.gigabytes, known.gigabytes))
    if folder is not None:
        try:
            with write_whole(folder / CACHE_FILE) as file:
                file.write(json.dumps({**kept, key: asdict(peaks)}, indent=2).encode())
        except OSError as problem:
            logger.info("the peaks of this machine could not be kept in %s: %s", folder, problem)
    return peaks


def _peaks(entry: Any) -> Peaks | None:
    try:
        gflops = {str(name): float(rate) for name, rate in entry["gflops"].items()}
        return Peaks(int(entry["threads"]), gflops, float(entry["gigabytes"])) if "float32" in gflops else None
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
