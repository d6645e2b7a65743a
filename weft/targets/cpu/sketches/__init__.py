"""The sketches of the CPU, one family a file: each `match(unit)` gives a Sketch, or None for what it does not know."""

from __future__ import annotations

from weft.ops import bits
from weft.plan.planner import Match
from weft.targets.cpu.sketches import (
    attention,
    conv,
    conv_narrow,
    conv_rows,
    few_bits,
    matmul,
    register_tile,
    winograd,
)

CONTRACTIONS: tuple[Match, ...] = (
    matmul.match_tiles, matmul.match_squares, matmul.match_dots, matmul.match, conv_narrow.match_tiles,
    conv_narrow.match_squares, conv_narrow.match_dots, conv.match, conv_rows.match_window, conv_rows.match,
    register_tile.match, register_tile.match_grouped,
)  # fmt: skip

WHOLE: tuple[Match, ...] = (winograd.match, attention.match_tiles, attention.match, few_bits.match)
"""Sketches of a contraction together with the stages around it; asked before any block has a schedule."""

KEPT: frozenset[str] = attention.STAGES | few_bits.STAGES | bits.STAGES | winograd.STAGES
"""Stages of such programs that are not inlined into their readers before a sketch is asked."""
