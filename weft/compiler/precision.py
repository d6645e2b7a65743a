"""Which precisions a target runs: the check behind `weft.compile(..., precision=...)`."""

from __future__ import annotations

from dataclasses import replace

from weft.core.errors import ArgumentError
from weft.graph.passes.precision import NARROW
from weft.runtime.threads import check_threads
from weft.targets.base import Target
from weft.targets.registry import find_target

ROUNDED = "tf32"
"""The precision that is one of the machine, not of the graph: products round their float32 operands as they read them.

It is a feature of the target by the same name."""

FULL = (None, "fp32", "float32")
"""What asks for the types that a model declares."""


def check_precision(precision: str | None, target: Target) -> str | None:
    """The precision to lower to ("bf16", "fp16"), or None for none; an error that says why where there is no such."""
    if precision in (*FULL, ROUNDED):
        return None
    if precision not in NARROW:
        raise ArgumentError(f"the precision {precision!r} is not known; there are fp32, {ROUNDED}, {', '.join(NARROW)}")
    if precision not in target.precisions:
        others = " or ".join(map(repr, (*sorted(target.precisions - {ROUNDED}), "fp32")))
        raise ArgumentError(
            f"precision {precision!r}: the target {target.name} has no {NARROW[precision]} instructions, so it would "
            f"be slower than fp32; use {others}"
        )
    return precision


def machine_of(like: str | Target, precision: str | None) -> Target:
    """The target that computes in a precision: with "tf32", one whose products of float32 may be rounded so."""
    target = find_target("native" if like == "auto" else like)
    if precision != ROUNDED:
        return target
    if ROUNDED not in target.precisions:
        raise ArgumentError(
            f"precision 'tf32': the target {target.name} has no such instructions (NVIDIA GPUs from sm_80 on have); "
            f"use 'fp32' or 'bf16'"
        )
    return target.with_features(ROUNDED)


def with_threads(target: Target, threads: int | None) -> Target:
    """A processor as so many threads see it: it has no more cores than them, and other schedules are its best ones."""
    if threads is None or target.on_device:
        return target
    return replace(target, cores=min(check_threads(threads), target.cores))
