"""What passes share: renaming values, and rewriting a graph node by node with rules.

A rule looks at one node and what stands before it, and says what takes its place:

    None                 the node stays
    a Value              the node's only output is that value, which exists already
    a list of Nodes      these stand in its place; together they make all of its outputs

`rewrite(graph, rule)` applies a rule from the first node to the last, in subgraphs too. Nodes that nothing reads any
more stay where they are: `dead` removes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

from weft.graph.interpreter import operator_of
from weft.graph.ir import Array, Graph, Node, TensorType, Type, Value, all_graphs, dtype_name
from weft.graph.opspec import Infer, blame
from weft.graph.passes.dead import dead
from weft.graph.passes.history import note
from weft.graph.passes.infer import infer


def substitute_values(graph: Graph, new: Mapping[Value, Value]) -> Graph:
    """The graph with values replaced wherever they are made or read, in subgraphs too."""

    def one(value: Value) -> Value:
        return new.get(value, value)

    def attribute(value: Any) -> Any:
        return substitute_values(value, new) if isinstance(value, Graph) else value

    nodes = [
        node.replace(
            inputs=[None if v is None else one(v) for v in node.inputs],
            outputs=[one(v) for v in node.outputs],
            attributes={key: attribute(value) for key, value in node.attributes.items()}
            if node.graphs
            else node.attributes,
        )
        for node in graph.nodes
    ]
    constants = {one(value): array for value, array in graph.constants.items()}
    return Graph(graph.name, [one(v) for v in graph.inputs], [one(v) for v in graph.outputs], nodes, constants)


def graph_values(graph: Graph) -> Iterable[Value]:
    """Every value that a graph or a graph inside it defines."""
    for inner in all_graphs(graph):
        yield from inner.inputs
        yield from inner.constants
        for node in inner.nodes:
            yield from node.outputs


class Names:
    """Names for new values, different from all that a graph has."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.found: Counter[str] = Counter()
        self.next: Counter[str] = Counter()

    @property
    def taken(self) -> Counter[str]:
        """How often each name is there; looked up when it is asked for, which most rewritings do not."""
        if not self.found:
            self.found.update(value.name for value in graph_values(self.graph))
        return self.found

    def fresh(self, base: str) -> str:
        """A name that starts with the given one."""
        name, taken = base, self.taken
        while name in taken:
            self.next[base] += 1
            name = f"{base}_{self.next[base]}"
        taken[name] += 1
        return name


def count_uses(graph: Graph) -> Counter[Value]:
    """How often every value is read, in subgraphs too; being an output is a use."""
    used: list[Value | None] = []
    for inner in all_graphs(graph):
        used += inner.outputs
        for node in inner.nodes:
            used += node.inputs
    return Counter(value for value in used if value is not None)


Replacement = Union[None, Value, Sequence[Node]]
Rule = Callable[[Node, "Scope"], Replacement]


class Scope:
    """What a rule sees and builds with: the graph so far, with everything before the node already rewritten."""

    def __init__(self, graph: Graph, names: Names, uses: Counter[Value], parent: Scope | None = None) -> None:
        self.graph = graph
        self.parent = parent
        self.names = names
        self.uses = uses
        self.replaced: dict[Value, Value] = {} if parent is None else parent.replaced
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.producers: dict[Value, Node] = {}
        self.nodes: list[Node] = []
        self.changed = False
        self.pending: list[Node] = []
        self.rule: Rule | None = None
        """Which of several rules found something, where one rule asks others."""

    def resolve(self, value: Value) -> Value:
        """What a value has been replaced by."""
        while value in self.replaced:
            value = self.replaced[value]
        return value

    # ------------------------------------------------------------------------------------------------ looking

    def producer(self, value: Value | None, *ops: str) -> Node | None:
        """The node of this graph that makes a value, if it is one of these operators (any, if none is named)."""
        found = None if value is None else self.producers.get(value)
        if found is None or (ops and (found.op not in ops or found.domain)):
            return None
        return found

    def single(self, value: Value | None, *ops: str) -> Node | None:
        """The producer of a value that is read once: what a larger operator may swallow."""
        found = self.producer(value, *ops)
        if found is None or value is None or self.uses[value] != 1 or any(self.uses[v] for v in found.outputs[1:]):
            return None
        return found

    def constant(self, value: Value | None) -> Array | None:
        """The array of a constant, of this graph or one around it."""
        scope: Scope | None = self
        while scope is not None and value is not None:
            if value in scope.constants:
                return scope.constants[value]
            scope = scope.parent
        return None

    def scalar(self, value: Value | None) -> float | None:
        """The number that a constant of one element is."""
        array = self.constant(value)
        if array is None or array.size != 1 or array.dtype.kind in "OUSc":
            return None
        return float(array.reshape(()).item())

    # ------------------------------------------------------------------------------------------------ building

    def new_constant(self, array: Any, base: str = "constant") -> Value:
        """A new constant."""
        made = np.asarray(array)
        value = Value(self.names.fresh(base), TensorType(dtype_name(made.dtype), made.shape))
        self.constants[value] = made
        return value

    def make(self, like: Node, op: str, inputs: Sequence[Value | None], domain: str = "", **attributes: Any) -> Value:
        """A new node, before those that the rule returns; its only output, with its type inferred."""
        return self.make_all(like, op, inputs, 1, domain, **attributes)[0]

    def make_all(
        self, like: Node, op: str, inputs: Sequence[Value | None], outputs: int, domain: str = "", **attributes: Any
    ) -> list[Value]:
        """A new node with several outputs; these, with their types inferred."""
        names = [self.names.fresh(f"{like.outputs[0].name}_{op.lower()}") for _ in range(outputs)]
        node = Node(op, inputs, list(map(Value, names)), attributes, like.name, like.origin, domain)
        made = [Value(name, kind) for name, kind in zip(names, self.types_of(node))]
        self.pending.append(node.replace(outputs=made))
        self.uses.update(v for v in inputs if v is not None)
        self.uses.update(made)
        return made

    def type_of(self, node: Node) -> Type | None:
        """The type of a node's first output."""
        return self.types_of(node)[0]

    def types_of(self, node: Node) -> Sequence[Type | None]:
        """The types of a node's outputs."""
        types = [None if v is None else v.type for v in node.inputs]
        if any(v is not None and v.type is None for v in node.inputs):
            return [None] * len(node.outputs)
        values = [self.constant(v) for v in node.inputs]
        return operator_of(node).types(Infer(node, types, values))

    def emit(self, node: Node) -> None:
        """Adds a node to the graph that is being built."""
        self.nodes.append(node)
        for value in node.outputs:
            self.producers[value] = node


def swap(node: Node, op: str, inputs: Sequence[Value | None], **attributes: Any) -> list[Node]:
    """One node in the place of another: another operator, the same outputs, name and origin."""
    return [Node(op, inputs, node.outputs[:1], attributes, node.name, node.origin)]


def rewrite(graph: Graph, rule: Rule) -> tuple[Graph, bool]:
    """The graph with a rule applied to every node once, and whether anything changed."""
    scope = Scope(graph, Names(graph), count_uses(graph))
    made = _rewrite(scope, rule)
    return (made, True) if scope.changed else (graph, False)


def _rewrite(scope: Scope, rule: Rule) -> Graph:
    graph = scope.graph
    for node in graph.nodes:
        node = _resolved(node, scope, rule)
        scope.rule = rule
        try:
            found = rule(node, scope)
        except Exception as error:
            raise blame(node, f"the rewriting {rule.__name__}", error) from error
        for extra in scope.pending:
            scope.emit(extra)
        scope.pending.clear()
        if found is None:
            scope.emit(node)
            continue
        if isinstance(found, Value) and found is node.outputs[0]:
            raise AssertionError("a rule replaced a value by itself")
        if isinstance(found, Value) and _keeps_name(node.outputs[0], scope):
            # The output of a model keeps its name: the value takes it over, or is copied where it has its own.
            if node.op == "Identity" and not _may_rename(found, scope):
                scope.emit(node)
                continue
            found = _as_output(node, found, scope)
        scope.changed = True
        note(scope.rule, node)
        if isinstance(found, Value):
            scope.uses.subtract(v for v in node.inputs if v is not None)
            scope.uses[found] += scope.uses[node.outputs[0]]
            scope.replaced[node.outputs[0]] = found
        else:
            for one in found:
                scope.emit(one)
                scope.uses.update(v for v in one.inputs if v is not None)
            scope.uses.subtract(v for v in node.inputs if v is not None)
    outputs = [scope.resolve(value) for value in graph.outputs]
    return Graph(graph.name, graph.inputs, outputs, scope.nodes, scope.constants)


def _resolved(node: Node, scope: Scope, rule: Rule) -> Node:
    if not scope.replaced and not node.graphs:
        return node
    inputs = [None if v is None else scope.resolve(v) for v in node.inputs]
    attributes = node.attributes
    if node.graphs:
        attributes = dict(attributes)
        for key, inner in node.graphs.items():
            below = Scope(inner, scope.names, scope.uses, scope)
            made = _rewrite(below, rule)
            attributes[key] = made
            scope.changed = scope.changed or below.changed
    elif all(a is b for a, b in zip(inputs, node.inputs)):
        return node
    return node.replace(inputs=inputs, attributes=attributes)


def _keeps_name(value: Value, scope: Scope) -> bool:
    return scope.parent is None and value in scope.graph.outputs


def _may_rename(value: Value, scope: Scope) -> bool:
    return value in scope.producers and value not in scope.graph.outputs


def _as_output(node: Node, value: Value, scope: Scope) -> list[Node] | Value:
    """Makes `value` the output of `node`: its producer makes the output instead, or an Identity copies it."""
    output = node.outputs[0]
    if not _may_rename(value, scope):
        return [Node("Identity", [value], [output], {}, node.name, node.origin)]
    swapped = {value: output}
    for at, other in enumerate(scope.nodes):
        if value in other.outputs or value in other.inputs or other.graphs:
            scope.nodes[at] = made = _renamed(other, swapped)
            for out in made.outputs:
                scope.producers[out] = made
    scope.producers.pop(value)
    scope.replaced[value] = output
    scope.uses[output] += scope.uses.pop(value, 0)
    return []


def _renamed(node: Node, new: Mapping[Value, Value]) -> Node:
    attributes = {
        key: substitute_values(value, new) if isinstance(value, Graph) else value
        for key, value in node.attributes.items()
    }
    return node.replace(
        inputs=[None if v is None else new.get(v, v) for v in node.inputs],
        outputs=[new.get(v, v) for v in node.outputs],
        attributes=attributes,
    )


def rewritten(graph: Graph, rule: Rule) -> Graph:
    """`rewrite`, with types found again and without what nothing reads; the same object where nothing changed."""
    made, changed = rewrite(graph, rule)
    return infer(dead(made)) if changed else graph


def until_stable(graph: Graph, rule: Rule, rounds: int = 20) -> Graph:
    """`rewritten` until nothing changes, at most so often; the same object where nothing changed."""
    made = typed = infer(graph)
    for _ in range(rounds):
        before, made = made, rewritten(made, rule)
        if made is before:
            break
    return graph if made is typed else made


def orders(node: Node) -> Iterator[tuple[Value | None, Value | None]]:
    """The two operands of a node, either first."""
    yield node.inputs[0], node.inputs[1]
    yield node.inputs[1], node.inputs[0]
