"""Types and known values, forwards through a graph and into its subgraphs.

    %s = Shape(%x)                           %s: int64[2] = Shape(%x)          for %x: float32[2, 12], known: [2, 12]
    %n = Gather(%s, %zero)              ->   %n: int64[] = Gather(%s, %zero)   known: 2
    %y = Reshape(%z, %n_and_minus_one)       %y: float32[2, 6] = Reshape(…)

Only the types of inputs and constants are believed; those of everything else are found anew. Small tensors that follow
from constants and static shapes are computed on the way, because shapes depend on them; where only some elements are
known (sizes may be symbolic), those are followed through the operators that move or add them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np

from weft.core import model
from weft.core.errors import WeftError
from weft.graph.interpreter import operator_of
from weft.graph.ir import (
    NUMPY_TYPES,
    Array,
    Dim,
    Graph,
    GraphError,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    dtype_name,
    same_dim,
)
from weft.graph.opspec import Infer, blame, has
from weft.graph.passes.partial import Partial, partial_results, refined
from weft.graph.shapes import unknown_dim
from weft.graph.steps import steps_of

_ROUNDS = 4


def infer(graph: Graph) -> Graph:
    """The graph with the type of every value, as far as it can be known."""
    return infer_values(graph)[0]


def infer_values(graph: Graph) -> tuple[Graph, dict[Value, Array]]:
    """The typed graph, and the values (of its nodes' outputs) that are known, those in subgraphs too."""
    if graph.known is None:
        walk = _Inference()
        graph = walk.graph(graph)
        graph.known = walk.known  # inferring again would find the same: passes that change nothing do not pay for it
    return graph, graph.known


def same_type(a: Type | None, b: Type | None) -> bool:
    """Whether two types are surely the same."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype != b.dtype or (a.shape is None) != (b.shape is None):
            return False
        left, right = a.shape or (), b.shape or ()
        return len(left) == len(right) and all(map(same_dim, left, right))
    for kind in (SequenceType, OptionalType):
        if isinstance(a, kind) and isinstance(b, kind):
            return same_type(a.of, b.of)
    return a is None and b is None


def is_random(node: Node) -> bool:
    """Whether a node may give another result each time."""
    return has(node, "random") or (node.op == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None)


def results_of(node: Node, arrays: Sequence[Any]) -> list[Array] | None:
    """What a node gives for these arrays; None where it fails or gives something that is not an array."""
    try:
        made = operator_of(node).run(node, arrays)
    except WeftError:
        return None  # the node will say what is wrong when it is run
    # In order, because what an operator gives may be a view of what it was given (a transpose, a broadcast).
    return [np.asarray(one, order="C") for one in made] if all(isinstance(one, np.ndarray) for one in made) else None


class _Inference:
    """One walk. `new` maps the given values to the typed ones."""

    def __init__(self) -> None:
        self.new: dict[Value, Value] = {}
        self.constants: dict[Value, Array] = {}
        self.known: dict[Value, Array] = {}
        self.partial: dict[Value, Partial] = {}
        self.depth = 0

    def graph(self, graph: Graph, input_types: Sequence[Type | None] | None = None) -> Graph:
        for at, value in enumerate(graph.inputs):
            self.define(value, value.type if input_types is None else input_types[at])
        constants = {}
        for value, array in graph.constants.items():
            made = self.define(value, TensorType(dtype_name(array.dtype), array.shape))
            constants[made] = self.constants[made] = array
        nodes = [self.named(node) for node in graph.nodes]
        outputs = [self.new.get(value, value) for value in graph.outputs]
        return Graph(graph.name, [self.new[v] for v in graph.inputs], outputs, nodes, constants)

    def define(self, value: Value, type: Type | None) -> Value:
        made = value if same_type(value.type, type) else Value(value.name, type)
        self.new[value] = made
        return made

    def value_of(self, value: Value | None) -> Array | None:
        if value is None:
            return None
        found = self.constants.get(value)
        return self.known.get(value) if found is None else found

    def named(self, node: Node) -> Node:
        """The node with its types; an error names it."""
        try:
            return self.node(node)
        except Exception as error:
            raise blame(node, "shape inference", error) from error

    def node(self, node: Node) -> Node:
        inputs = [None if v is None else self.new.get(v, v) for v in node.inputs]
        values = [self.value_of(v) for v in inputs]
        partials = [None if v is None else self.partial_of(v) for v in inputs]
        small = tuple([None if v is None or v.size > model.FOLLOWED_ELEMENTS else v for v in values])
        some = any(p is not None for p in partials)
        same = node.typed is not None and not some and all(map(is_, inputs, node.inputs))
        if same and all(map(is_, small, node.typed or ())):
            self.new.update(zip(node.outputs, node.outputs))
            self.learn(node, values, partials)
            return node
        spec = operator_of(node)
        attributes = self.subgraphs(node, inputs) if node.graphs else node.attributes
        node = node.replace(inputs=inputs, attributes=attributes)
        input_types = [None if v is None else v.type for v in inputs]
        types: Sequence[Type | None] = [None] * len(node.outputs)
        if all(v is None or v.type is not None for v in inputs):
            try:
                types = spec.types(Infer(node, input_types, values))
            except WeftError:
                if self.depth == 0:
                    raise
                # A branch that is never taken may be wrong for these shapes: it fails when it is run.
        if some:
            types = refined(node, input_types, types, partials)
        made = node.replace(outputs=[self.define(v, t) for v, t in zip(node.outputs, types)])
        if not some and not node.graphs and None not in types:
            made.typed = small
        self.learn(made, values, partials)
        return made

    # ------------------------------------------------------------------------------------------------ values

    def partial_of(self, value: Value) -> Partial | None:
        found = self.partial.get(value)
        if found is None:
            array = self.value_of(value)
            if array is not None and array.size <= model.FOLLOWED_ELEMENTS and array.dtype.kind in "iu":
                found = Partial(array.shape, array.ravel().tolist())
        return found

    def learn(self, node: Node, values: Sequence[Array | None], partials: Sequence[Partial | None]) -> None:
        """Computes the node's results where they are small and follow from what is known."""
        for value in node.outputs:  # the body of a loop is walked several times: what held before may not hold now
            self.known.pop(value, None)
            self.partial.pop(value, None)
        made = self.computed(node, values)
        if made is not None:
            for value, array in zip(node.outputs, made):
                if array.size <= model.FOLLOWED_ELEMENTS:
                    self.known[value] = array
            return
        for value, some in zip(node.outputs, partial_results(node, partials)):
            if some is None:
                continue
            numbers = some.numbers
            if numbers is None or not isinstance(value.type, TensorType):
                self.partial[value] = some
            else:
                self.known[value] = np.array(numbers, value.type.numpy).reshape(some.shape)

    def computed(self, node: Node, values: Sequence[Array | None]) -> list[Array] | None:
        if node.graphs or is_random(node) or not node.outputs:
            return None
        first = node.inputs[0].type if node.inputs and node.inputs[0] is not None else None
        if has(node, "shape_only") and isinstance(first, TensorType) and first.is_static:
            return results_of(node, [np.broadcast_to(np.zeros((), NUMPY_TYPES[first.dtype]), first.static)])
        if any(value is not None and values[at] is None for at, value in enumerate(node.inputs)):
            return None
        if any(array is not None and array.size > model.FOLLOWED_ELEMENTS for array in values):
            return None
        sizes = [static_size(value.type) for value in node.outputs]
        if any((size is None and has(node, "grows")) or (size or 0) > model.FOLLOWED_ELEMENTS for size in sizes):
            return None
        return results_of(node, values) if steps_of(node, values) <= model.FOLLOWED_STEPS else None

    # ------------------------------------------------------------------------------------------------ subgraphs

    def subgraphs(self, node: Node, inputs: Sequence[Value | None]) -> dict[str, Any]:
        """The attributes with subgraphs inferred, their inputs typed by what the operator gives them."""
        attributes = dict(node.attributes)
        self.depth += 1
        for key, inner in node.graphs.items():
            if node.op == "Loop" and not node.domain:
                attributes[key] = self.loop(inner, [v.type if v is not None else None for v in inputs[2:]])
            elif node.op == "Scan" and not node.domain:
                attributes[key] = self.scan(node, inner, inputs)
            else:
                attributes[key] = self.graph(inner)
        self.depth -= 1
        return attributes

    def loop(self, body: Graph, carried: Sequence[Type | None]) -> Graph:
        first: list[Type | None] = [TensorType("int64", ()), TensorType("bool", ())]
        return self.until_stable(body, first, carried, [], 1)

    def scan(self, node: Node, body: Graph, inputs: Sequence[Value | None]) -> Graph:
        count = int(node.attributes.get("num_scan_inputs", 0))
        states = [v.type if v is not None else None for v in inputs[: len(inputs) - count]]
        axes = node.attributes.get("scan_input_axes") or [0] * count
        rows = [_without_axis(v.type if v is not None else None, a) for v, a in zip(inputs[len(states) :], axes)]
        return self.until_stable(body, [], states, rows, 0)

    def until_stable(
        self, body: Graph, first: list[Type | None], states: Sequence[Type | None], last: list[Type | None], skip: int
    ) -> Graph:
        """A body whose states keep their types from one turn to the next: sizes that change become unknown."""
        types = list(states)
        made = body
        for turn in range(_ROUNDS):
            given = [*first, *types, *last]
            if len(given) != len(body.inputs):
                raise GraphError(f"the body {body.name!r} takes {len(body.inputs)} inputs and is given {len(given)}")
            if turn == _ROUNDS - 1:
                given = [*first, *map(_unshaped, types), *last]
            made = self.graph(body, given)
            after = [value.type for value in made.outputs[skip : skip + len(types)]]
            if len(after) != len(types):
                raise GraphError(f"the body {body.name!r} has {len(made.outputs)} outputs, too few for its states")
            merged = [_either(a, b) for a, b in zip(types, after)]
            if all(map(same_type, merged, types)):
                break
            types = merged
        return made


def _either(before: Type | None, after: Type | None) -> Type | None:
    """A type that both have; what is not known of the second is not known of both."""
    for kind in (SequenceType, OptionalType):
        if isinstance(before, kind) and isinstance(after, kind):
            inner = _either(before.of, after.of)
            return before if inner is None else kind(inner)
    if not isinstance(before, TensorType) or not isinstance(after, TensorType) or before.dtype != after.dtype:
        return _unshaped(before)
    if before.shape is None or after.shape is None or len(before.shape) != len(after.shape):
        return TensorType(before.dtype, None)
    if all(map(same_dim, before.shape, after.shape)):
        return before
    dims: list[Dim] = []
    for a, b in zip(before.shape, after.shape):
        # A size that changed is a new unknown, also where it was an unknown before: it may change on every turn.
        dims.append(a if same_dim(a, b) or _is_turn(a) else unknown_dim("turn"))
    return TensorType(before.dtype, dims)


def _is_turn(dim: Dim) -> bool:
    return not isinstance(dim, int) and getattr(dim, "name", "").startswith("turn_")


def _unshaped(type: Type | None) -> Type | None:
    if isinstance(type, SequenceType):
        return SequenceType(_unshaped(type.of) or type.of)
    if isinstance(type, OptionalType):
        return OptionalType(_unshaped(type.of) or type.of)
    return TensorType(type.dtype, None) if isinstance(type, TensorType) else type


def _without_axis(type: Type | None, axis: int) -> Type | None:
    if not isinstance(type, TensorType) or type.shape is None or not type.shape:
        return type
    at = int(axis) % len(type.shape)
    return TensorType(type.dtype, type.shape[:at] + type.shape[at + 1 :])


def static_size(type: Type | None) -> int | None:
    """The number of elements, where it is a number."""
    return math.prod(type.static) if isinstance(type, TensorType) and type.is_static else None
