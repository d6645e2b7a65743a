"""Simplification of expressions, given what is known of their variables.

In: an expression and a `Ranges`. Out: an expression of the same value at every point of the ranges; the same object
where there is nothing to do.

    (yo*32 + yi) // 32                 yo                 with yi in 0..31
    (x // 4)*4 + x % 4                 x
    (i*n + j) % n                      j                  with j in 0..n-1
    i*4 + 3 < 16                       i < 4
    Ramp(k*32, 1, 16) // Broadcast(32) Broadcast(k)
    select(i < 8, min(i, 8), 0)        select(i < 8, i, 0)

Index arithmetic (int64) is put into the normal form of `weft.expr.linear`. Narrower and unsigned integers wrap, so for
them only what holds for wrapping numbers is done. Float arithmetic keeps its value to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from weft.core.dtypes import INDEX
from weft.expr.bounds import Ranges
from weft.expr.linear import Entry, Poly, add_scaled, same_arithmetic
from weft.expr.nodes import (
    BINARY,
    COMPARE,
    EQ,
    FALSE,
    FOLD,
    LE,
    LT,
    NE,
    NODES,
    TRUE,
    Add,
    And,
    Binary,
    Broadcast,
    Cast,
    Compare,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    cast,
    const,
    is_false,
    is_true,
    logical_not,
    select,
    wrap,
)
from weft.expr.proof import Prover, lane_form
from weft.expr.value_rules import FLOAT, WRAPPING, compare_bools, convert_literal, same_value, skips, zero_divisor
from weft.expr.visit import children, map_all, rebuild, uses_any

_ARITHMETIC = frozenset((Add, Sub, Mul, FloorDiv, FloorMod, Min, Max))

_DECIDABLE = frozenset((FloorDiv, FloorMod, TruncDiv, TruncMod, Min, Max, EQ, NE, LT, LE, Select))
_DEEPEST = 4
"""How many conditions around an expression are made use of."""


def simplify(e: Expr, ranges: Ranges | None = None) -> Expr:
    """An expression of the same value everywhere in the ranges, in normal form; the same object if nothing changed."""
    kind = type(e)
    if kind is Var or kind is Const:
        return e
    return simplifier_for(Ranges() if ranges is None else ranges).visit(e)


def simplifier_for(ranges: Ranges) -> Simplifier:
    """The simplifier that works with these ranges, kept on them until they change."""
    found = ranges.simplifier
    if found is None:
        found = ranges.simplifier = Simplifier(ranges.table, ranges.facts)
    assert isinstance(found, Simplifier)
    return found


class Simplifier(Prover):
    """Rewrites every kind of node, bottom up; index arithmetic through the normal form."""

    def __init__(self, table: dict[Var, Entry], facts: tuple[Expr, ...]) -> None:
        super().__init__(table, facts)
        self.done: dict[int, tuple[Expr, Expr]] = {}  # by id; the node is kept so that the id stays its own
        self.depth = 0  # conditions assumed
        self.heads: dict[int, tuple[Expr, Expr, int] | None] = {}  # by id: the node, its terms, its constant

    def visit(self, e: Expr) -> Expr:
        """The simplified expression."""
        kind = type(e)
        if kind is Var or kind is Const:
            return e
        found = self.done.get(id(e))
        if found is None:
            if isinstance(e, Binary) and e.dtype is INDEX and kind in _ARITHMETIC:
                result = self.arithmetic(e)
            else:
                result = _RULES[kind](self, e)
            found = self.done[id(e)] = (e, result)
            if result is not e:
                self.done.setdefault(id(result), (result, result))
        return found[1]

    def opaque(self, e: Expr) -> Poly:
        """A node that is not index arithmetic: simplified first, as that may make arithmetic of it."""
        new = self.visit(e)
        if type(new) in _ARITHMETIC or type(new) is Var or type(new) is Const:
            return self.poly(new)
        return super().opaque(new)

    def arithmetic(self, e: Binary) -> Expr:
        """Index arithmetic, in normal form."""
        kind = type(e)
        a, b = e.a, e.b
        if type(b) is Const and (kind is Add or kind is Sub) and type(a) is not Const:
            head = self.heads[id(a)] if id(a) in self.heads else self.head(a)
            if head is not None:
                _, terms, constant = head
                total = constant + b.value if kind is Add else constant - b.value
                if terms is a and total and (total > 0) is (kind is Add) and not constant:
                    return e
                return _shifted(terms, total)
        outer, self.effects = self.effects, False
        p = self.poly(e)
        effects, self.effects = self.effects, outer
        if effects:
            return rebuild(e, self.visit)
        new = self.build(p)
        return e if same_arithmetic(e, new) else new

    def head(self, e: Expr) -> tuple[Expr, Expr, int] | None:
        """What a sum is to which constants are added: its terms in normal form, and its own constant.

        None where a constant would come first (it has no term that is added), or where there are effects.
        """
        outer, self.effects = self.effects, False
        terms, constant = self.poly(e)
        effects, self.effects = self.effects, outer
        found = None
        if not effects and any(value > 0 for value in terms.values()):
            new = self.build((terms, 0))
            found = (e, e if same_arithmetic(e, new) else new, constant)
            self.heads[id(e)] = found
        return found

    def assuming(self, condition: Expr, arm: Expr) -> Simplifier:
        """The simplifier for where the condition holds (this one, where the condition could not help the arm)."""
        if condition.dtype.lanes != 1 or self.depth >= _DEEPEST or not _may_gain(arm) or not _tells(condition):
            return self
        if self.variables_of(condition).isdisjoint(self.variables_of(arm)):
            return self
        inner = simplifier_for(Ranges(self.table, self.facts).with_condition(condition, self))
        inner.depth = self.depth + 1
        return inner

    # -------------------------------------------------------------------------------------------- wrapping and floats

    def binary(self, e: Binary) -> Expr:
        """A two-sided node that is not scalar index arithmetic."""
        kind = type(e)
        if e.dtype.lanes > 1:
            made = self.vector(e)
            if made is not None:
                return made
        a, b = self.visit(e.a), self.visit(e.b)
        if type(a) is Broadcast and type(b) is Broadcast:
            return Broadcast(self.visit(kind(a.value, b.value)), a.lanes)
        rules = FLOAT if e.dtype.is_float else WRAPPING
        rule = rules.get(kind)
        result: Expr | None = None if rule is None else rule(self, a, b)
        if result is not None:
            return result
        if type(a) is Const and type(b) is Const and e.dtype.is_integer and not zero_divisor(kind, b):
            return FOLD[kind](a, b)
        new: Expr = e if a is e.a and b is e.b else kind(a, b)
        found = self.vector(new) if new is not e and e.dtype.lanes > 1 else None
        return new if found is None else found

    # ----------------------------------------------------------------------------------------------------- comparison

    def compare(self, e: Compare) -> Expr:
        """EQ, NE, LT, LE."""
        kind = type(e)
        if e.a.dtype is INDEX:
            return self.compare_indices(kind, e)
        if e.dtype.lanes > 1:
            return self.compare_vectors(kind, e)
        a, b = self.visit(e.a), self.visit(e.b)
        new: Expr = e if a is e.a and b is e.b else kind(a, b)
        if not a.dtype.is_integer:
            return new if a.dtype.is_float else compare_bools(kind, a, b, new)
        if self.proves(new):
            return TRUE
        if self.proves_not(new):
            return FALSE
        if same_value(a, b):
            return FALSE if kind in (NE, LT) else TRUE
        return new

    def compare_indices(self, kind: type[Compare], e: Compare) -> Expr:
        """A comparison of index expressions: decided, or with common terms and factors cancelled."""
        outer, self.effects = self.effects, False
        left, right = self.poly(e.a), self.poly(e.b)
        effects, self.effects = self.effects, outer
        if effects:
            return rebuild(e, self.visit)
        difference = add_scaled(left, right, -1)
        decided = self.decide(kind, difference)
        if decided is not None:
            return TRUE if decided else FALSE
        shared = not left[0].keys().isdisjoint(right[0].keys()) or (left[1] and right[1])
        reduced = self.reduce(kind, difference)
        if reduced is None:
            return FALSE if kind is EQ else TRUE
        negative = any(value < 0 for value in (*left[0].values(), *right[0].values()))
        if shared or negative or reduced[0] is not difference[0] or (not right[0] and left[1]):
            left, right = _two_sides(reduced)
        elif not left[0] and kind in (EQ, NE):
            left, right = right, left
        a, b = self.build(left), self.build(right)
        return e if same_arithmetic(e.a, a) and same_arithmetic(e.b, b) else kind(a, b)

    def decide(self, kind: type[Expr], difference: Poly) -> bool | None:
        """The truth of `difference (kind) 0`, where the ranges decide it."""
        terms, constant = difference
        opposite = ({key: -value for key, value in terms.items()}, -constant)
        if kind is LT or kind is LE:
            gap = 1 if kind is LT else 0
            if self.nonneg((opposite[0], opposite[1] - gap)):
                return True
            return False if self.nonneg((terms, constant - 1 + gap)) else None
        if not terms:
            return (constant == 0) == (kind is EQ)
        if self.nonneg((terms, constant - 1)) or self.nonneg((opposite[0], opposite[1] - 1)):
            return kind is NE
        if self.nonneg(difference) and self.nonneg(opposite):
            return kind is EQ
        return None

    def reduce(self, kind: type[Expr], difference: Poly) -> Poly | None:
        """`difference (kind) 0` divided by what divides its terms; None where an equation has no solution."""
        terms, constant = difference
        if kind is LE:  # p <= 0 is p - 1 < 0, and the division below rounds the way that < needs
            reduced = self.reduce(LT, (terms, constant - 1))
            assert reduced is not None
            return difference if reduced[0] is terms else (reduced[0], reduced[1] + 1)
        factors = {abs(value) for value in terms.values()}
        common = gcd(*factors)
        if kind is not LT:
            if common == 1:
                return difference
            if constant % common:
                return None
            return {key: value // common for key, value in terms.items()}, constant // common
        for g in sorted({gcd(value, max(factors)) for value in factors} | factors, reverse=True):
            if g == 1:
                break
            small = {key: value for key, value in terms.items() if value % g}
            low, high = self.interval_of((small, constant))
            if low is not None and high is not None and low // g == high // g:
                return {key: value // g for key, value in terms.items() if not value % g}, low // g
        return difference

    def compare_vectors(self, kind: type[Compare], e: Compare) -> Expr:
        """A comparison lane by lane: one truth for all lanes where there is one."""
        lanes = e.dtype.lanes
        a, b = self.visit(e.a), self.visit(e.b)
        if type(a) is Broadcast and type(b) is Broadcast:
            return Broadcast(self.visit(kind(a.value, b.value)), lanes)
        new = e if a is e.a and b is e.b else kind(a, b)
        if self.proves(new):
            return Broadcast(TRUE, lanes)
        if self.proves_not(new):
            return Broadcast(FALSE, lanes)
        if a.dtype.scalar is INDEX:
            lane = self.lane(lanes)
            left, right = lane_form(a, lane), lane_form(b, lane)
            if left is not None and right is not None:
                scalar = self.visit(kind(left, right))
                if not uses_any(scalar, {lane}):
                    return Broadcast(scalar, lanes)
        return new

    # ---------------------------------------------------------------------------------------------------- connectives

    def connective(self, e: Compare) -> Expr:
        """And, Or: the right side is only reached where the left one is true (and: false), so it may use that."""
        conjunction = type(e) is And
        a = self.visit(e.a)
        settles, passes = (is_false, is_true) if conjunction else (is_true, is_false)
        if settles(a):
            return a
        if passes(a):
            return self.visit(e.b)
        inside = self.assuming(a if conjunction else logical_not(a), e.b)
        b = inside.visit(e.b)
        if passes(b) or same_value(a, b):
            return a
        if settles(b):
            return b
        if type(a) is Broadcast and type(b) is Broadcast:
            return Broadcast(self.visit(type(e)(a.value, b.value)), a.lanes)
        new: Expr = e if a is e.a and b is e.b else type(e)(a, b)
        return new

    def negation(self, e: Not) -> Expr:
        """Not."""
        a = self.visit(e.a)
        if type(a) is Broadcast:
            return Broadcast(self.visit(logical_not(a.value)), a.lanes)
        new = logical_not(a)
        if type(new) is not Not:
            return self.visit(new)
        return e if a is e.a else new

    def choice(self, e: Select) -> Expr:
        """Select: a decided condition picks its arm; an arm may use the condition."""
        condition = self.visit(e.condition)
        if is_true(condition):
            return self.visit(e.then)
        if is_false(condition):
            return self.visit(e.otherwise)
        then, otherwise = e.then, e.otherwise
        if type(condition) is Not:
            condition, then, otherwise = condition.a, otherwise, then
        then = self.assuming(condition, then).visit(then)
        otherwise = self.assuming(logical_not(condition), otherwise).visit(otherwise)
        if same_value(then, otherwise):
            return then
        if is_true(then) and is_false(otherwise):
            return condition
        if type(condition) is Broadcast and type(then) is Broadcast and type(otherwise) is Broadcast:
            return Broadcast(self.visit(Select(condition.value, then.value, otherwise.value)), then.lanes)
        same = condition is e.condition and then is e.then and otherwise is e.otherwise
        new: Expr = e if same else select(condition, then, otherwise)
        return new

    # ----------------------------------------------------------------------------------------------------- other nodes

    def conversion(self, e: Cast) -> Expr:
        """Cast: literals convert, and a conversion that loses nothing is skipped by the next one."""
        value, to = self.visit(e.value), e.dtype
        if type(value) is Broadcast:
            return Broadcast(self.visit(Cast(to.scalar, value.value)), to.lanes)
        while type(value) is Cast and skips(value.value.dtype.scalar, value.dtype.scalar, to.scalar):
            value = value.value
        if value.dtype is to:
            return value
        if type(value) is Const:
            return convert_literal(value, to)
        return e if value is e.value else cast(value, to)

    def load(self, e: Load) -> Expr:
        """Load: a gather of one and the same element is one load."""
        indices = map_all(e.indices, self.visit)
        vectors = [index for index in indices if index.dtype.lanes > 1]
        if vectors and all(type(index) is Broadcast for index in vectors):
            scalars = [index.value if type(index) is Broadcast else index for index in indices]
            return Broadcast(Load(e.buffer, scalars), vectors[0].dtype.lanes)
        return e if indices is e.indices else Load(e.buffer, indices)

    def generic(self, e: Expr) -> Expr:
        """Any node of which only the parts are simplified."""
        return rebuild(e, self.visit)

    # --------------------------------------------------------------------------------------------------------- vectors

    def ramp(self, e: Ramp) -> Expr:
        """Ramp: with a stride of 0 it is a Broadcast."""
        base, stride = self.visit(e.base), self.visit(e.stride)
        if e.lanes == 1:
            return base
        if type(stride) is Const and stride.value == 0 and stride.dtype.is_integer:
            return Broadcast(base, e.lanes)
        return e if base is e.base and stride is e.stride else Ramp(base, stride, e.lanes)

    def broadcast(self, e: Broadcast) -> Expr:
        """Broadcast: one lane is the scalar itself."""
        value = self.visit(e.value)
        if e.lanes == 1:
            return value
        return e if value is e.value else Broadcast(value, e.lanes)

    def vector(self, e: Expr) -> Expr | None:
        """Vector index arithmetic, through the normal form of what one lane holds; None if it is something else."""
        if e.dtype.scalar is not INDEX or type(e) not in _ARITHMETIC:
            return None
        lanes = e.dtype.lanes
        scalar = lane_form(e, self.lane(lanes))
        if scalar is None:
            return None
        outer, self.effects = self.effects, False
        p = self.poly(scalar)
        effects, self.effects = self.effects, outer
        if effects:
            return None
        new = self.spread(p, lanes)
        return e if same_value(e, new) else new

    def spread(self, p: Poly, lanes: int) -> Expr:
        """The vector whose lane number `lane` holds the polynomial p."""
        lane = self.lane(lanes)
        base: Poly = ({}, p[1])
        stride: Poly = ({}, 0)
        others: list[tuple[Any, int]] = []
        for key, value in p[0].items():
            if key is lane:
                stride = add_scaled(stride, ({}, 1), value)
            elif lane not in self.mentioned({key: 1}):
                base[0][key] = value
            elif type(key) is tuple and key.count(lane) == 1 and not self.nested(key, lane):
                rest = list(key)
                rest.remove(lane)
                stride = add_scaled(stride, ({self.monomial(*rest): 1}, 0), value)
            else:
                others.append((key, value))
        result: Expr | None = None
        if stride[0] or stride[1]:
            result = Ramp(self.build(base), self.build(stride), lanes)
        elif base[0] or base[1] or not others:
            result = Broadcast(self.build(base), lanes)
        for key, value in others:
            term = self.spread_atom(key, lanes)
            if abs(value) != 1 or (value < 0 and result is None):
                term = Mul(term, Broadcast(const(value if result is None else abs(value), INDEX), lanes))
            result = term if result is None else Add(result, term) if value > 0 else Sub(result, term)
        assert result is not None
        return result

    def nested(self, key: tuple[Expr, ...], lane: Var) -> bool:
        """Whether the lane occurs inside a factor."""
        return any(factor is not lane and lane in self.variables_of(factor) for factor in key)

    def spread_atom(self, key: Any, lanes: int) -> Expr:
        """The vector of an atom or product in which the lane number occurs."""
        if type(key) is tuple:
            result: Expr | None = None
            for factor in self.products[key]:
                term = self.spread(({factor: 1}, 0), lanes)
                result = term if result is None else Mul(result, term)
            assert result is not None
            return result
        if key in self.sums:
            return self.spread(self.sums[key], lanes)
        kind, left, right = self.parts[key]
        side: Poly = ({}, right) if type(right) is int else right
        return kind(self.spread(left, lanes), self.spread(side, lanes))  # type: ignore[call-arg]


# ------------------------------------------------------------------------------------------------------ small helpers


def _may_gain(e: Expr) -> bool:
    """Whether there is a node in e that knowing more could decide."""
    kind = type(e)
    if kind in _DECIDABLE:
        return True
    return kind is not Var and kind is not Const and any(_may_gain(part) for part in children(e))


def _shifted(terms: Expr, constant: int) -> Expr:
    """The normal form of terms, at least one of them added, and a constant."""
    constant = wrap(constant, INDEX)
    if not constant:
        return terms
    return (Add if constant > 0 else Sub)(terms, const(abs(constant), INDEX))


def _tells(condition: Expr) -> bool:
    """Whether a condition says something of index expressions."""
    if isinstance(condition, (And, Or)):
        return _tells(condition.a) or _tells(condition.b)
    if isinstance(condition, Not):
        return _tells(condition.a)
    return isinstance(condition, (LT, LE, EQ)) and condition.a.dtype is INDEX


def _two_sides(difference: Poly) -> tuple[Poly, Poly]:
    """`difference (compared with) 0` with every coefficient positive: the negative terms stand on the right."""
    terms, constant = difference
    left = {key: value for key, value in terms.items() if value > 0}
    right = {key: -value for key, value in terms.items() if value < 0}
    if left and (constant < 0 or not right):
        return (left, 0), (right, -constant)
    return (left, constant), (right, 0)


def _truncated(self: Simplifier, e: Binary) -> Expr:
    """TruncDiv and TruncMod of indices that are not negative are FloorDiv and FloorMod."""
    if e.dtype is INDEX:
        least = self.any_interval(e.b)[0]
        low = self.any_interval(e.a)[0]
        if low is not None and low >= 0 and least is not None and least > 0:
            return self.visit((FloorDiv if type(e) is TruncDiv else FloorMod)(e.a, e.b))
    return self.binary(e)


_RULES: dict[type[Expr], Callable[[Simplifier, Any], Expr]] = {
    **dict.fromkeys(NODES, Simplifier.generic),
    **dict.fromkeys(BINARY, Simplifier.binary),
    **dict.fromkeys(COMPARE, Simplifier.compare),
    And: Simplifier.connective, Or: Simplifier.connective, Not: Simplifier.negation, Select: Simplifier.choice,
    Cast: Simplifier.conversion, Load: Simplifier.load, Ramp: Simplifier.ramp, Broadcast: Simplifier.broadcast,
    TruncDiv: _truncated, TruncMod: _truncated,
}  # fmt: skip
