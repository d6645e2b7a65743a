"""Unrolled loops become copies of their body.

    unrolled for i in range(2):          C[0] = A[0]
        C[i] = A[i]                 ->   C[1] = A[1]

A loop stays a loop (serial) when its extent is not a constant, when the annotation {"unroll_explicit": False} leaves
the work to the code generator, or when the copies would be more than `limit` statements. A serial loop annotated
{"pragma_unroll": k} runs k copies an iteration, and what is left over after it.

A copy of a stored value takes along only that arm of a Select which the copy's numbers choose: a Select over the rows
of a small matrix would else be copied whole for each row.

Copies share what they have in common: an expression that does not change from one copy to another is one object in
both, and an index is what all copies have in common plus a constant. What comes after unrolling is done once for each
object, not once for each place (`Simplifier.visit`, `_LoopMover.expr`, …). Copies under one and the same test, which
speaks of no memory, stand under it together. Loops of one iteration are dissolved too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core import model
from weft.core.dtypes import INDEX
from weft.expr.linear import Linear, Poly
from weft.expr.nodes import (
    Add,
    Address,
    Binary,
    Broadcast,
    Buffer,
    Const,
    Expr,
    Load,
    Mul,
    Ramp,
    Select,
    Sub,
    Var,
    add,
    floordiv,
    index_expr,
    int_value,
    mul,
    sub,
    wrap,
)
from weft.expr.simplify import simplify
from weft.expr.visit import children, map_all
from weft.loop.ir import Allocate, For, Func, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import Copier, Names, linear, together
from weft.loop.passes.support import Linear as LinearForm
from weft.loop.visit import child_stmts, walk_stmts


def unroll(func: Func, limit: int = model.MOST_UNROLLED) -> Func:
    """The program with its unrolled loops written out."""
    loops = [s for s in walk_stmts(func.body) if isinstance(s, For)]
    if not any(loop.kind == "unrolled" or "pragma_unroll" in loop.annotations for loop in loops):
        return func
    unroller = _Unroller(func, limit)
    unroller.measure(func.body)
    unroller.collect(func.body, False)
    return func.replace(body=unroller.stmt(func.body))


class _Sum:
    """A linear index: terms that change from copy to copy, and those that stay, built once."""

    __slots__ = ("terms", "constant", "moving", "fixed", "shares")

    def __init__(self, form: LinearForm, moves: Callable[[Expr], bool], build: Callable[[Poly], Expr]) -> None:
        self.terms, self.constant = list(form.terms.items()), form.constant
        self.moving = [item for item in self.terms if moves(item[0])]
        fixed = {term: factor for term, factor in self.terms if (term, factor) not in self.moving}
        self.shares = not fixed or any(factor > 0 for factor in fixed.values())
        """Whether a constant can be added behind the terms that stay."""
        self.fixed = build((fixed, 0)) if fixed and self.shares else None


class _Unroller(Copier):
    """Copies the program once, outermost loop first, so that each copy of a statement is made in one step."""

    def __init__(self, func: Func, limit: int) -> None:
        super().__init__(Names(func))
        self.limit = limit
        self.sizes: dict[Stmt, int] = {}
        self.copying = False
        self.inside: set[Any] = set()
        """The variables and buffers that may become others: those bound in what is copied."""
        self.names_in: dict[Expr, tuple[Any, ...]] = {}
        self.sums: dict[Expr, _Sum] = {}
        self.made: dict[tuple[Any, ...], Expr] = {}
        self.decided: dict[Expr, Expr] = {}
        """Conditions of Selects, simplified."""
        self.build = Linear({}).build

    # --------------------------------------------------------------------------------------------------- expressions

    def expr(self, e: Expr) -> Expr:
        """The copy of an expression; the one that was made before, where an equal one was."""
        if type(e) is Var:
            return self.variables.get(e, e)
        kind = type(e)
        names = self.names_in.get(e)
        if names is None:
            names = self._names(e)
        if not names:
            return e
        if e.dtype is INDEX and (kind is Add or kind is Sub or kind is Mul):
            return self._index(e)
        if e.dtype.is_float and kind is not Load and kind is not Broadcast:
            return self._handlers[kind](self, e)  # a sum is another one in each copy
        variables, buffers = self.variables, self.buffers
        key = (e, *[buffers.get(n, n) if type(n) is Buffer else variables.get(n, n) for n in names])
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = self._handlers[kind](self, e)
        return found

    def _names(self, e: Expr) -> tuple[Any, ...]:
        """The variables and buffers of an expression that may become others in a copy."""
        if type(e) is Var:
            return (e,) if e in self.inside else ()
        found = self.names_in.get(e)
        if found is None:
            own = (e.buffer,) if isinstance(e, (Load, Address)) and e.buffer in self.inside else ()
            names: dict[Any, None] = dict.fromkeys(own)
            for part in children(e):
                if type(part) is not Const:
                    names.update(dict.fromkeys(self._names(part)))
            found = self.names_in[e] = tuple(names)
        return found

    def visit_Load(self, e: Load) -> Expr:
        """A load: one for each place."""
        buffer, indices = self.buffers.get(e.buffer, e.buffer), map_all(e.indices, self.expr)
        key = (buffer, *indices)
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = Load(buffer, indices)
        return found

    def visit_Ramp(self, e: Ramp) -> Expr:
        """A ramp, likewise."""
        key = (self.expr(e.base), self.expr(e.stride), e.lanes)
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = Ramp(*key)
        return found

    def _index(self, e: Expr) -> Expr:
        """The copy of index arithmetic in normal form: the terms that no copy changes, and a constant."""
        known = self.sums.get(e)
        if known is None:
            known = self.sums[e] = _Sum(linear(e), lambda term: bool(self._names(term)), self.build)
        constant, variables = known.constant, self.variables
        for term, factor in known.moving:
            value = variables.get(term) if type(term) is Var else self.expr(term) if term is not e else None
            if type(value) is not Const:
                return self._rebuilt(e, known)
            constant += factor * value.value
        return self._shifted(known.fixed, constant) if known.shares else self._rebuilt(e, known)

    def _shifted(self, terms: Expr | None, constant: int) -> Expr:
        key = (terms, wrap(constant, INDEX))
        found = self.made.get(key)
        if found is None:
            number = index_expr(abs(key[1]) if terms is not None else key[1])
            made = number if terms is None else terms if not key[1] else (Add if key[1] > 0 else Sub)(terms, number)
            found = self.made[key] = made
        return found

    def _rebuilt(self, e: Expr, known: _Sum) -> Expr:
        """The copy of a sum in which terms become other terms."""
        terms: dict[Any, int] = {}
        constant = known.constant
        for term, factor in known.terms:
            value = self.expr(term) if term is not e else e
            kind = type(value)
            if type(value) is Const:
                constant += factor * value.value
            elif kind is Add or kind is Sub or (kind is Mul and value is not term) or value is e:
                return self.generic(e)
            else:
                terms[value] = terms.get(value, 0) + factor
        terms = {term: factor for term, factor in terms.items() if factor}
        if terms and not any(factor > 0 for factor in terms.values()):
            return self.build((terms, constant))
        key = tuple(terms.items())
        found = self.made.get(key) if terms else None
        if terms and found is None:
            found = self.made[key] = self.build((terms, 0))
        return self._shifted(found, constant)

    # ---------------------------------------------------------------------------------------------------- statements

    def _renamed(self, var: Var) -> Var:
        return super()._renamed(var) if self.copying else var

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """An allocation: of a fresh buffer only inside what is copied."""
        return super().visit_Allocate(s) if self.copying else self.generic_stmt(s)

    def visit_Store(self, s: Store) -> Stmt:
        """A store: of the arms of Selects that this copy chooses."""
        value = self._chosen(s.value) if self.copying and s.value.holds & Select.bit else s.value
        return super().visit_Store(s if value is s.value else Store(s.buffer, s.indices, value, s.predicate))

    def _chosen(self, e: Expr) -> Expr:
        """A value without the Selects around its terms that are decided now."""
        if isinstance(e, Select):
            scalar = e.condition.value if isinstance(e.condition, Broadcast) else e.condition
            copy = self.expr(scalar)
            condition = self.decided.get(copy)
            if condition is None:
                condition = self.decided[copy] = simplify(copy)
            return e if not isinstance(condition, Const) else self._chosen(e.then if condition.value else e.otherwise)
        if isinstance(e, Binary) and e.dtype.is_float:
            a, b = self._chosen(e.a), self._chosen(e.b)
            return e if a is e.a and b is e.b else type(e)(a, b)
        return e

    def measure(self, s: Stmt) -> int:
        """How many statements there will be; remembered for each loop's body."""
        size = int(type(s) is not Seq) + sum(self.measure(child) for child in child_stmts(s))
        if isinstance(s, For):
            size -= 1
            self.sizes[s] = size
            return self._copies_of(s) * size or 1
        return size

    def collect(self, s: Stmt, copied: bool) -> None:
        """Finds what is bound inside of copies."""
        if isinstance(s, For):
            copied = copied or self._copies_of(s) > 0 or int_value(s.extent) == 1
        if copied and isinstance(s, (For, Let, Allocate)):
            self.inside.add(s.buffer if isinstance(s, Allocate) else s.var)
        for child in child_stmts(s):
            self.collect(child, copied)

    def _copies_of(self, loop: For) -> int:
        """How many times a loop's body will be written; 0: the loop stays a loop."""
        extent = int_value(loop.extent)
        if loop.kind == "unrolled":
            explicit = loop.annotations.get("unroll_explicit") is not False
            fits = extent is not None and extent * self.sizes[loop] <= self.limit
            return max(extent, 0) if explicit and fits and extent is not None else 0
        factor = loop.annotations.get("pragma_unroll")
        if loop.kind != "serial" or type(factor) is not int or factor <= 1 or factor * self.sizes[loop] > self.limit:
            return 0
        return factor

    def visit_For(self, s: For) -> Stmt:
        """A loop: its copies, or the loop itself with the loops inside it unrolled."""
        copies = self._copies_of(s)
        extent = int_value(s.extent)
        if extent == 1 and s.kind != "thread":
            return self._copies(s, index_expr(0), 1)
        if s.kind == "unrolled":
            if copies or (extent is not None and extent <= 0):
                return self._copies(s, index_expr(0), copies)
            return super().visit_For(s.replace(kind="serial", annotations={**s.annotations, "unroll_explicit": False}))
        annotations = {key: value for key, value in s.annotations.items() if key != "pragma_unroll"}
        if not copies or len(annotations) == len(s.annotations):
            return super().visit_For(s.replace(annotations=annotations))
        return self._by_factor(s.replace(annotations=annotations), copies)

    def _copies(self, loop: For, first: Expr, count: int) -> Stmt:
        """The body `count` times, with the loop variable first, first + 1, …"""
        outer, copies = self.copying, []
        for number in range(count):
            self.copying = outer or count > 1
            start = int_value(first)
            # One number is one object: copies are told apart by these.
            self.variables[loop.var] = add(first, index_expr(number)) if start is None else index_expr(start + number)
            copies.append(self.stmt(loop.body))
        self.copying = outer
        return together(copies)

    def _by_factor(self, loop: For, factor: int) -> Stmt:
        extent = int_value(loop.extent)
        if extent is not None and extent <= factor:
            return self._copies(loop, index_expr(0), max(extent, 0))
        width, size = index_expr(factor), self.expr(loop.extent)
        whole = floordiv(size, width)
        outer, self.copying = self.copying, True  # the body is written in the main loop and again for the rest
        var = self._renamed(loop.var)
        main = loop.replace(var=var, extent=whole, body=self._copies(loop, mul(var, width), factor))
        start = mul(whole, width)
        if extent is not None:
            rest = self._copies(loop, start, extent % factor)
        else:
            last = self._renamed(loop.var)
            self.variables[loop.var] = add(start, last)
            rest = loop.replace(var=last, extent=sub(size, start), body=self.stmt(loop.body))
        self.copying = outer
        return seq(main, rest)
