"""Patterns as data: what a rule looks for, written as the nodes that it is made of.

    x = Anything()
    SQUARE = Op("Mul", x, x) | Op("Pow", x, Number(2.0))
    found = SQUARE.find(node, scope)                          found[x] is the value that x stands for

A pattern that stands in several places stands for one value. Operands of what commutes are tried in both orders. A
match is found only if nothing outside reads the values inside of it, which are about to go; what a `Shared` pattern
matches may be read by others too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Union

from weft.graph.ir import Node, Value
from weft.graph.opspec import has
from weft.graph.passes.support import Scope


class Match:
    """What the patterns stand for so far, and how often each value inside is read by them."""

    __slots__ = ("numbers", "reads", "values")

    def __init__(
        self, values: Mapping[Pattern, Value], numbers: Mapping[Pattern, float], reads: Mapping[Value, int]
    ) -> None:
        self.values, self.numbers, self.reads = values, numbers, reads

    def __getitem__(self, pattern: Pattern) -> Value:
        return self.values[pattern]

    def binding(self, pattern: Pattern, value: Value) -> Match:
        """The match in which a pattern stands for a value."""
        return Match({**self.values, pattern: value}, self.numbers, self.reads)

    def reading(self, value: Value) -> Match:
        """The match that reads a value inside once more."""
        return Match(self.values, self.numbers, {**self.reads, value: self.reads.get(value, 0) + 1})


class Pattern:
    """One value of a pattern."""

    ops: frozenset[str] = frozenset()
    """The operators of which one must have made it; empty: whatever did. Most values are ruled out by that."""

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def find(self, node: Node, scope: Scope, is_closed: bool = True) -> Match | None:
        """What the pattern stands for at a node; None where it does not match, or others read what is inside."""
        if self.ops and node.op not in self.ops:
            return None
        for found in self.nodes(node, scope, Match({}, {}, {})):
            if not is_closed or all(scope.uses[value] == count for value, count in found.reads.items()):
                return found
        return None

    def may_be(self, value: Value | None, scope: Scope) -> bool:
        """Whether an operator has made the value that may have made it."""
        node = scope.producer(value) if self.ops else None
        return not self.ops or (node is not None and node.op in self.ops)

    def matches(self, value: Value | None, scope: Scope, match: Match) -> Iterator[Match]:
        """The ways in which the pattern stands for a value."""
        if value is None:
            return
        if self in match.values:
            if match.values[self] is value:
                yield match.reading(value) if value in match.reads else match
            return
        for found in self.values(value, scope, match):
            yield found.binding(self, value)

    def values(self, value: Value, scope: Scope, match: Match) -> Iterator[Match]:
        """The ways in which it stands for a value for the first time."""
        node = scope.producer(value)
        if node is not None:
            yield from self.nodes(node, scope, match.reading(value))

    def nodes(self, node: Node, scope: Scope, match: Match) -> Iterator[Match]:
        """The ways in which it stands for the result of a node."""
        yield from ()


class Anything(Pattern):
    """Any value."""

    def values(self, value: Value, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        yield match


class Number(Pattern):
    """A constant of one element: any, this number, or with `near` one that rounds to it in the type of the values."""

    def __init__(self, wanted: float | None = None, near: bool = False) -> None:
        self.wanted, self.near = wanted, near

    def accepts(self, number: float, like: Value) -> bool:
        """Whether it stands for a number, beside a value."""
        if self.wanted is None or not self.near:
            return self.wanted in (None, number)
        close = 1e-5 if like.tensor.dtype in ("float32", "float64") else 5e-3
        return abs(number - self.wanted) <= close * abs(self.wanted)

    def values(self, value: Value, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        number = scope.scalar(value)
        if number is not None and self.accepts(number, value):
            yield Match(match.values, {**match.numbers, self: number}, match.reads)


class Op(Pattern):
    """The result of an operator of just these inputs."""

    def __init__(self, op: str, *inputs: Pattern) -> None:
        self.op, self.inputs, self.ops = op, inputs, frozenset((op,))

    def nodes(self, node: Node, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        if node.op != self.op or node.domain or len(node.inputs) != len(self.inputs):
            return
        for inputs in (self.inputs, self.inputs[::-1])[: 1 + has(node, "commutes")]:
            if all(one.may_be(value, scope) for one, value in zip(inputs, node.inputs)):
                yield from _each(inputs, node.inputs, scope, match)


def _each(patterns: Sequence[Pattern], values: Sequence[Value | None], scope: Scope, match: Match) -> Iterator[Match]:
    """The ways in which patterns stand for values, one for one."""
    if not patterns:
        yield match
        return
    for found in patterns[0].matches(values[0], scope, match):
        yield from _each(patterns[1:], values[1:], scope, found)


class Either(Pattern):
    """One of several patterns."""

    def __init__(self, *choices: Pattern) -> None:
        self.choices = choices
        self.ops = frozenset().union(*(one.ops for one in choices)) if all(one.ops for one in choices) else frozenset()

    def values(self, value: Value, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        for choice in self.choices:
            yield from choice.matches(value, scope, match)

    def nodes(self, node: Node, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        for choice in self.choices:
            yield from choice.nodes(node, scope, match)


class Shared(Pattern):
    """A pattern whose values others may read, too."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern, self.ops = pattern, pattern.ops

    def values(self, value: Value, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        for found in self.pattern.matches(value, scope, match):
            yield Match(found.values, found.numbers, match.reads)


class Product(Pattern):
    """A number times some values, however it is written: (x * 2) * y, x * (y / 0.5), …"""

    def __init__(self, number: Union[float, Number], *factors: Pattern) -> None:
        self.number = number if isinstance(number, Number) else Number(number, near=number != 1)
        self.factors = factors

    def values(self, value: Value, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        yield from self._factors(_flat(value, scope), value, scope, match)

    def nodes(self, node: Node, scope: Scope, match: Match) -> Iterator[Match]:
        """See Pattern."""
        yield from self._factors(_flat(node.outputs[0], scope, node), node.outputs[0], scope, match)

    def _factors(self, product: tuple[float, list[Value]], whole: Value, scope: Scope, match: Match) -> Iterator[Match]:
        number, values = product
        if len(values) != len(self.factors) or not math.isfinite(number) or not self.number.accepts(number, whole):
            return
        known = Match(match.values, {**match.numbers, self.number: number}, match.reads)
        for order in itertools.permutations(values):
            if all(one.may_be(value, scope) for one, value in zip(self.factors, order)):
                yield from _each(self.factors, order, scope, known)


def _flat(value: Value | None, scope: Scope, root: Node | None = None) -> tuple[float, list[Value]]:
    """A value as a number times others, through products that nothing else reads."""
    number = scope.scalar(value)
    if number is not None:
        return number, []
    node = root or scope.single(value, "Mul", "Div")
    if node is not None and node.op == "Mul":
        (a, left), (b, right) = (_flat(one, scope) for one in node.inputs)
        return a * b, left + right
    divisor = scope.scalar(node.inputs[1]) if node is not None and node.op == "Div" else None
    if node is not None and divisor:
        number, values = _flat(node.inputs[0], scope)
        return number / divisor, values
    return 1.0, [] if value is None else [value]
