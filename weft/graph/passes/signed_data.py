"""Unsigned data of integer products made signed, for machines whose dot product multiplies signed bytes only.

    %q = QuantizeLinear(%x, %s, 130)               %q = QuantizeLinear(%x, %s, 2)          int8 now
    %y = ConvInteger(%q, %w, border=130)     ->    %i = ConvInteger(%q, %w, border=2)
                                                   %y = Add(%i, 128 * sum of %w for each channel)

A byte less 128 is that byte with its highest bit turned, so the sums stay exact. The data is made signed where it is
made: by a QuantizeLinear, before operators that only copy or take the largest; DequantizeLinear reads it as it is
then. Elsewhere the bit is turned, which an epilogue or a copy of the data does beside its work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite

HALF = 128
_INT8, _UINT8 = 3, 2
"""Element types as attributes name them."""


def signed_data(graph: Graph) -> Graph:
    """The graph with signed data in its integer products with known weights; the same if there are none."""
    wanted = _wanted(graph)
    if not wanted:
        return graph
    rule = _Signed(wanted)
    made, changed = rewrite(graph, rule)
    return dead(infer(made)) if changed else graph


def _is_product(node: Node, constants: Mapping[Value, Array]) -> bool:
    """Whether a node multiplies unsigned data with known signed weights, and nothing else."""
    if node.domain or node.op not in ("ConvInteger", "MatMulInteger") or any(v is not None for v in node.inputs[2:]):
        return False
    data, weight = node.inputs[:2]
    array = None if weight is None else constants.get(weight)
    return data is not None and _is_unsigned(data) and array is not None and array.dtype == np.int8


def _is_unsigned(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype == "uint8"


def _keeps_order(node: Node) -> bool:
    """Whether a node's only result consists of numbers that it reads, chosen by their place or their order."""
    if len(node.outputs) != 1 or node.domain:
        return False
    return has(node, "moves") or node.op in ("Concat", "MaxPool")


def _sources(node: Node) -> list[Value]:
    """The numbers that such a node reads."""
    given = node.inputs if node.op == "Concat" else node.inputs[:1]
    return [v for v in given if v is not None]


def _wanted(graph: Graph) -> set[Value]:
    """The values that products read, and those that are copied to become them."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        if _is_product(node, graph.constants):
            found.update(v for v in node.inputs[:1] if v is not None)
        elif _keeps_order(node) and node.outputs[0] in found:
            found.update(v for v in _sources(node) if _is_unsigned(v))
    return found


class _Signed:
    """The rule for one graph."""

    def __init__(self, wanted: set[Value]) -> None:
        self.wanted = wanted
        self.signed: dict[Value, Value] = {}
        """Unsigned values, and the same as signed ones."""
        self.sums: dict[Value, tuple[Value, Array]] = {}
        """Sums that are a raw sum and an offset."""

    def __call__(self, node: Node, scope: Scope) -> Replacement:
        if _is_product(node, scope.constants):
            return self._product(node, scope)
        if node.domain or len(node.outputs) != 1:
            return None
        if node.op == "DequantizeLinear":
            return self._dequantized(node, scope)
        if node.op == "Add":
            return self._added(node, scope)
        out = node.outputs[0]
        if out not in self.wanted:
            return None
        if node.op == "QuantizeLinear" and len(node.inputs) > 2:
            zero = self._less(node.inputs[2], scope)
            if zero is None:
                return None
            kept = {key: value for key, value in node.attributes.items() if key != "output_dtype"}
            return self._both(node, scope.make(node, node.op, [*node.inputs[:2], zero], **kept), scope)
        if _keeps_order(node) and all(v in self.signed for v in _sources(node)):
            inputs = [self.signed.get(v, v) if v is not None else None for v in node.inputs]
            return self._both(node, scope.make(node, node.op, inputs, node.domain, **node.attributes), scope)
        return None

    def _both(self, node: Node, made: Value, scope: Scope) -> list[Node]:
        """What reads the unsigned numbers still can: they are the signed ones with the bit turned."""
        self.signed[node.outputs[0]] = made
        plain = scope.make(node, "BitCast", [made], to=_UINT8)
        half = scope.new_constant(np.array(HALF, np.uint8), "half")
        return [Node("BitwiseXor", [plain, half], node.outputs, {}, node.name, node.origin)]

    def _less(self, value: Value | None, scope: Scope) -> Value | None:
        """A known zero point, 128 less."""
        zero = scope.constant(value)
        if zero is None or zero.dtype != np.uint8:
            return None
        return scope.new_constant((zero.astype(np.int16) - HALF).astype(np.int8), "zero")

    def _product(self, node: Node, scope: Scope) -> Replacement:
        data, weight = node.inputs[:2]
        numbers = scope.constant(weight)
        assert data is not None and numbers is not None
        if data not in self.signed:
            turned = scope.make(node, "BitwiseXor", [data, scope.new_constant(np.array(HALF, np.uint8), "half")])
            self.signed[data] = scope.make(node, "BitCast", [turned], to=_INT8)
        attributes = dict(node.attributes)
        if node.op == "ConvInteger":
            attributes["border"] = int(attributes.get("border", 0)) - HALF
            sums = numbers.astype(np.int64).sum(axis=tuple(range(1, numbers.ndim)))
            sums = sums.reshape(1, -1, *[1] * (numbers.ndim - 2))
        else:
            sums = numbers.astype(np.int64).sum(axis=-2, keepdims=numbers.ndim > 2)
        offset = (HALF * sums).astype(np.int32)
        total = scope.make(node, node.op, [self.signed[data], weight], **attributes)
        self.sums[node.outputs[0]] = (total, offset)
        return [
            Node("Add", [total, scope.new_constant(offset, "offset")], node.outputs, {}, node.name, node.origin)
        ]  # fmt: skip

    def _dequantized(self, node: Node, scope: Scope) -> Replacement:
        data = node.inputs[0]
        made = None if data is None else self.signed.get(data)
        zero = self._less(node.inputs[2], scope) if made is not None and len(node.inputs) > 2 else None
        return None if zero is None else [node.replace(inputs=[made, node.inputs[1], zero])]

    def _added(self, node: Node, scope: Scope) -> Replacement:
        """A constant that is added to sums takes the offset in."""
        for first, second in (node.inputs, node.inputs[::-1]):
            known = None if first is None else self.sums.get(first)
            array = scope.constant(second)
            if known is not None and array is not None:
                total, offset = known
                whole = scope.new_constant(array + offset, f"{node.outputs[0].name}_offset")
                return [node.replace(inputs=[total, whole])]
        return None
