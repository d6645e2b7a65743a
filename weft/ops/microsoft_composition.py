"""Operators made of other operators: how those of the domain com.microsoft get their three meanings from one text.

A body such as

    def body(b, x, skip, gamma, beta=None):
        return b("LayerNormalization", b("Add", x, skip), gamma, beta, axis=-1)

is run three times: on types (inference), on arrays (the numpy meaning), and on tensors (the compiled form; there is
none where one of the parts has none). `b` calls an operator, reads attributes of the node, and makes constants.
An operator that is composed with `expands` is run a fourth way: its parts become nodes of the graph, so that what is
around it can fuse with them and outputs that nobody reads are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.graph.ir import NUMPY_TYPES, Array, Dim, Node, TensorType, Type, Value, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, Use, find_operator, register
from weft.graph.passes.support import Replacement, Scope
from weft.ops.elementwise_support import ELEMENT_TYPES, signature_of

DOMAIN = "com.microsoft"
TYPE_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


class Part:
    """A value on its way: what is known of its type, its array, its tensor, its place in a graph."""

    __slots__ = ("type", "array", "tensor", "value")

    def __init__(
        self, type: TensorType, array: Array | None = None, tensor: te.Tensor | None = None, value: Value | None = None
    ) -> None:
        self.type, self.array, self.tensor, self.value = type, array, tensor, value

    @property
    def dtype(self) -> str:
        """Its element type."""
        return self.type.dtype

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Its shape; an error where not even the rank is known."""
        return self.type.dims


class NoKernel(Exception):
    """One of the parts has no compiled form."""


class Composition:
    """Runs the operators of a body, one after the other."""

    def __init__(self, use: Use) -> None:
        self.use = use
        self.get, self.need, self.error = use.get, use.need, use.error
        self.output_count = len(use.node.outputs)

    def __call__(self, op: str, *inputs: Part | None, **attributes: Any) -> Part:
        """The result of an operator."""
        return self.several(1, op, *inputs, **attributes)[0]

    def several(self, outputs: int, op: str, *inputs: Part | None, **attributes: Any) -> list[Part]:
        """So many results of an operator."""
        spec = find_operator(op)
        assert spec is not None, op
        outer = self.use.node
        node = Node(
            op,
            [None if p is None else Value(f"input{i}") for i, p in enumerate(inputs)],
            [Value(f"output{i}") for i in range(outputs)],
            {key: value for key, value in attributes.items() if value is not None},
            outer.name,
            outer.origin,
        )
        return self.apply(spec, node, inputs)

    def apply(self, spec: OpSpec, node: Node, inputs: Sequence[Part | None]) -> list[Part]:
        """The results of one operator, in this meaning."""
        raise NotImplementedError

    def constant(self, value: Any, dtype: str) -> Part:
        """A constant: a number or, for axes and shapes, a list of them."""
        array = np.asarray(value, np.dtype(dtype))
        return Part(TensorType(dtype, array.shape), array)

    def zeros(self, shape: Sequence[Dim], dtype: str) -> Part:
        """Nothing but zeros, of a shape that is known."""
        return array_part(np.zeros([int(str(size)) for size in shape], NUMPY_TYPES[dtype]))

    def range(self, size: Dim) -> Part:
        """0, 1, … size - 1 as int64."""
        raise NotImplementedError

    def cast(self, part: Part, dtype: str) -> Part:
        """A value in another type."""
        return part if part.dtype == dtype else self("Cast", part, to=TYPE_NUMBERS[dtype])


class InferComposition(Composition):
    """On types."""

    def apply(self, spec: OpSpec, node: Node, inputs: Sequence[Part | None]) -> list[Part]:
        """See Composition."""
        types = [None if p is None else p.type for p in inputs]
        made = spec.types(Infer(node, types, [None if p is None else p.array for p in inputs]))
        return [Part(kind) for kind in made if isinstance(kind, TensorType)]

    def range(self, size: Dim) -> Part:
        """See Composition."""
        return Part(TensorType("int64", (size,)))


class EvaluateComposition(Composition):
    """On arrays."""

    def apply(self, spec: OpSpec, node: Node, inputs: Sequence[Part | None]) -> list[Part]:
        """See Composition."""
        made = spec.run(node, [None if p is None else p.array for p in inputs])
        return [array_part(a) for a in made]

    def range(self, size: Dim) -> Part:
        """See Composition."""
        assert isinstance(size, int)
        return array_part(np.arange(size, dtype=np.int64))


class ComputeComposition(Composition):
    """On tensors."""

    def apply(self, spec: OpSpec, node: Node, inputs: Sequence[Part | None]) -> list[Part]:
        """See Composition."""
        if spec.compute is None:
            raise NoKernel
        types = [None if p is None else p.type for p in inputs]
        values = [None if p is None else p.array for p in inputs]
        kinds = [kind for kind in spec.types(Infer(node, types, values)) if isinstance(kind, TensorType)]
        if not all(kind.is_static for kind in kinds):
            raise NoKernel
        tensors = [None if p is None or i in spec.shape_inputs else self._tensor(p) for i, p in enumerate(inputs)]
        results = spec.tensors(Compute(node, types, kinds, values), tensors)
        if results is None:
            raise NoKernel
        return [Part(kind, None, tensor) for kind, tensor in zip(kinds, results)]

    def _tensor(self, part: Part) -> te.Tensor:
        """The tensor of a part; a constant becomes one, if all of its elements are equal."""
        if part.tensor is not None:
            return part.tensor
        if part.array is None or part.array.size == 0 or not (part.array == part.array.flat[0]).all():
            raise NoKernel
        number = te.const(part.array.flat[0].item(), part.dtype)
        return te.stage(part.type.static, lambda *at: number, "constant")

    def range(self, size: Dim) -> Part:
        """See Composition."""
        assert isinstance(size, int)
        return Part(TensorType("int64", (size,)), None, te.stage((size,), lambda i: i, "range"))


class GraphComposition(Composition):
    """On values of a graph."""

    def __init__(self, use: Use, scope: Scope) -> None:
        super().__init__(use)
        self.scope = scope

    def apply(self, spec: OpSpec, node: Node, inputs: Sequence[Part | None]) -> list[Part]:
        """See Composition."""
        given = [None if p is None else self._value(p) for p in inputs]
        made = self.scope.make_all(self.use.node, node.op, given, len(node.outputs), node.domain, **node.attributes)
        if not all(isinstance(value.type, TensorType) for value in made):
            raise NoKernel
        return [Part(value.tensor, None, None, value) for value in made]

    def _value(self, part: Part) -> Value:
        if part.value is None:
            part.value = self.scope.new_constant(part.array, f"{self.use.node.outputs[0].name}_constant")
        return part.value

    def range(self, size: Dim) -> Part:
        """See Composition."""
        if not isinstance(size, int):
            raise NoKernel
        return array_part(np.arange(size, dtype=np.int64))


def array_part(array: Array) -> Part:
    """An array as a part."""
    return Part(TensorType(dtype_name(array.dtype), array.shape), array)


Body = Callable[..., Any]


def _parts(made: Any) -> list[Part]:
    return list(made) if isinstance(made, (tuple, list)) else [made]


def compose(
    name: str,
    body: Body,
    kind: str = "opaque",
    shape_inputs: Sequence[int] = (),
    domain: str = DOMAIN,
    expands: bool = False,
    traits: str = "",
    infer: Callable[[Infer], Sequence[Type]] | None = None,
) -> OpSpec:
    """Registers an operator whose meaning is a body of other operators; `infer` where its types say more than those."""

    def types(c: Infer) -> Sequence[Type]:
        parts = [None if t is None else Part(c.tensor(i), c.value(i)) for i, t in enumerate(c.types)]
        return [part.type for part in _parts(body(InferComposition(c), *parts))][: max(c.output_count, 1)]

    def evaluate(c: Evaluate, *arrays: Any) -> Any:
        parts = [None if a is None else array_part(a) for a in arrays]
        made = [part.array for part in _parts(body(EvaluateComposition(c), *parts))]
        return tuple(made[: max(c.output_count, 1)])

    def compute(c: Compute, *tensors: Any) -> Any:
        if any(t is not None and 0 in t.static for t in (*c.types, *c.outputs)):
            return None
        parts = [
            None if kind is None else Part(kind, c.value(i), tensor)
            for i, (kind, tensor) in enumerate(zip(c.types, tensors))
        ]
        try:
            made = [part.tensor for part in _parts(body(ComputeComposition(c), *parts))][: len(c.outputs)]
        except NoKernel:
            return None
        if any(t is None or isinstance(t.op, _placeholder()) for t in made):
            return None
        return made[0] if len(made) == 1 else tuple(made)

    def expand(node: Node, scope: Scope) -> Replacement:
        if any(v is not None and not isinstance(v.type, TensorType) for v in node.inputs):
            return None
        parts = [None if v is None else Part(v.tensor, scope.constant(v), None, v) for v in node.inputs]
        try:
            made = [part.value for part in _parts(body(GraphComposition(Use(node), scope), *parts))]
        except NoKernel:
            return None
        return [
            Node("Identity", [value], [output], {}, node.name, node.origin) for value, output in zip(made, node.outputs)
        ]

    rule = expand if expands else None
    takes = signature_of(body)
    return register(name, infer or types, evaluate, compute, kind, shape_inputs, domain, rule, takes, traits=traits)


def _placeholder() -> Any:
    return type(te.placeholder((1,)).op)


def alias(name: str, shape_inputs: Sequence[int] = (), kind: str = "opaque", traits: str = "") -> OpSpec:
    """An operator of the domain that means what ONNX's operator of that name means."""

    def body(b: Composition, *inputs: Part | None) -> Any:
        return b.several(b.output_count, name, *inputs, **b.use.attributes)

    return compose(name, body, kind, shape_inputs, traits=traits)
