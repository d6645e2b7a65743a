"""The CPU's own instructions that a schedule can call by tensorize: none yet beyond what LLVM has."""

from __future__ import annotations

from typing import Any, Mapping

from weft.targets.base import Target


def intrinsics(target: Target) -> Mapping[str, Any]:
    """name -> emitter."""
    return {}
