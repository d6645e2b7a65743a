"""What is known of variables, and what follows from it for expressions.

In: integer or bool expressions and a `Ranges`. Out: constant intervals, proofs, and symbolic bounds.

    ranges = Ranges().with_size(n).with_loop(i, n).with_loop(j, 32)
    interval(j * 4 + 1, ranges)           (1, 125)
    prove(i < n, ranges)                  True
    upper_bound(i * 32 + j, {j}, ranges)  i*32 + 31

Index integers (int64) are mathematical integers here: they are taken never to overflow. Narrower and unsigned types
wrap, and every bound takes that into account. Data may be any number, so that what is computed from it may wrap; a
condition on such a sum or product is believed only where it says the same of both (`Ranges.with_condition`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from weft.core.dtypes import INDEX
from weft.expr.intervals import Interval, larger, smaller
from weft.expr.linear import Entry, Poly
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    Add,
    And,
    Buffer,
    Const,
    Expr,
    ExprLike,
    FloorDiv,
    Load,
    Min,
    Not,
    Or,
    Sub,
    Var,
    index_expr,
    logical_not,
)
from weft.expr.proof import Prover, lane_form
from weft.expr.structural import structural_key
from weft.expr.visit import uses_any

_ZERO, _ONE = index_expr(0), index_expr(1)


class Ranges:
    """What is known of variables: Var -> (low, high), both inclusive, constants or expressions of outer variables.

    A variable with no entry is completely unknown. The `with_…` methods give a new, larger Ranges and leave this one
    as it is; `bind` changes this one.
    """

    __slots__ = ("table", "facts", "values", "prover", "simplifier")

    def __init__(
        self,
        table: dict[Var, Entry] | None = None,
        facts: tuple[Expr, ...] = (),
        values: Mapping[Buffer, Interval] = MappingProxyType({}),
    ) -> None:
        self.table: dict[Var, Entry] = {} if table is None else table
        self.facts = facts  # index expressions known to be at least 0
        self.values = values  # between which numbers all elements of a buffer lie
        self.prover: Prover | None = None
        self.simplifier: Any = None  # where weft.expr.simplify keeps its work for these ranges

    def copy(self) -> Ranges:
        """The same knowledge, to be extended apart from this one."""
        return Ranges(dict(self.table), self.facts, self.values)

    def get(self, var: Var) -> tuple[Expr | None, Expr | None] | None:
        """The inclusive bounds of a variable (a side that is not bounded is None), or None if nothing is known."""
        entry = self.table.get(var)
        if entry is None:
            return None
        low, high, least, most = entry
        if low is None and least is not None:
            low = index_expr(least)
        if high is None and most is not None:
            high = index_expr(most)
        return low, high

    def __repr__(self) -> str:
        known = [f"{var.name} in {low!r}..{high!r}" for var, (low, high, _, _) in self.table.items()]
        return f"Ranges({', '.join([*known, *(f'{fact!r} >= 0' for fact in self.facts)])})"

    def __contains__(self, var: object) -> bool:
        return var in self.table

    def __iter__(self) -> Iterator[Var]:
        return iter(self.table)

    def with_loop(self, var: Var, extent: ExprLike) -> Ranges:
        """Inside a loop: the variable is in 0..extent-1, and the extent is at least 1."""
        result = Ranges(dict(self.table), self.facts, self.values)
        result._bind(var, extent, self)
        return result

    def with_range(self, var: Var, low: ExprLike, high: ExprLike) -> Ranges:
        """The variable is in low..high, both inclusive."""
        result = Ranges(dict(self.table), self.facts, self.values)
        result._enter(var, index_expr(low), index_expr(high))
        return result

    def with_interval(self, var: Var, found: Interval) -> Ranges:
        """The variable lies between two numbers."""
        result = Ranges(dict(self.table), self.facts, self.values)
        result._tighten(var, *found)
        return result

    def with_size(self, var: Var) -> Ranges:
        """The variable is a size: at least 0."""
        entry = self.table.get(var)
        if entry is not None and entry[2] is not None and entry[2] >= 0:
            return self
        result = Ranges(dict(self.table), self.facts, self.values)
        result._tighten(var, 0, None)
        return result

    def with_sizes(self, variables: Iterable[Var]) -> Ranges:
        """All of the variables are sizes."""
        result = Ranges(dict(self.table), self.facts, self.values)
        for var in variables:
            result._tighten(var, 0, None)
        return result

    def with_data(self, var: Var) -> Ranges:
        """The variable may be any number, as if it was read somewhere: sums and products of it may wrap."""
        place = Load(Buffer(var.name, INDEX, (1,)), (_ZERO,))
        return self.with_range(var, place, place)

    def with_condition(self, condition: Expr, prover: Prover | None = None) -> Ranges:
        """Where the condition holds: what it says of index expressions is known too. `prover`: one for these ranges."""
        result = Ranges(dict(self.table), self.facts, self.values)
        result._assume(condition, prover or self.knowledge())
        return result

    def bind(self, var: Var, extent: ExprLike) -> None:
        """Adds a loop to this Ranges in place. Only for loops that nest: that each runs at all is taken as known."""
        self._bind(var, extent, self)

    def _bind(self, var: Var, extent: ExprLike, outside: Ranges) -> None:
        if type(extent) is not int:
            extent = index_expr(extent)
            value = extent.value if type(extent) is Const else None
        else:
            value = extent
        self.prover = self.simplifier = None
        if self.facts and var in self.table:
            self.facts = tuple(fact for fact in self.facts if not uses_any(fact, {var}))
        self.table.pop(var, None)
        if value is not None:
            self.table[var] = (_ZERO, index_expr(value - 1), 0, value - 1)
            return
        assert isinstance(extent, Expr)
        high = Sub(extent, _ONE)
        self._assume_nonneg(high, outside.knowledge())
        self._enter(var, _ZERO, high)

    def knowledge(self) -> Prover:
        """The prover for these ranges, kept until they change."""
        found: Prover | None = self.simplifier or self.prover  # a simplifier is a prover, and may have done the work
        if found is None:
            found = self.prover = Prover(self.table, self.facts, self.values)
        return found

    def _enter(self, var: Var, low: Expr, high: Expr) -> None:
        self.prover = self.simplifier = None
        if self.facts and var in self.table:
            self.facts = tuple(fact for fact in self.facts if not uses_any(fact, {var}))
        self.table.pop(var, None)  # the innermost variable stands last
        least = low.value if type(low) is Const else None
        most = high.value if type(high) is Const else None
        self.table[var] = (low, high, least, most)

    def _tighten(self, var: Var, least: int | None, most: int | None) -> None:
        self.prover = self.simplifier = None
        low, high, old_least, old_most = self.table.get(var, (None, None, None, None))
        least, most = larger(old_least, least), smaller(old_most, most)
        if type(low) is Const and low.value != least:
            low = None
        if type(high) is Const and high.value != most:
            high = None
        self.table[var] = (low, high, least, most)

    def _assume(self, condition: Any, prover: Prover) -> None:
        doubtful: dict[Any, list[tuple[Any, str]]] = {}
        for part in _comparisons(condition):
            wrapping = [side for side in (part.a, part.b) if prover.may_wrap(side)]
            if not wrapping:
                self._assume_comparison(part, prover)
            elif len(wrapping) == 1 and _one_datum(wrapping[0], prover):
                other = part.b if wrapping[0] is part.a else part.a
                if not prover.is_data(other):
                    ends = "lh" if type(part) is EQ else "h" if other is part.b else "l"
                    doubtful.setdefault(structural_key(wrapping[0]), []).append((part, ends))
        for said in doubtful.values():
            # x + c between two sizes: then it has not wrapped. Of one end alone, x + c < 8, a huge x could be said.
            if {"l", "h"} <= {end for _, ends in said for end in ends}:
                for part, _ in said:
                    self._assume_comparison(part, prover)

    def _assume_comparison(self, e: Any, prover: Prover) -> None:
        gap = Sub(e.b, e.a)
        self._assume_nonneg(Sub(gap, _ONE) if type(e) is LT else gap, prover)
        if type(e) is EQ:
            self._assume_nonneg(Sub(e.a, e.b), prover)

    def _assume_nonneg(self, e: Expr, prover: Prover) -> None:
        """Records e >= 0: as the range of a variable where it is one, else as a fact."""
        self._assume_poly(prover, prover.difference(e), e)

    def _assume_poly(self, prover: Prover, p: Poly, e: Expr | None) -> None:
        terms, constant = p
        low = prover.interval_of(p)[0]
        if low is not None and low >= 0:
            return
        if len(terms) == 1:
            ((key, value),) = terms.items()
            if type(key) is Var:
                if value > 0:
                    self._tighten(key, -(constant // value), None)
                else:
                    self._tighten(key, None, constant // -value)
                return
            if abs(value) > 1:  # what is said of so many times a whole number says more of the number itself
                value, constant = (1, constant // value) if value > 0 else (-1, constant // -value)
                p, e = ({key: value}, constant), None
            if type(key) is tuple and constant < 0 < value and self._all_nonneg(prover, key):
                for factor in key:  # a positive product of sizes: every one of them is positive
                    self._assume_poly(prover, ({factor: 1}, -1), None)
            parts = prover.parts.get(key) if type(key) is not tuple else None
            if parts is not None and value == 1:
                kind, left, right = parts
                if kind is FloorDiv and type(right) is int:
                    return self._assume_poly(prover, (left[0], left[1] + constant * right), None)
                if kind is Min:
                    self._assume_poly(prover, (left[0], left[1] + constant), None)
                    return self._assume_poly(prover, (right[0], right[1] + constant), None)
            if parts is not None and value == -1 and parts[0] is Min:  # if it is not the one, it is the other
                for one, (rest, offset) in (parts[1:], parts[:0:-1]):
                    least = prover.interval_of(one)[0]
                    if least is not None and least > constant:
                        opposite = {term: -factor for term, factor in rest.items()}
                        return self._assume_poly(prover, (opposite, constant - offset), None)
        fact = prover.build(p) if e is None else e
        if not prover.chooses(terms):  # choices inside facts cost more than they tell
            self.facts = (*self.facts, fact)
            self.prover = self.simplifier = None

    def _all_nonneg(self, prover: Prover, factors: Iterable[Expr]) -> bool:
        lows = [prover.interval_of(({factor: 1}, 0))[0] for factor in factors]
        return all(low is not None and low >= 0 for low in lows)


def _comparisons(condition: Any) -> Iterator[Any]:
    """The comparisons of index expressions that hold where a condition does."""
    kind = type(condition)
    if kind is And:
        yield from _comparisons(condition.a)
        yield from _comparisons(condition.b)
    elif kind is Not:
        inner = condition.a
        if type(inner) is Or:
            yield from _comparisons(logical_not(inner.a))
            yield from _comparisons(logical_not(inner.b))
        elif type(inner) is not And:
            opposite = logical_not(inner)
            if type(opposite) is not Not:
                yield from _comparisons(opposite)
    elif kind in (LT, LE, EQ) and condition.a.dtype is INDEX:
        yield condition


def _one_datum(e: Any, prover: Prover) -> bool:
    """Whether an expression is one datum and something that is none, added or subtracted."""
    if type(e) is not Add and type(e) is not Sub:
        return not prover.may_wrap(e)
    if prover.is_data(e.b):
        return not prover.is_data(e.a) and _one_datum(e.b, prover)
    return _one_datum(e.a, prover)


def interval(e: Expr, ranges: Ranges) -> Interval:
    """Constant inclusive bounds of an integer or bool expression (of every lane); None is unbounded."""
    return ranges.knowledge().any_interval(e)


def prove(condition: Expr, ranges: Ranges) -> bool:
    """True only if the bool expression (every lane of it) always holds; False means that it is not known to."""
    return ranges.knowledge().proves(condition)


def _bound(e: Expr, eliminate: Iterable[Var], ranges: Ranges, upper: bool) -> Expr | None:
    if not (e.dtype.is_signed and e.dtype.bits == 64):
        return None
    prover = ranges.knowledge()
    variables = set(eliminate)
    scalar: Expr | None = e
    if e.dtype.lanes > 1:
        lane = prover.lane(e.dtype.lanes)
        variables.add(lane)
        scalar = lane_form(e, lane)
        if scalar is None:
            return None
    assert scalar is not None
    bound = prover.bound_without(prover.poly(scalar), variables, upper)
    return None if bound is None else prover.build(bound)


def upper_bound(e: Expr, eliminate: Iterable[Var], ranges: Ranges) -> Expr | None:
    """An inclusive upper bound of an index expression that does not speak of the given variables; None: not known."""
    return _bound(e, eliminate, ranges, upper=True)


def lower_bound(e: Expr, eliminate: Iterable[Var], ranges: Ranges) -> Expr | None:
    """An inclusive lower bound of an index expression that does not speak of the given variables; None: not known."""
    return _bound(e, eliminate, ranges, upper=False)


__all__ = ["Ranges", "interval", "lower_bound", "prove", "upper_bound"]
