"""The CPU's own instructions that a schedule can use by tensorize; importing this module declares them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.targets.base import Target
from weft.targets.cpu import amx, bits, dot


def intrinsics(target: Target) -> Mapping[str, Any]:
    """name -> emitter, for what the target has."""
    tiles = amx.EMITTERS if amx.available(target) else {}
    return {**bits.emitters(target), **dot.emitters(target), **tiles}
