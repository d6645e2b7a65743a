"""What importers of frameworks give: a graph, and how its model is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.graph.ir import Graph


class Calls(Protocol):
    """How a model is called, for one framework."""

    @property
    def is_plain(self) -> bool:
        """Whether arrays go in by place and one array comes out: the form that arrays have anyway."""

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The inputs of the graph, for a call with these arguments; None where they have another structure."""

    def check(self, given: Sequence[Any]) -> None:
        """Refuses inputs of the graph whose sizes the model was not exported for."""

    def unflatten(self, made: Sequence[Any]) -> Any:
        """What the model returns, for the outputs of the graph."""

    def write(self, made: Sequence[Any], given: Sequence[Any]) -> None:
        """Writes what the model changes."""

    def describe(self) -> str:
        """The structure of the arguments, for an error."""

    def as_array(self, given: Any) -> Any:
        """An input as an array, over the same memory where that is possible."""

    def is_native(self, given: Any) -> bool:
        """Whether this is an array of the framework's."""

    def as_native(self, array: Any) -> Any:
        """A result as an array of the framework's."""


@dataclass(frozen=True)
class Imported:
    """A graph, how the model is called, and the kind of device that its tensors lie on."""

    graph: Graph
    calls: Any
    device: str = "cpu"
