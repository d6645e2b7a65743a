"""The algorithms that are proposed for parts of a graph: those of any machine with threads."""

from __future__ import annotations

from weft.targets.gpu.algorithms import attention_proposer, proposer, weight_fixer

__all__ = ["attention_proposer", "proposer", "weight_fixer"]
