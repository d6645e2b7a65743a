"""Precision lowering: products of bfloat16 (or float16) operands, summed in float32, and narrow values between kernels.

    %c = Conv(%x, %w, %b)                   %c = Conv(%x16, %w16, %b, output_dtype=float32)
    %s = Add(%c, %skip)              ->     %s = Add(%c, Cast(%skip16))
    %r = Relu(%s)                           %r16 = Cast(Relu(%s))
    %d = Conv(%r, %v)                       %d = Conv(%r16, %v16, output_dtype=float32)

What a fused group keeps inside stays float32: only the operands of products are narrow, and what one group stores for
another. Fusion takes the casts in, so that a value is rounded once, where it is stored. So that nothing is lost where
it matters, a value is stored narrow only

    where it is an operand of a product, or is moved there by operators that only copy; or
    where it lies between two products, and is no statistic (the result of a ReduceMean, a Softmax's sum …).

Positions, masks and what follows the last product stay float32, as do model inputs and outputs. A depthwise
convolution keeps float32 weights: they are few, and no matrix instruction takes them.

A processor without matrix instructions multiplies narrow numbers no faster than float32, and has to convert them.
There only those products are lowered whose time is that of reading a weight from memory: those of a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from weft.core import model
from weft.graph.interpreter import operator_of
from weft.graph.ir import NUMPY_TYPES, Array, Graph, GraphError, Node, TensorType, Value, all_graphs
from weft.graph.opspec import has
from weft.graph.passes.fuse import Group, fuse
from weft.graph.passes.support import Names

NARROW = {"bf16": "bfloat16", "fp16": "float16"}
"""The narrow types by the names that users give."""

NUMBERS = {"float32": 1, "float16": 10, "bfloat16": 16}
"""Element types as attributes name them."""


def lower_precision(graph: Graph, precision: str, has_matrix_unit: bool = True) -> Graph:
    """The graph with products of narrow operands; `precision` is "bf16" or "fp16". Types must be inferred."""
    if precision not in NARROW:
        raise GraphError(f"the precision {precision!r} is not known; there are fp32, {' and '.join(NARROW)}")
    return _Lowering(graph, NARROW[precision], has_matrix_unit).run()


def _is_float(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype == "float32"


def _operands(node: Node) -> Sequence[int]:
    """The positions of the float32 operands of a product; none where it is not one that is lowered."""
    found = range(operator_of(node).multiplies)
    if node.op == "Attention" and (len(node.outputs) > 1 or len(node.inputs) > 4):
        return ()
    if not found or not all(_is_float(node.inputs[at]) for at in found):
        return ()
    return found


def _is_reading(node: Node, graph: Graph) -> bool:
    """Whether a product of few rows waits for its weight, a constant, to be read."""
    weight, out = node.inputs[1], node.outputs[0].type
    if weight not in graph.constants or not isinstance(out, TensorType) or not out.is_static:
        return False
    if has(node, "recurrent"):
        first = node.inputs[0]
        batch = None if first is None or not first.tensor.is_static else first.tensor.static[1]
        return batch is not None and batch <= model.FEW_ROWS
    if node.op == "Conv":
        return math.prod(out.static) // max(1, out.static[1]) <= model.FEW_ROWS
    return has(node, "product") and math.prod(out.static[:-1]) <= model.FEW_ROWS


def _copied(node: Node) -> list[Value]:
    """The float32 inputs whose elements a copying operator passes on; none where it is not one."""
    if not has(node, "moves", "joins") or len(node.outputs) > 1 and has(node, "windowed"):
        return []
    values = node.inputs if has(node, "joins") else node.inputs[:1]
    return [v for v in values if v is not None] if all(_is_float(v) for v in values) else []


def _is_depthwise(node: Node) -> bool:
    weight = node.inputs[1]
    if node.op != "Conv" or weight is None or not isinstance(weight.type, TensorType) or weight.type.shape is None:
        return False
    return int(node.attributes.get("group", 1)) > 1 and weight.type.shape[1] == 1


class _Uses:
    """What the products need: found once, on the graph as it is."""

    def __init__(self, graph: Graph, on_host: set[Value], has_matrix_unit: bool) -> None:
        self.products = {
            node
            for node in graph.nodes
            if _operands(node) and node.outputs[0] not in on_host and (has_matrix_unit or _is_reading(node, graph))
        }
        self.operands: set[Value] = set()
        """What is multiplied, or only copied on the way there."""
        before: set[Value] = set()
        behind: set[Value] = set()
        for node in graph.nodes:
            if node in self.products or any(v in before for v in node.inputs):
                before.update(v for v in node.outputs if _is_float(v))
        for node in reversed(graph.nodes):
            leads = any(v in behind for v in node.outputs)
            if node in self.products:
                self.operands.update(v for at in _operands(node) if (v := node.inputs[at]) is not None)
            if node in self.products or leads:
                behind.update(v for v in node.inputs if v is not None and _is_float(v))
            if any(v in self.operands for v in node.outputs):
                self.operands.update(_copied(node))
        self.between = before & behind
        """What has a product before it and one behind it."""


class _Lowering:
    """One run: nodes in order, each with narrow or wide inputs, and casts where a value changes between them."""

    def __init__(self, graph: Graph, narrow: str, has_matrix_unit: bool) -> None:
        self.graph = graph
        self.kind = narrow
        self.names = Names(graph)
        self.groups = fuse(graph)
        self.group_of = {value: group for group in self.groups for node in group.nodes for value in node.outputs}
        self.uses = _Uses(
            graph, {value for value, group in self.group_of.items() if group.kind == "host"}, has_matrix_unit
        )
        self.narrowed: dict[Value, Value] = {}
        self.widened: dict[tuple[Group | None, Value], Value] = {}
        self.only_narrow: set[Value] = set()
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.stored = self._stored_narrow()
        self.needs_wide = set(graph.outputs) | self._read_by_others()

    def run(self) -> Graph:
        if not self.uses.products:
            return self.graph
        for value in self.graph.inputs:
            if value in self.uses.operands:
                self._narrow(value)
        for node in self.graph.nodes:
            self._place(node)
        used = {v for node in self.nodes for inner in _reads(node) for v in inner} | set(self.graph.outputs)
        constants = {value: array for value, array in self.constants.items() if value in used}
        return self.graph.replace(nodes=self.nodes, constants=constants)

    # ------------------------------------------------------------------------------------------------ decisions

    def _stored_narrow(self) -> set[Value]:
        """The values that one group makes for others and that lose nothing important by being rounded."""
        found = set()
        for group in self.groups:
            statistic = group.anchor is not None and has(group.anchor, "statistic")
            fusable = group.kind in ("injective", "reduction", "complex")
            for value in group.outputs:
                wanted = value in self.uses.operands or (value in self.uses.between and fusable and not statistic)
                if wanted and _is_float(value):
                    found.add(value)
        return found

    def _read_by_others(self) -> set[Value]:
        """What nodes on the host, opaque kernels and subgraphs read: it stays as it is for them."""
        found: set[Value] = set()
        for group in self.groups:
            if group.kind in ("host", "opaque"):
                for node in group.nodes:
                    products = {node.inputs[at] for at in _operands(node)}
                    found.update(v for inner in _reads(node) for v in inner if v not in products)
        return found

    # ------------------------------------------------------------------------------------------------ nodes

    def _place(self, node: Node) -> None:
        if node in self.uses.products:
            self._product(node)
        elif (copied := _copied(node)) and self._may_copy(node, copied):
            self._copy(node, copied)
        else:
            self._plain(node)
        for value in node.outputs:
            if value in self.stored and value not in self.narrowed:
                self._narrow(value)

    def _plain(self, node: Node) -> None:
        group = self.group_of.get(node.outputs[0]) if node.outputs else None
        self.nodes.append(node.replace(inputs=[self._wide(v, group) for v in node.inputs]))

    def _product(self, node: Node) -> None:
        inputs = list(node.inputs)
        for at in _operands(node):
            value = inputs[at]
            assert value is not None
            if at == 1 and _is_depthwise(node):
                continue
            narrow = self._narrow(value)
            if narrow is None:  # a weight outside the range of the narrow type
                self._plain(node)
                return
            inputs[at] = narrow
        group = self.group_of.get(node.outputs[0])
        inputs = [v if v is None or not _is_float(v) else self._wide(v, group) for v in inputs]
        if has(node, "attention") or self._rounds_itself(node):
            self._emit_narrow(node, inputs)
        else:
            attributes = {**node.attributes, "output_dtype": NUMBERS["float32"]}
            self.nodes.append(node.replace(inputs=inputs, attributes=attributes))

    def _rounds_itself(self, node: Node) -> bool:
        """Whether a recurrence, whose kernel takes no epilogue, rounds its own results."""
        return has(node, "recurrent") and all(v in self.stored and v not in self.needs_wide for v in node.outputs)

    def _may_copy(self, node: Node, copied: list[Value]) -> bool:
        """Whether every input has a narrow form (or is a constant that gets one), one at least by itself."""
        if not any(v in self.narrowed for v in copied):
            return node.outputs[0] in self.uses.operands and all(v in self.graph.constants for v in copied)
        return all(v in self.narrowed or v in self.graph.constants for v in copied) and not any(
            v in self.graph.outputs for v in node.outputs
        )

    def _copy(self, node: Node, copied: list[Value]) -> None:
        new = {value: self._narrow(value) for value in copied}
        if any(v is None for v in new.values()):
            self._plain(node)
            return
        self._emit_narrow(node, [v if v is None else new.get(v, v) for v in node.inputs])

    def _emit_narrow(self, node: Node, inputs: list[Value | None]) -> None:
        """A node whose results are narrow; wide copies of them are made where something needs those."""
        outputs = [self._like(value, self.kind) for value in node.outputs]
        self.nodes.append(node.replace(inputs=inputs, outputs=outputs))
        for value, made in zip(node.outputs, outputs):
            self.narrowed[value] = made
            if value in self.needs_wide:
                self.nodes.append(self._cast(made, value))
            else:
                self.only_narrow.add(value)

    # ------------------------------------------------------------------------------------------------ values

    def _like(self, value: Value, dtype: str) -> Value:
        return Value(self.names.fresh(f"{value.name}_{dtype}"), TensorType(dtype, value.tensor.shape))

    def _cast(self, source: Value, target: Value) -> Node:
        return Node("Cast", [source], [target], {"to": NUMBERS[target.tensor.dtype]}, target.name, "precision")

    def _narrow(self, value: Value) -> Value | None:
        """The narrow form of a value, made where it is first needed; None for a constant that would overflow."""
        found = self.narrowed.get(value)
        if found is not None:
            return found
        array = self.graph.constants.get(value)
        made = self._like(value, self.kind)
        if array is None:
            self.nodes.append(self._cast(value, made))
        else:
            with np.errstate(over="ignore"):
                converted = array.astype(NUMPY_TYPES[self.kind])
            if not np.array_equal(np.isfinite(converted.astype(np.float32)), np.isfinite(array)):
                return None
            self.constants[made] = converted
        self.narrowed[value] = made
        return made

    def _wide(self, value: Value | None, group: Group | None) -> Value | None:
        """The float32 form for a group: the value itself inside its own group, else a cast of what is stored."""
        if value is None or value not in self.narrowed or value in self.graph.constants:
            return value
        own = self.group_of.get(value) is group and value not in self.only_narrow
        if own or value in self.needs_wide or value in self.graph.inputs:
            return value
        made = self.widened.get((group, value))
        if made is None:
            made = self._like(value, "float32")
            self.nodes.append(self._cast(self.narrowed[value], made))
            self.widened[(group, value)] = made
        return made


def _reads(node: Node) -> Iterator[list[Value]]:
    """The values that a node and every graph inside it read."""
    yield [v for v in node.inputs if v is not None]
    for graph in node.graphs.values():
        for inner in all_graphs(graph):
            yield [v for n in inner.nodes for v in n.inputs if v is not None] + list(inner.outputs)
