"""Operators that are made of others: a body writes the nodes that stand in a node's place.

    def body(b, x, skip, gamma, beta=None):
        return b("LayerNormalization", b("Add", x, skip), gamma, beta, axis=-1)

The nodes get into the graph by `OpSpec.expand`, so that what is around them can fuse with them and results that nobody
reads are not made. `by_expansion` runs them, where a node has stayed as it is; `types_by` finds their types.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.graph.interpreter import interpret_graph
from weft.graph.ir import NUMPY_TYPES, Array, Dim, Graph, Node, TensorType, Type, Value, dtype_name
from weft.graph.opspec import Evaluate, EvaluateFunction, Infer, InferFunction, OpSpec, Use, node_error, register
from weft.graph.passes.support import Names, Replacement, Rule, Scope, rewrite
from weft.graph.signature import Relation
from weft.ops.elementwise_support import TYPE_NUMBERS, signature_of


class Unexpanded(Exception):
    """Too little is known of a node's inputs: it stays as it is."""


class Builder:
    """Makes the nodes that stand in a node's place, and reads the attributes of that."""

    def __init__(self, node: Node, scope: Scope) -> None:
        self.node, self.scope, self.use = node, scope, Use(node)
        self.get, self.need, self.error = self.use.get, self.use.need, self.use.error
        self.output_count = len(node.outputs)

    def __call__(self, op: str, *inputs: Value | None, domain: str = "", **attributes: Any) -> Value:
        """The only output of a new node."""
        return self.several(1, op, *inputs, domain=domain, **attributes)[0]

    def several(self, outputs: int, op: str, *inputs: Value | None, domain: str = "", **attributes: Any) -> list[Value]:
        """So many outputs of a new node. Attributes that are None are left out."""
        given = {key: value for key, value in attributes.items() if value is not None}
        made = self.scope.make_all(self.node, op, inputs, outputs, domain, **given)
        if not all(isinstance(value.type, TensorType) for value in made):
            raise Unexpanded
        return made

    def constant(self, array: Any, kind: Any) -> Value:
        """A new constant."""
        made = np.asarray(array, NUMPY_TYPES[kind] if isinstance(kind, str) else kind)
        return self.scope.new_constant(made, f"{self.node.outputs[0].name}_constant")

    def zeros(self, shape: Sequence[Dim], dtype: str) -> Value:
        """Nothing but zeros, of a shape that is known."""
        return self.constant(np.zeros([int(str(size)) for size in shape]), dtype)

    def range(self, size: Dim) -> Value:
        """0, 1, … size - 1 as int64."""
        return self.constant(np.arange(self.known(size)), np.int64)

    def known(self, size: Dim) -> int:
        """A size that must be a number."""
        if not isinstance(size, int):
            raise Unexpanded
        return size

    def dims(self, value: Value) -> tuple[Dim, ...]:
        """The shape of a value whose rank is known."""
        if value.tensor.shape is None:
            raise Unexpanded
        return value.tensor.shape

    def cast(self, value: Value, dtype: str) -> Value:
        """A value in another type."""
        return value if value.tensor.dtype == dtype else self("Cast", value, to=TYPE_NUMBERS[dtype])

    def last(self, op: str, inputs: Sequence[Value], position: int, **attributes: Any) -> list[Node]:
        """The node that makes an output of the node replaced; none where nobody asks for that output."""
        if position >= len(self.node.outputs) or not self.node.outputs[position].name:
            return []
        outputs = [self.node.outputs[position]]
        return [Node(op, inputs, outputs, attributes, self.node.name, self.node.origin)]


def _inputs(types: Sequence[Type | None]) -> list[Value | None]:
    return [None if kind is None else Value(f"input{at}", kind) for at, kind in enumerate(types)]


def by_expansion(expand: Rule, by_value: bool = False) -> EvaluateFunction:
    """The numpy meaning of an operator: that of the nodes that it is made of, which inputs may decide `by_value`."""

    def expanded(node: Node, types: tuple[TensorType | None, ...], arrays: Sequence[Array | None] | None) -> Graph:
        inputs = _inputs(types)
        given = [value for value in inputs if value is not None]
        known = {} if arrays is None else {v: a for v, a in zip(inputs, arrays) if v is not None and a is not None}
        outputs = [Value(f"output{at}") for at in range(len(node.outputs))]
        whole = Graph(node.op, [] if known else given, outputs, [node.replace(inputs=inputs, outputs=outputs)], known)
        made, changed = rewrite(whole, expand)
        if not changed:
            raise node_error(node, f"it is not supported for {', '.join(map(repr, types))}")
        return made

    kept = functools.lru_cache(maxsize=64)(functools.partial(expanded, arrays=None))

    def evaluate(c: Evaluate, *arrays: Array | None) -> tuple[Any, ...]:
        types = tuple(None if a is None else TensorType(dtype_name(a.dtype), a.shape) for a in arrays)
        if by_value:
            return tuple(interpret_graph(expanded(c.node, types, arrays), []))
        return tuple(interpret_graph(kept(c.node, types), [a for a in arrays if a is not None]))

    return evaluate


class _Types(Builder):
    """For the types alone, which are known also where a value is not."""

    def range(self, size: Dim) -> Value:
        """See Builder."""
        return Value("range", TensorType("int64", (size,)))


def types_by(body: Callable[..., Sequence[Value]], c: Infer) -> list[Type]:
    """The types of what a body of (builder, inputs…) makes."""
    inputs = _inputs(c.types)
    known = {value: array for value, array in zip(inputs, c.values) if value is not None and array is not None}
    graph = Graph(c.node.op, [value for value in inputs if value is not None], [], [], known)
    made = body(_Types(c.node, Scope(graph, Names(graph), Counter())), *inputs)
    return [value.tensor for value in made]


def compose(
    name: str,
    body: Callable[..., Any],
    shape_inputs: Sequence[int] = (),
    domain: str = "",
    traits: str = "",
    infer: InferFunction | None = None,
    takes: str | None = None,
    requires: Sequence[Relation] = (),
    by_value: bool = True,
) -> OpSpec:
    """Registers an operator whose meaning is a body of other operators, which values may decide (`by_value`).

    `infer` is for types that say more than those of the body, `takes` for what its parameters do not say.
    """

    def made(b: Builder, *inputs: Value | None) -> list[Value]:
        found = body(b, *inputs)
        return (list(found) if isinstance(found, (tuple, list)) else [found])[: max(b.output_count, 1)]

    def expand(node: Node, scope: Scope) -> Replacement:
        is_other = (node.op, node.domain) != (name, domain)  # inside a subgraph
        if is_other or any(v is not None and not isinstance(v.type, TensorType) for v in node.inputs):
            return None
        b = Builder(node, scope)
        try:
            results = made(b, *node.inputs)
        except Unexpanded:
            return None
        return [node for at, value in enumerate(results) for node in b.last("Identity", [value], at)]

    return register(
        name,
        infer or (lambda c: types_by(made, c)),
        by_expansion(expand, by_value),
        shape_inputs=shape_inputs,
        domain=domain,
        expand=expand,
        takes=takes or signature_of(body),
        requires=requires,
        traits=traits,
    )
