"""Inputs whose values decide shapes: a form is for such values, not only for the shapes of its inputs."""

from __future__ import annotations

import math

from weft.core import model
from weft.graph.interpreter import operator_of
from weft.graph.ir import Graph, TensorType, Value
from weft.graph.opspec import has


def deciding_inputs(graph: Graph) -> set[int]:
    """The positions of inputs whose values decide shapes: they reach an operator's shape operand."""
    wanted: set[Value] = set()
    for node in reversed(graph.nodes):
        for position in operator_of(node).shape_inputs:
            if position < len(node.inputs) and (value := node.inputs[position]) is not None:
                wanted.add(value)
        if any(value in wanted for value in node.outputs) and not node.graphs and not has(node, "shape_only"):
            wanted.update(v for v in node.inputs if v is not None and _may_be_small(v))
    return {at for at, value in enumerate(graph.inputs) if value in wanted and _may_be_small(value)}


def _may_be_small(value: Value) -> bool:
    kind = value.type
    if kind is None:
        return True
    if not isinstance(kind, TensorType) or kind.core is None:
        return False
    return kind.shape is None or (len(kind.shape) <= 1 and _least_size(kind) <= model.LARGEST_BOUND_VALUE)


def _least_size(kind: TensorType) -> int:
    return math.prod(d for d in kind.shape or () if isinstance(d, int))
