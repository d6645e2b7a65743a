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
from weft.expr.nodes import (
    Add,
    Buffer,
    Call,
    Expr,
    Load,
    Mul,
    Var,
    add,
    floordiv,
    floormod,
    index_expr,
    int_value,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import substitute
from weft.loop.ir import For, Func, Seq, Stmt, Store
from weft.loop.visit import Mutator, walk_stmts
from weft.targets.gpu import model

MOVED = "moved"


def go_back_and_forth(func: Func) -> Func:
    """The program whose products of a register tile go back and forth."""
    return _Tiles().func(func)


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


class _Tiles(Mutator):
    def visit_For(self, s: For) -> Stmt:
        """A loop over rows of a tile, all of which is written out."""
        inner = s.body
        if s.kind != "unrolled" or not isinstance(inner, For) or inner.kind != "unrolled":
            return self.generic_stmt(s)
        return _through_tile(s, inner) or s


def _through_tile(rows: For, columns: For) -> Stmt | None:
    """Two loops with products of several parts of a tile as two over all of it; None where these are no such loops."""
    (high, wide), (y, x) = (int_value(rows.extent) or 0, int_value(columns.extent) or 0), (rows.var, columns.var)
    stores = columns.body.stmts if isinstance(columns.body, Seq) else (columns.body,)
    found = [indices for s in stores if (indices := _indices(s, y, x)) is not None]
    first = stores[0]
    if len(found) < len(stores) or not isinstance(first, Store) or not isinstance(first.value, Add):
        return None
    at = {tuple(map(_distance, found[0][:2], one[:2])): _distance(found[0][2], one[2]) for one in found}
    tall, broad = (max(part[side] for part in at) + size for side, size in enumerate((high, wide)))
    below, beside = at.get((high, 0), 0), at.get((0, wide), 0)
    down, across = (_step(first.indices[0], var) for var in (y, x))
    whole = {
        (i, j): i // high * below + j // wide * beside for i in range(0, tall, high) for j in range(0, broad, wide)
    }
    sums = {place + i * down + j * across for place in at.values() for i in range(high) for j in range(wide)}
    if at != whole or len(sums) < len(stores) * high * wide:
        return None
    row, column = (_turning(y, tall, x), x) if tall < broad else (y, _turning(x, broad, y))
    sides = ((row, high, below), (column, wide, beside))
    place = substitute(first.indices[0], {y: floormod(row, index_expr(high)), x: floormod(column, index_expr(wide))})
    for index, size, step in sides:
        place = add(place, mul(floordiv(index, index_expr(size)), index_expr(step)))
    product = substitute(first.value.b, {y: row, x: column})
    made: Stmt = Store(first.buffer, (place,), Add(Load(first.buffer, (place,)), product))
    loops = (rows.replace(extent=index_expr(tall), body=made), columns.replace(extent=index_expr(broad), body=made))
    inner, outer = loops if tall < broad else loops[::-1]
    return outer.replace(body=inner)


def _indices(s: Stmt, y: Var, x: Var) -> tuple[Expr, Expr, Expr] | None:
    """Where a sum of products takes its operands from, that of a row and that of a column, and where it stands."""
    if not isinstance(s, Store) or not _is_sum(s) or s.predicate is not None or s.value.dtype.lanes != 1:
        return None
    product = s.value.b  # type: ignore[attr-defined]
    for row, column in ((product.a, product.b), (product.b, product.a)):
        if isinstance(row, Load) and isinstance(column, Load):
            steps = [_step(load.indices[0], var) for load in (row, column) for var in (y, x)]
            if steps == [1, 0, 0, 1]:
                return row.indices[0], column.indices[0], s.indices[0]
    return None


def _distance(a: Expr, b: Expr) -> int:
    """How far one index is from another; -1 where that is not known."""
    found = int_value(simplify(sub(b, a)))
    return -1 if found is None else found


def _step(index: Expr, var: Var) -> int:
    return _distance(index, substitute(index, {var: add(var, index_expr(1))}))


def _turning(var: Var, extent: int, outer: Var) -> Expr:
    """A variable that goes up where another is even, and down where it is odd."""
    down = sub(index_expr(extent - 1), mul(var, index_expr(2)))
    return add(var, mul(floormod(outer, index_expr(2)), down))


class _Moves(Mutator):
    def __init__(self, sums: set[Buffer]) -> None:
        self.sums = sums

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
