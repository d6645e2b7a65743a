"""Every expression simplified with the ranges of the loops around it; statements that do nothing are dropped.

    for i in range(4):                        for i in range(4):
        for j in range(1):                        C[i] = A[i]
            if i + j < 4:                ->
                C[(i * 4 + j) // 4] = A[i]

Tests that always hold (or never do) go away, loops of one iteration become their body, nested tests, and neighbours
under one, become one, and a test tells its branches what it knows. A program whose body becomes empty is `Seq(())`.
"""

from __future__ import annotations

from weft.core.dtypes import INDEX
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    Const,
    Expr,
    Var,
    index_expr,
    int_value,
    is_false,
    is_true,
    logical_and,
    logical_not,
)
from weft.expr.simplify import simplify
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store
from weft.loop.passes.support import adds_nothing, assuming, in_loop, is_empty, known_of, make_if, together
from weft.loop.visit import Mutator, substitute_stmt


def simplify_func(func: Func) -> Func:
    """The program with every expression in its simplest form."""
    simplifier = _Simplifier()
    simplifier.ranges = known_of(func)
    return simplifier.func(func)


class _Simplifier(Mutator):
    def __init__(self) -> None:
        self.ranges = Ranges()

    def expr(self, e: Expr) -> Expr:
        return e if type(e) is Const or type(e) is Var else simplify(e, self.ranges)

    def visit_For(self, s: For) -> Stmt:
        extent = self.expr(s.extent)
        count = int_value(extent)
        if count is not None and count <= 0:
            return Seq(())
        if count == 1 and s.kind != "thread":
            return self.stmt(substitute_stmt(s.body, {s.var: index_expr(0)}))
        outer = self.ranges
        self.ranges = in_loop(outer, s, extent)
        body = self.stmt(s.body)
        self.ranges = outer
        if is_empty(body):
            return Seq(())
        return s if extent is s.extent and body is s.body else s.replace(extent=extent, body=body)

    def visit_Seq(self, s: Seq) -> Stmt:
        new = [self.stmt(child) for child in s.stmts]
        same = all(a is b for a, b in zip(s.stmts, new)) and not any(is_empty(child) for child in new)
        return s if same else together(new)

    def visit_If(self, s: If) -> Stmt:
        condition = self.expr(s.condition)
        if is_true(condition):
            return self.stmt(s.then)
        if is_false(condition):
            return Seq(()) if s.otherwise is None else self.stmt(s.otherwise)
        then = self._under(condition, s.then)
        otherwise = None if s.otherwise is None else self._under(logical_not(condition), s.otherwise)
        if isinstance(then, If) and then.otherwise is None and (otherwise is None or is_empty(otherwise)):
            return If(self.expr(logical_and(condition, then.condition)), then.then)
        if condition is s.condition and then is s.then and otherwise is s.otherwise and not is_empty(then):
            return s
        if is_empty(then) and (otherwise is None or is_empty(otherwise)):
            return Seq(())
        return make_if(condition, then, otherwise)

    def _under(self, condition: Expr, s: Stmt) -> Stmt:
        """A statement simplified where a condition is known to hold."""
        outer = self.ranges
        self.ranges = assuming(outer, condition, s)
        done = self.stmt(s)
        self.ranges = outer
        return done

    def visit_Let(self, s: Let) -> Stmt:
        value = self.expr(s.value)
        if type(value) is Const or type(value) is Var:
            return self.stmt(substitute_stmt(s.body, {s.var: value}))
        outer = self.ranges
        if s.var.dtype is INDEX and outer.knowledge().is_data(value):
            self.ranges = outer.with_data(s.var)
        body = self.stmt(s.body)
        self.ranges = outer
        if is_empty(body):
            return Seq(())
        return s if value is s.value and body is s.body else Let(s.var, value, body)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        if is_empty(body):
            return Seq(())
        return s if body is s.body else Allocate(s.buffer, body)

    def visit_Store(self, s: Store) -> Stmt:
        done = self.generic_stmt(s)
        assert isinstance(done, Store)
        if done.predicate is None:
            return Seq(()) if done is not s and adds_nothing(done) else done
        if is_false(done.predicate):
            return Seq(())
        return Store(done.buffer, done.indices, done.value) if is_true(done.predicate) else done

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        if type(s.value) is Const:
            return Seq(())
        return self.generic_stmt(s)
