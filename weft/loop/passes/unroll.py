"""Unrolled loops become copies of their body.

    unrolled for i in range(2):          C[0] = A[0]
        C[i] = A[i]                 ->   C[1] = A[1]

A loop stays a loop (serial) when its extent is not a constant, when the annotation {"unroll_explicit": False} leaves
the work to the code generator, or when the copies would be more than `limit` statements. A serial loop annotated
{"pragma_unroll": k} runs k copies an iteration, and what is left over after it.
"""

from __future__ import annotations

from weft.expr.nodes import Expr, add, floordiv, index_expr, int_value, mul, sub
from weft.loop.ir import Allocate, For, Func, Let, Seq, Stmt, seq
from weft.loop.passes.support import Copier, Names, size_of
from weft.loop.visit import Mutator, substitute_stmt, walk_stmts

LIMIT = 4096
"""The most statements that the copies of one loop may have."""


def unroll(func: Func, limit: int = LIMIT) -> Func:
    """The program with its unrolled loops written out."""
    if not any(
        isinstance(s, For) and (s.kind == "unrolled" or "pragma_unroll" in s.annotations) for s in walk_stmts(func.body)
    ):
        return func
    return _Unroller(Names(func), limit).func(func)


class _Unroller(Mutator):
    def __init__(self, names: Names, limit: int) -> None:
        self.names = names
        self.limit = limit

    def expr(self, e: Expr) -> Expr:
        return e

    def visit_For(self, s: For) -> Stmt:
        body = self.stmt(s.body)
        loop = s if body is s.body else s.replace(body=body)
        if loop.kind == "unrolled":
            return self._unrolled(loop)
        factor = loop.annotations.get("pragma_unroll")
        if loop.kind == "serial" and type(factor) is int and factor > 1:
            return self._by_factor(loop, factor)
        return loop

    def _unrolled(self, loop: For) -> Stmt:
        extent = int_value(loop.extent)
        if loop.annotations.get("unroll_explicit") is False:
            return loop.replace(kind="serial")
        if extent is None or extent * size_of(loop.body) > self.limit:
            return loop.replace(kind="serial", annotations={**loop.annotations, "unroll_explicit": False})
        return self._copies(loop, index_expr(0), max(extent, 0))

    def _copies(self, loop: For, first: Expr, count: int) -> Stmt:
        """The body `count` times, with the loop variable first, first + 1, …"""
        binds = any(isinstance(s, (For, Let, Allocate)) for s in walk_stmts(loop.body))
        copies = []
        for number in range(count):
            value = add(first, index_expr(number))
            if binds and number > 0:
                copies.append(Copier(self.names, {loop.var: value}).stmt(loop.body))
            else:
                copies.append(substitute_stmt(loop.body, {loop.var: value}))
        return seq(*copies) if copies else Seq(())

    def _by_factor(self, loop: For, factor: int) -> Stmt:
        extent = int_value(loop.extent)
        annotations = {key: value for key, value in loop.annotations.items() if key != "pragma_unroll"}
        plain = loop.replace(annotations=annotations)
        if factor * size_of(loop.body) > self.limit:
            return plain
        if extent is not None and extent <= factor:
            return self._copies(plain, index_expr(0), max(extent, 0))
        width = index_expr(factor)
        whole = floordiv(loop.extent, width)
        main = plain.replace(extent=whole, body=self._copies(plain, mul(loop.var, width), factor))
        if extent is not None:
            return seq(main, self._rest(plain, index_expr(extent // factor * factor), extent % factor))
        start = mul(whole, width)
        rest = Copier(self.names, {}).stmt(plain.replace(extent=sub(loop.extent, start)))
        assert isinstance(rest, For)
        return seq(main, rest.replace(body=substitute_stmt(rest.body, {rest.var: add(start, rest.var)})))

    def _rest(self, loop: For, start: Expr, count: int) -> Stmt:
        return Seq([Copier(self.names, {loop.var: add(start, index_expr(n))}).stmt(loop.body) for n in range(count)])
