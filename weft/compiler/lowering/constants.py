"""Constants of a graph that are let go of, because kernels have their own packed copies, and come back when asked for.

In: a graph, and how to make its constants again. Out: the same graph, whose large constants take no memory until
somebody reads one; then all of them are made again, and each is compared with what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from weft.core import model
from weft.core.errors import WeftError
from weft.graph.ir import Array, Graph, Value
from weft.runtime.fingerprint import mark

Reload = Callable[[], Mapping[str, Array]]


class ReloadedConstants(Mapping[Value, Array]):
    """Constants of which the large ones are elsewhere. Only reading an array brings them back."""

    def __init__(self, constants: Mapping[Value, Array], held: Collection[int], reload: Reload) -> None:
        self._values = tuple(constants)
        self._here = dict(constants)
        self._known: dict[Value, int] = {}
        self._reload = reload
        self.drop(held)

    def drop(self, held: Collection[int]) -> None:
        """Lets go of large arrays that are here, but those whose ids are given."""
        gone = [v for v, a in self._here.items() if a.nbytes > model.STAYING_BYTES and id(a) not in held]
        for value in gone:
            self._known[value] = mark(self._here.pop(value))

    def __getitem__(self, value: Value) -> Array:
        if value in self._known and value not in self._here:
            self.bring_back(self._reload())
        return self._here[value]

    def __contains__(self, value: object) -> bool:
        return value in self._here or value in self._known

    def __iter__(self) -> Iterator[Value]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[type[dict[Value, Array]], tuple[dict[Value, Array]]]:
        return dict, (dict(self),)  # a copy in another process (pickle) or of its own (deepcopy) has them all

    def bring_back(self, found: Mapping[str, Array]) -> None:
        """Takes back the arrays, by name, from whoever has them."""
        for value, known in self._known.items():
            array = found.get(value.name)
            if array is None or mark(array) != known:
                raise WeftError(
                    f"the constant {value.name!r} is not what it was when the model was compiled: the model's file was "
                    "changed or replaced since; compile it again"
                )
            self._here[value] = array


def lighten(graph: Graph, held: Collection[int], reload: Reload) -> Graph:
    """The graph, without memory of its own for large constants but those held elsewhere (by their ids)."""
    if isinstance(graph.constants, ReloadedConstants):
        graph.constants.drop(held)
        return graph
    arrays = graph.constants.values()
    if any(a.dtype == object for a in arrays) or all(a.nbytes <= model.STAYING_BYTES or id(a) in held for a in arrays):
        return graph
    made = Graph(graph.name, graph.inputs, graph.outputs, graph.nodes)
    made.constants = ReloadedConstants(graph.constants, held, reload)
    return made
