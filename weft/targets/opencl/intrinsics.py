"""OpenCL has no intrinsics of its own beyond those that every target has."""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.c.context import Emitter
from weft.targets.base import Target


def intrinsics(target: Target) -> Mapping[str, Emitter]:
    """Name -> emitter."""
    return {}
