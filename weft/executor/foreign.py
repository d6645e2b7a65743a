"""A program compiled for another machine: it has everything but a way to run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import TargetError
from weft.executor.run import HostRunner, Inner
from weft.executor.steps import Program
from weft.graph.ir import TensorType
from weft.targets.base import Target


class ForeignRunner(HostRunner):
    """Stands where a `Runner` stands; a call says that the code is for another machine, and what to do with it."""

    def __init__(self, program: Program, inner: Inner, target: Target) -> None:
        super().__init__(program, inner)
        self.target = target

    def fast(self, types: Sequence[TensorType]) -> None:
        """There is no short way."""

    def run(self, arrays: Sequence[Any], threads: int, out: Sequence[Any] | None = None) -> list[Any]:
        """Refuses."""
        raise TargetError(
            f"{self.target.name} is for another machine ({self.target.triple}, {self.target.cpu}): its code does not "
            "run here; weft export writes it for that machine (docs/deploy.md)"
        )
