"""Branches and loops as native code: an If, Loop or Scan with all that stands inside, lowered to one function.

In: a graph around a node with subgraphs, its inputs typed (sizes may be open). Out: a `Part`, of which
`llvm_ir.py` makes a function, or `NoControl` with the reason. Parts are kernels, views, and nodes of these kinds

    Branch   one of two parts, by a bool in memory
    Turns    a part again and again: states, rows that are read and kept, a condition
    Grow     something put behind a state: in its own memory where there is room (`llvm_ir.py`)
    Room     a size that is data: a number in memory
    Inner    the rest of a graph, whose sizes only a branch, a loop or a number has told

What a kernel cannot do has no place here: such a node runs on the host, and so does what is around it (`bodies.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from weft.compiler.kernels.build import Kernel, KernelCompiler
from weft.compiler.lowering.items import Item, Join, Launch, Rest, View, items_in_layouts, without_refused
from weft.compiler.passes import for_target, optimize
from weft.compiler.sizes.open_checks import conditions_of
from weft.compiler.sizes.open_sizes import settle_shapes
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.expr.nodes import Expr, Var
from weft.expr.structural import structural_equal
from weft.graph.ir import Array, Dim, Graph, Node, TensorType, Value, free_values
from weft.graph.passes.fuse import fuse
from weft.graph.passes.layout import Layout
from weft.graph.passes.support import substitute_values
from weft.graph.passes.update_caches import DOMAIN
from weft.graph.shapes import normal_axis, unknown_dim
from weft.targets.base import Target

APPEND = "Append"
"""A Concat that puts one value behind another, along their outermost axis."""

DECLINED = -1
"""The code of a call that meets sizes which no kernel is made for: the host computes it."""

STOPPED = -2
"""The code of a call during which the handler of a signal raised."""


class NoControl(WeftError):
    """What has no native form, with the reason."""


@dataclass
class Inner:
    """A part that is run inside another, and the values of the other that it takes, behind inputs of its own."""

    part: Part
    captured: list[Value]
    outputs: list[Value] = field(default_factory=list)
    """Of the rest of a graph: the values that it makes."""


@dataclass
class Branch:
    """An If."""

    node: Node
    condition: Value
    then: Inner
    other: Inner


@dataclass
class Turns:
    """A Loop or Scan: inputs of the body are `skip` others (the turn and the condition), states, rows, captured."""

    node: Node
    limit: Value | None
    condition: Value | None
    states: list[Value]
    rows: list[tuple[Value, bool]]
    kept_back: list[bool]
    skip: int
    body: Inner


@dataclass
class Grow:
    """A value put behind another."""

    before: Value
    behind: Value
    output: Value


@dataclass
class Room:
    """A value that nobody reads, as long as a number says."""

    count: Value
    output: Value


ControlItem = Union[Launch, View, Branch, Turns, Grow, Room, Inner]


@dataclass
class Part:
    """A graph, and what is done in order; `equations` are what open sizes must fulfil (one of each list)."""

    graph: Graph
    items: list[ControlItem]
    layouts: Mapping[Value, Layout]
    equations: list[list[tuple[str, str | int]]]


class Builder:
    """Makes parts, and gathers their kernels."""

    def __init__(self, target: Target, precision: str | None) -> None:
        self.target, self.precision = target, precision
        self.kernels: dict[str, Kernel] = {}

    def part(self, graph: Graph, values: Mapping[str, Array] | None = None) -> Part:
        """The part of a graph that takes nothing from outside."""
        graph = for_target(optimize(graph, {}, values or {}), self.target, self.precision)
        graph = graph.replace(nodes=[_append(made) for node in graph.nodes for made in _along_first(node)])
        compiler = KernelCompiler(self.target)
        try:
            if graph.symbols:
                compiler.whole, graph = graph, settle_shapes(graph)
            groups = fuse(graph) if knobs.fuse else fuse(graph, most_nodes=1)
            items = items_in_layouts(graph, groups, compiler)
            while compiler.finish():
                items = without_refused(items, graph.constants, compiler)
            layouts = compiler.layouts
        finally:
            compiler.close()
        equations = conditions_of(graph, {}).equations() if graph.symbols else []
        if equations is None:
            raise NoControl("its sizes must fulfil what cannot be asked in native code")
        for value in (*graph.inputs, *graph.outputs):
            _check(value)
        made = [self.item(item, graph) for item in items]
        return Part(graph, made, layouts, equations)

    def item(self, item: Item, graph: Graph) -> ControlItem:
        """What stands for an item of a program."""
        if isinstance(item, Launch):
            for value in item.writes:
                _check(value)
            self.kernels[item.kernel.symbol] = item.kernel
            return item
        if isinstance(item, View):
            return item
        if isinstance(item, Rest):
            return Inner(self.part(closed(item.graph)), list(item.graph.inputs), list(item.graph.outputs))
        assert not isinstance(item, Join)
        node = item.node
        for value in node.outputs:
            _check(value)
        if (node.op, node.domain) == (APPEND, DOMAIN):
            before, behind = node.inputs
            assert before is not None and behind is not None
            return Grow(before, behind, node.outputs[0])
        if (node.op, node.domain) == ("Room", "weft"):
            (count,) = node.inputs
            assert count is not None
            return Room(count, node.outputs[0])
        build = None if node.domain else _NATIVE.get(node.op)
        if build is None:
            raise NoControl(f"{node.describe()} runs on the host: {item.reason}")
        return build(self, node, graph)

    def inner(self, body: Graph, around: Graph) -> Inner:
        """A subgraph as a part of its own."""
        outside = list(dict.fromkeys(free_values(body)))
        captured = [value for value in outside if value not in around.constants]
        known = {value: around.constants[value] for value in outside if value in around.constants}
        whole = body.replace(inputs=[*body.inputs, *captured], constants={**body.constants, **known})
        return Inner(self.part(closed(whole)), captured)

    def branch(self, node: Node, around: Graph) -> Branch:
        """An If."""
        (condition,) = node.inputs
        assert condition is not None
        _check_one(condition, "bool")
        then, other = (self.inner(node.graphs[key], around) for key in ("then_branch", "else_branch"))
        return Branch(node, condition, then, other)

    def turns(self, node: Node, around: Graph) -> Turns:
        """A Loop or Scan."""
        body = node.graphs["body"]
        if node.op == "Loop":
            limit, condition, *states = [*node.inputs, None, None][: max(len(node.inputs), 2)]
            if limit is not None:
                _check_one(limit, "int")
            if condition is not None:
                _check_one(condition, "bool")
            _check_one(body.outputs[0], "bool")
            known = [value for value in states if value is not None]
            if len(known) != len(states):
                raise NoControl(f"{node.describe()} leaves a state out")
            kept = len(body.outputs) - 1 - len(states)
            return Turns(node, limit, condition, known, [], [False] * kept, 2, self.inner(body, around))
        count = int(node.attributes["num_scan_inputs"])
        states, rows = list(node.inputs[: len(node.inputs) - count]), list(node.inputs[len(node.inputs) - count :])
        kept = len(body.outputs) - len(states)
        backs = [bool(one) for one in _numbers(node, "scan_input_directions", count)]
        kept_back = [bool(one) for one in _numbers(node, "scan_output_directions", kept)]
        return Turns(node, None, None, states, list(zip(rows, backs)), kept_back, 0, self.inner(body, around))  # type: ignore[arg-type]


_NATIVE: dict[str, Callable[[Builder, Node, Graph], ControlItem]] = {
    "If": Builder.branch, "Loop": Builder.turns, "Scan": Builder.turns,
}  # fmt: skip


def _numbers(node: Node, name: str, count: int) -> list[int]:
    return [int(one) for one in node.attributes.get(name) or [0] * count]


def _check(value: Value) -> None:
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or kind.core is None:
        raise NoControl(f"{value.name!r} is {kind!r}")


def _check_one(value: Value, kind: str) -> None:
    _check(value)
    if not value.tensor.dtype.startswith(kind) or not value.tensor.is_static or np.prod(value.tensor.static) != 1:
        raise NoControl(f"{value.name!r} is {value.type!r}, not one {kind}")


def closed(graph: Graph) -> Graph:
    """The graph with inputs that have names of their own, and sizes that are numbers or plain symbols."""
    found: list[tuple[Expr, Var]] = []
    new = {}
    for at, value in enumerate(graph.inputs):
        kind = value.type
        if isinstance(kind, TensorType) and kind.shape is not None:
            kind = TensorType(kind.dtype, [_symbol(dim, found) for dim in kind.shape])
        new[value] = Value(input_name(at), kind)
    return substitute_values(graph, new)


def input_name(at: int) -> str:
    """The name of an input of a closed graph."""
    return f"given_{at}"


def _symbol(dim: Dim, found: list[tuple[Expr, Var]]) -> Dim:
    if isinstance(dim, (int, Var)):
        return dim
    known = next((var for other, var in found if structural_equal(other, dim)), None)
    if known is None:
        known = unknown_dim("made")
        found.append((dim, known))
    return known


def _along_first(node: Node) -> list[Node]:
    """A Scan that reads and keeps rows along the first axis, with transpositions around it."""
    if node.op != "Scan" or node.domain:
        return [node]
    count = int(node.attributes["num_scan_inputs"])
    states = len(node.inputs) - count
    inputs, outputs = list(node.inputs), list(node.outputs)
    before, after = [], []
    for at, axis in enumerate(_numbers(node, "scan_input_axes", count), states):
        value = inputs[at]
        order = None if value is None else _order(value, axis)
        if value is not None and order is not None:
            inputs[at] = rows = _moved(value, order)
            before.append(Node("Transpose", [value], [rows], {"perm": order}))
    for at, axis in enumerate(_numbers(node, "scan_output_axes", len(outputs) - states), states):
        order = _order(outputs[at], axis)
        if order is not None:
            made = _moved(outputs[at], order)
            back = [order.index(place) for place in range(len(order))]
            after.append(Node("Transpose", [made], [outputs[at]], {"perm": back}))
            outputs[at] = made
    axes = {"scan_input_axes": [0] * count, "scan_output_axes": [0] * (len(outputs) - states)}
    return [*before, node.replace(inputs=inputs, outputs=outputs, attributes={**node.attributes, **axes}), *after]


def _order(value: Value, axis: int) -> list[int] | None:
    """The axes of a value with one moved to the front; None where it is there."""
    _check(value)
    rank = len(value.tensor.dims)
    first = normal_axis(axis, rank)
    return [first, *(at for at in range(rank) if at != first)] if first else None


def _moved(value: Value, order: Sequence[int]) -> Value:
    kind = value.tensor
    return Value(f"{value.name}_rows", TensorType(kind.dtype, [kind.dims[at] for at in order]))


def _append(node: Node) -> Node:
    """`Append` for a Concat that only makes a value longer which is open along its first axis."""
    if node.op != "Concat" or node.domain or len(node.inputs) != 2 or None in node.inputs:
        return node
    before = node.inputs[0].type  # type: ignore[union-attr]
    if not isinstance(before, TensorType) or before.shape is None or not isinstance(node.outputs[0].type, TensorType):
        return node
    axis = normal_axis(int(node.attributes.get("axis", 0)), len(before.shape))
    if isinstance(before.shape[axis], int) or any(dim != 1 for dim in before.shape[:axis]):
        return node
    return node.replace(op=APPEND, domain=DOMAIN)
