"""What open sizes must fulfil for a graph to make sense, found by trying: a product whose inner sizes are two symbols
is right only where they are equal, a sum of [n] and [3] only where n is 3 or 1.

In: a graph whose inputs have open sizes. Out: the nodes whose own inference refuses sizes that have nothing to do with
one another (a prime for each symbol), or finds other shapes for them than the graph says. Those nodes are asked again
when a call brings sizes that were not met before; all the others take any.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.sizes.open_sizes import is_unread
from weft.core.errors import WeftError
from weft.expr.nodes import Max, Var
from weft.expr.visit import free_vars
from weft.graph.interpreter import operator_of
from weft.graph.ir import Array, Dim, Graph, Node, TensorType, Value, same_dim
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
    unread: tuple[int, ...] = ()

    def holds(self, named: Mapping[str, int]) -> bool:
        """Whether the node takes these sizes, and makes what the graph says."""
        dims = [d for kind in (*self.inputs, *self.outputs) if kind is not None for d in kind.dims]
        sizes = {var: named[var.name] for var in free_vars(*[d for d in dims if not isinstance(d, int)])}
        made = [typical(kind.dims, sizes) for kind in self.outputs]
        asked = np.array(typical(self._asked(), sizes), np.int64) if self.unread else None
        values = [asked if at in self.unread else value for at, value in enumerate(self.values)]
        types = [None if kind is None else TensorType(kind.dtype, typical(kind.dims, sizes)) for kind in self.inputs]
        try:
            found = operator_of(self.node).types(Infer(self.node, types, values))
        except WeftError:
            return False
        return all(isinstance(kind, TensorType) and kind.shape == shape for kind, shape in zip(found, made))

    def equations(self, strange: Mapping[str, int]) -> list[tuple[str, str | int]]:
        """The equations each of which makes the node take any sizes."""
        dims = [d for kind in (*self.inputs, *self.outputs) if kind is not None for d in kind.dims]
        names = sorted({var.name for var in free_vars(*[d for d in dims if not isinstance(d, int)])})
        others: list[str | int] = [*names, *sorted({1, *(d for d in dims if isinstance(d, int))})]
        tried = [(a, b) for at, a in enumerate(names) for b in others[at + 1 :]]
        return [(a, b) for a, b in tried if self.holds({**strange, a: strange[b] if isinstance(b, str) else b})]

    def _asked(self) -> list[Dim]:
        """A shape that nobody kept: that of the result, and where that is the greater of an input's size and another
        one, the other."""
        given = () if self.inputs[0] is None else self.inputs[0].dims
        dims = list(self.outputs[0].dims)
        for at, own in zip(range(-1, -len(dims) - 1, -1), reversed(given)):
            whole = dims[at]
            if isinstance(whole, Max) and (same_dim(own, whole.a) or same_dim(own, whole.b)):
                dims[at] = whole.b if same_dim(own, whole.a) else whole.a
        return dims


def conditions_of(graph: Graph, sizes: Mapping[Var, int]) -> Conditions:
    """The nodes of a graph that do not take any sizes; `sizes` are usual, or a call's."""
    symbols = graph.symbols.values()
    strange = dict(zip(graph.symbols, _primes()))
    known = {name: sizes.get(var, 0) or typical([var])[0] for name, var in graph.symbols.items()}
    found: list[Check] = []
    for node in graph.nodes:
        values = [*(v for v in node.inputs if v is not None), *node.outputs]
        if node.graphs or not node.outputs or not all(follows(v.type, symbols) for v in values):
            continue
        if all(isinstance(d, int) for v in values for d in v.tensor.dims):
            continue
        check = _check(node, graph.constants)
        # What is true neither of the usual sizes nor with one of them changed cannot be asked this way.
        if not check.holds(strange) and (check.holds(known) or check.equations(known)):
            found.append(check)
    return Conditions(list(graph.symbols), found)


class Conditions:
    """What the sizes of a call must fulfil: `names` are those of the first of its numbers."""

    def __init__(self, names: Sequence[str], checks: Sequence[Check]) -> None:
        self.names, self.checks = tuple(names), tuple(checks)

    def take(self, numbers: Sequence[int]) -> bool:
        """Whether all nodes take the sizes of a call."""
        return all(check.holds(dict(zip(self.names, numbers))) for check in self.checks)

    def equations(self) -> list[list[tuple[str, str | int]]] | None:
        """For each check the equations (a size is another, or a number) of which one is enough; None where none is.

        That one is enough is found as that a node takes any sizes is: by sizes that have nothing else to do with one
        another. So whoever has no operators to ask can tell which sizes are taken.
        """
        strange = dict(zip(self.names, _primes()))
        found = [check.equations(strange) for check in self.checks]
        return found if all(found) else None


def _check(node: Node, constants: Mapping[Value, Array]) -> Check:
    inputs = tuple(None if v is None else v.tensor for v in node.inputs)
    asked = operator_of(node).shape_inputs
    values = tuple(constants.get(v) if v is not None and at in asked else None for at, v in enumerate(node.inputs))
    unread = tuple(at for at, value in enumerate(node.inputs) if is_unread(value))
    return Check(node, inputs, tuple(v.tensor for v in node.outputs), values, unread)


def _primes() -> Iterator[int]:
    return (n for n in itertools.count(FIRST, 2) if all(n % d for d in range(3, int(n**0.5) + 1, 2)))
