"""The passes between a graph as it was loaded and the graph that is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.graph.ir import Array, Graph, Value
from weft.graph.passes.common import common
from weft.graph.passes.dead import dead
from weft.graph.passes.fold import fold
from weft.graph.passes.infer import infer
from weft.graph.passes.specialize import specialize


def optimize(
    graph: Graph, shapes: Mapping[str, Sequence[int]], values: Mapping[Value, Array], precision: str | None
) -> Graph:
    """The graph for these shapes and values, in the form that fusion and the kernels want. Inputs stay as they are."""
    inputs = graph.inputs
    names = {value.name for value in values}
    bound = specialize(graph, shapes)
    given = {v: values_by_name(values)[v.name] for v in bound.inputs if v.name in names}
    if given:
        bound = infer(
            bound.replace(inputs=[v for v in bound.inputs if v not in given], constants={**bound.constants, **given})
        )
    made = infer(dead(common(fold(bound))))
    if len(made.inputs) == len(inputs):
        return made
    # Bound inputs stay in the signature, though nothing reads them.
    kept = {v.name: v for v in made.inputs}
    return made.replace(inputs=[kept.get(v.name, Value(v.name, v.type)) for v in inputs])


def values_by_name(values: Mapping[Value, Array]) -> dict[str, Array]:
    """Arrays by the names of their values."""
    return {value.name: array for value, array in values.items()}
