"""Graph IR: a model as typed dataflow.

    Graph := name, inputs: Value*, outputs: Value*, nodes: Node* (each after what it reads), constants: {Value: array}
    Node  := op(inputs: (Value | None)*, attributes) -> outputs: Value*      attributes may hold Graphs
    Value := name : Type
    Type  := TensorType(dtype, shape) | SequenceType(of) | OptionalType(of)
    Dim   := int | Expr (index arithmetic over named sizes)

Operators and their attributes follow the newest ONNX operator set: importers bring every model, whatever its framework
and version, to that one form. A subgraph sees the values of the graphs around it.

Values and nodes compare by identity. A pass never changes a Graph that it was given: it builds another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np

from weft.core.array_types import NARROW, PLAIN, ArrayType, element_name, narrow_types, numpy_type
from weft.core.dtypes import DType, dtype
from weft.core.errors import WeftError
from weft.core.html import folded, table, tag
from weft.expr.nodes import Expr, Var
from weft.expr.structural import structural_equal

Dim = Union[int, Expr]
Array = np.ndarray[Any, Any]


class GraphError(WeftError, ValueError):
    """A graph that breaks a rule; names the node, its operator and its origin."""


NUMPY_TYPES: dict[str, Any] = {name: numpy_type(name) for name in (*PLAIN, *narrow_types(), "string")}
"""Every element type a graph can hold, by name, and the numpy type of its arrays (narrow types one a byte)."""


def dtype_name(array_type: Any) -> str:
    """The element type that a numpy dtype stands for."""
    found = element_name(array_type)
    if found is None:
        raise GraphError(f"arrays of {np.dtype(array_type)} have no element type in a graph")
    return found


class TensorType(ArrayType):
    """An element type and a shape; a shape of None means that not even the rank is known."""

    __slots__ = ()
    shape: tuple[Dim, ...] | None

    def __init__(self, dtype: str, shape: Sequence[Dim] | None) -> None:
        if dtype not in NUMPY_TYPES:
            if dtype in NARROW:
                numpy_type(dtype)  # says what is not installed
            raise GraphError(f"unknown element type {dtype!r}; known are {', '.join(NUMPY_TYPES)}")
        super().__init__(dtype, shape)

    @property
    def rank(self) -> int:
        """The number of dimensions; an error where it is not known."""
        return len(self.dims)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The shape; an error where not even the rank is known."""
        if self.shape is None:
            raise GraphError("the rank of a tensor must be known here")
        return self.shape

    @property
    def static(self) -> tuple[int, ...]:
        """The shape as numbers; an error where it is not that."""
        found = tuple([d for d in self.shape or () if isinstance(d, int)])
        if self.shape is None or len(found) != len(self.shape):
            raise GraphError(f"a static shape is needed here, not {self!r}")
        return found

    @property
    def numpy(self) -> Any:
        """The numpy type of its arrays."""
        return NUMPY_TYPES[self.dtype]

    @property
    def core(self) -> DType | None:
        """The type that kernels know it by; None where they do not (strings, complex numbers, packed integers)."""
        return _core_type(self.dtype)

    def __repr__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join(map(repr, self.shape))}]"


def _core_type(name: str) -> DType | None:
    try:
        found = dtype(name)
    except WeftError:
        return None
    return None if found.is_packed else found


class SequenceType:
    """A list of values of one type."""

    __slots__ = ("of",)

    def __init__(self, of: Type) -> None:
        self.of = of

    def __repr__(self) -> str:
        return f"sequence({self.of!r})"


class OptionalType:
    """A value that may be absent."""

    __slots__ = ("of",)

    def __init__(self, of: Type) -> None:
        self.of = of

    def __repr__(self) -> str:
        return f"optional({self.of!r})"


Type = Union[TensorType, SequenceType, OptionalType]


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are surely equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return structural_equal(a, b)


class Value:
    """One edge of the dataflow. `type` is None until inference has found it."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: Type | None = None) -> None:
        self.name = name
        self.type = type

    @property
    def tensor(self) -> TensorType:
        """Its type as a tensor; an error where it is something else or not known."""
        if not isinstance(self.type, TensorType):
            raise GraphError(f"the value {self.name} must be a tensor of known type here, not {self.type!r}")
        return self.type

    @property
    def is_static(self) -> bool:
        """Whether it is a tensor of known sizes."""
        return isinstance(self.type, TensorType) and self.type.is_static

    def __repr__(self) -> str:
        return f"%{self.name}"


class Node:
    """One use of an operator. An input that is left out is None. `domain` "" is ai.onnx."""

    __slots__ = ("attributes", "domain", "graphs", "inputs", "name", "op", "origin", "outputs", "typed")

    def __init__(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        name: str = "",
        origin: str = "",
        domain: str = "",
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.attributes: dict[str, Any] = dict(attributes or {})
        self.name = name
        self.origin = origin
        self.domain = domain
        self.graphs: dict[str, Graph] = {key: one for key, one in self.attributes.items() if isinstance(one, Graph)}
        """The attributes that are graphs."""
        self.typed: tuple[Array | None, ...] | None = None
        """The small values of its inputs that the types of its outputs were found from, where they were found."""

    def replace(
        self,
        *,
        op: str | None = None,
        inputs: Sequence[Value | None] | None = None,
        outputs: Sequence[Value] | None = None,
        attributes: Mapping[str, Any] | None = None,
        name: str | None = None,
        domain: str | None = None,
    ) -> Node:
        """A node like this one but for the given fields."""
        return Node(
            self.op if op is None else op,
            self.inputs if inputs is None else inputs,
            self.outputs if outputs is None else outputs,
            self.attributes if attributes is None else attributes,
            self.name if name is None else name,
            self.origin,
            self.domain if domain is None else domain,
        )

    def describe(self) -> str:
        """How errors speak of it: operator, name and where it came from."""
        label = f"{self.domain}.{self.op}" if self.domain else self.op
        parts = [
            f"node {self.name!r}"
            if self.name
            else f"a node that makes {self.outputs[0].name!r}"
            if self.outputs
            else "a node"
        ]
        return f"{parts[0]} ({label}{', from ' + self.origin if self.origin else ''})"

    def __repr__(self) -> str:
        outs = ", ".join(map(repr, self.outputs))
        return f"{outs} = {self.op}({', '.join('None' if v is None else repr(v) for v in self.inputs)})"


class Graph:
    """A whole model, or the body of a control-flow operator."""

    __slots__ = ("constants", "inputs", "known", "name", "nodes", "outputs")

    def __init__(
        self,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        nodes: Sequence[Node],
        constants: Mapping[Value, Array] | None = None,
    ) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.nodes = tuple(nodes)
        self.constants: Mapping[Value, Array] = dict(constants or {})
        self.known: dict[Value, Array] | None = None
        """What inference knows of its values; None where types were not inferred."""

    def replace(self, **changes: Any) -> Graph:
        """A graph like this one but for the given fields."""
        fields = {key: getattr(self, key) for key in ("name", "inputs", "outputs", "nodes", "constants")}
        fields.update(changes)
        return Graph(**fields)

    def producers(self) -> dict[Value, Node]:
        """Which node makes a value."""
        return {out: node for node in self.nodes for out in node.outputs}

    def consumers(self) -> dict[Value, list[Node]]:
        """Which nodes read a value: directly, or inside one of their subgraphs."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(reads(node)):
                found.setdefault(value, []).append(node)
        return found

    @property
    def symbols(self) -> dict[str, Var]:
        """The named sizes in the types of its inputs."""
        found: dict[str, Var] = {}
        for value in self.inputs:
            if isinstance(value.type, TensorType):
                for dim in value.type.shape or ():
                    if isinstance(dim, Var):
                        found[dim.name] = dim
        return found

    def __repr__(self) -> str:
        from weft.graph.text import format_graph

        return format_graph(self)

    def _repr_html_(self) -> str:
        ends = [("input", v.name, v.type) for v in self.inputs] + [("output", v.name, v.type) for v in self.outputs]
        counts = Counter(node.op for node in self.nodes).most_common()
        nodes = [
            (node.op, node.name, ", ".join("" if v is None else v.name for v in node.inputs),
             ", ".join(f"{v.name}: {v.type!r}" if v.type else v.name for v in node.outputs))
            for node in self.nodes
        ]  # fmt: skip
        return tag(
            "div",
            tag("b", f"Graph {self.name}"),
            f": {len(self.nodes)} nodes, {len(self.constants)} constants",
            table(["", "name", "type"], ends),
            folded("operators", table(["operator", "nodes"], counts)),
            folded("nodes", table(["operator", "name", "reads", "makes"], nodes)),
        )


def reads(node: Node) -> Iterator[Value]:
    """The values that a node reads, those that its subgraphs take from outside included."""
    for value in node.inputs:
        if value is not None:
            yield value
    for graph in node.graphs.values():
        yield from free_values(graph)


def free_values(graph: Graph) -> Iterator[Value]:
    """The values that a subgraph takes from the graphs around it."""
    own: set[Value] = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        for value in reads(node):
            if value not in own:
                yield value
        own.update(node.outputs)
    for value in graph.outputs:
        if value not in own:
            yield value


def all_graphs(graph: Graph) -> Iterable[Graph]:
    """A graph and every graph inside it."""
    yield graph
    for node in graph.nodes:
        for inner in node.graphs.values():
            yield from all_graphs(inner)
