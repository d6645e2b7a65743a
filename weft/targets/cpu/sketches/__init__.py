"""The sketches of the CPU, one family a file: each `match(unit)` gives a Sketch, or None for what it does not know."""

from __future__ import annotations

from weft.plan.planner import Match
from weft.targets.cpu.sketches import (
    attention,
    attention_amx,
    conv,
    conv_amx,
    conv_dot,
    conv_rows,
    depthwise,
    matmul,
    matmul_amx,
    matmul_dot,
    register_tile,
    winograd,
)

CONTRACTIONS: tuple[Match, ...] = (
    matmul_amx.match, matmul_dot.match, matmul.match, conv_amx.match, conv_dot.match, conv.match, depthwise.match,
    conv_rows.match, register_tile.match,
)  # fmt: skip

WHOLE: tuple[Match, ...] = (winograd.match, attention_amx.match, attention.match)
"""Sketches of a contraction together with the stages around it; asked before any block has a schedule."""

KEPT: frozenset[str] = attention.STAGES
"""Stages of such programs that are not inlined into their readers before a sketch is asked."""
