"""Sequences whose elements all have one shape become tensors with one more axis in front.

    %s = SequenceEmpty()                                    const %s = zeros [0, 1, 32]
    %rows = Loop(…, %s) {%t = SequenceInsert(%s, %x)}  ->   %rows = Loop(…, %s) {%t = Concat(%s, Unsqueeze(%x, 0))}
    %y = ConcatFromSequence(%rows, axis=0)                  %y = Reshape(%rows, [-1, 32])

Kernels know tensors only, and what grows by a row in a loop stays in native code (`compiler/control/`). Values that
are handed from one node to another (through branches and loops, too) are one family; a family is left as it is where
one of its nodes is none of those below, where the caller sees one of its values, or where elements differ in shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Array, Graph, Node, SequenceType, TensorType, Value, all_graphs
from weft.graph.passes.infer import infer, same_type
from weft.graph.shapes import normal_axis


def stack_sequences(graph: Graph) -> Graph:
    """The graph without such sequences; the same object where there are none."""
    if not any(node.op in _WRITE and not node.domain for one in all_graphs(graph) for node in one.nodes):
        return graph
    families = _Families()
    typed = infer(graph)
    families.graph(typed)
    for value in (*typed.inputs, *typed.outputs):
        families.refuse(value)
    kinds = families.settled()
    return infer(_Stacked(families, kinds).graph(typed)) if kinds else graph


class _Families:
    """Which values are one sequence, what its elements are, and which have to stay."""

    def __init__(self) -> None:
        self.parents: dict[Value, Value] = {}
        self.elements: dict[Value, list[Value]] = {}
        self.refused: set[Value] = set()

    def root(self, value: Value) -> Value:
        """The value that stands for a family."""
        while (parent := self.parents.get(value, value)) is not value:
            value = parent
        return value

    def join(self, a: Value | None, b: Value | None) -> None:
        """Two values are one sequence."""
        if a is not None and b is not None and (_is_sequence(a) or _is_sequence(b)):
            self.parents[self.root(a)] = self.root(b)

    def refuse(self, value: Value | None) -> None:
        """A family stays as it is."""
        if value is not None and _is_sequence(value):
            self.refused.add(value)

    def graph(self, graph: Graph) -> None:
        """Looks at all nodes."""
        for node in graph.nodes:
            self.node(node)
            for inner in node.graphs.values():
                self.graph(inner)

    def node(self, node: Node) -> None:
        """Looks at a node."""
        look = None if node.domain else _LOOK.get(node.op)
        if look is not None:
            look(self, node)
            return
        for value in (*node.inputs, *node.outputs):
            self.refuse(value)

    def loop(self, node: Node) -> None:
        """A state is one sequence in all turns and behind them."""
        body = node.graphs["body"]
        for given, inside, made, after in zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], node.outputs):
            for one in (inside, made, after):
                self.join(given, one)

    def branch(self, node: Node) -> None:
        """What the branches make is one sequence."""
        for branch in node.graphs.values():
            for made, after in zip(branch.outputs, node.outputs):
                self.join(made, after)

    def hand_on(self, node: Node) -> None:
        """The same sequence."""
        self.join(node.inputs[0], node.outputs[0])

    def construct(self, node: Node) -> None:
        """A new sequence of some elements."""
        self.elements.setdefault(node.outputs[0], []).extend(v for v in node.inputs if v is not None)

    def insert(self, node: Node) -> None:
        """One more element, behind the others."""
        if len(node.inputs) != 2:
            self.refuse(node.outputs[0])
        self.join(node.inputs[0], node.outputs[0])
        self.elements.setdefault(node.outputs[0], []).extend(v for v in node.inputs[1:2] if v is not None)

    def read(self, node: Node) -> None:
        """A tensor made of a sequence."""

    def settled(self) -> dict[Value, TensorType]:
        """For families that become tensors what their elements are."""
        refused = {self.root(value) for value in self.refused}
        found: dict[Value, list[Value]] = {}
        for value, added in self.elements.items():
            found.setdefault(self.root(value), []).extend(added)
        kinds: dict[Value, TensorType] = {}
        for root, added in found.items():
            kind = added[0].type if added else None
            if root in refused or not isinstance(kind, TensorType) or not kind.is_static or kind.core is None:
                continue
            if all(same_type(kind, value.type) for value in added):
                kinds[root] = kind
        return kinds


_LOOK: dict[str, Callable[[_Families, Node], None]] = {
    "Loop": _Families.loop, "If": _Families.branch, "Identity": _Families.hand_on,
    "SequenceEmpty": _Families.construct, "SequenceConstruct": _Families.construct,
    "SequenceInsert": _Families.insert, "SequenceAt": _Families.read, "SequenceLength": _Families.read,
    "ConcatFromSequence": _Families.read,
}  # fmt: skip


def _is_sequence(value: Value) -> bool:
    return isinstance(value.type, SequenceType)


class _Stacked:
    """Writes the graphs again."""

    def __init__(self, families: _Families, kinds: dict[Value, TensorType]) -> None:
        self.families, self.kinds = families, kinds
        self.new: dict[Value, Value] = {}
        self.constants: dict[Value, Array] = {}
        self.count = 0

    def graph(self, graph: Graph) -> Graph:
        """A graph, with what is inside."""
        around, self.constants = self.constants, dict(graph.constants)
        inputs = [self.value(value) for value in graph.inputs]
        nodes = [made for node in graph.nodes for made in self.node(node)]
        outputs = [self.value(value) for value in graph.outputs]
        made = Graph(graph.name, inputs, outputs, nodes, self.constants)
        self.constants = around
        return made

    def value(self, value: Any) -> Any:
        """A value as it is now: a tensor of an open length where it was a sequence."""
        if value is not None and self.kind(value) is not None and value not in self.new:
            self.new[value] = Value(value.name)
        return self.new.get(value, value)

    def kind(self, value: Value | None) -> TensorType | None:
        """What the elements of a sequence are that becomes a tensor."""
        return None if value is None else self.kinds.get(self.families.root(value))

    def constant(self, array: Any, dtype: Any = np.int64) -> Value:
        """A constant of the graph that is written."""
        self.count += 1
        made = Value(f"stacked_{self.count}")
        self.constants[made] = np.array(array, dtype)
        return made

    def make(self, nodes: list[Node], op: str, inputs: Sequence[Value], **attributes: Any) -> Value:
        """A new node; what it makes."""
        self.count += 1
        made = Value(f"stacked_{self.count}")
        nodes.append(Node(op, inputs, [made], attributes))
        return made

    def node(self, node: Node) -> list[Node]:
        """What stands for a node."""
        inner = {key: self.graph(one) for key, one in node.graphs.items()}
        sequence = next((v for v in (*node.inputs, *node.outputs) if self.kind(v) is not None), None)
        inputs, outputs = [self.value(v) for v in node.inputs], [self.value(v) for v in node.outputs]
        kept = node.replace(inputs=inputs, outputs=outputs, attributes={**node.attributes, **inner})
        write = None if sequence is None or node.domain else _WRITE.get(node.op)
        if write is None:
            return [kept]
        nodes: list[Node] = []
        kind = self.kind(sequence)
        assert kind is not None
        op, given, attributes = write(self, kept, kind, nodes)
        return [*nodes, Node(op, given, outputs, attributes, node.name, node.origin)]

    def row(self, nodes: list[Node], value: Value) -> Value:
        """An element with the new axis."""
        return self.make(nodes, "Unsqueeze", [value, self.constant([0])])


Written = tuple[str, list[Value], dict[str, Any]]


def _empty(to: _Stacked, node: Node, kind: TensorType, nodes: list[Node]) -> Written:
    return "Identity", [to.constant(np.zeros((0, *kind.static)), kind.numpy)], {}


def _construct(to: _Stacked, node: Node, kind: TensorType, nodes: list[Node]) -> Written:
    return "Concat", [to.row(nodes, v) for v in node.inputs if v is not None], {"axis": 0}


def _insert(to: _Stacked, node: Node, kind: TensorType, nodes: list[Node]) -> Written:
    before, element = node.inputs[:2]
    assert before is not None and element is not None
    return "Concat", [before, to.row(nodes, element)], {"axis": 0}


def _at(to: _Stacked, node: Node, kind: TensorType, nodes: list[Node]) -> Written:
    sequence, position = node.inputs
    assert sequence is not None and position is not None
    return "Gather", [sequence, to.make(nodes, "Reshape", [position, to.constant([])])], {"axis": 0}


def _length(to: _Stacked, node: Node, kind: TensorType, nodes: list[Node]) -> Written:
    sequence = node.inputs[0]
    assert sequence is not None
    return "Gather", [to.make(nodes, "Shape", [sequence]), to.constant(0)], {"axis": 0}


def _concat(to: _Stacked, node: Node, kind: TensorType, nodes: list[Node]) -> Written:
    sequence = node.inputs[0]
    assert sequence is not None
    shape = list(kind.static)
    is_new = bool(node.attributes.get("new_axis", 0))
    axis = normal_axis(int(node.attributes["axis"]), len(shape) + is_new)
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
    if is_new:
        return "Transpose", [sequence], {"perm": order}
    rows = to.make(nodes, "Transpose", [sequence], perm=order)
    return "Reshape", [rows, to.constant([*shape[:axis], -1, *shape[axis + 1 :]])], {}


_WRITE: dict[str, Callable[[_Stacked, Node, TensorType, list[Node]], Written]] = {
    "SequenceEmpty": _empty, "SequenceConstruct": _construct, "SequenceInsert": _insert, "SequenceAt": _at,
    "SequenceLength": _length, "ConcatFromSequence": _concat,
}  # fmt: skip
