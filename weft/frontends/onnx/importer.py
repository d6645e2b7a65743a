"""ModelProto to Graph: scopes, subgraphs, functions written out, older operators adapted, all gaps named at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import weft.ops  # noqa: F401  (fills the table of operators)
from weft.core.errors import FrontendError, WeftError
from weft.frontends.onnx import versions
from weft.frontends.onnx.adapters import adapt
from weft.frontends.onnx.blocked import DOMAIN as BLOCKED
from weft.frontends.onnx.blocked import OPERATORS as BLOCKED_OPERATORS
from weft.frontends.onnx.blocked import adapt_blocked, block_size
from weft.frontends.onnx.order import describe, in_order, names_read
from weft.frontends.onnx.scope import MOST_NODES, Body, Draft, Names, Scope, TooMuch
from weft.frontends.onnx.source import Source, open_source
from weft.frontends.onnx.tensors import TensorReader, text
from weft.frontends.onnx.types import DEEPEST, Symbols, read_type
from weft.graph.ir import Array, Graph, Node, TensorType, Value, dtype_name
from weft.graph.opspec import MOST_OUTPUTS

MOST_SHOWN = 50
"""How many problems a message lists."""

MOST_PROBLEMS = 10_000
"""How many are looked for."""

FunctionKey = tuple[str, str, str]


def load(model: Any, folder: str | os.PathLike[str] | None = None) -> Graph:
    """Imports an ONNX model: a path, bytes, an onnx.ModelProto, or a file open for reading bytes.

    External data is read from the folder of the file, or from `folder`. Raises FrontendError for everything that is
    wrong with the model.
    """
    try:
        return _Importer(open_source(model, folder)).run()
    except FrontendError:
        raise
    except (WeftError, ArithmeticError, AttributeError, LookupError, MemoryError) as error:
        raise FrontendError(f"the model cannot be imported: {error}") from error
    except (OSError, RecursionError, TypeError, ValueError) as error:
        raise FrontendError(f"the model is damaged ({type(error).__name__}: {error})") from error


class _Frame:
    """What a list of nodes stands in: operator sets, the attributes of the function call, and how deep it is."""

    __slots__ = ("attributes", "calls", "depth", "opsets", "path")

    def __init__(
        self,
        opsets: Mapping[str, int],
        attributes: Mapping[str, Any] | None = None,
        path: str = "",
        calls: tuple[FunctionKey, ...] = (),
        depth: int = 0,
    ) -> None:
        self.opsets = opsets
        self.attributes = attributes
        self.path = path
        self.calls = calls
        self.depth = depth

    def deeper(self) -> _Frame:
        return _Frame(self.opsets, self.attributes, self.path, self.calls, self.depth + 1)


class _Importer:
    """Imports one model. Problems are collected, and raised together at the end."""

    def __init__(self, source: Source) -> None:
        self.model = source.model
        self.label = source.label
        self.tensors = TensorReader(source.folder, source.file)
        self.symbols = Symbols()
        self.names = Names()
        self.problems: list[str] = []
        self.functions: dict[FunctionKey, Any] = {}
        self.node_count = 0
        self.block = 0

    def run(self) -> Graph:
        for function in self.model.functions:
            key = (versions.domain_name(function.domain), function.name, function.overload)
            if key in self.functions:
                self.problems.append(f"the function {versions.label(*key[:2])} is defined twice")
            self.functions[key] = function
        frame = _Frame(versions.read_opsets(self.model.opset_import))
        proto = self.model.graph
        for name in _defined_names(proto):
            self.names.taken.add(name)
        try:
            self.block = block_size(proto) if BLOCKED in frame.opsets else 0
            graph = self.graph(proto, None, None, frame)
        except TooMuch as error:
            raise FrontendError(f"{self.label}: {error}") from None
        except FrontendError as error:
            self.problems.append(str(error))
        if self.problems:
            self._fail()
        return graph

    def _note(self, error: FrontendError) -> None:
        self.problems.append(str(error))
        if len(self.problems) > MOST_PROBLEMS:
            raise TooMuch(f"the model has more than {MOST_PROBLEMS} problems; the first: {self.problems[0]}")

    def _fail(self) -> None:
        found = list(dict.fromkeys(self.problems))
        if len(found) == 1:
            raise FrontendError(f"{self.label}: {found[0]}")
        lines = [f"{self.label}: the model cannot be imported; {len(found)} problems:"]
        lines += [f"  {line}" for line in found[:MOST_SHOWN]]
        if len(found) > MOST_SHOWN:
            lines.append(f"  … and {len(found) - MOST_SHOWN} more")
        raise FrontendError("\n".join(lines))

    # graphs

    def graph(self, proto: Any, outer: Scope | None, around: Body | None, frame: _Frame) -> Graph:
        """A graph of the file, or a subgraph in its scope."""
        if frame.depth > DEEPEST:
            raise FrontendError(f"the graph {proto.name!r} is nested more than {DEEPEST} levels deep")
        scope, is_main = Scope(outer), outer is None
        reads = [names_read(node) for node in proto.node]
        body = Body(around, set().union(*reads) | {value.name for value in proto.output})
        self._initialisers(proto, scope, body, is_main)
        inputs = self._inputs(proto, scope, is_main)
        self._nodes(proto.node, reads, scope, body, frame, is_main)
        outputs = [self._output(value.name, scope, proto.name) for value in proto.output]
        return Graph(proto.name or "main", inputs, outputs, body.nodes, body.constants)

    def _initialisers(self, proto: Any, scope: Scope, body: Body, is_main: bool) -> None:
        dense = [(tensor.name, tensor, self.tensors.dense) for tensor in proto.initializer]
        sparse = [(tensor.values.name, tensor, self.tensors.sparse) for tensor in proto.sparse_initializer]
        for name, tensor, read in (*dense, *sparse):
            if name in scope.values or not name:
                self.problems.append(
                    f"two initialisers have the name {name!r}" if name else "an initialiser has no name"
                )
                continue
            value = self._define(name, scope, is_main)
            try:
                self._constant(value, read(tensor, f"initialiser {name!r}"), body)
            except FrontendError as error:
                self.problems.append(str(error))

    def _inputs(self, proto: Any, scope: Scope, is_main: bool) -> list[Value]:
        """The inputs. One that shadows an initialiser of the model is a constant; a subgraph must have none such."""
        inputs: list[Value] = []
        for info in proto.input:
            found = scope.values.get(info.name)
            if found is not None and is_main and found not in inputs:
                continue
            if found is not None or not info.name:
                self.problems.append(
                    f"the graph {proto.name!r} has two inputs {info.name!r}, or an initialiser beside it"
                )
                continue
            value = self._define(info.name, scope, is_main)
            try:
                kind = read_type(info.type, self.symbols, f"input {info.name!r}")
            except FrontendError as error:
                self.problems.append(str(error))
                kind = None
            # What exporters write about the shapes inside loops is often wrong: there only the element type is taken.
            value.type = TensorType(kind.dtype, None) if isinstance(kind, TensorType) and not is_main else kind
            if value.type is None and is_main:
                self.problems.append(f"the type of the input {info.name!r} is missing")
            inputs.append(value)
        return inputs

    def _nodes(
        self, protos: Sequence[Any], reads: Sequence[set[str]], scope: Scope, body: Body, frame: _Frame, keep: bool
    ) -> None:
        """Imports nodes into a body. `keep`: values have the names of the file, which are known to be free."""
        self.node_count += len(protos)
        if self.node_count > MOST_NODES:
            raise TooMuch(f"the model has more than {MOST_NODES} nodes once its functions are written out")
        made: set[str] = set()
        for node in protos:
            for name in node.output:
                if name and (name in made or name in scope.values):
                    raise FrontendError(f"{describe(node)} makes {name!r}, which something else makes already")
                made.add(name)
        for position in in_order(protos, reads):
            node = protos[position]
            try:
                self._node(node, scope, body, frame, keep)
            except TooMuch:
                raise
            except FrontendError as error:
                self._note(error)
            for name in node.output:  # what a node that failed would have made, so that its readers are not blamed
                if name and name not in scope.values:
                    self._define(name, scope, keep)

    def _output(self, name: str, scope: Scope, graph: str) -> Value:
        found = scope.find(name)
        if found is None:
            self.problems.append(f"the output {name!r} of the graph {graph!r} is made by nothing")
        return found or Value(name)

    # nodes

    def _node(self, proto: Any, scope: Scope, body: Body, frame: _Frame, keep: bool) -> None:
        domain = versions.domain_name(proto.domain)
        key = (domain, proto.op_type, proto.overload)
        where = self._where(proto, frame)
        inputs = [self._read(name, scope, where) for name in proto.input]
        attributes = self._attributes(proto, scope, body, frame, where)
        if key in self.functions:
            self._call(key, proto, inputs, attributes, scope, body, frame, keep)
            return
        adapted = domain == BLOCKED and proto.op_type in BLOCKED_OPERATORS
        version = versions.check(proto.op_type, domain, frame.opsets, where, adapted)
        while inputs and inputs[-1] is None:
            inputs.pop()
        outputs = self._outputs(proto, scope, keep)
        versions.check_form(proto.op_type, domain, version, inputs, len(outputs), attributes, where)
        if domain == "" and proto.op_type == "Constant":
            self._constant_node(outputs[0], attributes, body, where)
            return
        name = f"{frame.path}{proto.name}" if proto.name else ""
        draft = Draft(
            proto.op_type, domain, version, inputs, outputs, attributes, name, self._origin(frame), body, self.names
        )
        draft.unread = {value for name, value in zip(proto.output, outputs) if name not in body.reads}
        if domain == BLOCKED:
            adapt_blocked(draft, self.block)
        else:
            adapt(draft)
        for node in draft.nodes():
            versions.check_known(node, where)
            body.nodes.append(node)

    def _where(self, proto: Any, frame: _Frame) -> str:
        return f"{describe(proto)} in {frame.path[:-1]}" if frame.path else describe(proto)

    def _origin(self, frame: _Frame) -> str:
        return f"{self.label}:{frame.path[:-1]}" if frame.path else self.label

    def _read(self, name: str, scope: Scope, where: str) -> Value | None:
        if not name:
            return None
        found = scope.find(name)
        if found is None and scope.is_absent(name):
            return None
        if found is None:
            self.problems.append(f"{where} reads {name!r}, which nothing makes: an initialiser or input is missing")
            found = scope.values[name] = Value(self.names.fresh(name))
        return found

    def _define(self, name: str, scope: Scope, keep: bool) -> Value:
        value = scope.results.pop(name, None) or Value(name if keep else self.names.fresh(name))
        scope.values[name] = value
        return value

    def _outputs(self, proto: Any, scope: Scope, keep: bool) -> list[Value]:
        """The outputs; one in the middle that is left out gets a name, trailing ones fall away."""
        names = list(proto.output)
        while names and not names[-1]:
            names.pop()
        if not names:
            raise FrontendError(f"{describe(proto)} has no outputs")
        if len(names) > MOST_OUTPUTS:
            raise FrontendError(f"{describe(proto)} has {len(names)} outputs; {MOST_OUTPUTS} are the most")
        return [self._define(n, scope, keep) if n else Value(self.names.fresh("unused")) for n in names]

    def _constant(self, value: Value, array: Array, body: Body) -> None:
        value.type = TensorType(dtype_name(array.dtype), array.shape)
        body.constants[value] = array

    def _constant_node(self, output: Value, attributes: Mapping[str, Any], body: Body, where: str) -> None:
        given = {key: value for key, value in attributes.items() if key.removeprefix("sparse_").startswith("value")}
        if len(given) != 1:
            raise FrontendError(f"{where}: a Constant has one value, not {len(given)}")
        ((key, value),) = given.items()
        kinds = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
        array = np.asarray(value, kinds.get(key, object if "string" in key else None))
        self._constant(output, array, body)

    # attributes

    def _attributes(self, proto: Any, scope: Scope, body: Body, frame: _Frame, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute in proto.attribute:
            if attribute.name in found:
                raise FrontendError(f"{where}: the attribute {attribute.name!r} is given twice")
            if attribute.ref_attr_name:
                if frame.attributes is None:
                    raise FrontendError(
                        f"{where}: refers to the attribute {attribute.ref_attr_name!r} outside a function"
                    )
                if attribute.ref_attr_name in frame.attributes:
                    found[attribute.name] = frame.attributes[attribute.ref_attr_name]
                continue
            found[attribute.name] = self._attribute(attribute, scope, body, frame, where)
        return found

    def _attribute(self, attribute: Any, scope: Scope, body: Body, frame: _Frame, where: str) -> Any:
        """An attribute as plain Python."""
        where = f"{where}: attribute {attribute.name!r}"
        kind = versions.attribute_kind(attribute)
        if kind == "FLOAT":
            return float(attribute.f)
        if kind == "INT":
            return int(attribute.i)
        if kind == "STRING":
            return text(attribute.s, where)
        if kind == "FLOATS":
            return [float(x) for x in attribute.floats]
        if kind == "INTS":
            return [int(x) for x in attribute.ints]
        if kind == "STRINGS":
            return [text(x, where) for x in attribute.strings]
        if kind == "TENSOR":
            return self.tensors.dense(attribute.t, where)
        if kind == "TENSORS":
            return [self.tensors.dense(t, where) for t in attribute.tensors]
        if kind == "SPARSE_TENSOR":
            return self.tensors.sparse(attribute.sparse_tensor, where)
        if kind == "GRAPH":
            return self.graph(attribute.g, scope, body, frame.deeper())
        if kind == "GRAPHS":
            return [self.graph(g, scope, body, frame.deeper()) for g in attribute.graphs]
        if kind == "TYPE_PROTO":
            return read_type(attribute.tp, self.symbols, where)
        raise FrontendError(f"{where}: attributes of the kind {kind} are not supported")

    # functions

    def _call(
        self,
        key: FunctionKey,
        proto: Any,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
        scope: Scope,
        body: Body,
        frame: _Frame,
        keep: bool,
    ) -> None:
        """Writes a function out where it is called."""
        function, where = self.functions[key], self._where(proto, frame)
        if key in frame.calls:
            raise FrontendError(f"{where}: the function {versions.label(*key[:2])} calls itself")
        if frame.depth >= DEEPEST:
            raise FrontendError(f"{where}: function calls are nested more than {DEEPEST} levels deep")
        if len(inputs) > len(function.input) or len(proto.output) > len(function.output):
            raise FrontendError(f"{where}: more inputs or outputs than the function {key[1]} has")
        path = f"{frame.path}{proto.name or key[1]}/"
        opsets = {**frame.opsets, **versions.read_opsets(function.opset_import)}
        bound = {a.name: self._attribute(a, scope, body, frame, where) for a in function.attribute_proto}
        bound.update(attributes)
        inner = _Frame(opsets, bound, path, (*frame.calls, key), frame.depth + 1)
        own = Scope()
        for position, name in enumerate(function.input):
            value = inputs[position] if position < len(inputs) else None
            if value is None:
                own.absent.add(name)
            else:
                own.values[name] = value
        results = [(i, self._define(o, scope, keep)) for i, o in zip(function.output, proto.output) if o]
        own.results = {name: value for name, value in results if name not in own.values}
        self._function_nodes(function, own, body, inner)
        for name, value in results:
            found = own.find(name)
            if found is None:
                raise FrontendError(f"{where}: the function makes no {name!r}")
            if found is not value:  # a parameter handed through, or one result under two names
                body.nodes.append(Node("Identity", [found], [value], {}, "", self._origin(frame)))

    def _function_nodes(self, function: Any, scope: Scope, body: Body, frame: _Frame) -> None:
        reads = [names_read(node) for node in function.node]
        outer_reads, body.reads = body.reads, set().union(*reads) | set(function.output)
        try:
            self._nodes(function.node, reads, scope, body, frame, False)
        finally:
            body.reads = outer_reads


def _defined_names(proto: Any) -> list[str]:
    """Every name that the main graph itself defines or gives out."""
    names = [value.name for value in (*proto.input, *proto.output)]
    names += [tensor.name for tensor in proto.initializer]
    names += [tensor.values.name for tensor in proto.sparse_initializer]
    for node in proto.node:
        names.extend(node.output)
    return names
