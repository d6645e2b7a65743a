"""What the importer keeps while it walks a model: names in scope, the graph under construction, types on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import FrontendError, WeftError
from weft.graph.ir import Array, Node, TensorType, Type, Value, dtype_name
from weft.graph.opspec import Infer, find_operator

MOST_NODES = 250_000
"""Nodes of a whole model, after its functions have been written out: a few lines of functions that call each other
twice would otherwise fill any memory."""


class TooMuch(FrontendError):
    """A limit that ends the import at once; other problems are collected."""


class Names:
    """Gives every value of a model a name of its own, the one from the file where it is free."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.counts: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """A name that nothing else has."""
        found = base
        while found in self.taken:
            self.counts[base] = self.counts.get(base, 0) + 1
            found = f"{base}_{self.counts[base]}"
        self.taken.add(found)
        return found


class Scope:
    """The names that nodes of one graph can read: its own, then those of the graphs around it.

    `results`: values that stand ready for names still to be defined, in the scope of a function that is written out.
    `absent`: parameters of such a function that the call leaves out.
    """

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.values: dict[str, Value] = {}
        self.results: dict[str, Value] = {}
        self.absent: set[str] = set()

    def find(self, name: str) -> Value | None:
        """The value of that name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return None

    def is_absent(self, name: str) -> bool:
        """Whether that name is a parameter that was left out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.absent:
                return True
            scope = scope.parent
        return False


class Body:
    """A graph under construction. Its types are found only when an adapter asks for one."""

    def __init__(self, parent: Body | None, reads: set[str]) -> None:
        self.parent = parent
        self.reads = reads
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self._types: dict[Value, Type] = {}
        self._typed = 0

    def constant(self, value: Value) -> Array | None:
        """The array of a constant here or in a graph around; None for other values."""
        body: Body | None = self
        while body is not None:
            if value in body.constants:
                return body.constants[value]
            body = body.parent
        return None

    def type_of(self, value: Value) -> Type | None:
        """The type of a value, from the nodes so far; None where it cannot be told."""
        if value.type is not None:
            return value.type
        body: Body | None = self
        while body is not None:
            body._catch_up()
            if value in body._types:
                return body._types[value]
            body = body.parent
        return None

    def _catch_up(self) -> None:
        while self._typed < len(self.nodes):
            node = self.nodes[self._typed]
            self._typed += 1
            self._types.update(zip(node.outputs, self._infer(node)))

    def _known(self, value: Value) -> Type | None:
        """The type of a value that nodes before the one being looked at have made; catching up would come back here."""
        if value.type is not None or value in self._types:
            return value.type or self._types[value]
        return None if self.parent is None else self.parent.type_of(value)

    def _infer(self, node: Node) -> Sequence[Type]:
        spec = find_operator(node.op, node.domain)
        types = [None if v is None else self._known(v) for v in node.inputs]
        if spec is None or any(v is not None and t is None for v, t in zip(node.inputs, types)):
            return ()
        values = [None if v is None else self.constant(v) for v in node.inputs]
        try:
            return spec.types(Infer(node, types, values))
        except WeftError:
            return ()  # what is wrong with the node is for the inference over the whole graph to say


class Draft:
    """A node between the file and the graph: adapters change it in place, and put nodes before and after it."""

    def __init__(
        self,
        op: str,
        domain: str,
        version: int,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        attributes: Mapping[str, Any],
        name: str,
        origin: str,
        body: Body,
        names: Names,
    ) -> None:
        self.op = op
        self.domain = domain
        self.version = version
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.attributes = dict(attributes)
        self.name = name
        self.origin = origin
        self.body = body
        self.names = names
        self.before: list[Node] = []
        self.after: list[Node] = []
        self.unread: set[Value] = set()

    def input(self, position: int) -> Value | None:
        """An input; None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def need(self, position: int) -> Value:
        """An input that must be there."""
        found = self.input(position)
        if found is None:
            raise self.error(f"input {position} is missing")
        return found

    def set_input(self, position: int, value: Value | None) -> None:
        """Sets an input, leaving out those between."""
        while len(self.inputs) <= position:
            self.inputs.append(None)
        self.inputs[position] = value

    def pop(self, name: str, default: Any = None) -> Any:
        """Takes an attribute away; the default where there is none."""
        return self.attributes.pop(name, default)

    def constant(self, array: Array, label: str) -> Value:
        """A new constant."""
        value = Value(self.names.fresh(self._label(label)))
        value.type = TensorType(dtype_name(array.dtype), array.shape)
        self.body.constants[value] = array
        return value

    def emit(self, op: str, inputs: Sequence[Value | None], label: str = "", **attributes: Any) -> Value:
        """A node before this one; returns its only output."""
        value = Value(self.names.fresh(self._label(label or op.lower())))
        self.before.append(self._node(op, inputs, [value], attributes))
        return value

    def follow(self, op: str, inputs: Sequence[Value | None], output: Value, **attributes: Any) -> None:
        """A node after this one that makes the given value."""
        self.after.append(self._node(op, inputs, [output], attributes))

    def new_value(self, label: str) -> Value:
        """A value that a node is going to make."""
        return Value(self.names.fresh(self._label(label)))

    def tensor_type(self, value: Value) -> TensorType | None:
        """The type of a value where it can be told before inference over the whole graph."""
        found = self.body.type_of(value)
        return found if isinstance(found, TensorType) else None

    def rank(self, value: Value) -> int | None:
        """The number of dimensions where it can be told."""
        found = self.tensor_type(value)
        return None if found is None or found.shape is None else len(found.shape)

    def known(self, value: Value | None) -> Array | None:
        """The array of an input that is a constant."""
        return None if value is None else self.body.constant(value)

    def error(self, message: str) -> FrontendError:
        """An error that names the node."""
        return FrontendError(f"{self.build().describe()}: {message}")

    def build(self) -> Node:
        """The node as it stands."""
        return self._node(self.op, self.inputs, self.outputs, self.attributes, self.name, self.domain)

    def nodes(self) -> list[Node]:
        """Everything this draft has become."""
        return [*self.before, self.build(), *self.after]

    def _label(self, label: str) -> str:
        return f"{self.name or (self.outputs[0].name if self.outputs else self.op)}.{label}"

    def _node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        attributes: Mapping[str, Any],
        name: str | None = None,
        domain: str = "",
    ) -> Node:
        own = self._label(op.lower()) if name is None else name
        return Node(op, inputs, outputs, attributes, own, self.origin, domain)
