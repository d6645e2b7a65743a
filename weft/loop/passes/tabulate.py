"""What an unrolled loop works out again in every step of a loop around it is computed once, into registers.

    for k in range(45):                                        local table: int64[4]
        for b in range(4) unrolled:                            for b in range(4) unrolled:
            copy(s[b], A[(y + b * 32) // 48 * 640 + k])   ->       table[b] = (y + b * 32) // 48 * 640
                                                               for k in range(45):
                                                                   for b in range(4) unrolled:
                                                                       copy(s[b], A[table[b] + k])

The rows of an image that a thread fetches for a convolution are such work: each is found by divisions, and stays the
same while the window moves over it. What moves are the terms of an index that the outer loop does not change, where one
among them divides by more than a shift. The variable of an unrolled loop is a constant in each copy, so a table is as
many registers.
"""

from __future__ import annotations

from typing import Any

from weft.core import model
from weft.core.dtypes import INDEX
from weft.expr.nodes import Buffer, Const, Expr, FloorDiv, FloorMod, Load, Var, index_expr, int_value
from weft.expr.structural import structural_key
from weft.expr.visit import free_vars, rebuild, walk
from weft.loop.ir import Allocate, For, Func, Let, Stmt, Store, seq
from weft.loop.passes.support import Copier, Linear, Names, linear, rename_repeated
from weft.loop.visit import Mutator, walk_stmts


def tabulate(func: Func) -> Func:
    """The program with tables before its loops."""
    if not any(_is_unrolled(s) for s in walk_stmts(func.body)):
        return func
    func = rename_repeated(func)
    return _Steps(Names(func)).func(func)


def _is_unrolled(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == "unrolled" and 1 < (int_value(s.extent) or 0) <= model.MOST_TABLES


class _Steps(Mutator):
    """Finds loops of steps; the outermost gets the tables."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_For(self, s: For) -> Stmt:
        if s.kind != "serial" or (int_value(s.extent) or model.LEAST_TABLE) < model.LEAST_TABLE:
            return self.generic_stmt(s)
        copies = _Copies(s, self.names)
        body = copies.stmt(s.body)
        done: Stmt = s if body is s.body else s.replace(body=body)
        for buffer, loop, value in reversed(copies.tables):
            fill = loop.replace(body=Store(buffer, [loop.var], value))
            done = Allocate(buffer, seq(Copier(self.names).stmt(fill), done))
        return done


class _Copies(Mutator):
    """Rewrites the unrolled loops inside one loop of steps."""

    def __init__(self, steps: For, names: Names) -> None:
        self.names = names
        self.bound = {s.var for s in walk_stmts(steps) if isinstance(s, (For, Let))}
        self.tables: list[tuple[Buffer, For, Expr]] = []
        self.known: dict[Any, Buffer] = {}
        self.around: For | None = None

    def visit_For(self, s: For) -> Stmt:
        """An unrolled loop with no other inside."""
        if self.around is not None or not _is_unrolled(s) or any(isinstance(x, For) for x in walk_stmts(s.body)):
            return self.generic_stmt(s)
        self.around = s
        done = self.generic_stmt(s)
        self.around = None
        return done

    def expr(self, e: Expr) -> Expr:
        """An expression with what stays the same from step to step read from tables."""
        if self.around is None or type(e) is Var or type(e) is Const:
            return e
        return self._sum(e, self.around) if e.dtype is INDEX else rebuild(e, self.expr)

    def _sum(self, e: Expr, around: For) -> Expr:
        form = linear(e)
        fixed = {term: factor for term, factor in form.terms.items() if self._stays(term, around)}
        if not any(_divides(term, around.var) for term in fixed):
            return rebuild(e, self.expr)
        rest = {self.expr(term): factor for term, factor in form.terms.items() if term not in fixed}
        table = self._table(Linear(fixed, 0).expr(), around)
        return Linear({Load(table, [around.var]): 1, **rest}, form.constant).expr()

    def _stays(self, term: Expr, around: For) -> bool:
        """Whether a term is the same in every step, and can be computed before all of them."""
        return not any(
            isinstance(node, Load)
            or (type(node) is Var and node in self.bound and node is not around.var)
            or (isinstance(node, (FloorDiv, FloorMod)) and (int_value(node.b) or 0) <= 0)
            for node in walk(term)
        )

    def _table(self, value: Expr, around: For) -> Buffer:
        key = around.var, structural_key(value)
        if key not in self.known:
            name = self.names.fresh(f"{around.var.name}_table")
            self.known[key] = Buffer(name, INDEX, [index_expr(int_value(around.extent) or 1)], scope="local")
            self.tables.append((self.known[key], around, value))
        return self.known[key]


def _divides(term: Expr, var: Var) -> bool:
    """Whether a term divides what a loop's variable and another one make, by a number that takes more than a shift."""
    return any(
        isinstance(node, (FloorDiv, FloorMod))
        and len(free_vars(node.a)) > 1
        and var in free_vars(node.a)
        and (int_value(node.b) or 0).bit_count() != 1
        for node in walk(term)
    )
