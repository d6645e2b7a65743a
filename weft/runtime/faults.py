"""What a compiled function returns when it fails: a code in the low bits, and what each means.

A driver, which calls many kernels, puts the number of the one that failed above KERNEL_SHIFT.
"""

from __future__ import annotations

NO_MEMORY, OUTSIDE = 1, 5
"""2 to 4 are codes of a library for C alone (`compiler/export/api.py`)."""
KERNEL_SHIFT = 8
REASONS = {
    NO_MEMORY: "there was not enough memory for its intermediate arrays",
    OUTSIDE: "an index that it was given lies outside of the dimension that it indexes",
}


def reason_of(code: int) -> str:
    """The sentence for a code."""
    low = code & ((1 << KERNEL_SHIFT) - 1)
    return REASONS.get(low, f"it returned the code {low}")
