"""What CUDA offers the planner: what any machine with threads does, and contractions by tensor cores."""

from __future__ import annotations

from dataclasses import replace

from weft.targets.cuda import attention, bulk_tiles, streamed
from weft.targets.cuda.tensor_cores import match_groups, match_warps
from weft.targets.gpu import families

FAMILIES = replace(
    families.FAMILIES,
    whole=(attention.match, *families.FAMILIES.whole),
    loops=(streamed.match, *families.FAMILIES.loops),
    contractions=(bulk_tiles.match, match_groups, match_warps, *families.FAMILIES.contractions),
)
"""What a program for CUDA is scheduled with."""
default_schedule = FAMILIES.schedule
