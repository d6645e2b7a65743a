"""The spaces of the CPU, one family a file; each `space(unit)` gives a Space, or None for what it does not know.

The first space whose default point is legal schedules the unit; what no space takes gets the general register tile of
`default_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.schedule.space import Space
from weft.targets.cpu.spaces import (
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
    winograd,
)
from weft.targets.cpu.unit import Unit

SPACES: tuple[Callable[[Unit], Space | None], ...] = (
    matmul_amx.space, matmul_dot.space, matmul.space, conv_amx.space, conv_dot.space, conv.space,
    depthwise.space, conv_rows.space,
)  # fmt: skip

WHOLE: tuple[Callable[[Unit], Space | None], ...] = (winograd.space, attention_amx.space, attention.space)
"""Spaces that schedule a product together with the stages around it; asked before any block has a schedule."""

KEPT: frozenset[str] = attention.STAGES
"""Stages of such programs that are not dissolved into their readers before a space is asked."""
