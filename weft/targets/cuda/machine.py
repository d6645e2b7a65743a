"""What is known about NVIDIA's architectures, for compiling on a machine that has no such device.

Rates are those of the vendor's tables for one multiprocessor and clock, of dense operands; clocks are the highest.
"""

from __future__ import annotations

from dataclasses import replace

from weft.core.errors import TargetError
from weft.targets.base import ThreadFacts
from weft.targets.cuda.model import H200 as FITTED

_KB, _MB = 1024, 1024 * 1024
_AMPERE = frozenset({"float16", "bfloat16", "tfloat32", "int8"})
_ADA = _AMPERE | {"float8"}
H200 = ThreadFacts(
    multiprocessors=132, warp=32, block_threads=1024, multiprocessor_threads=2048, shared_bytes=227 * _KB,
    multiprocessor_shared_bytes=228 * _KB, registers=65536, cache_bytes=60 * _MB, tensor_cores=_ADA,
    has_async_copy=True, overlaps_launches=True, exchanges_registers=True, gigahertz=1.98, lanes=128,
    matrix_products=2048, model=FITTED,
)  # fmt: skip

SUM_COLUMNS = 8
"""Columns of a tile of sums that wgmma takes or leaves together."""

_BEFORE = replace(H200, overlaps_launches=False, tensor_cores=_AMPERE)

ARCHITECTURES: dict[str, ThreadFacts] = {
    "sm_75": replace(
        _BEFORE, multiprocessors=40, multiprocessor_threads=1024, shared_bytes=64 * _KB,
        multiprocessor_shared_bytes=64 * _KB, cache_bytes=4 * _MB, tensor_cores=frozenset(),  # half as deep
        has_async_copy=False, gigahertz=1.59, lanes=64, matrix_products=512,
    ),
    "sm_80": replace(
        _BEFORE, multiprocessors=108, shared_bytes=163 * _KB, multiprocessor_shared_bytes=164 * _KB,
        cache_bytes=40 * _MB, gigahertz=1.41, lanes=64, matrix_products=1024,
    ),
    "sm_86": replace(
        _BEFORE, multiprocessors=84, multiprocessor_threads=1536, shared_bytes=99 * _KB,
        multiprocessor_shared_bytes=100 * _KB, cache_bytes=6 * _MB, gigahertz=1.8, matrix_products=512,
    ),
    "sm_89": replace(
        _BEFORE, multiprocessors=128, multiprocessor_threads=1536, shared_bytes=99 * _KB,
        multiprocessor_shared_bytes=100 * _KB, cache_bytes=72 * _MB, gigahertz=2.52, matrix_products=512,
        tensor_cores=_ADA,
    ),
    "sm_90": H200,
    "sm_90a": replace(H200, has_warpgroups=True),
    "sm_100": replace(H200, multiprocessors=148, cache_bytes=126 * _MB, gigahertz=1.85, matrix_products=4096),
    "sm_120": replace(
        H200, multiprocessors=170, multiprocessor_threads=1536, shared_bytes=99 * _KB,
        multiprocessor_shared_bytes=100 * _KB, cache_bytes=96 * _MB, gigahertz=2.41, matrix_products=512,
    ),
}  # fmt: skip
"""The largest machine of each architecture that is common in servers or desktops."""
DEFAULT = "sm_90a"


def architecture_facts(name: str) -> ThreadFacts:
    """The facts about an architecture by name; one that is not in the table has those of the nearest below it."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    digits = name.removeprefix("sm_").rstrip("af")
    if not name.startswith("sm_") or not digits.isdigit() or int(digits) < 75:
        known = ", ".join(ARCHITECTURES)
        raise TargetError(f"{name!r} is no architecture that Weft compiles CUDA for: use one like {known}")
    below = [key for key in ARCHITECTURES if int(key.removeprefix("sm_").rstrip("a")) <= int(digits)]
    return ARCHITECTURES[below[-1]]


def device_architecture(major: int, minor: int) -> str:
    """The architecture of a device by its compute capability; Hopper's with what is special to it."""
    number = f"sm_{major}{minor}"
    return f"{number}a" if (major, minor) == (9, 0) else number
