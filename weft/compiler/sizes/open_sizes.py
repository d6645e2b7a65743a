"""Sizes that stay open in a compiled form: the numbers that a call finds from the shapes of its inputs.

In: the inputs of a graph, and the index expressions that its values, kernels and arena ask for. Out: Python source that
computes them all, once a call. For x: float32[n, 8] with an intermediate of [n, 32] and another of [2*n] it is

    def numbers(arrays):
        a0 = arrays[0].shape
        s0 = a0[0]
        n0 = s0
        n1 = s0 * 2
        if n0 < 1 or n1 < 1: return None
        b0 = (max(n0 * 128, n1 * 4) + 63) // 64 * 64        one slot of the arena, which the two share
        return (n0, n1), (0,), b0                           the sizes, the slots' offsets, and the arena's bytes

Kernels are made for sizes from 1 up. None is the answer for what is smaller, and for a size that two inputs give
differently: such a call is computed by the numpy meaning of the operators, which is right for every size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.lowering.memory import Life, meet
from weft.core.errors import WeftError
from weft.expr.nodes import Add, Const, Expr, FloorDiv, FloorMod, Max, Min, Mul, Sub, Var
from weft.expr.structural import structural_equal
from weft.graph.interpreter import operator_of
from weft.graph.ir import Dim, Graph, Node, TensorType, Value
from weft.graph.passes.dead import dead
from weft.graph.shapes import follows, product, times


class NoOpenForm(WeftError):
    """A graph that has no form for open sizes, with the reason."""


_INFIX: dict[type[Expr], str] = {Add: "+", Sub: "-", Mul: "*", FloorDiv: "//", FloorMod: "%"}
_CALLS: dict[type[Expr], str] = {Min: "min", Max: "max"}


class Numbers:
    """The table of numbers while a program is assembled: each expression once, by its place."""

    def __init__(self, graph: Graph) -> None:
        self.variables: dict[Var, str] = {}
        self.lines: list[str] = []
        self.expressions: list[Expr] = []
        self.arena: list[str] = []
        self.slots = 0
        for at, value in enumerate(graph.inputs):
            dims = value.type.shape if isinstance(value.type, TensorType) else None
            for axis, dim in enumerate(dims or ()):
                if not isinstance(dim, int):
                    self._read(dim, f"arrays[{at}].shape[{axis}]")
        sizes = set(graph.symbols.values())
        for var in graph.symbols.values():  # they come first: see `open_checks`
            self.place(var)
        for kind in [v.type for v in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))]:
            if isinstance(kind, TensorType) and follows(kind, sizes):
                self.shape(kind.dims)

    def _read(self, dim: Expr, source: str) -> None:
        if isinstance(dim, Var) and dim not in self.variables:
            self.variables[dim] = f"s{len(self.variables)}"
            self.lines.append(f"{self.variables[dim]} = {source}")
        else:
            self.lines.append(f"if {source} != {self.text(dim)}: return None")

    def text(self, e: Expr) -> str:
        """An expression as Python source."""
        if isinstance(e, Const):
            return str(int(e.value))
        if isinstance(e, Var) and e in self.variables:
            return self.variables[e]
        if type(e) in _INFIX:
            return f"({self.text(e.a)} {_INFIX[type(e)]} {self.text(e.b)})"  # type: ignore[attr-defined]
        if type(e) in _CALLS:
            return f"{_CALLS[type(e)]}({self.text(e.a)}, {self.text(e.b)})"  # type: ignore[attr-defined]
        raise NoOpenForm(f"the size {e!r} does not follow from the inputs' shapes")

    def place(self, dim: Expr) -> int:
        """Where the number of an expression stands."""
        for at, known in enumerate(self.expressions):
            if structural_equal(known, dim):
                return at
        self.text(dim)
        self.expressions.append(dim)
        return len(self.expressions) - 1

    def shape(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        """For each dimension its number, or ~place of it in the table."""
        return tuple(d if isinstance(d, int) else ~self.place(d) for d in dims)

    def plan(self, lives: Mapping[Value, tuple[TensorType, Life]], alignment: int) -> dict[Value, int]:
        """A slot of the arena for each value, shared by values that do not live together: the number of its offset.

        `lives` have the bytes at typical sizes, which say who shares with whom; what a slot takes is found in a call.
        """
        slots: list[list[Value]] = []
        for value, (_, life) in sorted(lives.items(), key=lambda item: (-item[1][1].bytes, item[1][1].first)):
            free = [s for s in slots if not any(meet(life, lives[other][1]) for other in s)]
            if free:
                free[0].append(value)
            else:
                slots.append([value])
        for number, slot in enumerate(slots):
            sizes = [times(product(kind.dims), int(kind.numpy.itemsize)) for kind in (lives[v][0] for v in slot)]
            texts = list(dict.fromkeys(str(s) if isinstance(s, int) else self.text(s) for s in sizes))
            whole = f"max({', '.join(texts)})" if len(texts) > 1 else texts[0]
            before = f"o{number - 1} + b{number - 1}" if number else "0"
            self.arena += [
                f"o{number} = {before}",
                f"b{number} = ({whole} + {alignment - 1}) // {alignment} * {alignment}",
            ]
        self.slots = len(slots)
        return {value: number for number, slot in enumerate(slots) for value in slot}

    def finish(self) -> str:
        """The source."""
        count = len(self.expressions)
        lines = [*self.lines, *(f"n{at} = {self.text(e)}" for at, e in enumerate(self.expressions))]
        if count:
            lines.append(f"if {' or '.join(f'n{at} < 1' for at in range(count))}: return None")
        total = f"o{self.slots - 1} + b{self.slots - 1}" if self.slots else "0"
        sizes, offsets = ("".join(f"{k}{at}, " for at in range(n)) for k, n in (("n", count), ("o", self.slots)))
        body = "\n    ".join([*lines, *self.arena, f"return ({sizes}), ({offsets}), {total}"])
        return f"def numbers(arrays):\n    {body}\n"


class _Unread(Value):
    """A shape operand that nothing reads."""

    __slots__ = ()


def is_unread(value: Value | None) -> bool:
    """Whether an operand was taken away because nothing reads it."""
    return isinstance(value, _Unread)


def unread_in(nodes: Iterable[Node]) -> dict[Value, Any]:
    """What stands for operands of nodes that were taken away: the least number that there is."""
    found = [v for node in nodes for v in node.inputs if isinstance(v, _Unread)]
    return {v: np.full(v.tensor.static, np.iinfo(v.tensor.numpy).min, v.tensor.numpy) for v in found}


def settle_shapes(graph: Graph) -> Graph:
    """The graph without the arithmetic of shapes that inference has followed.

        %s = Concat(Gather(Shape(%x), 0), [12, 64])         (gone)
        %y = Reshape(%x, %s) : float32[n, 12, 64]     ->    %y = Reshape(%x, %unread) : float32[n, 12, 64]

    What nothing reads would be refused as a size.
    """
    sizes = set(graph.symbols.values())
    constants = dict(graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        if all(follows(v.type, sizes) and v.tensor.core is not None for v in node.outputs):
            node = _without_operands(node, constants)
        nodes.append(node)
    return dead(graph.replace(nodes=nodes, constants=constants))


def check_operands(nodes: Sequence[Node]) -> None:
    """Refuses nodes on the host whose shape operands were taken away."""
    for node in nodes:
        if any(map(is_unread, node.inputs)):
            raise NoOpenForm(f"{node.describe()} has no kernel, and its sizes follow from open ones")


def _without_operands(node: Node, constants: dict[Value, Any]) -> Node:
    inputs = list(node.inputs)
    for at in operator_of(node).sizing:
        value = inputs[at] if at < len(inputs) else None
        if value is not None and value not in constants:
            kind = value.type
            if isinstance(kind, TensorType) and kind.is_static and kind.numpy.kind == "i":
                inputs[at] = _Unread(f"{value.name}_unread", kind)
    made = node.replace(inputs=inputs) if inputs != list(node.inputs) else node
    constants.update(unread_in([made]))
    return made
