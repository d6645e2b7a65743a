"""Writing Weft nodes: what converters of a framework's operators are written with.

    c.op("Add", x, y)                      a node; its output, typed as it is made
    c.reshape(x, [2, -1]), c.cast(x, "float32"), c.sizes(x)
    c.subgraph("body", types, make)        a Graph for a loop or a branch

Operands are values, numbers, lists of whole numbers (vectors of int64) or arrays. Every value knows its type at once,
because the operator's own inference runs on each node, so that a converter asks `x.tensor` wherever it stands; sizes
that only a call tells are values themselves (`c.size`), scalars of int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

import weft.ops  # noqa: F401  (fills the table of operators)
from weft.core.errors import FrontendError
from weft.graph.ir import NUMPY_TYPES, Array, Graph, Node, TensorType, Value, dtype_name
from weft.graph.opspec import Infer, find_operator
from weft.ops.elementwise_support import ELEMENT_TYPES

Size = Union[int, Value]
Operand = Union[Value, bool, int, float, Sequence[int], Array, np.generic, None]

NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}
"""The numbers by which attributes name element types."""

DEFAULTS = {
    ("Gather", "axis"): 0,
    ("HardSigmoid", "beta"): 0.5,
    **{(op, "direction"): "forward" for op in ("LSTM", "GRU", "RNN")},
}
"""Attributes that are left out, as torch's exporter to ONNX does: both doors then give one graph."""

LIMITS = {"bool": (False, True)}
"""The least and the greatest value of an element type (`limits`)."""


class Unsupported(FrontendError):
    """A use of an operator that no Weft operator computes."""


class InTraining(Unsupported):
    """A use that belongs to training; decomposing the operator would not change that."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: the module is in training mode, call model.eval() first")


def limits(kind: str) -> tuple[Any, Any]:
    """The least and the greatest value of an element type."""
    if kind in LIMITS:
        return LIMITS[kind]
    if is_float(kind):
        return -np.inf, np.inf
    found = np.iinfo(NUMPY_TYPES[kind])
    return found.min, found.max


def is_float(kind: str) -> bool:
    """Whether an element type is one of floating point."""
    return kind.startswith(("float", "bfloat"))


class Emitter:
    """Collects the nodes of a graph. `label` and `origin` name the operator that is being converted."""

    inline: Callable[[Any, Sequence[Any]], list[Any]]
    """Writes a graph of the framework's for these operands, and gives its outputs (the importer's)."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self.target = ""
        """The ATen operator that is being converted, as the table has it."""
        self.label = ""
        self.origin = ""
        self.dtype = ""
        """The element type of the (first) result that is wanted."""
        self.shape: tuple[Any, ...] = ()
        """Its shape."""
        self.read: set[int] | None = None
        """Which of several results somebody reads; None where that is not known."""
        self.names: set[str] = set()
        self.numbers: set[Value] = set()
        """Scalars that stand for Python's numbers: sizes, and what is computed from them."""
        self._small: dict[tuple[str, tuple[int, ...], bytes], Value] = {}

    # values

    def fresh(self, like: str) -> str:
        """A name that no value has yet."""
        name, count = like, 0
        while name in self.names:
            count += 1
            name = f"{like}_{count}"
        self.names.add(name)
        return name

    def constant(self, array: Any, dtype: str = "", name: str = "") -> Value:
        """A constant; small ones that are equal are one value."""
        made = np.asarray(array) if not dtype else np.asarray(array).astype(NUMPY_TYPES[dtype], copy=False)
        key = (dtype_name(made.dtype), made.shape, made.tobytes()) if made.size <= 64 and not name else None
        if key is not None and key in self._small:
            return self._small[key]
        value = Value(self.fresh(name or "constant"), TensorType(dtype_name(made.dtype), made.shape))
        self.constants[value] = made
        if key is not None:
            self._small[key] = value
        return value

    def value(self, given: Operand, dtype: str = "") -> Value:
        """An operand as a value, of an element type where one is asked for."""
        if isinstance(given, Value):
            return self.cast(given, dtype) if dtype else given
        if isinstance(given, (list, tuple)):
            return self.constant(np.array(given, np.int64))
        if isinstance(given, np.ndarray):
            return self.constant(given, dtype)
        with np.errstate(all="ignore"):
            return self.constant(np.asarray(given), dtype or _python_type(given))

    def op(self, op: str, *operands: Operand, **attributes: Any) -> Value:
        """A node with one output, which is returned."""
        return self.several(1, op, *operands, **attributes)[0]

    def several(self, outputs: int, op: str, *operands: Operand, **attributes: Any) -> list[Value]:
        """A node with several outputs. Attributes that are None are left out."""
        inputs = [None if one is None else self.value(one) for one in operands]
        while inputs and inputs[-1] is None:
            inputs.pop()
        spec = find_operator(op)
        if spec is None:
            raise Unsupported(f"Weft has no operator {op}")
        made = [Value(self.fresh(f"{self.label}_{op}".lower())) for _ in range(outputs)]
        kept = {key: self._attribute(one) for key, one in attributes.items() if one is not None}
        kept = {key: one for key, one in kept.items() if DEFAULTS.get((op, key)) != one}
        node = Node(op, inputs, made, kept, name=self.fresh(self.label), origin=self.origin)
        known = [None if one is None else self.constants.get(one) for one in inputs]
        types = spec.types(Infer(node, [None if one is None else one.type for one in inputs], known))
        for value, kind in zip(made, types):
            value.type = kind
        self.nodes.append(node)
        return made

    def of_users(
        self,
        name: str,
        domain: str,
        inputs: Sequence[Value | None],
        types: Sequence[TensorType],
        given: Mapping[str, Any],
    ) -> list[Value] | None:
        """The results of an operator that came by `weft.register_op`, which are of these types; None for any other."""
        if find_operator(name, domain) is None:
            return None
        made = [Value(self.fresh(f"{self.label}_{name}".lower()), kind) for kind in types]
        kept = {key: one for key, one in given.items() if _is_plain(one)}
        self.nodes.append(Node(name, inputs, made, kept, self.fresh(self.label), self.origin, domain))
        return made

    def _attribute(self, given: Any) -> Any:
        """An attribute as a file of ONNX would hold it: floats are float32, where the model is no wider."""
        return float(np.float32(given)) if isinstance(given, float) and self.dtype != "float64" else given

    def cast(self, x: Operand, dtype: str) -> Value:
        """x in an element type; numbers outside of a type of integers wrap or saturate as they do in a processor."""
        if not isinstance(x, Value):
            return self.value(x, dtype)
        have = x.tensor.dtype
        if have == dtype:
            return x
        if x in self.constants and x.tensor.shape == ():
            with np.errstate(all="ignore"):
                return self.constant(self.constants[x], dtype)
        return self.op("Cast", x, to=NUMBERS[dtype])

    def wants(self, result: int) -> bool:
        """Whether somebody reads one of several results."""
        return self.read is None or result in self.read

    # sizes

    def size(self, x: Value, axis: int) -> Size:
        """One size of a tensor: a number, or a scalar value where only a call tells."""
        found = x.tensor.dims[axis]
        if isinstance(found, int):
            return found
        made: Value = self.op("Gather", self.op("Shape", x), np.int64(axis % x.tensor.rank), axis=0)
        self.numbers.add(made)
        return made

    def sizes(self, x: Value) -> list[Size]:
        """All sizes of a tensor."""
        return [self.size(x, axis) for axis in range(x.tensor.rank)]

    def vector(self, sizes: Sequence[Size]) -> Value:
        """Sizes as one vector of int64."""
        if all(isinstance(one, int) for one in sizes):
            return self.constant(np.array(sizes, np.int64))
        parts: list[Operand] = []
        for one in sizes:
            parts.append(self.op("Reshape", one, [1]) if isinstance(one, Value) else [one])
        return parts[0] if len(parts) == 1 and isinstance(parts[0], Value) else self._joined(parts)

    def _joined(self, parts: Sequence[Operand]) -> Value:
        return self.op("Concat", *parts, axis=0)

    def times(self, *sizes: Size) -> Size:
        """The product of sizes."""
        made: Size = 1
        for one in sizes:
            if isinstance(made, int) and isinstance(one, int):
                made = made * one
            elif isinstance(made, int) and made == 1:
                made = one
            elif not (isinstance(one, int) and one == 1):
                made = self.op("Mul", made, one)
        return made

    def subgraph(self, name: str, types: Sequence[TensorType], make: Callable[[list[Value]], Sequence[Value]]) -> Graph:
        """A graph with inputs of these types whose outputs a function makes of them."""
        outer, self.nodes = self.nodes, []
        inputs = [Value(self.fresh(f"{self.label}_{name}"), kind) for kind in types]
        outputs: list[Value] = []
        try:
            for value in make(inputs):
                own = Value(self.fresh(f"{self.label}_{name}_result"), value.type)
                self.nodes.append(Node("Identity", [value], [own], name=self.fresh("output")))
                outputs.append(own)
            return Graph(name, inputs, outputs, self.nodes)
        finally:
            self.nodes = outer

    # movement

    def reshape(self, x: Value, sizes: Sequence[Size]) -> Value:
        """x in another shape; a single size that only a call tells is left to the operator."""
        have = x.tensor.shape
        if have is not None and list(have) == list(sizes):
            return x
        open_sizes = [at for at, one in enumerate(sizes) if isinstance(one, Value)]
        if len(open_sizes) == 1 and 0 not in sizes and -1 not in sizes:
            sizes = [-1 if isinstance(one, Value) else one for one in sizes]
        zero = 1 if 0 in sizes else None
        return self.op("Reshape", x, self.vector(sizes), allowzero=zero)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """x with its axes in this order."""
        order = [axis % x.tensor.rank for axis in order]
        return x if order == list(range(len(order))) else self.op("Transpose", x, perm=order)

    def swap(self, x: Value, a: int, b: int) -> Value:
        """x with two axes exchanged."""
        order = list(range(x.tensor.rank))
        order[a], order[b] = order[b], order[a]
        return self.transpose(x, order)

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """x with axes of size 1."""
        return self.op("Unsqueeze", x, list(axes)) if axes else x

    def squeeze(self, x: Value, *axes: int) -> Value:
        """x without axes of size 1."""
        return self.op("Squeeze", x, list(axes)) if axes else x

    def expand(self, x: Value, sizes: Sequence[Size]) -> Value:
        """x repeated to a shape."""
        return x if list(x.tensor.dims) == list(sizes) else self.op("Expand", x, self.vector(sizes))

    def slice(self, x: Value, axis: int, start: Size, end: Size, step: int = 1) -> Value:
        """A stretch of x along an axis."""
        return self.op("Slice", x, self.vector([start]), self.vector([end]), [axis], [step])

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Tensors one after the other."""
        return self.op("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    # arithmetic

    def where(self, condition: Value, x: Operand, y: Operand, dtype: str = "") -> Value:
        """x where a condition holds, else y."""
        return self.op(
            "Where",
            self.cast(condition, "bool"),
            self.value(x, dtype or self.dtype),
            self.value(y, dtype or self.dtype),
        )

    def invert(self, x: Value) -> Value:
        """not x."""
        return self.op("Not", x)

    def flat(self, x: Value) -> Value:
        """x as a vector."""
        return x if x.tensor.rank == 1 else self.reshape(x, [-1] if 0 not in x.tensor.dims else [0])

    def filled(self, sizes: Sequence[Size], number: Any, dtype: str) -> Value:
        """A tensor of one number (a value of one element, too)."""
        if isinstance(number, Value):
            return self.expand(self.reshape(self.cast(number, dtype), [1] * len(sizes)), sizes)
        with np.errstate(all="ignore"):
            one = np.asarray(number).astype(NUMPY_TYPES[dtype])
        if not sizes:
            return self.constant(one)
        return self.op("ConstantOfShape", self.vector(sizes), value=one.reshape(1))


def _is_plain(given: Any) -> bool:
    """Whether an attribute is a number, a text, or some of them."""
    if isinstance(given, (list, tuple)):
        return all(isinstance(one, (bool, int, float, str)) for one in given)
    return isinstance(given, (bool, int, float, str))


def _python_type(given: Any) -> str:
    if isinstance(given, (bool, np.bool_)):
        return "bool"
    if isinstance(given, np.generic):
        return dtype_name(given.dtype)
    return "int64" if isinstance(given, int) else "float32"
