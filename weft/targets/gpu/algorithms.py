"""The algorithms that a machine with threads proposes for parts of a graph: attention in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ops.attention_fused import Sizes
from weft.targets.base import Target
from weft.targets.gpu.attention import proposal
from weft.targets.gpu.elementwise import threads_of


def attention_proposer(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    """What `fuse_attention` asks, for one machine."""

    def propose(sizes: Sequence[int], dtype: str) -> Sequence[int] | None:
        return proposal(Sizes(*sizes), threads_of(target)) if dtype == "float32" else None

    return propose
