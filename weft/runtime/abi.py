"""What compiled code and the process that runs it must agree on, in one list; a change of any of it is another ABI.

A module file carries the list's hash, and so does the name of each driver (`compiler/lowering/abi.py`).
"""

from __future__ import annotations

import functools
import sys

from weft.runtime.faults import KERNEL_SHIFT, REASONS
from weft.runtime.fingerprint import digest

FORMAT = 9
"""Of the module file: goes up when the content changes."""
TURN_BIT = 32
"""Of `threads`: whether this is an odd call, in which loops that turn run backwards."""
CALLED = ("weft_parallel_for", "weft_allocate", "weft_release", "weft_ahead")
"""What generated code calls."""
FUNCTIONS = (
    *CALLED, "weft_pool_size", "weft_pool_shutdown", "weft_pool_stalls", "weft_pool_place", "weft_cached_bytes",
    "weft_trim", "weft_call",
)  # fmt: skip
"""What the native runtime defines."""


def abi_facts() -> list[str]:
    """The agreement, line by line."""
    return [
        f"module file {FORMAT}",
        "driver int32 name(const int64 *bases, int64 threads)",
        "kernel int32 name(const int64 *args, int64 threads)",
        f"result 0 done; {REASONS}; above bit {KERNEL_SHIFT} the number of the kernel",
        "a device's reports in weft_errors",
        f"bit {TURN_BIT} of threads: odd call",
        f"runtime {' '.join(FUNCTIONS)}",
        "weft_parallel_for(void (*body)(int64 begin, int64 end, void *env), void *env, int64 count, int64 threads)",
        "void *weft_allocate(int64 bytes), void weft_release(void *pointer)",
        "void weft_ahead(int64 place, int64 bytes, int64 most)",
        f"{sys.byteorder} endian, int64 addresses; arena and weights at multiples of 64",
    ]


@functools.lru_cache(maxsize=1)
def abi_hash() -> str:
    """The hash of the agreement."""
    return digest("\n".join(abi_facts()).encode())[:16]
