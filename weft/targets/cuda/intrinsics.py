"""Instructions of NVIDIA's processors beyond those that every target has: asynchronous copies and tensor cores."""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.c.context import Emitter
from weft.targets.base import Target
from weft.targets.cuda import copies, mma, swizzle, wgmma


def intrinsics(target: Target) -> Mapping[str, Emitter]:
    """Name -> emitter."""
    return {**copies.EMITTERS, **mma.EMITTERS, **wgmma.EMITTERS, **swizzle.EMITTERS}
