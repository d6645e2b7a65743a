"""How many steps a node takes on the host: what constant folding and inference may spend is counted in them.

A step is about one number read. An estimate comes from the first of these that knows one:

    the operator's own        `OpSpec.steps`, where nothing else can tell (a determinant, a regular expression)
    its kind                  injective operators, those without inputs and users' own: a step for each element
    its tensor expression     the points of every stage, times what each one reads (`weft/ops/count_steps.py`)
    a bound                   every element of each input with every element of the others and of the result

so that an operator that is added tomorrow has one too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.graph.ir import Array, Node, TensorType
from weft.graph.opspec import OpSpec, blame, find_operator, is_of_users

FEW_STEPS = 1 << 20
"""A bound below this is not worth a closer look."""

Counter = Callable[[OpSpec, Node, Sequence[Array | None]], int | None]
_counters: list[Counter] = []


def count_with(counter: Counter) -> None:
    """Registers what counts the steps of tensor expressions, which this layer does not know."""
    _counters[:] = [counter]


def elements_of(node: Node, arrays: Sequence[Array | None]) -> int:
    """How many elements a node reads and writes, as far as its types tell."""
    return sum(array.size for array in arrays if array is not None) + sum(_sizes(node))


def steps_of(node: Node, arrays: Sequence[Array | None]) -> int:
    """About how many steps the numpy meaning takes on these arrays."""
    spec = find_operator(node.op, node.domain)
    if spec is not None and spec.steps is not None:
        try:
            return int(spec.steps(node, arrays))
        except Exception as error:
            raise blame(node, "the count of its steps", error) from error
    if spec is None or not node.inputs or is_of_users(spec) or spec.kind_of(node) == "injective":
        return elements_of(node, arrays)
    bound = math.prod(max(array.size, 1) for array in arrays if array is not None)
    bound *= math.prod(max(size, 1) for size in _sizes(node)) * _largest(node.attributes)
    counted = _counters[0](spec, node, arrays) if bound > FEW_STEPS and _counters else None
    return bound if counted is None else counted


def _sizes(node: Node) -> list[int]:
    """The elements of the outputs whose sizes are numbers."""
    types = [value.type for value in node.outputs]
    return [math.prod(kind.static) for kind in types if isinstance(kind, TensorType) and kind.is_static]


def _largest(attributes: Mapping[str, Any]) -> int:
    """What attributes may multiply the work by: whole numbers may be sizes of windows, long lists are tables."""
    found = 1
    for value in attributes.values():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if len(numbers) > 16:
            found *= len(numbers)
        else:
            found *= math.prod(max(abs(one), 1) for one in numbers if isinstance(one, int))
            found *= math.prod(max(one.size, 1) for one in numbers if hasattr(one, "size"))
    return found
