"""Loops of a statement that no schedule reaches, whose turns do not meet, become threads.

    for r in 12:                    independent            for block in 3:             blockIdx.x
      let start = starts[0]                                  for thread in 256:        threadIdx.x
        for e in 64:                independent       ->       let r = (block * 256 + thread) // 64
          new[r, start + e] = rows[r, e]                         let start = …

An operator that is written as loops says so of them (`annotations={"independent": True}`): no turn touches what another
one does, whichever loops are around. So those that are not independent run inside each thread, in their order, even
where they stand around the others. A processor runs all as they stand.
"""

from __future__ import annotations

import math

from weft.core import model
from weft.expr.nodes import Expr, Var, index_expr, int_value
from weft.loop.ir import For, Func, If, Let, Stmt
from weft.loop.visit import Mutator

NAME = "independent"


def bind_independent(func: Func) -> Func:
    """The program with such loops bound; one whose extents are no numbers stays as it is."""
    return func.replace(body=_Binder().stmt(func.body))


class _Binder(Mutator):
    def visit_For(self, s: For) -> Stmt:
        """The outermost of such loops, and of those around them; what runs in threads is left."""
        return s if s.kind == "thread" else self.generic_stmt(s) if (made := _bound(s)) is None else made


def _bound(outermost: For) -> Stmt | None:
    loops: list[For] = []
    kept: list[Let | For] = []
    body: Stmt = outermost
    while isinstance(body, Let) or isinstance(body, For) and body.kind == "serial":
        known = isinstance(body, For) and body.annotations.get(NAME) and int_value(body.extent) is not None
        (loops if known else kept).append(body)  # type: ignore[arg-type]
        body = body.body
    if not loops:
        return None
    total = math.prod(int_value(loop.extent) or 0 for loop in loops)
    threads, block, thread = min(model.BOUND_THREADS, total), Var("block"), Var("thread")
    flat: Expr = block * threads + thread
    inner: Stmt = body
    for one in reversed(kept):
        inner = Let(one.var, one.value, inner) if isinstance(one, Let) else one.replace(body=inner)
    step = 1
    for loop in reversed(loops):
        size = int_value(loop.extent) or 1
        inner = Let(loop.var, flat // step % size, inner)
        step *= size
    if total % threads:
        inner = If(flat < index_expr(total), inner)
    made = For(thread, threads, inner, "thread", "threadIdx.x")
    return For(block, -(-total // threads), made, "thread", "blockIdx.x")
