"""What a compiled model does in one call: native stretches, host nodes, and parts that wait for shapes.

NativeStep   one native call that runs a stretch of kernels (`runtime/model/program.py`)
HostStep     one node by its numpy meaning
RestStep     the rest of the graph, specialised when the shapes that a host node made are known
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

from weft.graph.ir import Graph, Node, Value
from weft.runtime.model.program import NativeStep, Port, Program, aligned_array, empty_array, memory

__all__ = [
    "HostStep", "NativeStep", "Port", "Program", "RestStep", "Runs", "Step", "aligned_array", "empty_array", "memory",
]  # fmt: skip


class Runs(Protocol):
    """Something that gives outputs for inputs of a graph."""

    @property
    def graph(self) -> Graph:
        """The graph."""

    def run(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """The outputs for these inputs."""


@dataclass
class HostStep:
    """A node on the host; `captured` are the values that its subgraphs take from outside."""

    node: Node
    inputs: list[int | None]
    outputs: list[int]
    captured: list[tuple[Value, int]]
    reason: str
    inner: dict[Graph, Any] = field(default_factory=dict)
    region: Any = None
    """What runs the node with all its subgraphs natively."""

    @property
    def values(self) -> list[int]:
        """The values that it reads or makes."""
        given = [v for v in self.inputs if v is not None]
        return [*given, *self.outputs, *(number for _, number in self.captured)]


@dataclass
class RestStep:
    """The rest of the graph as an executor of its own."""

    executor: Runs
    inputs: list[int]
    outputs: list[int]

    @property
    def values(self) -> list[int]:
        """The values that it reads or makes."""
        return [*self.inputs, *self.outputs]


Step = Union[NativeStep, HostStep, RestStep]
