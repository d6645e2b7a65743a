"""The normal form of index arithmetic: a polynomial of atoms with integer coefficients.

In: an int64 expression. Out: `(terms, constant)`, where `terms` maps a monomial to its coefficient in source order. A
monomial is an atom or, for products, a tuple of atoms; an atom is a Var or a node that is not a sum or product.
Equal atoms are one object, so that terms cancel and combine by dictionary lookup.

    (yo*32 + yi) // 32        with yi in 0..31    {yo: 1}, 0
    (a*64 + b) // 32                              {a: 2, b // 32: 1}, 0
    (x // 4)*4 + x % 4                            {x: 1}, 0

Division and remainder by a positive constant c split the numerator N into parts by what divides what:

    N = c*Q + R          ->   N // c = Q + R // c                    N % c = R % c
    R = g*B + S, g | c, 0 <= S < g   ->   R // c = B // (c/g)        R % c = g*(B % (c/g)) + S

`Linear` knows the arithmetic; the ranges it is given are the table of a `Ranges`. Its subclasses add symbolic proof
(`weft.expr.proof`) and the simplification of every other node (`weft.expr.simplify`).
"""

from __future__ import annotations

from math import gcd
from typing import Any

from weft.core.dtypes import INDEX
from weft.expr.intervals import INTERVAL_RULES, Interval, interval_product, larger, smaller
from weft.expr.intrinsics import is_pure
from weft.expr.nodes import (
    Add,
    Binary,
    Call,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Ramp,
    Sub,
    Var,
    index_expr,
    wrap,
)
from weft.expr.structural import structural_key
from weft.expr.visit import walk

Terms = dict[Any, int]
Poly = tuple[Terms, int]
Entry = tuple["Expr | None", "Expr | None", "int | None", "int | None"]
"""What is known of a variable: symbolic low and high, constant low and high."""

_LARGEST_PRODUCT = 16
"""Products of sums with more terms than this stay products."""


def same_arithmetic(a: Expr, b: Expr) -> bool:
    """Whether two trees of two-sided nodes are built the same on identical leaves."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Binary) and isinstance(b, Binary):
        return same_arithmetic(a.a, b.a) and same_arithmetic(a.b, b.b)
    if type(a) is Const and type(b) is Const:
        return bool(a.value == b.value) and a.dtype is b.dtype
    if type(a) is Ramp and type(b) is Ramp:
        return same_arithmetic(a.base, b.base) and same_arithmetic(a.stride, b.stride)
    return False


def negate(p: Poly) -> Poly:
    """The negative of a polynomial."""
    return {key: -value for key, value in p[0].items()}, -p[1]


def add_scaled(p: Poly, q: Poly, scale: int) -> Poly:
    """p + scale*q."""
    terms = dict(p[0])
    for key, value in q[0].items():
        total = terms.get(key, 0) + scale * value
        if total:
            terms[key] = total
        else:
            terms.pop(key, None)
    return terms, p[1] + scale * q[1]


def scaled(p: Poly, factor: int) -> Poly:
    """p * factor, for a factor that is not 0."""
    return {key: value * factor for key, value in p[0].items()}, p[1] * factor


def _key(p: Poly) -> Any:
    return frozenset(p[0].items()), p[1]


class Linear:
    """Builds normal forms, and keeps the atoms, their parts and their intervals for one `Ranges`."""

    def __init__(self, table: dict[Var, Entry]) -> None:
        self.table = table
        self.known: dict[int, tuple[Expr, Poly]] = {}  # by id; the node is kept so that the id stays its own
        self.atoms: dict[Any, Expr] = {}
        self.parts: dict[Expr, tuple[type[Expr], Poly, Any]] = {}  # FloorDiv, FloorMod, Min, Max -> (kind, left, right)
        self.sums: dict[Expr, Poly] = {}  # atoms that are sums which may wrap
        self.intervals: dict[Any, Interval] = {}
        self.products: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}  # canonical order -> order first written
        self.sequence: dict[Expr, int] = {}
        self.effects = False  # set when a call with effects is met: its two occurrences must not cancel

    # ------------------------------------------------------------------------------------ expression -> polynomial

    def poly(self, e: Expr) -> Poly:
        """The normal form of an int64 expression."""
        terms: Terms = {}
        constant = self.accumulate(e, 1, terms)
        found = self.tidy(terms, constant)
        if not found[0]:
            return {}, wrap(found[1], INDEX)
        return self.whole(found) if self.wraps(found) else found

    def wraps(self, p: Poly) -> bool:
        """Whether the true value of a polynomial may need more than 64 bits; a subclass knows what is data."""
        return False

    def whole(self, p: Poly) -> Poly:
        """A polynomial that may wrap, as an atom: its terms are no longer told apart, since they cannot be compared."""
        key = (Add, *_key(p))
        found = self.atoms.get(key)
        if found is None:
            found = self.atoms[key] = self.build(p)
            self.sums[found] = p
        return {found: 1}, 0

    def accumulate(self, e: Expr, scale: int, terms: Terms) -> int:
        """Adds scale*e to the terms; the constant part is the result."""
        if type(e) is Var:
            terms[e] = terms.get(e, 0) + scale
            return 0
        if type(e) is Const:
            return int(scale * e.value)
        if type(e) is Add:
            return self.accumulate(e.a, scale, terms) + self.accumulate(e.b, scale, terms)
        if type(e) is Mul:
            a, b = e.a, e.b
            if type(b) is Const:
                return self.accumulate(a, scale * b.value, terms)
            if type(a) is Const:
                return self.accumulate(b, scale * a.value, terms)
        if type(e) is Sub:
            return self.accumulate(e.a, scale, terms) + self.accumulate(e.b, -scale, terms)
        more, constant = self.special(e)
        for key, value in more.items():
            terms[key] = terms.get(key, 0) + scale * value
        return scale * constant

    def tidy(self, terms: Terms, constant: int) -> Poly:
        """Drops terms that cancelled, and joins quotients with their remainders."""
        if 0 in terms.values():
            for key in [key for key, value in terms.items() if not value]:
                del terms[key]
        if len(terms) > 1:
            for key in terms:
                if type(key) is FloorMod:
                    return self.recombine(terms, constant)
        return terms, constant

    def special(self, e: Expr) -> Poly:
        """The normal form of a node that is not a sum."""
        found = self.known.get(id(e))
        if found is None:
            kind = type(e)
            if not isinstance(e, Binary) or kind not in _SPECIAL or e.dtype is not INDEX:
                result = self.opaque(e)
            else:
                p, q = self.poly(e.a), self.poly(e.b)
                if kind is Mul:
                    result = self.multiply(p, q)
                elif kind is FloorDiv:
                    result = self.floordiv(p, q, e)
                else:
                    result = self.floormod(p, q, e) if kind is FloorMod else self.extremum(kind, p, q, e)
            if self.effects:
                return result
            found = self.known[id(e)] = (e, result)
        return found[1]

    def opaque(self, e: Expr) -> Poly:
        """A node that arithmetic does not look into, as an atom."""
        for node in walk(e, Call):
            if not is_pure(node.name):  # type: ignore[attr-defined]
                self.effects = True
                return {e: 1}, 0
        return {self.atoms.setdefault(structural_key(e), e): 1}, 0

    def atom(self, kind: type[Expr], left: Poly, right: Any, like: Expr | None = None) -> Poly:
        """The one atom for kind(left, right); `right` is a constant or a polynomial, `like` the node it came from."""
        key = (kind, _key(left), right if type(right) is int else _key(right))
        found = self.atoms.get(key)
        if found is None:
            a = self.build(left)
            b = index_expr(right) if type(right) is int else self.build(right)
            made: Expr = kind(a, b)  # type: ignore[call-arg]
            found = like if like is not None and same_arithmetic(like, made) else made
            self.atoms[key] = found
            self.parts[found] = (kind, left, right)
        return {found: 1}, 0

    def monomial(self, *factors: Any) -> Any:
        """The key of a product of atoms and monomials."""
        flat: list[Expr] = []
        for factor in factors:
            if type(factor) is tuple:
                flat.extend(factor)
            else:
                flat.append(factor)
        if len(flat) == 1:
            return flat[0]
        sequence = self.sequence
        for factor in flat:
            sequence.setdefault(factor, len(sequence))
        key = tuple(sorted(flat, key=sequence.__getitem__))
        self.products.setdefault(key, tuple(flat))
        return key

    def multiply(self, p: Poly, q: Poly) -> Poly:
        """The product of two polynomials."""
        if not q[0]:
            p, q = q, p
        if not p[0]:
            return scaled(q, p[1]) if p[1] else ({}, 0)
        if (len(p[0]) + 1) * (len(q[0]) + 1) > _LARGEST_PRODUCT:
            return self.atom(Mul, p, q)
        terms: Terms = {}
        for left, a in p[0].items():
            for right, b in q[0].items():
                key = self.monomial(left, right)
                terms[key] = terms.get(key, 0) + a * b
            if q[1]:
                terms[left] = terms.get(left, 0) + a * q[1]
        if p[1]:
            for right, b in q[0].items():
                terms[right] = terms.get(right, 0) + p[1] * b
        return self.tidy(terms, p[1] * q[1])

    # ------------------------------------------------------------------------------------ polynomial -> expression

    def build(self, p: Poly) -> Expr:
        """The expression of a normal form: a positive term first, the rest in order, the constant last."""
        terms, constant = p
        if not terms:
            return index_expr(wrap(constant, INDEX))
        pieces = self.grouped(terms) if any(type(key) is tuple for key in terms) else list(terms.items())
        result: Expr | None = None
        waiting: list[tuple[Any, int]] = []
        for key, value in pieces:
            if value < 0 and result is None:
                waiting.append((key, value))
                continue
            term = key if abs(value) == 1 else Mul(key, index_expr(wrap(abs(value), INDEX)))
            if result is None:
                result = term
                for other, negative in waiting:
                    result = Sub(result, other if negative == -1 else Mul(other, index_expr(wrap(-negative, INDEX))))
                waiting = []
            else:
                result = Add(result, term) if value > 0 else Sub(result, term)
        if result is None:
            result = index_expr(wrap(constant, INDEX))
            constant = 0
            for other, negative in waiting:
                result = Sub(result, other if negative == -1 else Mul(other, index_expr(wrap(-negative, INDEX))))
        if constant:
            magnitude = index_expr(wrap(abs(constant), INDEX))
            result = Add(result, magnitude) if constant > 0 else Sub(result, magnitude)
        return result

    def grouped(self, terms: Terms) -> list[tuple[Expr, int]]:
        """The terms as (expression, coefficient), with products that share a factor written once: (a*8 + b)*n."""
        pieces: list[tuple[Expr, int]] = []
        remaining = dict(terms)
        for key in terms:
            if key not in remaining:
                continue
            if type(key) is not tuple:
                pieces.append((key, remaining.pop(key)))
                continue
            for factor in reversed(self.products[key]):
                inner: Terms = {}
                for other in remaining:
                    if type(other) is tuple and factor in other:
                        rest = list(other)
                        rest.remove(factor)
                        inner[self.monomial(*rest)] = remaining[other]
                if len(inner) > 1 and any(value > 0 for value in inner.values()):
                    for other in [other for other in remaining if type(other) is tuple and factor in other]:
                        del remaining[other]
                    pieces.append((Mul(self.build((inner, remaining.pop(factor, 0))), factor), 1))
                    break
            else:
                product: Expr | None = None
                for factor in self.products[key]:
                    product = factor if product is None else Mul(product, factor)
                assert product is not None
                pieces.append((product, remaining.pop(key)))
        return pieces

    # ------------------------------------------------------------------------------------------------- intervals

    def interval_of(self, p: Poly) -> Interval:
        """Constant inclusive bounds of a polynomial."""
        low: int | None = p[1]
        high: int | None = p[1]
        cache = self.intervals
        for key, value in p[0].items():
            found = cache.get(key)
            if found is None:
                found = self.key_interval(key)
            least, most = found if value > 0 else (found[1], found[0])
            low = None if low is None or least is None else low + value * least
            high = None if high is None or most is None else high + value * most
        return low, high

    def key_interval(self, key: Any) -> Interval:
        """Constant bounds of a monomial, remembered."""
        self.intervals[key] = (None, None)  # what a range that speaks of itself would see
        if type(key) is tuple:
            result: Interval = (1, 1)
            for factor in key:
                result = interval_product(result, self.interval_of(({factor: 1}, 0)))
        elif type(key) is Var:
            result = self.var_interval(key)
        else:
            result = self.atom_interval(key)
        self.intervals[key] = result
        return result

    def var_interval(self, var: Var) -> Interval:
        """Constant bounds of a variable, from its range."""
        entry = self.table.get(var)
        if entry is None:
            return (None, None) if var.dtype is INDEX else (var.dtype.min, var.dtype.max)
        low, high, least, most = entry
        if low is not None and type(low) is not Const:
            least = larger(least, self.interval_of(self.poly(low))[0])
        if high is not None and type(high) is not Const:
            most = smaller(most, self.interval_of(self.poly(high))[1])
        return least, most

    def atom_interval(self, atom: Expr) -> Interval:
        """Constant bounds of an atom that is not a variable."""
        found = self.parts.get(atom)
        if found is None:
            return self.node_interval(atom)
        kind, left, right = found
        low, high = self.interval_of(left)
        if type(right) is not int:
            return INTERVAL_RULES[kind](low, high, *self.interval_of(right))
        return INTERVAL_RULES[kind](low, high, right, right)

    def node_interval(self, e: Expr) -> Interval:
        """Constant bounds of a node that arithmetic does not look into; a subclass knows more."""
        return None, None

    def nonneg(self, p: Poly) -> bool:
        """Whether a polynomial is never negative; a subclass can prove more than the interval shows."""
        low = self.interval_of(p)[0]
        return low is not None and low >= 0

    # --------------------------------------------------------------------------------------- quotient, remainder

    def floordiv(self, p: Poly, d: Poly, like: Expr | None = None) -> Poly:
        """p // d."""
        if d[0]:
            return self.divide_symbolic(FloorDiv, p, d, like)
        if d[1] > 0:
            return self.floordiv_constant(p, d[1], like)
        return self.floordiv_constant(negate(p), -d[1]) if d[1] else self.atom(FloorDiv, p, d, like)

    def floormod(self, p: Poly, d: Poly, like: Expr | None = None) -> Poly:
        """p % d."""
        if d[0]:
            return self.divide_symbolic(FloorMod, p, d, like)
        if d[1] > 0:
            return self.floormod_constant(p, d[1], like)
        return negate(self.floormod_constant(negate(p), -d[1])) if d[1] else self.atom(FloorMod, p, d, like)

    def split_multiples(self, p: Poly, c: int) -> tuple[Poly, Poly]:
        """Q and R with p = c*Q + R; coefficients of R are smaller than c, its constant lies in 0..c-1."""
        quotient: Terms = {}
        rest: Terms = {}
        for key, value in p[0].items():
            times = value // c if value >= 0 else -(-value // c)
            if times:
                quotient[key] = times
                value -= times * c
            if value:
                rest[key] = value
        times, constant = divmod(p[1], c)
        return (quotient, times), (rest, constant)

    def split_small(self, rest: Poly, c: int) -> tuple[int, Poly, Poly] | None:
        """g, B and S with rest = g*B + S, g a divisor of c above 1 and 0 <= S < g; None where there is no such g."""
        terms, constant = rest
        for g in sorted({gcd(value, c) for value in terms.values()}, reverse=True):
            if g == 1:
                return None
            small = {key: value for key, value in terms.items() if value % g}
            lowest = constant % g
            period = 0
            if small:
                low, high = self.interval_of((small, lowest))
                if low is None or high is None or low // g != high // g:
                    continue
                period = low // g
            big = {key: value // g for key, value in terms.items() if not value % g}
            return g, (big, constant // g + period), (small, lowest - period * g)
        return None

    def one_period(self, p: Poly, c: int) -> int | None:
        """The quotient p // c where it is one number; a subclass can prove more than the interval shows."""
        low, high = self.interval_of(p)
        return low // c if low is not None and high is not None and low // c == high // c else None

    def floordiv_constant(self, p: Poly, c: int, like: Expr | None = None) -> Poly:
        """p // c for a constant c > 0."""
        if c == 1:
            return p
        quotient, rest = self.split_multiples(p, c)
        if not rest[0]:
            return quotient
        period = self.one_period(rest, c)
        if period is not None:
            return quotient[0], quotient[1] + period
        found = self.split_small(rest, c)
        if found is not None:
            g, big, _ = found
            return self.tidy(*add_scaled(quotient, self.floordiv_constant(big, c // g), 1))
        if len(rest[0]) == 1:
            ((only, value),) = rest[0].items()
            parts = self.parts.get(only)
            if parts is not None and value == 1 and type(parts[2]) is int:
                kind, inner, divisor = parts
                if kind is FloorDiv:
                    inner = (inner[0], inner[1] + rest[1] * divisor)
                    return add_scaled(quotient, self.floordiv_constant(inner, divisor * c), 1)
                if kind is FloorMod and divisor % c == 0 and not rest[1]:
                    inner = self.floormod_constant(self.floordiv_constant(inner, c), divisor // c)
                    return self.tidy(*add_scaled(quotient, inner, 1))
        unchanged = not quotient[0] and not quotient[1]
        return add_scaled(quotient, self.atom(FloorDiv, rest, c, like if unchanged else None), 1)

    def floormod_constant(self, p: Poly, c: int, like: Expr | None = None) -> Poly:
        """p % c for a constant c > 0."""
        if c == 1:
            return {}, 0
        rest = self.split_multiples(p, c)[1]
        if not rest[0]:
            return rest
        period = self.one_period(rest, c)
        if period is not None:
            return rest[0], rest[1] - period * c
        for key, value in rest[0].items():
            parts = self.parts.get(key)
            if parts is not None and parts[0] is FloorMod and type(parts[2]) is int and value * parts[2] % c == 0:
                without = {other: factor for other, factor in rest[0].items() if other is not key}
                return self.floormod_constant(add_scaled((without, rest[1]), parts[1], value), c)
        found = self.split_small(rest, c)
        if found is not None:
            g, big, small = found
            return self.tidy(*add_scaled(scaled_or_zero(self.floormod_constant(big, c // g), g), small, 1))
        return self.atom(FloorMod, rest, c, like)

    def divide_symbolic(self, kind: type[Expr], p: Poly, d: Poly, like: Expr | None) -> Poly:
        """p // d or p % d for a divisor that is not a constant; rewritten only where d is proven positive."""
        quotient = self.symbolic_quotient(p, d)
        rest = add_scaled(p, self.multiply(quotient, d), -1) if quotient[0] or quotient[1] else p
        # 0 <= rest < d says that d is positive as well.
        inside = self.nonneg(rest) and self.nonneg(add_scaled((d[0], d[1] - 1), rest, -1))
        if inside:
            return quotient if kind is FloorDiv else rest
        if rest[0] is p[0] or not self.nonneg((d[0], d[1] - 1)):
            return self.atom(kind, p, d, like)
        if kind is FloorMod:
            return self.atom(kind, rest, d) if rest[0] or rest[1] else ({}, 0)
        if not rest[0] and not rest[1]:
            return quotient
        return add_scaled(quotient, self.atom(kind, rest, d), 1)

    def symbolic_quotient(self, p: Poly, d: Poly) -> Poly:
        """A polynomial q for which p - q*d has fewer terms than p: the terms that d's leading term divides."""
        lead = max(d[0], key=lambda key: len(key) if type(key) is tuple else 1)
        factors = lead if type(lead) is tuple else (lead,)
        terms: Terms = {}
        constant = 0
        for key, value in p[0].items():
            rest = list(key) if type(key) is tuple else [key]
            if value % d[0][lead] or any(rest.count(factor) < factors.count(factor) for factor in factors):
                continue
            for factor in factors:
                rest.remove(factor)
            if rest:
                terms[self.monomial(*rest)] = value // d[0][lead]
            else:
                constant = value // d[0][lead]
        if (len(d[0]) > 1 or d[1]) and (terms or constant):
            left = add_scaled(p, self.multiply((terms, constant), d), -1)
            if len(left[0]) >= len(p[0]):
                return {}, 0
        return terms, constant

    def recombine(self, terms: Terms, constant: int) -> Poly:
        """Joins k*c*(x // c) + k*(x % c) to k*x, and what `joined` knows."""
        for key, value in terms.items():
            parts = self.parts.get(key)
            if parts is None or parts[0] is not FloorMod:
                continue
            _, inner, divisor = parts
            if type(divisor) is int:
                quotient = self.floordiv_constant(inner, divisor)
                whole = scaled(quotient, divisor)
            elif self.nonneg((divisor[0], divisor[1] - 1)):
                quotient = self.floordiv(inner, divisor)
                whole = self.multiply(quotient, divisor)
            else:
                continue
            if whole[0] and all(terms.get(other) == value * times for other, times in whole[0].items()):
                rest = add_scaled((terms, constant), ({key: 1}, 0), -value)
                rest = add_scaled(rest, whole, -value)
                return self.tidy(*add_scaled(rest, inner, value))
            if type(divisor) is not int:
                continue
            for other, times in terms.items():
                if times != value * divisor:
                    continue
                joined = self.joined(self.parts.get(other), inner, divisor, quotient)
                if joined is not None:
                    rest = add_scaled((terms, constant), ({key: value, other: times}, 0), -1)
                    return self.tidy(*add_scaled(rest, joined, value))
        return terms, constant

    def joined(self, other: tuple[type[Expr], Poly, Any] | None, inner: Poly, c: int, quotient: Poly) -> Poly | None:
        """c*other + inner % c as one, where it is; `quotient` is inner // c.

        other = (inner // c + y) % d    ->   (inner + c*y) % (c*d)
        other = y // c                  ->   y, where y and inner differ by a multiple of c
        """
        if other is None or type(other[2]) is not int:
            return None
        if other[0] is FloorMod:
            more = add_scaled(other[1], quotient, -1)
            if quotient[0] and not any(key in more[0] for key in quotient[0]):
                return self.floormod_constant(add_scaled(inner, more, c), c * other[2])
        if other[0] is FloorDiv and other[2] == c:
            gap = self.floormod_constant(add_scaled(inner, other[1], -1), c)
            return None if gap[0] or gap[1] else other[1]
        return None

    # --------------------------------------------------------------------------------------------------- min, max

    def extremum(self, kind: type[Expr], p: Poly, q: Poly, like: Expr | None = None) -> Poly:
        """min(p, q) or max(p, q), decided where the ranges decide it."""
        difference = add_scaled(p, q, -1)
        low, high = self.interval_of(difference)
        smaller_is_q = (low is not None and low >= 0) or (difference[0] and self.nonneg(difference))
        if smaller_is_q:
            return q if kind is Min else p
        if (high is not None and high <= 0) or (difference[0] and self.nonneg(negate(difference))):
            return p if kind is Min else q
        for one, other in ((p, q), (q, p)):
            parts = self.sole_parts(one)
            if parts is not None and parts[0] is kind:
                for side in (parts[1], parts[2]):
                    gap = add_scaled(other, side, -1)
                    if self.nonneg(gap if kind is Min else negate(gap)):
                        return one
        return self.atom(kind, p, q, like)

    def sole_parts(self, p: Poly) -> tuple[type[Expr], Poly, Any] | None:
        """The parts of the one atom that a polynomial is, if it is one."""
        if len(p[0]) != 1 or p[1]:
            return None
        ((only, value),) = p[0].items()
        return self.parts.get(only) if value == 1 else None


def scaled_or_zero(p: Poly, factor: int) -> Poly:
    """p * factor."""
    return scaled(p, factor) if factor else ({}, 0)


_SPECIAL = frozenset((Mul, FloorDiv, FloorMod, Min, Max))
