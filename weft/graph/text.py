"""Graphs as text: one line a node, read back by `parse_graph`.

    graph main(%x: float32[n, 4]) -> (%y) {
        const %w: float32[4] = [1.0, 2.0, 3.0, 4.0]
        const %table: int8[512, 64] = ...                    large: its array is in the table that goes with the text
        %h: float32[n, 4] = Mul(%x, %w) @"scale" from "model.onnx"
        %y: float32[n, 4] = If(%c, name="k") {
            then_branch: graph yes() -> (%t) {
                %t: float32[n, 4] = Relu(%h)
            }
        }
    }

An input left out is `_`; an operator of another domain is `domain::Op`; a type that is not known is not written. A name
that is not plain is in quotes: %"conv 1:0". Two values of one name are told apart by a number added to the second.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ParseError
from weft.expr.nodes import Expr, Var
from weft.expr.text import BUILTINS, format_expr, is_identifier, is_reserved
from weft.graph.ir import (
    NUMPY_TYPES,
    Array,
    Dim,
    Graph,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    all_graphs,
    dtype_name,
)
from weft.graph.shapes import tidy
from weft.loop.parser import parse_expr

SMALL = 16
"""Constants of at most so many elements are written out."""

_PLAIN = re.compile(r"[A-Za-z0-9_./-]+\Z")


# ---------------------------------------------------------------------------------------------------------- writing


def format_graph(graph: Graph) -> str:
    """A graph as text; arrays of more than a few elements are written as `...` (see `constant_table`)."""
    return "\n".join(_Writer(graph).graph(graph, ""))


def constant_table(graph: Graph) -> dict[str, Array]:
    """The arrays that `format_graph` does not write out, by the names it gives them."""
    writer = _Writer(graph)
    return {
        writer.names[value]: array
        for inner in all_graphs(graph)
        for value, array in inner.constants.items()
        if not _is_small(array)
    }


def format_type(type: Type | None) -> str:
    """A type as text."""
    return "?" if type is None else _Writer(None).type(type)


def _is_small(array: Array) -> bool:
    return array.size <= SMALL and array.dtype.kind != "c"


class _Writer:
    """Writes one graph: holds the names that its values and sizes have in the text."""

    def __init__(self, graph: Graph | None) -> None:
        self.names: dict[Value, str] = {}
        self.sizes: dict[Any, str] = {}
        self.taken: dict[str, int] = {}
        self.taken_sizes: set[str] = set()
        for inner in () if graph is None else all_graphs(graph):
            for value in (*inner.inputs, *inner.constants, *(o for n in inner.nodes for o in n.outputs)):
                self.name(value)

    def name(self, value: Value) -> str:
        found = self.names.get(value)
        if found is None:
            found = value.name
            while found in self.taken:
                self.taken[value.name] += 1
                found = f"{value.name}.{self.taken[value.name]}"
            self.taken[found] = 0
            self.names[value] = found
        return found

    def value(self, value: Value | None) -> str:
        if value is None:
            return "_"
        name = self.name(value)
        return f"%{name}" if _PLAIN.match(name) else f"%{json.dumps(name)}"

    def typed(self, value: Value) -> str:
        return self.value(value) if value.type is None else f"{self.value(value)}: {self.type(value.type)}"

    def type(self, type: Type) -> str:
        if isinstance(type, TensorType):
            if type.shape is None:
                return f"{type.dtype}[...]"
            return f"{type.dtype}[{', '.join(map(self.dim, type.shape))}]"
        return f"{'sequence' if isinstance(type, SequenceType) else 'optional'}({self.type(type.of)})"

    def dim(self, dim: Dim) -> str:
        return format_expr(dim, self.size) if isinstance(dim, Expr) else str(dim)

    def size(self, var: Any) -> str:
        found = self.sizes.get(var)
        if found is None:
            base = re.sub(r"\W", "_", str(var.name)) or "_"
            if not is_identifier(base) or is_reserved(base) or base in BUILTINS:
                base = f"size_{base}"
            found, count = base, 1
            while found in self.taken_sizes:
                found, count = f"{base}_{count}", count + 1
            self.taken_sizes.add(found)
            self.sizes[var] = found
        return found

    def graph(self, graph: Graph, indent: str) -> list[str]:
        inputs = ", ".join(map(self.typed, graph.inputs))
        outputs = ", ".join(map(self.value, graph.outputs))
        name = graph.name if _PLAIN.match(graph.name) else json.dumps(graph.name)
        lines = [f"graph {name}({inputs}) -> ({outputs}) {{"]
        for value, array in graph.constants.items():
            shown = format_array(array) if _is_small(array) else "..."
            kind = self.type(TensorType(dtype_name(array.dtype), array.shape))
            lines.append(f"{indent}    const {self.value(value)}: {kind} = {shown}")
        for node in graph.nodes:
            lines += self.node(node, indent + "    ")
        return [*lines, indent + "}"]

    def node(self, node: Node, indent: str) -> list[str]:
        arguments = [self.value(v) for v in node.inputs]
        plain = {key: value for key, value in node.attributes.items() if not isinstance(value, Graph)}
        arguments += [f"{key}={_attribute(value)}" for key, value in plain.items()]
        op = f"{node.domain}::{node.op}" if node.domain else node.op
        line = f"{indent}{', '.join(map(self.typed, node.outputs))} = {op}({', '.join(arguments)})"
        line += f" @{json.dumps(node.name)}" if node.name else ""
        line += f" from {json.dumps(node.origin)}" if node.origin else ""
        if not node.graphs:
            return [line]
        lines = [line + " {"]
        for key, inner in node.graphs.items():
            first, *rest = self.graph(inner, indent + "    ")
            lines += [f"{indent}    {key}: {first}", *rest]
        return [*lines, indent + "}"]


def _number(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    number = float(value)
    return repr(number) if math.isfinite(number) else "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


def format_array(array: Array) -> str:
    """The elements of an array as nested lists."""
    kind = dtype_name(array.dtype)

    def write(part: Any) -> str:
        if isinstance(part, np.ndarray) and part.ndim:
            return f"[{', '.join(write(p) for p in part)}]"
        one = part.item() if isinstance(part, np.ndarray) and kind == "string" else part
        if kind == "string":
            return json.dumps(str(one))
        if kind == "bool":
            return "true" if one else "false"
        return str(int(one)) if "int" in kind else _number(float(one))

    return write(array)


def _attribute(value: Any) -> str:
    if isinstance(value, np.ndarray):
        kind = f"{dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}]"
        return f"{kind} {format_array(value)}"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bytes):
        return json.dumps(value.decode("latin-1"))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_attribute, value))}]"
    if isinstance(value, (bool, int, float, np.generic)):
        return _number(value)
    return json.dumps(repr(value))


# ---------------------------------------------------------------------------------------------------------- reading


def parse_graph(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """The graph that a text describes; `constants` gives the arrays that are written as `...`, by name."""
    reader = _Reader(text, constants or {})
    graph = reader.graph({})
    reader.space()
    if reader.at != len(text):
        raise reader.error("the end of the text")
    return graph


_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_VALUE = re.compile(r"%(?:([A-Za-z0-9_./-]+)|(\"(?:[^\"\\]|\\.)*\"))")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
_NUMBER = re.compile(r"-?(?:inf|nan|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9_./-]+")
_OPERATOR = re.compile(r"(?:([A-Za-z0-9_.-]+)::)?([A-Za-z_][A-Za-z0-9_.]*)")
_DIMS = re.compile(r"[^\]]*")


class _Reader:
    """A cursor in the text. Values are known by name, those of outer graphs too."""

    def __init__(self, text: str, constants: Mapping[str, Array]) -> None:
        self.text = text
        self.at = 0
        self.constants = constants
        self.sizes: dict[str, Any] = {}

    def error(self, wanted: str) -> ParseError:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        shown = self.text[self.at : self.at + 20].split("\n")[0]
        return ParseError(f"line {line}, column {column}: expected {wanted}, found {shown!r}")

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def take(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        self.space()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.error(wanted)
        self.at = found.end()
        return found

    def has(self, literal: str) -> bool:
        """Takes the literal if it comes next."""
        self.space()
        if not self.text.startswith(literal, self.at):
            return False
        self.at += len(literal)
        return True

    def need(self, literal: str) -> None:
        if not self.has(literal):
            raise self.error(f"{literal!r}")

    def many(self, close: str, one: Callable[[], Any]) -> list[Any]:
        """Things between commas, up to the closing sign."""
        out: list[Any] = []
        while not self.has(close):
            if out:
                self.need(",")
            out.append(one())
        return out

    def string(self) -> str:
        return self.quoted(self.take(_STRING, "a string in quotes").group())

    def quoted(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError as error:  # a control character, an escape that JSON does not have
            raise self.error(f"a string of JSON before this ({error})") from None

    def name_of_value(self) -> str:
        found = self.take(_VALUE, "a value such as %x")
        return found.group(1) if found.group(1) is not None else self.quoted(found.group(2))

    def graph(self, outer: Mapping[str, Value]) -> Graph:
        self.need("graph")
        self.space()
        name = self.string() if self.text.startswith('"', self.at) else self.take(_NAME, "the graph's name").group()
        scope = dict(outer)
        self.need("(")
        inputs = self.many(")", lambda: self.define(scope))
        self.need("->")
        self.need("(")
        start = self.at
        self.many(")", self.name_of_value)  # read again below: outputs are named before they are made
        self.need("{")
        nodes: list[Node] = []
        constants: dict[Value, Array] = {}
        while not self.has("}"):
            if self.has("const"):
                value, array = self.constant(scope)
                constants[value] = array
            else:
                nodes.append(self.node(scope))
        end, self.at = self.at, start
        outputs = self.many(")", lambda: self.use(scope))
        self.at = end
        return Graph(name, inputs, outputs, nodes, constants)

    def define(self, scope: dict[str, Value]) -> Value:
        name = self.name_of_value()
        value = Value(name, self.type() if self.has(":") else None)
        scope[name] = value
        return value

    def use(self, scope: Mapping[str, Value]) -> Value:
        start = self.at
        found = scope.get(self.name_of_value())
        if found is None:
            self.at = start
            self.space()
            raise self.error("a value that is made before it is used")
        return found

    def constant(self, scope: dict[str, Value]) -> tuple[Value, Array]:
        value = self.define(scope)
        self.need("=")
        if self.has("..."):
            if value.name not in self.constants:
                raise self.error(f"the array of %{value.name} in the table of constants, after '...'")
            array = self.constants[value.name]
            kind = TensorType(dtype_name(array.dtype), array.shape)
            if value.type is not None and format_type(value.type) != format_type(kind):
                raise self.error(f"an array of {format_type(value.type)} for %{value.name}, not {format_type(kind)},")
            return value, array
        return value, self.array(value.tensor)

    def array(self, kind: TensorType) -> Array:
        made = np.array(self.elements(), dtype=object)
        if not kind.is_static:
            raise self.error(f"an array of known sizes before this, not {format_type(kind)}")
        if made.size != math.prod(kind.static):
            raise self.error(f"{math.prod(kind.static)} elements before this")
        if kind.dtype == "string":
            return made.reshape(kind.static)
        whole = "int" in kind.dtype or kind.dtype == "bool"
        try:
            return made.astype(object if whole else np.float64).astype(kind.numpy).reshape(kind.static)
        except (ValueError, TypeError, OverflowError) as error:  # a string, an infinity among integers, 300 in a byte
            raise self.error(f"elements of {kind.dtype} before this ({error})") from None

    def elements(self) -> Any:
        if self.has("["):
            return self.many("]", self.elements)
        return self.scalar()

    def scalar(self) -> Any:
        self.space()
        if self.text.startswith('"', self.at):
            return self.string()
        if self.has("true"):
            return True
        if self.has("false"):
            return False
        found = self.take(_NUMBER, "a number, a string, true or false").group()
        return int(found) if re.fullmatch(r"-?\d+", found) else float(found)

    def node(self, scope: dict[str, Value]) -> Node:
        made: list[tuple[str, Type | None]] = []
        while not self.has("="):
            if made:
                self.need(",")
            made.append((self.name_of_value(), self.type() if self.has(":") else None))
        found = self.take(_OPERATOR, "an operator")
        domain, op = found.group(1) or "", found.group(2)
        self.need("(")
        inputs: list[Value | None] = []
        attributes: dict[str, Any] = {}
        self.many(")", lambda: self.argument(scope, inputs, attributes))
        name = self.string() if self.has("@") else ""
        origin = self.string() if self.has("from") else ""
        if self.has("{"):
            while not self.has("}"):
                key = self.take(_WORD, "the name of a subgraph").group()
                self.need(":")
                attributes[key] = self.graph(scope)
        outputs = [Value(*one) for one in made]
        scope.update({value.name: value for value in outputs})
        return Node(op, inputs, outputs, attributes, name, origin, domain)

    def argument(self, scope: Mapping[str, Value], inputs: list[Value | None], attributes: dict[str, Any]) -> None:
        self.space()
        if self.text.startswith("%", self.at):
            inputs.append(self.use(scope))
            return
        if re.compile(r"_\s*[,)]").match(self.text, self.at):
            self.at += 1
            inputs.append(None)
            return
        key = self.take(_WORD, "an input or an attribute").group()
        self.need("=")
        attributes[key] = self.attribute()

    def attribute(self) -> Any:
        self.space()
        if self.has("["):
            return self.many("]", self.attribute)
        word = _WORD.match(self.text, self.at)
        if word and word.group() in NUMPY_TYPES:
            kind = self.type()
            if not isinstance(kind, TensorType):
                raise self.error("a tensor type")
            return self.array(kind)
        return self.scalar()

    def type(self) -> Type:
        word = self.take(_WORD, "a type").group()
        if word in ("sequence", "optional"):
            self.need("(")
            inner = self.type()
            self.need(")")
            return SequenceType(inner) if word == "sequence" else OptionalType(inner)
        if word not in NUMPY_TYPES:
            raise self.error(f"an element type instead of {word!r}, before this")
        self.need("[")
        text = self.take(_DIMS, "dimensions").group().strip()
        self.need("]")
        if text == "...":
            return TensorType(word, None)
        return TensorType(word, [self.dim(part) for part in _split(text)])

    def dim(self, text: str) -> Dim:
        for name in re.findall(r"[A-Za-z_]\w*", text):
            if not is_reserved(name) and name not in BUILTINS and name not in self.sizes:
                self.sizes[name] = Var(name)
        return tidy(parse_expr(text, self.sizes))


def _split(text: str) -> Sequence[str]:
    """The parts between the commas that are in no parentheses."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [p.strip() for p in (*parts, text[start:])] if text else []
