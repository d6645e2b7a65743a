"""Sums of products in registers, so that a multiply-add does not wait for its operands.

The registers of a thread lie in two banks, even and odd ones, each of which gives one operand in a cycle. Of the three
that a multiply-add takes, one may be left from the one before: it takes a cycle if that is so and the other two lie in
different banks. Which registers numbers get is the assembler's matter; what it makes of a program hangs on two things:

    for y in range(4):                               for y in range(4):
      for x in range(4):                               for x in range(4):       back and forth: an operand is left
        sum[4*y + x] += X[x] * Y[y]          ->          sum[4*y + x'] += X[x'] * Y[y]     x' = 3 - x where y is odd
    C[ramp(i, 1, 4)] = sum[ramp(j, 1, 4)]            C[ramp(i, 1, 4)] = moved(sum[ramp(j, 1, 4)])

Numbers that are loaded or stored as a vector lie in neighbouring registers. Where sums do, each lies in the bank of the
operand that it is multiplied by: what is stored is another number then, the sum with -0 added, the same in every bit.
Counted in machine code for an H200 (docs/gpu.md), a tile of 8 × 8 had 0.48 multiply-adds in a cycle, 0.75 with that,
and 0.79 with both. Smaller tiles have more to wait for: they stay as they are.
"""

from __future__ import annotations

import math

from weft.codegen.c.context import Context
from weft.expr.nodes import Add, Buffer, Call, Expr, Load, Mul, add, floormod, index_expr, int_value, mul, sub
from weft.expr.structural import structural_equal
from weft.loop.ir import For, Func, Seq, Stmt, Store
from weft.loop.passes.support import linear
from weft.loop.visit import Mutator, substitute_stmt, walk_stmts
from weft.targets.gpu import model

MOVED = "moved"


def go_back_and_forth(func: Func) -> Func:
    """The program whose products of a register tile go back and forth."""
    return _Rows().func(func)


def move_sums(func: Func) -> Func:
    """The program whose vectors of sums are stored from registers of their own."""
    sums = {s.buffer for s in walk_stmts(func.body) if isinstance(s, Store) and _is_sum(s)}
    return _Moves(sums).func(func) if sums else func


def _is_sum(s: Store) -> bool:
    """Whether a store adds a product to one of a thread's many sums."""
    value, buffer = s.value, s.buffer
    size = math.prod(int_value(extent) or 0 for extent in buffer.shape)
    if buffer.scope != "local" or buffer.dtype.name != "float32" or size < model.LARGE_TILE or len(s.indices) != 1:
        return False
    if not isinstance(value, Add) or not isinstance(value.a, Load) or not isinstance(value.b, Mul):
        return False
    return value.a.buffer is buffer and all(map(structural_equal, value.a.indices, s.indices))


class _Rows(Mutator):
    def expr(self, e: Expr) -> Expr:
        return e

    def visit_For(self, s: For) -> Stmt:
        """A loop over rows of a tile, all of which is written out."""
        inner = s.body
        if s.kind != "unrolled" or not isinstance(inner, For) or inner.kind != "unrolled" or not _are_apart(inner):
            return self.generic_stmt(s)
        last = sub(inner.extent, index_expr(1))
        back = mul(floormod(s.var, index_expr(2)), sub(last, mul(inner.var, index_expr(2))))
        return s.replace(body=inner.replace(body=substitute_stmt(inner.body, {inner.var: add(inner.var, back)})))


def _are_apart(loop: For) -> bool:
    """Whether a loop adds to as many sums as it has products, so that their order is all the same."""
    stores, extent = loop.body.stmts if isinstance(loop.body, Seq) else (loop.body,), int_value(loop.extent)
    if extent is None:
        return False
    places: set[int] = set()
    first: Expr | None = None
    for s in stores:
        if not isinstance(s, Store) or not _is_sum(s) or s.value.dtype.lanes != 1 or s.predicate is not None:
            return False
        first = s.indices[0] if first is None else first
        step = linear(s.indices[0]).terms.get(loop.var, 0)
        offset = linear(sub(s.indices[0], first))
        if offset.terms:
            return False
        places.update(offset.constant + step * at for at in range(extent))
    return len(places) == len(stores) * extent and len({s.buffer for s in stores if isinstance(s, Store)}) == 1


class _Moves(Mutator):
    def __init__(self, sums: set[Buffer]) -> None:
        self.sums = sums

    def expr(self, e: Expr) -> Expr:
        return e

    def visit_Store(self, s: Store) -> Stmt:
        """A vector of sums that is stored as it is."""
        value = s.value
        if s.buffer.scope != "global" or not isinstance(value, Load) or value.buffer not in self.sums:
            return s
        if value.dtype.lanes == 1:
            return s
        return Store(s.buffer, s.indices, Call(MOVED, (value,), value.dtype), s.predicate)


def _moved(c: Context, call: Call) -> list[str]:
    c.helper(
        "weft_moved",
        """DEVICE float weft_moved(float x) {
  float y;
  asm volatile("add.rn.f32 %0, %1, 0f80000000;" : "=f"(y) : "f"(x));
  return y;
}""",
    )
    return [f"weft_moved({text})" for text in c.lanes(call.args[0])]


EMITTERS = {MOVED: _moved}
