"""A TFLite model to a Graph: one converter for each operator, all problems collected and raised together.

    CONV_2D int8 (scale, zero)   ->   QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), bias))

Images lie channels last there; convolutions and pooling get transposes around them, which the passes cancel. Variables
(READ_VARIABLE, ASSIGN_VARIABLE) become inputs and outputs that a module keeps between its calls.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, FrontendError, WeftError
from weft.frontends.calls import Imported
from weft.frontends.emit import NUMBERS, Emitter, Unsupported
from weft.frontends.problems import Problems, converter_failed
from weft.frontends.tflite import arithmetic, layers, movement  # noqa: F401  (converters)
from weft.frontends.tflite.flatbuffer import Damaged
from weft.frontends.tflite.schema import Operator, Subgraph, Tensor, read
from weft.frontends.tflite.table import CONVERTERS, MOVES
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import NUMPY_TYPES, Array, Graph, Node, TensorType, Value
from weft.graph.opspec import find_operator

MOST_FOLDED = 4096
"""What follows from constants alone is computed at once up to so many elements; the passes fold the rest."""


@dataclass
class Calls:
    """How a model is called: arrays by place or name; variables are kept (see `weft.compiler.structured`)."""

    names: list[str]
    results: int
    states: dict[str, Array] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether a call is that of any graph."""
        return not self.states and self.results == 1

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """The inputs of the graph."""
        given = dict(zip(self.names, args)) | dict(kwargs)
        if len(args) + len(kwargs) != len(self.names) or set(given) != set(self.names):
            return None
        return [given[name] for name in self.names] + list(self.states.values())

    def check(self, given: Sequence[Any]) -> None:
        """Sizes are fixed."""

    def unflatten(self, made: Sequence[Any]) -> Any:
        """One result, or all of them."""
        return made[0] if self.results == 1 else tuple(made[: self.results])

    def write(self, made: Sequence[Any], given: Sequence[Any]) -> None:
        """Keeps the variables."""
        for name, array in zip(self.states, made[self.results :]):
            self.states[name] = np.array(array)

    def describe(self) -> str:
        """The names of the arguments."""
        return ", ".join(self.names)

    def as_array(self, given: Any) -> Any:
        """An input, as it is."""
        return given

    as_native = as_array

    def is_native(self, given: Any) -> bool:
        """TFLite has no arrays of its own."""
        return False


def load(model: Any, shapes: Mapping[str, Sequence[int]] | None = None) -> Imported:
    """Imports the path of a .tflite file, or its bytes, for these shapes of inputs (those of the file otherwise)."""
    label = "model"
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise FrontendError(f"there is no file {path}")
        label, model = path.stem, path.read_bytes()
    if not isinstance(model, (bytes, bytearray, memoryview)):
        raise ArgumentError(f"a TFLite model is a path or bytes, not a {type(model).__name__}")
    try:
        subgraphs = read(memoryview(model))
    except Damaged as error:
        raise FrontendError(f"{label} is no whole TFLite model: {error}") from error
    return _Importer(label, subgraphs).run(shapes or {})


class TfliteEmitter(Emitter):
    """Collects the nodes of a graph; what follows from small constants is computed at once."""

    run_graph: Any
    """Writes a subgraph of the model as a body, or where it stands (the importer's)."""

    def several(self, outputs: int, op: str, *operands: Any, **attributes: Any) -> list[Value]:
        """A node, or the constants that it makes."""
        made = super().several(outputs, op, *operands, **attributes)
        node = self.nodes[-1]
        arrays = [None if one is None else self.constants.get(one) for one in node.inputs]
        small = all(value.tensor.is_static and np.prod(value.tensor.static) <= MOST_FOLDED for value in made)
        known = all(one is None or array is not None for one, array in zip(node.inputs, arrays))
        spec = find_operator(op)
        if not small or not known or node.graphs or spec is None or not node.inputs or op == "DequantizeLinear":
            return made  # (weights stay whole numbers, for integer products)
        if any(array is not None and array.size > MOST_FOLDED for array in arrays):
            return made
        self.nodes.pop()
        return [self.constant(one) for one in spec.run(node, arrays)[:outputs]]

    def ints(self, value: Value) -> list[int]:
        """The whole numbers of an operand that must be known now."""
        found = self.constants.get(value)
        if found is None:
            raise Unsupported("sizes, axes or places that only a call tells")
        return [int(one) for one in np.asarray(found).reshape(-1)]


class _Importer:
    """Imports one model."""

    def __init__(self, label: str, subgraphs: Sequence[Subgraph]) -> None:
        self.c = TfliteEmitter()
        self.c.run_graph = self.body
        self.label, self.subgraphs = label, subgraphs
        self.problems = Problems(label)
        self.values: dict[Tensor, Value] = {}
        self.failed: set[Value] = set()
        self.variables: dict[str, Value] = {}
        """The value that each variable has now, by name."""
        self.handles: dict[Tensor, str] = {}
        self.first: dict[str, Array] = {}
        self.states: dict[str, Value] = {}

    def run(self, shapes: Mapping[str, Sequence[int]]) -> Imported:
        main = self.subgraphs[0]
        names = [_name(tensor.name) or f"input_{at}" for at, tensor in enumerate(main.inputs)]
        unknown = [name for name in shapes if name not in names]
        if unknown:
            raise ArgumentError(f"shapes: the model has the inputs {', '.join(names)}, not {', '.join(unknown)}")
        inputs = []
        for tensor, name in zip(main.inputs, names):
            if tensor.dtype not in NUMPY_TYPES or tensor.dtype in ("string", "complex64", "complex128"):
                raise FrontendError(f"{self.label}: the input {tensor.name!r} is of {tensor.dtype}")
            shape = tuple(shapes.get(name, tensor.shape))
            allowed = tensor.signature or tensor.shape
            if len(shape) != len(allowed) or any(want not in (-1, size) for size, want in zip(shape, allowed)):
                raise ArgumentError(f"shapes: the input {name!r} is {list(allowed)}, and cannot be {list(shape)}")
            value = Value(self.c.fresh(name), TensorType(tensor.dtype, shape))
            self.values[tensor] = value
            inputs.append(value)
        self._operators(main)
        opened = [name for tensor, name in zip(main.inputs, names) if -1 in tensor.signature and name not in shapes]
        if opened and self.problems.lines:
            self.problems.lines.append(
                f"sizes of {', '.join(opened)} are open: shapes={{{opened[0]!r}: (…)}} gives them"
            )
        self.problems.raise_any()
        outputs = [self._output(self._value(tensor), tensor.name) for tensor in main.outputs]
        kept = [self._output(self.variables[name], name) for name in self.states]
        graph = Graph(self.label, [*inputs, *self.states.values()], [*outputs, *kept], self.c.nodes, self.c.constants)
        states = {value.name: self.first[name] for name, value in self.states.items()}
        return Imported(graph, Calls([value.name for value in inputs], len(outputs), states))

    def _output(self, value: Value, name: str) -> Value:
        own = Value(self.c.fresh(_name(name) or "output"), value.type)
        self.c.nodes.append(Node("Identity", [value], [own], name=self.c.fresh("output")))
        return own

    def _operators(self, subgraph: Subgraph) -> None:
        for operator in subgraph.operators:
            self.c.label = operator.name.lower().replace(" ", "_")
            self.c.origin = operator.outputs[0].name if operator.outputs else ""
            try:
                self._operator(operator)
            except WeftError as error:
                if isinstance(error, _Unknown):
                    self.problems.is_unknown(operator.name, self.c.origin)
                else:
                    said = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
                    self.problems.add(operator.name, said, self.c.origin)
                self._stand_in(operator)
            except Exception as error:
                raise converter_failed(operator.name, self.c.origin, error) from error

    def _stand_in(self, operator: Operator) -> None:
        """What an operator that failed would have made, so that its readers are not blamed."""
        for tensor in operator.outputs:
            kind = tensor.dtype if tensor.dtype in NUMPY_TYPES else "float32"
            self.values[tensor] = Value("failed", TensorType(kind, tensor.shape))
            self.failed.add(self.values[tensor])

    def _operator(self, operator: Operator) -> None:
        special = getattr(self, f"_{operator.name.lower()}", None)
        if special is not None:
            special(operator)
            return
        given = [None if tensor is None else self._value(tensor) for tensor in operator.inputs]
        mover = MOVES.get(operator.name)
        scales = [t.quantization for t in (*operator.inputs, *operator.outputs) if t is not None and _is_quantized(t)]
        whole = mover is not None and (not scales or all(scales[0].same(one) for one in scales[1:]))  # type: ignore[union-attr]
        converter = mover or CONVERTERS.get(operator.name)
        if converter is None:
            raise _Unknown(operator.name)
        if operator.name not in _OF_PAIRS and any(t is not None and t.dtype == "complex64" for t in operator.inputs):
            raise Unsupported("complex numbers")
        if any(one in self.failed for one in given if one is not None):
            self._stand_in(operator)
            return
        if not whole:
            given = [None if t is None or v is None else self._as_real(t, v) for t, v in zip(operator.inputs, given)]
        made = converter(self.c, operator, *given)
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        for tensor, value in zip(operator.outputs, results):
            self.values[tensor] = self._stored(tensor, value, whole)

    def _value(self, tensor: Tensor) -> Value:
        """A tensor's value: made by an operator, or a constant of the file."""
        found = self.values.get(tensor)
        if found is None:
            if tensor.data is None and 0 not in tensor.shape:
                raise Unsupported(f"the tensor {tensor.name!r} is read, and nothing makes it")
            array = np.zeros(tensor.shape, NUMPY_TYPES[tensor.dtype]) if tensor.data is None else tensor.data
            found = self.values[tensor] = self.c.constant(array, name="" if array.size <= 64 else _name(tensor.name))
        return found

    def _as_real(self, tensor: Tensor, value: Value) -> Value:
        """A quantized tensor as real numbers."""
        meaning = tensor.quantization
        if not _is_quantized(tensor) or meaning is None:
            return value
        if value.tensor.dtype == "int32":  # a bias: its scale is that of the sums
            known = self.c.constants.get(value)
            if known is not None:
                shape = [1] * known.ndim
                if meaning.scale.size > 1:
                    shape[meaning.axis] = -1
                return self.c.constant((known * meaning.scale.astype(np.float64).reshape(shape)).astype(np.float32))
        scale, zero = _parameters(self.c, meaning, value.tensor.dtype)
        axis = meaning.axis if meaning.scale.size > 1 else None
        return self.c.op("DequantizeLinear", value, scale, zero, axis=axis)

    def _stored(self, tensor: Tensor, value: Value, whole: bool) -> Value:
        """A result in the element type of its tensor."""
        meaning = tensor.quantization
        if _is_quantized(tensor) and meaning is not None and not whole and value.tensor.dtype == "float32":
            if tensor.dtype not in ("int8", "uint8", "int16"):
                raise Unsupported(f"results quantized to {tensor.dtype}")
            return self.c.op("QuantizeLinear", value, *_parameters(self.c, meaning, tensor.dtype))
        same = tensor.dtype in (value.tensor.dtype, "complex64")  # of which pairs of real numbers are made
        return value if same else self.c.op("Cast", value, to=NUMBERS[tensor.dtype])

    # ------------------------------------------------------------------------------------------- control and state

    def _quantize(self, operator: Operator) -> None:
        source, tensor = operator.inputs[0], operator.outputs[0]
        assert source is not None
        self.values[tensor] = self._stored(tensor, self._as_real(source, self._value(source)), False)

    def _dequantize(self, operator: Operator) -> None:
        source, tensor = operator.inputs[0], operator.outputs[0]
        assert source is not None
        value = self._value(source)
        known = self.c.constants.get(value)
        if source.quantization is None and known is not None:
            self.values[tensor] = self.c.constant(known.astype(np.float32), name=_name(tensor.name))
        else:
            self.values[tensor] = self.c.cast(self._as_real(source, value), "float32")

    def _densify(self, operator: Operator) -> None:
        source = operator.inputs[0]
        assert source is not None
        self.values[operator.outputs[0]] = self._value(source)  # written out when it was read

    def _var_handle(self, operator: Operator) -> None:
        name = operator.options.text(1) if operator.options is not None else ""
        self.handles[operator.outputs[0]] = name or f"variable {len(self.handles)}"

    def _call_once(self, operator: Operator) -> None:
        """The first values of variables: the subgraph that assigns them is run now."""
        before = (self.c.nodes, self.variables)
        self.c.nodes, self.variables = [], {}
        self._operators(self.subgraphs[operator.option(0)])
        outputs = list(self.variables.values())
        graph = Graph("first", [], outputs, self.c.nodes, self.c.constants)
        if not self.problems.unknown and not self.problems.lines:
            self.first.update(zip(self.variables, map(np.asarray, interpret_graph(graph, []))))
        self.c.nodes, self.variables = before

    def _read_variable(self, operator: Operator) -> None:
        handle, tensor = operator.inputs[0], operator.outputs[0]
        name = self.handles.get(handle) if handle is not None else None
        if name is None:
            raise Unsupported("a variable without a handle")
        if name not in self.variables:
            value = Value(self.c.fresh(_name(name) or "variable"), TensorType(tensor.dtype, tensor.shape))
            self.variables[name] = self.states[name] = value
            self.first.setdefault(name, np.zeros(tensor.shape, NUMPY_TYPES[tensor.dtype]))
        self.values[tensor] = self.variables[name]

    def _assign_variable(self, operator: Operator) -> None:
        handle, source = operator.inputs
        name = self.handles.get(handle) if handle is not None else None
        if name is None or source is None:
            raise Unsupported("a variable without a handle")
        self.variables[name] = self._value(source)

    def body(self, name: str, index: int, given: Sequence[Value], types: Sequence[TensorType] | None = None) -> Graph:
        """A subgraph of the model as a Graph: of these outer values, or with inputs of its own of these types."""
        if not 0 <= index < len(self.subgraphs):
            raise Unsupported(f"the file is damaged: there is no subgraph {index}")
        subgraph, outer = self.subgraphs[index], self.c.nodes
        self.c.nodes = []
        inputs = [Value(self.c.fresh(name), kind) for kind in types or ()]
        try:
            self.values.update(zip(subgraph.inputs, inputs or given))
            self._operators(subgraph)
            outputs = [self._output(self._value(tensor), tensor.name) for tensor in subgraph.outputs]
            return Graph(name, inputs, outputs, self.c.nodes)
        finally:
            self.c.nodes = outer

    def _if(self, operator: Operator) -> None:
        condition, *given = [self._value(tensor) for tensor in operator.inputs if tensor is not None]
        graphs = [self.body(name, operator.option(at), given) for at, name in enumerate(("then_branch", "else_branch"))]
        made = self.c.several(len(operator.outputs), "If", condition, then_branch=graphs[0], else_branch=graphs[1])
        self.values.update(zip(operator.outputs, made))

    def _while(self, operator: Operator) -> None:
        states = [self._value(tensor) for tensor in operator.inputs if tensor is not None]
        types = [one.tensor for one in states]
        first = self.body("first", operator.option(0), states)
        self.c.nodes.extend(first.nodes)
        head = [TensorType("int64", ()), TensorType("bool", ())]
        body = self.body("body", operator.option(1), [], types)
        test = self.body("test", operator.option(0), body.outputs)
        inputs = [*(Value(self.c.fresh("turn"), kind) for kind in head), *body.inputs]
        graph = Graph("body", inputs, [test.outputs[0], *body.outputs], [*body.nodes, *test.nodes])
        made = self.c.several(len(states), "Loop", None, first.outputs[0], *states, body=graph)
        self.values.update(zip(operator.outputs, made))


_OF_PAIRS = ("CAST", "REAL", "IMAG", "COMPLEX_ABS", "SQUEEZE")


class _Unknown(WeftError):
    """No converter has the name."""


def _is_quantized(tensor: Tensor) -> bool:
    return tensor.quantization is not None and tensor.dtype in ("int8", "uint8", "int16", "int32", "int4")


def _parameters(c: Emitter, meaning: Any, dtype: str) -> tuple[Value, Value]:
    """Scale and zero point as constants: numbers, or vectors along the axis."""
    scale, zero = meaning.scale.astype(np.float32), meaning.zero.astype(NUMPY_TYPES[dtype])
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    return c.constant(scale), c.constant(zero)


def _name(text: str) -> str:
    """A tensor's name as one that Python could have."""
    cleaned = "".join(letter if letter.isalnum() else "_" for letter in text.split(";")[0]).strip("_")
    return cleaned if not cleaned[:1].isdigit() else f"_{cleaned}"
