"""What open sizes must fulfil for a graph to make sense, found by trying: a product whose inner sizes are two symbols
is right only where they are equal, a sum of [n] and [3] only where n is 3 or 1.

In: a graph whose inputs have open sizes. Out: the nodes whose own inference refuses sizes that have nothing to do with
one another (a prime for each symbol), or finds other shapes for them than the graph says. Those nodes are asked again
when a call brings sizes that were not met before; all the others take any.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.errors import WeftError
from weft.executor.open_sizes import is_unread
from weft.expr.nodes import Var
from weft.graph.interpreter import operator_of
from weft.graph.ir import Array, Dim, Graph, Node, TensorType, Value
from weft.graph.opspec import Infer
from weft.graph.shapes import follows, typical

FIRST = 101


@dataclass(frozen=True)
class Check:
    """One node to ask: the shapes of its inputs and outputs, and the values of constant inputs (None: not known)."""

    node: Node
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    values: tuple[Array | None, ...]

    def holds(self, sizes: Mapping[Var, int]) -> bool:
        """Whether the node takes these sizes, and makes what the graph says."""
        made = [typical(kind.dims, sizes) for kind in self.outputs]
        values = [self._value(at, made[0]) for at in range(len(self.inputs))]
        types = [None if kind is None else TensorType(kind.dtype, typical(kind.dims, sizes)) for kind in self.inputs]
        try:
            found = operator_of(self.node).types(Infer(self.node, types, values))
        except WeftError:
            return False
        return all(isinstance(kind, TensorType) and kind.shape == shape for kind, shape in zip(found, made))

    def _value(self, at: int, shape: Sequence[Dim]) -> Any:
        """A shape that nobody kept is that of the result."""
        value = self.node.inputs[at]
        return np.array(shape, np.int64) if is_unread(value) else self.values[at]


def checks_of(graph: Graph, sizes: Mapping[Var, int]) -> list[Check]:
    """The nodes of a graph that do not take any sizes; `sizes` are some for which the graph makes sense."""
    symbols = list(graph.symbols.values())
    strange = dict(zip(symbols, _primes()))
    known = {var: sizes.get(var, 0) or typical([var])[0] for var in symbols}
    found: list[Check] = []
    for node in graph.nodes:
        values = [*(v for v in node.inputs if v is not None), *node.outputs]
        if node.graphs or not node.outputs or not all(follows(v.type, symbols) for v in values):
            continue
        if all(isinstance(d, int) for v in values for d in v.tensor.dims):
            continue
        check = _check(node, graph.constants)
        # What is not even true of sizes that are right cannot be asked this way.
        if not check.holds(strange) and check.holds(known):
            found.append(check)
    return found


def taken_by(graph: Graph, sizes: Mapping[Var, int]) -> Callable[[tuple[int, ...]], bool]:
    """A function that says whether a graph takes the sizes of a call; the first of them are those of its symbols."""
    checks, symbols = checks_of(graph, sizes), list(graph.symbols.values())

    def takes(numbers: tuple[int, ...]) -> bool:
        found = dict(zip(symbols, numbers))
        return all(check.holds(found) for check in checks)

    return takes


def _check(node: Node, constants: Mapping[Value, Array]) -> Check:
    inputs = tuple(None if v is None else v.tensor for v in node.inputs)
    values = tuple(None if v is None else constants.get(v) for v in node.inputs)
    return Check(node, inputs, tuple(v.tensor for v in node.outputs), values)


def _primes() -> Iterator[int]:
    return (n for n in itertools.count(FIRST, 2) if all(n % d for d in range(3, int(n**0.5) + 1, 2)))
