"""The algorithms that a machine with threads proposes for parts of a graph: attention in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.graph.ir import Array, Node
from weft.graph.passes.algorithms import Alternative
from weft.ops.attention_fused import Sizes
from weft.targets.base import Target
from weft.targets.gpu.attention import proposal
from weft.targets.gpu.elementwise import threads_of


def attention_proposer(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    """What `fuse_attention` asks, for one machine."""

    def propose(sizes: Sequence[int], dtype: str) -> Sequence[int] | None:
        return proposal(Sizes(*sizes), threads_of(target)) if dtype == "float32" else None

    return propose


def proposer(target: Target, model_bytes: int = 0) -> Callable[[Node, Array], Sequence[Alternative]]:
    """What `choose_algorithms` asks: products on a GPU have no other algorithm than the direct one."""
    return lambda node, weight: []


def weight_fixer(target: Target) -> Callable[[Array, int], None]:
    """What `fix_weights` asks: a GPU reads float32 weights as they are."""
    return lambda weight, rows: None
