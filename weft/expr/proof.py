"""Proving inequalities between index expressions whose bounds are themselves expressions.

In: a polynomial (see `weft.expr.linear`) and ranges. Out: whether it is never negative; or a bound of it that does not
speak of some variable. A proof replaces, innermost first, each variable by its lowest or highest value according to
the sign of its coefficient, until the constant intervals of what is left decide:

    i in 0..n-1      n - 1 - i >= 0      i -> n - 1      0 >= 0
    io in 0..(n+3)//4 - 1     n - 1 - 4*io >= 0    io -> (n+3)//4 - 1    n + 3 - 4*((n+3)//4) >= 0    which is so

Every step may only weaken what is proven, so "no" means "not known".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weft.core.dtypes import INDEX, DType
from weft.expr.intervals import INTERVAL_RULES, Interval
from weft.expr.linear import Entry, Linear, Poly, Terms, add_scaled, negate, scaled
from weft.expr.nodes import (
    BINARY,
    EQ,
    LE,
    LT,
    NE,
    Add,
    And,
    Broadcast,
    Buffer,
    Call,
    Cast,
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
    index_expr,
    is_false,
    is_true,
    logical_not,
)
from weft.expr.visit import children, free_vars, walk

_STEPS = 32
"""How many polynomials one proof may look at."""

_COUNTED = 1 << 48
"""What sizes and counts are taken to be less than."""

_LARGE = 1 << 32
"""Larger numbers in index arithmetic are a user's, and may make it wrap."""

_DATA = (Load, Call, Cast)
"""What reads or makes numbers, rather than counts."""

_ELIMINATIONS = 100
"""How many variables one proof may replace: each side of a min or max is one more, so nested ones grow without end."""


class Prover(Linear):
    """Linear arithmetic with symbolic bounds."""

    def __init__(
        self,
        table: dict[Var, Entry],
        facts: tuple[Expr, ...],
        values: Mapping[Buffer, Interval] = MappingProxyType({}),
    ) -> None:
        super().__init__(table)
        self.facts = facts
        self.values = values
        self.steps = self.eliminations = 0
        self.proving = self.facts_first = self.with_factors = False
        self.proofs: dict[Any, bool] = {}
        self.variables: dict[Expr, frozenset[Var]] = {}
        self.lanes: dict[int, Var] = {}
        self.local: dict[Var, Entry] = {}
        self.fact_polys: list[Poly] | None = None
        self.symbolic_variables: list[Var] | None = None
        self.data: dict[Expr, bool] = {}
        self.read: dict[Any, bool] = {}

    # --------------------------------------------------------------------------------------------------- occurrence

    def variables_of(self, atom: Expr) -> frozenset[Var]:
        """The variables an atom speaks of."""
        found = self.variables.get(atom)
        if found is None:
            found = self.variables[atom] = frozenset(free_vars(atom))
        return found

    def mentioned(self, terms: Terms) -> set[Var]:
        """The variables that occur anywhere in the terms."""
        result: set[Var] = set()
        for key in terms:
            if type(key) is Var:
                result.add(key)
            elif type(key) is tuple:
                for factor in key:
                    result |= self.variables_of(factor)
            else:
                result |= self.variables_of(key)
        return result

    def chooses(self, terms: Terms) -> bool:
        """Whether there is a Select in the terms."""
        for key in terms:
            if type(key) is not Var:
                for factor in key if type(key) is tuple else (key,):
                    if walk(factor, Select):
                        return True
        return False

    def symbolic(self) -> list[Var]:
        """The variables whose range is not constant, innermost first."""
        found = self.symbolic_variables
        if found is None:
            found = self.symbolic_variables = [
                var
                for var, (low, high, _, _) in reversed(self.table.items())
                if not (low is None or type(low) is Const) or not (high is None or type(high) is Const)
            ]
        return found

    def entry(self, var: Var) -> Entry | None:
        """What is known of a variable: symbolic low and high, constant low and high."""
        found: Entry | None = self.local.get(var) or self.table.get(var)
        return found

    def var_interval(self, var: Var) -> Interval:
        """Constant bounds of a variable."""
        if var in self.local:
            return self.local[var][2:]
        return super().var_interval(var)

    def lane(self, lanes: int) -> Var:
        """The variable that stands for the lane number of a vector."""
        found = self.lanes.get(lanes)
        if found is None:
            found = self.lanes[lanes] = Var("lane")
            self.local[found] = (index_expr(0), index_expr(lanes - 1), 0, lanes - 1)
        return found

    # --------------------------------------------------------------------------------------------------------- data

    def is_data(self, e: Any) -> bool:
        """Whether an index expression may be any number: what it speaks of was read, not counted."""
        found = self.data.get(e)
        if found is None:
            kind = type(e)
            self.data[e] = False  # what a range that speaks of itself would see
            if kind is Const:
                found = False
            elif kind is Var:
                low = self.table.get(e, (None,))[0]
                found = low is not None and self.is_data(low) and None in self.var_interval(e)
            else:
                parts = (e.then, e.otherwise) if kind is Select else children(e)
                found = kind in _DATA or any(self.is_data(part) for part in parts)
                found = found and None in within(self.any_interval(e), INDEX)
            self.data[e] = found
        return found

    def is_read(self, e: Any) -> bool:
        """Whether an index expression (or a product of them) speaks of data, be it bounded or not."""
        found = self.read.get(e)
        if found is None:
            self.read[e] = False  # what a range that speaks of itself would see
            parts = e if type(e) is tuple else (self.table.get(e, (None,))[0],) if type(e) is Var else children(e)
            found = type(e) in _DATA or any(self.is_read(part) for part in parts if part is not None)
            self.read[e] = found
        return found

    def wraps(self, p: Poly) -> bool:
        """Whether a polynomial may need more than 64 bits, of data or with large numbers: counts are taken never to."""
        terms, constant = p
        suspect = not -_LARGE < constant < _LARGE
        for key in terms:
            kind = type(key)
            if len(terms) == 1 and not constant and terms[key] == 1 and kind is not tuple:
                return False  # the number itself
            suspect = suspect or kind is tuple or not -_LARGE < terms[key] < _LARGE or self.is_read(key)
        if not suspect:
            return False
        low = high = constant
        counted = _COUNTED if any(map(self.is_read, terms)) else 1  # by themselves, they never wrap
        for key, value in terms.items():
            end = counted if not self.is_read(key) else 1 << 127 if type(key) is tuple else 1 << 63
            least, most = self.interval_of(({key: 1}, 0))
            sides = sorted((value * (-end if least is None else least), value * (end - 1 if most is None else most)))
            low, high = low + sides[0], high + sides[1]
        inside = low >= INDEX.min or self.nonneg((terms, constant - INDEX.min))
        return not (inside and (high <= INDEX.max or self.nonneg(negate((terms, constant - INDEX.max)))))

    def difference(self, e: Any) -> Poly:
        """The true value of a difference, which may need more than 64 bits."""
        return add_scaled(self.difference(e.a), self.poly(e.b), -1) if type(e) is Sub else self.poly(e)

    def may_wrap(self, e: Any) -> bool:
        """Whether an index expression has a sum or product of data whose true value may need more than 64 bits."""
        kind = type(e)
        if kind is Const or kind is Var or kind in _DATA:
            return False
        if kind in (Add, Sub, Mul) and (self.is_data(e.a) or self.is_data(e.b) or self.is_data(e)):
            return True
        if kind in (Add, Sub, Mul) and not self.sums.keys().isdisjoint(self.poly(e)[0]):
            return True
        parts = (e.then, e.otherwise) if kind is Select else children(e)
        return any(self.may_wrap(part) for part in parts)

    # -------------------------------------------------------------------------------------------------- elimination

    def var_bound(self, var: Var, upper: bool) -> Poly | None:
        """The highest or lowest value of a variable, symbolic where the range is."""
        entry = self.entry(var)
        if entry is None:
            return None
        symbolic, constant = (entry[1], entry[3]) if upper else (entry[0], entry[2])
        if symbolic is not None and type(symbolic) is not Const:
            return self.poly(symbolic)
        return None if constant is None else ({}, constant)

    def eliminate(self, p: Poly, var: Var, upper: bool) -> Poly | None:
        """An upper or lower bound of p over the range of `var`, which no longer occurs in it."""
        if self.proving:
            self.eliminations -= 1
            if self.eliminations < 0:
                return None
        kept: Poly = ({}, p[1])
        factor: Poly = ({}, 0)
        for key, value in p[0].items():
            if key is var:
                factor = (factor[0], factor[1] + value)
            elif type(key) is tuple:
                rest = list(key)
                if var in rest:
                    rest.remove(var)
                    factor = add_scaled(factor, ({self.monomial(*rest): 1}, 0), value)
                else:
                    kept[0][key] = kept[0].get(key, 0) + value
                if any(var in self.variables_of(other) for other in rest):
                    return None
            elif type(key) is not Var and var in self.variables_of(key):
                bound = self.bound_atom(key, var, upper == (value > 0))
                if bound is None:
                    return None
                kept = add_scaled(kept, bound, value)
            else:
                kept[0][key] = kept[0].get(key, 0) + value
        if factor[0] or factor[1]:
            rising = self.sign(factor)
            bound = None if rising is None else self.var_bound(var, upper == rising)
            if bound is None:
                return None
            kept = add_scaled(kept, self.multiply(factor, bound), 1)
        return self.tidy({key: value for key, value in kept[0].items() if value}, kept[1])

    def sign(self, p: Poly) -> bool | None:
        """True where p is never negative, False where it is never positive, None where neither is known."""
        if not p[0]:
            return p[1] >= 0
        return True if self.nonneg(p) else False if self.nonneg(negate(p)) else None

    def bound_atom(self, atom: Expr, var: Var, upper: bool) -> Poly | None:
        """A bound of an atom over the range of a variable inside it."""
        parts = self.parts.get(atom)
        if parts is not None:
            kind, left, right = parts
            if kind is Min or kind is Max:
                a, b = self.eliminate(left, var, upper), self.eliminate(right, var, upper)
                return None if a is None or b is None else self.extremum(kind, a, b)
            if kind in (FloorDiv, FloorMod):
                return self.bound_division(kind, left, right, var, upper)
        if type(atom) is Select and atom.dtype is INDEX:
            a = self.eliminate(self.poly(atom.then), var, upper)
            b = self.eliminate(self.poly(atom.otherwise), var, upper)
            if a is not None and b is not None:
                return self.extremum(Max if upper else Min, a, b)
        constant = self.interval_of(({atom: 1}, 0))[1 if upper else 0]
        return None if constant is None else ({}, constant)

    def bound_division(self, kind: type[Expr], left: Poly, right: Any, var: Var, upper: bool) -> Poly | None:
        """A bound of a quotient or remainder over the range of a variable in its numerator."""
        divisor: Poly = ({}, right) if type(right) is int else right
        if var in self.mentioned(divisor[0]) or not self.nonneg((divisor[0], divisor[1] - 1)):
            return None
        if kind is FloorMod:
            return (divisor[0], divisor[1] - 1) if upper else ({}, 0)
        bound = self.eliminate(left, var, upper)
        return None if bound is None else self.floordiv(bound, divisor)

    def bound_without(self, p: Poly, variables: Any, upper: bool) -> Poly | None:
        """A bound of p in which none of the variables occurs."""
        for _ in range(4):
            present = self.mentioned(p[0])
            wanted = [var for var in reversed(self.table) if var in present and var in variables]
            wanted += [var for var in present if var in variables and var not in self.table]
            if not wanted:
                return p
            for var in wanted:
                bound = self.eliminate(p, var, upper)
                if bound is None:
                    return None
                p = bound
        return None

    def one_period(self, p: Poly, c: int) -> int | None:
        """The quotient p // c where it is one number, by the interval or by a fact that bounds p."""
        found = super().one_period(p, c)
        if found is not None or not self.facts:
            return found
        low = self.interval_of(p)[0]
        if low is None:
            return None
        room = negate(p)
        return low // c if self.nonneg((room[0], room[1] + (low // c + 1) * c - 1)) else None

    # --------------------------------------------------------------------------------------------------------- proof

    def nonneg(self, p: Poly) -> bool:
        """Whether a polynomial is never negative."""
        low, high = self.interval_of(p)
        if low is not None and low >= 0:
            return True
        if (high is not None and high < 0) or not p[0] or self.hopeless(p[0]):
            return False
        key = (frozenset(p[0].items()), p[1])
        found = self.proofs.get(key)
        if found is None:
            outermost = not self.proving
            if outermost:
                self.proving, self.steps, self.eliminations = True, _STEPS, _ELIMINATIONS
            self.steps -= 1
            found = self.steps > 0 and self.search(p)
            if outermost and not found and self.steps <= 0 and self.facts:
                # What was looked at was not all there is: once more, from the other end.
                self.steps, self.eliminations, self.facts_first = _STEPS, _ELIMINATIONS, True
                found = self.search(p)
                self.facts_first = False
            if outermost and not found and any(type(key) is FloorDiv and abs(c) > 1 for key, c in p[0].items()):
                self.steps, self.eliminations, self.facts_first, self.with_factors = _STEPS, _ELIMINATIONS, True, True
                found = self.search(p)
                self.facts_first = self.with_factors = False
            if outermost:
                self.proving = False
            if found or outermost:  # a "no" inside another proof may only mean that its steps ran out
                self.proofs[key] = found
        return found

    def hopeless(self, terms: Terms) -> bool:
        """Whether no step can help: the interval has already used all that is known of these terms."""
        if self.facts:
            return False
        symbolic = self.symbolic()
        atoms = [key for key in terms if type(key) is not Var]
        if not atoms:
            return not any(key in symbolic for key in terms)
        inside = self.mentioned(dict.fromkeys(atoms, 1))
        if any(var in inside or var in terms for var in symbolic):
            return False
        for key, value in terms.items():  # a variable without the bound it needs, which nothing else speaks of
            if type(key) is Var and key not in inside and self.intervals[key][0 if value > 0 else 1] is None:
                return True
        return False

    def search(self, p: Poly) -> bool:
        """The steps that may lead to a proof, in the order of how often they do."""
        if self.by_extremum(p) or self.with_factors and self.by_factor(p):
            return True
        if self.facts_first:
            return self.by_facts(p) or self.by_division(p) or self.by_elimination(p)
        return self.by_elimination(p) or self.by_facts(p) or self.by_division(p)

    def by_extremum(self, p: Poly) -> bool:
        """Replaces a min or max by its sides: both must do where it could be either, one where it is a bound."""
        for key, value in p[0].items():
            kind = type(key)
            if kind is not Min and kind is not Max:
                continue
            parts = self.parts.get(key)
            if parts is None:
                continue
            without = ({other: times for other, times in p[0].items() if other is not key}, p[1])
            left = self.nonneg(add_scaled(without, parts[1], value))
            both = (kind is Min) == (value > 0)
            if left != both:
                return left
            return self.nonneg(add_scaled(without, parts[2], value))
        return False

    def by_elimination(self, p: Poly) -> bool:
        """Replaces the innermost variable that has a symbolic range or stands in a product."""
        present = self.mentioned(p[0])
        factors = dict.fromkeys(f for key in p[0] if type(key) is tuple for f in key if type(f) is Var)
        candidates = [var for var in self.symbolic() if var in present]
        candidates += [var for var in factors if var not in candidates and self.entry(var) is not None]
        for var in candidates:
            bound = self.eliminate(p, var, upper=False)
            if bound is not None and self.nonneg(bound):
                return True
        return False

    def by_facts(self, p: Poly) -> bool:
        """Subtracts a multiple of something known to be at least 0 that shares a term."""
        if not self.facts:
            return False
        if self.fact_polys is None:
            self.fact_polys = []  # a fact is put into normal form without the help of facts
            self.fact_polys = [self.difference(fact) for fact in self.facts]
        facts = self.fact_polys
        for index, fact in enumerate(facts):
            for key, value in fact[0].items():
                mine = p[0].get(key, 0)
                if mine * value <= 0:
                    continue
                self.fact_polys = facts[:index] + facts[index + 1 :]
                left, constant = add_scaled(scaled(p, abs(value)), fact, -abs(mine))
                proven = self.nonneg((left, constant + abs(value) - 1))  # p is whole: more than -1 is enough
                self.fact_polys = facts
                if proven:
                    return True
                break
        return False

    def by_division(self, p: Poly) -> bool:
        """Replaces x // c by the bound of it that is linear in x, and x % c by x - (x // c)*c."""
        for key, value in p[0].items():
            parts = self.parts.get(key)
            if parts is None or type(parts[2]) is not int or parts[2] <= 0:
                continue
            kind, inner, divisor = parts
            without = ({other: times for other, times in p[0].items() if other is not key}, p[1])
            if kind is FloorDiv:
                # divisor * p is at least this; and what is a whole number is not negative if it is more than -1.
                inner = (inner[0], inner[1] - (divisor - 1 if value > 0 else 0))
                terms, constant = add_scaled(scaled(without, divisor), inner, value)
                if self.nonneg((terms, constant + divisor - 1)):
                    return True
            elif kind is FloorMod and value < 0:
                quotient = self.floordiv_constant(inner, divisor)
                whole = add_scaled(inner, quotient, -divisor)
                if key not in whole[0] and self.nonneg(add_scaled(without, whole, value)):
                    return True
        return False

    def by_factor(self, p: Poly) -> bool:
        """Divides by the factor of a quotient: c*B + S is not negative where B is at least -S // c, rounded up."""
        for key, factor in p[0].items():
            c = abs(factor)
            if type(key) is FloorDiv and c > 1:
                whole = {other: value // c for other, value in p[0].items() if value % c == 0}
                low, _ = self.interval_of(({other: value for other, value in p[0].items() if value % c}, p[1]))
                if low is not None and len(whole) > 1 and self.nonneg((whole, low // c)):
                    return True
        return False

    # ---------------------------------------------------------------------------------------------------- conditions

    def proves(self, e: Any) -> bool:
        """Whether a bool expression always holds."""
        if is_true(e):
            return True
        handler = _PROVE.get(type(e))
        return handler is not None and handler(self, e)

    def sides(self, e: Any) -> tuple[Poly, Poly] | None:
        """Both sides of an index comparison as polynomials (of one lane, for vectors); None for other comparisons."""
        kind = e.a.dtype
        if kind is INDEX:
            return self.poly(e.a), self.poly(e.b)
        if kind.kind != "int" or kind.bits != 64:
            return None
        lane = self.lane(kind.lanes)
        left, right = lane_form(e.a, lane), lane_form(e.b, lane)
        return None if left is None or right is None else (self.poly(left), self.poly(right))

    def proves_order(self, e: Any, gap: int) -> bool:
        """Whether e.b - e.a >= gap always."""
        if not e.a.dtype.is_integer:
            return False
        sides = self.sides(e)
        if sides is not None:
            terms, constant = add_scaled(sides[1], sides[0], -1)
            return self.nonneg((terms, constant - gap))
        high, low = self.node_interval(e.a)[1], self.node_interval(e.b)[0]
        return high is not None and low is not None and low - high >= gap

    def proves_equal(self, e: Any) -> bool:
        """Whether both sides are always equal."""
        if not e.a.dtype.is_integer:
            return False
        sides = self.sides(e)
        if sides is not None:
            difference = add_scaled(sides[0], sides[1], -1)
            return self.nonneg(difference) and self.nonneg(negate(difference))
        a, b = self.node_interval(e.a), self.node_interval(e.b)
        return a[0] is not None and a[0] == a[1] and a == b

    def proves_different(self, e: Any) -> bool:
        """Whether the sides are never equal."""
        return self.proves_order(e, 1) or self.proves_order(LT(e.b, e.a), 1)

    def proves_not(self, e: Any) -> bool:
        """Whether a bool expression never holds."""
        if is_false(e):
            return True
        if type(e) is And:
            return self.proves_not(e.a) or self.proves_not(e.b)
        if type(e) is Or:
            return self.proves_not(e.a) and self.proves_not(e.b)
        if e.dtype.lanes == 1 or type(e) in (Not, LT, LE, EQ, NE):
            opposite = logical_not(e)
            return type(opposite) is not Not and self.proves(opposite)
        return False

    # -------------------------------------------------------------------------------------- intervals of other nodes

    def node_interval(self, e: Any) -> Interval:
        """Constant bounds of any integer (or bool) expression."""
        kind = e.dtype
        if kind is INDEX:
            handler = _NODE_INTERVAL.get(type(e))
            found = (None, None) if handler is None else handler(self, e)
            return within(found, kind) if e in self.sums else found
        if not (kind.is_integer or kind.is_bool):
            return None, None
        if kind.bits == 64 and kind.lanes > 1 and kind.is_signed:
            scalar = lane_form(e, self.lane(kind.lanes))
            if scalar is not None:
                return self.interval_of(self.poly(scalar))
        handler = _NODE_INTERVAL.get(type(e))
        found = (None, None) if handler is None else handler(self, e)
        return within(found, kind)

    def any_interval(self, e: Any) -> Interval:
        """Constant bounds of an integer expression of any type."""
        return self.interval_of(self.poly(e)) if e.dtype is INDEX else self.node_interval(e)


def within(found: Interval, kind: DType) -> Interval:
    """Bounds of a value of a type that wraps: those found, if no value in them needs wrapping, else the type's own."""
    low, high = int(kind.min), int(kind.max)
    if found[0] is None or found[1] is None or found[0] < low or found[1] > high:
        # 64-bit values keep the convention that they do not overflow.
        return (None, None) if kind.bits == 64 and kind.is_signed else (low, high)
    return found


def lane_form(e: Any, lane: Var) -> Expr | None:
    """The scalar that a vector of index arithmetic holds in lane number `lane`; None where it is not arithmetic."""
    kind = type(e)
    if kind is Broadcast:
        value: Expr = e.value
        return value
    if kind is Ramp:
        return Add(e.base, Mul(lane, e.stride))
    if kind in _LANEWISE:
        a, b = lane_form(e.a, lane), lane_form(e.b, lane)
        return None if a is None or b is None else kind(a, b)
    return None


_LANEWISE = frozenset((Add, Sub, Mul, FloorDiv, FloorMod, Min, Max))


def _interval_binary(self: Prover, e: Any) -> Interval:
    rule = INTERVAL_RULES.get(type(e))
    return (None, None) if rule is None else rule(*self.any_interval(e.a), *self.any_interval(e.b))


def _interval_trunc(self: Prover, e: Any) -> Interval:
    low, high = self.any_interval(e.a)
    least, most = self.any_interval(e.b)
    if low is not None and low >= 0 and least is not None and least > 0:
        return INTERVAL_RULES[FloorDiv if type(e) is TruncDiv else FloorMod](low, high, least, most)
    return None, None


def _interval_select(self: Prover, e: Any) -> Interval:
    a, b = self.any_interval(e.then), self.any_interval(e.otherwise)
    low = None if a[0] is None or b[0] is None else min(a[0], b[0])
    return low, None if a[1] is None or b[1] is None else max(a[1], b[1])


def _interval_cast(self: Prover, e: Any) -> Interval:
    source = e.value.dtype
    if not (source.is_integer or source.is_bool):
        return None, None
    found = self.any_interval(e.value)
    return found if within(found, e.dtype) == found else (None, None)


def _interval_call(self: Prover, e: Any) -> Interval:
    if e.name == "shift_left":
        (low, high), (least, most) = self.any_interval(e.args[0]), self.any_interval(e.args[1])
        if low is not None and low >= 0 and least is not None and least >= 0:
            high = None if high is None or most is None or most > 62 else high << most
            return within((low << min(least, 63), high), e.dtype)
    if e.name in ("bit_and", "shift_right") and len(e.args) == 2:
        a, b = self.any_interval(e.args[0]), self.any_interval(e.args[1])
        if e.name == "bit_and":
            masks = [high for low, high in (a, b) if low is not None and low >= 0 and high is not None]
            return (0, min(masks)) if masks else (None, None)
        if b[0] is not None and b[0] == b[1] and 0 <= b[0] < 64:
            return None if a[0] is None else a[0] >> b[0], None if a[1] is None else a[1] >> b[0]
    if e.name in ("popcount", "clz"):
        return 0, e.args[0].dtype.bits
    return None, None


def _interval_ramp(self: Prover, e: Any) -> Interval:
    steps = INTERVAL_RULES[Mul](0, e.lanes - 1, *self.any_interval(e.stride))
    return INTERVAL_RULES[Add](*self.any_interval(e.base), *steps)


_NODE_INTERVAL: dict[type[Expr], Callable[[Prover, Any], Interval]] = {
    **dict.fromkeys(BINARY, _interval_binary),
    TruncDiv: _interval_trunc, TruncMod: _interval_trunc, Select: _interval_select, Cast: _interval_cast,
    Call: _interval_call, Ramp: _interval_ramp,
    Const: lambda self, e: (int(e.value), int(e.value)),
    Var: lambda self, e: self.interval_of(({e: 1}, 0)),
    Broadcast: lambda self, e: self.any_interval(e.value),
    Load: lambda self, e: self.values.get(e.buffer, (None, None)),
}  # fmt: skip

_PROVE: dict[type[Expr], Callable[[Prover, Any], bool]] = {
    LT: lambda self, e: self.proves_order(e, 1),
    LE: lambda self, e: self.proves_order(e, 0),
    EQ: Prover.proves_equal,
    NE: Prover.proves_different,
    And: lambda self, e: self.proves(e.a) and self.proves(e.b),
    Or: lambda self, e: self.proves(e.a) or self.proves(e.b),
    Not: lambda self, e: self.proves_not(e.a),
    Select: lambda self, e: (
        (self.proves_not(e.condition) or self.proves(e.then)) and (self.proves(e.condition) or self.proves(e.otherwise))
    ),
    Broadcast: lambda self, e: self.proves(e.value),
}
