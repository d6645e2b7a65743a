"""The CPU's own instructions that a schedule can use by tensorize; importing this module declares them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.targets.base import Target
from weft.targets.cpu import amx, bits, dot


def intrinsics(target: Target) -> Mapping[str, Any]:
    """name -> emitter, for what the target has."""
    found: dict[str, Any] = dict(bits.emitters(target))
    if "avx512vnni" in target.features:
        found.update(dot.X86)
    if "dotprod" in target.features:
        found.update(dot.ARM)
    if "i8mm" in target.features:
        found.update(dot.ARM_MATRIX)
    if amx.available(target):
        found.update(amx.EMITTERS)
    return found
