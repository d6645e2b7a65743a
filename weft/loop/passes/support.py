"""What several passes share: linear forms of index expressions, fresh names, copies of statements, access sets.

`linear(e)` reads an index expression as   constant + Σ coefficient · term   where a term is a variable or something
that is not linear (kept whole). `Copier` copies a statement so that nothing bound in the copy is bound twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from weft.core.dtypes import INDEX
from weft.expr.bounds import Ranges, interval
from weft.expr.intervals import Interval
from weft.expr.intrinsics import is_pure
from weft.expr.nodes import (
    Add,
    Address,
    And,
    Broadcast,
    Buffer,
    Call,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Mul,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    add,
    index_expr,
    logical_not,
    mul,
    sub,
)
from weft.expr.structural import structural_equal
from weft.expr.visit import map_all, substitute, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.visit import AccessMutator, child_exprs, walk_exprs, walk_stmts

BARRIER = "barrier"
"""The name of the call that waits for every thread of a block."""
GRID_BARRIER = "grid_barrier"
"""That of the call that waits for every thread of every block of a launch, which then run side by side."""

# ------------------------------------------------------------------------------------------------- linear forms


class Linear:
    """constant + Σ coefficient · term; the terms are variables or opaque expressions, told apart by identity."""

    __slots__ = ("terms", "constant")

    def __init__(self, terms: Mapping[Expr, int], constant: int) -> None:
        self.terms = {term: factor for term, factor in terms.items() if factor != 0}
        self.constant = constant

    def plus(self, other: Linear, scale: int = 1) -> Linear:
        """self + scale · other."""
        terms = dict(self.terms)
        for term, factor in other.terms.items():
            terms[term] = terms.get(term, 0) + scale * factor
        return Linear(terms, self.constant + scale * other.constant)

    def shifted(self, by: int) -> Linear:
        """self + by."""
        return Linear(self.terms, self.constant + by)

    def without(self, variable: Expr) -> Linear:
        """The form with one term left out."""
        return Linear({term: factor for term, factor in self.terms.items() if term is not variable}, self.constant)

    def expr(self) -> Expr:
        """The form as an expression: positive terms first, so that it reads naturally."""
        result: Expr | None = None
        for term, factor in sorted(self.terms.items(), key=lambda item: item[1] < 0):
            if result is None:
                result = mul(term, index_expr(factor))
            elif factor < 0:
                result = sub(result, mul(term, index_expr(-factor)))
            else:
                result = add(result, mul(term, index_expr(factor)))
        if result is None:
            return index_expr(self.constant)
        if self.constant < 0:
            return sub(result, index_expr(-self.constant))
        return add(result, index_expr(self.constant))


def linear(e: Expr) -> Linear:
    """The linear form of a scalar index expression."""
    terms: dict[Expr, int] = {}
    constant = _collect(e, 1, terms)
    return Linear(terms, constant)


def _collect(e: Expr, scale: int, terms: dict[Expr, int]) -> int:
    kind = type(e)
    if kind is Const and e.dtype is INDEX:
        return scale * int(e.value)  # type: ignore[attr-defined]
    if e.dtype is INDEX:
        if kind is Add:
            return _collect(e.a, scale, terms) + _collect(e.b, scale, terms)  # type: ignore[attr-defined]
        if kind is Sub:
            return _collect(e.a, scale, terms) + _collect(e.b, -scale, terms)  # type: ignore[attr-defined]
        if kind is Mul:
            left, right = e.a, e.b  # type: ignore[attr-defined]
            if type(right) is Const:
                return _collect(left, scale * int(right.value), terms)
            if type(left) is Const:
                return _collect(right, scale * int(left.value), terms)
    terms[e] = terms.get(e, 0) + scale
    return 0


Bounds = Mapping[Var, "tuple[int, int]"]


def linear_interval(form: Linear, bounds: Bounds) -> tuple[int, int] | None:
    """The least and the greatest value, where every term is a variable with constant bounds."""
    low = high = form.constant
    for term, factor in form.terms.items():
        bound = bounds.get(term) if type(term) is Var else None
        if bound is None:
            return None
        first, last = bound
        low += factor * (first if factor > 0 else last)
        high += factor * (last if factor > 0 else first)
    return low, high


def conjuncts(condition: Expr) -> list[Expr]:
    """The terms of a conjunction, left to right."""
    if isinstance(condition, And):
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [condition]


# -------------------------------------------------------------------------------------------------------- names


class Names:
    """Gives names that are not taken in a program: `i`, then `i_1`, `i_2`, …"""

    def __init__(self, func: Func) -> None:
        self.taken: set[str] = {param.name for param in func.params} | {var.name for var in func.size_vars}
        for stmt in walk_stmts(func.body):
            if isinstance(stmt, (For, Let)):
                self.taken.add(stmt.var.name)
            elif isinstance(stmt, Allocate):
                self.taken.add(stmt.buffer.name)
        self.last: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """A name like `base` that nothing has yet."""
        if base not in self.taken:
            self.taken.add(base)
            return base
        stem = re.sub(r"_\d+$", "", base)
        number = self.last.get(stem, 0) + 1
        while f"{stem}_{number}" in self.taken:
            number += 1
        self.last[stem] = number
        name = f"{stem}_{number}"
        self.taken.add(name)
        return name


class Copier(AccessMutator):
    """A copy of a statement: variables replaced, and everything bound inside renamed so that it is bound once."""

    def __init__(self, names: Names, mapping: Mapping[Var, Expr] | None = None) -> None:
        self.names = names
        self.variables: dict[Var, Expr] = dict(mapping or {})
        self.buffers: dict[Buffer, Buffer] = {}

    def expr(self, e: Expr) -> Expr:
        """The copy of an expression."""
        return super().expr(e) if self.buffers else substitute(e, self.variables)

    def _renamed(self, var: Var) -> Var:
        made = Var(self.names.fresh(var.name), var.dtype)
        self.variables[var] = made
        return made

    def visit_Var(self, e: Var) -> Expr:
        """A variable: what it is replaced by."""
        return self.variables.get(e, e)

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access of the copied buffer, if the buffer is allocated inside."""
        return self.buffers.get(buffer, buffer), indices

    def visit_For(self, s: For) -> Stmt:
        """A loop under a fresh variable."""
        extent = self.expr(s.extent)
        var = self._renamed(s.var)
        return s.replace(var=var, extent=extent, body=self.stmt(s.body))

    def visit_Let(self, s: Let) -> Stmt:
        """A let under a fresh variable."""
        value = self.expr(s.value)
        return Let(self._renamed(s.var), value, self.stmt(s.body))

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """An allocation of a fresh buffer."""
        shape = map_all(s.buffer.shape, self.expr)
        self.buffers[s.buffer] = s.buffer.replace(name=self.names.fresh(s.buffer.name), shape=shape)
        return Allocate(self.buffers[s.buffer], self.stmt(s.body))


class Part(AccessMutator):
    """Accesses of buffers that have several parts name the part first."""

    def __init__(self, parts: Mapping[Buffer, Buffer], part: Expr) -> None:
        self.parts = parts
        self.part = part

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access of a part."""
        made = self.parts.get(buffer)
        return (buffer, indices) if made is None else (made, (self.part, *indices))


def rename_repeated(func: Func) -> Func:
    """The program with every variable and buffer that is bound in more than one place renamed there."""
    seen: set[int] = set()
    names: set[str] = set()
    for stmt in walk_stmts(func.body):
        bound: Any = stmt.var if isinstance(stmt, (For, Let)) else stmt.buffer if isinstance(stmt, Allocate) else None
        if bound is not None:
            if id(bound) in seen or bound.name in names:
                return func.replace(body=Copier(_FreeNames(func)).stmt(func.body))
            seen.add(id(bound))
            names.add(bound.name)
    return func


class _FreeNames(Names):
    """Only what the parameters take is taken, so that a renamed program keeps the names that are still free."""

    def __init__(self, func: Func) -> None:
        self.taken = {param.name for param in func.params} | {var.name for var in func.size_vars}
        self.last = {}


# ------------------------------------------------------------------------------------------------------- access


def loads(e: Expr) -> Iterable[Load]:
    """Every load in an expression."""
    return walk(e, Load)  # type: ignore[return-value]


def has_effect(e: Expr) -> bool:
    """Whether an expression calls something that is not a pure intrinsic."""
    return any(not is_pure(node.name) for node in walk(e, Call))  # type: ignore[attr-defined]


def can_trap(e: Expr, sizes: Collection[Var] = ()) -> bool:
    """Whether evaluating an expression out of turn could go wrong: a load, an effect, a division by a variable that is
    none of some sizes."""
    if walk(e, Load, Address) or has_effect(e):
        return True
    kinds = (FloorDiv, FloorMod, TruncDiv, TruncMod)
    divisors = [node.b for node in walk(e, *kinds) if isinstance(node, kinds)]
    return any(type(b) is not Const and b not in sizes for b in divisors)


def buffers_written(s: Stmt) -> set[Buffer]:
    """Buffers a statement may write (an address that is not read-only counts)."""
    found: set[Buffer] = set()
    for stmt in walk_stmts(s):
        if isinstance(stmt, Store):
            found.add(stmt.buffer)
        for part in child_exprs(stmt):
            for e in walk(part, Address):
                if isinstance(e, Address) and "w" in e.mode:
                    found.add(e.buffer)
    return found


def buffers_read(s: Stmt) -> set[Buffer]:
    """Buffers a statement may read (an address that is not write-only counts)."""
    found: set[Buffer] = set()
    for e in walk_exprs(s, Load, Address):
        if isinstance(e, Load) or (isinstance(e, Address) and "r" in e.mode):
            found.add(e.buffer)
    return found


def is_register(buffer: Buffer) -> bool:
    """Whether a buffer's elements, or its tiles, are registers where loops over them are written out."""
    return buffer.scope == "local" or "." in buffer.scope


def is_call(s: Stmt, name: str) -> bool:
    """Whether a statement is a call of an intrinsic."""
    return isinstance(s, Evaluate) and isinstance(s.value, Call) and s.value.name == name


def is_barrier(s: Stmt) -> bool:
    """Whether a statement is a barrier."""
    return is_call(s, BARRIER)


def meets_grid(s: Stmt) -> bool:
    """Whether blocks of threads wait for one another inside a statement."""
    return any(is_call(one, GRID_BARRIER) for one in walk_stmts(s))


def statements(s: Stmt) -> tuple[Stmt, ...]:
    """The statements of a Seq, or the one statement."""
    return s.stmts if isinstance(s, Seq) else (s,)


def together(parts: Iterable[Stmt]) -> Stmt:
    """Statements in order; neighbours under the same test, whatever is stored and called meanwhile, in one If."""
    made: list[Stmt] = []
    flat = [s for part in parts for s in statements(part)]
    if not any(type(stmt) is If for stmt in flat):
        return seq(*flat)
    for stmt in flat:
        last = made[-1] if made else None
        if type(stmt) is If and type(last) is If and _same_test(stmt.condition, last.condition):
            other = seq(last.otherwise, stmt.otherwise) if last.otherwise or stmt.otherwise else None
            made[-1] = If(stmt.condition, together([last.then, stmt.then]), other)
        else:
            made.append(stmt)
    return seq(*made)


def _same_test(one: Expr, other: Expr) -> bool:
    return (one is other or structural_equal(one, other)) and not walk(one, Load, Call)


def is_empty(s: Stmt | None) -> bool:
    """Whether a statement does nothing."""
    return s is None or (isinstance(s, Seq) and not s.stmts)


def adds_nothing(s: Store) -> bool:
    """Whether a store adds the number 0 to what is there: sums begin with 0, so that none is -0.0."""
    if type(s.value) is not Add or s.predicate is not None:
        return False
    a, b = s.value.a, s.value.b.value if type(s.value.b) is Broadcast else s.value.b
    if type(b) is not Const or b.value != 0 or type(a) is not Load or a.buffer is not s.buffer:
        return False
    return all(map(structural_equal, a.indices, s.indices))


def size_of(s: Stmt) -> int:
    """How many statements there are inside, Seqs not counted."""
    return sum(1 for stmt in walk_stmts(s) if type(stmt) is not Seq)


def make_if(condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """An If; constant conditions and empty branches drop out."""
    if type(condition) is Const:
        return then if condition.value else (otherwise if otherwise is not None else Seq(()))
    if otherwise is None or is_empty(otherwise):
        return Seq(()) if is_empty(then) else If(condition, then)
    return If(logical_not(condition), otherwise) if is_empty(then) else If(condition, then, otherwise)


# ---------------------------------------------------------------------------------------------------- what is known


def assuming(ranges: Ranges, condition: Expr, s: Stmt) -> Ranges:
    """What is known in a statement that runs where a condition holds; not what it says of data that `s` writes."""
    parts = conjuncts(condition)
    if any(True for _ in loads(condition)):
        written = buffers_written(s)
        parts = [part for part in parts if written.isdisjoint(load.buffer for load in loads(part))]
    if not parts:
        return ranges
    known = parts[0]
    for part in parts[1:]:
        known = And(known, part)
    return ranges.with_condition(known)


def in_loop(ranges: Ranges, s: For, extent: Expr) -> Ranges:
    """What is known in the body of a loop; an extent that the body writes was another one when the loop began."""
    if is_written(extent, s.body):
        high = interval(extent, ranges)[1]
        return ranges.with_interval(s.var, (0, None if high is None else high - 1))
    return ranges.with_loop(s.var, extent)


def named(ranges: Ranges, s: Let, value: Expr) -> Ranges:
    """What is known where a name stands for a value; one that the body writes was another one when it was named."""
    if s.var.dtype is INDEX:
        if not is_written(value, s.body):
            return ranges.with_range(s.var, value, value)
        return ranges.with_data(s.var).with_interval(s.var, interval(value, ranges))
    if s.var.dtype.is_integer and s.var.dtype.lanes == 1:
        return ranges.with_interval(s.var, interval(value, ranges))
    return ranges


def known_of(func: Func, values: Mapping[Buffer, Interval] = MappingProxyType({})) -> Ranges:
    """What is known of a program's parameters: sizes are at least 0, other numbers may be any."""
    sizes = {size for buffer in func.buffers for size in buffer.shape if isinstance(size, Var)}
    ranges = Ranges(values=values).with_sizes([*func.size_vars, *sizes])
    for param in func.params:
        if isinstance(param, Var) and param.dtype is INDEX and param not in sizes:
            ranges = ranges.with_data(param)
    return ranges


def is_written(e: Expr, s: Stmt) -> bool:
    """Whether a statement writes what an expression reads, so that it may be another value afterwards."""
    read = {load.buffer for load in loads(e)}
    return bool(read) and not read.isdisjoint(buffers_written(s))
