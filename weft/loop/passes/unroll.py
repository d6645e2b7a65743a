"""Unrolled loops become copies of their body.

    unrolled for i in range(2):          C[0] = A[0]
        C[i] = A[i]                 ->   C[1] = A[1]

A loop stays a loop (serial) when its extent is not a constant, when the annotation {"unroll_explicit": False} leaves
the work to the code generator, or when the copies would be more than `limit` statements. A serial loop annotated
{"pragma_unroll": k} runs k copies an iteration, and what is left over after it.

A copy of a stored value takes along only that arm of a Select which the copy's numbers choose: a Select over the rows
of a small matrix would else be copied whole for each row.
"""

from __future__ import annotations

from weft.expr.nodes import Binary, Broadcast, Const, Expr, Select, Var, add, floordiv, index_expr, int_value, mul, sub
from weft.expr.simplify import simplify
from weft.expr.visit import substitute
from weft.loop.ir import Allocate, For, Func, Seq, Stmt, Store, seq
from weft.loop.passes.support import Copier, Names
from weft.loop.visit import child_stmts, walk_stmts

LIMIT = 4096
"""The most statements that the copies of one loop may have."""


def unroll(func: Func, limit: int = LIMIT) -> Func:
    """The program with its unrolled loops written out."""
    loops = [s for s in walk_stmts(func.body) if isinstance(s, For)]
    if not any(loop.kind == "unrolled" or "pragma_unroll" in loop.annotations for loop in loops):
        return func
    unroller = _Unroller(func, limit)
    unroller.measure(func.body)
    return func.replace(body=unroller.stmt(func.body))


class _Unroller(Copier):
    """Copies the program once, outermost loop first, so that each copy of a statement is made in one step."""

    def __init__(self, func: Func, limit: int) -> None:
        super().__init__(Names(func))
        self.limit = limit
        self.sizes: dict[Stmt, int] = {}
        self.copying = False

    def _renamed(self, var: Var) -> Var:
        return super()._renamed(var) if self.copying else var

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """An allocation: of a fresh buffer only inside what is copied."""
        return super().visit_Allocate(s) if self.copying else self.generic_stmt(s)

    def visit_Store(self, s: Store) -> Stmt:
        """A store: of the arms of Selects that this copy chooses."""
        value = self._chosen(s.value) if self.copying else s.value
        return super().visit_Store(s if value is s.value else Store(s.buffer, s.indices, value, s.predicate))

    def _chosen(self, e: Expr) -> Expr:
        """A value without the Selects around its terms that are decided now."""
        if isinstance(e, Select):
            scalar = e.condition.value if isinstance(e.condition, Broadcast) else e.condition
            condition = simplify(substitute(scalar, self.variables))
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
            self.variables[loop.var] = add(first, index_expr(number))
            copies.append(self.stmt(loop.body))
        self.copying = outer
        return seq(*copies)

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
